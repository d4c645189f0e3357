"""What the fuzzer found once, and inputs of fixed seeds: no command leaves its contract, and none does more work than it should."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_case import Case
from fuzz_server import Bounds, Server
from fuzz_targets import Target
from run_fuzz import FOUND, started
from typer import main as typer_main

from hosim.importers import FORMATS
from hosim.io.reading import KINDS

NUMBER = 30
"""Inputs of a target in ``make test``."""
MORE = 300
"""Inputs of a target in ``make test-long``."""
NO_END = Bounds(cpu_s=300, wall_s=600)
"""No verdict depends on the clock: this ends what never ends."""
LIMITS = {
    "HOSIM_LIMITS": "file_bytes=1MiB,unpacked_bytes=1MiB,records=20000,values=200000,yaml_values=50000,grid_points=100,devices=64,runs=50"
}
READ, UNPACKED = 16 << 20, 8 << 20
"""Bytes that a command may read and unpack under these limits: of files of at most 1 MiB, each read a few times."""
DRAWN = 128 << 20
"""What it may read beside that for the pictures of a page: every text in them reads the fonts again."""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Server, list[Target]]]:
    before = dict(os.environ), typer_main.get_command
    server, listed = started(NO_END)
    server.learn([case for target in listed if not target.heavy for case in target.valid()[: len(target.commands)]])
    yield server, listed
    server.close()
    assert (dict(os.environ), typer_main.get_command) == before


def broken(server: Server, cases: list[Case]) -> list[str]:
    """What the commands break of the contract, and of the bounds of their work."""
    found = []
    for case, outcome in zip(cases, server.run(cases, together=True), strict=True):
        wrong = list(outcome.wrong)
        if outcome.read > READ + ("--html" in case.arguments) * DRAWN or outcome.unpacked > UNPACKED:
            wrong.append(f"read {outcome.read} and unpacked {outcome.unpacked} bytes")
        if wrong:
            found.append(f"{case.target}: hosim {' '.join(case.arguments)!r}: {'; '.join(wrong)}: {outcome.stderr[-300:]!r}")
    return found


def limited(case: Case) -> Case:
    """The case under limits that make work small; those of a case that sets its own stay."""
    return Case(case.target, case.arguments, case.files, {**LIMITS, **case.environment}, case.streams)


def test_valid_files_are_read(running: tuple[Server, list[Target]]) -> None:
    """Else what is changed would be refused for what was there before."""
    server, listed = running
    for target in listed:
        if not target.heavy and target.name != "comparison":  # no command reads a comparison
            cases = target.valid()[: len(target.commands)]
            outcomes = list(server.run(cases, together=True))
            assert [outcome.wrong for outcome in outcomes if outcome.wrong] == []
            assert 0 in [outcome.code for outcome in outcomes], (target.name, [outcome.stderr for outcome in outcomes])


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_stays_mended(running: tuple[Server, list[Target]], path: Path) -> None:
    server, _ = running
    assert broken(server, [Case.load(path)]) == []


def test_inputs_of_fixed_seeds(running: tuple[Server, list[Target]]) -> None:
    server, listed = running
    cases = [limited(target.case(number, quick=True)) for target in listed if not target.heavy for number in range(NUMBER)]
    assert broken(server, cases) == []


@pytest.mark.long
def test_more_inputs_of_fixed_seeds(running: tuple[Server, list[Target]]) -> None:
    server, listed = running
    server.learn([case for target in listed for case in target.valid()])
    cases = [limited(target.case(number, quick=False)) for target in listed for number in range(0 if target.heavy else NUMBER, MORE)]
    assert broken(server, cases) == []


def test_every_format_has_a_seed(running: tuple[Server, list[Target]]) -> None:
    """CONTRIBUTING.md says how a format joins."""
    covered = {name for target in running[1] for name in target.formats}
    assert ({form.title for form in FORMATS} | set(KINDS)) - covered == set()


def test_a_case_is_the_same_each_time_and_comes_back_from_its_file(running: tuple[Server, list[Target]]) -> None:
    for target in running[1]:
        case = target.case(7, quick=True)
        assert case == target.case(7, quick=True) == Case.of_text(case.to_text())
        assert len({target.case(number, quick=True).to_text() for number in range(20)}) > 10
