"""The planning problem: the time of each op if nothing waits, the occupancy of the device tier, and
every gap in which a tensor could be below.

This is the first pass of the pipeline (lifetimes and pressure); all later passes use it. Positions
are those of the graph's listed order. ``start_ns`` and ``end_ns`` are the op times to plan for: at
first those of a replay without waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise

from hosim.analysis import (
    Gap,
    HappensBefore,
    held_from_to,
    held_while,
    initial_set,
    needed_bytes,
    tensor_gaps,
)
from hosim.analysis.costmodel import machine_of_copies, op_durations
from hosim.cache_plan import AT_START
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.tensor_choices.gap_columns import GapColumns, gap_columns
from hosim.planner.schedule.tiers_below import LowerTier, fastest_tiers, route
from hosim.processors import refuse_other_processors
from hosim.units import human_size


@dataclass(frozen=True)
class Problem:
    """A graph on a machine, ready to plan.

    ``held_bytes[i]`` is the occupancy of the device tier while op i runs if nothing moves; the last
    element is that after the last op. ``floor_bytes[i]`` is the least possible occupancy: the
    tensors and the workspace of op i. ``below`` has the tiers that tensors can move to, the fastest
    round trip first. ``starts_below`` has the home of each tensor whose home is a lower tier.
    """

    graph: Graph
    hardware: Hardware
    durations: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    below: tuple[LowerTier, ...]
    gaps: tuple[Gap, ...]
    held_bytes: tuple[int, ...]
    floor_bytes: tuple[int, ...]
    starts_below: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def horizon_ns(self) -> int:
        """The end of the last op in ns."""
        return max(self.end_ns, default=0)

    @cached_property
    def initial(self) -> frozenset[int]:
        """The tensors that hold a valid copy at time 0 by default."""
        return self.graph.derived(initial_set)

    @cached_property
    def order(self) -> HappensBefore:
        """Return the order of ops: those that must have ended when another op has."""
        return self.graph.derived(HappensBefore)

    @cached_property
    def columns(self) -> GapColumns:
        """The gaps as columns."""
        known = {below.name for below in self.below}
        starts = [t for t, tier in self.starts_below.items() if tier in known]
        return gap_columns(self.graph, self.gaps, starts)

    @cached_property
    def gaps_of(self) -> Mapping[int, list[Gap]]:
        """The gaps of each tensor that may move; for a tensor whose home is below and whose first
        use reads it, also the gap before that use.
        """
        users = self.graph.compact_users
        found = {
            t: [Gap(t, AT_START, users.first[t], 0, True)]
            for t in self.starts_below
            if users.reads_first(t)
        }
        for gap in self.gaps:
            found.setdefault(gap.tensor, []).append(gap)
        return found


def _ways_home(graph: Graph, hardware: Hardware, starts_below: Mapping[int, str]) -> None:
    """Raise :class:`InfeasibleError` if no route leads from a home below to the device for a tensor
    that is read first, or back home for one that is written.
    """
    ends = set()
    for t, home in starts_below.items():
        if graph.compact_users.reads_first(t):
            ends.add((home, hardware.device_tier))
        if graph.survives[t] and graph.writers[t]:
            ends.add((hardware.device_tier, home))
    for start, end in sorted(ends):
        route(hardware, (start,), end)


def analyse(
    graph: Graph, hardware: Hardware, times: tuple[Sequence[int], Sequence[int]] | None = None
) -> Problem:
    """Return the planning problem of a graph on a machine; ``times`` are the op starts and ends in
    ns to plan for (default: those of a step without waits).

    Raises :class:`InfeasibleError` if no route leads from a home below, or back to it.
    """
    durations = graph.derived_on(hardware, op_durations)
    start, end = times or unhindered(graph, durations)
    below = fastest_tiers(machine_of_copies(graph, hardware))
    refuse_other_processors(graph, "the planner plans for ops of the device alone")
    device = hardware.device_tier
    starts_below = {
        t: home
        for t in graph.initial
        if (home := graph.tensors[t].home) is not None and home != device
    }
    if times is None:  # given times come from a replay, which had the routes
        _ways_home(graph, hardware, starts_below)
    count = len(graph.ops)
    gaps = [*chain.from_iterable(graph.derived(tensor_gaps))]
    if starts_below:  # under any plan these tensors are below at both ends of the step
        gaps = [
            gap
            for gap in gaps
            if gap.tensor not in starts_below or (gap.after != AT_START and gap.before < count)
        ]
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    workspaces = [*graph.ops.column(lambda op: op.workspace_bytes), 0]
    held = held_while(sizes, *held_from_to(graph, device, starts_below), workspaces)
    return Problem(
        graph,
        hardware,
        durations,
        tuple(start),
        tuple(end),
        below,
        tuple(gaps),
        tuple(held),
        graph.derived(needed_bytes),
        starts_below,
    )


def with_gaps_between_neighbours(problem: Problem) -> Problem:
    """Return the problem with the gaps between consecutive ops as well.

    No op is listed inside such a gap, but the second op may wait, and transfers can use the room
    meanwhile; on several streams, ops of other streams can.
    """
    graph, gaps = problem.graph, list(problem.gaps)
    for t, users in enumerate(graph.users):
        version, written = 0, AT_START
        for u, following in pairwise(users):
            if t in graph.ops[u].writes:
                version, written = version + 1, u
            if following == u + 1:
                gaps.append(Gap(t, u, following, version, t in graph.ops[following].reads, written))
    return replace(problem, gaps=tuple(sorted(gaps, key=lambda gap: (gap.tensor, gap.after))))


def unhindered(graph: Graph, durations: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the start and the end in ns of every op if nothing waits for memory or transfers."""
    free: dict[str, int] = {}
    start: list[int] = []
    end: list[int] = []
    if len(graph.streams) <= 1:
        end = list(accumulate(durations))
        return [0, *end][: len(end)], end
    for op, duration, producers in zip(graph.ops.each(), durations, graph.producers, strict=True):
        begin = free.get(op.stream, 0)
        for p in producers:
            begin = max(begin, end[p])
        start.append(begin)
        free[op.stream] = begin + duration
        end.append(begin + duration)
    return start, end


def check_floor(problem: Problem, budget_bytes: int) -> None:
    """Raise :class:`InfeasibleError` if one op alone exceeds the budget: then no plan fits."""
    floor = problem.floor_bytes
    if floor and max(floor) > budget_bytes:
        i = max(range(len(floor)), key=lambda k: floor[k])
        raise InfeasibleError(
            f"op {problem.graph.ops[i].name!r} alone uses {human_size(floor[i])} ({floor[i]} B), "
            "more than the budget of "
            f"{human_size(budget_bytes)}; the smallest budget that any plan could meet is "
            f"{floor[i]} B"
        )
