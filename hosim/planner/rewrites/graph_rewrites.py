"""Variants of the graph as an arm of the planner's search: its ops in a better order, some of them
run again.

With ``reorder`` the ops come in another order (:func:`hosim.planner.rewrites.reorder.reorder`),
with ``recompute`` some of them run again, in either order. Many variants are weighed
(:mod:`hosim.planner.rewrites.variants`). The most promising ones are swept, and join the pool of
the search (:mod:`hosim.planner.hyperoffload.search`), which goes on from what does best. Where the
best plan moves tensors that can be made again in less time, these are dropped in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import sqrt

from hosim.analysis.lower_bounds import LowerBounds
from hosim.edits import Edits
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.planner.hyperoffload import Arm, PlannedGraph, Search, stretched, swept
from hosim.planner.hyperoffload.tensor_choices import analyse, check_floor
from hosim.planner.rewrites.reorder import eager
from hosim.planner.rewrites.reorder import reorder as better_order
from hosim.planner.rewrites.variants import LIKELY, OTHERS, Variant, Variants

MOST_OPS = 20_000
"""Graphs with more ops are planned as they are."""
_WORTH = 0.995
"""A variant is worth a plan if it is expected to take less than this part of what the graph as it
is takes.
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
        least_ns = (
            float("inf") if self._search.nothing_fits else _WORTH * self._estimate_ns(self._plain)
        )
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
        to weigh.
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
        return None if more and promised_ns >= _WORTH * best_ns else promised_ns

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
