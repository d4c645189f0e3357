"""A file of rows whose cells are damaged is refused in one line that names the cell; the sweep does
not go on from it.
"""

import csv
import fcntl
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.errors import InputError
from hosim.study.rows_of_answers import RowFile

WORKLOAD = """{"format": "hosim.workload/1", "name": "small",
 "tensors": [{"name": "w", "bytes": 40, "kind": "parameter", "home": "ddr"}, {"name": "a", "bytes": 30}],
 "ops": [{"name": "f", "kind": "matmul", "inputs": ["w"], "outputs": ["a"], "duration_ns": 50}]}"""
NOTE = "note: durations: times as given for its 1 op\n"
"""What each of these sweeps says first."""


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[list[str], Path]:
    """The command, and the finished file that it wrote."""
    (tmp_path / "small.json").write_text(WORKLOAD)
    path = tmp_path / "rows.csv"
    command = [
        "sweep",
        str(tmp_path / "small.json"),
        "-H",
        "toy",
        "-p",
        "layerwise",
        "--vary",
        "budget=10B,90B,100B",
        "-o",
        str(path),
    ]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 0, outcome.output
    return command, path


def damage(path: Path, line: int, column: str, text: str) -> None:
    """Puts the text into a cell; the line numbers are those of the file."""
    with path.open(newline="") as stream:
        rows = list(csv.reader(stream))
    rows[line - 1][rows[0].index(column)] = text
    with path.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


@pytest.mark.parametrize(
    ("line", "column", "text", "why"),
    [
        (3, "makespan_ns", "x", "line 3: makespan_ns: expected a whole number, got 'x'"),
        (3, "makespan_ns", "--5", "line 3: makespan_ns: expected a whole number, got '--5'"),
        (3, "makespan_ns", "", "line 3: makespan_ns: expected a whole number, got nothing"),
        (
            4,
            "hbm_peak_bytes",
            "\u0661",
            "line 4: hbm_peak_bytes: expected a whole number, got '\u0661'",
        ),
        (
            4,
            "transfer_stall_ns",
            "1.5",
            "line 4: transfer_stall_ns: expected a whole number, got '1.5'",
        ),
        (4, "budget_bytes", "", "line 4: budget_bytes: expected a whole number, got nothing"),
        (2, "feasible", "True", "line 2: feasible: expected true or false, got 'True'"),
        (2, "feasible", "", "line 2: feasible: expected true or false, got nothing"),
        (2, "error", "", "line 2: error: expected why the point does not fit, got nothing"),
        (2, "feasible", "true", "line 2: drain_ns: expected a whole number, got nothing"),
    ],
)
def test_a_damaged_cell_is_named(
    sweep: tuple[list[str], Path], line: int, column: str, text: str, why: str
) -> None:
    command, path = sweep
    damage(path, line, column, text)
    before = path.read_bytes()
    outcome = CliRunner().invoke(app, command)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    if column != "feasible" or text != "true":
        assert (
            outcome.stderr
            == f"{NOTE}error: {path}: {why}; remove this row and run the same command again\n"
        )
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("digits", "why"),
    [
        (
            41,
            f"line 3: makespan_ns: expected a whole number, got '{'9' * 41}'; remove this row and "
            "run the same command again",
        ),
        (
            5000,
            "byte 619: expected at most 1000 digits in a number, got more; "
            'HOSIM_LIMITS="integer_digits=2000" raises this limit',
        ),
    ],
)
def test_a_number_of_too_many_digits_is_no_number(
    sweep: tuple[list[str], Path], digits: int, why: str
) -> None:
    command, path = sweep
    damage(path, 3, "makespan_ns", "9" * digits)
    outcome = CliRunner().invoke(app, command)
    assert (outcome.exit_code, outcome.stderr) == (2, f"{NOTE}error: {path}: {why}\n")


def test_a_row_that_is_removed_is_computed_again(sweep: tuple[list[str], Path]) -> None:
    command, path = sweep
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    outcome = CliRunner().invoke(app, command)
    assert (outcome.exit_code, outcome.stderr) == (
        0,
        f"{NOTE}wrote {path}: 3 rows, 1 of them computed now\n",
    )
    assert path.read_bytes() == whole


def test_a_cell_longer_than_any_is_refused(sweep: tuple[list[str], Path]) -> None:
    command, path = sweep
    damage(path, 3, "policy", "x" * 200_000)
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 2
    why = (
        "expected at most 128KiB in a field of CSV, got more; "
        'HOSIM_LIMITS="csv_field_bytes=256KiB" raises this limit'
    )
    assert outcome.stderr == f"{NOTE}error: {path}: {why}\n"


@pytest.mark.parametrize(
    ("column", "values", "kind", "why"),
    [
        (
            "makespan_ns",
            [None, 90.5, 90.5],
            "float",
            "row 2: makespan_ns: expected a whole number, got 90.5",
        ),
        (
            "makespan_ns",
            ["x", "y", "z"],
            "string",
            "row 1: makespan_ns: expected a whole number, got 'x'",
        ),
        (
            "makespan_ns",
            [None, 90, None],
            "Int64",
            "row 3: makespan_ns: expected a whole number, got nothing",
        ),
        (
            "error",
            [None, None, None],
            "string",
            "row 1: error: expected why the point does not fit, got nothing",
        ),
    ],
)
def test_a_damaged_column_of_a_table_is_named(
    sweep: tuple[list[str], Path], column: str, values: list[object], kind: str, why: str
) -> None:
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    command, rows = sweep
    path = rows.with_suffix(".parquet")
    command = [*command[:-1], str(path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    table = pd.read_parquet(path)
    table[column] = pd.Series(values, dtype=kind)
    table.to_parquet(path, index=False)
    outcome = CliRunner().invoke(app, command)
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        f"{NOTE}error: {path}: {why}; remove this row and run the same command again\n",
    )


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("a bug")])
def test_a_file_that_cannot_be_locked_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    opened = []

    def lock(descriptor: int, how: int) -> None:
        opened.append(descriptor)
        raise error

    monkeypatch.setattr(fcntl, "flock", lock)
    with (
        pytest.raises((InputError, ValueError)) as raised,
        RowFile(tmp_path / "rows.csv", ["point"], []),
    ):
        pass
    cannot = f"{tmp_path}/rows.csv: cannot be written: Input/output error"
    assert str(raised.value) == (cannot if isinstance(error, OSError) else "a bug")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


FORMULAS = ("=1+2", "+1", "-1x", "@x", "\tx", "'x", "x")


def test_text_in_a_file_of_rows_is_no_formula_and_is_read_back(tmp_path: Path) -> None:
    rows = [
        {"point": f"p{k}", "policy": text, "feasible": True, "error": None}
        for k, text in enumerate(FORMULAS)
    ]
    path = tmp_path / "rows.csv"
    columns, keys = ["point", "policy", "feasible", "error"], [str(row["point"]) for row in rows]
    with RowFile(path, columns, keys) as file:
        for row in rows:
            file.append(row)
        file.finish()
    with path.open(newline="") as stream:
        cells = [line[1] for line in csv.reader(stream)][1:]
    assert cells == [*(f"'{text}" for text in FORMULAS[:-1]), "x"]
    with RowFile(path, columns, keys) as file:
        assert file.finish() == rows
