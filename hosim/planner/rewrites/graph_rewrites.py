"""Plans on variants of the graph: its ops in a better order, some of them run again. Kept only where their replay is better.

Around :func:`hosim.planner.hyperoffload.pipeline.search`, which plans one graph:

1. the graph as it is;
2. ``reorder``: :func:`hosim.planner.rewrites.reorder.reorder` of it;
3. ``recompute``, on the better of the two: sets of drops are proposed (see :func:`_proposals`), their static peak and the time of what
   runs again counted, and the most promising ones planned and replayed. Where the best plan moves tensors that can be recomputed in less
   time, these are proposed in turn, for as long as that helps.

So a variant is never worse than the graph as it is, and there is a plan where only a variant fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hosim.analysis.liveness import static_curve
from hosim.cache_plan import Plan
from hosim.costmodel.op_time import op_durations
from hosim.edits import Edits, Recompute, edited
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import pipeline
from hosim.planner.hyperoffload.evaluation import Evaluation
from hosim.planner.hyperoffload.problem import Problem, analyse
from hosim.planner.rewrites.recompute import Candidate, Drop, candidates, cheapest, recomputes, segments
from hosim.planner.rewrites.reorder import reorder as better_order

_SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_TARGETS = (1.0, 0.95, 0.85, 0.7, 0.5)
"""Of the budget: below it to leave room for what chains hold while they run."""
_SHARES = (0.1, 0.25, 0.5, 1.0)
"""Of what could be recomputed instead of moved."""
_PLANNED, _ROUNDS = 4, 3
"""Sets of drops planned in a round, and rounds."""
_SMALL, _LOOKS = 200, 400
"""Ops up to which sets of drops are improved one by one, and how often one is looked at."""


def search(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    effort: float,
    seed: int,
    reorder: bool,
    recompute: bool,
) -> Evaluation:
    """The best outcome on the graph or a variant of it; ``plan.edits`` say which.

    Raises :class:`InfeasibleError`, as the graph itself does, if none of them fits.
    """
    budget = min(budget_bytes, hardware.device.capacity_bytes)
    run = _RewriteSearch(graph, hardware, budget, {"policy": "hyperoffload", "effort": effort, "seed": seed})
    run.attempt(graph, Edits(graph))
    if reorder:
        ordered = better_order(graph, op_durations(graph, hardware), budget)
        if ordered is not graph:
            run.attempt(ordered, Edits(graph, tuple([op.name for op in ordered.ops])))
    if recompute:
        _recompute(run)
    if run.best is None:
        assert run.refused is not None
        raise run.refused
    return run.best


@dataclass
class _RewriteSearch:
    """The best outcome so far (None: nothing fits yet), and the graph, with its edits, that it is on."""

    workload: Graph
    hardware: Hardware
    budget: int
    how: dict[str, object]
    best: Evaluation | None = None
    refused: InfeasibleError | None = None

    def __post_init__(self) -> None:
        self.ordered = (self.workload, Edits(self.workload))

    def attempt(self, graph: Graph, edits: Edits) -> bool:
        """Plan a variant; says whether that is the best so far."""
        better = False
        try:
            outcome = pipeline.search(graph, self.hardware, self.budget, **self.how)  # type: ignore[arg-type]
        except InfeasibleError as error:
            self.refused = self.refused or error
        else:
            better = self.best is None or outcome.cost < self.best.cost
            if better:
                self.best = _with_edits(outcome, edits) if edits.order or edits.recompute else outcome
        if edits.order and not edits.recompute and (better or self.best is None):
            self.ordered = (graph, edits)
        return better


def _with_edits(outcome: Evaluation, edits: Edits) -> Evaluation:
    """An outcome on an edited graph that says so."""
    plan = replace(outcome.plan, edits=edits)
    again = {"recomputes": plan.recomputes} if plan.recomputes else {}
    return replace(outcome, plan=plan, result=replace(outcome.result, plan={**outcome.result.plan, **again}))


# -- recomputation -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DropSet:
    """A set of drops, what its ops run again take, and the bytes by which its graph's static peak exceeds the budget."""

    drops: frozenset[Drop]
    again: tuple[Recompute, ...]
    again_ns: int
    excess_bytes: int


def _recompute(run: _RewriteSearch) -> None:
    graph, edits = run.ordered
    problem = analyse(graph, run.hardware)
    recomputable = candidates(problem)
    if not recomputable or (run.best is not None and run.best.cost.makespan_ns <= problem.horizon_ns):
        return
    weigh = _Weigher(problem, run.budget)
    drops: frozenset[Drop] = frozenset()
    tried: set[frozenset[Drop]] = {drops}
    for _ in range(_ROUNDS):
        found = False
        sets = dict.fromkeys(_proposals(run, problem, recomputable, weigh, drops))
        for drop_set in _promising(run, weigh, [weigh(d) for d in sets if d not in tried]):
            tried.add(drop_set.drops)
            if run.attempt(edited(graph, recompute=drop_set.again), replace(edits, recompute=drop_set.again)):
                drops, found = drop_set.drops, True
        if not found:
            break


class _Weigher:
    """Counts what sets of drops give, each once."""

    def __init__(self, problem: Problem, budget: int) -> None:
        self.problem = problem
        self.budget = budget
        self.duration = {op.name: d for op, d in zip(problem.graph.ops, problem.durations, strict=True)}
        self.base_excess = max(0, max(static_curve(problem.graph), default=0) - budget)
        self._known: dict[frozenset[Drop], _DropSet] = {}

    def __call__(self, drops: frozenset[Drop]) -> _DropSet:
        if drops not in self._known:
            again = recomputes(self.problem.graph, drops)
            curve = static_curve(edited(self.problem.graph, recompute=again))
            excess = max(0, max(curve, default=0) - self.budget)
            self._known[drops] = _DropSet(drops, again, sum([self.duration[r.op] for r in again]), excess)
        return self._known[drops]


def _promising(run: _RewriteSearch, weigh: _Weigher, sets: Iterable[_DropSet]) -> list[_DropSet]:
    """The sets to plan, the most promising first.

    With a plan in hand, its waits are taken to shrink as the excess of the static peak over the budget does, and what cannot be
    better so is left out. Without one, the least excess goes first.
    """
    sets = [drop_set for drop_set in sets if drop_set.again]
    if run.best is None:
        return sorted(sets, key=lambda o: (o.excess_bytes, o.again_ns))[:_PLANNED]
    horizon = weigh.problem.horizon_ns
    waits = run.best.cost.makespan_ns - horizon

    def expected(drop_set: _DropSet) -> float:
        return drop_set.again_ns + waits * drop_set.excess_bytes / max(1, weigh.base_excess)

    return sorted((o for o in sets if o.again_ns < waits), key=expected)[:_PLANNED]


def _proposals(
    run: _RewriteSearch, problem: Problem, recomputable: Sequence[Candidate], weigh: _Weigher, drops: frozenset[Drop]
) -> Iterator[frozenset[Drop]]:
    """Sets of drops that may help.

    What the best plan moves and could recompute in less time; the cheapest by byte down to several targets; checkpointing in several
    numbers of segments; on small graphs, the best of these improved drop by drop.
    """
    if run.best is not None:
        moved = _moved_but_cheaper(run.best.plan, recomputable)
        for share in _SHARES:
            yield drops.union(*(c.drops for c in moved[: max(1, round(len(moved) * share))]))
    if drops:
        return
    static: list[frozenset[Drop]] = [cheapest(problem, recomputable, int(run.budget * target)) for target in _TARGETS]
    static += [segments(problem, recomputable, count) for count in _SEGMENTS if count <= len(recomputable)]
    yield from static
    if len(problem.graph.ops) <= _SMALL:
        for start in sorted(static, key=lambda d: (weigh(d).excess_bytes, weigh(d).again_ns))[:2]:
            yield _improved(weigh, start, recomputable)


def _moved_but_cheaper(plan: Plan, recomputable: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that the plan moves instead, though recomputing them takes less time than their transfers; the cheapest by byte first."""
    moved = {plan.graph.tensors[c.tensor].name for c in plan.cache_ops}
    names = plan.workload.tensors
    cheaper = [
        c for c in recomputable if c.transfer_ns is not None and c.recompute_ns < c.transfer_ns and names[c.gap.tensor].name in moved
    ]
    return sorted(cheaper, key=lambda c: c.ns_per_byte)


def _improved(weigh: _Weigher, drops: frozenset[Drop], recomputable: Sequence[Candidate]) -> frozenset[Drop]:
    """``drops`` with single candidates added or taken away while the excess, then the time of what runs again, gets less."""

    def key(d: frozenset[Drop]) -> tuple[int, int]:
        return weigh(d).excess_bytes, weigh(d).again_ns

    looks = _LOOKS
    improved = True
    while improved:
        improved = False
        for candidate in recomputable:
            for changed in (drops.symmetric_difference(candidate.drops), drops.symmetric_difference(candidate.drops[:1])):
                looks -= 1
                if looks < 0:
                    return drops
                if key(changed) < key(drops):
                    drops, improved = changed, True
    return drops
