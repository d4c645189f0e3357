"""The snapshot is one to hosim's own reader and to torch's tools, and holds what the replay
held.
"""

import pickle
import pickletools
from dataclasses import replace
from typing import Any

import pytest
from rendered import facts
from timelines import everything, machine, recorded, two_streams

from hosim import GraphBuilder, Plan, Result
from hosim.engine import replay
from hosim.report.timelines import LABEL, memory_viz, to_pickle
from hosim.result import Residency, Timeline
from hosim.validate.snapshots import load_plain, parse_snapshot, replay_snapshot

ALLOCATORS = ("caching", "caching-expandable", "static")


@pytest.fixture(scope="module")
def replayed() -> tuple[Plan, Result]:
    plan = two_streams()
    return plan, recorded(plan)


def exported(replayed: tuple[Plan, Result], allocator: str) -> dict[str, Any]:
    return load_plain(to_pickle(memory_viz(replayed[0], machine(), replayed[1], allocator)))


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_our_reader_goes_back_to_an_empty_start(
    replayed: tuple[Plan, Result], allocator: str
) -> None:
    snapshot = parse_snapshot(exported(replayed, allocator))
    assert replay_snapshot(snapshot).start == ()


@pytest.mark.parametrize("allocator", ALLOCATORS[:2])
def test_it_is_what_the_caching_allocator_would_have_recorded(
    replayed: tuple[Plan, Result], allocator: str
) -> None:
    lived = replay_snapshot(parse_snapshot(exported(replayed, allocator)))
    assert lived.exact
    assert lived.allocations == lived.matched > 10


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_bytes_at_every_instant_are_the_replay_s(
    replayed: tuple[Plan, Result], allocator: str
) -> None:
    plan, result = replayed
    (trace,) = exported(replayed, allocator)["device_traces"]
    held, live, most = 0, {}, 0
    for entry in trace:
        if entry["action"] == "alloc":
            assert all(
                end <= entry["addr"] or entry["addr"] + entry["size"] <= start
                for start, end in live.values()
            )
            live[entry["addr"]] = entry["addr"], entry["addr"] + entry["size"]
            held += entry["size"]
            most = max(most, held)
        elif entry["action"] == "free_completed":
            del live[entry["addr"]]
            held -= entry["size"]
    assert most == result.peak_bytes["hbm"]
    assert [entry["time_us"] for entry in trace] == sorted(entry["time_us"] for entry in trace)
    remaining = {
        block["address"]: block["requested_size"]
        for s in exported(replayed, allocator)["segments"]
        for block in held_blocks(s)
    }
    assert remaining == {start: end - start for start, end in live.values()}
    assert sum(remaining.values()) == sum(
        t.size_bytes for t in plan.graph.tensors if t.kind in ("input", "output")
    )


def held_blocks(segment: dict[str, Any]) -> list[dict[str, Any]]:
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    return [block for block in segment["blocks"] if block["state"] == "active_allocated"]


def test_it_says_that_addresses_are_synthetic(replayed: tuple[Plan, Result]) -> None:
    snapshot = exported(replayed, "caching")
    assert snapshot["note"].startswith(LABEL)
    assert "synthetic" in LABEL
    for entry in snapshot["device_traces"][0]:
        if not entry["action"].startswith("segment"):
            ((frame),) = entry["frames"]
            assert frame["filename"] == LABEL
            assert frame["name"].endswith(")")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_torch_s_tools_take_it(replayed: tuple[Plan, Result], allocator: str) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(to_pickle(memory_viz(replayed[0], machine(), replayed[1], allocator)))
    assert "total_allocated" in viz.segsum(snapshot)
    listed = viz.trace(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in listed
    assert "snapshot.pickle" in viz.trace_plot(snapshot)
    folded = viz.segments(snapshot, format_flamegraph=lambda text: text) + viz.memory(
        snapshot, format_flamegraph=lambda text: text
    )
    assert "s3 (output)" in folded


VIEWER_KNOWS = """APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST EMPTY_TUPLE FRAME LIST
LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3"""
"""The instructions of a pickle that torch/utils/viz/MemoryViz.js reads, of protocols 2 to 4."""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_viewer_in_the_browser_can_read_it(
    replayed: tuple[Plan, Result], allocator: str
) -> None:
    instructions = list(
        pickletools.genops(to_pickle(memory_viz(replayed[0], machine(), replayed[1], allocator)))
    )
    assert {instruction.name for instruction, _, _ in instructions} <= set(VIEWER_KNOWS.split())
    assert instructions[0][1] in (2, 3, 4)


def test_a_replay_that_ran_out_of_memory_ends_full() -> None:
    plan = two_streams()
    result = replay(plan, machine(), 60 * 2**20, record=True)
    assert not result.feasible
    snapshot = memory_viz(plan, machine(), result, "caching")
    held = sum(
        block["requested_size"]
        for segment in snapshot["segments"]
        for block in held_blocks(segment)
    )
    assert held == result.peak_bytes["hbm"]  # nothing was released before


def test_the_same_replay_is_the_same_file() -> None:
    made = [
        to_pickle(memory_viz(plan, machine(), recorded(plan), "caching"))
        for plan in (two_streams(), two_streams())
    ]
    assert made[0] == made[1]


BASE = 1 << 40
PAGE = 2 << 20


def small() -> tuple[Plan, Result]:
    """Of 5 us, on two streams: ``a`` is made on ``x`` and used on ``y``, which needs a workspace;
    ``b`` is used on ``x``, and stays.

    ``a`` is released as the workspace begins, at 3.999 us. Then it is staged for no time at 4 us.
    What lies in ``ddr``, and what has no bytes, is not shown.
    """
    b = GraphBuilder("small")
    b.tensor("b", 600, "input")
    b.tensor("a", 1000)
    b.tensor("unused", 5, "parameter", home="hbm")
    b.op("make", "matmul", inputs=["b"], outputs=["a"], duration_ns=1, stream="x")
    b.op("use", "matmul", inputs=["a"], duration_ns=1, stream="y", workspace_bytes=300)
    held = (
        Residency(-1, "hbm", 3999, 4500, 300, 1),
        Residency(1, "hbm", 0, 3999, 1000),
        Residency(0, "hbm", 1000, 5000, 600),
        Residency(1, "ddr", 0, 5000, 1000),
        Residency(1, "hbm", 0, 5000, 0),
        Residency(0, "hbm", 4000, 4000, 700, staged=True),
    )
    _, result = everything()
    result = replace(
        result, workload="small", makespan_ns=5000, timeline=Timeline((0, 3), (1, 4), (), (), held)
    )
    return Plan(b.build(), "by hand"), result


def frame(name: str) -> list[dict[str, Any]]:
    return [{"name": name, "filename": "hosim: synthetic addresses", "line": 0}]


A, B, WORKSPACE = frame("a (activation)"), frame("b (input)"), frame("use (workspace)")


def entries(*rows: tuple[str, int, int, int, int, list[Any]]) -> list[dict[str, Any]]:
    """Action, address from :data:`BASE` on, size, stream, microsecond and frames; what is freed is
    requested and completed.
    """
    keys = ("action", "addr", "size", "stream", "time_us", "frames")
    actions = [
        (action, BASE + at, *rest)
        for what, at, *rest in rows
        for action in (("free_requested", "free_completed") if what == "free" else (what,))
    ]
    return [dict(zip(keys, row, strict=True)) for row in actions]


def block(at: int, size: int, requested: int = 0, frames: Any = ()) -> dict[str, Any]:
    state = "active_allocated" if frames else "inactive"
    return {
        "address": BASE + at,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": list(frames),
    }


def segment(
    at: int,
    size: int,
    stream: int,
    kind: str,
    held: tuple[int, int],
    expandable: bool,
    *blocks: Any,
) -> dict[str, Any]:
    """``held`` is allocated and requested."""
    return {
        "device": 0,
        "address": BASE + at,
        "total_size": size,
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": expandable,
        "allocated_size": held[0],
        "active_size": held[0],
        "requested_size": held[1],
        "blocks": list(blocks),
        "frames": [],
    }


def test_a_snapshot_of_the_caching_allocator_in_full() -> None:
    """Sizes are rounded up to 512 bytes; a stream's first small block gets a segment of 2 MiB, and
    what is freed is used again.
    """
    plan, result = small()
    trace = entries(
        ("segment_alloc", 0, PAGE, 0, 0, []),
        ("alloc", 0, 1000, 0, 0, A),  # of 1024
        ("alloc", 1024, 600, 0, 1, B),  # of 1024
        ("free", 0, 1000, 0, 3, A),
        ("segment_alloc", PAGE, PAGE, 1, 3, []),
        ("alloc", PAGE, 300, 1, 3, WORKSPACE),
        ("alloc", 0, 700, 0, 4, B),
        ("free", 0, 700, 0, 4, B),
        ("free", PAGE, 300, 1, 4, WORKSPACE),
    )
    left = segment(
        0,
        PAGE,
        0,
        "small",
        (1024, 600),
        False,
        block(0, 1024),
        block(1024, 1024, 600, B),
        block(2048, PAGE - 2048),
    )
    settings = {
        "garbage_collection_threshold": 0.0,
        "max_split_size": -1,
        "roundup_power2_divisions": {},
    }
    assert memory_viz(plan, machine(), result, "caching") == {
        "segments": [left, segment(PAGE, PAGE, 1, "small", (0, 0), False, block(PAGE, PAGE))],
        "device_traces": [trace],
        "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "expandable_segments": False,
            **settings,
        },
        "note": "hosim: synthetic addresses, of the allocator caching; small with by hand",
    }
    found = memory_viz(plan, machine(), result, "caching-expandable")
    assert found["allocator_settings"] == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "expandable_segments": True,
        **settings,
    }
    assert facts(found["note"], "caching", "small", "by hand") == "caching, small, by hand"
    mapped = [
        (x["size"], x["stream"], x["time_us"])
        for x in found["device_traces"][0]
        if x["action"] == "segment_map"
    ]
    assert mapped == [(PAGE, 0, 0), (PAGE, 1, 3)]
    assert [x["is_expandable"] for x in found["segments"]] == [True, True]


def test_a_snapshot_of_a_static_plan_in_full() -> None:
    """One segment of 2560 bytes: ``b`` of 1024 lies lowest, on it ``a`` of 1024, and after ``a``
    the workspace of 512 and ``b`` staged.
    """
    plan, result = small()
    trace = entries(
        ("segment_alloc", 0, 2560, 0, 0, []),
        ("alloc", 1024, 1000, 0, 0, A),
        ("alloc", 0, 600, 0, 1, B),
        ("free", 1024, 1000, 0, 3, A),
        ("alloc", 1024, 300, 0, 3, WORKSPACE),
        ("alloc", 1536, 700, 0, 4, B),
        ("free", 1536, 700, 0, 4, B),
        ("free", 1024, 300, 0, 4, WORKSPACE),
    )
    found = memory_viz(plan, machine(), result, "static")
    assert found["segments"] == [
        segment(0, 2560, 0, "large", (1024, 600), False, block(0, 1024, 600, B), block(1024, 1536))
    ]
    assert found["device_traces"] == [trace]
    assert facts(found["note"], "static", "small", "by hand") == "static, small, by hand"


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_snapshot_of_nothing(allocator: str) -> None:
    plan, result = small()
    found = memory_viz(
        plan, machine(), replace(result, timeline=Timeline((0, 3), (1, 4), (), (), ())), allocator
    )
    assert (found["segments"], found["device_traces"]) == ([], [[]])


def test_what_ran_out_of_memory_stays_in_a_static_plan_too() -> None:
    """Nothing that lasts until the end, 5 us, is released: ``a`` lies below ``b``, free is what the
    workspace had on top.
    """
    plan, result = small()
    held = (
        Residency(1, "hbm", 0, 5000, 1000),
        Residency(0, "hbm", 1000, 5000, 600),
        Residency(-1, "hbm", 0, 500, 2000, 1),
    )
    for one, blocks in (
        (
            replace(result, feasible=False),
            [block(0, 1024, 1000, A), block(1024, 1024, 600, B), block(2048, 1024)],
        ),
        (result, [block(0, 1024), block(1024, 1024, 600, B), block(2048, 1024)]),
    ):
        found = memory_viz(
            plan, machine(), replace(one, timeline=Timeline((0, 3), (1, 4), (), (), held)), "static"
        )
        assert found["segments"][0]["blocks"] == blocks


def test_memory_belongs_to_the_stream_of_the_first_user() -> None:
    """``late`` is used on ``y`` before it is on ``x``; what no op uses belongs to the first
    stream.
    """
    b = GraphBuilder("streams")
    b.tensor("late", 10, "input")
    b.tensor("unused", 5, "input")
    for name, stream, inputs in (("f", "x", []), ("g", "y", ["late"]), ("h", "x", ["late"])):
        b.op(name, "matmul", inputs=inputs, duration_ns=1, stream=stream)
    held = (Residency(0, "hbm", 0, 5000, 10), Residency(1, "hbm", 0, 5000, 5))
    _, result = small()
    found = memory_viz(
        Plan(b.build()),
        machine(),
        replace(result, timeline=Timeline((0, 1, 2), (1, 2, 3), (), (), held)),
        "caching",
    )
    trace = found["device_traces"][0]
    assert [(x["size"], x["stream"]) for x in trace if x["action"] == "alloc"] == [(10, 1), (5, 0)]
