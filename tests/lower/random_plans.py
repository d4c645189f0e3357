"""Legal plans of large graphs of one stream, from a seed.

``strategies.plans`` draws every decision through hypothesis, which is at its limit with hundreds of
tensors. Here hypothesis draws the seed and how many tensors move; what may happen to one tensor is
the same: it starts in any tiers, wanders between them whenever nobody uses it, is where it is used
when it is used, and survives where it was.
"""

import random

from hypothesis import strategies as st
from strategies import ways

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan


class Wanderer:
    """The cache ops of one tensor so far; ``tiers`` have valid copies after the last of them, which
    stands at ``last``.
    """

    def __init__(self, dice, machine, tensor, tiers, written):
        self.dice, self.tensor, self.tiers = dice, tensor, set(tiers)
        device = machine.device_tier
        # a copy between tiers below, of which nothing waits for the end, would become stale as it
        # flows
        self.ways = [way for way in ways(machine) if not written or device in way]
        self.rank = machine.tier_index
        self.last = AT_START
        self.cache_ops = []

    def place(self, low, high):
        """Somewhere from ``low`` (and the last cache op) up to ``high``, exclusive; none if there
        is no such place.
        """
        low = max(low, self.last)
        return self.dice.randrange(low, high) if low < high else None

    def copy(self, start, end, after):
        self.cache_ops.append(
            CacheOp(
                PREFETCH if self.rank[end] < self.rank[start] else STORE,
                self.tensor,
                start,
                end,
                after,
            )
        )
        self.tiers.add(end)
        self.last = after

    def wander(self, low, high):
        for _ in range(self.dice.choice((0, 1, 2, 2, 3))):
            after = self.place(low, high)
            copies = [(a, b) for a, b in self.ways if a in self.tiers and b not in self.tiers]
            moves = copies + [(tier, None) for tier in sorted(self.tiers) if len(self.tiers) > 1]
            if after is None or not moves:
                return
            start, end = self.dice.choice(moves)
            if end is None:
                self.cache_ops.append(CacheOp(DETACH, self.tensor, start, None, after))
                self.tiers.discard(start)
                self.last = after
            else:
                self.copy(start, end, after)

    def bring(self, tier, low, high):
        after = self.place(low, high)
        self.copy(self.dice.choice(sorted(self.tiers)), tier, self.last if after is None else after)


def legal_plan(graph, machine, seed, share):
    """A legal plan that moves about ``share`` of the tensors. ``graph`` has one stream and no
    output that is there from the start.
    """
    dice = random.Random(seed)
    device, end = machine.device_tier, len(graph.ops)
    names = [tier.name for tier in machine.tiers]
    initial, courses = {}, []
    for t in range(len(graph.tensors)):
        held = t in graph.initial
        if dice.random() > share or not graph.users[t]:
            continue
        starts = (
            dice.choice(
                [
                    [device],
                    [device],
                    [name] if (name := dice.choice(names)) else [],
                    dice.sample(names, 2),
                ]
            )
            if held
            else []
        )
        if held and starts != [device]:
            initial[t] = tuple(starts)
        one = Wanderer(
            dice,
            machine,
            t,
            starts,
            sum(t in graph.ops[u].writes for u in graph.users[t]) > (not held),
        )
        low = AT_START
        for user in graph.users[t]:
            op = graph.ops[user]
            if one.tiers:
                one.wander(low, user)
                if t in op.reads and device not in one.tiers:
                    one.bring(device, low, user)
            if t in op.writes:
                one.tiers = {device}
            low = user
        if graph.survives[t]:
            one.wander(low, end)
            for tier in starts:
                if tier not in one.tiers:
                    one.bring(tier, low, end)
        else:  # its last user releases it: nothing may be under way then
            while one.cache_ops and (one.cache_ops[-1].op, one.cache_ops[-1].destination) != (
                PREFETCH,
                device,
            ):
                one.cache_ops.pop()
        courses.append(one.cache_ops)
    order = [i for i, course in enumerate(courses) for _ in course]
    dice.shuffle(order)
    taken = [iter(course) for course in courses]
    return Plan(graph, "drawn", tuple(next(taken[i]) for i in order), initial)


@st.composite
def legal_plans(draw, graph, machine, shares=(0.1, 0.4, 1.0)):
    """:func:`legal_plan` of seeds; the first seed, which hypothesis always takes, is as good as
    any.
    """
    return legal_plan(graph, machine, draw(st.integers(0, 2**32)), draw(st.sampled_from(shares)))
