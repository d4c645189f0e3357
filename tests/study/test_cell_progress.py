"""A cell says what takes long, in one place, and nothing once it is done; outside a notebook
nothing is said.
"""

import sys
import time
from collections.abc import Callable, Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from sweeping import MACHINE, chain

import hosim
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a kernel's cell gets; ten seconds pass from one look at the clock to the next."""
    got: list[object] = []
    handle = SimpleNamespace(update=lambda data, raw: got.append(data))

    def display(data: object, raw: bool, display_id: bool) -> Any:
        got.append(data)
        return handle

    shell = SimpleNamespace(kernel=1)
    monkeypatch.setitem(
        sys.modules,
        "IPython",
        SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display)),
    )
    at(monkeypatch, count(0, 10))
    return got


def at(monkeypatch: pytest.MonkeyPatch, seconds: Iterable[float]) -> None:
    """The clock shows these seconds in turn, and the last of them from then on."""
    left, now = iter(seconds), 0.0

    def monotonic() -> float:
        nonlocal now
        now = next(left, now)
        return now

    monkeypatch.setattr(time, "monotonic", monotonic)


def lines_of(cell: list[object]) -> list[object]:
    """What the cell showed, line by line; ``None`` where it was taken away."""
    return [data.get("text/plain") if isinstance(data, dict) else data for data in cell]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: hosim.compare(chain(2), MACHINE, "resident"), "resident: replaying"),
        (lambda: hosim.compare(chain(2), [MACHINE], "resident"), "two tiers, resident: planning"),
        (
            lambda: hosim.sweep(
                chain(2), MACHINE, "resident", vary={"budget": ["50%", "100%"]}, jobs=1
            ),
            "2 of 2 points, 1 does not fit",
        ),
        (
            lambda: hosim.frontier(chain(2), MACHINE, "resident", points=2, refine=0),
            "resident within 61 B",
        ),
        (
            lambda: hosim.fit(chain(2), MACHINE, "resident", smallest="budget=50..100%:2"),
            "budget = 50%",
        ),
        (lambda: hosim.robustness(chain(2), MACHINE, "resident", runs=1), "resident: run 1 of 1"),
        (lambda: hosim.plan(chain(2), MACHINE, "resident"), "resident: planning"),
        (lambda: hosim.blame(chain(2), MACHINE, "layerwise"), "planning"),
    ],
)
def test_every_study_says_what_it_does(
    cell: list[object], ask: Callable[[], object], said: str
) -> None:
    ask()
    *lines, last = lines_of(cell)
    assert any(said in str(line) for line in lines), lines
    assert last is None


def test_what_takes_long_is_said_now_and_then_and_taken_away(
    cell: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two seconds on, a quarter of a second apart at least."""

    def ask() -> list[object]:
        cell.clear()
        hosim.sweep(
            chain(2),
            MACHINE,
            "resident",
            vary={"budget": [f"{k} B" for k in range(100, 105)]},
            jobs=1,
        )
        return lines_of(cell)

    at(monkeypatch, count(0, 10))
    *told, _ = ask()
    assert len(told) > 5
    doing = [str(line).partition(": ")[2] for line in told]
    at(monkeypatch, [0.0, 1.9, 2.0, 2.1, 2.3, 61.4])
    assert ask() == [f"2 s: {doing[1]}", f"2 s: {doing[3]}", f"61 s: {doing[4]}", None]


def test_what_is_short_says_nothing_and_an_error_takes_away_what_was_said(
    cell: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        raise ZeroDivisionError

    at(monkeypatch, [0.0])
    hosim.plan(chain(2), MACHINE, "resident")
    assert cell == []
    at(monkeypatch, [0.0, 5.0])
    with pytest.raises(hosim.HosimError):
        hosim.plan(chain(2), MACHINE, fails)
    assert lines_of(cell) == ["5 s: fails: planning", None]


def test_what_begins_nothing_new_is_said_again_with_the_time(cell: list[object]) -> None:
    def waits(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        for _ in range(1000):  # 10 s at most: another thread says it each second
            if len(cell) > 1:
                break
            time.sleep(0.01)
        return Plan(graph)

    hosim.plan(chain(2), MACHINE, waits)
    assert lines_of(cell)[:2] == ["10 s: waits: planning", "20 s: waits: planning"]


def test_a_terminal_with_ipython_is_no_notebook(
    cell: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    )
    hosim.compare(chain(2), MACHINE, "resident")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    hosim.compare(chain(2), MACHINE, "resident")
    assert cell == []
