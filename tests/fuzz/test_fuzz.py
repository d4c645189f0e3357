"""What the fuzzer found once, and inputs of fixed seeds: no command leaves its contract, and none
does more work than it should.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_calls import PROGRAMS
from fuzz_case import Case
from fuzz_seeds import CONFIGS
from fuzz_server import Bounds, Server
from fuzz_targets import Target
from run_fuzz import FOUND, started
from typer import main as typer_main

from hosim.base.files import KINDS
from hosim.base.files.formats import known_formats

pytestmark = pytest.mark.slow

NUMBER = 4
"""Inputs of a target in ``make test``."""
FEWER = {"options": 12, "surroundings": 8, "names": 8} | dict.fromkeys(
    [f"config of {kind}" for kind in CONFIGS], 5
)
FEWER |= dict.fromkeys(
    [f"objects: {name}" for name in PROGRAMS], 0
)  # tests/test_hostile_arguments.py has what they found
"""What is no format, runs the commands on valid files and takes longer; and formats and programs of
which there are several seeds.
"""
MORE = 600
"""Inputs of a target in ``make test-long``, and of those that import torch from the first on."""
NO_END = Bounds(cpu_s=300, wall_s=600)
"""No verdict depends on the clock: this ends what never ends."""
LIMITS = {
    "HOSIM_LIMITS": "file_bytes=1MiB,unpacked_bytes=1MiB,records=20000,values=200000,yaml_values=50000,grid_points=100,devices=64,runs=50,"
    "layers=24"  # what a command writes can be read again
}
READ, UNPACKED, PARSED = 16 << 20, 8 << 20, 100_000
"""Bytes that a command may read and unpack under these limits, of files of at most 1 MiB, each read
a few times; and the values in them.
"""
FONTS = 128 << 20
"""What it may read beside that for pictures: every text in them reads the fonts again."""

RECORDINGS = {"nsys", "snapshot", "recording", "kernel table"}
"""What is read beside the files of :func:`known_formats` and :data:`KINDS`."""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Server, list[Target]]]:
    before = dict(os.environ), typer_main.get_command
    server, listed = started(NO_END)
    server.learn([case for target in listed if number_of(target) for case in target.valid()[:1]])
    yield server, listed
    server.close()
    assert (dict(os.environ), typer_main.get_command) == before


def broken(server: Server, cases: list[Case]) -> list[str]:
    """What the commands break of the contract, and of the bounds of their work."""
    found = []
    for case, outcome in zip(cases, server.run(cases, together=True), strict=True):
        wrong = list(outcome.wrong)
        draws = any(argument.startswith(("--html", "--plot")) for argument in case.arguments)
        if (
            outcome.read > READ + FONTS * draws
            or outcome.unpacked > UNPACKED
            or outcome.parsed > PARSED
        ):
            wrong.append(
                f"read {outcome.read} and unpacked {outcome.unpacked} bytes, parsed "
                f"{outcome.parsed} values"
            )
        if wrong:
            found.append(
                f"{case.target}: hosim {' '.join(case.arguments)!r}: {'; '.join(wrong)}: "
                f"{outcome.stderr[-300:]!r}"
            )
    return found


def limited(case: Case) -> Case:
    """The case under limits that make work small; those of a case that sets its own stay."""
    return Case(
        case.target, case.arguments, case.files, {**LIMITS, **case.environment}, case.streams
    )


def number_of(target: Target) -> int:
    """How many inputs of a target ``make test`` tries."""
    return 0 if target.heavy else FEWER.get(target.name, NUMBER)


@pytest.mark.long
def test_work_is_counted(running: tuple[Server, list[Target]]) -> None:
    """Of a result of 2,000 spaces and 1,001 values, packed: each is counted once for each time that
    it is read.
    """
    server, listed = running
    (target,) = [target for target in listed if target.name == "result"]
    content = gzip.compress(
        b'{"format": "hosim.result/1", "x": [' + b"0," * 999 + b"0" + b" " * 2000 + b"]}"
    )
    case = Case("result", ("diff", "a.json", "b.json"), {**target.files, "a.json": content})
    (outcome,) = server.run([case])
    assert outcome.code == 2
    for counted, once in (
        (outcome.parsed, 1002),
        (outcome.unpacked, 4000),
        (outcome.read, len(content)),
    ):
        assert once <= counted < 20 * once + 2**16


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("nsys", 10),
        ("chakra", 10),
        ("mindir", 10),
        ("onnx", 10),
        ("snapshot", 50),
        ("rows", 3),
        ("cases", 10),
        ("spec", 10),
        ("plan", 10),
    ],
)
def test_each_parser_counts(running: tuple[Server, list[Target]], name: str, least: int) -> None:
    server, listed = running
    (case, *_) = next(target.valid() for target in listed if target.name == name)
    (outcome,) = server.run([case])
    assert outcome.parsed >= least


@pytest.mark.long
def test_valid_files_are_read(running: tuple[Server, list[Target]]) -> None:
    """Else what is changed would be refused for what was there before."""
    server, listed = running
    for target in listed:
        if not target.heavy and target.name != "comparison":  # no command reads a comparison
            cases = target.valid()[: len(target.commands)]
            outcomes = list(server.run(cases, together=True))
            assert [outcome.wrong for outcome in outcomes if outcome.wrong] == []
            assert 0 in [outcome.code for outcome in outcomes], (
                target.name,
                [outcome.stderr for outcome in outcomes],
            )


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_stays_mended(running: tuple[Server, list[Target]], path: Path) -> None:
    server, _ = running
    assert broken(server, [Case.load(path)]) == []


def test_inputs_of_fixed_seeds(running: tuple[Server, list[Target]]) -> None:
    server, listed = running
    cases = [
        limited(target.case(number, quick=True))
        for target in listed
        if not target.heavy
        for number in range(number_of(target))
    ]
    assert broken(server, cases) == []


@pytest.mark.long
def test_more_inputs_of_fixed_seeds(running: tuple[Server, list[Target]]) -> None:
    server, listed = running
    server.learn([case for target in listed for case in target.valid()])
    cases = [
        limited(target.case(number, quick=False))
        for target in listed
        for number in range(number_of(target), MORE)
    ]
    assert broken(server, cases) == []


def test_every_format_has_a_seed(running: tuple[Server, list[Target]]) -> None:
    """CONTRIBUTING.md says how a format joins."""
    covered = {name for target in running[1] for name in target.formats}
    assert (set(known_formats()) | set(KINDS) | RECORDINGS) - covered == set()


def test_a_case_is_the_same_each_time_and_comes_back_from_its_file(
    running: tuple[Server, list[Target]],
) -> None:
    for target in running[1]:
        case = target.case(7, quick=True)
        assert case == target.case(7, quick=True) == Case.of_text(case.to_text())
        assert len({target.case(number, quick=True).to_text() for number in range(20)}) > 10
