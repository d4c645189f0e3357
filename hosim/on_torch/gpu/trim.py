"""Traces and snapshots reduced to what hosim reads: kernels, copies, waits, launches, ops and
shapes, modules, memory, annotations.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hosim.io.importers.recordings import MODULE

_CATEGORIES = frozenset(
    (
        *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync"),
        *("cpu_op", "user_annotation", "cpu_instant_event"),
    )
)
_ARGUMENTS = frozenset(
    (
        *(
            "device",
            "stream",
            "context",
            "correlation",
            "External id",
            "cbid",
            "bytes",
            "kind",
            "Ev Idx",
            "Addr",
            "Bytes",
        ),
        *(
            "Device Id",
            "Device Type",
            "Total Allocated",
            "Total Reserved",
            "Input Dims",
            "Input type",
            "grid",
            "block",
        ),
        *(
            "Concrete Inputs",
            "Sequence number",
            "Collective name",
            "Process Group Name",
            "Process Group Ranks",
            "Seq",
        ),
        *("registers per thread", "shared memory"),
        *(
            "cuda_sync_kind",
            "wait_on_stream",
            "wait_on_cuda_event_id",
            "wait_on_cuda_event_record_corr_id",
            "event_id",
        ),
    )
)
_TOP = (
    "schemaVersion",
    "deviceProperties",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "baseTimeNanoseconds",
)
_ENTRY = ("action", "addr", "size", "stream", "time_us", "pool_id", "device_free", "user_metadata")
_SEGMENT = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
)
_BLOCK = ("address", "size", "requested_size", "state")


def trim_trace(trace: Mapping[str, Any]) -> dict[str, Any]:
    """A Kineto trace without stacks, Python functions but calls of modules, and arguments that
    hosim does not read.
    """
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" or event.get("cat") in _CATEGORIES or _is_module(event):
            arguments = {
                key: value
                for key, value in event.get("args", {}).items()
                if key in _ARGUMENTS or event["ph"] == "M"
            }
            kept = {key: value for key, value in event.items() if key != "args"}
            events.append({**kept, "args": arguments} if arguments else kept)
    return {**{key: trace[key] for key in _TOP if key in trace}, "traceEvents": events}


def _is_module(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "python_function" and str(event.get("name", "")).startswith(MODULE)


def trim_snapshot(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of the allocator without stack frames."""
    return {
        "segments": [
            {**_only(segment, _SEGMENT), "blocks": _each(segment["blocks"], _BLOCK)}
            for segment in snapshot["segments"]
        ],
        "device_traces": [_each(trace, _ENTRY) for trace in snapshot["device_traces"]],
        "allocator_settings": dict(snapshot.get("allocator_settings", {})),
    }


def _each(rows: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[dict[str, Any]]:
    return [_only(row, keys) for row in rows]


def _only(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys if key in row}
