"""The reasons why each tensor moves or stays: what the planner judged, and what the replay of the
plan shows.

A plan of hosim's planner carries the planner's notes (:mod:`hosim.planner.hyperoffload.judgement`),
so each gap has the score by which selection took or left it, and the pass that decided otherwise if
one did. The planner has not judged plans of other policies or from files: of these, an explanation
says what moves and what that brings, and gives no motives. The replay
(:mod:`hosim.planner.hyperoffload.explanations.observed`) says when a tensor is away, what that
saves, and which op waits for its transfers. :func:`explain` is the whole of it;
:mod:`hosim.report.explanation` shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hosim.analysis import Gap, canonical
from hosim.cache_plan import AT_START, DETACH, PREFETCH, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.planner.hyperoffload.explanations.observed import ObservedTransfer, copies, loads, notes
from hosim.planner.hyperoffload.gap_figures import GapFigures, gap_figures
from hosim.planner.hyperoffload.judged_gaps import (
    BEST_SCORE,
    ENOUGH,
    NO_PRESSURE,
    NO_TIER,
    OUTSCORED,
    STARTS_BELOW,
    JudgedGap,
)
from hosim.planner.hyperoffload.judgement import (
    EVERYTHING,
    LEAST_TRAFFIC,
    LOCAL_SEARCH,
    RIVAL,
    SPREAD,
    Judgement,
)
from hosim.planner.hyperoffload.selection import uses_gap
from hosim.planner.hyperoffload.tensor_choices import Problem, analyse, insert
from hosim.planner.schedule import idle_parts_below, plan_for
from hosim.processors import refuse_other_processors
from hosim.result import Result, Stall, Timeline
from hosim.timeline import Interval, Spans, Steps, occupancy, residence
from hosim.units import human_size, human_time

FROM_HOME, SEARCH_MOVED, UNJUDGED_MOVED = "from_home", "search_moved", "unjudged_moved"
NO_PLACE, SEARCH_KEPT, UNJUDGED_KEPT, SPREAD_KEPT, STAYS = (
    "no_place",
    "search_kept",
    "unjudged_kept",
    "spread_kept",
    "stays",
)
REASONS: Mapping[str, str] = {
    BEST_SCORE: "moved: best score",
    STARTS_BELOW: "moved: starts below",
    FROM_HOME: "moved: lives below",
    EVERYTHING: "moved: all must move",
    SPREAD: "moved: spread evenly",
    SPREAD_KEPT: "kept: enough moved",
    LEAST_TRAFFIC: "moved: least traffic",
    STAYS: "kept: has room",
    SEARCH_MOVED: "moved by search",
    UNJUDGED_MOVED: "moved, not judged",
    NO_PRESSURE: "kept: no pressure",
    ENOUGH: "kept: enough moved",
    OUTSCORED: "kept: outscored",
    NO_TIER: "kept: no lower tier",
    NO_PLACE: "kept: no safe place",
    SEARCH_KEPT: "kept by search",
    UNJUDGED_KEPT: "kept, not judged",
}
"""Every verdict on a gap, by its code, in a few words; :attr:`Line.why` says it in full."""


@dataclass(frozen=True, slots=True)
class Line:
    """One gap of one tensor: what the planner judged, what the plan makes of it, and why.

    ``judged`` is selection's note (None: the planner did not judge this gap), ``figures`` the
    descriptions' view of the gap. ``away_ns`` is how long the replay has the tensor out of the
    device tier in this gap, ``saved_bytes`` its bytes if it is away while the op of the largest
    occupancy runs, ``relief_byte_ns`` its bytes times the over-budget time it is away for.
    ``copies`` are places in :attr:`Explanation.copies`, and ``exposed_ns`` is what ops waited for
    these.
    """

    figures: GapFigures
    judged: JudgedGap | None
    moved: bool
    away_ns: int
    saved_bytes: int
    relief_byte_ns: int
    copies: tuple[int, ...]
    exposed_ns: int
    reason: str
    effect: str
    why: str

    @property
    def gap(self) -> Gap:
        """The gap."""
        return self.figures.gap

    @property
    def score(self) -> float | None:
        """Return the score by which selection ranked the gap, in nanoseconds; None if it did not
        judge it.
        """
        return (
            self.judged.score.score
            if self.judged is not None and self.judged.score is not None
            else None
        )


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive ops, ``first`` to ``last``, that are over budget if nothing moves.

    ``over_ns`` is their time, ``over_bytes`` the largest excess and ``over_byte_ns`` the excess
    over that time; ``held_bytes`` is the most that the device tier holds there in the replay of the
    plan.
    """

    first: int
    last: int
    over_ns: int
    over_bytes: int
    over_byte_ns: int
    held_bytes: int


@dataclass(frozen=True)
class Explanation:
    """A plan explained. ``result`` has the channels' figures and the peak; positions are those of
    ``plan.graph``.

    Its tensors are in the order in which the planner had them
    (:mod:`hosim.planner.schedule.order_of_uses`).

    ``origin`` says in words what made the plan and what was judged; ``judgement`` is None where the
    planner judged nothing. ``lines`` come by bytes saved at the peak, then over-budget time
    relieved, then score. ``without_gap_tensors`` and ``without_gap_bytes`` count what has bytes but
    no gap: short-lived tensors, which never move, and those that no op uses.
    """

    plan: Plan
    hardware: Hardware
    result: Result
    origin: str
    judgement: Judgement | None
    peak_op: int
    """The op during which most would be held if nothing moved (-1: there are none), and
    ``peak_bytes`` how much.
    """
    peak_bytes: int
    regions: tuple[Region, ...]
    lines: tuple[Line, ...]
    copies: tuple[ObservedTransfer, ...]
    waits: tuple[Stall, ...]
    loads: Mapping[str, tuple[float, ...]]
    """For each channel, the share of each twentieth of the makespan during which it is busy."""
    without_gap_tensors: int
    without_gap_bytes: int
    notes: tuple[str, ...]
    """Remarks for readers of the transfers, a line each."""


def explain(plan: Plan, hardware: Hardware, budget_bytes: int) -> Explanation:
    """Return the reasons why ``plan`` moves what it moves and keeps what it keeps, and what its
    replay within ``budget_bytes`` of the device tier shows.

    Raises :class:`InputError` for a plan whose policy decides during the replay or with ops on
    other processors, and :class:`InfeasibleError` for one that does not fit.
    """
    if plan.runtime is not None:
        raise InputError(
            f"policy {plan.policy} decides during the replay: there is no plan to explain"
        )
    refuse_other_processors(plan.graph, "plans are explained only if all ops run on the device")
    plan = _as_planned(plan, hardware, budget_bytes)
    result = replay(plan, hardware, budget_bytes, record=True)
    timeline = result.timeline
    if not result.feasible or timeline is None:
        raise InfeasibleError(
            f"the plan of {plan.policy} cannot be explained, it does not fit: {result.error}",
            report=result.error or "",
        )
    graph = plan.graph
    problem = analyse(graph, hardware)
    budget = min(budget_bytes, hardware.device.capacity_bytes)
    peak_op = max(range(len(graph.ops)), key=problem.held_bytes.__getitem__, default=-1)
    found_copies = copies(plan, hardware, timeline, budget_bytes)
    judgement = _judgement(plan, problem)
    lines = _Lines(
        plan, judgement, problem, budget, timeline, result.makespan_ns or 0, found_copies, peak_op
    ).all()
    listed = {line.gap.tensor for line in lines}
    without = [
        tensor.size_bytes
        for t, tensor in enumerate(graph.tensors)
        if t not in listed and tensor.size_bytes
    ]
    return Explanation(
        plan=plan,
        hardware=hardware,
        result=result,
        origin=_origin(plan, judgement, lines),
        judgement=judgement,
        peak_op=peak_op,
        peak_bytes=max(problem.held_bytes, default=0),
        regions=tuple(
            _regions(problem, budget, timeline, occupancy(timeline, hardware.device_tier))
        ),
        lines=tuple(sorted(lines, key=_order)),
        copies=found_copies,
        waits=timeline.stalls,
        loads=loads(result, timeline),
        without_gap_tensors=len(without),
        without_gap_bytes=sum(without),
        notes=notes(found_copies),
    )


def _as_planned(plan: Plan, hardware: Hardware, budget_bytes: int) -> Plan:
    """The plan for the graph that the planner's notes are about, or else in the order of its
    uses.
    """
    if isinstance(plan.judgement, Judgement) and plan.judgement.graph == plan.graph:
        return plan
    return plan_for(
        plan,
        idle_parts_below(
            plan.workload.derived(canonical),
            hardware,
            min(budget_bytes, hardware.device.capacity_bytes),
        ),
    )


def _judgement(plan: Plan, problem: Problem) -> Judgement | None:
    """The planner's notes, if they are about this plan: its cache ops are those that follow from
    the choices, prefetches issued later.
    """
    judgement = plan.judgement
    if not isinstance(judgement, Judgement) or judgement.graph not in (None, plan.graph):
        return None
    if judgement.source == RIVAL or _decided(
        insert(problem, judgement.choices, plan.policy)
    ) == _decided(plan):
        return judgement
    return None


def _decided(plan: Plan) -> list[tuple[int, str, str, str, int]]:
    """Return the moves and when each tensor leaves; what comes up may be issued later than was
    chosen, so that the plan fits where times vary.
    """
    return sorted(
        (c.tensor, c.op, c.source, c.destination or "", AT_START if c.op == PREFETCH else c.after)
        for c in plan.cache_ops
    )


_PLACEMENT = "placement "
"""The prefix of the name of a plan with another placement rule."""

_NAMED = 3
"""So many other policies that were tried are named; a screen has no line for more."""


def _origin(plan: Plan, judgement: Judgement | None, lines: Sequence[Line]) -> str:
    text = _maker(plan, judgement, lines) + _in_draws(plan)
    if judgement is None or not judgement.tried:
        return text
    named = [name for name in judgement.tried if ":" not in name]
    settings = len(judgement.tried) - len(named)
    others = [name for name in named if not name.startswith(_PLACEMENT)]
    rules = len(named) - len(others)
    unnamed = len(others) - _NAMED
    more = [counted(unnamed, "other")] if unnamed > 1 else []
    named = [
        *([counted(rules, "placement rule")] if rules else []),
        *others[: _NAMED if more else None],
        *more,
    ]
    rest = f"; {counted(settings, 'other setting')} of these" if settings else ""
    return f"{text} Tried as well: {', '.join(named)}{rest}."


def _in_draws(plan: Plan) -> str:
    """The reason why it was chosen among plans that take about as long."""
    search = plan.search
    if search is None or search.alike < 2 or search.lost is None:
        return ""
    fits = f"fits in {search.draws - search.failed} of {search.draws} draws of op and copy times"
    return (
        f" It is the best where times vary of {search.alike} plans that take about as long: it "
        f"{fits}, and takes {1 + search.lost:.2f} times as long in them on average."
    )


def _maker(plan: Plan, judgement: Judgement | None, lines: Sequence[Line]) -> str:
    if judgement is None:
        return f"Plan of {plan.policy}: hosim's planner did not judge it."
    if judgement.source == RIVAL:
        return (
            f"Plan of {judgement.rival}: the planner found no better one of its own, and did "
            "not judge what this one moves."
        )
    again = plan.recomputes
    changes = ["in another order"] if plan.edits is not None and plan.edits.order else []
    changes += [f"with {counted(again, 'op')} recomputed"] if again else []
    changed = " and ".join(changes)
    graph = f" on the graph {changed}" if changed else ""
    if judgement.source == EVERYTHING:
        return (
            f"No selection fits{graph}, so every movable tensor moves, and returns as late as "
            "it can."
        )
    if judgement.source == SPREAD:
        return (
            f"Parameters that fit are kept{graph}, the others are fetched for each use and "
            "freed after it, spread evenly over the step."
        )
    if judgement.source == LEAST_TRAFFIC:
        return (
            f"Transfers take far longer than ops{graph}, so as much as possible stays, and the "
            "rest goes to the nearest tier with room."
        )
    if judgement.selection is None:
        return (
            f"Local search made it{graph} from an even spread or another policy's plan: no "
            "selection judged its gaps."
        )
    text = (
        f"Selection judged every gap{graph}, for a budget of "
        f"{human_size(judgement.selection.budget_bytes)}"
    )
    if judgement.source == LOCAL_SEARCH:
        count = sum(line.reason in (SEARCH_MOVED, SEARCH_KEPT) for line in lines)
        return (
            f"{text}; local search then changed {count:,} of its decisions, and when others "
            "are issued."
        )
    return f"{text}; the plan is what it took."


def _order(line: Line) -> tuple[float, ...]:
    rank = line.figures.value if line.judged is None else line.score or 0.0
    return (
        -line.saved_bytes,
        -line.relief_byte_ns,
        -rank,
        -line.figures.bytes,
        line.gap.tensor,
        line.gap.after,
    )


def _regions(problem: Problem, budget: int, timeline: Timeline, held: Steps) -> Iterable[Region]:
    """The pressure points: runs of ops over budget."""
    over = [max(0, level - budget) for level in problem.held_bytes[: len(problem.graph.ops)]]
    first = None
    for i in range(len(over) + 1):
        if i < len(over) and over[i]:
            first = i if first is None else first
        elif first is not None:
            ops = range(first, i)
            begin, end = (
                min(timeline.op_start_ns[k] for k in ops),
                max(timeline.op_end_ns[k] for k in ops),
            )
            times = [problem.durations[k] for k in ops]
            area = sum(over[k] * d for k, d in zip(ops, times, strict=True))
            yield Region(
                first, i - 1, sum(times), max(over[first:i]), area, held.largest(begin, end)
            )
            first = None


class _Lines:
    """The gaps of a plan's graph, each with its verdict."""

    def __init__(
        self,
        plan: Plan,
        judgement: Judgement | None,
        problem: Problem,
        budget: int,
        timeline: Timeline,
        makespan: int,
        found: Sequence[ObservedTransfer],
        peak_op: int,
    ) -> None:
        self.plan = plan
        self.judgement = judgement
        self.graph = plan.graph
        self.problem = problem
        self.budget = budget
        self.timeline = timeline
        self.makespan = makespan
        self.copies = found
        self.peak_op = peak_op
        device = problem.hardware.device_tier
        start, end = timeline.op_start_ns, timeline.op_end_ns
        self.over = Spans(
            (start[i], end[i]) for i in range(len(self.graph.ops)) if problem.held_bytes[i] > budget
        )
        self.residence = residence(timeline, device)
        self.starts_away = {t for t, tiers in plan.residency(device).items() if device not in tiers}
        self.detaches: dict[int, list[int]] = {}
        for c in plan.cache_ops:
            if c.op == DETACH and c.source == device:
                self.detaches.setdefault(c.tensor, []).append(c.after)
        self.moves: dict[int, list[int]] = {}
        for k, copy in enumerate(found):
            self.moves.setdefault(copy.transfer.tensor, []).append(k)

    def all(self) -> list[Line]:
        """One line a gap, by tensor and position."""
        found = gap_figures(self.problem, self.budget)
        by_tensor: dict[int, list[Gap]] = {}
        for figures in found:
            by_tensor.setdefault(figures.gap.tensor, []).append(figures.gap)
        owned = {t: self._owned(t, gaps) for t, gaps in by_tensor.items()}
        return [
            self._line(figures, owned[figures.gap.tensor].get(figures.gap, ())) for figures in found
        ]

    def _owned(self, t: int, gaps: Sequence[Gap]) -> dict[Gap, list[int]]:
        """The transfers of a tensor by the gap that they are issued in, or else the next one."""
        owned: dict[Gap, list[int]] = {}
        for k in self.moves.get(t, ()):
            after = self.plan.cache_ops[self.copies[k].transfer.cache_op].after
            inside = (gap for gap in gaps if gap.after <= after < gap.before)
            later = (gap for gap in gaps if gap.after >= after)
            owned.setdefault(next(inside, next(later, gaps[-1])), []).append(k)
        return owned

    def _line(self, figures: GapFigures, owned: Sequence[int]) -> Line:
        gap = figures.gap
        moved = any(gap.after <= after < gap.before for after in self.detaches.get(gap.tensor, ()))
        moved = moved or (gap.after == AT_START and gap.tensor in self.starts_away)
        away_ns = saved = relief = 0
        if moved:
            for start, end in self._absent(gap):
                away_ns += end - start
                relief += figures.bytes * self.over.within(start, end)
                saved += figures.bytes * self._spans_peak(start, end)
        from_home = gap.after == AT_START and gap.tensor in self.problem.starts_below
        if from_home:  # before its first use it is no part of what would be held if nothing moved
            saved = relief = 0
        judged = (
            self.judgement.by_gap.get(gap) if self.judgement is not None and not from_home else None
        )
        reason, detail = FROM_HOME, f"its home is {self.problem.starts_below.get(gap.tensor)}"
        if not from_home:
            reason, detail = self._verdict(gap, moved, judged)
        effect, exposed_ns = self._effect(owned) if moved else ("", 0)
        why = "; ".join(
            [part for part in (f"{'moved' if moved else 'kept'}: {detail}", effect) if part]
        )
        return Line(
            figures,
            judged,
            moved,
            away_ns,
            saved,
            relief,
            tuple(owned),
            exposed_ns,
            reason,
            effect,
            why,
        )

    def _absent(self, gap: Gap) -> list[Interval]:
        """Return the intervals in which the tensor is out of the device tier in a gap, in the time
        of the replay.
        """
        held = self.residence.get(gap.tensor)
        at = self.timeline.op_end_ns[gap.after] if gap.after != AT_START else 0
        end = (
            self.timeline.op_start_ns[gap.before]
            if gap.before < len(self.graph.ops)
            else self.makespan
        )
        absent = []
        for a, b in held.intervals if held is not None else ():
            if a >= end:
                break
            if b > at:
                absent.append((at, a))
                at = b
        absent.append((at, end))
        return [(a, b) for a, b in absent if b > a]

    def _spans_peak(self, start: int, end: int) -> bool:
        """Return whether an absence lasts throughout the op of the largest occupancy."""
        op = self.peak_op
        return (
            op >= 0
            and start <= self.timeline.op_start_ns[op]
            and self.timeline.op_end_ns[op] <= end
        )

    # -- verdicts
    # ----------------------------------------------------------------------------------------------

    def _effect(self, owned: Sequence[int]) -> tuple[str, int]:
        """Return the effect of a gap's transfers in the replay, in words, and what ops waited for
        them.
        """
        exposed = [self.copies[k] for k in owned if self.copies[k].exposed_ns]
        if not exposed:
            return "overlapped" if owned else "no transfer", 0
        total = sum(copy.exposed_ns for copy in exposed)
        others = sum(len(copy.waiting) for copy in exposed) - 1
        name = self.graph.ops[exposed[0].waiting[0]].name + (
            f" and {others} more" if others else ""
        )
        return (
            f"op {name} waits {human_time(total)} for its "
            f"{'prefetch' if exposed[0].up else 'store'}",
            total,
        )

    def _verdict(self, gap: Gap, moved: bool, judged: JudgedGap | None) -> tuple[str, str]:
        """The code of the reason and the reason in words, from the planner's notes alone."""
        judgement = self.judgement
        unjudged = (UNJUDGED_MOVED if moved else UNJUDGED_KEPT), "the planner did not judge it"
        if judgement is None or judgement.source == RIVAL:
            return unjudged
        if not moved and uses_gap(judgement.choices, gap, len(self.graph.ops)):
            return (
                NO_PLACE,
                "chosen, but at no point of the step is it safe to detach it, as streams overlap",
            )
        if judgement.source == EVERYTHING and moved:
            return EVERYTHING, "no selection fits, so every movable tensor moves"
        if judgement.source == SPREAD:
            even = "what moves is spread evenly over the step"
            return (SPREAD, even) if moved else (SPREAD_KEPT, f"{even}, and the rest fits")
        if judgement.source == LEAST_TRAFFIC:
            return (
                (LEAST_TRAFFIC, "it does not fit beside what stays")
                if moved
                else (STAYS, "there is room for it to stay")
            )
        if judgement.selection is None:
            return unjudged
        if judgement.changed(gap):
            took = (SEARCH_MOVED, "by local search, though selection left it")
            return took if moved else (SEARCH_KEPT, "by local search, though selection took it")
        assert judged is not None
        return judged.reason, self._words(judged)

    def _words(self, judged: JudgedGap) -> str:
        """Return the reason that selection took or left a gap."""
        if judged.reason == STARTS_BELOW:
            return "it starts below, so it leaves after its last use too"
        if judged.reason == NO_PRESSURE:
            return "nothing is over budget while it lies idle"
        if judged.reason == NO_TIER:
            return "no lower tier has room for it"
        if judged.reason == ENOUGH:
            return "what moves besides leaves nothing over budget in its gap"
        assert judged.score is not None
        score = signed_time(judged.score.score)
        at = (
            " at "
            f"{self.graph.ops[judged.op].name if judged.op < len(self.graph.ops) else 'the end'}"
            if judged.op >= 0
            else ""
        )
        if judged.reason == OUTSCORED:
            best = (
                f"the best had {signed_time(judged.rival_score)}"
                if judged.rival_score is not None
                else "others had more"
            )
            return f"score {score}{at}, {best}"
        second = (
            f", the next had {signed_time(judged.rival_score)}"
            if judged.rival_score is not None
            else ""
        )
        return f"score {score}{at}, where {human_size(judged.over_bytes)} were over budget{second}"


def signed_time(ns: float) -> str:
    """A score as a time, which may be negative."""
    return f"{'-' if ns < 0 else ''}{human_time(round(abs(ns)))}"
