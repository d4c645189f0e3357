"""Requests that were served as a trace that https://ui.perfetto.dev shows: iterations, counters, and the phases of each request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hosim.report.perfetto import microseconds, named
from hosim.version import __version__

if TYPE_CHECKING:
    from hosim.serving.served import Sample, Served

_Event = dict[str, Any]
_ENGINE, _REQUESTS = 1, 2


def serving_trace(served: Served) -> dict[str, Any]:
    """The trace: a slice for each iteration, counters of who runs, who waits and the blocks that are held, and each request.

    A request is an asynchronous slice from its arrival to its last token, within which it is queued, prefilled and decoded.
    """
    events = [named("process_name", _ENGINE, 0, "engine"), named("thread_name", _ENGINE, 1, "iterations")]
    events.append(named("process_name", _REQUESTS, 0, "requests"))
    timed: list[tuple[int, _Event]] = []
    before: Sample | None = None
    for number, sample in enumerate(served.samples):
        if before is not None and before.end_ns < sample.start_ns:
            timed += _counters(before.end_ns, 0, 0, 0)
        timed.append((sample.start_ns, _slice(number, sample)))
        timed += _counters(sample.start_ns, sample.running, sample.waiting, sample.held_blocks)
        before = sample
    if before is not None:
        timed += _counters(before.end_ns, 0, 0, 0)
    for number in range(len(served.requests)):
        timed += _request(served, number)
    events += [event for _, event in sorted(timed, key=lambda pair: pair[0])]
    about: Mapping[str, Any] = {**served.about, "requests": len(served.requests), "made_by": f"hosim {__version__}, a simulation"}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _slice(number: int, sample: Sample) -> _Event:
    times = {"ts": microseconds(sample.start_ns), "dur": microseconds(sample.end_ns - sample.start_ns)}
    args = {"tokens": sample.tokens, "running": sample.running, "waiting": sample.waiting}
    return {"ph": "X", "name": f"iteration {number}", "cat": "iteration", **times, "pid": _ENGINE, "tid": 1, "args": args}


def _counters(at: int, running: int, waiting: int, held: int) -> Iterator[tuple[int, _Event]]:
    for name, value in (("running", running), ("waiting", waiting), ("blocks held", held)):
        yield at, {"ph": "C", "name": name, "ts": microseconds(at), "pid": _ENGINE, "tid": 0, "args": {name: value}}


def _request(served: Served, number: int) -> Iterator[tuple[int, _Event]]:
    request, scheduled, tokens = served.requests[number], served.scheduled_ns[number], served.token_ns[number]
    args = {"prompt_tokens": request.prompt_tokens, "output_tokens": request.output_tokens}
    phases = [("queued", request.arrival_ns, scheduled), ("prefill", scheduled, tokens[0]), ("decode", tokens[0], tokens[-1])]
    for name, start, end, own in [(f"request {number}", request.arrival_ns, tokens[-1], args), *((*phase, {}) for phase in phases)]:
        if start < end:
            both = {"name": name, "cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
            yield start, {"ph": "b", "ts": microseconds(start), **both, "args": own}
            yield end, {"ph": "e", "ts": microseconds(end), **both}
