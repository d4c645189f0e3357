"""Pictures of replays beside each other: what runs and waits in each, and how much of a tier's
memory each holds; and what a tier held before a change and after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import printable
from hosim.report.drawn import figures
from hosim.report.drawn.figures import CAUSE_STYLES, TRANSFER_STYLE, Style
from hosim.report.drawn.interactive import Shown
from hosim.report.drawn.replay_figures import COLUMNS, draw_rows
from hosim.report.timelines import OP, TRANSFER, Row, end_ns, held_over_time, rows, timeline_of
from hosim.units import human_in, human_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_OTHER = "other ops"
_FAMILIES = {
    "matrix products": ("matmul", "linear", "conv", "grouped"),
    "attention": ("attention", "softmax"),
    "optimizer": ("optimizer", "update"),
    "communication": ("all_", "reduce_scatter", "send", "recv", "broadcast"),
}
"""The beginnings of kinds of ops, by what a picture calls them."""
_STYLES: dict[str, Style] = {
    **{
        name: {"facecolor": colour, "edgecolor": "black", "linewidth": 0.0}
        for name, colour in (
            ("matrix products", "#3f5f8a"),
            ("attention", "#e6853d"),
            ("optimizer", "#7ba7d0"),
            ("communication", "#8a5fa8"),
            (_OTHER, "#b5bfca"),
        )
    },
    **CAUSE_STYLES,
    TRANSFER: TRANSFER_STYLE,
}
_Levels: TypeAlias = "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]"
"""Instants, and the bytes held from each of them on."""

_CURVES = (("#c2542d", "--"), ("black", "-"), ("#2f6fb0", "-."), ("#3c8a3c", ":"))


def side_by_side_figure(shown: Sequence[Shown], hardware: Hardware) -> Figure:
    """The picture of ``hosim diff --plot``: the streams and channels of each recorded replay, ops
    coloured by their kind and waits hatched, and what each tier holds, the device under the budget.
    A tier below that holds the same throughout is a line of the device's legend.
    """
    end = max([end_ns(one.result) for one in shown])
    labelled = [
        (f"{one.title}: {row.label}", row)
        for one in shown
        for row in _by_kind(one.plan.graph, rows(one.plan.graph, timeline_of(one.result)))
    ]
    with figures.style():
        curves = {
            tier.name: [_curve(one, tier.name) for one in shown]
            for tier in hardware.tiers
            if any([one.result.peak_bytes.get(tier.name) for one in shown])
        }
        flat = {
            tier: [int(held[0]) for _, held in of]
            for tier, of in curves.items()
            if tier != hardware.device_tier and all([(held == held[0]).all() for _, held in of])
        }
        drawn = [tier for tier in curves if tier not in flat]
        figure, (above, *below) = figures.blank([1.1 + 0.4 * len(labelled), *[2.2] * len(drawn)])
        draw_rows(above, labelled, end, _STYLES)
        for axes, tier in zip(below, drawn, strict=True):
            there = flat if tier == hardware.device_tier else {}
            _memories(axes, shown, hardware, tier, curves[tier], there)
        first = shown[0].result
        title = f"{first.workload} on {first.hardware}, within {human_size(first.budget_bytes)}"
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure


def _by_kind(graph: Graph, drawn: Sequence[Row]) -> list[Row]:
    """Rows whose bars of ops say what kind these are."""
    return [
        replace(
            row,
            bars=tuple(
                replace(bar, what=_family(graph.ops[bar.number].kind)) if bar.what == OP else bar
                for bar in row.bars
            ),
        )
        for row in drawn
    ]


def _family(kind: str) -> str:
    return next((name for name, begins in _FAMILIES.items() if kind.startswith(begins)), _OTHER)


def _curve(one: Shown, tier: str) -> _Levels:
    """The times of a replay and the bytes of a tier. Tensors freed when the step ends are left in."""
    end = end_ns(one.result)
    at, held = held_over_time(one.plan.graph, timeline_of(one.result), tier, end, COLUMNS)
    kept = (at < end) | (at == 0)
    return at[kept], held[kept]


def _memories(
    axes: Axes,
    shown: Sequence[Shown],
    hardware: Hardware,
    tier: str,
    curves: Sequence[_Levels],
    flat: Mapping[str, Sequence[int]],
) -> None:
    """The bytes that a tier holds in each replay, under the budget or what the tier has; and in the
    legend those of tiers that are ``flat``.
    """
    peaks = [one.result.peak_bytes.get(tier, 0) for one in shown]
    limit, called = figures.limit_of(shown[0].result, hardware, tier)
    top = max([1, *peaks, *([limit] if figures.is_near(limit, max(peaks)) else [])])
    end = max([end_ns(one.result) for one in shown])
    of_time, of_size = figures.time_unit(end), figures.size_unit(top)
    unit, (size, size_name) = of_time[0], of_size
    for k, (one, (at, held)) in enumerate(zip(shown, curves, strict=True)):
        own_end = end_ns(one.result)
        colour, dashes = _CURVES[k % len(_CURVES)]
        axes.step(
            [*(at / unit), own_end / unit],
            [*(held / size), held[-1] / size],
            where="post",
            linewidth=1.3,
            color=colour,
            linestyle=dashes,
            label=printable(
                f"{one.title}: {human_in(own_end, of_time)}, peak {human_in(peaks[k], of_size)}"
            ),
        )
    figures.limit_line(axes, limit, max(peaks), of_size, called)
    axes.set_ylim(0, 1.08 * top / size)
    axes.set_ylabel(size_name)
    axes.set_title(printable(f"Memory: {tier}"))
    for below, sizes in flat.items():
        held_there = ", ".join(map(human_size, sizes))
        axes.plot([], [], " ", label=printable(f"{below} throughout: {held_there}"))
    figures.over_time(axes, end, *of_time)
    figures.legend_beside(axes)


_NOW = "#c2542d"


@dataclass(frozen=True, slots=True)
class Curve:
    """The maximum held in each of equal parts of a step of ``makespan_ns``, in bytes."""

    held: Sequence[int]
    makespan_ns: int


def _memory_change(axes: Axes, before: Curve, now: Curve) -> None:
    """Both curves over one time axis, each as long as its step; increases are filled."""
    span = max(before.makespan_ns, now.makespan_ns, 1)
    top = max(*before.held, *now.held, 1)
    of_time, of_size = figures.time_unit(span), figures.size_unit(top)
    (unit, name), (size, size_name) = of_time, of_size
    for curve, label, colour, dashes, width in (
        (before, "before", "0.45", "--", 1.3),
        (now, "now", _NOW, "-", 1.6),
    ):
        peak, took = human_in(max(curve.held), of_size), human_in(curve.makespan_ns, of_time)
        axes.stairs(
            [b / size for b in curve.held],
            _edges(curve, unit),
            baseline=None,
            label=f"{label}: peak {peak}, makespan {took}",
            color=colour,
            linestyle=dashes,
            linewidth=width,
        )
    # on the finer of the two time grids, so that only real differences are filled
    edges = sorted({*_edges(before, 1), *_edges(now, 1)})
    more = [(_at(before, at) / size, _at(now, at) / size) for at in edges]
    old, new = [pair[0] for pair in more], [max(pair) for pair in more]
    axes.fill_between(
        [at / unit for at in edges], old, new, step="post", color=_NOW, alpha=0.25, linewidth=0
    )
    axes.set_ylim(0, 1.08 * top / size)
    axes.set_xlim(0, span / unit)
    axes.set_ylabel(size_name)
    axes.set_xlabel(f"time, {name}")


def _edges(curve: Curve, unit: int) -> list[float]:
    count = len(curve.held)
    return [curve.makespan_ns * k / count / unit for k in range(count + 1)]


def _at(curve: Curve, time_ns: float) -> int:
    """The bytes held from an instant on; 0 after the end."""
    part = next((k for k, end in enumerate(_edges(curve, 1)[1:]) if time_ns < end), None)
    return 0 if part is None else curve.held[part]


def change_figure(before: Curve, now: Curve, tier: str) -> Figure:
    """The picture of ``hosim check --html``, one per case."""
    with figures.style():
        figure, (axes,) = figures.blank([2.9])
        _memory_change(axes, before, now)
        axes.set_title(printable(f"Memory: {tier}"), pad=24)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.0)
    return figure
