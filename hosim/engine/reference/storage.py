"""What lies where on one device: copies of its tensors, and the bytes that they hold (docs/contract.md, rules 4, 9, 11, 14, 17)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hosim.costmodel.transfers import pin_ns
from hosim.engine.arenas import Arena
from hosim.engine.ledger import Ledger, composition_of
from hosim.engine.oom_reports import FullTier
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.reference.fluid import Nanoseconds
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE

VALID, WRITING = "valid", "writing"


class Storage:
    """The state of each tensor's copies, by tier. ``own`` is what this device holds, ``pools`` what all hold that share a tier (rule 11).

    ``freed`` is called when there is room again for which ops and transfers may wait that have been looked at before at this instant.
    """

    def __init__(
        self,
        env: Nanoseconds,
        graph: Graph,
        hardware: Hardware,
        own: Mapping[str, Ledger],
        pools: Mapping[str, Ledger],
        arena: Arena | None,
        recorder: TimelineRecorder | None,
        freed: Callable[[], None],
    ) -> None:
        self.env, self.graph, self.hardware, self.freed = env, graph, hardware, freed
        self.tensors = graph.tensors
        self.own, self.pools, self.recorder = own, pools, recorder
        self.arenas = {} if arena is None else {hardware.device_tier: arena}  # what gives bytes of a tier their addresses (rule 17)
        self.at = hardware.tier_index
        self.amounts = [(tensor.size_bytes, composition_of(tensor.kind, tensor.size_bytes)) for tensor in self.tensors]
        self.workspaces = [(op.workspace_bytes, composition_of(WORKSPACE, op.workspace_bytes)) for op in graph.ops]
        self.copies: list[dict[str, str]] = [{} for _ in self.tensors]
        self.pins = {tier.name for tier in hardware.tiers if tier.pin_ns}
        self.pinned: Counter[str] = Counter()
        self.most_pinned: Counter[str] = Counter()

    # -- bytes ------------------------------------------------------------------------------------------------------

    def fits(self, tier: str, size: int) -> bool:
        """Whether so many bytes more find room in a tier."""
        own, pool = self.own[tier], self.pools.get(tier)
        return own.held + size <= own.capacity and (pool is None or pool.held + size <= pool.capacity)

    def take(self, tier: str, size: int, composition: int) -> None:
        """Hold bytes in a tier: of a tensor, of a chunk on its way, of a workspace."""
        self.own[tier].allocate(size, composition, self.env.now)
        if tier in self.pools:
            self.pools[tier].allocate(size, composition, self.env.now)

    def free(self, tier: str, size: int, composition: int) -> None:
        """Give them back."""
        self.own[tier].release(size, composition)
        if tier in self.pools:
            self.pools[tier].release(size, composition)
            self.freed()

    # -- copies -----------------------------------------------------------------------------------------------------

    def hold(self, t: int, tier: str, state: str) -> None:
        """A copy of a tensor in a tier, which holds its bytes."""
        if tier not in self.copies[t]:
            self.take(tier, *self.amounts[t])
            if tier in self.pins:
                self.pinned[tier] += self._pin_ns(t, tier) and self.tensors[t].size_bytes
            if self.recorder is not None:
                self.recorder.hold(t, self.at[tier], self.env.now)
        self.copies[t][tier] = state

    def bring(self, t: int, tier: str) -> int | None:
        """A transfer brings a tensor into a tier: nanoseconds to pin it there (rule 14); ``None`` if there is no room."""
        if tier in self.copies[t]:
            return 0
        size, most, arena = self.tensors[t].size_bytes, self.most_pinned[tier], self.arenas.get(tier)
        if not self.fits(tier, size) or (arena is not None and not arena.take(t)):
            return None
        self.hold(t, tier, WRITING)
        if tier not in self.pins:
            return 0
        self.note_pinned(tier)
        pooled = self.hardware.tiers[self.at[tier]].pin_pool and self.pinned[tier] <= most
        return self._pin_ns(t, tier) if size and not pooled else 0

    def note_pinned(self, tier: str) -> None:
        """What is pinned now has been pinned."""
        self.most_pinned[tier] = max(self.most_pinned[tier], self.pinned[tier])

    def _pin_ns(self, t: int, tier: str) -> int:
        return pin_ns(self.hardware, tier, self.tensors[t].kind)

    def drop(self, t: int, tier: str) -> None:
        """Release the copy in a tier."""
        del self.copies[t][tier]
        arena = self.arenas.get(tier)
        self.free(tier, *self.amounts[t])
        if tier in self.pins:
            self.pinned[tier] -= self._pin_ns(t, tier) and self.tensors[t].size_bytes
        if arena is not None:
            arena.drop(t)
        if self.recorder is not None:
            self.recorder.release(t, self.at[tier], self.env.now)

    def write(self, t: int, tier: str) -> None:
        """An op writes a tensor in a tier: copies elsewhere are stale (rule 5), and pinned memory takes no time (rule 20)."""
        for other in [other for other in self.copies[t] if other != tier]:
            self.drop(t, other)
            self.freed()
        self.hold(t, tier, WRITING)
        if tier in self.pins:
            self.note_pinned(tier)

    # -- what is no copy: chunks on their way (rule 7), workspaces --------------------------------------------------------

    def stage(self, t: int, tier: str, size: int) -> bool:
        """A chunk of a tensor comes into a tier on its way; false if there is no room."""
        arena = self.arenas.get(tier)
        if not self.fits(tier, size) or (arena is not None and not arena.stage(t, size)):
            return False
        self.take(tier, size, composition_of(self.tensors[t].kind, size))
        if self.recorder is not None:
            self.recorder.stage(t, self.at[tier], self.env.now, size)
        return True

    def unstage(self, t: int, tier: str, size: int, since: int) -> None:
        """It leaves the tier."""
        arena = self.arenas.get(tier)
        self.free(tier, size, composition_of(self.tensors[t].kind, size))
        if arena is not None:
            arena.unstage(t, size)
        if self.recorder is not None:
            self.recorder.staged(t, self.at[tier], since, self.env.now, size)

    def begin_op(self, i: int, tier: str, made: Sequence[int]) -> bool:
        """Hold an op's workspace, if there is room for it and for the tensors that it makes."""
        arena = self.arenas.get(tier)
        if not self.fits(tier, self.workspaces[i][0] + sum([self.amounts[t][0] for t in made])):
            return False
        if arena is not None and not arena.begin_op(i, made):
            return False
        self.take(tier, *self.workspaces[i])
        return True

    def end_op(self, i: int, tier: str) -> None:
        """Release the workspace."""
        arena = self.arenas.get(tier)
        self.free(tier, *self.workspaces[i])
        if arena is not None:
            arena.end_op(i)

    def full(self, tier: str) -> FullTier:
        """What an out-of-memory report says of a tier."""
        own, held = self.own[tier], [t for t, where in enumerate(self.copies) if tier in where]
        shared = self.pools.get(tier)
        return FullTier(self.graph, tier, self.env.now, shared or own, own if shared else None, held, self.arenas.get(tier))
