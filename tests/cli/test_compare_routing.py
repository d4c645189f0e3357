"""``hosim compare-policies --routing``: steps of a trace under policies that know the routing and
one that does not.
"""

import json
from pathlib import Path

import moe_toy
import pytest
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.io import save_hardware, save_routing, save_workload, schema
from hosim.io.models import generate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    routing = moe_toy.routing(2, 4)
    save_workload(routing.graph, tmp_path / "moe.json")
    save_hardware(moe_toy.machine(), tmp_path / "toy.yaml")
    save_routing(
        generate(routing.graph, routing.gates, steps=4, top=2, seed=2), tmp_path / "routing.json"
    )
    return tmp_path


def compare(folder: Path, *arguments: object, code: int = 0) -> str:
    command = [
        "compare-policies",
        folder / "moe.json",
        "--hardware",
        folder / "toy.yaml",
        *arguments,
    ]
    outcome = CliRunner().invoke(
        app, [str(argument) for argument in command], env={"COLUMNS": "120"}
    )
    assert outcome.exit_code == code, outcome.stderr
    return outcome.stdout if code == 0 else outcome.stderr


def test_json(folder: Path) -> None:
    routed = [
        "--routing",
        folder / "routing.json",
        "--policies",
        "hybrid:cache_bytes=160B,on_demand",
        "--json",
    ]
    data = json.loads(compare(folder, *routed, "--steps", "1:3"))
    pytest.importorskip("jsonschema").validate(data, schema("comparison"))
    assert [result["workload"] for result in data["results"]] == ["moe@1-2"] * 2
    assert [result["policy"] for result in data["results"]] == [
        "hybrid:cache_bytes=160B",
        "on_demand",
    ]
    (row,) = data["mispredictions"]
    assert row["policy"] == "hybrid:cache_bytes=160B"
    assert row["makespan_ns"] == data["results"][0]["makespan_ns"]
    assert row["decisions"] == 4
    assert json.loads(compare(folder, *routed, "--steps", 3))["results"][0]["workload"] == "moe@3"
    assert (
        json.loads(compare(folder, *routed, "--steps", "2:"))["results"][0]["workload"] == "moe@2-3"
    )
    assert json.loads(compare(folder, *routed))["results"][0]["workload"] == "moe@0-3"


def test_tables(folder: Path) -> None:
    words = [
        " ".join(line.split())
        for line in compare(folder, "--routing", folder / "routing.json", "--detail").splitlines()
    ]
    assert "Predictions (experts' tensors)" in words
    assert any(line.startswith("hybrid 16 ") for line in words)
    assert any("gates" in line for line in words)


def test_without_routing_there_is_nothing_of_it(folder: Path) -> None:
    data = json.loads(compare(folder, "--json", "--policies", "resident"))
    assert "mispredictions" not in data
    assert "hybrid" not in compare(folder)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            "4",
            "steps: expected a step such as 3 or a range such as 0:8, got '4'; the routing has "
            "steps 0 to 3",
        ),
        ("1:9", "got '1:9'"),
        ("2:2", "got '2:2'"),
        ("-1", "got '-1'"),
        ("a:b", "got 'a:b'"),
        ("", "got ''"),
        ("1:2:3", "got '1:2:3'"),
    ],
)
def test_steps_that_there_are_not(folder: Path, steps: str, message: str) -> None:
    assert message in compare(
        folder, "--routing", folder / "routing.json", f"--steps={steps}", code=2
    )


def test_other_bad_input(folder: Path) -> None:
    assert "error: compare-policies: --steps requires --routing" in compare(
        folder, "--steps", "1", code=2
    )
    assert "expected a routing (hosim.routing/1), this is a workload" in compare(
        folder, "--routing", folder / "moe.json", code=2
    )
    assert "nowhere.json: no such file" in compare(folder, "--routing", "nowhere.json", code=2)
    routing = ["--routing", folder / "routing.json", "--policies", "hybrid:predictor=oracle"]
    assert "policy hybrid: predictor: expected one of previous, popular, none, perfect" in compare(
        folder, *routing, code=2
    )
