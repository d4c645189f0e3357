"""What runtime policies decide, as plans: legal, of the same transfers, and no runtime in what the
planner makes of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from strategies import cases

import hosim
from hosim import engine
from hosim.analysis import static_peak
from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, DETACH, PREFETCH, CacheOp
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named
from hosim.policies.own import freeze_runtime

GB = 10**9
MACHINE = Hardware(  # a byte a nanosecond, each way; inspecting an op takes 5 ns
    "machine",
    (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11)),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
    Compute({"bf16": 10**12}),
    inspect_ns=5,
)


def readers() -> Graph:
    """Three ops of 10 ns, each reading a parameter of 10 bytes; the first and the last one the
    same.
    """
    b = GraphBuilder("readers")
    for name in "ab":
        b.tensor(name, 10, "parameter", "ddr")
    for i, name in enumerate("aba"):
        b.op(f"f{i}", "m", inputs=[name], duration_ns=10)
    return b.build()


def test_by_hand():
    graph = readers()
    plan = policy_named("belady").plan(graph, MACHINE, 10)
    # 5 ns of inspection, 10 of transfer and 10 of the op, three times
    assert engine.replay(plan, MACHINE, 10).makespan_ns == 75
    static = freeze_runtime(plan, MACHINE, 10)
    assert static is not None
    assert static.runtime is None
    up = {name: CacheOp(PREFETCH, graph.tensor_index[name], "ddr", "hbm") for name in "ab"}
    gone = {name: CacheOp(DETACH, graph.tensor_index[name], "hbm", None) for name in "ab"}
    decisions = Counter(static.cache_ops)
    assert (
        decisions[replace(up["a"], after=AT_START)]
        == decisions[replace(up["b"], after=0)]
        == decisions[replace(up["a"], after=1)]
        == 1
    )
    assert decisions[replace(gone["a"], after=0)] == decisions[replace(gone["b"], after=1)] == 1
    # without the inspections: 10 of transfer and 10 of the op
    assert engine.replay(static, MACHINE, 10).makespan_ns == 60


@pytest.mark.parametrize("policy", ["belady", "on_demand", "lookahead"])
@given(case=cases(max_ops=8, roomy=False))
def test_legal_and_of_the_same_transfers(policy, case):
    graph, machine, _ = case
    budget = machine.device.capacity_bytes
    try:
        plan = policy_named(policy).plan(graph, machine, budget)
    except InfeasibleError:
        return
    result = engine.replay(plan, machine, budget)
    static = freeze_runtime(plan, machine, budget)
    if not result.feasible:
        assert static is None
    if static is None:
        return
    assert verify(static, machine, budget) == ()
    again = engine.replay(static, machine, budget)
    if again.feasible:
        assert {name: c.bytes for name, c in again.channels.items()} == {
            name: c.bytes for name, c in result.channels.items()
        }


def test_a_plan_without_a_runtime_is_as_it_is():
    plan = hosim.Plan(readers())
    assert freeze_runtime(plan, MACHINE, 1000) is plan


def test_the_first_of_devices_that_do_not_do_the_same_decides():
    """Of three devices two share a host: the reference replays each, with a policy of its own."""
    uneven = replace(MACHINE, devices=3, devices_per_host=2)
    first, others = (
        policy_named(name).plan(readers(), MACHINE, 20) for name in ("on_demand", "lookahead")
    )
    decided = [freeze_runtime(plan, MACHINE, 20) for plan in (first, others)]
    assert decided[0] is not None
    assert decided[1] is not None
    assert decided[0].cache_ops != decided[1].cache_ops
    makers = iter([first.runtime, others.runtime, others.runtime])
    static = freeze_runtime(replace(first, runtime=lambda: next(makers)()), uneven, 20)
    assert static is not None
    assert static.cache_ops == decided[0].cache_ops
    assert not [*makers]


@pytest.mark.long
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_hyperoffload_leaves_nothing_to_a_runtime(share):
    graph = hosim.load({"model": "llama-3.1-8b", "phase": "prefill", "sequence": 2048, "layers": 2})
    machine = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
    budget = int(static_peak(graph).bytes * share)
    plan = policy_named("hyperoffload").plan(graph, machine, budget)
    static = freeze_runtime(policy_named("belady").plan(graph, machine, budget), machine, budget)
    assert plan.runtime is None
    assert static is not None
    assert (
        engine.replay(plan, machine, budget).makespan_ns
        <= engine.replay(static, machine, budget).makespan_ns
    )


@pytest.mark.parametrize("policy", ["keep_first", "on_demand", "lookahead", "unified_memory"])
def test_what_takes_longer_than_what_there_is_to_beat_is_left_out(policy):
    plan = policy_named(policy).plan(readers(), MACHINE, 10)
    taken = engine.replay(plan, MACHINE, 10).makespan_ns
    assert freeze_runtime(plan, MACHINE, 10, taken) is not None
    assert freeze_runtime(plan, MACHINE, 10, taken - 1) is None


def test_a_replay_ends_where_it_is_too_late():
    asked = []

    class Asked:
        def __init__(self, policy):
            self.policy = policy

        def before_op(self, op, view):
            asked.append((op, view.now_ns))
            return self.policy.before_op(op, view)

        def make_room(self, op, wanted_bytes, view):
            return self.policy.make_room(op, wanted_bytes, view)

    plan = policy_named("belady").plan(readers(), MACHINE, 10)
    watched = replace(plan, runtime=lambda: Asked(plan.runtime()))
    # 25 ns each, so that the three ops begin to be looked at after 5, 30 and 55 ns; 10 ns of ops
    # are left of 64 at 55
    assert freeze_runtime(watched, MACHINE, 10, 64) is None
    assert asked == [(0, 5), (1, 30)]
    asked.clear()
    assert freeze_runtime(watched, MACHINE, 10, 75) is not None
    assert asked == [(0, 5), (1, 30), (2, 55)]
