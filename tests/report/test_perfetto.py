"""A trace obeys the format, and says what the timeline says."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import trace_rules
from hypothesis import given
from hypothesis import strategies as st
from timelines import everything, machine, many_ops, recorded, two_streams

from hosim import Plan
from hosim.engine import replay
from hosim.report.timelines import microseconds, trace
from hosim.result import Timeline


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


@pytest.fixture(scope="module")
def real() -> tuple[dict[str, Any], Plan, Timeline]:
    plan = two_streams()
    result = recorded(plan)
    assert result.timeline is not None
    return json.loads(json.dumps(trace(plan, machine(), result))), plan, result.timeline


def test_it_obeys_the_rules(real: tuple[dict[str, Any], Plan, Timeline]) -> None:
    trace_rules.check(real[0])
    for graph, result in (everything(), many_ops(300)):
        plan = replace(two_streams(), graph=graph, cache_ops=two_streams().cache_ops * 40)
        trace_rules.check(trace(plan, machine(), result))


def test_the_rules_are_not_empty(real: tuple[dict[str, Any], Plan, Timeline]) -> None:
    document = real[0]
    first = {phase: events(document, phase)[0] for phase in "XMCsf"}
    second = events(document, "X")[1]
    broken = [
        [e for e in document["traceEvents"] if e is not first["f"]],
        [e for e in document["traceEvents"] if e is not first["M"]],
        [*document["traceEvents"], first["C"]],
        [e | {"ph": "B"} if e is first["X"] else e for e in document["traceEvents"]],
        [e | {"ts": -1} if e is first["C"] else e for e in document["traceEvents"]],
        [e | {"ts": 10**9} if e is first["s"] else e for e in document["traceEvents"]],
        [e | {"dur": e["dur"] + 1} if e is second else e for e in document["traceEvents"]],
    ]
    for changed in broken:
        with pytest.raises(AssertionError):
            trace_rules.check(document | {"traceEvents": changed})


def test_slices_are_the_ops_the_stalls_and_the_transfers(
    real: tuple[dict[str, Any], Plan, Timeline],
) -> None:
    document, plan, timeline = real
    slices = events(document, "X")
    spans = Counter(
        (e["cat"], e["name"], trace_rules.nanoseconds(e["ts"]), trace_rules.nanoseconds(e["dur"]))
        for e in slices
    )
    ops = zip(plan.graph.ops, timeline.op_start_ns, timeline.op_end_ns, strict=True)
    expected = [("op", op.name, start, end - start) for op, start, end in ops]
    expected += [
        ("stall", f"{stall.cause} stall", stall.start_ns, stall.stall_ns)
        for stall in timeline.stalls
    ]
    expected += [
        ("transfer", plan.graph.tensors[x.tensor].name, x.start_ns, x.end_ns - x.start_ns)
        for x in timeline.transfers
    ]
    assert spans == Counter(expected)
    names = {
        event["args"]["name"] for event in events(document, "M") if event["name"].endswith("_name")
    }
    assert names == {"streams", "channels", "memory", "compute", "comm", "h2d", "h2d 2", "d2h"}


def test_arrows_lead_to_the_ops_that_need_the_tensor(
    real: tuple[dict[str, Any], Plan, Timeline],
) -> None:
    document, _, timeline = real
    slices = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in events(document, "X")}
    starts = {e["id"]: slices[e["pid"], e["tid"], e["ts"]] for e in events(document, "s")}
    ends = {e["id"]: slices[e["pid"], e["tid"], e["ts"]] for e in events(document, "f")}
    assert {(starts[k], ends[k]) for k in starts} == {
        ("w0", "f0"),
        ("w1", "f1"),
        ("w2", "f2"),
        ("w3", "f3"),
        ("a1", "last"),
    }
    assert any(stall.cause == "transfer" for stall in timeline.stalls)


def test_counters_are_the_occupancy(real: tuple[dict[str, Any], Plan, Timeline]) -> None:
    document, _, timeline = real
    for tier in ("hbm", "ddr"):
        counted = [e for e in events(document, "C") if e["name"] == f"{tier} in all"]
        for e in counted[:-1]:
            now = trace_rules.nanoseconds(e["ts"])
            held = sum(
                r.bytes
                for r in timeline.residencies
                if r.tier == tier and r.start_ns <= now < r.end_ns
            )
            assert e["args"] == {"bytes": held}


def test_devices_have_tracks_of_their_own() -> None:
    plan = two_streams()
    together = replay(plan, replace(machine(), devices=3), record=True, fold=False)
    document = trace(plan, machine(), together)
    trace_rules.check(document)
    assert sum(event["name"] == "process_name" for event in events(document, "M")) == 9
    folded = trace(plan, machine(), replay(plan, replace(machine(), devices=3), record=True))
    assert sum(event["name"] == "process_name" for event in events(folded, "M")) == 3


@given(st.integers(0, 10**15))
def test_no_nanosecond_is_lost(ns: int) -> None:
    assert trace_rules.nanoseconds(json.loads(json.dumps(microseconds(ns)))) == ns
