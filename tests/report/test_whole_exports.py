"""A replay written down by hand, as a trace and as a part of a page, with everything that these
hold.
"""

from dataclasses import replace
from typing import Any

import pytest
from page_data import data_of
from timelines import MIB, US, everything, machine, many_ops

from hosim import CacheOp, Graph, GraphBuilder, Plan
from hosim.report.drawn import Shown, widget
from hosim.report.timelines import Bar, joined, of_devices, row_limit, trace
from hosim.result import Residency, Result, Stall, Timeline, Transfer
from hosim.version import __version__


def small() -> tuple[Plan, Result]:
    """``f`` runs on ``main`` from 0 to 2 us, ``g`` on ``side`` from 5 to 9 us: it waits from 3 us
    on for ``w``, which comes by 4.5 us.
    """
    b = GraphBuilder("small")
    b.tensor("w", 3 * MIB, "parameter", home="ddr")
    b.tensor("a", 5 * MIB)
    b.op("f", "matmul", outputs=["a"], duration_ns=2 * US, stream="main")
    b.op("g", "norm", inputs=["w", "a"], duration_ns=4 * US, stream="side")
    b.op("h", "norm", inputs=["w", "a"], duration_ns=0, stream="main")
    stalls = (Stall(1, "transfer", 3 * US, 5 * US, 0), Stall(2, "dependency", 2 * US, 9 * US, None))
    transfers = (
        Transfer(0, 0, "h2d", 3 * MIB, 500, 1 * US, 4500, 250),
        Transfer(1, 1, "d2h", 5 * MIB, 2 * US, 2 * US, 6 * US, 0),
        Transfer(2, 0, "h2d", 0, 9 * US, 9 * US, 9 * US, 0),
    )
    held = (
        Residency(0, "hbm", 1 * US, 9 * US, 3 * MIB),
        Residency(1, "hbm", 0, 7 * US, 5 * MIB),
        Residency(0, "ddr", 0, 9 * US, 3 * MIB),
    )
    timeline = Timeline((0, 5 * US, 9 * US), (2 * US, 9 * US, 9 * US), stalls, transfers, held)
    _, result = everything()
    result = replace(
        result,
        workload="small",
        makespan_ns=10 * US,
        timeline=timeline,
        peak_bytes={"hbm": 8 * MIB},
        budget_bytes=16 * MIB,
    )
    ops = (
        CacheOp("prefetch", 0, "ddr", "hbm", -1),
        CacheOp("store", 1, "hbm", "ddr", 0),
        CacheOp("prefetch", 0, "ddr", "hbm", 1),
    )
    return Plan(b.build(), "by hand", ops), result


# ---- a trace


def group(pid: int, title: str) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": title}},
        {
            "ph": "M",
            "name": "process_sort_index",
            "pid": pid,
            "tid": 0,
            "args": {"sort_index": pid},
        },
    ]


def track(pid: int, tid: int, title: str) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}},
        {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": pid,
            "tid": tid,
            "args": {"sort_index": tid},
        },
    ]


def a_slice(
    name: str, category: str, ts: float, dur: float, pid: int, tid: int, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": ts,
        "dur": dur,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def counted(name: str, *points: tuple[float, int], pid: int) -> list[dict[str, Any]]:
    return [
        {"ph": "C", "name": name, "ts": ts, "pid": pid, "tid": 0, "args": {"bytes": held * MIB}}
        for ts, held in points
    ]


def events(first: int = 1, device: str = "") -> list[dict[str, Any]]:
    """Of :func:`small`, whose processes are numbered from ``first`` on."""
    streams, channels, memory = first, first + 1, first + 2
    need = {"name": "w", "cat": "needs", "id": first * 10**9}
    return [
        *group(streams, f"{device}streams"),
        *group(channels, f"{device}channels"),
        *group(memory, f"{device}memory"),
        *track(streams, 1, "main"),
        *track(streams, 2, "side"),
        *track(channels, 1, "d2h"),
        *track(channels, 2, "h2d"),
        a_slice("f", "op", 0, 2, streams, 1, kind="matmul", position=0),
        a_slice(
            "w",
            "transfer",
            1,
            3.5,
            channels,
            2,
            kind="parameter",
            bytes=3 * MIB,
            queue_ns=500,
            contention_ns=250,
            cache_op="prefetch",
        ),
        a_slice("dependency stall", "stall", 2, 7, streams, 1, cause="dependency", before="h"),
        a_slice(
            "a",
            "transfer",
            2,
            4,
            channels,
            1,
            kind="activation",
            bytes=5 * MIB,
            queue_ns=0,
            contention_ns=0,
            cache_op="store",
        ),
        a_slice(
            "transfer stall",
            "stall",
            3,
            2,
            streams,
            2,
            cause="transfer",
            before="g",
            awaits="w on h2d",
        ),
        a_slice("g", "op", 5, 4, streams, 2, kind="norm", position=1),
        a_slice("h", "op", 9, 0, streams, 1, kind="norm", position=2),
        a_slice(
            "w",
            "transfer",
            9,
            0,
            channels,
            2,
            kind="parameter",
            bytes=0,
            queue_ns=0,
            contention_ns=0,
            cache_op="prefetch",
        ),
        {"ph": "s", **need, "ts": 1, "pid": channels, "tid": 2},
        {"ph": "f", "bp": "e", **need, "ts": 5, "pid": streams, "tid": 2},
        *counted("hbm parameter", (0, 0), (1, 3), (9, 0), (10, 0), pid=memory),
        *counted("hbm activation", (0, 5), (7, 0), (10, 0), pid=memory),
        *counted("hbm in all", (0, 5), (1, 8), (7, 3), (9, 0), (10, 0), pid=memory),
        *counted("ddr parameter", (0, 3), (9, 0), (10, 0), pid=memory),
        *counted("ddr in all", (0, 3), (9, 0), (10, 0), pid=memory),
    ]


def test_a_trace_in_full() -> None:
    plan, result = small()
    assert trace(plan, machine(), result) == {
        "displayTimeUnit": "ns",
        "otherData": {
            "workload": "small",
            "hardware": "toy",
            "policy": "by hand",
            "budget_bytes": 16 * MIB,
            "makespan_ns": 10 * US,
            "error": None,
            "made_by": f"hosim {__version__}, a simulation",
        },
        "traceEvents": events(),
    }


def test_a_trace_of_two_devices_in_full() -> None:
    plan, result = small()
    assert result.timeline is not None
    other = replace(result, timeline=replace(result.timeline))
    both = replace(result, by_device=(result, other))
    assert [name for name, _ in of_devices(both)] == ["device 0", "device 1"]
    assert trace(plan, machine(), both)["traceEvents"] == events(1, "device 0: ") + events(
        4, "device 1: "
    )
    assert of_devices(replace(result, by_device=(result, result)))[0][0] == ""
    assert of_devices(replace(result, timeline=None)) == []


# ---- a page

STYLES = [
    ["op", "#404040", "", "named"],
    ["dependency stall", "#fff3b0", ".", "stall"],
    ["transfer stall", "#f4a582", "/", "stall"],
    ["capacity stall", "#92c5de", "\\", "stall"],
    ["runtime stall", "#b8e186", "x", "stall"],
    ["transfer", "#9e9e9e", "", "plain"],
]


def test_the_data_of_a_page_in_full() -> None:
    """Times are the gap before each bar and its length; what is 0 for an op, 1 to 4 for a stall and
    5 for a transfer.
    """
    plan, result = small()
    longer = replace(result, makespan_ns=12 * US, budget_bytes=16 * MIB + 1)
    text = widget([Shown("one", plan, result), Shown("two", plan, longer)], machine())
    rows = [
        {"label": "main", "times": [0, 2000, 0, 7000, 0, 0], "what": [0, 1, 0], "name": [0, 1, 1]},
        {"label": "side", "times": [3000, 2000, 0, 4000], "what": [2, 0], "name": [2, 2]},
        {"label": "d2h", "times": [2000, 4000], "what": [5], "name": [3]},
        {"label": "h2d", "times": [1000, 3500, 4500, 0], "what": [5, 5], "name": [4, 5]},
    ]
    blames = [(1, 0, 3, 0)]  # the stall of g on the first transfer of h2d
    below = {"tier": "ddr", "limit": 0, "times": [0, 9000], "bytes": [3 * MIB, 0]}
    held = {"tier": "hbm", "times": [0, 1000, 7000, 9000], "bytes": [5 * MIB, 8 * MIB, 3 * MIB, 0]}
    assert data_of(text) == {
        "end": 12 * US,
        "styles": STYLES,
        "names": ["f", "h", "g", "a, 5.00 MiB", "w, 3.00 MiB", "w, 0 B"],
        "groups": [
            {
                "title": "one",
                "rows": rows,
                "blames": blames,
                "memory": {**held, "limit": 16 * MIB, "end": 10 * US},
            },  # twice the peak is still shown
            {"title": "", "rows": [], "blames": [], "memory": {**below, "end": 10 * US}},
            {
                "title": "two",
                "rows": rows,
                "blames": blames,
                "memory": {**held, "limit": 0, "end": 12 * US},
            },
            {"title": "", "rows": [], "blames": [], "memory": {**below, "end": 12 * US}},
        ],
    }
    assert "djacent short ops" not in text
    assert (
        data_of(widget([Shown("", plan, replace(result, budget_bytes=10**15))], machine()))[
            "groups"
        ][0]["memory"]["limit"]
        == 0
    )
    assert result.timeline is not None
    nothing = replace(result, timeline=replace(result.timeline, residencies=()))
    assert "memory" not in data_of(widget([Shown("", plan, nothing)], machine()))["groups"][0]
    assert data_of(widget([], machine())) == {"end": 0, "styles": STYLES, "names": [], "groups": []}


def test_the_key_of_a_page() -> None:
    plan, result = small()
    text = widget([Shown("", plan, result)], machine())
    across, up = (
        f"repeating-linear-gradient({turn}deg, #000 0 1px, transparent 1px 5px)"
        for turn in (45, 135)
    )
    fillings = [
        "#404040",
        "radial-gradient(#000 1px, transparent 1px) 0 0 / 5px 5px, #fff3b0",
        f"{up}, #f4a582",
        f"{across}, #92c5de",
        f"{across}, {up}, #b8e186",
        "#9e9e9e",
    ]
    keys = "".join(
        f'<span style="white-space: nowrap; margin-right: 0.6em"><span style="display: inline-block; width: 1.6em; '
        f'height: 0.9em; vertical-align: -0.1em; background: {x}"></span> {label}</span> '
        for x, (label, *_) in zip(fillings, STYLES, strict=True)
    )
    assert f'<p class="legend">{keys}<button data-does="in">+</button> ' in text


def crowded(count: int) -> tuple[Graph, Result]:
    """Ops of 100 ns one after the other, each on 30 ns of the time after the one before; no stalls,
    no transfers.
    """
    graph, result = many_ops(count)
    starts = tuple(130 * k for k in range(count))
    timeline = Timeline(starts, tuple(start + 100 for start in starts), (), (), ())
    return graph, replace(result, makespan_ns=130 * count, timeline=timeline, peak_bytes={})


def test_bars_that_are_joined() -> None:
    bars = [Bar(1000 + 130 * k, 1100 + 130 * k, "op", k) for k in range(5)]
    # of 620 ns and at most four bars, what lasts 310 ns is long enough: three bars take 360 ns with
    # their gaps
    assert [[bar.number for bar in group] for group in joined(bars, 4)] == [[0, 1, 2], [3, 4]]
    assert [[bar.number for bar in group] for group in joined(bars, 5)] == [[0], [1], [2], [3], [4]]
    # a bar of exactly that length stays alone, and so does what comes after a gap of that length
    long = [
        Bar(0, 10, "op", 0),
        Bar(10, 20, "op", 1),
        Bar(20, 70, "op", 2),
        Bar(70, 80, "op", 3),
        Bar(130, 140, "op", 4),
        Bar(141, 150, "op", 5),
    ]
    assert [[bar.number for bar in group] for group in joined(long, 6)] == [[k] for k in range(6)]
    assert [
        [bar.number for bar in group] for group in joined([*long, Bar(150, 150, "op", 6)], 6)
    ] == [[0, 1], [2], [3], [4, 5, 6]]
    assert joined([Bar(0, 5, "op", 0), Bar(5, 9, "op", 1)], 0) == [
        [Bar(0, 5, "op", 0), Bar(5, 9, "op", 1)]
    ]
    assert [row_limit(counts, 9) for counts in ([], [3, 3, 3], [4, 3, 3], [1, 9], [10])] == [
        9,
        9,
        3,
        8,
        9,
    ]


def test_a_row_of_bars_that_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 880 ns and at most four bars, 440 ns are long enough: four bars take 490 ns."""
    graph, result = crowded(7)
    monkeypatch.setattr("hosim.report.timelines.timeline_element.row_limit", lambda counts: 4)
    text = widget([Shown("", Plan(graph), result)], machine())
    (row,) = data_of(text)["groups"][0]["rows"]
    assert row == {
        "label": "compute",
        "times": [0, 490, 30, 360],
        "what": [-1, -2],
        "name": [-1, -1],
        "many": [
            {"count": 4, "parts": [400, 0, 0, 0, 0, 0]},
            {"count": 3, "parts": [300, 0, 0, 0, 0, 0]},
        ],
    }
