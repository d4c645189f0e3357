"""Variants of the graph as an arm of the planner's search: its ops in a better order, some of them
run again.

With ``reorder`` the ops come in another order (:func:`hosim.planner.rewrites.reorder.reorder`),
with ``recompute`` some of them run again, in either order. Many variants are weighed
(:class:`Variants`). The most promising ones are swept, and join the pool of
the search (:mod:`hosim.planner.hyperoffload.search`), which goes on from what does best. Where the
best plan moves tensors that can be made again in less time, these are dropped in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import sqrt

import numpy as np

from hosim.analysis import Numbers, edited_curve
from hosim.analysis.costmodel.transfers import channel_bandwidth
from hosim.analysis.lower_bounds import LowerBounds
from hosim.cache_plan import AT_START, Plan
from hosim.edits import Edits, edited
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Channel
from hosim.planner.hyperoffload import Arm, PlannedGraph, Search, stretched, swept
from hosim.planner.hyperoffload.tensor_choices import Problem, analyse, check_floor
from hosim.planner.rewrites.recompute import (
    Candidate,
    Drop,
    candidates,
    cheapest,
    recomputes,
    segments,
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
# taking away tensors that are alike, as the layers of a network are (selective checkpointing,
# Korthikanti et al., arXiv 2205.05198).

Recipe = float | tuple[int, int]
"""A way to choose drops: the cheapest by byte down to this part of the budget; or checkpoints of so
many segments, of which so many last ones stay as they are.
"""

LIKELY: tuple[Recipe, ...] = (1.0, (8, 1), (12, 2), (16, 2), (24, 2))
OTHERS: tuple[Recipe, ...] = (0.95, 0.85, (2, 1), (4, 1), (8, 2), (16, 8), (32, 2), (64, 32))
"""Parts of the budget below 1 leave room for what chains hold while they run. The last segments are
needed again so soon that it seldom helps to drop them, and it helps to drop the first ones alone
where little is above the budget.
"""
_SHARES = (0.1, 0.25, 0.5, 1.0)
"""Shares of what could be recomputed instead of moved."""
SMALL = 200
"""Ops up to which sets of drops are improved one by one, and every variant that may win is swept:
that takes less work than to find out which is worth it.
"""
_LOOKS = 400
"""How often sets of drops are looked at where they are improved one by one, on small graphs."""
_GROUP_LOOKS, _GROUP_OPS, _FEWEST_LOOKS = 20, 40_000, 8
"""How often sets of drops are looked at where they are improved by groups: at most, in ops of all
graphs looked at, and at least.
"""
_SMALLEST_GROUP = 100
"""Groups of less than one part in so many of the bytes that could be dropped are left as they
are.
"""
_MARGIN, _PART = 1.25, 0.05
"""Of transfers: what they take more than alone on their channels, and what part of them is not
hidden, in any case. Measured on variants of training steps of BERT-large and GPT-2 XL: with these,
what is expected ranks them about as their plans do.
"""
_NO_TIER = 1e3
"""Nanoseconds for a byte where no tier is below."""


@dataclass(frozen=True)
class Variant:
    """A graph that follows from the workload by ``edits``, and how promising it is.

    ``ordered`` is the workload with its ops in the order that ``edits`` give. ``again_ns`` is the
    time of the ops that run again, ``excess_bytes`` what the static peak has above the budget.
    ``expected_ns`` is about what a plan takes: what the peak has above the budget leaves before it
    and returns after it.
    """

    ordered: Graph
    edits: Edits
    drops: frozenset[Drop]
    again_ns: int
    excess_bytes: int
    expected_ns: float

    @cached_property
    def graph(self) -> Graph:
        """The graph that follows; made where it is asked for, as few variants are planned of those
        that are weighed.
        """
        return edited(self.ordered, recompute=self.edits.recompute)

    @property
    def weight(self) -> tuple[int, int]:
        """Less is better where nothing fits yet."""
        return self.excess_bytes, self.again_ns


class Variants:
    """The variants of a graph whose ops are in one order; ``edits`` say in which, and each set of
    drops is weighed once.
    """

    def __init__(
        self, problem: Problem, edits: Edits, recomputable: Sequence[Candidate], budget: int
    ) -> None:
        self.problem = problem
        self.edits = edits
        self.recomputable = recomputable
        self.budget = budget
        self._durations = np.array(problem.durations, np.int64)
        self._known: dict[frozenset[Drop], Variant] = {}
        self._below, self._clean = _may_start_below(problem)
        self._down_ns = self._byte_ns([tier.down for tier in problem.below])
        self._up_ns = self._byte_ns([tier.up for tier in problem.below])

    def recomputing(self) -> Variants:
        """The same with all that may run again."""
        return Variants(self.problem, self.edits, candidates(self.problem), self.budget)

    def __call__(self, drops: frozenset[Drop]) -> Variant:
        """The variant with these drops."""
        if drops not in self._known:
            self._known[drops] = self._weighed(drops)
        return self._known[drops]

    def _weighed(self, drops: frozenset[Drop]) -> Variant:
        again = recomputes(self.problem.graph, drops)
        held_bytes, ops = edited_curve(self.problem.graph, again, self.problem.hardware.device_tier)
        above = np.maximum(held_bytes - self.budget, 0)
        durations = self._durations[ops]
        edits = replace(self.edits, recompute=again)
        again_ns, excess_bytes = (
            int(durations.sum() - self._durations.sum()),
            int(above.max(initial=0)),
        )
        return Variant(
            self.problem.graph,
            edits,
            drops,
            again_ns,
            excess_bytes,
            self._expected_ns(above, durations, np.maximum.accumulate(ops)),
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
        """Nanoseconds for a byte on all of these channels together, those of one direction."""
        bandwidth = sum(
            [channel_bandwidth(self.problem.hardware, channel.name) for channel in channels]
        )
        return 1e9 / bandwidth if bandwidth else _NO_TIER

    def by(self, recipe: Recipe) -> Variant:
        """The variant with the drops of a recipe."""
        if isinstance(recipe, float):
            return self(cheapest(self.problem, self.recomputable, int(self.budget * recipe)))
        return self(segments(self.problem, self.recomputable, *recipe))

    @property
    def known(self) -> Collection[Variant]:
        """The variants weighed so far."""
        return self._known.values()

    def proposed(self, recipes: Iterable[Recipe]) -> list[Variant]:
        """The variants without drops and by recipes."""
        fitting = [
            recipe
            for recipe in recipes
            if isinstance(recipe, float) or recipe[0] <= len(self.recomputable)
        ]
        return [self(frozenset()), *[self.by(recipe) for recipe in fitting if self.recomputable]]

    def improved(self) -> Variant:
        """The variant of which the least is expected so far, improved by groups; on small graphs by
        single drops first.
        """
        best = min(self.known, key=lambda variant: (variant.expected_ns, variant.again_ns))
        if len(self.problem.graph.ops) <= SMALL and self.recomputable:
            best = self._improved(min(self.known, key=lambda variant: variant.weight))
        return self.improved_by_groups(best) if self.recomputable else best

    def improved_by_groups(self, best: Variant) -> Variant:
        """``best`` with groups of candidates that are alike added or taken away, whole and then by
        halves, while less time is expected.
        """
        looks = max(_FEWEST_LOOKS, min(_GROUP_LOOKS, _GROUP_OPS // len(self.problem.graph.ops)))
        whole = self._groups()
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

    def _groups(self) -> list[list[Candidate]]:
        """Candidates by what their tensors are: their sizes, what makes them and who uses them;
        those with most bytes first.
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
        weights = {
            key: sum([graph.tensors[c.gap.tensor].size_bytes for c in group])
            for key, group in groups.items()
        }
        least = sum(weights.values()) / _SMALLEST_GROUP
        return [
            groups[key]
            for key in sorted(groups, key=lambda key: -weights[key])
            if weights[key] >= least
        ]

    def instead_of_moves(self, plan: Plan, drops: frozenset[Drop]) -> Iterator[Variant]:
        """Variants that recompute parts of what a plan moves, beside ``drops``."""
        moved = _moved_but_cheaper(plan, self.recomputable)
        for share in _SHARES if moved else ():
            yield self(drops.union(*(c.drops for c in moved[: max(1, round(len(moved) * share))])))

    def moving_instead(self, drops: frozenset[Drop]) -> Iterator[Variant]:
        """Variants without ``drops`` of tensors that are alike."""
        for group in self._groups() if drops else ():
            yield self(_without(drops, group))

    def _improved(self, best: Variant) -> Variant:
        """``best`` with single candidates added or taken away while the excess, then the time of
        what runs again, gets less.
        """
        looks = _LOOKS
        improved = True
        while improved:
            improved = False
            for candidate in self.recomputable:
                for change in (candidate.drops, candidate.drops[:1]):
                    looks -= 1
                    if looks < 0:
                        return best
                    changed = self(best.drops.symmetric_difference(change))
                    if changed.weight < best.weight:
                        best, improved = changed, True
        return best


def _may_start_below(problem: Problem) -> tuple[Numbers, Numbers]:
    """Return the bytes at each op of tensors that may start below and are not used up to it, and of
    those that the step never writes.
    """
    graph, count = problem.graph, len(problem.graph.ops)
    found = np.zeros((2, count + 1), np.int64)
    for gap in problem.gaps:
        tensor = graph.tensors[gap.tensor]
        if gap.after == AT_START and tensor.persistent:
            found[: 1 if graph.writers[gap.tensor] else 2, gap.before] -= tensor.size_bytes
            found[: 1 if graph.writers[gap.tensor] else 2, 0] += tensor.size_bytes
    below, clean = np.cumsum(found, axis=1)[:, :count]
    return below, clean


def _with_inputs(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Drops with those of a group, dead inputs along the chains included."""
    return drops.union(*[candidate.drops for candidate in group])


def _with(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Drops with those of a group alone."""
    return drops | {candidate.drops[0] for candidate in group}


def _without(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Drops without those of a group."""
    return drops - {candidate.drops[0] for candidate in group}


def _moved_but_cheaper(plan: Plan, recomputable: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that the plan moves instead, though recomputing them takes less time than their
    transfers; the cheapest by byte first.
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
"""Graphs with more ops are planned as they are."""
_WORTH = 0.995
"""A variant of a graph that is not small is worth a plan if it is expected to take less than this
part of what the graph as it is takes.
"""
_OF_AN_ORDER, _OF_A_VARIANT, _OF_A_BOUND = 110, 12, 90
"""The work of finding an order of the ops, of weighing a variant, and of its bound, for each op."""


def rewriting(reorder: bool, recompute: bool) -> Arm:
    """The arm that tries variants of the graph."""
    return lambda search, planned: _Rewrites(search, planned, recompute).steps(reorder)


class _Rewrites:
    """The variants weighed so far, with what is made of them; by what tells variants apart."""

    def __init__(self, search: Search, planned: PlannedGraph, recompute: bool) -> None:
        self._search, self._recompute = search, recompute
        self._graph = planned.problem.graph
        self._small = len(self._graph.ops) <= SMALL
        self._orders: dict[tuple[str, ...], Variants] = {}
        plain = Variants(planned.problem, Edits(self._graph), (), search.budget_bytes)(frozenset())
        self._known: dict[object, Variant] = {_key(plain.edits): plain}
        self._least_ns = dict[object, int]()
        self._tried = {_key(plain.edits)}
        self._swept: dict[object, int] = {}
        """What the plans of sweeps take."""
        self._plain = plain

    def steps(self, reorder: bool) -> Iterator[float | None]:
        """Weigh the variants of one order after the other, and sweep the most promising one of all
        so far.
        """
        if (
            not (reorder or self._recompute)
            or len(self._graph.ops) > MOST_OPS
            or not self._plain.excess_bytes
        ):
            return
        weighing = self._weighed(reorder)
        more, begun = next(weighing, False), False
        while True:
            self._note_near()
            least_ns, best = self._most_promising()
            promised_ns = None if best is None else self._promised_ns(least_ns, more)
            if best is None and not more:
                return
            if begun or promised_ns is None:  # what was weighed first is no use without its plan
                yield promised_ns
            begun = True
            if best is not None and (promised_ns is not None or not more):
                self._tried.add(_key(best.edits))
                planned = self._planned_graph(best)
                with suppress(InfeasibleError):
                    check_floor(planned.problem, self._search.budget_bytes)
                    swept(self._search, planned, stretched(planned))
                if planned.evaluate.least_ns is not None:
                    self._swept[_key(best.edits)] = planned.evaluate.least_ns
            else:
                more = next(weighing, False)

    def _weighed(self, reorder: bool) -> Iterator[bool]:
        """Weigh variants: the orders of the ops alone, the likely sets of what runs again in each,
        and then others.
        """
        orders: list[Variants] = []
        for ordered in _orders(self._search, self._graph, reorder):
            edits = (
                Edits(self._graph)
                if ordered is self._graph
                else Edits(self._graph, tuple([op.name for op in ordered.ops]))
            )
            orders.append(
                Variants(
                    analyse(ordered, self._search.hardware), edits, (), self._search.budget_bytes
                )
            )
            self._orders[edits.order] = orders[-1]
            self._noted(orders[-1], lambda order: order.proposed(()))
        if not self._recompute:
            yield True
            return
        least_ns = min([self._estimate_ns(order(frozenset())) for order in orders])
        orders.sort(key=lambda order: _WORTH * self._estimate_ns(order(frozenset())) > least_ns)
        again = [order.recomputing() for order in orders]
        for order in again:
            self._orders[order.edits.order] = order
            yield self._noted(order, lambda order: order.proposed(LIKELY))
        for order in again:
            yield self._noted(order, lambda order: [*order.proposed(OTHERS), order.improved()])

    def _noted(self, order: Variants, weigh: Callable[[Variants], Iterable[Variant]]) -> bool:
        known = len(order.known)
        self._known |= {_key(variant.edits): variant for variant in weigh(order)}
        self._search.work.done += _OF_A_VARIANT * len(self._graph.ops) * (len(order.known) - known)
        return True

    def _most_promising(self) -> tuple[float, Variant | None]:
        """The variant not tried yet of which the least is expected, of those best in their orders
        and worth a plan; and its estimate.
        """
        found: dict[tuple[str, ...], Variant] = {}
        for key, variant in self._known.items():
            known = found.get(variant.edits.order)
            if (
                key not in self._tried
                and (known is None or variant.expected_ns < known.expected_ns)
                and self._may_win(variant)
            ):
                found[variant.edits.order] = variant
        any_may_win = self._small or self._search.nothing_fits
        least_ns = float("inf") if any_may_win else _WORTH * self._estimate_ns(self._plain)
        best: Variant | None = None
        for variant in sorted(found.values(), key=self._at_least_ns):
            if self._at_least_ns(variant) >= least_ns:
                break  # bounds take time
            estimate_ns = self._estimate_ns(variant)
            if estimate_ns < least_ns:
                least_ns, best = estimate_ns, variant
        return least_ns, best

    def _may_win(self, variant: Variant) -> bool:
        """Return whether the sweeps so far leave it open: with no less above the budget a variant
        takes no less, but for what runs again.
        """
        best = self._search.best
        here = None if best is None else _key(best.planned.edits or self._plain.edits)
        if here not in self._swept:
            return True
        return all(
            [
                takes_ns + variant.again_ns - self._known[key].again_ns < self._swept[here]
                for key, takes_ns in self._swept.items()
                if key != here and self._known[key].excess_bytes <= variant.excess_bytes
            ]
        )

    def _at_least_ns(self, variant: Variant) -> float:
        """Return the lower bound on the estimate of a variant."""
        return sqrt(
            variant.expected_ns
            * (sum(self._search.plain.problem.durations) + variant.again_ns)
            / len(self._graph.streams)
        )

    def _estimate_ns(self, variant: Variant) -> float:
        """Between what a plan is expected to take and what none beats: the one knows little of
        order, the other little of room.
        """
        key = _key(variant.edits)
        if key not in self._least_ns:
            self._search.work.done += _OF_A_BOUND * len(variant.graph.ops)
            bounds = variant.graph.derived_on(self._search.hardware, LowerBounds)
            self._least_ns[key] = bounds.quick_ns(self._search.budget_bytes)
        return sqrt(variant.expected_ns * self._least_ns[key])

    def _planned_graph(self, variant: Variant) -> PlannedGraph:
        """Return the graph to plan for."""
        problem = None if variant.edits.recompute else self._orders[variant.edits.order].problem
        return self._search.planned_graph(variant.graph, variant.edits, problem)

    def _promised_ns(self, least_ns: float, more: bool) -> float | None:
        """Return the time that a plan of an estimate takes, if that is as far from it as the best
        plan is from its own.

        None where no more is known than what such plans gained, since there are ``more`` variants
        to weigh, or the graph is small.
        """
        best, plain_ns = self._search.best, self._estimate_ns(self._plain)
        if best is None or self._search.nothing_fits:
            return least_ns if least_ns < _WORTH * plain_ns else None
        best_ns, here = (
            best.outcome.cost.makespan_ns,
            self._known.get(_key(best.planned.edits or self._plain.edits)),
        )
        promised_ns = (
            least_ns * best_ns / max(1.0, plain_ns if here is None else self._estimate_ns(here))
        )
        unknown = (more or self._small) and promised_ns >= _WORTH * best_ns
        return None if unknown else promised_ns

    def _note_near(self) -> None:
        """Weigh variants that run again what the best plan moves, or move what it runs again."""
        best = self._search.best
        if best is None or best.rival or self._search.nothing_fits:
            return
        variant = self._known.get(_key(best.planned.edits or self._plain.edits))
        order = None if variant is None else self._orders.get(variant.edits.order)
        if variant is not None and order is not None:
            drops = variant.drops
            self._noted(
                order,
                lambda order: [
                    *order.instead_of_moves(best.outcome.plan, drops),
                    *order.moving_instead(drops),
                ],
            )


def _orders(search: Search, graph: Graph, reorder: bool) -> Iterator[Graph]:
    """The graph with each op that frees memory as soon as it can be, in the order that holds least,
    and as it is.
    """
    found: list[Graph] = []
    if reorder:
        search.work.done += _OF_AN_ORDER * len(graph.ops)
        found.append(eager(graph))
        yield found[0]
        other = better_order(
            graph, search.plain.problem.durations, search.budget_bytes, search.hardware.device_tier
        )
        if other.ops != found[0].ops:
            found.append(other)
            yield other
    if all(graph.ops != other.ops for other in found):
        yield graph


def _key(edits: Edits) -> tuple[object, ...]:
    """Return the key that tells variants apart."""
    return edits.order, edits.recompute
