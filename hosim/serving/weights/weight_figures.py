"""The figures of weights that a policy planned: where they are, what came up, and how long
iterations waited for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosim.serving.blocks import EngineChannels, KvChannelFigures, channel_figures
from hosim.serving.weights.weight_stream import WeightSetup, WeightStream


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
