"""Changes of choices around the stalls: of one tensor, or of several that are alike.

A change shifts returns or stores; takes an absence away, or gives one more; lets a tensor stay in
the place of another of about its size; takes another tier below, for one absence or for all, with
the return as early as that tier wants; or is any small change of one decision. Tensors are alike
that have the same size, kind and number of users, as the layers of a network do: the same change is
made to one, to some next to each other, or to all of them. Kinds of changes that paid lately are
drawn more often.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from random import Random

from hosim.analysis import Gap
from hosim.analysis.costmodel.transfers import slowest_hop
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.local_moves.choice_moves import (
    Changes,
    ChoiceMoves,
    Queues,
    drawn,
    kept,
    within,
)
from hosim.planner.hyperoffload.local_moves.plan_simulator import ORDER, PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import BELOW, COPY, HOME, TensorChoice

SHIFT, SHIFT_ALL, STORE, TAKE, GIVE, EXCHANGE, TIER, DECISION = (
    "shift",
    "shift all",
    "store",
    "take",
    "give",
    "exchange",
    "tier",
    "decision",
)
_KINDS = {
    SHIFT: 0.24,
    SHIFT_ALL: 0.06,
    STORE: 0.16,
    TAKE: 0.16,
    GIVE: 0.16,
    EXCHANGE: 0.18,
    TIER: 0.08,
    DECISION: 0.25,
}
"""Kinds of changes, and how often each is drawn if none has paid."""
ALONE, SOME, ALL = "alone", "some", "all"
_SCOPES = {ALONE: 0.6, SOME: 0.2, ALL: 0.2}
"""Of how many of the tensors that are alike, and how often."""
_EVEN = 1.5
"""The weight of these shares beside those of what has paid, which is 1."""
_FORGET, _DAMPING = 0.97, 2
"""What a kind keeps of its record at each trial, and the whole runs that are added to what it has
spent.
"""
_REACHES = (2, 6, 20, 60, 200)
"""Ops before a stall within which something is moved."""
_SMALLEST = 200
"""Tensors of less than such a part of the largest are not given absences."""
_TIMES = (0, 0, 1, 2, 4)
"""How many transfers fit in between the return and the use of what is elsewhere now; 0: that is not
what says when it returns.
"""
_DRAWS = 8
"""The number of tensors that are drawn to find one that can leave."""


class StallMoves:
    """Draws changes of the simulator's choices; :meth:`look` has to be called before, and again
    when these have changed.
    """

    def __init__(self, simulator: PlanSimulator, rng: Random, whole: int) -> None:
        self._simulator, self._rng, self._whole = simulator, rng, max(1, whole)
        problem = self._problem = simulator.problem
        graph = self._graph = problem.graph
        self._tiers = simulator.tiers
        self._count = len(graph.ops)
        self.decisions = ChoiceMoves(problem, simulator.tiers)
        """The changes of single decisions."""
        self._gaps = self.decisions.gaps
        self._gap = {(gap.tensor, gap.after): gap for gaps in self._gaps.values() for gap in gaps}
        self._sizes = [tensor.size_bytes for tensor in graph.tensors]
        moved = [t for t in sorted(self._gaps) if self._sizes[t]]
        alike: dict[object, list[int]] = {}
        for t in moved:
            alike.setdefault(
                (self._sizes[t], graph.tensors[t].kind, len(graph.users[t])), []
            ).append(t)
        self._among = {
            t: (group, place) for group in alike.values() for place, t in enumerate(group)
        }
        largest = max([self._sizes[t] for t in moved], default=0)
        self._up = {tier.name: tier.up.bandwidth_bytes_per_s for tier in problem.below}
        for name in sorted(
            {*problem.starts_below.values()} - self._up.keys()
        ):  # nothing goes down to these
            slowest = slowest_hop(problem.hardware, name, problem.hardware.device_tier, largest)
            if slowest is not None:
                self._up[name] = slowest.bandwidth_bytes_per_s
        self._starts = list(accumulate(problem.start_ns, max))
        self._large = (
            [t for t in moved if self._sizes[t] * _SMALLEST >= largest] if self._tiers else []
        )
        self._arms = [(kind, scope) for kind in _KINDS for scope in _SCOPES]
        self._gained = dict.fromkeys(self._arms, 0.0)
        self._spent = dict.fromkeys(self._arms, 0.0)
        self._paid = dict.fromkeys(self._arms, 0.0)
        self._even = list(
            accumulate([_EVEN * _KINDS[kind] * _SCOPES[scope] for kind, scope in self._arms])
        )
        self._arm = self._arms[0]
        self._stalls: Sequence[tuple[int, int, int]] = ()
        self._sums: Sequence[int] = ()
        self._places: Sequence[tuple[int, int, int]] = ()
        """Where something is issued: the op after which it is, the tensor, and the op that its gap
        comes after.
        """
        self._lines: Queues | None = None
        self._idle = self._tiers[0] if self._tiers else ""
        """The tier whose channel up is busy for the least time."""

    @property
    def some(self) -> bool:
        """Return whether anything can be moved."""
        return bool(self._gap)

    # -- where
    # ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in where ops of the present choices wait, and what is issued where."""
        self._stalls = [stall for stall in self._simulator.stalls() if stall[2] != ORDER]
        if self._simulator.cost[
            0
        ]:  # it does not end: the last ones are the nearest to where it stands still
            self._stalls = self._stalls[-1:]
        self._sums = list(accumulate([ns for _, ns, _ in self._stalls]))
        places = []
        busy = dict.fromkeys(self._tiers, 0.0)
        for t, choice in self._simulator.choices.items():
            for after, back in choice.away.items():
                if (t, after) not in self._gap:
                    continue
                if back is not None:
                    places.append((back, t, after))
                    tier = self._problem.starts_below.get(t, choice.tier(after))
                    if tier in busy:
                        busy[tier] += self._sizes[t] / self._up[tier]
                if choice.start != BELOW or after != AT_START:
                    places.append((choice.stores.get(after, after), t, after))
            saved = self.decisions.saved_after(t, choice)
            if saved is not None and choice.away and (t, min(choice.away)) in self._gap:
                places.append((saved, t, min(choice.away)))
        self._places = sorted(places)
        self._idle = min(busy, key=lambda tier: busy[tier], default="")
        self._lines = None

    def anywhere(self) -> None:
        """Forget the stalls until the next look."""
        self._stalls = ()

    def learn(self, gain: float, work: int) -> None:
        """Note what the last change saved, as a part of the time, and the work of judging it."""
        arm = self._arm
        self._gained[arm] = self._gained[arm] * _FORGET + gain
        self._spent[arm] = self._spent[arm] * _FORGET + work
        self._paid[arm] = self._gained[arm] / (self._spent[arm] + _DAMPING * self._whole)

    def _focus(self) -> tuple[int, int]:
        """An op, and the tensor that it waits for (below 0: none)."""
        if self._stalls and self._rng.random() < 0.8:
            op, _, blamed = self._stalls[
                bisect_left(self._sums, self._rng.random() * self._sums[-1])
            ]
            return min(op, self._count - 1), blamed
        return int(self._rng.random() * self._count), -1

    def _near(self, op: int, reach: int) -> Sequence[tuple[int, int, int]]:
        first = bisect_left(self._places, (op - reach,))
        return self._places[first : bisect_left(self._places, (op + reach // 4 + 1,))]

    def _chosen(self, op: int, blamed: int, reach: int) -> tuple[int, int] | None:
        """A tensor and the op that one of its absences comes after."""
        choice = self._simulator.choices.get(blamed)
        if choice is not None and self._rng.random() < 0.4:
            before = [after for after in choice.away if after < op and (blamed, after) in self._gap]
            if before:
                return blamed, max(before)
        near = self._near(op, reach)
        if not near:
            return None
        _, t, after = drawn(self._rng, near)
        choice = self._simulator.choices.get(t)
        return (t, after) if choice is not None and after in choice.away else None

    def _scope(self, t: int) -> Sequence[int]:
        """The tensors alike, all or some next to each other."""
        group, place = self._among.get(t, ((t,), 0))
        if self._arm[1] == ALL:
            return group
        reach = drawn(self._rng, (1, 2, 4))
        return group[max(0, place - reach) : place + reach + 1]

    def _same_gaps(self, gap: Gap) -> Iterator[tuple[Gap, TensorChoice | None]]:
        """The gaps of this number of the tensors in scope, with their choices."""
        if self._arm[1] == ALONE:
            yield gap, self._simulator.choices.get(gap.tensor)
            return
        number = self._gaps[gap.tensor].index(gap)
        for t in self._scope(gap.tensor):
            gaps = self._gaps[t]
            if number < len(gaps):
                yield gaps[number], self._simulator.choices.get(t)

    # -- what
    # ----------------------------------------------------------------------------------------------

    def draw(self) -> Changes:
        """A change; none if what was drawn cannot be changed."""
        rng = self._rng
        self._arm = self._next_arm()
        kind = self._arm[0]
        op, blamed = self._focus()
        reach = drawn(rng, _REACHES)
        if kind == SHIFT_ALL:
            return self._shift_all(op, reach)
        if kind == GIVE:
            return self._give(op)
        chosen = self._chosen(op, blamed, reach)
        if chosen is None:
            return {}
        gap = self._gap[chosen]
        if kind == DECISION:
            over = self._over(op)
            if over is not None and rng.random() < 0.5:
                gap, over = over, gap
            return self.decisions.random(
                rng, self._simulator.choices, gap, [over] if over is not None else [], self._queues
            )
        if kind == SHIFT:
            return self._shift(gap, self._distance())
        if kind == STORE:
            return self._store(gap, self._distance())
        if kind == TAKE:
            return self._take(gap)
        if kind == TIER:
            return self._other_tier(gap)
        return self._exchange(gap, op)

    def _next_arm(self) -> tuple[str, str]:
        """A kind and a scope, by the even shares or by what has paid."""
        even, total = self._even[-1], sum(self._paid.values())
        share = self._rng.random() * (even + (total > 0))
        if share < even:
            return self._arms[bisect_right(self._even, share)]
        sums = list(accumulate(self._paid.values()))
        return self._arms[min(bisect_right(sums, (share - even) * total), len(sums) - 1)]

    def _queues(self) -> Queues:
        """The queues of the choices, as of the first time that they are asked for after a look."""
        if self._lines is None:
            self._lines = self.decisions.queues(self._simulator.choices)
        return self._lines

    def _over(self, op: int) -> Gap | None:
        """A gap around an op of a tensor that is drawn; none if those drawn have none."""
        for _ in range(_DRAWS if self._large else 0):
            gap = self._around(drawn(self._rng, self._large), op)
            if gap is not None:
                return gap
        return None

    def _around(self, t: int, op: int) -> Gap | None:
        """The gap of a tensor around an op."""
        for gap in self._gaps[t]:
            if gap.after <= op < gap.before:
                return gap
        return None

    def _distance(self) -> int:
        rng = self._rng
        far = 1 if rng.random() < 0.4 else int(2 ** (rng.random() * 7))
        return far if rng.random() < 0.45 else -far

    def _shift(self, gap: Gap, by: int) -> Changes:
        """Returns issued so many ops later."""
        found = {
            own.tensor: self.decisions.shifted(own.tensor, choice, own, by, store=False)
            for own, choice in self._same_gaps(gap)
        }
        return {t: shifted for t, shifted in found.items() if shifted is not None}

    def _shift_all(self, op: int, reach: int) -> Changes:
        """All returns around an op issued so many ops later."""
        by, changes = self._distance(), dict[int, TensorChoice | None]()
        for _, t, after in self._near(op, reach):
            choice = changes.get(t) or self._simulator.choices.get(t)
            shifted = self.decisions.shifted(t, choice, self._gap[t, after], by, store=False)
            if shifted is not None:
                changes[t] = shifted
        return changes

    def _store(self, gap: Gap, by: int) -> Changes:
        """Stores issued so many ops later: before an absence, or those that save for the end what
        the step has written.
        """
        decisions, changes = self.decisions, dict[int, TensorChoice | None]()
        at_end = self._rng.random() < 0.5
        for own, choice in self._same_gaps(gap):
            if choice is None or own.after not in choice.away:
                continue
            starts_below = choice.start == BELOW and own.after == AT_START
            saves = (starts_below or at_end) and decisions.saved_after(
                own.tensor, choice
            ) is not None
            shifted = decisions.shifted(own.tensor, choice, None if saves else own, by, store=True)
            if shifted is not None:
                changes[own.tensor] = shifted
        return changes

    def _take(self, gap: Gap) -> Changes:
        """Absences taken away: what started below starts up, with or without a copy below."""
        start = drawn(self._rng, (HOME, COPY))
        changes: dict[int, TensorChoice | None] = {}
        for own, choice in self._same_gaps(gap):
            if choice is None or own.after not in choice.away:
                continue
            if own.after != AT_START:
                changes[own.tensor] = kept(self._problem, own.tensor, choice.without(own.after))
            elif own.tensor not in self._problem.starts_below:
                up = choice.without(own.after)._replace(start=start)
                changes[own.tensor] = kept(self._problem, own.tensor, up)
        return changes

    def _other_tier(self, gap: Gap) -> Changes:
        """Another tier below for those in scope that have the same: for all their absences, or for
        one that may return in time.
        """
        rng, tier = self._rng, self._simulator.choices[gap.tensor].tier(gap.after)
        others = [other for other in self._tiers if other != tier]
        if not others:
            return {}
        other, one, times = drawn(rng, others), rng.random() < 0.5, drawn(rng, _TIMES)
        changes: dict[int, TensorChoice | None] = {}
        for own, choice in self._same_gaps(gap):
            if (
                choice is None
                or own.tensor in self._problem.starts_below
                or own.after not in choice.away
                or choice.tier(own.after) != tier
            ):
                continue
            moved = choice.with_tier(own.after, other) if one else choice.below_in(other)
            back = choice.away[own.after]
            if times and back is not None:
                moved = moved.with_return(own.after, self._in_time(own, other, times))
            changes[own.tensor] = moved
        return changes

    def _in_time(self, gap: Gap, tier: str, times: float) -> int:
        """The op after which a tensor has to return from a tier that so many transfers fit in
        before it is used.
        """
        horizon = self._problem.horizon_ns
        stretch = max(1.0, self._simulator.cost[1] / horizon) if horizon else 1.0
        ns = times * self._sizes[gap.tensor] * 1e9 / self._up[tier]
        used = self._starts[gap.before] if gap.before < self._count else horizon
        return within(bisect_left(self._starts, used - ns / stretch) - 1, gap)

    def _exchange(self, gap: Gap, op: int) -> Changes:
        """A tensor stays, and another one of about its size leaves: where most is held meanwhile,
        or near the stall.
        """
        taken = self._take(gap)
        if not taken:
            return {}
        back = self._simulator.choices[gap.tensor].away.get(gap.after)
        if self._rng.random() < 0.7:
            at = self._simulator.fullest(gap.after, gap.before if back is None else back)
        else:
            at = op
        return {**self._give(at, self._sizes[gap.tensor], taken), **taken}

    def _give(self, op: int, size: int | None = None, but: Collection[int] = ()) -> Changes:
        """A tensor that lies in the device tier unused around an op leaves, of about the ``size``
        if that is given.
        """
        rng = self._rng
        for _ in range(_DRAWS if self._large else 0):
            t = drawn(rng, self._large)
            if t in but or (size is not None and not size // 2 <= self._sizes[t] <= size * 4):
                continue
            gap = self._around(t, op)
            if gap is None or self._away(gap):
                continue
            ahead, times = drawn(rng, (0.0, 0.3, 0.7, 1.0)) * rng.random(), drawn(rng, _TIMES)
            below = drawn(rng, [self._tiers[0], self._idle, *self._tiers])
            clean = rng.random() < 0.7
            changes: dict[int, TensorChoice | None] = {}
            for own, choice in self._same_gaps(gap):
                if own.tensor not in but and not self._away(own):
                    left = self._left(
                        own,
                        choice or TensorChoice(self._problem.starts_below.get(own.tensor, below)),
                        ahead,
                        clean=clean,
                    )
                    if times and left.away[own.after] is not None:
                        left = left.with_return(
                            own.after, self._in_time(own, left.tier(own.after), times)
                        )
                    changes[own.tensor] = left
            if changes:
                return changes
        return {}

    def _away(self, gap: Gap) -> bool:
        choice = self._simulator.choices.get(gap.tensor)
        return choice is not None and gap.after in choice.away

    def _left(self, gap: Gap, choice: TensorChoice, ahead: float, *, clean: bool) -> TensorChoice:
        """The choice with one more absence, whose return is the part ``ahead`` of the gap before
        its end.

        If ``clean`` a copy below at time 0 saves the store, where it may be there.
        """
        t = gap.tensor
        free = bool(self._graph.tensors[t].persistent) and t not in self._problem.starts_below
        back = (
            max(gap.after, gap.before - 1 - int(ahead * (gap.before - 1 - gap.after)))
            if gap.returns
            else None
        )
        written = bool(self._graph.writers[t])
        if free and gap.after == AT_START and (clean or not written):
            choice = choice.without(max(self._graph.users[t], default=AT_START))._replace(
                start=BELOW
            )
        elif free and gap.after == AT_START:
            choice = choice._replace(start=HOME)
        elif choice.start == BELOW and gap.before == self._count:
            choice = choice.without(AT_START)._replace(start=COPY if clean or not written else HOME)
        elif free and choice.start == HOME and gap.version == 0 and clean:
            choice = choice._replace(start=COPY)
        return choice.with_return(gap.after, back)
