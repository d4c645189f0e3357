"""The processor of each op that may run on several (``also_on``): plans for fixed processors,
compared by their replays.

Ops that share a tensor that outlives the step, such as the experts of a layer, are one group, which
stays together, unless few ops have a choice at all. Uniform choices come
first: every kind of op on each of its processors, which are the choices that builders offer; so no
plan here is worse than any of those. Where ops are of too many kinds for that, as with whole
layers, more and more groups leave the device, first those that read the smallest part of what they
hold there; an op that holds nothing runs beside its neighbours (:func:`by_reading`,
:func:`beside_neighbours`). From the best of all these, more and more groups of a kind are taken to
another processor, evenly over the step or from one end, and then single groups are. These trials
are planned with little effort and without other policies, and the best of them as carefully as the
uniform ones. Where the best uniform plan has its ops in another order, or runs some again, trials
are made for that graph, too. They are made a second time with each op that frees memory as soon as it can run:
an update that follows its gradient leaves room, whichever processor it runs on.
:func:`every_choice` tries all of a few ops.

What only ops of a tier's processor use, and what the workload leaves free, starts in that tier.
Everything else about a plan for fixed processors is the policy's, with the moves that other
processors force (:mod:`hosim.planner.schedule.forced_moves`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod
from operator import itemgetter
from typing import Any

from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import free_order_bound_ns
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan, Proof
from hosim.edits import Edits, is_repeatable, on_processors
from hosim.engine import replay
from hosim.errors import GraphError, InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.exact import proved_bound_ns
from hosim.planner.hyperoffload.tensor_choices import PlanCost, plan_cost
from hosim.planner.rewrites.leaving_order import (
    Choice,
    beside_neighbours,
    by_reading,
    connected,
)
from hosim.planner.rewrites.reorder import eager
from hosim.planner.schedule import starts_elsewhere
from hosim.processors import others_of

# -- in place
# --------------------------------------------------------------------------------------------------
# A graph whose device ops change in place what they would overwrite.
#
# An update that may run on either processor writes a parameter without reading it. So nobody
# wants its contents between its last reader and the update. Planners do worse with such tensors
# than with those that stay and change, as in a step whose optimizer only runs on the device.
# Where a plan for the changed graph also holds for the graph itself, which the verifier says, it
# is a plan for it, if one that keeps more than it has to. The changed graph is never replayed.


def updated_in_place(graph: Graph) -> Graph:
    """``graph`` where ops of the device read what they overwrite; ``graph`` itself if there are
    none.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("g", 10, "input"),
    ...     b.tensor("w", 40, "parameter"),
    ...     b.op("u", "optimizer", inputs=["g"], outputs=["w"]),
    ... )
    >>> op = updated_in_place(b.build()).ops[0]
    >>> op.outputs, op.mutates
    ((), (1,))
    """
    there, ops = set(graph.initial), []
    for op in graph.ops:
        again = [] if op.processor else [t for t in op.outputs if t in there]
        if again:
            op = replace(
                op,
                outputs=tuple([t for t in op.outputs if t not in again]),
                mutates=(*again, *op.mutates),
            )
        there.update(op.outputs)
        ops.append(op)
    return (
        Graph(graph.name, graph.tensors, tuple(ops), graph.meta)
        if tuple(ops) != graph.ops
        else graph
    )


Initial = Mapping[int, tuple[str, ...]]
Make = Callable[[Graph, Initial, Mapping[str, float]], Plan]
"""Plans for fixed processors, given the graph, the start tiers of tensors of other processors, and
parameters that replace the policy's values.
"""

MOST_OPS = 8
"""The most movable ops of a graph for :func:`every_choice`."""

_ALL = 16
"""Choices up to which each is tried: of all ops, else of all groups. With more uniform choices
kinds of ops change theirs together.
"""
_WORK, _FEWEST, _MOST = 20_000, 6, 40
"""The ops planned for in all trials together, about; there are at least ``_FEWEST`` and at most
``_MOST`` trials.
"""
_TRIAL: Mapping[str, float] = {"effort": 0.0, "rivals": False, "recompute": False, "reorder": False}
"""The policy's parameters in trials, whose changes to the graph are given."""
_FINAL, _NEAR = 2, 1.05
"""Trials that are planned carefully in the end, and how much longer they may take than the choice
from which they began.
"""


def best_choice(
    graph: Graph, hardware: Hardware, budget_bytes: int, make: Make, parameters: Mapping[str, Any]
) -> Plan:
    """Return the best plan found over the choices of processors for ``graph``'s ops.

    Raises :class:`InfeasibleError` if none fits.
    """
    groups = groups_of(graph, hardware)
    if not groups:
        return make(graph, {}, {})
    if (
        prod([1 + len(others_of(graph.ops[i], hardware)) for group in groups for i in group])
        <= _ALL
    ):
        groups = [(i,) for group in groups for i in group]
    search = _ChoiceSearch(graph, hardware, budget_bytes, make, groups)
    uniform = search.uniform()
    search.judge_all(uniform)
    begin = search.best or uniform[0]
    trials = max(_FEWEST, min(_MOST, int(parameters["effort"] * _WORK / max(1, len(graph.ops)))))
    tried = []
    for edits in edits_tried(graph, search.edits_of_best(), parameters["reorder"]):
        quick = replace(search, plans={}, refused={}, settings=_TRIAL, edits=edits)
        _vary(quick, begin, trials)
        tried.append(quick)
    best = min(tried, key=lambda quick: inf if quick.best is None else quick.ns(quick.best))
    search.edits = best.edits
    for choice in best.worth_a_plan(begin):
        search.judge(choice)
    return search.found()


def edits_tried(graph: Graph, best: Edits | None, reorder: bool | None) -> list[Edits | None]:
    """No changes to the graph, those of the best uniform plan; and if its ops may change places,
    the latter with an eager order of the ops.
    """
    tried: list[Edits | None] = [None] if best is None else [None, best]
    ordered = eager(graph) if (is_repeatable(graph) if reorder is None else reorder) else graph
    other = replace(best or Edits(graph), order=tuple([op.name for op in ordered.ops]))
    if ordered is graph or other == best:
        return tried
    try:
        other.graph()
    except GraphError:  # in this order an op that runs again would not see what it did
        return tried
    return [*tried, other]


def every_choice(
    graph: Graph, hardware: Hardware, budget_bytes: int, make: Make, parameters: Mapping[str, Any]
) -> Plan:
    """Return the best plan over all choices of processors, for graphs with at most
    :data:`MOST_OPS` ops that may run on several.

    The choices share the policy's ``limit``, and as much again for a proof
    (:mod:`hosim.planner.exact.proved_bound`). Raises :class:`InputError` for more ops, and
    :class:`InfeasibleError` if no choice fits.
    """
    if len(graph.movable) > MOST_OPS:
        raise InputError(
            f"policy optimal tries every choice of processors for up to {MOST_OPS} ops; "
            f"{graph.name} has {len(graph.movable)} that may run "
            "on several: use hyperoffload"
        )
    groups = [(i,) for i in graph.movable if others_of(graph.ops[i], hardware)]
    if not groups:
        return make(graph, {}, {})
    search = _ChoiceSearch(graph, hardware, budget_bytes, make, groups, in_place=False)
    choices = list(product(*search.allowed))
    search.settings = {"limit": parameters["limit"] / len(choices)}
    search.judge_all(choices)
    plan, best = search.found(), search.best
    if best is None:
        return plan
    most = search.plans[best][0].makespan_ns
    bound = min([search.proved_ns(choice, most, parameters) for choice in choices])
    return replace(plan, proof=Proof(graph, hardware, budget_bytes, bound))


@dataclass
class _ChoiceSearch:
    """The choices judged so far with their plans, and the refused ones with their errors."""

    graph: Graph
    hardware: Hardware
    budget: int
    make: Make
    groups: Sequence[tuple[int, ...]]
    settings: Mapping[str, float] = field(default_factory=dict)
    plans: dict[Choice, tuple[PlanCost, Plan]] = field(default_factory=dict)
    refused: dict[Choice, InfeasibleError] = field(default_factory=dict)
    bounds: dict[Choice, int] = field(default_factory=dict)
    edits: Edits | None = None
    """What all plans change about the graph beside the processors; None: nothing is given, and
    plans for uniform choices may change it.
    """
    in_place: bool = True
    """Whether plans are also made for :func:`~hosim.planner.rewrites.processor_choice.updated_in_place`,
    which may leave out the best one.
    """

    def __post_init__(self) -> None:
        ops = self.graph.ops
        self.allowed = [
            (ops[group[0]].processor, *others_of(ops[group[0]], self.hardware))
            for group in self.groups
        ]
        self._uniform = frozenset(self.uniform())

    @property
    def kinds(self) -> list[tuple[str, Choice]]:
        """The kind of each group's ops, and the processors on which they may run."""
        return [
            (self.graph.ops[group[0]].kind, allowed)
            for group, allowed in zip(self.groups, self.allowed, strict=True)
        ]

    @property
    def by_kind(self) -> bool:
        """Return True if at most ``_ALL`` choices have one processor for each kind of op."""
        return prod([len(allowed) for _, allowed in set(self.kinds)]) <= _ALL

    def uniform(self) -> list[Choice]:
        """Return the choices with one processor for each kind of op (or for all ops, if those are
        too many); the workload's first choice comes first.
        """
        kinds = self.kinds
        if not self.by_kind:
            kinds = [("", allowed) for _, allowed in kinds]
        listed = list(dict.fromkeys(kinds))
        chosen = [
            dict(zip(listed, choice, strict=True))
            for choice in product(*[allowed for _, allowed in listed])
        ]
        return [tuple([by_kind[kind] for kind in kinds]) for by_kind in chosen]

    def judge_all(self, choices: Iterable[Choice]) -> None:
        """Judge choices in the order of their lower bounds."""
        for choice in sorted(choices, key=self._least_ns):
            self.judge(choice)

    def judge(self, choice: Choice) -> bool:
        """Judge a choice, and return True if it is the best so far; one that cannot be is not
        planned.
        """
        before = self.best
        if not self.knows(choice):
            if before is not None and self._least_ns(choice) > self.ns(before):
                return False
            self._plan(choice)
        return self.best == choice

    def knows(self, choice: Choice) -> bool:
        """Return True if the choice was planned or refused."""
        return choice in self.plans or choice in self.refused

    def edits_of_best(self) -> Edits | None:
        """The changes to the graph of the best plan so far."""
        best = self.best
        edits = None if best is None else self.plans[best][1].edits
        return edits if edits is not None and (edits.order or edits.recompute) else None

    @property
    def best(self) -> Choice | None:
        """The best choice that fits; None if none does."""
        return next(iter(self.ranked()), None)

    def ranked(self) -> list[Choice]:
        """Return the choices that fit, the best first."""
        fitting = [choice for choice, (cost, _) in self.plans.items() if not cost.infeasible]
        return sorted(fitting, key=lambda choice: self.plans[choice][0])

    def worth_a_plan(self, begin: Choice) -> list[Choice]:
        """The best choices, of those that are about as good as ``begin`` or better."""
        most = self.ns(begin) * _NEAR
        return [choice for choice in self.ranked()[:_FINAL] if self.ns(choice) <= most]

    def ns(self, choice: Choice) -> float:
        """Return the makespan in ns with a choice; infinite for one that does not fit or was not
        planned.
        """
        cost = self.plans[choice][0] if choice in self.plans else None
        return inf if cost is None or cost.infeasible else cost.makespan_ns

    def found(self) -> Plan:
        """Return the best plan; raises the error of the first choice if none fits."""
        best = self.best
        if best is None and self.refused:
            raise next(iter(self.refused.values()))
        return self.plans[next(iter(self.plans)) if best is None else best][1]

    def proved_ns(self, choice: Choice, most_ns: int, parameters: Mapping[str, Any]) -> int:
        """Return the makespan that no plan with these processors can beat that keeps the order of
        ops; ``most_ns`` if all of them take at least that.
        """
        least = self._least_ns(choice)
        if least >= most_ns:
            return most_ns
        graph = on_processors(self.graph, self._chosen(choice))
        limit, seed, largest = self.settings["limit"], parameters["seed"], parameters["largest"]
        return max(
            least,
            proved_bound_ns(
                graph, self.hardware, self.budget, most_ns, limit=limit, seed=seed, largest=largest
            ),
        )

    def _chosen(self, choice: Choice) -> tuple[tuple[str, str], ...]:
        """Return pairs of an op's name and its processor."""
        return tuple(
            [
                (self.graph.ops[i].name, processor)
                for group, processor in zip(self.groups, choice, strict=True)
                for i in group
            ]
        )

    def _least_ns(self, choice: Choice) -> int:
        """Return the makespan that no plan with these processors can beat, in whatever order its
        ops run.
        """
        if choice not in self.bounds:
            graph = on_processors(self.graph, self._chosen(choice))
            self.bounds[choice] = free_order_bound_ns(
                graph, op_durations(graph, self.hardware), self.hardware, self.budget
            )
        return self.bounds[choice]

    def _plan(self, choice: Choice) -> None:
        """Keep the plan for a choice, or the better of two plans: for the graph, and for
        :func:`updated_in_place`; or the first error, if there is none.

        Both are made for uniform choices. For others only the second is, unless it does not hold
        for the graph.
        """
        chosen = self._chosen(choice)
        edits = replace(self.edits or Edits(self.graph), processors=chosen)
        uniform, graph = self.edits is None and choice in self._uniform, edits.graph()
        plans: list[tuple[PlanCost, Plan]] = []
        errors: list[InfeasibleError] = []
        changing = updated_in_place(graph) if self.in_place else graph
        for standin in (graph,) if changing is graph else (changing, graph):
            if plans and not uniform:
                break
            try:
                made = self.make(standin, starts_elsewhere(graph, self.hardware), self.settings)
            except InfeasibleError as error:
                errors.append(error)
                continue
            if made.edits is None:
                made = replace(made, graph=graph, edits=edits)
            else:
                changed = replace(made.edits, base=self.graph, processors=chosen)
                made = replace(made, graph=changed.graph(), edits=changed)
            if standin is graph or not verify(made, self.hardware, self.budget):
                plans.append((plan_cost(made, replay(made, self.hardware, self.budget)), made))
        if plans:
            self.plans[choice] = min(plans, key=itemgetter(0))
        else:
            self.refused[choice] = errors[0]


def groups_of(graph: Graph, hardware: Hardware) -> list[tuple[int, ...]]:
    """Return the ops that may run on several processors of the machine, in groups: ops that share a
    tensor that outlives the step are together.
    """
    keys: dict[int, list[object]] = {}
    for i in graph.movable:
        op = graph.ops[i]
        may = op.kind, op.processor, others_of(op, hardware)
        if may[2]:
            keys[i] = [(t, may) for t in op.uses if graph.survives[t]]
    return [tuple(group) for group in connected(keys)]


def _vary(search: _ChoiceSearch, begin: Choice, trials: int) -> None:
    """Judge choices around ``begin``: all, if they are few."""
    if prod([len(allowed) for allowed in search.allowed]) <= _ALL:
        for choice in product(*search.allowed):
            search.judge(choice)
        return
    search.judge(begin)
    left = _Trials(search, trials)
    if not search.by_kind:
        for processor in dict.fromkeys(
            [name for allowed in search.allowed for name in allowed[1:]]
        ):
            _least_read(left, processor)
    for members, processor in _kinds(search):
        _shares(left, search.best or begin, members, processor)
    better = True
    while better:
        better = False
        base = search.best or begin
        for k, allowed in enumerate(search.allowed):
            for processor in allowed:
                changed = (*base[:k], processor, *base[k + 1 :])
                if left.judge(changed):
                    base, better = changed, True


def _least_read(trials: _Trials, processor: str) -> None:
    """Take more and fewer groups to ``processor``, as :func:`by_reading` lists them, and then from
    the front, so that layers leave.
    """
    search = trials.search
    order = by_reading(search.graph, search.hardware, search.groups, processor)
    _prefixes(trials, order, processor, trials.left // 2)
    _prefixes(
        trials,
        sorted(order, key=lambda unit: search.groups[unit[0]][0]),
        processor,
        trials.left // 4,
    )


def _prefixes(
    trials: _Trials, order: Sequence[tuple[int, ...]], processor: str, until: int
) -> None:
    """Take the first of ``order`` to ``processor``: halfway between the best number so far and its
    neighbours, while trials are left.
    """
    search = trials.search
    home = tuple([allowed[0] for allowed in search.allowed])

    def first(k: int) -> Choice:
        choice = _moved(home, [j for unit in order[:k] for j in unit], processor)
        return beside_neighbours(search.graph, search.groups, choice)

    known = {k: trials.ns(first(k)) for k in (0, len(order))}
    _best_number(trials, known, len(order) // 2, until, first)


def _best_number(
    trials: _Trials,
    known: dict[int, float],
    following: int,
    until: int,
    choice_of: Callable[[int], Choice],
) -> int:
    """The best number of groups that leave: the ``following`` one is tried, and then halfway between
    the best so far and its neighbours among those ``known``.
    """

    def best() -> int:
        return min(known, key=lambda k: (known[k], k))

    while following and trials.left > until:
        known[following] = trials.ns(choice_of(following))
        following = halfway(sorted(known), best())
    return best()


@dataclass
class _Trials:
    """Judges at most ``left`` further choices."""

    search: _ChoiceSearch
    left: int

    def judge(self, choice: Choice) -> bool:
        """Judge a choice if it is new, and return True if it is then the best so far."""
        if self.search.knows(choice):
            return False
        self.left -= 1
        return self.left >= 0 and self.search.judge(choice)

    def ns(self, choice: Choice) -> float:
        """Judge a choice, and return its makespan in ns."""
        self.judge(choice)
        return self.search.ns(choice)


def _kinds(search: _ChoiceSearch) -> Iterator[tuple[list[int], str]]:
    """Yield the groups of each kind with each processor on which they may run."""
    by_kind: dict[object, list[int]] = {}
    for k, kind in enumerate(search.kinds):
        by_kind.setdefault(kind, []).append(k)
    for members in by_kind.values():
        for processor in search.allowed[members[0]]:
            yield members, processor


def _shares(trials: _Trials, begin: Choice, members: Sequence[int], processor: str) -> None:
    """Take more and fewer of ``members`` to a processor: halfway between the best number so far and
    those tried beside it.

    Half of the trials are spent on numbers spread evenly over the step, the others from there on
    its first and its last members.
    """
    n = len(members)
    following = n // 2
    for ways, until in ((_even, trials.left // 2), (_first, trials.left // 4), (_last, 0)):

        def taken(k: int, ways: Callable[[int, int], list[int]] = ways) -> Choice:
            return _moved(begin, [members[j] for j in ways(n, k)], processor)

        known = {k: trials.search.ns(taken(k)) for k in (0, n)}
        best = _best_number(trials, known, following, until, taken)
        following = best if 0 < best < n else halfway(sorted(known), best)


def halfway(tried: Sequence[int], best: int) -> int:
    """Return the number halfway to the farther neighbour of ``best``; 0 if there is none."""
    place = tried.index(best)
    near = [other for other in tried[max(0, place - 1) : place + 2] if abs(other - best) > 1]
    return (best + max(near, key=lambda other: abs(other - best))) // 2 if near else 0


def _moved(choice: Choice, members: Iterable[int], processor: str) -> Choice:
    changed = list(choice)
    for k in members:
        changed[k] = processor
    return tuple(changed)


def _even(n: int, k: int) -> list[int]:
    return sorted({(2 * j + 1) * n // (2 * k) for j in range(k)})


def _first(n: int, k: int) -> list[int]:
    return list(range(k))


def _last(n: int, k: int) -> list[int]:
    return list(range(n - k, n))
