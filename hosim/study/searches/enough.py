"""The memory of a machine that is enough: the smallest budget with which a step takes hardly
longer than with everything resident, and what less than that costs.

A budget is *enough* if the makespan is at most :data:`NEAR` times that with everything resident, as
if the device tier were large enough. The smallest one is found by bisection, to one part in
64 of what the machine would use. Bisection assumes that no plan is slower with more
memory; a policy for which that does not hold may find a smaller budget enough, too.
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
"""A search ends at a plan that is so little above the lower bound."""


@dataclass(frozen=True, slots=True)
class EnoughMemory:
    """The smallest budget that is enough, with its slowdown, by which policy.

    ``least_bytes`` is a budget half-way from there to what the largest op needs, and
    ``ns_per_byte`` what each byte that is taken away down to it adds to the makespan; ``None`` if
    nothing fits it.
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
    """The result of the smallest budget that is enough, which is at most that of ``result``, the
    question's own; ``None`` if that is not near. ``progress`` gets each budget that is tried.
    """
    if not is_near(result):
        return None
    question = replace(question, choice=_ending(question))
    graph = question.graph
    high = min(question.budget_bytes, most_needed(graph, question.hardware))
    step = max(1, high // _STEPS)
    low = max([1, *graph.derived(needed_bytes)]) - 1  # too little for some op, whatever the plan
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
    """The smallest budget that is enough, and what less costs; ``None`` if the question's own is
    not.
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
    """The policy, whose search ends near the lower bound."""
    choice = question.choice
    if "within" not in choice.policy.settings or "within" in choice.parameters:
        return choice
    (ending,) = SearchEnds(within=_WITHIN).of([choice])
    return ending
