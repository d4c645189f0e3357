"""Single changes of choices: each start and each absence of a tensor can be reached from the
others.
"""

import pytest
from drawn_choices import reached
from toys import graph, machine

from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    Problem,
    TensorChoice,
    analyse,
    insert,
)


def used_first(b: GraphBuilder) -> None:
    """Op 0 uses ``x``, for whose 10 B there is no room beside the 30 B that ops 1 and 2 use; op 3
    leaves room again.
    """
    b.tensor("x", 10, "parameter")
    b.tensor("a", 30)
    b.op("first", "op", inputs=["x"], duration_ns=10)
    b.op("make", "op", outputs=["a"], duration_ns=20)
    b.op("use", "op", inputs=["a"], duration_ns=20)
    b.op("last", "op", duration_ns=20)


def updated_first(b: GraphBuilder) -> None:
    """Op 0 writes ``x``."""
    b.tensor("x", 10, "parameter")
    b.op("first", "op", inputs=["x"], mutates=["x"], duration_ns=10)
    b.op("last", "op", duration_ns=20)


def makespan(problem: Problem, choice: TensorChoice, budget: int) -> int | None:
    return replay(insert(problem, {0: choice}, "test"), problem.hardware, budget).makespan_ns


def test_what_starts_below_may_rather_be_away_at_the_end() -> None:
    # below from the start, op 0 waits 10 ns for x; with a copy below x leaves for nothing, and
    # returns beside op 3
    problem = analyse(graph(used_first), machine())
    below = TensorChoice("ddr", BELOW, {-1: -1})
    assert makespan(problem, below, 35) == 80
    assert (
        min(
            makespan(problem, choice, 35) or 99
            for choice in reached(problem, {0: below}, 0)
            if choice is not None
        )
        == 70
    )


@pytest.mark.parametrize(("build", "starts"), [(used_first, {COPY}), (updated_first, {COPY, HOME})])
def test_only_what_the_step_writes_needs_a_store_to_leave_at_the_end(
    build: object, starts: set[str]
) -> None:
    made: Graph = graph(build)  # type: ignore[arg-type]
    later = [
        choice
        for choice in reached(
            analyse(made, machine()), {0: TensorChoice("ddr", BELOW, {-1: -1})}, 0
        )
        if choice and 0 in choice.away
    ]
    assert {choice.start for choice in later} == starts
    assert all(-1 not in choice.away for choice in later)
