"""What a process that tries a mutant adds to pytest: the tests chosen, each with a limit of CPU
time, and a note of where it stands.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

SPARE_S = 15.0


@dataclass
class Chosen:
    """``seconds`` of the tests to run, in that order; the last line of the ``note`` says what runs
    now, or what failed.
    """

    seconds: dict[str, float]
    note: Path

    def pytest_collection(self) -> None:
        """A failure is enough: nothing looks for the smallest example of it."""
        settings.register_profile(
            "mutants",
            settings(),
            phases=[
                p for p in settings().phases if p is not Phase.shrink and p is not Phase.explain
            ],
        )
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Those chosen alone, the files in the order of their first test."""
        places = {test: i for i, test in enumerate(self.seconds)}
        files: dict[str, int] = {}
        for test, i in places.items():
            files.setdefault(test.partition("::")[0], i)
        items[:] = sorted(
            (i for i in items if i.nodeid in places),
            key=lambda i: (files[i.nodeid.partition("::")[0]], places[i.nodeid]),
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Ends the process when the test takes far more CPU time than it did: the mutant hangs."""
        self._write("runs", item.nodeid)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, SPARE_S + 5 * self.seconds[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the failure."""
        if report.failed:
            self._write("failed", report.nodeid)

    def _write(self, word: str, nodeid: str) -> None:
        with self.note.open("a") as file:
            print(word, nodeid, file=file)
