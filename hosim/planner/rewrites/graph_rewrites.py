"""Arms of the planner's search that change the graph: by another order of its ops, and by
recomputation.

With ``reorder`` the ops run in another order (:func:`hosim.planner.rewrites.reorder.reorder`);
with ``recompute`` some of them run again, in either order. Many variants are weighed
(:class:`Variants`). The most promising ones are swept and join the pool of the search
(:mod:`hosim.planner.hyperoffload.search`). If the best plan moves tensors that are faster to
recompute, variants that recompute them are tried in turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, product
from math import inf, sqrt

import numpy as np

from hosim.analysis.costmodel.transfers import channel_bandwidth
from hosim.cache_plan import AT_START, Plan, plain_cache_op
from hosim.edits import Edits, edited, edited_from
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Channel
from hosim.planner.hyperoffload import (
    LOCAL_SEARCH,
    Arm,
    Found,
    PlannedGraph,
    Search,
    stretched,
    swept,
)
from hosim.planner.hyperoffload.tensor_choices import Problem, analyse, check_floor, choices_of
from hosim.planner.rewrites.recompute import (
    Candidate,
    Checkpoints,
    Drop,
    Numbers,
    Rerun,
    Reruns,
    candidates,
    cheapest,
    countable,
    recomputes,
)
from hosim.planner.rewrites.reorder import eager
from hosim.planner.rewrites.reorder import reorder as better_order

# -- variants
# --------------------------------------------------------------------------------------------------
# Variants of a graph that may need fewer transfers, weighed by the time that a plan for them is
# expected to take.
#
# A variant is an order of the ops, and sets of drops (:mod:`hosim.planner.rewrites.recompute`) on
# it. Weighing one takes a walk through the graph; planning one takes a hundred times as long. So
# many are weighed, and few are planned. On large graphs a set of drops is improved by adding or
# removing groups of similar tensors, such as those of all layers (selective checkpointing,
# Korthikanti et al., arXiv 2205.05198).

Recipe = float | tuple[int, int]
"""A rule that chooses drops: a float drops the cheapest by byte until the peak is this fraction of
the budget; a pair (m, n) makes checkpoints of m segments, and keeps the last n of them unchanged.
"""

LIKELY: tuple[Recipe, ...] = (1.0, (8, 1), (12, 2), (16, 2), (24, 2))
OTHERS: tuple[Recipe, ...] = (0.95, 0.85, (2, 1), (4, 1), (8, 2), (16, 8), (32, 2), (64, 32))
"""Fractions of the budget below 1 leave room for the tensors that a recomputed chain holds. The
last segments are needed again so soon that dropping them seldom helps; if the peak is little above
the budget, dropping only the first ones is enough.
"""
_SHARES = (0.1, 0.25, 0.5, 1.0)
"""The shares of the moved tensors worth recomputing that are tried."""
_LOOKS = 40
"""How many sets of drops are looked at where one is improved, or where the best plan's is."""
_MARGIN, _PART = 1.25, 0.05
"""Of transfers: what they take more than alone on their channels, and what part of them is not
hidden, in any case. Measured on variants of training steps of BERT-large and GPT-2 XL: with these,
what is expected ranks them about as their plans do.
"""


@dataclass(frozen=True, eq=False)
class Variant:
    """A graph that follows from the workload by edits, and how promising it is.

    ``among`` are those with the same order of the ops. ``reruns`` are the ops that run again for
    its ``drops``, ``again_ns`` is their time, ``excess_bytes`` what the static peak has above the budget. ``expected_ns`` is about what
    a plan takes: what the peak has above the budget leaves before it and returns after it.
    """

    among: Variants
    drops: frozenset[Drop]
    reruns: tuple[Rerun, ...]
    again_ns: int
    excess_bytes: int
    expected_ns: float

    @cached_property
    def edits(self) -> Edits:
        """The edits that make its graph; computed on demand, as few of the weighed variants are
        planned.
        """
        again = recomputes(self.among.problem.graph, self.reruns)
        return replace(self.among.edits, recompute=again)


class Variants:
    """The variants of a graph with one order of its ops, that of ``edits``. Each set of drops is
    weighed once. Without ``recompute`` no op runs again.
    """

    def __init__(self, problem: Problem, edits: Edits, budget: int, recompute: bool = True) -> None:
        self.problem = problem
        self.edits = edits
        self.budget = budget
        self._recompute = recompute
        self._durations = np.array(problem.durations, np.int64)
        self._known: dict[frozenset[Drop], Variant] = {}
        self._below, self._clean = _may_start_below(problem)
        self._down_ns = self._byte_ns([tier.down for tier in problem.below])
        self._up_ns = self._byte_ns([tier.up for tier in problem.below])

    @cached_property
    def recomputable(self) -> Sequence[Candidate]:
        """All candidates for recomputation."""
        return candidates(self.problem) if self._recompute else ()

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.problem, self.recomputable)

    def __call__(self, drops: frozenset[Drop]) -> Variant:
        """Return the variant with these drops."""
        if drops not in self._known:
            self._known[drops] = self._weighed(drops)
        return self._known[drops]

    def _weighed(self, drops: frozenset[Drop]) -> Variant:
        reruns = self.problem.graph.derived(Reruns, self.problem.hardware.device_tier)
        again, held_bytes, ran = reruns(drops)
        above = np.maximum(held_bytes - self.budget, 0)
        durations = self._durations[ran]
        return Variant(
            self,
            drops,
            again,
            int(durations.sum() - self._durations.sum()),
            int(above.max(initial=0)),
            self._expected_ns(above, durations, np.maximum.accumulate(ran)),
        )

    def _expected_ns(self, above: Numbers, durations: Numbers, ops: Numbers) -> float:
        """The time of the ops; or that of the transfers before some op, or the ops if that is
        longer, and the same after it.

        What is ``above`` the budget at the op returns after it. It leaves before it, unless it may
        start below; and what the step writes leaves in any case. As not all that may start below does,
        this is the geometric mean with the time if all leaves before the op.
        """
        total = float(durations.sum())
        exposed = _PART * float(above.max(initial=0)) * (self._down_ns + self._up_ns)
        full = np.flatnonzero(above)
        away, before = (
            above[full].astype(float),
            (np.cumsum(durations) - durations)[full].astype(float),
        )
        down_ns, up_ns = _MARGIN * self._down_ns, _MARGIN * self._up_ns
        returning = np.maximum(total - before, away * up_ns)
        leaving = np.maximum(before, np.maximum(away - self._below[ops[full]], 0) * down_ns)
        stored = np.maximum(away - self._clean[ops[full]], 0) * down_ns
        hoped = np.maximum(leaving + returning, stored).max(initial=total)
        feared = (np.maximum(before, away * down_ns) + returning).max(initial=total)
        return sqrt(float(hoped) * float(feared)) + exposed

    def _byte_ns(self, channels: Sequence[Channel]) -> float:
        """Return the time in ns per byte on these channels of one direction together."""
        bandwidth = sum(
            [channel_bandwidth(self.problem.hardware, channel.name) for channel in channels]
        )
        return 1e9 / max(1, bandwidth)  # without a tier below no variant above the budget is likely

    def by(self, recipe: Recipe) -> Variant:
        """Return the variant with the drops of a recipe."""
        if isinstance(recipe, float):
            return self(cheapest(self.problem, self.recomputable, int(self.budget * recipe)))
        return self(self._checkpoints.drops(*recipe))

    @property
    def known(self) -> Collection[Variant]:
        """The variants weighed so far."""
        return self._known.values()

    def proposed(self, recipes: Iterable[Recipe]) -> list[Variant]:
        """Return the variant without drops, and those of the recipes."""
        fitting = [
            recipe
            for recipe in recipes
            if isinstance(recipe, float) or recipe[0] <= len(self.recomputable)
        ]
        return [self(frozenset()), *[self.by(recipe) for recipe in fitting if self.recomputable]]

    def improved(self) -> Variant:
        """Return the variant with the lowest expected time so far, improved by groups."""
        best = min(self.known, key=lambda variant: (variant.expected_ns, variant.again_ns))
        return self.improved_by_groups(best) if self.recomputable else best

    def improved_by_groups(self, best: Variant) -> Variant:
        """Return ``best`` with groups of similar candidates added or removed, first whole and then
        by halves, as long as the expected time falls.
        """
        looks = _LOOKS
        whole = self._groups
        halves = [
            half
            for group in whole
            for half in (group[: len(group) // 2], group[len(group) // 2 :])
            if half
        ]
        seen = {best.drops}
        for groups in (whole, halves):
            improved = True
            while improved:
                improved = False
                for group, change in product(groups, (_with_inputs, _with, _without)):
                    drops = change(best.drops, group)
                    if drops in seen:
                        continue
                    if not looks:
                        return best
                    looks -= 1
                    seen.add(drops)
                    changed = self(drops)
                    if changed.expected_ns < best.expected_ns:
                        best, improved = changed, True
        return best

    @cached_property
    def _groups(self) -> list[list[Candidate]]:
        """The candidates grouped by the size, the producer and the users of their tensors; groups
        with most bytes first.
        """
        graph = self.problem.graph
        groups: dict[object, list[Candidate]] = {}
        for candidate in self.recomputable:
            t = candidate.gap.tensor
            users = graph.users[t]
            kinds = tuple([graph.ops[i].kind for i in users])
            key = (
                graph.tensors[t].size_bytes,
                graph.tensors[t].kind,
                kinds,
                self.problem.durations[users[0]],
                len(candidate.drops),
            )
            groups.setdefault(key, []).append(candidate)
        sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
        return sorted(groups.values(), key=lambda group: -sum([sizes[c.gap.tensor] for c in group]))

    def instead_of_moves(self, plan: Plan, drops: frozenset[Drop]) -> Iterator[Variant]:
        """Yield variants with ``drops`` that also recompute some tensors that a plan moves."""
        moved = _moved_but_cheaper(plan, self.recomputable)
        for share in _SHARES if moved else ():
            yield self(drops.union(*(c.drops for c in moved[: max(1, round(len(moved) * share))])))

    def moving_instead(self, drops: frozenset[Drop]) -> Iterator[Variant]:
        """Yield variants without the ``drops`` of a group of similar tensors, most bytes first."""
        for group in self._groups[:_LOOKS] if drops else ():
            yield self(_without(drops, group))


def _may_start_below(problem: Problem) -> tuple[Numbers, Numbers]:
    """Return two arrays of bytes by op: of the tensors that may start below and are not used up to
    that op, and of those among them that the step never writes.
    """
    graph, count = problem.graph, len(problem.graph.ops)
    found = np.zeros((2, count + 1), np.int64)
    for gap in [gap for gap in problem.gaps if gap.after == AT_START]:
        tensor = graph.tensors[gap.tensor]
        if tensor.persistent:
            found[: 1 if graph.writers[gap.tensor] else 2, gap.before] -= tensor.size_bytes
            found[: 1 if graph.writers[gap.tensor] else 2, 0] += tensor.size_bytes
    below, clean = np.cumsum(found, axis=1)[:, :count]
    return below, clean


def _with_inputs(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Return the drops and those of a group, with the dead inputs along its chains."""
    return drops.union(*[candidate.drops for candidate in group])


def _with(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Return the drops and those of a group, without the inputs along its chains."""
    return drops | {candidate.drops[0] for candidate in group}


def _without(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Return the drops without those of a group."""
    return drops - {candidate.drops[0] for candidate in group}


def _moved_but_cheaper(plan: Plan, recomputable: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that the plan moves although recomputing them takes less time than
    their transfers; the cheapest by byte first.
    """
    moved = {plan.graph.tensors[c.tensor].name for c in plan.cache_ops}
    names = plan.workload.tensors
    cheaper = [
        c
        for c in recomputable
        if c.transfer_ns is not None
        and c.recompute_ns < c.transfer_ns
        and names[c.gap.tensor].name in moved
    ]
    return sorted(cheaper, key=lambda c: c.ns_per_byte)


MOST_OPS = 20_000
"""Graphs with more ops are planned without rewrites."""
_OF_AN_ORDER, _OF_A_VARIANT = 80, 1
"""The work of finding and analysing an order of the ops, and of weighing a variant, for each op."""


def rewriting(reorder: bool, recompute: bool) -> tuple[Arm, Arm]:
    """Return the two arms that try variants of the graph: promising ones, and those near the best
    plan.
    """
    made: dict[Search, _Rewrites] = {}

    def likely(search: Search, planned: PlannedGraph) -> Iterator[Callable[[], float | None]]:
        graph = planned.problem.graph
        if (reorder or recompute) and len(graph.ops) <= MOST_OPS and countable(graph):
            made[search] = _Rewrites(search, planned, recompute)
            yield from made[search].steps(reorder)

    def near(search: Search, planned: PlannedGraph) -> Iterator[None]:
        if search in made:
            yield from made[search].changing(planned)

    return likely, near


class _Rewrites:
    """The variants weighed so far, and what the plans of sweeps take for some of them."""

    def __init__(self, search: Search, planned: PlannedGraph, recompute: bool) -> None:
        self._search, self._graph, self._recompute = search, planned.problem.graph, recompute
        plain = Variants(planned.problem, Edits(self._graph), search.budget_bytes, recompute)
        self._plain = plain(frozenset())
        self._known: dict[object, Variant] = {}
        """By what tells variants apart."""
        self._swept: dict[Variant, float] = {}
        self._planned: dict[PlannedGraph, Variant] = {planned: self._plain}
        self._near: Found | None = None
        self._nearby: Sequence[Variant] = ()
        self._carried: set[Variant] = set()

    def steps(self, reorder: bool) -> Iterator[Callable[[], float | None]]:
        """Sweep the variants weighed so far, the most promising one first; weigh more before those
        that promise nothing.
        """
        if not self._plain.excess_bytes:
            return
        weighing = self._weighed(reorder)
        orders_left: bool | None = next(weighing)
        while True:
            self._note_near()
            variant = self._most_promising()
            if variant is None and orders_left is None:
                return
            begun = bool(self._swept)  # the first sweep is made whatever it promises
            if begun:
                yield partial(self._promised_ns, variant, orders_left is True)
            pays = not begun or orders_left is None or self._promised_ns(variant) is not None
            if variant is not None and pays:
                self._sweep(variant)
            else:
                orders_left = next(weighing, None)

    def changing(self, planned: PlannedGraph) -> Iterator[None]:
        """As long as the best plan is for this graph, carry its choices over to nearby variants."""
        while (best := self._search.best) is not None and best.planned is planned:
            variant = self._nearest(best)
            if variant is None:
                return
            self._carried.add(variant)
            other = self._planned_graph(variant)
            plan = carried(best.outcome.plan, self._graph, other.problem.graph)
            outcome = other.evaluate(choices_of(other.problem, plan))
            self._search.offer(Found(outcome, other, LOCAL_SEARCH))
            yield

    def _nearest(self, best: Found) -> Variant | None:
        """The variant near the best plan's that gains most in the time that is expected and in that
        of the ops; of those not planned, if that pays.
        """
        self._note_near()
        here, takes_ns = self._planned.get(best.planned), best.outcome.cost.makespan_ns
        if here is None or best.rival or self._search.nothing_fits:
            return None

        def promised_ns(variant: Variant) -> float:
            expected = variant.expected_ns / here.expected_ns
            return takes_ns * expected + variant.again_ns - here.again_ns

        left = [
            variant
            for variant in self._nearby
            if variant not in self._swept and variant not in self._carried
        ]
        nearest = min(left, key=promised_ns, default=None)
        if nearest is None or not self._search.pays(promised_ns(nearest)):
            return None
        return nearest

    def _weighed(self, reorder: bool) -> Iterator[bool]:
        """Weigh variants: the likely sets of what runs again in one order of the ops after the
        other, and then others. Says whether there may be more orders.
        """
        orders: list[Variants] = []
        for ordered in _orders(self._search, self._graph, reorder):
            self._search.work.done += _OF_AN_ORDER * len(self._graph.ops) * reorder
            orders.append(self._plain.among if ordered is self._graph else self._in_order(ordered))
            self._noted(orders[-1], lambda order: order.proposed(LIKELY))
            yield True
        for order in orders:
            least_bytes = min([variant.excess_bytes for variant in order.known])
            if least_bytes < order(frozenset()).excess_bytes:
                self._noted(order, lambda order: [*order.proposed(OTHERS), order.improved()])
                yield False

    def _in_order(self, ordered: Graph) -> Variants:
        """Return the variants with the order of ops of ``ordered``."""
        edits = Edits(self._graph, tuple([op.name for op in ordered.ops]))
        problem = analyse(ordered, self._search.hardware)
        return Variants(problem, edits, self._search.budget_bytes, self._recompute)

    def _noted(
        self, order: Variants, weigh: Callable[[Variants], Sequence[Variant]]
    ) -> Sequence[Variant]:
        """Weigh variants, note the new ones, and return all that ``weigh`` returns."""
        known = len(order.known)
        weighed = weigh(order)
        for variant in weighed:
            self._known.setdefault((order, variant.reruns), variant)
        self._search.work.done += _OF_A_VARIANT * len(self._graph.ops) * (len(order.known) - known)
        return weighed

    def _most_promising(self) -> Variant | None:
        """The variant of which the least is estimated, then with the fewest ops that run again; of
        those not swept, and without one swept in its order that does not fit and has no more above
        the budget.
        """
        untried = [
            variant
            for variant in self._known.values()
            if all(
                [
                    variant.excess_bytes < other.excess_bytes
                    for other, ns in self._swept.items()
                    if variant.among is other.among and (ns == inf or variant is other)
                ]
            )
        ]
        return min(
            untried,
            key=lambda variant: (self._estimate_ns(variant), len(variant.reruns)),
            default=None,
        )

    def _estimate_ns(self, variant: Variant) -> float:
        """Return the expected time in ns, corrected by the error of the expectation for the fastest
        sweep in its order. For variants that need no transfers the expectation is right.
        """
        swept = [
            (ns, other.expected_ns)
            for other, ns in self._swept.items()
            if variant.among is other.among and variant.excess_bytes and other.excess_bytes
        ]
        takes_ns, expected_ns = min(swept, default=(inf, 1.0))
        return variant.expected_ns * (takes_ns / expected_ns if takes_ns < inf else 1.0)

    def _promised_ns(self, variant: Variant | None, orders_left: bool = False) -> float | None:
        """Return the makespan in ns that a variant promises: its estimate, reduced as the best plan
        is below its sweep's; for orders not weighed yet, the least expected in the others. None
        if that does not pay.
        """
        best = self._search.best
        here = None if best is None else self._planned.get(best.planned)
        promised_ns = inf if variant is None else self._estimate_ns(variant)
        if best is not None and here in self._swept:
            promised_ns *= best.outcome.cost.makespan_ns / self._swept[here]
        if orders_left:
            promised_ns = min([promised_ns, *[known.expected_ns for known in self._known.values()]])
        return promised_ns if self._search.nothing_fits or self._search.pays(promised_ns) else None

    def _planned_graph(self, variant: Variant) -> PlannedGraph:
        """Return the graph of a variant, ready to plan for."""
        for planned, known in self._planned.items():
            if known is variant:
                return planned
        among, edits = variant.among.problem, variant.edits
        graph = edited(among.graph, recompute=edits.recompute)
        planned = self._search.planned_graph(graph, edits, None if variant.reruns else among)
        self._planned[planned] = variant
        return planned

    def _sweep(self, variant: Variant) -> None:
        """Sweep a variant, and offer the plan."""
        planned = self._planned_graph(variant)
        with suppress(InfeasibleError):
            check_floor(planned.problem, self._search.budget_bytes)
            swept(self._search, planned, stretched(planned))
        takes_ns = planned.evaluate.least_ns
        self._swept[variant] = inf if takes_ns is None else takes_ns

    def _note_near(self) -> None:
        """Weigh variants that recompute what the best plan moves, or move what it recomputes; once
        for each plan.
        """
        best = self._search.best
        if not self._swept or best is self._near or self._search.nothing_fits:
            return
        self._near = best
        if best is None or best.rival:
            return
        here, plan = self._planned.get(best.planned), best.outcome.plan
        if here is not None:
            self._nearby = self._noted(
                here.among,
                lambda order: [
                    *order.instead_of_moves(plan, here.drops),
                    *order.moving_instead(here.drops),
                ],
            )


def carried(plan: Plan, base: Graph, graph: Graph) -> Plan:
    """Return a plan's cache ops for another graph made from ``base`` with the same order of ops:
    each moves the corresponding tensor.
    """
    at = [*accumulate([graph.op_index.get(op.name, -1) for op in plan.graph.ops], max)]
    first, count = graph.compact_users.first, len(base.tensors)
    stand = [[(-1, t)] for t in range(count)]
    for t in range(count, len(graph.tensors)):
        stand[edited_from(base, graph, t)].append((first[t], t))
    for listed in stand:
        listed.sort()
    cache_ops = []
    for c in plan.cache_ops:
        after = at[c.after] if c.after >= 0 else c.after
        listed = stand[edited_from(base, plan.graph, c.tensor)]
        _, t = listed[bisect_right(listed, (after, len(graph.tensors))) - 1]
        cache_ops.append(plain_cache_op(c.op, t, c.source, c.destination, after))
    return Plan(graph, plan.policy, tuple(cache_ops), plan.initial)


def _orders(search: Search, graph: Graph, reorder: bool) -> Iterator[Graph]:
    """Yield the unchanged graph. With ``reorder``, yield first the graph with each op that frees
    memory as early as possible, and last the graph in a better order; each order once.
    """
    if not reorder:
        yield graph
        return
    soon = eager(graph)
    if soon.ops != graph.ops:
        yield soon
    yield graph
    least = better_order(
        graph, search.plain.problem.durations, search.budget_bytes, search.hardware.device_tier
    )
    if least.ops not in (soon.ops, graph.ops):
        yield least
