"""What somebody new to the program types: names where files belong, folders where files belong,
files that are broken.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hosim.cli.main import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("broken.yaml").write_text("name: [1")


def test_a_model_is_imported_by_its_name() -> None:
    done = CliRunner().invoke(app, ["import", "gpt2:layers=1:sequence=8", "-o", "w.json"])
    assert (
        done.exit_code,
        done.stderr.startswith("wrote w.json: gpt2:layers=1:sequence=8: 25 ops"),
    ) == (0, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "import gpt22 -o w.json",
            "gpt22: no file, no shipped workload and no model of that name; did you mean 'gpt2'?",
        ),
        (
            "import gpt2-xl-train:batch=2 -o w.json",
            "gpt2-xl-train:batch=2: a shipped workload takes no parameters; a model does, as in ",
        ),
        ("import gpt2 --dim batch=2 -o w.json", "gpt2: no such file"),
        (
            "plan gpt2 -H folder --explain",
            "folder: this is a folder: name a hardware profile, which is a file\n",
        ),
        (
            "hardware show folder",
            "folder: this is a folder: name a hardware profile, which is a file\n",
        ),
        ("plan broken.yaml -H toy --explain", "broken.yaml: broken YAML at line 2, column 1: "),
        (
            "sweep gpt2:layers=1 -H toy --vary budget=50..100:3",
            "budget: expected sizes with their unit or shares, such as 40GiB,50GiB or",
        ),
        (
            "fit gpt2:layers=1 -H toy --largest workload.batch",
            "expected FIELD=VALUES such as channels.h2d.bandwidth=25..200GB/s:8",
        ),
    ],
)
def test_what_a_newcomer_types_is_answered_in_one_line(command: str, said: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {said}")
