"""The verdict on a recording as ``hosim validate --json`` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hosim.validate.recorded_steps import StartErrors, StructuralReplay
from hosim.validate.replay_verdicts.causes_of_delay import UnexplainedSpan
from hosim.validate.replay_verdicts.replay_verdict import Verdict

_NAMED = 3


def verdict_to_dict(verdict: Verdict | None, times: StructuralReplay | None) -> dict[str, Any]:
    """``explained``, ``reasons`` and ``errors``; null, and nothing, without a replay in time."""
    if verdict is None or times is None:
        return {"explained": None, "reasons": [], "errors": None}
    errors = {
        "replay": errors_to_dict(verdict.errors),
        "by_launches": errors_to_dict(verdict.launches),
        "by_held_host": errors_to_dict(verdict.held_host),
        "rest": errors_to_dict(verdict.rest) if verdict.rest is not None else None,
        "rest_explained": verdict.rest_explained,
    }
    return {
        "explained": verdict.explained,
        "reasons": [_reason(span, times) for span in verdict.spans],
        "errors": errors,
    }


def errors_to_dict(errors: StartErrors) -> dict[str, Any]:
    """The errors of a prediction."""
    return {
        "makespan": errors.makespan_error,
        "p95_start_ns": errors.p95_ns,
        "p95_start_aligned_ns": errors.aligned_p95_ns,
        "p95_gap_ns": errors.gap_p95_ns,
        "worst_of_span": errors.of_span,
        "p95_start_aligned_of_idle": errors.of_idle,
        "gaps_of_waiting": errors.of_waiting,
        "span_ns": errors.span_ns,
        "idle_ns": errors.idle_ns,
    }


def _reason(span: UnexplainedSpan, times: StructuralReplay) -> dict[str, Any]:
    names = list(dict.fromkeys(times.ops[i].op.name for i in span.ops))
    return {
        "cause": span.cause,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "off_ns": span.off_ns,
        "ops": _ranges(span.ops),
        "calls": _ranges(span.calls),
        "names": names[:_NAMED],
        "streams": sorted({times.ops[i].op.stream for i in span.ops}),
    }


def _ranges(positions: Sequence[int]) -> list[list[int]]:
    """Positions as first and last of each run: ``[[2, 4], [9, 9]]``."""
    runs = groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0])
    listed = [[position for _, position in run] for _, run in runs]
    return [[run[0], run[-1]] for run in listed]
