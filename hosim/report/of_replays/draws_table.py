"""What is said of makespans in draws of what is uncertain: intervals, who is faster how often, and
where the uncertainty is from.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from hosim.analysis.remarks import beside_fastest, often, uncertainty_line
from hosim.data.draws import Regret
from hosim.graph import Graph
from hosim.io.runtimes import runtimes_for
from hosim.report.printing import open_table, paragraph
from hosim.result import Result
from hosim.units import human_percent, human_time

_NOTHING = "-"


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
        only = unsure[0][0]
        unfit = 0.0 if only.drawn is None else only.drawn.unfit_share
        misfits = (
            [
                f"In {often(unfit)} the plan does not fit: copies take the room that an op then "
                "lacks."
            ]
            if unfit
            else []
        )
        return paragraph(
            f"90 % interval of the makespan: {_interval(only)}.",
            *misfits,
            *_sources(only),
            space=True,
        )
    pairs = {pair.second: pair for pair in beside_fastest(results, labels)}
    first = next((pair.first for pair in pairs.values()), "")
    than = f"{first}\nis faster in" if first else ""
    table = open_table(
        "Draws of what is uncertain",
        "of",
        "90 % interval",
        "draws",
        "does not\nfit in",
        than,
        "times\nas long",
        *(["rank"] if ranks else []),
        left=1,
    )
    kinds: dict[str, list[str]] = {}
    for result, label in unsure:
        pair, drawn = pairs.get(label), result.drawn
        assert drawn is not None
        if drawn.kind:
            kinds.setdefault(drawn.kind, []).append(label)
        lacks = often(drawn.unfit_share) if drawn.unfit_share else _NOTHING
        faster, longer = (
            (often(pair.faster_share), f"{1 + pair.low:.3f} to {1 + pair.high:.3f}")
            if pair
            else (_NOTHING, _NOTHING)
        )
        rank = [_rank(places[label])] if ranks else []
        table.add_row(label, _interval(result), f"{drawn.count}", lacks, faster, longer, *rank)
    best = next((result for result, label in unsure if label == first), unsure[0][0])
    return Group(
        table,
        paragraph(
            *_sources(best, first),
            *[f"{', '.join(names)}: {kind}." for kind, names in kinds.items()],
            space=True,
        ),
    )


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
            _NOTHING if row.mean is None else human_percent(row.mean, 1),
            f"{human_percent(low, 1)} to {human_percent(high, 1)}" if row.known else _NOTHING,
            f"{unfit} of {len(row.losses)}" if unfit else _NOTHING,
        )
    line = "by how much the plan takes longer than the one that its policy makes for that world"
    return Group(table, paragraph(line, style="dim", space=True))


def _rank(ends: tuple[int, int] | None) -> str:
    if ends is None:
        return _NOTHING
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def without_runtime(graph: Graph, results: Sequence[Result]) -> str:
    """What the runtimes that run such steps sustain, where none is named and times are modelled: of
    the speed of kernels alone, and of the memory's bandwidth in an optimizer on the CPU.
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
    if result.makespan_low_ns is None or result.makespan_high_ns is None:
        return _NOTHING
    return f"{human_time(result.makespan_low_ns)} to {human_time(result.makespan_high_ns)}"


def _sources(result: Result, name: str = "") -> list[str]:
    line = uncertainty_line(result)
    return [] if line is None else [f"{name + ': ' if name else ''}{line}."]
