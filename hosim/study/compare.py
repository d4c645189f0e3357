"""Compare policies on one workload, machine and budget: plan each, verify its plan, replay it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hosim.analysis.remarks import NO_RIVALS
from hosim.base.search_control import control_of_searches
from hosim.cache_plan import Plan
from hosim.engine import resident_step
from hosim.errors import HosimError, InfeasibleError
from hosim.result import Result
from hosim.study.asked import check_pinning, notes_on_choice
from hosim.study.reserved_budget import plan_against_reserved
from hosim.study.runs import Question, check, failed, make_plan, replay, unplanned


def compare(
    questions: Sequence[Question],
    progress: Callable[[str], None] = lambda doing: None,
    keep: Callable[[Question, Plan, Result], None] = lambda question, plan, result: None,
    *,
    record: bool = False,
) -> list[Result]:
    """Return the result of each question, in the given order, with ``ideal_ns`` and the measured
    ``planning_s`` and ``replay_s``. The questions differ in their policies; quick ones run first.

    A policy that does not fit has a result with ``feasible`` false; one that is not hosim's own and
    fails has a result with ``failed`` true. ``progress`` gets the name of each step as it starts,
    ``keep`` each question, its plan and its result; ``record`` keeps the timelines.
    Ctrl-C in a block with a search control (:mod:`hosim.base.search_control`) omits the policies
    that have no result yet. It raises :class:`KeyboardInterrupt` if no result fits by then, because
    an omitted policy may. Raises :class:`PlanError` if the plan of one of hosim's own policies
    breaks a rule, which is a bug, and :class:`InputError` if the machine has a pinning time that
    affects no plan (:func:`hosim.study.asked.asked_in_vain.check_pinning`).
    """
    results: dict[int, Result] = {}
    control = control_of_searches()
    for place in _quickest_first(questions):
        question = questions[place]
        graph, hardware, choice = question.graph, question.hardware, question.choice
        if control is not None and control.interrupted:
            break
        begin = time.perf_counter()
        try:
            plan, result = _answer(question, progress, record)
        except InfeasibleError as error:
            result = unplanned(graph, hardware, choice, question.budget_bytes, str(error))
            results[place] = replace(result, planning_s=time.perf_counter() - begin)
        except KeyboardInterrupt:
            if control is None:
                raise
            control.interrupted = True
        except HosimError as error:
            result = failed(graph, hardware, choice, question.budget_bytes, error)
            results[place] = replace(result, planning_s=time.perf_counter() - begin)
        else:
            results[place] = replace(
                result,
                policy=choice.label,
                ideal_ns=resident_step(graph, hardware).makespan_ns,
                notes=(*result.notes, *map(str, notes_on_choice(choice, graph, hardware))),
            )
            keep(question, plan, results[place])
    listed = [results[place] for place in sorted(results)]
    if control is not None and control.interrupted and not any(r.feasible for r in listed):
        raise KeyboardInterrupt
    if len(listed) == len(questions):
        check_pinning(questions[0].hardware, listed)
    return listed


def _quickest_first(questions: Sequence[Question]) -> list[int]:
    """Return the indices of the questions with those of quick policies first, so that their results
    come early.
    """
    return sorted(
        range(len(questions)),
        key=lambda k: questions[k].choice.label.partition(":")[0] in NO_RIVALS,
    )


def _answer(
    question: Question, progress: Callable[[str], None], record: bool
) -> tuple[Plan, Result]:
    """Return the plan and the result of a question, with ``planning_s``."""
    hardware, budget_bytes = question.hardware, question.budget_bytes
    counting, jitter = question.counting, None if question.jitter.is_none else question.jitter
    progress(f"{question.choice.label}: planning")
    begin = time.perf_counter()
    if question.reserved:
        found = plan_against_reserved(question)
        plan, result = found.plan, found.result
    else:
        plan = make_plan(question.graph, hardware, question.choice, budget_bytes)
    planning_s = time.perf_counter() - begin
    if not question.reserved:
        check(plan, hardware, budget_bytes)
    if not question.reserved or jitter is not None:
        progress(f"{question.choice.label}: replaying")
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
