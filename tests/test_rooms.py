"""Each room of the tests has a share of what ``make test`` may take."""

from __future__ import annotations

from pathlib import Path

from room_seconds import SHARES

CORES, MINUTES, CHECKS = 2, 8, 1


def test_every_room_has_a_share_and_all_of_them_fit() -> None:
    rooms = {path.parent for path in Path(__file__).parent.glob("*/**/test_*.py")}
    top = {path.relative_to(Path(__file__).parent).parts[0] for path in rooms}
    assert set(SHARES) == {*top, "collection", "files beside the rooms"}
    assert sum(SHARES.values()) <= CORES * (MINUTES - CHECKS) * 60
