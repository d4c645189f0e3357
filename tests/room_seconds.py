"""``make rooms``: CPU seconds of each room of the tests beside its share of what ``make test`` may
take (``pytest -p room_seconds``).

Nothing fails by it: it says which room to look at when the suite gets slow. What does not fit goes
into ``make test-long``.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHARES = {
    "analysis": 15,
    "bench": 4,
    "cli": 70,
    "collection": 50,
    "costmodel": 4,
    "engine": 50,
    "files": 3,
    "formats": 14,
    "files beside the rooms": 96,
    "fuzz": 30,
    "gate": 22,
    "golden": 8,
    "gpu": 20,
    "importers": 31,
    "io": 12,
    "kept": 42,
    "lower": 65,
    "models": 55,
    "mutants": 1,
    "packing": 14,
    "planner": 78,
    "policies": 38,
    "report": 20,
    "schedule": 6,
    "serving": 25,
    "study": 42,
    "validate": 25,
}
"""CPU seconds: at most 14 minutes in all, 7 on two cores, beside one for ``make check``. At first
the rooms took two thirds of it.
"""

ROOMS = Path(__file__).parent
spent: Counter[str] = Counter()


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    begin = cpu()
    result = yield
    spent["collection"] += cpu() - begin
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begin = cpu()
    result = yield
    room, *inside = item.path.relative_to(ROOMS).parts
    spent[room if inside else "files beside the rooms"] += cpu() - begin
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["room_seconds"] = dict(spent)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    spent.update(getattr(node, "workeroutput", {}).get("room_seconds", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("CPU seconds by room, and its share")
    for room, seconds in spent.most_common():
        share = SHARES.get(room, 0)
        terminalreporter.line(
            f"{seconds:8.1f} of {share:4}  {room}{'  <- over its share' if seconds > share else ''}"
        )
    terminalreporter.line(f"{spent.total():8.1f} of {sum(SHARES.values()):4}  in all")
