"""``--plot``, ``--trace`` and ``--memory-viz`` write files beside whatever else is printed; wrong
names are refused before any work.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_toy import HARDWARE, PLAN, WORKLOAD
from typer.testing import CliRunner

from hosim.check_certificate import prove
from hosim.cli.main import app
from hosim.validate.snapshots import read_snapshot

REPLAY = ("replay", "plan.json", "toy.json", "--hardware", "toy.yaml")
COMPARE = (
    "compare-policies",
    "toy.json",
    "--hardware",
    "toy.yaml",
    "--policies",
    "resident,hyperoffload",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"toy.json": WORKLOAD, "toy.yaml": HARDWARE, "plan.json": PLAN}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [REPLAY, COMPARE], ids=["replay", "compare"])
def test_a_picture(command: tuple[str, ...], folder: Path) -> None:
    without = CliRunner().invoke(app, [*command, "--json"])
    outcome = CliRunner().invoke(app, [*command, "--json", "--plot", "out.png"])
    assert (outcome.exit_code, outcome.stderr) == (0, "wrote out.png\n")
    assert [line for line in outcome.stdout.splitlines() if "_s" not in line] == [
        line for line in without.stdout.splitlines() if "_s" not in line
    ]
    content = (folder / "out.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert CliRunner().invoke(app, [*command, "--plot", "again.png"]).exit_code == 0
    assert (folder / "again.png").read_bytes() == content


@pytest.mark.parametrize("command", [REPLAY, COMPARE], ids=["replay", "compare"])
def test_a_name_that_is_no_picture(command: tuple[str, ...], folder: Path) -> None:
    outcome = CliRunner().invoke(app, [*command, "--plot", "out.gif"])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert (
        outcome.stderr == "error: out.gif: expected a picture whose name ends in .png, .svg, .pdf\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "toy.json", "toy.yaml"]


def test_a_certificate(folder: Path) -> None:
    outcome = CliRunner().invoke(app, [*REPLAY, "--certificate", "out.json", "--detail"])
    assert (outcome.exit_code, outcome.stderr) == (0, "wrote out.json\n")
    assert "makespan 90 ns" in prove((folder / "out.json").read_text())
    CliRunner().invoke(app, [*REPLAY, "--json", "--certificate", "again.json"])
    assert (folder / "again.json").read_bytes() == (folder / "out.json").read_bytes()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ["--op-sigma", "0.1"],
            2,
            "error: certificate of manual: a certificate has no times that vary",
        ),
        (
            ["--allocator", "caching"],
            2,
            "error: certificate of manual: a certificate counts bytes, not the blocks of 'caching'",
        ),
        (["--budget", "60B"], 3, "no out.json: a plan that does not fit has no certificate"),
    ],
)
def test_no_certificate(options: list[str], code: int, said: str, folder: Path) -> None:
    outcome = CliRunner().invoke(app, [*REPLAY, *options, "--certificate", "out.json", "--detail"])
    assert outcome.exit_code == code
    assert outcome.stderr.splitlines()[-1].startswith(said)
    assert not (folder / "out.json").exists()


def test_a_trace_and_a_snapshot(folder: Path) -> None:
    outcome = CliRunner().invoke(
        app, [*REPLAY, "--trace", "out.json.gz", "--memory-viz", "out.pickle", "--detail"]
    )
    assert (outcome.exit_code, outcome.stderr) == (
        0,
        "wrote out.json.gz\nwrote out.pickle, with synthetic addresses\n",
    )
    document = json.loads(gzip.decompress((folder / "out.json.gz").read_bytes()))
    slices = {
        event["name"]: (event["ts"], event["dur"])
        for event in document["traceEvents"]
        if event["ph"] == "X"
    }
    assert slices == {"transfer stall": (0, 0.04), "f": (0.04, 0.05), "w": (0, 0.04)}
    actions = [(e.action, e.size_bytes) for e in read_snapshot(folder / "out.pickle").histories[0]]
    assert [(action, size) for action, size in actions if action == "alloc"] == [
        ("alloc", 40),
        ("alloc", 30),
    ]
    outcome = CliRunner().invoke(app, [*REPLAY, "--trace", "trace.txt"])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert (
        outcome.stderr
        == "error: trace.txt: expected a trace whose name ends in .json or .json.gz\n"
    )


@pytest.mark.parametrize("command", [REPLAY, COMPARE], ids=["replay", "compare"])
def test_a_page(command: tuple[str, ...], folder: Path) -> None:
    outcome = CliRunner().invoke(app, [*command, "--html", "out.html", "--detail"])
    assert (outcome.exit_code, outcome.stderr) == (0, "wrote out.html\n")
    assert "reached at" in outcome.stdout
    text = (folder / "out.html").read_text()
    assert "reached at" in text
    assert "<canvas" in text
    assert (
        CliRunner().invoke(app, [*command, "--html", "again.html", "--json"]).stdout.startswith("{")
    )
    again = (folder / "again.html").read_text()
    took = re.compile(r"<p>(Planning \+ replay|Replay|Planning) .*?</p>", re.DOTALL)
    assert took.sub("", again) == took.sub("", text)


def test_a_plan_that_does_not_fit_has_a_picture_too(folder: Path) -> None:
    outcome = CliRunner().invoke(app, [*REPLAY, "--budget", "60B", "--plot", "out.svg"])
    assert outcome.exit_code == 3
    assert "does not fit" in (folder / "out.svg").read_text()


def test_nothing_fits(folder: Path) -> None:
    outcome = CliRunner().invoke(app, [*COMPARE, "--budget", "20B", "--plot", "out.png"])
    assert outcome.exit_code == 3
    assert (folder / "out.png").stat().st_size > 1000


def test_settings_of_matplotlib_around_the_command(folder: Path) -> None:
    """A backend is for windows, and hosim opens none. A file of settings that is no text keeps
    matplotlib from loading.
    """
    command = [
        sys.executable,
        "-c",
        "from hosim.cli.start import main; main()",
        *COMPARE,
        "--json",
        "--plot",
        "out.svg",
    ]
    environment = {
        **os.environ,
        "MPLBACKEND": "nonsense",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    for settings, code, said in (
        (b"backend: nonsense\n", 0, "wrote out.svg"),
        (
            b"\xff\n",
            2,
            "error: matplotlib cannot be loaded: UnicodeDecodeError: .*; look for its file of "
            "settings, matplotlibrc, in the folder",
        ),
    ):
        (folder / "matplotlibrc").write_bytes(settings)
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == code
        assert re.fullmatch(said, ended.stderr.splitlines()[-1])
