"""Goodput: how many requests are answered within limits of their latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.base.files import unknown_name
from hosim.errors import InputError, UnitError
from hosim.plain_text import shown
from hosim.units import human_time, parse_time

if TYPE_CHECKING:
    from pandas import DataFrame

SHARES = (50, 90, 95, 99)
"""The percentiles of every latency."""

LIMITED = ("ttft", "tpot", "latency")
"""What a limit of each request can bound: the first token, the mean of each token after it, and the
last token.
"""


def latency_limits(asked: str | Mapping[str, Any]) -> dict[str, int]:
    """Nanoseconds of limits such as ``ttft=2s,tpot=100ms``; a mapping may give them as numbers.
    Raises :class:`InputError`.

    >>> latency_limits("ttft=2s,tpot=100ms")
    {'ttft': 2000000000, 'tpot': 100000000}
    """
    return _read(asked, LIMITED, "limit", "ttft=2s,tpot=100ms")


def statistic_limits(asked: str | Mapping[str, Any]) -> dict[str, int]:
    """Nanoseconds of limits of statistics, such as ``ttft.p95=2s,tpot.mean=50ms``. Raises
    :class:`InputError`.

    >>> statistic_limits("ttft.p95=2s")
    {'ttft.p95': 2000000000}
    """
    statistics = ("mean", *(f"p{share}" for share in SHARES))
    known = [
        f"{name}.{one}" for name in ("ttft", "tpot", "inter_token", "latency") for one in statistics
    ]
    return _read(asked, known, "within", "ttft.p95=2s,tpot.mean=50ms")


def beyond(summary: Mapping[str, Any], limits_ns: Mapping[str, int]) -> list[str]:
    """The statistics of a summary (:meth:`hosim.serving.served.Served.summary`) that are beyond
    their limits, as people say it.

    >>> beyond({"ttft_ns": {"p95": 3e9}}, {"ttft.p95": 2_000_000_000})
    ['ttft.p95 is 3.00 s, more than 2.00 s']
    """
    found = []
    for name, limit in limits_ns.items():
        latency, _, statistic = name.partition(".")
        value = summary[f"{latency}_ns"][statistic]
        if value is not None and value > limit:
            found.append(f"{name} is {human_time(round(value))}, more than {human_time(limit)}")
    return found


def _read(
    asked: str | Mapping[str, Any], known: Sequence[str], source: str, example: str
) -> dict[str, int]:
    if not isinstance(asked, str | Mapping):
        raise InputError(
            f"expected limits such as {example}, got {shown(asked, 60)}", source=source
        )
    pairs = (
        list(asked.items())
        if isinstance(asked, Mapping)
        else [part.partition("=")[::2] for part in asked.split(",")]
    )
    limits: dict[str, int] = {}
    for name, value in ((str(name).strip(), value) for name, value in pairs):
        if name not in known:
            raise InputError(unknown_name("latency", name, known), source=source)
        if name in limits:
            raise InputError("is given twice; keep one", source=source, where=name)
        limits[name] = _nanoseconds(name, value, source)
    if not limits:
        raise InputError(f"expected limits such as {example}", source=source)
    return limits


def goodput(frame: DataFrame, span_ns: int, limits_ns: Mapping[str, int]) -> dict[str, Any]:
    """Return, of the requests of a frame (:meth:`hosim.serving.served.Served.frame`) those that
    keep every limit.

    Rates are those of these requests over ``span_ns``. A request with a single token has no time of
    each token after it, and keeps that limit.
    """
    within = (frame["arrival_ns"] == frame["arrival_ns"]).to_numpy()
    for name, limit in limits_ns.items():
        within = within & ~(frame[f"{name}_ns"].to_numpy(float) > limit)
    tokens = int(frame["output_tokens"].to_numpy()[within].sum())
    return {
        "limits_ns": dict(limits_ns),
        "requests": int(within.sum()),
        "share": int(within.sum()) / len(frame),
        "requests_per_s": int(within.sum()) / span_ns * 1e9,
        "output_tokens_per_s": tokens / span_ns * 1e9,
    }


def _nanoseconds(name: str, value: Any, source: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_time(value)
    except UnitError as error:
        raise InputError(error.message, source=source, where=name) from None
