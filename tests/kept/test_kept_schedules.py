"""Schedules for hyper-parallel stay what they were: see kept_schedules.py for what to do when they
are meant to change.
"""

import pytest
from kept_schedules import TABLE, TRACES, rows
from quick_cases import one_in

KEPT = TABLE.kept()


@pytest.mark.parametrize("trace", one_in(20, [*TRACES[7:], *TRACES[:7]]))
def test_schedules_stay_what_they_were(trace: str) -> None:
    assert list(rows(trace)) == KEPT[trace], (
        "if meant: python tests/kept/write.py kept_schedules, and look at what changed"
    )
