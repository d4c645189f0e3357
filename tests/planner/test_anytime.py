"""What ends a search: so much work, the bound, a callback, Ctrl-C, a clock; and that the work makes
the plan again.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import Instance, instance, instance_on_streams
from rendered import facts
from toys import machine, plateau

from hosim.analysis.lower_bounds import bounded
from hosim.base.search_control import SearchProgress, SearchRecord, searches
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.policies import policy_named
from hosim.study.asked import parse_choice

DRAWS: tuple[Callable[[int, int], Instance], ...] = (instance, instance_on_streams)
CASES = st.builds(
    lambda draw, number: draw(number, 33), st.sampled_from(DRAWS), st.integers(0, 300)
)
FEW = settings(max_examples=3)


def planned(case: Instance, text: str = "hyperoffload", **given: float) -> Plan:
    choice = parse_choice(text)
    return choice.policy.plan(
        case.graph, case.hardware, case.budget_bytes, **{**choice.parameters, **given}
    )


def made(plan: Plan) -> tuple[object, ...]:
    """All that a plan says of the step."""
    return plan.cache_ops, plan.initial, plan.edits


def record(plan: Plan) -> SearchRecord:
    assert plan.search is not None
    return plan.search


def takes(plan: Plan, case: Instance) -> int:
    taken = replay(plan, case.hardware, case.budget_bytes).makespan_ns
    assert taken is not None
    return taken


class At:
    """Is told of checkpoints, and says at which one the search ends: the first with a plan from
    number ``last`` on.
    """

    def __init__(self, last: int) -> None:
        self.last, self.seen = last, list[SearchProgress]()

    def __call__(self, progress: SearchProgress) -> bool:
        self.seen.append(progress)
        return len(self.seen) > self.last


@FEW
@given(CASES, st.integers(0, 25), st.sampled_from((0.1, 0.5)))
def test_the_work_makes_the_plan_again(case: Instance, last: int, effort: float) -> None:
    at = At(last)
    with searches(tell=at):
        ended = planned(case, effort=effort)
    done = record(ended)
    assert done.ended in ("callback", "done")
    assert done.ended == "done" or done.work == at.seen[-1].work
    again = planned(case, done.again)
    assert made(again) == made(ended)
    assert done.ended == "done" or (record(again).work, record(again).ended) == (done.work, "work")
    assert (len(ended.notes) > len(again.notes)) == (done.ended == "callback")


@FEW
@given(CASES)
def test_whoever_is_told_changes_nothing(case: Instance) -> None:
    at = At(10**9)
    with searches(tell=at):
        told = planned(case, effort=0.1)
    plain = planned(case, effort=0.1)
    assert (made(told), told.search) == (made(plain), plain.search)
    work, shares = [seen.work for seen in at.seen], [seen.share for seen in at.seen]
    assert work == sorted(work)
    assert all(0 <= share <= 1 for share in shares)
    found = [seen.makespan_ns for seen in at.seen if seen.makespan_ns is not None]
    assert found == sorted(found, reverse=True)
    for seen in at.seen:  # what is in hand has a bound
        assert (seen.bound_ns is None) == (seen.makespan_ns is None)
        assert seen.bound_ns is None or 0 < seen.bound_ns <= seen.makespan_ns


@FEW
@given(CASES)
def test_more_work_is_never_slower(case: Instance) -> None:
    whole = record(planned(case, effort=0.5)).work
    taken = [
        takes(planned(case, effort=0.5, work=max(1, whole * part // 8)), case)
        for part in (0, 1, 3, 8)
    ]
    assert taken == sorted(taken, reverse=True)


@FEW
@given(CASES, st.sampled_from((0.001, 0.02, 0.1, 0.5)))
def test_a_plan_within_a_share_of_the_bound_is_that_near(case: Instance, within: float) -> None:
    plan = planned(case, within=within, effort=0.3)
    result = bounded(
        replay(plan, case.hardware, case.budget_bytes), plan, case.hardware, case.budget_bytes
    )
    assert result.makespan_ns is not None
    assert result.lower_bound_ns is not None
    near = result.makespan_ns <= result.lower_bound_ns * (1 + within)
    assert record(plan).ended in ("within", "done")
    assert near or record(plan).ended == "done"
    assert record(plan).work <= record(planned(case, effort=0.3)).work


def test_what_is_not_asked_for_ends_nothing() -> None:
    case = instance(3, 33)
    plan = planned(case, effort=0.2, within=0.0)
    assert (record(plan).ended, record(plan).again) == ("done", "hyperoffload:effort=0.2")
    assert not any(["ended" in line for line in plan.notes])


def test_a_search_without_a_plan_goes_on() -> None:
    """Of 49 B, an op needs 60: no plan exists, whoever wants the search to end."""
    with searches(tell=At(0)), pytest.raises(InfeasibleError):
        planned(Instance("none", "none", plateau(4, size=60), machine(below=1), 59), effort=0.1)


def test_policies_that_do_not_search_say_nothing_of_one() -> None:
    assert policy_named("static_split").plan(plateau(4), machine(), 30).search is None


# -- the clock and Ctrl-C
# ------------------------------------------------------------------------------------------


def test_a_clock_ends_it_and_the_work_makes_the_plan_again() -> None:
    case = instance_on_streams(2, 33)
    with searches(seconds=1e-6):
        ended = planned(case, effort=1000.0)
    assert record(ended).ended == "time"
    assert record(ended).again == f"hyperoffload:effort=1000.0:work={record(ended).work}"
    assert made(planned(case, record(ended).again)) == made(ended)


class Interrupting:
    """Presses Ctrl-C at some checkpoints."""

    def __init__(self, *at: int) -> None:
        self.at, self.calls = at, count()

    def __call__(self, progress: SearchProgress) -> None:
        if next(self.calls) in self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def of_python() -> object:
    """A test run may have a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def has_a_plan(case: Instance) -> int:
    """The number of the first checkpoint after one with a plan."""
    at = At(10**9)
    with searches(tell=at):
        planned(case, effort=0.5)
    return next(k for k, seen in enumerate(at.seen) if seen.makespan_ns is not None) + 1


def test_ctrl_c_ends_it_with_its_plan() -> None:
    case = instance_on_streams(2, 33)
    with searches(tell=Interrupting(has_a_plan(case))) as control:
        ended = planned(case, effort=0.5)
    assert control.interrupted
    assert record(ended).ended == "ctrl_c"
    assert made(planned(case, record(ended).again)) == made(ended)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_without_a_plan_in_hand_is_an_interrupt() -> None:
    with searches() as control, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert not control.interrupted


def test_a_second_ctrl_c_is_an_interrupt() -> None:
    case = instance_on_streams(2, 33)
    first = has_a_plan(case)

    class Twice(Interrupting):
        def __call__(self, progress: SearchProgress) -> None:
            if next(self.calls) == first:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), searches(tell=Twice()):
        planned(case, effort=0.5)


def test_an_error_of_the_callback_is_its_callers() -> None:
    def wrong(progress: SearchProgress) -> None:
        raise LookupError(progress.work)

    with pytest.raises(LookupError), searches(tell=wrong):
        planned(instance(3, 33))


def test_progress_in_words() -> None:
    at = SearchProgress(1_500_000, 1_000_000, 10, 0.5)
    assert facts(str(at)) == "1.50 ms, 50.0 %, 50 %"
    assert at.above_bound == 0.5
    assert facts(str(replace(at, makespan_ns=None))) == "50 %"
    assert facts(str(replace(at, bound_ns=None))) == "1.50 ms, 50 %"
