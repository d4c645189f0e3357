"""Entries of profiler traces one by one: what is read of them, what is refused, who waits for whom,
names and kinds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto_toys import COPY, KERNEL, MEMSET, call, device_op, graph_of, memory, span, trace

from hosim.errors import InputError
from hosim.io.importers.recordings import (
    CpuOp,
    DeviceInfo,
    DeviceOp,
    HostCall,
    KinetoTrace,
    MemoryEvent,
    RecordedBlock,
    SyncRecord,
    Waits,
    blocks,
    blocks_of,
    call_role,
    device_of_blocks,
    parse_kineto,
    program_order,
    read_kineto,
    waits,
)

ROLES = {
    "wait": ["cudaStreamWaitEvent", "hipStreamWaitEvent"],
    "record": ["cudaEventRecord", "hipEventRecordWithFlags"],
    "device_sync": ["cudaDeviceSynchronize", "cuCtxSynchronize"],
    "stream_sync": ["cudaStreamSynchronize"],
    "event_sync": ["cudaEventSynchronize"],
    "query": ["cudaEventQuery", "cudaStreamQuery"],
    "launch": [
        "cudaLaunchKernel",
        "cudaLaunchCooperativeKernel",
        "cuLaunchKernelEx",
        "cuLaunchGrid",
        "cudaGraphLaunch",
        "xLaunch",
    ],
    "copy": ["cudaMemcpyAsync", "hipMemcpyWithStream"],
    "memset": ["cudaMemsetAsync"],
    "allocate": ["cudaMalloc", "cuMemAlloc_v2", "cudaHostAlloc", "cudaHostRegister", "cuMemCreate"],
    "free": ["cudaFree", "cudaFreeHost"],
    "other": ["cudaGetDevice", "cudaLaunchHostFunc"],
}


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_calls(role: str) -> None:
    assert {call_role(name) for name in ROLES[role]} == {role}


def parsed(*events: dict[str, Any]) -> KinetoTrace:
    return parse_kineto(trace(*events), "toy")


def test_every_field_of_an_entry() -> None:
    args = {
        "registers per thread": 32,
        "shared memory": 1024,
        "grid": [2, 1, 1],
        "block": [64, 1, 1],
    }
    read = parsed(
        device_op(KERNEL, "k", 5, 2, 1, stream=20, **args),
        device_op(COPY, "Memcpy DtoD (Device -> Array)", 9, 1, 2, bytes="512"),
        device_op("Memcpy", "CopyHostToDevice", 11, 1, 3, bytes=7),
        device_op("gpu_memcpy", "copy", 12, 1, 4, kind="DeviceToHost"),
        device_op("gpu_memcpy", "copy", 13, 1, 5, kind=3),
        device_op(MEMSET, "Memset", 14, 1, 6, bytes=9, grid=[1, "x"]),
        span("cuda_driver", "cuLaunchKernel", 2, 1, "thread", correlation=1),
        span("privateuse1_runtime", "other", 3, 1, correlation=(1 << 32) - 1),
        span(
            "operator",
            "aten::mm",
            1,
            3,
            "thread",
            **{"Input Dims": [[8, 4], [[[[1]]]], 3], "Input type": ["float"]},
        ),
        span("user_annotation", "ProfilerStep#7", 0, 20),
        span(
            "cuda_sync",
            "Stream Sync",
            15,
            1,
            device=-1,
            stream=7,
            correlation=9,
            wait_on_stream=20,
            wait_on_cuda_event_record_corr_id=-1,
        ),
        span("python_function", "left out", 15, 1),
        {"ph": "M", "name": "process_name"},
        {"ph": "i", "name": "a mark", "ts": 1},
        {"ph": "C", "name": "[memory]", "ts": 1},
        memory(16, 512, 64, 1024) | {"ph": "I"},
    )
    kernel = DeviceOp(
        "kernel", "k", 0, 20, 5_000, 7_000, 1, 0, None, None, None, (2, 1, 1), (64, 1, 1), 32, 1024
    )
    copies = [
        DeviceOp(
            "copy",
            "Memcpy DtoD (Device -> Array)",
            0,
            7,
            9_000,
            10_000,
            2,
            None,
            512,
            "device",
            "array",
        ),
        DeviceOp("copy", "CopyHostToDevice", 0, 7, 11_000, 12_000, 3, None, 7, "host", "device"),
        DeviceOp("copy", "copy", 0, 7, 12_000, 13_000, 4, None, None, "device", "host"),
        DeviceOp("copy", "copy", 0, 7, 13_000, 14_000, 5, None, None, "unknown", "unknown"),
    ]
    assert read.ops == (
        kernel,
        *copies,
        DeviceOp("memset", "Memset", 0, 7, 14_000, 15_000, 6, None, 9),
    )
    assert read.calls == (
        HostCall("cuLaunchKernel", "launch", "thread", 2_000, 3_000, 1, 0),
        HostCall("other", "other", "11", 3_000, 4_000, None),
    )
    assert read.cpu_ops == (
        CpuOp("aten::mm", "thread", 1_000, 4_000, None, ((8, 4), ((((),),),), 3), ("float",)),
    )
    assert [(a.name, a.thread, a.start_ns, a.end_ns) for a in read.annotations] == [
        ("ProfilerStep#7", "11", 0, 20_000)
    ]
    assert read.syncs == (SyncRecord("Stream Sync", 0, 7, 15_000, 16_000, 9, 20, None),)
    assert read.memory == (MemoryEvent(16_000, 1, 0, 512, "11", 64, 1024, 4096, None),)
    assert read.devices == {0: DeviceInfo("Toy", 1 << 30)}
    assert [op.direction for op in read.ops] == [None, "d2d", "h2d", "d2h", "h2h", None]
    assert (read.name, read.origin_ns, len(read.copies), len(read.kernels)) == ("toy", 0, 4, 1)


KERNEL_OP = device_op(KERNEL, "k", 0, 1, 1)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (KERNEL_OP | {"tid": None, "cat": "cuda_runtime"}, "expected a number or a name in tid"),
        (KERNEL_OP | {"name": 3}, "expected a name"),
        ({k: v for k, v in KERNEL_OP.items() if k != "dur"}, "expected the key 'dur'"),
        (KERNEL_OP | {"ts": 1 << 53}, "expected a time in microseconds"),
        (KERNEL_OP | {"ts": -(1 << 53)}, "expected a time in microseconds"),
        (device_op(KERNEL, "k", 0, 1, True), "expected a whole number in correlation"),  # type: ignore[arg-type]
        (device_op(KERNEL, "k", 0, 1, 1 << 64), "expected a whole number in correlation"),
        (device_op(KERNEL, "k", 0, 1, "9" * 20), "expected a whole number in correlation"),  # type: ignore[arg-type]
        (device_op(COPY, "Memcpy HtoD", 0, 1, 1, bytes=-1), "expected bytes of at least 0"),
        (memory(1, 1, 1) | {"args": {}}, "expected the key 'Bytes'"),
    ],
)
def test_entries_that_are_refused(event: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(device_op(KERNEL, "first", 0, 1, 7), event)
    assert (caught.value.message, caught.value.where) == (problem, "traceEvents[1]")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_kineto(tmp_path / "x")
    assert str(caught.value) == f"{tmp_path / 'x'}: no such file"


def test_numbers_at_their_limits() -> None:
    far = (1 << 53) - 1
    read = parsed(
        device_op(KERNEL, "k", far, 1, (1 << 64) - 1), device_op(KERNEL, "j", far, 2, "1" * 19)
    )  # type: ignore[arg-type]
    assert [(op.name, op.correlation) for op in read.ops] == [
        ("j", int("1" * 19)),
        ("k", (1 << 64) - 1),
    ]
    assert read.origin_ns == far * 1000


def test_devices() -> None:
    keys = (
        "totalGlobalMem",
        "numSms",
        "maxThreadsPerMultiprocessor",
        "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor",
    )
    listed = [
        {"id": 1, "name": "B", **dict(zip(keys, (9, 8, 7, 6, 5), strict=True))},
        {"id": "2", "name": "C"},
        {"id": 3},
        4,
    ]
    on_one = [
        device_op(KERNEL, "k", i, 1, i) | {"args": {"device": 1, "stream": 7}} for i in range(2)
    ]
    document = {
        "traceEvents": [*on_one, device_op(KERNEL, "k", 5, 1, 9)],
        "deviceProperties": [{"id": 0, "name": "A"}, *listed],
    }
    read = parse_kineto(document, "toy")
    assert read.devices == {0: DeviceInfo("A"), 1: DeviceInfo("B", 9, 8, 7, 6, 5)}
    assert read.device_name == "B"
    assert (
        parse_kineto(document | {"deviceProperties": [listed[0] | {"id": 5}]}, "toy").device_name
        == "B"
    )
    assert parse_kineto(document | {"deviceProperties": None}, "toy").device_name is None


# ---- memory


def event(
    time: int, size: int, address: int | None = None, total: int | None = None, device: int = 0
) -> MemoryEvent:
    return MemoryEvent(time, 1, device, size, "t", address, total, None, None)


def test_blocks_by_address() -> None:
    made = blocks_of(
        [
            event(1, 8, 64, 108),
            event(2, 4, 32),
            event(3, -8, 64),
            event(4, -5, 99),
            event(5, 0, 7),
            event(6, 8, 64),
        ]
    )
    listed = (
        RecordedBlock(8, 1, 3, "t"),
        RecordedBlock(4, 2, None, "t"),
        RecordedBlock(5, None, 4, "t"),
        RecordedBlock(8, 6, None, "t"),
    )
    assert (made.listed, made.resident_bytes, made.addresses) == (listed, 108 - 8 - 5, True)


def test_blocks_by_size() -> None:
    """Without addresses a free is of the latest block of its bytes."""
    made = blocks_of([event(1, 8), event(2, 8), event(3, -8, 64), event(4, -9)])
    listed = (
        RecordedBlock(8, 1, None, "t"),
        RecordedBlock(8, 2, 3, "t"),
        RecordedBlock(9, None, 4, "t"),
    )
    assert (made.listed, made.resident_bytes, made.addresses) == (listed, None, False)


def test_bytes_that_were_there_before() -> None:
    assert (
        blocks_of([event(1, 8, 1), event(2, 8, 2, 16)]).resident_bytes is None
    )  # the total comes too late
    assert blocks_of([event(1, 8, 1, 8)]).resident_bytes == 0
    assert blocks_of([event(1, 8, 1, 7)]).resident_bytes == 0
    assert blocks_of([event(1, -8, 1, 3)]).resident_bytes == 3
    nothing = blocks_of([])
    assert (nothing.listed, nothing.resident_bytes, nothing.addresses) == ((), None, True)


def test_the_device_whose_blocks_are_read() -> None:
    few = [memory(1, 8, 1), *[memory(i, 8, i) for i in (2, 3)], memory(4, 8, 9, device_type=0)]
    few[1]["args"]["Device Id"] = few[2]["args"]["Device Id"] = 3
    assert device_of_blocks(parsed(KERNEL_OP, *few)) == 3
    assert device_of_blocks(parsed(KERNEL_OP)) is None
    assert len(parsed(KERNEL_OP, *few).device_memory(3)) == 2


# ---- waits


def launch(
    at: float, correlation: int, stream: int = 7, tid: str = "11", took: float = 4
) -> list[dict[str, Any]]:
    return [
        call("cudaLaunchKernel", at, 2, correlation, tid),
        device_op(KERNEL, f"k{correlation}", at + 5, took, correlation, stream),
    ]


def found(*events: dict[str, Any]) -> Waits:
    read = parsed(*events)
    return waits(read, program_order(read))


def test_the_order_of_issue() -> None:
    """Op 0 was launched before the recording, op 2 between others without a launch."""
    early, stray = device_op(KERNEL, "early", 0, 1, 90), device_op(KERNEL, "stray", 30, 1, 91)
    order = program_order(
        parsed(early, *launch(10, 1), stray, *launch(24, 2), *launch(50, 3, stream=20))
    )
    # by start: early 0, k1 15, k2 29, stray 30, k3 55
    assert order.issued_ns == (-1, 10_000, 24_000, 30_000, 50_000)
    assert order.order == (0, 1, 2, 3, 4)
    assert order.streams == {(0, 7): (0, 1, 2, 3), (0, 20): (4,)}
    assert order.strays == {3}
    assert [order.last_before((0, 7), time) for time in (-1, 0, 10_000, 10_001, 99_000)] == [
        None,
        0,
        0,
        1,
        3,
    ]
    assert order.last_before((0, 9), 99_000) is None
    assert [order.all_before(time) for time in (0, 50_000, 50_001)] == [(0,), (3,), (3, 4)]


def sync(
    name: str,
    correlation: int,
    stream: int | None,
    on: int | None = None,
    record: int | None = None,
) -> dict[str, Any]:
    args = {
        "stream": -1 if stream is None else stream,
        "wait_on_stream": on,
        "wait_on_cuda_event_record_corr_id": record,
    }
    return span(
        "cuda_sync",
        name,
        1,
        1,
        device=0,
        correlation=correlation,
        **{k: v for k, v in args.items() if v is not None},
    )


def test_recorded_waits_of_streams() -> None:
    """The event was recorded before the second launch of stream 7, so stream 20 waits for the
    first.
    """
    events = [
        *launch(0, 1),
        call("cudaEventRecord", 10, 1, 2),
        *launch(20, 3),
        call("cudaStreamWaitEvent", 30, 1, 4),
        *launch(40, 5, stream=20),
        *launch(60, 6, stream=20),
    ]
    # ops by start: k1, k3, k5, k6
    assert found(*events, sync("Stream Wait Event", 4, 20, 7, 2)) == Waits({2: (0,)}, {}, 1, 0, 0)
    assert found(*events, sync("Stream Wait Event", 4, 20, 7, 77)) == Waits(
        {2: (1,)}, {}, 1, 0, 0
    )  # the record is not there
    for nothing in (
        sync("x", 4, 20, None, 2),
        sync("x", 4, None, 7, 2),
        sync("x", 4, 7, 7, 2),
        sync("x", 4, 9, 7, 2),
        sync("x", 99, 20, 7),
    ):
        assert found(*events, nothing) == Waits({}, {}, 0, 0, 0)
    twice = [
        *events,
        call("cudaStreamWaitEvent", 31, 1, 44),
        sync("x", 4, 20, 7, 2),
        sync("x", 44, 20, 7, 2),
    ]
    assert found(*twice) == Waits({2: (0,)}, {}, 2, 0, 0)


def test_inferred_waits_of_streams() -> None:
    wait = call("cudaStreamWaitEvent", 30, 1, 4)
    assert found(*launch(0, 1), wait, *launch(40, 5, stream=20)) == Waits({1: (0,)}, {}, 0, 1, 0)
    assert found(*launch(0, 1), wait, *launch(40, 5)) == Waits({}, {}, 0, 0, 0)  # no other stream
    assert found(*launch(0, 1), wait) == Waits({}, {}, 0, 0, 0)  # nothing after it
    # of two other streams, the one on which an op was issued last
    assert found(
        *launch(0, 1), *launch(10, 2, stream=8), wait, *launch(40, 5, stream=20)
    ).of_ops == {2: (1,)}
    # an op that started 2 us before the awaited one ended is a step of the clock, earlier a
    # contradiction
    assert found(*launch(0, 1, took=42), wait, *launch(40, 5, stream=20)) == Waits(
        {1: (0,)}, {}, 0, 1, 0
    )
    assert found(*launch(0, 1, took=43), wait, *launch(40, 5, stream=20)) == Waits({}, {}, 0, 0, 1)


def test_waits_of_the_host() -> None:
    both = [*launch(0, 1), *launch(10, 2, stream=20)]
    assert found(*both, call("cudaDeviceSynchronize", 20, 9, 3)).of_calls == {2: (0, 1)}
    assert found(*both, call("cudaFree", 20, 9, 3)).of_calls == {2: (0, 1)}
    assert found(*both, call("cudaFreeHost", 20, 9, 3)).of_calls == {}
    assert found(*both, call("cudaStreamSynchronize", 20, 9, 3)).of_calls == {
        2: (1,)
    }  # where the thread launched last
    assert found(*both, call("cudaStreamSynchronize", 20, 9, 3, tid="12")).of_calls == {2: ()}
    assert found(
        *both, call("cudaStreamSynchronize", 20, 9, 3), sync("Stream Sync", 3, 7)
    ).of_calls == {2: (0,)}
    assert found(
        *both, call("cudaEventSynchronize", 20, 9, 3), sync("Event Sync", 3, None, 7)
    ).of_calls == {2: (0,)}
    record = call("cudaEventRecord", 5, 1, 8)
    again = [*both, record, *launch(12, 4)]
    assert found(
        *again, call("cudaEventSynchronize", 25, 9, 3), sync("Event Sync", 3, None, 7, 8)
    ).of_calls == {4: (0,)}
    # a wait that returned 50 us before what it awaited had ended is kept, an earlier one is not
    for took, kept in ((50, {1: (0,)}), (51, {})):
        made = found(*launch(0, 1, took=took), call("cudaFree", 3, 2, 3))
        assert (made.of_calls, made.contradicted) == (kept, 0 if kept else 1)
    assert found(*launch(0, 1, took=90), call("cudaDeviceSynchronize", 3, 2, 3)).of_calls == {
        1: (0,)
    }  # it surely waited


@pytest.mark.parametrize(
    ("source", "target", "size", "name", "ended", "expected"),
    [
        ("device", "pageable", 1, "cudaMemcpyAsync", 0, True),
        ("pageable", "device", 64 * 1024, "cudaMemcpyAsync", 99, False),
        ("pageable", "device", 64 * 1024 + 1, "cudaMemcpyAsync", 0, True),
        ("pageable", "device", None, "cudaMemcpy", 99, False),
        ("pinned", "device", 1, "cudaMemcpy", 0, True),
        ("device", "device", 1, "cudaMemcpy", 99, False),
        ("pinned", "array", 1, "cudaMemcpyAsync", 99, False),
        ("host", "device", 1, "cudaMemcpyAsync", 10, True),
        ("host", "device", 1, "cudaMemcpyAsync", 9, False),
        ("host", None, 1, "cudaMemcpyAsync", 9, False),
    ],
)
def test_copies_that_block(
    source: str, target: str | None, size: int | None, name: str, ended: int, expected: bool
) -> None:
    op = DeviceOp("copy", "c", 0, 7, 5, 10, 1, 0, size, source, target)
    made = HostCall(name, "copy", "1", 0, ended, 1)
    assert blocks(op, made) is expected
    assert not blocks(
        DeviceOp("kernel", "k", 0, 7, 5, 10, 1),
        HostCall("cudaLaunchKernel", "launch", "1", 0, 99, 1),
    )


# ---- the workload


COLLECTIVES = {
    "ncclDevKernel_AllReduce_Sum": "all_reduce",
    "void ncclKernel_AllGather": "all_gather",
    "ncclKernel_ReduceScatter_Sum": "reduce_scatter",
    "ncclKernel_Broadcast_RING": "broadcast",
    "ncclKernel_SendRecv": "all_to_all",
    "rcclKernel_Reduce_Sum": "reduce",
    "ncclKernel_Other": "collective",
}


def test_names_kinds_and_streams() -> None:
    names = [*COLLECTIVES, "a::b<int>::c(int)", "<lambda>"]
    kernels = [device_op(KERNEL, name, i, 1, i, stream=20) for i, name in enumerate(names)]
    other = device_op(MEMSET, "Memset", 50, 90, 50)
    read = trace(
        *kernels, other, device_op(COPY, "Memcpy HtoD (Pinned -> Device)", 150, 90, 51, bytes=5)
    )
    graph = graph_of(read)
    assert {op.stream for op in graph.ops[:-2]} == {
        "compute"
    }  # the stream with most time in kernels
    assert [op.kind for op in graph.ops] == [
        *COLLECTIVES.values(),
        "kernel",
        "kernel",
        "fill",
        "copy",
    ]
    assert [op.name for op in graph.ops[-4:]] == ["b.7", "kernel.8", "memset.9", "copy_h2d.10"]
    assert [(op.stream, op.bytes_accessed, op.duration_ns) for op in graph.ops[-2:]] == [
        ("stream7", 0, 90_000),
        ("stream7", 5, 90_000),
    ]
    two = trace(
        device_op(KERNEL, "k", 0, 1, 1),
        device_op(KERNEL, "k", 0, 2, 2, stream=9) | {"args": {"device": 1, "stream": 9}},
    )
    assert [op.stream for op in graph_of(two).ops] == ["compute", "gpu0.stream7"]


def test_the_whole_meta_without_memory() -> None:
    waiting = trace(
        *launch(5, 1),
        device_op(KERNEL, "before", 0, 1, 99, stream=8),
        call("cudaStreamWaitEvent", 20, 1, 3),
    )
    assert graph_of(waiting).meta == {
        "source": "trace of the PyTorch profiler",
        "measured_on": "Toy",
        "span_ns": 14_000,
        "blocks": 0,
        "blocks_no_op_used": 0,
        "inputs_matched": 0,
        "inputs_guessed": 0,
        "inputs_unknown": 0,
        "unknown_uses_share": 0.0,
        "unknown_uses_bytes": 0,
        "missing": [
            "idle time of the device: the host, and what waits for it, are left out",
            "the launches of 1 op, made before the recording: they come first on their streams",
            "which streams a wait joins: inferred from the launches around it",
            "tensors: record with profile_memory=True",
        ],
    }


def test_what_is_missing_of_memory() -> None:
    told = [
        "idle time of the device: the host, and what waits for it, are left out",
        "shapes of arguments: what an op reads between a block's first and last use; record with "
        "record_shapes=True",
        "what tensors are for: activation if freed before the last op, output if not, parameter "
        "or buffer if there before",
        "which arguments an op writes: nothing but the blocks made for it",
        "bytes allocated before the recording",
        "addresses: a free is taken to be of the latest block of its bytes",
    ]
    bare = memory(0, 512, 1)
    del bare["args"]["Addr"]
    assert graph_of(trace(bare, *launch(1, 1))).meta["missing"] == told
    shapes = {"Input Dims": [[8, 16], [4], [8, 16]], "Input type": ["float", "long int", "double"]}
    shaped = span("cpu_op", "aten::add", 20, 20, **shapes)
    graph = graph_of(
        trace(
            memory(0, 512, 1, 512),
            memory(1, 512, 2, 1024),
            *launch(2, 1),
            shaped,
            *launch(25, 2),
            memory(90, -512, 1),
        )
    )
    told[1] = (
        "which block an argument is: of 3 arguments 1 have the bytes of one block, 1 of several "
        "(the latest is taken),"
        " 1 of none (allocated before, or a part of one)"
    )
    assert graph.meta["missing"] == told[:4]
    assert [graph.tensors[t].name for t in graph.ops[1].inputs] == ["block0", "block1"]
    assert [op.dtype for op in graph.ops] == ["fp32", "fp32"]


@pytest.mark.parametrize(
    ("types", "dtype"),
    [(["long int"], "int64"), (["", "c10::BFloat16"], "bf16"), (["Scalar"], "fp32"), ([3], "fp32")],
)
def test_the_type_of_an_op(types: list[Any], dtype: str) -> None:
    graph = graph_of(
        trace(span("cpu_op", "aten::add", 0, 9, **{"Input type": types}), *launch(1, 1))
    )
    assert [(op.dtype, op.kind) for op in graph.ops] == [(dtype, "elementwise")]
