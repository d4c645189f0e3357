"""When not to offload is the answer, and what the strongest rival is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rendered import facts

from hosim import engine
from hosim.analysis.remarks import (
    NoOffload,
    StrongestRival,
    fastest_with_ours,
    no_offload,
    strongest_rival,
)
from hosim.cache_plan import Plan
from hosim.engine import resident_step
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Compute, Hardware, Tier
from hosim.io import comparison_from_dict, comparison_to_dict
from hosim.report.answers import no_offload_sentence
from hosim.report.of_replays import strongest
from hosim.result import Result

MACHINE = Hardware("machine", (Tier("hbm", 1000, 10**12, "device"),), (), Compute({}))


def step() -> Graph:
    """Two ops of 50 ns that make 40 B each, one after the other, beside a weight of 30 B, 70 B at a
    time.
    """
    b = GraphBuilder("step")
    b.tensor("w", 30, "parameter")
    for i in range(2):
        b.tensor(f"a{i}", 40)
        b.op(f"f{i}", "m", inputs=["w"], outputs=[f"a{i}"], duration_ns=50)
    return b.build()


def result(policy: str, makespan_ns: int | None) -> Result:
    done = engine.replay(Plan(step()), MACHINE, 1000)
    return replace(done, policy=policy, makespan_ns=makespan_ns, feasible=makespan_ns is not None)


@pytest.mark.parametrize(
    ("budget", "fastest_ns", "answer"),
    [
        (70, 100, NoOffload("fits", 100, 70, 1, 100)),
        (70, None, NoOffload("fits", 100, 70, 1, None)),
        (69, 200, None),  # two devices hold 70 B: they take 200 ns together
        (69, 201, NoOffload("link", 100, 70, 2, 201)),
        (35, 201, NoOffload("link", 100, 70, 2, 201)),
        (34, 300, None),
        (69, None, None),
    ],
)
def test_not_to_offload_is_the_answer_where_it_takes_less_time_of_devices(
    budget: int, fastest_ns: int | None, answer: NoOffload
) -> None:
    assert no_offload(step(), 100, 70, budget, fastest_ns) == answer


def test_the_link_is_not_blamed_where_ops_may_run_beside_the_device() -> None:
    """A home PC was told not to offload, as the link were too slow, over which no weight went."""
    graph = step()
    beside = Graph(
        graph.name, graph.tensors, tuple([replace(op, also_on=(("ddr", 500),)) for op in graph.ops])
    )
    asked = 100, 70, 35, 1100
    assert no_offload(graph, *asked) == NoOffload("link", 100, 70, 2, 1100)
    assert no_offload(beside, *asked) is None
    assert no_offload(beside, 100, 70, 70, 1100) == NoOffload("fits", 100, 70, 1, 1100)


def test_without_ops_there_is_nothing_to_say() -> None:
    assert no_offload(GraphBuilder("nothing").build(), 0, 0, 10, 0) is None


def test_several_streams_hold_what_their_replay_does() -> None:
    b = GraphBuilder("streams")
    for name in ("x", "y"):
        b.tensor(name, 40)
        b.op(f"make {name}", "m", outputs=[name], duration_ns=5, stream=name)
    b.tensor("z", 30)
    b.op("make z", "m", outputs=["z"], duration_ns=5, stream="x")  # x is over by then
    resident = resident_step(b.build(), MACHINE)
    assert (resident.makespan_ns, resident.peak_bytes) == (10, 80)


def test_the_answer_in_a_sentence() -> None:
    fits, slow = (
        NoOffload("fits", 10**6, 2**20, 1, None),
        NoOffload("link", 10**6, 2**20, 3, 4 * 10**6),
    )
    assert facts(no_offload_sentence(fits, 2**30)) == "1.00 ms, 1.00 MiB, 1.00 GiB"
    assert (
        facts(no_offload_sentence(slow, 2**19), "link", "slow") == "link, slow, 4.00 ms, 3, 1.00 ms"
    )


OURS, OTHER, SLOW, FAILED = (
    result("hyperoffload", 90),
    result("static_split", 100),
    result("belady:x=1", 150),
    result("g10", None),
)


@pytest.mark.parametrize(
    ("results", "rival", "said"),
    [
        (
            [OURS, SLOW, OTHER, FAILED],
            StrongestRival("static_split", 100, 1 - 0.9),
            "static_split, 100 ns; hyperoffload takes 10 % less",
        ),
        (
            [replace(OURS, makespan_ns=120), OTHER],
            StrongestRival("static_split", 100, 1 - 1.2),
            "hyperoffload takes 20 % more",
        ),
        (
            [replace(OURS, makespan_ns=100), OTHER],
            StrongestRival("static_split", 100, 0.0),
            "hyperoffload takes as long",
        ),
        ([OURS, replace(OTHER, policy="optimal"), FAILED], None, ""),
        ([OTHER, SLOW], None, ""),
    ],
)
def test_the_strongest_rival(
    results: list[Result], rival: StrongestRival | None, said: str
) -> None:
    assert strongest_rival(results) == rival
    assert said in strongest(results).plain
    data = comparison_to_dict(results, answer=NoOffload("link", 1, 2, 3, 4))
    assert comparison_from_dict(data) == results
    assert ("strongest_rival" in data) == (rival is not None)
    assert data["do_not_offload"] == {
        "reason": "link",
        "resident_ns": 1,
        "resident_bytes": 2,
        "devices": 3,
        "fastest_ns": 4,
    }


def test_rivals_alone_do_not_say_how_fast_a_plan_can_be() -> None:
    assert fastest_with_ours([OTHER, SLOW]) is None
    assert fastest_with_ours([OTHER, replace(OURS, makespan_ns=120), FAILED]) == 100
