"""Attention on another processor, of which the profile does not say what share of its memory's
bandwidth it reaches.

That share is the software's: FlexGen's PyTorch on a T4's host reaches 0.096 (its cost model,
``cpu_flops``), llama.cpp of December 2023 with its cache in host memory 0.11
(abetlen/llama-cpp-python#999: 101 ms more a token for 487.5 MiB of cache, of 45 GB/s [assumption]),
and profiles take 0.7 of all ops [assumption]. So the time of software that nobody names may be off
by a factor of seven, and every answer says so.
"""

from math import log, sqrt

from hosim.analysis.costmodel.peaks import efficiency_for
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.processors import compute_of

ATTENTION = "attention"
"""The kind of these ops, for which ``efficiency_of`` of a profile has their share."""

_REACHED = (0.096, 0.11)
_ASSUMED = 0.7

UNNAMED_SOFTWARE = sqrt(sum([log(share / _ASSUMED) ** 2 for share in _REACHED]) / len(_REACHED))
"""The spread of the time of such an op: the root of the mean square of the logarithms of what was
measured over what is assumed.
"""


def is_guessed_attention(op: Op, hardware: Hardware) -> bool:
    """Return whether an op is one of these. Raises :class:`HardwareError` if the machine has no
    processor where the op runs.
    """
    if not op.processor or op.kind != ATTENTION or op.duration_ns is not None:
        return False
    compute = compute_of(op, hardware)
    return efficiency_for(compute, op.kind, op.dtype) == efficiency_for(compute, "", op.dtype)


def guessed_attention_line(graph: Graph, hardware: Hardware) -> str | None:
    """Return a note on such ops for readers of figures of this workload on this machine, as one
    line; None if there are none.

    >>> import hosim
    >>> b = hosim.GraphBuilder("decode")
    >>> _ = b.tensor("cache", 4096, "kv_cache", home="ddr")
    >>> _ = b.op(
    ...     "attend",
    ...     "attention",
    ...     inputs=["cache"],
    ...     bytes_accessed=4096,
    ...     stream="ddr",
    ...     processor="ddr",
    ... )
    >>> guessed_attention_line(b.build(), hosim.load_hardware(hosim.find_hardware("h100")))[:47]
    'attention on ddr takes 0.7 of its bandwidth, as'
    """
    found = [op for op in graph.ops.alike if is_guessed_attention(op, hardware)]
    if not found:
        return None
    op, share = (
        found[0],
        float(efficiency_for(compute_of(found[0], hardware), ATTENTION, found[0].dtype)),
    )
    return (
        f"attention on {op.processor} takes {share:g} of its bandwidth, as other ops there, since "
        "nothing says what the software reaches "
        "(FlexGen 0.1, llama.cpp of 2023 0.11). The step may take much longer. "
        f"Give tiers.{op.processor}.compute.efficiency_of.attention.{op.dtype} in the profile"
    )
