"""The atlas: whether it fits, and in which way it runs, is what a comparison says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.io import load_hardware
from hosim.report import atlas_page
from hosim.shipped import find_hardware
from hosim.study import atlas

MODEL = "qwen3-0.6b:layers=2"


@pytest.mark.parametrize("share", [None, 0.97])
def test_a_cell_is_what_a_comparison_says(share: float | None) -> None:
    """With all of the card's memory it fits; with a part of what it needs weights go below."""
    card = load_hardware(find_hardware("rtx-4090"))
    (cell,) = atlas([MODEL], [card], [512])
    if share is not None:
        less = replace(card.tiers[0], capacity_bytes=int(cell.needed_bytes * share))
        card = replace(card, tiers=(less, *card.tiers[1:]))
        (cell,) = atlas([MODEL], [card], [512])
    rows = hosim.compare(
        f"{MODEL}:phase=decode:context=512", card, "resident,static_split"
    ).set_index("policy")
    assert cell.fits == bool(rows.loc["resident", "feasible"]) == (share is None)
    way, policy = ("resident", "resident") if cell.fits else ("below", "static_split")
    time = cell.row[way]
    assert time["ns"] == rows.loc[policy, "makespan_ns"]
    assert time["low_ns"] <= time["ns"] <= time["high_ns"]
    assert cell.command == f"hosim {MODEL}:phase=decode:context=512 -H rtx-4090"


def test_the_page_has_every_row_and_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["atlas", MODEL, "-H", "rtx-4090,h100", "--contexts", "256,512"]
    done = CliRunner().invoke(app, [*asked, "--json", "--html", "page.html"])
    rows = json.loads(done.stdout)["rows"]
    assert [(row["card"], row["context"]) for row in rows] == [
        ("rtx-4090", 256),
        ("h100-80gb-sxm", 256),
        ("rtx-4090", 512),
        ("h100-80gb-sxm", 512),
    ]
    text = (tmp_path / "page.html").read_text()
    assert text == atlas_page(rows, hosim.__version__)
    assert text.count("<br><small>hosim ") == 4
    (folds,) = re.findall(r'<table class="fold(\d+)"', text)
    assert int(folds) * 16 <= 1400  # a small line counts as wide as it is, not as its whole cell
    assert all(row["command"].split(" -H")[0] in text.replace("<wbr>", "") for row in rows)
    shown = CliRunner().invoke(app, asked).stdout
    assert shown.count("yes") == 4
    for wrong in (["--contexts", "many"], ["--contexts", "0"], ["-H", ","]):
        ended = CliRunner().invoke(app, [*asked, *wrong])
        assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)


def test_the_kept_page_is_a_table_in_a_window_of_1400_points(root: Path) -> None:
    """Below the width that its class names, each row is a block."""
    (folds,) = re.findall(r'<table class="fold(\d+)"', (root / "docs/atlas.html").read_text())
    assert int(folds) * 16 <= 1400
