"""Why each tensor moves or stays: a plan told in the terms of its graph, its machine and its replay.

Works for the plan of any static policy, since nothing is asked of whoever made it: the gaps and what they could bring are those of
:mod:`hosim.planner.hyperoffload.score`, what happened is read off a recorded replay (:mod:`hosim.planner.hyperoffload.observed`), and
each verdict follows from the two (:func:`_why`). :func:`explain` is the whole of it; :mod:`hosim.report.explanation` shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hosim.analysis.gaps import Gap
from hosim.cache_plan import AT_START, DETACH, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.observed import ObservedTransfer, copies, loads
from hosim.planner.hyperoffload.problem import Problem, analyse
from hosim.planner.hyperoffload.score import Score, scores, spans
from hosim.result import Result, Stall, Timeline
from hosim.timeline import Interval, Spans, Steps, busy, occupancy, residence
from hosim.units import human_time

HIDDEN, EXPOSED, UNNEEDED, FROM_HOME = "hidden", "exposed", "unneeded", "from_home"
NO_PRESSURE, NO_TIER, OVERWRITTEN, TOO_SHORT, CHANNEL_FULL, ENOUGH = (
    "no_pressure",
    "no_tier",
    "overwritten",
    "too_short",
    "channel_full",
    "enough",
)
REASONS: Mapping[str, str] = {
    HIDDEN: "moved: relieves over-budget time, and no op waits for its transfers",
    EXPOSED: "moved: an op waits for one of its transfers",
    UNNEEDED: "moved, though nothing is over budget while it is away",
    FROM_HOME: "moved: it lives below and comes up for its use",
    NO_PRESSURE: "kept: nothing is over budget while it lies idle",
    NO_TIER: "kept: no tier below that can hold it is joined to the device tier both ways",
    OVERWRITTEN: "kept: its next use writes it anew",
    TOO_SHORT: "kept: its gap is shorter than its round trip",
    CHANNEL_FULL: "kept: other transfers leave its channel no time for it",
    ENOUGH: "kept: enough is moved already",
}
"""Every verdict on a gap, by its code."""


@dataclass(frozen=True, slots=True)
class Line:
    """One gap of one tensor: what it could bring (``score``), what the plan makes of it, and why.

    ``away_ns`` is how long the replay has it out of the device tier in this gap, ``saved_bytes`` its bytes if it is away while the op
    of the largest occupancy runs, ``relief_byte_ns`` its bytes times the over-budget time it is away for. ``copies`` are places in
    :attr:`Explanation.copies`.
    """

    score: Score
    moved: bool
    away_ns: int
    saved_bytes: int
    relief_byte_ns: int
    copies: tuple[int, ...]
    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive ops, ``first`` to ``last``, that are over budget if nothing moves.

    ``over_ns`` is their time, ``over_bytes`` the largest excess and ``over_byte_ns`` the excess over that time; ``held_bytes`` is
    the most that the device tier holds there in the replay of the plan.
    """

    first: int
    last: int
    over_ns: int
    over_bytes: int
    over_byte_ns: int
    held_bytes: int


@dataclass(frozen=True)
class Explanation:
    """A plan explained. ``result`` has the channels' figures and the peak; positions are those of ``plan.graph``.

    ``lines`` come by bytes saved at the peak, then over-budget time relieved, then what they could bring. ``without_gap_tensors`` and
    ``without_gap_bytes`` count what has bytes but no gap: short-lived tensors, which never move, and those that no op uses.
    """

    plan: Plan
    hardware: Hardware
    result: Result
    peak_op: int
    """The op during which most would be held if nothing moved (-1: there are none), and ``peak_bytes`` how much."""
    peak_bytes: int
    regions: tuple[Region, ...]
    lines: tuple[Line, ...]
    copies: tuple[ObservedTransfer, ...]
    waits: tuple[Stall, ...]
    loads: Mapping[str, tuple[float, ...]]
    """For each channel, the share of each twentieth of the makespan during which it is busy."""
    without_gap_tensors: int
    without_gap_bytes: int


def explain(plan: Plan, hardware: Hardware, budget_bytes: int) -> Explanation:
    """Why ``plan`` moves what it moves and keeps what it keeps, from its replay within ``budget_bytes`` of the device tier.

    Raises :class:`InputError` for a plan whose policy decides during the replay, and :class:`InfeasibleError` for one that does not fit.
    """
    if plan.runtime is not None:
        raise InputError(f"policy {plan.policy} decides during the replay: there is no plan to explain")
    result = replay(plan, hardware, budget_bytes, record=True)
    timeline = result.timeline
    if not result.feasible or timeline is None:
        raise InfeasibleError(f"the plan of {plan.policy} cannot be explained, it does not fit: {result.error}", report=result.error or "")
    graph = plan.graph
    problem = analyse(graph, hardware)
    budget = min(budget_bytes, hardware.device.capacity_bytes)
    peak_op = max(range(len(graph.ops)), key=problem.held_bytes.__getitem__, default=-1)
    found_copies = copies(plan, hardware, timeline)
    lines = _Lines(plan, problem, budget, timeline, result.makespan_ns or 0, found_copies, peak_op).all()
    listed = {line.score.gap.tensor for line in lines}
    without = [tensor.size_bytes for t, tensor in enumerate(graph.tensors) if t not in listed and tensor.size_bytes]
    return Explanation(
        plan=plan,
        hardware=hardware,
        result=result,
        peak_op=peak_op,
        peak_bytes=max(problem.held_bytes, default=0),
        regions=tuple(_regions(problem, budget, timeline, occupancy(timeline, hardware.device_tier))),
        lines=tuple(sorted(lines, key=_order)),
        copies=found_copies,
        waits=timeline.stalls,
        loads=loads(result, timeline),
        without_gap_tensors=len(without),
        without_gap_bytes=sum(without),
    )


def _order(line: Line) -> tuple[float, ...]:
    score = line.score
    return (-line.saved_bytes, -line.relief_byte_ns, -score.value, -score.bytes, score.gap.tensor, score.gap.after)


def _regions(problem: Problem, budget: int, timeline: Timeline, held: Steps) -> Iterable[Region]:
    """The pressure points: runs of ops over budget."""
    over = [max(0, level - budget) for level in problem.held_bytes[: len(problem.graph.ops)]]
    first = None
    for i in range(len(over) + 1):
        if i < len(over) and over[i]:
            first = i if first is None else first
        elif first is not None:
            ops = range(first, i)
            begin, end = min(timeline.op_start_ns[k] for k in ops), max(timeline.op_end_ns[k] for k in ops)
            times = [problem.durations[k] for k in ops]
            area = sum(over[k] * d for k, d in zip(ops, times, strict=True))
            yield Region(first, i - 1, sum(times), max(over[first:i]), area, held.largest(begin, end))
            first = None


class _Lines:
    """The gaps of a plan's graph, each with its verdict."""

    def __init__(
        self, plan: Plan, problem: Problem, budget: int, timeline: Timeline, makespan: int, found: Sequence[ObservedTransfer], peak_op: int
    ) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.problem = problem
        self.budget = budget
        self.timeline = timeline
        self.makespan = makespan
        self.copies = found
        self.peak_op = peak_op
        device = problem.hardware.device_tier
        start, end = timeline.op_start_ns, timeline.op_end_ns
        self.over = Spans((start[i], end[i]) for i in range(len(self.graph.ops)) if problem.held_bytes[i] > budget)
        self.residence = residence(timeline, device)
        self.starts_away = {t for t, tiers in plan.residency(device).items() if device not in tiers}
        self.busy = busy(timeline)
        self.detaches: dict[int, list[int]] = {}
        for c in plan.cache_ops:
            if c.op == DETACH and c.source == device:
                self.detaches.setdefault(c.tensor, []).append(c.after)
        self.moves: dict[int, list[int]] = {}
        for k, copy in enumerate(found):
            self.moves.setdefault(copy.transfer.tensor, []).append(k)

    def all(self) -> list[Line]:
        """One line a gap, in the order of the scores."""
        found = scores(self.problem, self.budget)
        by_tensor: dict[int, list[Gap]] = {}
        for score in found:
            by_tensor.setdefault(score.gap.tensor, []).append(score.gap)
        owned = {t: self._owned(t, gaps) for t, gaps in by_tensor.items()}
        lines = [self._line(score, owned[score.gap.tensor].get(score.gap, ())) for score in found]
        spare = sorted((line.score for line in lines if line.reason == ENOUGH), key=lambda s: -s.bytes)
        return [self._with_alternatives(line, spare) if line.reason == EXPOSED else line for line in lines]

    def _owned(self, t: int, gaps: Sequence[Gap]) -> dict[Gap, list[int]]:
        """The transfers of a tensor by the gap that they are issued in, or else the next one."""
        owned: dict[Gap, list[int]] = {}
        for k in self.moves.get(t, ()):
            after = self.plan.cache_ops[self.copies[k].transfer.cache_op].after
            inside = (gap for gap in gaps if _issued_in(gap, after))
            later = (gap for gap in gaps if gap.after >= after)
            owned.setdefault(next(inside, next(later, gaps[-1])), []).append(k)
        return owned

    def _line(self, score: Score, owned: Sequence[int]) -> Line:
        gap = score.gap
        moved = any(_issued_in(gap, after) for after in self.detaches.get(gap.tensor, ()))
        moved = moved or (gap.wraps and gap.tensor in self.starts_away)
        away_ns = saved = relief = 0
        if moved:
            for start, end in self._absent(gap):
                away_ns += end - start
                relief += score.bytes * self.over.within(start, end)
                saved += score.bytes * self._spans_peak(start, end)
        if gap.wraps and gap.tensor in self.problem.starts_below:  # it is no part of what would be held if nothing moved
            saved = relief = 0
        line = Line(score, moved, away_ns, saved, relief, tuple(owned), "", "")
        reason, detail = self._why(line)
        return replace(line, reason=reason, why=f"{'moved' if moved else 'kept'}: {detail}")

    def _windows(self, gap: Gap) -> list[Interval]:
        """A gap in the time of the replay."""
        start, end = self.timeline.op_start_ns, self.timeline.op_end_ns
        if gap.wraps:
            return [(0, start[gap.before]), (end[gap.after], self.makespan)]
        return [(end[gap.after], start[gap.before] if gap.before < len(self.graph.ops) else self.makespan)]

    def _absent(self, gap: Gap) -> list[Interval]:
        """When the tensor is out of the device tier in a gap."""
        held = self.residence.get(gap.tensor)
        absent = []
        for start, end in self._windows(gap):
            at = start
            for a, b in held.intervals if held is not None else ():
                if a >= end:
                    break
                if b > at:
                    absent.append((at, a))
                    at = b
            absent.append((at, end))
        return [(a, b) for a, b in absent if b > a]

    def _spans_peak(self, start: int, end: int) -> bool:
        """Whether an absence lasts throughout the op of the largest occupancy."""
        op = self.peak_op
        return op >= 0 and start <= self.timeline.op_start_ns[op] and self.timeline.op_end_ns[op] <= end

    # -- verdicts ----------------------------------------------------------------------------------------------

    def _why(self, line: Line) -> tuple[str, str]:
        return self._why_moved(line) if line.moved else self._why_kept(line)

    def _why_moved(self, line: Line) -> tuple[str, str]:
        ops, gap = self.graph.ops, line.score.gap
        exposed = [self.copies[k] for k in line.copies if self.copies[k].exposed_ns]
        if line.saved_bytes:
            gain = f"covers the peak at op {ops[self.peak_op].name}"
        elif line.relief_byte_ns:
            gain = f"away for {human_time(line.relief_byte_ns // line.score.bytes)} of what is over budget"
        elif gap.tensor in self.problem.starts_below:
            gain = f"lives in {self.problem.starts_below[gap.tensor]}"
        else:
            gain = "though nothing is over budget while it is away"
        if exposed:
            total = human_time(sum(copy.exposed_ns for copy in exposed))
            first = exposed[0]
            others = sum(len(copy.waiting) for copy in exposed) - 1
            more = f" and {others} more" if others else ""
            return EXPOSED, f"{gain}; op {ops[first.waiting[0]].name}{more} waits {total} for its {'prefetch' if first.up else 'store'}"
        channels = dict.fromkeys(self.copies[k].transfer.channel for k in line.copies)
        hidden = f"{' and '.join(channels)} hidden" if channels else "no transfer needed"
        reason = HIDDEN if line.relief_byte_ns else FROM_HOME if gap.tensor in self.problem.starts_below else UNNEEDED
        return reason, f"{gain}, {hidden}"

    def _why_kept(self, line: Line) -> tuple[str, str]:
        score = line.score
        gap = score.gap
        if not score.over_budget_ns:
            return NO_PRESSURE, "never idle while over budget"
        if score.below is None:
            return NO_TIER, "no tier below that can hold it is joined both ways"
        if gap.before < len(self.graph.ops) and gap.tensor not in self.graph.ops[gap.before].reads:
            return OVERWRITTEN, f"op {self.graph.ops[gap.before].name} writes it anew"
        if score.gap_ns < score.transfer_ns:
            return TOO_SHORT, f"gap of {human_time(score.gap_ns)} is shorter than its round trip of {human_time(score.transfer_ns)}"
        below = next(b for b in self.problem.below if b.name == score.below)
        for channel, needed in ((below.down.name, score.down_ns), (below.up.name, score.up_ns)):
            windows = self._windows(gap)
            taken = sum(self.busy[channel].within(a, b) for a, b in windows) if channel in self.busy else 0
            free = sum(b - a for a, b in windows) - taken
            if free < needed:
                return CHANNEL_FULL, f"{channel} is free for {human_time(free)} of its gap, its transfer takes {human_time(needed)}"
        return ENOUGH, "enough moved already"

    def _with_alternatives(self, line: Line, spare: Sequence[Score]) -> Line:
        """An exposed line with what could have gone instead: kept, at least as large, and open wherever this relieves."""
        needed = [(a, b) for a, b in (self._over_positions(piece) for piece in spans(line.score.gap, len(self.graph.ops))) if a <= b]
        for score in spare:
            if score.bytes < line.score.bytes:
                break
            pieces = spans(score.gap, len(self.graph.ops))
            if needed and all(any(c < a and b < d for c, d in pieces) for a, b in needed):
                return replace(line, why=f"{line.why}; {self.graph.tensors[score.gap.tensor].name} was open too")
        return replace(line, why=f"{line.why}; nothing better was open") if line.relief_byte_ns else line

    def _over_positions(self, piece: tuple[int, int]) -> tuple[int, int]:
        """The first and the last position of an open interval that are over budget; the first after the last if none is."""
        held, budget = self.problem.held_bytes, self.budget
        first, last = piece[0] + 1, piece[1] - 1
        while first <= last and held[first] <= budget:
            first += 1
        while last >= first and held[last] <= budget:
            last -= 1
        return first, last


def _issued_in(gap: Gap, after: int) -> bool:
    """Whether a cache op issued after the op ``after`` falls into a gap."""
    if gap.wraps:
        return after >= gap.after or AT_START <= after < gap.before
    return gap.after <= after < gap.before
