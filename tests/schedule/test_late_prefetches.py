"""Late prefetches change no time and fit in program order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from instances import instance
from strategies import cases
from toy_machine import GB, MACHINE

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Hardware, Tier
from hosim.planner.schedule import late_prefetches
from hosim.policies import policy_named
from hosim.result import IN_PROGRAM_ORDER


def up(tensor: int, after: int) -> CacheOp:
    return CacheOp("prefetch", tensor, "ddr", "hbm", after)


def out(tensor: int, after: int) -> CacheOp:
    return CacheOp("detach", tensor, "hbm", None, after)


def late(plan: Plan, budget: int, machine: Hardware = MACHINE) -> Plan:
    """Late by the plan's own replay: the same makespan, and still legal."""
    before = engine.replay(plan, machine, budget, record=True)
    assert before.timeline is not None
    changed = late_prefetches(plan, "hbm", before.timeline)
    assert verify(changed, machine) == ()
    assert engine.replay(changed, machine, budget).makespan_ns == before.makespan_ns
    return changed


def fits(plan: Plan, budget: int) -> bool:
    return engine.replay(plan, MACHINE, budget, account=IN_PROGRAM_ORDER).feasible


def layers(count: int = 3) -> Graph:
    """Ops of 5 ns, each reading a weight of 10 B of its own."""
    b = GraphBuilder("layers")
    for i in range(count):
        b.tensor(f"w{i}", 10, "parameter", "ddr")
        b.op(f"f{i}", "m", inputs=[f"w{i}"], duration_ns=5)
    return b.build()


def test_equal_layers_come_one_at_a_time() -> None:
    """All three are wanted from the start, and there is room for one: each waits until the one
    before has left.
    """
    early = Plan(
        layers(), cache_ops=(*(up(i, AT_START) for i in range(3)), *(out(i, i) for i in range(3)))
    )
    assert not fits(early, 10)
    assert engine.replay(early, MACHINE, 10).makespan_ns == 3 * (10 + 5)
    changed = late(early, 10)
    assert changed.cache_ops == (
        up(0, AT_START),
        out(0, 0),
        up(1, 0),
        out(1, 1),
        up(2, 1),
        out(2, 2),
    )
    assert fits(changed, 10)


def test_a_copy_that_waits_for_its_channel_alone_stays_behind_the_ops_that_run_when_it_begins() -> (
    None
):
    """With room for all the copies begin at 0, 10 and 20 ns; f0 runs from 10 to 15 and f1 from 20
    to 25 ns.
    """
    changed = late(Plan(layers(), cache_ops=tuple(up(i, AT_START) for i in range(3))), 30)
    assert changed.cache_ops == (up(0, AT_START), up(1, AT_START), up(2, 0))


def test_it_stays_before_the_next_use_and_the_next_cache_op() -> None:
    """A weight comes again while it is still there, which copies nothing, and one leaves before it
    is used.
    """
    b = GraphBuilder("again")
    b.tensor("w", 10, "parameter", "ddr")
    b.tensor("v", 10, "parameter", "ddr")
    for i in range(4):
        b.op(f"f{i}", "m", inputs=["w"] if i in (1, 3) else [], duration_ns=20)
    # w comes from 0 to 10 ns, v from 10 to 20; then v again from 40 to 50, when f1 has ended, and w
    # is not copied a second time
    plan = Plan(
        b.build(),
        cache_ops=(up(0, AT_START), up(1, AT_START), out(1, 0), up(0, 1), up(1, 1), out(1, 2)),
    )
    assert late(plan, 30) == plan


def test_it_stays_before_a_use_that_takes_no_time() -> None:
    """x has no bytes: behind w it begins and ends at 10 ns, and so does f1, which reads it."""
    b = GraphBuilder("empty")
    b.tensor("w", 10, "parameter", "ddr")
    b.tensor("x", 0, "parameter", "ddr")
    b.op("f0", "m", duration_ns=5)
    b.op("f1", "m", inputs=["x"], duration_ns=0)
    b.op("f2", "m", inputs=["w"], duration_ns=5)
    assert late(Plan(b.build(), cache_ops=(up(0, AT_START), up(1, AT_START))), 10).cache_ops == (
        up(0, AT_START),
        up(1, 0),
    )


def test_a_detach_of_the_same_place_follows_its_prefetch() -> None:
    """x comes when w has come, 20 to 70 ns: f1 has ended by then, but x leaves ddr for good where
    its prefetch stands.
    """
    b = GraphBuilder("moved")
    b.tensor("w", 50, "parameter", "ddr")
    b.tensor("x", 10)
    b.op("f0", "m", outputs=["x"], duration_ns=20)
    b.op("f1", "m", duration_ns=20)
    b.op("f2", "m", inputs=["w", "x"], duration_ns=20)
    x_leaves = (CacheOp("store", 1, "hbm", "ddr", 0), out(1, 0))
    moves = (*x_leaves, up(0, 0), up(1, 0), CacheOp("detach", 1, "ddr", None, 0), out(0, 2))
    plan = Plan(b.build(), cache_ops=moves)
    assert late(plan, 100) == plan


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (["f0"], ["s"], 1),
        ([], ["s"], 0),  # where s ends x need not have left
        (["f0"], [], 0),  # where f1 ends, and x leaves again, it need not have been issued
    ],
)
def test_on_two_streams_it_stays_between_the_cache_ops_of_its_tensor(
    first: list[str], second: list[str], place: int
) -> None:
    """w comes from 20 to 70 ns, and x again from 70 to 80. Op s has ended by then in any case."""
    b = GraphBuilder("two")
    b.tensor("w", 50, "parameter", "ddr")
    b.tensor("x", 10, "parameter", "ddr")
    b.op("f0", "m", inputs=["x"], duration_ns=10)
    b.op("s", "m", stream="side", deps=first, duration_ns=25)
    b.op("f1", "m", inputs=["w", "x"], deps=second, duration_ns=20)
    plan = Plan(b.build(), cache_ops=(up(1, AT_START), out(1, 0), up(0, 0), up(1, 0), out(1, 2)))
    assert late(plan, 100).cache_ops == (
        up(1, AT_START),
        out(1, 0),
        up(0, 0),
        up(1, place),
        out(1, 2),
    )


def test_on_two_streams_it_is_issued_no_sooner() -> None:
    """When w begins, at 20 ns, s has ended long since; it is listed behind f0, at whose end w is
    issued.
    """
    b = GraphBuilder("two")
    b.tensor("w", 50, "parameter", "ddr")
    b.op("f0", "m", duration_ns=20)
    b.op("s", "m", stream="side", duration_ns=5)
    b.op("f1", "m", inputs=["w"], duration_ns=20)
    plan = Plan(b.build(), cache_ops=(up(0, 0),))
    assert late(plan, 100) == plan


DEEP = replace(
    MACHINE,
    tiers=(*MACHINE.tiers, Tier("nvme", 1000, 10**10)),
    channels=(*MACHINE.channels, Channel("nvme_read", "nvme", "ddr", GB)),
)


def test_a_prefetch_of_several_hops_is_issued_before_the_first() -> None:
    """Ops of 5 ns. x passes ddr from 0 to 10 ns and arrives at 20; y waits for the first hop until
    10 ns, when f1 has ended.
    """
    b = GraphBuilder("deep")
    b.tensor("x", 10, "parameter", "nvme")
    b.tensor("y", 10, "parameter", "nvme")
    for i in range(6):
        b.op(f"f{i}", "m", duration_ns=5)
    b.op("last", "m", inputs=["x", "y"], duration_ns=5)
    plan = Plan(
        b.build(),
        cache_ops=tuple(CacheOp("prefetch", t, "nvme", "hbm", AT_START) for t in range(2)),
    )
    assert [cache_op.after for cache_op in late(plan, 100, DEEP).cache_ops] == [AT_START, 1]


def test_a_prefetch_into_a_tier_below_stays() -> None:
    """z begins its way to ddr at 20 ns, when f3 has ended, and so does y the one from there to
    hbm.
    """
    b = GraphBuilder("deep")
    for name in "xyz":
        b.tensor(name, 10, "parameter", "nvme")
    for i in range(6):
        b.op(f"f{i}", "m", duration_ns=5)
    b.op("last", "m", inputs=["y"], duration_ns=5)
    below = tuple(CacheOp("prefetch", t, "nvme", "ddr", AT_START) for t in range(3))
    assert late(Plan(b.build(), cache_ops=(*below, up(1, AT_START))), 100, DEEP).cache_ops == (
        *below,
        up(1, 3),
    )


def test_the_order_of_the_list_between_places_does_not_matter() -> None:
    early = Plan(
        layers(), cache_ops=(*(out(i, i) for i in range(3)), *(up(i, AT_START) for i in range(3)))
    )
    assert late(early, 10).cache_ops == (
        up(0, AT_START),
        out(0, 0),
        up(1, 0),
        out(1, 1),
        up(2, 1),
        out(2, 2),
    )


@pytest.mark.parametrize("policy", ["layerwise", "longest_gap", "g10"])
@pytest.mark.parametrize("number", range(6))
def test_plans_of_policies_fit_in_program_order(policy: str, number: int) -> None:
    drawn = instance(number, seed=7)
    plan = policy_named(policy).plan(drawn.graph, drawn.hardware, drawn.budget_bytes)
    before = engine.replay(plan, drawn.hardware, drawn.budget_bytes, record=True)
    assert before.timeline is not None
    changed = late_prefetches(plan, drawn.hardware.device_tier, before.timeline)
    if before.feasible:
        after = engine.replay(changed, drawn.hardware, drawn.budget_bytes, account=IN_PROGRAM_ORDER)
        assert (after.feasible, after.makespan_ns) == (True, before.makespan_ns)


@given(cases(max_ops=8, max_streams=3, roomy=None))
def test_drawn_plans_stay_legal(case) -> None:
    graph, machine, plan = case
    before = engine.replay(plan, machine, record=True)
    if not before.feasible or verify(plan, machine):
        return
    assert before.timeline is not None
    changed = late_prefetches(plan, machine.device_tier, before.timeline)
    assert verify(changed, machine) == ()
    if len(graph.streams) == 1:
        counted = engine.replay(changed, machine, account=IN_PROGRAM_ORDER).allocator
        assert counted is not None
        assert counted.peak_allocated_bytes <= before.peak_bytes[machine.device_tier]
