"""What is said of a study in which nothing has to move."""

from typing import Any

import pytest

from hosim.graph import GraphBuilder
from hosim.io import find_hardware, load_hardware
from hosim.study.policy_choice import parse_choice
from hosim.study.same_rows import same_everywhere
from hosim.study.scenario import Question

B = GraphBuilder("toy")
B.tensor("w", 40, "parameter")
B.op("f", "matmul", inputs=["w"], duration_ns=50)
QUESTION = Question(B.build(), load_hardware(find_hardware("toy")), parse_choice("resident"))


@pytest.mark.parametrize(
    ("makespans", "budgets", "said"),
    [
        ([50, 50], [100, 40], True),
        ([50, 50], [100, 39], False),  # less than the resident peak
        ([50, 60], [100, 100], False),
        ([50], [100], False),
        ([None, None], [100, 100], False),
        ([50, 50], [100, None], False),
    ],
)
def test_rows_that_are_the_same_as_everything_fits(makespans: list[Any], budgets: list[Any], said: bool) -> None:
    rows = [{"makespan_ns": makespan, "budget_bytes": budget} for makespan, budget in zip(makespans, budgets, strict=True)]
    assert same_everywhere(QUESTION, rows) == (
        "every row takes 50 ns: everything fits within 40 B (the resident peak is 40 B), so that nothing has to move; give a smaller "
        "budget, such as -b 75%"
        if said
        else None
    )
