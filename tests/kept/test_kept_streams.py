"""Plans on two streams and over two channels stay what they were: see kept_streams.py for what to do when they are meant to change."""

import pytest
from instances import instance
from kept_streams import INSTANCES, SEED, TABLE, rows

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", INSTANCES)
def test_a_plan_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_streams, and look at what changed"
    )


def test_most_rows_move_something_and_end() -> None:
    listed = [row for number in INSTANCES for row in KEPT[instance(number, SEED).name]]
    assert sum(row[7] not in ("", "0") for row in listed) > len(listed) / 2
    assert sum(row[4] != "" for row in listed) > len(listed) / 3
