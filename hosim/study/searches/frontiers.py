"""A policy's Pareto curve of peak memory against makespan, down to the smallest feasible budget.

The search bisects for the smallest budget for which the policy has a plan, then probes evenly
spaced budgets above it, then repeatedly the middle of the largest step between two neighbours
(bytes times nanoseconds). It does not assume monotonicity: a probe is on the curve if no other
probe is at least as good in both figures, and the search reports every larger budget that does not
fit or takes longer than a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from hosim.analysis import needed_bytes
from hosim.base.in_cells import InCells
from hosim.data.draws import CERTAINTY
from hosim.engine import most_needed
from hosim.errors import InfeasibleError, InputError
from hosim.limits import within
from hosim.result import Result
from hosim.study.asked import Value
from hosim.study.rows_of_answers import figure_columns, figures, frame
from hosim.study.runs import Question, bounded_attempt, unplanned
from hosim.study.searches.cost import COST, COST_OF_TOKENS, step_costs
from hosim.units import human_size, human_time

if TYPE_CHECKING:
    from pandas import DataFrame


def pareto(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Return for each point, a cost and a gain, true if it is on the curve: no other point has more
    gain at the same or lower cost, or the same gain at lower cost.

    The first of equal points is on the curve. Points that lack a cost or a gain are not.

    >>> pareto([(1, 5), (2, 5), (2, 7), (1, None)])
    [True, False, True, False]
    """
    known = sorted(
        (cost, -gain, i)
        for i, (cost, gain) in enumerate(points)
        if cost is not None and gain is not None
    )
    on = [False] * len(points)
    best: float | None = None
    for _, loss, i in known:
        if best is None or loss < best:
            on[i], best = True, loss
    return on


_TOLERANCE = 256
"""The smallest feasible budget is found to within the largest budget divided by this."""


@dataclass(frozen=True)
class Frontier(InCells):
    """The result of each budget probed, by ascending budget.

    ``smallest_bytes`` is the smallest budget that fits, ``too_small_bytes`` the largest one probed
    below it (``None``: no budget fits, or no smaller one is possible). ``contradictions`` are lines
    about probes in which more memory makes things worse.
    """

    question: Question
    results: Sequence[Result]
    smallest_bytes: int | None
    too_small_bytes: int | None
    contradictions: Sequence[str]

    @cached_property
    def pareto(self) -> Sequence[Result]:
        """The curve: the results that no other result beats or equals with less memory, by
        ascending peak.
        """
        tier = self.question.hardware.device_tier
        fitting = [
            (r, r.makespan_ns) for r in self.results if r.feasible and r.makespan_ns is not None
        ]
        on = pareto([(r.peak_bytes[tier], -makespan) for r, makespan in fitting])
        return sorted(
            (r for (r, _), held in zip(fitting, on, strict=True) if held),
            key=lambda r: r.peak_bytes[tier],
        )

    @property
    def sure_bytes(self) -> int | None:
        """The smallest probed budget whose plan fits in 9 of 10 draws; ``None`` if none does."""
        return min(
            [
                r.budget_bytes
                for r in self.results
                if r.feasible and (r.drawn is None or r.drawn.unfit_share <= 1 - CERTAINTY)
            ],
            default=None,
        )

    @property
    def frame(self) -> DataFrame:
        """One row per probe: the figures of ``figure_columns``, and ``pareto``, true for probes on
        the curve.

        If devices have a price, the cost of a step and of a million tokens are added.
        """
        costs = [COST, COST_OF_TOKENS] if self.question.hardware.price_per_hour else []
        columns = ["pareto", *costs, *figure_columns(self.question.hardware)]
        return frame(frontier_rows(self), columns, self.question.notes).astype({"pareto": bool})

    def __str__(self) -> str:
        tier = self.question.hardware.device_tier
        if self.smallest_bytes is None:
            return f"{self.question.choice.label} does not fit within any budget probed"
        fastest, least = self.pareto[-1], self.pareto[0]
        unsure = []
        if self.sure_bytes is None:
            unsure = ["in more than one of ten draws its plan does not fit there"]
        elif self.sure_bytes != self.smallest_bytes:
            unsure = [f"{human_size(self.sure_bytes)} to fit in 9 of 10 draws"]
        lines = [
            f"{self.question.choice.label} needs {human_size(self.smallest_bytes)}"
            + (
                f" ({human_size(self.too_small_bytes)} is too little)"
                if self.too_small_bytes
                else ""
            ),
            *unsure,
            f"from {_took(least)} with a peak of {human_size(least.peak_bytes[tier])} "
            f"to {_took(fastest)} with one of {human_size(fastest.peak_bytes[tier])}",
        ]
        return "; ".join([*lines, *self.contradictions])

    __repr__ = __str__


def _took(result: Result) -> str:
    """Return the makespan as text, with its interval if it is uncertain."""
    low, high = result.makespan_low_ns, result.makespan_high_ns
    ends = "" if low is None or high is None else f" ({human_time(low)} to {human_time(high)})"
    return f"{human_time(result.makespan_ns or 0)}{ends}"


def frontier_rows(found: Frontier) -> list[dict[str, Value]]:
    """One row per probe, by ascending budget."""
    on_curve, asked = {id(result) for result in found.pareto}, found.question
    return [
        {
            "pareto": id(result) in on_curve,
            **step_costs(result, asked.graph, asked.hardware),
            **figures(result, asked.hardware),
        }
        for result in found.results
    ]


def frontier(
    question: Question,
    points: int = 9,
    refine: int = 4,
    progress: Callable[[str], None] = lambda doing: None,
    *,
    bounds: bool = True,
) -> Frontier:
    """Trace the curve of the question's policy from the smallest feasible budget to the question's
    budget, or to the resident peak if that is less.

    It probes ``points`` evenly spaced budgets, including both ends, then ``refine`` more at the
    largest steps of the curve. ``bounds`` adds lower bounds to the results. Raises
    :class:`InputError` for fewer than 2 points.
    """
    if points < 2 or refine < 0:
        raise InputError(
            f"expected at least 2 points, got {points}"
            if points < 2
            else f"expected at least 0, got {refine}",
            source="frontier",
        )
    within("grid_points", points + refine, source="frontier")
    graph = question.graph
    most = min(question.budget_bytes, most_needed(graph, question.hardware))
    least = max([1, *graph.derived(needed_bytes)])
    probed: dict[int, Result] = {}

    def probe(budget: int) -> bool:
        if budget not in probed:
            progress(f"{question.choice.label} within {human_size(budget)}")
            probed[budget] = attempt(replace(question, budget=budget)).in_few_draws
        return probed[budget].feasible

    smallest = _smallest(probe, min(least, most), most)
    if smallest is not None:
        for i in range(points):
            probe(smallest + (most - smallest) * i // (points - 1))
        for _ in range(refine):
            between = _largest_step([probed[budget] for budget in sorted(probed)])
            if between is None:
                break
            probe(between)
    results = [
        bounded_attempt(probed[budget]) if bounds else probed[budget] for budget in sorted(probed)
    ]
    fitting = [result.budget_bytes for result in results if result.feasible]
    below = [
        result.budget_bytes
        for result in results
        if not result.feasible and fitting and result.budget_bytes < fitting[0]
    ]
    return Frontier(
        question,
        results,
        fitting[0] if fitting else None,
        max(below, default=None),
        list(_contradictions(results)),
    )


def attempt(question: Question) -> Result:
    """Return the question's result without its lower bound; if the policy has no plan, the result
    is infeasible.
    """
    try:
        return question.attempt()
    except InfeasibleError as error:
        return unplanned(
            question.graph, question.hardware, question.choice, question.budget_bytes, str(error)
        )


def _smallest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest budget that fits, by bisection to within ``high / _TOLERANCE``; ``None``
    if ``high`` does not fit.
    """
    if not fits(high):
        return None
    if fits(low):
        return low
    while high - low > max(1, high // _TOLERANCE):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _largest_step(results: Sequence[Result]) -> int | None:
    """Return the budget halfway between the two neighbours that differ most in bytes times
    nanoseconds; ``None`` if none differ.
    """
    best, between = 0, None
    for below, above in pairwise([r for r in results if r.feasible and r.makespan_ns is not None]):
        apart = above.budget_bytes - below.budget_bytes
        step = apart * abs((below.makespan_ns or 0) - (above.makespan_ns or 0))
        if step > best and apart > 1:
            best, between = step, (below.budget_bytes + above.budget_bytes) // 2
    return between


def _contradictions(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each result, in order of budget, in which more memory does not fit or takes
    longer.
    """
    fitted: Result | None = None
    for result in results:
        if fitted is not None and not result.feasible:
            yield (
                f"{human_size(result.budget_bytes)} does not fit although "
                f"{human_size(fitted.budget_bytes)} does"
            )
        if (
            fitted is not None
            and result.feasible
            and (result.makespan_ns or 0) > (fitted.makespan_ns or 0)
        ):
            yield (
                f"{human_size(result.budget_bytes)} takes {human_time(result.makespan_ns or 0)}, "
                "longer than "
                f"{human_time(fitted.makespan_ns or 0)} within {human_size(fitted.budget_bytes)}"
            )
        if result.feasible and (
            fitted is None or (result.makespan_ns or 0) <= (fitted.makespan_ns or 0)
        ):
            fitted = result
