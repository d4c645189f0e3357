"""Runtime policies on toys, with timelines derived by hand, and Belady's theorem."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware

from hosim import engine
from hosim.cache_plan import DETACH, STORE, CacheOp
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named

GB = 10**9
MACHINE = Hardware(  # a byte a nanosecond, each way; inspection is free
    "machine",
    (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11)),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
    Compute({"bf16": 10**12}),
)


def readers(*tensors: int, size: int = 10, ns: int = 10, home: str = "ddr") -> Graph:
    """One op after the other, each reading the parameter of that number."""
    b = GraphBuilder("readers")
    for t in sorted(set(tensors)):
        b.tensor(f"w{t}", size, "parameter", home)
    for i, t in enumerate(tensors):
        b.op(f"f{i}", "m", inputs=[f"w{t}"], duration_ns=ns)
    return b.build()


def run(policy: str, graph: Graph, budget: int, hardware: Hardware = MACHINE, **parameters):
    plan = policy_named(policy).plan(graph, hardware, budget, **parameters)
    result = engine.replay(plan, hardware, budget)
    assert result.peak_bytes[hardware.device_tier] <= budget
    return result


def test_on_demand_faults_and_evicts_the_least_recently_used() -> None:
    # Room for two. Each miss costs 10: w0, w1, w2 (w0 goes), w0 (w1 goes), w1 (w2 goes); each op
    # 10.
    result = run("on_demand", readers(0, 1, 2, 0, 1), 20)
    assert (result.makespan_ns, result.plan["prefetches"], result.plan["stores"]) == (100, 5, 0)
    assert result.stall_ns == {"dependency": 0, "transfer": 50, "capacity": 0, "runtime": 0}


def test_belady_evicts_what_is_used_farthest_ahead() -> None:
    # At w2, w0 is used next by op 3 and w1 by op 4: w1 goes, op 3 hits, and w1 is fetched again.
    result = run("belady", readers(0, 1, 2, 0, 1), 20)
    assert (result.makespan_ns, result.plan["prefetches"]) == (90, 4)


def test_lookahead_hides_what_it_sees_coming() -> None:
    # Room for three. w0 comes 0..10; launched with it, w1 comes 10..20 under op 0; with op 1, w2
    # under op 1; then all hits.
    result = run("lookahead", readers(0, 1, 2, 0, 1), 30, k=1)
    assert (result.makespan_ns, result.plan["prefetches"], result.stall_ns["transfer"]) == (
        60,
        3,
        10,
    )


def test_lookahead_never_evicts_for_what_is_to_come() -> None:
    # Room for one: it is on_demand.
    assert (
        run("lookahead", readers(0, 1, 2), 10).makespan_ns
        == run("on_demand", readers(0, 1, 2), 10).makespan_ns
        == 60
    )


def test_inspection_is_paid_for_every_op() -> None:
    result = run("on_demand", readers(0, 0, 0), 10, replace(MACHINE, inspect_ns=3))
    # 3 of inspection, 10 of fault, 10; then twice 3 and 10
    assert (result.makespan_ns, result.stall_ns["runtime"]) == (49, 9)


def test_what_is_dirty_is_stored_before_it_is_detached() -> None:
    b = GraphBuilder("dirty")
    b.tensor("a", 10)
    b.tensor("w", 20, "parameter", "ddr")
    b.op("make", "m", outputs=["a"], duration_ns=10)
    b.op("big", "m", inputs=["w"], duration_ns=10)
    b.op("use", "m", inputs=["a"], duration_ns=10)
    # make 0..10; a goes 10..20, w comes 20..40; big 40..50; w is clean and goes at once, a comes
    # 50..60; use 60..70
    result = run("on_demand", b.build(), 20)
    assert result.plan == {"prefetches": 2, "stores": 1, "detaches": 2}
    assert result.makespan_ns == 70


def test_what_starts_in_the_device_tier_is_back_at_the_end() -> None:
    b = GraphBuilder("back")
    b.tensor("w", 10, "parameter")
    b.tensor("t", 20)
    b.op("use", "m", inputs=["w"], duration_ns=10)
    b.op("make", "m", outputs=["t"], duration_ns=10)
    # use 0..10; w goes 10..20; make 20..30, which lets t go; w comes 30..40
    result = run("on_demand", b.build(), 25)
    assert (result.makespan_ns, result.drain_ns) == (40, 10)
    assert result.plan == {"prefetches": 1, "stores": 1, "detaches": 1}


def test_what_starts_below_and_is_written_is_back_there_at_the_end() -> None:
    b = GraphBuilder("home")
    b.tensor("m", 10, "optimizer_state", "ddr")
    b.tensor("w", 10, "parameter", "ddr")
    b.op("update", "m", mutates=["m"], duration_ns=10)
    b.op("use", "m", inputs=["w"], duration_ns=10)
    b.op("look", "m", inputs=["m"], duration_ns=10)
    # m comes 0..10, update 10..20; it goes back 20..30 while w comes; room for both; use 30..40;
    # look 40..50
    result = run("on_demand", b.build(), 20)
    assert (result.makespan_ns, result.plan["stores"], result.plan["prefetches"]) == (50, 1, 2)


@pytest.mark.parametrize(
    ("waits", "after", "detached"),
    [(True, "compute", True), (False, "compute", False), (True, "comm", False)],
)
def test_what_the_last_op_of_a_stream_used_last_is_freed_behind_it(
    waits: bool, after: str, detached: bool
) -> None:
    """w is used by f, then by g of another stream. It is detached with g if f has ended by then,
    and no op of g's stream comes later.
    """
    b = GraphBuilder("two streams")
    b.tensor("w", 10, "parameter", "ddr")
    b.tensor("a", 10)
    b.op("f", "m", inputs=["w"], outputs=["a"], duration_ns=10)
    b.op("g", "m", inputs=["w", "a"] if waits else ["w"], stream="comm", duration_ns=10)
    b.op("h", "m", inputs=["a"], stream=after, duration_ns=10)
    plan = policy_named("on_demand").plan(b.build(), MACHINE, 100)
    assert plan.cache_ops == ((CacheOp(DETACH, 0, "hbm", None, 1),) if detached else ())


def test_what_was_written_goes_back_in_the_order_of_the_last_writes() -> None:
    b = GraphBuilder("two writes")
    for name in "vw":
        b.tensor(name, 10, "parameter", "ddr")
    b.op("f", "m", inputs=["v"], duration_ns=10)
    b.op("g", "m", mutates=["w"], duration_ns=10)
    b.op("h", "m", mutates=["v"], duration_ns=10)
    graph = b.build()
    plan = policy_named("on_demand").plan(graph, MACHINE, 100)
    stored = [(graph.tensors[c.tensor].name, c.after) for c in plan.cache_ops if c.op == STORE]
    assert stored == [("w", 1), ("v", 2)]


def test_contents_that_are_overwritten_unread_are_not_stored() -> None:
    b = GraphBuilder("overwritten")
    b.tensor("a", 10)
    b.tensor("w", 20, "parameter", "ddr")
    b.op("make", "m", outputs=["a"], duration_ns=10)
    b.op("big", "m", inputs=["w"], duration_ns=10)
    b.op("again", "m", outputs=["a"], duration_ns=10)
    result = run("on_demand", b.build(), 20)
    assert (result.plan["stores"], result.makespan_ns) == (0, 50)


@pytest.mark.parametrize("policy", ["on_demand", "lookahead", "belady"])
def test_a_full_tier_below_is_passed_over(policy: str) -> None:
    b = GraphBuilder("full")
    b.tensor("a", 10)
    b.tensor("b", 10)
    b.tensor("c", 10)
    b.op("make", "m", outputs=["a", "b"], duration_ns=10)
    b.op("more", "m", outputs=["c"], duration_ns=10)
    b.op("use", "m", inputs=["a", "b"], duration_ns=10)
    machine = replace(
        MACHINE,
        tiers=(MACHINE.tiers[0], Tier("ddr", 9, 10**11), Tier("nvme", 100, 10**10)),
        channels=(
            *MACHINE.channels,
            Channel("read", "nvme", "hbm", GB),
            Channel("write", "hbm", "nvme", GB),
        ),
    )
    result = run(policy, b.build(), 20, machine)
    assert result.feasible
    assert result.channels["write"].bytes == 10
    assert not run(
        policy, b.build(), 20, replace(machine, tiers=(*machine.tiers[:2], Tier("nvme", 9, 10**10)))
    ).feasible


def misses_of_min(references: list[int], room: int) -> int:
    """The fewest misses that any replacement has, by trying all: a search over sets of
    residents.
    """
    states = {frozenset(): 0}
    for t in references:
        reached: dict[frozenset[int], int] = {}
        for held, misses in states.items():
            if t in held:
                options = [(held, misses)]
            elif len(held) < room:
                options = [(held | {t}, misses + 1)]
            else:
                options = [((held - {gone}) | {t}, misses + 1) for gone in held]
            for state, count in options:
                reached[state] = min(count, reached.get(state, count))
        states = reached
    return min(states.values())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.integers(1, 4))
def test_belady_is_optimal_where_the_theorem_holds(references, room) -> None:
    # Its assumptions: equal sizes, one tensor a reference, demand fetching, and victims that cost
    # nothing to drop (clean, below at the start).
    graph = readers(*references)
    least = misses_of_min(references, room)
    belady, lru = (run(policy, graph, room * 10) for policy in ("belady", "on_demand"))
    assert belady.plan["prefetches"] == least
    assert belady.channels["h2d"].bytes == 10 * least
    assert belady.channels["h2d"].bytes <= lru.channels["h2d"].bytes


def misses_of_lru(references: list[int], room: int) -> int:
    held: list[int] = []
    misses = 0
    for t in references:
        if t in held:
            held.remove(t)
        else:
            misses += 1
        held = [*held, t][-room:]
    return misses


@given(st.lists(st.integers(0, 5), min_size=1, max_size=25), st.integers(1, 5))
def test_on_demand_is_lru(references, room) -> None:
    assert run("on_demand", readers(*references), room * 10).plan["prefetches"] == misses_of_lru(
        references, room
    )


@given(st.data())
def test_lookahead_of_nothing_is_on_demand(data) -> None:
    machine = data.draw(hardware())
    graph = data.draw(
        graphs(max_ops=10, max_streams=3, homes=[tier.name for tier in machine.tiers])
    )
    budget = data.draw(st.integers(40, machine.device.capacity_bytes))
    try:
        lru = run("on_demand", graph, budget, machine)
    except InfeasibleError:
        return
    none = run("lookahead", graph, budget, machine, k=0)
    assert replace(none, policy=lru.policy) == lru


def test_a_victim_is_stored_beside_the_fetch_if_a_workspace_needs_its_room() -> None:
    # make ends at 10. big needs 10 of w and 10 of workspace, and 10 are free: a is stored 10..20
    # while w comes 10..20. big 20..30, a comes back 30..40, use 40..50.
    b = GraphBuilder("workspace")
    b.tensor("a", 10)
    b.tensor("w", 10, "parameter", "ddr")
    b.op("make", "m", outputs=["a"], duration_ns=10)
    b.op("big", "m", inputs=["w"], duration_ns=10, workspace_bytes=10)
    b.op("use", "m", inputs=["a"], duration_ns=10)
    result = run("on_demand", b.build(), 20)
    assert (result.makespan_ns, result.plan["prefetches"], result.plan["stores"]) == (50, 2, 1)


class FullMemory:
    """A view in which every tensor is in the device tier, none is used, and nothing is free."""

    now_ns = capacity_bytes = free_bytes = 0

    def residents(self):
        return ()

    def is_resident(self, tensor: int) -> bool:
        return True

    def is_busy(self, tensor: int) -> bool:
        return False

    def tiers_of(self, tensor: int):
        return ()


def test_an_op_that_asks_for_room_again_and_again_gets_no_more() -> None:
    """Each time a victim is stored or detached, 64 times at most; another op's asking is counted
    anew.
    """
    graph = readers(*range(70), home="hbm")
    policy = policy_named("on_demand").plan(graph, MACHINE, 1000).runtime()
    asked = [len(policy.make_room(op, 10, FullMemory())) for op in [69] * 65 + [68]]
    assert asked == [1] * 64 + [0, 1]


def test_what_finds_its_tier_full_goes_to_the_next_one() -> None:
    # ddr has room for one activation of two. Both are stored 20..30, one to each tier; w comes
    # 30..50, big 50..60; both come back 60..70, use 70..80.
    b = GraphBuilder("guests")
    b.tensor("a", 10)
    b.tensor("b", 10)
    b.tensor("w", 20, "parameter", "pool")
    b.op("first", "m", outputs=["a"], duration_ns=10)
    b.op("second", "m", outputs=["b"], duration_ns=10)
    b.op("big", "m", inputs=["w"], duration_ns=10)
    b.op("use", "m", inputs=["a", "b"], duration_ns=10)
    channels = (
        *MACHINE.channels,
        Channel("up", "pool", "hbm", GB),
        Channel("down", "hbm", "pool", GB),
    )
    below = (Tier("ddr", 10, 10**11), Tier("pool", 1000, 10**11))
    result = run(
        "on_demand",
        b.build(),
        20,
        replace(MACHINE, tiers=(MACHINE.tiers[0], *below), channels=channels),
    )
    assert (result.makespan_ns, result.plan["prefetches"], result.plan["stores"]) == (80, 3, 2)
    assert {name: channel.bytes for name, channel in result.channels.items()} == {
        "h2d": 10,
        "d2h": 10,
        "up": 30,
        "down": 10,
    }
