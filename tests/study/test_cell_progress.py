"""A cell says what takes long, in one place, and nothing once it is done; outside a notebook nothing is said."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sweeping import MACHINE, chain

import hosim
from hosim.api import AGAIN_S, cell_progress
from hosim.api.cell_progress import ProgressLine, in_cell
from hosim.api.repeats import until


def test_what_takes_long_is_said_now_and_then_and_taken_away() -> None:
    said: list[str | None] = []
    seconds = iter([0.0, 1.9, 2.0, 2.1, 2.3, 61.4])
    with in_cell(said.append, lambda: next(seconds)) as tell:
        for doing in ("first", "second\n", "third", "fourth", "fifth " + "x" * 200):
            tell(doing)
    assert said[:2] == ["2 s: second\\n", "2 s: fourth"]  # a quarter of a second after the second
    assert said[2].startswith("61 s: fifth xxx")
    assert len(said[2]) == 120
    assert said[3:] == [None]


def test_what_is_short_says_nothing_and_an_error_takes_away_what_was_said() -> None:
    said: list[str | None] = []
    with in_cell(said.append, lambda: 0.0) as tell:
        tell("short")
    assert said == []
    seconds = iter([0.0, 5.0])

    def fail() -> None:
        with in_cell(said.append, lambda: next(seconds)) as tell:
            tell("long")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert said == ["5 s: long", None]


def test_what_begins_nothing_new_is_said_again_with_the_time() -> None:
    said: list[str | None] = []
    seconds = iter([0.0, 0.5, 1.5, 2.5, 3.0, 3.5, 3.6])
    line = ProgressLine(said.append, lambda: next(seconds))
    line.tell("planning")
    waits = iter([False, False, False, False, True])  # 1.5, 2.5, 3.0 and 3.5
    until(lambda: next(waits), lambda: line.again(AGAIN_S))
    line.tell("planning more")  # only 0.1 s after the last line
    line.end()
    assert said == ["2 s: planning", "4 s: planning", None]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a kernel's cell gets, in which every moment counts as long."""
    got: list[object] = []
    handle = SimpleNamespace(update=lambda data, raw: got.append(data))

    def display(data: object, raw: bool, display_id: bool) -> Any:
        got.append(data)
        return handle

    shell = SimpleNamespace(kernel=1)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display)))
    monkeypatch.setattr(cell_progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(cell_progress, "_BETWEEN_S", 0.0)
    return got


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: hosim.compare(chain(2), MACHINE, "resident"), "resident: replaying"),
        (lambda: hosim.compare(chain(2), [MACHINE], "resident"), "two tiers, resident: planning"),
        (
            lambda: hosim.sweep(chain(2), MACHINE, "resident", vary={"budget": ["50%", "100%"]}, jobs=1),
            "2 of 2 points, 1 does not fit",
        ),
        (lambda: hosim.frontier(chain(2), MACHINE, "resident", points=2, refine=0), "resident within 61 B"),
        (lambda: hosim.fit(chain(2), MACHINE, "resident", smallest="budget=50..100%:2"), "budget = 50%"),
        (lambda: hosim.robustness(chain(2), MACHINE, "resident", runs=1), "resident: run 1 of 1"),
        (lambda: hosim.plan(chain(2), MACHINE, "resident"), "resident: planning"),
        (lambda: hosim.blame(chain(2), MACHINE, "layerwise"), "planning"),
    ],
)
def test_every_study_says_what_it_does(cell: list[object], ask: Callable[[], object], said: str) -> None:
    ask()
    lines = [data["text/plain"] for data in cell if isinstance(data, dict) and data]
    assert any(said in line for line in lines), lines
    assert cell[-1] == {}


def test_a_terminal_with_ipython_is_no_notebook(cell: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    hosim.compare(chain(2), MACHINE, "resident")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    hosim.compare(chain(2), MACHINE, "resident")
    assert cell == []
