"""Replay plans with varied times of ops and transfers, or with other orders of ops.

Each policy plans once, on nominal times. Its plan is replayed with several draws of jitter, which
are the same for every policy (:mod:`hosim.jitter`), and on request with drawn orders of the ops. A
run that does not fit counts as worse than any run that fits: percentiles put it last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.base.nearest_rank import rank
from hosim.cache_plan import AT_START, Plan
from hosim.edits import permuted
from hosim.engine import resident_step
from hosim.errors import HosimError, InfeasibleError, InputError, PlanError, illegal_plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.limits import within
from hosim.notes import each_once, notes
from hosim.result import Result
from hosim.study.asked import PolicyChoice
from hosim.study.rows_of_answers import SLOWDOWN
from hosim.study.runs import Question, check, make_plan

if TYPE_CHECKING:
    from pandas import DataFrame


# -- drawn orders ----------------------------------------------------------------------------------


def drawn_order(graph: Graph, seed: int) -> list[int]:
    """Draw an order of the ops in which each follows its producers (:attr:`Graph.producers`), and
    return their positions.

    The same seed gives the same order everywhere.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("a", 30),
    ...     b.op("f", "any", outputs=["a"]),
    ...     b.op("g", "any", inputs=["a"]),
    ...     b.op("h", "any"),
    ... )
    >>> [drawn_order(b.build(), seed) for seed in (0, 1, 4)]
    [[2, 0, 1], [0, 1, 2], [0, 2, 1]]
    """
    rng = Random(seed)
    left = [len(producers) for producers in graph.producers]
    followers: list[list[int]] = [[] for _ in graph.ops]
    for i, producers in enumerate(graph.producers):
        for p in producers:
            followers[p].append(i)
    ready = [i for i, count in enumerate(left) if not count]
    order = []
    while ready:
        i = ready.pop(int(rng.random() * len(ready)))
        order.append(i)
        for j in followers[i]:
            left[j] -= 1
            if not left[j]:
                ready.append(j)
    return order


def reordered(plan: Plan, order: list[int]) -> Plan:
    """Return the plan with its ops in the order of the positions in ``order``."""
    place = {old: new for new, old in enumerate(order)}
    return replace(
        plan,
        graph=permuted(plan.graph, order),
        cache_ops=tuple(
            [
                move if move.after == AT_START else replace(move, after=place[move.after])
                for move in plan.cache_ops
            ]
        ),
        edits=None,
        proof=None,
        judgement=None,
    )


# -- the study -------------------------------------------------------------------------------------


NOMINAL = 0
"""The number of the run without jitter; the others have numbers from 1."""

FIGURES = ("makespan_ns", "stall_ns", "peak_bytes")
"""The figures of each run: the makespan, the sum of the result's stalls, the peak of the device
tier.
"""

PERCENTILES = (50, 95)

_NO_FIGURES = (None,) * (len(FIGURES) + 1)
_SEEDS = 2**32
"""The distance of seeds, and so the limit of runs: two seeds share no run."""


def robustness(
    questions: Sequence[Question],
    runs: int,
    progress: Callable[[str], None] = lambda doing: None,
    order: bool = False,
) -> DataFrame:
    """Return one row per policy and run: ``policy run feasible makespan_ns stall_ns peak_bytes
    slowdown error``. Run 0 has nominal times.

    With ``order`` each other run has a drawn order of the ops, in which each follows its producers.
    A run whose order makes the plan break a rule does not fit; a runtime policy decides again in
    each run. The slowdown is against everything resident, with nominal times. If a run does not
    fit, times are missing and ``error`` has the reason. Run k of seed s draws the same times for
    every policy. Raises :class:`InputError` if there is nothing to draw, and :class:`PlanError` if
    the plan of one of hosim's own policies breaks a rule even without jitter; another policy that
    fails has its ``error`` in every row.
    """
    from pandas import DataFrame

    if runs < 1 or runs >= _SEEDS:
        raise InputError(f"expected at least 1 run, got {runs}", source="runs")
    within("runs", runs, source="runs")
    asked = questions[0]
    if asked.jitter.is_none and not order:
        raise InputError(
            "without jitter all runs are the same: give --op-sigma, --transfer-sigma or --order",
            source="jitter",
        )
    frame = DataFrame(
        [row for one in questions for row in _rows(one, runs, progress, order)],
        columns=["policy", "run", "feasible", *FIGURES, SLOWDOWN, "error"],
    )
    frame.attrs["notes"] = each_once(notes(asked.graph, asked.hardware))
    return frame.astype({**dict.fromkeys(FIGURES, "Int64"), SLOWDOWN: float})


def _rows(
    question: Question, runs: int, progress: Callable[[str], None], order: bool
) -> Iterator[tuple[Any, ...]]:
    hardware, choice, budget_bytes = question.hardware, question.choice, question.budget_bytes
    jitter = question.jitter
    progress(f"{choice.label}: planning")
    try:
        plan = make_plan(question.graph, hardware, choice, budget_bytes)
        check(plan, hardware, budget_bytes)
    except HosimError as error:
        if choice.policy.is_own and not isinstance(error, InfeasibleError):
            raise
        for run in range(runs + 1):
            yield choice.label, run, False, *_NO_FIGURES, str(error)
        return
    for run in range(runs + 1):
        progress(f"{choice.label}: run {run} of {runs}")
        seed = jitter.seed * _SEEDS + run
        drawn = None if run == NOMINAL or jitter.is_none else replace(jitter, seed=seed)
        try:
            result = engine.replay(
                _in_another_order(plan, hardware, choice, budget_bytes, seed)
                if order and run != NOMINAL
                else plan,
                hardware,
                budget_bytes,
                jitter=drawn,
            )
        except HosimError as error:
            if choice.policy.is_own and (run == NOMINAL or not isinstance(error, PlanError)):
                raise
            yield (
                choice.label,
                run,
                False,
                *_NO_FIGURES,
                str(error),
            )  # streams that overtake one another may break a rule
            continue
        yield _row(
            choice,
            run,
            replace(result, ideal_ns=resident_step(question.graph, hardware).makespan_ns),
            hardware,
        )


def _in_another_order(
    plan: Plan, hardware: Hardware, choice: PolicyChoice, budget_bytes: int, seed: int
) -> Plan:
    """Return the plan in that order. Raises :class:`PlanError` if it then breaks a rule."""
    ordered = reordered(plan, drawn_order(plan.graph, seed))
    if plan.runtime is not None:
        return make_plan(ordered.graph, hardware, choice, budget_bytes)
    findings = verify(ordered, hardware, budget_bytes)
    if findings:
        raise illegal_plan("in this order of its ops the plan breaks a rule", findings)
    return ordered


def _row(choice: PolicyChoice, run: int, result: Result, hardware: Hardware) -> tuple[Any, ...]:
    stall = sum(result.stall_ns.values()) if result.feasible else None
    return (
        choice.label,
        run,
        result.feasible,
        result.makespan_ns,
        stall,
        result.peak_bytes[hardware.device_tier],
        result.slowdown,
        result.error,
    )


def percentiles(frame: DataFrame) -> DataFrame:
    """Summarise the rows of :func:`robustness`, with one row per policy and figure: ``policy figure
    runs infeasible nominal p50 p95``.

    The p-th percentile is the smallest value that p per cent of the runs with jitter do not exceed
    (nearest rank). It is missing if too many runs do not fit; ``nominal`` is missing if the run
    without jitter does not fit.
    """
    from pandas import DataFrame

    rows = []
    for policy, group in frame.groupby("policy", sort=False):
        nominal, drawn = group[group["run"] == NOMINAL].iloc[0], group[group["run"] != NOMINAL]
        fitting, runs = drawn[drawn["feasible"]], len(drawn)
        for figure in FIGURES:
            values = sorted(fitting[figure])
            ranks = [rank(p, runs) for p in PERCENTILES]
            rows.append(
                (
                    policy,
                    figure,
                    runs,
                    runs - len(values),
                    nominal[figure] if nominal["feasible"] else None,
                    *[values[rank - 1] if rank <= len(values) else None for rank in ranks],
                )
            )
    columns = ["policy", "figure", "runs", "infeasible", "nominal", *(f"p{p}" for p in PERCENTILES)]
    return DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[4:], "Int64"))


def failures(frame: DataFrame) -> dict[str, str]:
    """Return, for each policy with runs that do not fit, the reason of the first one, from the rows
    of :func:`robustness`.
    """
    failed = frame[~frame["feasible"]].groupby("policy", sort=False)["error"].first()
    return {str(policy): str(error) for policy, error in failed.items()}
