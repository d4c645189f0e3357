"""The check of a replay: right results pass, and each kind of wrong one is caught.

The right result below is derived by hand, so that the check is tried without the engine first.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from strategies import cases
from timeline_check import check_result

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import hardware_from_dict, plan_from_dict, workload_from_dict
from hosim.result import ChannelFigures, Residency, Result, Stall, StreamFigures, Timeline, Transfer

GB = 10**9
MACHINE = Hardware(
    "toy",
    (Tier("hbm", 100, 1000 * GB, "device"), Tier("ddr", 1000, 100 * GB)),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", 2 * GB, latency_ns=5)),
    Compute({"bf16": 10**12}),
)


def plan():
    b = GraphBuilder("toy")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("s", 20, "optimizer_state")
    b.tensor("a", 30)
    b.op("f", "any", inputs=["w"], outputs=["a"], duration_ns=50, workspace_bytes=8)
    b.op("g", "any", deps=["f"], duration_ns=5, stream="side")
    b.op("h", "any", inputs=["a"], mutates=["s"], deps=["g"], duration_ns=20)
    moves = (
        CacheOp(PREFETCH, 0, "ddr", "hbm", AT_START),
        CacheOp(STORE, 1, "hbm", "ddr", 0),
        CacheOp(DETACH, 0, "hbm", None, 0),
    )
    return Plan(b.build(), "manual", moves)


def right():
    """w comes 0..40, f runs 40..90. After f, s is stored (5 + 20 / 2 = 15: 90..105) and w detached;
    g runs 90..95.

    h follows g and mutates s, so that it waits for g till 95, then for the store till 105:
    105..125. hbm: s 20 from 0; w 40 over 0..90; a 30 over 40..125; workspace 8 over 40..90. Peak 98
    at 40. ddr: w 40 throughout, s 20 over 90..105.
    """
    timeline = Timeline(
        op_start_ns=(40, 90, 105),
        op_end_ns=(90, 95, 125),
        stalls=(
            Stall(0, "transfer", 0, 40, 0),
            Stall(1, "dependency", 0, 90),
            Stall(2, "dependency", 90, 95),
            Stall(2, "transfer", 95, 105, 1),
        ),
        transfers=(
            Transfer(0, 0, "h2d", 40, 0, 0, 40, 0),
            Transfer(1, 1, "d2h", 20, 90, 90, 105, 0),
        ),
        residencies=(
            Residency(0, "ddr", 0, 125, 40),
            Residency(0, "hbm", 0, 90, 40),
            Residency(1, "hbm", 0, 125, 20),
            Residency(1, "ddr", 90, 105, 20),
            Residency(2, "hbm", 40, 125, 30),
            Residency(-1, "hbm", 40, 90, 8, op=0),
        ),
    )
    return Result(
        workload="toy",
        hardware="toy",
        policy="manual",
        budget_bytes=100,
        feasible=True,
        error=None,
        makespan_ns=125,
        busy_ns=70,
        stall_ns={"dependency": 5, "transfer": 50, "capacity": 0, "runtime": 0},
        drain_ns=0,
        lower_bound_ns=None,
        peak_bytes={"hbm": 98, "ddr": 60},
        peak_at_ns={"hbm": 40, "ddr": 90},
        peak_breakdown={
            "hbm": {"parameter": 40, "optimizer_state": 20, "activation": 30, "workspace": 8},
            "ddr": {"parameter": 40, "optimizer_state": 20},
        },
        channels={
            "h2d": ChannelFigures(1, 40, 40, 0, 0, 40, 0, 40 / 125),
            "d2h": ChannelFigures(1, 20, 15, 0, 0, 10, 5, 15 / 125),
        },
        plan={"prefetches": 1, "stores": 1, "detaches": 1},
        streams={
            "side": StreamFigures(
                5, {"dependency": 90, "transfer": 0, "capacity": 0, "runtime": 0}, 30
            )
        },
        notes=("durations: times as given for all 3 ops",),
        timeline=timeline,
    )


def rules(result, workload=None, machine=MACHINE):
    return {f.rule for f in check_result(workload or plan(), machine, result)}


def test_the_right_result_passes_and_is_the_engines():
    assert check_result(plan(), MACHINE, right()) == ()
    assert replay(plan(), MACHINE, record=True) == right()


def with_op(i, start, end):
    t = right().timeline
    starts, ends = list(t.op_start_ns), list(t.op_end_ns)
    starts[i], ends[i] = start, end
    return replace(right(), timeline=replace(t, op_start_ns=tuple(starts), op_end_ns=tuple(ends)))


def with_transfer(k, **fields):
    t = right().timeline
    transfers = list(t.transfers)
    transfers[k] = replace(transfers[k], **fields)
    return replace(right(), timeline=replace(t, transfers=tuple(transfers)))


def with_residency(k, *new, **fields):
    t = right().timeline
    residencies = list(t.residencies)
    residencies[k : k + 1] = new or ([replace(residencies[k], **fields)] if fields else [])
    return replace(right(), timeline=replace(t, residencies=tuple(residencies)))


def with_channel(name, **fields):
    return replace(
        right(), channels={**right().channels, name: replace(right().channels[name], **fields)}
    )


def with_stalls(*new, without=()):
    stalls = [x for k, x in enumerate(right().timeline.stalls) if k not in without]
    return replace(right(), timeline=replace(right().timeline, stalls=(*stalls, *new)))


WRONG = {
    "an op of another duration": (with_op(0, 40, 91), "duration"),
    "an op that never ran": (with_op(1, -1, -1), "duration"),
    "an op before its producer's end": (with_op(2, 89, 109), "producer"),
    "an op that starts while its stream is busy": (with_op(2, 60, 80), "stream"),
    "an op before its input is there": (with_op(0, 39, 89), "stall"),
    "another makespan": (replace(right(), makespan_ns=126), "makespan"),
    "a stall that is missing": (with_stalls(without=(2,)), "stall"),
    "a stall of the wrong cause": (
        with_stalls(Stall(2, "capacity", 95, 105), without=(3,)),
        "stall",
    ),
    "a transfer stall that is blamed on nothing": (
        with_stalls(Stall(2, "transfer", 95, 105), without=(3,)),
        "blame",
    ),
    "a transfer stall that is blamed on another's transfer": (
        with_stalls(Stall(2, "transfer", 95, 105, 0), without=(3,)),
        "blame",
    ),
    "a dependency stall that is blamed on a transfer": (
        with_stalls(Stall(2, "dependency", 90, 95, 1), without=(2,)),
        "blame",
    ),
    "a stall of no cause": (with_stalls(Stall(2, "weather", 95, 105), without=(3,)), "stall"),
    "stalls that overlap": (
        with_stalls(Stall(0, "transfer", 0, 30, 0), Stall(0, "transfer", 20, 30, 0), without=(0,)),
        "stall",
    ),
    "a busy time that is off": (replace(right(), busy_ns=71), "division"),
    "a drain that is off": (
        replace(right(), streams={"side": replace(right().streams["side"], drain_ns=29)}),
        "division",
    ),
    "a stream without figures": (replace(right(), streams={}), "division"),
    "a stall total that is off": (
        replace(right(), stall_ns={**right().stall_ns, "transfer": 49}),
        "division",
    ),
    "a tensor that is not there over the whole op": (with_residency(1, end_ns=80), "resident"),
    "an output that is never held": (with_residency(4), "resident"),
    "a tensor of the wrong size": (with_residency(1, bytes=41), "residency"),
    "a tensor held twice": (
        with_residency(2, Residency(1, "hbm", 0, 125, 20), Residency(1, "hbm", 50, 60, 20)),
        "residency",
    ),
    "a workspace that ends early": (with_residency(5, end_ns=80), "residency"),
    "a tensor that comes from nowhere": (with_residency(3, start_ns=80), "residency"),
    "a dead tensor that stays": (with_residency(4, end_ns=126), "release"),
    "a stale copy that stays": (with_residency(3, end_ns=125), "stale"),
    "an initial copy that is missing": (with_residency(0, start_ns=1), "initial"),
    "a copy that rule 2 wants at the end": (with_residency(0, end_ns=124), "end-of-step"),
    "a peak that is too low": (replace(right(), peak_bytes={"hbm": 90, "ddr": 60}), "peak"),
    "a peak at another instant": (replace(right(), peak_at_ns={"hbm": 41, "ddr": 90}), "peak"),
    "a peak before it is reached": (replace(right(), peak_at_ns={"hbm": 39, "ddr": 90}), "peak"),
    "a peak of something else": (
        replace(right(), peak_breakdown={**right().peak_breakdown, "ddr": {"parameter": 60}}),
        "peak",
    ),
    "more than the budget": (replace(right(), budget_bytes=97), "capacity"),
    "a transfer that is faster than alone": (with_transfer(1, end_ns=104), "time"),
    "contention that is off": (with_transfer(0, contention_ns=1), "time"),
    "a transfer of half a tensor": (with_transfer(0, bytes=20), "whole"),
    "a transfer before its issue": (with_transfer(1, start_ns=80, end_ns=95), "issue"),
    "an issue at another instant": (with_transfer(1, issue_ns=89), "issue"),
    "a transfer on a channel that is not there": (with_transfer(1, channel="p2p"), "channel"),
    "a transfer on the wrong channel": (with_transfer(1, channel="h2d"), "whole"),
    "a transfer of nobody": (with_transfer(1, cache_op=7), "whole"),
    "a cache op that never ran": (
        replace(
            right(), timeline=replace(right().timeline, transfers=right().timeline.transfers[:1])
        ),
        "whole",
    ),
    "a source that is not held": (with_residency(2, start_ns=0, end_ns=100), "copy"),
    "a copy of what is being written": (with_op(2, 100, 120), "copy"),
    "bytes that are off": (with_channel("h2d", bytes=41), "figures"),
    "a busy time of a channel that is off": (with_channel("d2h", busy_ns=14), "figures"),
    "a queue time that is off": (with_channel("d2h", queue_ns=1), "figures"),
    "a hidden time that is off": (with_channel("h2d", hidden_ns=1), "figures"),
    "a utilization that is off": (with_channel("h2d", utilization=0.5), "figures"),
    "a channel without figures": (
        replace(right(), channels={"h2d": right().channels["h2d"]}),
        "figures",
    ),
    "an exposed time that is off": (with_channel("d2h", exposed_ns=9, hidden_ns=6), "exposed"),
    "counts that are off": (
        replace(right(), plan={"prefetches": 1, "stores": 2, "detaches": 1}),
        "counts",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_result_is_caught(what):
    result, rule = WRONG[what]
    assert rule in rules(result)


def busy_channel(*transfers):
    """A plan of one store a tensor, all after the first op, with these transfers of 10 bytes:
    (cache op, start, end).
    """
    b = GraphBuilder("queue")
    for t in range(len(transfers)):
        b.tensor(f"s{t}", 10, "optimizer_state")
    b.op("f", "any", duration_ns=0)
    moves = tuple(CacheOp(STORE, t, "hbm", "ddr", 0) for t in range(len(transfers)))
    right_one = replay(Plan(b.build(), "m", moves), MACHINE, record=True)
    records = tuple(
        Transfer(c, c, "d2h", 10, 0, start, end, end - start - 10) for c, start, end in transfers
    )
    return replace(right_one, timeline=replace(right_one.timeline, transfers=records)), Plan(
        b.build(), "m", moves
    )


def test_queues_engines_and_bandwidth():
    # one engine: 5 + 10 / 2 = 10 ns each
    result, workload = busy_channel((0, 0, 10), (1, 10, 20), (2, 20, 30))
    assert rules(result, workload) == set()
    assert "queue" in rules(*busy_channel((1, 0, 10), (0, 10, 20), (2, 20, 30)))
    assert "engines" in rules(*busy_channel((0, 0, 10), (1, 9, 19), (2, 20, 30)))
    two = replace(MACHINE, channels=(MACHINE.channels[0], replace(MACHINE.channels[1], engines=2)))
    # two engines share 2 GB/s: 20 bytes flow in 5..15; in 5..12 they do not
    assert not {"engines", "bandwidth", "queue"} & rules(
        *busy_channel((0, 0, 15), (1, 0, 15), (2, 15, 25)), machine=two
    )
    assert "bandwidth" in rules(*busy_channel((0, 0, 12), (1, 0, 12), (2, 15, 25)), machine=two)


def test_cache_ops_of_a_tensor_take_effect_one_after_the_other():
    b = GraphBuilder("two")
    b.tensor("w", 40, "parameter")
    b.op("f", "any", duration_ns=1)
    two_ways = replace(
        MACHINE,
        tiers=(*MACHINE.tiers, Tier("nvme", 1000, GB)),
        channels=(*MACHINE.channels, Channel("n", "hbm", "nvme", GB)),
    )
    moves = Plan(
        b.build(), "m", (CacheOp(STORE, 0, "hbm", "ddr"), CacheOp(STORE, 0, "hbm", "nvme"))
    )
    result = replay(moves, two_ways, record=True)
    assert rules(result, moves, two_ways) == set()
    first, second = result.timeline.transfers
    early = (first, replace(second, start_ns=second.start_ns - 1, contention_ns=1))
    assert "one-by-one" in rules(
        replace(result, timeline=replace(result.timeline, transfers=early)), moves, two_ways
    )


def test_a_result_without_its_timeline_is_refused():
    with pytest.raises(InputError, match="record=True"):
        check_result(plan(), MACHINE, replace(right(), timeline=None))


def test_an_infeasible_result_says_why_and_has_no_times():
    failed = replay(plan(), MACHINE, 60, record=True)
    assert not failed.feasible
    assert check_result(plan(), MACHINE, failed) == ()
    assert rules(replace(failed, error=None)) == {"infeasible"}
    assert rules(replace(failed, makespan_ns=3)) == {"infeasible"}


@given(cases(max_ops=10, max_streams=3, fabrics=True, roomy=None))
def test_every_replay_passes(case):
    _, machine, drawn = case
    assert [str(f) for f in check_result(drawn, machine, replay(drawn, machine, record=True))] == []


def test_the_golden_cases_pass(shared):
    yaml = pytest.importorskip("yaml")
    for golden in json.loads((shared / "golden" / "cases.json").read_text())["cases"]:
        machine = hardware_from_dict(yaml.safe_load(golden["hardware_yaml"]))
        written = plan_from_dict(golden["plan"], workload_from_dict(golden["workload"]))
        assert [
            str(f) for f in check_result(written, machine, replay(written, machine, record=True))
        ] == []
