"""The tables of docs/comparison.md: what their cells say, and that none is left out."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from grid import MADE, SHARES, VERSION, Cell, attempted, known, measure, summary, write
from write_comparison import MACHINE, PAGE, ahead, no_advantage_from, tables

from hosim.data.versions import VERSIONS
from hosim.engine import read_budget, replay
from hosim.io import load_hardware
from hosim.planner.hyperoffload import search
from hosim.policies import policy_named
from hosim.shipped import find_hardware, workloads


def cells(*times):
    return [
        Cell("w", MACHINE, share, 1, own, "r" if rival else "", rival, None, 0.0, own)
        for share, (own, rival) in zip(SHARES, times, strict=True)
    ]


def test_a_cell_says_how_much_less_is_taken():
    assert [
        ahead(90, 100),
        ahead(101, 100),
        ahead(100, None),
        ahead(None, None),
        ahead(None, 5),
    ] == [
        "+10.0 %",
        "-1.0 %",
        "alone fits",
        "nothing fits",
        "only the rival fits",
    ]


@pytest.mark.parametrize(
    ("times", "least"),
    [
        (
            [(100, 100), (100, 100), (100, 102), (100, 100)],
            "b",
        ),  # an even cell below one with an advantage does not count
        ([(100, 102), (100, 100), (100, 100), (100, 100)], "none"),
        ([(100, 100), (100, 100), (100, None), (None, None)], "b"),
        (
            [(100, 100), (100, 100), (100, 100), (None, None)],
            "c",
        ),  # where nothing fits there is nothing to compare
    ],
)
def test_the_budget_from_which_on_there_is_no_advantage(times, least):
    assert no_advantage_from(times, "abcd") == least


def test_a_missing_cell_is_an_error():
    some = cells(*[(80, 100)] * len(SHARES))
    assert (
        tables(some, ["w"])["moves"].splitlines()[2]
        == f"| w | {MACHINE} | " + "+20.0 % | " * len(SHARES) + "none |"
    )
    with pytest.raises(SystemExit, match=f"not among the cells: w at {SHARES[1]}$"):
        tables([some[0], *some[2:]], ["w"])


def test_cells_of_other_machines_and_of_several_devices_are_left_aside():
    some = cells(*[(80, 100)] * len(SHARES))
    others = [
        replace(cell, own_ns=1, moves_ns=1, **other)
        for cell in some
        for other in ({"machine": "m"}, {"devices": 8})
    ]
    assert tables([*some, *others], ["w"]) == tables(some, ["w"])


def test_the_page_has_every_workload():
    page = PAGE.read_text()
    for name in ("moves", "rivals", "whole"):
        (table,) = re.findall(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", page, re.S)
        assert [row.split(" | ")[0].strip("| ") for row in table.splitlines()[2:]] == workloads()


@pytest.mark.long
def test_the_page_has_what_a_cell_says():
    cell = measure("vit-l-16-train", "h100-80gb-sxm", "75%", 1, moves=True)
    (row,) = [
        line
        for line in PAGE.read_text()
        .partition("<!-- moves -->")[2]
        .partition("<!-- end -->")[0]
        .splitlines()
        if cell.workload in line
    ]
    assert row.strip("| ").split(" | ")[2 + SHARES.index("75%")] == ahead(
        cell.moves_ns, cell.rival_ns
    )


def test_a_cell_that_fails_is_written_with_its_error_and_tried_again(tmp_path):
    cell = attempted("no-such-workload", "h100-80gb-sxm", "75%", 1)
    assert "no-such-workload" in cell.error
    assert str(cell).startswith("ERROR no-such-workload h100-80gb-sxm 75% x1: ")
    assert not cell.worse
    fine = Cell("w", "m", "75%", 1, 10, "", None, 10, 0.0)
    file = tmp_path / "cells.csv"
    write(file, [cell])
    write(
        file,
        [
            fine,
            *(
                replace(fine, share="60%", version=VERSION.replace(name, f"older {name}"))
                for name in VERSIONS
            ),
        ],
    )
    assert known(file) == [fine]


def test_a_report_names_the_cells_in_which_a_rival_is_better():
    better, worse = (
        Cell("w", "m", "75%", 1, 10, "r", 11, 10, 1.0),
        Cell("w", "m", "60%", 1, 12, "r", 11, 10, 3.0),
    )
    assert summary([better, worse]).splitlines() == [
        "2 cells, hyperoffload worse in 1, 0 failed",
        "planned in 2.0 s (median), 3.0 s (90th percentile), 3.0 s (longest)",
        "WORSE w m 60% x1: own 12 r 11 ratio 1.0909 over bound 1.200 planned in 3.0 s",
    ]


def test_where_the_first_sweep_does_not_fit_another_stretch_does() -> None:
    # two streams overlap otherwise than the listed order says, and hold more than the first sweep
    # expects. By itself the planner is no worse than the rival that once won this cell
    graph, hardware = MADE["towers-2-deep"](), load_hardware(find_hardware("a100-80gb-sxm"))
    _, budget = read_budget("30%").of(graph, hardware)
    rival = policy_named("keep_first").plan(graph, hardware, budget)
    rival_ns = replay(rival, hardware, budget).makespan_ns
    assert rival_ns is not None
    assert search(graph, hardware, budget, effort=0.05).cost.makespan_ns < 0.9 * rival_ns


def test_the_commands_of_the_page_run_as_scripts(tmp_path):
    """They find the helpers of tests without pytest."""
    cells = tmp_path / "cells.csv"
    for command in (["grid.py", "--report", "--out", cells], ["write_comparison.py", cells]):
        script, *given = command
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name(script), *given],
            cwd=PAGE.parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert "cells" in done.stdout + done.stderr
