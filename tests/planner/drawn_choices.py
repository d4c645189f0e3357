"""Any choices that the planner's data can express on a problem, as a strategy of hypothesis; and what
one change of the search makes of choices.
"""

from hypothesis import strategies as st

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    Choices,
    Problem,
    TensorChoice,
)


def reached(problem: Problem, choices: Choices, t: int) -> list[TensorChoice | None]:
    """What one change makes of a tensor, of many that are drawn for each gap."""
    simulator = PlanSimulator(problem, 10**9)
    simulator.begin(choices)
    kernel, found = simulator.kernel, {}
    kernel.begin(0, 0, 1)
    kernel.look()
    for s in range(len(simulator.cells["gap"])):
        for _ in range(500 if simulator.cells["gap"][s] else 0):
            kernel.decide(s, -1)
            kernel.settle()
            if kernel.changes:
                choice = simulator.choices.get(t)
                found[repr(choice)] = choice
            kernel.take_back()
    return [*found.values()]


@st.composite
def choices(draw, problem: Problem) -> dict[int, TensorChoice]:
    """For some tensors a tier, a start and absences, each with a place to return at and perhaps
    ones to be stored and to leave at, a tier and turns of its own: every combination that a sweep
    or a search may take.

    What starts below is not away after its last use as well: it goes there anyway.
    """
    graph = problem.graph
    made: dict[int, TensorChoice] = {}
    gaps: dict[int, list] = {t: [] for t in problem.starts_below}
    for gap in problem.gaps:
        gaps.setdefault(gap.tensor, []).append(gap)
    for t, open_gaps in sorted(gaps.items()):
        forced = problem.starts_below.get(t)
        if not problem.below or (forced is None and draw(st.booleans())):
            continue
        tier = forced or draw(st.sampled_from([b.name for b in problem.below]))
        start = HOME
        if forced is None and t in graph.initial and graph.tensors[t].persistent:
            start = draw(st.sampled_from((HOME, COPY, BELOW)))
        away: dict[int, int | None] = {}
        first = graph.users[t][0] if graph.users[t] else 0
        if forced is not None or start == BELOW:
            away[AT_START] = draw(st.integers(AT_START, max(AT_START, first - 1)))
        for gap in open_gaps:
            if (
                gap.after in away
                or (start == BELOW and gap.before == len(graph.ops))
                or draw(st.booleans())
            ):
                continue
            away[gap.after] = draw(st.integers(gap.after, gap.before - 1)) if gap.returns else None
        stores = {
            g.after: draw(st.integers(g.written, g.after))
            for g in open_gaps
            if g.after in away and g.after != AT_START and draw(st.booleans())
        }
        if graph.writers[t] and draw(st.booleans()):
            stores[len(graph.ops)] = draw(st.integers(graph.writers[t][-1], len(graph.ops) - 1))
        some = [after for after in away if draw(st.booleans())]
        tiers = {
            after: draw(st.sampled_from([b.name for b in problem.below]))
            for after in some
            if forced is None
        }
        turns = {after: draw(st.integers(-1, 2 * len(graph.ops) + 1)) for after in some}
        ends = {gap.after: gap.before for gap in open_gaps} | {AT_START: first}
        leaves = {
            after: draw(st.integers(after, max(after, ends[after] - 1)))
            for after in away
            if draw(st.booleans())
        }
        store_turns = {after: 2 * after - 1 for after in some}
        made[t] = TensorChoice(
            tier, start, dict(sorted(away.items())), stores, tiers, turns, store_turns, leaves
        )
    return made
