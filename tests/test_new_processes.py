"""Processes that work for another one: Ctrl-C while they are started, and the end of the other
one.
"""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hosim
from hosim.base.new_processes import without_ctrl_c


def test_a_ctrl_c_that_reaches_another_thread_interrupts_at_the_end() -> None:
    """A thread that was there before blocks no signals: what comes through it waits as well."""
    came: list[str] = []
    begin = threading.Event()

    def of_a_library() -> None:
        begin.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, frame: came.append("Ctrl-C"))
    thread = threading.Thread(target=of_a_library)
    try:
        thread.start()
        with without_ctrl_c():
            begin.set()
            thread.join()
            came.append("the end")
    finally:
        begin.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert came == ["the end", "Ctrl-C"]


WORKING = """import os, time
import hosim

def toy():
    b = hosim.GraphBuilder("toy")
    b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    return b.build()

def graph():
    open(f"working-{os.getpid()}", "x").close()
    time.sleep(600)
"""
LONG_S = 300
"""Bounds what hangs: however busy the machine is, nothing here takes as long."""
CASES = "".join(
    f'[cases.{name}]\nentry = "working:graph"\nhardware = "toy"\npolicy = "layerwise"\n'
    for name in "ab"
)
BEGUN = {
    "a check": "from hosim.cli.start import main; main()",
    "a sweep": "import hosim, working; f = lambda *_, **__: working.graph(); f.__name__ = 'f'\n"
    "hosim.sweep(working.toy(), 'toy', f, vary={'budget': ['80 B', '90 B']}, jobs=2)",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.parametrize("what", BEGUN)
def test_they_end_when_the_other_one_is_ended(what: str, tmp_path: Path) -> None:
    """Busy ones, too; and those that keep books for them."""
    (tmp_path / "working.py").write_text(WORKING)
    (tmp_path / "hosim.toml").write_text(CASES)
    command = [sys.executable, "-c", BEGUN[what], "baseline", "write", "-j", "2", "--no-cache"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    while len(list(tmp_path.glob("working-*"))) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    assert len(of_session(process.pid)) > 2
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    end = time.monotonic() + LONG_S
    while left := of_session(process.pid):
        assert time.monotonic() < end, f"processes {left} are still there"
        time.sleep(0.05)
    process.stderr.close()


def of_session(leader: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


ALONE = """
import sys, threading

begun = []
sys.addaudithook(
    lambda event, given: begun.append(event)
    if event in ("os.fork", "os.posix_spawn", "subprocess.Popen")
    else None
)
start = threading.Thread.start
threading.Thread.start = lambda thread: (begun.append("thread"), start(thread))[1]
import hosim

public = [getattr(hosim, name) for name in hosim.__all__]
b = hosim.GraphBuilder("toy")
b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
plan = hosim.plan(b.build(), "toy", "layerwise")
assert hosim.replay(plan).makespan_ns == hosim.replay(plan, record=True).makespan_ns == 90
print(len(public), begun, threading.active_count())
threading.Thread(target=int).start()
print(begun)
"""


def test_neither_the_import_nor_a_replay_begins_a_thread_or_a_process() -> None:
    """A browser has none to begin."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    said, seen = done.stdout.splitlines()
    assert said == f"{len(hosim.__all__)} [] 1"
    assert seen == "['thread']"
