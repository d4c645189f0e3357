"""Commands about times of kernels: tables imported, constants fitted, and where each op's time is
from.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from kernel_machine import PROFILE, gathers
from rendered import facts
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.graph import GraphBuilder
from hosim.io import load_hardware, save_workload

ROWS = "machine,library,op,dtype,gpus,message_elements_or_bytes,latency_us\n"
# 7 cycles of a microsecond, 2 for each further rank, and half of the bytes (two ranks) at 1 TB/s
ROWS += "".join(f"a,NCCL,all_gather,half,{ranks},{size // 2},{7 + 2 * (ranks - 1) + size * (ranks - 1) / ranks / 1e6}\n"
                for ranks in (2, 4, 8) for size in (1000, 10**6, 10**7, 10**8))  # fmt: skip


def run(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120"})
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "machine.json").write_text(json.dumps(PROFILE))
    save_workload(gathers((2, 1_000_000)), tmp_path / "w.json")
    return tmp_path


def test_tables_are_imported_once_and_read_as_they_were(folder: Path) -> None:
    said = run("import-kernels", folder / "rows.csv", "-o", folder / "t.csv.gz").output
    assert "a, all_gather, fp16: 12 times" in said
    first = (folder / "t.csv.gz").read_bytes()
    run("import-kernels", folder / "t.csv.gz", "-o", folder / "again.csv.gz")
    assert (folder / "again.csv.gz").read_bytes() == first


def test_only_one_machine(folder: Path) -> None:
    (folder / "two.csv").write_text(ROWS + ROWS.split("\n")[1].replace("a,", "b,", 1) + "\n")
    error = run("import-kernels", folder / "two.csv", "-o", folder / "t.csv", code=2).output
    assert error == "error: --machine: the tables have several machines; expected one of a, b\n"
    assert (
        "no machine 'c'; expected one of a, b"
        in run(
            "import-kernels", folder / "two.csv", "-o", folder / "t.csv", "--machine", "c", code=2
        ).output
    )
    assert (
        "b, all_gather, fp16: 1 times"
        in run(
            "import-kernels", folder / "two.csv", "-o", folder / "t.csv", "--machine", "b"
        ).output
    )


def test_constants_are_fitted_into_a_profile(folder: Path) -> None:
    said = run(
        "calibrate",
        "--kernels",
        folder / "rows.csv",
        "--base",
        folder / "machine.json",
        "-o",
        folder / "new.yaml",
    ).output
    assert "all_gather" in said
    machine = load_hardware(folder / "new.yaml")
    constants = machine.compute.kernels["all_gather"]["fp16"]
    assert machine.name == "new"
    assert constants["fixed_cycles"] == pytest.approx(7, rel=0.2)
    assert "kernels from rows.csv, median error" in (folder / "new.yaml").read_text()
    report = json.loads(
        run(
            "calibrate",
            "--kernels",
            folder / "rows.csv",
            "--base",
            folder / "machine.json",
            "--json",
        ).stdout
    )
    assert report["format"] == "hosim.kernel_calibration/1"
    assert report["kernels"][0]["errors"]["rows"] == 12
    assert report["kernels"][0]["values"] == constants


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "calibrate: requires TRACE or --kernels"),
        (["--machine", "a"], "calibrate: --machine requires --kernels"),
        (["--kernels", "rows.csv"], "calibrate: --kernels requires --base"),
        (
            ["t.json", "--kernels", "rows.csv", "--base", "toy"],
            "calibrate: --kernels and TRACE exclude each other: it fits tables alone",
        ),
        (
            ["--kernels", "rows.csv", "--base", "toy"],
            "toy: compute.processor: lacks the vendor's figures",
        ),
    ],
)
def test_what_cannot_be_fitted(folder: Path, arguments: list[str], message: str) -> None:
    paths = [str(folder / text) if text.endswith(".csv") else text for text in arguments]
    assert f"error: {message}" in run("calibrate", *paths, code=2).output


def test_links_are_needed_for_collectives(folder: Path) -> None:
    compute = {**PROFILE["compute"], "processor": {"multiprocessors": 10, "clock": "1 MHz"}}
    (folder / "no.json").write_text(json.dumps({**PROFILE, "compute": compute}))
    assert (
        "compute.processor.links: has no links"
        in run(
            "calibrate", "--kernels", folder / "rows.csv", "--base", folder / "no.json", code=2
        ).output
    )


def test_a_workload_shows_where_its_times_are_from(folder: Path) -> None:
    shown = run(
        "workload", "show", folder / "w.json", "-H", folder / "machine.json", "--detail"
    ).output
    assert [line.split() for line in shown.splitlines() if "fitted" in line or "guess" in line] == [
        ["all_gather", "all_gather", "fitted", "model", "1", "9.50", "us"],
        ["norm", "-", "guess", "1", "6.00", "us"],
    ]
    every = run(
        "workload", "show", folder / "w.json", "-H", folder / "machine.json", "--ops"
    ).output
    assert ["g0", "all_gather", "2", "1000000", "9.50", "us", "fitted", "model"] in [
        line.split() for line in every.splitlines()
    ]
    assert (
        "--ops requires --hardware"
        in run("workload", "show", folder / "w.json", "--ops", code=2).output
    )


def test_the_clock_under_load_is_stated(folder: Path) -> None:
    processor = {**PROFILE["compute"]["processor"], "sustained": "800 kHz"}
    (folder / "hot.json").write_text(
        json.dumps({**PROFILE, "compute": {**PROFILE["compute"], "processor": processor}})
    )
    shown = run("hardware", "show", folder / "hot.json", "--detail").output
    assert "10, 1.00, 800" in facts(shown)
    for more in ("--detail", "--ops"):
        times = run("workload", "show", folder / "w.json", "-H", folder / "hot.json", more).output
        assert "Times on machine; peaks count at the 800 kHz that it sustains" in times
    assert "sustains" not in run("hardware", "show", folder / "machine.json", "--detail").output


def test_an_explained_plan_says_where_its_times_are_from(folder: Path) -> None:
    builder = GraphBuilder("g")
    builder.tensor("a", 100)
    builder.op("f", "all_gather", outputs=["a"], kernel="all_gather", sizes=(2, 1_000_000))
    builder.op("h", "norm", inputs=["a"], duration_ns=500)
    save_workload(builder.build(), folder / "g.json")
    told = run(
        "plan", folder / "g.json", "-H", folder / "machine.json", "-p", "resident", "--explain"
    ).output
    assert "5.0 %, 95 %" in facts(" ".join(told.split()))
    data = json.loads(
        run(
            "plan",
            folder / "g.json",
            "-H",
            folder / "machine.json",
            "-p",
            "resident",
            "--explain",
            "--json",
        ).stdout
    )
    assert data["op_time_origins"] == {"fitted model": 1, "measured": 1}
