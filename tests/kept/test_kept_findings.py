"""What is said of damaged plans stays what it was: see kept_findings.py for what to do when that is
meant to change.
"""

import pytest
from instances import instance
from kept_findings import INSTANCES, SEED, TABLE, rows
from quick_cases import one_in

KEPT = TABLE.kept()


@pytest.mark.parametrize("number", one_in(8, INSTANCES))
def test_a_finding_stays_what_it_was(number: int) -> None:
    assert list(rows(number)) == KEPT[instance(number, SEED).name], (
        "if meant: python tests/kept/write.py kept_findings, and look at what changed"
    )


RULES = {
    "malformed", "tier", "channel", "direction", "initial", "capacity", "source", "read", "absent", "last-copy", "dead", "end-of-step",
    "edit", "race",
}  # fmt: skip


def test_every_rule_is_broken_somewhere() -> None:
    listed = " ".join(row[3] for number in INSTANCES for row in KEPT[instance(number, SEED).name])
    assert set(listed.split()) >= RULES
