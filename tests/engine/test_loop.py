"""The compiled loop against the contract in plain SimPy: the same figures, to the nanosecond and
byte.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from both_engines import compared
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import (
    cases,
    graphs,
    hardware,
    plans,
    processor_plans,
    several,
    sized,
    wild_plans,
)
from test_naive_collectives import with_collectives
from test_naive_without_dma import without_dma

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay, verdict
from hosim.errors import InfeasibleError, InputError, PlanError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.jitter import Jitter
from hosim.policies import policy_named
from hosim.result import LOOP, REFERENCE

TOY = Hardware(
    "toy",
    (Tier("hbm", 100, 10**12, "device"), Tier("ddr", 1000, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({}),
)
JITTERS = st.sampled_from((None, Jitter(3, 0.3, 0.2)))


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_legal_plans(case: Any) -> None:
    _, machine, plan = case
    compared(plan, machine, compete=False)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True, measured=False),
    st.sampled_from((4, 11, 40)),
    st.sampled_from(((1.0, 1.0), (0.6, 1.0), (0.75, 0.9))),
)
def test_ops_that_copies_slow_down(case: Any, bandwidth: int, reached: tuple[float, float]) -> None:
    _, machine, plan = case
    tiers = (replace(machine.tiers[0], bandwidth_bytes_per_s=bandwidth * 10**9), *machine.tiers[1:])
    compute = replace(machine.compute, efficiency=reached[0], beside_copies=reached[1])
    compared(plan, replace(machine, tiers=tiers, compute=compute), compete=True)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_any_plan(data: st.DataObject) -> None:
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    compared(plan, machine, compete=False, jitter=data.draw(JITTERS))


@given(cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_several_devices(case: Any, data: st.DataObject) -> None:
    _, machine, plan = case
    compared(
        plan,
        data.draw(several(machine, 3)),
        jitter=data.draw(JITTERS),
        record=data.draw(st.booleans()),
    )


@given(cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_collectives(case: Any, data: st.DataObject) -> None:
    _, machine, plan = case
    plan, machine = data.draw(
        with_collectives(
            plan, data.draw(several(machine, 3)) if data.draw(st.booleans()) else machine
        )
    )
    compared(
        plan,
        machine,
        jitter=data.draw(st.sampled_from((None, Jitter(3, 0.5)))),
        record=data.draw(st.booleans()),
    )


@given(st.data())
def test_ops_on_other_processors(data: st.DataObject) -> None:
    machine, measured = data.draw(machines()), data.draw(st.booleans())
    graph = data.draw(on_processors(machine, measured))
    plan = data.draw(
        processor_plans(graph, machine)
        if data.draw(st.integers(0, 3))
        else wild_plans(graph, machine)
    )
    machine = data.draw(several(machine, 3)) if data.draw(st.booleans()) else machine
    compared(plan, machine, compete=not measured, record=data.draw(st.booleans()))


@given(st.data())
def test_tiers_without_dma(data: st.DataObject) -> None:
    measured = data.draw(st.booleans())
    _, machine, plan = data.draw(
        cases(max_ops=7, max_streams=2, fabrics=True, roomy=None, measured=measured, uneven=True)
    )
    compared(plan, without_dma(data, machine), compete=not measured)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_runtime_policies(data: st.DataObject) -> None:
    machine = replace(
        data.draw(hardware(fabrics=True, uneven=True)),
        inspect_ns=data.draw(st.sampled_from((0, 3))),
    )
    graph = data.draw(graphs(8, 3))
    machine = sized(machine, graph, 10**4)
    needed = max(
        [
            op.workspace_bytes + sum([graph.tensors[t].size_bytes for t in op.uses])
            for op in graph.ops
        ]
    )
    budget = needed + data.draw(st.integers(0, 40))
    policy = data.draw(st.sampled_from(("on_demand", "lookahead", "unified_memory", "belady")))
    try:
        plan = policy_named(policy).plan(graph, machine, budget)
    except InfeasibleError:
        return
    compared(plan, machine, budget, jitter=data.draw(JITTERS))


@given(st.data())
def test_verdicts_are_replays_without_reasons(data: st.DataObject) -> None:
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    budget = data.draw(st.sampled_from((60, 200, machine.device.capacity_bytes)))
    judged = verdict(plan, machine, budget)
    try:
        whole = replay(plan, machine, budget)
    except PlanError:
        assert not judged.feasible
        return
    assert judged.feasible == whole.feasible
    if whole.feasible:
        assert judged == whole
    else:
        assert judged.error
        assert judged.makespan_ns is None


@st.composite
def in_a_line(draw: st.DrawFn) -> Hardware:
    """A machine whose third tier lies behind host memory, which may be tight; chunks are small."""
    near = draw(hardware(max_tiers=2, uneven=True))
    device, host = near.tiers
    host = replace(host, capacity_bytes=draw(st.sampled_from((30, 60, 100, 2000))))
    engines, rates = st.integers(1, 3), st.sampled_from((10**9, 3 * 10**9))
    far = [
        Channel(name, source, target, draw(rates), draw(st.sampled_from((0, 1, 5))), draw(engines))
        for name, source, target in (("read", "nvme", "ddr"), ("write", "ddr", "nvme"))
    ]
    return replace(
        near,
        tiers=(device, host, Tier("nvme", 10_000, 10**10, "host")),
        channels=(*near.channels, *far),
        chunk_bytes=draw(st.sampled_from((3, 7, 20))),
    )


@settings(max_examples=4 * settings.default.max_examples)
@given(in_a_line(), st.data())
def test_routes_of_several_channels(machine: Hardware, data: st.DataObject) -> None:
    graph = data.draw(graphs(6, 2, homes=["hbm", "nvme", "nvme"]))
    made = wild_plans(graph, machine, 16) if data.draw(st.booleans()) else plans(graph, machine)
    compared(data.draw(made), machine, compete=False, jitter=data.draw(JITTERS))


def test_what_the_loop_covers() -> None:
    """It replays most of what is drawn; what it refuses it names."""
    found: Counter[str] = Counter()

    @settings(max_examples=2 * settings.default.max_examples, derandomize=True, database=None)
    @given(cases(max_ops=6, max_streams=2, fabrics=True, uneven=True), st.data())
    def draw(case: Any, data: st.DataObject) -> None:
        _, machine, plan = case
        try:
            found[replay(plan, data.draw(several(machine, 3)), engine=LOOP).engine] += 1
        except InputError as error:
            found[str(error).split("cover ")[1].split(";")[0]] += 1

    draw()
    assert found[LOOP] > 10
    known = {
        "devices that do not do the same",
        "room in a shared tier that some of several devices have only",
    }
    assert found.keys() <= {LOOP, REFERENCE, *known}


@pytest.mark.parametrize(("size", "ns"), [(2**40, 5), (10, 2**62), (2**60, 2**61), (10, 2**59)])
def test_figures_that_63_bits_do_not_hold(size: int, ns: int) -> None:
    """A transfer of 34,000 years, or ops of a century each: the reference's result, or its
    error.
    """
    b = GraphBuilder("slow")
    for name in "vw":
        b.tensor(name, size, "parameter", "ddr")
        b.op(f"f{name}", "op", inputs=[name], duration_ns=ns)
    tiers = Tier("ddr", 2**62, 10**9), Tier("hbm", 2**62, 10**9, "device")
    machine = Hardware(
        "slow",
        tiers,
        (Channel("up", "ddr", "hbm", 1), Channel("down", "hbm", "ddr", 1)),
        Compute({}),
    )
    ups = [CacheOp("prefetch", t, "ddr", "hbm") for t in range(2)]
    compared(
        Plan(
            b.build(),
            cache_ops=(*ups, *[CacheOp("detach", t, "hbm", None, after=t) for t in range(2)]),
        ),
        machine,
    )


@pytest.mark.parametrize("record", [True, False])
def test_a_timeline_is_the_references(record: bool) -> None:
    from long_chain import MACHINE, chain_and_branches

    assert replay(chain_and_branches(8, 1), MACHINE, record=record).engine == (
        REFERENCE if record else LOOP
    )


@pytest.mark.parametrize("engine", [LOOP, REFERENCE])
def test_ops_wait_for_other_streams(engine: str) -> None:
    """``a`` reads what ``b`` then changes: 0 to 100 and 100 to 150 ns. ``c`` comes after ``b`` by
    name alone: 150 to 160 ns.
    """
    b = GraphBuilder("three ops on two streams")
    b.tensor("w", 4, "parameter")
    b.op("a", "matmul", inputs=["w"], duration_ns=100)
    b.op("b", "matmul", mutates=["w"], stream="side", duration_ns=50)
    b.op("c", "matmul", deps=["b"], duration_ns=10)
    result = replay(Plan(b.build()), TOY, engine=engine)
    assert result.makespan_ns == 160
    assert result.stall_ns["dependency"] == 50


@pytest.mark.parametrize(
    ("place", "tensor", "after"),
    [("tensor", 1, -1), ("tensor", -1, -1), ("after", 0, 1), ("after", 0, -2)],
)
def test_positions_that_a_plan_does_not_have(place: str, tensor: int, after: int) -> None:
    b = GraphBuilder("one op")
    b.tensor("w", 4, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["w"], duration_ns=10)
    with pytest.raises(PlanError, match=rf"cache_ops\[0\]\.{place}: expected"):
        replay(Plan(b.build(), cache_ops=(CacheOp("prefetch", tensor, "ddr", "hbm", after),)), TOY)
    with pytest.raises(PlanError, match="initial: expected"):
        replay(Plan(b.build(), initial={1: ("ddr",)}), TOY)
