"""Steps under offload and without it that others measured, beside the project: every row is
answered or refused by name.
"""

import csv

import pytest
from offloaded_rows import ASKED, REFUSED, STEPS, Asked, figures, ratio

beside = pytest.mark.skipif(not STEPS.is_file(), reason=f"no {STEPS}")


@beside
def test_every_row_is_answered_or_refused_by_name(monkeypatch) -> None:
    for name in ("ratio", "gib"):
        monkeypatch.setattr(f"offloaded_rows.{name}", lambda *_: (1.0, 1.0, 1.0))
    found = list(figures())
    names = {row["id"] for row in csv.DictReader(STEPS.read_text().splitlines())}
    assert {figure.row for figure in found} == names
    assert {figure.row for figure in found if not figure.refused} == ASKED.keys()
    refused = {name: [one for one in REFUSED if name.startswith(one)] for name in names}
    assert all(bool(refused[name]) != (name in ASKED) for name in names)
    assert {begins for some in refused.values() for begins in some} == REFUSED.keys()


def test_half_of_an_optimizer_on_the_cpu_adds_half_to_a_step() -> None:
    step = "qwen3-0.6b:phase=train:sequence=64:layers=12"
    half, whole = [
        ratio(
            Asked(
                f"{step}:optimizer_on=ddr:optimizer_share={share}",
                step, "megatron-te", False, share, ("h100",),
            ),
            1.0,
        )
        for share in (0.8, 1.0)
    ]  # fmt: skip
    assert [each - 1 for each in half] == pytest.approx([0.8 * (each - 1) for each in whole], 0.1)
    assert 1 < whole[1] < whole[0] < whole[2]
