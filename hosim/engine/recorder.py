"""What happened, for tests, plots and traces; a replay records it only when asked."""

from __future__ import annotations

from collections.abc import Sequence

from hosim.engine.channels import IssuedTransfer
from hosim.result import Residency, Stall, Timeline
from hosim.result import Transfer as TransferRecord


class TimelineRecorder:
    """Collects the timeline of one device's replay."""

    def __init__(self, ops: int, sizes: Sequence[int], workspaces: Sequence[int], tier_names: Sequence[str], tiers: Sequence[str]) -> None:
        self._start = [-1] * ops
        self._end = [-1] * ops
        self._sizes = sizes
        self._workspaces = workspaces
        self._tiers = tier_names
        self._tier_of_op = tiers
        self._held: dict[tuple[int, int], int] = {}
        self._residencies: list[Residency] = []
        self._staged: list[tuple[int, int, int, int]] = []
        self._transfers: dict[IssuedTransfer, TransferRecord] = {}  # in the order of their ends
        self._stalls: list[tuple[int, str, int, int, IssuedTransfer | None]] = []

    def op(self, i: int, now: int, duration: int) -> None:
        """Op ``i`` starts."""
        self._start[i] = now
        self._end[i] = now + duration

    def op_ended(self, i: int, now: int) -> None:
        """Op ``i`` has ended later than it would have alone."""
        self._end[i] = now

    def stall(self, i: int, cause: str, start: int, end: int, blamed: IssuedTransfer | None) -> None:
        """The stream waited before op ``i``; a transfer stall is blamed on a transfer that has ended."""
        self._stalls.append((i, cause, start, end, blamed))

    def hold(self, t: int, tier: int, now: int) -> None:
        """A tensor's bytes are held in a tier from now on."""
        self._held[t, tier] = now

    def release(self, t: int, tier: int, now: int) -> None:
        """A tensor's bytes are released from a tier."""
        self._residencies.append(Residency(t, self._tiers[tier], self._held.pop((t, tier)), now, self._sizes[t]))

    def stage(self, t: int, tier: int, now: int, size: int) -> None:
        """A chunk of a tensor on its way has bytes in a tier in between from now on."""
        self._staged.append((t, tier, now, size))

    def staged(self, t: int, tier: int, start: int, end: int, size: int) -> None:
        """A chunk that has been staged from ``start`` on has left the tier."""
        self._staged.remove((t, tier, start, size))
        self._residencies.append(Residency(t, self._tiers[tier], start, end, size, staged=True))

    def transfer(self, x: IssuedTransfer) -> None:
        """A transfer ended."""
        contention = x.end_ns - x.start_ns - x.alone_ns
        self._transfers[x] = TransferRecord(x.cache_op, x.tensor, x.channel.name, x.size, x.issue_ns, x.start_ns, x.end_ns, contention)

    def timeline(self, makespan: int) -> Timeline:
        """Everything recorded; what is still held is held to the end of everything."""
        held = [Residency(t, self._tiers[tier], start, makespan, self._sizes[t]) for (t, tier), start in self._held.items()]
        held += [Residency(t, self._tiers[tier], start, makespan, size, staged=True) for t, tier, start, size in self._staged]
        ran = [i for i, size in enumerate(self._workspaces) if size and self._start[i] >= 0]
        workspaces = [Residency(-1, self._tier_of_op[i], self._start[i], self._end[i], self._workspaces[i], i) for i in ran]
        residencies = sorted((*self._residencies, *held, *workspaces), key=lambda r: (r.start_ns, r.tier, r.tensor, r.op, r.end_ns))
        place = {x: k for k, x in enumerate(self._transfers)}
        stalls = [Stall(i, cause, start, end, None if x is None else place[x]) for i, cause, start, end, x in self._stalls]
        return Timeline(tuple(self._start), tuple(self._end), tuple(stalls), tuple(self._transfers.values()), tuple(residencies))
