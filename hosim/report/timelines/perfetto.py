"""A replay as a trace that https://ui.perfetto.dev and chrome://tracing show: the Trace Event
Format, JSON.

Streams and channels are tracks of slices, with stalls between the ops. Arrows lead from each
transfer to the op that needs it. Each tier has a counter for each kind of tensor. Times are
microseconds with decimals, so that nanoseconds are exact.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hosim.cache_plan import Plan
from hosim.data.stages import StagesResult
from hosim.hardware import Hardware
from hosim.report.timelines.timeline_rows import (
    OP,
    TRANSFER,
    Bar,
    awaited_name,
    bar_name,
    end_ns,
    of_devices,
    rows,
    stacked,
    waits,
)
from hosim.result import Result, Timeline
from hosim.version import __version__

_Event = dict[str, Any]

_STREAMS, _CHANNELS, _MEMORY = range(3)
_TITLES = ("streams", "channels", "memory")


def trace(plan: Plan, hardware: Hardware, result: Result) -> dict[str, Any]:
    """The trace of a recorded replay. Devices that differ have tracks of their own.

    Processes are groups of tracks, and threads are tracks: a stream, or one of the transfers that a
    channel carries at once. Flows of category ``needs`` lead from transfers to ops. What takes no
    time has a slice, but no arrow: there would be nothing to attach it to.
    """
    events = [
        event
        for d, (device, one) in enumerate(of_devices(result))
        for event in _device(plan, hardware, one, device, 1 + len(_TITLES) * d)
    ]
    return _file(events, result)


def trace_of_stages(plans: Sequence[Plan], result: StagesResult) -> dict[str, Any]:
    """The trace of the recorded replay of a pipeline's stages, each with tracks of its own."""
    events = [
        event
        for stage, (plan, one) in enumerate(zip(plans, result.stages, strict=True))
        if one.replayed is not None
        for event in _device(plan, one.replayed[1], one, f"stage {stage}", 1 + len(_TITLES) * stage)
    ]
    return _file(events, result.whole)


def _file(events: list[_Event], result: Result) -> dict[str, Any]:
    about = {
        "workload": result.workload,
        "hardware": result.hardware,
        "policy": result.policy,
        "budget_bytes": result.budget_bytes,
        "makespan_ns": result.makespan_ns,
        "error": result.error,
        "made_by": f"hosim {__version__}, a simulation",
    }
    return {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}


def _device(
    plan: Plan, hardware: Hardware, result: Result, device: str, first: int
) -> Iterator[_Event]:
    timeline = result.timeline
    assert timeline is not None
    for k, title in enumerate(_TITLES):
        yield named("process_name", first + k, 0, f"{device}: {title}" if device else title)
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": first + k,
            "tid": 0,
            "args": {"sort_index": first + k},
        }
    slices: list[tuple[int, _Event]] = []
    of_op: dict[int, tuple[int, int]] = {}
    of_transfer: dict[int, tuple[int, int]] = {}
    numbers = {True: 0, False: 0}
    for row in rows(plan.graph, timeline):
        numbers[row.is_stream] += 1
        pid, tid = first + (_STREAMS if row.is_stream else _CHANNELS), numbers[row.is_stream]
        yield named("thread_name", pid, tid, row.label)
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": pid,
            "tid": tid,
            "args": {"sort_index": tid},
        }
        for bar in row.bars:
            slices.append((bar.start_ns, _slice(plan, timeline, bar, pid, tid)))
            if bar.what in (OP, TRANSFER):
                (of_op if bar.what == OP else of_transfer)[bar.number] = pid, tid
    yield from [event for _, event in sorted(slices, key=lambda pair: pair[0])]
    yield from _flows(plan, hardware, timeline, of_op, of_transfer, first)
    yield from _counters(plan, hardware, result, first + _MEMORY)


def named(what: str, pid: int, tid: int, name: str) -> _Event:
    """The event that names a process or a thread."""
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(plan: Plan, timeline: Timeline, bar: Bar, pid: int, tid: int) -> _Event:
    graph = plan.graph
    args: dict[str, Any]
    if bar.what == OP:
        category, args = "op", {"kind": graph.ops[bar.number].kind, "position": bar.number}
    elif bar.what == TRANSFER:
        x = timeline.transfers[bar.number]
        tensor = graph.tensors[x.tensor]
        category = "transfer"
        args = {
            "kind": tensor.kind,
            "bytes": x.bytes,
            "queue_ns": x.start_ns - x.issue_ns,
            "contention_ns": x.contention_ns,
        }
        if plan.runtime is None:
            args["cache_op"] = plan.cache_ops[x.cache_op].op
    else:
        category, args = (
            "stall",
            {"cause": bar.what, "before": graph.ops[timeline.stalls[bar.number].op].name},
        )
        awaited = awaited_name(plan, timeline, bar)
        if awaited is not None:
            args["awaits"] = awaited
    name = bar_name(plan, timeline, bar)
    times = {"ts": microseconds(bar.start_ns), "dur": microseconds(bar.end_ns - bar.start_ns)}
    return {"ph": "X", "name": name, "cat": category, **times, "pid": pid, "tid": tid, "args": args}


def _flows(
    plan: Plan,
    hardware: Hardware,
    timeline: Timeline,
    of_op: dict[int, tuple[int, int]],
    of_transfer: dict[int, tuple[int, int]],
    first: int,
) -> Iterator[_Event]:
    """An arrow for each need: it starts in the transfer's slice, and ends in the op's. Numbers of
    arrows differ between devices.
    """
    up = {
        channel.name for channel in hardware.channels if channel.destination == hardware.device_tier
    }
    to_device = [x.channel in up for x in timeline.transfers]
    arrows: list[tuple[int, int, _Event, tuple[int, int], tuple[int, int]]] = []
    for k, i in waits(plan.graph, timeline, to_device):
        x, start = timeline.transfers[k], timeline.op_start_ns[i]
        if x.start_ns < x.end_ns and start < timeline.op_end_ns[i]:
            name = plan.graph.tensors[x.tensor].name
            number = first * 10**9 + len(arrows)
            both = {"name": name, "cat": "needs", "id": number}
            arrows.append((x.start_ns, start, both, of_transfer[k], of_op[i]))
    ends = []
    for began, ended, both, (pid, tid), (to_pid, to_tid) in arrows:
        ends.append((began, {"ph": "s", **both, "ts": microseconds(began), "pid": pid, "tid": tid}))
        ends.append(
            (
                ended,
                {
                    "ph": "f",
                    "bp": "e",
                    **both,
                    "ts": microseconds(ended),
                    "pid": to_pid,
                    "tid": to_tid,
                },
            )
        )
    yield from [event for _, event in sorted(ends, key=lambda pair: pair[0])]


def _counters(plan: Plan, hardware: Hardware, result: Result, pid: int) -> Iterator[_Event]:
    """A counter for each tier and kind of tensor, where it changes and at the end; last all
    kinds together.
    """
    assert result.timeline is not None
    end = end_ns(result)
    for tier in hardware.tiers:
        times, by_kind = stacked(plan.graph, result.timeline, tier.name)
        if not by_kind:
            continue
        at = times.tolist()
        curves = {f"{tier.name} {kind}": curve.tolist() for kind, curve in by_kind.items()}
        curves[f"{tier.name} in all"] = [sum(held) for held in zip(*curves.values(), strict=True)]
        for name, curve in curves.items():
            before = None
            for now, held in zip(at, curve, strict=True):
                if held != before:
                    yield {
                        "ph": "C",
                        "name": name,
                        "ts": microseconds(now),
                        "pid": pid,
                        "tid": 0,
                        "args": {"bytes": held},
                    }
                    before = held
            if at[-1] < end:
                yield {
                    "ph": "C",
                    "name": name,
                    "ts": microseconds(end),
                    "pid": pid,
                    "tid": 0,
                    "args": {"bytes": curve[-1]},
                }


def microseconds(ns: int) -> int | float:
    """Microseconds that give ``ns`` again when they are multiplied by 1000, whether the product is
    rounded or cut off.

    Readers do either; the next float up is taken where the nearest one would lose a nanosecond.

    >>> microseconds(90_000), microseconds(1_500)
    (90, 1.5)
    """
    if ns % 1000 == 0:
        return ns // 1000
    value = ns / 1000
    return value if int(value * 1000) >= ns else math.nextafter(value, math.inf)
