"""Makespans in draws of what is uncertain: intervals, who is faster how often, and where the
uncertainty is from.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.analysis.remarks import PairedDraws, beside_fastest, often, uncertainty_line
from hosim.base.groups import grouped
from hosim.data.draws import Regret
from hosim.graph import Graph
from hosim.io.runtimes import runtimes_for
from hosim.report.printing import NOTHING, interval, open_table, paragraph, table_of
from hosim.result import Result
from hosim.units import human_percent


def in_draws(
    results: Sequence[Result],
    names: Sequence[str] = (),
    ranks: Sequence[tuple[int, int] | None] = (),
) -> RenderableType:
    """The 90 % interval of each makespan, and how often it is longer than the shortest one; nothing
    where all times are measured.

    ``names`` are what the results are of, if not their policies. With ``ranks`` the shortest is
    first, and each has the ranks between which it lies.
    """
    labels = names or [result.policy for result in results]
    places = dict(zip(labels, ranks, strict=False))
    unsure = [
        (result, label)
        for result, label in zip(results, labels, strict=True)
        if result.drawn is not None
    ]
    if ranks:
        unsure.sort(key=lambda one: one[0].makespan_ns or 0)
    if not unsure:
        return paragraph()
    if len(unsure) == 1:
        return _of_one(unsure[0][0])
    pairs = {pair.second: pair for pair in beside_fastest(results, labels)}
    first = next((pair.first for pair in pairs.values()), "")
    rows = [_row(result, label, pairs.get(label), places.get(label)) for result, label in unsure]
    names = ("of", "interval", "draws", "unfit", "faster", "longer", *(["rank"] if ranks else []))
    titles = {"faster": f"{first}\nis faster in" if first else ""}
    table = table_of("Draws of what is uncertain", names, rows, titles=titles)
    kinds = grouped(
        (result.drawn.kind, label)
        for result, label in unsure
        if result.drawn is not None and result.drawn.kind
    )
    best = next((result for result, label in unsure if label == first), unsure[0][0])
    return Group(
        table,
        paragraph(
            *_sources(best, first),
            *[f"{', '.join(names)}: {kind}." for kind, names in kinds.items()],
            space=True,
        ),
    )


def _of_one(only: Result) -> RenderableType:
    unfit = 0.0 if only.drawn is None else only.drawn.unfit_share
    misfits = (
        [f"In {often(unfit)} the plan does not fit: copies take the room that an op then lacks."]
        if unfit
        else []
    )
    return paragraph(
        f"90 % interval of the makespan: {_interval(only)}.", *misfits, *_sources(only), space=True
    )


def _row(
    result: Result, label: str, pair: PairedDraws | None, ends: tuple[int, int] | None
) -> dict[str, Any]:
    """A result in draws, and beside the fastest one; ``ends`` are the ranks between which it
    lies.
    """
    drawn = result.drawn
    assert drawn is not None
    row = {
        "of": label,
        "interval": _interval(result),
        "draws": str(drawn.count),
        "unfit": often(drawn.unfit_share) if drawn.unfit_share else None,
        "rank": ends and (str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"),
    }
    if pair is not None:
        row["faster"] = often(pair.faster_share)
        row["longer"] = f"{1 + pair.low:.3f} to {1 + pair.high:.3f}"
    return row


def regrets(rows: Sequence[Regret]) -> RenderableType:
    """One row per policy whose plan was compared with plans made for drawn worlds."""
    table = open_table(
        f"Regret in {len(rows[0].losses)} draws",
        "policy",
        "mean",
        "90 % interval",
        "does not\nfit in",
    )
    for row in rows:
        low, high = row.interval or (0.0, 0.0)
        unfit = len(row.losses) - len(row.known)
        table.add_row(
            row.policy,
            NOTHING if row.mean is None else human_percent(row.mean, 1),
            f"{human_percent(low, 1)} to {human_percent(high, 1)}" if row.known else NOTHING,
            f"{unfit} of {len(row.losses)}" if unfit else NOTHING,
        )
    line = "by how much the plan takes longer than the one that its policy makes for that world"
    return Group(table, paragraph(line, style="dim", space=True))


def without_runtime(graph: Graph, results: Sequence[Result]) -> str:
    """Return the shares that the runtimes of such steps sustain, where none is named and times are
    modelled: of the speed of kernels alone, and of the memory's bandwidth in an optimizer on the
    CPU.
    """
    found = runtimes_for(graph)
    if not found or all([result.drawn is None for result in results]):
        return ""
    slow, fast = found[0], found[-1]
    shares = sorted([(r.cpu_optimizer.value, r.name) for r in found if r.cpu_optimizer.value])
    by_cpu = ""
    if shares and any([graph.ops[i].kind == "optimizer" for i in graph.elsewhere]):
        (least, slower), (most, faster) = shares[0], shares[-1]
        by_cpu = (
            f", and {least:.2f} ({slower}) to {most:.2f} ({faster}) of the bandwidth of host "
            "memory "
            "in an optimizer on the CPU"
        )
    return (
        f"No runtime is named (hosim runtime list): software that runs such steps sustains "
        f"{slow.speed.value:.2f} ({slow.name}) to {fast.speed.value:.2f} ({fast.name}) of the "
        f"speed that kernels have alone{by_cpu}"
    )


def _interval(result: Result) -> str:
    return interval(result.makespan_low_ns, result.makespan_high_ns) or NOTHING


def _sources(result: Result, name: str = "") -> list[str]:
    line = uncertainty_line(result)
    return [] if line is None else [f"{name + ': ' if name else ''}{line}."]
