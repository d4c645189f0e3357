"""Tell whether a replay explains a recording, and if not, name the unexplained parts and their
causes.

A recording is *explained* if makespan and starts (95th percentile) are within :data:`WITHIN` of its
span, and if the worst of these and of the starts after aligning the first op is not worse than the
better of two predictions without a model (:func:`by_launches`, :func:`by_held_host`) by more than
:data:`BEHIND` of the span. These predictions have no latency. An op without a recorded launch
follows the previous one, and the first op of a stream has its recorded start.

For a recording that is not explained, :mod:`one step at a time
<hosim.validate.recorded_steps.one_step>` finds the ops and calls that the structure misses. They
are named, the largest errors first, until the replay, given only the recorded times of the named
ones, is within these bounds for all other ops.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from hosim.io.importers.recordings import (
    KinetoTrace,
    ProgramOrder,
    StreamId,
    Waits,
    blocks,
    stream_of,
)
from hosim.units import human_percent
from hosim.validate.recorded_steps import (
    GivenTimes,
    StartErrors,
    StructuralReplay,
    Structure,
    one_step,
    recurring_structure,
    start_errors,
    structural_replay,
    structure,
)
from hosim.validate.replay_verdicts.causes_of_delay import UnexplainedSpan, unexplained_spans


def by_launches(trace: KinetoTrace, order: ProgramOrder) -> tuple[int, ...]:
    """Return the start of each op, in nanoseconds of the recording's clock: the end of its recorded
    launch call, or of the previous op on its stream if that is later.
    """
    starts = [op.start_ns for op in trace.ops]
    for queue in order.streams.values():
        free: int | None = None
        for i in queue:
            op = trace.ops[i]
            ready = op.start_ns if free is None else 0
            if op.call is not None:
                ready = trace.calls[op.call].end_ns
            starts[i] = ready if free is None else max(ready, free)
            free = starts[i] + op.duration_ns
    return tuple(starts)


def by_held_host(trace: KinetoTrace, order: ProgramOrder, waits: Waits) -> tuple[int, ...]:
    """Return the same with waits and synchronisations. A stream that waits, or a host that is
    blocked, continues when the awaited work has ended, and everything later on that thread is
    shifted by as much.
    """
    return _HeldHost(trace, waits).run(order)


class _HeldHost:
    """The clocks of streams and threads while the calls are processed in order."""

    def __init__(self, trace: KinetoTrace, waits: Waits) -> None:
        self._trace, self._waits = trace, waits
        self._starts = [op.start_ns for op in trace.ops]
        self._free: dict[StreamId, int] = {}
        self._later: defaultdict[str, int] = defaultdict(int)

    def run(self, order: ProgramOrder) -> tuple[int, ...]:
        trace = self._trace
        launched: defaultdict[int, list[int]] = defaultdict(list)
        unlaunched = []
        for i in order.order:
            call = trace.ops[i].call
            if call is not None:
                launched[call].append(i)
            else:
                unlaunched.append(i)
        unlaunched.reverse()
        for c in sorted(
            {*launched, *self._waits.of_calls}, key=lambda c: (trace.calls[c].start_ns, c)
        ):
            while unlaunched and order.issued_ns[unlaunched[-1]] <= trace.calls[c].start_ns:
                self._start(unlaunched.pop(), 0)
            self._call(c, launched)
        for i in reversed(unlaunched):
            self._start(i, 0)
        return tuple(self._starts)

    def _call(self, c: int, launched: Mapping[int, Sequence[int]]) -> None:
        trace = self._trace
        call = trace.calls[c]
        begin = call.start_ns + self._later[call.thread]
        ops = launched.get(c, ())
        if ops and blocks(trace.ops[ops[0]], call):
            self._later[call.thread] = max(self._start(i, begin) for i in ops) - call.end_ns
        elif ops:
            for i in ops:
                self._start(i, call.end_ns + self._later[call.thread])
        else:
            awaited = self._waits.of_calls[c]
            held = max((trace.ops[i].end_ns for i in awaited), default=0) > call.start_ns
            own = call.duration_ns if not held else 0
            ended = max((self._starts[i] + trace.ops[i].duration_ns for i in awaited), default=0)
            self._later[call.thread] = max(begin + own, ended) - call.end_ns

    def _start(self, i: int, ready: int) -> int:
        """Start an op, and return its end."""
        op = self._trace.ops[i]
        stream = stream_of(op)
        if op.call is None and stream not in self._free:
            ready = op.start_ns
        awaited = (
            self._starts[a] + self._trace.ops[a].duration_ns for a in self._waits.of_ops.get(i, ())
        )
        self._starts[i] = max(ready, self._free.get(stream, 0), *awaited, 0)
        self._free[stream] = self._starts[i] + op.duration_ns
        return self._free[stream]


WITHIN = 0.01
BEHIND = 0.003
_SHARES = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000)
"""Ops whose error is less than the span divided by such a number are named only if the larger ones
do not explain the rest.
"""

_MORE = 3
"""The number of further attempts, each of which also names the ops at which errors grow."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of the replay and of both trivial predictions, and the unexplained spans.

    ``rest`` has the errors of the ops that no span names, given the recorded times of those that
    are named; None if everything is explained.
    """

    explained: bool
    errors: StartErrors
    launches: StartErrors
    held_host: StartErrors
    spans: tuple[UnexplainedSpan, ...]
    rest: StartErrors | None

    @property
    def rest_explained(self) -> bool:
        """Return whether the named spans are the only errors."""
        return self.rest is None or within(self.rest)


def within(errors: StartErrors, bound: float = WITHIN) -> bool:
    """Return whether makespan and starts are off by no more than this share of the span."""
    return max(abs(errors.makespan_ns - errors.span_ns), errors.p95_ns) <= bound * errors.span_ns


def behind(errors: StartErrors, *rivals: StartErrors) -> int:
    """Return the nanoseconds by which the worst error exceeds that of the best trivial prediction;
    0 if it does not.
    """
    return max(0, errors.worst_ns - min(rival.worst_ns for rival in rivals))


def complaint(verdict: Verdict | None, bound: float) -> str:
    """Return the reason that a recording fails a test with this bound, as a share of its span;
    empty if it passes.
    """
    if verdict is None:
        return "not validated: it cannot be replayed in time"
    if not verdict.explained:
        causes = (
            ", ".join(dict.fromkeys(span.cause for span in verdict.spans)) or "nothing can be named"
        )
        return f"not validated: {causes}"
    return beyond(verdict.errors, bound)


def beyond(errors: StartErrors, bound: float) -> str:
    """Return a text on the errors of a validated recording that exceed a bound, as a share of the
    span; empty if they are within it.
    """
    if within(errors, bound):
        return ""
    off = max(abs(errors.makespan_error), errors.p95_ns / max(errors.span_ns, 1))
    return (
        f"validated, but {human_percent(off, 2)} of the span off, more than "
        f"{human_percent(bound, 2)}"
    )


def replay_and_judge(trace: KinetoTrace) -> tuple[StructuralReplay, Verdict]:
    """Return the structural replay of a recording, and the verdict on it. Raises
    :class:`InputError` if no launch was recorded.

    Patterns that the recording repeats (:mod:`hosim.validate.recorded_steps.recurrences`) are used
    only if it is not explained without them.
    """
    built, replayed, rivals = best_structure(trace)
    return replayed, judge(built, replayed, rivals)


Rivals = tuple[StartErrors, StartErrors]
"""The errors of both trivial predictions: by launches only, and with waits and synchronisations."""


def best_structure(trace: KinetoTrace) -> tuple[Structure, StructuralReplay, Rivals]:
    """Return the structure of a recording, with its repeated patterns if they are needed, its
    replay, and the errors of the trivial predictions.
    """
    built = structure(trace)
    # with the recorded waits, without the repeated patterns
    held = by_held_host(trace, built.order, built.waits)
    rivals = start_errors(trace.ops, by_launches(trace, built.order)), start_errors(trace.ops, held)
    replayed = structural_replay(built)
    if not explains(_errors(built, replayed), *rivals):
        again = recurring_structure(built)
        if again is not built:
            built, replayed = again, structural_replay(again)
    return built, replayed, rivals


def _errors(built: Structure, replayed: StructuralReplay) -> StartErrors:
    return start_errors(built.trace.ops, [op.simulated_start_ns for op in replayed.ops])


def explains(errors: StartErrors, *rivals: StartErrors) -> bool:
    """Return whether the errors are within the bounds, also in comparison with the trivial
    predictions.
    """
    return within(errors) and behind(errors, *rivals) <= BEHIND * errors.span_ns


def judge(built: Structure, replayed: StructuralReplay, rivals: Rivals) -> Verdict:
    """Return the verdict on a replay of a structure, given the errors of the trivial
    predictions.
    """
    errors = _errors(built, replayed)
    if explains(errors, *rivals):
        return Verdict(True, errors, *rivals, (), None)
    found = one_step(built)
    tried: list[_Naming] = []
    for share in _SHARES:
        least_ns = max(1, errors.span_ns // share)
        named = GivenTimes(
            frozenset(i for i, late in enumerate(found.ops) if abs(late) >= least_ns),
            frozenset(c for c, late in found.calls.items() if abs(late) >= least_ns),
        )
        if not tried or named != tried[-1].named:
            tried.append(_naming(built, named))
        if explains(tried[-1].rest, *rivals):
            break
    most = len(tried) + _MORE
    while not explains(tried[-1].rest, *rivals) and len(tried) < most:
        tried.append(_naming(built, _with_jumps(built, tried[-1], errors.span_ns // 1_000)))
    best = tried[-1]
    if not explains(best.rest, *rivals):
        best = next((one for one in tried if within(one.rest)), best)
    return Verdict(
        False,
        errors,
        *rivals,
        unexplained_spans(built, found, sorted(best.named.ops), sorted(best.named.calls)),
        best.rest,
    )


@dataclass(frozen=True, slots=True)
class _Naming:
    """The named ops and calls, the simulated start of each op given their recorded times, and the
    errors of all other ops.
    """

    named: GivenTimes
    starts_ns: Sequence[int]
    rest: StartErrors


def _naming(built: Structure, named: GivenTimes) -> _Naming:
    starts = starts_given(built, named)
    return _Naming(named, starts, _rest(built, named, starts))


def _with_jumps(built: Structure, tried: _Naming, least_ns: int) -> GivenTimes:
    """Return the named ops and those at which the error on their stream grows, because waits for
    room on the device do not show one by one.
    """
    jumps = set()
    for queue in built.streams:
        off = [tried.starts_ns[i] - built.trace.ops[i].start_ns for i in queue]
        jumps |= {
            i
            for i, (before, now) in zip(queue, pairwise((0, *off)), strict=True)
            if abs(now - before) > least_ns
        }
    return GivenTimes(tried.named.ops | jumps, tried.named.calls)


def _rest(built: Structure, named: GivenTimes, starts: Sequence[int]) -> StartErrors:
    """Return the errors of all ops that are not named."""
    trace = built.trace
    kept = [i for i in range(len(trace.ops)) if i not in named.ops] or list(range(len(trace.ops)))
    found = start_errors([trace.ops[i] for i in kept], [starts[i] for i in kept])
    whole = start_errors(trace.ops, starts)
    return replace(
        found, span_ns=whole.span_ns, makespan_ns=whole.makespan_ns, idle_ns=whole.idle_ns
    )


def starts_given(built: Structure, named: GivenTimes) -> Sequence[int]:
    """Return the simulated start of each op of a recording, given the recorded times of some ops
    and calls.
    """
    again = structure(
        built.trace,
        latencies=built.latencies,
        durations_ns=built.durations_ns,
        times=named,
        known=built.known,
    )
    return [op.simulated_start_ns for op in structural_replay(again).ops]


_NAMED = 3


def verdict_to_dict(verdict: Verdict | None, times: StructuralReplay | None) -> dict[str, Any]:
    """Return ``explained``, ``reasons`` and ``errors``; null or empty without a replay of times."""
    if verdict is None or times is None:
        return {"explained": None, "reasons": [], "errors": None}
    return {
        "explained": verdict.explained,
        "reasons": [_reason(span, times) for span in verdict.spans],
        "errors": {
            "replay": errors_to_dict(verdict.errors),
            "by_launches": errors_to_dict(verdict.launches),
            "by_held_host": errors_to_dict(verdict.held_host),
            "rest": errors_to_dict(verdict.rest) if verdict.rest is not None else None,
            "rest_explained": verdict.rest_explained,
        },
    }


def errors_to_dict(errors: StartErrors) -> dict[str, Any]:
    """Return the errors of a prediction."""
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
    return {
        "cause": span.cause,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "off_ns": span.off_ns,
        "ops": _ranges(span.ops),
        "calls": _ranges(span.calls),
        "names": list(dict.fromkeys(times.ops[i].op.name for i in span.ops))[:_NAMED],
        "streams": sorted({times.ops[i].op.stream for i in span.ops}),
    }


def _ranges(positions: Sequence[int]) -> list[list[int]]:
    """Return positions as the first and last of each run: ``[[2, 4], [9, 9]]``."""
    runs = groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0])
    listed = [[position for _, position in run] for _, run in runs]
    return [[run[0], run[-1]] for run in listed]
