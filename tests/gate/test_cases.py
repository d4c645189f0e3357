"""Cases as files list them: every field, names and patterns, where files are looked for, and what
each error says in full.
"""

import os
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hosim.base.new_processes import belong_to
from hosim.errors import InputError
from hosim.gate import Case, CaseError, Suite, find_suite, load_suite, measured, pairs
from hosim.gate.judged_metrics import OFF, Tolerance, parse_tolerances, tolerance_of
from hosim.gate.records import Listing, Measured, brief

pytestmark = pytest.mark.slow

FILE = """
baselines = "kept"
tolerance = {peak = "1 kB", makespan = "5%"}

[cases.first]
workload = "w.json"
hardware = "toy"
budget = "75%"

[cases.second]
entry = "shop.models:small"
hardware = "toy"
plan = "p.json"
tolerance = {peak = "off", stall = {transfer = "3 ns"}}

[matrix.m]
workloads = ["w", "x"]
hardware = ["toy"]
policies = ["belady", "resident"]
budgets = ["10 B", "90%"]
tolerance = {makespan = "0.5%"}

[matrix.n]
workloads = ["w"]
hardware = ["toy"]
policies = ["g10"]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    (tmp_path / "hosim.toml").write_text(FILE)
    return load_suite(tmp_path / "hosim.toml")


def test_every_field_of_a_file(suite: Suite, tmp_path: Path) -> None:
    folder, general = (
        str(tmp_path),
        {"peak": Tolerance(absolute=1000), "makespan": Tolerance(share=Fraction(1, 20))},
    )
    first = Case("first", "toy", folder, "w.json", budget="75%", tolerances=general)
    own = {**general, "peak": OFF, "stall.transfer": Tolerance(absolute=3)}
    second = Case("second", "toy", folder, entry="shop.models:small", plan="p.json", tolerances=own)
    matrix = {**general, "makespan": Tolerance(share=Fraction(1, 200))}
    lines = tuple(
        Case(
            f"m/{w}/toy/{policy}/{budget}",
            "toy",
            folder,
            w,
            policy=policy,
            budget=budget,
            tolerances=matrix,
            matrix="m",
        )
        for w in ("w", "x")
        for policy in ("belady", "resident")
        for budget in ("10 B", "90%")
    )
    last = Case("n/w/toy/g10", "toy", folder, "w", policy="g10", tolerances=general, matrix="n")
    assert suite == Suite(
        f"{tmp_path}/hosim.toml", tmp_path / "kept", (first, second, *lines, last)
    )
    assert first.policy == "hyperoffload"
    assert first.asked() == {
        "workload": "w.json",
        "hardware": "toy",
        "budget": "75%",
        "policy": "hyperoffload",
    }
    assert second.asked() == {"entry": "shop.models:small", "hardware": "toy", "plan": "p.json"}


def test_baselines_of_a_suite(suite: Suite, tmp_path: Path) -> None:
    assert suite.without_case() == []
    (tmp_path / "kept").mkdir()
    for name in ("first.toml", "m.toml", "z.toml", "a.toml", "b.txt"):
        (tmp_path / "kept" / name).write_text('format = "hosim.baseline/1"')
    (tmp_path / "kept" / "other.toml").write_text("what hosim has not written is not removed")
    assert suite.without_case() == ["a", "z"]
    assert (
        suite.baseline("m/w/toy/belady/90%") == suite.baseline("m") == tmp_path / "kept" / "m.toml"
    )


def test_cases_by_name(suite: Suite) -> None:
    def named(*names: str) -> list[str]:
        return [case.name for case in suite.named(names)]

    assert named("n", "first") == ["first", "n/w/toy/g10"]
    assert named("*/x/*/10 ?") == ["m/x/toy/belady/10 B", "m/x/toy/resident/10 B"]
    assert len(named()) == 11
    with pytest.raises(InputError) as refused:
        suite.named(["first", "secon"])
    assert str(refused.value) == f"{suite.source}: unknown case 'secon'; did you mean 'second'?"
    with pytest.raises(InputError) as refused:
        suite.named(["zzz"])
    assert str(refused.value) == f"{suite.source}: unknown case 'zzz' (known: first, second, m, n)"


def test_the_nearest_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``hosim.toml`` before ``pyproject.toml``; one of those without cases of hosim is none."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    for file in (tmp_path / "hosim.toml", tmp_path / "a" / "pyproject.toml"):
        file.write_text(FILE if file.name == "hosim.toml" else "[tool.other]\nx = 1\n")
    assert find_suite().source == "../../hosim.toml"
    assert find_suite(start=tmp_path).source == "../../hosim.toml"
    (tmp_path / "a" / "pyproject.toml").write_text(
        '[tool.hosim.cases.one]\nworkload = "w"\nhardware = "toy"\n'
    )
    assert find_suite().source == "../pyproject.toml"
    (tmp_path / "a" / "hosim.toml").write_text(FILE)
    assert find_suite().source == "../hosim.toml"
    monkeypatch.setattr("hosim.gate.cases.FILES", ("no-such-file.toml", "pyproject.toml"))
    (tmp_path / "a" / "pyproject.toml").unlink()
    with pytest.raises(InputError) as refused:
        find_suite(start=tmp_path)
    assert str(refused.value) == (
        "cases: no no-such-file.toml here or above, and no [tool.hosim] in a pyproject.toml; "
        "'hosim ci init' writes one that lists the cases"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'entry = "shop.models:small"',
            "",
            "cases.second: expected one of workload, entry and serve",
        ),
        (
            "shop.models:small",
            "shop",
            "cases.second.entry: expected package.module:function, such as shop.model:example, "
            "got 'shop'",
        ),
        (
            'plan = "p.json"',
            'plan = "p"\npolicy = "x"',
            "cases.second: plan and policy exclude each other: give one of them",
        ),
        (
            "[cases.second]",
            '[cases."-x"]',
            "cases.-x: expected a name of letters, digits, '_', '-' and '.', because a file is "
            "named after it",
        ),
        (
            "[matrix.m]",
            "[matrix.first]",
            "matrix.first: a case has this name too: choose another, because baseline files are "
            "named after them",
        ),
        ('["belady", "resident"]', '["belady", "belady"]', "matrix.m: 'belady' is listed twice"),
        ('["10 B", "90%"]', '["10 B", "10 B"]', "matrix.m: '10 B' is listed twice"),
        (
            '"5%"',
            '"5"',
            "tolerance.makespan: expected a time with its unit, such as '10 us', got '5' "
            "(or a share of the baseline, such as '1%', or 'off')",
        ),
        (
            "stall =",
            "stal =",
            "tolerance.stal.transfer: unknown metric; expected one of peak, ttft, tpot, latency, "
            "throughput, goodput, "
            "found, makespan, wait, stall, moved, count, or one such as peak.hbm",
        ),
    ],
)
def test_what_is_wrong_is_said_in_full(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in FILE
    path = tmp_path / "hosim.toml"
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        load_suite(path)
    assert str(refused.value) == f"{path}: {said}"


def test_a_tolerance_is_that_of_the_metric_or_its_family() -> None:
    given = parse_tolerances({"peak": {"hbm": "3 B"}, "moved": " off ", "stall": "2.5 %"}, "x")
    share = Tolerance(share=Fraction(1, 40))
    assert given == {"peak.hbm": Tolerance(absolute=3), "moved": OFF, "stall": share}
    found = [
        tolerance_of(metric, given)
        for metric in ("peak.hbm", "peak.ddr", "moved.x", "stall.y", "makespan")
    ]
    assert found == [
        Tolerance(absolute=3),
        Tolerance(absolute=0),
        OFF,
        share,
        Tolerance(share=Fraction(1, 100)),
    ]
    assert [share.allows(80, now) for now in (77, 78, 82, 83)] == [False, True, True, False]
    assert [
        OFF.allows(0, 9),
        Tolerance(absolute=3).allows(5, 8),
        Tolerance(absolute=3).allows(5, 9),
    ] == [True, True, False]


def test_pairs_of_three_axes() -> None:
    """The third value is the sum of the places of the other two; the result is in the order of the
    axes as given.
    """
    assert pairs(["ab", "xyz", "12"]) == [
        *(("a", "x", "1"), ("a", "y", "2"), ("a", "z", "1")),
        *(("b", "x", "2"), ("b", "y", "1"), ("b", "z", "2")),
    ]
    assert pairs(["a", "x", "12"]) == [("a", "x", "1"), ("a", "x", "2")]


KILLED = """import os
from hosim import GraphBuilder

def a():
    b = GraphBuilder("a")
    b.tensor("x", 30), b.op("f", "relu", outputs=["x"], duration_ns=5)
    return b.build()

b = a

def deadly():
    os._exit(9)
"""


def test_a_process_that_is_killed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed:
        """A pool whose processes die."""

        def __init__(
            self, count: int, mp_context: object, initializer: object, initargs: object
        ) -> None:
            assert (count in (1, 2), initializer, initargs) == (True, belong_to, (os.getpid(),))

        def __enter__(self) -> "Killed":
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def submit(self, *work: object) -> object:
            raise BrokenProcessPool

        def shutdown(self, *, cancel_futures: bool) -> None:
            assert cancel_futures

    monkeypatch.setattr(futures, "ProcessPoolExecutor", Killed)
    found = list(measured([Case("a", "toy"), Case("b", "toy")], jobs=3))
    assert found == [
        CaseError(name, "the process that measured it was killed, perhaps for lack of memory")
        for name in "ab"
    ]


def test_a_case_that_kills_its_process_is_an_error_and_no_other_is(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    cases = [
        Case(name, "toy", str(tmp_path), entry=f"killed:{name}", policy="resident")
        for name in ("a", "deadly", "b")
    ]
    a, deadly, b = measured(cases, jobs=2)
    assert isinstance(deadly, CaseError)
    assert [now.record is not None for now in (a, b) if isinstance(now, Measured)] == [True] * 2


def test_several_processes_begin_with_the_largest_and_answer_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines of one workload of a matrix are one piece of work; a case of unknown size counts as
    1,000 ops.
    """
    begun: list[list[str]] = []

    class Done:
        """A piece of work that is done."""

        def __init__(self, answers: object) -> None:
            self.result = lambda: answers
            self.exception = lambda: None

    class Pool:
        """Runs everything at once, in this process."""

        def __init__(
            self, count: int, mp_context: object, initializer: object, initargs: object
        ) -> None:
            assert (count, initializer, initargs) == (3, belong_to, (os.getpid(),))

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def submit(self, work: object, group: tuple[Case, ...], *others: object) -> Done:
            begun.append([case.name for case in group])
            return Done([Measured(None, case.name) for case in group])

        def shutdown(self, *, cancel_futures: bool) -> None:
            pass

    monkeypatch.setattr(futures, "ProcessPoolExecutor", Pool)
    cases = [
        Case("a", "toy"),
        Case("b", "toy"),
        *(Case(f"m/{k}", "toy", workload="w", matrix="m") for k in "cd"),
        Case("e", "toy"),
    ]
    told: list[str] = []
    known = {
        name: replace(brief(name, {}, {}, {}, hosim="0", versions={}), durations=Listing(others=n))
        for name, n in {"a": 999, "m/c": 400, "m/d": 700, "e": 1001}.items()
    }
    found = list(measured(cases, jobs=3, tell=told.append, known=known))
    assert [one.error for one in found] == told == ["a", "b", "m/c", "m/d", "e"]
    assert begun == [["m/c", "m/d"], ["e"], ["b"], ["a"]]


def test_processes_send_no_draws_that_no_verdict_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """To send draws they have to be made: 20 replays a case, where nothing had changed."""

    class Here(futures.Executor):
        """Does the work at once, in this process."""

        def __init__(self, *asked: object, **others: object) -> None: ...

        def submit(self, work: Any, /, *given: Any, **named: Any) -> futures.Future[Any]:
            done: futures.Future[Any] = futures.Future()
            done.set_result(work(*given))
            return done

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...

    monkeypatch.setattr(futures, "ProcessPoolExecutor", Here)
    case = Case("a", "h100-80gb-sxm", workload="gpt2:phase=decode:layers=1", policy="resident")
    (now,) = measured([case], apart=True)
    assert isinstance(now, Measured)
    record = now.record
    assert record is not None
    assert record.draws is not None
    slower = replace(record, metrics={**record.metrics, "makespan": record.metrics["makespan"] + 1})
    other = replace(record, fingerprints={**record.fingerprints, "plan": "another"})
    for known, sent in ((record, False), (slower, True), (other, True)):
        (found,) = measured([case], apart=True, known={"a": known})
        assert isinstance(found, Measured)
        assert found.record is not None
        assert (found.record.draws is not None) == sent
