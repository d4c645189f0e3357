"""Graphs of torch's programs stay what they were: see kept_programs.py for what to do when they are
meant to change.
"""

import pytest
from quick_cases import one_in

pytest.importorskip("torch")

from kept_programs import NAMES, TABLE, VERSION, row

KEPT = TABLE.kept()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", one_in(3, NAMES))
def test_a_program_stays_what_it_was(name: str) -> None:
    if KEPT[name][0][1] != VERSION:
        pytest.skip("other versions of torch may run other ops")
    assert [row(name)] == KEPT[name], (
        "if meant: python tests/kept/write.py kept_programs, and look at what changed"
    )
