"""``compare-policies`` over several machines."""

import json
from pathlib import Path

import pytest
from rendered import facts
from toy_files import write_toy
from typer.testing import CliRunner

from hosim.cli.main import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toy(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_one_row_for_each_machine_and_policy() -> None:
    """The toy needs 70 B. ``layerwise`` fetches its 40 B first: in 40 ns on ``toy``, and in 5 us
    and 1 ns on the H100.
    """
    done = CliRunner().invoke(
        app,
        [
            "compare-policies",
            "workload.json",
            "-H",
            "toy, h100,toy",
            "-p",
            "resident,layerwise",
            "--enough",
            "--json",
        ],
    )
    found = json.loads(done.stdout)
    assert (done.exit_code, found["format"]) == (0, "hosim.machines/1")
    assert [
        (row["hardware"], row["policy"], row["makespan_ns"], row["enough_bytes"])
        for row in found["rows"]
    ] == [
        ("toy", "resident", 50, 70),
        ("toy", "layerwise", 90, None),
        ("h100-80gb-sxm", "resident", 50, 70),
        ("h100-80gb-sxm", "layerwise", 5051, None),
    ]


def test_prices_of_machines() -> None:
    """A step of 50 ns costs 50 of 3,600 thousand million parts of what the device costs an hour."""
    asked = ["compare-policies", "workload.json", "-H", "toy,h100", "-p", "resident", "--price"]
    found = json.loads(CliRunner().invoke(app, [*asked, "toy=7.2,h100=3.6", "--json"]).stdout)
    assert [row["cost"] for row in found["rows"]] == pytest.approx([1e-10, 5e-11])
    assert "80, 5e-11" in facts(found["answer"])
    found = json.loads(CliRunner().invoke(app, [*asked, "toy=7.2", "--json"]).stdout)
    assert [row["cost"] for row in found["rows"]] == [pytest.approx(1e-10), None]
    for price, said in (
        ("a100=1", "--price: a100-80gb-sxm is not among the machines that are compared"),
        ("toy", "price: expected what a device of each machine costs an hour"),
        ("toy=0", "price: expected what a device costs an hour, from above 0"),
    ):
        done = CliRunner().invoke(app, [*asked, price])
        assert (done.exit_code, done.stderr.count("\n"), said in done.stderr) == (2, 1, True)


def test_what_fits_nowhere() -> None:
    done = CliRunner().invoke(
        app, ["compare-policies", "workload.json", "-H", "toy,h100", "-b", "60B", "--detail"]
    )
    assert done.exit_code == 3
    assert done.stdout.count("does not fit") == 4  # in the table and in the sentence


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--plot", "x.png"], "--plot"),
        (["--html", "x.html"], "--html"),
        (["--allocator", "caching"], "--allocator"),
        (["--op-sigma", "0.1"], "--op-sigma"),
        (["--routing", "x.json"], "--routing"),
    ],
)
def test_what_works_on_one_machine_alone(options: list[str], named: str) -> None:
    done = CliRunner().invoke(
        app, ["compare-policies", "workload.json", "-H", "toy,h100", *options]
    )
    said = (
        f"error: compare-policies: {named} works on one machine: give a single --hardware, or "
        "leave it out\n"
    )
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)


def test_no_machine_at_all() -> None:
    done = CliRunner().invoke(app, ["compare-policies", "workload.json", "-H", ","])
    said = "error: hardware: expected machines separated by commas, such as h100,a100; got ','\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    "command",
    [
        "plan workload.json -o plan.json",
        "replay plan.json workload.json",
        "fit workload.json --largest x=1..2",
    ],
)
def test_other_commands_take_one_machine(command: str) -> None:
    outcome = CliRunner().invoke(app, [*command.split(), "-H", "h100,a100"])
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        "error: h100,a100: expected one machine, got several: name one of them\n",
    )
