"""A sweep on a Dask cluster of a real scheduler and two worker processes, one of which dies in the
middle: no row lost, none twice.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeping import LONG_S, POINTS, command, environment, held, start, wait_for_rows

from hosim.errors import InputError
from hosim.study.runs import cluster as cluster_at

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

DASK = [sys.executable, "-W", "ignore", "-m", "dask"]


def begin(name: str, folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """A part of the cluster; what it says goes to a file."""
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*DASK, *arguments],
            env=environment(folder),
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def said(path: Path, pattern: str, process: "subprocess.Popen[bytes]") -> str:
    """What a part of the cluster says of itself, as soon as it does."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        found = re.search(pattern, path.read_text() if path.exists() else "")
        if found:
            return found[1]
        assert process.poll() is None, path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} does not say {pattern} in {LONG_S} s")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, str, list["subprocess.Popen[bytes]"]]]:
    """A folder with the whole sweep's file, the scheduler's address, and two workers of a thread
    each that nobody starts again.
    """
    folder = tmp_path_factory.mktemp("dask")
    subprocess.run(
        command(folder, "whole.csv", "--jobs", "1"),
        env=environment(folder),
        check=True,
        capture_output=True,
    )
    parts = [
        begin(
            "scheduler",
            folder,
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--no-show",
        )
    ]
    try:
        address = said(folder / "scheduler.log", r"(tcp://127\.0\.0\.1:\d+)", parts[0])
        alone = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        workers = [begin(f"worker{i}", folder, "worker", address, *alone) for i in range(2)]
        parts += workers
        for i, worker in enumerate(workers):
            said(folder / f"worker{i}.log", r"(Registered to)", worker)
        yield folder, address, workers
    finally:
        for part in reversed(parts):
            if part.poll() is None:
                part.kill()
        for part in parts:
            part.wait(LONG_S)


@pytest.mark.long
def test_a_worker_dies_in_the_middle(
    cluster: tuple[Path, str, list["subprocess.Popen[bytes]"]],
) -> None:
    folder, address, workers = cluster
    with held(folder):
        process = start(folder, command(folder, "rows.csv", "--scheduler", address))
        wait_for_rows(folder / "rows.csv", 5, process)
        os.kill(workers[0].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, errors
    assert f"{POINTS} rows, {POINTS} " in errors
    assert (folder / "rows.csv").read_bytes() == (folder / "whole.csv").read_bytes()


@pytest.mark.long
def test_ctrl_c_and_resume(cluster: tuple[Path, str, list["subprocess.Popen[bytes]"]]) -> None:
    folder, address, _ = cluster
    with held(folder):
        process = start(folder, command(folder, "stopped.csv", "--scheduler", address))
        wait_for_rows(folder / "stopped.csv", 5, process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=LONG_S)
    assert (process.returncode, errors.splitlines()[-1]) == (130, "interrupted")
    subprocess.run(
        command(folder, "stopped.csv", "--scheduler", address),
        env=environment(folder),
        check=True,
        capture_output=True,
    )
    assert (folder / "stopped.csv").read_bytes() == (folder / "whole.csv").read_bytes()


@pytest.mark.long
def test_a_client_from_python(cluster: tuple[Path, str, list["subprocess.Popen[bytes]"]]) -> None:
    folder, address, _ = cluster
    code = f"""if True:
        import hosim
        from distributed import Client
        with Client({address!r}) as client:
            larger = {{"tiers.hbm.capacity": "1 MB", "tiers.ddr.capacity": "1 MB"}}
            vary = [{{"channels.h2d.bandwidth": b, "budget": n, **larger}} for b in ("1 GB/s", "2 GB/s") for n in (200, 0)]
            table = hosim.sweep({str(folder / "chain.json")!r}, "toy", "belady", vary=vary, scheduler=client)
        print(list(table["feasible"]), table["makespan_ns"].notna().sum(), "".join(sorted(set(table["error"].dropna()))))
    """
    command(folder, "unused.csv")  # makes the workload
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused = (
        "budget: 0 B leaves no memory at all; "
        "expected whole bytes, a size such as '40 GiB' or a share of the resident peak such as "
        "'75%' or 0.75"
    )
    assert done.stdout == f"[True, False, True, False] 2 {refused}\n"


def without_notes(stderr: str) -> str:
    return "".join(
        line for line in stderr.splitlines(keepends=True) if not line.startswith("note: ")
    )


@pytest.mark.long
def test_the_scheduler_dies(tmp_path: Path) -> None:
    scheduler = begin(
        "lonely",
        tmp_path,
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--no-show",
    )
    try:
        address = said(tmp_path / "lonely.log", r"(tcp://127\.0\.0\.1:\d+)", scheduler)
        environ = {**environment(tmp_path), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
        asked = command(tmp_path, "rows.csv", "--scheduler", address)
        sweep = subprocess.Popen(
            asked, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        said(tmp_path / "lonely.log", r"(Receive client connection)", scheduler)
    finally:
        scheduler.kill()
        scheduler.wait(LONG_S)
    wrong = without_notes(sweep.communicate(timeout=LONG_S)[1])
    gone = (
        "error: the Dask scheduler has gone; start one and run the same command again, which "
        "continues\n"
    )
    early = (
        wrong.startswith(f"error: {address}: no Dask scheduler answers there (")
        and wrong.count("\n") == 1
    )  # the client had only begun
    assert sweep.returncode == 2
    assert wrong == gone or early


@pytest.mark.parametrize(
    "address", ["nonsense", ":", "tcp://", "x" * 5000, "tcp://host:port", "a b:1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(
        InputError, match="expected the address of a Dask scheduler, such as tcp://host:8786"
    ):
        cluster_at(address)


@pytest.mark.long
def test_nobody_answers(tmp_path: Path) -> None:
    # port 1 of this machine: nothing listens there
    asked = command(tmp_path, "rows.csv", "--scheduler", "tcp://127.0.0.1:1")
    ended = subprocess.run(
        asked, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    wrong = without_notes(ended.stderr)
    assert wrong.count("\n") == 1
    assert wrong.startswith("error: tcp://127.0.0.1:1: no Dask scheduler answers there")
