"""Ops whose FLOP an importer could not count: their estimated time is that of the bytes they move
alone.

An importer names them in ``meta["unknown_ops"]``, so that every table and result of the workload
can say so.
"""

import re
from collections import Counter
from dataclasses import dataclass

from hosim.edits import COLLECTIVE_KINDS
from hosim.graph import Graph, Op
from hosim.plain_text import counted, one_line

UNKNOWN_OPS = "unknown_ops"
"""The key of a graph's ``meta`` under which the names of these ops are."""

COUNTED_KINDS = frozenset({"matmul", "attention", "convolution", "rnn"})
"""Kinds of ops that are never bound by bytes alone: without FLOP, one of them is unknown."""


_KNOWN_LIBRARIES = frozenset(
    {
        "aten",
        "prims",
        "hosim",
        "_c10d_functional",
        "c10d_functional",
        "c10d",
        "record_param_comms",
        "hosim_torchao",
    }
)
"""Libraries of torch whose ops, other than those of :data:`COUNTED_KINDS`, are bound by bytes."""


_MULTIPLIES = re.compile(
    r"(?:^|_)(?:mm|bmm|addmm|baddbmm|attention|rnn|lstm|gru|conv(?:olution)?)(?:_(?!\w*flatten)|\d|$)"
)
"""Names of operators of torch that multiply matrices, gradients among them."""


@dataclass(frozen=True, slots=True)
class UnknownOps:
    """The number of unknown ops, their share of all bytes that ops read and write, and their kinds,
    the most frequent first.
    """

    ops: int
    bytes_share: float
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(self.kinds[:3]) + (", ..." if len(self.kinds) > 3 else "")
        return (
            f"{counted(self.ops, 'op')} of unknown FLOP ({named}; {100 * self.bytes_share:.2g} "
            "% of the bytes), timed by bytes alone"
        )


def unknown_ops(graph: Graph) -> UnknownOps | None:
    """The unknown ops that still have no measured duration; ``None`` if there are none."""
    listed = graph.meta.get(UNKNOWN_OPS)
    if not isinstance(listed, list | tuple) or not listed:
        return None
    names = {name for name in listed if isinstance(name, str)}
    ops = [graph.ops[i] for name, i in graph.op_index.items() if name in names]
    ops = [op for op in ops if op.duration_ns is None]
    if not ops:
        return None
    every = sum(op.bytes_accessed for op in graph.ops.each())
    kinds = Counter(op.kind for op in ops)
    share = sum(op.bytes_accessed for op in ops) / every if every else 0.0
    return UnknownOps(len(ops), share, tuple(sorted(kinds, key=lambda kind: (-kinds[kind], kind))))


def untimed_line(graph: Graph) -> str | None:
    """Return a note on ops that have neither a duration nor anything to time them by; ``None`` if
    there are none.

    >>> from hosim.graph import Graph, Op
    >>> untimed_line(
    ...     Graph(
    ...         "toy",
    ...         (),
    ...         (Op("f", "matmul"), Op("g", "matmul", flops=8), Op("h", "matmul", duration_ns=0)),
    ...     )
    ... )
    '1 op has no duration, no FLOP and no bytes (f): a launch is all its time'
    """
    names = [
        graph.ops[i].name
        for i in graph.ops.those(_may_be_untimed)
        if graph.ops[i].kind not in COLLECTIVE_KINDS
        or not any([graph.tensors[t].size_bytes for t in graph.ops[i].uses])
    ]
    if not names:
        return None
    listed = ", ".join([one_line(name, 60) for name in names[:3]]) + (
        ", ..." if len(names) > 3 else ""
    )
    verb, each = (
        ("has", "a launch is all its time")
        if len(names) == 1
        else ("have", "a launch is all the time of each")
    )
    return (
        f"{counted(len(names), 'op')} {verb} no duration, no FLOP and no bytes ({listed}): {each}"
    )


def _may_be_untimed(op: Op) -> bool:
    """Return whether nothing but its tensors can tell how long an op takes."""
    return not (
        op.duration_ns is not None
        or op.flops
        or op.bytes_accessed
        or op.kernel
        or op.kind in _WITHOUT_WORK
    )


_WITHOUT_WORK = frozenset({"wait_tensor", "barrier"})


def is_unknown(target: str, kind: str, flops: int | None) -> bool:
    """Return whether an op of torch is unknown: one of a library that is not torch's own, or of a
    kind that multiplies, without FLOP.

    >>> (
    ...     is_unknown("aten::relu", "elementwise", None),
    ...     is_unknown("mine.op.default", "op", None),
    ...     is_unknown("aten.mm", "matmul", 12),
    ... )
    (False, True, False)
    """
    library, _, rest = target.replace("::", ".").partition(".")
    multiplies = (
        kind in COUNTED_KINDS or _MULTIPLIES.search(rest.partition(".")[0].strip("_")) is not None
    )
    return flops is None and (multiplies or library not in _KNOWN_LIBRARIES)
