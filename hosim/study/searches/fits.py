"""Find the largest batch, sequence or model, or the smallest bandwidth or memory, that fits and
does not slow the workload down too much.

The search bisects over an ordered list of values, and replays each value that it probes. Bisection
assumes that a larger value is always harder (batch) or always easier (bandwidth). That need not
hold, so the search probes more values on both sides of the answer, and reports contradictions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hosim.analysis.lower_bounds import LowerBounds
from hosim.base.in_cells import InCells
from hosim.engine import resident_step
from hosim.errors import HosimError, InputError
from hosim.study.asked import Axis, Value, as_integer
from hosim.study.rows_of_answers import figure_columns, figures, frame
from hosim.study.runs import (
    Question,
    bounded_attempt,
    check_fields,
    check_values,
    failure,
)
from hosim.study.same_rows import capped, notes_on_rows
from hosim.study.searches.bisection import (
    Bisected,
    Probed,
    Sought,
    Wanted,
    bisected,
    ends_of,
    ends_shown,
    last_in_draws,
    shown,
)
from hosim.study.searches.frontiers import attempt
from hosim.units import human_size, human_time

if TYPE_CHECKING:
    from pandas import DataFrame

    from hosim.result import Result

STEPS = 100
"""The number of values of a range without a count; bisection probes few of them."""


@dataclass(frozen=True, slots=True)
class Probe(Probed):
    """One value tried, with its position among the values."""

    position: int
    result: Result | None
    draws: tuple[bool, ...] = ()
    """For each draw, true if the value is within the limits; empty if no time is uncertain."""
    by_bound: bool = False
    """True if the lower bound alone excludes the value, so that nothing was planned."""

    @property
    def slowdown(self) -> float | None:
        """The makespan divided by the makespan with everything resident."""
        return None if self.result is None else self.result.slowdown


@dataclass(frozen=True)
class Fit(Sought[Probe], InCells):
    """The answer and the evidence.

    ``exact`` says that the answer and the one beyond it are neighbours in the list. ``interval``
    has the ends between which the answer lies in 9 of 10 draws of what is uncertain, ``None`` for no
    value; it is ``None`` itself where nothing is uncertain.
    ``notes`` are lines about what bounds a channel whose bandwidth was varied beyond it, and about
    why no value changes anything.
    """

    question: Question
    slowdown: float | None
    notes: Sequence[str] = ()
    interval: tuple[Value, Value] | None = None

    @property
    def exact(self) -> bool:
        """Return whether no value lies between the answer and the one beyond it."""
        return self.answer is not None and (
            self.beyond is None or abs(self.answer.position - self.beyond.position) == 1
        )

    @property
    def frame(self) -> DataFrame:
        """One row per probe: the value, ``within``, ``slowdown``, ``ideal_ns``, ``why``, and the
        figures of the replay.
        """
        listed = fit_rows(self)
        return frame(listed, list(listed[0]), (*self.question.notes, *self.notes)).astype(
            {"within": bool}
        )

    def __str__(self) -> str:
        name, ends = " + ".join(self.axis.fields), ends_shown(self.interval, self.axis.values)
        if self.answer is None:
            nearest = self.probes[0 if self.wanted == "largest" else -1]
            return "; ".join(
                [
                    f"no {name} in the range is within the limits{ends}; {shown(nearest.value)}: "
                    f"{nearest.why}",
                    *self.notes,
                ]
            )
        ending = f"{shown(self.answer.value)}{ends} ({_evidence(self.answer)})"
        if self.beyond is not None:
            ending += f"; {shown(self.beyond.value)} is not within the limits: {self.beyond.why}"
        else:
            ending += "; it is the last value of the range"
        return "; ".join(
            [f"the {self.wanted} {name} is {ending}", *self.contradictions, *self.notes]
        )

    __repr__ = __str__


def fit_rows(found: Fit) -> list[dict[str, Value]]:
    """One row per probe, in the order of the values."""
    hardware = found.question.hardware
    nothing: dict[str, Value] = {**dict.fromkeys(figure_columns(hardware)), "feasible": False}
    listed = []
    for probe in found.probes:
        said: dict[str, Value] = {
            " + ".join(found.axis.fields): probe.value,
            "within": probe.within,
            "slowdown": probe.slowdown,
            "ideal_ns": None if probe.result is None else probe.result.ideal_ns,
            "why": probe.why,
        }
        figured = figures(probe.result, hardware) if probe.result else nothing
        listed.append(
            {**said, **{column: value for column, value in figured.items() if column != "error"}}
        )
    return listed


def fit(
    question: Question,
    wanted: Wanted,
    axis: Axis,
    slowdown: float | None = None,
    progress: Callable[[str], None] = lambda doing: None,
    *,
    bounds: bool = True,
) -> Fit:
    """Find the ``largest`` or ``smallest`` value of the axis with which the policy fits within the
    budget.

    ``slowdown`` limits the makespan to a multiple of the one with everything resident (1.05: five
    per cent more). A value whose lower bound exceeds that limit is not planned. A value that the
    workload or the machine refuses is outside the limits. ``bounds`` adds lower bounds to the
    results. Raises :class:`InputError` for an unknown field, fewer than two
    values, and a slowdown below 1.
    """
    check_fields(question, axis.fields)
    check_values(question, [dict.fromkeys(axis.fields, value) for value in axis.values])
    axis = ascending(axis)
    if slowdown is not None and not slowdown >= 1:
        raise InputError(
            f"expected a multiple of at least 1, such as 1.05, got {slowdown}", source="slowdown"
        )

    def probe(i: int) -> Probe:
        progress(f"{' + '.join(axis.fields)} = {axis.values[i]}")
        return _probe(question, axis, i, slowdown)

    def planned(i: int) -> Probe:
        progress(f"{' + '.join(axis.fields)} = {axis.values[i]}, in draws")
        return _probe(question, axis, i, slowdown, by_bound=False)

    order = range(len(axis.values))[:: 1 if wanted == "largest" else -1]
    found = bisected(order, probe)
    probes, ends = _in_draws(question, order, axis, found, planned)
    if bounds:
        probes = {
            i: replace(probe, result=probe.result and bounded_attempt(probe.result))
            for i, probe in probes.items()
        }
    points = [dict.fromkeys(axis.fields, probe.value) for probe in probes.values()]
    replayed = [
        figures(probe.result, question.hardware) for probe in probes.values() if probe.result
    ]
    whole = len(replayed) == len(probes)
    return Fit(
        wanted,
        axis,
        list(probes.values()),
        None if found.answer is None else probes[found.answer],
        None if found.beyond is None else probes[found.beyond],
        list(found.contradictions),
        question,
        slowdown,
        [*(notes_on_rows(question, points, replayed) if whole else []), *capped(question, points)],
        ends,
    )


def _in_draws(
    question: Question,
    order: Sequence[int],
    axis: Axis,
    found: Bisected[Probe],
    probe: Callable[[int], Probe],
) -> tuple[dict[int, Probe], tuple[Value, Value] | None]:
    """Return the answer's 90 % interval, and the probes of the search with those that the interval
    needs in addition.
    """
    probes = dict(found.probes)
    if not any(one.draws or _could_be_drawn(question, axis, one) for one in probes.values()):
        return probes, None

    def within(draw: int, place: int) -> bool:
        i = order[place]
        if i not in probes or probes[i].by_bound:
            probes[i] = probe(i)
        return probes[i].draws[draw] if probes[i].draws else False

    start = 0 if found.answer is None else order.index(found.answer)
    lasts = last_in_draws(len(order), within, start)
    return dict(sorted(probes.items())), ends_of(order, axis.values, lasts)


def _could_be_drawn(question: Question, axis: Axis, probe: Probe) -> bool:
    """Return whether a value that its lower bound excluded has uncertain times."""
    if not probe.by_bound:
        return False
    asked = question.with_settings(dict.fromkeys(axis.fields, probe.value))
    return resident_step(asked.graph, asked.hardware).draws is not None


def sought(largest: str | None, smallest: str | None) -> tuple[Wanted, str]:
    """Return which end is wanted and the text of the range, from the one of the two that is given.

    >>> sought(None, "blocks=1..64")
    ('smallest', 'blocks=1..64')
    """
    return ("smallest", smallest or "") if largest is None else ("largest", largest)


def ascending(axis: Axis) -> Axis:
    """Return the axis with its values in ascending order. Raises :class:`InputError` for fewer than
    two values, and for values that have no order.
    """
    if len(axis.values) < 2:
        raise InputError(
            f"expected at least two values, such as 1..64, got {axis.values[0]!r}",
            source=" + ".join(axis.fields),
        )
    sizes: dict[Value, float] = {}
    for value in axis.values:
        read = as_integer(value)
        share = (
            float(value[:-1])
            if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?%", value)
            else None
        )
        number = read[1] if read else share if isinstance(value, str) else value
        if number is None or isinstance(number, bool):
            raise InputError(
                f"expected numbers, sizes, rates or times, which can be ordered; got {value!r}",
                source=" + ".join(axis.fields),
            )
        sizes[value] = number
    return Axis(axis.fields, tuple(sorted(sizes, key=lambda value: sizes[value])))


def _probe(
    question: Question, axis: Axis, i: int, slowdown: float | None, *, by_bound: bool = True
) -> Probe:
    value = axis.values[i]
    try:
        asked = question.with_settings(dict.fromkeys(axis.fields, value))
        if by_bound and (least := _least_slowdown(asked, slowdown)) is not None:
            why = f"takes at least {_times(least)}, by any plan"
            return Probe(value, False, why, i, None, by_bound=True)
        result = attempt(asked).in_few_draws
    except HosimError as error:
        return Probe(value, False, failure(error), i, None)
    if not result.feasible or result.makespan_ns is None:
        why = failure(HosimError(result.error or "")).partition(";")[0]
        return Probe(
            value, False, f"does not fit within {human_size(result.budget_bytes)}: {why}", i, result
        )
    draws = _within_draws(result, asked, slowdown)
    if slowdown is not None and (result.slowdown is None or result.slowdown > slowdown):
        why = (
            "takes no time with everything resident"
            if result.slowdown is None
            else f"takes {_times(result.slowdown)}"
        )
        return Probe(value, False, why, i, result, draws)
    return Probe(value, True, "", i, result, draws)


def _within_draws(result: Result, asked: Question, slowdown: float | None) -> tuple[bool, ...]:
    """Return, for each draw, true if the plan fits and its slowdown in that draw is within
    ``slowdown``; an empty tuple if no time is uncertain.
    """
    if (drawn := result.drawn) is None:
        return ()
    if slowdown is None:
        return tuple([ns is not None for ns in drawn.makespan_ns])
    alone = resident_step(asked.graph, asked.hardware)
    ideal = None if alone.draws is None else alone.draws.few()
    ideals = [alone.makespan_ns] * drawn.count if ideal is None else ideal.makespan_ns
    return tuple(
        [
            None not in (ns, least) and (ns or 0) <= slowdown * (least or 0)
            for ns, least in zip(drawn.makespan_ns, ideals, strict=True)
        ]
    )


def _least_slowdown(asked: Question, slowdown: float | None) -> float | None:
    """Return the lower bound of any plan's slowdown if it exceeds ``slowdown``, so that no plan has
    to be made; else ``None``.
    """
    alone = resident_step(asked.graph, asked.hardware).makespan_ns
    if slowdown is None or not alone:
        return None
    least = (
        asked.graph.derived_on(asked.hardware, LowerBounds).any_order_ns(
            asked.budget_bytes, repeats=False, homes_kept=False, compete=None
        )
        / alone
    )
    return least if least > slowdown else None


def _times(slowdown: float) -> str:
    return f"{slowdown:.3f} times as long as with everything resident"


def _evidence(probe: Probe) -> str:
    assert probe.result is not None
    makespan = human_time(probe.result.makespan_ns or 0)
    return f"{makespan}, {_times(probe.slowdown)}" if probe.slowdown else makespan
