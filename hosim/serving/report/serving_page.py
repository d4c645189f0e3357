"""The report of ``hosim serve --html`` as one file: the tables of the terminal, a zoomable timeline
and the pictures.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from hosim.report import answer_parts, folded, heading, html_of, page, picture
from hosim.report.answers import Answer
from hosim.report.drawn import OP_STYLE
from hosim.report.timelines import Bar, BarStyle, Encoder, Row, element, thinned
from hosim.serving import Sample, Served
from hosim.serving.report.serving_figures import curves, serving_figure

# -- the timeline ----------------------------------------------------------------------------------


_POINTS = 2_000
_ITERATION = "iteration"
_STYLES = {_ITERATION: BarStyle(_ITERATION, OP_STYLE, "named")}


def serving_widget(served: Served) -> str:
    """A row of iterations for each engine, and one curve each over all engines."""
    samples = served.samples
    engines = sorted({sample.instance for sample in samples})
    rows = [_row(samples, engine, len(engines) > 1) for engine in engines]
    encoder = Encoder(_STYLES, rows)

    def said(bar: Bar) -> str:
        sample = samples[bar.number]
        return f"{sample.tokens:,} tokens, {sample.running:,} run, {sample.waiting:,} wait"

    end = max(sample.end_ns for sample in samples)
    groups: list[dict[str, Any]] = [
        {"title": "", "rows": [encoder.row(row, said) for row in rows], "blames": []}
    ]
    for name, unit, limit, at, values in _curves(served):
        times, (held,) = thinned(at, [values], end, _POINTS)
        curve = {
            "tier": name,
            "unit": unit,
            "limit": limit if limit <= 2 * int(held.max(initial=0)) else 0,
            "end": end,
            "times": times.tolist(),
            "bytes": held.tolist(),
        }
        groups.append({"title": "", "rows": [], "blames": [], "memory": curve})
    return element(
        encoder,
        groups,
        end,
        "A bar is an iteration. The dashed lines are the blocks that there are.",
        {},
    )


def _row(samples: Sequence[Sample], engine: int, several: bool) -> Row:
    bars = [
        Bar(sample.start_ns, sample.end_ns, _ITERATION, k)
        for k, sample in enumerate(samples)
        if sample.instance == engine
    ]
    return Row(f"engine {engine}" if several else "iterations", True, 0, tuple(bars))


def _curves(served: Served) -> Iterator[tuple[str, str, int, Any, Any]]:
    """Name, unit, room (0: without an end), instants and values of each curve."""
    at, (running, waiting, held) = curves(served.samples)
    yield "running", "sequences", 0, at, running
    yield "waiting", "sequences", 0, at, waiting
    blocks = served.room
    if served.kv is None:
        yield "cache", "blocks", blocks, at, held
        return
    device, *below = served.kv.tiers.items()
    yield device[0], "blocks", blocks, at, held
    starts = np.array([sample.start_ns for sample in served.samples], np.int64)
    for place, (name, figures) in enumerate(below):
        if figures.stores > 1:  # each engine knows its own store alone
            continue
        yield (
            name,
            "blocks",
            figures.blocks,
            starts,
            np.array([sample.below[place] for sample in served.samples], np.int64),
        )


# -- the page --------------------------------------------------------------------------------------


def serving_page(answer: Answer, served: Served, tables: RenderableType) -> str:
    """The page of a run: its answer, pictures, and ``tables``, what the terminal shows, folded."""
    parts = [
        *answer_parts(answer),
        picture(serving_figure(served), "Sequences, cache and latencies over time"),
        heading("Timeline"),
        serving_widget(served),
        folded("All figures", html_of(tables)),
    ]
    return page(f"Serving {served.about['model']} on {served.about['hardware']}", parts)
