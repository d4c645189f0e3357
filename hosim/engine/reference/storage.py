"""The storage of one device: the copies of its tensors in each tier, and the bytes that they hold
(docs/contract.md, rules 4, 9, 11, 14, 17).
"""

from collections.abc import Callable, Mapping, Sequence

from hosim.analysis.costmodel.transfers import pin_ns
from hosim.engine.arenas import Arena
from hosim.engine.flow_table import FOR_SOME, UncoveredError
from hosim.engine.ledger import Ledger, composition_of
from hosim.engine.oom_reports import FullTier
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.reference.fluid import Nanoseconds
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE

VALID, WRITING = "valid", "writing"


def amounts(graph: Graph) -> list[tuple[int, int]]:
    """Return the bytes of each tensor, as a number and as a composition by kind."""
    return [
        (tensor.size_bytes, composition_of(tensor.kind, tensor.size_bytes))
        for tensor in graph.tensors.each()
    ]


class TierRoom:
    """One device's view of a tier: ``copies`` has the state of each copy there, by tensor.

    ``ledgers`` count the bytes of this device and, if devices share the tier, of all of them
    (rule 11); ``arena`` gives bytes their addresses (rule 17). ``freed`` is called when memory
    becomes free for which ops and transfers may wait that were tried earlier at this instant.
    """

    def __init__(
        self,
        env: Nanoseconds,
        graph: Graph,
        hardware: Hardware,
        at: int,
        ledgers: Sequence[Ledger],
        arena: Arena | None,
        recorder: TimelineRecorder | None,
        freed: Callable[[], None],
        folded: bool,
    ) -> None:
        self.env, self.graph, self.at, self.ledgers, self.folded = env, graph, at, ledgers, folded
        self.arena, self.recorder, self.freed = arena, recorder, freed
        self.tier = hardware.tiers[at]
        self.amounts = graph.derived(amounts)
        self.copies: dict[int, str] = {}
        kinds = {tensor.kind for tensor in graph.tensors.each()} if self.tier.pin_ns else ()
        self.pins = {kind: pin_ns(hardware, self.tier.name, kind) for kind in kinds}
        self.pinned = self.most_pinned = 0

    # -- bytes
    # ----------------------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit.

        Raises :class:`UncoveredError` if they do not fit in a folded run on a shared tier: which
        device gets the last bytes depends on the order of the devices.
        """
        fits = all([ledger.held + size <= ledger.capacity for ledger in self.ledgers])
        if not fits and self.folded and len(self.ledgers) > 1:
            raise UncoveredError(FOR_SOME)
        return fits

    def take(self, size: int, composition: int) -> None:
        """Hold the bytes of a tensor, of a chunk or of a workspace."""
        for ledger in self.ledgers:
            ledger.allocate(size, composition, self.env.now)

    def free(self, size: int, composition: int) -> None:
        """Release bytes that :meth:`take` held."""
        for ledger in self.ledgers:
            ledger.release(size, composition)
        if len(self.ledgers) > 1:
            self.freed()

    # -- copies
    # ----------------------------------------------------------------------------------------------

    def hold(self, t: int, state: str) -> None:
        """Set the state of a tensor's copy; a new copy holds the tensor's bytes."""
        if t not in self.copies:
            self.take(*self.amounts[t])
            if self.pins:
                self.pinned += self._pinned_bytes(t)
            if self.recorder is not None:
                self.recorder.hold(t, self.at, self.env.now)
        self.copies[t] = state

    def bring(self, t: int) -> int | None:
        """Make a copy that a transfer will fill.

        Returns the nanoseconds to pin it (rule 14), or ``None`` if there is no room.
        """
        if t in self.copies:
            return 0
        size, most = self.amounts[t][0], self.most_pinned
        if not self.fits(size) or (self.arena is not None and not self.arena.take(t)):
            return None
        self.hold(t, WRITING)
        if not self.pins:
            return 0
        self.note_pinned()
        pooled = self.tier.pin_pool and self.pinned <= most
        return self.pins[self.graph.tensors[t].kind] if size and not pooled else 0

    def note_pinned(self) -> None:
        """Update the most bytes that were ever pinned at once."""
        self.most_pinned = max(self.most_pinned, self.pinned)

    def _pinned_bytes(self, t: int) -> int:
        return self.amounts[t][0] if self.pins[self.graph.tensors[t].kind] else 0

    def drop(self, t: int) -> None:
        """Release a tensor's copy."""
        del self.copies[t]
        self.free(*self.amounts[t])
        if self.pins:
            self.pinned -= self._pinned_bytes(t)
        if self.arena is not None:
            self.arena.drop(t)
        if self.recorder is not None:
            self.recorder.release(t, self.at, self.env.now)

    # -- chunks in intermediate tiers (rule 7), workspaces
    # --------------------------------------------------------

    def stage(self, t: int, size: int) -> bool:
        """Hold a chunk in this intermediate tier, and return whether there is room."""
        if not self.fits(size) or (self.arena is not None and not self.arena.stage(t, size)):
            return False
        self.take(size, composition_of(self.graph.tensors[t].kind, size))
        if self.recorder is not None:
            self.recorder.stage(t, self.at, self.env.now, size)
        return True

    def unstage(self, t: int, size: int, since: int) -> None:
        """Release a chunk that has crossed its next hop; it came at ``since`` (ns)."""
        self.free(size, composition_of(self.graph.tensors[t].kind, size))
        if self.arena is not None:
            self.arena.unstage(t, size)
        if self.recorder is not None:
            self.recorder.staged(t, self.at, since, self.env.now, size)

    def begin_op(self, i: int, made: Sequence[int]) -> bool:
        """Hold an op's workspace if it fits with the tensors that the op makes.

        Returns whether it fits.
        """
        size = workspace = self.graph.ops[i].workspace_bytes
        for t in made:
            size += self.amounts[t][0]
        if not self.fits(size) or (self.arena is not None and not self.arena.begin_op(i, made)):
            return False
        if workspace:
            self.take(workspace, composition_of(WORKSPACE, workspace))
        return True

    def end_op(self, i: int) -> None:
        """Release the op's workspace."""
        workspace = self.graph.ops[i].workspace_bytes
        if workspace:
            self.free(workspace, composition_of(WORKSPACE, workspace))
        if self.arena is not None:
            self.arena.end_op(i)

    def full(self) -> FullTier:
        """Return the data of an out-of-memory report on the tier."""
        own = self.ledgers[0] if len(self.ledgers) > 1 else None
        return FullTier(
            self.graph,
            self.tier.name,
            self.env.now,
            self.ledgers[-1],
            own,
            sorted(self.copies),
            self.arena,
        )


class Storage:
    """One device's tiers: ``rooms`` by name, ``everywhere`` in order, and the ``device`` tier."""

    def __init__(self, rooms: Mapping[str, TierRoom], device_tier: str) -> None:
        self.rooms = rooms
        self.everywhere = tuple(rooms.values())
        self.device = rooms[device_tier]

    def release(self, t: int) -> None:
        """Release all copies of a tensor (rule 1)."""
        for room in self.everywhere:
            if t in room.copies:
                room.drop(t)
