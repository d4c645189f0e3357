"""A sweep that is interrupted, loses a process or is killed goes on where it stopped: its file is
an uninterrupted run's, to the byte.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeping import (
    BEFORE,
    LONG_S,
    MACHINE,
    POINTS,
    chain,
    children,
    command,
    environment,
    held,
    start,
    wait_for_rows,
)

from hosim.study.asked import parse_choice
from hosim.study.rows_of_answers import DIED
from hosim.study.runs import Question, Task, pack, pool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]
WORKER = "loky"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder, and what the file of the whole sweep holds, computed by one process."""
    folder = tmp_path_factory.mktemp("sweep")
    subprocess.run(
        command(folder, "whole.csv", "--jobs", "1"),
        env=environment(folder),
        check=True,
        capture_output=True,
    )
    content = (folder / "whole.csv").read_bytes()
    assert content.count(b"\n") == POINTS + 1
    return folder, content


def finish(folder: Path, name: str) -> str:
    """Run the same command to its end; what it says on stderr."""
    ended = subprocess.run(
        command(folder, name, "--jobs", "2"),
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.long
def test_ctrl_c(uninterrupted: tuple[Path, bytes]) -> None:
    folder, whole = uninterrupted
    with held(folder):
        process = start(folder, command(folder, "interrupted.csv", "--jobs", "2"))
        wait_for_rows(folder / "interrupted.csv", BEFORE, process)
        os.killpg(
            process.pid, signal.SIGINT
        )  # as a terminal does: to the processes of the pool, too
        _, said = process.communicate(timeout=LONG_S)
    assert process.returncode == 130, said
    assert "to continue" in said
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said
    assert (folder / "interrupted.csv").read_bytes().count(b"\n") == BEFORE + 1
    assert f"{POINTS} rows, {POINTS - BEFORE} " in finish(folder, "interrupted.csv")
    assert (folder / "interrupted.csv").read_bytes() == whole


@pytest.mark.long
def test_a_process_of_the_pool_is_killed(uninterrupted: tuple[Path, bytes]) -> None:
    folder, whole = uninterrupted
    with held(folder):
        process = start(folder, command(folder, "lost.csv", "--jobs", "2"))
        wait_for_rows(folder / "lost.csv", BEFORE, process)
        workers = [
            pid
            for pid in children(process.pid, WORKER)
            if pid not in children(process.pid, "resource_tracker")
        ]
        assert workers
        os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, said
    assert (folder / "lost.csv").read_bytes() == whole


@pytest.mark.long
def test_the_parent_is_killed(uninterrupted: tuple[Path, bytes]) -> None:
    folder, whole = uninterrupted
    with held(folder):
        process = start(folder, command(folder, "killed.csv", "--jobs", "2"))
        wait_for_rows(folder / "killed.csv", BEFORE, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
        with (folder / "killed.csv").open("ab") as stream:
            stream.write(b"0123456789abcdef,1000")  # a row that was being written
        end = time.monotonic() + LONG_S
        while any_left := _group(process.pid):  # busy ones, too
            assert time.monotonic() < end, f"processes {any_left} are still there"
            time.sleep(0.1)
    finish(folder, "killed.csv")
    assert (folder / "killed.csv").read_bytes() == whole


def _group(leader: int) -> list[int]:
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


class Deadly(dict):
    """Settings that kill the process that unpacks them."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (9,)


def test_a_point_that_kills_its_process_is_a_row_and_no_other_is() -> None:
    packed = pack(Question(chain(4), MACHINE, parse_choice("on_demand"), 100))
    tasks = [Task(str(i), packed, {}) for i in range(4)]
    tasks[2] = Task("2", packed, Deadly())
    rows = {row["point"]: row for row in pool(2)(tasks)}
    assert sorted(rows) == ["0", "1", "2", "3"]
    assert str(rows["2"]["error"]).startswith(DIED)
    assert [rows[key]["makespan_ns"] for key in "013"] == [rows["0"]["makespan_ns"]] * 3
    assert rows["0"]["feasible"]
