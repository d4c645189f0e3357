"""What lies on the axes of each picture, in the axes' units: places, styles and texts, worked out
from the figures that are drawn.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.text import Text
from rendered import facts
from timelines import MIB, US, everything, machine, many_ops

from hosim.cache_plan import Plan
from hosim.data.draws import Draws, LaterDraws
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.report import drawn as figures
from hosim.report.drawn import (
    Curve,
    Shown,
    change_figure,
    memory,
    recorded_memory,
    replay_figure,
    resident_figure,
    side_by_side_figure,
    start_errors,
)
from hosim.report.drawn.studies import comparison_figure, curve_figure, frontier, sweep_heat_map
from hosim.result import Residency, Result, Timeline, Transfer

ORANGE, RED = "#e08214", "#b2182b"


def axes_of(height: float = 3) -> Axes:
    figure, (axes,) = figures.blank([height])
    assert isinstance(figure, Figure)
    return axes


def near(values: Any) -> Any:
    return pytest.approx(values, abs=1e-9)


def boxes(drawn: Collection) -> list[tuple[float, float, float, float]]:
    """Left, bottom, width and height of each shape."""
    return [
        tuple(round(float(x), 6) for x in path.get_extents().bounds) for path in drawn.get_paths()
    ]


def named(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def ticks(axis: Any) -> list[tuple[float, str]]:
    return [
        (float(at), label.get_text())
        for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    ]


def lines(axes: Axes) -> list[tuple[str, str, float, str]]:
    """Colour, dashes, width and label of each line."""
    return [
        (to_hex(x.get_color()), str(x.get_linestyle()), x.get_linewidth(), str(x.get_label()))
        for x in axes.get_lines()
    ]


def test_errors_of_starts() -> None:
    axes = axes_of()
    assert start_errors(axes, [2_000_000, 5_000_000], [-3_000, 1_500]) is axes
    zero, points = axes.get_lines()
    assert list(zero.get_ydata()) == [0, 0]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([2, 5], [-3, 1.5])
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "recorded start, ms",
        "simulated less recorded start, us",
    )
    empty = start_errors(axes_of(), [], [])
    assert (empty.get_xlabel(), empty.get_ylabel()) == (
        "recorded start, ns",
        "simulated less recorded start, ns",
    )


def test_curves_of_recorded_memory() -> None:
    axes = axes_of()
    held = np.array([1, 3, 2], np.int64) << 30
    curves = {
        "recorded": held,
        "none": None,
        "replayed": 2 * held,
        "reserved": 3 * held,
        "also reserved": 4 * held,
    }
    assert recorded_memory(axes, np.array([5, 7, 11], np.int64) * 1000, curves) is axes
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [
        [1, 3, 2],
        [2, 6, 4],
        [3, 9, 6],
        [4, 12, 8],
    ]
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[0, 2, 6]] * 4
    assert {line.get_drawstyle() for line in axes.get_lines()} == {"steps-post"}
    assert lines(axes) == [
        ("#bfbfbf", "-", 5, "recorded"),
        ("#000000", "-", 1, "replayed"),
        ("#2166ac", "--", 1.5, "reserved"),
        (ORANGE, "--", 1, "also reserved"),
    ]
    assert named(axes) == ["recorded", "replayed", "reserved", "also reserved"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_ylim()[0]) == ("time, us", "GiB", 0)


def test_memory_before_and_after_a_change() -> None:
    """Two parts of 4 us each before, and four parts of 1.5 us each after: on both grids, more is
    held from 1.5 to 4.5 us.
    """
    (axes,) = change_figure(Curve((5, 6), 8_000), Curve((3, 9, 8, 1), 6_000), "hbm").axes
    old, new = axes.patches
    assert [list(x) for x in old.get_data()[:2]] == [[5, 6], [0, 4, 8]]
    assert [list(x) for x in new.get_data()[:2]] == [[3, 9, 8, 1], [0, 1.5, 3, 4.5, 6]]
    assert [
        (to_hex(p.get_edgecolor()), p.get_linestyle(), p.get_linewidth()) for p in (old, new)
    ] == [
        ("#737373", "--", 1.3),
        ("#c2542d", "-", 1.6),
    ]
    assert named(axes) == ["before: peak 6 B, makespan 8.00 us", "now: peak 9 B, makespan 6.00 us"]
    (more,) = axes.collections
    corners = {(round(float(x), 6), round(float(y), 6)) for x, y in more.get_paths()[0].vertices}
    # from 1.5 us 9 above 5, from 3 us 8 above 5, from 4 us 8 above 6, from 4.5 us nothing above 6;
    # at the end both hold nothing
    assert {
        (1.5, 9),
        (1.5, 5),
        (3, 9),
        (3, 8),
        (4, 8),
        (4, 6),
        (4.5, 8),
        (4.5, 6),
        (0, 5),
        (8, 6),
    } <= corners
    assert {y for x, y in corners if 4.5 < x < 8} == {6}
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 8), near((0, 1.08 * 9)))
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left")) == (
        "time, us",
        "B",
        "Memory: hbm",
    )


def results(*drawn: tuple[str, int | None, int]) -> list[Result]:
    _, one = everything()
    return [
        replace(
            one,
            policy=policy,
            makespan_ns=None if us is None else us * US,
            feasible=us is not None,
            peak_bytes={"hbm": mib * MIB},
        )
        for policy, us, mib in drawn
    ]


def policies(found: list[Result]) -> Axes:
    """The axes of a comparison."""
    (axes,) = comparison_figure(found, "hbm").axes
    return axes


def timeline(graph: Graph, result: Result) -> Axes:
    """The first axes of a replay's figure: streams and channels."""
    return replay_figure(graph, machine(), result).axes[0]


def filling(marker: Collection) -> str:
    return to_hex(marker.get_facecolor()[0]) if len(marker.get_facecolor()) else "none"


def test_policies_as_markers() -> None:
    """``a``, ``c`` and ``d`` are near each other: each has 50 more of a point's area for every
    later one.
    """
    found = results(
        ("a", 420, 20), ("b", 700, 82), ("c", 421, 20), ("none", None, 0), ("d", 420, 21)
    )
    axes = policies(found)
    assert [tuple(map(float, c.get_offsets()[0])) for c in axes.collections] == [
        (20, 420),
        (82, 700),
        (20, 421),
        (21, 420),
    ]
    assert [float(c.get_sizes()[0]) for c in axes.collections] == [60 + 100, 60, 60 + 50, 60]
    assert {filling(c) for c in axes.collections} == {"none"}
    assert [to_hex(c.get_edgecolor()[0]) for c in axes.collections] == [
        "#000000",
        "#c2542d",
        "#2f6fb0",
        "#3c8a3c",
    ]
    bound, budget, none = axes.get_lines()
    assert list(bound.get_ydata()) == [200, 200]
    assert list(budget.get_xdata()) == [84, 84]
    assert len(none.get_xdata()) == 0
    assert lines(axes)[:2] == [
        ("#000000", ":", 1.2, "lower bound 200 us"),
        (RED, "--", 1.4, "budget 84.0 MiB"),
    ]
    assert named(axes) == [
        "a: 420 us, 20.0 MiB",
        "b: 700 us, 82.0 MiB",
        "c: 421 us, 20.0 MiB",
        "d: 420 us, 21.0 MiB",
        "lower bound 200 us",
        "budget 84.0 MiB",
        "(none does not fit)",
    ]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == (
        "peak of hbm, MiB",
        "makespan, us",
        "linear",
    )
    far = policies(results(("a", 200, 41), ("b", 1001, 41)))
    assert far.get_yscale() == "log"
    assert named(far) == [
        "a: 200 us, 41.0 MiB",
        "b: 1001 us, 41.0 MiB",
        "lower bound 200 us",
        "(budget 84.0 MiB)",
    ]  # twice the peak is below the budget
    at_most = policies(results(("a", 999, 42)))
    assert (at_most.get_yscale(), named(at_most)[-1]) == ("linear", "budget 84.0 MiB")


def test_a_bar_has_the_interval_of_a_makespan() -> None:
    sure, unsure = results(("a", 420, 20), ("b", 700, 82))
    axes = policies([sure, replace(unsure, draws=LaterDraws.of(Draws.of_ends(650 * US, 760 * US)))])
    *_, bar = axes.collections
    assert len(axes.collections) == 3
    assert named(axes)[:2] == ["a: 420 us, 20.0 MiB", "b: 700 us (650 to 760), 82.0 MiB"]
    assert [list(map(float, point)) for point in bar.get_segments()[0]] == [[82, 650], [82, 760]]
    assert axes.get_ylim() == near(
        (200 - 0.08 * 560, 760 + 0.08 * 560)
    )  # from the lower bound to the end of the bar


def test_a_frontier_of_two_policies() -> None:
    axes = axes_of()
    frontier(
        axes, {"a": [(40 * MIB, 3 * US), (10 * MIB, 7 * US)], "b": [(20 * MIB, 5 * US)]}, 2 * US
    )
    steps = [(list(x.get_xdata()), list(x.get_ydata())) for x in axes.get_lines()]
    assert steps[:6] == [
        ([10, 40, 42], [7, 3, 3]),
        ([10, 40], [7, 3]),
        ([], []),
        ([20, 42], [5, 5]),
        ([20], [5]),
        ([], []),
    ]
    assert [x.get_marker() for x in axes.get_lines()[:6]] == ["None", "o", "o", "None", "s", "s"]
    assert [colour for colour, *_ in lines(axes)] == ["#000000"] * 3 + ["#c2542d"] * 3 + ["#000000"]
    assert named(axes) == ["a", "b", "lower bound 2.00 us"]
    assert axes.get_xlim()[1] == 42
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == (
        "peak memory, MiB",
        "makespan, us",
        "linear",
    )


def test_a_heat_map() -> None:
    cells = [("x", 10**9, 1e6), ("x", 2 * 10**9, 4e6), ("y", 10**9, 2e6), ("y", 2 * 10**9, None)]
    axes = axes_of()
    frame = pd.DataFrame(cells[::-1], columns=["policy", "h2d_bytes_per_s", "makespan_ns"])
    sweep_heat_map(axes, frame, "policy", "h2d_bytes_per_s", "makespan_ns")
    shown = {x.get_position(): (x.get_text(), x.get_color()) for x in axes.texts}
    # the names as they come: y, x; the middle of 1 to 4 ms is 2.5 ms
    assert shown == {
        (0.5, 0.5): ("2.00 ms", "black"),
        (1.5, 0.5): ("1.00 ms", "black"),
        (1.5, 1.5): ("4.00 ms", "white"),
    }
    assert [boxes(c) for c in axes.collections[1:]] == [[(0, 1, 1, 1)]]
    assert ticks(axes.xaxis) == [(0.5, "y"), (1.5, "x")]
    assert ticks(axes.yaxis) == [(0.5, "1.00 GB/s"), (1.5, "2.00 GB/s")]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("right")) == (
        "policy",
        "h2d",
        "hatched: 1 without a value",
    )
    bar = axes.figure.axes[1]
    assert bar.get_ylabel() == "makespan"
    numbers = pd.DataFrame([(k, 0, 0.5 * k) for k in range(25)], columns=["k", "layer", "share"])
    many = axes_of()
    sweep_heat_map(many, numbers, "k", "layer", "share")
    assert ticks(many.xaxis) == [(k + 0.5, str(k)) for k in range(0, 25, 3)]
    assert [x.get_text() for x in many.texts] == [f"{0.5 * k:g}" for k in range(25)]
    assert many.get_title("right") == ""


def test_a_replay_in_which_everything_happens() -> None:
    graph, result = everything()
    streams = timeline(graph, result)
    ops, *stalls = [boxes(c) for c in streams.collections[:5]]
    assert ops == [(start, -0.38, 40, 0.76) for start in (0, 60, 130, 200, 270)]
    assert stalls == [
        [(start, -0.38, width, 0.76)]
        for start, width in ((40, 20), (100, 30), (170, 30), (240, 30))
    ]
    # two transfers of h2d overlap from 20 us on: the second has the second row
    assert sorted(box for c in streams.collections[5:] for box in boxes(c)) == [
        (10, -2.38, 60, 0.76),
        (20, -3.38, 40, 0.76),
        (60, -3.38, 68, 0.76),
        (150, -1.38, 110, 0.76),
    ]
    assert ticks(streams.yaxis) == [(0, "compute"), (-1, "d2h"), (-2, "h2d"), (-3, "h2d 2")]
    assert named(streams) == [
        "op runs",
        *(f"waits: {cause}" for cause in ("dependency", "transfer", "capacity", "runtime")),
        "transfer",
    ]
    assert (streams.get_xlim(), streams.get_xlabel()) == ((0, 310), "time, us")
    assert streams.get_ylim() == near((-3.6, 0.6))


def test_more_bars_than_are_drawn_one_by_one() -> None:
    """A row of more than 3000 bars has the shares of 400 columns, one upon the other; together they
    fill the row.
    """
    graph, result = many_ops(3001)
    axes = timeline(graph, result)
    end = result.makespan_ns
    columns = [k * end / 400 / US for k in range(401)]
    ops = axes.collections[0]
    assert sorted({float(x) for x in ops.get_paths()[0].vertices[:, 0]}) == near(columns)
    assert min(bottom for c in axes.collections[:3] for _, bottom, _, _ in boxes(c)) == near(-0.38)
    assert max(
        bottom + height for c in axes.collections[:3] for _, bottom, _, height in boxes(c)
    ) == near(0.38)
    assert ticks(axes.yaxis) == [(0, "compute"), (-1, "h2d")]


def test_the_memory_of_a_replay() -> None:
    graph, result = everything()
    hbm, ddr = (memory(axes_of(), graph, machine(), result, tier) for tier in ("hbm", "ddr"))
    # ddr holds the activation alone, from 50 us on; its capacity is far above the peak
    assert [boxes(c) for c in ddr.collections] == [[(0, 0, 310, 8)]]
    total, none, peak = ddr.get_lines()
    assert (list(total.get_xdata()), list(total.get_ydata())) == ([0, 50, 310, 310], [0, 8, 0, 0])
    assert len(none.get_xdata()) == 0
    assert (list(peak.get_xdata()), list(peak.get_ydata())) == ([50], [8])
    total, budget, peak = hbm.get_lines()
    assert max(total.get_ydata()) == 78
    assert list(budget.get_ydata()) == [84, 84]
    assert (list(peak.get_xdata()), list(peak.get_ydata())) == ([200], [78])
    assert (hbm.get_ylim(), ddr.get_ylim()) == (near((0, 1.08 * 84)), near((0, 1.08 * 8)))
    assert (hbm.get_ylabel(), ddr.get_ylabel()) == ("MiB", "MiB")
    kinds = [
        "parameter",
        "gradient",
        "optimizer state",
        "activation",
        "kv cache",
        "expert",
        "input",
        "output",
        "buffer",
        "workspace",
    ]
    assert [c.get_label() for c in hbm.collections] == kinds
    assert [boxes(c) for c in hbm.collections] == [
        [(0, 0, 310, top)] for top in (8, 16, 24, 32, 40, 48, 56, 64, 72, 78)
    ]
    assert lines(hbm)[:2] == [
        ("#000000", "-", 0.7, total.get_label()),
        (RED, "--", 1.4, "budget 84.0 MiB"),
    ]
    assert named(hbm) == ["peak 78.0 MiB at 200 us", "budget 84.0 MiB", *kinds[::-1]]
    assert named(ddr) == ["peak 8.00 MiB at 50.0 us", "(capacity 1000 MiB)", "activation"]


def test_the_channels_of_a_replay() -> None:
    """``h2d`` is busy from 10 to 128 us and ``d2h`` from 150 to 260: 118 and 110 of 310, in steps
    of 3.1 us.
    """
    graph, result = everything()
    *_, busy, queue = replay_figure(graph, machine(), result).axes
    shares = [[round(float(y), 2) for y in x.get_ydata()] for x in busy.get_lines()]
    assert (
        shares[0]
        == [0] * 48 + [round(190 / 3.1, 2)] + [100] * 34 + [round(270 / 3.1, 2)] + [0] * 17
    )
    assert (
        shares[1] == [0] * 3 + [round(240 / 3.1, 2)] + [100] * 37 + [round(90 / 3.1, 2)] + [0] * 59
    )
    assert [list(x.get_xdata()) for x in busy.get_lines()] == [
        near([3.1 * k for k in range(101)])
    ] * 2
    # two copies of 8 MiB are issued to h2d at 15 us, and start at 20 and 60 us; the one of d2h
    # waits from 100 to 150 us
    assert [(list(x.get_xdata()), list(x.get_ydata())) for x in queue.get_lines()] == [
        ([0, 100, 150, 310, 310], [0, 8, 0, 0, 0]),
        ([0, 15, 20, 60, 310, 310], [0, 16, 8, 0, 0, 0]),
    ]
    styles = [("#000000", "-", 1.3), ("#c2542d", "--", 1.3)]
    assert lines(busy) == [
        (*style, label) for style, label in zip(styles, ("d2h: 35 %", "h2d: 38 %"), strict=True)
    ]
    assert lines(queue) == [
        (*style, label)
        for style, label in zip(
            styles, ("d2h: at most 8.00 MiB", "h2d: at most 16.0 MiB"), strict=True
        )
    ]
    assert (busy.get_ylabel(), queue.get_ylabel()) == ("busy, %", "waiting, MiB")
    assert (busy.get_ylim(), queue.get_ylim()) == ((0, 104), near((0, 1.08 * 16)))
    assert {axes.get_xlim() for axes in (busy, queue)} == {(0, 310)}
    assert (len(named(busy)), len(named(queue))) == (2, 2)


def exactly(*drawn: tuple[int | None, int]) -> list[Result]:
    """Results of so many nanoseconds (none: it does not fit) and bytes, with a budget that is out
    of sight, and without a bound.
    """
    _, one = everything()
    return [
        replace(
            one,
            policy=f"p{k}",
            makespan_ns=ns,
            feasible=ns is not None,
            peak_bytes={"hbm": held} if held else {},
            budget_bytes=10**9,
            lower_bound_ns=None,
        )
        for k, (ns, held) in enumerate(drawn)
    ]


def grid_of(axes: Axes) -> set[tuple[bool, str]]:
    return {
        (line.get_visible(), to_hex(line.get_color()))
        for axis in (axes.xaxis, axes.yaxis)
        for line in axis.get_gridlines()
    }


def beside(axes: Axes) -> tuple[Any, ...]:
    """Where the legend is: its place in the axes' units, which corner of it lies there, and its
    distance from there.
    """
    legend = axes.get_legend()
    assert legend is not None
    place = legend.get_bbox_to_anchor().transformed(axes.transAxes.inverted())
    return (
        round(float(place.x0), 6),
        round(float(place.y0), 6),
        legend._get_loc(),
        legend.borderaxespad,
    )  # type: ignore[attr-defined]


UPPER_LEFT = 2
BESIDE = (1.005, 1.02, UPPER_LEFT, 0.0)


def test_markers_that_hide_each_other_are_within_a_fiftieth_of_the_most() -> None:
    """Of 1000 ns and 5000 bytes: less than 20 ns and 100 bytes. ``p0`` is hidden by ``p1``; ``p4``
    is far in bytes, ``p5`` in time.
    """
    near_p0 = [(519, 1099), (520, 1000), (500, 1100), (500, 4000), (900, 1000)]
    axes = policies(exactly((500, 1000), *near_p0, (1000, 5000)))
    # p1 has p2 (1 ns, 99 bytes) and p3 (19 ns, 1 byte) upon it; p2 and p3 are 20 ns apart
    assert [float(c.get_sizes()[0]) for c in axes.collections] == [
        60 + 50,
        60 + 100,
        60,
        60,
        60,
        60,
        60,
    ]
    assert [tuple(map(float, c.get_offsets()[0])) for c in axes.collections[:3]] == [
        (1000 / 1024, 500),
        (1099 / 1024, 519),
        (1000 / 1024, 520),
    ]


def test_many_policies_differ_in_marker_filling_and_colour() -> None:
    count = 37
    axes = policies(exactly(*((100 + 3 * k, 1000 * k) for k in range(count))))
    fillings = [filling(c) for c in axes.collections]
    assert fillings == ["none"] * 12 + ["#8c8c8c"] * 12 + ["#000000"] * 12 + ["none"]
    colours = ["#000000", "#c2542d", "#2f6fb0", "#3c8a3c", "#8c8c8c", "#8a5fa8"]
    assert [to_hex(c.get_edgecolor()[0]) for c in axes.collections] == [
        colours[k % 6] for k in range(count)
    ]
    assert {(float(c.get_linewidths()[0]), c.get_zorder()) for c in axes.collections} == {(1.6, 3)}
    markers = [MarkerStyle(name) for name in "os^DvPX<>ph*"]
    paths = [marker.get_path().transformed(marker.get_transform()).vertices for marker in markers]
    for k, drawn in enumerate(axes.collections):
        assert np.array_equal(drawn.get_paths()[0].vertices, paths[k % 12])
    assert float(axes.collections[0].get_offsets()[0][0]) == 0  # nothing is said to be held
    assert axes.margins() == (0.08, 0.05)
    assert grid_of(axes) == {(True, "#e6e6e6")}
    assert beside(axes) == BESIDE


def test_policies_of_which_none_fits() -> None:
    axes = policies(exactly((None, 5), (None, 7)))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("peak of hbm, B", "makespan, ns")
    assert named(axes) == ["(p0 does not fit)", "(p1 does not fit)"]
    assert (list(axes.collections), [len(x.get_xdata()) for x in axes.get_lines()]) == ([], [0, 0])


def test_the_scale_of_times() -> None:
    """Logarithmic beyond five times the shortest; linear with 8 % of the range around; as it comes,
    if there is one time alone.
    """
    log = policies(exactly((100, 5), (501, 6)))
    assert log.get_yscale() == "log"
    assert log.get_ylim() == near((100 / 1.3, 501 * 1.3))
    assert [
        x for x in log.yaxis.get_major_locator().tick_values(100, 1000) if 99 < x < 1001
    ] == near([100, 200, 500, 1000])
    assert [log.yaxis.get_major_formatter()(value) for value in (0.5, 20.0, 200_000.0)] == [
        "0.5",
        "20",
        "200000",
    ]
    assert log.yaxis.get_minor_formatter()(30.0) == ""
    linear = policies(exactly((100, 5), (500, 6)))
    assert (linear.get_yscale(), linear.get_ylim()) == ("linear", near((100 - 32, 500 + 32)))
    zero = policies(exactly((0, 5), (500, 6)))
    assert (zero.get_yscale(), zero.get_ylim()) == ("linear", near((-40, 540)))
    alone = policies(exactly((100, 5)))
    below, above = alone.get_ylim()
    assert below < 100 < above
    bounded = [replace(one, lower_bound_ns=100) for one in exactly((300, 5), (500, 6))]
    assert policies(bounded).get_ylim() == near((100 - 32, 500 + 32))


def test_a_frontier_from_bytes_to_mebibytes() -> None:
    axes = frontier(axes_of(), {"a": [(4 * MIB, 300), (1024, 9 * US)]})
    first, points, label = axes.get_lines()
    assert (list(first.get_xdata()), list(first.get_ydata())) == (
        near([1 / 1024, 4, 4.2]),
        near([9, 0.3, 0.3]),
    )
    assert first.get_drawstyle() == "steps-post"
    assert (first.get_linewidth(), points.get_markersize()) == (1.2, 5)
    assert [to_hex(x.get_markerfacecolor()) for x in (points, label)] == ["#ffffff", "#ffffff"]
    assert [str(x.get_linestyle()) for x in (first, points, label)] == ["-", "None", "-"]
    assert axes.get_yscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("peak memory, MiB", "makespan, us")
    assert named(axes) == ["a"]
    assert grid_of(axes) == {(True, "#e6e6e6")}
    assert beside(axes) == BESIDE
    assert axes.get_legend().handlelength == 3.2
    bounded = frontier(axes_of(), {"a": [(1, 300), (2, 200)]}, 100)
    assert lines(bounded)[-1] == ("#000000", ":", 1.2, "lower bound 100 ns")
    assert list(bounded.get_lines()[-1].get_ydata()) == [100, 100]
    assert bounded.get_ylim() == near((100 - 16, 300 + 16))
    empty = frontier(axes_of(), {})
    assert (empty.get_xlabel(), empty.get_ylabel(), empty.get_legend()) == (
        "peak memory, B",
        "makespan, ns",
        None,
    )
    assert empty.get_xlim()[1] == 1.05


def heat_map(cells: Any, *columns: str) -> Axes:
    axes = axes_of()
    assert sweep_heat_map(axes, pd.DataFrame(cells, columns=list(columns)), *columns) is axes
    return axes


def test_how_a_heat_map_looks() -> None:
    axes = heat_map(
        [
            (30, 0.5, 1),
            (10, 0.5, 2),
            (20, 0.5, None),
            (30, 0.25, 3),
            (10, 0.25, None),
            (20, 0.25, None),
        ],
        "b_bytes",
        "y",
        "z",
    )
    mesh, *hatched = axes.collections
    assert mesh.get_cmap().name == "cividis_r"
    assert mesh.get_array().tolist() == [[None, None, 3], [2, None, 1]]
    assert (
        to_hex(mesh.get_edgecolor()[0]),
        float(mesh.get_linewidth()[0]),
        to_hex(axes.get_facecolor()),
    ) == ("#ffffff", 0.5, "#ffffff")
    assert [boxes(c) for c in hatched] == [[(0, 0, 1, 1)], [(1, 0, 1, 1)], [(1, 1, 1, 1)]]
    styles = {
        (
            to_hex(c.get_facecolor()[0]),
            c.get_hatch(),
            to_hex(c.get_edgecolor()[0]),
            float(c.get_linewidth()[0]),
        )
        for c in hatched
    }
    assert styles == {("#ffffff", "xxx", "#999999", 0)}
    # from 1 to 3: 2 is the middle, and no more than that
    shown = {x.get_position(): (x.get_text(), x.get_color()) for x in axes.texts}
    assert shown == {
        (2.5, 0.5): ("3", "white"),
        (0.5, 1.5): ("2", "black"),
        (2.5, 1.5): ("1", "black"),
    }
    small = Text(fontsize="small").get_fontsize()
    assert {(x.get_ha(), x.get_va(), x.get_fontsize()) for x in axes.texts} == {
        ("center", "center", small)
    }
    assert ticks(axes.xaxis) == [(0.5, "10 B"), (1.5, "20 B"), (2.5, "30 B")]
    assert ticks(axes.yaxis) == [(0.5, "0.25"), (1.5, "0.5")]
    assert {
        tick.tick1line.get_markersize()
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
    } == {0}
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("right")) == (
        "b",
        "y",
        "hatched: 3 without a value",
    )
    assert axes._right_title.get_fontsize() == small  # type: ignore[attr-defined]
    assert {x.get_rotation() for x in axes.get_xticklabels()} == {0}


def test_the_scale_of_a_heat_map_has_units() -> None:
    axes = heat_map([("a", "b", 2e6), ("c", "b", 3e6)], "x", "y", "makespan_ns")
    bar = axes.figure.axes[1]
    assert [bar.yaxis.get_major_formatter()(value) for value in (2e6, 1500.4)] == [
        "2.00 ms",
        "1.50 us",
    ]
    assert [(label, bar.get_ylabel()) for label in (x.get_text() for x in axes.texts)] == [
        ("2.00 ms", "makespan"),
        ("3.00 ms", "makespan"),
    ]


def test_a_heat_map_of_a_column_that_knows_of_missing_integers() -> None:
    axes = axes_of()
    sweep_heat_map(
        axes,
        pd.DataFrame({"x": [1, 2], "y": [3, 3], "z": pd.array([7, None], "Int64")}),
        "x",
        "y",
        "z",
    )
    assert [x.get_text() for x in axes.texts] == ["7"]


def test_a_heat_map_without_any_value() -> None:
    axes = heat_map([(1, 2, None), (3, 2, None)], "x", "y", "z")
    assert (list(axes.texts), axes.get_title("right")) == ([], "hatched: 2 without a value")


@pytest.mark.parametrize(("across", "up", "values", "line"), [(16, 10, 160, 0.5), (23, 7, 0, 0)])
def test_values_are_shown_in_up_to_160_cells(
    across: int, up: int, values: int, line: float
) -> None:
    axes = heat_map([(x, y, 0) for x in range(across) for y in range(up)], "x", "y", "z")
    assert (len(axes.texts), float(axes.collections[0].get_linewidth()[0])) == (values, line)


@pytest.mark.parametrize(
    ("length", "turned"), [(20, (0.0, "center", "default")), (21, (30.0, "right", "anchor"))]
)
def test_long_names_are_turned(length: int, turned: tuple[float, str, str]) -> None:
    names = ["b" * 20, "a" * length, "d" * 20, "c" * 20]
    axes = heat_map([(name, "y", 1) for name in names], "x", "y", "z")
    labels = axes.get_xticklabels()
    assert [x.get_text() for x in labels] == names
    assert {(x.get_rotation(), x.get_ha(), x.get_rotation_mode() or "default") for x in labels} == {
        turned
    }


@pytest.mark.parametrize(("count", "every"), [(12, 1), (13, 2), (24, 2), (25, 3)])
def test_at_most_a_dozen_columns_are_named(count: int, every: int) -> None:
    axes = heat_map([(k, "y", 1) for k in range(count)], "x", "y", "z")
    assert [at for at, _ in ticks(axes.xaxis)] == [k + 0.5 for k in range(0, count, every)]


def test_what_a_heat_map_refuses() -> None:
    with pytest.raises(InputError) as caught:
        sweep_heat_map(axes_of(), pd.DataFrame({"a": [1], "b": [2]}), "a", "b", "c")
    assert str(caught.value) == "sweep: no column 'c' (columns: a, b)"
    with pytest.raises(InputError) as caught:
        heat_map([(1, 2, 3), (1, 2, 4)], "a", "b", "c")
    assert (
        str(caught.value)
        == "sweep: expected one row for each a and b: choose the rows of one value of every other "
        "column"
    )


def test_the_figure_of_a_comparison() -> None:
    figure = comparison_figure(exactly((100, 5), (501, 6)), "hbm")
    title = figure.texts[0]
    assert facts(title.get_text(), "hbm") == "954 MiB, hbm"
    assert (title.get_position()[0], title.get_ha(), title.get_fontweight()) == (
        0.01,
        "left",
        "bold",
    )
    assert tuple(figure.get_size_inches()) == (11, 4.8)
    (axes,) = figure.axes
    assert named(axes) == ["p0: 100 ns, 5 B", "p1: 501 ns, 6 B", "(budget 1000000000 B)"]
    assert not axes.spines["top"].get_visible()  # drawn in hosim's own style


def only_ops(count: int) -> Axes:
    graph, result = many_ops(count)
    assert result.timeline is not None
    return timeline(
        graph, replace(result, timeline=replace(result.timeline, stalls=(), transfers=()))
    )


@pytest.mark.parametrize(
    ("count", "edge", "width", "shapes"),
    [(200, "#ffffff", 0.4, 200), (201, "#000000", 0, 201), (3000, "#000000", 0, 3000)],
)
def test_up_to_200_bars_have_edges_and_up_to_3000_are_drawn_one_by_one(
    count: int, edge: str, width: float, shapes: int
) -> None:
    ops = only_ops(count).collections[0]
    assert (
        to_hex(ops.get_edgecolor()[0]),
        float(ops.get_linewidth()[0]),
        len(ops.get_paths()),
    ) == (edge, width, shapes)


def test_a_curve_of_memory_has_at_most_800_steps() -> None:
    graph, result = many_ops(3001)
    total = memory(axes_of(), graph, machine(), result, "hbm").get_lines()[0]
    assert len(total.get_xdata()) == 800 + 1


def test_the_whole_figure_of_a_replay() -> None:
    """Four rows, two tiers and two channels: 1.2 + 4 x 0.42, 2.6 a tier, and 2.1 a picture of the
    channels, in inches.
    """
    graph, result = everything()
    figure = replay_figure(graph, machine(), result)
    titles = [
        "Streams and channels",
        "Memory: hbm",
        "Memory: ddr",
        "Channels: utilization (each step 3.10 us)",
        "Channels: queue",
    ]
    assert [axes.get_title("left") for axes in figure.axes] == titles
    heights = [1.2 + 4 * 0.42, 2.6, 2.6, 2.1, 2.1]
    assert [float(x) for x in figure.axes[0].get_gridspec().get_height_ratios()] == near(heights)  # type: ignore[union-attr]
    assert tuple(figure.get_size_inches()) == near((11, sum(heights)))
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "",
        "MiB",
        "MiB",
        "busy, %",
        "waiting, MiB",
    ]
    streams, hbm, ddr, busy, queue = figure.axes
    assert {tick.tick1line.get_markersize() for tick in streams.yaxis.get_major_ticks()} == {0}
    assert [axes.get_legend().handleheight for axes in (streams, hbm, ddr)] == [1.4, 1.2, 1.2]
    assert {beside(axes) for axes in figure.axes} == {BESIDE}
    peak = hbm.get_lines()[-1]
    style = (
        peak.get_marker(),
        to_hex(peak.get_color()),
        to_hex(peak.get_markeredgecolor()),
        peak.get_markersize(),
        peak.get_clip_on(),
    )
    assert style == ("v", "#ffffff", "#000000", 8, False)
    for axes in (hbm, busy, queue):
        assert axes.get_lines()[0].get_drawstyle() == "steps-post"
    title = figure.texts[0]
    assert facts(title.get_text()) == "310 us"
    assert (title.get_position()[0], title.get_ha(), title.get_fontweight()) == (
        0.01,
        "left",
        "bold",
    )
    assert not streams.spines["right"].get_visible()


def test_the_figure_of_a_replay_that_does_not_fit_and_moved_nothing() -> None:
    graph, result = everything()
    assert result.timeline is not None
    still = replace(result.timeline, transfers=(), stalls=())
    figure = replay_figure(
        graph,
        machine(),
        replace(result, makespan_ns=None, timeline=still, peak_bytes={"hbm": 78 * MIB}),
    )
    assert "does not fit" in figure.texts[0].get_text()
    assert [axes.get_title("left") for axes in figure.axes] == [
        "Streams and channels",
        "Memory: hbm",
    ]
    assert figure.axes[0].get_xlim() == (0, 310)  # the last that is known


def test_a_limit_of_exactly_twice_the_peak_is_drawn() -> None:
    graph, result = everything()
    result = replace(result, peak_bytes={"hbm": 40 * MIB})
    axes = memory(axes_of(), graph, machine(), replace(result, budget_bytes=80 * MIB), "hbm")
    assert (list(axes.get_lines()[1].get_ydata()), axes.get_ylim()) == (
        [80, 80],
        near((0, 1.08 * 80)),
    )
    above = memory(axes_of(), graph, machine(), replace(result, budget_bytes=80 * MIB + 1), "hbm")
    assert (len(above.get_lines()[1].get_xdata()), above.get_ylim()) == (0, near((0, 1.08 * 40)))
    assert named(above)[1] == "(budget 80.0 MiB)"
    capped = memory(axes_of(), graph, machine(), replace(result, budget_bytes=10**15), "hbm")
    assert named(capped)[1] == "(budget 100 MiB)"  # what the tier has


def test_a_replay_of_no_time() -> None:
    """Nothing takes time: the axis has a length all the same, and no channel is busy."""
    graph, result = everything()
    still = Timeline((0,) * 5, (0,) * 5, (), (Transfer(0, 0, "h2d", MIB, 0, 0, 0, 0),), ())
    nothing = replace(
        result, makespan_ns=0, timeline=still, peak_bytes={}, peak_at_ns={}, budget_bytes=7
    )
    busy = replay_figure(graph, machine(), nothing).axes[-2]
    assert (busy.get_xlim(), named(busy)) == ((0, 1), ["h2d: 0 %"])
    held = memory(axes_of(), graph, machine(), nothing, "hbm")
    assert (held.get_xlim(), held.get_ylim(), named(held)) == (
        (0, 1),
        near((0, 1.08)),
        ["peak 0 B at 0 ns", "(budget 7 B)"],
    )
    assert timeline(graph, nothing).get_xlim() == (0, 1)


def test_the_figure_of_a_change() -> None:
    figure = change_figure(Curve((5 * 1024, 6 * 1024), 8_000), Curve((9 * 1024,), 6_000), "hbm")
    assert tuple(figure.get_size_inches()) == (11, 2.9)
    (axes,) = figure.axes
    assert (axes.get_ylabel(), axes.get_ylim()) == ("KiB", near((0, 1.08 * 9)))
    assert [(list(p.get_data()[0]), p.get_data()[2]) for p in axes.patches] == [
        ([5, 6], None),
        ([9], None),
    ]
    (more,) = axes.collections
    assert {(round(float(x), 6), round(float(y), 6)) for x, y in more.get_paths()[0].vertices} >= {
        (0, 9),
        (0, 5),
        (4, 6),
        (6, 9),
        (6, 6),
    }
    assert (more.get_alpha(), float(more.get_linewidth()[0]), to_hex(more.get_facecolor()[0])) == (
        0.25,
        0,
        "#c2542d",
    )
    assert beside(axes) == (0, 1, 3, 0)  # the lower left corner at the upper left of the axes
    assert axes.get_legend()._ncols == 2  # type: ignore[union-attr]
    assert axes.titleOffsetTrans.transform((0, 0))[1] == near(24 / 72 * figure.dpi)
    assert not axes.spines["top"].get_visible()
    (nothing,) = change_figure(Curve((0,), 0), Curve((0,), 0), "hbm").axes
    assert (nothing.get_xlim(), nothing.get_ylim(), nothing.get_ylabel()) == (
        (0, 1),
        near((0, 1.08)),
        "B",
    )


def in_two_ways(ddr_from: int) -> Figure:
    """A slow and a quick replay of ops of five kinds. ``ddr`` holds 8 MiB in the quick one
    throughout, and in the slow one from ``ddr_from`` on.
    """
    graph, slow = everything()
    kinds = ("matmul", "softmax", "update", "all_reduce", "add")
    ops = tuple(replace(op, kind=kind) for op, kind in zip(graph.ops, kinds, strict=True))
    plan = Plan(replace(graph, ops=ops), "by hand")
    assert slow.timeline is not None
    held = [
        replace(held, start_ns=ddr_from) if held.tier == "ddr" else held
        for held in slow.timeline.residencies
    ]
    slow = replace(slow, timeline=replace(slow.timeline, residencies=tuple(held)))
    starts = tuple(40 * US * k for k in range(5))
    both = (
        Residency(0, "hbm", 0, 200 * US, 40 * MIB),
        Residency(3, "ddr", 0, 200 * US, 8 * MIB),
    )
    short = Timeline(starts, tuple(start + 40 * US for start in starts), (), (), both)
    quick = replace(
        slow,
        makespan_ns=200 * US,
        timeline=short,
        peak_bytes={"hbm": 40 * MIB, "ddr": 8 * MIB},
    )
    return side_by_side_figure([Shown("slow", plan, slow), Shown("quick", plan, quick)], machine())


def test_replays_beside_each_other() -> None:
    """Each replay has its rows, in which ops have the colour of their kind; the memory of the
    device has a curve for each under the budget.
    """
    figure = in_two_ways(0)
    rows, hbm = figure.axes
    names = ["slow: compute", "slow: d2h", "slow: h2d", "slow: h2d 2", "quick: compute"]
    assert ticks(rows.yaxis) == [(-y, name) for y, name in enumerate(names)]
    assert (rows.get_xlim(), rows.get_ylim()) == ((0, 310), near((-4.6, 0.6)))
    kinds = ["#3f5f8a", "#e6853d", "#7ba7d0", "#8a5fa8", "#b5bfca"]
    drawn = [
        (to_hex(bars.get_facecolor()[0]), round(y + 0.38), x, width)
        for bars in rows.collections
        for x, y, width, _ in boxes(bars)
    ]
    assert [bar for bar in drawn if bar[0] in kinds] == [
        *zip(kinds, [0] * 5, (0, 60, 130, 200, 270), [40] * 5, strict=True),
        *zip(kinds, [-4] * 5, (0, 40, 80, 120, 160), [40] * 5, strict=True),
    ]
    assert [bar[1:] for bar in drawn if bar[0] not in kinds] == [
        *((0, 40, 20), (0, 100, 30), (0, 170, 30), (0, 240, 30)),  # waits
        *((-1, 150, 110), (-2, 10, 60), (-3, 20, 40), (-3, 60, 68)),  # transfers
    ]
    assert named(rows) == [
        *("matrix products", "attention", "optimizer", "communication", "other ops"),
        *(f"waits: {cause}" for cause in ("dependency", "transfer", "capacity", "runtime")),
        "transfer",
    ]
    slow, quick, budget, _ = hbm.get_lines()
    assert (max(slow.get_ydata()), slow.get_xdata()[-1]) == (78, 310)
    assert (list(quick.get_xdata()), list(quick.get_ydata())) == ([0, 200], [40, 40])
    assert list(budget.get_ydata()) == [84, 84]
    assert (hbm.get_ylim(), hbm.get_ylabel()) == (near((0, 1.08 * 84)), "MiB")
    assert named(hbm) == [
        "slow: 310 us, peak 78.0 MiB",
        "quick: 200 us, peak 40.0 MiB",
        "budget 84.0 MiB",
        "ddr throughout: 8.00 MiB, 8.00 MiB",
    ]
    assert tuple(figure.get_size_inches()) == near((11, 1.1 + 0.4 * 5 + 2.2))
    assert facts(figure.texts[0].get_text(), "toy") == "toy, 84.0 MiB"


def test_a_tier_below_that_changes_has_its_own_curves() -> None:
    _, hbm, ddr = in_two_ways(50 * US).axes
    assert named(hbm)[-1] == "budget 84.0 MiB"
    slow, quick = ddr.get_lines()[:2]
    assert (list(slow.get_xdata()), list(slow.get_ydata())) == ([0, 50, 310], [0, 8, 8])
    assert (list(quick.get_xdata()), list(quick.get_ydata())) == ([0, 200], [8, 8])
    assert ddr.get_title("left") == "Memory: ddr"


def test_what_each_op_needs_with_everything_resident() -> None:
    """Ops that need 8 and 20 MiB: a step for each, from op 0 to op 2, under the budget."""
    b = GraphBuilder("two ops")
    b.tensor("x", 8 * MIB, "parameter")
    b.op("f", "matmul", inputs=["x"], duration_ns=10)
    b.op("g", "matmul", inputs=["x"], duration_ns=10, workspace_bytes=12 * MIB)
    (axes,) = resident_figure(b.build(), "hbm", 15 * MIB).axes
    (steps,) = axes.patches
    assert [list(x) for x in steps.get_data()[:2]] == [[8, 20], [0, 1, 2]]
    assert (axes.get_xlim(), axes.get_ylim()[0], axes.get_ylabel()) == ((0, 2), 0, "MiB")
    assert list(axes.get_lines()[0].get_ydata()) == [15, 15]
    assert facts(" ".join(named(axes))) == "20.0 MiB, 15.0 MiB"


def test_the_curve_of_a_field() -> None:
    """Times of 4 and 2 ms with a limit of 5 ms, and a value that does not fit between them."""
    times = [4_000_000, None, 2_000_000]
    (axes,) = curve_figure("batch", [8, 16, 24], times, "a sweep", [5_000_000] * 3).axes
    made, limit = axes.get_lines()
    assert (list(made.get_xdata()), list(made.get_ydata())) == ([0, 2], [4, 2])
    assert (list(limit.get_xdata()), list(limit.get_ydata())) == ([0, 1, 2], [5, 5, 5])
    (misfit,) = axes.patches
    assert (misfit.get_x(), misfit.get_width()) == near((0.6, 0.8))
    assert ticks(axes.xaxis) == [(0, "8"), (1, "16"), (2, "24")]
    assert (axes.get_ylabel(), axes.get_ylim()) == ("makespan, ms", near((0, 1.08 * 5)))
    assert named(axes) == ["makespan", "limit", "no result"]
    (empty,) = curve_figure("batch", [8], [None], "a sweep").axes
    assert empty.get_ylim() == near((0, 1.08))


def test_the_styles_of_recordings() -> None:
    zero, points = start_errors(axes_of(), [0, 2_000], [0, 1_999]).get_lines()
    assert (to_hex(zero.get_color()), zero.get_linewidth()) == ("#999999", 0.8)
    assert (points.get_marker(), str(points.get_linestyle()), to_hex(points.get_color())) == (
        ".",
        "None",
        "#000000",
    )
    assert (points.get_markersize(), points.get_rasterized()) == (6, True)
    many = start_errors(axes_of(), [0] * 201, [0] * 201)
    assert many.get_lines()[1].get_markersize() == 2
    held = np.array([1 << 30], np.int64)
    curves = recorded_memory(axes_of(), held, dict.fromkeys("abcd", held))
    assert [x.get_gapcolor() for x in curves.get_lines()] == [None] * 4
    assert [x._unscaled_dash_pattern[1] for x in curves.get_lines()] == [None, None, (4, 2), (1, 1)]  # type: ignore[attr-defined]
    legend = curves.get_legend()
    assert legend is not None
    assert legend.get_bbox_to_anchor().transformed(curves.transAxes.inverted()).x0 > 1
    small = recorded_memory(axes_of(), held, {"a": np.array([3 << 10], np.int64)})
    assert (small.get_ylabel(), list(small.get_lines()[0].get_ydata())) == ("KiB", [3])


@pytest.mark.parametrize(
    ("span", "unit"),
    [
        (0, (1, "ns")),
        (1_999, (1, "ns")),
        (2_000, (10**3, "us")),
        (1_999_999, (10**3, "us")),
        (2 * 10**6, (10**6, "ms")),
        (2 * 10**9, (10**9, "s")),
    ],
)
def test_an_axis_of_time_has_at_least_two_of_its_unit(span: int, unit: tuple[int, str]) -> None:
    assert figures.time_unit(span) == unit


@pytest.mark.parametrize(
    ("most", "unit"),
    [
        (2047, (1, "B")),
        (2048, (1024, "KiB")),
        (2**21 - 1, (1024, "KiB")),
        (2**21, (2**20, "MiB")),
        (2**61, (2**60, "EiB")),
        (2**80, (2**60, "EiB")),
    ],
)
def test_an_axis_of_sizes_has_at_least_two_of_its_unit(most: int, unit: tuple[int, str]) -> None:
    assert figures.size_unit(most) == unit


def test_a_picture_as_a_file() -> None:
    figure, axes = figures.blank([1, 2], 3)
    assert (tuple(figure.get_size_inches()), len(axes)) == ((3, 3), 2)
    assert [float(x) for x in axes[0].get_gridspec().get_height_ratios()] == [1, 2]  # type: ignore[union-attr]
    assert figure.get_layout_engine().__class__.__name__ == "ConstrainedLayoutEngine"
    assert tuple(figures.blank([2])[0].get_size_inches()) == (11, 2)
    png = figures.image(figure)
    assert [int.from_bytes(png[k : k + 4], "big") for k in (16, 20)] == [
        390,
        390,
    ]  # the header's width and height: 130 points an inch
    assert b"Software" not in png
    assert [figures.image_kind(Path(name)) for name in ("a.PNG", "b.svg", "c.pdf")] == [
        "png",
        "svg",
        "pdf",
    ]
    with pytest.raises(InputError) as caught:
        figures.image_kind(Path("a.b/c.gif"))
    assert str(caught.value) == "a.b/c.gif: expected a picture whose name ends in .png, .svg, .pdf"
    with figures.style():
        set_ = {
            name: matplotlib.rcParams[name]
            for name in ("font.size", "hatch.linewidth", "axes.spines.right", "legend.frameon")
        }
    assert set_ == {
        "font.size": 9,
        "hatch.linewidth": 0.5,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    _, (plain,) = figures.blank([2])
    figures.legend_beside(plain)
    assert plain.get_legend() is None


def test_fillings_have_black_hatches_and_no_edge() -> None:
    styles = [
        *figures.KIND_STYLES.values(),
        *figures.CAUSE_STYLES.values(),
        figures.OP_STYLE,
    ]
    assert {(style["edgecolor"], style["linewidth"]) for style in styles} == {("black", 0.0)}
    assert len({(style["facecolor"], style["hatch"]) for style in styles}) == len(styles) == 15
    assert figures.LINES[5]["linestyle"] == (0, (5, 1, 1, 1, 1, 1))
