"""One engine that serves requests: a SimPy simulation of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import simpy

from hosim.errors import InputError
from hosim.serving.blocks import (
    Awaited,
    KvFigures,
    KvSetup,
    SparseFigures,
    TieredPool,
    kv_figures,
)
from hosim.serving.engine_sequence import HandedOver
from hosim.serving.requests import Request
from hosim.serving.scheduler import EngineLimits, Iteration, Scheduler
from hosim.serving.served import Sample
from hosim.serving.weights import WeightStream

IterationTime = Callable[[Iteration], int]
"""Nanoseconds of an iteration."""


def figures_below(
    kv: KvSetup | None, engines: Sequence[Engine], limits: EngineLimits, end_ns: int
) -> KvFigures | None:
    """Return the figures of the cache in the tiers below the engines' devices, if it is there."""
    if kv is None:
        return None
    schedulers = [engine.scheduler for engine in engines]
    pools = [scheduler.pool for scheduler in schedulers if isinstance(scheduler.pool, TieredPool)]
    reads = pools[0].reads
    causes = ("evictions", "loads") if reads is None else ("evictions", "loads", "fetches")
    thinned = [one.thinned.sequences for one in schedulers if one.thinned is not None]
    return kv_figures(
        kv.policy,
        pools,
        limits.block_tokens,
        max(sample.held_blocks for engine in engines for sample in engine.samples),
        {cause: sum(engine.stall_ns[cause] for engine in engines) for cause in causes},
        [wait for scheduler in schedulers for wait in scheduler.load_waits_ns],
        sum(scheduler.swaps for scheduler in schedulers),
        end_ns,
        None
        if reads is None
        else SparseFigures(
            reads.assumption, sum(thinned), sum(pool.fetched_bytes for pool in pools)
        ),
    )


def check_room(requests: Sequence[Request], scheduler: Scheduler, limits: EngineLimits) -> None:
    """Raise :class:`InputError` for a request that the cache has no room for."""
    for number, request in enumerate(requests):
        if not scheduler.fits(request):
            raise InputError(
                f"{request.prompt_tokens + request.output_tokens:,} tokens of prompt and answer "
                "do not fit in a cache of "
                f"{scheduler.pool.count * limits.block_tokens:,} tokens",
                where=f"requests[{number}]",
            )


class Engine:
    """One engine: its iterations as a process of the simulation, and when requests were scheduled
    and got their tokens.
    """

    def __init__(
        self,
        env: simpy.Environment,
        requests: Sequence[Request],
        scheduler: Scheduler,
        time_of: IterationTime,
        hand_over: Callable[[int, list[int]], None] | None = None,
        begins: Callable[[int, int], None] | None = None,
        weights: WeightStream | None = None,
        ended: Callable[[int], None] | None = None,
    ) -> None:
        self.weights = weights
        self._ended = ended
        self._hand_over = hand_over
        self._begins = begins
        self._env = env
        self._wanted = [request.output_tokens for request in requests]
        self.scheduler = scheduler
        self._time_of = time_of
        self._changed = env.event()
        self._left = len(requests)
        self.scheduled_ns = [-1] * len(requests)
        self.token_ns: list[list[int]] = [[] for _ in requests]
        self.samples: list[Sample] = []
        self.stall_ns = {"evictions": 0, "loads": 0, "fetches": 0, "kv_transfer": 0}
        scheduler.on_load(self.wake)

    @property
    def _now(self) -> int:
        return int(self._env.now)

    def offer(self, number: int, handed: HandedOver | None = None) -> None:
        """A request has come to this engine, from another one if it was ``handed`` over."""
        self.scheduler.add(number, handed)
        self.wake()

    def run(self, ahead: bool) -> Generator[simpy.Event, Any, None]:
        """An iteration is scheduled when the one before has ended, or ``ahead``, when that
        begins.
        """
        pending: tuple[Iteration, int, Sequence[Awaited], Sequence[Awaited]] | None = None
        while self._left:
            yield self._env.timeout(0)  # what arrives at this instant is there
            iteration, sample, gates = self._scheduled()
            reads = self.scheduler.reads
            if iteration is None and pending is None:
                yield from self._idle()
                continue
            if pending is not None:
                yield from self._end(*pending)
            pending = None
            if iteration is not None:
                yield from self._through(gates)
                pending = iteration, *self._begin(iteration, sample), reads
                if not ahead:
                    yield from self._end(*pending)
                    pending = None

    def _end(
        self,
        iteration: Iteration,
        end_ns: int,
        fetched: Sequence[Awaited],
        reads: Sequence[Awaited],
    ) -> Generator[simpy.Event, Any, None]:
        """Wait for the end of the iteration that began last, and for what it reads."""
        yield from self._through_iteration(iteration, end_ns)
        if reads or fetched:
            yield from self._layers(reads, fetched)
        self._finish(iteration)

    def wake(self) -> None:
        """Something arrived: a request, or blocks."""
        changed, self._changed = self._changed, self._env.event()
        changed.succeed()

    def _idle(self) -> Generator[simpy.Event, Any, None]:
        """Wait for something to do."""
        since, cause = self._now, self.scheduler.waits_for
        yield self._changed
        if cause is not None:
            self.stall_ns[cause] += self._now - since

    def _through(self, gates: Sequence[Awaited]) -> Generator[simpy.Event, Any, None]:
        """Wait until blocks can be written."""
        since = self._now
        yield from self._until(gates)
        self.stall_ns["evictions"] += self._now - since

    def _through_iteration(
        self, iteration: Iteration, end_ns: int
    ) -> Generator[simpy.Event, Any, None]:
        """The iteration that began last, which ends at ``end_ns`` unless it waits for weights."""
        if self.weights is None:
            yield self._env.timeout(end_ns - self._now)
            return
        yield from self.weights.run(iteration, end_ns - self._now, self._until)
        if self._now > end_ns:
            self.samples[-1] = replace(self.samples[-1], end_ns=self._now)

    def _layers(
        self, reads: Sequence[Awaited], fetched: Sequence[Awaited]
    ) -> Generator[simpy.Event, Any, None]:
        """The iteration that began last would end now: wait for the layers of what it reads, and of
        what is ``fetched`` for it.

        Each layer takes an equal part of its time, and begins when the one before has ended and its
        blocks are there.
        """
        yield from self._until([*reads, *fetched])
        took = self.samples[-1].end_ns - self.samples[-1].start_ns
        ends = [self.samples[-1].end_ns]
        for awaited in (reads, fetched):
            end = ends[-1]
            for read in awaited:
                parts = len(read.layers_ns)
                for layer, there in enumerate(read.layers_ns):
                    end = max(end, there - (-took * (parts - layer) // parts))
            ends.append(end)
        self.stall_ns["loads"] += ends[1] - ends[0]
        self.stall_ns["fetches"] += ends[2] - ends[1]
        self.samples[-1] = replace(self.samples[-1], end_ns=ends[2])
        if ends[2] > self._now:
            yield self._env.timeout(ends[2] - self._now)

    def _until(self, awaited: Sequence[Awaited]) -> Generator[simpy.Event, Any, None]:
        """Wait until all are over."""
        for one in awaited:
            if not one.over:
                one.then(self.wake)
            while not one.over:
                yield self._changed

    def _scheduled(self) -> tuple[Iteration | None, tuple[int, int, int], Sequence[Awaited]]:
        """The next iteration, those who run and wait, the blocks that are held, and what it waits
        for.
        """
        there = self.scheduler
        iteration = there.schedule()
        for sequence in there.admitted:
            if self.scheduled_ns[sequence] < 0:
                self.scheduled_ns[sequence] = self._now
        return (
            iteration,
            (len(there.running), len(there.waiting), there.pool.count - there.pool.free),
            there.gates,
        )

    def _begin(
        self, iteration: Iteration, sample: tuple[int, int, int]
    ) -> tuple[int, list[Awaited]]:
        """Return the end of the iteration if it waits for nothing, and what is fetched for it."""
        end = self._now + self._time_of(iteration)
        self.samples.append(
            Sample(self._now, end, *sample, iteration.tokens, below=self.scheduler.held_below())
        )
        if self._begins is not None:
            self._begins(self._now, end)
        return end, self.scheduler.fetch(iteration) if iteration.missed else []

    def _finish(self, iteration: Iteration) -> None:
        self.scheduler.ended()
        now, every, wanted, over = self._now, self.token_ns, self._wanted, self._hand_over
        for number in iteration.emits:
            if over is not None:
                blocks = self.scheduler.prefilled(number)
                if blocks is not None:
                    over(number, blocks)
                continue
            tokens = every[number]
            tokens.append(now)
            if len(tokens) == wanted[number]:
                self.scheduler.finish(number)
                self._left -= 1
                if self._ended is not None:
                    self._ended(number)
