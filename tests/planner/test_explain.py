"""Explanations: every verdict on plans made by hand, and figures that agree with the replay's whoever made the plan."""

import pytest
from hypothesis import assume, given, reject, settings
from strategies import cases
from toys import hill, machine, plateau, training

from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError, PlanError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import explain as verdicts
from hosim.planner.hyperoffload.choices import BELOW, COPY, HOME, TensorChoice, insert
from hosim.planner.hyperoffload.explain import Explanation, Line, explain
from hosim.planner.hyperoffload.pipeline import plan
from hosim.planner.hyperoffload.problem import START, analyse
from hosim.result import Result


def explained(graph: Graph, choices: dict[str, TensorChoice], budget: int, hw: Hardware | None = None) -> Explanation:
    hw = hw or machine()
    made = insert(analyse(graph, hw), {graph.tensor_index[name]: choice for name, choice in choices.items()}, "test")
    return explain(made, hw, budget)


def line(found: Explanation, name: str, after: str = "") -> Line:
    graph = found.plan.graph
    (one,) = (
        one
        for one in found.lines
        if graph.tensors[one.score.gap.tensor].name == name and after in ("", graph.ops[one.score.gap.after].name)
    )
    return one


# -- verdicts --------------------------------------------------------------------------------------------------


def test_a_moved_activation_that_computation_hides() -> None:
    # a0 is stored 40..50 behind f1, and fetched 120..130 behind b2; f3 and b3 (60 to 100 ns) are over 30 B
    found = explained(hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30)
    one = line(found, "a0")
    assert (one.moved, one.reason) == (True, verdicts.HIDDEN)
    assert one.why == "moved: covers the peak at op f3, down_ddr and up_ddr hidden"
    assert (one.away_ns, one.saved_bytes, one.relief_byte_ns) == (70, 10, 400)
    down, up = (found.copies[k] for k in one.copies)
    assert [(c.up, c.transfer.issue_ns, c.transfer.start_ns, c.transfer.end_ns) for c in (down, up)] == [
        (False, 40, 40, 50),
        (True, 120, 120, 130),
    ]
    names = [op.name for op in found.plan.graph.ops]
    assert [(c.covered_ns, names[c.first_op], names[c.last_op], c.exposed_ns) for c in (down, up)] == [
        (10, "f2", "f2", 0),
        (10, "b1", "b1", 0),
    ]


def test_what_stays_because_enough_has_moved_and_what_never_is_over_budget() -> None:
    found = explained(hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30)
    assert line(found, "a1").why == "kept: enough moved already"
    assert not line(found, "a1").moved
    b = GraphBuilder("early")
    b.tensor("a", 10)
    b.tensor("big", 50)
    for i in range(6):
        reads, writes = (["a"] if i == 3 else []), {0: ["a"], 5: ["big"]}.get(i, [])
        b.op(f"f{i}", "op", inputs=reads, outputs=writes, duration_ns=20)
    found = explained(b.build(), {}, 60)
    assert (line(found, "a").reason, line(found, "a").why) == (verdicts.NO_PRESSURE, "kept: never idle while over budget")


def test_a_gap_shorter_than_the_round_trip() -> None:
    # a2 of 30 B is idle for b3's 20 ns; down and up take 60 ns
    found = explained(hill(4, size=30), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 90)
    assert line(found, "a2").why == "kept: gap of 20 ns is shorter than its round trip of 60 ns"


def test_a_channel_that_others_leave_no_time() -> None:
    # a (20 B) is idle from 20 to 80, long enough for its own round trip of 40 ns; but x (50 B) comes up from 20 to 70
    b = GraphBuilder("full")
    b.tensor("a", 20)
    b.tensor("x", 50, "parameter", "ddr")
    b.tensor("p", 60, "parameter")
    b.op("f0", "op", outputs=["a"], duration_ns=20)
    b.op("f1", "op", duration_ns=60)
    b.op("f2", "op", inputs=["a", "x"], duration_ns=20)
    b.op("f3", "op", inputs=["p"], duration_ns=20)
    away = {"x": TensorChoice("ddr", HOME, {START: 0}), "p": TensorChoice("ddr", BELOW, {START: 2})}
    one = line(explained(b.build(), away, 75), "a")
    assert one.reason == verdicts.CHANNEL_FULL
    assert one.why == "kept: up_ddr is free for 10 ns of its gap, its transfer takes 20 ns"


def test_an_exposed_transfer_names_who_waits_and_what_else_was_open() -> None:
    late = {"a0": TensorChoice("ddr", HOME, {1: 6})}  # issued when b1 ends at 140, just before b0
    found = explained(hill(4), late, 30)
    one = line(found, "a0")
    assert one.reason == verdicts.EXPOSED
    assert one.why == "moved: covers the peak at op f3; op b0 waits 10 ns for its prefetch; a1 was open too"
    (wait,) = found.waits
    assert (found.plan.graph.ops[wait.op].name, wait.cause, wait.start_ns, wait.end_ns) == ("b0", "transfer", 140, 150)
    assert found.copies[wait.transfer].transfer.tensor == one.score.gap.tensor
    both = explained(hill(4), {**late, "a1": TensorChoice("ddr", HOME, {2: 4}), "a2": TensorChoice("ddr", HOME, {3: 4})}, 30)
    assert line(both, "a0").why.endswith("nothing better was open")


def test_a_parameter_that_starts_below_across_the_step() -> None:
    found = explained(plateau(6), {"w3": TensorChoice("ddr", BELOW, {START: 0}), "w0": TensorChoice("ddr", COPY, {0: 4})}, 50)
    one = line(found, "w3")
    assert one.why == "moved: covers the peak at op f0, up_ddr hidden"
    assert one.away_ns == 20 + 40  # fetched from 20 on, before f3 at 60; gone from 80 to 120
    assert one.relief_byte_ns == 600


def test_what_lives_below_and_is_moved_for_no_pressure() -> None:
    found = explained(plateau(3, home="ddr"), {f"w{i}": TensorChoice("ddr", HOME, {START: START}) for i in range(3)}, 1000)
    assert line(found, "w2").why == "moved: lives in ddr, up_ddr hidden"
    assert line(found, "w0").why == "moved: lives in ddr; op f0 waits 10 ns for its prefetch"
    assert [one.saved_bytes for one in found.lines] == [0, 0, 0]
    idle = explained(plateau(6), {"w3": TensorChoice("ddr", BELOW, {START: 0})}, 60)
    assert line(idle, "w3").reason == verdicts.UNNEEDED


@pytest.mark.parametrize(
    ("reads", "below", "reason", "why"),
    [
        (True, 15, verdicts.NO_TIER, "kept: no tier below that can hold it is joined both ways"),  # a has 20 B, ddr 15 B
        (False, 1000, verdicts.OVERWRITTEN, "kept: op f2 writes it anew"),
    ],
)
def test_what_cannot_leave_and_what_need_not_come_back(reads: bool, below: int, reason: str, why: str) -> None:
    # 30 B while f0, f1 and f2 run if nothing moved; x starts below and comes up for f3, so that 25 B are enough
    b = GraphBuilder("cannot")
    b.tensor("a", 20)
    b.tensor("x", 10, "parameter")
    b.op("f0", "op", outputs=["a"], duration_ns=20)
    b.op("f1", "op", duration_ns=60)
    b.op("f2", "op", inputs=["a"] if reads else [], outputs=[] if reads else ["a"], duration_ns=20)
    b.op("f3", "op", inputs=["x"], duration_ns=20)
    one = line(explained(b.build(), {"x": TensorChoice("ddr", BELOW, {START: 2})}, 25, machine(below=below)), "a")
    assert (one.moved, one.reason, one.why) == (False, reason, why)


def test_short_lived_tensors_are_counted_and_not_listed() -> None:
    found = explained(training(2), {}, 1000)
    listed = {found.plan.graph.tensors[one.score.gap.tensor].name for one in found.lines}
    assert not any(name.startswith("s") for name in listed)
    assert found.without_gap_tensors == len(found.plan.graph.tensors) - len(listed)
    assert found.without_gap_bytes == sum(t.size_bytes for t in found.plan.graph.tensors if t.name not in listed)


def test_pressure_before_and_after() -> None:
    found = explained(hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30)
    (region,) = found.regions
    names = [op.name for op in found.plan.graph.ops]
    assert (names[region.first], names[region.last], region.over_ns) == ("f3", "b3", 40)
    assert (region.over_bytes, region.over_byte_ns, region.held_bytes) == (10, 400, 30)
    assert (names[found.peak_op], found.peak_bytes, found.result.peak_bytes["hbm"]) == ("f3", 40, 30)


def test_lines_come_by_bytes_saved() -> None:
    found = explained(hill(4), {"a1": TensorChoice("ddr", HOME, {2: 4})}, 30)
    assert [found.plan.graph.tensors[one.score.gap.tensor].name for one in found.lines] == ["a1", "a0", "a2"]
    assert found == explained(hill(4), {"a1": TensorChoice("ddr", HOME, {2: 4})}, 30)


def test_channels_over_the_step() -> None:
    found = explained(hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30)  # 160 ns: 20 parts of 8 ns
    assert found.loads["down_ddr"][5:7] == (1.0, 0.25)  # 40..48 and 48..50 of 48..56
    assert sum(share * 8 for share in found.loads["down_ddr"]) == 10
    assert sum(share * 8 for share in found.loads["up_ddr"]) == 10


# -- plans of others -------------------------------------------------------------------------------------------


def test_a_plan_that_does_not_fit_is_not_explained() -> None:
    with pytest.raises(InfeasibleError, match="the plan of test cannot be explained, it does not fit: out of memory"):
        explained(hill(4), {}, 30)


def test_a_policy_that_decides_during_the_replay_has_no_plan_to_explain() -> None:
    with pytest.raises(InputError, match="policy wild decides during the replay"):
        explain(Plan(hill(2), "wild", runtime=lambda: None), machine(), 100)  # type: ignore[arg-type, return-value]


def replayed(made: Plan, hw: Hardware) -> Result:
    """The replay of a drawn plan that fits; one that the engine refuses or that does not fit has nothing to explain."""
    try:
        result = replay(made, hw, record=True)
    except PlanError:
        reject()
    assume(result.feasible)
    return result


@settings(max_examples=100)
@given(cases(max_ops=10, max_streams=2, fabrics=True))
def test_figures_agree_with_the_replay(case: tuple[Graph, Hardware, Plan]) -> None:
    graph, hw, made = case
    result = replayed(made, hw)
    found = explain(made, hw, hw.device.capacity_bytes)
    assert found.result == result
    timeline = found.result.timeline
    assert timeline is not None
    main = [op.stream == ("compute" if "compute" in graph.streams else graph.streams[0]) for op in graph.ops]
    for name, channel in result.channels.items():
        of = [c for c in found.copies if c.transfer.channel == name]
        assert len(of) == channel.transfers
        assert sum(c.queue_ns for c in of) == channel.queue_ns
        blamed = [w for w in found.waits if w.transfer is not None and found.copies[w.transfer].transfer.channel == name and main[w.op]]
        assert sum(w.end_ns - w.start_ns for w in blamed) == channel.exposed_ns
        share = result.makespan_ns / len(found.loads[name]) if result.makespan_ns else 0
        assert abs(sum(found.loads[name]) * share - channel.busy_ns) <= max(1, len(of)) * len(found.loads[name])
    for copy in found.copies:
        running = [
            min(e, copy.transfer.end_ns) - max(s, copy.transfer.start_ns)
            for s, e, m in zip(timeline.op_start_ns, timeline.op_end_ns, main, strict=True)
            if m
        ]
        assert copy.covered_ns == sum(max(0, overlap) for overlap in running)
        assert copy.exposed_ns == sum(w.stall_ns for w in found.waits if w.transfer is not None and found.copies[w.transfer] is copy)
    for one in found.lines:
        assert one.away_ns == 0 or one.moved
        assert one.reason in verdicts.REASONS
        assert one.why.startswith("moved" if one.moved else "kept")
        assert one.relief_byte_ns <= one.score.bytes * one.away_ns


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_the_planner_moves_nothing_for_nothing(share: float) -> None:
    graph, hw = training(4), machine()
    problem = analyse(graph, hw)
    budget = max(max(problem.floor_bytes), int(max(problem.held_bytes) * share))
    found = explain(plan(graph, hw, budget, effort=0.2), hw, budget)
    assert any(one.moved for one in found.lines)
    assert not [one.why for one in found.lines if one.reason == verdicts.UNNEEDED]
    assert sum(one.saved_bytes for one in found.lines) >= found.peak_bytes - budget


def test_a_hand_written_plan_with_two_absences_of_one_tensor() -> None:
    b = GraphBuilder("twice")
    b.tensor("a", 10)
    b.tensor("w", 10, "parameter")
    for i in range(7):
        b.op(f"f{i}", "op", inputs=["a"] if i in (3, 6) else ["w"], outputs=["a"] if i == 0 else [], duration_ns=20)
    graph = b.build()
    cache_ops = (
        CacheOp(STORE, 0, "hbm", "ddr", 0),
        CacheOp(DETACH, 0, "hbm", None, 0),
        CacheOp(PREFETCH, 0, "ddr", "hbm", 1),
        CacheOp(DETACH, 0, "hbm", None, 3),
        CacheOp(PREFETCH, 0, "ddr", "hbm", 4),
    )
    found = explain(Plan(graph, "manual", cache_ops), machine(), 100)
    assert [len(line(found, "a", after).copies) for after in ("f0", "f3")] == [2, 1]
    assert [line(found, "a", after).away_ns for after in ("f0", "f3")] == [10, 20]  # stored by 30, back from 40; from 80 to 100
