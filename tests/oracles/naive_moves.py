"""The moves that follow from a tensor's choice, walked through with sets and lists, each place looked
for op by op: what the kernel that lowers choices is held against.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from strategies import happens_before

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE
from hosim.planner.hyperoffload.tensor_choices import COPY, HOME, Problem, TensorChoice

RANK = {STORE: 0, DETACH: 1, PREFETCH: 2}
"""The order of cache ops of one place."""

Move = tuple[str, str, str | None, int, int]
"""A cache op, from where, where to, after which op, and twice the use or gap that it serves or its
turn.
"""


def initial_tiers(problem: Problem, t: int, choice: TensorChoice) -> tuple[str, ...]:
    """The tiers in which a tensor has valid copies at time 0."""
    device, home = problem.hardware.device_tier, problem.starts_below.get(t)
    if t not in problem.initial:
        return ()
    if home is not None or choice.start == HOME:
        return (home or device,)
    several = () if problem.graph.writers[t] else choice.tiers.values()
    return tuple(dict.fromkeys([device] * (choice.start == COPY) + [choice.below, *several]))


def moves_of(problem: Problem, t: int, choice: TensorChoice) -> list[Move]:
    """The moves of one tensor, in the order in which it makes them."""
    walk = NaiveWalk(problem, t, choice)
    walk.walk()
    return walk.moves


class NaiveWalk:
    """One tensor's way through the step."""

    def __init__(self, problem: Problem, t: int, choice: TensorChoice) -> None:
        graph = problem.graph
        self.t, self.choice, self.graph, self.end = t, choice, graph, len(graph.ops)
        self.before, self.device = happens_before(graph), problem.hardware.device_tier
        self.users, self.writers = graph.users[t], graph.writers[t]
        self.home, self.start = problem.starts_below.get(t), initial_tiers(problem, t, choice)
        self.here = self.returns = self.device in self.start
        self.below = [tier for tier in self.start if tier != self.device]
        self.moves: list[Move] = []
        self.use, self.last, self.saved, self.awaited = self.end, AT_START, AT_START, 0

    def ended(self, earlier: int, op: int) -> bool:
        """Whether an op has surely ended when another has."""
        return earlier in (AT_START, op) or (op >= 0 and bool(self.before[op] >> earlier & 1))

    def first_after(self, follows: Sequence[int], wanted: int) -> int | None:
        places = range(wanted, self.end)
        return next((k for k in places if all(self.ended(f, k) for f in follows)), None)

    def walk(self) -> None:
        users, choice, end = self.users, self.choice, self.end
        kept = self.home or choice.below
        comes_up = kept in self.start and not self.here
        is_kept = kept in self.start and self.graph.survives[self.t]
        written = max(self.writers, default=end)
        if users and (comes_up or AT_START in choice.away):
            store = min(choice.stores.get(AT_START, AT_START), users[0] - 1)
            store = store if self.ended(store, users[0]) else AT_START
            self.leave(AT_START, users[0], store, choice.leaves.get(AT_START, store), None)
        saved = max(written, choice.stores.get(end, written))
        for u, following in pairwise((*users, end)):
            if u in self.writers:
                self.here, self.below = True, []
            away = u in choice.away or (is_kept and comes_up and u == users[-1])
            store = choice.stores.get(u, u)
            release = choice.leaves.get(u, max(u, store))
            if away and written <= release < saved:
                if saved < following and u not in choice.leaves:
                    release = saved
                else:
                    saved = release
            if is_kept and written <= u <= saved < following:
                self.save(kept, saved)
            if away:
                self.leave(u, following, store, release, kept if is_kept and u >= written else None)

    def leave(self, after: int, before: int, store: int, release: int, tier: str | None) -> None:
        """A store, a detach and a prefetch, as far as they are needed and have safe places."""
        tier = self.home or tier or self.choice.tier(after)
        read = before < self.end and self.t in self.graph.ops[before].reads
        needed = read or (before == self.end and self.graph.survives[self.t])
        self.last = AT_START
        if before == self.end and not needed:
            return
        if self.here and not self.goes(after, before, store, release, tier, needed):
            return
        if read or (before == self.end and self.returns):
            back = self.choice.away.get(after)
            wanted = min(after if back is None else back, before - 1)
            at = max([self.last, *(k for k in range(wanted + 1) if self.ended(self.last, k))])
            source = tier if tier in self.below else self.below[0]
            turn = self.choice.turns.get(after, 2 * before)
            self.note(PREFETCH, source, self.device, at, turn, before)
            self.here = True
        if read:
            self.awaited = before

    def goes(
        self, after: int, before: int, store: int, release: int, tier: str, needed: bool
    ) -> bool:
        wrote = [u for u in self.writers if u <= after][-1:]
        follows = [u for u in self.users if max([self.awaited, *wrote]) <= u < before]
        follows += [self.last, self.saved]
        at, stored = None, needed and not self.below
        if stored:
            at = self.first_after([*wrote, self.last], store)
            leaves = self.first_after(follows, release)
            if at is None or leaves is None:
                return False
            at = at if self.ended(at, leaves) else release
            follows.append(at)
        leaves = self.first_after(follows, release)
        if leaves is None or leaves >= before or not (needed or self.ended(leaves, before)):
            return False
        if at is not None:
            turn = self.choice.store_turns.get(after, 2 * max(after, at))
            self.note(STORE, self.device, tier, at, turn, before)
            self.below = [tier]
        self.note(DETACH, self.device, None, leaves, 2 * max(after, leaves), before)
        self.here = False
        return True

    def save(self, tier: str, wanted: int) -> None:
        """A store after the last write, if the tier has no valid copy."""
        if tier in self.below or not (self.here or self.below):
            return
        waited = self.use < self.end and self.writers and self.ended(self.use, self.writers[-1])
        follows = [*self.writers[-1:], *([] if waited else [self.last])]
        at = self.first_after(follows, wanted)
        at = self.first_after(follows, AT_START) if at is None else at
        if at is not None:
            turn = self.choice.store_turns.get(self.end, 2 * at)
            self.note(STORE, (self.below or [self.device])[0], tier, at, turn, self.end)
            self.below, self.saved = [*self.below, tier], at

    def note(self, op: str, source: str, to: str | None, at: int, turn: int, use: int) -> None:
        self.moves.append((op, source, to, at, turn))
        self.last, self.use = at, use
