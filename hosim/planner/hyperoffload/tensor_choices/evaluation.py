"""The cost of choices: the plan that follows from them, replayed.

The engine is the judge of every plan, so nothing that it models can be forgotten here. What is
replayed is counted as work.
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
"""The most work that a replay of devices that do not all do the same may take."""

Judge = Callable[[Plan, Hardware, int], Result]
"""What says how good a plan is within a budget in bytes: a replay, which may count more than bytes,
such as what an allocator reserves.
"""


@dataclass(frozen=True, slots=True, order=True)
class PlanCost:
    """Less is better: what does not fit, then the makespan, then the bytes moved."""

    infeasible: bool
    makespan_ns: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Choices, their plan and what its replay says."""

    choices: Choices
    plan: Plan
    cost: PlanCost
    result: Result

    @property
    def waits(self) -> bool:
        """Return whether an op of any stream waits for a transfer or for room, or a transfer ends
        after the last op of all.
        """
        result = self.result
        drains = [result.drain_ns or 0, *(stream.drain_ns for stream in result.streams.values())]
        return result.has_waits or min(drains) > 0

    @property
    def slowed(self) -> bool:
        """Return whether copies slow ops down by the memory bandwidth that they use: fewer of them
        might do better, though nothing waits.
        """
        return bool(self.result.slowed_ns) and self.cost.moved_bytes > 0


@dataclass
class WorkDone:
    """The work that a search has ``done``, in units of about 0.2 microseconds: an instant of a
    simulation.
    """

    done: int = 0


@dataclass
class Evaluator:
    """Replays choices within a budget, each once, and counts that as ``work``."""

    problem: Problem
    budget_bytes: int
    policy: str
    work: WorkDone
    judge: Judge = verdict
    _seen: dict[tuple[object, ...], Evaluation] = field(default_factory=dict)

    def __call__(self, choices: Choices) -> Evaluation:
        """The outcome of choices; the same choices are replayed once."""
        return self._replayed(choices, self._lowering.plan(choices, self.policy))

    @cached_property
    def _lowering(self) -> Lowering:
        return Lowering(self.problem)

    def plan(self, plan: Plan) -> Evaluation:
        """The outcome of another policy's plan, which follows from no choices
        (:func:`of_another`).
        """
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
        """The makespan of the fastest outcome so far; None where none fits."""
        costs = [found.cost for found in self._seen.values() if not found.cost.infeasible]
        return min(costs).makespan_ns if costs else None

    def times(self, outcome: Evaluation) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Start and end of every op in the replay of a feasible outcome."""
        self.work.done += _OF_A_PLAN + _OF_AN_OP * len(outcome.plan.graph.ops)
        given = outcome.plan, self.problem.hardware, self.budget_bytes
        times = (
            times_of(*given) or replay(*given, record=True).timeline
        )  # of devices that do not all do the same, those of the first
        assert times is not None
        return times.op_start_ns, times.op_end_ns


def of_another(
    judge: Judge, plan: Plan, hardware: Hardware, budget_bytes: int, alone: Result | None = None
) -> Result:
    """Return the verdict of ``judge`` on another policy's plan: on a device's share of a machine
    or, if it does not fit there, on all of it.

    ``alone`` is what it says of it on the share, if that is known. Devices that share a tier do not
    all need room for a chunk at the same time. So what a share has no room for may fit all the
    same, and be better than any plan for the share. That can only be where a tier below cannot hold
    all tensors. Where all devices take too long to replay (:func:`of_all_devices`) it does not.
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

    ``None`` where the order among the devices decides, and replaying them takes too long: each time
    that room is freed in a tier that they share, all of them look at it. Where no transfer waits
    for room below, all devices do the same. Nothing waits for room where a tier with room for
    everything holds no more.
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
    """The work of replaying a plan."""
    return _OF_A_PLAN + _OF_AN_OP * len(plan.graph.ops) + _OF_A_CACHE_OP * len(plan.cache_ops)


def plan_cost(plan: Plan, result: Result) -> PlanCost:
    """Return the cost of a plan's replay."""
    return PlanCost(not result.feasible, result.makespan_ns or 0, moved_bytes(plan))


def moved_bytes(plan: Plan) -> int:
    """The bytes that a plan copies."""
    tensors = plan.graph.tensors
    return sum([tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op != DETACH])
