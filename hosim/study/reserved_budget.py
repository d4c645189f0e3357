"""Planning against reserved bytes instead of allocated ones: an allocator reserves more than the
bytes that policies count.

A policy plans within a budget, and the plan is replayed with an allocator that may reserve no more
than the budget. If that runs out of memory, the policy gets less than the budget (and so does the
replay of a policy that decides during it), until the reserved bytes fit.

hosim's own planner also plans with the allocator: it replays each plan that it compares as the
allocator places blocks, in the order of its events, and so takes the one that is fastest under
these bounds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from hosim.analysis.lower_bounds import bounded
from hosim.cache_plan import Plan
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import planned_in_order_of_uses
from hosim.policies import own
from hosim.result import CACHING, LEDGER, Result
from hosim.study.asked import PolicyChoice
from hosim.study.runs import Question, check, make_plan, replay
from hosim.units import human_size

Make = Callable[[Graph, Hardware, PolicyChoice, int], Plan]
"""Makes the plan of a choice within so many bytes."""

_SHARES = (1.0, 0.99, 0.97, 0.93, 0.85, 0.69, 0.37)
"""Shares of the budget that a policy gets in turn; each step down is twice as large as the last."""
_SLOWED = 2
"""The number of shares to try after one whose plan fits but waits for a free block."""
_HALVINGS = 2
"""The number of shares to try between the largest that fits and the one above it."""
_JUDGED = (1.0, 0.99, 0.97, 0.95, 0.93, 0.9, 0.85)
"""Shares for which hosim's planner judges plans by the allocator."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A plan whose reserved bytes fit: its result with the allocator, and the budget in bytes that
    the policy planned with.
    """

    plan: Plan
    result: Result
    planned_bytes: int

    @property
    def makespan_ns(self) -> int:
        """The plan's makespan, including waits for a free block."""
        return self.result.makespan_ns or 0


def plan_against_reserved(question: Question) -> Reserved:
    """The plan of a question for which its allocator reserves no more than its budget.

    The policy gets shares of the budget, from all of it downwards, until its plan fits. If that
    plan waits for a free block, it is compared with the plans of the next two shares, and the
    fastest wins. Where the plan for all of the budget does not fit or waits so, and ops of the best
    plan still wait, hyperoffload also judges its plans by the allocator. Plans are verified, and
    the result comes from the replay with the allocator. Raises :class:`InfeasibleError` if no share
    gives such a plan, and :class:`InputError` for the allocator ``ledger``, which reserves nothing.
    """
    counting, budget_bytes = question.counting, question.budget_bytes
    if counting.allocator == LEDGER:
        raise InputError(
            f"ledger reserves nothing: choose another allocator, such as {CACHING}",
            source="allocator",
        )
    search = _BudgetSearch(question)
    best: Reserved | None = None
    above = budget_bytes + 1
    fitting = 0
    for planned in (int(budget_bytes * share) for share in _SHARES):
        found = search.attempt(planned)
        if found is not None:
            fitting += 1
            if best is None or found.makespan_ns < best.makespan_ns:
                best = found
            if fitting > _SLOWED or not search.waits(found):
                break
        elif best is None:
            above = planned
    if best is not None and fitting == 1 and above <= budget_bytes:
        for planned in _between(best.planned_bytes, above):
            found = search.attempt(planned)
            if found is None or found.makespan_ns > best.makespan_ns:
                break
            best = found
    if best is None or best.planned_bytes < budget_bytes or fitting > 1:
        best = search.judged(best)
    if best is None:
        raise InfeasibleError(
            f"policy {question.choice.label}: found no plan for which the allocator "
            f"{counting.allocator} "
            "reserves at most "
            f"{human_size(budget_bytes)}; with the whole budget, {search.failure}"
        )
    return replace(best, result=bounded(best.result, best.plan, question.hardware, budget_bytes))


def reserved_line(found: Reserved) -> str:
    """One line: both peaks, and the budget that the policy planned with."""
    result = found.result
    assert result.allocator is not None
    state = result.allocator
    return (
        f"the plan allocates {human_size(state.peak_allocated_bytes)} and the allocator "
        f"{state.name} reserves "
        f"{human_size(state.peak_reserved_bytes)} of {human_size(result.budget_bytes)}; planned "
        f"within {human_size(found.planned_bytes)}"
    )


def _between(low: int, high: int) -> Iterator[int]:
    """Shares halfway up, each from the one before."""
    for _ in range(_HALVINGS):
        low = (low + high) // 2
        yield low


class _BudgetSearch:
    """Plans of one question under smaller and smaller budgets; ``failure`` says why the first did
    not fit.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._hardware, self._choice = question.hardware, question.choice
        self._budget = question.budget_bytes
        self.failure = ""

    def attempt(
        self, planned: int, make: Make = make_plan, choice: PolicyChoice | None = None
    ) -> Reserved | None:
        """The plan within ``planned`` bytes, if the allocator's reserved bytes for it stay within
        the budget.
        """
        try:
            plan = make(self._question.graph, self._hardware, choice or self._choice, planned)
        except InfeasibleError as error:
            self.failure = self.failure or str(error)
            return None
        check(plan, self._hardware, planned)
        result = replay(
            plan,
            self._hardware,
            planned,
            counting=self._question.counting,
            reserve_bytes=self._budget,
            bounds=False,
        )
        if not result.feasible:
            self.failure = self.failure or str(result.error)
            return None
        return Reserved(plan, replace(result, budget_bytes=self._budget), planned)

    def judged(self, best: Reserved | None) -> Reserved | None:
        """The best of ``best`` and of what hosim's planner finds if it judges plans by the
        allocator.

        It plans with little effort for shares of the budget that are no less than that of ``best``,
        and then with the wanted effort for the one that did best.
        """
        if self._choice.name != "hyperoffload" or (
            best is not None and not (best.result.drain_ns or best.result.has_waits)
        ):
            return best
        quick = replace(self._choice, parameters={**self._choice.parameters, "effort": 0.0})
        shares = [int(self._budget * share) for share in _JUDGED]
        drafts = [
            self.attempt(planned, self._by_allocator, quick)
            for planned in shares
            if best is None or planned >= best.planned_bytes
        ]
        found = [draft for draft in drafts if draft is not None]
        if found and self._choice.parameters.get("effort") != 0:
            likely = min(found, key=lambda draft: draft.makespan_ns)
            thorough = self.attempt(likely.planned_bytes, self._by_allocator)
            found += [] if thorough is None else [thorough]
        return min(
            [*([] if best is None else [best]), *found],
            key=lambda each: each.makespan_ns,
            default=None,
        )

    def _by_allocator(
        self, graph: Graph, hardware: Hardware, choice: PolicyChoice, budget_bytes: int
    ) -> Plan:
        """The plan that hosim's planner makes if it judges plans by the allocator."""

        def judge(plan: Plan, machine: Hardware, within: int) -> Result:
            return replay(
                plan,
                machine,
                within,
                counting=self._question.counting,
                reserve_bytes=self._budget,
                bounds=False,
            )

        parameters = {**choice.policy.parameters, **choice.parameters}
        make = partial(
            own.plan,
            hardware=hardware.fair_share,
            budget_bytes=budget_bytes,
            **parameters,
            judge=judge,
        )
        return planned_in_order_of_uses(make, graph)

    def waits(self, found: Reserved) -> bool:
        """Return whether the plan takes longer with the allocator than without."""
        freely = replay(found.plan, self._hardware, found.planned_bytes, bounds=False)
        return found.makespan_ns > (freely.makespan_ns or 0)
