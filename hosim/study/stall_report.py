"""Stalls and shadow prices of one question: what it waits for, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hosim import engine
from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.in_cells import InCells
from hosim.result import Result
from hosim.study.blame import ExplainedStall, by_cause, frame_of, stalls_of
from hosim.study.frontier import attempt
from hosim.study.prices import MORE_BANDWIDTH_BYTES_PER_S, MORE_MEMORY_BYTES, Price, prices
from hosim.study.run_policy import check, make_plan
from hosim.study.scenario import Question
from hosim.units import human_time

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Blame(InCells):
    """The stalls of a replay in order of time, and the shadow prices of what it used, the highest first.

    ``replanned`` says that the policy planned again for each price; otherwise prices are those of the plan as it is.
    """

    policy: str
    result: Result
    stalls: Sequence[ExplainedStall]
    prices: Sequence[Price]
    replanned: bool

    @property
    def frame(self) -> DataFrame:
        """One row per stall, with :data:`hosim.study.blame.COLUMNS`."""
        return frame_of(self.stalls)

    @property
    def price_frame(self) -> DataFrame:
        """One row per price: ``what added makespan_ns saves_ns together``."""
        from hosim.study.rows import frame

        rows = [{**{key: getattr(p, key) for key in _PRICE}, "together": ", ".join(p.together)} for p in self.prices]
        return frame(rows, [*_PRICE, "together"])

    @property
    def by_cause(self) -> Mapping[tuple[str, str], int]:
        """Nanoseconds by (cause, channel or empty), the largest first."""
        return by_cause(self.stalls)

    def __str__(self) -> str:
        total = sum(stall.stall_ns for stall in self.stalls)
        if not total:
            return f"{self.policy} takes {human_time(self.result.makespan_ns or 0)} and never waits"
        causes = ", ".join(f"{human_time(ns)} for {channel or cause}" for (cause, channel), ns in self.by_cause.items())
        return f"{self.policy} takes {human_time(self.result.makespan_ns or 0)}, of which its streams wait {human_time(total)}: {causes}"

    __repr__ = __str__
    written_by = "hosim.api.study_cells"


_PRICE = ("what", "added", "makespan_ns", "saves_ns")


def blame(
    question: Question,
    plan: Plan | None = None,
    more_memory_bytes: int = MORE_MEMORY_BYTES,
    more_bandwidth_bytes_per_s: int = MORE_BANDWIDTH_BYTES_PER_S,
    progress: Callable[[str], None] = lambda doing: None,
) -> Blame:
    """Stalls and prices of the policy's plan, or of the ``plan`` given.

    With a ``plan``, prices are those of that plan as it is; without one, the policy plans again for each price. Raises
    :class:`InfeasibleError` if the plan does not fit.
    """
    budget = question.budget_bytes
    made = plan
    if made is None:
        progress(f"{question.choice.label}: planning")
        made = make_plan(question.graph, question.hardware, question.choice, budget)
        check(made, question.hardware, budget)
    result, stalls = stalls_of(made, question.hardware, budget)

    def replanned(hardware: Hardware, within: int) -> Result:
        return attempt(replace(question, hardware=hardware, budget=within))

    def as_it_is(hardware: Hardware, within: int) -> Result:
        assert plan is not None
        return engine.replay(plan, hardware, within)

    found = prices(
        replanned if plan is None else as_it_is, question.hardware, result, more_memory_bytes, more_bandwidth_bytes_per_s, progress
    )
    return Blame(made.policy if plan is not None else question.choice.label, result, stalls, found, plan is None)
