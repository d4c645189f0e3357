"""What lies on the axes of each picture, in the axes' units: places, styles and texts, worked out from the figures that are drawn."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from timelines import MIB, US, everything, machine, many_ops

from hosim.report import figures, recorded_figures, replay_figures, study_figures
from hosim.report.change_figure import Curve, change_figure
from hosim.result import Result

ORANGE, RED = "#e08214", "#b2182b"


def axes_of(height: float = 3) -> Axes:
    figure, (axes,) = figures.blank([height])
    assert isinstance(figure, Figure)
    return axes


def near(values: Any) -> Any:
    return pytest.approx(values, abs=1e-9)


def boxes(drawn: Collection) -> list[tuple[float, float, float, float]]:
    """Left, bottom, width and height of each shape."""
    return [tuple(round(float(x), 6) for x in path.get_extents().bounds) for path in drawn.get_paths()]


def named(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def ticks(axis: Any) -> list[tuple[float, str]]:
    return [(float(at), label.get_text()) for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)]


def lines(axes: Axes) -> list[tuple[str, str, float, str]]:
    """Colour, dashes, width and label of each line."""
    return [(to_hex(x.get_color()), str(x.get_linestyle()), x.get_linewidth(), str(x.get_label())) for x in axes.get_lines()]


def test_a_recording_beside_its_replay() -> None:
    """Within 10 to 50 us: what begins before or ends after is cut, what lies outside is left out."""
    measured = {"7": [(0, 20_000), (30_000, 60_000), (50_000, 70_000)], "13": [(5_000, 10_000)]}
    simulated = {"7": [(12_000, 13_000)], "13": [(40_000, 44_000)]}
    axes = axes_of()
    assert recorded_figures.timeline(axes, measured, simulated, (10_000, 50_000)) is axes
    above, below, none, other = axes.collections
    assert boxes(above) == [(10, -0.4, 10, 0.38), (30, -0.4, 20, 0.38)]
    assert boxes(below) == [(12, -0.82, 1, 0.38)]
    assert boxes(none) == []
    assert boxes(other) == [(40, -1.82, 4, 0.38)]
    assert [(to_hex(c.get_facecolor()[0]), c.get_hatch()) for c in (above, below)] == [("#595959", None), (ORANGE, "////")]
    assert ticks(axes.yaxis) == [(-0.4, "7"), (-1.4, "13")]
    assert axes.get_xlim() == (10, 50)
    assert axes.get_xlabel() == "time, us (above: recorded, below: replayed)"


def test_errors_of_starts() -> None:
    axes = axes_of()
    assert recorded_figures.start_errors(axes, [2_000_000, 5_000_000], [-3_000, 1_500]) is axes
    zero, points = axes.get_lines()
    assert list(zero.get_ydata()) == [0, 0]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([2, 5], [-3, 1.5])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("recorded start, ms", "replayed less recorded start, us")
    empty = recorded_figures.start_errors(axes_of(), [], [])
    assert (empty.get_xlabel(), empty.get_ylabel()) == ("recorded start, ns", "replayed less recorded start, ns")


def test_curves_of_recorded_memory() -> None:
    axes = axes_of()
    held = np.array([1, 3, 2], np.int64) << 30
    curves = {"recorded": held, "none": None, "replayed": 2 * held, "reserved": 3 * held, "also reserved": 4 * held}
    assert recorded_figures.memory(axes, np.array([5, 7, 11], np.int64) * 1000, curves) is axes
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [[1, 3, 2], [2, 6, 4], [3, 9, 6], [4, 12, 8]]
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
    """Two parts of 4 us each before, and four parts of 1.5 us each after: on both grids, more is held from 1.5 to 4.5 us."""
    (axes,) = change_figure(Curve((5, 6), 8_000), Curve((3, 9, 8, 1), 6_000), "hbm").axes
    old, new = axes.patches
    assert [list(x) for x in old.get_data()[:2]] == [[5, 6], [0, 4, 8]]
    assert [list(x) for x in new.get_data()[:2]] == [[3, 9, 8, 1], [0, 1.5, 3, 4.5, 6]]
    assert [(to_hex(p.get_edgecolor()), p.get_linestyle(), p.get_linewidth()) for p in (old, new)] == [
        ("#737373", "--", 1.3),
        ("#c2542d", "-", 1.6),
    ]
    assert named(axes) == ["before: peak 6 B, makespan 8.00 us", "now: peak 9 B, makespan 6.00 us"]
    (more,) = axes.collections
    corners = {(round(float(x), 6), round(float(y), 6)) for x, y in more.get_paths()[0].vertices}
    # from 1.5 us 9 above 5, from 3 us 8 above 5, from 4 us 8 above 6, from 4.5 us nothing above 6; at the end both hold nothing
    assert {(1.5, 9), (1.5, 5), (3, 9), (3, 8), (4, 8), (4, 6), (4.5, 8), (4.5, 6), (0, 5), (8, 6)} <= corners
    assert {y for x, y in corners if 4.5 < x < 8} == {6}
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 8), near((0, 1.08 * 9)))
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left")) == ("time, us", "B", "Memory: hbm")


def results(*drawn: tuple[str, int | None, int]) -> list[Result]:
    _, one = everything()
    return [
        replace(one, policy=policy, makespan_ns=None if us is None else us * US, feasible=us is not None, peak_bytes={"hbm": mib * MIB})
        for policy, us, mib in drawn
    ]


def test_policies_as_markers() -> None:
    """``a``, ``c`` and ``d`` are near each other: each has 70 more of a point's area for every later one."""
    found = results(("a", 420, 20), ("b", 700, 82), ("c", 421, 20), ("none", None, 0), ("d", 420, 21))
    axes = axes_of()
    assert study_figures.policies(axes, found, "hbm") is axes
    assert [tuple(map(float, c.get_offsets()[0])) for c in axes.collections] == [(20, 420), (82, 700), (20, 421), (21, 420)]
    assert [float(c.get_sizes()[0]) for c in axes.collections] == [60 + 140, 60, 60 + 70, 60]
    assert {to_hex(c.get_facecolor()[0]) for c in axes.collections} == {"#ffffff"}
    assert [to_hex(c.get_edgecolor()[0]) for c in axes.collections] == ["#000000", "#c2542d", "#2f6fb0", "#3c8a3c"]
    bound, budget, none = axes.get_lines()
    assert list(bound.get_ydata()) == [200, 200]
    assert list(budget.get_xdata()) == [84, 84]
    assert len(none.get_xdata()) == 0
    assert lines(axes)[:2] == [("#000000", ":", 1.2, "lower bound 200 us"), (RED, "--", 1.2, "budget 84.0 MiB")]
    assert named(axes) == [
        "a: 420 us, 20.0 MiB",
        "b: 700 us, 82.0 MiB",
        "c: 421 us, 20.0 MiB",
        "d: 420 us, 21.0 MiB",
        "lower bound 200 us",
        "budget 84.0 MiB",
        "(none does not fit)",
    ]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("peak of hbm, MiB", "makespan, us", "linear")
    far = study_figures.policies(axes_of(), results(("a", 200, 41), ("b", 1001, 41)), "hbm")
    assert far.get_yscale() == "log"
    assert named(far) == ["a: 200 us, 41.0 MiB", "b: 1.00 ms, 41.0 MiB", "lower bound 200 us"]  # twice the peak is below the budget
    at_most = study_figures.policies(axes_of(), results(("a", 999, 42)), "hbm")
    assert (at_most.get_yscale(), named(at_most)[-1]) == ("linear", "budget 84.0 MiB")


def test_a_frontier_of_two_policies() -> None:
    axes = axes_of()
    study_figures.frontier(axes, {"a": [(40 * MIB, 3 * US), (10 * MIB, 7 * US)], "b": [(20 * MIB, 5 * US)]}, 2 * US)
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
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("peak memory, MiB", "makespan, us", "linear")


def test_a_heat_map() -> None:
    cells = [("x", 10**9, 1e6), ("x", 2 * 10**9, 4e6), ("y", 10**9, 2e6), ("y", 2 * 10**9, None)]
    axes = axes_of()
    frame = pd.DataFrame(cells[::-1], columns=["policy", "h2d_bytes_per_s", "makespan_ns"])
    study_figures.sweep_heat_map(axes, frame, "policy", "h2d_bytes_per_s", "makespan_ns")
    shown = {x.get_position(): (x.get_text(), x.get_color()) for x in axes.texts}
    # the names as they come: y, x; the middle of 1 to 4 ms is 2.5 ms
    assert shown == {(0.5, 0.5): ("2.00 ms", "black"), (1.5, 0.5): ("1.00 ms", "black"), (1.5, 1.5): ("4.00 ms", "white")}
    assert [boxes(c) for c in axes.collections[1:]] == [[(0, 1, 1, 1)]]
    assert ticks(axes.xaxis) == [(0.5, "y"), (1.5, "x")]
    assert ticks(axes.yaxis) == [(0.5, "1.00 GB/s"), (1.5, "2.00 GB/s")]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("right")) == ("policy", "h2d", "hatched: 1 without a value")
    bar = axes.figure.axes[1]
    assert bar.get_ylabel() == "makespan"
    numbers = pd.DataFrame([(k, 0, 0.5 * k) for k in range(25)], columns=["k", "layer", "share"])
    many = axes_of()
    study_figures.sweep_heat_map(many, numbers, "k", "layer", "share")
    assert ticks(many.xaxis) == [(k + 0.5, str(k)) for k in range(0, 25, 3)]
    assert [x.get_text() for x in many.texts] == [f"{0.5 * k:g}" for k in range(25)]
    assert many.get_title("right") == ""


def test_a_replay_in_which_everything_happens() -> None:
    graph, result = everything()
    streams = axes_of()
    assert replay_figures.timeline(streams, graph, result) is streams
    ops, *stalls = [boxes(c) for c in streams.collections[:5]]
    assert ops == [(start, -0.38, 40, 0.76) for start in (0, 60, 130, 200, 270)]
    assert stalls == [[(start, -0.38, width, 0.76)] for start, width in ((40, 20), (100, 30), (170, 30), (240, 30))]
    # two transfers of h2d overlap from 20 us on: the second has the second row
    assert sorted(box for c in streams.collections[5:] for box in boxes(c)) == [
        (10, -2.38, 60, 0.76),
        (20, -3.38, 40, 0.76),
        (60, -3.38, 68, 0.76),
        (150, -1.38, 110, 0.76),
    ]
    assert ticks(streams.yaxis) == [(0, "compute"), (-1, "d2h"), (-2, "h2d"), (-3, "h2d 2")]
    assert named(streams) == ["op runs", *(f"waits: {cause}" for cause in ("dependency", "transfer", "capacity", "runtime")), "transfer"]
    assert (streams.get_xlim(), streams.get_xlabel()) == ((0, 310), "time, us")
    assert streams.get_ylim() == near((-3.6, 0.6))
    assert streams.get_title() == "Streams and channels"


def test_more_bars_than_are_drawn_one_by_one() -> None:
    """A row of more than 3000 bars has the shares of 400 columns, one upon the other; together they fill the row."""
    graph, result = many_ops(3001)
    axes = replay_figures.timeline(axes_of(), graph, result)
    end = result.makespan_ns
    columns = [k * end / 400 / US for k in range(401)]
    ops = axes.collections[0]
    assert sorted({float(x) for x in ops.get_paths()[0].vertices[:, 0]}) == near(columns)
    assert min(bottom for c in axes.collections[:3] for _, bottom, _, _ in boxes(c)) == near(-0.38)
    assert max(bottom + height for c in axes.collections[:3] for _, bottom, _, height in boxes(c)) == near(0.38)
    assert ticks(axes.yaxis) == [(0, "compute"), (-1, "h2d")]


def test_the_memory_of_a_replay() -> None:
    graph, result = everything()
    hbm, ddr = (replay_figures.memory(axes_of(), graph, machine(), result, tier) for tier in ("hbm", "ddr"))
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
    kinds = ["parameter", "gradient", "optimizer state", "activation", "kv cache", "expert", "input", "output", "buffer", "workspace"]
    assert [c.get_label() for c in hbm.collections] == kinds
    assert [boxes(c) for c in hbm.collections] == [[(0, 0, 310, top)] for top in (8, 16, 24, 32, 40, 48, 56, 64, 72, 78)]
    assert lines(hbm)[:2] == [("#000000", "-", 0.7, total.get_label()), (RED, "--", 1.4, "budget 84.0 MiB")]
    assert named(hbm) == ["peak 78.0 MiB at 200 us", "budget 84.0 MiB", *kinds[::-1]]
    assert named(ddr) == ["peak 8.00 MiB at 50.0 us", "(capacity 1000 MiB)", "activation"]


def test_the_channels_of_a_replay() -> None:
    """``h2d`` is busy from 10 to 128 us and ``d2h`` from 150 to 260: 118 and 110 of 310, in steps of 3.1 us."""
    _, result = everything()
    busy, queue = axes_of(), axes_of()
    assert replay_figures.channel_utilization(busy, result) is busy
    assert replay_figures.channel_queue(queue, result) is queue
    shares = [[round(float(y), 2) for y in x.get_ydata()] for x in busy.get_lines()]
    assert shares[0] == [0] * 48 + [round(190 / 3.1, 2)] + [100] * 34 + [round(270 / 3.1, 2)] + [0] * 17
    assert shares[1] == [0] * 3 + [round(240 / 3.1, 2)] + [100] * 37 + [round(90 / 3.1, 2)] + [0] * 59
    assert [list(x.get_xdata()) for x in busy.get_lines()] == [near([3.1 * k for k in range(101)])] * 2
    # two copies of 8 MiB are issued to h2d at 15 us, and start at 20 and 60 us; the one of d2h waits from 100 to 150 us
    assert [(list(x.get_xdata()), list(x.get_ydata())) for x in queue.get_lines()] == [
        ([0, 100, 150, 310, 310], [0, 8, 0, 0, 0]),
        ([0, 15, 20, 60, 310, 310], [0, 16, 8, 0, 0, 0]),
    ]
    styles = [("#000000", "-", 1.3), ("#c2542d", "--", 1.3)]
    assert lines(busy) == [(*style, label) for style, label in zip(styles, ("d2h: 35 %", "h2d: 38 %"), strict=True)]
    assert lines(queue) == [
        (*style, label) for style, label in zip(styles, ("d2h: at most 8.00 MiB", "h2d: at most 16.0 MiB"), strict=True)
    ]
    assert (busy.get_ylabel(), queue.get_ylabel()) == ("busy, %", "waiting, MiB")
    assert (busy.get_ylim(), queue.get_ylim()) == ((0, 104), near((0, 1.08 * 16)))
    assert {axes.get_xlim() for axes in (busy, queue)} == {(0, 310)}
    assert (len(named(busy)), len(named(queue))) == (2, 2)
