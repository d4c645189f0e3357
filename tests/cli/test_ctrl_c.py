"""Ctrl-C at chosen moments of the program's life: while it loads, reads options, starts processes,
works and ends.

Each ends with 130 and one line.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from quick_cases import one_in
from toy_files import NOTE, write_toy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MODULE, _, FUNCTION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
    "hosim"
].partition(":")
START = f"from {MODULE} import {FUNCTION} as program; program()"
"""What the program ``hosim`` does."""
AT_AN_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # this process may ignore it, and its children with it
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "MODULE":
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
"""
IN_A_CALLBACK = """
import os, signal, sys, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
class Thing: pass
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "hosim.cli.main":
        thing = Thing()
        watched.append(weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT)))
    if event == "import" and arguments[0] == "hosim.cli.terminal":
        time.sleep(600)
watched = []
sys.addaudithook(interrupt)
"""
AT_THE_END = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Thing:
    def __del__(self, kill=os.kill, arguments=(os.getpid(), signal.SIGINT)): kill(*arguments)
thing = Thing()
"""


def run(folder: Path, code: str, *arguments: str) -> tuple[int, str, str]:
    write_toy(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code + START, *arguments]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


PLAN = ["plan", "workload.json", "-H", "hw.yaml", "-o", "out.json"]


@pytest.mark.parametrize(
    ("module", "arguments"),
    one_in(
        2,
        [
            ("hosim.cli.main", ["--help"]),
            ("typer", ["--help"]),
            ("hosim.base.files.reading", PLAN),  # when it looks at the value of -o
            ("hosim.errors", ["--help"]),
            (
                "hosim.analysis.verifying.verifier",
                ["replay", "plan.json", "workload.json", "-H", "hw.yaml"],
            ),
            ("hosim.study.runs.run_policy", PLAN),
            ("rich.console", ["policies"]),
            ("hosim.cli.cmd_look_up", ["--help"]),
        ],
    ),
)
def test_while_a_module_is_loaded(module: str, arguments: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, AT_AN_IMPORT.replace("MODULE", module), *arguments) == (
        130,
        "",
        "interrupted\n",
    )


def test_while_python_runs_code_whose_errors_it_only_prints(tmp_path: Path) -> None:
    assert run(tmp_path, IN_A_CALLBACK, "--version") == (130, "", "interrupted\n")


def test_after_the_end_it_changes_nothing(tmp_path: Path) -> None:
    code, said, wrong = run(tmp_path, AT_THE_END, "--version")
    assert (code, said.startswith("hosim "), wrong) == (0, True, "")


IN_A_WORKER = """
import os, signal, sys
def interrupt():
    try:
        open("came", "x").close()
    except FileExistsError:  # another worker has come first
        return
    os.killpg(os.getpgid(0), signal.SIGINT)  # as a terminal does: to all processes
def at_an_import(event, arguments):
    if event == "import" and arguments[0] == "MODULE":
        interrupt()
if any("spawn_main" in word or "popen_loky" in word for word in sys.orig_argv):
    if "MODULE" == "":
        interrupt()
    sys.addaudithook(at_an_import)
"""
SWEEP = [
    "sweep",
    "workload.json",
    "-H",
    "hw.yaml",
    "-p",
    "layerwise",
    "--vary",
    "budget=80%,90%,100%",
    "-j",
    "2",
]
WRITE = ["baseline", "write", "-j", "2", "--no-cache"]
CASES = "".join(
    f'[cases.{name}]\nworkload = "workload.json"\nhardware = "hw.yaml"\npolicy = '
    f'"layerwise"\nbudget = "{budget}"\n'
    for name, budget in (("a", "90%"), ("b", "100%"))
)


@pytest.mark.parametrize("module", ["", "hosim.study.runs.tasks"])
def test_while_processes_of_a_sweep_start(module: str, tmp_path: Path) -> None:
    assert interrupted_by_a_worker(tmp_path, module, *SWEEP) == (130, "", f"{NOTE}interrupted\n")


HANDS_OVER_LATE = """
from joblib.externals.loky.process_executor import _ExecutorManagerThread as thread
hand_over = thread.add_call_item_to_queue
thread.add_call_item_to_queue = lambda self: hand_over(self) if self.is_shutting_down() else None
"""


def test_before_the_pool_has_handed_over_a_task(tmp_path: Path) -> None:
    """loky's thread then fails over a task that it has given up already."""
    assert interrupted_by_a_worker(tmp_path, "", *SWEEP, before=HANDS_OVER_LATE) == (
        130,
        "",
        f"{NOTE}interrupted\n",
    )


@pytest.mark.parametrize("module", ["", "hosim.gate.checking"])
def test_while_processes_of_a_check_start(module: str, tmp_path: Path) -> None:
    (tmp_path / "hosim.toml").write_text(CASES)
    assert interrupted_by_a_worker(tmp_path, module, *WRITE) == (130, "", "interrupted\n")


def interrupted_by_a_worker(
    folder: Path, module: str, *arguments: str, before: str = ""
) -> tuple[int, str, str]:
    """What a command ends with if its first worker process sends Ctrl-C as it starts (no module),
    or when it imports a module.
    """
    (folder / "sitecustomize.py").write_text(IN_A_WORKER.replace("MODULE", module))
    write_toy(folder)
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + before + START
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said, wrong = process.communicate()
    assert (folder / "came").exists()
    return process.returncode, said, wrong
