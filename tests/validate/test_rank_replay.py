"""Ranks replayed together: a collective begins when the last of them has come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto_toys import KERNEL, call, device_op, trace
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io.importers.recordings import KinetoTrace, parse_kineto
from hosim.validate import replay_ranks


def document(
    work: list[int], other: list[int], clock: float = 0, numbered: bool = True, group: str = "0"
) -> dict[str, Any]:
    """Steps of 1 ms: a kernel of so many us, an all-reduce of 50 us that begins when the ``other``
    rank has come, and one more kernel.

    Kernels begin 3 us after their launch, and 2 us after the one before.
    """
    events = []
    for k, (mine, theirs) in enumerate(zip(work, other, strict=True)):
        at = clock + 1000 * k
        came, last = at + 8 + mine + 2, at + 8 + max(mine, theirs) + 2
        args = {
            "Collective name": "allreduce",
            "Process Group Name": group,
            "Process Group Ranks": "[0, 1]",
        } | ({"Seq": k} if numbered else {})
        for n, (name, start, duration, more) in enumerate(
            [
                ("work", at + 8, mine, {}),
                ("ncclDevKernel", came, last + 50 - came, args),
                ("after", last + 52, 10, {}),
            ]
        ):
            events.append(call("cudaLaunchKernel", at + 6 * n, 5, 10 * k + n + 1))
            events.append(device_op(KERNEL, name, start, duration, 10 * k + n + 1, **more))
    return trace(*events)


def ranks(**more: Any) -> list[KinetoTrace]:
    return [
        parse_kineto(document(FAST, SLOW, **more), "rank0"),
        parse_kineto(document(SLOW, FAST, 777, **more), "rank1"),
    ]


FAST, SLOW, SLOWER = [100, 100, 300, 100], [200, 250, 100, 400], [200, 250, 100, 700]


def test_what_the_profiler_says_of_a_collective() -> None:
    found = [op.collective for op in ranks()[0].ops if op.collective is not None]
    assert [(c.name, c.group, c.sequence) for c in found] == [
        ("allreduce", "0 [0, 1]", k) for k in range(4)
    ]


@pytest.mark.parametrize("numbered", [True, False])
def test_collectives_wait_for_the_rank_that_comes_last(numbered: bool) -> None:
    replayed = replay_ranks(ranks(numbered=numbered))
    assert [rank.collectives for rank in replayed] == [4, 4]
    assert [rank.offset_ns for rank in replayed] == [0, 0]  # each clock begins at the first entry
    for rank in replayed:
        assert rank.explained
        assert rank.errors.worst_ns <= 2_000


def test_a_rank_that_is_slower_holds_the_other() -> None:
    """The last work of the slow rank takes 300 us more: the recorded duration of the other's
    collective says nothing of that.
    """
    slow = [
        parse_kineto(document(FAST, SLOW), "rank0"),
        parse_kineto(document(SLOWER, FAST), "rank1"),
    ]
    first = replay_ranks(slow)[0]
    assert first.errors.makespan_ns - first.errors.span_ns == pytest.approx(300_000, abs=3_000)
    assert first.alone.makespan_ns == pytest.approx(first.alone.span_ns, abs=3_000)


def test_recordings_that_are_no_ranks_of_one_run() -> None:
    one = ranks()[0]
    with pytest.raises(InputError, match="no collective is in two of the recordings"):
        replay_ranks([one, parse_kineto(document(SLOW, FAST, group="7"), "rank1")])
    short = parse_kineto(document(SLOW[:2], FAST[:2], numbered=False), "rank1")
    with pytest.raises(InputError, match="another number of collectives of process group 0"):
        replay_ranks([ranks(numbered=False)[0], short])
    with pytest.raises(InputError, match="it has no collective with the other ranks; leave it out"):
        replay_ranks([*ranks(), parse_kineto(document(SLOW, FAST, group="7"), "rank2")])


def test_the_command(tmp_path: Path) -> None:
    paths = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    for path, content in zip(paths, (document(FAST, SLOW), document(SLOW, FAST)), strict=True):
        path.write_text(json.dumps(content))

    def run(*more: str) -> Any:
        return CliRunner().invoke(
            app, ["validate", *map(str, paths), *more], env={"COLUMNS": "120"}
        )

    outcome = run("--max-error", "1%")
    assert outcome.exit_code == 0
    assert "rank1" in outcome.stdout
    data = json.loads(run("--json").stdout)
    assert (data["format"], [rank["explained"] for rank in data["ranks"]]) == (
        "hosim.ranks/1",
        [True, True],
    )
    assert run("--html", str(tmp_path / "r.html")).exit_code == 2
    paths[1].write_text(json.dumps(document(SLOWER, FAST)))
    outcome = run("--max-error", "1%")
    assert outcome.exit_code == 1
    assert "rank0.json: not validated with the other ranks" in outcome.stderr
