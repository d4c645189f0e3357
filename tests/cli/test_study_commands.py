"""What the commands of studies print, in full, for two ops whose times are derived by hand.

On the toy a byte takes 1 ns. v comes at 0..30 and f runs 30..80; w comes beside it at 30..70, so
that g runs 80..100. Below 80 B w has to wait for v to go: it comes at 80..120, and g runs 120..140.
The ops alone take 70 ns.
"""

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from rendered import facts
from typer.testing import CliRunner

from hosim.cli import options
from hosim.cli.main import app
from hosim.cli.progress import bar, progress
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.io import save_workload
from hosim.study.runs import cores, processes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    b = GraphBuilder("two")
    b.tensor("v", 30, "parameter", home="ddr")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("a", 10)
    b.op("f", "matmul", inputs=["v"], outputs=["a"], duration_ns=50)
    b.op("g", "matmul", inputs=["w", "a"], duration_ns=20)
    save_workload(b.build(), tmp_path / "w.json")
    return tmp_path


TIMES = "durations: times as given for all 2 ops"


def hosim(command: str, *more: str, code: int = 0) -> tuple[str, str]:
    """What a command says of the toy on both streams; without the spaces that fill the lines of
    tables.
    """
    done = CliRunner().invoke(
        app, [command, "w.json", "-H", "toy", "-p", "layerwise", *more], env={"COLUMNS": "140"}
    )
    assert done.exit_code == code, done.output
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()), done.stderr.replace(
        f"note: {TIMES}\n", ""
    )


def data(command: str, *more: str, code: int = 0) -> Any:
    found = json.loads(hosim(command, *more, "--json", code=code)[0])
    found["notes"].remove(TIMES)
    return (
        found if found["notes"] else {key: value for key, value in found.items() if key != "notes"}
    )


def row(budget: int, makespan: int, peak: int, bound: int, /, **other: object) -> dict[str, object]:
    """The figures of a replay that waits for transfers alone; 70 B are moved."""
    given = {
        "workload": "two",
        "hardware": "toy",
        "policy": "layerwise",
        "budget_bytes": budget,
        "feasible": True,
        "makespan_ns": makespan,
    }
    interval = dict.fromkeys(("makespan_low_ns", "makespan_high_ns"))
    waits = {
        "busy_ns": 70,
        "dependency_stall_ns": 0,
        "transfer_stall_ns": makespan - 70,
        "capacity_stall_ns": 0,
        "runtime_stall_ns": 0,
    }
    held = {
        "drain_ns": 0,
        "lower_bound_ns": bound,
        "ideal_ns": 70,
        "slowdown": makespan / 70,
        "hbm_peak_bytes": peak,
        "ddr_peak_bytes": 70,
    }
    up = {"h2d_moved_bytes": 70, "h2d_busy_ns": 70, "h2d_exposed_ns": makespan - 70}
    down = {"d2h_moved_bytes": 0, "d2h_busy_ns": 0, "d2h_exposed_ns": 0}
    return {
        **given,
        **interval,
        **waits,
        **held,
        **up,
        **down,
        "prefetches": 2,
        "stores": 0,
        "detaches": 2,
        **other,
    }


def unfit(budget: int, /, **other: object) -> dict[str, object]:
    given = {
        "workload": "two",
        "hardware": "toy",
        "policy": "layerwise",
        "budget_bytes": budget,
        "feasible": False,
    }
    return {**dict.fromkeys(row(0, 0, 0, 0)), **given, "ideal_ns": 70, **other}


def test_fit() -> None:
    """With 2 and 3 GB/s v takes 15 and 10 ns, and w is there in time."""
    asked = ("-b", "100B", "--smallest", "channels.h2d.bandwidth=1..3GB/s:3", "--slowdown", "1.3")

    def probe(bandwidth: str, makespan: int, busy: int, why: str) -> dict[str, object]:
        said = {
            "channels.h2d.bandwidth": bandwidth,
            "within": not why,
            "slowdown": makespan / 70,
            "ideal_ns": 70,
            "why": why,
        }
        return {**said, **row(100, makespan, 80, makespan, h2d_busy_ns=busy)}

    resident = "times as long as with everything resident"
    found = data("fit", *asked)
    named = "channels.h2d.bandwidth"
    assert facts(found.pop("answer"), named) == f"{named}, 2 GB/s, 85 ns, 1.214, 1 GB/s, 1.429"
    assert found == {
        "format": "hosim.fit/1",
        "policy": "layerwise",
        "wanted": "smallest",
        "fields": ["channels.h2d.bandwidth"],
        "slowdown": 1.3,
        "value": "2 GB/s",
        "exact": True,
        "beyond": "1 GB/s",
        "contradictions": [],
        "rows": [
            probe("1 GB/s", 100, 70, f"takes 1.429 {resident}"),
            probe("2 GB/s", 85, 35, ""),
            probe("3 GB/s", 80, 24, ""),  # 10 and 13.3 ns
        ],
    }
    said = (
        f"the smallest channels.h2d.bandwidth is 2 GB/s (85 ns, 1.214 {resident}); 1 GB/s is "
        "not within the limits:\n"
    )
    assert hosim("fit", *asked, "--detail") == (
        dedent("""\
            Tried

                                     within
             channels.h2d.bandwidth  limits  makespan  slowdown  why not
             ─────────────────────────────────────────────────────────────────────────────────────────────────────────
             1 GB/s                      no    100 ns    1.429x  takes 1.429 times as long as with everything resident
             2 GB/s                     yes     85 ns    1.214x
             3 GB/s                     yes     80 ns    1.143x

            """)
        + f"{said}takes 1.429 {resident}.",
        "",
    )
    largest = data("fit", "-b", "60B", "--largest", "channels.h2d.engines=1..3")
    assert (largest["wanted"], largest["slowdown"], largest["value"], largest["beyond"]) == (
        "largest",
        None,
        3,
        None,
    )
    assert [probe["makespan_ns"] for probe in largest["rows"]] == [140, 140, 140]
    none = data("fit", "-b", "40B", "--largest", "channels.h2d.engines=1..2", code=3)
    assert (none["value"], none["exact"], none["beyond"]) == (None, False, None)
    assert none["rows"] == [
        {"channels.h2d.engines": n, "within": False, "slowdown": None, "ideal_ns": None, "why": why}
        | {column: value for column, value in unfit(40).items() if column != "error"}
        for n in (1, 2)
        for why in [none["rows"][0]["why"]]
    ]
    assert hosim("fit", code=2) == ("", "error: fit: requires --largest or --smallest\n")
    both = ["--largest", "a=1..2", "--smallest", "a=1..2"]
    said = "--smallest and --largest exclude each other: give one of them"
    assert hosim("fit", *both, code=2) == ("", f"error: fit: {said}\n")


def test_frontier() -> None:
    """The least that fits is w and a, 50 B; from 80 B on nothing is gained. Below that, w does not
    fit beside f: no plan is faster.
    """
    asked = ("-n", "2", "--refine", "1")
    assert data("frontier", *asked) == {
        "format": "hosim.frontier/1",
        "answer": "layerwise needs 50 B; from 140 ns with a peak of 50 B to 100 ns with one of "
        "80 B.",
        "policy": "layerwise",
        "smallest_bytes": 50,
        "too_small_bytes": None,
        "sure_bytes": 50,
        "contradictions": [],
        "rows": [
            {"pareto": True, **row(50, 140, 50, 140), "error": None},
            {"pareto": False, **row(65, 140, 50, 140), "error": None},
            {"pareto": True, **row(80, 100, 80, 100), "error": None},
        ],
    }
    assert data("frontier")["rows"][-1] == {"pareto": True, **row(80, 100, 80, 100), "error": None}
    none = data("frontier", "-b", "40B", code=3)
    assert (none["smallest_bytes"], len(none["rows"])) == (None, 1)


GIVEN = "the times of all of its ops are given"
PINNED = (
    "copies of ddr are timed as pinned, and toy has no rate for pageable ones "
    "(channels.h2d.pageable)"
)


def test_blame() -> None:
    """10 GB/s more are 11 B/ns: v takes 2.7 ns, which is rounded up."""
    stall = {
        "stream": "compute",
        "op": "f",
        "cause": "transfer",
        "start_ns": 0,
        "end_ns": 30,
        "stall_ns": 30,
        "processor": None,
        "tensor": "v",
        "channel": "h2d",
        "size_bytes": 30,
        "issued_ns": 0,
        "started_ns": 0,
        "ended_ns": 30,
        "occupied": "",
        "occupied_ns": 0,
        "held_back_ns": 0,
        "contention_ns": 0,
        "bandwidth_bytes_per_s": None,
        "prevented_by": "v living in hbm and not in ddr",
    }
    prices = [
        {"what": "h2d", "added": "10.0 GB/s", "makespan_ns": 73, "saves_ns": 27},
        {"what": "h2d", "added": "twice the bandwidth", "makespan_ns": 85, "saves_ns": 15},
        {"what": "hbm", "added": "1 GB", "makespan_ns": 100, "saves_ns": 0},
        {"what": "hbm", "added": "twice the room", "makespan_ns": 100, "saves_ns": 0},
        {
            "what": "hbm",
            "added": "twice the bandwidth",
            "makespan_ns": None,
            "saves_ns": None,
            "note": GIVEN,
        },
        {
            "what": "hbm",
            "added": "twice the FLOP/s",
            "makespan_ns": None,
            "saves_ns": None,
            "note": GIVEN,
        },
        {"what": "ddr", "added": "twice the room", "makespan_ns": 100, "saves_ns": 0},
        {
            "what": "ddr",
            "added": "pageable memory",
            "makespan_ns": None,
            "saves_ns": None,
            "note": PINNED,
        },
    ]
    head = {
        "format": "hosim.blame/1",
        "workload": "two",
        "hardware": "toy",
        "policy": "layerwise",
        "budget_bytes": 100,
        "makespan_ns": 100,
    }
    path = [{"what": "ops on hbm", "ns": 70}, {"what": "copies over h2d", "ns": 30}]
    assert data("blame") == {
        **head,
        "answer": data("blame")["answer"],
        "stalls": [stall],
        "critical_path": path,
        "slopes": {  # the last copy of 30 B at 1 GB/s, and ops of 70 ns
            "bandwidth": {"h2d": -3e-08},
            "latency": {"h2d": 1},
            "processor": {"hbm": 70},
            "kind": {"matmul": 70},
        },
        "prices": [{"together": [], "note": "", **price} for price in prices],
    }
    asked = ("-b", "79B", "--top", "1", "--more-memory", "1 B", "--more-bandwidth", "1 GB/s")
    assert hosim("blame", *asked, "--detail") == (
        dedent("""\
            Stalls (the longest 1 of 2)

                                                   queued
             before     at  stall  waits for   on  behind  prevented by
             ─────────────────────────────────────────────────────────────────────────────────────────────────────────
             g       80 ns  40 ns          w  h2d   30 ns  room for it, or a copy to read, 40 ns earlier: h2d was idle

            Stalls by cause

             cause     on    time
             ────────────────────
             transfer  h2d  70 ns

            +1 B of hbm saves 40 ns
            twice the room of hbm saves 40 ns
            +1.00 GB/s of h2d saves 35 ns
            twice the bandwidth of h2d saves 35 ns
            twice the bandwidth of hbm; twice the FLOP/s of hbm: the times of all of its ops are given
            pageable memory of ddr: copies of ddr are timed as pinned, and toy has no rate for pageable ones (channels.h2d.pageable)
            Nothing is saved by twice the room of ddr
            In first order, 1 % more saves: speed of hbm's ops 1 ns, bandwidth of h2d 1 ns

            layerwise takes 140 ns, and its streams wait 70 ns: 70 ns for h2d; \
its critical path is 70 ns copies over h2d, 70 ns ops on hbm."""),
        "",
    )


def test_sweep(folder: Path) -> None:
    found = data("sweep", "-j", "1", "--vary", "budget=40B,79B,100B", "-o", "rows.csv")
    error = found["rows"][0]["error"]
    assert error.startswith("out of memory: op 'g' needs 50 B of hbm")
    points = [one.pop("point") for one in found["rows"]]
    assert found == {
        "format": "hosim.sweep/1",
        "answer": "Fastest: 100 ns at budget = 100B; slowest: 140 ns.",
        "rows": [
            unfit(40, error=error, budget="40B"),
            row(79, 140, 50, 140, error=None, budget="79B"),
            row(100, 100, 80, 100, error=None, budget="100B"),
        ],
    }
    assert [line.partition(",")[0] for line in (folder / "rows.csv").read_text().splitlines()] == [
        "point",
        *points,
    ]
    assert hosim("sweep", "-j", "1", "--vary", "budget=79B,100B", "--detail") == (
        dedent("""\
            Sweep

             budget                                      peak
             asked   budget  makespan  slowdown  stalls   hbm
             ────────────────────────────────────────────────
             79B       79 B    140 ns     2.00x   70 ns  50 B
             100B     100 B    100 ns    1.429x   30 ns  80 B
            """),
        "",
    )
    _, said = hosim("sweep", "-j", "1", "--vary", "channels.h2d.bandwidth=0GB/s", code=2)
    first = "channels.h2d.bandwidth: expected a bandwidth above 0 B/s"
    assert said.startswith(f"error: sweep: every point failed; the first one with: toy: {first}")
    for said, wrong in (
        ("requires --vary or --points", []),
        (
            "--points and --vary exclude each other: give one of them",
            ["--vary", "budget=1B", "--points", "points.csv"],
        ),
    ):
        assert hosim("sweep", *wrong, code=2) == ("", f"error: sweep: {said}\n")


def test_a_sweep_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(
        question: object,
        points: object,
        path: object,
        runner: object,
        progress: Callable[[int, int, int], None],
    ) -> None:
        progress(1234, 5000, 7)
        raise KeyboardInterrupt

    monkeypatch.setattr("hosim.study.sweeping.sweep", interrupted)
    asked = ("-j", "1", "--vary", "budget=79B,100B")
    assert hosim("sweep", *asked, "-o", "rows.csv", code=130) == (
        "",
        "rows.csv has 1,234 of 5,000 points: run the same command to continue\n",
    )
    assert hosim("sweep", *asked, code=130) == ("", "")  # the program itself adds a line


class Terminal(StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class AtOnce:
    """A timer that does not wait."""

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self.start = function
        self.cancel = self.join = lambda: None


def test_what_is_under_way_is_shown_on_a_terminal_and_then_erased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("HOSIM_PROGRESS")
    erased = "\x1b[2K"
    for failed, said in ((0, ""), (1002, "1,002 do not fit")):
        monkeypatch.setattr(sys, "stderr", shown := Terminal())
        with bar() as tell:
            tell(1500, 4000, failed)
        assert "1500/4000" in shown.getvalue()
        assert said in shown.getvalue()
        assert ("not fit" in shown.getvalue()) == bool(said)
        assert shown.getvalue().endswith(erased)
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with progress() as say:
        say("planning belady")
    assert "planning belady" not in shown.getvalue()  # it took less than two seconds
    monkeypatch.setattr("hosim.cli.progress.Timer", AtOnce)
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with progress("planning [belady]\x1b[31m") as say:
        say("planning [g10]\x1b[32m")
    assert r"planning [belady]\x1b[31m" in shown.getvalue()
    assert "]\x1b[3" not in shown.getvalue()  # what is named is data
    assert shown.getvalue().endswith(erased)
    monkeypatch.setattr(sys, "stderr", shown := StringIO())
    with bar() as tell, progress() as say:
        tell(1, 2, 0)
        say("planning")
    assert shown.getvalue() == ""


def test_how_wide_tables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", StringIO())
    assert options.console().width == 120
    monkeypatch.setenv("COLUMNS", "77")
    assert options.console().width == 77
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert options.console().width == 80  # what rich takes a terminal for that does not say


def test_numbers_of_processes() -> None:
    assert [processes(jobs) for jobs in (-1, 1, 7)] == [cores(), 1, 7]
    for jobs in (0, -2):
        with pytest.raises(InputError) as refused:
            processes(jobs)
        assert (
            str(refused.value)
            == f"jobs: expected a number of processes, or -1 for one per core, got {jobs}"
        )


def test_a_budget_beyond_the_device_is_noted() -> None:
    assert facts(hosim("blame", "-b", "101B")[1]) == "100 B"
    assert hosim("blame", "-b", "100B")[1] == ""
