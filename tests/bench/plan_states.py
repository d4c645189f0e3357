"""A plan's cache ops by tensor, as the random search changes them: what is issued after which op,
and how long a tensor stays below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan


class Entry(NamedTuple):
    """A cache op of a tensor: the op that it is issued after, its rank among those issued then,
    what it does, from where and to where.
    """

    after: int
    rank: float
    op: str
    source: str
    destination: str | None


Entries = tuple[Entry, ...]


@dataclass(frozen=True)
class State:
    """The cache ops of each tensor that has some, in order, and where tensors lie at time 0."""

    entries: Mapping[int, Entries]
    initial: Mapping[int, tuple[str, ...]]

    def changed(
        self, entries: Mapping[int, Entries], initial: Mapping[int, tuple[str, ...]]
    ) -> State:
        """With other entries, or another initial residency, of some tensors."""
        merged = {t: listed for t, listed in {**self.entries, **entries}.items() if listed}
        return State(merged, {**self.initial, **initial} if initial else self.initial)


def state_of(plan: Plan) -> State:
    """A plan's cache ops by tensor; ranks are places in the plan."""
    entries: dict[int, list[Entry]] = {}
    order = sorted(range(len(plan.cache_ops)), key=lambda c: (plan.cache_ops[c].after, c))
    for c in order:
        x = plan.cache_ops[c]
        entries.setdefault(x.tensor, []).append(
            Entry(x.after, float(c), x.op, x.source, x.destination)
        )
    return State({t: tuple(listed) for t, listed in entries.items()}, dict(plan.initial))


def plan_of(state: State, plan: Plan) -> Plan:
    """The plan of a state: those of one tensor issued after the same op keep their order."""
    listed = [
        (entry.after, entry.rank, place, t, entry)
        for t, own in state.entries.items()
        for place, entry in enumerate(own)
    ]
    listed.sort()
    cache_ops = tuple(
        CacheOp(entry.op, t, entry.source, entry.destination, entry.after)
        for _, _, _, t, entry in listed
    )
    return replace(plan, cache_ops=cache_ops, initial=state.initial, judgement=None)


def stays(listed: Entries) -> Iterator[tuple[int | None, int | None]]:
    """Stays below, as places of the detach and of the prefetch that ends it; None where the step
    begins or ends.
    """
    away: int | None = None
    below = bool(listed) and next((e.op for e in listed if e.op != STORE), "") == PREFETCH
    for k, entry in enumerate(listed):
        if entry.op == PREFETCH and (below or away is not None):
            yield away, k
            away, below = None, False
        elif entry.op == DETACH:
            away = k
    if away is not None:
        yield away, None


def ranked(listed: Sequence[Entry]) -> Entries:
    """None is issued before the one ahead of it: later ones move, and ranks rise among those issued
    after the same op.
    """
    out: list[Entry] = []
    for entry in listed:
        if out and entry.after < out[-1].after:
            entry = entry._replace(after=out[-1].after)
        if out and entry.after == out[-1].after and entry.rank < out[-1].rank:
            entry = entry._replace(rank=out[-1].rank)
        out.append(entry)
    return tuple(out)


def renamed_tier(listed: Entries, one: str, other: str) -> Entries:
    def renamed(tier: str | None) -> str | None:
        return other if tier == one else tier

    return tuple(
        entry._replace(source=renamed(entry.source) or "", destination=renamed(entry.destination))
        for entry in listed
    )
