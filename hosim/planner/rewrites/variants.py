"""Variants of a graph that may need fewer transfers, weighed by their static peaks and by the time of what runs again.

A variant is an order of the ops, and sets of drops (:mod:`hosim.planner.rewrites.recompute`) on it. Weighing one takes a walk through the
graph; planning one takes a hundred times as long. So many are weighed, and few are planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hosim.analysis.liveness import static_curve
from hosim.cache_plan import Plan
from hosim.edits import Edits, edited
from hosim.graph import Graph
from hosim.planner.hyperoffload.problem import Problem
from hosim.planner.rewrites.recompute import Candidate, Drop, cheapest, recomputes, segments

Recipe = float | int
"""A way to choose drops: the cheapest by byte down to this part of the budget, or checkpoints of this many segments."""

RECIPES: tuple[Recipe, ...] = (1.0, 0.95, 0.85, 0.7, 0.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Parts of the budget below 1 leave room for what chains hold while they run."""
_SHARES = (0.1, 0.25, 0.5, 1.0)
"""Of what could be recomputed instead of moved."""
DEEPEST: tuple[Recipe, ...] = (0.5, 8)
"""Recipes that drop much: where they hardly lower the peak, none does."""

LESS = 0.97
"""The part of what is above the budget that a variant may leave there, and of all waits that its ops run again may take."""
SMALL, _LOOKS = 200, 400
"""Ops up to which sets of drops are improved one by one, and how often one is looked at."""


@dataclass(frozen=True)
class Variant:
    """A graph that follows from the workload by ``edits``, and how promising it is.

    ``again_ns`` is the time of the ops that run again, ``excess_bytes`` what the static peak has above the budget, and ``excess_byte_ns``
    what the ops have above it together, each for as long as it runs.
    """

    graph: Graph
    edits: Edits
    drops: frozenset[Drop]
    again_ns: int
    excess_bytes: int
    excess_byte_ns: int

    def needs_less_than(self, plain: Variant) -> bool:
        """Whether it needs much less of the device tier above the budget, at its peak or over the step."""
        return self.excess_bytes <= LESS * plain.excess_bytes or self.excess_byte_ns <= LESS * plain.excess_byte_ns

    @property
    def weight(self) -> tuple[int, int]:
        """Less is better where nothing fits yet."""
        return self.excess_bytes, self.again_ns


class Variants:
    """The variants of a graph whose ops are in one order; ``edits`` say in which, and each set of drops is weighed once."""

    def __init__(self, problem: Problem, edits: Edits, recomputable: Sequence[Candidate], budget: int) -> None:
        self.problem = problem
        self.edits = edits
        self.recomputable = recomputable
        self.budget = budget
        self._duration = {op.name: d for op, d in zip(problem.graph.ops, problem.durations, strict=True)}
        self._known: dict[frozenset[Drop], Variant] = {}

    def __call__(self, drops: frozenset[Drop]) -> Variant:
        """The variant with these drops."""
        if drops not in self._known:
            again = recomputes(self.problem.graph, drops)
            graph = edited(self.problem.graph, recompute=again)
            above = [max(0, held - self.budget) for held in static_curve(graph)]
            duration = self._duration | {entry.name: self._duration[entry.op] for entry in again}
            held_ns = sum([held * duration[op.name] for held, op in zip(above, graph.ops, strict=True) if held])
            again_ns = sum([self._duration[entry.op] for entry in again])
            edits = replace(self.edits, recompute=again)
            self._known[drops] = Variant(graph, edits, drops, again_ns, max(above, default=0), held_ns)
        return self._known[drops]

    def by(self, recipe: Recipe) -> Variant:
        """The variant with the drops of a recipe."""
        if isinstance(recipe, float):
            return self(cheapest(self.problem, self.recomputable, int(self.budget * recipe)))
        return self(segments(self.problem, self.recomputable, recipe))

    def proposed(self, recipes: Sequence[Recipe]) -> Iterator[Variant]:
        """The variants without drops and by recipes; on small graphs the best two of these improved drop by drop, too."""
        yield self(frozenset())
        static = [self.by(recipe) for recipe in recipes if isinstance(recipe, float) or recipe <= len(self.recomputable)]
        yield from static
        if len(self.problem.graph.ops) <= SMALL:
            for start in sorted(static, key=lambda variant: variant.weight)[:2]:
                yield self._improved(start)

    def instead_of_moves(self, plan: Plan, drops: frozenset[Drop]) -> Iterator[Variant]:
        """Variants that recompute parts of what a plan moves, beside ``drops``."""
        moved = _moved_but_cheaper(plan, self.recomputable)
        for share in _SHARES if moved else ():
            yield self(drops.union(*(c.drops for c in moved[: max(1, round(len(moved) * share))])))

    def _improved(self, best: Variant) -> Variant:
        """``best`` with single candidates added or taken away while the excess, then the time of what runs again, gets less."""
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


def promising(variants: Iterable[Variant], waits_ns: int | None, excess_bytes: int) -> list[Variant]:
    """The variants that may be worth a plan, the most promising first.

    With a plan in hand that waits for ``waits_ns`` on a graph with ``excess_bytes`` above the budget, the waits are taken to shrink as the
    excess does; a variant that runs ops again for about as long is left out. Without a plan (None), the least excess goes first.
    """
    if waits_ns is None:
        return sorted(variants, key=lambda variant: variant.weight)
    waits = waits_ns

    def expected(variant: Variant) -> float:
        return variant.again_ns + waits * variant.excess_bytes / max(1, excess_bytes)

    return sorted((variant for variant in variants if variant.again_ns <= LESS * waits), key=expected)


def _moved_but_cheaper(plan: Plan, recomputable: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that the plan moves instead, though recomputing them takes less time than their transfers; the cheapest by byte first."""
    moved = {plan.graph.tensors[c.tensor].name for c in plan.cache_ops}
    names = plan.workload.tensors
    cheaper = [
        c for c in recomputable if c.transfer_ns is not None and c.recompute_ns < c.transfer_ns and names[c.gap.tensor].name in moved
    ]
    return sorted(cheaper, key=lambda c: c.ns_per_byte)
