"""Weights that come up while iterations compute: each visit of a layer waits for its copy, on the
channels of the engine's devices.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import simpy

from hosim.hardware import Hardware
from hosim.serving.blocks import (
    Awaited,
    EngineChannels,
    KvChannelFigures,
    SteppedClock,
    channel_figures,
)
from hosim.serving.scheduler import Iteration
from hosim.serving.weights.weight_program import WeightCopy, WeightProgram

KIND = "parameter"

Parts = Callable[[Iteration], Sequence[int]]
"""The part that each visit of a layer has of an iteration's time."""

Until = Callable[[Sequence[Awaited]], Generator[simpy.Event, Any, None]]
"""Waits until all are over."""


@dataclass(frozen=True)
class WeightSetup:
    """The setup of engines for planned weights: ``policy`` planned the ``program``. ``machine`` has
    the devices of one engine.

    An iteration begins with ``lead_ns`` of the host; ``parts`` divide the rest. Constants of
    ``beside_bytes`` stay in the device. Each host has ``per_host`` engines; ``None``: one host has
    all.
    """

    policy: str
    machine: Hardware
    program: WeightProgram
    parts: Parts
    lead_ns: int = 0
    beside_bytes: int = 0
    per_host: int | None = None

    def channels(self, clock: SteppedClock, engines: int = 1) -> EngineChannels:
        """The channels of so many engines."""
        return EngineChannels(clock, self.machine, engines, self.per_host)


class WeightStream:
    """The weights of one engine: what is under way, what was copied, and how long iterations
    waited.
    """

    def __init__(self, setup: WeightSetup, channels: EngineChannels, engine: int) -> None:
        self._setup = setup
        self._channels = channels
        self._engine = engine
        self._under_way: dict[int, Awaited] = {}
        self.copies = self.bytes = self.stall_ns = 0
        self._issue(setup.program.across)

    def run(
        self, iteration: Iteration, took_ns: int, until: Until
    ) -> Generator[simpy.Event, Any, None]:
        """An iteration that begins now and computes for ``took_ns``."""
        clock, program, lead = self._channels.clock, self._setup.program, self._setup.lead_ns
        began, stalled = clock.now, self.stall_ns
        if program.steps:
            passed = list(accumulate(self._setup.parts(iteration), initial=0))

            def computed(visits: int) -> int:
                """Return the instant when so many visits have computed, if none of those to come
                waits.
                """
                share = (took_ns - lead) * passed[visits] // passed[-1] if passed[-1] else 0
                return began + lead + share + self.stall_ns - stalled

            for step in program.steps:
                copy = None if step.layer is None else self._under_way.get(step.layer)
                if copy is not None and not copy.over:
                    yield from self._at(computed(step.visit))
                    since = clock.now
                    yield from until([copy])
                    self.stall_ns += clock.now - since
                if step.copies:
                    yield from self._at(computed(step.visit + 1))
                    self._issue(step.copies)
        yield from self._at(began + took_ns + self.stall_ns - stalled)

    def _at(self, time_ns: int) -> Generator[simpy.Event, Any, None]:
        clock = self._channels.clock
        if time_ns > clock.now:
            yield clock.timeout(time_ns - clock.now)

    def _issue(self, copies: Iterable[WeightCopy]) -> None:
        machine, sizes = self._setup.machine, self._setup.program.sizes
        for copy in copies:
            self._under_way[copy.layer] = there = Awaited()
            queue = self._channels.between(self._engine, copy.source, machine.device_tier)
            self.copies += 1
            self.bytes += sizes[copy.layer]
            self._channels.issue(queue, sizes[copy.layer], there, KIND)


# -- figures: where weights are, what came up, and how long iterations waited for it ---------------


@dataclass(frozen=True, slots=True)
class WeightFigures:
    """Weights of each device.

    ``peak_bytes`` are the most that a tier holds of them; those of the device count in program
    order, with the constants that stay there. ``moved_layers`` of ``layers`` come up in each
    iteration, ``iteration_bytes`` together. ``copies`` and ``bytes`` are sums over engines, and so
    is ``stall_ns``, for which iterations waited for weights; copies for an iteration that never
    came count. ``channels`` have all copies of a run, those of a cache below too.
    """

    policy: str
    layers: int
    moved_layers: int
    iteration_bytes: int
    peak_bytes: Mapping[str, int]
    copies: int
    bytes: int
    stall_ns: int
    iterations: int
    channels: Mapping[str, KvChannelFigures]


def weight_figures(
    setup: WeightSetup, channels: EngineChannels, streams: Sequence[WeightStream], iterations: int
) -> WeightFigures:
    """The figures of engines after a run of so many iterations of all of them."""
    program = setup.program
    return WeightFigures(
        setup.policy,
        len(program.sizes),
        len({copy.layer for step in program.steps for copy in step.copies}),
        program.copied_bytes,
        {setup.machine.device_tier: program.peak_bytes + setup.beside_bytes, **program.below},
        sum(stream.copies for stream in streams),
        sum(stream.bytes for stream in streams),
        sum(stream.stall_ns for stream in streams),
        iterations,
        channel_figures(channels.channels, channels.clock.end_ns),
    )
