"""One workload, one machine, one budget, several policies: plan each, verify the plan, replay
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hosim.base.search_control import control_of_searches
from hosim.cache_plan import Plan
from hosim.engine import resident_step
from hosim.errors import HosimError, InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on
from hosim.result import Result
from hosim.study.asked import PolicyChoice, check_pinning, notes_on_choice
from hosim.study.reserved_budget import plan_against_reserved
from hosim.study.runs import BY_BYTES, Counting, check, failed, make_plan, replay, unplanned


def compare(
    graph: Graph,
    hardware: Hardware,
    choices: Sequence[PolicyChoice],
    budget_bytes: int,
    progress: Callable[[str], None] = lambda doing: None,
    keep: Callable[[PolicyChoice, Plan, Result], None] = lambda choice, plan, result: None,
    *,
    counting: Counting = BY_BYTES,
    against_reserved: bool = False,
    jitter: Jitter | None = None,
    record: bool = False,
) -> list[Result]:
    """The result of each choice, in the order given, with ``ideal_ns``, and ``planning_s`` and
    ``replay_s`` measured.

    ``against_reserved`` plans as :func:`hosim.study.reserved_budget.plan_against_reserved` does.
    ``jitter`` applies to the replays, not to the plans. A policy that does not fit gives a result
    too, with ``feasible`` false. ``progress`` is called with what starts, ``keep`` with each plan
    and its result; ``record`` keeps the timelines. A policy that is not hosim's own and fails gives
    a result, too, which is ``failed``. Ctrl-C in a block that says what ends searches
    (:mod:`hosim.base.search_control`) leaves out the choices that have no result yet, unless none
    has. Raises :class:`PlanError` if the plan of one of hosim's own breaks a rule, which is a bug,
    and :class:`InputError` for a time of the machine that changes nothing
    (:func:`hosim.study.asked.asked_in_vain.check_pinning`).
    """
    check_measured_on(graph, hardware)
    results: list[Result] = []
    control = control_of_searches()
    for choice in choices:
        if control is not None and control.interrupted:
            return results
        begin = time.perf_counter()
        try:
            plan, result = _answer(
                graph,
                hardware,
                choice,
                budget_bytes,
                progress,
                counting,
                against_reserved,
                jitter,
                record,
            )
        except InfeasibleError as error:
            result = unplanned(graph, hardware, choice, budget_bytes, str(error))
            results.append(replace(result, planning_s=time.perf_counter() - begin))
        except KeyboardInterrupt:
            if control is None or not results:
                raise
            control.interrupted = True
        except HosimError as error:
            result = failed(graph, hardware, choice, budget_bytes, error)
            results.append(replace(result, planning_s=time.perf_counter() - begin))
        else:
            said = (*result.notes, *map(str, notes_on_choice(choice, graph, hardware)))
            results.append(
                replace(
                    result,
                    policy=choice.label,
                    ideal_ns=resident_step(graph, hardware).makespan_ns,
                    notes=said,
                )
            )
            keep(choice, plan, results[-1])
    if len(results) == len(choices):
        check_pinning(hardware, results)
    return results


def _answer(
    graph: Graph,
    hardware: Hardware,
    choice: PolicyChoice,
    budget_bytes: int,
    progress: Callable[[str], None],
    counting: Counting,
    against_reserved: bool,
    jitter: Jitter | None,
    record: bool,
) -> tuple[Plan, Result]:
    """One policy's plan and its result, with ``planning_s``."""
    progress(f"{choice.label}: planning")
    begin = time.perf_counter()
    if against_reserved:
        found = plan_against_reserved(graph, hardware, choice, budget_bytes, counting)
        plan, result = found.plan, found.result
    else:
        plan = make_plan(graph, hardware, choice, budget_bytes)
    planning_s = time.perf_counter() - begin
    if not against_reserved:
        check(plan, hardware, budget_bytes)
    if not against_reserved or jitter is not None:
        progress(f"{choice.label}: replaying")
        result = replay(
            plan, hardware, budget_bytes, counting=counting, jitter=jitter, record=record
        )
    elif record:
        again = replay(
            plan,
            hardware,
            found.planned_bytes,
            counting=counting,
            reserve_bytes=budget_bytes,
            record=True,
            bounds=False,
        )
        result = replace(result, timeline=again.timeline, by_device=again.by_device)
    return plan, replace(result, planning_s=planning_s)
