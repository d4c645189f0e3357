"""The call that launched each op, by the arrows of a trace (``ac2g`` flow events), where it has no
correlation numbers.

An arrow has an id, and begins (``s``) and ends (``f``) at a place: a process, a thread and a time,
which lies in the entry that is meant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

_Entry = tuple[int, Mapping[str, Any], str]
"""Where an entry stands in a trace, the entry, and what it is to the reader."""


def flow_ids(kept: Sequence[_Entry], listed: Iterable[object]) -> Mapping[int, int]:
    """The number of the arrow at each call and op, by its place in the trace; nothing if any op has
    a correlation of its own.
    """
    ops = [entry for entry in kept if entry[2] == "op"]
    if any(isinstance(raw.get("args"), dict) and "correlation" in raw["args"] for _, raw, _ in ops):
        return {}
    arrows = [
        raw
        for raw in listed
        if isinstance(raw, dict) and raw.get("cat") == "ac2g" and type(raw.get("id")) is int
    ]
    begins = _at(
        _Places(entry for entry in kept if entry[2] == "call"),
        (raw for raw in arrows if raw.get("ph") == "s"),
    )
    ends = _at(_Places(ops), (raw for raw in arrows if raw.get("ph") == "f"))
    both = {number for number, _, _ in begins} & {
        number for number, _, _ in ends
    }  # a launched graph has one begin and many ends
    # an arrow at the very start of an entry is its own; one that lies within may be that of a short
    # one beside it
    return {
        position: number
        for number, position, _ in sorted((*begins, *ends), key=itemgetter(2))
        if number in both
    }


class _Places:
    """Entries by process and thread, in order of time."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._by_thread: defaultdict[tuple[str, str], list[tuple[Any, Any, int]]] = defaultdict(
            list
        )
        for position, raw, _ in entries:
            if (time := _time(raw, "ts")) is not None and (
                duration := _time(raw, "dur")
            ) is not None:
                self._by_thread[_thread(raw)].append((time, time + duration, position))
        for found in self._by_thread.values():
            found.sort()

    def covering(self, raw: Mapping[str, Any]) -> tuple[int, bool] | None:
        """Return the position of the last entry that begins on the arrow's thread before its time
        and ends after it, and whether it begins then.
        """
        found, time = self._by_thread.get(_thread(raw), []), _time(raw, "ts")
        at = 0 if time is None else bisect_right(found, time, key=itemgetter(0))
        return (
            (found[at - 1][2], found[at - 1][0] == time)
            if at and time <= found[at - 1][1]
            else None
        )


def _at(places: _Places, arrows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, bool]]:
    """The id of each arrow, where its entry stands, and whether the entry begins there."""
    found = ((raw["id"], places.covering(raw)) for raw in arrows)
    return [(number, *place) for number, place in found if place is not None]


def _thread(raw: Mapping[str, Any]) -> tuple[str, str]:
    return str(raw.get("pid")), str(raw.get("tid"))


def _time(raw: Mapping[str, Any], key: str) -> Any:
    """A number of microseconds; None for anything else."""
    value = raw.get(key)
    return (
        None
        if isinstance(value, bool) or value is None or isinstance(value, str | list | dict)
        else value
    )
