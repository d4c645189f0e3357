"""Plans and their replays stay what they were, for every policy: see kept_plans.py for what to do
when they are meant to change.
"""

import pytest
from instances import instance
from kept_plans import INSTANCES, SEED, TABLE, plans
from quick_cases import one_in

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", one_in(8, INSTANCES))
def test_a_plan_stays_what_it_was(number: int) -> None:
    assert list(plans(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_plans, and look at what changed"
    )


def test_the_table_has_something_to_say() -> None:
    rows = [row for rows in KEPT.values() for row in rows]
    assert len(KEPT) == len(INSTANCES)
    assert sum(row[6] not in ("", "0") for row in rows) > len(rows) / 3
    assert sum(row[5] not in ("", "0") for row in rows) > len(rows) / 4
