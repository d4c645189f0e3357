"""What each pass of the planner makes of drawn instances, a row each: beside the plans
(kept_plans.py), the steps on the way to them.

A search hides what its parts do: where one proposal is worse than it was, another one wins, and the
plan stays. So each part has rows of its own: a few figures to read, and a checksum of all the rest.
After a change that is meant to alter what a pass makes::

    python tests/kept/write.py kept_passes

writes the table anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from instances import Instance, instance
from kept_table import KeptTable, Row, checksum

from hosim.analysis import static_curve
from hosim.edits import edited
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.planner.hyperoffload import JudgedGap, Weights, gap_figures, judged_gaps, search, select
from hosim.planner.hyperoffload.explanations import explain
from hosim.planner.hyperoffload.local_moves import LocalSearch, PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import Problem, WorkDone, analyse, everything, insert
from hosim.planner.rewrites import Checkpoints, Reruns, candidates, cheapest, recomputes, reorder

COLUMNS = ("instance", "pass", "how", "first", "second", "third", "checksum")
SEED = 11
INSTANCES = range(16)
WEIGHTS = (
    Weights(), Weights(waiting=0.3), Weights(slow=0.55), Weights(slow=1.2, waiting=1.0), Weights(copies=False),
)  # fmt: skip
LOCAL_WORK = 500_000
SHARES = (0.0, 0.3, 0.7)
"""Where more budgets lie, between the least with which anything can run and all that is held."""


def passes(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    problem = analyse(drawn.graph, drawn.hardware)
    low, high = max(problem.floor_bytes), max(problem.held_bytes)
    budgets = [drawn.budget_bytes, *(low + int((high - low) * share) for share in SHARES)]
    for name, how, figures, rest in (
        *_sweeps(problem, budgets),
        *_searches(problem, budgets),
        *_orders(drawn.graph, problem.durations, budgets),
        *_drops(problem, budgets),
        *_whole(drawn),
    ):
        yield (drawn.name, name, how, *(str(figure) for figure in figures), checksum(rest))


Made = tuple[str, str, tuple[object, object, object], object]


def _sweeps(problem: Problem, budgets: list[int]) -> Iterator[Made]:
    for budget in budgets:
        figures = gap_figures(problem, budget)
        yield (
            "gap figures",
            str(budget),
            (len(figures), sum(f.down_ns for f in figures), sum(f.over_budget_ns for f in figures)),
            figures,
        )
        for k, weights in enumerate(WEIGHTS):
            made = select(problem, budget, weights)
            told = (made.short_bytes, made.expected_stall_ns, len(made.choices))
            rest = (
                sorted(made.choices.items()),
                made.full,
                [_noted(judged) for judged in judged_gaps(made)],
            )
            yield "selection", f"{budget} with weights {k}", told, rest


def _noted(judged: JudgedGap) -> object:
    score = judged.score
    scored = (
        None
        if score is None
        else (score.score, score.below.name, score.leaves, score.fetch_at, score.stall)
    )
    return (
        judged.gap,
        judged.taken,
        judged.reason,
        scored,
        judged.op,
        judged.over_bytes,
        judged.rival_score,
    )


def _searches(problem: Problem, budgets: list[int]) -> Iterator[Made]:
    for budget in budgets[:2]:
        simulator = PlanSimulator(problem, budget)
        for seed in (0, 1):
            choices = select(problem, budget, Weights()).choices
            local = LocalSearch(simulator, choices, problem.horizon_ns, seed)
            local.go_on(LOCAL_WORK, WorkDone())
            found = local.best()
            yield (
                "local search",
                f"{budget} seed {seed}",
                simulator.begin(found),
                sorted(found.items()),
            )
    moved = insert(problem, everything(problem), "kept")
    yield (
        "everything",
        "",
        (moved.count("store"), moved.count("prefetch"), moved.count("detach")),
        (moved.cache_ops, moved.initial),
    )


def _orders(graph: Graph, durations: tuple[int, ...], budgets: list[int]) -> Iterator[Made]:
    for budget in budgets:
        ordered = reorder(graph, durations, budget)
        curve = static_curve(ordered)
        yield (
            "reorder",
            str(budget),
            (max(curve), sum(curve), len(curve)),
            [op.name for op in ordered.ops],
        )


def _drops(problem: Problem, budgets: list[int]) -> Iterator[Made]:
    found = candidates(problem)
    yield (
        "candidates",
        "",
        (len(found), sum(c.recompute_ns for c in found), sum(c.saved_bytes for c in found)),
        found,
    )
    sets = {f"down to {budget}": cheapest(problem, found, budget) for budget in budgets}
    checkpointed = Checkpoints(problem, found)
    sets |= {
        f"{count} segments": checkpointed.drops(count)
        for count in (1, 2, 3, 4, 6)
        if count <= len(found)
    }
    for how, drops in sets.items():
        reruns, *_ = Reruns(problem.graph, problem.hardware.device_tier)(drops)
        recompute = recomputes(problem.graph, reruns)
        again = edited(problem.graph, recompute=recompute)
        yield (
            "drops",
            how,
            (len(drops), len(again.ops), max(static_curve(again))),
            (sorted(drops), recompute),
        )


def _whole(drawn: Instance, effort: float = 0.03) -> Iterator[Made]:
    try:
        outcome = search(drawn.graph, drawn.hardware, drawn.budget_bytes, effort=effort)
    except InfeasibleError as error:
        yield "search", "", ("", "", ""), str(error)
        return
    cost = outcome.cost
    yield (
        "search",
        "",
        (cost.infeasible, cost.makespan_ns, cost.moved_bytes),
        (outcome.plan.cache_ops, sorted(outcome.choices.items())),
    )
    told = explain(outcome.plan, drawn.hardware, drawn.budget_bytes)
    figures = (
        len(told.lines),
        sum(line.away_ns for line in told.lines),
        sum(line.exposed_ns for line in told.lines),
    )
    lines = [
        (
            line.gap,
            line.moved,
            line.saved_bytes,
            line.relief_byte_ns,
            line.copies,
            line.exposed_ns,
            line.reason,
            line.effect,
            line.why,
        )
        for line in told.lines
    ]
    yield "explain", "", figures, (lines, told.regions, told.copies, told.loads, told.origin)


# -- a graph too large for beams and for single decisions
# ---------------------------------------------------------------


def joined(numbers: range) -> Graph:
    """Several instances' ops in turns, as one graph."""
    parts = [instance(number, SEED).graph for number in numbers]
    tensors, ops, rows = [], [], []
    for k, part in enumerate(parts):
        shift = len(tensors)
        tensors += [replace(tensor, name=f"{k}.{tensor.name}") for tensor in part.tensors]
        rows.append(
            [
                replace(
                    op,
                    name=f"{k}.{op.name}",
                    inputs=tuple(t + shift for t in op.inputs),
                    outputs=tuple(t + shift for t in op.outputs),
                    mutates=tuple(t + shift for t in op.mutates),
                )
                for op in part.ops
            ]
        )
    for place in range(max(map(len, rows))):
        ops += [row[place] for row in rows if place < len(row)]
    return Graph("joined", tuple(tensors), tuple(ops))


def large() -> Iterator[Row]:
    """The rows of a graph of more than 200 ops, and a search on one of nearly 100."""
    graph = joined(range(10))
    hardware = instance(0, 11).hardware
    roomy = replace(
        hardware, tiers=tuple(replace(tier, capacity_bytes=10**6) for tier in hardware.tiers)
    )
    problem = analyse(graph, roomy)
    high = max(problem.held_bytes)
    fewer = joined(range(4))
    budget = max(analyse(fewer, roomy).held_bytes) * 2 // 3
    for name, how, figures, rest in (
        *_orders(graph, problem.durations, [0, high // 2, high * 3 // 4]),
        *_drops(problem, [high // 2, high * 3 // 4]),
        *_whole(Instance("joined", "mixed", fewer, roomy, budget), 0.01),
    ):
        yield ("joined", name, how, *(str(figure) for figure in figures), checksum(rest))


TABLE = KeptTable(
    "kept_passes", COLUMNS, lambda: chain(chain.from_iterable(map(passes, INSTANCES)), large())
)
