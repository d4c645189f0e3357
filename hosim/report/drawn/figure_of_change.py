"""The bytes that a tier held over the step before a change and after it, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hosim.plain_text import printable
from hosim.report.drawn import figures
from hosim.units import human_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOW = "#c2542d"


@dataclass(frozen=True, slots=True)
class Curve:
    """The maximum held in each of equal parts of a step of ``makespan_ns``, in bytes."""

    held: Sequence[int]
    makespan_ns: int


def _memory_change(axes: Axes, before: Curve, now: Curve) -> Axes:
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
        text = f"{label}: peak {peak}, makespan {took}"
        levels = [b / size for b in curve.held]
        axes.stairs(
            levels,
            _edges(curve, unit),
            baseline=None,
            label=text,
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
    return axes


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
