"""The search as a whole: more effort continues it, no policy does better, and it ends where nothing
can be gained.
"""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from instances import Instance, instance, instance_on_streams
from quick_cases import one_in
from toys import hill, layers, machine, plateau, two_tiers

from hosim.analysis import static_peak
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.engine import replay, verdict
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.hyperoffload import (
    Found,
    PlannedGraph,
    Search,
    search,
    stretched,
    sweeping,
    swept,
)
from hosim.planner.hyperoffload.tensor_choices import TensorChoice
from hosim.planner.rewrites import rewriting
from hosim.policies import policy_named
from hosim.policies.own import RIVALS

pytestmark = pytest.mark.slow

EFFORTS = (0.0, 0.2, 1.0, 3.0)
DRAWS: tuple[Callable[[int, int], Instance], ...] = (instance, instance_on_streams)


def planned(case: Instance, **given: float) -> Plan:
    return policy_named("hyperoffload").plan(case.graph, case.hardware, case.budget_bytes, **given)


def makespan(plan: Plan, case: Instance) -> int:
    """Of a plan that must keep every rule and fit."""
    assert verify(plan, case.hardware, case.budget_bytes) == ()
    taken = replay(plan, case.hardware, case.budget_bytes).makespan_ns
    assert taken is not None
    return taken


@pytest.mark.parametrize(
    ("draw", "number"), one_in(3, [(draw, number) for number in range(6) for draw in DRAWS])
)
@pytest.mark.parametrize("seed", one_in(2, [0, 1]))
def test_more_effort_is_never_slower(
    draw: Callable[[int, int], Instance], number: int, seed: int
) -> None:
    case = draw(number, 31)
    taken = [makespan(planned(case, effort=effort, seed=seed), case) for effort in EFFORTS]
    assert taken == sorted(taken, reverse=True)


def test_what_may_become_of_a_graph_is_tried_after_one_step_for_it() -> None:
    """The first step, an even spread, brings no plan where nothing starts below."""
    asked: list[bool] = []

    def variants(search: Search, planned: PlannedGraph) -> Iterator[None]:
        asked.append(search.best is None)
        yield

    search(hill(), machine(), 30, arms=[variants])
    assert asked == [True]


@pytest.mark.parametrize(
    ("draw", "number"), one_in(3, [(draw, number) for number in range(6, 9) for draw in DRAWS])
)
def test_the_same_input_gives_the_same_plan(
    draw: Callable[[int, int], Instance], number: int
) -> None:
    first, again = (planned(draw(number, 31), effort=0.5, seed=5) for _ in range(2))
    assert (first.cache_ops, first.initial, first.edits) == (
        again.cache_ops,
        again.initial,
        again.edits,
    )


@settings(max_examples=6)
@given(draw=st.sampled_from(DRAWS), number=st.integers(0, 400), effort=st.sampled_from((0.0, 0.1)))
def test_no_rival_does_better(
    draw: Callable[[int, int], Instance], number: int, effort: float
) -> None:
    case = draw(number, 32)
    ours = makespan(planned(case, effort=effort), case)
    for name in RIVALS:
        try:
            theirs = policy_named(name).plan(case.graph, case.hardware, case.budget_bytes)
        except InfeasibleError:
            continue
        taken = replay(theirs, case.hardware, case.budget_bytes).makespan_ns
        assert taken is None or ours <= taken


# -- when it ends
# ----------------------------------------------------------------------------------------------


class Watched:
    """An arm that brings nothing: it says which search it is of."""

    search: Search

    def __call__(self, search: Search, planned: PlannedGraph) -> Iterator[None]:
        self.search = search
        return iter(())


def watched(graph: Graph, hw: Hardware, budget: int, **given: float) -> Search:
    """The search that plans a graph."""
    watch = Watched()
    search(graph, hw, budget, arms=[watch], **given)  # type: ignore[arg-type]
    return watch.search


def test_it_ends_where_no_op_waits() -> None:
    """The first plans have no waits: there is no local search, whatever the effort, and nothing
    else is asked.

    What they move and need not is looked for, for two blocks at most.
    """
    graph, hw = plateau(8), machine()
    taken = [watched(graph, hw, 60, effort=effort).work.done for effort in (0.0, 100.0)]
    run = watched(graph, hw, 60)
    assert run.done
    assert run.best is not None
    assert run.best.outcome.cost.makespan_ns == 160
    assert taken[1] < run.whole // 4
    assert run.tried == []


def one_wait(scale: int = 1) -> tuple[Graph, Hardware]:
    """f waits 30 ns for p (30 B) and takes 10 ns: no plan takes less than 40 ns, and the first one
    does not take more. All of that ``scale`` times.
    """
    b = GraphBuilder("one")
    b.tensor("p", 30 * scale, "parameter", "ddr")
    r = b.tensor("r", 1, "output")
    b.op("f", "op", inputs=["p"], outputs=[r], duration_ns=10 * scale)
    for k in range(100):
        b.op(f"aside{k}", "op", duration_ns=0, stream="aux")
    tiers = (Tier("hbm", 10**6, 10**12, "device"), Tier("ddr", 10**6, 10**11))
    channels = Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)
    return b.build(), Hardware("toy", tiers, channels, Compute({}))


@pytest.mark.parametrize(("least_ns", "asked"), [(39_985, 0), (39_970, 1)])
def test_others_are_asked_where_the_bound_leaves_more_than_one_part_in_2000(
    monkeypatch: pytest.MonkeyPatch, least_ns: int, asked: int
) -> None:
    steps = []

    def needed(search: Search, planned: PlannedGraph) -> Iterator[Callable[[], float]]:
        steps.append(search.best is None)
        yield lambda: float("inf")

    monkeypatch.setattr(PlannedGraph, "least_ns", least_ns)
    graph, hw = one_wait(1000)
    assert search(graph, hw, 30_001, needed=[needed]).cost.makespan_ns == 40_000
    assert steps == [False] * asked


def test_it_ends_where_the_lower_bound_is_reached() -> None:
    run = watched(*one_wait(), 31, effort=50.0)
    assert run.best is not None
    assert run.best.outcome.cost.makespan_ns == run.plain.least_ns == 40
    assert not run.done
    assert run.work.done < run.whole


@pytest.mark.parametrize("effort", [0.0, 0.2, 0.5])
def test_work_is_the_limit_what_is_needed_and_one_step(effort: float) -> None:
    """A plan that fits is needed; so is what is asked for in any case."""
    case, needs, steps = instance(3, 31), 10**6, []
    given = case.graph, case.hardware, case.budget_bytes

    def needed(search: Search, planned: PlannedGraph) -> Iterator[Callable[[], float]]:
        for _ in range(3):
            steps.append(search.work.done)
            search.work.done += needs
            yield lambda: float("inf")

    fits, plain = (watched(*given, effort=spent) for spent in (0.0, effort))
    most = max(int(effort * plain.whole), fits.work.done) + 4 * plain.block
    assert not plain.done
    assert (plain.work.done > fits.work.done) == (effort > 0)
    assert plain.work.done <= most
    watch = Watched()
    search(*given, arms=[watch], needed=[needed], effort=effort)
    assert len(steps) == 3
    assert watch.search.work.done <= most + 3 * needs


def test_who_keeps_no_promise_does_not_take_the_work_of_others() -> None:
    """An arm promises half of the time at each step, takes a 40th of the work, and brings
    nothing.
    """
    case, steps = instance(3, 31), []

    def promising(search: Search, planned: PlannedGraph) -> Iterator[Callable[[], float | None]]:
        while True:
            steps.append(search.work.done)
            search.work.done += search.block
            yield lambda: search.best and search.best.outcome.cost.makespan_ns / 2

    without = watched(case.graph, case.hardware, case.budget_bytes)
    search(case.graph, case.hardware, case.budget_bytes, arms=[promising])
    assert without.work.done > without.whole // 2
    assert 2 < len(steps) < 20


def test_what_the_first_variant_gains_promises_nothing_of_the_others() -> None:
    """The first step brings a sweep's plan, which takes 244 ns where the first even spread takes
    407; the others take a 40th of the work each.
    """
    case, taken = instance(10, 31), list[int]()

    def variants(search: Search, planned: PlannedGraph) -> Iterator[None]:
        swept(search, planned, stretched(planned))
        while search.best is not None:
            taken.append(search.best.outcome.cost.makespan_ns)
            search.work.done += search.block
            yield

    search(case.graph, case.hardware, case.budget_bytes, arms=[variants])
    assert taken[0] == 244
    assert len(taken) < 12


@pytest.mark.parametrize("number", [2, 4, 6])
def test_sweeps_go_to_where_no_other_transfer_times_are_faster(number: int) -> None:
    """A fifth more and less were tried beside the best, and two fifths more beside the first."""
    case = instance(number, 31)
    run = Search(case.graph, case.hardware, case.budget_bytes, "hyperoffload", 0, verdict)
    for _ in sweeping()(run, run.plain):
        pass
    taken = {of.slow: takes_ns for of, takes_ns in run.plain.swept if of.placement is None}
    first, best = stretched(run.plain).slow, min(taken, key=lambda slow: taken[slow])
    assert taken[best] < taken[first]
    assert best != pytest.approx(first)
    for factor in (1.2, 1 / 1.2):
        assert any([slow == pytest.approx(best * factor) for slow in taken])
    assert any([slow == pytest.approx(first * 1.4) for slow in taken])


# -- what is returned
# ------------------------------------------------------------------------------------------


@settings(max_examples=4)
@given(draw=st.sampled_from(DRAWS), number=st.integers(0, 400))
@example(draw=instance_on_streams, number=155)  # what does not fit takes long to mend
def test_what_is_returned_never_gets_slower_and_is_hardly_slower_than_the_best(
    draw: Callable[[int, int], Instance], number: int
) -> None:
    case, seen = draw(number, 34), list[tuple[int, int]]()

    def looking(
        search: Search, planned: PlannedGraph
    ) -> Iterator[Callable[[], float | None] | None]:
        while search.best is not None and search.chosen is not None:
            search.work.done += 1000
            if search.nothing_fits:  # it promises nothing, so that others go on
                yield None
                continue
            seen.append(
                (search.chosen.outcome.cost.makespan_ns, search.best.outcome.cost.makespan_ns)
            )
            yield lambda: search.best and search.best.outcome.cost.makespan_ns * 0.9

    search(case.graph, case.hardware, case.budget_bytes, effort=0.05, arms=[looking])
    chosen = [takes for takes, _ in seen]
    assert chosen == sorted(chosen, reverse=True)
    assert all(best <= takes <= best * 1.0006 for takes, best in seen)


def test_of_two_that_take_the_same_the_one_with_more_slack_is_returned() -> None:
    """Eight weights of 10 B, an op of 20 ns each: w3 may return 20 ns before its op, or 60 ns,
    which is no faster.
    """
    graph, hw = plateau(8, home="ddr"), machine()
    problem = Search(graph, hw, 80, "test", 0, replay).plain
    late, early = (
        {t: TensorChoice("ddr", "home", {-1: max(-1, t - ahead)}) for t in range(8)}
        for ahead in (2, 4)
    )
    found = [Found(problem.evaluate(choices), problem, "selection") for choices in (late, early)]
    assert found[0].outcome.cost == found[1].outcome.cost
    assert found[0].slack < found[1].slack
    for order in (found, found[::-1]):
        run = Search(graph, hw, 80, "test", 0, replay)
        for one in order:
            run.offer(one)
        assert run.chosen is found[1]


# -- rewrites
# --------------------------------------------------------------------------------------------------


def test_recomputation_is_found_by_its_arm_alone() -> None:
    """Six tensors of 4 B have to go; a transfer takes 40 ns each way, a relu 1 ns."""
    graph, hw = layers(8, repeatable=True), two_tiers(0.1)
    budget = static_peak(graph).bytes - 24
    moving = search(graph, hw, budget, effort=0.2)
    again = search(graph, hw, budget, effort=0.2, arms=rewriting(True, True)[:1])
    assert (moving.plan.recomputes, again.plan.recomputes > 0) == (0, True)
    assert again.cost.makespan_ns < moving.cost.makespan_ns
    assert verify(again.plan, hw, budget) == ()


@pytest.mark.parametrize(("reorder", "recompute"), [(False, False), (True, False)])
def test_ops_run_again_only_where_they_may(reorder: bool, recompute: bool) -> None:
    graph, hw = layers(8, repeatable=True), two_tiers(0.1)
    found = search(
        graph, hw, static_peak(graph).bytes - 24, effort=0.1, arms=rewriting(reorder, recompute)[:1]
    )
    assert found.plan.recomputes == 0
