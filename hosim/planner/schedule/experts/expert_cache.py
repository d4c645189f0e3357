"""A cache of experts in the device tier, and the runtime decisions about it: the dynamic part of
``hybrid``.

Once a gate has decided, those of the chosen experts that are not there are fetched, and the ops
wait. Behind them, experts that the next gate is likely to choose are *predicted* and prefetched, as
far as the cache has room; the rest once more when the ops of this decision have ended. So experts
come while those before them and the attention before their gate compute.

What makes room is the least recently used expert, or the one used least often, that is not pinned:
chosen experts are, until their ops have ended, and predicted ones while others of the same
prediction are prefetched. The hottest experts may stay from the start to the end. Where the cache
does not hold all that one gate chose, those used later give way.
Experts are never written, so that a copy below stays valid and evicting one is a detach without a
store.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hosim.analysis import HappensBefore
from hosim.cache_plan import DETACH, PREFETCH, CacheOp, MemoryView
from hosim.data.expert_routing import Choices, GateDecision, Routed
from hosim.graph import Graph
from hosim.planner.schedule.tiers_below import copies_along

PREDICTORS = ("previous", "popular", "none", "perfect", "predicted")
"""What is predicted: the gate's last choice; its most frequent choices so far; nothing; what it
will choose (for comparison); a share of that, as a predictor of a known hit rate would find.
"""

LRU, LFU, HOTTEST = KEEPS = ("lru", "lfu", "hottest")
"""What gives way: the least recently used; the least frequently used, of equals the least recently
used; and the hottest stay.
"""


@dataclass(frozen=True, slots=True)
class Fetch:
    """An expert's tensor was prefetched for the decision number ``visit``: ``predicted`` before it,
    or missed after it.
    """

    tensor: int
    visit: int
    predicted: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule by which experts are predicted: one of :data:`PREDICTORS`, ``top`` of them
    (``None``: as many as the gate chose last).

    ``only_right`` prefetches of them what the gate will choose: what a replay is compared with to
    see what its wrong prefetches take. ``predicted`` finds each chosen expert with probability
    ``hit_rate``, drawn by ``seed`` for each decision, and nothing else. ``keeps`` is one of
    :data:`KEEPS`.
    """

    predictor: str
    top: int | None = None
    only_right: bool = False
    hit_rate: float = 1.0
    seed: int = 0
    keeps: str = LRU


class Predictor:
    """Experts that a gate is likely to choose, the likeliest first, from what has been chosen so
    far.
    """

    def __init__(self, rule: Rule, gates: int, history: Sequence[Choices]) -> None:
        self.rule = rule
        self.counts: list[Counter[int]] = [Counter() for _ in range(gates)]
        self.last: list[tuple[int, ...]] = [()] * gates
        for step in history:
            for gate, chosen in enumerate(step):
                self.learn(gate, chosen)

    def learn(self, gate: int, chosen: tuple[int, ...]) -> None:
        """A gate has chosen."""
        self.last[gate] = chosen
        self.counts[gate].update(chosen)

    def predict(self, visit: GateDecision) -> tuple[int, ...]:
        """The experts predicted for a decision; only the predictors ``perfect`` and ``predicted``
        look at the decision itself.
        """
        last, counts = self.last[visit.gate], self.counts[visit.gate]
        top = len(last) if self.rule.top is None else self.rule.top
        if self.rule.predictor == "perfect":
            return visit.chosen
        if self.rule.predictor == "predicted":
            draw = Random(f"{self.rule.seed}/{visit.op}")
            return tuple([e for e in visit.chosen if draw.random() < self.rule.hit_rate])
        if self.rule.predictor == "previous":
            return last[:top]
        if self.rule.predictor == "popular":
            return tuple(sorted(counts, key=lambda e: (-counts[e], e))[:top])
        return ()


@dataclass(frozen=True)
class ExpertTable:
    """The data on graph and machine that the runtime needs, computed once a plan.

    ``hops`` are the tiers that an expert's tensor passes on its way up. By op, ``reveal`` has the
    decision that is first known before it, and ``serves`` the one whose chosen experts it uses;
    ``tight`` are those of the latter whose chosen experts do not fit the cache together. By
    decision, ``early`` has the first op after those of the decision before, if that comes before
    the gate.
    """

    graph: Graph
    routed: Routed
    cache_bytes: int
    device: str
    hops: Mapping[int, tuple[str, ...]]
    reveal: Mapping[int, int]
    serves: Mapping[int, int]
    tight: frozenset[int]
    early: tuple[int | None, ...]
    hot: tuple[int, ...] = ()
    """Tensors that are in the cache from the start to the end."""


def chosen_before(routed: Routed) -> Counter[int]:
    """By tensor, how often its expert was chosen in the trace before the graph's steps."""
    counts = Counter[int]()
    for step in routed.history:
        for gate, chosen in enumerate(step):
            counts.update([t for e in chosen for t in routed.experts[gate][e]])
    return counts


def hottest(routed: Routed, sizes: Mapping[int, int], room_bytes: int) -> tuple[int, ...]:
    """The tensors of the experts that were chosen most often before, each expert whole, as far as
    they have room.

    Without a trace before the graph's steps, those that are chosen most often in these. Of equals,
    the first gate's, and of its the first.
    """
    counts = (
        chosen_before(routed)
        if routed.history
        else Counter([t for visit in routed.visits for t in visit.uses])
    )
    experts = [tensors for gate in routed.experts for tensors in gate if tensors]
    kept: list[int] = []
    for tensors in sorted(experts, key=lambda tensors: -max([counts[t] for t in tensors])):
        size = sum([sizes[t] for t in tensors])
        if size <= room_bytes:
            room_bytes -= size
            kept += tensors
    return tuple(sorted(kept))


def expert_table(
    graph: Graph,
    routed: Routed,
    cache_bytes: int,
    device: str,
    hops: Mapping[int, tuple[str, ...]],
    hot: tuple[int, ...] = (),
) -> ExpertTable:
    """Return the table that :class:`ExpertCache` looks up, for a realised graph."""
    order = graph.derived(HappensBefore)
    reveal: dict[int, int] = {}
    serves: dict[int, int] = {}
    tight: set[int] = set()
    early: list[int | None] = []
    begin = 0  # the first op after those of the decision before
    for v, visit in enumerate(routed.visits):
        stream = graph.ops[visit.op].stream
        first = next((i for i in range(begin, visit.op + 1) if graph.ops[i].stream == stream), None)
        early.append(first if first is not None and order.ended_by(first, visit.op) else None)
        ops = sorted({op for users in visit.uses.values() for op in users})
        begin = max(begin, visit.op + 1, *[op + 1 for op in ops[-1:]])
        serves.update(dict.fromkeys(ops, v))
        reveal.update(dict.fromkeys(ops[:1], v))
        if sum(graph.tensors[t].size_bytes for t in visit.uses) > cache_bytes:
            tight.update(ops)
    return ExpertTable(
        graph,
        routed,
        cache_bytes,
        device,
        hops,
        reveal,
        serves,
        frozenset(tight),
        tuple(early),
        hot,
    )


class ExpertCache:
    """The :class:`hosim.cache_plan.RuntimePolicy`.

    ``here`` are the tensors that are in the cache or on their way, the least recently used first.

    ``inspected`` are the ops before which there is something to decide, as far as that is known:
    the others run as planned, and spend no inspection time. ``fetches``, if given, is appended to.
    """

    def __init__(self, table: ExpertTable, rule: Rule, fetches: list[Fetch] | None = None) -> None:
        self.table = table
        self.predictor = Predictor(rule, len(table.routed.experts), table.routed.history)
        self.inspected = {*table.reveal, *table.tight}
        self.again: dict[int, int] = {}  # by op, the decision that is predicted before it
        self.order = table.graph.derived(HappensBefore)
        self.sizes = {t: table.graph.tensors[t].size_bytes for t in table.routed.marked}
        self.here: dict[int, None] = dict.fromkeys(table.hot)
        self.used = sum([self.sizes[t] for t in table.hot])
        self.kept = frozenset(table.hot)
        self.uses = chosen_before(table.routed)
        self.pinned: dict[
            int, tuple[int, ...]
        ] = {}  # chosen, with the ops that must have ended before it goes
        self.fetches = [] if fetches is None else fetches
        for v, visit in enumerate(table.routed.visits):
            if (v == 0 or not table.routed.visits[v - 1].uses) and self.predictor.predict(visit):
                self._predict_again(v)

    # -- what the engine asks
    # ----------------------------------------------------------------------------------

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """Return the cache ops once a gate has decided: for what it chose and is not there, and for
        what is predicted for the next.
        """
        table, decisions = self.table, list[CacheOp]()
        self._unpin(op)
        if op in table.reveal:
            v = table.reveal[op]
            visit = table.routed.visits[v]
            self.predictor.learn(visit.gate, visit.chosen)
            self.uses.update(visit.uses.keys())
            self.pinned.update(visit.uses)
            served = self._serve(op, v, view, decisions)
            if v + 1 < len(table.routed.visits) and not (
                served and self._prefetch(v + 1, view, decisions)
            ):
                self._predict_again(v + 1)
        elif op in table.tight:
            self._serve(op, table.serves[op], view, decisions)
        if op in self.again:
            self._prefetch(self.again[op], view, decisions)
        return decisions

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """Return the cache ops for what ``op`` lacks of the chosen, now that what was under way has
        arrived; and evictions for the rest of what it wants.
        """
        decisions = list[CacheOp]()
        self._unpin(op)
        if op in self.table.serves:
            self._serve(op, self.table.serves[op], view, decisions)
        freed = sum(self.sizes[d.tensor] for d in decisions if d.op == DETACH)
        coming = sum(self.sizes[t] for t in self.here if not view.is_resident(t))
        for t in self._victims((), view):
            if wanted_bytes + coming <= view.free_bytes + freed:
                break
            freed += self.sizes[t]
            self._evict(t, decisions)
        return decisions

    # -- decisions
    # ---------------------------------------------------------------------------------------------

    def _unpin(self, op: int) -> None:
        """Let go of the chosen whose ops have ended when ``op`` is about to start."""
        for t, users in list(self.pinned.items()):
            if all(user != op and self.order.ended_by(user, op) for user in users):
                del self.pinned[t]

    def _predict_again(self, v: int) -> None:
        """Look at decision ``v`` where the ops of the one before have ended."""
        op = self.table.early[v]
        rule, visit = self.predictor.rule, self.table.routed.visits[v]
        if op is not None and (
            self.predictor.predict(visit)
            if rule.predictor == "predicted"
            else rule.predictor != "none"
        ):
            self.again[op] = v
            self.inspected.add(op)

    def _serve(self, op: int, v: int, view: MemoryView, decisions: list[CacheOp]) -> bool:
        """Fetch the chosen that are not there, in the order of their use, until one does not fit;
        says whether all did.

        What does not fit comes when others have been used.
        """
        uses = self.table.routed.visits[v].uses
        for t in uses:
            if t in self.here:
                self._touch(t)
        for t, users in uses.items():
            if t in self.here or users[-1] < op:
                continue
            now = [other for other, its in uses.items() if op in its] if op in users else []
            if not self._room(self.sizes[t], now, view, decisions, pinned=bool(now)):
                return False
            self._fetch(t, v, False, decisions)
        return True

    def _prefetch(self, v: int, view: MemoryView, decisions: list[CacheOp]) -> bool:
        """Prefetch the predicted experts, the likeliest first, as far as there is room; says
        whether there was for all.
        """
        visit = self.table.routed.visits[v]
        candidates = self.table.routed.experts[visit.gate]
        predicted = [t for e in self.predictor.predict(visit) for t in candidates[e]]
        for t in predicted:
            if t in self.here:
                self._touch(t)
                continue
            if self.predictor.rule.only_right and t not in visit.uses:
                continue
            if not self._room(self.sizes[t], predicted, view, decisions):
                return False
            self._fetch(t, v, True, decisions)
        return True

    # -- the cache
    # ---------------------------------------------------------------------------------------------

    def _touch(self, t: int) -> None:
        del self.here[t]
        self.here[t] = None

    def _fetch(self, t: int, v: int, predicted: bool, decisions: list[CacheOp]) -> None:
        decisions += copies_along(self.table.hops[t], PREFETCH, t, self.table.device)
        self.here[t] = None
        self.used += self.sizes[t]
        self.fetches.append(Fetch(t, v, predicted))

    def _evict(self, t: int, decisions: list[CacheOp]) -> None:
        decisions.append(CacheOp(DETACH, t, self.table.device, None))
        del self.here[t]
        self.used -= self.sizes[t]

    def _room(
        self,
        size: int,
        spared: Iterable[int],
        view: MemoryView,
        decisions: list[CacheOp],
        pinned: bool = False,
    ) -> bool:
        """Evict until there is room for ``size``, if need be ``pinned`` ones too; False, and
        nothing evicted, if there cannot be.
        """
        lacking = self.used + size - self.table.cache_bytes
        victims = []
        for t in self._victims(spared, view, pinned):
            if lacking <= 0:
                break
            lacking -= self.sizes[t]
            victims.append(t)
        if lacking > 0:
            return False
        for t in victims:
            self._evict(t, decisions)
        return True

    def _victims(
        self, spared: Iterable[int], view: MemoryView, pinned: bool = False
    ) -> Iterator[int]:
        """Yield what may be evicted, the least recently or least often used first; then ``pinned``
        ones, the one used last first.
        """
        kept = self.kept.union(spared)

        def may_go(t: int) -> bool:
            return t not in kept and view.is_resident(t) and not view.is_busy(t)

        first = (
            sorted(self.here, key=self.uses.__getitem__)
            if self.predictor.rule.keeps == LFU
            else list(self.here)
        )
        yield from (t for t in first if t not in self.pinned and may_go(t))
        if pinned:
            later = sorted(
                (t for t in self.pinned if t in self.here),
                key=lambda t: self.pinned[t],
                reverse=True,
            )
            yield from (t for t in later if may_go(t))
