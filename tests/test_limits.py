"""The table of limits, the variable that raises them, and what a refusal says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosim.errors import InputError
from hosim.limits import LIMITS, Budget, limit, refusal, within


def test_a_limit_has_its_default_or_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOSIM_LIMITS", raising=False)
    assert {name: limit(name) for name in LIMITS} == {
        name: one.default for name, one in LIMITS.items()
    }
    monkeypatch.setenv("HOSIM_LIMITS", " unpacked_bytes = 8GiB, devices=100_000,file_bytes=10,")
    assert (limit("unpacked_bytes"), limit("devices"), limit("file_bytes"), limit("runs")) == (
        8 * 1024**3,
        100_000,
        10,
        100_000,
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            "divices=4",
            "HOSIM_LIMITS: unknown limit 'divices'; expected NAME=VALUE with one of file_bytes, ",
        ),
        ("devices", "HOSIM_LIMITS: devices: expected a whole number above 0, got ''"),
        ("devices=0", "HOSIM_LIMITS: devices: expected a whole number above 0, got '0'"),
        ("devices=-1", "HOSIM_LIMITS: devices: expected a whole number above 0, got '-1'"),
        ("devices=8GiB", "HOSIM_LIMITS: devices: expected a whole number above 0, got '8GiB'"),
        (
            "devices=" + "9" * 6000,
            "HOSIM_LIMITS: devices: expected a whole number above 0, got '99999",
        ),
        ("devices=²", "HOSIM_LIMITS: devices: expected a whole number above 0, got '²'"),
        (
            "file_bytes=lots",
            "HOSIM_LIMITS: file_bytes: expected a size above 0 such as 8GiB, got 'lots'",
        ),
        (
            "file_bytes=0 B",
            "HOSIM_LIMITS: file_bytes: expected a size above 0 such as 8GiB, got '0 B'",
        ),
        (
            "integer_digits=10_000",
            "HOSIM_LIMITS: integer_digits: expected at most 4300, what Python itself reads, got "
            "10000; PYTHONINTMAXSTRDIGITS=10000 raises",
        ),
        ("runs=1,runs=2", "HOSIM_LIMITS: runs: is given twice; keep one"),
    ],
)
def test_a_bad_variable_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: str
) -> None:
    monkeypatch.setenv("HOSIM_LIMITS", value)
    with pytest.raises(InputError) as raised:
        limit("devices")
    assert str(raised.value).startswith(expected)
    assert len(str(raised.value)) < 400


def raises_enough(name: str, found: int | None) -> str:
    """The value of the variable that the refusal of ``found`` recommends."""
    return str(refusal(name, found)).partition('HOSIM_LIMITS="')[2].partition('"')[0]


@pytest.mark.parametrize("name", LIMITS)
def test_what_a_refusal_recommends_lets_the_input_pass(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = 3 * LIMITS[name].default + 1
    with pytest.raises(InputError, match=f'HOSIM_LIMITS="{name}='):
        within(name, found)
    monkeypatch.setenv("HOSIM_LIMITS", raises_enough(name, found))
    assert within(name, found) == found


def test_digits_beyond_what_python_reads_need_both_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOSIM_LIMITS", "integer_digits=4300")
    assert limit("integer_digits") == 4300
    expected = (
        'got more; with PYTHONINTMAXSTRDIGITS=8600, HOSIM_LIMITS="integer_digits=8600" '
        "raises this limit"
    )
    assert str(refusal("integer_digits")).endswith(expected)
    monkeypatch.setattr("sys.get_int_max_str_digits", lambda: 8600)
    monkeypatch.setenv("HOSIM_LIMITS", "integer_digits=8600")
    assert limit("integer_digits") == 8600


def test_a_number_of_many_digits_is_read_with_both_variables(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text('{"format": "hosim.workload/1", "name": 1%s}' % ("0" * 9000))
    variables = {"HOSIM_LIMITS": "integer_digits=10000", "PYTHONINTMAXSTRDIGITS": "10000"}
    command = [
        sys.executable,
        "-c",
        "from hosim.cli.start import main; main()",
        "workload",
        "show",
        "w.json",
    ]
    environment = {**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: w.json: name: expected")


def test_a_limit_itself_passes_and_one_more_does_not() -> None:
    assert within("devices", limit("devices")) == limit("devices")
    with pytest.raises(InputError, match="expected at most 16384 devices, got 16385"):
        within("devices", limit("devices") + 1)


@pytest.mark.parametrize("found", [None, 2**63, 10**6000], ids=["unknown", "just over", "huge"])
def test_more_than_can_be_said_is_more(monkeypatch: pytest.MonkeyPatch, found: int | None) -> None:
    monkeypatch.delenv("HOSIM_LIMITS", raising=False)
    assert ", got more; " in str(refusal("runs", found))
    assert raises_enough("runs", found) == "runs=200000"
    monkeypatch.setenv("HOSIM_LIMITS", f"runs={2**63 - 1}")
    assert raises_enough("runs", None) == f"runs={2**63 - 1}"


def test_the_page_lists_every_limit_with_its_default() -> None:
    page = (Path(__file__).parents[1] / "docs" / "limits.md").read_text()
    rows = [
        tuple(cell.strip(" `") for cell in line.split("|")[1:4])
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    assert rows == [(name, one.text(one.default), one.meaning) for name, one in LIMITS.items()]


def test_a_budget_refuses_what_goes_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSIM_LIMITS", "records=10")
    budget = Budget("records")
    for _ in range(4):
        budget.draw(2)
    budget.draw(2)
    with pytest.raises(
        InputError,
        match=r"^f: line 3: expected at most 10 records, got more; HOSIM_LIMITS=\"records=20\"",
    ):
        budget.draw(source="f", where="line 3")
