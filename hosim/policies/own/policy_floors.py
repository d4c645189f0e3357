"""The least that the plans of some policies take, from where their tensors start and what they wait
for: most that lose, lose by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from hosim.costmodel import machine_of_copies, op_durations
from hosim.costmodel.transfers import alone_ns
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import moving_ns
from hosim.schedule import idle_parts_below, insert, kept_from_the_start
from hosim.schedule.tiers_below import Placement, starts

AT_HOME_IF_THEY_FIT = frozenset({"memory_peak", "g10", "longest_gap", "distance"})
"""Policies whose tensors start where :func:`hosim.schedule.tiers_below.lower_tiers.starts` says,
whatever their settings.
"""

_PREFETCHING, _FAULTING = (
    frozenset({"lookahead", "unified_memory"}),
    frozenset({"on_demand", "keep_first", "belady"}),
)
"""Policies that decide while they run, and inspect each op; with the latter nothing comes up before
an op misses it.
"""

_KEEPING = frozenset({"keep_first", "belady"})
"""Policies whose tensors start where :func:`hosim.schedule.steady_start.kept_from_the_start` says;
those of other runtimes as above.
"""

_FORESEEING = frozenset({"belady"})
"""Runtimes that know what comes. What they decide is a good plan without the inspections, too."""

Starts = Mapping[int, tuple[str, ...]]
"""The tiers of what does not start at home, by tensor position."""


class PolicyFloors:
    """The nanoseconds that the plans of policies for a graph, a machine and a budget take at least;
    each figure is computed once.

    ``placement`` is the rule by which the policies choose tiers below, if it is not that of their
    defaults.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        budget_bytes: int,
        placement: Placement | None = None,
    ) -> None:
        self._graph = idle_parts_below(graph, hardware, budget_bytes)  # as every policy finds it
        self._hardware = hardware
        self._budget_bytes = budget_bytes
        self._placement = placement

    def ns(self, policy: str) -> int:
        """Return the floor of a policy with its defaults; 0 if nothing is known about it. It is
        seen from the policy's own rules at once.
        """
        inspect_ns = 0 if policy in _FORESEEING else self._hardware.inspect_ns
        if policy in AT_HOME_IF_THEY_FIT:
            return self._forced_ns_at_home
        if policy in _PREFETCHING:
            return max(
                self._forced_ns_at_home,
                max(busy_ns(self._graph, self._hardware, inspect_ns).values(), default=0),
            )
        if policy in _FAULTING:
            initial, forced = (
                (self._kept, self._forced_ns_kept)
                if policy in _KEEPING
                else (self._at_home, self._forced_ns_at_home)
            )
            return max(forced, faulting_ns(self._graph, self._hardware, initial, inspect_ns))
        return 0

    @cached_property
    def _at_home(self) -> Starts:
        return starts(self._graph, self._hardware, self._budget_bytes, self._placement)

    @cached_property
    def _kept(self) -> Starts:
        return kept_from_the_start(self._graph, self._hardware, self._budget_bytes, self._placement)

    @cached_property
    def _forced_ns_at_home(self) -> int:
        return forced_ns(self._graph, self._hardware, self._at_home)

    @cached_property
    def _forced_ns_kept(self) -> int:
        return forced_ns(self._graph, self._hardware, self._kept)


def forced_ns(graph: Graph, hardware: Hardware, initial: Starts) -> int:
    """Nanoseconds for which a channel is busy at least if tensors start in ``initial``, the others
    at home.

    What is read first comes up once, and what the step writes of it goes back (docs/contract.md,
    rule 2). 0 where all start at home, and where no channels lead up from where one lives.
    """
    try:
        return moving_ns(insert(graph, hardware, "starts", (), initial), hardware) if initial else 0
    except InfeasibleError:
        return 0


def busy_ns(graph: Graph, hardware: Hardware, inspect_ns: int) -> Mapping[str, int]:
    """By stream the nanoseconds that its ops take, each after an inspection of ``inspect_ns``."""
    busy = dict.fromkeys(graph.streams, 0)
    for op, duration in zip(graph.ops, op_durations(graph, hardware), strict=True):
        busy[op.stream] += duration + inspect_ns
    return busy


def faulting_ns(graph: Graph, hardware: Hardware, initial: Starts, inspect_ns: int) -> int:
    """Nanoseconds that a step takes at least if tensors start in ``initial``, the others at home,
    and none comes up before an op misses it.

    Each stream runs its ops and waits for all that starts below and that it alone uses.
    """
    device, machine = hardware.device_tier, machine_of_copies(graph, hardware)
    waits: dict[str, dict[str, int]] = {stream: {} for stream in graph.streams}
    for t in graph.initial:
        users, tiers = graph.users[t], initial.get(t, (graph.tensors[t].home or device,))
        channel = machine.channel_between.get((tiers[0], device))
        if (
            len(tiers) > 1
            or channel is None
            or channel.engines > 1
            or not users
            or t not in graph.ops[users[0]].reads
        ):
            continue
        stream = graph.ops[users[0]].stream
        if all([graph.ops[u].stream == stream for u in users]):
            taken = alone_ns(machine, channel.name, graph.tensors[t].size_bytes)
            waits[stream][channel.name] = waits[stream].get(channel.name, 0) + taken
    busy = busy_ns(graph, hardware, inspect_ns)
    return max(
        [
            busy[stream] + max(by_channel.values(), default=0)
            for stream, by_channel in waits.items()
        ],
        default=0,
    )
