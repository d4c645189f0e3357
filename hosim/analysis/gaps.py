"""Gaps: the intervals in which a tensor lies idle, and so may leave the device tier."""

from collections.abc import Sequence
from typing import NamedTuple

from hosim.cache_plan import AT_START
from hosim.graph import Graph


class Gap(NamedTuple):
    """No op uses ``tensor`` between the ops ``after`` and ``before``: it could spend that time in a
    lower tier.

    ``after`` is :data:`~hosim.cache_plan.AT_START` for the time before the first use of a tensor
    that is there at time 0, ``before`` is the number of ops for the time after its last use; a
    persistent tensor that no op uses has one gap, the whole step. ``returns`` says whether its
    contents must be back at the end of the gap. ``version`` numbers the contents (writes so far),
    which op ``written`` made (:data:`~hosim.cache_plan.AT_START`: those of time 0): one store
    serves every later gap of the same version.
    """

    tensor: int
    after: int
    before: int
    version: int = 0
    returns: bool = True
    written: int = AT_START

    def dead(self, count: int) -> bool:
        """Return whether the op at its end overwrites the contents, so that nothing need be kept;
        ``count`` is the number of ops.
        """
        return not self.returns and self.before < count


def initial_set(graph: Graph) -> frozenset[int]:
    """Tensors that hold a valid copy at time 0 by default."""
    return frozenset(graph.initial)


def tensor_gaps(graph: Graph, t: int) -> list[Gap]:
    """The gaps of one tensor in order, if it starts in the device tier where it is there at time 0.

    Each has at least one op inside, except that a persistent tensor has a gap before its first use
    even if op 0 uses it: it may start below, so that op 0 waits for it and the end of the step has
    the room. Those of all tensors are found at once, in O(uses), and kept with the graph.
    """
    return graph.derived(_all_gaps)[t]


def _all_gaps(graph: Graph) -> list[list[Gap]]:
    initial = graph.derived(initial_set)
    return [
        _gaps(graph, t, users, t in initial)
        if t in initial or (users and (survives or users[-1] - users[0] >= len(users)))
        else []
        for t, (users, survives) in enumerate(zip(graph.users, graph.survives, strict=True))
    ]


def _gaps(graph: Graph, t: int, users: Sequence[int], initial: bool) -> list[Gap]:
    ops, count, persistent = graph.ops, len(graph.ops), bool(graph.tensors[t].persistent)
    if not users:
        return [Gap(t, AT_START, count, 0, False)] if initial and persistent and count else []
    found: list[Gap] = []
    if initial and (users[0] > 0 or persistent):
        found.append(Gap(t, AT_START, users[0], 0, t in ops[users[0]].reads))
    version, written = 0, AT_START
    for k, u in enumerate(users):
        if t in ops[u].writes:
            version, written = version + 1, u
        if k + 1 < len(users):
            following = users[k + 1]
            if following - u > 1:
                found.append(Gap(t, u, following, version, t in ops[following].reads, written))
        elif graph.survives[t] and u + 1 < count:
            found.append(Gap(t, u, count, version, initial, written))
    return found
