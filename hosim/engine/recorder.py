"""The record of a replay's events, for tests, plots and traces, kept only when asked for."""

from typing import Protocol

from hosim.graph import Graph
from hosim.hardware import Channel, Hardware
from hosim.processors import tier_of
from hosim.result import Residency, Stall, Timeline
from hosim.result import Transfer as TransferRecord


class Moved(Protocol):
    """A transfer of a ``tensor`` on one channel, in nanoseconds and bytes; ``sequence`` is its
    place in the order of issue.
    """

    tensor: int
    sequence: float
    size: int
    issue_ns: int
    start_ns: int
    end_ns: int
    alone_ns: int

    @property
    def cache_op(self) -> int:
        """The place of its cache op in the plan."""

    @property
    def channel(self) -> Channel:
        """Return the channel that it crosses."""


class TimelineRecorder:
    """Collects the timeline of one device's replay."""

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._start = [-1] * len(graph.ops)
        self._end = [-1] * len(graph.ops)
        self._sizes = [tensor.size_bytes for tensor in graph.tensors.each()]
        self._workspaces = [op.workspace_bytes for op in graph.ops.each()]
        self._tiers = [tier.name for tier in hardware.tiers]
        self._tier_of_op = [tier_of(op, hardware) for op in graph.ops]
        self._held: dict[tuple[int, int], int] = {}
        self._residencies: list[Residency] = []
        self._staged: list[tuple[int, int, int, int]] = []
        self._transfers: dict[Moved, TransferRecord] = {}
        self._stalls: list[tuple[int, str, int, int, Moved | None]] = []

    def op(self, i: int, now: int, duration: int) -> None:
        """Op ``i`` starts."""
        self._start[i] = now
        self._end[i] = now + duration

    def op_ended(self, i: int, now: int) -> None:
        """Op ``i`` has ended later than it would have alone."""
        self._end[i] = now

    def stall(self, i: int, cause: str, start: int, end: int, blamed: Moved | None) -> None:
        """The stream waited before op ``i``; a transfer stall is blamed on a transfer that has
        ended.
        """
        self._stalls.append((i, cause, start, end, blamed))

    def hold(self, t: int, tier: int, now: int) -> None:
        """A tensor's bytes are held in a tier from now on."""
        self._held[t, tier] = now

    def release(self, t: int, tier: int, now: int) -> None:
        """A tensor's bytes are released from a tier."""
        self._residencies.append(
            Residency(t, self._tiers[tier], self._held.pop((t, tier)), now, self._sizes[t])
        )

    def stage(self, t: int, tier: int, now: int, size: int) -> None:
        """A chunk of a tensor on its way has bytes in a tier in between from now on."""
        self._staged.append((t, tier, now, size))

    def staged(self, t: int, tier: int, start: int, end: int, size: int) -> None:
        """A chunk that has been staged from ``start`` on has left the tier."""
        self._staged.remove((t, tier, start, size))
        self._residencies.append(Residency(t, self._tiers[tier], start, end, size, staged=True))

    def transfer(self, x: Moved) -> None:
        """A transfer ended."""
        self._transfers[x] = TransferRecord(
            x.cache_op,
            x.tensor,
            x.channel.name,
            x.size,
            x.issue_ns,
            x.start_ns,
            x.end_ns,
            x.end_ns - x.start_ns - x.alone_ns,
        )

    def timeline(self, makespan: int) -> Timeline:
        """Everything recorded; what is still held is held to the end of everything."""
        held = [
            Residency(t, self._tiers[tier], start, makespan, self._sizes[t])
            for (t, tier), start in self._held.items()
        ]
        held += [
            Residency(t, self._tiers[tier], start, makespan, size, staged=True)
            for t, tier, start, size in self._staged
        ]
        ran = [i for i, size in enumerate(self._workspaces) if size and self._start[i] >= 0]
        workspaces = [
            Residency(-1, self._tier_of_op[i], self._start[i], self._end[i], self._workspaces[i], i)
            for i in ran
        ]
        residencies = sorted(
            (*self._residencies, *held, *workspaces),
            key=lambda r: (r.start_ns, r.tier, r.tensor, r.op, r.end_ns),
        )
        # in the order of their ends, then of issue; of what goes ahead of the same cache op (rule
        # 7), as it came there
        ordered = sorted(
            self._transfers, key=lambda x: (x.end_ns, x.sequence, x.issue_ns, x.cache_op)
        )
        place = {x: k for k, x in enumerate(ordered)}
        stalls = [
            Stall(i, cause, start, end, None if x is None else place[x])
            for i, cause, start, end, x in self._stalls
        ]
        transfers = tuple([self._transfers[x] for x in ordered])
        return Timeline(
            tuple(self._start), tuple(self._end), tuple(stalls), transfers, tuple(residencies)
        )
