"""A sweep as a program of its own, to be killed; and the graph that it sweeps over."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import save_workload

# Ctrl-C works in it even if this process ignores it, as under nohup: its processes would inherit
# that.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from "
    "hosim.cli.main import main; main()"
)
LONG_S = 600
"""Bounds what hangs: however busy the machine is, nothing here takes as long."""
HOSIM = [sys.executable, "-c", PROGRAM]
ROOT = Path(__file__).resolve().parents[2]

MACHINE = Hardware(
    "two tiers",
    (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 10**6, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({"bf16": 10**12}),
)
"""1 byte a nanosecond each way."""


def chain(layers: int, name: str = "chain") -> Graph:
    """Weights of 30 bytes that live in the device tier, each used by one op of 20 ns."""
    b = GraphBuilder(name)
    last = b.tensor("x", 1, "input")
    for i in range(layers):
        inputs, last = [last, b.tensor(f"w{i}", 30, "parameter")], b.tensor(f"a{i}", 1)
        b.op(f"f{i}", "matmul", inputs=inputs, outputs=[last], duration_ns=20)
    return b.build()


POINTS, BEFORE = 40, 10
"""Of the points, and of those of at most 3 GB/s, which come first."""


def command(folder: Path, output: str, *more: str) -> list[str]:
    """A sweep of 40 points; its rows go to ``output`` in the folder. While the folder is held, the
    first 10 points are all that is done.
    """
    if not (folder / "chain.json").exists():
        save_workload(chain(40), folder / "chain.json")
    vary = ["--vary", "channels.h2d.bandwidth=1..10GB/s:20", "--vary", "budget=200B,400B"]
    fixed = ["sweep", str(folder / "chain.json"), "-H", "toy", "-p", "held"]
    # the toy has 100 B of device memory and 1000 B below
    larger = [
        "--vary",
        "tiers.hbm.capacity=1MB",
        "--vary",
        "tiers.ddr.capacity=1MB",
        "--vary",
        "runtime.inspect=0ns",
    ]
    return [*HOSIM, *fixed, *vary, *larger, "-o", str(folder / output), *more]


def environment(folder: Path) -> dict[str, str]:
    """This process's, with this checkout first and the policy that waits for as long as the folder
    is held.
    """
    path = os.pathsep.join(
        [str(ROOT), str(Path(__file__).parent / "held_policy"), os.environ.get("PYTHONPATH", "")]
    )
    return {**os.environ, "PYTHONPATH": path, "HELD_BY": str(folder / "held")}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Sweeps of this folder stop in the middle, with processes busy, until this ends."""
    (folder / "held").touch()
    try:
        yield
    finally:
        (folder / "held").unlink()


def start(folder: Path, arguments: list[str]) -> "subprocess.Popen[str]":
    """The program, in a process group of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        arguments, env=environment(folder), text=True, start_new_session=True, **pipes
    )


def wait_for_rows(path: Path, count: int, process: "subprocess.Popen[str]") -> None:
    """Until the file has so many rows beyond its header."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        if path.exists() and path.read_bytes().count(b"\n") > count:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    raise AssertionError(f"{path} has not got {count} rows in {LONG_S} s")


def children(pid: int, marked: str) -> list[int]:
    """Child processes of ``pid`` with ``marked`` in their command line (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and marked in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    return found
