"""The cost of choices, from a replay of their plan.

The engine judges every plan, so that the cost includes all that it models. Replays are counted as
work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from hosim.cache_plan import DETACH, Plan
from hosim.engine import replay, times_of, verdict
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.tensor_choices.choices import Choices
from hosim.planner.hyperoffload.tensor_choices.lowering import Lowering
from hosim.planner.hyperoffload.tensor_choices.problem import Problem
from hosim.result import Result

_OF_A_PLAN, _OF_AN_OP, _OF_A_CACHE_OP = 4_000, 10, 50
"""The work of making a plan of choices and replaying it."""
_OF_ALL_DEVICES = 10_000_000
"""The most work for a replay of all devices of a machine one by one."""

Judge = Callable[[Plan, Hardware, int], Result]
"""Judges a plan on a machine within a budget in bytes by a replay, which may count more than the
tensors' bytes, such as the reservations of an allocator.
"""


@dataclass(frozen=True, slots=True, order=True)
class PlanCost:
    """The cost of a plan; less is better: first it must fit, then the makespan counts, then the
    bytes moved.
    """

    infeasible: bool
    makespan_ns: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Choices, their plan, its cost and the result of its replay."""

    choices: Choices
    plan: Plan
    cost: PlanCost
    result: Result

    @property
    def waits(self) -> bool:
        """Return True if an op of any stream waits for a transfer or for room, or a transfer ends
        after the last op.
        """
        result = self.result
        drains = [result.drain_ns or 0, *(stream.drain_ns for stream in result.streams.values())]
        return result.has_waits or min(drains) > 0

    @property
    def slowed(self) -> bool:
        """Return True if copies slow ops down by sharing memory bandwidth: fewer copies might be
        faster, though nothing waits.
        """
        return bool(self.result.slowed_ns) and self.cost.moved_bytes > 0


@dataclass
class WorkDone:
    """The work that a search has ``done``; a unit is one instant of a simulation, about 0.2
    microseconds.
    """

    done: int = 0


@dataclass
class Evaluator:
    """Replays the plans of choices within a budget, each once, and counts that as ``work``."""

    problem: Problem
    budget_bytes: int
    policy: str
    work: WorkDone
    judge: Judge = verdict
    _seen: dict[tuple[object, ...], Evaluation] = field(default_factory=dict)

    def __call__(self, choices: Choices) -> Evaluation:
        """Return the outcome of choices; equal choices are replayed once."""
        return self._replayed(choices, self._lowering.plan(choices, self.policy))

    @cached_property
    def _lowering(self) -> Lowering:
        return Lowering(self.problem)

    def plan(self, plan: Plan) -> Evaluation:
        """Return the outcome of another policy's plan, without choices (:func:`of_another`)."""
        alone = self._replayed({}, plan)
        result = of_another(
            self.judge, plan, self.problem.hardware, self.budget_bytes, alone.result
        )
        return (
            alone
            if result is alone.result
            else Evaluation({}, plan, plan_cost(plan, result), result)
        )

    def _replayed(self, choices: Choices, plan: Plan) -> Evaluation:
        key = (plan.cache_ops, tuple(plan.initial.items()))
        if key not in self._seen:
            self.work.done += work_of(plan)
            result = self.judge(plan, self.problem.hardware, self.budget_bytes)
            self._seen[key] = Evaluation(choices, plan, plan_cost(plan, result), result)
        found = self._seen[key]
        return (
            found if found.choices or not choices else replace(found, choices=choices)
        )  # it was another policy's

    @property
    def least_ns(self) -> int | None:
        """The makespan in ns of the fastest outcome so far; None if none fits."""
        costs = [found.cost for found in self._seen.values() if not found.cost.infeasible]
        return min(costs).makespan_ns if costs else None

    def times(self, outcome: Evaluation) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the start and the end in ns of every op in the replay of a feasible outcome."""
        self.work.done += _OF_A_PLAN + _OF_AN_OP * len(outcome.plan.graph.ops)
        given = outcome.plan, self.problem.hardware, self.budget_bytes
        times = (
            times_of(*given) or replay(*given, record=True).timeline
        )  # if devices differ, the times are those of the first
        assert times is not None
        return times.op_start_ns, times.op_end_ns


def of_another(
    judge: Judge, plan: Plan, hardware: Hardware, budget_bytes: int, alone: Result | None = None
) -> Result:
    """Return the verdict of ``judge`` on another policy's plan: on a device's share of a machine
    or, if the plan does not fit there, on the whole machine.

    ``alone`` is the verdict on the share, if known. Devices that share a tier do not all need room
    at the same time. So a plan that does not fit in a share may fit on the machine, and beat any
    plan for the share. That is possible only if some lower tier cannot hold all tensors. If the
    devices take too long to replay (:func:`of_all_devices`), the verdict on the share counts.
    """
    result = alone or judge(plan, hardware, budget_bytes)
    if result.feasible or hardware.whole is hardware:
        return result
    total = sum([tensor.size_bytes for tensor in plan.graph.tensors])
    full = any(
        [
            tier.capacity_bytes < total
            for tier in hardware.tiers
            if tier.name != hardware.device_tier
        ]
    )
    return (of_all_devices(judge, plan, hardware, budget_bytes) if full else None) or result


def of_all_devices(
    judge: Judge, plan: Plan, hardware: Hardware, budget_bytes: int
) -> Result | None:
    """Return the verdict of ``judge`` on a plan on the whole machine of which ``hardware`` is the
    share of one device.

    Return ``None`` if the devices may differ and their replay takes too long: each time a shared
    tier frees room, all of them check it. If no transfer waits for room below, all devices behave
    alike, and one is replayed. That is tested with tiers that have room for everything: no
    transfer waits if their peaks stay within the real capacities.
    """
    whole = hardware.whole
    if whole.devices**2 * work_of(plan) <= _OF_ALL_DEVICES:
        return judge(plan, whole, budget_bytes)
    everything_bytes = sum([tensor.size_bytes for tensor in plan.graph.tensors])
    roomy = [
        replace(tier, capacity_bytes=tier.capacity_bytes + everything_bytes)
        for tier in hardware.tiers
    ]
    held = judge(plan, replace(hardware, tiers=tuple(roomy)), budget_bytes).peak_bytes
    alike = all([held.get(tier.name, 0) <= tier.capacity_bytes for tier in hardware.tiers])
    return judge(plan, hardware, budget_bytes) if alike else None


def work_of(plan: Plan) -> int:
    """Return the work of making and replaying a plan."""
    return _OF_A_PLAN + _OF_AN_OP * len(plan.graph.ops) + _OF_A_CACHE_OP * len(plan.cache_ops)


def plan_cost(plan: Plan, result: Result) -> PlanCost:
    """Return the cost of a plan's replay."""
    return PlanCost(not result.feasible, result.makespan_ns or 0, moved_bytes(plan))


def moved_bytes(plan: Plan) -> int:
    """Return the bytes that a plan copies, over all its cache ops."""
    tensors = plan.graph.tensors
    return sum([tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op != DETACH])
