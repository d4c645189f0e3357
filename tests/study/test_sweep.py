"""Sweeps: what is varied, the rows, the file they go to, and that each is what a direct call
gives.
"""

import csv
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting import lines_run
from sweeping import MACHINE, chain
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import load_any, load_hardware, save_hardware, save_workload
from hosim.io.models import build
from hosim.shipped import find_hardware, find_workload
from hosim.study import sweep
from hosim.study.asked import parse_axis, parse_choice, read_points, read_vary
from hosim.study.rows_of_answers import RowFile
from hosim.study.runs import (
    Packed,
    Question,
    Task,
    check,
    digest,
    make_plan,
    pack,
    point_key,
    pool,
    replay,
    solve,
)


def question(
    policy: str = "belady", budget: int | str | None = "60%", graph: Graph | None = None
) -> Question:
    return Question(graph or chain(12), MACHINE, parse_choice(policy), budget)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "a=25..200GB/s:8",
            (
                "25 GB/s",
                "50 GB/s",
                "75 GB/s",
                "100 GB/s",
                "125 GB/s",
                "150 GB/s",
                "175 GB/s",
                "200 GB/s",
            ),
        ),
        ("a=1GiB..2GiB:3", ("1 GiB", "1.5 GiB", "2 GiB")),
        ("a=0.5 .. 2 ms:4", ("500 us", "1 ms", "1.5 ms", "2 ms")),
        ("a=1..4", (1, 2, 3, 4)),
        ("a=4..1", (4, 3, 2, 1)),
        ("a=1..10:4", (1, 4, 7, 10)),
        ("a=0..1:3", (0, 1)),  # 0.5 is rounded to 0: whole ends, whole values, each once
        ("a=0.5..1:3", (0.5, 0.75, 1.0)),
        ("a=50..100%:3", ("50%", "75%", "100%")),
        ("a=1,2.5,x,true,null,40 GiB", (1, 2.5, "x", True, None, "40 GiB")),
        ("a=3,3", (3,)),
        ("a=1e3,0x10,010", (1000.0, "0x10", 10)),
    ],
)
def test_lists_and_ranges(text: str, values: tuple[object, ...]) -> None:
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "expected FIELD=VALUES"),
        ("=1", "expected FIELD=VALUES"),
        ("a=", "expected values such as"),
        ("a=1..", "between two numbers"),
        ("a=1..2GB/s", "expected a count after a colon"),
        ("a=1..2GB/s:1", "at least 2 values"),
        ("a=1..2GB/s:x", "at least 2 values"),
        ("a=1GB..2:3", "unit at the end"),
        ("a=1..2Gb/s:3", "expected two sizes, rates or times"),
        ("a=1..2GB/s:3:4", "at least 2 values"),
        ("a=1ms..2GB:3", "expected two sizes, rates or times"),
        ("a=0.5..1", "expected a count after a colon"),
        (
            "a=1GB..50%:3",
            "a: expected percentages at both ends of a range or at neither, got '1GB..50%:3'",
        ),
    ],
)
def test_what_is_no_axis_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_axis(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_grids_and_lists_of_points(tmp_path: Path) -> None:
    assert read_vary(["a=1,2", "b+c=x"]) == [
        {"a": 1, "b": "x", "c": "x"},
        {"a": 2, "b": "x", "c": "x"},
    ]
    assert read_vary([{"a": 1, "b": 2}, {"a": 3, "b": 4}]) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    with pytest.raises(InputError, match="a is varied twice"):
        read_vary(["a=1", "b+a=2"])
    with pytest.raises(InputError, match="expected every point of the list to set the same fields"):
        read_vary([{"a": 1}, {"b": 1}])
    (tmp_path / "points.csv").write_text("a, b\n1,40 GiB\n2,null\n")
    assert read_points(str(tmp_path / "points.csv")) == [
        {"a": 1, "b": "40 GiB"},
        {"a": 2, "b": None},
    ]
    (tmp_path / "points.csv").write_text("a,b\n1\n")
    with pytest.raises(InputError, match=r"points\.csv: line 2: expected 2 values, got 1"):
        read_points(str(tmp_path / "points.csv"))


@pytest.mark.long
def test_a_row_is_what_a_direct_call_gives() -> None:
    points = read_vary(
        ["channels.h2d.bandwidth=1..4GB/s:4", "policy=belady,lookahead:k=2", "budget=130B,200B"]
    )
    found = sweep(question(), points)
    assert len(found.rows) == found.computed == 16
    for point, row in zip(points, found.rows, strict=True):
        asked = question().with_settings(point)
        assert (
            asked.hardware.channels[0].bandwidth_bytes_per_s
            == row["channels.h2d.bandwidth_bytes_per_s"]
        )
        plan = make_plan(asked.graph, asked.hardware, asked.choice, asked.budget_bytes)
        result = replay(plan, asked.hardware, asked.budget_bytes)
        assert row["policy"] == point["policy"]
        assert (row["budget"], row["budget_bytes"]) == (
            point["budget"],
            int(str(point["budget"])[:3]),
        )
        assert (row["makespan_ns"], row["hbm_peak_bytes"], row["lower_bound_ns"]) == (
            result.makespan_ns,
            result.peak_bytes["hbm"],
            result.lower_bound_ns,
        )
        assert row["h2d_moved_bytes"] == result.channels["h2d"].bytes
        assert row["transfer_stall_ns"] == result.stall_ns["transfer"]
    assert len({row["makespan_ns"] for row in found.rows}) > 6
    frame = found.frame
    assert list(frame.columns) == list(found.columns)
    for column in frame.columns:
        if column.endswith(("_ns", "_bytes", "_bytes_per_s")):
            assert str(frame[column].dtype) == "Int64", column
    assert frame["feasible"].dtype == bool


def test_fields_of_the_workload_the_policy_and_the_machine() -> None:
    graph = build("small", {"model": "gpt2-xl", "phase": "prefill", "sequence": 64, "layers": 1})
    machine = load_hardware(find_hardware("h100-80gb-sxm"))
    asked = Question(graph, machine, parse_choice("resident"))
    varied = asked.with_settings(
        {
            "workload.sequence": 32,
            "workload.config.n_embd": 800,
            "tiers.hbm.capacity": "20 GiB",
            "devices": 2,
        }
    )
    wanted = {
        "model": "gpt2-xl",
        "phase": "prefill",
        "sequence": 32,
        "layers": 1,
        "config": {"n_embd": 800},
    }
    assert varied.graph == build("small", wanted)
    assert (varied.hardware.device.capacity_bytes, varied.hardware.devices) == (20 * 2**30, 2)
    assert (
        varied.with_settings({"hardware.channels.h2d.latency": "1 ms"})
        .hardware.channels[0]
        .latency_ns
        == 10**6
    )
    assert asked.with_settings({"policy": "lookahead:k=2", "policy.k": 7}).choice == parse_choice(
        "lookahead:k=7"
    )
    assert asked.with_settings({"budget": "50%"}).budget_bytes < asked.budget_bytes
    curved = replace(
        MACHINE, channels=(replace(MACHINE.channels[0], curve=((10, 10**8),)), MACHINE.channels[1])
    )
    within = Question(graph, curved, parse_choice("resident")).with_settings(
        {"channels.h2d.curve.0.bandwidth": "200 MB/s"}
    )
    assert within.hardware.channels[0].curve == ((10, 2 * 10**8),)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("workload.sequenc", "workload: unknown parameter 'sequenc'; did you mean 'sequence'?"),
        (
            "workload.config.n_embed",
            "workload: unknown parameter 'config.n_embed'; did you mean 'config.n_embd'?",
        ),
        ("channels.h2x.bandwidth", "channels.h2x: unknown field 'h2x'; did you mean 'h2d'?"),
        (
            "channels.h2d.bandwith",
            "channels.h2d.bandwith: unknown field 'bandwith'; did you mean 'bandwidth'?",
        ),
        ("channels.h2d", "channels.h2d: expected a path to one value, such as channels.h2d.from"),
        ("channels", "channels: expected a path to one value, such as channels.h2d"),
        (
            "channels.h2d.bandwidth.more",
            "channels.h2d.bandwidth.more: expected a path to one value",
        ),
        ("budge", "budge: unknown field; did you mean 'budget'?"),
        ("worklod.batch", "worklod.batch: unknown field; did you mean 'workload.batch'?"),
        ("policy.kk", "policy lookahead: unknown parameter 'kk'; did you mean 'k'?"),
        ("name", "name: this field cannot be varied"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest(field: str, said: str) -> None:
    graph = build("small", {"model": "gpt2-xl", "phase": "prefill", "sequence": 64, "layers": 1})
    with pytest.raises(InputError) as refused:
        sweep(Question(graph, MACHINE, parse_choice("lookahead")), [{field: 1}])
    assert str(refused.value) == said


def test_a_graph_that_does_not_say_what_it_is_made_from_has_no_fields() -> None:
    with pytest.raises(InputError, match="workload: chain does not say how it was built"):
        sweep(question(), [{"workload.batch": 1}])
    traced = load_any(find_workload("llama-3.1-8b-prefill-4k"))
    with pytest.raises(
        InputError, match=r"workload: unknown|unknown field 'confg'; did you mean 'config'"
    ):
        sweep(question(graph=traced), [{"workload.model.confg.hidden_size": 1}])


def test_failures_are_rows() -> None:
    found = sweep(
        question(),
        read_vary({"budget": [31, 200, 0], "channels.h2d.bandwidth": ["1 GB/s", "0 GB/s", "fast"]}),
    )
    by_point = {(row["budget"], row["channels.h2d.bandwidth"]): row for row in found.rows}
    assert by_point[200, "1 GB/s"]["feasible"]
    assert "out of memory" in str(by_point[31, "1 GB/s"]["error"])
    assert by_point[31, "1 GB/s"]["budget_bytes"] == 31
    assert "channels.h2d.bandwidth: expected a bandwidth above 0 B/s" in str(
        by_point[200, "0 GB/s"]["error"]
    )
    assert "expected a rate such as '55 GB/s'" in str(by_point[200, "fast"]["error"])
    assert "0 B leaves no memory at all" in str(by_point[0, "1 GB/s"]["error"])
    assert sum(bool(row["feasible"]) for row in found.rows) == 1
    assert found.frame["makespan_ns"].isna().sum() == 8


def run(path: Path, points: str = "channels.h2d.bandwidth=1..5GB/s:5") -> Any:
    return sweep(question(), read_vary(points), path)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_it_goes_on_where_it_stopped(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow") if name.endswith("parquet") else None
    whole = run(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    again = run(tmp_path / name)
    assert (again.computed, again.rows) == (0, whole.rows)
    assert (tmp_path / name).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [name]

    def stop(done: int, total: int, failed: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    (tmp_path / name).unlink()
    with pytest.raises(KeyboardInterrupt):
        sweep(
            question(),
            read_vary("channels.h2d.bandwidth=1..5GB/s:5"),
            tmp_path / name,
            progress=stop,
        )
    assert run(tmp_path / name).computed == 2
    assert (tmp_path / name).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_every_cut_of_the_file_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path)
    content = path.read_bytes()
    header, first = content.index(b"\n") + 1, content.index(b"\n", content.index(b"\n") + 1) + 1
    for cut in (0, header + 3, first):
        path.write_bytes(content[:cut])
        found = run(path)
        assert path.read_bytes() == content
        assert found.computed == 5 - max(content[:cut].count(b"\n") - 1, 0)


def test_rows_in_another_order_are_put_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path)
    content = path.read_bytes()
    header, *lines = content.splitlines(keepends=True)
    path.write_bytes(header + b"".join(reversed(lines)))
    assert run(path).computed == 0
    assert path.read_bytes() == content


def test_the_file_of_another_sweep_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path)
    content = path.read_bytes()
    with pytest.raises(InputError, match="this file belongs to another sweep: its columns differ"):
        run(path, "budget=100B,200B")
    with pytest.raises(
        InputError, match="2 of its rows belong to points that this sweep does not have"
    ):
        run(path, "channels.h2d.bandwidth=1..3GB/s:3")
    with pytest.raises(InputError, match=r"5 of its rows belong to points"):
        sweep(question(budget=300), read_vary("channels.h2d.bandwidth=1..5GB/s:5"), path)
    assert path.read_bytes() == content
    path.write_text("something else")
    with pytest.raises(InputError, match="it is not a file of rows"):
        run(path)
    assert path.read_text() == "something else"
    with pytest.raises(InputError, match=r"expected a name that ends in \.csv or \.parquet"):
        run(tmp_path / "rows.txt")
    with pytest.raises(InputError, match="cannot be written"):
        run(tmp_path / "nowhere" / "rows.csv")


def test_a_file_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    columns = ["point", "feasible", "error"]
    row = {"point": "a", "feasible": True, "error": None}

    def refused(call: Callable[[], object]) -> str:
        with pytest.raises(InputError) as raised:
            call()
        return str(raised.value)

    with RowFile(path, columns, ["a"]) as file:
        busy = refused(RowFile(path, columns, ["a"]).__enter__)
        assert (
            busy
            == f"{path}: another sweep is writing to this file; wait for it, or name another file"
        )
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda descriptor, line: len(line) - 1)
            full = refused(lambda: file.append(row))
            assert (
                full == f"{path}: cannot be written: the disk is full; make room and run the same "
                "command again"
            )

            def gone(descriptor: int, line: bytes) -> int:
                raise OSError(5, "Input/output error")

            patched.setattr(os, "write", gone)
            assert (
                refused(lambda: file.append(row))
                == f"{path}: cannot be written: Input/output error"
            )
        file.append(row)
    assert path.read_text() == "point,feasible,error\na,true,\n"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused(lambda: RowFile(tmp_path / "rows.parquet", columns, [])) == (
        f"{tmp_path}/rows.parquet: Parquet needs pyarrow, which is not installed; run: pip "
        "install 'hosim[parquet]', or write .csv"
    )


def test_what_a_row_holds_is_read_back(tmp_path: Path) -> None:
    """Whole numbers as numbers, texts as they are, nothing for nothing; a row of a process that
    died is left out, and so tried again.
    """
    path = tmp_path / "rows.csv"
    columns = ["point", "policy", "feasible", "n", "share", "error"]
    path.write_text(
        "point,policy,feasible,n,share,error\n1,07,true,-12,50%,\n2,,false,,1.5,out of "
        "memory\n3,x,false,,,worker died: killed\n4,x,true"
    )
    with RowFile(path, columns, ["1", "2", "3"]) as file:
        assert file.rows == {
            "1": {
                "point": "1",
                "policy": "07",
                "feasible": True,
                "n": -12,
                "share": "50%",
                "error": None,
            },
            "2": {
                "point": "2",
                "policy": None,
                "feasible": False,
                "n": None,
                "share": "1.5",
                "error": "out of memory",
            },
        }
        assert [type(value) for value in file.rows["1"].values()] == [
            str,
            str,
            bool,
            int,
            str,
            type(None),
        ]
    assert (
        path.read_text()
        == "point,policy,feasible,n,share,error\n1,07,true,-12,50%,\n2,,false,,1.5,out of memory\n"
    )
    path.write_text("point,policy,feasible,n,share,error\n1,x\n")
    with pytest.raises(InputError) as refused:
        RowFile(path, columns, ["1"]).__enter__()
    assert str(refused.value) == (
        f"{path}: this file belongs to another sweep: it has a line of 2 values, not 6; name "
        "another file, or remove this one"
    )


def test_more_points_extend_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path, "channels.h2d.bandwidth=1..3GB/s:3")
    assert run(path).computed == 2
    with path.open() as stream:
        assert [row["channels.h2d.bandwidth_bytes_per_s"] for row in csv.DictReader(stream)] == [
            str(n * 10**9) for n in range(1, 6)
        ]


def test_two_processes_give_the_rows_of_one() -> None:
    points = read_vary(["channels.h2d.bandwidth=1..3GB/s:3", "budget=130B,31B"])
    alone, together = sweep(question(), points), sweep(question(), points, runner=pool(2))
    assert alone.rows == together.rows
    with pytest.raises(InputError, match="jobs: expected a number of processes"):
        pool(0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_workload(chain(12), "w.json")
    save_hardware(MACHINE, "hw.yaml")
    arguments = ["sweep", "w.json", "-H", "hw.yaml", "-p", "belady", "--jobs", "1"]

    def call(*more: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, [*arguments, *more], env={"COLUMNS": "120"})
        return done.exit_code, done.stdout, done.stderr

    code, out, err = call("--vary", "budget=31B,200B", "-o", "rows.csv")
    assert code == 0
    assert "wrote rows.csv: 2 rows, 2 of them computed now" in err
    assert "does not fit" in out
    assert "200B  ####" in out
    code, out, err = call("--vary", "budget=31B,200B", "-o", "rows.csv", "--json")
    data = json.loads(out)
    assert (data["format"], [row["feasible"] for row in data["rows"]]) == (
        "hosim.sweep/1",
        [False, True],
    )
    assert "0 of them computed now" in err
    assert call("--vary", "budget=31B")[0] == 3
    (tmp_path / "points.csv").write_text("budget\n200 B\n")
    assert call("--points", "points.csv")[0] == 0
    for wrong in (
        [],
        ["--vary", "budge=1"],
        ["--vary", "budget=0B"],
        ["--vary", "channels.h2d.bandwidth=4"],
        ["--vary", "budget=1..", "-j", "1"],
    ):
        code, out, err = call(*wrong)
        error = err.removeprefix("note: durations: times as given for all 12 ops\n")
        assert (code, out, error.count("\n"), error[:7]) == (2, "", 1, "error: "), (wrong, out, err)


def test_a_fabric_that_is_told_to_hold_a_channel_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_workload(chain(3), "w.json")
    arguments = ["sweep", "w.json", "-H", "h100-80gb-sxm", "-p", "resident", "-j", "1"]
    alone = CliRunner().invoke(app, [*arguments, "--vary", "channels.h2d.bandwidth=50GB/s,60GB/s"])
    assert "fabrics" not in alone.stderr  # they are raised with it
    said = (
        CliRunner()
        .invoke(
            app,
            [
                *arguments,
                "--vary",
                "channels.h2d.bandwidth=60GB/s",
                "--vary",
                "fabrics.link_in.bandwidth=55GB/s",
            ],
        )
        .stderr
    )
    assert said == (
        "note: durations: times as given for all 3 ops\n"
        "note: channels.h2d.bandwidth exceeds that of fabrics.link_in, 55.0 GB/s: "
        "channels.h2d.bandwidth+fabrics.link_in.bandwidth=... varies both\n"
    )


def test_a_process_unpacks_a_question_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pack(question())
    packed = replace(asked, key="as another process has it")
    loads = []
    unpickle = pickle.loads
    monkeypatch.setattr(pickle, "loads", lambda content: loads.append(1) or unpickle(content))
    rows = [solve(Task(str(n), packed, {"channels.h2d.bandwidth": f"{n} GB/s"})) for n in (1, 2, 3)]
    assert len(loads) == 1
    assert packed.question().graph is packed.question().graph
    assert [row["makespan_ns"] for row in rows] == sorted(
        (row["makespan_ns"] for row in rows), reverse=True
    )
    for other in range(6):  # and keeps no more of them than a few
        Packed(packed.digest, str(other), packed.content).question()
    packed.question()
    assert len(loads) == 1 + 6 + 1


def test_a_point_does_what_a_direct_call_does_and_little_more() -> None:
    packed = pack(question(graph=chain(100)))
    settings = {"channels.h2d.bandwidth": "2 GB/s", "budget": 800}

    def direct() -> None:
        asked = packed.question().with_settings(settings)
        plan = make_plan(asked.graph, asked.hardware, asked.choice, asked.budget_bytes)
        check(plan, asked.hardware, asked.budget_bytes)
        replay(plan, asked.hardware, asked.budget_bytes)

    direct()  # pays for what is derived from the graph once
    assert lines_run(solve, Task("1", packed, settings)) <= lines_run(direct) + 15_000


def test_a_workload_that_is_varied_is_built_once_for_its_points() -> None:
    graph = build("small", {"model": "gpt2-xl", "phase": "prefill", "sequence": 64, "layers": 1})
    asked = Question(graph, MACHINE, parse_choice("resident"))
    first, again = (
        asked.with_settings({"workload.sequence": 32, "budget": budget}) for budget in (100, 200)
    )
    assert first.graph is again.graph
    assert first.graph != graph


def test_keys_tell_questions_and_points_apart() -> None:
    asked = question()
    variants = [
        asked,
        question("lookahead"),
        question("lookahead:k=2"),
        question(budget="61%"),
        question(budget=None),
        question(graph=chain(13)),
        replace(asked, profile=replace(MACHINE, devices=2)),
    ]
    digests = [digest(variant) for variant in variants]
    assert len(set(digests)) == len(variants)
    assert digests == [digest(variant) for variant in variants]
    points = [{}, {"a": 1}, {"a": True}, {"a": "1"}, {"a": 1.5}, {"b": 1}, {"a": None}]
    assert len({point_key(digests[0], point) for point in points}) == len(points)
    assert point_key("x", {"a": 1, "b": 2}) == point_key("x", {"b": 2, "a": 1})


def test_a_slower_channel_gives_no_copy_more_than_it_has() -> None:
    machine = replace(
        MACHINE,
        channels=tuple(
            [
                replace(
                    channel,
                    curve=((10, channel.bandwidth_bytes_per_s),),
                    pageable_bytes_per_s=channel.bandwidth_bytes_per_s,
                )
                for channel in MACHINE.channels
            ]
        ),
    )
    asked = replace(question(), profile=machine)
    changed = asked.with_settings({"channels.h2d.bandwidth": "0.5x"}).hardware
    (slower,) = [channel for channel in changed.channels if channel.name == "h2d"]
    (whole,) = [channel for channel in machine.channels if channel.name == "h2d"]
    own = whole.bandwidth_bytes_per_s // 2
    assert slower.curve == ((10, own),)
    assert slower.ceiling(10, pageable=True) == own
