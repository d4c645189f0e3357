"""The search around the stalls, from the outcomes of sweeps or of other policies' plans on; and again where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from hosim.analysis.lower_bounds import LowerBounds
from hosim.engine import NEVER, replay
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.gap_scoring import Weights
from hosim.planner.hyperoffload.local_moves import FEW, SMALL, ManyStarts, PlanSimulator, ReplayedChoices, Restarts, StallSearch, improve
from hosim.planner.hyperoffload.selection import select
from hosim.planner.hyperoffload.tensor_choices import Evaluation, Evaluator, with_gaps_between_neighbours

LESS = (0.97, 0.92, 0.88, 0.83, 0.75)
"""Parts of the budget that are planned for, too: a plan for less memory is a plan, and with more room some returns are too early."""
_SIMULATED, _SIMULATED_AT_MOST_PER_OP, _SIMULATED_AT_LEAST = 600_000, 40_000, 32_000
"""Instants that the search around the stalls simulates: so many; on the smallest graphs fewer. With little effort they are fewer, too, but
not fewer than the last figure, which takes no time to speak of."""

_BRIEF = 133
"""On larger graphs, where what is left to gain is less than a ``_BRIEF``-th, the search is brief. With the part within which there is none
that is at most a per cent above the lower bound."""
_FAR = 20
"""Where the search ends later by more than a ``_FAR``-th than what no plan beats, other outcomes are searched from, too."""
_PROBES, _UNLIKE = 5, 10
"""How many; two of them differ in more than a ``_UNLIKE``-th of the bytes that either has away."""
_PROBE, _HARDLY = 8, 25
"""A brief search takes a ``_PROBE``-th of the work; a whole one follows where that ends later by a ``_HARDLY``-th at most."""


def bound_ns(graph: Graph, hardware: Hardware, budget_bytes: int) -> int:
    """Nanoseconds that no plan within a budget beats, of those that start below what the workload puts there."""
    bounds = graph.derived_on(hardware, LowerBounds)
    return bounds.bound_ns(budget_bytes, NEVER, repeats=True, homes_kept=True, compete=None)


def found_elsewhere(evaluate: Evaluator, seed: int) -> Evaluation | None:
    """What fits where nothing did so far: searched for from other choices and with other seeds, also within less memory.

    A search for something that fits ends in a trap now and then. What fits within less memory fits within more.
    """
    problem = evaluate.problem
    for k, part in enumerate((1.0, *LESS), 1):
        within = int(evaluate.budget_bytes * part)
        if within >= max(problem.floor_bytes, default=0):
            begun = evaluate(select(problem, within, Weights()).choices)
            found = refined(evaluate, [begun], problem.horizon_ns, 0.0, seed + k, within)
            if not found.cost.infeasible:
                return found
    return None


def _covered(evaluate: Evaluator, best: Evaluation, simulator: PlanSimulator) -> Evaluation | None:
    """``best``, or where the simulator does not cover it, the best outcome so far that it covers; None if there is none."""
    if simulator.covers(best.choices):
        return best
    covered = [outcome for outcome in evaluate.outcomes if outcome.choices and simulator.covers(outcome.choices)]
    return min(covered, key=lambda outcome: outcome.cost, default=None)


def _on_large(
    evaluate: Evaluator, best: Evaluation, simulator: PlanSimulator, floor_ns: int, effort: float, work: int, seed: int
) -> Evaluation:
    """What is found from ``best`` on, briefly where there is little to gain, and from others where there is much."""
    brief = effort > 0 and not best.cost.infeasible and (best.cost.makespan_ns - floor_ns) * _BRIEF <= floor_ns
    found = evaluate(StallSearch(simulator, best.choices, floor_ns, work, seed, brief=brief).run())
    return _from_others(evaluate, found, simulator, floor_ns, work, seed) if effort > 0 else found


def _from_others(evaluate: Evaluator, best: Evaluation, simulator: PlanSimulator, floor_ns: int, work: int, seed: int) -> Evaluation:
    """The best of ``best`` and what is found from outcomes that are unlike it, where it is far above ``floor_ns``.

    On coarse graphs, whose few large tensors take up most of the memory, the search seldom comes from one set of them to another. From each
    of a few outcomes there is a brief search, and a whole one from where the best of these ends if that is not far from ``best``.
    """
    if best.cost.infeasible or (best.cost.makespan_ns - floor_ns) * _FAR <= floor_ns:
        return best
    ends = []
    for outcome in islice(_unlike(evaluate, best), _PROBES):
        if simulator.covers(outcome.choices):
            search = StallSearch(simulator, outcome.choices, floor_ns, work // _PROBE, seed, brief=True)
            if search.pays:
                ends.append(evaluate(search.run()))
    begin = min(ends, key=lambda outcome: outcome.cost, default=best)
    if begin is best or begin.cost.infeasible or (begin.cost.makespan_ns - best.cost.makespan_ns) * _HARDLY > best.cost.makespan_ns:
        return best
    found = evaluate(improve(simulator, begin.choices, floor_ns, work, seed))
    return min(best, found, key=lambda outcome: outcome.cost)


def _unlike(evaluate: Evaluator, best: Evaluation) -> Iterator[Evaluation]:
    """Outcomes replayed so far that fit, the best ones first, each unlike ``best`` and those before it in what is away."""
    sizes = [tensor.size_bytes for tensor in evaluate.problem.graph.tensors]

    def away(outcome: Evaluation) -> set[tuple[int, int]]:
        return {(t, after) for t, choice in outcome.choices.items() for after in choice.away}

    def held(absences: set[tuple[int, int]]) -> int:
        return sum([sizes[t] for t, _ in absences])

    known = [away(best)]
    for outcome in sorted(evaluate.outcomes, key=lambda outcome: outcome.cost):
        mine = away(outcome)
        if outcome.cost.infeasible or not mine:
            continue
        if all([held(mine ^ other) * _UNLIKE > held(mine | other) for other in known]):
            known.append(mine)
            yield outcome


def refined(
    evaluate: Evaluator, begun: Sequence[Evaluation], floor_ns: int, effort: float, seed: int, within: int | None = None
) -> Evaluation:
    """What the search around the stalls finds from one or several outcomes on, replayed; within less than the budget, if that is given.

    Where the simulator does not cover them, small graphs are searched by replays, and large ones from the best outcome that it covers.
    """
    problem = evaluate.problem
    within = evaluate.budget_bytes if within is None else within
    if evaluate.judge is not replay and not begun[-1].cost.infeasible:  # what the judge counts beside bytes leaves them no more room
        within = begun[-1].result.peak_bytes[problem.hardware.device_tier]
    simulator = PlanSimulator(problem, within)
    count = len(problem.graph.ops)
    judge: PlanSimulator | ReplayedChoices = simulator
    work = max(_SIMULATED_AT_LEAST, int(effort * min(_SIMULATED, _SIMULATED_AT_MOST_PER_OP * count)))
    if count > SMALL:
        covered = _covered(evaluate, begun[-1], simulator)
        if covered is None:
            return begun[-1]
        return min(begun[-1], _on_large(evaluate, covered, simulator, floor_ns, effort, work, seed), key=lambda outcome: outcome.cost)
    if not all([simulator.covers(outcome.choices) for outcome in begun]):
        judge = ReplayedChoices(problem, within)
    restart = Restarts(problem, within, judge, begun[-1].choices)
    if judge is simulator and count <= FEW and effort > 0:
        wider = PlanSimulator(with_gaps_between_neighbours(problem), within)
        starts = ManyStarts(wider, [outcome.choices for outcome in begun], restart, work, effort, seed)
        ended = evaluate(starts.run(floor_ns, lambda: bound_ns(problem.graph, problem.hardware, evaluate.budget_bytes)))
        return min([*begun, ended], key=lambda outcome: outcome.cost)
    found = [evaluate(improve(judge, outcome.choices, floor_ns, work // len(begun), seed, restart)) for outcome in begun]
    best = min(found, key=lambda outcome: outcome.cost)
    if len(problem.graph.streams) <= 1 or judge is not simulator or best.cost.makespan_ns <= floor_ns:
        return best
    if effort > 0:
        floor_ns = max(floor_ns, bound_ns(problem.graph, problem.hardware, evaluate.budget_bytes))
    if best.cost.makespan_ns <= floor_ns and not best.cost.infeasible:
        return best
    wider = PlanSimulator(with_gaps_between_neighbours(problem), within)
    found = [best, evaluate(improve(wider, best.choices, floor_ns, work // 2, seed))]
    return min(found, key=lambda outcome: outcome.cost)
