"""The stalls and shadow prices of one question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hosim.analysis.slack import Slopes, slopes, spent_ns, step_path
from hosim.base.in_cells import InCells
from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.result import Result
from hosim.study.blame import ExplainedStall, by_cause, frame_of, stalls_of
from hosim.study.prices import MORE_BANDWIDTH_BYTES_PER_S, MORE_MEMORY_BYTES, Price, prices
from hosim.study.runs import Question, check, make_plan
from hosim.study.searches import attempt
from hosim.units import human_time

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Blame(InCells):
    """The stalls of a replay in order of time, and the shadow prices of the resources that it used,
    the highest first.

    ``path_ns`` divides the critical path, over all streams, by processor and channel, the largest
    first; it adds up to the makespan. ``slopes`` are the derivatives of the makespan along it. If
    ``replanned``, the policy planned again for other amounts of device memory. All other prices are
    those of the unchanged plan.
    """

    policy: str
    result: Result
    stalls: Sequence[ExplainedStall]
    prices: Sequence[Price]
    replanned: bool
    path_ns: Mapping[str, int] = field(default_factory=dict)
    slopes: Slopes = field(default_factory=lambda: Slopes({}, {}, {}, {}))

    @property
    def first_order(self) -> list[str]:
        """The lines on the time that small changes save, from the slopes along the critical path;
        empty if none saves time.
        """
        if self.result.replayed is None:
            return []
        rates = {c.name: c.bandwidth_bytes_per_s for c in self.result.replayed[1].channels}
        saved = [
            (round(-slope * rates[name] / 100), f"bandwidth of {name}")
            for name, slope in self.slopes.bandwidth.items()
        ]
        saved += [
            (round(ns / 100), f"speed of {tier}'s ops")
            for tier, ns in self.slopes.processor.items()
        ]
        said = [f"{what} {human_time(ns)}" for ns, what in sorted(saved, reverse=True) if ns]
        return [f"In first order, 1 % more saves: {', '.join(said)}"] if said else []

    @property
    def frame(self) -> DataFrame:
        """One row per stall, with :data:`hosim.study.blame.COLUMNS`."""
        return frame_of(self.stalls, self.result.notes)

    @property
    def price_frame(self) -> DataFrame:
        """One row per price: ``what added makespan_ns saves_ns together note``."""
        from hosim.study.rows_of_answers import frame

        return frame(
            [{**row, "together": ", ".join(row["together"])} for row in price_rows(self.prices)],
            _PRICE,
            self.result.notes,
        )

    @property
    def by_cause(self) -> Mapping[tuple[str, str], int]:
        """Nanoseconds by (cause, object), the largest first, from
        :func:`hosim.study.blame.by_cause`.
        """
        return by_cause(self.stalls)

    def __str__(self) -> str:
        taken = f"{self.policy} takes {human_time(self.result.makespan_ns or 0)}"
        path = ", ".join(f"{human_time(ns)} {what}" for what, ns in self.path_ns.items())
        at = f"; its critical path is {path}" if len(self.path_ns) > 1 else ""
        total = sum(stall.stall_ns for stall in self.stalls)
        if not total:
            return f"{taken} and never waits{at}"
        causes = ", ".join(
            f"{human_time(ns)} for {_cause(*key)}" for key, ns in self.by_cause.items()
        )
        return f"{taken}, and its streams wait {human_time(total)}: {causes}{at}"

    __repr__ = __str__


_PRICE = ("what", "added", "makespan_ns", "saves_ns", "together", "note")


def price_rows(found: Sequence[Price]) -> list[dict[str, Any]]:
    """Return the prices as rows, the highest first."""
    return [
        {
            key: list(value) if isinstance(value := getattr(p, key), tuple) else value
            for key in _PRICE
        }
        for p in found
    ]


def _cause(cause: str, on: str) -> str:
    """Return the cause of a stall, in a sentence."""
    return on or cause if cause == "transfer" or not on else f"{cause} on {on}"


def blame(
    question: Question,
    plan: Plan | None = None,
    more_memory_bytes: int = MORE_MEMORY_BYTES,
    more_bandwidth_bytes_per_s: int = MORE_BANDWIDTH_BYTES_PER_S,
    progress: Callable[[str], None] = lambda doing: None,
) -> Blame:
    """Stalls and prices of the policy's plan, or of the ``plan`` given.

    Prices are those of the plan as it is; but without a ``plan``, the policy plans again for other
    amounts of device memory. Raises :class:`InfeasibleError` if the plan does not fit.
    """
    budget = question.budget_bytes
    made = plan
    if made is None:
        progress(f"{question.choice.label}: planning")
        made = make_plan(question.graph, question.hardware, question.choice, budget)
        check(made, question.hardware, budget)
    result, stalls = stalls_of(made, question.hardware, budget)

    def planned(hardware: Hardware, within: int) -> Result:
        return attempt(replace(question, profile=hardware, budget=within))

    found = prices(
        made,
        question.hardware,
        result,
        more_memory_bytes,
        more_bandwidth_bytes_per_s,
        progress,
        planned if plan is None else None,
    )
    assert result.timeline is not None
    return Blame(
        made.policy if plan is not None else question.choice.label,
        result,
        stalls,
        found,
        plan is None,
        spent_ns(step_path(made, question.hardware, result.timeline), 0, result.makespan_ns or 0),
        slopes(made, question.hardware, result.timeline),
    )
