"""What each arm of the planner's search is worth: ``python tests/bench/ablate.py --out rows.csv``,
on 40 cases that are unlike.

Each case is planned for with all arms, and once more without each of them. The table has a line for
each arm: how much longer the plans are without it, on average and at most, on how many cases by
more than :data:`WORTH`, and its share of the work when all arms are on. An arm whose gain is below
that on all cases can go.

Each row is written when it is measured, and a later run leaves out those that are in the file: it
can be stopped at any time. Rows of other versions of hosim are measured again. ``--cases NAME ...``
takes some of the cases, and ``--effort`` is that of each search; ``--report`` measures nothing and
says what the file has, of any version. Cases of graphs that lie outside of the project are skipped,
with a line that says so, where these are missing.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from grid import VERSION, pairs, towers  # noqa: E402
from instances import Instance, instance, instance_on_streams  # noqa: E402

from hosim.engine import read_budget, replay  # noqa: E402
from hosim.errors import InfeasibleError  # noqa: E402
from hosim.graph import Graph  # noqa: E402
from hosim.hardware import Hardware  # noqa: E402
from hosim.io import load_any, load_hardware, make  # noqa: E402
from hosim.planner.hyperoffload import Arm, PlannedGraph, Search  # noqa: E402
from hosim.policies import policy_named  # noqa: E402
from hosim.shipped import find_hardware, find_workload  # noqa: E402

MADE = HERE.parents[2] / "shared" / "cases" / "planner" / "made.py"
"""Graphs of models that hosim does not ship."""
WORTH = 5e-4
"""An arm that gains less than this part of the makespan on all cases can go."""
ALPHA = 0.1
"""Of the arm of sweeps by the description's cost, which is on here."""
LOCAL = "local search"
EVERYTHING = ""
"""What a row is without: nothing."""
PIPELINE, OWN = (
    import_module(f"hosim.{name}")
    for name in ("planner.hyperoffload.pipeline", "policies.own.hyperoffload")
)
FACTORIES = {"ranking": PIPELINE, "rewriting": OWN, "asking_rivals": OWN}
"""Arms that are made for each search, by the functions that make them, and where these are
called.
"""


# -- the cases
# --------------------------------------------------------------------------------------------------


def shipped(name: str) -> Callable[[], Graph]:
    """A workload of hosim's."""
    return lambda: load_any(find_workload(name))


def spec(**builder: Any) -> Callable[[], Graph]:
    """A model as a builder makes it."""
    return lambda: make(
        {"format": "hosim.spec/1", "name": "w", "builder": {"fused": True, **builder}}, "w"
    )


def made(name: str, *given: Any, **more: Any) -> Callable[[], Graph]:
    """A graph of the file outside of the project; raises FileNotFoundError where that is
    missing.
    """
    return lambda: getattr(_made(), name)(*given, **more)


def _made() -> ModuleType:
    if not MADE.is_file():
        raise FileNotFoundError(f"{MADE.relative_to(HERE.parents[2])} is missing")
    found = spec_from_file_location("made", MADE)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def drawn(made: Callable[[int, int], Instance], number: int, seed: int) -> Callable[[], Instance]:
    """A drawn graph with its machine and its budget."""
    return lambda: made(number, seed)


Case = tuple[Callable[[], Graph], str, str, int] | Callable[[], Instance]
"""A graph, a machine, a budget and a number of devices; or all of that as drawn."""

CASES: dict[str, Case] = {
    "llama-4k-12": (shipped("llama-3.1-8b-prefill-4k"), "h100-80gb-sxm", "12 GiB", 1),
    "llama-4k-45": (shipped("llama-3.1-8b-prefill-4k"), "a100-80gb-sxm", "45%", 1),
    "llama-32k-60": (shipped("llama-3.1-8b-prefill-32k"), "rtx-4090", "60%", 1),
    "llama-128k-60": (shipped("llama-3.1-8b-decode-128k"), "h100-80gb-sxm", "60%", 1),
    "llama-128k-asc": (shipped("llama-3.1-8b-decode-128k"), "ascend-910c-supernode", "45%", 1),
    "ds-decode-60": (shipped("deepseek-v3-decode-slice"), "ascend-910c-supernode", "60%", 1),
    "ds-prefill-45": (shipped("deepseek-v3-prefill-slice"), "h100-80gb-sxm", "45%", 1),
    "ds-train-x8": (shipped("deepseek-v3-train-slice"), "h200-141gb-sxm", "60%", 8),
    "bert-60": (shipped("bert-large-train"), "h100-80gb-sxm", "60%", 1),
    "gpt2xl-60": (shipped("gpt2-xl-train"), "h100-80gb-sxm", "60%", 1),
    "llama-train-60": (shipped("llama-3.1-8b-train-4k"), "h100-80gb-sxm", "60%", 1),
    "llama-train-45-gh": (shipped("llama-3.1-8b-train-4k"), "gh200-96gb", "45%", 1),
    "llama-states-75": (shipped("llama-3.1-8b-train-4k-states-below"), "gh200-96gb", "75%", 1),
    "llama-stash-60": (shipped("llama-3.1-8b-train-32k-stash"), "h200-141gb-sxm", "60%", 1),
    "qwen3-below-40": (shipped("qwen3-30b-a3b-decode-experts-below"), "ascend-910c-supernode", "40%", 1),
    "qwen3-train-60": (shipped("qwen3-30b-a3b-train-slice"), "h100-80gb-sxm", "60%", 1),
    "t5-60": (shipped("t5-large-train"), "a100-80gb-sxm", "60%", 1),
    "vit-45": (shipped("vit-l-16-train"), "rtx-4090", "45%", 1),
    "dit-75": (shipped("dit-xl-2-denoise"), "rtx-4090", "75%", 1),
    "vit-x8-60": (shipped("vit-l-16-train"), "a100-80gb-sxm", "60%", 8),
    "phi4-75": (spec(model="phi-4", phase="prefill", sequence=4096, batch=1), "a6000", "75%", 1),
    "qwen1.5b-t4": (spec(model="qwen2.5-1.5b", phase="train", layers=8, batch=2, sequence=1024), "t4", "60%", 1),
    "opt-stage": (
        spec(model="opt-6.7b", phase="train", pipeline=4, stage=1, micro_batches=8, batch=8, sequence=1024), "a100-80gb-sxm", "65%", 4
    ),
    "falcon-nvme": (spec(model="falcon-7b", phase="decode", batch=16, context=8192, cache_home="nvme"), "h100-80gb-cxl", "70%", 1),
    "gpt2xl-6": (spec(model="gpt2-xl", phase="train", batch=4, sequence=1024, layers=6), "a100-80gb-sxm", "75%", 1),
    "ds-decode-nvme": (shipped("deepseek-v3-decode-slice"), "rtx-5090", "25%", 8),
    "dit-12": (spec(model="dit-xl-2", phase="train", batch=16, layers=12), "rtx-4090", "60%", 1),
    "four-layers": (spec(model="llama-3.1-8b", phase="prefill", layers=4, batch=1, sequence=4096), "h100-80gb-sxm", "75%", 1),
    "unet": (made("unet"), "rtx-pro-6000", "45%", 1),
    "branches": (made("branches"), "h100-80gb-cxl", "50%", 1),
    "recommender": (made("recommender"), "h100-80gb-cxl", "50%", 1),
    "chain500": (made("chain", 500), "h100-80gb-sxm", "30%", 1),
    "chain2000": (made("chain", 2000), "h100-80gb-sxm", "50%", 1),
    "train500": (made("chain", 500, train=True, home=None), "a100-80gb-sxm", "50%", 1),
    "train2000": (made("chain", 2000, train=True, home=None), "a100-80gb-sxm", "50%", 1),
    "chain10000": (made("chain", 10_000), "h100-80gb-sxm", "50%", 1),
    "towers-3": (lambda: towers(24, 3), "a100-80gb-sxm", "45%", 1),
    "pairs-120": (lambda: pairs(120, 40 * 2**20), "gh200-96gb", "60%", 8),
    "small-9241": drawn(instance_on_streams, 1, 9241),
    "small-7-3": drawn(instance, 3, 7),
}  # fmt: skip


def given(name: str) -> tuple[Graph, Hardware, int]:
    """The graph of a case, its machine and its budget in bytes."""
    case = CASES[name]
    if callable(case):
        found = case()
        return found.graph, found.hardware, found.budget_bytes
    graph, machine, budget, devices = case
    made_graph, hardware = graph(), replace(load_hardware(find_hardware(machine)), devices=devices)
    return made_graph, hardware, read_budget(budget).of(made_graph, hardware)[1]


# -- the arms
# --------------------------------------------------------------------------------------------------


def named(arm: Arm) -> str:
    """The function that an arm is, or that made it."""
    return arm.__qualname__.partition(".")[0]


def arms() -> list[str]:
    """The names of all arms."""
    made = "ranking", *[arm.__name__ for arm in OWN.rewriting(True, True)], "asking_rivals"
    return [*map(named, (*PIPELINE._OF_EACH, *PIPELINE._LATER)), *made, LOCAL]


class Counted:
    """The arms of one search, all but one, with the work that each does; ``total`` is all work of
    the search.
    """

    def __init__(self, without: str) -> None:
        self.without = without
        self.spent: Counter[str] = Counter()
        self._search: Search | None = None

    @property
    def total(self) -> int:
        return 0 if self._search is None else self._search.work.done

    def arm(self, name: str, arm: Arm) -> Arm:
        """The arm, its work counted; one that does nothing, if it is the one to be without."""

        def steps(
            search: Search, planned: PlannedGraph
        ) -> Iterator[Callable[[], float | None] | None]:
            self._search = search
            going = arm(search, planned)
            while name != self.without:
                before = search.work.done
                said = next(going, self)
                self.spent[name] += search.work.done - before
                if isinstance(said, Counted):
                    return
                yield said

        return steps

    def plan(self, graph: Graph, hardware: Hardware, budget_bytes: int, effort: float) -> int:
        """The makespan of hyperoffload's plan with these arms."""

        def counted(factory: str) -> Callable[..., Arm | tuple[Arm, ...]]:
            make_arm = getattr(FACTORIES[factory], factory)

            def made(*given: Any) -> Arm | tuple[Arm, ...]:
                arm = make_arm(*given)
                if isinstance(arm, tuple):
                    return tuple([self.arm(one.__name__, one) for one in arm])
                return self.arm(factory, arm)

            return made

        with ExitStack() as patched:
            for listed in ("_OF_EACH", "_LATER"):
                these = tuple([self.arm(named(arm), arm) for arm in getattr(PIPELINE, listed)])
                patched.enter_context(patch.object(PIPELINE, listed, these))
            for factory in FACTORIES:
                patched.enter_context(patch.object(FACTORIES[factory], factory, counted(factory)))
            if self.without == LOCAL:
                patched.enter_context(patch.object(Search, "_pool", lambda *_: None))
            plan = policy_named("hyperoffload").plan(
                graph, hardware, budget_bytes, effort=effort, alpha=ALPHA
            )
        took = replay(plan, hardware, budget_bytes).makespan_ns
        assert took is not None
        return took


# -- rows
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A case without one arm: its makespan (empty where nothing fits), the work of the search and
    CPU seconds of planning.

    ``spent`` is the work of each arm, ``name=work`` with spaces between; what is missing of the
    whole is that of local search.
    """

    case: str
    without: str
    makespan_ns: int | None
    work: int
    cpu_s: float
    spent: str
    version: str


def measured(
    case: str, without: str, graph: Graph, hardware: Hardware, budget_bytes: int, effort: float
) -> Row:
    """The row of a case without an arm."""
    counted = Counted(without)
    begun = time.process_time()
    try:
        took = counted.plan(graph, hardware, budget_bytes, effort)
    except InfeasibleError:
        took = None
    spent = " ".join(f"{name}={work}" for name, work in counted.spent.items())
    return Row(
        case, without, took, counted.total, round(time.process_time() - begun, 2), spent, VERSION
    )


def read(file: Path, *, every: bool = False) -> list[Row]:
    """The rows of this version of hosim in a file, or ``every`` row."""
    if not file.is_file():
        return []
    with file.open(newline="") as text:
        rows = [row for row in csv.DictReader(text) if every or row["version"] == VERSION]
    return [
        Row(
            r["case"],
            r["without"],
            int(r["makespan_ns"] or 0) or None,
            int(r["work"]),
            float(r["cpu_s"]),
            r["spent"],
            r["version"],
        )
        for r in rows
    ]


def measure_all(cases: Sequence[str], file: Path, effort: float) -> None:
    """Measure what the file lacks."""
    there = {(row.case, row.without) for row in read(file)}
    for case in cases:
        asked = [without for without in (EVERYTHING, *arms()) if (case, without) not in there]
        if not asked:
            continue
        try:
            graph, hardware, budget = given(case)
        except FileNotFoundError as error:
            print(f"{case}: skipped: {error}", file=sys.stderr)
            continue
        for without in asked:
            write(measured(case, without, graph, hardware, budget, effort), file)


def write(row: Row, file: Path) -> None:
    """Append a row, and show it."""
    new = not file.is_file()
    with file.open("a", newline="") as text:
        out = csv.writer(text, lineterminator="\n")
        if new:
            out.writerow([field.name for field in fields(Row)])
        out.writerow(astuple(row))
    print(
        f"{row.case} without {row.without or 'nothing'}: {row.makespan_ns} ns, {row.work} of "
        f"work, {row.cpu_s} s",
        file=sys.stderr,
    )


# -- the table
# --------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table."""
    whole = {row.case: row for row in rows if row.without == EVERYTHING}
    yield (
        "| without | makespan longer by, mean | at most | on | by more than 0.05 % in | share "
        "of the work |"
    )
    yield "|---|---|---|---|---|---|"
    for arm in arms():
        these = [
            (row.case, row.makespan_ns) for row in rows if row.without == arm and row.case in whole
        ]
        longer = {
            c: took / most - 1
            for c, took in these
            if took is not None and (most := whole[c].makespan_ns)
        }
        nothing = [case for case, took in these if took is None and whole[case].makespan_ns]
        if not longer:
            continue
        most_of = max(longer, key=lambda case: (longer[case], case))
        shares = [share(whole[case], arm) for case in longer]
        worth = sum(gain > WORTH for gain in longer.values()) + len(nothing)
        fails = f"; nothing fits in {len(nothing)}" if nothing else ""
        yield (
            f"| {arm} | {mean(longer.values()):.2%} | {longer[most_of]:.2%} | {most_of} "
            f"| {worth} of {len(longer) + len(nothing)}{fails} | {mean(shares):.1%} |"
        )


def share(row: Row, arm: str) -> float:
    """Which part of the work of a row an arm did."""
    spent = {
        name: int(work) for name, _, work in (part.partition("=") for part in row.spent.split())
    }
    return (row.work - sum(spent.values()) if arm == LOCAL else spent.get(arm, 0)) / max(
        1, row.work
    )


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME"
    )
    parser.add_argument("--out", type=Path, default=Path("build/ablation.csv"))
    parser.add_argument(
        "--effort", type=float, default=1.0, help="of each search; one file is of one effort"
    )
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    if not asked.report:
        measure_all(asked.cases, asked.out, asked.effort)
    print(
        "\n".join(
            table([row for row in read(asked.out, every=asked.report) if row.case in asked.cases])
        )
    )


if __name__ == "__main__":
    main()
