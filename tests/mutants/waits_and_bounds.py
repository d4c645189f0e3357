"""``python tests/mutants/waits_and_bounds.py``: 26 errors that an executor of plans can have, each
put into a copy of the tree in turn: a wait that is missing, a byte too few or too many, an address
given out twice. Prints the test that notices each, or that none of those of the executor does.

Most of these errors leave results right on a CPU: what sees them is the stand-in's order of
accesses (``tests/lower/fake_cuda.py``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reached import copy_tree, environment

ROOT = Path(__file__).resolve().parents[2]
LOWER = "hosim/on_torch/lower"
TESTS = (
    "test_orders_on_gpu",
    "test_on_cuda",
    "test_places",
    "test_machine",
    "test_run",
    "test_faults",
    "test_larger_than_the_device",
    "test_agreement",
)
"""The files of ``tests/lower`` that run, in this order."""


@dataclass(frozen=True)
class Error:
    """``before`` becomes ``after``, where it stands for the ``nth`` time in a file of the
    executor.
    """

    path: str
    before: str
    after: str
    nth: int = 0

    def apply(self, text: str) -> str:
        """The text with the error. Raises :class:`ValueError` if it is not there any more."""
        parts = text.split(self.before)
        if len(parts) < self.nth + 2:
            raise ValueError(f"{self.path} no longer has {self.before!r}")
        kept = self.before.join(parts[: self.nth + 1])
        return kept + self.after + self.before.join(parts[self.nth + 1 :])


ERRORS = (
    # the caller, ops and copies wait for events
    Error("run.py", "self._residents.arriving(returned), None", "(), None"),
    Error("run.py", "after.update(dict.fromkeys(resident.ready))", "pass"),
    Error("run.py", "after.update(dict.fromkeys(resident.last))", "pass"),
    Error(
        "run.py",
        "block or inside, (issued, *resident.last), joins",
        "block or inside, (issued,), joins",
    ),
    Error(
        "run.py",
        "block or inside, (issued, *resident.last), joins",
        "block or inside, resident.last, joins",
    ),
    Error("run.py", "resident.ready = resident.last\n", "resident.ready = resident.last[:1]\n"),
    Error(
        "run.py",
        "self.device.compute.launch(detach, unused, None)",
        "self.device.compute.launch(detach, (), None)",
    ),
    Error(
        "tiers/chunks.py",
        "at, waits, place = to, (end,), (end,)",
        "at, waits, place = to, (), (end,)",
    ),
    Error(
        "devices/cuda_queues.py",
        "                event.wait()\n                if not",
        "                pass\n                if not",
    ),
    Error("devices/on_cuda.py", "self._main.wait_stream(self._caller)", "pass"),
    Error("devices/on_cuda.py", "self._caller.wait_stream(self._main)", "pass"),
    Error(
        "devices/on_cuda.py",
        "            for event in run.file_events:\n                event.wait()\n",
        "",
    ),
    Error(
        "tiers/residents.py",
        "        self._device.wait()\n        resident = self[t]",
        "        resident = self[t]",
    ),
    Error("tiers/residents.py", "        if wanted:\n            self._device.wait()\n", ""),
    # memory goes when nobody uses it any more
    Error(
        "run.py",
        "                block.release(last)\n            else",
        "                block.release()\n            else",
    ),
    Error(
        "run.py", "self._free(self._storage(node), leaving)", "self._free(self._storage(node), ())"
    ),
    Error("run.py", "block.release(resident.last)", "block.release()"),
    Error("run.py", "self.device.linger(resident.size_bytes, resident.leaving)", "pass"),
    Error("tiers/chunks.py", "at.release((end,))", "at.release()"),
    Error("devices/on_cuda.py", "torch_gpu.used_on(value, self._caller)", "pass"),
    # bounds of copies and budgets
    Error(
        "tiers/file_tier.py",
        "place.bytes.numel() >= stop else",
        "place.bytes.numel() > stop else",
    ),
    Error("tiers/file_tier.py", "start + done)", "start)"),
    Error("devices/on_cuda.py", "level_bytes + self._pending_bytes > self", "level_bytes > self"),
    # addresses in pools
    Error(
        "tiers/host_pool.py",
        "(start + size_bytes, size - size_bytes)",
        "(start, size - size_bytes)",
    ),
    Error("tiers/host_pool.py", "other + size == start or", "other + size >= start or"),
    Error(
        "tiers/host_pool.py",
        "slab.give_back(start, _aligned(size_bytes))",
        "slab.give_back(start, _aligned(size_bytes) + ALIGNMENT)",
    ),
)


class _First:
    """What pytest says of the first test that fails."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes it."""
        if report.failed and not self.failed:
            _First.failed = report.nodeid


def _tried(tree: Path, files: list[str], note: Path) -> str:
    """The test that fails in the tree, by a process of its own; empty if none does."""
    note.write_text("the process ended")
    child = os.fork()
    if not child:
        try:
            os.environ.update(environment(tree))
            os.chdir(tree)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            here = str(Path(__file__).parent)
            sys.path[:] = [str(tree), *(path for path in sys.path if path != here)]
            options = ["-x", "-q", "-m", "not long", "-p", "no:cacheprovider"]
            code = int(pytest.main([*files, *options], plugins=[_First()]))
            note.write_text(_First.failed or ("" if code == 0 else f"exit {code}"))
        finally:
            os._exit(0)
    end = time.monotonic() + 1800
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "it hangs"
        time.sleep(0.1)
    return note.read_text()


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="which errors, from 0; all if none")
    asked = parser.parse_args().numbers or range(len(ERRORS))
    with TemporaryDirectory() as work:
        noticed = _try_all(asked, Path(work))
    print(f"{noticed} of {len(asked)} noticed")


def _try_all(asked: Sequence[int], work: Path) -> int:
    """How many of these errors a test notices."""
    tree = copy_tree(ROOT, work)
    for compiled in (ROOT / "hosim/engine").glob("*.so"):
        shutil.copy2(compiled, tree / "hosim/engine")
    __import__("torch")  # once, and not in each process
    files = [
        f"tests/lower/{name}.py" for name in TESTS if (tree / f"tests/lower/{name}.py").exists()
    ]
    noticed = 0
    for i in asked:
        path = tree / LOWER / ERRORS[i].path
        text = path.read_text()
        path.write_text(ERRORS[i].apply(text))
        os.utime(path, (time.time() + i, time.time() + i))  # no compiled version has this time
        failed = _tried(tree, files, work / "note.txt")
        path.write_text(text)
        noticed += bool(failed)
        print(
            f"{i:2} {ERRORS[i].path}: {ERRORS[i].before.strip()!r}: {failed or 'NOT NOTICED'}",
            flush=True,
        )
    return noticed


if __name__ == "__main__":
    main()
