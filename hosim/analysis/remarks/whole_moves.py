"""Tensors that a plan moves whole although ops read or write only a part of them: experts, caches,
tables of embeddings.

hosim moves whole tensors. What an op uses of each is what the cost model counts
(``bytes_accessed``): where that is less than a tensor has, the rest of the tensor moves without
being used, and a plan that moves it in parts would be faster.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hosim.analysis.canonical import canonical_places
from hosim.cache_plan import PREFETCH, STORE, Plan
from hosim.graph import Graph, Op
from hosim.plain_text import counted
from hosim.units import human_size

_NAMELY = 10
"""Bytes that nothing uses are a note from this part of all moved bytes on: a tenth."""

_IN_PARTS = {
    "kv_cache": ("kv_block", "the workload option kv_block moves the cache in blocks"),
}
"""By kind of tensor the option of a builder that says it in parts, and that in words."""


@dataclass(frozen=True, slots=True)
class WholeMoves:
    """Tensors, by position, that move whole in one direction: their bytes, and those of them that
    ops use.
    """

    tensors: tuple[int, ...] = ()
    moved_bytes: int = 0
    used_bytes: int = 0

    @property
    def unused_bytes(self) -> int:
        """The bytes that move and that no op uses."""
        return self.moved_bytes - self.used_bytes


@dataclass(frozen=True, slots=True)
class PartlyUsed:
    """Of each tensor of which the device's ops use a part, by position, about how many bytes they
    read, and how many they write.
    """

    read: Mapping[int, int]
    written: Mapping[int, int]


def partly_used(graph: Graph) -> PartlyUsed:
    """The tensors of which ops use only a part; an op that does not say what it accesses uses all.

    >>> import hosim
    >>> b = hosim.GraphBuilder("a row of a table")
    >>> _ = b.tensor("table", 4096, "parameter"), b.tensor("row", 8)
    >>> _ = b.op("look up", "embedding", inputs=["table"], outputs=["row"], bytes_accessed=16)
    >>> partly_used(b.build())
    PartlyUsed(read={0: 8}, written={})
    """
    if not any([op.bytes_accessed for op in graph.ops.alike]):
        return PartlyUsed({}, {})
    sizes = [tensor.size_bytes for tensor in graph.tensors.each()]
    read, written = array("q", bytes(8 * len(sizes))), array("q", bytes(8 * len(sizes)))
    for op in graph.ops:
        for found, tensors in ((read, op.reads), (written, op.writes)) if not op.processor else ():
            for t in tensors:
                found[t] = min(sizes[t], found[t] + _used(op, t, sizes))
    return PartlyUsed(
        *(
            {t: used for t, used in enumerate(found) if 0 < used < sizes[t]}
            for found in (read, written)
        )
    )


def _used(op: Op, t: int, sizes: Sequence[int]) -> int:
    """About how many bytes of a tensor an op uses: of what it accesses, what the others that it may
    use whole leave.
    """
    size, accessed = sizes[t], op.bytes_accessed
    if not accessed or accessed >= size:
        return size
    left = accessed - sum(
        [sizes[other] for other in op.uses if other != t and sizes[other] < accessed]
    )
    return left if left > 0 else accessed


def whole_moves(plan: Plan, device: str) -> tuple[WholeMoves, WholeMoves]:
    """Return the tensors of which the plan moves more up to the device tier, and back from it, than
    ops use.

    Of a policy that decides while ops run, what has to move: what starts below and is used comes up
    once, and goes back if it is written.
    """
    found = plan.graph.derived(partly_used)
    if not found.read and not found.written:
        return WholeMoves(), WholeMoves()
    if plan.runtime is None:
        ups = Counter(
            [
                c.tensor
                for c in plan.cache_ops
                if c.op == PREFETCH and c.destination == device and c.tensor in found.read
            ]
        )
        downs = Counter(
            [
                c.tensor
                for c in plan.cache_ops
                if c.op == STORE and c.source == device and c.tensor in found.written
            ]
        )
    else:
        below = {t for t, where in plan.residency(device).items() if device not in where}
        ups = Counter([t for t in found.read if t in below])
        downs = Counter([t for t in found.written if t in below and plan.graph.survives[t]])
    return _moved(plan.graph, ups, found.read), _moved(plan.graph, downs, found.written)


def _moved(graph: Graph, times: Mapping[int, int], used: Mapping[int, int]) -> WholeMoves:
    sizes = {t: count * graph.tensors[t].size_bytes for t, count in times.items()}
    places = graph.derived(canonical_places) if sizes else []
    return WholeMoves(
        tuple(sorted(sizes, key=lambda t: (-sizes[t], places[t]))),
        sum(sizes.values()),
        sum([min(used[t], size) for t, size in sizes.items()]),
    )


def whole_move_lines(
    graph: Graph, up: WholeMoves, down: WholeMoves, moved_bytes: int
) -> Iterator[str]:
    """Yield what a reader of the figures of such a plan has to know; nothing where it is little of
    the ``moved_bytes`` of all channels.
    """
    for moves, how, use in ((up, "moves up", "read"), (down, "goes back", "write")):
        if not moves.unused_bytes or moves.unused_bytes * _NAMELY < moved_bytes:
            continue
        first = graph.tensors[moves.tensors[0]]
        others = (
            f" (and {counted(len(moves.tensors) - 1, 'other')})" if len(moves.tensors) > 1 else ""
        )
        moved, used = human_size(moves.moved_bytes), human_size(moves.used_bytes)
        yield (
            f"{first.name}{others} {how} whole, {moved} in all; ops {use} {used} of "
            f"that{_in_parts(graph, first.kind)}"
        )


def _in_parts(graph: Graph, kind: str) -> str:
    """The option of the workload that says it in parts, if its builder has one."""
    builder = graph.meta.get("builder")
    option, says = _IN_PARTS.get(kind, ("", ""))
    if (
        not option
        or not isinstance(builder, Mapping)
        or option in builder
        or builder.get("phase") == "train"
    ):
        return ""
    return f": {says}"
