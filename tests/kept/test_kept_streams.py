"""Plans on two streams and over two channels stay what they were: see kept_streams.py for what to
do when they are meant to change.
"""

from dataclasses import replace

import pytest
from instances import instance
from kept_streams import INSTANCES, SEED, TABLE, machine, rows, two_streams

from hosim.engine import replay
from hosim.policies import policy_named

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


@pytest.mark.parametrize("policy", ["on_demand", "lookahead"])
def test_evictions_that_were_not_enough_for_one_stream_are_not_forgotten_for_the_other(
    policy: str,
) -> None:
    """A policy that only believed to have stored a tensor would then drop its last copy."""
    graph = two_streams(instance(1099, 77).graph)
    hbm, ddr, nvme = machine(graph).tiers
    small = replace(
        machine(graph),
        tiers=(hbm, replace(ddr, capacity_bytes=12), replace(nvme, capacity_bytes=24)),
    )
    result = replay(policy_named(policy).plan(graph, small, 122), small, 122)
    assert (result.error or "").startswith("out of memory: op 'f6' wants 28 B of hbm")
