"""Profiler traces written by hand, in the schemas of 2021 and of today."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hosim.graph import Graph
from hosim.io.importers.recordings import import_kineto

HOST = "11"
KERNEL, COPY, MEMSET = "kernel", "gpu_memcpy", "gpu_memset"


def span(
    category: str, name: str, start: float, duration: float, tid: Any = HOST, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def call(
    name: str, start: float, duration: float, correlation: int, tid: Any = HOST, **args: Any
) -> dict[str, Any]:
    return span("cuda_runtime", name, start, duration, tid, correlation=correlation, **args)


def device_op(
    category: str,
    name: str,
    start: float,
    duration: float,
    correlation: int,
    stream: int = 7,
    **args: Any,
) -> dict[str, Any]:
    return span(
        category,
        name,
        start,
        duration,
        stream,
        device=0,
        stream=stream,
        correlation=correlation,
        **args,
    )


def memory(
    time: float, size: int, address: int, allocated: int | None = None, device_type: int = 1
) -> dict[str, Any]:
    args = {"Device Type": device_type, "Device Id": 0, "Bytes": size, "Addr": address}
    if allocated is not None:
        args |= {"Total Allocated": allocated, "Total Reserved": 4096}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": HOST,
        "ts": time,
        "s": "t",
        "args": args,
    }


def trace(*events: dict[str, Any]) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Toy", "totalGlobalMem": 1 << 30}],
        "traceEvents": list(events),
    }


def graph_of(
    document: dict[str, Any], name: str = "toy", execution_trace: Path | None = None
) -> Graph:
    """The workload of a recording in a file of this name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps(document))
        return import_kineto(path, execution_trace)


def in_the_schema_of_2021(document: dict[str, Any]) -> dict[str, Any]:
    """The same recording as it was written in 2021: capitalised categories, whole microseconds,
    names for threads and streams.
    """
    categories = {
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
        "cuda_runtime": "Runtime",
        "cpu_op": "Operator",
    }
    old = []
    for event in document["traceEvents"]:
        event = event | {"ts": round(event["ts"])}
        if event["ph"] == "X":
            tid = f"stream {event['tid']}" if "stream" in event["args"] else str(event["tid"])
            event |= {"cat": categories[event["cat"]], "dur": round(event["dur"]), "tid": tid}
        else:
            del event["cat"]
        old.append(event)
    return document | {"traceEvents": old}


def step() -> dict[str, Any]:
    """A copy up, two kernels (the second on another stream, after an event of the first), and a
    copy down that the host waits for.
    """
    return trace(
        span("cpu_op", "aten::copy_", 1000, 40),
        call("cudaMemcpyAsync", 1010, 20, 1),
        device_op(COPY, "Memcpy HtoD (Pinned -> Device)", 1040, 100, 1, bytes=4096),
        span(
            "cpu_op",
            "aten::mm",
            1050,
            30,
            **{"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]},
        ),
        memory(1055, 512, 0x1000, 4096),
        call("cudaLaunchKernel", 1060, 10, 2),
        device_op(KERNEL, "gemm", 1145, 60, 2, grid=[4, 1, 1], block=[128, 1, 1]),
        call("cudaEventRecord", 1090, 2, 3),
        call("cudaStreamWaitEvent", 1095, 2, 4),
        call("cudaLaunchKernel", 1100, 10, 5),
        device_op(KERNEL, "relu", 1210, 30, 5, stream=20),
        memory(1112, -512, 0x1000, 3584),
        call("cudaMemcpyAsync", 1120, 10, 6),
        device_op(COPY, "Memcpy DtoH (Device -> Pageable)", 1242, 8, 6, stream=20, bytes=64),
        call("cudaStreamSynchronize", 1135, 120, 7),
    )


def execution_trace(*calls: tuple[str, list[int], list[int]]) -> dict[str, Any]:
    """An execution trace: calls of one thread, by the storages that each takes and returns, of 32
    floats; by default those of `step`.
    """

    def tensors(storages: list[int]) -> list[list[Any]]:
        return [[100 + number, number, 0, 32, 4, "cuda:0"] for number in storages]

    nodes: list[dict[str, Any]] = [
        {
            "name": "[pytorch|profiler|execution_trace|thread]",
            "id": 2,
            "rf_id": 0,
            "parent": 1,
            "tid": 1,
        }
    ]
    for i, (name, taken, given) in enumerate(
        calls or (("aten::copy_", [], []), ("aten::mm", [4, 5], [6]))
    ):
        node = {"name": name, "id": 3 + i, "rf_id": 7 + i, "parent": 2, "tid": 1, "op_schema": ""}
        nodes.append(node | {"inputs": tensors(taken), "outputs": tensors(given)})
    return {"schema": "1.0.1", "pid": 1, "nodes": nodes}
