"""What there is to plan: when each op runs if nothing waits, what the device tier holds then, and every gap a tensor could spend below.

First pass of the pipeline (lifetimes and pressure), shared by all that follow. Positions are those of the graph's
listed order; ``start_ns`` and ``end_ns`` are the op times that the plan is made for: at first those of a replay without any wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hosim.costmodel.memory_traffic import machine_of_copies
from hosim.costmodel.op_time import op_durations
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.schedule.lower_tiers import LowerTier, fastest_tiers
from hosim.units import human_size

START = -1
"""``after`` of a gap that begins before the first op."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A tensor is not used between op ``after`` and op ``before``: it could spend that time below.

    ``after`` is :data:`START` for the time before the first use of a tensor that is there at time 0, ``before`` is the number of ops for
    the time after its last; a persistent tensor that no op uses has one gap, the whole step. ``returns`` says whether it must be back at
    the end of it. ``version`` numbers the contents (writes so far), which op ``written`` made (:data:`START`: those of time 0): a store
    serves every later gap of the same version.
    """

    tensor: int
    after: int
    before: int
    version: int
    returns: bool
    written: int = START

    def dead(self, count: int) -> bool:
        """Whether the op at its end writes the contents anew, so that nothing need be kept; ``count`` is the number of ops."""
        return not self.returns and self.before < count


@dataclass(frozen=True)
class Problem:
    """A graph on a machine, ready to plan.

    ``held_bytes[i]`` is what the device tier holds while op i runs if nothing moves, and its last element what it holds after the last
    op; ``floor_bytes[i]`` the least that it must hold: what op i uses, and its workspace. ``below`` are the tiers that
    tensors can move to, fastest round trip first.
    """

    graph: Graph
    hardware: Hardware
    durations: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    below: tuple[LowerTier, ...]
    gaps: tuple[Gap, ...]
    last_write: Mapping[int, int]
    held_bytes: tuple[int, ...]
    floor_bytes: tuple[int, ...]
    starts_below: Mapping[int, str] = field(default_factory=dict)

    @property
    def horizon_ns(self) -> int:
        """End of the last op."""
        return max(self.end_ns, default=0)


def analyse(graph: Graph, hardware: Hardware, times: tuple[Sequence[int], Sequence[int]] | None = None) -> Problem:
    """Pressure points and gaps of a graph on a machine; ``times`` are op starts and ends to plan for (default: nothing waits)."""
    durations = op_durations(graph, hardware)
    start, end = times or unhindered(graph, durations)
    below = fastest_tiers(machine_of_copies(graph, hardware))
    device = hardware.device_tier
    starts_below = {t: home for t in graph.initial if (home := graph.tensors[t].home) is not None and home != device}
    gaps: list[Gap] = []
    last_write: dict[int, int] = {}
    count = len(graph.ops)
    change = [0] * (count + 2)
    for t, users in enumerate(graph.users):
        tensor = graph.tensors[t]
        held_from, held_to = _held(graph, t, users, count, t in starts_below)
        change[held_from] += tensor.size_bytes
        change[held_to] -= tensor.size_bytes
        gaps.extend(_gaps(graph, t, users, count, t in starts_below, last_write))
    held, level = [], 0
    for i in range(count + 1):
        level += change[i]
        held.append(level + (graph.ops[i].workspace_bytes if i < count else 0))
    floor = [op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in op.uses) for op in graph.ops]
    return Problem(
        graph, hardware, durations, tuple(start), tuple(end), below, tuple(gaps), last_write, tuple(held), tuple(floor), starts_below
    )


def _held(graph: Graph, t: int, users: Sequence[int], count: int, starts_below: bool) -> tuple[int, int]:
    """Op positions from and up to which a tensor is in the device tier if nothing moves that need not."""
    initial = t in graph.derived(initial_set)
    if not users and not initial:  # neither there nor ever made
        return 0, 0
    if initial and not starts_below:
        first = 0
    else:
        first = users[0] if users else 0
    if starts_below:
        return first, users[-1] + 1 if users else first
    last = count + 1 if graph.survives[t] or not users else users[-1] + 1
    return first, last


def initial_set(graph: Graph) -> frozenset[int]:
    """Tensors that hold a valid copy at time 0 by default."""
    return frozenset(graph.initial)


def _gaps(graph: Graph, t: int, users: Sequence[int], count: int, starts_below: bool, last_write: dict[int, int]) -> list[Gap]:
    """The gaps of one tensor; notes its last writer."""
    ops = graph.ops
    initial = t in graph.derived(initial_set)
    persistent = bool(graph.tensors[t].persistent)
    gaps: list[Gap] = []
    version, written = 0, START
    if initial and not starts_below:
        if not users:
            return [Gap(t, START, count, 0, False)] if persistent and count else []
        if users[0] > 0 or persistent:  # what op 0 uses may start below, too: op 0 waits, and the end of the step has the room
            gaps.append(Gap(t, START, users[0], 0, t in ops[users[0]].reads))
    for k, u in enumerate(users):
        if t in ops[u].writes:
            version += 1
            last_write[t] = written = u
        if k + 1 < len(users):
            v = users[k + 1]
            if v - u > 1:
                gaps.append(Gap(t, u, v, version, t in ops[v].reads, written))
        elif graph.survives[t] and u + 1 < count and not starts_below:
            gaps.append(Gap(t, u, count, version, initial, written))
    return gaps


def unhindered(graph: Graph, durations: Sequence[int]) -> tuple[list[int], list[int]]:
    """Start and end of every op if nothing waits for memory or transfers."""
    free: dict[str, int] = {}
    start: list[int] = []
    end: list[int] = []
    several = len(graph.streams) > 1
    for i, op in enumerate(graph.ops):
        begin = free.get(op.stream, 0)
        if several:
            begin = max([begin, *(end[p] for p in graph.producers[i])])
        start.append(begin)
        end.append(begin + durations[i])
        free[op.stream] = end[i]
    return start, end


def check_floor(problem: Problem, budget_bytes: int) -> None:
    """Raise :class:`InfeasibleError` if some op needs more than the budget all by itself: no plan can help."""
    floor = problem.floor_bytes
    if floor and max(floor) > budget_bytes:
        i = max(range(len(floor)), key=lambda k: floor[k])
        raise InfeasibleError(
            f"op {problem.graph.ops[i].name!r} alone uses {human_size(floor[i])} ({floor[i]} B), more than the budget of "
            f"{human_size(budget_bytes)}; the smallest budget that any plan could meet is {floor[i]} B"
        )
