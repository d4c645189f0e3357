"""Modules of the working folder that are called like Python's own and like what hosim imports: none
of them runs, in any command.
"""

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import fuzz_seeds
import pytest
from fuzz_case import Case
from fuzz_server import Bounds
from run_fuzz import started

from hosim.cli.main import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DECOY = """import os, sys
with open(os.environ["RAN"], "a") as file:
    print(__name__, "in", *sys.orig_argv[:4], file=file)
raise ImportError(__name__)
"""
PROGRAM = """import json, os, pathlib, shutil, sys

def run(place):
    for left in pathlib.Path().iterdir():
        if left.suffix != ".py":
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    shutil.copytree(place / "files", ".", dirs_exist_ok=True)
    sys.argv = ["hosim", *json.loads((place / "arguments").read_text())]
    try:
        main()
    except SystemExit as ended:
        print(json.dumps([sys.argv[1:], ended.code]), file=sys.__stderr__)

if __name__ == "__main__":
    from hosim.cli.start import main

    for place in sorted(pathlib.Path(os.environ["CASES"]).iterdir()):
        run(place)
"""
LIBRARY = """import hosim
b = hosim.GraphBuilder("toy")
b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
assert len(hosim.sweep(b.build(), "toy", "layerwise", vary={"budget": ["80 B", "90 B"]}, jobs=2)) == 2
"""
ENTRY = """import subprocess, sys
import hosim
def graph():
    "As a library does that compiles in processes of its own."
    subprocess.run([sys.executable, "-c", "import queue, statistics"], check=True)
    b = hosim.GraphBuilder("toy")
    b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    return b.build()
"""
TORCH_ENTRY = """import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.zeros(2, 8),)
"""
TORCH_PROGRAM = """import sys
from hosim.cli.start import main

_, program, cases = sys.argv
for arguments in (["import", program, "-o", "out.json"], ["baseline", "write", "-c", cases, "-j", "1"], ["check", "-c", cases, "-j", "1"]):
    sys.argv = ["hosim", *arguments]
    try:
        main()
    except SystemExit as ended:
        print("ended", ended.code, file=sys.__stderr__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoy for each module that this Python could import by its first name."""
    folder = tmp_path_factory.mktemp("decoys")
    names = (
        sys.stdlib_module_names
        | packages_distributions().keys()
        | {name.partition(".")[0] for name in sys.modules}
    )
    for name in names - {"hosim", "__main__"}:
        (folder / f"{name}.py").write_text(DECOY)
    assert {"joblib", "multiprocessing", "types", "numpy"} <= {
        path.stem for path in folder.iterdir()
    }
    return folder


def ran(folder: Path, *command: str | Path, **environment: str) -> tuple[str, str]:
    """The decoys that a command ran in the folder, and what it said on stderr."""
    note = folder.parent / "ran"
    note.write_text("")
    own = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    environment = (
        own
        | {"RAN": str(note), "HOSIM_CACHE": str(folder.parent / "cache"), "COLUMNS": "120"}
        | environment
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return note.read_text(), done.stderr


def cases() -> list[Case]:
    """One of each command on valid files; those that start processes start two."""
    server, listed = started(Bounds())
    server.close()
    valid = {
        case.arguments[0]: case
        for target in reversed(listed)
        if not target.heavy
        for case in reversed(target.valid())
    }
    del valid["python"]  # no command
    check = valid["check"]
    repository = {**check.files, ".git/HEAD": b""}
    found = [
        Case("written", ("baseline", "write", "-j", "1"), check.files),
        Case("written", ("ci", "init", "--install", "hosim"), repository),
        *valid.values(),
    ]
    return [
        Case(
            case.target,
            tuple(shlex.split(shlex.join(case.arguments).replace("-j 1", "-j 2"))),
            case.files,
        )
        for case in found
    ]


def test_of_every_command(folder: Path) -> None:
    tried = cases()
    given = folder.parent / "cases"
    for number, case in enumerate(tried):
        place = given / f"{number:03}"
        (place / "files").mkdir(parents=True)
        for name, content in case.files.items():
            file = place / "files" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        (place / "arguments").write_text(json.dumps(case.arguments))
    (folder.parent / "program.py").write_text(PROGRAM)
    decoys, said = ran(folder, sys.executable, folder.parent / "program.py", CASES=str(given))
    ended = [json.loads(line) for line in said.splitlines() if line.startswith("[[")]
    assert decoys == ""
    assert [arguments for arguments, code in ended if code not in (0, 1)] == [], said
    assert len(ended) == len(tried)
    assert {command.name for command in (*app.registered_commands, *app.registered_groups)} <= {
        arguments[0] for arguments, _ in ended
    }


@pytest.mark.parametrize("command", [("hosim", "policies"), ("hosim.gpu", "--help")])
def test_of_python_with_the_name_of_the_package(folder: Path, command: tuple[str, str]) -> None:
    """Python itself looks there for what it loads before the first line of hosim's program."""
    shown = [
        sys.executable,
        "-P",
        "-c",
        f"import runpy, {command[0]}, sys, hosim.working_folder; print(*sys.modules)",
    ]
    before = {
        name.partition(".")[0]
        for name in subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    }
    decoys = [path for path in folder.glob("*.py") if path.stem in before]
    for path in decoys:
        path.unlink()
    try:
        assert ran(folder, sys.executable, "-m", *command) == ("", "")
    finally:
        for path in decoys:
            path.write_text(DECOY)


def test_of_the_library(folder: Path) -> None:
    (folder.parent / "library.py").write_text(LIBRARY)
    assert ran(folder, sys.executable, folder.parent / "library.py") == ("", "")
    assert "PYTHONSAFEPATH" not in os.environ


def test_of_what_an_entry_starts(folder: Path) -> None:
    """Its own module is meant to run; the interpreter that it starts finds nothing in the
    folder.
    """
    project = folder.parent / "project"
    project.mkdir()
    (project / "model_of_mine.py").write_text(ENTRY)
    (project / "hosim.toml").write_text(
        '[cases.a]\nentry = "model_of_mine:graph"\nhardware = "toy"\npolicy = "layerwise"\n'
    )
    write = ("baseline", "write", "-c", project / "hosim.toml", "--no-cache", "-j", "1")
    (folder.parent / "start.py").write_text("from hosim.cli.start import main; main()")
    assert ran(folder, sys.executable, folder.parent / "start.py", *write)[0] == ""
    assert (project / "hosim-baselines" / "a.toml").is_file()


@pytest.mark.long
def test_of_commands_that_import_torch(folder: Path) -> None:
    """Importing a program of torch.export, and a gate whose entry returns a model."""
    project = folder.parent / "torch_project"
    project.mkdir()
    (project / "torch_model_of_mine.py").write_text(TORCH_ENTRY)
    (project / "hosim.toml").write_text(
        '[cases.a]\nentry = "torch_model_of_mine:model"\nhardware = "h100"\npolicy = "layerwise"\n'
    )
    (project / "toy.pt2").write_bytes(fuzz_seeds.pt2())
    (project / "program.py").write_text(TORCH_PROGRAM)
    decoys, said = ran(
        folder, sys.executable, project / "program.py", project / "toy.pt2", project / "hosim.toml"
    )
    assert decoys == ""
    assert [line for line in said.splitlines() if line.startswith("ended")] == ["ended 0"] * 3, said
    assert (project / "hosim-baselines" / "a.toml").is_file()
