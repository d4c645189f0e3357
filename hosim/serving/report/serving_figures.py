"""Pictures of requests that were served: who runs and waits, the blocks that are held, and
latencies by arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hosim.plain_text import counted, printable
from hosim.report.drawn import KIND_STYLES, LIMIT, LINES, blank, legend_beside, style, time_unit
from hosim.report.timelines import thinned
from hosim.units import human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hosim.serving import Sample, Served

_COLUMNS = 2000
_POINTS = 20_000

Array = npt.NDArray[np.int64]


def curves(samples: Sequence[Sample]) -> tuple[Array, list[Array]]:
    """The instants at which engines change, and from each on who runs, who waits and the blocks
    that are held, over all engines.

    Between two iterations that do not follow each other at once an engine is empty.
    """
    engines = [
        _of_one([sample for sample in samples if sample.instance == i])
        for i in sorted({sample.instance for sample in samples})
    ]
    if len(engines) == 1:
        return engines[0]
    at = np.unique(np.concatenate([own for own, _ in engines]))
    totals = [np.zeros(len(at), np.int64) for _ in range(3)]
    for own, values in engines:
        place = np.searchsorted(own, at, "right") - 1
        totals = [
            total + np.where(place >= 0, value[place], 0)
            for total, value in zip(totals, values, strict=True)
        ]
    return at, totals


def queue_growth(served: Served) -> tuple[float, float]:
    """Requests a second by which the queue grows in the second half of the arrivals, and requests a
    second that arrive; zeros where all arrive at once.
    """
    first, last = served.requests[0].arrival_ns, max(r.arrival_ns for r in served.requests)
    span = last - first
    if not span:
        return 0.0, 0.0
    at, (_, waiting, _) = curves(served.samples)
    ends = first + span // 2, last
    half, full = (int(waiting[max(0, int(np.searchsorted(at, t, "right")) - 1)]) for t in ends)
    second = 10**9
    return (full - half) * second / (span / 2), (len(served.requests) - 1) * second / span


def _of_one(samples: Sequence[Sample]) -> tuple[Array, list[Array]]:
    rows: list[tuple[int, int, int, int]] = []
    end = 0
    for sample in samples:
        if sample.start_ns > end:
            rows.append((end, 0, 0, 0))
        rows.append((sample.start_ns, sample.running, sample.waiting, sample.held_blocks))
        end = sample.end_ns
    rows.append((end, 0, 0, 0))
    at, *values = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return at, values


def sequences(axes: Axes, served: Served) -> None:
    """The sequences that run and those that wait, over time."""
    end = _end_ns(served)
    unit, name = time_unit(end)
    at, (running, waiting, _) = curves(served.samples)
    for label, curve, line in zip(("running", "waiting"), (running, waiting), LINES, strict=False):
        times, (values,) = thinned(at, [curve], end, _COLUMNS)
        axes.step(
            [*(times / unit), end / unit],
            [*values, values[-1]],
            where="post",
            linewidth=1.2,
            label=f"{label}: at most {int(values.max()):,}",
            **line,
        )
    axes.set_ylabel("sequences")
    axes.set_title("Sequences")
    _over_time(axes, end, unit, name)


def cache(axes: Axes, served: Served) -> None:
    """The blocks of the cache that are held, over time, and how many there are."""
    end = _end_ns(served)
    unit, name = time_unit(end)
    at, (_, _, held) = curves(served.samples)
    times, (values,) = thinned(at, [held], end, _COLUMNS)
    most, blocks = int(values.max()), served.room
    axes.fill_between(
        [*(times / unit), end / unit],
        0,
        [*values, values[-1]],
        step="post",
        label=f"held: at most {most:,}",
        **KIND_STYLES["kv_cache"],
    )
    if blocks <= 2 * most:
        axes.axhline(blocks, linewidth=1.4, label=f"capacity {blocks:,}", **LIMIT)
    else:
        axes.plot([], [], " ", label=f"(capacity {blocks:,})")
    axes.set_ylabel("blocks")
    axes.set_title("Cache")
    _over_time(axes, end, unit, name)


def latencies(axes: Axes, served: Served) -> None:
    """The time that each request waited for its first token and for its last one, by its
    arrival; of very many every so many.
    """
    frame = served.frame()
    frame = frame.iloc[:: -(-len(frame) // _POINTS)]
    end = _end_ns(served)
    unit, name = time_unit(end)
    own, own_name = time_unit(float(frame["latency_ns"].max()))
    for column, label, marker, colour in (
        ("latency_ns", "last token", "x", "#c2542d"),
        ("ttft_ns", "first token", ".", "black"),
    ):
        mean = human_time(round(frame[column].mean()))
        axes.plot(
            frame["arrival_ns"] / unit,
            frame[column] / own,
            marker,
            color=colour,
            markersize=4,
            linestyle="",
            label=f"{label}: mean {mean}",
        )
    axes.set_ylabel(f"after the arrival, {own_name}")
    axes.set_title("Latencies by arrival")
    _over_time(axes, end, unit, name)


def serving_figure(served: Served) -> Figure:
    """The picture of ``hosim serve --plot``: sequences, cache and latencies on one axis of time."""
    with style():
        figure, (first, second, third) = blank([2.4, 2.2, 2.8])
        sequences(first, served)
        cache(second, served)
        latencies(third, served)
        title = (
            f"{served.about['model']} on {served.about['hardware']}: "
            f"{counted(len(served.requests), 'request')}"
        )
        figure.suptitle(printable(title), x=0.01, ha="left", fontweight="bold")
    return figure


def _end_ns(served: Served) -> int:
    return max(sample.end_ns for sample in served.samples)


def _over_time(axes: Axes, end: int, unit: int, name: str) -> None:
    axes.set_xlim(0, max(end, 1) / unit)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"time, {name}")
    axes.grid(color="0.9")
    legend_beside(axes)
