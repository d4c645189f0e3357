"""Draw replays, comparisons, frontiers, fits, sweeps and varied times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hosim.api.one_plan import replay
from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.io.options import file_of
from hosim.plain_text import counted
from hosim.report import drawn
from hosim.report.drawn import studies
from hosim.result import Result
from hosim.study.rows_of_answers import VARIED

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from hosim.study.searches import Fit, Frontier


def plot(
    result: Result | Plan | DataFrame | Fit | Frontier, path: str | os.PathLike[str] | None = None
) -> Figure:
    """Draw a replay, a comparison of policies, a frontier, a fit, a sweep, or varied times.

    Parameters
    ----------
    result
        One of these. A result with its timeline (``hosim.replay(..., record=True)``): streams, the
        memory of each tier and the channels, over time. A plan of :func:`hosim.plan`, which is
        replayed on the machine and with the budget that it was made for. The frame of
        :func:`hosim.compare`: makespan against peak memory, one marker per policy. The answer of
        :func:`hosim.frontier`: the curve. The answer of :func:`hosim.fit`: the makespan at each
        value tried. The frame of :func:`hosim.sweep`: the makespan over one field, or over two as a
        heat map. The frame of :func:`hosim.robustness`: the spread of each policy's makespan.
    path
        The file to save the picture in: ``.png``, ``.svg`` or ``.pdf``.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, which a notebook shows.

    Raises
    ------
    InputError
        If the result has no timeline, the plan has no machine, the frame comes from none of these
        functions, more than two fields of a sweep (or none) have several values, or the path has
        another ending.

    References
    ----------
    :mod:`hosim.report` draws the same figures for ``--plot``.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> figure = hosim.plot(hosim.plan(b.build(), "toy", "layerwise"))
    >>> [axes.get_title("left") for axes in figure.axes][:3]
    ['Streams and channels', 'Memory: hbm', 'Memory: ddr']
    """
    from hosim.base.files import write_bytes

    target = None if path is None else file_of(path, "path")
    kind = None if target is None else drawn.image_kind(target)
    figure = figure_of(result)
    if target is not None and kind is not None:
        write_bytes(target, drawn.image(figure, kind))
    return figure


def figure_of(shown: Result | Plan | DataFrame | Fit | Frontier) -> Figure:
    """Return the figure of an answer. Raises :class:`InputError` as :func:`plot` does."""
    from hosim.study.searches import Fit, Frontier

    if isinstance(shown, Plan):
        return _replay_figure(replay(shown, record=True))
    if isinstance(shown, Result):
        return _replay_figure(shown)
    if isinstance(shown, Frontier):
        return _frontier_figure(shown)
    if isinstance(shown, Fit):
        return _fit_figure(shown)
    if "run" in getattr(shown, "columns", ()):
        return _robustness_figure(shown)
    return (
        _sweep_figure(shown) if VARIED in getattr(shown, "attrs", {}) else _comparison_figure(shown)
    )


def _sweep_figure(table: DataFrame) -> Figure:
    columns = [column for column in table.attrs[VARIED].values() if column in table.columns]
    return studies.sweep_figure(table, several_values(table, columns), "Makespan")


def several_values(table: DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the varied columns of a sweep that have several values. Raises :class:`InputError`
    unless there are one or two.
    """
    several = [column for column in columns if table[column].nunique() > 1]
    if len(several) not in (1, 2):
        raise InputError(
            "expected the rows of a sweep in which one or two fields have several values, got "
            f"{counted(len(several), 'such field')}; of more, choose the rows of one value of the "
            "others, as in rows[rows.budget == '75%']",
            source="plot",
        )
    return several


def _fit_figure(found: Fit) -> Figure:
    results = [probe.result for probe in found.probes]
    times = [None if r is None or not r.feasible else r.makespan_ns for r in results]
    limits = [
        None
        if r is None or found.slowdown is None or not r.ideal_ns
        else r.ideal_ns * found.slowdown
        for r in results
    ]
    asked = found.question
    return studies.curve_figure(
        " + ".join(found.axis.fields),
        [probe.value for probe in found.probes],
        times,
        f"{asked.graph.name} on {asked.hardware.name} by {asked.choice.label}: {found.wanted} "
        f"{'none' if found.value is None else found.value}",
        limits,
    )


def _robustness_figure(table: DataFrame) -> Figure:
    from pandas import isna

    from hosim.study import percentiles

    rows = percentiles(table)
    makespans = rows[rows["figure"] == "makespan_ns"].astype(object)
    return studies.spread_figure(
        {
            str(row["policy"]): [
                None if isna(row[key]) else int(row[key]) for key in ("nominal", "p50", "p95")
            ]
            for row in makespans.to_dict("records")
        },
        "Makespan with varied times",
    )


def _frontier_figure(found: Frontier) -> Figure:
    tier, asked = found.question.hardware.device_tier, found.question
    return studies.frontier_figure(
        {
            asked.choice.label: [
                (result.peak_bytes[tier], result.makespan_ns)
                for result in found.pareto
                if result.makespan_ns is not None
            ]
        },
        f"{asked.graph.name} on {asked.hardware.name}: makespan by peak memory of {tier}",
    )


def _replay_figure(result: Result) -> Figure:
    if result.timeline is None or result.replayed is None:
        raise InputError(
            "the result has no timeline: replay the plan with hosim.replay(plan, hardware, "
            "record=True)",
            source="plot",
        )
    replayed, profile = result.replayed
    return drawn.replay_figure(replayed.graph, profile, result)


def _comparison_figure(table: DataFrame) -> Figure:
    from hosim.study.rows_of_answers import results_of

    return studies.comparison_figure(*results_of(table))
