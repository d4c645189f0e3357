"""Choices for the least traffic: what can stay does, the rest lies near, and what a share of a
machine has room for, all devices have.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.hyperoffload import least_traffic, nearer_tiers, search, with_least_traffic
from hosim.planner.hyperoffload.choice_passes import account
from hosim.planner.hyperoffload.explanations import explain
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    Evaluator,
    TensorChoice,
    WorkDone,
    analyse,
    everything,
    insert,
    of_another,
)
from hosim.policies import policy_named
from hosim.result import Result

pytestmark = pytest.mark.slow


def behind(device: int, host: int = 1000, devices: int = 1) -> Hardware:
    """A byte a nanosecond to host memory, and a hundred times as long from there to the disk;
    devices share all below.
    """
    tiers = (
        Tier("hbm", device, 10**12, "device"),
        Tier("ddr", host, 10**11, "host"),
        Tier("nvme", 10**6, 10**10, "host"),
    )
    channels = (
        Channel("h2d", "ddr", "hbm", 10**9),
        Channel("d2h", "hbm", "ddr", 10**9),
        Channel("read", "nvme", "ddr", 10**7 * devices),
        Channel("write", "ddr", "nvme", 10**7 * devices),
    )
    return Hardware("behind", tiers, channels, Compute({}), devices=devices)


def updates(count: int) -> Graph:
    """An op for each of ``count`` states of 100 B, which it changes, one after the other."""
    b = GraphBuilder("updates")
    for k in range(count):
        b.op(f"u{k}", "any", mutates=[b.tensor(f"s{k}", 100, "optimizer_state")], duration_ns=10)
    return b.build()


def test_what_has_room_all_the_time_stays_and_returns_are_late():
    """Of four states, each away for all ops but its own, 350 B hold the one in use and two more:
    the first two of those on the disk.
    """
    problem = analyse(updates(4), behind(350))
    below = TensorChoice("nvme", BELOW, {-1: -1})
    choices = {0: below._replace(below="ddr"), 1: below, 2: below, 3: below}
    found = least_traffic(problem, choices, 1.0, 350)
    assert dict(found) == {
        0: TensorChoice("ddr", BELOW, {-1: -1}),
        3: TensorChoice("ddr", BELOW, {-1: 2}),
    }


def test_tiers_are_filled_from_the_nearest_on_large_tensors_first():
    """190 B of host memory: of 100, 100, 100 B and 50 B there is room for one of the large ones,
    and for the small one.
    """
    b = GraphBuilder("sizes")
    for k, size in enumerate((100, 100, 50, 100)):
        b.op(f"u{k}", "any", mutates=[b.tensor(f"s{k}", size, "optimizer_state")], duration_ns=10)
    problem = analyse(b.build(), behind(100, host=190))
    found = nearer_tiers(
        problem, {t: TensorChoice("nvme", BELOW, {-1: t - 1}) for t in range(4)}, 1.0
    )
    assert [found[t].below for t in range(4)] == ["ddr", "nvme", "ddr", "nvme"]
    part = nearer_tiers(
        problem, {t: TensorChoice("nvme", BELOW, {-1: t - 1}) for t in range(4)}, 0.5
    )
    assert [part[t].below for t in range(4)] == ["nvme", "nvme", "ddr", "nvme"]
    # what lies there already takes its room
    tiers = ["ddr", "nvme", "nvme", "nvme"]
    found = nearer_tiers(
        problem, {t: TensorChoice(tiers[t], BELOW, {-1: t - 1}) for t in range(4)}, 1.0
    )
    assert [found[t].below for t in range(4)] == ["ddr", "nvme", "ddr", "nvme"]


@given(st.data())
def test_by_the_listed_order_all_fits_and_no_more_moves(data):
    graph = data.draw(graphs(8))
    problem = analyse(graph, behind(10**6))
    choices = everything(problem)
    least = max(account(problem, choices)[: len(graph.ops)], default=0)
    budget = int(least) + data.draw(st.integers(0, 200))
    found = least_traffic(problem, choices, 1.0, budget)
    assert set(found) <= set(choices)
    assert max(account(problem, found)[: len(graph.ops)], default=0) <= budget
    moved = [
        sum([graph.tensors[c.tensor].size_bytes for c in insert(problem, each, "").cache_ops])
        for each in (choices, found)
    ]
    assert moved[1] <= moved[0]


def long_step(count: int) -> Graph:
    """Forward ops that keep what they make for their backward ones, then an update of a state for
    each: more than 200 ops.
    """
    b = GraphBuilder("long")
    for k in range(count):
        b.op(
            f"f{k}",
            "any",
            inputs=[b.tensor(f"w{k}", 20, "parameter")],
            outputs=[b.tensor(f"x{k}", 10)],
            duration_ns=10,
        )
    for k in reversed(range(count)):
        b.op(
            f"b{k}",
            "any",
            inputs=[f"x{k}", f"w{k}"],
            outputs=[b.tensor(f"g{k}", 5)],
            duration_ns=10,
        )
    for k in range(count):
        b.op(
            f"u{k}",
            "any",
            inputs=[f"g{k}"],
            mutates=[f"w{k}", b.tensor(f"s{k}", 60, "optimizer_state")],
            duration_ns=10,
        )
    return b.build()


@pytest.fixture(scope="module")
def kept() -> Plan:
    """Of a step with 70 states of 60 B, the plan on a device of 2,400 B beside 1,500 B of host
    memory.
    """
    return search(long_step(70), BESIDE, 2400).plan


def slow_bytes(plan: Plan) -> int:
    """What crosses the slow channel."""
    return sum(
        [
            plan.graph.tensors[c.tensor].size_bytes
            for c in plan.cache_ops
            if "nvme" in (c.source, c.destination)
        ]
    )


BESIDE = behind(2400, host=1500)


def test_a_step_behind_host_memory_keeps_what_has_room(kept):
    """Of 2,400 B most is for states that stay, so that few cross the slow channel: half of what a
    sweep sends over it.
    """
    graph = kept.graph
    assert kept.judgement.source == "least_traffic"
    swept = search(long_step(70), BESIDE, 2400, effort=0.0).plan
    assert swept.judgement.source == "selection"
    must = sum([graph.tensors[t].size_bytes for t in graph.initial]) - 2400 - 1500
    assert 2 * must <= slow_bytes(kept) <= slow_bytes(swept) / 2
    assert replay(kept, BESIDE).makespan_ns < replay(swept, BESIDE).makespan_ns / 2


@pytest.mark.parametrize("fits", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_a_share_has_room_for_all_devices_have(fits, monkeypatch):
    """A plan for the least traffic of one device counts if all eight can run it together."""
    graph, hardware = long_step(70), behind(2400, host=8 * 1300 + 50, devices=8)
    asked = []

    def on_the_whole(plan: Plan, machine: Hardware, budget: int) -> Result:
        asked.append(machine)
        result = replay(plan, machine, budget)
        return result if fits else replace(result, feasible=False)

    monkeypatch.setitem(with_least_traffic.__globals__, "replay", on_the_whole)
    plan = search(graph, hardware.fair_share, 2400).plan
    assert (plan.judgement.source == "least_traffic") is fits
    assert replay(plan, hardware).feasible or not fits
    assert asked
    assert all(machine is hardware for machine in asked)


def test_another_policys_plan_that_no_share_has_room_for_may_fit_all_devices():
    """A share of host memory has 1,156 B. What is on its way takes room there, too, but not that of
    all eight devices at once.
    """
    graph, hardware = long_step(45), behind(2400, host=8 * 1150 + 50, devices=8)
    plan = policy_named("belady").plan(graph, hardware)
    assert replay(plan, hardware).feasible
    assert not replay(plan, hardware.fair_share).feasible
    assert of_another(replay, plan, hardware.fair_share, 2400).feasible


def test_a_plan_that_the_whole_machine_cannot_run_is_replayed_there_once(monkeypatch):
    """There is room for three states to stay, however small a part of the tiers is filled: that is
    one plan.
    """
    problem = analyse(updates(3), behind(2400, host=8000, devices=8).fair_share)
    evaluate = Evaluator(problem, 2400, "test", WorkDone())
    best = evaluate({t: choice.below_in("nvme") for t, choice in everything(problem).items()})
    asked = []

    def on_the_whole(plan: Plan, machine: Hardware, budget: int) -> Result:
        asked.append(plan)
        return replace(replay(plan, machine, budget), feasible=False)

    monkeypatch.setitem(with_least_traffic.__globals__, "replay", on_the_whole)
    assert with_least_traffic(evaluate, problem, best, "begun") == (best, "begun")
    assert [plan.cache_ops for plan in asked] == [()]


def test_where_no_sweep_fits_the_tiers_are_filled_from_the_farthest_on():
    graph, hardware = long_step(70), behind(300, host=800)
    outcome = search(graph, hardware, 300, effort=0.0)
    assert not outcome.cost.infeasible
    assert outcome.plan.judgement.source == "least_traffic"


@pytest.mark.long
def test_where_nothing_fits_below_no_tier_is_filled():
    hardware = behind(300, host=400)
    tight = replace(hardware, tiers=(*hardware.tiers[:2], Tier("nvme", 4000, 10**10, "host")))
    with pytest.raises(InfeasibleError):
        search(long_step(70), tight, 300, effort=0.0)


def test_a_share_knows_its_whole_machine_and_what_is_made_from_it_does_not():
    hardware = behind(100, devices=4)
    share = hardware.fair_share
    assert share.whole is hardware
    assert hardware.whole is hardware
    other = replace(share, chunk_bytes=1)
    assert other.whole is other


def test_an_explanation_says_what_stays_and_what_moves(kept):
    found = explain(kept, BESIDE, 2400)
    begin = (
        "Transfers take far longer than ops, so as much as possible stays, and the rest "
        "goes to the nearest tier with room."
    )
    assert found.origin == begin
    assert {one.why.partition(":")[0] for one in found.lines} == {"moved", "kept"}
