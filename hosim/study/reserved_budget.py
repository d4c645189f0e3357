"""Plan against reserved bytes instead of allocated ones: an allocator reserves more bytes than
policies count.

A policy plans within a budget, and the plan is replayed with an allocator that may reserve at most
the budget. If that runs out of memory, the policy (and the replay of a runtime policy) gets less
than the budget, until the reserved bytes fit.

hosim's own planner also plans with the allocator: it replays each candidate with the allocator's
placement of blocks, and takes the fastest one that fits.
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
"""A function that makes the plan of a choice within a number of bytes."""

_SHARES = (1.0, 0.99, 0.97, 0.93, 0.85, 0.69, 0.37)
"""The shares of the budget that a policy gets in turn; the steps between them double."""
_SLOWED = 2
"""The number of further shares to try if a plan fits but waits for a free block."""
_HALVINGS = 2
"""The number of shares to try between the largest one that fits and the next larger one."""
_JUDGED = (1.0, 0.99, 0.97, 0.95, 0.93, 0.9, 0.85)
"""The shares for which hosim's planner replays candidates with the allocator."""


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
    """Return a plan for which the question's allocator reserves at most the budget.

    The policy gets smaller and smaller shares of the budget, from the whole one, until its plan
    fits. If that plan waits for a free block, it is compared with the plans of the next two shares,
    and the fastest wins. If the plan for the whole budget does not fit or waits for a free block,
    and ops of the best plan still wait, hyperoffload also plans with the allocator. Plans are
    verified, and the result is that of the replay with the allocator. Raises
    :class:`InfeasibleError` if no share gives such a plan, and :class:`InputError` for the
    allocator ``ledger``, which reserves nothing.
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
    """Return a line with both peaks and the budget that the policy planned with."""
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
    """Yield bytes between ``low`` and ``high``, each halfway from the one before to ``high``."""
    for _ in range(_HALVINGS):
        low = (low + high) // 2
        yield low


class _BudgetSearch:
    """Plans of one question within smaller and smaller budgets; ``failure`` is the reason why the
    first one did not fit.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._hardware, self._choice = question.hardware, question.choice
        self._budget = question.budget_bytes
        self.failure = ""

    def attempt(
        self, planned: int, make: Make = make_plan, choice: PolicyChoice | None = None
    ) -> Reserved | None:
        """Return the plan within ``planned`` bytes if its reserved bytes fit the budget, else
        ``None``.
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
        """Return the better one of ``best`` and the plan that hosim's planner finds with the
        allocator.

        It plans with little effort for the shares of the budget from that of ``best`` up, and then
        with the full effort for the best share.
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
        """Return the plan that hosim's planner makes with the allocator."""

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
