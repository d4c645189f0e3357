"""What importers say of damaged files stays what it was: see kept_damage.py for what to do when it
is meant to change.
"""

import pytest
from kept_damage import NAMES, TABLE, rows

KEPT = TABLE.kept()
QUICK = ("hyper_parallel", "mindir_mlp", "g10")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in QUICK)) for name in NAMES]
)
def test_what_is_said_of_damage_stays_what_it_was(name: str) -> None:
    assert list(rows(name)) == KEPT[name], (
        "if meant: python tests/kept/write.py kept_damage, and look at what changed"
    )
