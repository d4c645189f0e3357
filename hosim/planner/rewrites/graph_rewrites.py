"""Plans on variants of the graph: its ops in a better order, some of them run again. Kept only where their replay is better.

Around :func:`hosim.planner.hyperoffload.pipeline.search`, which plans one graph:

1. the graph as it is, with little effort, and large ones briefly. If nothing waits, this is the plan;
2. variants (:mod:`hosim.planner.rewrites.variants`): with ``reorder`` the ops in another order
   (:func:`hosim.planner.rewrites.reorder.reorder`), with ``recompute`` some of them run again, in either order. The most promising ones are
   planned like that, too. If none is better, and all passes with little effort do better than briefly, they get these.
   Where the best plan moves tensors that can be recomputed in less time, these are dropped in turn, for as long as that helps;
3. the best variant then gets all the effort, and where such plans do not tell variants apart, so does the one with the least lower bound;
   the graph as it is does, too, unless its brief plan is far slower than what came of that or its lower bound is no less;
4. the plans of other policies for the graph as it is (:data:`hosim.planner.hyperoffload.other_plans.Others`).

So no plan here is worse than any of these policies, and there is a plan where only a variant fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from hosim.analysis import static_curve
from hosim.edits import Edits
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner import hyperoffload
from hosim.planner.hyperoffload import RIVAL, Judgement, Others, bound_ns, moving_ns
from hosim.planner.hyperoffload.local_moves import SMALL
from hosim.planner.hyperoffload.tensor_choices import Evaluation, Judge, analyse, of_another, plan_cost
from hosim.planner.rewrites.recompute import candidates
from hosim.planner.rewrites.reorder import eager
from hosim.planner.rewrites.reorder import reorder as better_order
from hosim.planner.rewrites.variants import DEEPEST, RECIPES, Recipe, Variant, Variants, promising

MOST_OPS = 20_000
"""Graphs with more ops are planned as they are."""

_PLANNED, _PLANNED_IF_SMALL, _ROUNDS = 2, 4, 2
"""Variants planned in a round for what is expected of them, and rounds."""
_BOUNDED = 4
"""Variants planned in a round for their lower bounds, half of them in one order of the ops if there are several."""
_LIKELY = 6
"""Ways to choose drops that are weighed for another order: so many that do best for the listed one in each way to expect a time."""
_WEIGHED = 4
"""Variants in each order of the ops whose lower bounds are compared: the most promising ones."""
_WORTH = 1000
"""Waits of less than this part of the step are not worth a variant."""
_QUICK = 1_000
"""Ops up to which variants are planned by all passes with little effort: that is quick, and tells them apart better than brief plans do."""
_ALIKE = 100
"""Brief plans are enough if that of the graph as it is takes less than a ``_ALIKE``-th longer than one by all passes with little effort."""
_UNSURE = 1.15
"""Plans with little effort do not tell variants apart where the best of them takes more than so many times its lower bound."""
_WINS = 0.97
"""A variant may win where its lower bound is less than this part of the best plan."""
_FAR = 0.85
"""A variant that takes less than this part of what the graph as it is takes, planned briefly, is the better one."""


def search(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    effort: float,
    seed: int,
    reorder: bool,
    recompute: bool,
    others: Others | None = None,
    judge: Judge = replay,
) -> Evaluation:
    """The best outcome on the graph or a variant of it; ``plan.edits`` say which. ``others`` are asked for plans where waits are left.

    ``judge`` replays the plans that are compared.

    Raises :class:`InfeasibleError`, as the graph itself does, if none of them fits.
    """
    budget = min(budget_bytes, hardware.device.capacity_bytes)
    run = _RewriteSearch(graph, hardware, budget, seed, judge) if (reorder or recompute) and len(graph.ops) <= MOST_OPS else None
    orders = [] if run is None else run.orders(reorder, recompute)
    if run is None or not orders:
        return hyperoffload.search(graph, hardware, budget, effort=effort, seed=seed, others=others, judge=judge)
    run.attempt(graph, Edits(graph))
    plain = run.best
    if plain is not None and not plain.waits and not plain.slowed:
        return plain
    if plain is not None and not run.waits(plain):
        return hyperoffload.search(graph, hardware, budget, effort=effort, seed=seed, others=others, judge=judge)
    found = _best_variant(run, orders)
    if found is None and run.needs_closer_look():
        plain, found = run.best, _best_variant(run, orders)
    unsure = effort > 0 and run.unsure(found)
    if found is not None:
        run.attempt(found.graph, found.edits, effort)
    second = run.second(found) if unsure else None
    if second is not None:
        run.attempt(second.graph, second.edits, effort)
    if (found is None and second is None) or plain is None or run.may_win(plain):
        run.attempt(graph, Edits(graph), effort, others)
        others = None
    if run.best is None:
        assert run.refused is not None
        raise run.refused
    return run.best if others is None else _or_a_rivals(run, run.best, others)


def _or_a_rivals(run: _RewriteSearch, best: Evaluation, others: Others) -> Evaluation:
    """``best``, or what another policy plans for the graph as it is with its defaults, if that is better."""
    tried = []

    def to_beat_ns() -> int | None:
        return best.result.makespan_ns

    for name, other in others(run.workload, run.hardware, run.budget, to_beat_ns, False):
        tried.append(name)
        if other is not None and moving_ns(other, run.hardware) < best.cost.makespan_ns:
            plan = replace(other, policy=best.plan.policy)
            result = of_another(run.judge, plan, run.hardware, run.budget)
            cost = plan_cost(plan, result)
            if cost < best.cost:
                best = Evaluation({}, replace(plan, judgement=Judgement(RIVAL, {}, None, name)), cost, result)
    judgement = best.plan.judgement
    assert isinstance(judgement, Judgement)
    return replace(best, plan=replace(best.plan, judgement=replace(judgement, tried=(*judgement.tried, *tried))))


def _best_variant(run: _RewriteSearch, orders: Sequence[Variants]) -> Variant | None:
    """The best variant found, without all effort; None if none is better than the graph as it is."""
    plain = run.best
    waits_ns = None if plain is None else plain.cost.makespan_ns - run.problem.horizon_ns
    recipes = RECIPES if orders[0].recomputable else ()
    likely = list(dict.fromkeys([recipe for way in (0, 1) for recipe in _best_recipes(orders[0], recipes, way)]))
    of_order = {order.edits.order: order for order in orders}
    proposed = [*orders[0].proposed(recipes), *[variant for order in orders[1:] for variant in order.proposed(likely)]]
    if recipes and len(run.workload.ops) > SMALL:
        proposed += _improved(run, of_order, proposed, waits_ns)
    if plain is not None:
        proposed += [variant for order in orders for variant in order.instead_of_moves(plain.plan, frozenset())]
    of = {_key(variant): variant for variant in proposed if variant.edits.order or variant.edits.recompute}
    tried: set[tuple[object, ...]] = set()
    found: Variant | None = None
    for _ in range(_ROUNDS):
        better = None
        for least_ns, variant in _worth_planning(run, [variant for key, variant in of.items() if key not in tried], waits_ns):
            if run.best is not None and least_ns >= run.best.cost.makespan_ns:
                continue
            tried.add(_key(variant))
            run.bounded += [variant] if least_ns else []
            if run.attempt(variant.graph, variant.edits):
                better = variant
        if better is None or run.best is None or not run.waits(run.best):
            return better or found
        found, order = better, of_order[better.edits.order]
        waits_ns = run.best.cost.makespan_ns - run.problem.horizon_ns
        of = {_key(variant): variant for variant in order.instead_of_moves(run.best.plan, better.drops)}
    return found


def _best_recipes(order: Variants, recipes: Sequence[Recipe], way: int) -> list[Recipe]:
    """Those of which the least is expected."""
    return sorted(recipes, key=lambda recipe: order.by(recipe).expected_ns[way])[:_LIKELY]


def _improved(
    run: _RewriteSearch, of_order: Mapping[tuple[str, ...], Variants], proposed: Sequence[Variant], waits_ns: int | None
) -> list[Variant]:
    """Two variants improved by groups of drops, each in one way of :attr:`Variant.expected_ns`.

    These are the one that is best in the first way, and the one with the least lower bound of the most promising ones in each order.
    """
    first = [variant for alike in _by_order(promising(proposed, waits_ns)) for variant in alike[:_WEIGHED]]
    starts = min(proposed, key=lambda variant: variant.expected_ns), min(first or proposed, key=run.least_ns)
    return [of_order[start.edits.order].improved_by_groups(start, way) for way, start in enumerate(starts)]


def _by_order(variants: Iterable[Variant]) -> list[list[Variant]]:
    """Variants with the same order of the ops together, in their order here."""
    found: dict[tuple[str, ...], list[Variant]] = {}
    for variant in variants:
        found.setdefault(variant.edits.order, []).append(variant)
    return list(found.values())


def _worth_planning(run: _RewriteSearch, variants: Sequence[Variant], waits_ns: int | None) -> list[tuple[int, Variant]]:
    """The variants to plan, the most promising first, each with what its plan takes at least, in nanoseconds.

    Once there is a plan to beat, those are promising, too, whose graphs have the least lower bounds, as a good plan ends near that of its
    graph. It does not tell everything, so variants of several orders are planned if there are any. Small graphs are planned in less time
    than their bounds take, so those of each order that promise most are planned.
    """
    ranked, small = promising(variants, waits_ns), len(run.workload.ops) <= SMALL
    first = ranked[: _PLANNED_IF_SMALL if small else _PLANNED]
    if waits_ns is None:
        return [(0, variant) for variant in first]
    by_order = _by_order(ranked)
    of_each = _BOUNDED if len(by_order) == 1 else _BOUNDED // 2
    if small:
        listed = {_key(variant): variant for alike in (first, *[alike[:of_each] for alike in by_order]) for variant in alike}
        return [(0, variant) for variant in listed.values()]
    weighed = []
    for k, alike in enumerate(by_order):
        bounds = sorted([(run.least_ns(variant), i) for i, variant in enumerate(alike[:_WEIGHED])])
        weighed += [(least_ns, k, i, alike[i]) for least_ns, i in bounds[:of_each]]
    found = {_key(variant): (least_ns, variant) for least_ns, _, _, variant in sorted(weighed, key=itemgetter(0, 1, 2))[:_BOUNDED]}
    return [*found.values(), *[(0, variant) for variant in first if _key(variant) not in found]]


def _key(variant: Variant) -> tuple[object, ...]:
    """What tells variants apart."""
    return variant.edits.order, variant.edits.recompute


class _RewriteSearch:
    """A search over variants of a graph. ``best`` is the best outcome so far; ``None``: nothing fits yet."""

    def __init__(self, workload: Graph, hardware: Hardware, budget: int, seed: int, judge: Judge) -> None:
        self.workload = workload
        self.hardware = hardware
        self.budget = budget
        self.seed = seed
        self.judge = judge
        self.problem = analyse(workload, hardware)
        self.brief = len(workload.ops) > _QUICK
        """Whether variants are compared by brief plans."""
        self.best: Evaluation | None = None
        self.refused: InfeasibleError | None = None
        self.bounded: list[Variant] = []
        """The variants planned for their lower bounds."""

    def least_ns(self, variant: Variant) -> int:
        """The lower bound of a variant's graph."""
        return bound_ns(variant.graph, self.hardware, self.budget)

    def orders(self, reorder: bool, recompute: bool) -> list[Variants]:
        """The variants by order of the ops; none where the graph fits, or where no other graph can need much less than it."""
        if max(static_curve(self.workload, self.hardware.device_tier), default=0) <= self.budget:
            return []
        edits = Edits(self.workload)
        found = [Variants(self.problem, edits, candidates(self.problem) if recompute else (), self.budget)]
        for ordered in self._other_orders() if reorder else ():
            problem = analyse(ordered, self.hardware)
            edits = Edits(self.workload, tuple([op.name for op in ordered.ops]))
            found.append(Variants(problem, edits, candidates(problem) if recompute else (), self.budget))
        if len(self.workload.ops) <= SMALL:
            return found if len(found) > 1 or found[0].recomputable else []
        plain = found[0](frozenset())
        deepest = [order.by(recipe) for order in found for recipe in DEEPEST if order.recomputable]
        reordered = [order(frozenset()) for order in found[1:]]
        return found if any([variant.needs_less_than(plain) for variant in (*deepest, *reordered)]) else []

    def _other_orders(self) -> list[Graph]:
        """The workload with its ops in the order that holds least, and with each op that frees memory as soon as it can be."""
        found = [self.workload]
        device_tier = self.hardware.device_tier
        for graph in (better_order(self.workload, self.problem.durations, self.budget, device_tier), eager(self.workload)):
            if all(graph.ops != other.ops for other in found):
                found.append(graph)
        return found[1:]

    def waits(self, outcome: Evaluation) -> bool:
        """Whether ops wait for long enough to be worth another graph."""
        horizon = self.problem.horizon_ns
        return outcome.waits and outcome.cost.makespan_ns - horizon > horizon // _WORTH

    def may_win(self, plain: Evaluation) -> bool:
        """Whether the graph as it is, with ``plain`` as its brief plan, may have a better one than the best."""
        if self.best is None:
            return True
        best_ns = self.best.cost.makespan_ns
        if best_ns < _FAR * plain.cost.makespan_ns:
            return False
        return len(self.workload.ops) <= SMALL or bound_ns(self.workload, self.hardware, self.budget) < best_ns

    def unsure(self, found: Variant | None) -> bool:
        """Whether plans with little effort, of which that of ``found`` is the best, do not tell variants apart.

        They do not where even the best is far above its lower bound, as transfers take the time: there it is the search that matters.
        """
        if self.best is None or not self.bounded:
            return False
        least_ns = bound_ns(self.workload, self.hardware, self.budget) if found is None else self.least_ns(found)
        return self.best.cost.makespan_ns > _UNSURE * least_ns

    def second(self, found: Variant | None) -> Variant | None:
        """The variant with the least lower bound, if that is not the one ``found`` and may be better than the best plan."""
        likely = min(self.bounded, key=self.least_ns)
        if (found is not None and _key(likely) == _key(found)) or self.best is None:
            return None
        return likely if self.least_ns(likely) < _WINS * self.best.cost.makespan_ns else None

    def needs_closer_look(self) -> bool:
        """Whether brief plans are not enough to compare: where that of the graph as it is is much worse than one by all passes.

        Then that one is the best so far, and what follows is planned like it.
        """
        if self.best is None or not self.brief:
            return False
        outcome, brief_ns = self._searched(self.workload, 0.0, None), self.best.cost.makespan_ns
        if brief_ns - outcome.cost.makespan_ns <= brief_ns // _ALIKE:
            return False
        self.brief, self.best = False, outcome
        return True

    def attempt(self, graph: Graph, edits: Edits, effort: float | None = None, others: Others | None = None) -> bool:
        """Plan a variant, with little effort if none is given, large ones briefly; says whether that is the best so far."""
        try:
            outcome = self._searched(graph, effort or 0.0, others, brief=effort is None and self.brief)
        except InfeasibleError as error:
            self.refused = self.refused or error
            return False
        better = self.best is None or outcome.cost < self.best.cost
        if better:
            self.best = _with_edits(outcome, edits) if edits.order or edits.recompute else outcome
        return better

    def _searched(self, graph: Graph, effort: float, others: Others | None, *, brief: bool = False) -> Evaluation:
        given = graph, self.hardware, self.budget
        return hyperoffload.search(*given, effort=effort, seed=self.seed, others=others, judge=self.judge, brief=brief)


def _with_edits(outcome: Evaluation, edits: Edits) -> Evaluation:
    """An outcome on an edited graph that says so."""
    plan = replace(outcome.plan, edits=edits)
    again = {"recomputes": plan.recomputes} if plan.recomputes else {}
    return replace(outcome, plan=plan, result=replace(outcome.result, plan={**outcome.result.plan, **again}))
