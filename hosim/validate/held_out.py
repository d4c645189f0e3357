"""Held-out prediction: one part of a recording, or other recordings, predict the rest.

Op times of a recording's own second part come from :mod:`hosim.validate.op_costs.op_times`. With
other recordings, an op's time is looked up only if the same op was recorded (name, grid, block and
shapes of its operator). All other ops are timed by the cost model of the calibrated profile
(:mod:`hosim.validate.modelled_times`), with an interval, or are omitted. A transfer takes the
median time of transfers of the same size or, for a new size, the time of the fitted channel
(:mod:`hosim.validate.fits.channel_fit`). The makespan comes from the structural replay, with
predicted durations in place of recorded ones and with the launch latencies of the learned part. The
replay is still given the host's calls in order, and its work between them.

A recording is split between two of its iterations: everything that the host began earlier belongs
to the first part. Without repetition, every group of like ops (same name, grid, block and shapes)
is split in order of time instead: its first half predicts the second. Ops that are like no other
are then omitted, and the makespan is not predicted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import Any

from hosim.base.groups import grouped
from hosim.errors import InputError
from hosim.io.importers.recordings import DeviceOp, KinetoTrace, program_order, waits
from hosim.plain_text import counted
from hosim.units import human_percent
from hosim.validate.fits import ChannelFit, ErrorSpread, clock_tick, copies_of, fit_ways, spread
from hosim.validate.modelled_times import MODEL_LEVELS, MOST_UNKNOWN, ModelledOps, ModelledTotal
from hosim.validate.op_costs import LEVELS, Keys, OpTimes, is_transfer, keys_of, learn
from hosim.validate.recorded_steps import (
    Latencies,
    Repetitions,
    before,
    fit_latencies,
    issued_from,
    repetitions,
    span_ns,
    structural_replay,
    structure,
)

_WORST = 10


@dataclass(frozen=True)
class Learned:
    """The basis of a prediction, without anything from the held-out part. ``period_ns`` is the
    median length of an iteration.

    ``copies`` are the median nanoseconds of copies, by way and bytes.
    """

    sources: tuple[str, ...]
    op_times: OpTimes
    ways: Mapping[tuple[str, str], ChannelFit]
    copies: Mapping[tuple[tuple[str, str], int], int]
    latencies: Latencies | None
    period_ns: int | None


@dataclass(frozen=True)
class HeldOut:
    """The prediction of a recording's held-out part. Times are in nanoseconds; errors are relative,
    and signed if they are called ``error``.

    ``levels`` counts ops by their likeness to the learned ones. For another recording it counts the
    works of its operators by the source of their times: ``exact``, ``fitted``, ``alike`` (to fitted
    kinds) or ``assumed``; ``modelled`` is then the prediction by the profile alone. ``unpredicted``
    counts the omitted kernels. ``transfers`` has the transfers whose direction and kind of host
    memory were learned, ``strange_transfers`` counts the others. ``by_period_ns`` is another
    prediction of the makespan (from the first start of a held-out op to the last end) that uses
    nothing from the held-out part: the number of iterations times the learned median length.
    """

    trace: str
    learned_from: tuple[str, ...]
    parted: str
    iterations: tuple[int, int] | None
    ops: ErrorSpread
    levels: Mapping[str, int]
    transfers: ErrorSpread
    ways: Mapping[tuple[str, str], ErrorSpread]
    strange_transfers: int
    measured_ns: int | None
    predicted_ns: int | None
    by_period_ns: int | None
    worst: tuple[tuple[str, int, int, int], ...]
    missing: tuple[str, ...]
    unpredicted: int = 0
    modelled: ModelledTotal | None = None

    @property
    def makespan_error(self) -> float | None:
        """The relative error of the replay's prediction; None without one."""
        return (
            self.predicted_ns / self.measured_ns - 1
            if self.measured_ns and self.predicted_ns is not None
            else None
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as in the JSON report."""
        return {
            "trace": self.trace,
            "learned_from": list(self.learned_from),
            "parted": self.parted,
            "iterations": {"learned": self.iterations[0], "held_out": self.iterations[1]}
            if self.iterations
            else None,
            "ops": {
                **self.ops.to_dict(),
                "levels": dict(self.levels),
                "unpredicted": self.unpredicted,
                "by_profile": self.modelled.to_dict() if self.modelled else None,
            },
            "transfers": {
                **self.transfers.to_dict(),
                "not_learned": self.strange_transfers,
                "ways": [
                    {"direction": way[0], "memory": way[1], **errors.to_dict()}
                    for way, errors in self.ways.items()
                ],
            },
            "makespan": {
                "measured_ns": self.measured_ns,
                "predicted_ns": self.predicted_ns,
                "error": self.makespan_error,
                "by_period_ns": self.by_period_ns,
                "by_period_error": self.by_period_ns / self.measured_ns - 1
                if self.measured_ns and self.by_period_ns is not None
                else None,
            },
            "worst": [
                {"name": name, "ops": count, "measured_ns": measured, "predicted_ns": predicted}
                for name, count, measured, predicted in self.worst
            ],
            "missing": list(self.missing),
        }


def learn_from(
    traces: Sequence[KinetoTrace], ways: Mapping[tuple[str, str], ChannelFit] | None = None
) -> Learned:
    """Learn from these recordings, or parts of them. ``ways`` are fitted to their copies unless
    they are given.
    """
    recorded, periods = [], []
    for trace in traces:
        found = repetitions(trace)
        recorded += list(zip(trace.ops, keys_of(trace, found.starts_ns), strict=True))
        periods += [b - a for a, b in pairwise(found.starts_ns)]
    return _learned(traces, recorded, periods, ways)


def _learned(
    traces: Sequence[KinetoTrace],
    recorded: Sequence[tuple[DeviceOp, Any]],
    periods: Sequence[int],
    ways: Mapping[tuple[str, str], ChannelFit] | None = None,
    makespan: bool = True,
) -> Learned:
    names = tuple(trace.name for trace in traces)
    launching = max(traces, key=lambda trace: len(trace.ops))
    latencies = None
    if makespan and any(op.call is not None for op in launching.ops):
        order = program_order(launching)
        latencies = fit_latencies(launching, order, waits(launching, order))
    copies = copies_of(op for op, _ in recorded)
    fitted = fit_ways(copies, names) if ways is None else ways
    alike = grouped(((copy.way, copy.size_bytes), copy.time_ns) for copy in copies)
    medians = {key: median_low(times) for key, times in alike.items()}
    return Learned(
        names, learn(recorded), fitted, medians, latencies, median_low(periods) if periods else None
    )


def learn_before(trace: KinetoTrace, found: Repetitions, instant_ns: int) -> Learned:
    """Learn from the recording up to the instant at which one of its iterations begins."""
    part = before(trace, instant_ns)
    starts = [start for start in found.starts_ns if start <= instant_ns]
    periods = [b - a for a, b in pairwise(starts)]
    return _learned([part], list(zip(part.ops, keys_of(part, starts[:-1]), strict=True)), periods)


def learned_part(trace: KinetoTrace, share: float) -> KinetoTrace:
    """Return the part of a recording that :func:`hold_out` learns from; the whole recording if it
    has only one iteration.
    """
    found = repetitions(trace)
    return before(trace, found.starts_ns[-_held(found, share)]) if found.count > 1 else trace


def _held(found: Repetitions, share: float) -> int:
    if not 0 < share < 1:
        raise InputError(f"expected a share between 0 and 1, got {share:g}", source="hold-out")
    return min(found.count - 1, max(1, round(found.count * share)))


def hold_out(trace: KinetoTrace, share: float = 0.5) -> HeldOut:
    """Predict the last ``share`` of a recording's iterations (at least one, and not all) from the
    earlier ones.

    Raises :class:`InputError` if the share is not between 0 and 1, or if no two ops of the
    recording are alike.
    """
    found = repetitions(trace)
    held = _held(found, share)
    if found.count < 2:
        return _within(trace, share)
    instant = found.starts_ns[-held]
    return _predict(
        trace,
        found,
        learn_before(trace, found, instant),
        issued_from(trace, instant),
        f"between iterations, by {found.found_by}",
        (found.count - held, held),
    )


def _times_of(
    trace: KinetoTrace, exact: Sequence[int | None], model: ModelledOps | None
) -> list[_OpTime]:
    """Return the predicted times of ops. With a model, the time of a work is that of its ops if all
    were looked up, else the model's; without a model, only looked-up times count.
    """
    if model is None:
        return [
            _OpTime(op.name, (i,), op.duration_ns, exact[i] or 0, "exact")
            for i, op in enumerate(trace.ops)
            if not is_transfer(op) and exact[i] is not None
        ]
    times = []
    for one in model.works:
        own = [exact[i] for i in one.work.ops if trace.ops[i].kind == "kernel"]
        known = [time for time in own if time is not None]
        looked_up = bool(own) and len(known) == len(own)
        predicted, level = (sum(known), "exact") if looked_up else (one.predicted_ns, one.level)
        name = f"{one.work.kind} {one.work.dtype}"
        times.append(_OpTime(name, one.work.ops, one.work.time_ns, predicted, level))
    return times


def predict_trace(
    trace: KinetoTrace, learned: Learned, model: ModelledOps | None = None
) -> HeldOut:
    """Predict a whole recording from others. Without a ``model``, ops are looked up, and omitted if
    none is the same.
    """
    found = repetitions(trace)
    counts = (0, found.count) if found.count > 1 else None
    keys = keys_of(trace, found.starts_ns)
    times = _times_of(
        trace, [_looked_up(op, keys[i], learned.op_times) for i, op in enumerate(trace.ops)], model
    )
    placed = {i for one in times for i in one.places}
    missing = [model.without_data] if model is not None and model.without_data else []
    total = model.total if model is not None else None
    left = [i for i, op in enumerate(trace.ops) if not is_transfer(op) and i not in placed]
    kernels = [i for i in left if trace.ops[i].kind == "kernel"]
    if kernels:
        why = (
            "their work does not follow from recorded shapes"
            if model
            else "no op recorded before is the same, and there is no profile"
        )
        missing.append(f"{counted(len(kernels), 'kernel')} of {len(trace.kernels):,}: {why}")
    if left:
        missing.append("the makespan: not all ops are predicted")
    predicted = _predict(
        trace,
        found,
        learned,
        range(len(trace.ops)),
        "another recording",
        counts,
        times=times,
        makespan=not left,
    )
    ops = predicted.ops
    if len(kernels) > MOST_UNKNOWN * len(trace.kernels):
        missing.append(
            f"the total of op times: more than {human_percent(MOST_UNKNOWN, 0)} of the kernels "
            "are left out"
        )
        ops, total = replace(ops, total=None), None
    return replace(
        predicted,
        ops=ops,
        missing=(*missing, *predicted.missing),
        unpredicted=len(kernels),
        modelled=total,
    )


@dataclass(frozen=True, slots=True)
class _OpTime:
    """The total time of the ops at ``places``, measured and predicted, in nanoseconds."""

    name: str
    places: tuple[int, ...]
    measured_ns: int
    predicted_ns: int
    level: str


def _looked_up(op: DeviceOp, keys: Keys, times: OpTimes) -> int | None:
    """Return the nanoseconds of the same op; None if none was learned."""
    return next((times.by_key[key] for key in keys[:2] if key in times.by_key), None)


def _within(trace: KinetoTrace, share: float) -> HeldOut:
    found = Repetitions("nothing", ())
    keys = keys_of(trace, ())
    groups = grouped(
        (keys[i][1], i) for i in program_order(trace).order if not is_transfer(trace.ops[i])
    )
    chosen: list[int] = []
    for group in groups.values():
        kept = max(1, len(group) - max(1, round(len(group) * share)))
        chosen += group[kept:]
    alone = sum(trace.ops[group[0]].duration_ns for group in groups.values() if len(group) == 1)
    total = sum(trace.ops[i].duration_ns for group in groups.values() for i in group)
    if not chosen:
        raise InputError(
            "nothing can be held out: no two of its ops are alike; give another recording with "
            "--predict",
            source=trace.name,
        )
    out = set(chosen)
    learned = _learned(
        [trace],
        [(op, keys[i]) for i, op in enumerate(trace.ops) if i not in out and not is_transfer(op)],
        (),
        makespan=False,
    )
    unlike = sum(len(group) == 1 for group in groups.values())
    missing = (
        "one iteration only: parted within groups of like ops, the first of each group predict "
        "the others",
        f"{counted(unlike, 'op')}, {human_percent(alone / max(total, 1), 0)} of the time, "
        f"{'is' if unlike == 1 else 'are'} like no other: "
        "left out",
        "the makespan: the rest of the iteration is what it would be learned from",
    )
    return _predict(
        trace, found, learned, sorted(chosen), "within groups of like ops", None, missing
    )


class _Copied:
    """The transfers predicted so far: measured and predicted times by way, and the number of those
    without a learned counterpart.
    """

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self.by_way: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        self.strange = 0

    def predict(self, op: DeviceOp) -> int:
        """Return the nanoseconds of a transfer; without a learned counterpart, those of any way in
        its direction.
        """
        ways = self._learned.ways
        for copy in copies_of([op]):
            way = ways.get(copy.way)
            if way is None:
                break
            time: float = self._learned.copies.get(
                (copy.way, copy.size_bytes), way.predict(copy.size_bytes)
            )
            self.by_way[way.direction, way.memory].append((op.duration_ns, time))
            return round(time)
        self.strange += 1
        way = next((w for (direction, _), w in ways.items() if direction == op.direction), None)
        return round(way.predict(op.size_bytes or 0)) if way is not None else 0


def _predict(
    trace: KinetoTrace,
    found: Repetitions,
    learned: Learned,
    chosen: Collection[int],
    parted: str,
    iterations: tuple[int, int] | None,
    missing: tuple[str, ...] = (),
    times: Sequence[_OpTime] | None = None,
    makespan: bool = True,
) -> HeldOut:
    """Predict the ``chosen`` ops. ``times`` are those of all ops but transfers, if they are known
    already.
    """
    keys = keys_of(trace, found.starts_ns) if times is None else ()
    durations = [op.duration_ns for op in trace.ops]
    tick = clock_tick(durations)
    levels: Counter[str] = Counter()
    ops: list[tuple[str, int, int]] = []
    copied = _Copied(learned)
    for i in chosen:
        op = trace.ops[i]
        if is_transfer(op):
            durations[i] = copied.predict(op)
        elif times is None:
            durations[i], level = learned.op_times.predict(op, keys[i])
            levels[level] += 1
            ops.append((op.name, op.duration_ns, durations[i]))
    for one in times or ():
        levels[one.level] += 1
        ops.append((one.name, one.measured_ns, one.predicted_ns))
        for i in one.places:
            durations[i] = one.predicted_ns // len(one.places)
    pairs = [pair for listed in copied.by_way.values() for pair in listed]
    measured = predicted = None
    if not missing and makespan:
        measured, predicted, missing = _makespan(trace, learned, set(chosen), durations)
    if not pairs:
        missing = (
            *missing,
            "transfers: the held-out part has none"
            if not copied.strange
            else "transfers: none like these was learned",
        )
    return HeldOut(
        trace.name,
        learned.sources,
        parted,
        iterations,
        _spread([(m, p) for _, m, p in ops], tick),
        {level: levels[level] for level in (*LEVELS, *MODEL_LEVELS) if levels[level]},
        _spread(pairs, tick),
        {way: _spread(listed, tick) for way, listed in sorted(copied.by_way.items())},
        copied.strange,
        measured,
        predicted,
        iterations[1] * learned.period_ns
        if iterations and learned.period_ns is not None and measured is not None
        else None,
        _furthest(ops),
        missing,
    )


def _makespan(
    trace: KinetoTrace, learned: Learned, chosen: Collection[int], durations: Sequence[int]
) -> tuple[int | None, int | None, tuple[str, ...]]:
    if learned.latencies is None or all(op.call is None for op in trace.ops):
        return (
            None,
            None,
            ("the makespan: no launch was recorded; record with ProfilerActivity.CPU as well",),
        )
    replayed = structural_replay(
        structure(trace, latencies=learned.latencies, durations_ns=durations)
    ).ops
    held = [replayed[i] for i in chosen]
    measured = span_ns((op.op.start_ns, op.op.end_ns) for op in held)
    return measured, span_ns((op.simulated_start_ns, op.simulated_end_ns) for op in held), ()


def _spread(pairs: Sequence[tuple[float, float]], tick: int) -> ErrorSpread:
    return spread([m for m, _ in pairs], [p for _, p in pairs], tick)


def _furthest(ops: Sequence[tuple[str, int, int]]) -> tuple[tuple[str, int, int, int], ...]:
    """The names, numbers, measured and predicted times of the groups of ops with the largest total
    errors.
    """
    rows = [
        (name, len(pairs), sum(m for m, _ in pairs), sum(p for _, p in pairs))
        for name, pairs in grouped(
            (name, (measured, predicted)) for name, measured, predicted in ops
        ).items()
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row[3] - row[2]), row[0]))[:_WORST])
