"""A real server's measurements of requests beside the simulation, and the host's overhead that
explains its first ones.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.base.files import decode, read_bytes
from hosim.errors import InputError
from hosim.plain_text import counted
from hosim.serving.requests import Request, RequestRows
from hosim.serving.served import Served, statistics
from hosim.units import human_time

_KEYS = ("queued_s", "first_token_s", "last_token_s", "output_tokens")
_LARGEST_NS = 64_000_000
KNOWN_OVERHEAD_NS = 2_500_000
"""The largest that a server's host was found to add to an iteration, beside recorded kernels
(``docs/serving.md``: 0.15 ms on an RTX 4090, 2.5 ms on an RTX PRO 6000)."""
_FIGURES = ("ttft_ns", "tpot_ns", "latency_ns")


@dataclass(frozen=True)
class MeasuredRequests:
    """By request, in nanoseconds: from the queue to the first token, each token after it, and from
    the queue to the last token.

    ``output_tokens`` are the tokens of its answer, and ``queued_ns`` when it came to the queue.
    """

    ttft_ns: tuple[float, ...]
    tpot_ns: tuple[float, ...]
    latency_ns: tuple[float, ...]
    output_tokens: tuple[int, ...]
    queued_ns: tuple[float, ...]


def read_measured_requests(path: str | os.PathLike[str]) -> MeasuredRequests:
    """JSON lines with ``queued_s``, ``first_token_s``, ``last_token_s`` and ``output_tokens``, in
    the order of the requests' file.

    If each line has an ``id`` that ends in ``-N``, the lines are sorted by ``N``. Raises
    :class:`InputError`.
    """
    source = os.fspath(path)
    rows: list[list[float]] = []
    places: list[int | None] = []
    for number, line in enumerate(decode(read_bytes(source), source).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found = [float(row[key]) for key in _KEYS]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InputError(
                f"expected numbers {', '.join(_KEYS)} in each line",
                source=source,
                where=f"line {number}",
            ) from None
        if not (
            0 <= found[0] <= found[1] <= found[2] < 1e9 and found[3].is_integer() and found[3] >= 1
        ):
            raise InputError(
                "expected times that follow each other, and at least one token",
                source=source,
                where=f"line {number}",
            )
        last = str(row.get("id")).rpartition("-")[2]
        places.append(int(last) if last.isdecimal() and len(last) < 10 else None)
        rows.append(found)
    numbers = [place for place in places if place is not None]
    if len(numbers) == len(rows):
        if len(set(numbers)) < len(rows):
            raise InputError(
                "expected each id once: its number, after the last '-', is the place of the "
                "request",
                source=source,
            )
        rows = [row for _, row in sorted(zip(numbers, rows, strict=True))]
    first = tuple((one - queued) * 1e9 for queued, one, _, _ in rows)
    each = tuple(
        (last - one) * 1e9 / (tokens - 1) if tokens > 1 else float("nan")
        for _, one, last, tokens in rows
    )
    whole = tuple((last - queued) * 1e9 for queued, _, last, _ in rows)
    return MeasuredRequests(
        first, each, whole, tuple(int(row[3]) for row in rows), tuple(row[0] * 1e9 for row in rows)
    )


def as_served(measured: MeasuredRequests, rows: RequestRows) -> MeasuredRequests:
    """Return the measurements in the order in which the requests are served.

    It has a line for each row of the requests' file, or for each of those with an answer, in the
    order of that file. Raises :class:`InputError` for another number of lines.
    """
    places: Sequence[int] = rows.places
    if len(measured.output_tokens) == len(places):
        among = {place: number for number, place in enumerate(sorted(places))}
        places = [among[place] for place in places]
    elif len(measured.output_tokens) != rows.count:
        raise InputError(
            f"{len(measured.output_tokens):,} measured requests, but {len(places):,} are served",
            source="measured",
        )
    times = (measured.ttft_ns, measured.tpot_ns, measured.latency_ns, measured.queued_ns)
    first, each, last, queued = (tuple(of[place] for place in places) for of in times)
    return MeasuredRequests(
        first, each, last, tuple(measured.output_tokens[place] for place in places), queued
    )


def check_measured(requests: Sequence[Request], measured: MeasuredRequests, skipped: int) -> None:
    """Raise :class:`InputError` unless these are measurements of the requests, and of more than the
    ``skipped`` first ones.
    """
    if len(measured.output_tokens) != len(requests):
        raise InputError(
            f"{len(measured.output_tokens):,} measured requests, but {len(requests):,} were served",
            source="measured",
        )
    if skipped >= len(requests):
        raise InputError(
            f"expected fewer than the {counted(len(requests), 'request')}: the others are compared",
            source="--fit-first",
        )
    for number, (request, tokens) in enumerate(zip(requests, measured.output_tokens, strict=True)):
        if request.output_tokens != tokens:
            raise InputError(
                f"expected the lines in the order of the requests, but {tokens:,} tokens were "
                "measured where "
                f"{request.output_tokens:,} are served",
                source="measured",
                where=f"request {number + 1}",
            )


def beside_measured(
    served: Served, measured: MeasuredRequests, skipped: int = 0
) -> dict[str, dict[str, Any]]:
    """Statistics of each latency of all requests but the first ``skipped``: measured, simulated,
    and the signed relative error.

    ``throughput`` has ``output_tokens_per_s`` of these requests, from the arrival of the first of
    them to the last token. ``rival`` is the error of who says that they are served as the first
    ``skipped`` were. Raises :class:`InputError` as :func:`check_measured` does.
    """
    check_measured(served.requests, measured, skipped)
    frame = served.frame()
    found: dict[str, dict[str, Any]] = {}
    for figure in _FIGURES:
        theirs = np.array(getattr(measured, figure))
        ours = frame[figure].to_numpy(float)[skipped:]
        got, said = _statistics(theirs[skipped:]), _statistics(ours)
        found[figure] = {"measured": got, "simulated": said, "error": _errors(said, got)}
        if skipped:
            found[figure]["rival"] = _errors(_statistics(theirs[:skipped]), got)
    tokens, arrival = np.array(measured.output_tokens), np.array(measured.queued_ns)
    ended = arrival + np.array(measured.latency_ns)
    theirs_per_s = _tokens_per_s(tokens[skipped:], arrival[skipped:], ended[skipped:])
    own = (frame[name].to_numpy(float)[skipped:] for name in ("arrival_ns", "last_token_ns"))
    rates = {"measured": theirs_per_s, "simulated": _tokens_per_s(tokens[skipped:], *own)}
    if skipped:
        rates["rival"] = _tokens_per_s(tokens[:skipped], arrival[:skipped], ended[:skipped])
    named: dict[str, dict[str, float | None]] = {
        name: {"output_tokens_per_s": rate} for name, rate in rates.items()
    }
    wrong = {
        name: _errors(named[of], named["measured"])
        for name, of in (("error", "simulated"), ("rival", "rival"))
        if of in named
    }
    found["throughput"] = {**{name: named[name] for name in ("measured", "simulated")}, **wrong}
    return found


def _statistics(values: npt.NDArray[np.float64]) -> dict[str, float | None]:
    return statistics(values[~np.isnan(values)])


def _errors(
    said: Mapping[str, float | None], got: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Signed relative errors; ``None`` where nothing was measured."""
    return {
        name: None if not got[name] else (said[name] or 0.0) / (got[name] or 1.0) - 1
        for name in got
    }


def _tokens_per_s(
    tokens: npt.NDArray[Any], arrival: npt.NDArray[np.float64], ended: npt.NDArray[np.float64]
) -> float | None:
    """Tokens of answers from the first arrival to the last token."""
    span = float(ended.max() - arrival.min())
    return float(tokens.sum()) / span * 1e9 if span > 0 else None


def fitted_overhead_ns(
    serve: Callable[[int], Served], measured: MeasuredRequests, first: int
) -> int:
    """The overhead of an iteration with which the mean latency of the ``first`` requests is as
    measured, to 10 us.

    ``serve`` simulates with an overhead. It is between 0 and 64 ms: where 0 is too slow already, it
    is 0. Raises :class:`InputError` where 64 ms are too fast.
    """
    wanted = float(np.mean(measured.latency_ns[:first]))

    def mean_ns(overhead_ns: int) -> float:
        return float(serve(overhead_ns).frame()["latency_ns"].iloc[:first].mean())

    if mean_ns(0) >= wanted:
        return 0
    if mean_ns(_LARGEST_NS) < wanted:
        raise InputError(
            f"the measured requests took longer than with {human_time(_LARGEST_NS)} of overhead "
            "in each iteration, "
            "which no host takes: check that model, machine and requests are those of the server",
            source="--fit-first",
        )
    low, high = 0, _LARGEST_NS
    while high - low > 10_000:
        middle = (low + high) // 2
        low, high = (middle, high) if mean_ns(middle) < wanted else (low, middle)
    return low


def overhead_warning(overhead_ns: int) -> str | None:
    """The warning for a fitted overhead that is ten times the largest known one: it is no host's.

    >>> overhead_warning(5_000_000) is None
    True
    """
    if overhead_ns < 10 * KNOWN_OVERHEAD_NS:
        return None
    return (
        f"an overhead of {human_time(overhead_ns)} in each iteration is no fit: hosts are known to "
        f"add up to {human_time(KNOWN_OVERHEAD_NS)}; something of machine, links or model is not "
        "that of the server"
    )
