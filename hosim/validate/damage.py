"""Detection of recordings that no GPU can have made."""

from itertools import pairwise

from hosim.base.groups import grouped
from hosim.errors import InputError
from hosim.io.importers.recordings import KinetoTrace, stream_of
from hosim.units import human_time

INSIDE_NS = 100_000
"""The largest overlap of two ops on one stream. They run one after the other, but clocks are
rounded.
"""

BEFORE_NS = 1_000_000
"""The largest overlap of two kernels of which the second begins before the first ends (programmatic
launches).
"""


def refuse_damage(trace: KinetoTrace, source: str) -> None:
    """Raise :class:`InputError` if ops of one stream overlap by more than a GPU allows.

    Nodes of one CUDA graph may run at the same time, and so may kernels in one queue of HIP, which
    serves several streams.
    """
    if any(call.name.startswith("hip") for call in trace.calls):
        return
    streams = grouped((stream_of(op), i) for i, op in enumerate(trace.ops))
    for (_, stream), queue in streams.items():
        for a, b in pairwise(queue):
            first, second = trace.ops[a], trace.ops[b]
            over = min(first.end_ns, second.end_ns) - second.start_ns
            kernels = first.kind == second.kind == "kernel"
            allowed = BEFORE_NS if kernels and second.end_ns >= first.end_ns else INSIDE_NS
            if over > allowed and (first.call is None or first.call != second.call):
                raise InputError(
                    f"damaged: two ops of stream {stream} run at once for {human_time(over)}, "
                    "which no GPU allows; record it again",
                    source=source,
                    where=f"{first.name[:40]} and {second.name[:40]} at {human_time(second.start_ns)}",
                )
