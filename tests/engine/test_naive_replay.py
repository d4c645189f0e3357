"""The engine against a second implementation of docs/contract.md that shares nothing with it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_replay import NaiveReplay
from strategies import OP_KINDS, cases, graphs, hardware, sized, wild_plans

from hosim.cache_plan import CacheOp, Plan
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.engine import replay
from hosim.errors import PlanError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.timeline import blamed


def figures(result):
    """A result of the engine as the naive replay words it."""
    feasible = result.feasible
    named = "compute" if "compute" not in result.streams else None
    main = named or "compute"
    streams = {main: result, **result.streams}
    return {
        "makespan_ns": result.makespan_ns,
        "slowed_ns": result.slowed_ns if feasible else None,
        "peers_ns": result.peers_ns if feasible else None,
        "busy_ns": {s: f.busy_ns for s, f in streams.items()} if feasible else None,
        "stall_ns": {s: dict(f.stall_ns) for s, f in streams.items()} if feasible else None,
        "drain_ns": {s: f.drain_ns for s, f in streams.items()} if feasible else None,
        "peak_bytes": dict(result.peak_bytes),
        "peak_at_ns": dict(result.peak_at_ns),
        "peak_breakdown": {tier: dict(mix) for tier, mix in result.peak_breakdown.items()},
        "channels": {
            name: {
                key: getattr(f, key)
                for key in (
                    "transfers",
                    "bytes",
                    "busy_ns",
                    "queue_ns",
                    "contention_ns",
                    "exposed_ns",
                    "hidden_ns",
                )
            }
            for name, f in result.channels.items()
        },
    }


def moved(x):
    """A transfer of a timeline as the naive replay words it."""
    return x.cache_op, x.tensor, x.channel, x.issue_ns, x.start_ns, x.end_ns


def waited(timeline):
    """The stalls of all streams, each with the transfer that it is blamed on, as the naive replay
    words them.
    """
    waits = [
        (
            s.op,
            s.cause,
            s.start_ns,
            s.end_ns,
            None if (x := blamed(timeline, s)) is None else moved(x),
        )
        for s in timeline.stalls
    ]
    return sorted(waits, key=lambda wait: wait[:4])


def compare(plan, machine, budget, compete=False):
    """Both replays of one plan; says how it ended."""
    try:
        naive = NaiveReplay(plan, machine, budget, compete)
    except PlanError:
        naive = None
    for record in (False, True):
        try:
            result = replay(plan, machine, budget, record=record, compete=compete)
        except PlanError as error:
            assert naive is None, f"the engine alone objects: {error}"
            continue
        assert naive is not None, "the naive replay alone objects"
        expected = naive.figures()
        error = expected.pop("error")
        if error is None:
            assert result.error is None
        else:
            assert result.error is not None
            assert result.error.startswith("out of memory")
            assert error[1] in result.error
            assert ("in vain" in result.error) == (error[0] == "vain")
        starts, transfers, waits = (
            expected.pop("op_start_ns"),
            expected.pop("transfers"),
            expected.pop("waits"),
        )
        got = figures(result)
        if error is None and set(got["busy_ns"]) != set(
            naive.streams
        ):  # a graph without a stream named compute
            for key in ("busy_ns", "stall_ns", "drain_ns"):
                got[key][naive.main] = got[key].pop("compute")
        if (
            error is not None
        ):  # what moves when nothing can proceed any more has no end to divide by
            assert result.makespan_ns is None
        assert got == expected
        if record:
            assert result.timeline.op_start_ns == starts
            assert sorted(map(moved, result.timeline.transfers)) == transfers
            assert waited(result.timeline) == waits


@pytest.mark.parametrize(
    ("size", "to", "transfer"),
    [(0, "ddr", 0), (10, "ddr", 40), (0, "nvme", 30), (10, "nvme", 50)],
)
def test_a_store_while_its_writer_waits_for_room(size, to, transfer):
    """f may begin from the start but for y, for which there is room at 50 ns. The store of t, which
    f writes, begins at 30 ns.

    While it lasts f may not begin; it lasts no time where t has no bytes, but on two hops f is
    looked at after the first.
    """
    tiers = (
        Tier("hbm", 100, 10**12, "device"),
        Tier("ddr", 1000, 10**11),
        Tier("nvme", 1000, 10**10),
    )
    channels = (Channel("d2h", "hbm", "ddr", 10**9), Channel("write", "ddr", "nvme", 10**9))
    builder = GraphBuilder("waits")
    builder.tensor("t", size, "parameter")
    builder.tensor("y", 50)
    builder.op("hold", "m", stream="other", workspace_bytes=60, duration_ns=50)
    builder.op("f", "m", mutates=["t"], outputs=["y"], duration_ns=5)
    builder.op("g", "m", stream="side", duration_ns=30)
    plan = Plan(builder.build(), cache_ops=(CacheOp("store", 0, "hbm", to, 2),))
    machine = Hardware("deep", tiers, channels, Compute({}))
    compare(plan, machine, None)
    stalls = replay(plan, machine).stall_ns
    assert (stalls["transfer"], stalls["capacity"]) == (transfer, 50 - transfer)


@st.composite
def hosts(draw):
    """A runtime whose host is a process."""
    limits = ("ahead", "gathers", "stores")
    counts = {name: draw(st.sampled_from((0, 0, 1, 2, 3))) for name in limits}
    blocks = draw(
        st.lists(st.sampled_from(("prefetch", "store", *OP_KINDS)), max_size=2, unique=True)
    )
    figures = {
        "host": draw(st.sampled_from((0, 1, 7, 25))),
        "host_copy": draw(st.sampled_from((0, 5))),
        "pin": draw(st.sampled_from((0, 4))),
        **counts,
    }
    figures["pin_rate"] = draw(st.sampled_from((0, 10**9, 3 * 10**9)))
    figures["cache_copy"] = draw(st.sampled_from((0, 3, 16)))
    figures["copy_time"] = draw(st.sampled_from((0, 2, 9))) if figures["cache_copy"] else 0
    pins = draw(st.sampled_from(((), ("prefetch",), ("prefetch", "store"))))
    return Runtime(
        "drawn",
        blocks=tuple(blocks),
        pins=pins,
        pins_once=bool(pins) and draw(st.booleans()),
        segments=bool(figures["host"]) and draw(st.booleans()),
        **{name: RuntimeFigure(float(value)) for name, value in figures.items()},
    )


@given(cases(max_ops=9, max_streams=3, roomy=None), hosts(), st.integers(0, 3), st.integers(2, 9))
def test_legal_plans_under_a_host(case, host, gathers, alone):
    graph, machine, plan = case
    ops = tuple(
        [
            replace(op, kind="all_gather") if i % 4 < gathers else op
            for i, op in enumerate(graph.ops)
        ]
    )
    meta = {"launched_alone": [op.name for op in ops[alone::alone]]}
    graph = replace(graph, ops=ops, meta=meta)
    compare(replace(plan, graph=graph), replace(machine, software=host), None)


@given(st.data())
def test_any_plan_under_a_host(data):
    graph = data.draw(graphs(max_ops=6, max_streams=2))
    machine = data.draw(hardware(fabrics=True))
    compare(
        data.draw(wild_plans(graph, machine)), replace(machine, software=data.draw(hosts())), None
    )


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_legal_plans(case):
    _, machine, plan = case
    compare(plan, machine, None)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True, measured=False),
    st.sampled_from((4, 11, 40)),
    st.sampled_from(((1.0, 1.0), (0.6, 1.0), (0.75, 0.9))),
)
def test_ops_that_copies_slow_down(case, bandwidth, reached):
    _, machine, plan = case
    tiers = (replace(machine.tiers[0], bandwidth_bytes_per_s=bandwidth * 10**9), *machine.tiers[1:])
    compute = replace(machine.compute, efficiency=reached[0], beside_copies=reached[1])
    compare(plan, replace(machine, tiers=tiers, compute=compute), None, compete=True)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_any_plan(data):
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    compare(plan, machine, data.draw(st.sampled_from([None, 60, 120])))
