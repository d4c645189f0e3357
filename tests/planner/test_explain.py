"""Explanations: every verdict on plans made by hand, and figures that agree with the replay's
whoever made the plan.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from rendered import facts
from strategies import cases, graphs, hardware, sized
from toys import hill, machine, plateau, training

from hosim.analysis import canonical
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError, PlanError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.planner import hyperoffload as notes
from hosim.planner.hyperoffload import (
    EVERYTHING,
    LOCAL_SEARCH,
    RIVAL,
    SELECTION,
    JudgedGap,
    Judgement,
    Selection,
    Weights,
    judged_gaps,
    plan,
    select,
    uses_gap,
)
from hosim.planner.hyperoffload import explanations as verdicts
from hosim.planner.hyperoffload.explanations import Explanation, Line, explain
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    TensorChoice,
    analyse,
    everything,
    insert,
)
from hosim.result import Result
from hosim.shipped import hardware_path


def explained(
    graph: Graph, choices: dict[str, TensorChoice], budget: int, hw: Hardware | None = None
) -> Explanation:
    hw = hw or machine()
    made = insert(
        analyse(graph, hw),
        {graph.tensor_index[name]: choice for name, choice in choices.items()},
        "test",
    )
    return explain(made, hw, budget)


def line(found: Explanation, name: str, after: str = "") -> Line:
    graph = found.plan.graph
    (one,) = (
        one
        for one in found.lines
        if graph.tensors[one.gap.tensor].name == name
        and after in ("", graph.ops[one.gap.after].name)
    )
    return one


# -- verdicts
# --------------------------------------------------------------------------------------------------


NOT_JUDGED = "the planner did not judge it"


def test_a_moved_activation_that_computation_hides() -> None:
    # a0 is stored 40..50 behind f1, and fetched 120..130 behind b2; f3 and b3 (60 to 100 ns) are
    # over 30 B
    found = explained(hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30)
    assert facts(found.origin, "test") == "test"
    one = line(found, "a0")
    assert (one.moved, one.reason, one.judged, one.score) == (
        True,
        verdicts.UNJUDGED_MOVED,
        None,
        None,
    )
    assert one.why == f"moved: {NOT_JUDGED}; overlapped"
    assert (one.away_ns, one.saved_bytes, one.relief_byte_ns, one.exposed_ns) == (70, 10, 400, 0)
    down, up = (found.copies[k] for k in one.copies)
    assert [
        (c.up, c.transfer.issue_ns, c.transfer.start_ns, c.transfer.end_ns) for c in (down, up)
    ] == [
        (False, 40, 40, 50),
        (True, 120, 120, 130),
    ]
    names = [op.name for op in found.plan.graph.ops]
    assert [
        (c.covered_ns, names[c.first_op], names[c.last_op], c.exposed_ns) for c in (down, up)
    ] == [
        (10, "f2", "f2", 0),
        (10, "b1", "b1", 0),
    ]
    kept = line(found, "a1")
    assert (kept.moved, kept.reason, kept.why) == (
        False,
        verdicts.UNJUDGED_KEPT,
        f"kept: {NOT_JUDGED}",
    )


def test_an_exposed_transfer_names_who_waits() -> None:
    late = {"a0": TensorChoice("ddr", HOME, {1: 6})}  # issued when b1 ends at 140, just before b0
    found = explained(hill(4), late, 30)
    one = line(found, "a0")
    assert one.why == f"moved: {NOT_JUDGED}; op b0 waits 10 ns for its prefetch"
    assert one.exposed_ns == 10
    (wait,) = found.waits
    assert (found.plan.graph.ops[wait.op].name, wait.cause, wait.start_ns, wait.end_ns) == (
        "b0",
        "transfer",
        140,
        150,
    )
    assert found.copies[wait.transfer].transfer.tensor == one.gap.tensor


def test_a_parameter_that_starts_below_is_away_at_both_ends_of_the_step() -> None:
    found = explained(
        plateau(6),
        {"w3": TensorChoice("ddr", BELOW, {AT_START: 0}), "w0": TensorChoice("ddr", COPY, {0: 4})},
        50,
    )
    before, after = [
        one for one in found.lines if found.plan.graph.tensors[one.gap.tensor].name == "w3"
    ]
    assert (before.gap.after, after.gap.before) == (AT_START, 6)
    assert before.away_ns == 20  # fetched from 20 on, before f3 at 60
    assert after.away_ns == 40  # gone from 80 to 120
    assert (before.relief_byte_ns, after.relief_byte_ns) == (200, 400)
    assert (before.effect, after.effect) == ("overlapped", "no transfer")


def test_what_lives_below_and_comes_up() -> None:
    found = explained(
        plateau(3, home="ddr"),
        {f"w{i}": TensorChoice("ddr", HOME, {AT_START: AT_START}) for i in range(3)},
        1000,
    )
    assert {one.reason for one in found.lines} == {verdicts.FROM_HOME}
    assert line(found, "w2").why == "moved: its home is ddr; overlapped"
    assert line(found, "w0").why == "moved: its home is ddr; op f0 waits 10 ns for its prefetch"
    assert [one.saved_bytes for one in found.lines] == [0, 0, 0]


# -- what the planner judged
# -----------------------------------------------------------------------------------


def judged_by(selection: Selection) -> dict[tuple[str, int], JudgedGap]:
    return {
        (selection.problem.graph.tensors[one.gap.tensor].name, one.gap.after): one
        for one in judged_gaps(selection)
    }


def test_selection_says_where_it_took_a_gap_and_whom_it_preferred() -> None:
    # over 30 B: f3 and b3. a0 (f1 to b0) and a1 (f2 to b1) are open at f3 (op 3) and cover both, 40
    # ns: the first one listed goes. Then nothing is over budget at b3, where a2 (f3 to b2) is open.
    found = judged_by(select(analyse(hill(4), machine()), 30, Weights()))
    a0, a1, a2 = found["a0", 1], found["a1", 2], found["a2", 3]
    assert (a0.taken, a0.reason, a0.op, a0.over_bytes) == (True, "best_score", 3, 10)
    assert a0.score is not None
    assert (a0.score.score, a0.rival_score) == (40, 40)
    assert (a1.taken, a1.reason, a1.op, a1.rival_score) == (False, "outscored", 3, 40)
    assert (a2.taken, a2.reason, a2.op) == (False, "enough", -1)


def test_the_rival_is_the_best_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hosim.planner.hyperoffload.sweep_cells._LOOK", 3)
    # 30 B of a, b and c from f0 on, and 10 B of workspace in f2: 10 B over for 20 ns. a and c, used
    # by f6, are away for all of it; b, used by f3, can come up only when f2 has ended, so that f3
    # waits 10 ns, each of which weighs 4
    b = GraphBuilder("three")
    for name in "abc":
        b.tensor(name, 10)
    for i in range(7):
        reads = {3: ["b"], 6: ["a", "c"]}.get(i, [])
        b.op(
            f"f{i}",
            "op",
            inputs=reads,
            outputs=list("abc") if i == 0 else [],
            duration_ns=60 if i == 1 else 20,
            workspace_bytes=10 * (i == 2),
        )
    found = judged_by(select(analyse(b.build(), machine()), 30, Weights()))
    a, second, c = found["a", 0], found["b", 0], found["c", 0]
    assert [one.score.score for one in (a, second, c) if one.score is not None] == [20, -20, 20]
    assert [one.taken for one in (a, second, c)] == [True, False, False]
    assert [one.rival_score for one in (a, second, c)] == [20, 20, 20]
    assert {one.op for one in (a, second, c)} == {2}


def test_selection_leaves_what_is_never_over_budget_and_what_fits_nowhere() -> None:
    b = GraphBuilder("early")
    b.tensor("a", 10)
    b.tensor("big", 50)
    for i in range(6):
        reads, writes = (["a"] if i == 3 else []), {0: ["a"], 5: ["big"]}.get(i, [])
        b.op(f"f{i}", "op", inputs=reads, outputs=writes, duration_ns=20)
    assert {
        one.reason
        for one in judged_by(select(analyse(b.build(), machine()), 45, Weights())).values()
    } == {"no_pressure"}
    nowhere = select(analyse(hill(4), machine(below=9)), 30, Weights())  # every activation has 10 B
    assert nowhere.short_bytes == 10
    assert {name: one.reason for (name, _), one in judged_by(nowhere).items()} == dict.fromkeys(
        ("a0", "a1", "a2"), "no_tier"
    )


def test_what_starts_below_leaves_after_its_last_use_without_a_decision_of_its_own() -> None:
    found = judged_by(select(analyse(plateau(6), machine()), 30, Weights()))
    starts = {name for (name, after), one in found.items() if after == AT_START and one.taken}
    assert starts
    for (name, after), one in found.items():
        if after != AT_START and name in starts:
            assert (one.taken, one.reason) == (True, "starts_below")


def agrees(found: Explanation) -> None:
    """Every line says what the planner's notes say, and the plan moves what they say."""
    judgement = found.judgement
    assert judgement is not None
    count = len(found.plan.graph.ops)
    for one in found.lines:
        if one.reason == verdicts.FROM_HOME:
            continue
        used = uses_gap(judgement.choices, one.gap, count)
        assert one.moved == used or one.reason == verdicts.NO_PLACE, one.why
        if one.reason == verdicts.NO_PLACE:
            assert (used, one.moved) == (True, False)
            assert len(found.plan.graph.streams) > 1
        elif judgement.source == SELECTION:
            assert one.judged is not None
            assert (one.moved, one.reason) == (one.judged.taken, one.judged.reason), one.why
        elif judgement.source == LOCAL_SEARCH:
            assert one.judged is not None
            assert (one.reason in (verdicts.SEARCH_MOVED, verdicts.SEARCH_KEPT)) == (
                one.judged.taken != one.moved
            )
        assert one.why.startswith("moved" if one.moved else "kept")


def consistent(selection: Selection) -> None:
    """What was taken was over budget where it was taken, and scored no less than anything that it
    was compared with there.
    """
    problem, found = selection.problem, judged_gaps(selection)
    assert [one.gap for one in found] == [
        gap for gap in problem.gaps if problem.graph.tensors[gap.tensor].size_bytes
    ]
    count = len(problem.graph.ops)
    for one in found:
        assert one.taken == uses_gap(selection.choices, one.gap, count)
        if one.reason == "best_score":
            assert one.score is not None
            assert one.over_bytes > 0
            assert one.rival_score is None or one.score.score >= one.rival_score
        elif one.reason == "outscored" and one.op >= 0:
            assert one.score is not None
            assert one.rival_score is not None
            assert one.score.score <= one.rival_score


@settings(max_examples=12)
@given(data=st.data())
def test_the_explanation_agrees_with_the_selection_on_every_gap(data: st.DataObject) -> None:
    graph = canonical(data.draw(graphs(max_ops=10, max_streams=2)))
    hw = sized(data.draw(hardware()), graph)
    problem = analyse(graph, hw)
    budget = data.draw(st.integers(max(problem.floor_bytes), max(1, *problem.held_bytes)))
    try:
        made = plan(graph, hw, budget, effort=0.02)
    except InfeasibleError:
        reject()
    found = explain(made, hw, budget)
    agrees(found)
    if found.judgement is not None and found.judgement.selection is not None:
        consistent(found.judgement.selection)


@given(data=st.data())
def test_selection_ranks_what_it_takes_above_what_it_leaves(data: st.DataObject) -> None:
    graph = canonical(data.draw(graphs(max_ops=12, max_streams=2)))
    problem = analyse(graph, sized(data.draw(hardware()), graph))
    weights = Weights(
        waiting=data.draw(st.sampled_from((0.0, 0.3, 1.0))),
        slow=data.draw(st.sampled_from((1.0, 0.7, 1.07))),
    )
    selection = select(problem, data.draw(st.integers(1, max(1, *problem.held_bytes))), weights)
    consistent(selection)
    assert judged_gaps(selection) == judged_gaps(selection)


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize(
    "graph",
    [hill(8), plateau(12), training(8), plateau(8, home="ddr")],
    ids=["hill", "plateau", "training", "below"],
)
def test_the_explanation_agrees_on_plans_of_the_planner(graph: Graph, share: float) -> None:
    problem = analyse(graph, machine())
    budget = max(max(problem.floor_bytes), int(max(problem.held_bytes) * share))
    found = explain(plan(graph, machine(), budget, effort=0.02), machine(), budget)
    agrees(found)
    assert found.judgement is not None
    assert (found.judgement.selection is None) == (found.judgement.source == "spread")
    if found.judgement.selection is not None:
        consistent(found.judgement.selection)


@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_the_explanation_agrees_on_a_model_of_today(phase: str) -> None:
    graph = build("llama", {"model": "llama-3.1-8b", "phase": phase, "sequence": 4096, "layers": 2})
    hw = load_hardware(hardware_path("h100-80gb-sxm"))
    problem = analyse(graph, hw)
    selection = select(problem, max(problem.held_bytes) * 7 // 10, Weights())
    made = replace(
        insert(problem, selection.choices, "test"),
        judgement=Judgement(SELECTION, selection.choices, selection, graph=graph),
    )
    found = explain(made, hw, hw.device.capacity_bytes)
    agrees(found)
    consistent(selection)
    assert {"best_score", "outscored"} <= {one.reason for one in found.lines}


def test_local_search_is_named_where_it_decided_otherwise() -> None:
    graph, hw = hill(4), machine()
    selection = select(analyse(graph, hw), 30, Weights())
    choices = {graph.tensor_index["a1"]: TensorChoice("ddr", HOME, {2: 4})}  # selection takes a0
    made = replace(
        insert(analyse(graph, hw), choices, "test"),
        judgement=Judgement(LOCAL_SEARCH, choices, selection),
    )
    found = explain(made, hw, 30)
    agrees(found)
    assert line(found, "a0").why.startswith("kept: ")
    assert line(found, "a1").why.startswith("moved: ")
    assert line(found, "a2").reason == "enough"
    assert facts(found.origin).endswith("2")


def test_a_rivals_plan_says_whose_it_is() -> None:
    made = insert(
        analyse(hill(4), machine()), {0: TensorChoice("ddr", HOME, {1: 5})}, "hyperoffload"
    )
    found = explain(replace(made, judgement=Judgement(RIVAL, {}, rival="layerwise")), machine(), 30)
    assert found.origin.startswith("Plan of layerwise: ")
    assert {one.reason for one in found.lines} == {verdicts.UNJUDGED_MOVED, verdicts.UNJUDGED_KEPT}


def test_what_was_tried_is_named_or_counted() -> None:
    """All of up to four other policies, else the first three; rules and settings are counted."""
    made = insert(
        analyse(hill(4), machine()), {0: TensorChoice("ddr", HOME, {1: 5})}, "hyperoffload"
    )
    names = ("alpha", "beta", "gamma", "delta", "omega")

    def said(*tried: str) -> str:
        judgement = Judgement(RIVAL, {}, rival="layerwise", tried=tried)
        origin = explain(replace(made, judgement=judgement), machine(), 30).origin
        return facts(origin.partition("layerwise")[2], *names)

    assert said("alpha") == "alpha"
    assert said(*names[:3]) == "alpha, beta, gamma"
    assert said(*names[:4]) == "alpha, beta, gamma, delta"
    assert said(*names) == "alpha, beta, gamma, 2"
    assert said("placement a", "alpha", "placement b", "alpha: x=1") == "2, alpha, 1"


def test_everything_moves_where_no_selection_fits() -> None:
    problem = analyse(hill(4), machine())
    choices = everything(problem)
    made = replace(
        insert(problem, choices, "test"),
        judgement=Judgement(EVERYTHING, choices, select(problem, 10, Weights())),
    )
    found = explain(made, machine(), 40)
    assert {one.reason for one in found.lines if one.moved} == {notes.EVERYTHING}
    assert found.origin.startswith("No selection fits")


def test_notes_about_another_plan_are_not_used() -> None:
    graph, hw = hill(4), machine()
    made = plan(graph, hw, 30)
    assert explain(made, hw, 30).judgement is not None
    changed = replace(
        made,
        cache_ops=tuple(
            replace(c, after=c.after + 1) if c.op == DETACH else c for c in made.cache_ops
        ),
    )
    found = explain(changed, hw, 40)
    assert found.judgement is None
    assert facts(found.origin, "hyperoffload") == "hyperoffload"


# -- figures of the replay
# -------------------------------------------------------------------------------------


def test_short_lived_tensors_are_counted_and_not_listed() -> None:
    found = explained(training(2), {}, 1000)
    listed = {found.plan.graph.tensors[one.gap.tensor].name for one in found.lines}
    assert not any(name.startswith("s") for name in listed)
    assert found.without_gap_tensors == len(found.plan.graph.tensors) - len(listed)
    assert found.without_gap_bytes == sum(
        t.size_bytes for t in found.plan.graph.tensors if t.name not in listed
    )


def test_pressure_before_and_after() -> None:
    found = explained(hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30)
    (region,) = found.regions
    names = [op.name for op in found.plan.graph.ops]
    assert (names[region.first], names[region.last], region.over_ns) == ("f3", "b3", 40)
    assert (region.over_bytes, region.over_byte_ns, region.held_bytes) == (10, 400, 30)
    assert (names[found.peak_op], found.peak_bytes, found.result.peak_bytes["hbm"]) == (
        "f3",
        40,
        30,
    )


def test_lines_come_by_bytes_saved() -> None:
    found = explained(hill(4), {"a1": TensorChoice("ddr", HOME, {2: 4})}, 30)
    assert [found.plan.graph.tensors[one.gap.tensor].name for one in found.lines] == [
        "a1",
        "a0",
        "a2",
    ]
    assert found == explained(hill(4), {"a1": TensorChoice("ddr", HOME, {2: 4})}, 30)


def test_channels_over_the_step() -> None:
    found = explained(
        hill(4), {"a0": TensorChoice("ddr", HOME, {1: 5})}, 30
    )  # 160 ns: 20 parts of 8 ns
    assert found.loads["down_ddr"][5:7] == (1.0, 0.25)  # 40..48 and 48..50 of 48..56
    assert sum(share * 8 for share in found.loads["down_ddr"]) == 10
    assert sum(share * 8 for share in found.loads["up_ddr"]) == 10


# -- plans of others
# -------------------------------------------------------------------------------------------


def test_a_plan_that_does_not_fit_is_not_explained() -> None:
    with pytest.raises(
        InfeasibleError,
        match="the plan of test cannot be explained, it does not fit: out of memory",
    ):
        explained(hill(4), {}, 30)


def test_a_policy_that_decides_during_the_replay_has_no_plan_to_explain() -> None:
    with pytest.raises(InputError, match="policy wild decides during the replay"):
        explain(Plan(hill(2), "wild", runtime=lambda: None), machine(), 100)  # type: ignore[arg-type, return-value]


def replayed(made: Plan, hw: Hardware) -> Result:
    """The replay of a drawn plan that fits; one that the engine refuses or that does not fit has
    nothing to explain.
    """
    try:
        result = replay(made, hw, record=True)
    except PlanError:
        reject()
    assume(result.feasible)
    return result


@given(cases(max_ops=10, max_streams=2, fabrics=True))
def test_figures_agree_with_the_replay(case: tuple[Graph, Hardware, Plan]) -> None:
    graph, hw, made = case
    result = replayed(made, hw)
    found = explain(made, hw, hw.device.capacity_bytes)
    assert found.result == result
    timeline = found.result.timeline
    assert timeline is not None
    main = [
        op.stream == ("compute" if "compute" in graph.streams else graph.streams[0])
        for op in graph.ops
    ]
    for name, channel in result.channels.items():
        of = [c for c in found.copies if c.transfer.channel == name]
        assert len(of) == channel.transfers
        assert sum(c.queue_ns for c in of) == channel.queue_ns
        blamed = [
            w
            for w in found.waits
            if w.transfer is not None
            and found.copies[w.transfer].transfer.channel == name
            and main[w.op]
        ]
        assert sum(w.end_ns - w.start_ns for w in blamed) == channel.exposed_ns
        share = result.makespan_ns / len(found.loads[name]) if result.makespan_ns else 0
        assert abs(sum(found.loads[name]) * share - channel.busy_ns) <= max(1, len(of)) * len(
            found.loads[name]
        )
    for copy in found.copies:
        running = [
            min(e, copy.transfer.end_ns) - max(s, copy.transfer.start_ns)
            for s, e, m in zip(timeline.op_start_ns, timeline.op_end_ns, main, strict=True)
            if m
        ]
        assert copy.covered_ns == sum(max(0, overlap) for overlap in running)
        assert copy.exposed_ns == sum(
            w.stall_ns
            for w in found.waits
            if w.transfer is not None and found.copies[w.transfer] is copy
        )
    for one in found.lines:
        assert one.away_ns == 0 or one.moved
        assert one.reason in verdicts.REASONS
        assert one.why.startswith("moved" if one.moved else "kept")
        assert one.relief_byte_ns <= one.figures.bytes * one.away_ns


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_the_planner_moves_nothing_for_nothing(share: float) -> None:
    graph, hw = training(4), machine()
    problem = analyse(graph, hw)
    budget = max(max(problem.floor_bytes), int(max(problem.held_bytes) * share))
    found = explain(plan(graph, hw, budget, effort=0.2), hw, budget)
    assert any(one.moved for one in found.lines)
    assert not [
        one.why
        for one in found.lines
        if one.moved and not one.relief_byte_ns and one.reason == "best_score"
    ]
    assert sum(one.saved_bytes for one in found.lines) >= found.peak_bytes - budget


def test_a_hand_written_plan_with_two_absences_of_one_tensor() -> None:
    b = GraphBuilder("twice")
    b.tensor("a", 10)
    b.tensor("w", 10, "parameter")
    for i in range(7):
        b.op(
            f"f{i}",
            "op",
            inputs=["a"] if i in (3, 6) else ["w"],
            outputs=["a"] if i == 0 else [],
            duration_ns=20,
        )
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
    assert [line(found, "a", after).away_ns for after in ("f0", "f3")] == [
        10,
        20,
    ]  # stored by 30, back from 40; from 80 to 100
