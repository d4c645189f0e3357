"""Find the smallest budget that is enough, and the cost of a smaller one.

A budget is *enough* if the makespan is at most :data:`NEAR` times that with everything resident, as
if the device tier were large enough. Bisection finds the smallest one to within 1/64 of the bytes
that the machine would use. It assumes that more memory never makes a plan slower; if a policy
breaks that, a smaller budget may also be enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hosim.analysis import needed_bytes
from hosim.engine import most_needed
from hosim.result import Result
from hosim.study.asked import PolicyChoice, SearchEnds
from hosim.study.runs import Question
from hosim.study.searches.frontiers import attempt

NEAR = 1.05
"""The multiple of the makespan with everything resident that still counts as near it."""
_STEPS = 64
_WITHIN = 0.01
"""A search ends at a plan within this share of the lower bound."""


@dataclass(frozen=True, slots=True)
class EnoughMemory:
    """The smallest budget that is enough for a policy, and its slowdown.

    ``least_bytes`` is the budget half-way from there to the bytes that the largest op needs, and
    ``ns_per_byte`` the makespan that each byte less adds down to it; both are ``None`` if no plan
    fits it.
    """

    policy: str
    budget_bytes: int
    slowdown: float
    least_bytes: int | None = None
    ns_per_byte: float | None = None


def is_near(result: Result) -> bool:
    """True if a result takes at most :data:`NEAR` times as long as with everything resident."""
    return result.slowdown is not None and result.slowdown <= NEAR


def smallest_enough(
    question: Question, result: Result, progress: Callable[[int], None]
) -> Result | None:
    """Return the result of the smallest budget that is enough; ``None`` if that of the question,
    whose result is ``result``, is not. ``progress`` gets each budget before its probe.
    """
    if not is_near(result):
        return None
    question = replace(question, choice=_ending(question))
    graph = question.graph
    high = min(question.budget_bytes, most_needed(graph, question.hardware))
    step = max(1, high // _STEPS)
    low = max([1, *graph.derived(needed_bytes)]) - 1  # too little for some op in any plan
    enough = result
    while high - low > step:
        middle = (low + high) // 2
        progress(middle)
        tried = attempt(replace(question, budget=middle))
        if is_near(tried):
            high, enough = middle, tried
        else:
            low = middle
    return replace(enough, budget_bytes=high, replayed=None)


def enough_memory(
    question: Question, result: Result, progress: Callable[[int], None]
) -> EnoughMemory | None:
    """Return the smallest budget that is enough and the cost of a smaller one; ``None`` if the
    question's budget is not enough.
    """
    enough = smallest_enough(question, result, progress)
    if enough is None or enough.slowdown is None:
        return None
    label, budget = question.choice.label, enough.budget_bytes
    least = (budget + max([1, *question.graph.derived(needed_bytes)])) // 2
    if least < budget:
        progress(least)
        below = attempt(replace(question, choice=_ending(question), budget=least))
        if below.feasible and below.makespan_ns and enough.makespan_ns:
            added = (below.makespan_ns - enough.makespan_ns) / (budget - least)
            return EnoughMemory(label, budget, enough.slowdown, least, max(0.0, added))
    return EnoughMemory(label, budget, enough.slowdown)


def _ending(question: Question) -> PolicyChoice:
    """Return the question's policy; if it searches, its search ends near the lower bound."""
    choice = question.choice
    if "within" not in choice.policy.settings or "within" in choice.parameters:
        return choice
    (ending,) = SearchEnds(within=_WITHIN).of([choice])
    return ending
