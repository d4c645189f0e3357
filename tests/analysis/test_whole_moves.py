"""Tensors that move whole although ops use a part of them: what results say, and which verdicts
that leaves.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.io import save_workload

GIB, MS = 2**30, 10**6
TIMES = "durations: times as given for all 2 ops"
PINNED = (
    "pinned: copies of ddr are timed as pinned; pageable ones (the key pageable of a runtime) "
    "reach 18.6 GB/s over h2d"
)


def looked_up(
    rows: int,
    wide: int,
    count: int = 2,
    home: str | None = "ddr",
    writes: bool = False,
    table: int = GIB,
) -> hosim.Graph:
    """Steps that each use ``rows`` of a table of their own, whose rows are ``wide``, and write them
    if so.
    """
    b = hosim.GraphBuilder("tables")
    for i in range(count):
        b.tensor(f"table{i}", table, "parameter", home=home)
        b.tensor(f"row{i}", 8)
        how = {"mutates": [f"table{i}"]} if writes else {"inputs": [f"table{i}"]}
        b.op(
            f"f{i}",
            "gather",
            outputs=[f"row{i}"],
            bytes_accessed=rows * wide + 8,
            duration_ns=MS,
            **how,
        )
    return b.build()


def compared(
    graph: hosim.Graph,
    tmp_path: Path,
    *more: str,
    policies: str = "hyperoffload,layerwise,on_demand",
) -> dict:
    save_workload(graph, tmp_path / "w.json")
    outcome = CliRunner().invoke(
        app,
        [
            "compare-policies",
            str(tmp_path / "w.json"),
            "-H",
            "h100",
            "-p",
            policies,
            *more,
            "--json",
        ],
    )
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_a_step_is_not_told_to_stay_on_the_device_where_whole_tables_move_for_a_row(
    tmp_path: Path,
) -> None:
    """Two tables of 1 GiB take 40 ms over the link, of which ops read 1 KiB each; with all of them
    read the link is too slow.
    """
    whole = compared(looked_up(1, GIB), tmp_path, "-b", "1.5GiB")
    assert whole["do_not_offload"]["reason"] == "link"
    assert not any(
        "unused_bytes" in result or result["notes"] != [TIMES] for result in whole["results"]
    )
    row = compared(looked_up(1, 1024), tmp_path, "-b", "1.5GiB")
    assert "do_not_offload" not in row
    for result in row["results"]:
        assert result["unused_bytes"] == 2 * (GIB - 1024)
        times, whole_moves = result["notes"]
        assert (times, whole_moves.partition(": ")[0]) == (TIMES, "whole")
        assert facts(whole_moves, "table0") == "table0, 1, 2.00 GiB, 2.00 KiB"
    assert row["notes"] == [*row["results"][0]["notes"], PINNED]


@pytest.mark.parametrize(("read", "said"), [(GIB // 64, False), (GIB - GIB // 64, True)])
def test_the_verdict_stays_where_moving_in_parts_would_not_change_it(
    read: int, said: bool, tmp_path: Path
) -> None:
    """Two tables of 1 GiB take 20 ms each, and two devices 4 ms together: a small part of the
    tables takes less, the rest of them more.
    """
    answer = compared(looked_up(1, read, table=GIB), tmp_path, "-b", "1.5GiB").get("do_not_offload")
    assert (answer is not None) == said


def test_what_goes_back_whole_is_said(tmp_path: Path) -> None:
    found = compared(looked_up(1, 1024, writes=True), tmp_path, "-b", "1.5GiB")
    for result in found["results"]:
        assert [facts(line) for line in result["notes"][2:]] == ["1, 2.00 GiB, 2.00 KiB"]
        assert result["unused_bytes"] == 4 * (GIB - 1024)


@given(st.integers(1, 40), st.integers(1, 4), st.booleans())
def test_unused_bytes_are_those_that_no_op_uses(
    accessed: int, readers: int, resident: bool
) -> None:
    """Readers of one tensor of 40 B may each read others of its bytes; an op that says nothing
    reads all.
    """
    b = hosim.GraphBuilder("readers")
    b.tensor("x", 40, "parameter", home=None if resident else "ddr")
    for i in range(readers):
        b.op(f"f{i}", "gather", inputs=["x"], bytes_accessed=accessed, duration_ns=50)
    result = hosim.replay(hosim.plan(b.build(), "toy", "resident"), "toy")
    unused = max(0, 40 - accessed * readers)
    assert result.unused_bytes == (None if resident or not unused else unused)


def test_a_loss_in_one_piece_is_the_builders_choice() -> None:
    """No verdict over all policies where the op that does not fit is the loss; where it is the
    user's own, there is.
    """
    asked = ["-H", "h100", "-p", "layerwise", "-b", "12GB"]
    built = CliRunner().invoke(
        app, ["compare-policies", "llama-3.2-1b:phase=train:batch=1:sequence=8192:layers=1", *asked]
    )
    assert built.exit_code == 3
    assert "whatever the policy" not in built.output
    assert "the loss" in built.output
    large = CliRunner().invoke(
        app,
        [
            "compare-policies",
            "llama-3.2-1b:phase=prefill:layers=1",
            "-H",
            "h100",
            "-p",
            "layerwise",
            "-b",
            "1MB",
        ],
    )
    assert "whatever the policy" in large.output
