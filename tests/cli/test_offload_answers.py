"""What compare-policies and plan say first where not to offload is the answer, and the line about
the strongest rival.
"""

import json
from pathlib import Path

import pytest
from toy_files import NOTE, write_toy
from typer.testing import CliRunner, Result

from hosim.cli.main import app

FITS = (
    "Do not offload: everything fits. Resident, the step takes 50 ns and 70 B of the budget of "
    "100 B."
)
SLOW = (
    "Do not offload: the link is too slow for this step. The fastest plan takes 240 ns; 2 "
    "devices hold the model and take 100 ns a step."
)
TWO = {  # the weights come up one after the other, a byte in a nanosecond: 60 + 50 + 80 + 50 ns
    "format": "hosim.workload/1",
    "name": "two",
    "tensors": [
        {"name": f"w{i}", "bytes": 60 + 20 * i, "kind": "parameter", "home": "ddr"}
        for i in range(2)
    ],
    "ops": [
        {"name": f"f{i}", "kind": "matmul", "inputs": [f"w{i}"], "duration_ns": 50}
        for i in range(2)
    ],
}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    write_toy(tmp_path)
    (tmp_path / "two.json").write_text(json.dumps(TWO))
    return tmp_path


def run(toy: Path, *arguments: str) -> Result:
    outcome = CliRunner().invoke(
        app, [*arguments, "--hardware", str(toy / "hw.yaml")], env={"COLUMNS": "400"}
    )
    assert outcome.exit_code == 0, outcome.stderr
    return outcome


def test_what_fits_is_not_to_be_offloaded(toy: Path) -> None:
    compared = run(
        toy, "compare-policies", str(toy / "workload.json"), "--policies", "resident"
    ).stdout
    question, said, *_ = compared.splitlines()
    assert question.endswith("(70 B resident)")
    assert said.startswith(FITS)
    planned = run(
        toy,
        "plan",
        str(toy / "workload.json"),
        "--policy",
        "layerwise",
        "-o",
        str(toy / "made.json"),
    ).stderr
    assert planned.startswith(f"{NOTE}note: {FITS}\n")


def test_a_link_that_is_too_slow(toy: Path) -> None:
    compared = run(
        toy,
        "compare-policies",
        str(toy / "two.json"),
        "--policies",
        "hyperoffload,layerwise",
        "--json",
    )
    data = json.loads(compared.stdout)
    assert data["do_not_offload"] == {
        "reason": "link",
        "resident_ns": 100,
        "resident_bytes": 140,
        "devices": 2,
        "fastest_ns": 240,
    }
    assert data["strongest_rival"] == {"policy": "layerwise", "makespan_ns": 240, "ahead": 0.0}
    planned = run(toy, "plan", str(toy / "two.json"), "-o", str(toy / "made.json")).stderr
    assert planned.splitlines()[1] == f"note: {SLOW}"


def test_a_rivals_plan_does_not_say_that_the_link_is_too_slow(toy: Path) -> None:
    assert (
        "Do not"
        not in run(
            toy,
            "plan",
            str(toy / "two.json"),
            "--policy",
            "layerwise",
            "-o",
            str(toy / "made.json"),
        ).stderr
    )
    assert (
        "Do not"
        not in run(toy, "compare-policies", str(toy / "two.json"), "--policies", "layerwise").stdout
    )
