"""Replays on machines of every kind stay what they were: see kept_replays.py for what to do when
they are meant to change.
"""

import pytest
from instances import instance
from kept_replays import INSTANCES, SEED, TABLE, WAYS, rows
from quick_cases import one_in

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", one_in(2, INSTANCES))
def test_a_replay_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_replays, and look at what changed"
    )


def test_on_every_machine_some_replays_end_and_move_something_and_some_are_out_of_memory() -> None:
    listed = [row for number in INSTANCES for row in KEPT[instance(number, SEED).name]]
    for machine in WAYS:
        of_machine = [row for row in listed if row[2] == machine]
        assert sum(row[4] != "" and row[7] != "0" for row in of_machine) > len(of_machine) / 5
        assert any(row[4] == "" for row in of_machine)
