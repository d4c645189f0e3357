"""What the planner's passes make of drawn instances stays what it was: see kept_passes.py for what
to do when it is meant to change.
"""

import pytest
from instances import instance
from kept_passes import INSTANCES, SEED, TABLE, large, passes
from quick_cases import one_in

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", one_in(8, INSTANCES))
def test_a_pass_makes_what_it_made(number: int) -> None:
    assert list(passes(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_passes, and look at what changed"
    )


def test_a_large_graph_is_ordered_and_recomputed_as_it_was() -> None:
    assert list(large()) == KEPT["joined"], (
        "if meant: python tests/kept/write.py kept_passes, and look at what changed"
    )


def test_the_table_has_something_to_say() -> None:
    rows = [row for rows in KEPT.values() for row in rows]
    assert len(KEPT) == len(INSTANCES) + 1
    for name in dict.fromkeys(row[1] for row in rows):
        made = [row[3:] for row in rows if row[1] == name]
        assert len(set(made)) > len(made) / 4, f"{name}: nearly all rows are alike"
