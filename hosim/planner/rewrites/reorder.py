"""The ops in another order, within their dependencies, so that less has to be held at once.

What an op's place decides is how long its inputs and outputs live. Sethi and Ullman (J. ACM 17(4),
1970) found the best order of a tree by going where most is freed first; for graphs in general the
question is NP-complete (Sethi, 1975), so several list schedules are made and the best one is kept:

- *greedy*: of the ops that are ready, one that frees more than it takes as soon as there is one;
  else the next of the given order (so an optimizer's update follows its gradient at once), or the
  one that takes least;
- *greedy from the end*: the same on the reversed graph, where an op frees its outputs and takes its
  inputs (so a cast or a mask is made when it is needed, not when it could be);
- on small graphs, a beam over sets of ops done, which is exact (a dynamic programme over all
  down-sets) where the beam is as wide as their number.

All of it counts bytes as :func:`hosim.analysis.liveness.static_curve` does: exact for one stream;
for several it takes them as run one at a time. Keeping :attr:`Graph.producers` keeps every read's
writer, so what is computed is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hosim.analysis import USUAL_DEVICE_TIER, idle_below, static_curve
from hosim.edits import is_random, permuted
from hosim.graph import Graph

_BEAM_OPS, _BEAM_WIDTH = 200, 256
"""Graphs up to this many ops get a beam this wide."""


def reorder(
    graph: Graph, durations: Sequence[int], budget_bytes: int, device_tier: str = USUAL_DEVICE_TIER
) -> Graph:
    """``graph`` with its ops in the best order found; ``graph`` itself where none is better.

    Better is: a lower static peak where that exceeds ``budget_bytes``, then fewer byte-nanoseconds
    above the budget, which is what transfers would have to take away. The static peak is never
    above the given order's, unless both are within the budget. ``durations`` are nanoseconds by op
    position. O((ops + uses) log ops).
    """
    given = list(range(len(graph.ops)))
    best, best_key = given, _key(static_curve(graph, device_tier), durations, given, budget_bytes)
    if not best_key[0]:
        return graph
    model = _model(graph, device_tier)
    for order in _proposals(model):
        key = _key(_curve(model, order), durations, order, budget_bytes)
        if key < best_key:
            best, best_key = order, key
    return graph if best == given else permuted(graph, best)


def eager(graph: Graph) -> Graph:
    """``graph`` with each op that frees at least what it takes as soon as it is ready, and the
    others in the listed order.

    So an update follows its gradient, and its transfers need not wait for the end of the step. The
    static peak may be above that of :func:`reorder`'s order. O((ops + uses) log ops).
    """
    given = list(range(len(graph.ops)))
    order = _forward(_model(graph)).greedy(given, True)
    return graph if order == given else permuted(graph, order)


Key = tuple[int, int]


def _key(curve: Sequence[int], durations: Sequence[int], order: Sequence[int], budget: int) -> Key:
    """Bytes above the budget at the peak, and byte-nanoseconds above it."""
    above = [max(0, held - budget) for held in curve]
    return max(above, default=0), sum(
        [a * durations[i] for a, i in zip(above, order, strict=True) if a]
    )


# -- what an order decides
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Model:
    """A graph as dependencies and bytes.

    ``makes[i]`` are the tensors that op i is the first to use in any order (it writes them first),
    ``users[t]`` the ops that use a tensor which dies when all of them have run.
    """

    producers: Sequence[Sequence[int]]
    consumers: Sequence[Sequence[int]]
    workspace: Sequence[int]
    makes: Sequence[Sequence[int]]
    uses: Sequence[Sequence[int]]
    users: Sequence[Sequence[int]]
    sizes: Sequence[int]
    held: int


def _model(graph: Graph, device_tier: str = USUAL_DEVICE_TIER) -> _Model:
    count = len(graph.ops)
    before = _before(graph)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    initial = set(graph.initial) - idle_below(graph, device_tier)
    makes: list[list[int]] = [[] for _ in range(count)]
    uses: list[list[int]] = [[] for _ in range(count)]
    held = 0
    for t, users in enumerate(graph.users):
        if t in initial:
            held += sizes[t]
        elif users:
            makes[users[0]].append(t)  # its first writer, before which nobody can use it
        if not graph.survives[t]:
            for u in users:
                uses[u].append(t)
    return _Model(
        before,
        _users_of(before, count),
        [op.workspace_bytes for op in graph.ops],
        makes,
        uses,
        graph.users,
        sizes,
        held,
    )


def _before(graph: Graph) -> Sequence[Sequence[int]]:
    """The ops that must come before each op: its producers and, for a random one or one with a
    message, the one of its sort before it.

    Random ops draw from one generator, so the order in which they do decides their results. And
    stages of a pipeline that sent and received in other orders might wait for one another for ever.
    """
    before: list[Sequence[int]] = list(graph.producers)
    for sort in (
        [i for i, op in enumerate(graph.ops) if is_random(graph, op)],
        [i for i, op in enumerate(graph.ops) if op.message],
    ):
        for earlier, later in pairwise(sort):
            before[later] = tuple(dict.fromkeys((*before[later], earlier)))
    return before


def _curve(model: _Model, order: Sequence[int]) -> list[int]:
    """Bytes held while each op runs, by place in ``order``."""
    held, left, curve = model.held, [len(users) for users in model.users], []
    for i in order:
        held += sum([model.sizes[t] for t in model.makes[i]])
        curve.append(held + model.workspace[i])
        for t in model.uses[i]:
            left[t] -= 1
            if not left[t]:
                held -= model.sizes[t]
    return curve


# -- list schedules
# ------------------------------------------------------------------------------------------------


def _proposals(model: _Model) -> Iterator[list[int]]:
    count = len(model.producers)
    forward = _forward(model)
    backward = _Schedule(
        forward.after,
        forward.before,
        forward.frees,
        forward.users,
        forward.takes,
        forward.takers,
        model.sizes,
    )
    given = list(range(count))
    for at_once in (True, False):
        yield forward.greedy(given, at_once)
        late = backward.greedy(given[::-1], at_once)[::-1]
        yield late
        yield forward.greedy(late, at_once)
    if count <= _BEAM_OPS:
        yield _beam(model)


def _forward(model: _Model) -> _Schedule:
    """List scheduling from the first op on."""
    makers = _users_of(model.makes, len(model.sizes))
    users = _users_of(model.uses, len(model.sizes))
    return _Schedule(
        model.producers, model.consumers, model.makes, makers, model.uses, users, model.sizes
    )


def _users_of(tensors: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The ops of each tensor, from the tensors of each op."""
    ops: list[list[int]] = [[] for _ in range(count)]
    for i, listed in enumerate(tensors):
        for t in listed:
            ops[t].append(i)
    return ops


@dataclass(frozen=True)
class _Schedule:
    """List scheduling in one direction.

    ``takes[i]`` are the tensors that are held from op i on if they were not before, ``frees[i]``
    those that are not after it if no other of their ``users`` is left; ``takers`` and ``users`` are
    the same by tensor.
    """

    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]
    takes: Sequence[Sequence[int]]
    takers: Sequence[Sequence[int]]
    frees: Sequence[Sequence[int]]
    users: Sequence[Sequence[int]]
    sizes: Sequence[int]

    def greedy(self, preferred: Sequence[int], eager: bool) -> list[int]:
        """An order in which the ready op that frees most goes first, if it frees at least what it
        takes.

        Else, if ``eager``, the first of ``preferred`` that is ready, or the one that takes least.
        O((ops + uses) log ops).
        """
        waiting = [len(b) for b in self.before]
        left = [len(users) for users in self.users]
        pending = [sum(users) for users in self.users]  # when one user is left, this is that user
        held = bytearray(len(self.sizes))
        net = [
            self._bytes(takes) - self._bytes(t for t in frees if left[t] == 1)
            for takes, frees in zip(self.takes, self.frees, strict=True)
        ]
        ready = _ReadyOps(net, preferred)
        for i, count in enumerate(waiting):
            if not count:
                ready.add(i)
        order: list[int] = []
        while len(order) < len(waiting):
            i = ready.take(eager)
            order.append(i)
            taken = [t for t in self.takes[i] if not held[t]]
            lighter = [(j, t) for t in taken for j in self.takers[t] if j != i]
            for t in taken:
                held[t] = 1
            for t in self.frees[i]:
                left[t] -= 1
                pending[t] -= i
                if left[t] == 1:
                    lighter.append((pending[t], t))
            for j, t in lighter:
                net[j] -= self.sizes[t]
                if not waiting[j]:
                    ready.lighter(j)
            for j in self.after[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    ready.add(j)
        return order

    def _bytes(self, tensors: Iterable[int]) -> int:
        return sum([self.sizes[t] for t in tensors])


class _ReadyOps:
    """The ops that are ready, by the ``net`` bytes that they take, which may become less, and as
    they are ``preferred``.
    """

    def __init__(self, net: Sequence[int], preferred: Sequence[int]) -> None:
        self._net = net
        self._rank = [0] * len(net)
        for k, i in enumerate(preferred):
            self._rank[i] = k
        self._by_net: list[tuple[int, int, int]] = []
        self._by_rank: list[tuple[int, int]] = []
        self._done = bytearray(len(net))

    def add(self, i: int) -> None:
        """An op is ready."""
        heapq.heappush(self._by_rank, (self._rank[i], i))
        self.lighter(i)

    def lighter(self, i: int) -> None:
        """An op that is ready takes less than before."""
        if not self._done[i]:
            heapq.heappush(self._by_net, (self._net[i], self._rank[i], i))

    def take(self, eager: bool) -> int:
        """The op that goes next: the one that takes least, if that is nothing or it is not
        ``eager``, else the preferred one.
        """
        by_net, by_rank, done = self._by_net, self._by_rank, self._done
        while done[by_net[0][2]] or by_net[0][0] != self._net[by_net[0][2]]:
            heapq.heappop(by_net)
        while done[by_rank[0][1]]:
            heapq.heappop(by_rank)
        i = by_net[0][2] if by_net[0][0] <= 0 or not eager else by_rank[0][1]
        done[i] = 1
        return i


def _set_of(positions: Iterable[int]) -> int:
    return sum([1 << p for p in positions])


def _beam(model: _Model) -> list[int]:
    """The order of lowest peak among those that a beam over sets of ops done keeps; exact where no
    size has more sets than it is wide.
    """
    count = len(model.producers)
    needs, used_by = list(map(_set_of, model.producers)), list(map(_set_of, model.users))
    takes = [sum([model.sizes[t] for t in made]) for made in model.makes]
    # done -> (peak, bytes held, order as a linked list)
    layer: dict[int, tuple[int, int, tuple[object, int] | None, tuple[int, ...]]]
    first = tuple([i for i in range(count) if not needs[i]])
    layer = {0: (0, model.held, None, first)}
    for _ in range(count):
        following: dict[int, tuple[int, int, tuple[object, int] | None, tuple[int, ...]]] = {}
        for done, (peak, held, order, ready) in layer.items():
            for i in ready:
                after = done | 1 << i
                running = held + takes[i]
                reached = max(peak, running + model.workspace[i])
                known = following.get(after)
                if known is None or reached < known[0]:
                    still = running - sum(
                        [model.sizes[t] for t in model.uses[i] if not used_by[t] & ~after]
                    )
                    unlocked = [j for j in model.consumers[i] if not needs[j] & ~after]
                    following[after] = (
                        reached,
                        still,
                        (order, i),
                        (*[j for j in ready if j != i], *unlocked),
                    )
        if len(following) > _BEAM_WIDTH:
            kept = heapq.nsmallest(_BEAM_WIDTH, following.items(), key=lambda item: item[1][:2])
            following = dict(kept)
        layer = following
    order = next(iter(layer.values()))[2]
    found: list[int] = []
    while order is not None:
        found.append(order[1])
        order = order[0]  # type: ignore[assignment]
    return found[::-1]
