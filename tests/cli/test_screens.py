"""Whole screens stay as they are kept in ``screens.txt``; after a change that is meant, ``python
tests/cli/screens.py`` writes them.

Their tables lose no figure, however wide the terminal is.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import screens
from rendered import rendered
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hosim.report.printing import OpenTable

KEPT = screens.kept()
WIDTHS = range(60, 201, 10)
_FIGURE = re.compile(r"-?\d[\d.,]* (B|[KMG]iB|ns|us|ms|s)")

Shown = Callable[[str], tuple[str, list[OpenTable]]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """What a command prints, and the tables in it; each command runs once."""
    folder: Path = tmp_path_factory.mktemp("screens")
    tables: list[OpenTable] = []
    render = OpenTable.__rich_console__

    def noted(self: OpenTable, console: Console, options: ConsoleOptions) -> RenderResult:
        tables.extend([self] if self.show_header else [])
        return render(self, console, options)

    @cache
    def run(command: str) -> tuple[str, list[OpenTable]]:
        tables.clear()
        return screens.screen(command), list(tables)

    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        screens.files()
        patch.setenv("HOSIM_CACHE", str(folder / "cache"))
        for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"):
            patch.delenv(name, raising=False)
        patch.setattr(OpenTable, "__rich_console__", noted)
        yield run


@pytest.mark.parametrize("command", screens.SCREENS)
def test_a_screen_is_as_kept(command: str, shown: Shown) -> None:
    assert shown(command)[0] == KEPT[command]


def test_no_screen_is_kept_that_nothing_shows() -> None:
    assert tuple(KEPT) == screens.SCREENS


def test_no_table_cuts_a_figure_at_any_width(shown: Shown) -> None:
    """Every size and time is made as long as they get, and different from all others: it is there
    whole, or its column is named.
    """
    tables = {_headers(table): table for command in screens.SCREENS for table in shown(command)[1]}
    assert len(tables) > 30
    for headers, table in tables.items():
        _lengthen(table)
        widest = rendered(table, WIDTHS[-1])
        for width in WIDTHS:
            found = rendered(table, width)
            left_out = " ".join(
                found.partition("Empty: ")[2].split() + found.partition("Not shown: ")[2].split()
            )
            kept = [
                c
                for c in table.columns
                if c.no_wrap and " ".join(str(c.header).split()) not in left_out
            ]
            cut = [str(cell) for column in kept for cell in column.cells if str(cell) not in found]
            assert not cut, (width, headers, cut)
            if found == widest:  # no wider terminal shows more
                break


def _headers(table: OpenTable) -> str:
    return f"{table.title}: {', '.join(str(column.header) for column in table.columns)}"


def _lengthen(table: OpenTable) -> None:
    numbers = count(1000)
    for column in table.columns:
        column._cells = [
            Text(f"{next(numbers)} MiB") if _FIGURE.fullmatch(str(cell)) else cell
            for cell in column.cells
        ]
