"""Goodput: how many requests are answered within limits of their latencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hosim.errors import InputError, UnitError
from hosim.io.reading import unknown_name
from hosim.units import parse_time

if TYPE_CHECKING:
    from pandas import DataFrame

LIMITED = ("ttft", "tpot", "latency")
"""What a limit can bound: the first token, the mean of each token after it, and the last token."""


def latency_limits(asked: str | Mapping[str, Any]) -> dict[str, int]:
    """Nanoseconds of limits such as ``ttft=2s,tpot=100ms``; a mapping may give them as numbers. Raises :class:`InputError`.

    >>> latency_limits("ttft=2s,tpot=100ms")
    {'ttft': 2000000000, 'tpot': 100000000}
    """
    pairs = list(asked.items()) if isinstance(asked, Mapping) else [part.partition("=")[::2] for part in asked.split(",")]
    limits: dict[str, int] = {}
    for name, value in ((str(name).strip(), value) for name, value in pairs):
        if name not in LIMITED:
            raise InputError(unknown_name("latency", name, LIMITED), source="limit")
        if name in limits:
            raise InputError("is given twice; keep one", source="limit", where=name)
        limits[name] = _nanoseconds(name, value)
    if not limits:
        raise InputError("expected limits such as ttft=2s,tpot=100ms", source="limit")
    return limits


def goodput(frame: DataFrame, span_ns: int, limits_ns: Mapping[str, int]) -> dict[str, Any]:
    """Of the requests of a frame (:meth:`hosim.serving.served.Served.frame`) those that keep every limit.

    Rates are those of these requests over ``span_ns``. A request with a single token has no time of each token after it, and keeps that
    limit.
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


def _nanoseconds(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_time(value)
    except UnitError as error:
        raise InputError(error.message, source="limit", where=name) from None
