"""Pictures of several replays: policies against each other, the frontier of memory and time, and
sweeps. Axes in, Axes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hosim.errors import InputError
from hosim.plain_text import printable
from hosim.report.drawn import (
    LINES,
    MARKERS,
    blank,
    legend_beside,
    limit_line,
    size_unit,
    style,
    time_unit,
)
from hosim.report.of_replays import least_bound
from hosim.result import Result
from hosim.units import human_in, human_rate, human_size, human_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_FROM = 5
"""Times are on a logarithmic scale if the longest is this many times the shortest."""

_LEAST_SPAN = 0.1
"""The least part of the largest peak that the axis of peaks spans: of a smaller one, peaks that are
nearly the same would look far from each other.
"""

_CELLS = 160
"""A heat map of at most this many cells shows each value as text."""

_FILLS = ("none", "0.55", "black")
"""The fills of the markers of the first dozen policies, of the second and so on: those that lie on
one another show through.
"""


def policies(axes: Axes, results: Sequence[Result], device_tier: str) -> Axes:
    """Makespan against the peak of the device tier, one marker a policy, with the budget and the
    lower bound as lines.

    A bar through a marker is the interval of its makespan, if that has one.
    """
    fitting = [r for r in results if r.feasible and r.makespan_ns is not None]
    peaks = [r.peak_bytes.get(device_tier, 0) for r in fitting]
    times = [r.makespan_ns or 0 for r in fitting]
    bound = least_bound(results)
    of_size, of_time = size_unit(max(peaks, default=0)), time_unit(max(times, default=0))
    (size, size_name), (unit, name) = of_size, of_time
    for k, (r, peak, makespan) in enumerate(zip(fitting, peaks, times, strict=True)):
        low, high = r.makespan_low_ns, r.makespan_high_ns
        said = human_in(makespan, of_time)
        if low is not None and high is not None:
            span = [human_in(end, of_time).partition(" ")[0] for end in (low, high)]
            said += f" ({' to '.join(span)})"
        axes.scatter(
            [peak / size],
            [makespan / unit],
            s=60 + 50 * _hidden(peaks, times, k),
            marker=MARKERS[k % len(MARKERS)],
            label=printable(f"{r.policy}: {said}, {human_in(peak, of_size)}"),
            zorder=3,
            facecolor=_FILLS[k // len(MARKERS) % len(_FILLS)],
            edgecolor=_colour(k),
            linewidth=1.6,
        )
        if low is not None and high is not None:
            how: dict[str, Any] = {"color": _colour(k), "linewidth": 3, "alpha": 0.4}
            axes.vlines(peak / size, low / unit, high / unit, zorder=2.5, **how)
    if bound:
        axes.axhline(
            bound / unit,
            color="black",
            linestyle=":",
            linewidth=1.2,
            label=f"lower bound {human_in(bound, of_time)}",
        )
    if peaks:
        limit_line(axes, results[0].budget_bytes, max(peaks), of_size, across=True)
    for r in results:
        if not r.feasible:
            why = "failed" if r.failed else "does not fit"
            axes.plot([], [], " ", label=printable(f"({r.policy} {why})"))
    axes.set_xlabel(printable(f"peak of {device_tier}, {size_name}"))
    axes.set_ylabel(f"makespan, {name}")
    ends = [
        end for r in fitting for end in (r.makespan_low_ns, r.makespan_high_ns) if end is not None
    ]
    _time_scale(axes, [*times, *ends, *([bound] if bound else [])], unit)
    axes.margins(x=0.08)
    left, right = axes.get_xlim()
    if left > (1 - _LEAST_SPAN) * right:
        axes.set_xlim((1 - _LEAST_SPAN) * right, (1 + _LEAST_SPAN / 8) * right)
    axes.grid(color="0.9")
    legend_beside(axes, labelspacing=0.8)
    return axes


def _hidden(peaks: Sequence[int], times: Sequence[int], k: int) -> int:
    """The number of later markers at the place of marker ``k``, which has to be larger to be seen
    around them.
    """
    near = max(peaks) / 50, max(times) / 50
    return sum(
        abs(peaks[j] - peaks[k]) < near[0] and abs(times[j] - times[k]) < near[1]
        for j in range(k + 1, len(peaks))
    )


def _colour(k: int) -> Any:
    return LINES[k % len(LINES)]["color"]


def _time_scale(axes: Axes, times_ns: Sequence[int], unit: int) -> None:
    """A logarithmic scale with plain numbers where times are far apart, else a linear one; with
    some room around.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = min(times_ns, default=0) / unit, max(times_ns, default=0) / unit
    if low > 0 and high > _LOG_FROM * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(low / 1.3, high * 1.3)
    elif high > low:
        axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))


def frontier(
    axes: Axes, curves: Mapping[str, Sequence[tuple[int, int]]], lower_bound_ns: int | None = None
) -> Axes:
    """Peak memory against makespan, by policy: points of (peak bytes, makespan in ns), joined by
    what is reached with no more memory.
    """
    points = [point for curve in curves.values() for point in curve]
    size, size_name = size_unit(max((peak for peak, _ in points), default=0))
    of_time = time_unit(max((makespan for _, makespan in points), default=0))
    unit, name = of_time
    right = 1.05 * max((peak for peak, _ in points), default=1) / size
    for k, (label, curve) in enumerate(curves.items()):
        line = sorted(curve)
        x, y = [peak / size for peak, _ in line], [makespan / unit for _, makespan in line]
        axes.step([*x, right], [*y, *y[-1:]], where="post", linewidth=1.2, **LINES[k % len(LINES)])
        axes.plot(
            x, y, MARKERS[k % len(MARKERS)], color=_colour(k), markerfacecolor="white", markersize=5
        )
        axes.plot(
            [],
            [],
            marker=MARKERS[k % len(MARKERS)],
            markerfacecolor="white",
            label=printable(label),
            **LINES[k % len(LINES)],
        )
    if lower_bound_ns:
        axes.axhline(
            lower_bound_ns / unit,
            color="black",
            linestyle=":",
            linewidth=1.2,
            label=f"lower bound {human_in(lower_bound_ns, of_time)}",
        )
    axes.set_xlim(right=right)
    axes.set_xlabel(f"peak memory, {size_name}")
    axes.set_ylabel(f"makespan, {name}")
    _time_scale(
        axes,
        [*(makespan for _, makespan in points), *([lower_bound_ns] if lower_bound_ns else [])],
        unit,
    )
    axes.grid(color="0.9")
    legend_beside(axes, handlelength=3.2)
    return axes


def sweep_heat_map(axes: Axes, frame: pd.DataFrame, x: str, y: str, value: str) -> Axes:
    """The column ``value`` of a sweep over the columns ``x`` and ``y``: dark is much. Hatched cells
    have no value (they failed).

    Columns named ``..._ns``, ``..._bytes`` and ``..._bytes_per_s`` are shown with units. Raises
    :class:`InputError` for an unknown column, and if two rows have the same ``x`` and ``y``.
    """
    import numpy as np
    from matplotlib.ticker import FuncFormatter

    for named in (x, y, value):
        if named not in frame.columns:
            raise InputError(
                f"no column {named!r} (columns: {', '.join(map(str, frame.columns))})",
                source="sweep",
            )
    if frame.duplicated([x, y]).any():
        raise InputError(
            f"expected one row for each {x} and {y}: choose the rows of one value of every other "
            "column",
            source="sweep",
        )
    grid = frame.pivot(index=y, columns=x, values=value).reindex(
        index=_ordered(frame[y]), columns=_ordered(frame[x])
    )
    cells = grid.to_numpy(dtype=float, na_value=np.nan)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(cells),
        cmap="cividis_r",
        edgecolors="white",
        linewidth=0.5 if cells.size <= _CELLS else 0,
    )
    axes.set_facecolor("white")
    failed = np.argwhere(np.isnan(cells)).tolist()
    hatched: dict[str, Any] = {"facecolor": "white", "hatch": "xxx", "edgecolor": "0.6"}
    for row, column in failed:
        axes.fill_between([column, column + 1], row, row + 1, linewidth=0.0, **hatched)
    told = telling(value)
    if len(failed) < cells.size <= _CELLS:
        middle = (np.nanmin(cells) + np.nanmax(cells)) / 2
        for (i, j), figure in np.ndenumerate(cells):
            if not np.isnan(figure):
                colour = "white" if figure > middle else "black"
                how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "small"}
                axes.text(j + 0.5, i + 0.5, told(figure), color=colour, **how)
    _label_cells(axes, list(grid.columns), list(grid.index), telling(x), telling(y))
    axes.set_xlabel(words(x))
    axes.set_ylabel(words(y))
    axes.figure.colorbar(
        mesh, ax=axes, label=words(value), format=FuncFormatter(lambda figure, _: told(figure))
    )
    if failed:
        axes.set_title(f"hatched: {len(failed)} without a value", fontsize="small", loc="right")
    return axes


def _label_cells(
    axes: Axes,
    across: Sequence[Any],
    up: Sequence[Any],
    say_x: Callable[[Any], str],
    say_y: Callable[[Any], str],
) -> None:
    """Names for at most a dozen columns and rows, the first among them."""
    for names, say, ticks in ((across, say_x, axes.set_xticks), (up, say_y, axes.set_yticks)):
        every = -(-len(names) // 12)
        ticks(
            [k + 0.5 for k in range(0, len(names), every)],
            [printable(say(names[k])) for k in range(0, len(names), every)],
        )
    axes.tick_params(length=0)
    if sum(len(say_x(name)) for name in across) > 80:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")


def _ordered(values: pd.Series[Any]) -> list[Any]:
    """Each value once: numbers ascending, names as they come."""
    found = values.unique().tolist()
    return found if any(isinstance(value, str) for value in found) else sorted(found)


def telling(column: str) -> Callable[[Any], str]:
    """Return the format of a column's values, by the unit that its name ends in."""
    for ending, say in (("_bytes_per_s", human_rate), ("_bytes", human_size), ("_ns", human_time)):
        if column.endswith(ending):
            return partial(_rounded, say)
    return _plain


def _rounded(say: Callable[[int], str], value: Any) -> str:
    return say(round(value))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def words(column: str) -> str:
    """A column's name without its unit, which the values show.

    >>> words("peak_bytes"), words("bandwidth_bytes_per_s"), words("policy")
    ('peak', 'bandwidth', 'policy')
    """
    for ending in ("_bytes_per_s", "_bytes", "_ns"):
        column = column.removesuffix(ending)
    return column if "." in column else column.replace("_", " ")


def frontier_figure(curves: Mapping[str, Sequence[tuple[int, int]]], title: str) -> Figure:
    """A picture of one or several curves."""
    with style():
        figure, (axes,) = blank([3.6])
        frontier(axes, curves)
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure


def comparison_figure(results: Sequence[Result], device_tier: str) -> Figure:
    """The picture of ``hosim compare-policies --plot``."""
    with style():
        figure, (axes,) = blank([4.8])
        policies(axes, results, device_tier)
        title = (
            f"{results[0].workload} on {results[0].hardware}, within "
            f"{human_size(results[0].budget_bytes)} of {device_tier}"
        )
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure


# -- curves
# --------------------------------------------------------------------------------------------------

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
