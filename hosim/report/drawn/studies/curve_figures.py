"""Pictures of studies over one field, and of runs with varied times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.plain_text import printable
from hosim.report.drawn import LINES, blank, legend_beside, style, time_unit
from hosim.report.drawn.studies.study_figures import sweep_heat_map, telling, words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_MOST_NAMES = 12


def sweep_figure(frame: pd.DataFrame, columns: Sequence[str], title: str) -> Figure:
    """The makespan of a sweep over one or two varied ``columns``: a curve, or a heat map.

    Raises :class:`InputError` where the columns do not tell the rows apart.
    """
    if len(columns) == 1:
        values, times = frame[columns[0]].tolist(), frame["makespan_ns"].tolist()
        fits = [time if fit else None for time, fit in zip(times, frame["feasible"], strict=True)]
        return curve_figure(columns[0], values, fits, title)
    with style():
        figure, (axes,) = blank([4.8])
        sweep_heat_map(axes, frame, columns[0], columns[1], "makespan_ns")
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure


def curve_figure(
    name: str,
    values: Sequence[Any],
    times_ns: Sequence[float | None],
    title: str,
    limits_ns: Sequence[float | None] = (),
) -> Figure:
    """The makespan over the values of a field; ``None`` is a value that does not fit. ``limits_ns``
    are what it may take at each value.
    """
    unit, unit_name = time_unit(max([t for t in times_ns if t is not None], default=0))
    places = range(len(values))
    fitting = [(k, t / unit) for k, t in zip(places, times_ns, strict=True) if t is not None]
    with style():
        figure, (axes,) = blank([3.6])
        axes.plot(
            [k for k, _ in fitting],
            [t for _, t in fitting],
            marker="o",
            markersize=5,
            markerfacecolor="white",
            label="makespan",
            **LINES[0],
        )
        bound = [(k, t / unit) for k, t in zip(places, limits_ns, strict=False) if t is not None]
        if bound:
            axes.plot([k for k, _ in bound], [t for _, t in bound], label="limit", **LINES[1])
        misfits = [k for k, t in zip(places, times_ns, strict=True) if t is None]
        for number, k in enumerate(misfits):
            label = "no result" if not number else None
            axes.axvspan(
                k - 0.4, k + 0.4, facecolor="white", hatch="xxx", edgecolor="0.7", label=label
            )
        say, every = telling(name), -(-len(values) // _MOST_NAMES) or 1
        axes.set_xticks(places[::every], [printable(say(value)) for value in values[::every]])
        axes.set_xlabel(printable(words(name)))
        axes.set_ylabel(f"makespan, {unit_name}")
        axes.set_ylim(0, 1.08 * max([t for _, t in (*fitting, *bound)], default=1))
        axes.grid(color="0.9")
        legend_beside(axes)
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure


def spread_figure(percentiles: Mapping[str, Sequence[float | None]], title: str) -> Figure:
    """The makespan of each policy when times vary: nominal, P50 and P95 in nanoseconds, ``None``
    where so many runs do not fit.
    """
    unit, unit_name = time_unit(
        max([t for row in percentiles.values() for t in row if t is not None], default=0)
    )
    with style():
        figure, (axes,) = blank([1.2 + 0.35 * len(percentiles)])
        for k, (nominal, middle, late) in enumerate(percentiles.values()):
            ends = [t / unit for t in (nominal, late) if t is not None]
            if len(ends) == 2:
                axes.plot(ends, [k, k], color="0.55", linewidth=4, solid_capstyle="butt")
            for value, name, marker in (
                (nominal, "nominal", "o"),
                (middle, "P50", "|"),
                (late, "P95", "D"),
            ):
                if value is not None:
                    axes.plot(
                        [value / unit],
                        [k],
                        marker,
                        color="black",
                        markerfacecolor="none",
                        markersize=8,
                        label=None if k else name,
                    )
            if late is None:
                axes.text(0, k, " does not fit in 95 % of runs", va="center")
        axes.set_yticks(range(len(percentiles)), [printable(name) for name in percentiles])
        axes.set_ylim(len(percentiles) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"makespan, {unit_name}")
        axes.grid(axis="x", color="0.9")
        legend_beside(axes)
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure
