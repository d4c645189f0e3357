"""A plan in draws: the loop's figures beside replays by the reference with the same times, and what
is done where the loop cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import cases
from toy_machine import MACHINE

from hosim.analysis.costmodel import machine_under, op_durations
from hosim.analysis.costmodel.spreads import DrawnTimes
from hosim.cache_plan import CacheOp, Plan
from hosim.data.draws import DRAWS, FEW_DRAWS, Draws, LaterDraws
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.engine import later_draws, replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Fabric, Hardware
from hosim.io import result_from_dict, result_to_dict
from hosim.jitter import Jitter
from hosim.policies import policy_named
from hosim.result import REFERENCE


@dataclass(frozen=True)
class Fixed(Jitter):
    """Times of one draw, for the reference; of a machine with one link."""

    ops: tuple[float, ...] = ()
    copies: float = 1.0

    def op_factor(self, device: int, op: int) -> float:
        return self.ops[op]

    def transfer_factor(self, device: int, tensor: int, copy: int) -> float:
        return self.copies


@settings(max_examples=12)
@given(
    cases(max_ops=7, max_streams=2, roomy=None, measured=False),
    st.integers(0, DRAWS - 1),
    st.booleans(),
)
def test_a_draw_is_a_replay_with_other_times(case: Any, d: int, compete: bool) -> None:
    graph, machine, plan = case
    assume(len(machine.tiers) == 2)
    later = later_draws(plan, machine, machine.device.capacity_bytes, None, compete, lambda: None)
    assume(later is not None)
    found = later()
    times, nominal = DrawnTimes(graph, machine), op_durations(graph, machine)
    drawn = times.durations(nominal, DRAWS)[d]
    factors = tuple([new / ns if ns else 1.0 for new, ns in zip(drawn, nominal, strict=True)])
    fixed = Fixed(
        0, 1.0, 1.0, factors, float(times.copies(machine.channels[0], "parameter", DRAWS)[d])
    )
    expected = replay(plan, machine, compete=compete, jitter=fixed, engine=REFERENCE)
    if found is None:
        assert not expected.feasible
    else:
        assert found.makespan_ns[d] == expected.makespan_ns
        assert found.peak_bytes[d] == (expected.peak_bytes["hbm"] if expected.feasible else None)
        assert found.stall_ns[d] == (sum(expected.stall_ns.values()) if expected.feasible else None)


def streamed(layers: int = 6, flops: int = 400_000) -> Graph:
    """Layers whose weights lie below: a copy of 100 us each, and an op of 400 us."""
    builder = GraphBuilder("streamed")
    for i in range(layers):
        builder.tensor(f"w{i}", 100_000, "parameter", home="ddr")
        builder.op(f"f{i}", "matmul", inputs=[f"w{i}"], flops=flops * 1000, dtype="bf16")
    return builder.build()


def large() -> Hardware:
    return replace(
        MACHINE, tiers=tuple([replace(tier, capacity_bytes=10**9) for tier in MACHINE.tiers])
    )


def all_at_once(graph: Graph, device: str = "hbm") -> Plan:
    moves = [CacheOp("prefetch", t, "ddr", device) for t in range(len(graph.tensors))]
    return Plan(
        graph,
        cache_ops=(
            *moves,
            *[CacheOp("detach", t, device, None, after=t) for t in range(len(graph.tensors))],
        ),
    )


def test_a_collective_alone_on_its_links_takes_what_the_draw_says() -> None:
    builder = GraphBuilder("exchanged")
    builder.tensor("g", 10**6, "gradient", home="hbm")
    builder.op("sum", "all_reduce", inputs=["g"], kernel="all_reduce", sizes=(2, 10**6))
    graph, bus = builder.build(), Fabric("bus", 10**9, (), "device", 1)
    machine = replace(large(), fabrics=(bus,), devices=2)
    plan = Plan(graph)
    found = later_draws(plan, machine, 10**9, None, None, lambda: None)()
    nominal = op_durations(graph, machine)
    assert replay(plan, machine).makespan_ns == nominal[0]
    drawn = DrawnTimes(graph, machine).durations(nominal, DRAWS)[:, 0]
    assert found.makespan_ns == pytest.approx(drawn.tolist(), rel=1e-5)
    assert drawn.std() > 0.1 * nominal[0]


def test_few_draws_are_the_first_of_many() -> None:
    graph, machine = streamed(), large()
    many = replay(all_at_once(graph), machine).drawn
    few = replay(all_at_once(graph), machine, jitter=Jitter(1, 1e-9, 0.0)).drawn
    assert (len(many.makespan_ns), len(few.makespan_ns)) == (DRAWS, FEW_DRAWS)
    assert few.makespan_ns == many.makespan_ns[:FEW_DRAWS]
    assert replay(all_at_once(graph), machine).drawn == many


def test_a_runtime_policy_decides_anew_in_each_of_few_draws() -> None:
    graph, machine = streamed(), large()
    plan = policy_named("on_demand").plan(graph, machine, 300_000)
    found = replay(plan, machine, 300_000).drawn
    assert len(found.makespan_ns) == FEW_DRAWS
    assert "policy" in found.kind
    assert len(set(found.makespan_ns)) == FEW_DRAWS


def test_copies_of_a_runtime_policy_take_what_the_draw_says() -> None:
    graph, machine = streamed(), large()
    plan = policy_named("on_demand").plan(graph, machine, 300_000)
    found = replay(plan, machine, 300_000).drawn
    times, nominal = DrawnTimes(graph, machine), op_durations(graph, machine)
    drawn = times.durations(nominal, FEW_DRAWS)
    copies = times.copies(machine.channels[0], "parameter", FEW_DRAWS)
    for d in (0, FEW_DRAWS - 1):
        factors = tuple([new / ns for new, ns in zip(drawn[d], nominal, strict=True)])
        fixed = Fixed(0, 1.0, 1.0, factors, float(copies[d]))
        expected = replay(plan, machine, 300_000, jitter=fixed, engine=REFERENCE)
        assert found.makespan_ns[d] == expected.makespan_ns


def test_a_plan_beyond_the_loop_is_drawn_along_what_ends_last() -> None:
    """Devices that are not folded, and a chain whose order no draw changes: both ways say the
    same.
    """
    graph, machine = streamed(), large()
    whole = replay(all_at_once(graph), machine).drawn
    recorded = replay(all_at_once(graph), machine, record=True)
    apart = replace(
        machine,
        devices=2,
        devices_per_host=2,
        tiers=tuple([replace(tier, scope="device") for tier in machine.tiers]),
    )
    found = replay(all_at_once(graph), apart, jitter=Jitter(1, 1e-12, 0.0)).drawn
    assert "chain" in found.kind
    assert (found.stall_ns, found.stall_interval) == ((), None)
    assert np.log(found.makespan_ns).std() == pytest.approx(
        np.log(whole.makespan_ns).std(), rel=0.05
    )
    assert recorded.drawn == whole


def test_a_wait_for_the_host_is_drawn_as_the_host_is() -> None:
    """Ops of 1 us of which a host issues one each 10 us: all of the step is the host's, and spreads
    as it does.
    """
    builder = GraphBuilder("issued")
    for i in range(20):
        builder.op(f"f{i}", "matmul", flops=10**6, dtype="bf16")
    machine = machine_under(large(), Runtime("eager", host=RuntimeFigure(10_000.0, 0.3)))
    result = replay(Plan(builder.build()), machine)
    assert result.makespan_ns == pytest.approx(20 * 10_000, rel=0.1)
    assert np.log(result.drawn.makespan_ns).std() == pytest.approx(0.3, rel=0.1)
    assert "host" in result.drawn.sources[0].what


def test_where_the_uncertainty_is_from_adds_up() -> None:
    found = replay(all_at_once(streamed()), large()).drawn
    shares = [source.share for source in found.sources]
    assert shares == sorted(shares, reverse=True)
    assert 0.9 < sum(shares) <= 1
    assert {source.what for source in found.sources} >= {
        "guessed times of products",
        "a machine whose kernels nobody measured",
        "the software, which nobody named",
    }


def test_there_are_no_draws_where_all_is_measured() -> None:
    builder = GraphBuilder("measured")
    builder.op("f", "matmul", duration_ns=7)
    result = replay(Plan(builder.build()), MACHINE)
    assert (result.draws, result.drawn, result.makespan_low_ns) == (None, None, None)


def test_a_draw_of_the_host_is_a_replay_under_a_host_of_that_time() -> None:
    """Calls of 1 ms for ops of 0.4 ms: the host decides how long a step takes."""
    host = RuntimeFigure(1_000_000.0, 0.3)
    slow = Runtime("by hand", host=host, speed=RuntimeFigure(0.9))
    graph, machine = streamed(), replace(large(), software=slow)
    plan = Plan(graph, cache_ops=tuple([CacheOp("prefetch", i, "ddr", "hbm") for i in range(6)]))
    found = later_draws(
        plan, machine, machine.device.capacity_bytes, None, None, lambda: None
    ).few()
    times, nominal = DrawnTimes(graph, machine), op_durations(graph, machine)
    drawn = times.durations(nominal, FEW_DRAWS)
    for d in range(3):
        calls = round(1_000_000 * times.calls(FEW_DRAWS)[d])
        under = replace(machine, software=replace(slow, host=RuntimeFigure(float(calls), 0.3)))
        factors = tuple([new / ns for new, ns in zip(drawn[d], nominal, strict=True)])
        copies = float(times.copies(machine.channels[0], "parameter", FEW_DRAWS)[d])
        fixed = Fixed(0, 1.0, 1.0, factors, copies)
        expected = replay(plan, under, jitter=fixed, engine=REFERENCE)
        assert found.makespan_ns[d] == expected.makespan_ns
        assert expected.stall_ns["runtime"] > 6 * 0.3 * calls


def test_a_plan_that_fits_in_no_draw_says_so_in_files_too() -> None:
    graph, machine = streamed(), large()
    without_room = later_draws(all_at_once(graph), machine, 1, None, None, lambda: None).few()
    assert without_room.unfit_share == 1.0
    none = LaterDraws.of(Draws((None,) * FEW_DRAWS))
    result = replace(replay(all_at_once(graph), machine), draws=none)
    assert (result.makespan_low_ns, result.makespan_high_ns) == (None, None)
    again = result_from_dict(result_to_dict(result))
    for one in (result, again):
        assert (one.drawn.count, one.drawn.unfit_share) == (FEW_DRAWS, 1.0)
    assert again == result
