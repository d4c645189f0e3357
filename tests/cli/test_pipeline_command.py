"""``hosim pipeline`` end to end, and its stages."""

import json

import pytest
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.edits import Edits

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def pair(tmp_path, monkeypatch):
    """Two stages on the machine ``toy``: 50 ns, 10 for what is sent, 70 ns with w from below, 40 ns
    of which nobody hides.
    """
    monkeypatch.chdir(tmp_path)
    message = {"stream": "comm", "message": "x", "duration_ns": 10}
    first, last = hosim.GraphBuilder("first"), hosim.GraphBuilder("last")
    first.tensor("x", 30)
    first.op("f", "matmul", outputs=["x"], duration_ns=50)
    first.op("put", "send", inputs=["x"], **message)
    last.tensor("x", 30)
    last.tensor("w", 40, "parameter", "ddr")
    last.op("get", "recv", outputs=["x"], **message)
    last.op("g", "matmul", inputs=["x", "w"], duration_ns=70)
    graphs = [first.build(), last.build()]
    for name, graph in zip(("first.json", "last.json"), graphs, strict=True):
        hosim.save_workload(graph, tmp_path / name)
    return graphs


ARGUMENTS = ["pipeline", "first.json", "last.json", "-H", "toy", "-p", "layerwise"]


def test_json_table_and_trace(tmp_path, pair):
    done = run(app, [*ARGUMENTS, "--json", "--trace", "trace.json"])
    assert done.exit_code == 0, done.output
    data = json.loads(run(app, [*ARGUMENTS, "--json"]).stdout)
    assert (data["format"], data["feasible"], data["step_ns"]) == ("hosim.stages/1", True, 130)
    assert [(one["makespan_ns"], one["bubble_ns"], one["busy_ns"]) for one in data["stages"]] == [
        (60, 70, 50),
        (130, 50, 70),
    ]
    assert data["bubble"] == 120 / 260
    answer = " ".join(run(app, ARGUMENTS).stdout.split())
    assert "130 ns, 46 %" in facts(answer)
    table = run(app, [*ARGUMENTS, "--detail"], env={"COLUMNS": "140"})
    assert "130 ns" in facts(table.stdout)
    assert "46 %" in facts(" ".join(table.stdout.split()))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"stage 0: streams", "stage 1: streams"} <= names
    slices = {(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == "op"}
    assert {("f", 0, 0.05), ("put", 0.05, 0.01), ("get", 0, 0.06), ("g", 0.06, 0.07)} <= slices


def test_the_table_says_whose_stages_they_are_and_what_ties_them(tmp_path, pair):
    said = " ".join(run(app, [*ARGUMENTS, "--detail"]).stdout.split())
    assert facts(said, "first", "last", "toy").startswith("2, first, last, toy")
    assert "message" not in said
    assert "on_demand decides" in " ".join(
        run(app, [*ARGUMENTS[:-1], "on_demand", "--detail"]).stdout.split()
    )
    b = hosim.GraphBuilder("alone")
    b.tensor("x", 30)
    b.op("f", "matmul", outputs=["x"], duration_ns=50)
    hosim.save_workload(b.build(), tmp_path / "alone.json")
    said = " ".join(
        run(
            app, ["pipeline", "alone.json", "alone.json", *ARGUMENTS[3:], "--detail"]
        ).stdout.split()
    )
    assert facts(said, "alone", "toy").startswith("2, alone, toy")
    assert "No op of these workloads has a message, so no stage waits for another one." in said


def test_what_does_not_fit(pair):
    assert run(app, [*ARGUMENTS, "-b", "50B"]).exit_code == 3  # x and w take 70 B
    plans = [hosim.Plan(pair[0]), hosim.Plan(pair[1], initial={1: ("ddr", "hbm")})]
    result = hosim.replay_stages(plans, "toy", "50B")
    assert (result.feasible, result.step_ns, result.bubble) == (False, None, None)
    assert result.error.startswith("out of memory on stage 1: op 'get' wants 30 B")
    assert [row["bubble_ns"] for row in result.rows()] == [None, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["first.json"], "expected a model with pipeline=2 or more"),
        (["gpt2:phase=train"], "expected a model with pipeline=2 or more"),
        (["first.json", "first.json"], "expected one send and one recv of the message 'x'"),
        (["first.json", "nonesuch.json"], "nonesuch.json"),
        (
            ["gpt2:phase=train:sequence=8:layers=2:pipeline=2"] * 2,
            "or a model alone, which stands for all of its stages",
        ),
    ],
)
def test_wrong_workloads(arguments, said):
    done = run(app, ["pipeline", *arguments, "-H", "toy", "-p", "layerwise"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_stages_that_would_wait_for_ever_in_another_order_keep_theirs(monkeypatch):
    """The first stage sends and then receives, the second receives and then sends. If that one sent
    first, too, neither would go on.
    """
    graphs = []
    for messages in ("ab", "ba"):
        b = hosim.GraphBuilder(f"stage {messages}")
        b.tensor("x", 30, "input")
        b.tensor("y", 30)
        put = {
            "name": "put",
            "kind": "send",
            "inputs": ["x"],
            "message": messages[0],
            "duration_ns": 10,
        }
        get = {
            "name": "get",
            "kind": "recv",
            "outputs": ["y"],
            "message": messages[1],
            "duration_ns": 10,
        }
        for op in (put, get) if messages == "ab" else (get, put):
            b.op(**op)
        graphs.append(b.build())
    asked = []

    def swapped(graph, hardware, choice, budget_bytes):
        asked.append(choice.parameters.get("reorder"))
        if asked[-1] is False:
            return hosim.Plan(graph)
        edits = Edits(graph, order=("put", "get"))
        return hosim.Plan(edits.graph(), edits=edits)

    monkeypatch.setattr("hosim.study.runs.run_policy.make_plan", swapped)
    plans = hosim.plan_stages(graphs, "toy")
    assert asked == [None, None, False, False]
    assert hosim.replay_stages(plans).step_ns == 20
    with pytest.raises(hosim.InputError, match="reorder=true is ruled out here"):
        hosim.plan_stages(graphs, "toy", "hyperoffload:reorder=true")
    with pytest.raises(hosim.InputError, match="wait for one another for ever"):
        hosim.plan_stages(graphs, "toy", "layerwise")  # it has no setting for the order of the ops


def test_wrong_arguments_of_functions(pair):
    plan = hosim.Plan(pair[0])
    with pytest.raises(hosim.InputError, match="expected plans, got Graph"):
        hosim.replay_stages(pair, "toy")
    with pytest.raises(hosim.InputError, match="the plans do not say which machine they are for"):
        hosim.replay_stages([plan, plan])
    with pytest.raises(hosim.InputError, match="expected the plans of 2 stages or more, got 1"):
        hosim.replay_stages([plan], "toy")


STEP = {
    "model": "gpt2",
    "phase": "train",
    "sequence": 16,
    "layers": 4,
    "pipeline": 2,
    "link": "50 GB/s",
    "optimizer": "none",
}


@pytest.mark.parametrize(
    "more",
    [
        {"micro_batches": 3, "data": 2},
        {"micro_batches": 3, "schedule": "gpipe"},
        {"micro_batches": 4, "schedule": "interleaved", "chunks": 2},
    ],
)
def test_stages_of_builders(more):
    plans = hosim.plan_stages({**STEP, **more, "stage": 1}, "h100", "resident")
    result = hosim.replay_stages(plans)
    assert result.feasible
    assert [plan.graph.name.rpartition(":")[2] for plan in plans] == ["stage=0", "stage=1"]
    messages = [sorted(op.message for op in plan.graph.ops if op.message) for plan in plans]
    assert messages[0] == messages[1]
    borders = 3 if "chunks" in more else 1
    assert (
        len(messages[0]) == 2 * borders * more["micro_batches"] + 1
    )  # there and back, and the table that both ends have
    for stage, (plan, one) in enumerate(zip(plans, result.stages, strict=True)):
        alone = hosim.replay(plan, "h100")
        message = 16 * 768 * 2
        assert (
            0 <= one.peak_bytes["hbm"] - alone.peak_bytes["hbm"] <= message
        )  # a send that waits holds what it sends
        lone = hosim.load({**STEP, **more, "stage": stage})
        assert [op.kind for op in lone.ops] == [op.kind for op in plan.graph.ops]
        assert not any(op.message for op in lone.ops)
        arrivals = [op for op in plan.graph.ops if op.kind == "recv"]
        assert {op.stream for op in arrivals} == {"recv"}
        assert all(op.deps for op in arrivals if op is not plan.graph.ops[0])
        assert result.step_ns >= alone.makespan_ns


def test_a_tied_stage_needs_others():
    with pytest.raises(hosim.InputError, match="one stage has no other to be tied to"):
        hosim.load({"model": "gpt2", "phase": "train", "tied": True})
