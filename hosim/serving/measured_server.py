"""What a real server did with requests, beside what was simulated; and the host's overhead that explains its first ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hosim.errors import InputError
from hosim.io.bounded import read_bytes
from hosim.io.reading import decode
from hosim.plain_text import counted
from hosim.serving.request import Request
from hosim.serving.request_files import RequestRows
from hosim.serving.served import Served, statistics
from hosim.units import human_time

_KEYS = ("queued_s", "first_token_s", "last_token_s", "output_tokens")
_LARGEST_NS = 64_000_000
_FIGURES = ("ttft_ns", "tpot_ns", "latency_ns")


@dataclass(frozen=True)
class MeasuredRequests:
    """By request, in nanoseconds: from the queue to the first token, each token after it, and from the queue to the last token.

    ``output_tokens`` are the tokens of its answer.
    """

    ttft_ns: tuple[float, ...]
    tpot_ns: tuple[float, ...]
    latency_ns: tuple[float, ...]
    output_tokens: tuple[int, ...]


def read_measured_requests(path: str | os.PathLike[str]) -> MeasuredRequests:
    """JSON lines with ``queued_s``, ``first_token_s``, ``last_token_s`` and ``output_tokens``, in the order of the requests' file.

    If each line has an ``id`` that ends in ``-N``, the lines are sorted by ``N``. Raises :class:`InputError`.
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
            raise InputError(f"expected numbers {', '.join(_KEYS)} in each line", source=source, where=f"line {number}") from None
        if not (0 <= found[0] <= found[1] <= found[2] < 1e9 and found[3].is_integer() and found[3] >= 1):
            raise InputError("expected times that follow each other, and at least one token", source=source, where=f"line {number}")
        last = str(row.get("id")).rpartition("-")[2]
        places.append(int(last) if last.isdecimal() and len(last) < 10 else None)
        rows.append(found)
    numbers = [place for place in places if place is not None]
    if len(numbers) == len(rows):
        if len(set(numbers)) < len(rows):
            raise InputError("expected each id once: its number, after the last '-', is the place of the request", source=source)
        rows = [row for _, row in sorted(zip(numbers, rows, strict=True))]
    first = tuple((one - queued) * 1e9 for queued, one, _, _ in rows)
    each = tuple((last - one) * 1e9 / (tokens - 1) if tokens > 1 else float("nan") for _, one, last, tokens in rows)
    return MeasuredRequests(first, each, tuple((last - queued) * 1e9 for queued, _, last, _ in rows), tuple(int(row[3]) for row in rows))


def as_served(measured: MeasuredRequests, rows: RequestRows) -> MeasuredRequests:
    """What was measured in the order in which the requests are served.

    It has a line for each row of the requests' file, or for each of those with an answer, in the order of that file. Raises
    :class:`InputError` for another number of lines.
    """
    places: Sequence[int] = rows.places
    if len(measured.output_tokens) == len(places):
        among = {place: number for number, place in enumerate(sorted(places))}
        places = [among[place] for place in places]
    elif len(measured.output_tokens) != rows.count:
        raise InputError(f"{len(measured.output_tokens):,} measured requests, but {len(places):,} are served", source="measured")
    first, each, last = (tuple(of[place] for place in places) for of in (measured.ttft_ns, measured.tpot_ns, measured.latency_ns))
    return MeasuredRequests(first, each, last, tuple(measured.output_tokens[place] for place in places))


def check_measured(requests: Sequence[Request], measured: MeasuredRequests, skipped: int) -> None:
    """Raise :class:`InputError` unless these are measurements of the requests, and of more than the ``skipped`` first ones."""
    if len(measured.output_tokens) != len(requests):
        raise InputError(f"{len(measured.output_tokens):,} measured requests, but {len(requests):,} were served", source="measured")
    if skipped >= len(requests):
        raise InputError(f"expected fewer than the {counted(len(requests), 'request')}: the others are compared", source="--fit-first")
    for number, (request, tokens) in enumerate(zip(requests, measured.output_tokens, strict=True)):
        if request.output_tokens != tokens:
            raise InputError(
                f"expected the lines in the order of the requests, but {tokens:,} tokens were measured where "
                f"{request.output_tokens:,} are served",
                source="measured",
                where=f"request {number + 1}",
            )


def beside_measured(served: Served, measured: MeasuredRequests, skipped: int = 0) -> dict[str, dict[str, dict[str, float | None]]]:
    """Statistics of each latency of all requests but the first ``skipped``: measured, simulated, and the signed relative error.

    Raises :class:`InputError` as :func:`check_measured` does.
    """
    check_measured(served.requests, measured, skipped)
    frame = served.frame()
    found = {}
    for figure in _FIGURES:
        theirs = np.array(getattr(measured, figure)[skipped:])
        ours = frame[figure].to_numpy(float)[skipped:]
        got, said = statistics(theirs[~np.isnan(theirs)]), statistics(ours[~np.isnan(ours)])
        errors = {name: None if not got[name] else (said[name] or 0.0) / (got[name] or 1.0) - 1 for name in got}
        found[figure] = {"measured": got, "simulated": said, "error": errors}
    return found


def fitted_overhead_ns(serve: Callable[[int], Served], measured: MeasuredRequests, first: int) -> int:
    """The overhead of an iteration with which the mean latency of the ``first`` requests is as measured, to 10 us.

    ``serve`` simulates with an overhead. It is between 0 and 64 ms: where 0 is too slow already, it is 0. Raises :class:`InputError` where
    64 ms are too fast.
    """
    wanted = float(np.mean(measured.latency_ns[:first]))

    def mean_ns(overhead_ns: int) -> float:
        return float(serve(overhead_ns).frame()["latency_ns"].iloc[:first].mean())

    if mean_ns(0) >= wanted:
        return 0
    if mean_ns(_LARGEST_NS) < wanted:
        raise InputError(
            f"the measured requests took longer than with {human_time(_LARGEST_NS)} of overhead in each iteration, "
            "which no host takes: check that model, machine and requests are those of the server",
            source="--fit-first",
        )
    low, high = 0, _LARGEST_NS
    while high - low > 10_000:
        middle = (low + high) // 2
        low, high = (middle, high) if mean_ns(middle) < wanted else (low, middle)
    return low
