"""Lower bounds stay what they were: see kept_bounds.py for what to do when they are meant to
change.
"""

import pytest
from instances import instance
from kept_bounds import INSTANCES, SEED, TABLE, rows

KEPT = TABLE.kept()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.long) if number % 4 else number
        for number in INSTANCES
    ],
)
def test_a_bound_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_bounds, and look at what changed"
    )


def test_less_room_lowers_no_bound() -> None:
    for number in INSTANCES:
        for row in KEPT[instance(number, SEED).name]:
            resident, loose, tight = (int(figure) for figure in row[2:5])
            assert resident <= loose <= tight


def test_budgets_and_starts_raise_bounds() -> None:
    listed = [
        [int(figure) for figure in row[2:7]]
        for number in INSTANCES
        for row in KEPT[instance(number, SEED).name]
    ]
    assert sum(loose < tight for _, loose, tight, _, _ in listed) > len(listed) / 4
    assert all(resident < below for resident, _, _, _, below in listed)
    assert all(once <= tight for _, _, tight, once, _ in listed)
