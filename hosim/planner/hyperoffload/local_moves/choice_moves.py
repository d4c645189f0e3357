"""Small changes of choices: what a search may try next.

A change concerns a tensor or two: a prefetch issued elsewhere in its gap; a store issued earlier or
later; either of them elsewhere among those that are issued after the same op; an absence dropped,
or a gap used that was not; another start, or another tier below, for one absence or for all; a
tensor that stays in the place of another one that leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TypeVar

from hosim.analysis import Gap, initial_set
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    Choices,
    Problem,
    TensorChoice,
)

Changes = Mapping[int, TensorChoice | None]
"""By tensor what it does instead; None: it stays."""

T = TypeVar("T")

_NEAR = (-3, -2, -1, 1, 2, 3)

_TURN = 0.15
"""The share of changes of an absence that change its place in a queue, or its tier alone."""


class ChoiceMoves:
    """The changes of choices that a problem allows, with tensors in ``tiers`` below alone."""

    def __init__(self, problem: Problem, tiers: Sequence[str]) -> None:
        self.problem = problem
        self.tiers = tiers
        self.gaps = problem.gaps_of
        self._gap = {(gap.tensor, gap.after): gap for gaps in self.gaps.values() for gap in gaps}
        self._count = len(problem.graph.ops)
        self._several = len(problem.graph.streams) > 1
        self._initial = problem.graph.derived(initial_set)

    def random(
        self,
        rng: Random,
        choices: Choices,
        gap: Gap,
        others: Sequence[Gap],
        lines: Callable[[], Queues],
    ) -> Changes:
        """A change of the tensor of ``gap``, most of all there; in one of ten it changes places
        with one of ``others``.

        ``lines`` gives the queues of the choices, where they are kept: looking takes time for each
        tensor that moves.
        """
        t = gap.tensor
        choice = choices.get(t)
        what = rng.random()
        if what < 0.1 and others:
            return self._exchange(rng, choices, gap, drawn(rng, others))
        if choice is not None and gap.after in choice.away and rng.random() < _TURN:
            queues = lines()
            changed = [
                *self._elsewhere(t, choice, gap, queues),
                *self._saved_elsewhere(t, choice, queues),
            ]
            if changed:
                return {t: drawn(rng, changed)}
        if choice is not None and gap.after in choice.away and what < 0.7:
            back = choice.away[gap.after]
            if back is not None and what < 0.5:
                moved = (
                    back + drawn(rng, _NEAR)
                    if rng.random() < 0.5
                    else drawn(rng, range(gap.after, gap.before))
                )
                return {t: choice.with_return(gap.after, within(moved, gap))}
            if choice.start != BELOW or gap.after != AT_START:
                stored, last = choice.stores.get(gap.after, gap.after), gap.before - 1
                moved = (
                    max(gap.written, min(last, stored + drawn(rng, _NEAR)))
                    if rng.random() < 0.5
                    else drawn(rng, range(gap.written, last + 1))
                )
                return {t: choice.with_store(gap.after, moved)}
        changes = list(self._decisions(t, choice, [gap] if rng.random() < 0.5 else self.gaps[t]))
        return {t: kept(self.problem, t, drawn(rng, changes))} if changes else {}

    def _elsewhere(
        self, t: int, choice: TensorChoice, gap: Gap, lines: Queues
    ) -> Iterator[TensorChoice]:
        """The return or the store of an absence elsewhere among those that are issued after the
        same op; or the absence in another tier.

        On several streams also a later op after which it leaves.
        """
        back = choice.away[gap.after]
        if back is not None:
            own = choice.turns.get(gap.after, 2 * gap.before)
            for turn in _turns(own, t, lines.get((False, back), ())):
                yield choice.with_turn(gap.after, turn)
        if choice.start != BELOW or gap.after != AT_START:
            at = choice.stores.get(gap.after, gap.after)
            own = choice.store_turns.get(gap.after, 2 * gap.after)
            for turn in _turns(own, t, lines.get((True, at), ())):
                yield choice.with_store_turn(gap.after, turn)
            if self._several:
                now = choice.leaves.get(gap.after, gap.after)
                for position in dict.fromkeys(
                    (gap.after, now - 1, now + 1, now + 2, gap.before - 1)
                ):
                    if gap.after <= position < gap.before and position != now:
                        yield choice.with_leave(gap.after, position)
        if len(choice.away) > 1 and t not in self.problem.starts_below:
            for tier in self.tiers:
                if tier != choice.tier(gap.after):
                    yield choice.with_tier(gap.after, tier)

    def saved_after(self, t: int, choice: TensorChoice) -> int | None:
        """The op after which what the step has written of a tensor is stored where it is to be at
        the end; None: it need not.
        """
        graph = self.problem.graph
        if (
            not graph.writers[t]
            or not graph.survives[t]
            or (t not in self.problem.starts_below and choice.start == HOME)
        ):
            return None
        return choice.stores.get(self._count, graph.writers[t][-1])

    def shifted(
        self, t: int, choice: TensorChoice | None, gap: Gap | None, by: int, *, store: bool
    ) -> TensorChoice | None:
        """The choice of a tensor with one transfer issued so many ops later, as far as it may be;
        None if that changes nothing.

        This is the return of the absence in ``gap``, or with ``store`` the store before it. Without
        a gap it is the store that saves for the end what the step has written.
        """
        if choice is None:
            return None
        if gap is None:
            saved = self.saved_after(t, choice)
            moved = (
                None
                if saved is None
                else max(self.problem.graph.writers[t][-1], min(self._count - 1, saved + by))
            )
            return (
                None if moved is None or moved == saved else choice.with_store(self._count, moved)
            )
        if gap.after not in choice.away:
            return None
        if store:
            if choice.start == BELOW and gap.after == AT_START:
                return None
            at = choice.stores.get(gap.after, gap.after)
            moved = max(gap.written, min(gap.before - 1, at + by))
            return None if moved == at else choice.with_store(gap.after, moved)
        back = choice.away[gap.after]
        moved = None if back is None else within(back + by, gap)
        return None if moved is None or moved == back else choice.with_return(gap.after, moved)

    def _saved_elsewhere(
        self, t: int, choice: TensorChoice, lines: Queues
    ) -> Iterator[TensorChoice]:
        """Yield choices that store what has to be below at the end later or earlier, or elsewhere
        among what is issued after the same op.
        """
        at = self.saved_after(t, choice)
        if at is None:
            return
        first, last = self.problem.graph.writers[t][-1], self._count - 1
        for position in dict.fromkeys((first, at - 1, at + 1, at + 2, (at + last) // 2, last)):
            if first <= position <= last and position != at:
                yield choice.with_store(self._count, position)
        for turn in _turns(
            choice.store_turns.get(self._count, 2 * at), t, lines.get((True, at), ())
        ):
            yield choice.with_store_turn(self._count, turn)

    def queues(self, choices: Choices) -> Queues:
        """Return the cache ops that are issued after each op."""
        found: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        users = self.problem.graph.users
        for t, choice in choices.items():
            if t in self.problem.starts_below and not users[t]:  # it never moves
                continue
            for after, back in choice.away.items():
                if back is not None and (t, after) in self._gap:
                    found.setdefault((False, back), []).append(
                        (choice.turns.get(after, 2 * self._gap[t, after].before), t)
                    )
                if choice.start != BELOW or after != AT_START:
                    found.setdefault((True, choice.stores.get(after, after)), []).append(
                        (choice.store_turns.get(after, 2 * after), t)
                    )
            at = self.saved_after(t, choice)
            if at is not None:
                found.setdefault((True, at), []).append(
                    (choice.store_turns.get(self._count, 2 * at), t)
                )
        return found

    def _exchange(self, rng: Random, choices: Choices, one: Gap, other: Gap) -> Changes:
        """Of two gaps the one that is used is not any more, and the other one is."""
        if choices.get(one.tensor) is None:
            one, other = other, one
        choice = choices.get(one.tensor)
        if choice is None or one.tensor == other.tensor or one.tensor in self.problem.starts_below:
            return {}
        u = other.tensor
        begins = other.after == AT_START and self.problem.graph.tensors[u].persistent
        back = (
            drawn(rng, range(other.after, other.before))
            if other.returns and other.after < other.before
            else None
        )
        taken = choices.get(u)
        if taken is None:
            taken = TensorChoice(
                self.problem.starts_below.get(u, choice.below),
                BELOW if begins else HOME,
                {other.after: back},
            )
        elif other.after not in taken.away and not (
            begins or (taken.start == BELOW and other.before == self._count)
        ):
            taken = taken.with_return(other.after, back)
        left = (
            choice.without(one.after)
            if len(choice.away) > 1 and one.after in choice.away and one.after != AT_START
            else None
        )
        return {one.tensor: kept(self.problem, one.tensor, left), u: taken}

    def _decisions(
        self, t: int, choice: TensorChoice | None, gaps: Sequence[Gap]
    ) -> Iterator[TensorChoice | None]:
        """Other absences, starts and tiers of one tensor; ``None``: it stays."""
        problem = self.problem
        forced = t in problem.starts_below
        tiers = [problem.starts_below[t]] if forced else self.tiers
        if not tiers:
            return
        base = choice or TensorChoice(tiers[0])
        for gap in gaps:
            if gap.after in base.away:
                if not (forced and gap.after == AT_START):
                    yield base.without(gap.after)._replace(
                        start=HOME if gap.after == AT_START else base.start
                    )
            elif gap.after == AT_START and not forced:
                yield from self._from_the_start(base, gap)
            elif base.start == BELOW and gap.before == self._count:
                yield from self._to_the_end(base, gap)
            else:
                for again in _positions(gap):
                    yield base.with_return(gap.after, again)
        if (
            not forced
            and choice is not None
            and t in self._initial
            and problem.graph.tensors[t].persistent
        ):
            for start in (HOME, COPY):
                if start != base.start:
                    yield base._replace(start=start)
        if base.start == BELOW:
            yield None
        if choice is not None:
            for tier in tiers:
                if tier != base.below:
                    yield base.below_in(tier)

    def _from_the_start(self, base: TensorChoice, gap: Gap) -> Iterator[TensorChoice]:
        """Ways to be away before the first use: to start below, or to leave at once (where starting
        below means a store at the end).
        """
        graph, t = self.problem.graph, gap.tensor
        last = max(graph.users[t], default=AT_START)
        persistent = graph.tensors[t].persistent
        for again in _positions(gap):
            if persistent:
                yield base.without(last)._replace(start=BELOW).with_return(AT_START, again)
            if not persistent or graph.writers[t]:
                yield base._replace(start=HOME).with_return(AT_START, again)

    def _to_the_end(self, base: TensorChoice, gap: Gap) -> Iterator[TensorChoice]:
        """Ways to be there at both ends of the step, and away after the last use, for what starts
        below.
        """
        for start in (COPY, HOME) if self.problem.graph.writers[gap.tensor] else (COPY,):
            for again in _positions(gap):
                yield base.without(AT_START)._replace(start=start).with_return(gap.after, again)


Queues = Mapping[tuple[bool, int], Sequence[tuple[int, int]]]
"""The stores and the returns that are issued after an op, each as its turn and its tensor."""


def _turns(own: int, t: int, line: Sequence[tuple[int, int]]) -> list[int]:
    """Turns before each of those ahead in a queue, and behind each of the others."""
    found = [
        turn - 1 if (turn, other) < (own, t) else turn + 1 for turn, other in line if other != t
    ]
    return [turn for turn in dict.fromkeys(found) if turn != own]


def kept(problem: Problem, t: int, choice: TensorChoice | None) -> TensorChoice | None:
    """A choice that moves nothing is none; what lies below at both ends of the step moves, whatever
    its absences.
    """
    moves = choice is not None and (
        choice.away or choice.start == BELOW or t in problem.starts_below
    )
    return choice if moves else None


def drawn(rng: Random, items: Sequence[T]) -> T:
    """One of some items. ``Random.choice`` takes three times as long, and draws are most of a
    search.
    """
    return items[int(rng.random() * len(items))]


def _positions(gap: Gap) -> list[int | None]:
    """Return the positions at which a new absence might return: late, in the middle, at once."""
    if not gap.returns:
        return [None]
    last = gap.before - 1
    return list(
        dict.fromkeys(
            [
                last,
                max(gap.after, last - 1),
                max(gap.after, last - 2),
                (gap.after + last) // 2,
                gap.after,
            ]
        )
    )


def within(position: int, gap: Gap) -> int:
    """The op of a gap that is nearest to ``position``, of those after which a return may be
    issued.
    """
    return max(gap.after, min(gap.before - 1, position))
