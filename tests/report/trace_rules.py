"""The rules of the Trace Event Format (JSON), checked from its description; shares nothing with
what writes traces.
"""

from collections import defaultdict
from fractions import Fraction
from typing import Any

REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid"},
}
METADATA = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def nanoseconds(value: Any) -> int:
    """What a reader makes of microseconds: the same whether it rounds or cuts off."""
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    assert int(value * 1000) == round(value * 1000)
    assert abs(Fraction(value) * 1000 - int(value * 1000)) < Fraction(1, 2)
    return int(value * 1000)


def check(document: Any) -> None:
    """Fail where a reader would drop something or show it elsewhere."""
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    slices, counters = defaultdict(list), defaultdict(list)
    flows: dict[Any, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    named: dict[str, set[Any]] = defaultdict(set)
    for event in document["traceEvents"]:
        phase = event["ph"]
        assert phase in REQUIRED, phase
        assert event.keys() >= REQUIRED[phase], event
        assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event)
        assert isinstance(event["name"], str)
        assert event["name"]
        if phase == "M":
            assert event["args"].keys() == {METADATA[event["name"]]}
            track = (
                (event["pid"], event["tid"]) if event["name"].startswith("thread") else event["pid"]
            )
            assert track not in named[event["name"]]
            named[event["name"]].add(track)
            continue
        now = nanoseconds(event["ts"])
        assert now >= 0
        track = event["pid"], event.get("tid")
        if phase == "X":
            assert nanoseconds(event["dur"]) >= 0
            slices[track].append((now, now + nanoseconds(event["dur"])))
        elif phase == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
            counters[event["pid"], event["name"]].append(now)
        else:
            flows[event["cat"], event["name"], event["id"]][phase].append(
                (now, track, event.get("bp"))
            )
    for track, bars in slices.items():
        assert track in named["thread_name"]
        assert track[0] in named["process_name"]
        assert bars == sorted(bars, key=lambda bar: bar[0])
        open_until: list[int] = []
        for start, end in bars:  # a slice begins after those before it, or inside them
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    for (pid, _), times in counters.items():
        assert pid in named["process_name"]
        assert times == sorted(set(times))
    ids = [number for _, _, number in flows]
    assert len(ids) == len(set(ids))
    for ends in flows.values():
        assert (len(ends["s"]), len(ends["f"])) == (1, 1)
        began, from_track, _ = ends["s"][0]
        ended, to_track, bound = ends["f"][0]
        assert began <= ended
        assert any(start <= began < end for start, end in slices[from_track])
        assert bound == "e"  # to the slice around this instant, not to the next
        assert any(start <= ended < end for start, end in slices[to_track])
