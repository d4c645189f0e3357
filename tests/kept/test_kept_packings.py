"""Packings stay what they were: see kept_packings.py for what to do when they are meant to
change.
"""

import pytest
from kept_packings import PROBLEMS, STEPS, TABLE, rows

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", PROBLEMS)
def test_a_packing_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[f"packing-{number}"], (
        "if meant: python tests/kept/write.py kept_packings, and look at what changed"
    )


def test_some_searches_end_without_a_packing_and_some_run_out_of_steps() -> None:
    searches = [row for rows in KEPT.values() for row in rows if row[1].startswith("search")]
    ends = {(row[3], int(row[2]) < STEPS) for row in searches}
    assert ends == {("True", True), ("False", True), ("False", False)}
