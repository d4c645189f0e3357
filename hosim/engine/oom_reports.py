"""The words of out-of-memory reports: who wanted how much, what was held, and the largest
residents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hosim.analysis import canonical_places
from hosim.data.folded_parts import folded, tensors_of
from hosim.engine.arenas import Arena
from hosim.engine.ledger import Ledger
from hosim.graph import Graph
from hosim.units import human_percent, human_size, human_time

_LISTED = 5
_FOR_OTHERS = "waits in vain for other devices"

FOR_OTHERS = f"out of memory: the step {_FOR_OTHERS}"
"""The report of a stage that has not begun, as another one has no room for what it starts with."""


@dataclass(frozen=True, slots=True)
class FullTier:
    """A tier at the instant ``now`` at which a replay ends: its ``ledger``, and the ``tensors`` of
    the device that hold bytes in it.

    ``own`` is what the device itself holds of a tier that several share, ``arena`` what places the
    bytes, if something does.
    """

    graph: Graph
    tier: str
    now: int
    ledger: Ledger
    own: Ledger | None
    tensors: Sequence[int]
    arena: Arena | None = None

    @property
    def of_this(self) -> str:
        """The part of a shared tier that the device itself holds."""
        return f" ({_size(self.own.held)} by this device)" if self.own is not None else ""

    @property
    def held(self) -> str:
        """Return the bytes of it that are held, and by what. Where an allocator makes more of it
        than its bytes, this may be why the rest does not fit.
        """
        arena = ""
        if self.arena is not None:
            state = self.arena.state()
            arena = (
                f" (allocator {self.arena.name}: {_size(state.allocated_bytes)} allocated, "
                f"{_size(state.reserved_bytes)} reserved, "
                f"fragmentation {human_percent(state.fragmentation)}, largest free block "
                f"{_size(state.largest_free_bytes)})"
            )
        return (
            f"of {self.tier} at {human_time(self.now)}, where {_size(self.ledger.held)} of "
            f"{_size(self.ledger.capacity)} are held"
            f"{self.of_this}{arena}; largest residents: {self.largest}"
        )

    @property
    def largest(self) -> str:
        """Its largest residents, with their sizes; parts of one whole together."""
        tensors = self.graph.tensors
        held = sorted(self.tensors, key=self.graph.derived(canonical_places).__getitem__)
        if not held:
            return "none"
        rows = [
            (sum([tensors[held[k]].size_bytes for k in row.places]), row)
            for row in folded((tensors[t], ()) for t in held)
        ]
        rows.sort(key=lambda taken: -taken[0])
        listed = ", ".join(f"{row.name} {_size(size)}" for size, row in rows[:_LISTED])
        more = tensors_of(row for _, row in rows[_LISTED:])
        return listed + (f" and {more} more" if more else "")


def initial(full: FullTier) -> str:
    """One line on an initial residency that is more than a tier holds."""
    held, capacity = _size(full.ledger.held), _size(full.ledger.capacity)
    return (
        f"out of memory: the initial residents of {full.tier} take {held}{full.of_this}, its "
        f"capacity is {capacity}; "
        f"largest residents: {full.largest}"
    )


def unplaced(full: FullTier) -> str:
    """One line on initial residents of the device tier that fit by their bytes, but find no
    place.
    """
    return f"out of memory: the initial residents of {full.tier} want more {full.held}"


def of_op(full: FullTier, i: int) -> str:
    """One line on an op that finds no room for what it allocates."""
    op, held = full.graph.ops[i], set(full.tensors)
    wanted = op.workspace_bytes + sum(
        [full.graph.tensors[t].size_bytes for t in op.outputs if t not in held]
    )
    return f"out of memory: op {op.name!r} wants {_size(wanted)} {full.held}"


def of_transfer(full: FullTier, what: str, t: int, source: str, wanted: int) -> str:
    """One line on a transfer into the tier, of a ``prefetch`` or a ``store``, that finds no room
    for so many bytes.
    """
    name = full.graph.tensors[t].name
    return (
        f"out of memory: {what} of {name!r} ({source} to {full.tier}) wants {_size(wanted)} "
        f"{full.held}"
    )


def in_vain(graph: Graph, i: int, missing: Sequence[int], tier: str) -> str:
    """One line on an op that waits for what never comes: the first tensor that is ``missing`` in
    the tier that it reads, if one is.
    """
    op = graph.ops[i]
    if not missing:
        return (
            f"out of memory: op {op.name!r} waits in vain for its producers or for a transfer "
            "that cannot start"
        )
    tensor = graph.tensors[missing[0]]
    wanted = f"{tensor.name!r} ({_size(tensor.size_bytes)}) to be resident in {tier}"
    return (
        f"out of memory: op {op.name!r} waits in vain for {wanted}: no cache op can bring it "
        "there any more"
    )


def for_others(graph: Graph, i: int) -> str:
    """One line on a collective that has started and waits for other devices."""
    return f"out of memory: op {graph.ops[i].name!r} {_FOR_OTHERS}"


def is_for_others(report: str | None) -> bool:
    """Return whether a report says that the device itself could go on: it waits for others, whose
    reports say why.
    """
    return report is not None and report.endswith(_FOR_OTHERS)


def on_device(report: str, position: int, device: str = "device") -> str:
    """The report of one of several devices, or of what else is called ``device``, which names
    it.
    """
    return report.replace("out of memory", f"out of memory on {device} {position}", 1)


def _size(size: int) -> str:
    return human_size(size) if size < 1024 else f"{human_size(size)} ({size} B)"
