"""Is hyperoffload ever the worse choice? ``python tests/bench/grid.py --out cells.csv``: every
policy on every cell of a grid.

Cells are every shipped workload, five graphs of several streams and three of more than 20,000 ops;
six machines, five budgets, one device and eight, or as many as the workload is for. A line for each
cell: the makespan of hyperoffload, the best rival's, their ratio, how far the plan is from the
lower bound, and times of planning. At the end how many cells there were, and those in which a rival
is faster, or fits where hyperoffload does not.

With ``--out`` each cell is written when it is done, and a later run leaves out those that are in
the file: it can be stopped at any time. Cells of other versions of hosim (:data:`VERSION`) are
measured again. A cell that fails is written with its error, the others go on, and a later run tries
it again. ``--sample N`` takes N cells at random, by ``--seed``. ``--report`` measures nothing and
says what the file has. The whole grid has 1,620 cells, all of which are in
``tests/bench/grid_cells.csv``.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from asked import questions

from hosim.analysis.remarks import OURS
from hosim.data.versions import VERSIONS
from hosim.devices_of_graph import devices_of
from hosim.engine import read_budget
from hosim.graph import Graph, GraphBuilder
from hosim.io import load_any, load_hardware
from hosim.shipped import find_hardware, find_workload, workloads
from hosim.study import compare
from hosim.study.asked import parse_choices

MACHINES = (
    "a100-80gb-sxm",
    "h100-80gb-sxm",
    "h200-141gb-sxm",
    "gh200-96gb",
    "rtx-4090",
    "ascend-910c-supernode",
)
SHARES = ("90%", "75%", "60%", "45%", "30%")
DEVICES = (1, 8)
OWN = OURS
MOVES = f"{OWN}:recompute=false:reorder=false"
"""The rivals run no op again, and keep the order."""
VERSION = ", ".join(f"{name} {number}" for name, number in VERSIONS.items())
"""What can change a cell, with its versions: one that others have measured is measured again."""
MIB = 2**20


def pairs(count: int, gathered: int) -> Graph:
    """Ops that gather a weight each on a stream of their own, and ops that use what was
    gathered.
    """
    b = GraphBuilder(f"pairs-{count}-{gathered // MIB}MiB")
    for k in range(count):
        b.tensor(f"w{k}", 40 * MIB, "parameter")
        b.tensor(f"g{k}", gathered)
        b.tensor(f"a{k}", MIB)
        b.op(
            f"gather{k}",
            "all_gather",
            inputs=[f"w{k}"],
            outputs=[f"g{k}"],
            duration_ns=180_000,
            stream="gathering",
        )
        b.op(
            f"f{k}",
            "matmul",
            inputs=[f"g{k}", *([f"a{k - 1}"] if k else [])],
            outputs=[f"a{k}"],
            duration_ns=360_000,
        )
    return b.build()


def towers(layers: int, streams: int) -> Graph:
    """Towers of layers, forward and backward, each on a stream of its own; one op joins them
    halfway.
    """
    b = GraphBuilder(f"towers-{layers}-on-{streams}")
    names = ["compute", *(f"tower{s}" for s in range(1, streams))]
    for s, layer in product(range(streams), range(layers)):
        b.tensor(f"w{s}.{layer}", (8 + 4 * s) * MIB, "parameter")
        b.tensor(f"a{s}.{layer}", 24 * MIB)
    for layer, s in product(range(layers), range(streams)):
        before = [f"a{s}.{layer - 1}"] if layer else []
        b.op(
            f"f{s}.{layer}",
            "matmul",
            inputs=[f"w{s}.{layer}", *before],
            outputs=[f"a{s}.{layer}"],
            duration_ns=200_000,
            stream=names[s],
        )
    b.op(
        "loss",
        "norm",
        inputs=[f"a{s}.{layers - 1}" for s in range(streams)],
        outputs=[b.tensor("loss", MIB)],
        duration_ns=50_000,
    )
    last = dict.fromkeys(range(streams), "loss")
    for layer, s in product(reversed(range(layers)), range(streams)):
        b.tensor(f"d{s}.{layer}", 24 * MIB)
        uses = [last[s], f"w{s}.{layer}", f"a{s}.{layer}"]
        b.op(
            f"b{s}.{layer}",
            "matmul",
            inputs=uses,
            outputs=[f"d{s}.{layer}"],
            duration_ns=400_000,
            stream=names[s],
        )
        last[s] = f"d{s}.{layer}"
    return b.build()


def chain(count: int, every: int, home: str | None) -> Graph:
    """A long chain in which one op in so many reads a weight."""
    b = GraphBuilder(f"chain-{count}-{every}-{home or 'hbm'}")
    for k in range(count):
        uses = [f"a{k - 1}"] if k else []
        if k % every == 0:
            uses.append(b.tensor(f"w{k}", 8 * MIB, "parameter", home))
        b.op(f"f{k}", "matmul", inputs=uses, outputs=[b.tensor(f"a{k}", MIB)], duration_ns=100_000)
    return b.build()


MADE: Mapping[str, Callable[[], Graph]] = {
    "pairs-40": lambda: pairs(40, MIB),
    "pairs-120": lambda: pairs(120, 40 * MIB),
    "towers-2": lambda: towers(40, 2),
    "towers-3": lambda: towers(24, 3),
    "towers-2-deep": lambda: towers(160, 2),
    "chain-21000": lambda: chain(21_000, 1, "ddr"),
    "chain-24000": lambda: chain(24_000, 8, None),
    "towers-5200": lambda: towers(5_200, 2),
}
"""Graphs that are not shipped: five of several streams, three of more than 20,000 ops."""


@dataclass(frozen=True)
class Cell:
    """One comparison: makespans in nanoseconds, ``None`` where nothing fits; ``moves_ns`` is that
    without running ops again, if asked.

    ``planning_s`` has seconds on the clock, with other cells measured at once. ``error`` says why
    there is no comparison.
    """

    workload: str
    machine: str
    share: str
    devices: int
    own_ns: int | None
    rival: str
    rival_ns: int | None
    bound_ns: int | None
    planning_s: float
    moves_ns: int | None = None
    error: str = ""
    version: str = VERSION

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.workload, self.machine, self.share, self.devices

    @property
    def worse(self) -> bool:
        return self.rival_ns is not None and (self.own_ns is None or self.own_ns > self.rival_ns)

    def __str__(self) -> str:
        where = f"{self.workload} {self.machine} {self.share} x{self.devices}"
        if self.error:
            return f"ERROR {where}: {self.error}"
        over = f"{self.own_ns / self.bound_ns:.3f}" if self.own_ns and self.bound_ns else "-"
        against = f"{self.own_ns / self.rival_ns:.4f}" if self.own_ns and self.rival_ns else "-"
        figures = (
            f"own {self.own_ns} {self.rival or 'no rival'} {self.rival_ns} ratio {against} "
            f"over bound {over}"
        )
        return (
            f"{'WORSE' if self.worse else 'ok':5} {where}: {figures} planned in "
            f"{self.planning_s:.1f} s"
        )


def measure(workload: str, machine: str, share: str, devices: int, moves: bool = False) -> Cell:
    """All policies on one workload, machine, budget and number of devices; ``moves``: hyperoffload
    without running ops again, too.
    """
    graph = MADE[workload]() if workload in MADE else load_any(find_workload(workload))
    count = max(devices, devices_of(graph))
    hardware = replace(load_hardware(find_hardware(machine)), devices=count)
    _, budget = read_budget(share).of(graph, hardware)
    results = compare(questions(graph, hardware, parse_choices(None), budget))
    own = next(r for r in results if r.policy == OWN)
    fitting = [r for r in results if r.policy != OWN and r.makespan_ns is not None]
    best = min(fitting, key=lambda r: (r.makespan_ns, r.policy), default=None)
    rival, rival_ns = (best.policy, best.makespan_ns) if best else ("", None)
    moves_ns = None
    if moves:
        (moved,) = compare(questions(graph, hardware, parse_choices(MOVES), budget))
        moves_ns = moved.makespan_ns
    return Cell(
        workload,
        machine,
        share,
        devices,
        own.makespan_ns,
        rival,
        rival_ns,
        own.lower_bound_ns,
        own.planning_s or 0.0,
        moves_ns,
    )


def attempted(workload: str, machine: str, share: str, devices: int, moves: bool = False) -> Cell:
    """What :func:`measure` gives, or a cell with the error that it ends with."""
    try:
        return measure(workload, machine, share, devices, moves)
    except Exception as error:  # whatever it is, the other cells go on
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Cell(workload, machine, share, devices, None, "", None, None, 0.0, error=said)


COLUMNS = tuple(field.name for field in fields(Cell))


def known(out: Path | None) -> list[Cell]:
    """The cells that an earlier run of these versions has written, but for those that failed."""
    if out is None or not out.exists():
        return []
    with out.open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row["version"] == VERSION and not row["error"]
        ]
    return [read(row) for row in rows]


def read(row: Mapping[str, str]) -> Cell:
    """A cell as it was written."""
    own_ns, rival_ns, bound_ns, moves_ns = [
        int(row[name]) if row[name] else None
        for name in ("own_ns", "rival_ns", "bound_ns", "moves_ns")
    ]
    where = row["workload"], row["machine"], row["share"], int(row["devices"])
    return Cell(
        *where, own_ns, row["rival"], rival_ns, bound_ns, float(row["planning_s"]), moves_ns
    )


def write(out: Path, cells: Sequence[Cell]) -> None:
    """Add cells to a file."""
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows([astuple(cell) for cell in cells])


def summary(cells: Sequence[Cell]) -> str:
    """How many cells there are, those in which a rival is better, those that failed, and how long
    planning took.
    """
    worse, failed = [cell for cell in cells if cell.worse], [cell for cell in cells if cell.error]
    took = sorted(cell.planning_s for cell in cells if not cell.error)
    lines = [
        f"{len(cells):,} cells, hyperoffload worse in {len(worse)}, {len(failed)} failed",
        *map(str, (*worse, *failed)),
    ]
    if took:
        lines.insert(
            1,
            f"planned in {median(took):.1f} s (median), {took[len(took) * 9 // 10]:.1f} s (90th "
            f"percentile), {took[-1]:.1f} s (longest)",
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workloads", default=",".join([*workloads(), *MADE]), help="names, or shipped"
    )
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--shares", default=",".join(SHARES))
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)))
    parser.add_argument("--moves", action="store_true", help="plan without running ops again, too")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--report", action="store_true", help="say what --out has, and measure nothing"
    )
    given = parser.parse_args(arguments)
    named = workloads() if given.workloads == "shipped" else given.workloads.split(",")
    axes = (
        named,
        given.machines.split(","),
        given.shares.split(","),
        map(int, given.devices.split(",")),
    )
    todo = list(product(*axes))
    if given.sample is not None:
        todo = random.Random(given.seed).sample(todo, min(given.sample, len(todo)))
    wanted = set(todo)
    cells = [cell for cell in known(given.out) if cell.key in wanted]
    have = {cell.key for cell in cells}
    left = [] if given.report else [cell for cell in todo if cell not in have]
    with ProcessPoolExecutor(given.processes) as pool:
        try:
            for done in as_completed([pool.submit(attempted, *cell, given.moves) for cell in left]):
                cells.append(done.result())
                print(cells[-1], flush=True)
                if given.out is not None:
                    write(given.out, cells[-1:])
        finally:
            pool.shutdown(
                wait=False, cancel_futures=True
            )  # a process that was killed, or Ctrl-C: nothing is waited for that has not begun
    print(summary(cells))
    return 1 if any([cell.worse or cell.error for cell in cells]) else 0


if __name__ == "__main__":
    sys.exit(main())
