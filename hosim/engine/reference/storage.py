"""What lies where on one device: copies of its tensors, and the bytes that they hold (docs/contract.md, rules 4, 9, 11, 14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hosim.costmodel.transfers import pin_ns
from hosim.engine.reference.fluid import Nanoseconds
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import WORKSPACE

VALID, WRITING = "valid", "writing"


class Account:
    """Bytes held, by kind, and the most that there were (rule 9)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.kinds: Counter[str] = Counter()
        self.peak = 0
        self.peak_at = 0
        self.at_peak: dict[str, int] = {}

    def take(self, kind: str, size: int, now: int) -> None:
        """Hold so many bytes more; there is room for them."""
        self.held += size
        self.kinds[kind] += size
        if self.held > self.peak:
            self.peak, self.peak_at, self.at_peak = self.held, now, {k: held for k, held in self.kinds.items() if held}

    def free(self, kind: str, size: int) -> None:
        """Hold so many bytes no longer."""
        self.held -= size
        self.kinds[kind] -= size


class Storage:
    """Copies by tensor and tier. ``rooms`` are the tiers' instances (rule 11), of all devices; ``own`` what this device holds of them."""

    def __init__(
        self, env: Nanoseconds, graph: Graph, hardware: Hardware, rooms: Mapping[str, Account], own: Mapping[str, Account]
    ) -> None:
        self.env = env
        self.tensors = graph.tensors
        self.hardware = hardware
        self.rooms = rooms
        self.accounts = {tier: (room,) if own[tier] is room else (own[tier], room) for tier, room in rooms.items()}
        self.copies: dict[tuple[int, str], str] = {}
        self.pinned: Counter[str] = Counter()
        self.most_pinned: Counter[str] = Counter()

    def fits(self, tier: str, size: int) -> bool:
        """Whether so many bytes more find room in a tier."""
        return not size or self.rooms[tier].held + size <= self.rooms[tier].capacity

    def take(self, tier: str, kind: str, size: int) -> None:
        """Hold bytes in a tier: of a tensor, of a chunk on its way, of a workspace."""
        for account in self.accounts[tier]:
            account.take(kind, size, self.env.now)

    def free(self, tier: str, kind: str, size: int) -> None:
        """Give them back."""
        for account in self.accounts[tier]:
            account.free(kind, size)

    def hold(self, t: int, tier: str, state: str) -> None:
        """A copy of a tensor in a tier, which holds its bytes."""
        tensor = self.tensors[t]
        if (t, tier) not in self.copies:
            self.take(tier, tensor.kind, tensor.size_bytes)
            if pin_ns(self.hardware, tier, tensor.kind):
                self.pinned[tier] += tensor.size_bytes
        self.copies[t, tier] = state

    def bring(self, t: int, tier: str) -> int:
        """A transfer brings a tensor into a tier: nanoseconds to pin it there (rule 14)."""
        tensor, most = self.tensors[t], self.most_pinned[tier]
        self.hold(t, tier, WRITING)
        self.note_pinned(tier)
        needed = tensor.size_bytes and (not self.hardware.tiers[self.hardware.tier_index[tier]].pin_pool or self.pinned[tier] > most)
        return pin_ns(self.hardware, tier, tensor.kind) if needed else 0

    def note_pinned(self, tier: str) -> None:
        """What is pinned now has been pinned."""
        self.most_pinned[tier] = max(self.most_pinned[tier], self.pinned[tier])

    def drop(self, t: int, tier: str) -> None:
        """Release the copy in a tier, if there is one."""
        if self.copies.pop((t, tier), None) is not None:
            tensor = self.tensors[t]
            self.free(tier, tensor.kind, tensor.size_bytes)
            if pin_ns(self.hardware, tier, tensor.kind):
                self.pinned[tier] -= tensor.size_bytes

    def write(self, t: int, tier: str) -> None:
        """An op writes a tensor in a tier: copies elsewhere are stale (rule 5), and pinned memory takes no time (rule 20)."""
        for other in self.rooms:
            if other != tier:
                self.drop(t, other)
        self.hold(t, tier, WRITING)
        self.note_pinned(tier)

    def work(self, tier: str, size: int) -> None:
        """Hold an op's workspace."""
        self.take(tier, WORKSPACE, size)

    def unwork(self, tier: str, size: int) -> None:
        """Release it."""
        self.free(tier, WORKSPACE, size)
