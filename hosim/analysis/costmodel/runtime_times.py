"""A machine under a runtime, and the times of its ops there.

Ops on the device take what they take alone over the runtime's ``speed``, and longer by what they
lose to collectives beside them (``exposed``). When the host issues them a replay says
(docs/contract.md, rule 23).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hosim.data.runtime import RUNTIME, Runtime, from_data
from hosim.data.stream_order import earliest_starts
from hosim.edits import CROSSING_KINDS
from hosim.graph import KINDS, Graph
from hosim.hardware import Hardware, Tier

_NS_PER_S = 10**9
_WIDE = ("bf16", "fp16")
_OPTIMIZER, _FP32 = "optimizer", "fp32"


def under_runtime(graph: Graph, hardware: Hardware) -> Hardware:
    """The machine under the runtime that a graph names, or as it is. Raises :class:`HardwareError`
    for one that is none.
    """
    return (
        hardware
        if RUNTIME not in graph.meta
        else machine_under(hardware, from_data(graph.meta[RUNTIME]))
    )


def machine_under(hardware: Hardware, runtime: Runtime) -> Hardware:
    """The machine under a runtime."""
    changed = replace(
        hardware,
        software=runtime,
        tiers=tuple([_with_optimizer(tier, runtime) for tier in hardware.tiers]),
    )
    return _pageable(changed, round(runtime.pageable.value)) if runtime.pageable.value else changed


def _pageable(hardware: Hardware, rate: int) -> Hardware:
    """The machine where no memory beyond the device's is pinned, and copies from and to it reach
    ``rate`` at most.
    """
    device = hardware.device_tier
    tiers = [
        tier if tier.name == device else replace(tier, pageable=tuple(KINDS))
        for tier in hardware.tiers
    ]
    channels = [
        replace(each, pageable_bytes_per_s=min(rate, each.bandwidth_bytes_per_s))
        if device in (each.source, each.destination)
        else each
        for each in hardware.channels
    ]
    return replace(hardware, tiers=tuple(tiers), channels=tuple(channels))


def _with_optimizer(tier: Tier, runtime: Runtime) -> Tier:
    """A tier on whose processor the runtime's optimizer reaches its own share of the bandwidth."""
    share = runtime.cpu_optimizer.value
    if tier.compute is None or not share:
        return tier
    of = {
        **tier.compute.efficiency_of,
        _OPTIMIZER: {**tier.compute.efficiency_of.get(_OPTIMIZER, {}), _FP32: share},
    }
    return replace(tier, compute=replace(tier.compute, efficiency_of=of))


def durations_under(
    graph: Graph, hardware: Hardware, runtime: Runtime, durations: Sequence[int]
) -> tuple[int, ...]:
    """The times of ops, by position, under a runtime; ``durations`` are those that they have alone.

    Measured ones (``duration_ns``) are those of some runtime already and stay as they are, as do
    ops on other processors.
    """
    durations = _with_row_rate(graph, hardware, runtime, durations)
    slower = 1 / Fraction(str(runtime.speed.value))
    exposed = Fraction(str(runtime.exposed.value))
    stands = slower * (1 + (exposed * share_beside(graph, durations) if exposed else 0))
    found: list[int] = []
    for op, ns in zip(graph.ops.each(), durations, strict=True):
        kept = op.duration_ns is not None or op.processor
        scale = slower if op.kind in CROSSING_KINDS else stands
        found.append(ns if kept else -(-ns * scale.numerator // scale.denominator))
    return tuple(found)


def _with_row_rate(
    graph: Graph, hardware: Hardware, runtime: Runtime, durations: Sequence[int]
) -> Sequence[int]:
    """The times where products of one row in 16 bits are done by kernels of which a multiprocessor
    reads so many bytes a second at most: too few loads are under way to have all of a fast memory.
    """
    processor, rate = hardware.compute.processor, round(runtime.row_rate.value)
    if processor is None or not rate:
        return durations
    reads = rate * processor.multiprocessors
    return [
        max(ns, -(-op.bytes_accessed * _NS_PER_S // reads))
        if op.kernel == "gemm" and op.sizes[:1] == (1,) and op.dtype in _WIDE
        else ns
        for op, ns in zip(graph.ops.each(), durations, strict=True)
    ]


def share_beside(graph: Graph, durations: Sequence[int]) -> Fraction:
    """For which share of the time of the device's ops that no one measured collectives run beside
    them, on streams of their own, where everything is resident; collectives on two streams count
    twice. What ops wait for runs beside none.
    """
    starts = earliest_starts(graph, durations)
    collectives: list[tuple[int, int]] = []
    begins, ends, before = [], [], [0]
    for op, start, ns in zip(graph.ops.each(), starts, durations, strict=True):
        if op.kind in CROSSING_KINDS:
            collectives.append((start, start + ns))
        elif op.stream == graph.main_stream and op.duration_ns is None and not op.processor:
            begins.append(start)
            ends.append(start + ns)
            before.append(before[-1] + ns)

    def computed(until: int) -> int:
        """The time of the main stream's ops until then."""
        k = bisect_right(begins, until)
        return before[k] - max(0, ends[k - 1] - until) if k else 0

    beside = sum([computed(end) - computed(start) for start, end in collectives])
    return Fraction(beside, before[-1]) if before[-1] else Fraction(0)
