"""One engine that serves requests: a SimPy simulation of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from hosim.errors import InputError
from hosim.serving.request import Request
from hosim.serving.scheduler import EngineLimits, Iteration, Scheduler
from hosim.serving.served import Sample, Served

IterationTime = Callable[[Iteration], int]
"""Nanoseconds of an iteration."""


def serve_requests(requests: Sequence[Request], limits: EngineLimits, blocks: int, time_of: IterationTime, *, ahead: bool = True) -> Served:
    """Serve requests, sorted by arrival, with a cache of ``blocks`` blocks.

    ``ahead`` says that the next iteration is scheduled when the one before begins (vLLM's asynchronous scheduling): what arrives later
    waits for the one after. Raises :class:`InputError` for a request that the cache has no room for.
    """
    scheduler = Scheduler(requests, limits, blocks)
    check_room(requests, scheduler, limits)
    env = simpy.Environment()
    engine = Engine(env, requests, scheduler, time_of)
    env.process(engine.arrivals())
    env.process(engine.ahead() if ahead else engine.in_turn())
    env.run()
    tokens = tuple(map(tuple, engine.token_ns))
    return Served(
        tuple(requests), tuple(engine.scheduled_ns), tokens, tuple(engine.samples), scheduler.preemptions, scheduler.hit_tokens, blocks
    )


def check_room(requests: Sequence[Request], scheduler: Scheduler, limits: EngineLimits) -> None:
    """Raise :class:`InputError` for a request that the cache has no room for."""
    for number, request in enumerate(requests):
        if not scheduler.fits(request):
            raise InputError(
                f"{request.prompt_tokens + request.output_tokens:,} tokens of prompt and answer do not fit in a cache of "
                f"{scheduler.pool.count * limits.block_tokens:,} tokens",
                where=f"requests[{number}]",
            )


class Engine:
    """One engine: its iterations as a process of the simulation, and when requests were scheduled and got their tokens."""

    def __init__(self, env: simpy.Environment, requests: Sequence[Request], scheduler: Scheduler, time_of: IterationTime) -> None:
        self._env = env
        self._requests = requests
        self._scheduler = scheduler
        self._time_of = time_of
        self._arrived = env.event()
        self._left = len(requests)
        self.scheduled_ns = [-1] * len(requests)
        self.token_ns: list[list[int]] = [[] for _ in requests]
        self.samples: list[Sample] = []

    @property
    def _now(self) -> int:
        return int(self._env.now)

    def arrivals(self) -> Generator[simpy.Event, Any, None]:
        """Each request arrives."""
        for number, request in enumerate(self._requests):
            if request.arrival_ns > self._now:
                yield self._env.timeout(request.arrival_ns - self._now)
            self.offer(number)

    def offer(self, number: int) -> None:
        """A request has come to this engine."""
        self._scheduler.add(number)
        arrived, self._arrived = self._arrived, self._env.event()
        arrived.succeed()

    def in_turn(self) -> Generator[simpy.Event, Any, None]:
        """An iteration is scheduled when the one before has ended."""
        while self._left:
            yield self._env.timeout(0)  # what arrives at this instant is there
            iteration = self._scheduled()
            if iteration is None:
                yield self._arrived
            else:
                end = self._begin(iteration, self._now)
                yield self._env.timeout(end - self._now)
                self._finish(iteration)

    def ahead(self) -> Generator[simpy.Event, Any, None]:
        """An iteration is scheduled when the one before begins."""
        pending: tuple[Iteration, int] | None = None
        while self._left:
            yield self._env.timeout(0)
            iteration = self._scheduled()
            if iteration is None and pending is None:
                yield self._arrived
                continue
            start = self._now if pending is None else pending[1]
            end = 0 if iteration is None else self._begin(iteration, start)
            if pending is not None:
                yield self._env.timeout(pending[1] - self._now)
                self._finish(pending[0])
            pending = None if iteration is None else (iteration, end)

    def _scheduled(self) -> Iteration | None:
        iteration = self._scheduler.schedule()
        for sequence in self._scheduler.admitted:
            if self.scheduled_ns[sequence] < 0:
                self.scheduled_ns[sequence] = self._now
        return iteration

    def _begin(self, iteration: Iteration, start_ns: int) -> int:
        end = start_ns + self._time_of(iteration)
        there = self._scheduler
        held = there.pool.count - there.pool.free
        self.samples.append(Sample(start_ns, end, len(there.running), len(there.waiting), held, iteration.tokens))
        return end

    def _finish(self, iteration: Iteration) -> None:
        for number in iteration.emits:
            tokens = self.token_ns[number]
            tokens.append(self._now)
            if len(tokens) == self._requests[number].output_tokens:
                self._scheduler.finish(number)
                self._left -= 1
