"""Variants of a graph that may need fewer transfers, weighed by the time that a plan for them is expected to take.

A variant is an order of the ops, and sets of drops (:mod:`hosim.planner.rewrites.recompute`) on it. Weighing one takes a walk through the
graph; planning one takes a hundred times as long. So many are weighed, and few are planned. On large graphs a set of drops is improved by
adding or taking away tensors that are alike, as the layers of a network are (selective checkpointing, Korthikanti et al., arXiv
2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product

import numpy as np

from hosim.analysis import Numbers, edited_curve
from hosim.cache_plan import Plan
from hosim.costmodel.transfers import channel_bandwidth
from hosim.edits import Edits, edited, is_random
from hosim.graph import Graph
from hosim.hardware import Channel
from hosim.planner.hyperoffload.local_moves import SMALL
from hosim.planner.hyperoffload.tensor_choices import Problem
from hosim.planner.rewrites.recompute import Candidate, Drop, cheapest, recomputes, segments

Recipe = float | tuple[int, int]
"""A way to choose drops: the cheapest by byte down to this part of the budget; or checkpoints of so many segments, of which so many last
ones stay as they are."""

_SEGMENTS: tuple[Recipe, ...] = ((2, 1), (3, 1), (4, 1), (4, 2), (6, 2), (8, 1), (8, 2), (8, 4), (12, 2), (16, 2), (16, 4), (16, 8))
_MANY_SEGMENTS: tuple[Recipe, ...] = ((24, 2), (32, 1), (32, 2), (32, 8), (32, 16), (64, 2), (64, 32), (128, 2))
RECIPES: tuple[Recipe, ...] = (1.0, 0.95, 0.85, 0.7, 0.5, *_SEGMENTS, *_MANY_SEGMENTS)
"""Parts of the budget below 1 leave room for what chains hold while they run. The last segments are needed again so soon that it seldom
helps to drop them, and it helps to drop the first ones alone where little is above the budget."""
_STEADY: tuple[Recipe, ...] = (1.0, 0.85, *_SEGMENTS)
"""Recipes that are also tried on what no random op makes: what these make then stays, and cuts chains short."""
_SHARES = (0.1, 0.25, 0.5, 1.0)
"""Of what could be recomputed instead of moved."""
DEEPEST: tuple[Recipe, ...] = (0.5, (8, 1))
"""Recipes that drop much: where they hardly lower the peak, none does."""

_PART_LEFT = 0.97
"""The part of what is above the budget that a variant may leave there, and of all waits that its ops run again may take."""
_LOOKS = 400
"""How often sets of drops are looked at where they are improved one by one, on small graphs."""
_GROUP_LOOKS, _GROUP_OPS, _FEWEST_LOOKS = 60, 120_000, 16
"""How often sets of drops are looked at where they are improved by groups: at most, in ops of all graphs looked at, and at least."""
_SMALLEST_GROUP = 100
"""Groups of less than one part in so many of the bytes that could be dropped are left as they are."""
_MARGIN, _PART = 1.25, 0.05
"""Of transfers: what they take more than alone on their channels, and what part of them is not hidden, in any case. Measured on variants of
training steps of BERT-large and GPT-2 XL: with these, what is expected ranks them about as their plans do."""
_NO_TIER = 1e3
"""Nanoseconds for a byte where no tier is below."""


@dataclass(frozen=True)
class Variant:
    """A graph that follows from the workload by ``edits``, and how promising it is.

    ``ordered`` is the workload with its ops in the order that ``edits`` give. ``again_ns`` is the time of the ops that run again,
    ``excess_bytes`` what the static peak has above the budget, and ``excess_byte_ns`` what the ops have above it together, each for as long
    as it runs. ``expected_ns`` is about what a plan takes, twice: where what the peak has above the budget leaves before it and returns
    after it, and where as much of that as can be starts the step below.
    """

    ordered: Graph
    edits: Edits
    drops: frozenset[Drop]
    again_ns: int
    excess_bytes: int
    excess_byte_ns: int
    expected_ns: tuple[float, float]

    @cached_property
    def graph(self) -> Graph:
        """The graph that follows; made where it is asked for, as few variants are planned of those that are weighed."""
        return edited(self.ordered, recompute=self.edits.recompute)

    def needs_less_than(self, plain: Variant) -> bool:
        """Whether it needs much less of the device tier above the budget, at its peak or over the step."""
        return self.excess_bytes <= _PART_LEFT * plain.excess_bytes or self.excess_byte_ns <= _PART_LEFT * plain.excess_byte_ns

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
        self._durations = np.array(problem.durations, np.int64)
        self._known: dict[frozenset[Drop], Variant] = {}
        self._random = {t for op in problem.graph.ops if is_random(problem.graph, op) for t in op.outputs}
        self._steady = [c for c in recomputable if self._random.isdisjoint([t for t, _ in c.drops])]
        self._unused, self._over = _idle(problem.graph)
        self._down_ns = self._byte_ns([tier.down for tier in problem.below])
        self._up_ns = self._byte_ns([tier.up for tier in problem.below])

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
        held_ns = sum([held * ns for held, ns in zip(above.tolist(), durations.tolist(), strict=True) if held])
        edits = replace(self.edits, recompute=again)
        again_ns, excess_bytes = int(durations.sum() - self._durations.sum()), int(above.max(initial=0))
        return Variant(self.problem.graph, edits, drops, again_ns, excess_bytes, held_ns, self._expected_ns(ops, above, durations))

    def _expected_ns(self, ops: Numbers, above: Numbers, durations: Numbers) -> tuple[float, float]:
        """The time of the ops, given by position; or of the transfers before some op, or the ops if that is longer, and the same after it.

        What is ``above`` the budget at the op leaves before it and returns after it. Persistent tensors that nothing has used by then may
        be below from the start, and those that nothing uses from then on may stay there.
        """
        down_ns, up_ns = _MARGIN * self._down_ns, _MARGIN * self._up_ns
        total = float(durations.sum())
        exposed = _PART * float(above.max(initial=0)) * (self._down_ns + self._up_ns)
        full = np.flatnonzero(above)
        away, before = above[full], (np.cumsum(durations) - durations)[full].astype(float)
        reached = np.maximum.accumulate(ops)[full]  # the op that runs for the first time, or has done so last
        found = []
        for out, back in ((away, away), (away - self._unused[reached], away - self._over[reached])):
            leaving = np.maximum(before, out.astype(float) * down_ns)
            returning = np.maximum(total - before, back.astype(float) * up_ns)
            found.append(float((leaving + returning).max(initial=total)) + exposed)
        return found[0], found[1]

    def _byte_ns(self, channels: Sequence[Channel]) -> float:
        """Nanoseconds for a byte on all of these channels together, those of one direction."""
        bandwidth = sum([channel_bandwidth(self.problem.hardware, channel.name) for channel in channels])
        return 1e9 / bandwidth if bandwidth else _NO_TIER

    def by(self, recipe: Recipe, *, steady: bool = False) -> Variant:
        """The variant with the drops of a recipe; ``steady``: where no random op runs again."""
        recomputable = self._steady if steady else self.recomputable
        if isinstance(recipe, float):
            return self(cheapest(self.problem, recomputable, int(self.budget * recipe)))
        drops = segments(self.problem, recomputable, *recipe)
        return self(frozenset([drop for drop in drops if drop[0] not in self._random]) if steady else drops)

    def proposed(self, recipes: Sequence[Recipe]) -> Iterator[Variant]:
        """The variants without drops and by recipes; on small graphs the best two of these improved drop by drop, too."""
        yield self(frozenset())
        static = [self.by(recipe) for recipe in recipes if isinstance(recipe, float) or recipe[0] <= len(self.recomputable)]
        yield from static
        if len(self._steady) < len(self.recomputable):
            yield from [self.by(recipe, steady=True) for recipe in _STEADY if recipe in recipes]
        if len(self.problem.graph.ops) <= SMALL:
            for start in sorted(static, key=lambda variant: variant.weight)[:2]:
                yield self._improved(start)

    def improved_by_groups(self, best: Variant, way: int) -> Variant:
        """``best`` with groups of candidates that are alike added or taken away, whole and then by halves, while less time is expected.

        ``way`` is that of :attr:`Variant.expected_ns`.
        """
        looks = max(_FEWEST_LOOKS, min(_GROUP_LOOKS, _GROUP_OPS // len(self.problem.graph.ops)))
        whole = self._groups()
        halves = [half for group in whole for half in (group[: len(group) // 2], group[len(group) // 2 :]) if half]
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
                    changed = self._weighed(drops)
                    if changed.expected_ns[way] < best.expected_ns[way]:
                        best, improved = changed, True
        return best

    def _groups(self) -> list[list[Candidate]]:
        """Candidates by what their tensors are: their sizes, what makes them and who uses them; those with most bytes first."""
        graph = self.problem.graph
        groups: dict[object, list[Candidate]] = {}
        for candidate in self.recomputable:
            t = candidate.gap.tensor
            users = graph.users[t]
            kinds = tuple([graph.ops[i].kind for i in users])
            key = graph.tensors[t].size_bytes, graph.tensors[t].kind, kinds, self.problem.durations[users[0]], len(candidate.drops)
            groups.setdefault(key, []).append(candidate)
        weights = {key: sum([graph.tensors[c.gap.tensor].size_bytes for c in group]) for key, group in groups.items()}
        least = sum(weights.values()) / _SMALLEST_GROUP
        return [groups[key] for key in sorted(groups, key=lambda key: -weights[key]) if weights[key] >= least]

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


def _with_inputs(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Drops with those of a group, dead inputs along the chains included."""
    return drops.union(*[candidate.drops for candidate in group])


def _with(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Drops with those of a group alone."""
    return drops | {candidate.drops[0] for candidate in group}


def _without(drops: frozenset[Drop], group: Sequence[Candidate]) -> frozenset[Drop]:
    """Drops without those of a group."""
    return drops - {candidate.drops[0] for candidate in group}


def _idle(graph: Graph) -> tuple[Numbers, Numbers]:
    """For each op, the bytes of persistent tensors that no op up to it has used, and of those that none uses from it on."""
    unused, over = [0] * (len(graph.ops) + 1), [0] * (len(graph.ops) + 1)
    for t in graph.initial:
        size, users = graph.tensors[t].size_bytes, graph.users[t]
        if users:
            unused[0] += size
            unused[users[0]] -= size
            over[users[-1] + 1] += size
    return np.array(list(accumulate(unused))[:-1]), np.array(list(accumulate(over))[:-1])


def promising(variants: Iterable[Variant], waits_ns: int | None) -> list[Variant]:
    """The variants that may be worth a plan, the most promising first.

    With a plan in hand that waits for ``waits_ns``, a variant that runs ops again for about as long is left out, and the others come by
    what is expected of them in the one way and the other in turn. Without a plan (None), the least excess goes first.
    """
    if waits_ns is None:
        return sorted(variants, key=lambda variant: variant.weight)
    worth = [variant for variant in variants if variant.again_ns <= _PART_LEFT * waits_ns]
    by = [sorted(worth, key=lambda variant: variant.expected_ns[way]) for way in (0, 1)]
    return list({id(variant): variant for pair in zip(*by, strict=True) for variant in pair}.values())


def _moved_but_cheaper(plan: Plan, recomputable: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that the plan moves instead, though recomputing them takes less time than their transfers; the cheapest by byte first."""
    moved = {plan.graph.tensors[c.tensor].name for c in plan.cache_ops}
    names = plan.workload.tensors
    cheaper = [
        c for c in recomputable if c.transfer_ns is not None and c.recompute_ns < c.transfer_ns and names[c.gap.tensor].name in moved
    ]
    return sorted(cheaper, key=lambda c: c.ns_per_byte)
