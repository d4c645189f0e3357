"""Plans of other policies that hyperoffload tries where waits are left: if a rule of thumb does
better on some graph, its plan is taken.

All are tried with their defaults. What a runtime would decide is put into the graph
(:func:`freeze_runtime`): the plan is a static one, unless nothing else fits. On
several streams what one replay decided may be no legal plan, since the streams may overtake each
other: then the plan is what comes nearest to it. Policies that lose whatever they decide
(:class:`PolicyFloors`) are not asked for plans.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from hosim.analysis.costmodel import machine_of_copies, op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.analysis.verifying import verify
from hosim.cache_plan import CacheOp, MemoryView, Plan, RuntimePolicy
from hosim.data.stream_order import stream_predecessors
from hosim.engine import verdict
from hosim.errors import InfeasibleError, PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import (
    LOCAL_SEARCH,
    RIVAL,
    Arm,
    Found,
    PlannedGraph,
    Search,
    soonest_end_ns,
)
from hosim.planner.hyperoffload.tensor_choices import analyse, choices_of, insert
from hosim.planner.schedule import idle_parts_below, kept_from_the_start
from hosim.planner.schedule.tiers_below import (
    FASTEST,
    Placement,
    known_routes,
    nearest_tiers,
    read_placement,
    starts,
)
from hosim.policies.own.layerwise import WEIGHTS, put_below
from hosim.policies.rules_of_thumb import RULES_OF_THUMB

# -- freeze runtime
# --------------------------------------------------------------------------------------------------
# The decisions of a runtime policy in one replay, as a plan: the same cache ops, in the graph
# from the start.
#
# Each is issued where the op that it was decided for comes next on its stream. The time that the
# runtime spent deciding is gone, and with it the waiting until nothing else was under way, so the
# plan is as fast at least, as a rule; its replay says.


def freeze_runtime(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    to_beat_ns: int | None = None,
    legal: Callable[[Plan], Plan | None] = lambda _: None,
) -> Plan | None:
    """The plan without a runtime that decides as ``plan``'s does; none if it does not fit there, or
    takes longer than ``to_beat_ns``.

    Where its decisions are no legal plan, it is what ``legal`` makes of them. A plan that has no
    runtime is returned as it is. With several devices the decisions of the first one count.
    """
    runtime = plan.runtime
    if runtime is None:
        return plan
    previous = plan.graph.derived(stream_predecessors)
    latest = (
        None
        if to_beat_ns is None
        else [to_beat_ns - left for left in plan.graph.derived_on(hardware, _left_ns)]
    )
    notes: list[list[CacheOp]] = []

    def noted() -> RuntimePolicy:
        notes.append([])
        return _RecordingPolicy(runtime(), previous, notes[-1], latest)

    try:
        makespan_ns = verdict(replace(plan, runtime=noted), hardware, budget_bytes).makespan_ns
    except _TooLateError:
        return None
    if makespan_ns is None or (to_beat_ns is not None and makespan_ns > to_beat_ns):
        return None
    cache_ops = sorted((*plan.cache_ops, *notes[0]), key=lambda cache_op: cache_op.after)
    static = replace(plan, cache_ops=tuple(cache_ops), runtime=None)
    try:
        return legal(static) if verify(static, hardware, budget_bytes) else static
    except PlanError:
        return None


def _left_ns(graph: Graph, hardware: Hardware) -> list[int]:
    """By op the nanoseconds that it and those after it on its stream take."""
    left = dict.fromkeys(graph.streams, 0)
    found = []
    for op, duration in zip(
        reversed(graph.ops), reversed(op_durations(graph, hardware)), strict=True
    ):
        left[op.stream] += duration
        found.append(left[op.stream])
    return found[::-1]


class _TooLateError(Exception):
    """The replay cannot end as early as it would have to."""


class _RecordingPolicy:
    """A runtime policy whose decisions are noted; the replay ends where an op comes later than its
    ``latest`` instant.
    """

    def __init__(
        self,
        policy: RuntimePolicy,
        previous: Sequence[int],
        notes: list[CacheOp],
        latest: Sequence[int] | None,
    ) -> None:
        self._policy = policy
        self._previous = previous
        self._notes = notes
        self._latest = latest

    @property
    def inspected(self) -> Container[int] | None:
        """The ops before which the policy decides something; none if before each."""
        inspected: Container[int] | None = getattr(self._policy, "inspected", None)
        return inspected

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.before_op`."""
        if self._latest is not None and view.now_ns > self._latest[op]:
            raise _TooLateError
        return self._note(op, self._policy.before_op(op, view))

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.make_room`."""
        return self._note(op, self._policy.make_room(op, wanted_bytes, view))

    def _note(self, op: int, decisions: Iterable[CacheOp]) -> Iterable[CacheOp]:
        found = list(decisions)
        self._notes += [replace(cache_op, after=self._previous[op]) for cache_op in found]
        return found


# -- policy floors
# --------------------------------------------------------------------------------------------------
# The least that the plans of some policies take, from where their tensors start and what they
# wait for: most that lose, lose by that.

AT_HOME_IF_THEY_FIT = frozenset({"memory_peak", "g10", "longest_gap", "distance"})
"""Policies whose tensors start where :func:`hosim.planner.schedule.tiers_below.lower_tiers.starts` says,
whatever their settings.
"""

_PREFETCHING, _FAULTING = (
    frozenset({"lookahead", "unified_memory"}),
    frozenset({"on_demand", "keep_first", "belady"}),
)
"""Policies that decide while they run, and inspect each op; with the latter nothing comes up before
an op misses it.
"""

_STREAMING = "layerwise"
"""The policy that starts all weights below."""

_KEEPING = frozenset({"keep_first", "belady"})
"""Policies whose tensors start where :func:`hosim.planner.schedule.stays.kept_from_the_start` says;
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
        if policy == _STREAMING:
            return self._forced_ns_streamed
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
    def _forced_ns_streamed(self) -> int:
        streamed = put_below(self._graph, self._hardware, WEIGHTS, self._placement)
        return forced_ns(self._graph, self._hardware, streamed)

    @cached_property
    def _forced_ns_kept(self) -> int:
        return forced_ns(self._graph, self._hardware, self._kept)


def forced_ns(graph: Graph, hardware: Hardware, initial: Starts) -> int:
    """Nanoseconds for which a channel is busy at least if tensors start in ``initial``, the others
    at home.

    What is read first comes up once, and what the step writes of it goes back (docs/contract.md,
    rule 2). 0 where all start at home, and where no channels lead up from where one lives.
    """
    if not initial:
        return 0
    device, users = hardware.device_tier, graph.compact_users
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    survives, writers = graph.survives, graph.writers
    copied = Counter[tuple[tuple[str, ...], str, int]]()
    for t, tiers in Plan(graph, initial=dict(initial)).residency(device).items():
        if len(tiers) == 1 and tiers[0] == device:
            continue
        own, size = tuple([tier for tier in tiers if tier != device]), sizes[t]
        if len(own) == len(tiers) and users.reads_first(t):
            copied[own, device, size] += 1
        if survives[t] and writers[t]:
            copied.update([((device,), tier, size) for tier in own])
    routes, machine = known_routes(hardware), machine_of_copies(graph, hardware)
    busy = Counter[str]()
    try:
        for (sources, destination, size), count in copied.items():
            for hop in pairwise(routes(sources, destination)):
                channel = hardware.channel_between.get(hop)  # none for several channels
                if channel is not None and channel.engines == 1:
                    taken = alone_ns(machine, channel.name, size)
                    busy[machine.queue_of[channel.name]] += count * taken
    except InfeasibleError:
        return 0
    return max(busy.values(), default=0)


def busy_ns(graph: Graph, hardware: Hardware, inspect_ns: int) -> Mapping[str, int]:
    """By stream the nanoseconds that its ops take, each after an inspection of ``inspect_ns``."""
    busy = dict.fromkeys(graph.streams, 0)
    for op, duration in zip(graph.ops.each(), op_durations(graph, hardware), strict=True):
        busy[op.stream] += duration + inspect_ns
    return busy


def faulting_ns(graph: Graph, hardware: Hardware, initial: Starts, inspect_ns: int) -> int:
    """Nanoseconds that a step takes at least if tensors start in ``initial``, the others at home,
    and none comes up before an op misses it.

    Each stream runs its ops and waits for all that starts below and that it alone uses.
    """
    device, machine = hardware.device_tier, machine_of_copies(graph, hardware)
    waits: dict[str, dict[str, int]] = {stream: {} for stream in graph.streams}
    alone = cache(partial(alone_ns, machine))
    homes = graph.tensors.column(lambda tensor: (tensor.home or device,))
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    streams = graph.ops.column(lambda op: op.stream)
    single, between, reads_first = (
        len(graph.streams) == 1,
        machine.channel_between,
        graph.compact_users.reads_first,
    )
    for t in graph.initial:
        users, tiers = graph.users[t], initial.get(t, homes[t])
        channel = between.get((tiers[0], device))
        if len(tiers) > 1 or channel is None or channel.engines > 1 or not reads_first(t):
            continue
        stream = streams[users[0]]
        if single or all([streams[u] == stream for u in users]):
            taken = alone(channel.name, sizes[t])
            waits[stream][channel.name] = waits[stream].get(channel.name, 0) + taken
    busy = busy_ns(graph, hardware, inspect_ns)
    return max(
        [
            busy[stream] + max(by_channel.values(), default=0)
            for stream, by_channel in waits.items()
        ],
        default=0,
    )


_BY_NAME = {policy.name: policy for policy in RULES_OF_THUMB}

RIVALS = (
    "resident",
    "static_split",
    "memory_peak",
    "g10",
    "longest_gap",
    "layerwise",
    "belady",
    "distance",
)
"""Policies whose plans are tried."""

AT_RUNTIME = ("keep_first", "unified_memory", "on_demand", "lookahead")
"""Policies that decide while they run without knowing what comes: tried where they may take less
time than the plan in hand.
"""

IF_TIERS: tuple[tuple[str, Mapping[str, Any]], ...] = (("g10", {"placement": FASTEST}),)
"""Settings that differ from the defaults only where several tiers are below."""

_OF_A_RIVAL = 45
"""The work of another policy's plan for each op and each tensor."""


def asking_rivals(placement: str | None) -> Arm:
    """The arm that tries the plans of other policies, each replayed only if its transfers alone
    leave it a chance.
    """
    return lambda search, planned: _asked(search, planned, placement)


def _asked(search: Search, planned: PlannedGraph, placement: str | None) -> Iterator[None]:
    graph, hardware = planned.problem.graph, search.hardware

    def to_beat_ns() -> int | None:
        return (
            None
            if search.chosen is None or search.nothing_fits
            else search.chosen.outcome.cost.makespan_ns
        )

    for name, plan in static_rivals(graph, hardware, search.budget_bytes, to_beat_ns, placement):
        search.tried.append(name)
        if plan is not None:
            search.work.done += _OF_A_RIVAL * (len(graph.ops) + len(graph.tensors))
        least = to_beat_ns()
        if plan is not None and (least is None or soonest_end_ns(plan, hardware) < least):
            outcome = planned.evaluate.plan(replace(plan, policy=search.policy))
            search.offer(Found(outcome, planned, RIVAL, None, name))
            if placement is None and search.best is not None and search.best.outcome is outcome:
                search.offer(
                    Found(
                        planned.evaluate(choices_of(planned.problem, plan)), planned, LOCAL_SEARCH
                    )
                )
        yield


def static_rivals(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    to_beat: Callable[[], int | None],
    placement: str | None = None,
) -> Iterator[tuple[str, Plan | None]]:
    """The rivals' plans that are legal ahead of the run, each with the policy's name and settings
    as ``--policy`` takes them.

    ``to_beat`` says the makespan of the best plan so far. A policy that takes longer than that
    whatever it decides (:class:`PolicyFloors`) is not asked for a plan: None
    stands for it. ``placement`` is the rule by which all of them choose tiers below; without one
    each has its default.
    """
    rule = None if placement is None else read_placement(placement, hardware)
    floors = PolicyFloors(graph, hardware, budget_bytes, rule)
    choices: list[tuple[str, Mapping[str, Any]]] = [(name, MappingProxyType({})) for name in RIVALS]
    if placement is None and len(nearest_tiers(hardware)) > 1:
        choices += IF_TIERS
    for name, settings in choices:
        least = to_beat()
        if least is not None and floors.ns(name) > least:
            if not settings:
                yield name, None
            continue
        try:
            plan = _BY_NAME[name].plan(
                graph, hardware, budget_bytes, **settings, **_placed(name, placement)
            )
        except InfeasibleError:
            continue
        static = _static(plan, hardware, budget_bytes, None)
        if static is not None:
            yield ":".join([name, *(f"{key}={value}" for key, value in settings.items())]), static
    for name in AT_RUNTIME:
        least = to_beat()
        loses = least is not None and floors.ns(name) > least
        plans = [] if loses else _of_policy(graph, hardware, budget_bytes, name, placement)
        yield name, next((_static(plan, hardware, budget_bytes, least) for plan in plans), None)


def _static(
    plan: Plan, hardware: Hardware, budget_bytes: int, to_beat_ns: int | None
) -> Plan | None:
    """The plan, or what its runtime decides as one that has none; None where it does not fit, or
    takes longer than ``to_beat_ns``.
    """

    def nearest(decided: Plan) -> Plan:
        problem = analyse(plan.graph, hardware)
        return insert(problem, choices_of(problem, decided, leaves=False), plan.policy)

    return freeze_runtime(plan, hardware, budget_bytes, to_beat_ns, nearest)


def rivals_at_runtime(
    graph: Graph, hardware: Hardware, budget_bytes: int, placement: str | None = None
) -> Iterator[Plan]:
    """The rivals' plans that are decided while they run; ``placement`` as above."""
    for name in ("belady", *AT_RUNTIME):
        yield from _of_policy(graph, hardware, budget_bytes, name, placement)


def _of_policy(
    graph: Graph, hardware: Hardware, budget_bytes: int, name: str, placement: str | None
) -> Iterator[Plan]:
    """The plan of a policy with its other parameters at their defaults; none where nothing fits."""
    with suppress(InfeasibleError):
        yield _BY_NAME[name].plan(graph, hardware, budget_bytes, **_placed(name, placement))


def _placed(name: str, placement: str | None) -> Mapping[str, str]:
    """The parameter that sets the rule of a policy, if it has one."""
    return (
        {}
        if placement is None or "placement" not in _BY_NAME[name].parameters
        else {"placement": placement}
    )
