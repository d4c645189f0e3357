"""Reading profiler traces: handmade ones in both schemas, real ones, damaged ones."""

import gzip
import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kineto_toys import KERNEL, call, device_op, in_the_schema_of_2021, memory, span, step, trace

from hosim.base.files.formats import is_kineto
from hosim.errors import InputError
from hosim.io.importers.recordings import parse_kineto, read_kineto


def test_what_is_where() -> None:
    read = parse_kineto(step(), "step")
    assert read.origin_ns == 1_000_000
    assert [(op.kind, op.stream, op.start_ns, op.duration_ns) for op in read.ops] == [
        ("copy", 7, 40_000, 100_000),
        ("kernel", 7, 145_000, 60_000),
        ("kernel", 20, 210_000, 30_000),
        ("copy", 20, 242_000, 8_000),
    ]
    assert [(op.direction, op.source, op.target, op.size_bytes) for op in read.copies] == [
        ("h2d", "pinned", "device", 4096),
        ("d2h", "device", "pageable", 64),
    ]
    assert [read.calls[op.call or 0].name for op in read.kernels] == ["cudaLaunchKernel"] * 2
    assert [call.role for call in read.calls] == [
        "copy",
        "launch",
        "record",
        "wait",
        "launch",
        "copy",
        "stream_sync",
    ]
    gemm = read.calls[read.kernels[0].call or 0]
    assert gemm.cpu_op is not None
    assert read.cpu_ops[gemm.cpu_op].shapes == ((8, 4), (4, 2))
    assert read.calls[-1].cpu_op is None
    assert [(e.time_ns, e.size_bytes, e.total_allocated) for e in read.device_memory(0)] == [
        (55_000, 512, 4096),
        (112_000, -512, 3584),
    ]
    assert read.kernels[0].grid == (4, 1, 1)
    assert read.device_name == "Toy"


def test_the_schema_of_2021_says_the_same() -> None:
    new, old = parse_kineto(step(), "step"), parse_kineto(in_the_schema_of_2021(step()), "step")
    assert (new.ops, new.calls, new.cpu_ops, new.memory) == (
        old.ops,
        old.calls,
        old.cpu_ops,
        old.memory,
    )


def test_fractions_of_a_microsecond_are_exact(tmp_path: Path) -> None:
    events = trace(
        call("hipLaunchKernel", 0, 1, 1, grid=[2, 1, 1], block=[64, 1, 1]),
        device_op(KERNEL, "k", 0, 0, 1),
    )
    text = json.dumps(events).replace(
        '"ts": 0, "dur": 0', '"ts": 1708407417525512.375, "dur": 0.001'
    )
    (tmp_path / "t.json").write_text(
        text.replace('"ts": 0, "dur": 1', '"ts": 1708407417525511.125, "dur": 1')
    )
    read = read_kineto(tmp_path / "t.json")
    assert (read.ops[0].start_ns, read.ops[0].duration_ns) == (1250, 1)
    assert (read.ops[0].grid, read.ops[0].block) == ((2, 1, 1), (64, 1, 1))


def test_memory_events_by_time_and_then_as_listed() -> None:
    kernel = device_op(KERNEL, "k", 0, 1, 1)
    read = parse_kineto(
        trace(
            kernel,
            memory(9, 512, 2),
            memory(5, 512, 1),
            memory(9, -512, 2),
            memory(7, 1, 3, device_type=0),
        ),
        "t",
    )
    assert [(e.time_ns, e.size_bytes) for e in read.device_memory()] == [
        (5_000, 512),
        (9_000, 512),
        (9_000, -512),
    ]
    assert len(read.memory) == 4


def test_ops_nest_by_their_times() -> None:
    read = parse_kineto(
        trace(
            span("cpu_op", "outer", 0, 10),
            span("cpu_op", "inner", 0, 5),
            span("cpu_op", "other thread", 1, 2, tid="12"),
            call("cudaLaunchKernel", 2, 1, 1),
            call("cudaLaunchKernel", 6, 1, 2),
            device_op(KERNEL, "k", 20, 1, 1),
        ),
        "t",
    )
    assert [op.parent for op in read.cpu_ops] == [None, 0, None]
    assert [call.cpu_op for call in read.calls] == [1, 0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"traceEvents": [{"ph": "X"', "damaged JSON"),
        ("[]", "a list of traceEvents"),
        ('{"traceEvents": 3}', "a list of traceEvents"),
        ('{"traceEvents": []}', "no kernel, copy or memset"),
        (json.dumps(trace(span("cpu_op", "aten::mm", 0, 1))), "no kernel, copy or memset"),
        ('{"traceEvents": [7]}', r"traceEvents\[0\]: expected an object"),
        (
            json.dumps(trace(device_op(KERNEL, "k", 0, -1, 1))),
            r"traceEvents\[0\]: expected a duration of at least 0",
        ),
        (
            json.dumps(trace(device_op(KERNEL, "k", 0, 1, 1) | {"args": 1})),
            r"traceEvents\[0\]: expected an object in args",
        ),
        (
            json.dumps(trace(device_op(KERNEL, "k", 0, 1, 1) | {"ts": "x"})),
            r"traceEvents\[0\]: expected a time in microseconds",
        ),
        (
            json.dumps(trace(device_op(KERNEL, "k", 0, 1, 1))).replace(
                '"ts": 0', '"ts": 1e999999999'
            ),
            "a time in microseconds",
        ),
        (
            json.dumps(trace(device_op(KERNEL, "k", 0, 1, 1))).replace('"ts": 0', '"ts": NaN'),
            "NaN is not a number",
        ),
    ],
)
def test_damaged_files(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        read_kineto(tmp_path / "t.json")
    assert caught.value.source == str(tmp_path / "t.json")


def test_a_truncated_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(step()).encode())[:-20])
    with pytest.raises(InputError, match="damaged gzip file"):
        read_kineto(tmp_path / "t.json.gz")


def test_recognised_by_content() -> None:
    assert is_kineto(json.dumps(step()).encode())
    assert not is_kineto(b'{"nodes": []}')


# File, ops, copies, calls, CPU ops, memory events of the device, ops launched before the recording:
# counted in the files by other means.
REAL = [
    ("h100_vgg13_training", 325, 0, 518, 898, 360, 0),
    ("mi300x_qwen1.5_0.5b", 1517, 1, 1707, 4619, 2588, 463),
    ("alexnet", 98, 16, 361, 359, 0, 0),
]


@pytest.mark.parametrize("expected", REAL, ids=lambda expected: expected[0])
def test_real_traces(shared: Path, expected: tuple) -> None:
    path = shared / "data" / "traces" / f"{expected[0]}.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    read = read_kineto(path)
    orphans = sum(op.call is None for op in read.ops)
    counts = (
        len(read.ops),
        len(read.copies),
        len(read.calls),
        len(read.cpu_ops),
        len(read.device_memory()),
        orphans,
    )
    assert counts == expected[1:]
    events = [e for e in read.device_memory() if e.total_allocated is not None]
    assert all(
        (a.total_allocated or 0) + b.size_bytes == b.total_allocated for a, b in pairwise(events)
    )


def by_arrows(document: dict[str, Any]) -> dict[str, Any]:
    """The same recording without correlation numbers, whose calls and ops are linked by arrows."""
    events, arrows = [], []
    for event in document["traceEvents"]:
        number = event.get("args", {}).get("correlation")
        if number is None or event["cat"] not in (
            "cuda_runtime",
            "kernel",
            "gpu_memcpy",
            "gpu_memset",
        ):
            events.append(event)
            continue
        phase = {"ph": "s"} if event["cat"] == "cuda_runtime" else {"ph": "f", "bp": "e"}
        place = {key: event[key] for key in ("pid", "tid", "ts")}
        arrows.append({"cat": "ac2g", "name": "ac2g", "id": number, **place, **phase})
        events.append(
            event
            | {"args": {key: value for key, value in event["args"].items() if key != "correlation"}}
        )
    return document | {"traceEvents": [*arrows[::-1], *events]}


def test_arrows_stand_for_correlation_numbers() -> None:
    plain, linked = parse_kineto(step(), "x"), parse_kineto(by_arrows(step()), "x")
    assert (
        [op.call for op in linked.ops] == [op.call for op in plain.ops] != [None] * len(plain.ops)
    )
    half = step()
    half["traceEvents"][2]["args"] |= {
        "correlation": 999
    }  # with numbers of their own arrows are not looked at
    arrows = [event for event in by_arrows(step())["traceEvents"] if event.get("cat") == "ac2g"]
    assert (
        parse_kineto(half | {"traceEvents": [*arrows, *half["traceEvents"]]}, "x").ops[0].call
        is None
    )


@pytest.mark.parametrize(
    "name", ["alexnet", "h100_bert_small", "h100_vgg13_training", "mi300x_qwen1.5_0.5b"]
)
def test_arrows_of_real_traces_link_as_their_numbers_do(shared: Path, name: str) -> None:
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    expected = [op.call for op in parse_kineto(document, "x").ops]
    for event in document["traceEvents"]:
        if isinstance(event.get("args"), dict):
            event["args"].pop("correlation", None)
    assert [op.call for op in parse_kineto(document, "x").ops] == expected


OTHERS = {
    "an MTIA device": {
        "ph": "X",
        "cat": "mtia_ccp_events",
        "name": "fc",
        "pid": 0,
        "tid": 1,
        "ts": 1,
        "dur": 2,
        "args": {},
    },
    "an AIU device": {
        "ph": "X",
        "cat": "kernel",
        "name": "mm Cmpt Exec",
        "pid": 0,
        "tid": 1,
        "ts": 1,
        "dur": 2,
        "args": {"TS1": "7"},
    },
    "rocprof": {
        "ph": "X",
        "name": "k",
        "pid": 6,
        "tid": 1,
        "ts": "1",
        "dur": "2",
        "args": {"BeginNs": "1", "EndNs": "2"},
    },
    "Ascend's profiler": {
        "ph": "M",
        "name": "process_name",
        "pid": 1,
        "tid": 0,
        "args": {"name": "Ascend Hardware"},
    },
}


@pytest.mark.parametrize("what", OTHERS)
def test_recordings_of_other_devices_are_named(what: str) -> None:
    host = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 2,
        "args": {},
    }
    with pytest.raises(
        InputError, match=f"of a CUDA or HIP device in it; this seems to be a recording of {what}: "
    ):
        parse_kineto({"schemaVersion": 1, "traceEvents": [host, OTHERS[what]]}, "x")
