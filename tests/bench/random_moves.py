"""Changes of a plan that a random search tries; they know nothing of the planner.

A change shifts cache ops to earlier or later ops; takes a tensor's stay below away, or gives it one
more, or another tier; or has a persistent tensor begin the step elsewhere, unless the workload puts
it below. It is made to one tensor, to those alike (the same sizes, kinds and numbers of users, as
the layers of a network have), or to all that moves in a window of ops; more often than not near a
stall of the last replay, and of the kinds that saved time lately. Whether it is legal is for the
verifier.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from random import Random

from plan_states import Entries, Entry, State, ranked, renamed_tier, stays

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import Result

Move = tuple[dict[int, Entries], dict[int, tuple[str, ...]]]


KINDS = {
    "shift": 0.34,
    "shift all": 0.06,
    "take": 0.18,
    "give": 0.16,
    "exchange": 0.18,
    "as started": 0.04,
    "other tier": 0.04,
}
"""Kinds of changes, and how often each is tried."""
WIDTHS = {"alone": 0.6, "some": 0.2, "all": 0.2}
"""Of how many of the tensors that are alike, and how often."""


class Moves:
    """Draws changes of a state, near the stalls of the replay that it has looked at."""

    def __init__(self, graph: Graph, hardware: Hardware, draw: Random) -> None:
        self.graph, self.draw, self.device = graph, draw, hardware.device_tier
        self.last = len(graph.ops) - 1
        self.below = [tier.name for tier in hardware.tiers if tier.name != self.device]
        self.users = graph.users
        self.free = {
            t
            for t, tensor in enumerate(graph.tensors)
            if tensor.persistent and tensor.home in (None, self.device)
        }
        self.used = [
            t for t in range(len(graph.tensors)) if self.users[t] and graph.tensors[t].size_bytes
        ]
        alike: dict[object, list[int]] = {}
        for t in self.used:
            tensor = graph.tensors[t]
            alike.setdefault((tensor.size_bytes, tensor.kind, len(self.users[t])), []).append(t)
        self.alike = {t: group for group in alike.values() for t in group}
        largest = max((graph.tensors[t].size_bytes for t in self.used), default=0)
        self.large = [
            t for t in self.used if graph.tensors[t].size_bytes * 200 >= largest
        ] or self.used
        self.arms = [(kind, scope) for kind in KINDS for scope in WIDTHS]
        self.paid = dict.fromkeys(self.arms, 0.0)
        self.arm = self.arms[0]
        self.stalls: list[tuple[float, int, int | None]] = []
        self.transfers: list[tuple[int, int]] = []
        self.starts: dict[tuple[int, int], int] = {}

    # -- where
    # ----------------------------------------------------------------------------------------------

    def look(self, result: Result, state: State) -> None:
        """Takes in where a replay waits, and when transfers of it start."""
        timeline = result.timeline
        assert timeline is not None
        total = 0.0
        self.stalls = []
        for stall in timeline.stalls:
            if stall.cause != "dependency":
                total += stall.stall_ns
                tensor = (
                    None if stall.transfer is None else timeline.transfers[stall.transfer].tensor
                )
                self.stalls.append((total, stall.op, tensor))
        ends = timeline.op_end_ns
        order = sorted(range(len(ends)), key=lambda i: ends[i])
        times = [ends[i] for i in order]
        self.transfers = sorted(
            (bisect_right(times, x.start_ns) - 1, x.tensor) for x in timeline.transfers
        )
        self.starts = {}
        count: dict[int, int] = {}
        for x in sorted(timeline.transfers, key=lambda x: (x.cache_op, x.start_ns)):
            k = count.get(x.tensor, 0)
            count[x.tensor] = k + 1
            place = bisect_right(times, x.start_ns) - 1
            self.starts[x.tensor, k] = order[place] if place >= 0 else AT_START
        del state

    def anywhere(self) -> None:
        """Forgets the stalls for a while."""
        self.stalls = []

    def _focus(self) -> tuple[int, int | None]:
        """An op, and a tensor that it waits for."""
        if self.stalls and self.draw.random() < 0.8:
            at = bisect_left(self.stalls, (self.draw.random() * self.stalls[-1][0],))
            return self.stalls[min(at, len(self.stalls) - 1)][1:]
        return self.draw.randint(0, self.last), None

    def _moved(self, state: State, op: int, width: int) -> list[int]:
        """Tensors with transfers that start up to ``width`` ops before an op, or a little after
        it.
        """
        lo = bisect_left(self.transfers, (op - width,))
        hi = bisect_right(self.transfers, (op + width // 4, len(self.users)))
        return [t for _, t in self.transfers[lo:hi] if t in state.entries]

    def _scope(self, t: int) -> list[int]:
        """A tensor alone, or those alike, all or some next to each other."""
        group = self.alike.get(t, [t])
        if self.arm[1] == "alone" or len(group) == 1:
            return [t]
        if self.arm[1] == "all":
            return group
        at, reach = group.index(t), self.draw.choice((1, 2, 4))
        return group[max(0, at - reach) : at + reach + 1]

    # -- what
    # ----------------------------------------------------------------------------------------------

    def draw_move(self, state: State) -> Move | None:
        """A change, as what is different of some tensors; of kinds and scopes that paid lately more
        often.
        """
        paid = sum(self.paid.values())
        weights = [
            share * WIDTHS[scope] * 0.5 + (self.paid[kind, scope] / paid if paid else 0.0)
            for kind, share in KINDS.items()
            for scope in WIDTHS
        ]
        (self.arm,) = self.draw.choices(self.arms, weights)
        op, tensor = self._focus()
        width = self.draw.choice((2, 6, 20, 60, 200))
        match self.arm[0]:
            case "shift":
                return self._shift(state, op, tensor, width)
            case "shift all":
                return self._shift_window(state, op, width)
            case "take":
                return self._take(state, self._chosen(state, op, tensor, width))
            case "give":
                return self._give(state, op)
            case "exchange":
                return self._exchange(state, op, tensor, width)
            case "as started":
                return self._as_started(state, op, width)
        return self._other_tier(state, op, tensor, width)

    def learn(self, saved: float) -> None:
        """Notes what the last change saved."""
        for arm in self.arms:
            self.paid[arm] *= 0.995
        self.paid[self.arm] += saved

    def _chosen(self, state: State, op: int, tensor: int | None, width: int) -> int | None:
        if tensor is not None and tensor in state.entries and self.draw.random() < 0.4:
            return tensor
        near = self._moved(state, op, width)
        return self.draw.choice(near) if near else None

    def _shift(self, state: State, op: int, tensor: int | None, width: int) -> Move | None:
        t = self._chosen(state, op, tensor, width)
        if t is None:
            return None
        own = state.entries[t]
        near = [k for k, entry in enumerate(own) if abs(entry.after - op) <= 2 * width] or list(
            range(len(own))
        )
        k = self.draw.choice(near)
        by = self._distance()
        changed: dict[int, Entries] = {}
        for other in self._scope(t):
            listed = state.entries.get(other, ())
            if k < len(listed) and listed[k].op == own[k].op:
                changed[other] = self._with(listed, k, listed[k].after + by)
        return changed, {}

    def _distance(self) -> int:
        size = 1 if self.draw.random() < 0.4 else int(2 ** (self.draw.random() * 7))
        return size if self.draw.random() < 0.45 else -size

    def _with(self, listed: Entries, k: int, after: int) -> Entries:
        """An entry issued elsewhere; those of the tensor keep their order."""
        after = max(AT_START, min(self.last, after))
        out = list(listed)
        out[k] = listed[k]._replace(after=after, rank=self._rank())
        for i in range(k - 1, -1, -1):
            if out[i].after > after:
                out[i] = out[i]._replace(after=after)
        for i in range(k + 1, len(out)):
            if out[i].after < after:
                out[i] = out[i]._replace(after=after)
        return ranked(out)

    def _rank(self) -> float:
        return self.draw.choice((-1e9, 1e9)) + self.draw.random() * 1e6

    def _shift_window(self, state: State, op: int, width: int) -> Move:
        """All prefetches, or all stores and detaches, of a window, by the same."""
        by = self._distance()
        kinds = self.draw.choice(((PREFETCH,), (STORE,), (DETACH,), (STORE, DETACH)))
        changed = {}
        for t in set(self._moved(state, op, width)):
            listed = state.entries[t]
            for k, entry in enumerate(listed):
                if entry.op in kinds and abs(entry.after - op) <= width:
                    listed = self._with(listed, k, entry.after + by)
            changed[t] = listed
        return changed, {}

    def _as_started(self, state: State, op: int, width: int) -> Move:
        """Transfers of a window are issued when they started: what waits in a queue keeps nobody
        behind it from going first.
        """
        changed = {}
        for t in set(self._moved(state, op, 3 * width)):
            listed, k = state.entries[t], 0
            for i, entry in enumerate(listed):
                if entry.op != DETACH:
                    at = self.starts.get((t, k))
                    k += 1
                    if at is not None and at > entry.after:
                        listed = self._with(listed, i, at)
            changed[t] = listed
        return changed, {}

    def _other_tier(self, state: State, op: int, tensor: int | None, width: int) -> Move | None:
        """A stay below, in another tier."""
        t = self._chosen(state, op, tensor, width)
        if t is None or len(self.below) < 2:
            return None
        one = self.draw.choice(
            sorted(
                {
                    tier
                    for e in state.entries[t]
                    for tier in (e.source, e.destination)
                    if tier not in (None, self.device)
                }
            )
        )
        other = self.draw.choice([tier for tier in self.below if tier != one])
        return {
            x: renamed_tier(state.entries[x], one, other)
            for x in self._scope(t)
            if x in state.entries
        }, {
            x: tuple(other if tier == one else tier for tier in state.initial[x])
            for x in self._scope(t)
            if x in state.initial and x in self.free
        }

    # -- stays below
    # ----------------------------------------------------------------------------------------------

    def _take(self, state: State, t: int | None) -> Move | None:
        """A stay below goes: its detach and prefetch, and perhaps the store before it."""
        if t is None:
            return None
        with_store = self.draw.random() < 0.5
        pick = self.draw.random()
        entries: dict[int, Entries] = {}
        initial: dict[int, tuple[str, ...]] = {}
        for x in self._scope(t):
            found = [
                stay
                for stay in stays(state.entries.get(x, ()))
                if x in self.free or None not in stay
            ]
            if found:
                first, last = found[int(pick * len(found))]
                entries[x], change = self._without(state, x, first, last, with_store=with_store)
                initial |= change
        return (entries, initial) if entries else None

    def _without(
        self, state: State, t: int, first: int | None, last: int | None, *, with_store: bool
    ) -> tuple[Entries, dict[int, tuple[str, ...]]]:
        listed = state.entries[t]
        gone = {k for k in (first, last) if k is not None}
        if with_store and first and listed[first - 1].op == STORE:
            gone.add(first - 1)
        kept = tuple(entry for k, entry in enumerate(listed) if k not in gone)
        if first is not None and last is not None:
            return kept, {}
        # it began the step below, or ended it there: now it does neither
        ends = {
            k
            for f, e in stays(listed)
            for k in (f, e)
            if k is not None and (f is None or e is None)
        }
        kept = tuple(
            entry
            for k, entry in enumerate(listed)
            if k not in ends | (gone if with_store else set())
        )
        both = (self.device, *(tier for tier in state.initial.get(t, ()) if tier != self.device))
        return kept, {t: both if self.draw.random() < 0.5 else (self.device,)}

    def _give(self, state: State, op: int, size: int | None = None) -> Move | None:
        """A tensor that lies in the device tier unused around an op goes below for that time."""
        for _ in range(8 if self.large and self.below else 0):
            t = self.draw.choice(self.large)
            if size is not None and not size // 2 <= self.graph.tensors[t].size_bytes <= size * 4:
                continue
            gap = self._gap(state, t, op)
            if gap is None:
                continue
            ahead = self.draw.choice((0.0, 0.3, 0.7, 1.0))
            entries: dict[int, Entries] = {}
            initial: dict[int, tuple[str, ...]] = {}
            store = self.draw.random() < 0.6
            where = self.draw.choice([*[self.below[0]] * 3, *self.below])
            for x in self._scope(t):
                own = self._gap_of(state, x, gap)
                if own is not None:
                    entries[x], change = self._with_stay(state, x, own, ahead, where, store=store)
                    initial |= change
            if entries:
                return entries, initial
        return None

    def _gap(self, state: State, t: int, op: int) -> int | None:
        """Which gap between users of a tensor an op lies in: 0 before the first and after the last,
        for those that survive the step.
        """
        users = self.users[t]
        k = bisect_left(users, op)
        if 0 < k < len(users):
            return k if users[k] - users[k - 1] > 2 else None
        return 0 if t in self.free else None

    def _gap_of(self, state: State, t: int, gap: int) -> int | None:
        """The gap of this number, if the tensor stays in the device tier there."""
        users, listed = self.users[t], state.entries.get(t, ())
        if gap == 0:
            return (
                0
                if t in self.free and self.device in state.initial.get(t, (self.device,))
                else None
            )
        if gap >= len(users):
            return None
        inside = [e for e in listed if users[gap - 1] <= e.after < users[gap] and e.op != STORE]
        return None if inside else gap

    def _with_stay(
        self, state: State, t: int, gap: int, ahead: float, where: str, *, store: bool
    ) -> tuple[Entries, dict[int, tuple[str, ...]]]:
        users, listed = self.users[t], list(state.entries.get(t, ()))
        if gap == 0:
            start = max(
                AT_START, users[0] - 1 - int(ahead * self.draw.randint(0, max(1, users[0])))
            )
            added = [Entry(start, self._rank(), PREFETCH, where, self.device)]
            ending = [Entry(users[-1], self._rank(), STORE, self.device, where)] if store else []
            ending.append(Entry(users[-1], self._rank(), DETACH, self.device, None))
            return ranked([*added, *listed, *ending]), {t: (where,)}
        before, after = users[gap - 1], users[gap]
        back = max(before, after - 1 - int(ahead * (after - 1 - before) * self.draw.random()))
        stay = [Entry(before, self._rank(), STORE, self.device, where)] if store else []
        stay += [
            Entry(before, self._rank(), DETACH, self.device, None),
            Entry(back, self._rank(), PREFETCH, where, self.device),
        ]
        place = sum(entry.after < before for entry in listed)
        return ranked([*listed[:place], *stay, *listed[place:]]), {}

    def _exchange(self, state: State, op: int, tensor: int | None, width: int) -> Move | None:
        """One tensor stays, another of about its size goes instead."""
        t = self._chosen(state, op, tensor, width)
        taken = self._take(state, t)
        if taken is None or t is None:
            return None
        at = op
        if self.draw.random() < 0.7:
            listed = state.entries[t]
            at = max(0, self.draw.choice(listed).after)
        given = self._give(state, at, self.graph.tensors[t].size_bytes)
        if given is None:
            return taken
        return {**given[0], **taken[0]}, {**given[1], **taken[1]}
