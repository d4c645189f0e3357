"""Requests that were served as a trace that https://ui.perfetto.dev shows: iterations, counters,
and the phases of each request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hosim.report.timelines import microseconds, named
from hosim.serving import Sample, Served
from hosim.version import __version__

_Event = dict[str, Any]
_REQUESTS, _ENGINES = 1, 2


def serving_trace(served: Served) -> dict[str, Any]:
    """The trace: a slice for each iteration, counters of who runs, who waits and the blocks that
    are held, and each request.

    A request is an asynchronous slice from its arrival to its last token, within which it is
    queued, prefilled and decoded, and between the two transferred, if others decode.
    """
    events = [named("process_name", _REQUESTS, 0, "requests")]
    timed: list[tuple[int, _Event]] = []
    engines = sorted({sample.instance for sample in served.samples})
    for instance in engines:
        pid = _ENGINES + instance
        events.append(
            named("process_name", pid, 0, f"engine {instance}" if len(engines) > 1 else "engine")
        )
        events.append(named("thread_name", pid, 1, "iterations"))
        timed += _engine([sample for sample in served.samples if sample.instance == instance], pid)
    for number in range(len(served.requests)):
        timed += _request(served, number)
    events += [event for _, event in sorted(timed, key=lambda pair: pair[0])]
    about: Mapping[str, Any] = {
        **served.about,
        "requests": len(served.requests),
        "made_by": f"hosim {__version__}, a simulation",
    }
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _engine(samples: Sequence[Sample], pid: int) -> Iterator[tuple[int, _Event]]:
    """The iterations of an engine, and its counters, which are 0 where no iteration follows at
    once.
    """
    end = 0
    for number, sample in enumerate(samples):
        if end < sample.start_ns:
            yield from _counters(end, 0, 0, 0, pid)
        times = {
            "ts": microseconds(sample.start_ns),
            "dur": microseconds(sample.end_ns - sample.start_ns),
        }
        args = {"tokens": sample.tokens, "running": sample.running, "waiting": sample.waiting}
        yield (
            sample.start_ns,
            {
                "ph": "X",
                "name": f"iteration {number}",
                "cat": "iteration",
                **times,
                "pid": pid,
                "tid": 1,
                "args": args,
            },
        )
        yield from _counters(
            sample.start_ns, sample.running, sample.waiting, sample.held_blocks, pid
        )
        end = sample.end_ns
    yield from _counters(end, 0, 0, 0, pid)


def _counters(
    at: int, running: int, waiting: int, held: int, pid: int
) -> Iterator[tuple[int, _Event]]:
    for name, value in (("running", running), ("waiting", waiting), ("blocks held", held)):
        yield (
            at,
            {
                "ph": "C",
                "name": name,
                "ts": microseconds(at),
                "pid": pid,
                "tid": 0,
                "args": {name: value},
            },
        )


def _request(served: Served, number: int) -> Iterator[tuple[int, _Event]]:
    request, scheduled, tokens = (
        served.requests[number],
        served.scheduled_ns[number],
        served.token_ns[number],
    )
    args = {"prompt_tokens": request.prompt_tokens, "output_tokens": request.output_tokens}
    phases = [
        ("queued", request.arrival_ns, scheduled),
        ("prefill", scheduled, tokens[0]),
        ("decode", tokens[0], tokens[-1]),
    ]
    if served.handed is not None:
        end, there = served.handed.prefilled_ns[number], served.handed.transferred_ns[number]
        phases[1:] = [
            ("prefill", scheduled, end),
            ("transfer", end, there),
            ("decode", there, tokens[-1]),
        ]
    for name, start, end, own in [
        (f"request {number}", request.arrival_ns, tokens[-1], args),
        *((*phase, {}) for phase in phases),
    ]:
        if start < end:
            both = {"name": name, "cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
            yield start, {"ph": "b", "ts": microseconds(start), **both, "args": own}
            yield end, {"ph": "e", "ts": microseconds(end), **both}
