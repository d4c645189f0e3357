"""``hosim.serve_frontier``: what a larger cache, or more devices, are worth in throughput."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hosim.api import Machine, Vary
from hosim.base.files import unknown_name
from hosim.base.groups import by_point
from hosim.base.nearest_rank import nearest_rank
from hosim.errors import InputError
from hosim.plain_text import named
from hosim.serving.api.serving_studies import serve_sweep
from hosim.study.asked import read_vary
from hosim.study.rows_of_answers import records, varied_columns
from hosim.study.searches import pareto

if TYPE_CHECKING:
    from pandas import DataFrame

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
    """Serve requests for each value of some fields, and say which points no other one beats.

    Parameters
    ----------
    model
        As :func:`hosim.serve` takes it.
    hardware
        As :func:`hosim.serve` takes it.
    requests
        A file of requests, or arrivals to draw such as ``"poisson:rate=10"``.
    vary
        Which fields take which values, as in :func:`hosim.serve_sweep`: ``blocks``, ``kv``,
        ``model.tensor``, ``instances``.
    of
        What is wanted: ``"throughput"`` (tokens of answers a second), or ``"goodput"`` (requests
        within the limits a second).
    against
        What it costs: ``"cache"`` (bytes of room in all tiers of all engines together), or
        ``"devices"``.
    limit
        Limits of the goodput, such as ``"ttft=2s,tpot=100ms"``.
    **options
        Everything else that :func:`hosim.serve_sweep` takes: ``seeds`` (the figures are then
        medians), ``output``, which is continued where it was interrupted, ``jobs``, ``scheduler``,
        and options of :func:`hosim.serve`.

    Returns
    -------
    pandas.DataFrame
        A row per point by ascending cost: ``pareto``, the varied fields, and the columns of
        :data:`hosim.serving.api.COLUMNS`.

    Raises
    ------
    InputError
        If an argument is not what it should be, or a field does not exist.

    References
    ----------
    ``docs/serving.md`` says what is modelled.

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
    """The medians of the figures of one point's seeds, of those that were served; texts are those
    of the first.
    """
    served = [row for row in group if row["feasible"]] or list(group)
    found = dict(served[0])
    for name, value in found.items():
        values = [row[name] for row in served if row[name] is not None]
        if isinstance(value, int | float) and not isinstance(value, bool) and values:
            found[name] = nearest_rank(values, 50)
    return found
