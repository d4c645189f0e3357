"""Plans that run a workload's ops in another order, or again: their files."""

from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, edits, wild_plans

from hosim.cache_plan import DETACH, CacheOp, Plan
from hosim.edits import Edits, Recompute
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.io import load_plan, plan_from_dict, plan_to_dict, save_plan


@given(st.data(), st.booleans())
def test_what_is_written_is_read_back(data, yaml):
    graph, machine, _ = data.draw(cases(max_streams=3, roomy=None))
    edit = data.draw(edits(graph))
    plan = data.draw(wild_plans(edit.graph(), machine))
    if edit.order or edit.recompute:
        plan = replace(plan, edits=edit)
    written = plan_to_dict(plan)
    assert ("order" in written, "recompute" in written) == (bool(edit.order), bool(edit.recompute))
    with TemporaryDirectory() as folder:
        path = f"{folder}/p.{'yaml' if yaml else 'json'}"
        save_plan(plan, path)
        back = load_plan(path, graph)
    assert back == plan
    assert back.workload == graph


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("w")
    b.tensor("x", 4, "input")
    for name in "abc":
        b.tensor(name, 8)
    b.op("f", "relu", inputs=["x"], outputs=["a"])
    b.op("g", "relu", inputs=["a"], outputs=["b"])
    b.op("e", "relu", inputs=["x"], outputs=["c"])
    b.op("h", "add", inputs=["a", "b", "c"])
    return b.build()


P = {"format": "hosim.plan/1", "workload": "w"}
AGAIN = {"op": "f", "before": "h", "name": "f~2"}


def test_cache_ops_name_what_there_is_after_the_edits(tmp_path, graph):
    detach = {"op": "detach", "tensor": "a@f~2", "from": "hbm", "after": "f~2"}
    plan = plan_from_dict(
        P | {"order": ["e", "f", "g", "h"], "recompute": [AGAIN], "cache_ops": [detach]}, graph
    )
    assert [op.name for op in plan.graph.ops] == ["e", "f", "g", "f~2", "h"]
    assert plan.edits == Edits(graph, ("e", "f", "g", "h"), (Recompute("f", "h", "f~2"),))
    assert plan.cache_ops == (CacheOp(DETACH, 4, "hbm", None, 3),)
    assert plan.recomputes == 1
    save_plan(plan, tmp_path / "p.json")
    assert load_plan(tmp_path / "p.json", graph) == plan


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"order": ["f", "g", "h"]},
            "p: order: op 'e' missing; the order lists every op of 'w' once",
        ),
        (
            {"order": ["g", "f", "e", "h"]},
            "p: order[0]: op 'g' stands before op 'f', but it reads tensor 'a', which that writes",
        ),
        (
            {"order": ["f", "g", "e", "x"]},
            "p: order[3]: unknown op 'x'; the order lists the ops of 'w'",
        ),
        ({"initial": {"x": ["hbm", "ddr", "hbm"]}}, "p: initial.x: a tier is listed twice"),
        (
            {"initial": {"x": ["hbm"], "y": ["hbm"]}},
            "p: initial.y: unknown tensor 'y' (known: x, a, b, c)",
        ),
        ({"order": "fgeh"}, "p: order: expected a list, got 'fgeh'"),
        (
            {"recompute": [AGAIN | {"op": "x"}]},
            "p: recompute[0].op: unknown op 'x'; expected one of 'w'",
        ),
        (
            {"recompute": [AGAIN | {"before": "x"}]},
            "p: recompute[0].before: unknown op 'x'; expected one of 'w'",
        ),
        (
            {"recompute": [AGAIN | {"before": "f"}]},
            "p: recompute[0].before: op 'f' has not run before op 'f': it cannot run again there",
        ),
        (
            {"recompute": [AGAIN | {"after": "g"}]},
            "p: recompute[0].after: unknown key 'after' (known: op, before, name)",
        ),
        (
            {"recompute": [AGAIN | {"name": "g"}]},
            "p: recompute[0].name: op name 'g' is taken; give the recomputed op a name of its "
            "own, such as 'f~2'",
        ),
        (
            {"recompute": [{"op": "f", "before": "h"}]},
            "p: recompute[0].name: missing; expected the keys op, before, name",
        ),
        (
            {"cache_ops": [{"op": "detach", "tensor": "a@f~2", "from": "hbm"}]},
            "p: cache_ops[0].tensor: unknown tensor 'a@f~2' (known: x, a, b, c)",
        ),
    ],
)
def test_bad_edits(graph, data, message):
    with pytest.raises(InputError) as error:
        plan_from_dict(P | data, graph, "p")
    assert str(error.value) == message


def test_a_plan_without_edits_says_nothing_of_them(graph):
    assert not {"order", "recompute"} & set(plan_to_dict(Plan(graph)))
