"""What a plan takes at least, from its transfers alone: never more than its replay, and as much
where room is no matter.
"""

from dataclasses import replace

import pytest
from drawn_choices import choices
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, hardware, several, sized
from toys import hill, machine, plateau

from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.engine import replay
from hosim.hardware import Fabric
from hosim.planner.hyperoffload import soonest_end_ns
from hosim.planner.hyperoffload.tensor_choices import analyse, insert


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("of", ["alone", "shared", "modelled", "devices"])
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_no_replay_ends_sooner(of: str, streams: int, data: st.DataObject) -> None:
    drawn = replace(data.draw(hardware(fabrics=of != "alone")), chunk_bytes=2**26)
    graph = data.draw(
        graphs(
            max_ops=10,
            max_streams=streams,
            homes=[t.name for t in drawn.tiers],
            measured=of in ("alone", "shared"),
        )
    )
    drawn = sized(drawn, graph)
    problem = analyse(graph, data.draw(several(drawn)) if of == "devices" else drawn)
    if any(tier not in {b.name for b in problem.below} for tier in problem.starts_below.values()):
        return
    plan = insert(problem, data.draw(choices(problem)), "test")
    result = replay(
        plan,
        problem.hardware,
        data.draw(st.integers(max(problem.floor_bytes), 2 * max(1, *problem.held_bytes))),
    )
    assert (
        result.makespan_ns is None or soonest_end_ns(plan, problem.hardware) <= result.makespan_ns
    )


def fetched(after: int) -> Plan:
    """Three ops of 20 ns, each with 10 B of its own that start below: they come up in turn, the
    second and third after an op.
    """
    graph = plateau(3)
    cache_ops = [
        CacheOp("prefetch", k, "ddr", "hbm", at) for k, at in enumerate((AT_START, AT_START, after))
    ]
    return Plan(graph, "test", tuple(cache_ops), dict.fromkeys(range(3), ("ddr",)))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (AT_START, 70),  # f0 waits 10 ns for its bytes; those of the others are there in time
        (0, 70),  # issued at 30, there at 40: f2 begins at 50
        (1, 80),  # issued at 50, there at 60
    ],
)
def test_ops_wait_for_transfers_that_take_turns(after: int, expected: int) -> None:
    plan = fetched(after)
    assert soonest_end_ns(plan, machine()) == replay(plan, machine(), 1000).makespan_ns == expected


def test_a_transfer_may_end_last() -> None:
    graph = hill(2)
    plan = Plan(graph, "test", (CacheOp("store", 0, "hbm", "ddr", len(graph.ops) - 2),))
    hw = machine()
    slow = replace(
        hw,
        channels=tuple(
            [replace(c, bandwidth_bytes_per_s=c.bandwidth_bytes_per_s // 10) for c in hw.channels]
        ),
    )
    # 10 B in 100 ns, from the end of the last op but one on, at 60
    assert soonest_end_ns(plan, slow) == 160


def test_channels_that_share_a_fabric_take_no_less_than_all_their_bytes() -> None:
    graph = plateau(3)
    up = [CacheOp("prefetch", k, "ddr", "hbm") for k in range(3)]
    hw = machine()
    plan = Plan(graph, "test", tuple(up), dict.fromkeys(range(3), ("ddr",)))
    shared = replace(
        hw, fabrics=(Fabric("bus", 10**8, tuple(c.name for c in hw.channels), "device"),)
    )
    # 30 B at 0.1 B/ns; the last op of 20 ns waits for the last of them
    assert soonest_end_ns(plan, shared) == 320
