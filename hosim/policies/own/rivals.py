"""Plans of other policies that hyperoffload tries where waits are left: if a rule of thumb does
better on some graph, its plan is taken.

All are tried with their defaults. What a runtime would decide is put into the graph
(:mod:`hosim.schedule.freeze_runtime`): the plan is a static one, unless nothing else fits. On
several streams what one replay decided may be no legal plan, since the streams may overtake each
other: then the plan is what comes nearest to it. Policies that lose whatever they decide
(:mod:`hosim.policies.own.policy_floors`) are not asked for plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hosim.cache_plan import Plan
from hosim.errors import InfeasibleError
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
from hosim.policies.own.policy_floors import PolicyFloors
from hosim.policies.rules_of_thumb import RULES_OF_THUMB
from hosim.schedule import freeze_runtime
from hosim.schedule.tiers_below import FASTEST, nearest_tiers, read_placement

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

_OF_A_RIVAL = 80
"""The work of another policy's plan for each op."""


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
        search.work.done += _OF_A_RIVAL * len(graph.ops) if plan is not None else 0
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
    whatever it decides (:mod:`hosim.policies.own.policy_floors`) is not asked for a plan: None
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
