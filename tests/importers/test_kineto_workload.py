"""Profiler traces as workloads: by hand, real ones against the memory they recorded, mutated
ones.
"""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kineto_toys import (
    COPY,
    KERNEL,
    call,
    device_op,
    graph_of,
    in_the_schema_of_2021,
    memory,
    span,
    step,
    trace,
)
from typer.testing import CliRunner

from hosim.analysis import static_peak
from hosim.cache_plan import Plan
from hosim.cli.main import app
from hosim.engine import replay
from hosim.errors import HosimError
from hosim.graph import Graph
from hosim.hardware import Compute, Hardware, Tier
from hosim.io import load_any, load_workload, save_workload
from hosim.io.importers.recordings import parse_kineto
from hosim.validate.recorded_steps import structural_replay, structure

WEIGHT = 512


def of(*events: dict) -> Graph:
    return graph_of(trace(*events))


def launch(
    at: float, correlation: int, stream: int = 7, name: str = "k", tid: str = "11"
) -> list[dict]:
    return [
        call("cudaLaunchKernel", at, 2, correlation, tid),
        device_op(KERNEL, name, at + 5, 4, correlation, stream),
    ]


def operands(graph: Graph) -> list[tuple]:
    def names(positions):
        return [graph.tensors[t].name for t in positions]

    return [(op.name, names(op.inputs), names(op.outputs), op.workspace_bytes) for op in graph.ops]


def test_a_step_by_hand() -> None:
    graph = graph_of(step(), "step")
    assert [(op.name, op.kind, op.stream, op.duration_ns, op.deps) for op in graph.ops] == [
        ("copy_h2d.0", "copy", "compute", 100_000, ()),
        ("gemm.1", "matmul", "compute", 60_000, ()),
        ("relu.2", "kernel", "stream20", 30_000, (1,)),
        ("copy_d2h.3", "copy", "stream20", 8_000, ()),
    ]
    # 512 bytes from before the gemm to after the launch of relu; 4096 - 512 before that
    gemm, relu = operands(graph)[1:3]
    assert gemm == (
        "gemm.1",
        ["allocated_before", "before0.mm"],
        ["block0"],
        0,
    )  # its second operand is none of the recording's blocks
    assert relu == ("relu.2", ["allocated_before", "block0"], [], 0)
    tensors = [
        ("allocated_before", 3584 - WEIGHT, "buffer"),
        ("before0.mm", WEIGHT, "parameter"),
        ("block0", 512, "activation"),
    ]
    assert [(t.name, t.size_bytes, t.kind) for t in graph.tensors] == tensors
    assert graph.meta["unknown_uses_bytes"] == 3584 - WEIGHT
    assert graph.ops[1].dtype == "fp32"
    assert graph_of(in_the_schema_of_2021(step()), "step") == graph


def test_lives_of_blocks() -> None:
    graph = of(
        memory(0, 512, 1, 2048),  # 1536 bytes before it, of which 1024 are freed
        *launch(1, 1),
        memory(10, 1024, 2, 3072),
        memory(11, 512, 3, 3584),
        *launch(12, 2),
        memory(20, -1024, 2, 2560),
        memory(21, 512, 4, 3072),
        memory(22, -512, 4, 2560),
        *launch(30, 3),
        memory(40, -512, 3, 2048),
        memory(41, -1024, 9, 1024),
        *launch(50, 4),
    )
    assert operands(graph) == [
        ("k.0", ["allocated_before"], ["block0"], 0),
        ("k.1", ["allocated_before"], ["block2"], 1024),
        ("k.2", ["allocated_before", "block2", "block4"], [], 0),
        ("k.3", ["allocated_before"], [], 0),
    ]
    kinds = {t.name: (t.size_bytes, t.kind, t.home, t.persistent) for t in graph.tensors}
    assert kinds == {
        "allocated_before": (512, "buffer", None, True),
        "block0": (512, "output", None, False),
        "block2": (512, "activation", None, False),
        "block4": (1024, "activation", "hbm", False),
    }
    assert graph.meta["blocks_no_op_used"] == 1
    assert static_peak(graph).bytes == 3584


def test_a_block_is_made_for_the_thread_that_allocated_it() -> None:
    other = memory(0, 512, 1, 512) | {"tid": "12"}
    graph = of(other, *launch(1, 1), *launch(10, 2, tid="12"))
    assert [outputs for _, _, outputs, _ in operands(graph)] == [[], ["block0"]]


def test_arguments_by_their_bytes() -> None:
    shapes = {"Input Dims": [[8, 16], [3]], "Input type": ["float", "float"]}
    graph = of(
        memory(0, 512, 1, 512),
        *launch(1, 1),
        memory(10, 1024, 2, 1536),
        *launch(11, 2),
        span("cpu_op", "aten::add", 19, 10, **shapes),
        memory(20, 512, 3, 2048),  # its own output
        *launch(21, 3),
        span("cpu_op", "aten::relu", 39, 10, **shapes),
        *launch(40, 4),
        memory(90, -512, 1),
        memory(91, -512, 3),
    )
    assert [inputs for _, inputs, _, _ in operands(graph)] == [
        [],
        [],
        ["block0"],
        ["block0", "block2"],
    ]
    assert [op.kind for op in graph.ops] == ["kernel", "kernel", "elementwise", "elementwise"]
    assert [graph.meta[f"inputs_{how}"] for how in ("matched", "guessed", "unknown")] == [2, 1, 1]


def test_what_the_host_waited_for() -> None:
    graph = of(
        *launch(0, 1, stream=20),
        call("cudaStreamSynchronize", 3, 8, 2),
        *launch(20, 3),
        *launch(30, 4),
        call("cudaMemcpyAsync", 40, 20, 5),
        device_op(COPY, "Memcpy DtoH (Device -> Pageable)", 45, 10, 5, bytes=64),
        *launch(70, 6, stream=20),
    )
    assert [op.deps for op in graph.ops] == [(), (0,), (), (), (3,)]


def test_names_and_kinds() -> None:
    graph = of(
        *launch(
            0,
            1,
            name="void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*)",
        ),
        *launch(
            10, 2, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        ),
        *launch(20, 3, name="sm80_xmma_gemm"),
    )
    assert [op.name for op in graph.ops] == [
        "CatArrayBatchedCopy.0",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL.1",
        "sm80_xmma_gemm.2",
    ]
    assert [op.kind for op in graph.ops] == ["kernel", "all_reduce", "kernel"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(trace(*launch(0, 1))))
    done = CliRunner().invoke(
        app, ["import", str(tmp_path / "toy.json"), "-o", str(tmp_path / "w.json")]
    )
    assert done.exit_code == 0, done.output
    assert "not in the file: tensors: record with profile_memory=True" in done.output
    assert load_workload(tmp_path / "w.json") == of(*launch(0, 1))


@pytest.mark.parametrize(
    "name",
    [
        "h100_vgg13_training",
        "h100_qwen1.5_0.5b",
        "mi300x_qwen1.5_0.5b",
        "h100_bert_small",
        "h100_vit_falconsai",
    ],
)
def test_the_peak_is_the_recorded_one(shared: Path, tmp_path: Path, name: str) -> None:
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    recorded = max(
        event["args"]["Total Allocated"]
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event["name"] == "[memory]" and event["args"]["Device Type"] > 0
    )
    graph = load_any(path)
    assert static_peak(graph).bytes == recorded
    device = graph.meta["measured_on"]
    machine = Hardware(
        "toy",
        (Tier("hbm", 1 << 40, 1, "device"),),
        (),
        Compute({"bf16": 1}),
        source=f"a room of {device}",
    )
    result = replay(Plan(graph), machine)
    assert result.peak_bytes["hbm"] == recorded
    assert result.makespan_ns == sum(op.duration_ns or 0 for op in graph.ops)  # one stream
    save_workload(graph, tmp_path / "w.json.gz")
    assert load_workload(tmp_path / "w.json.gz") == graph


VALUES = st.sampled_from(
    [None, -1, 0, 1, 7, 1 << 70, 0.5, 1e300, "", "x", [], [1], [[1 << 40] * 9], {}, True]
)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_mutated_traces(tmp_path: Path, data: st.DataObject) -> None:
    """One to three fields of a trace replaced or gone: a graph, or an error of hosim's."""
    document = json.loads(json.dumps(step()))
    for _ in range(data.draw(st.integers(1, 3))):
        where = (
            document
            if data.draw(st.integers(0, 9)) == 0
            else data.draw(st.sampled_from(document["traceEvents"]))
        )
        if not isinstance(where, dict):
            continue
        if data.draw(st.booleans()) and isinstance(where.get("args"), dict):
            where = where["args"]
        if not where:
            continue
        key = data.draw(st.sampled_from(sorted(where)))
        if data.draw(st.integers(0, 3)) == 0:
            del where[key]
        else:
            where[key] = data.draw(VALUES)
        if not isinstance(document.get("traceEvents"), list):
            break
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": 0, ' + json.dumps(document)[1:])
    try:
        load_any(path)
        structural_replay(structure(parse_kineto(document, "t")))
    except HosimError:
        pass


CONTENT = json.dumps(step()).encode()


@given(st.integers(0, len(CONTENT) - 1), st.binary(max_size=3), st.booleans())
@example(0, b"", True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_damaged_bytes(tmp_path: Path, at: int, other: bytes, cut: bool) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(CONTENT[:at] + other + (b"" if cut else CONTENT[at + len(other) :]))
    try:
        load_any(path)
    except HosimError as error:
        assert str(path) in str(error)
