"""Regret: the time that a plan loses in a draw of the uncertain times, against the plan that its
policy makes for that draw.
"""

from collections.abc import Callable
from dataclasses import replace

from hosim import engine
from hosim.analysis.costmodel import copies_compete
from hosim.analysis.costmodel.spreads import drawn_world
from hosim.cache_plan import Plan
from hosim.data.draws import Regret
from hosim.errors import InfeasibleError, PlanError
from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.result import Result
from hosim.study.runs import Question, make_plan


def regret(
    question: Question,
    plan: Plan,
    result: Result,
    draws: int,
    progress: Callable[[str], None] = lambda doing: None,
) -> list[Regret]:
    """Return the regret of a question's plan in its first draws. The list is empty if no time is
    uncertain, and for a runtime policy, which adapts to each draw.

    It plans once per draw, and reports that to ``progress``. Planning errors are raised, except
    that no plan fits.
    """
    if not draws or plan.runtime is not None or result.draws is None:
        return []
    progress(f"{result.policy}: planning in {counted(draws, 'draw')}")
    return [Regret(result.policy, tuple([_loss(question, plan, draw) for draw in range(draws)]))]


def _loss(question: Question, plan: Plan, draw: int) -> float | None:
    budget, compete = question.budget_bytes, question.graph.derived(copies_compete)
    asked, machine = drawn_world(question.graph, question.hardware, draw)
    same, _ = drawn_world(plan.graph, question.hardware, draw)

    def takes(one: Plan, on: Hardware) -> int | None:
        try:
            return engine.replay(one, on, budget, compete=compete).makespan_ns
        except PlanError:  # streams overtake one another, which is against a rule
            return None

    try:
        best = takes(make_plan(asked, machine, question.choice, budget), machine)
    except InfeasibleError:
        best = None
    kept = takes(replace(plan, graph=same), machine)
    return None if kept is None or not best else max(0.0, kept / best - 1)
