"""What builders give stays what it was: see kept_builds.py for what to do when it is meant to
change.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kept_builds import BUILDS, TABLE, rows

KEPT = TABLE.kept()


@pytest.mark.parametrize("builds", BUILDS.values(), ids=BUILDS)
def test_a_build_stays_what_it_was(
    builds: Callable[[], Iterator[tuple[str, dict[str, Any]]]],
) -> None:
    made = list(rows(builds()))
    kept = [
        row
        for name in dict.fromkeys(row[0].partition("/")[0] for row in made)
        for row in KEPT[name]
    ]
    assert made == kept, (
        "if meant: python tests/kept/write.py kept_builds, and look at what changed"
    )


def test_most_drawn_options_go_together() -> None:
    drawn = [row for name in set(BUILDS) & set(KEPT) for row in KEPT[name]]
    assert sum(len(row) > 3 for row in drawn) > len(drawn) / 3
