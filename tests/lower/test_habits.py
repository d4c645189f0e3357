"""What users do with a model, a loss, an optimizer and torch: each habit has eager's bits under
``hosim.offload``, or is refused in one line.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

import habits_of_models  # noqa: E402, F401
import habits_of_state  # noqa: E402, F401
import habits_of_steps  # noqa: E402, F401
from habits import HABITS, Eager, offloaded, plain  # noqa: E402

from hosim.errors import InputError  # noqa: E402

FOUND: Counter[str] = Counter()


def results(habit, go):
    torch.manual_seed(7)
    for value in habit(go):
        yield plain(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(14, HABITS))
def test_a_habit_is_eagers_or_refused(name):
    wanted, got = list(results(HABITS[name], Eager)), []
    try:
        got.extend(results(HABITS[name], offloaded))
        FOUND["equal"] += 1
    except InputError as error:
        assert "\n" not in str(error)
        FOUND["refused"] += 1
        wanted = wanted[: len(got)]
    assert got == wanted


@pytest.mark.long
def test_more_than_half_of_the_habits_are_eagers():
    if FOUND.total() < len(HABITS) or "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("the habits were not all tried here")
    assert FOUND["refused"] <= 0.5 * len(HABITS)
