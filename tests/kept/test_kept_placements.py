"""Plans with many tiers below, and decisions at run time, stay what they were: see
kept_placements.py for when they are meant to change.
"""

import pytest
from instances import instance
from kept_placements import EXPERTS, INSTANCES, SEED, TABLE, experts, rows
from quick_cases import one_in

KEPT = TABLE.kept()
ADVICE = "if meant: python tests/kept/write.py kept_placements, and look at what changed"


@pytest.mark.parametrize("number", INSTANCES)
def test_a_plan_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[instance(number, SEED).name], ADVICE


@pytest.mark.parametrize("number", one_in(len(EXPERTS), range(len(EXPERTS))))
def test_what_is_fetched_for_experts_stays_what_it_was(number: int) -> None:
    assert list(experts(number)) == KEPT[f"experts-{number}"], ADVICE


def test_most_rows_move_something_and_end() -> None:
    listed = [row for rows in KEPT.values() for row in rows]
    assert sum(row[6] not in ("", "0") for row in listed) > len(listed) / 2
    assert sum(row[4] != "" for row in listed) > len(listed) / 3
