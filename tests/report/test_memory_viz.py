"""The snapshot is one to hosim's own reader and to torch's tools, and holds what the replay held."""

import pickle
import pickletools
from typing import Any

import pytest
from timelines import machine, recorded, two_streams

from hosim import Plan, Result
from hosim.engine import replay
from hosim.report.memory_viz import LABEL, memory_viz, to_pickle
from hosim.validate.plain_pickle import load_plain
from hosim.validate.snapshot import parse_snapshot, replay_snapshot, rewind

ALLOCATORS = ("caching", "caching-expandable", "static")


@pytest.fixture(scope="module")
def replayed() -> tuple[Plan, Result]:
    plan = two_streams()
    return plan, recorded(plan)


def exported(replayed: tuple[Plan, Result], allocator: str) -> dict[str, Any]:
    return load_plain(to_pickle(memory_viz(replayed[0], machine(), replayed[1], allocator)))


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_our_reader_goes_back_to_an_empty_start(replayed: tuple[Plan, Result], allocator: str) -> None:
    snapshot = parse_snapshot(exported(replayed, allocator))
    assert rewind(snapshot) == ()


@pytest.mark.parametrize("allocator", ALLOCATORS[:2])
def test_it_is_what_the_caching_allocator_would_have_recorded(replayed: tuple[Plan, Result], allocator: str) -> None:
    lived = replay_snapshot(parse_snapshot(exported(replayed, allocator)))
    assert lived.exact
    assert lived.allocations == lived.matched > 10


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_bytes_at_every_instant_are_the_replay_s(replayed: tuple[Plan, Result], allocator: str) -> None:
    plan, result = replayed
    (trace,) = exported(replayed, allocator)["device_traces"]
    held, live, most = 0, {}, 0
    for entry in trace:
        if entry["action"] == "alloc":
            assert all(end <= entry["addr"] or entry["addr"] + entry["size"] <= start for start, end in live.values())
            live[entry["addr"]] = entry["addr"], entry["addr"] + entry["size"]
            held += entry["size"]
            most = max(most, held)
        elif entry["action"] == "free_completed":
            del live[entry["addr"]]
            held -= entry["size"]
    assert most == result.peak_bytes["hbm"]
    assert [entry["time_us"] for entry in trace] == sorted(entry["time_us"] for entry in trace)
    remaining = {block["address"]: block["requested_size"] for s in exported(replayed, allocator)["segments"] for block in held_blocks(s)}
    assert remaining == {start: end - start for start, end in live.values()}
    assert sum(remaining.values()) == sum(t.size_bytes for t in plan.graph.tensors if t.kind in ("input", "output"))


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
    folded = viz.segments(snapshot, format_flamegraph=lambda text: text) + viz.memory(snapshot, format_flamegraph=lambda text: text)
    assert "s3 (output)" in folded


VIEWER_KNOWS = """APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST EMPTY_TUPLE FRAME LIST
LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3"""
"""The instructions of a pickle that torch/utils/viz/MemoryViz.js reads, of protocols 2 to 4."""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_viewer_in_the_browser_can_read_it(replayed: tuple[Plan, Result], allocator: str) -> None:
    instructions = list(pickletools.genops(to_pickle(memory_viz(replayed[0], machine(), replayed[1], allocator))))
    assert {instruction.name for instruction, _, _ in instructions} <= set(VIEWER_KNOWS.split())
    assert instructions[0][1] in (2, 3, 4)


def test_a_replay_that_ran_out_of_memory_ends_full() -> None:
    plan = two_streams()
    result = replay(plan, machine(), 60 * 2**20, record=True)
    assert not result.feasible
    snapshot = memory_viz(plan, machine(), result, "caching")
    held = sum(block["requested_size"] for segment in snapshot["segments"] for block in held_blocks(segment))
    assert held == result.peak_bytes["hbm"]  # nothing was released before


def test_the_same_replay_is_the_same_file() -> None:
    made = [to_pickle(memory_viz(plan, machine(), recorded(plan), "caching")) for plan in (two_streams(), two_streams())]
    assert made[0] == made[1]
