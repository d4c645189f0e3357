"""``hosim.serve_sweep``, ``hosim.serve_fit`` and ``hosim.serve_frontier``: run :func:`hosim.serve`
many times with some fields changed, and find the value of a larger cache or more devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hosim.api import Machine, Vary, in_cell
from hosim.base.files import unknown_name
from hosim.base.groups import by_point
from hosim.base.nearest_rank import nearest_rank
from hosim.errors import HosimError, InputError
from hosim.io.options import OPTIONS, check_together, file_of, whole
from hosim.limits import within
from hosim.plain_text import named
from hosim.serving import Served, beyond, latency_limits, report, statistic_limits
from hosim.serving.api.serving_points import (
    COLUMNS,
    ENDS,
    NUMBERS,
    WHOLE,
    ServingTask,
    asked_question,
    check_serving_fields,
    tasks_of,
)
from hosim.study.asked import Value, parse_axis, read_vary
from hosim.study.rows_of_answers import Row, frame, records, varied_columns
from hosim.study.searches import (
    STEPS,
    Probed,
    Sought,
    ascending,
    bisected,
    ends_of,
    ends_shown,
    last_in_draws,
    pareto,
    shown,
    sought,
)
from hosim.units import human_time

if TYPE_CHECKING:
    from distributed import Client
    from pandas import DataFrame


def serve_sweep(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str],
    *,
    vary: Vary,
    limit: str | Mapping[str, Any] | None = None,
    seeds: int | None = None,
    output: str | os.PathLike[str] | None = None,
    jobs: int = -1,
    scheduler: str | Client | None = None,
    progress: Callable[[int, int, int], None] | None = None,
    **options: Any,
) -> DataFrame:
    """Serve requests once for each value of some fields, on every core.

    Parameters
    ----------
    model
        As :func:`hosim.serve` takes it.
    hardware
        As :func:`hosim.serve` takes it.
    requests
        A file of requests, or arrivals to draw such as ``"poisson:rate=10"``.
    vary
        The fields and their values, as in :func:`hosim.sweep`: ``requests.rate`` and other
        parameters of drawn requests (for a file only the rate), ``model.tensor`` and other
        parameters of the model, ``hardware``, and options of :func:`hosim.serve` such as ``blocks``
        and ``token_budget``.
    limit
        Limits of the goodput, such as ``"ttft=2s,tpot=100ms"``.
    seeds
        The number of seeds of drawn requests to serve at each point, from 0 on, one row each.
    output
        A CSV or Parquet file that gets each row as soon as it is known. The same call continues an
        interrupted sweep.
    jobs
        The number of processes; -1 is one per core.
    scheduler
        A Dask cluster to use instead: its address, or a client.
    progress
        A function that gets the number of rows done, of all rows, and of those that failed.
    **options
        Options of :func:`hosim.serve` for all points.

    Returns
    -------
    pandas.DataFrame
        One row per point: the value of each varied field, then the columns of
        :data:`hosim.serving.api.COLUMNS`, and without ``seeds`` the ends of 90 % intervals from few
        draws, such as ``ttft_p95_low_ns``. A point that cannot be served has its ``error``.

    Raises
    ------
    InputError
        If an argument is invalid, or a field does not exist.

    References
    ----------
    ``docs/serving.md`` describes the model.

    Examples
    --------
    >>> import hosim
    >>> table = hosim.serve_sweep(
    ...     "llama-3.1-8b",
    ...     "h100-80gb-sxm",
    ...     "poisson:rate=1:count=3:output=2",
    ...     vary={"requests.rate": [1, 1000]},
    ...     jobs=1,
    ... )
    >>> table["ttft_p95_ns"].is_monotonic_increasing
    True
    """
    from hosim.study import swept, under_way
    from hosim.study.rows_of_answers import unique
    from hosim.study.runs import cluster, pool

    runner = pool(whole(jobs, "jobs", -1)) if scheduler is None else cluster(scheduler)
    target = None if output is None else file_of(output, "output")
    points = read_vary(vary)
    if seeds is not None:
        count = whole(seeds, "seeds", 1)
        within("grid_points", count * len(points), source="seeds")
        points = [{**point, "requests.seed": seed} for point in points for seed in range(count)]
    asked = asked_question(
        model, hardware, requests, options, {} if limit is None else latency_limits(limit)
    )
    check_serving_fields(asked, dict.fromkeys(field for point in points for field in point))
    # the spread over seeds replaces intervals, which would take 20 runs per seed
    drawn = seeds is None
    tasks = tasks_of(asked, points, drawn)
    _, keys = unique(points, [task.key for task in tasks])
    first = {task.key: task for task in reversed(tasks)}
    varying = varied_columns(points)
    columns = [
        "point",
        *varying.values(),
        *(column for column in COLUMNS[:-1] if column not in varying.values()),
        *(ENDS if drawn else ()),
        *COLUMNS[-1:],
    ]
    with in_cell() as tell:

        def told(done: int, total: int, failed: int) -> None:
            tell(under_way(done, total, failed))
            if progress is not None:
                progress(done, total, failed)

        found = swept(
            [first[key] for key in keys], columns, WHOLE, NUMBERS, varying, target, runner, told
        )
    if all(row["feasible"] is False for row in found.rows):
        raise InputError(
            f"every point failed; the first one with: {found.rows[0]['error']}",
            source="serve_sweep",
        )
    return frame(found.rows, found.columns, asked.notes(points[0]))


@dataclass(frozen=True, slots=True)
class ServingProbe(Probed):
    """One value tried, with its row of a sweep."""

    row: Row


@dataclass(frozen=True)
class ServingFit(Sought[ServingProbe]):
    """The answer and the evidence.

    ``interval`` has the ends between which the answer lies in 9 of 10 draws of what is uncertain,
    ``None`` for no value; it is ``None`` itself where nothing is uncertain.
    """

    limits_ns: Mapping[str, int]
    notes: tuple[str, ...] = ()
    interval: tuple[Value, Value] | None = None

    @property
    def rows(self) -> list[dict[str, Value]]:
        """A row for each value tried: the value, ``within``, ``why``, and the figures of a
        sweep.
        """
        name = " + ".join(self.axis.fields)
        return [
            {
                name: one.value,
                "within": one.within,
                "why": one.why,
                **{c: one.row[c] for c in COLUMNS},
            }
            for one in self.probes
        ]

    @property
    def frame(self) -> DataFrame:
        """The rows as a frame."""
        return frame(self.rows, list(self.rows[0]), self.notes).astype({"within": bool})

    def _repr_html_(self) -> str:
        from hosim.report import html

        return html(
            report.serving_fit(self.rows, list(self.limits_ns), str(self), self.answer is not None)
        )

    def __str__(self) -> str:
        name, limits = " + ".join(self.axis.fields), _limits(self.limits_ns)
        ends = ends_shown(self.interval, self.axis.values)
        if self.answer is None:
            nearest = self.probes[0 if self.wanted == "largest" else -1]
            return "; ".join(
                [
                    f"no {name} in the range has {limits}{ends}; {shown(nearest.value)}: "
                    f"{nearest.why}",
                    *self.contradictions,
                ]
            )
        ending = (
            "it is the last value of the range"
            if self.beyond is None
            else f"{shown(self.beyond.value)}: {self.beyond.why}"
        )
        return "; ".join(
            [
                f"the {self.wanted} {name} with {limits} is {shown(self.answer.value)}{ends}; "
                f"{ending}",
                *self.contradictions,
            ]
        )

    __repr__ = __str__


def serve_fit(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str],
    *,
    largest: str | None = None,
    smallest: str | None = None,
    within: str | Mapping[str, Any],
    **options: Any,
) -> ServingFit:
    """Find the largest or smallest value of a field at which latencies keep their limits.

    Parameters
    ----------
    model
        As :func:`hosim.serve` takes it.
    hardware
        As :func:`hosim.serve` takes it.
    requests
        A file of requests, or arrivals to draw such as ``"poisson:rate=10"``.
    largest
        A field of :func:`hosim.serve_sweep` and its range, to find the largest value:
        ``requests.rate=1..50``.
    smallest
        A field and its range, to find the smallest value: ``blocks=1000..20000:20``.
    within
        Limits of statistics, such as ``"ttft.p95=2s,tpot.mean=50ms"``.
    **options
        Options of :func:`hosim.serve`.

    Returns
    -------
    ServingFit
        ``value`` is the answer (``None`` if no value keeps the limits), ``frame`` has one row per
        value tried.

    Raises
    ------
    InputError
        If an argument is invalid, or not exactly one of ``largest`` and ``smallest`` is given.

    References
    ----------
    :mod:`hosim.study.searches.bisection` is the search. If requests arrive faster than they are
    served, latencies grow with their number: use the number for which the answer must hold.

    Examples
    --------
    >>> import hosim
    >>> found = hosim.serve_fit(
    ...     "llama-3.1-8b",
    ...     "h100-80gb-sxm",
    ...     "poisson:rate=1:count=20:output=2",
    ...     largest="requests.rate=1..1000:4",
    ...     within="ttft.p95=100ms",
    ... )
    >>> found.value
    1
    """
    given = {"largest": largest, "smallest": smallest}
    ends = {name: OPTIONS[name].read(value) for name, value in given.items()}
    check_together(tuple([OPTIONS[name] for name in ends]), ends, "serve_fit")
    wanted, text = sought(**ends)
    axis = parse_axis(text, STEPS)
    limits = statistic_limits(within)
    asked = asked_question(model, hardware, requests, options, {})
    check_serving_fields(asked, axis.fields)
    axis = ascending(axis)
    tasks = tasks_of(asked, [dict.fromkeys(axis.fields, value) for value in axis.values])
    with in_cell() as tell:

        def probe(i: int) -> ServingProbe:
            tell(f"{' + '.join(axis.fields)} = {axis.values[i]}")
            return _probe(tasks[i], axis.values[i], limits)

        order = range(len(tasks))[:: 1 if wanted == "largest" else -1]
        found = bisected(order, probe)
        tell("in draws of what is uncertain")
        start = 0 if found.answer is None else order.index(found.answer)
        lasts = _in_draws([tasks[i] for i in order], limits, start)
    if all(probe.row["error"] for probe in found.probes.values()):
        raise InputError(
            "every value failed; the first one with: "
            f"{next(iter(found.probes.values())).row['error']}",
            source="serve_fit",
        )
    answer, beyond = (
        None if place is None else found.probes[place] for place in (found.answer, found.beyond)
    )
    return ServingFit(
        wanted,
        axis,
        tuple(found.probes.values()),
        answer,
        beyond,
        found.contradictions,
        limits,
        tuple(map(str, asked.notes(dict.fromkeys(axis.fields, axis.values[0])))),
        None if lasts is None else ends_of(order, axis.values, lasts),
    )


def _in_draws(
    tasks: Sequence[ServingTask], limits: Mapping[str, int], start: int
) -> tuple[int, int] | None:
    """Return the ends of the 90 % interval of the last point that keeps the limits; ``None`` if
    nothing is drawn. Each point is served once per draw.
    """

    @cache
    def served(place: int) -> Served | None:
        try:
            return tasks[place].question.served(tasks[place].settings)
        except HosimError:
            return None

    @cache
    def keeps(draw: int, place: int) -> bool:
        found = served(place)
        again = None if found is None or found.again is None else found.again(draw)
        return again is not None and not beyond(again.summary(), limits)

    first = served(start)
    if first is None or first.again is None:
        return None
    return last_in_draws(len(tasks), keeps, start)


def _probe(task: ServingTask, value: Value, limits: Mapping[str, int]) -> ServingProbe:
    row = task.solved()
    if row["error"]:
        return ServingProbe(value, False, str(row["error"]), row)
    times = {name: row[f"{name.replace('.', '_')}_ns"] for name in limits}
    beyond = [
        f"{name} is {human_time(took)}"
        for name, took in times.items()
        if isinstance(took, int) and took > limits[name]
    ]
    return ServingProbe(value, not beyond, ", ".join(beyond), row)


def _limits(limits_ns: Mapping[str, int]) -> str:
    return " and ".join(f"{name} within {human_time(limit)}" for name, limit in limits_ns.items())


_SHARES = (5, 50, 95)
"""The percentiles (nearest rank); for fewer than 20 runs the minimum, median and maximum."""


def seed_percentiles(
    rows: Sequence[Row], varied: Sequence[str], figures: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each point and figure: the varied columns, ``figure``, ``runs``, ``failed``,
    and ``p5``, ``p50`` and ``p95`` of the runs that did not fail.

    A figure that no run of a point has is omitted.
    """
    found = []
    for point, group in by_point(rows, varied).items():
        served = [row for row in group if row["feasible"]]
        for figure in figures:
            values = [row[figure] for row in served if row[figure] is not None]
            if values:
                told = {f"p{share}": nearest_rank(values, share) for share in _SHARES}
                counts = {"figure": figure, "runs": len(group), "failed": len(group) - len(served)}
                found.append({**dict(zip(varied, point, strict=True)), **counts, **told})
    return found


# -- the frontier ----------------------------------------------------------------------------------


PARETO = "pareto"
RATES = {"throughput": "output_tokens_per_s", "goodput": "goodput_per_s"}
COSTS = {"cache": "cache_bytes", "devices": "devices"}


def serve_frontier(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str],
    *,
    vary: Vary,
    of: str = "throughput",
    against: str = "cache",
    limit: str | Mapping[str, Any] | None = None,
    **options: Any,
) -> DataFrame:
    """Serve requests for each value of some fields, and mark the points that no other one beats.

    Parameters
    ----------
    model
        As :func:`hosim.serve` takes it.
    hardware
        As :func:`hosim.serve` takes it.
    requests
        A file of requests, or arrivals to draw such as ``"poisson:rate=10"``.
    vary
        The fields and their values, as in :func:`hosim.serve_sweep`: ``blocks``, ``kv``,
        ``model.tensor``, ``instances``.
    of
        The gain: ``"throughput"`` (output tokens per second), or ``"goodput"`` (requests within the
        limits per second).
    against
        The cost: ``"cache"`` (cache bytes in all tiers of all engines together), or ``"devices"``.
    limit
        Limits of the goodput, such as ``"ttft=2s,tpot=100ms"``.
    **options
        The other options of :func:`hosim.serve_sweep`: ``seeds`` (the figures are then medians),
        ``output`` (an interrupted study continues from it), ``jobs``, ``scheduler``, and options of
        :func:`hosim.serve`.

    Returns
    -------
    pandas.DataFrame
        One row per point by ascending cost: ``pareto``, the varied fields, and the columns of
        :data:`hosim.serving.api.COLUMNS`.

    Raises
    ------
    InputError
        If an argument is invalid, or a field does not exist.

    References
    ----------
    ``docs/serving.md`` describes the model.

    Examples
    --------
    >>> import hosim
    >>> model = {"model": "llama-3.1-8b", "layers": 2}
    >>> table = hosim.serve_frontier(
    ...     model,
    ...     "h100-80gb-sxm",
    ...     "poisson:rate=9000:count=9:output=4",
    ...     vary={"blocks": [40, 80, 9000]},
    ...     jobs=1,
    ... )
    >>> list(table["pareto"]), table["cache_bytes"].is_monotonic_increasing
    ([True, True, True], True)
    """
    for name, given, known in (("of", of, RATES), ("against", against, COSTS)):
        if not isinstance(given, str) or given not in known:
            raise InputError(unknown_name("figure", named(given), known), source=name)
    if of == "goodput" and limit is None:
        raise InputError("the goodput needs limits: give limit, such as 'ttft=2s'", source="of")
    frame = serve_sweep(model, hardware, requests, vary=vary, limit=limit, **options)
    rows = records(frame)
    seeds = "requests.seed" if options.get("seeds") is not None else None
    columns = list(varied_columns(read_vary(vary)).values())
    points = [_median(group) for group in by_point(rows, columns).values()] if seeds else rows
    on = pareto([(row[COSTS[against]], row[RATES[of]]) for row in points])
    table = frame.iloc[:0].drop(columns=["point", *([seeds] if seeds else [])])
    from pandas import DataFrame

    found = DataFrame(
        [
            {PARETO: held, **{c: row[c] for c in table.columns}}
            for held, row in zip(on, points, strict=True)
        ]
    )
    found.attrs["notes"] = frame.attrs["notes"]
    return found.sort_values(
        [COSTS[against], RATES[of]], kind="stable", na_position="last", ignore_index=True
    )


def _median(group: list[dict[str, Any]] | Any) -> dict[str, Any]:
    """Return the median of each figure over the served seeds of one point; texts are those of the
    first seed.
    """
    served = [row for row in group if row["feasible"]] or list(group)
    found = dict(served[0])
    for name, value in found.items():
        values = [row[name] for row in served if row[name] is not None]
        if isinstance(value, int | float) and not isinstance(value, bool) and values:
            found[name] = nearest_rank(values, 50)
    return found
