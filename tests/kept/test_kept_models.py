"""Exact models stay what they were: see kept_models.py for what to do when they are meant to
change.
"""

import pytest
from quick_cases import one_in

pytest.importorskip("ortools", minversion="9.15")

from instances import instance
from kept_models import INSTANCES, SEED, TABLE, rows

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", one_in(2, INSTANCES))
def test_a_model_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_models, and look at what changed"
    )


def test_there_are_conflicts_of_most_schedules() -> None:
    listed = [
        row
        for number in INSTANCES
        for row in KEPT[instance(number, SEED).name]
        if row[2].startswith("conflicts")
    ]
    assert sum(row[3] != "0" for row in listed) > len(listed) / 4
