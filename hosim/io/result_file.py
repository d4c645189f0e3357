"""The result format: ``hosim.result/1`` (what ``--json`` prints), ``hosim.comparison/1`` and :class:`~hosim.result.Result`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from hosim.graph import KINDS
from hosim.io import reading
from hosim.io.result_devices import DevicesModel, JitterModel, devices_from, devices_to_dict, jitter_from
from hosim.io.validators import STRICT, Count, Format
from hosim.result import IN_TIME, STALL_CAUSES, WORKSPACE, AllocatorFigures, AllocatorState, ChannelFigures, Result, StreamFigures

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_PLAN = ("prefetches", "stores", "detaches")


@with_config(STRICT)
class StallModel(TypedDict):
    """What a stream waited, by cause."""

    dependency: NotRequired[Count]
    transfer: NotRequired[Count]
    capacity: NotRequired[Count]
    runtime: NotRequired[Count]


@with_config(STRICT)
class StreamModel(TypedDict):
    """Division of the makespan of one stream."""

    busy_ns: NotRequired[Count]
    stall_ns: NotRequired[StallModel]
    drain_ns: NotRequired[Count]


@with_config(STRICT)
class ChannelModel(TypedDict):
    """One channel over the replay."""

    transfers: NotRequired[Count]
    bytes: NotRequired[Count]
    busy_ns: NotRequired[Count]
    queue_ns: NotRequired[Count]
    contention_ns: NotRequired[Count]
    exposed_ns: NotRequired[Count]
    hidden_ns: NotRequired[Count]
    utilization: NotRequired[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]]


@with_config(STRICT)
class PlanCountModel(TypedDict):
    """How many cache ops of each kind the plan has, and how many ops it runs again, if any."""

    prefetches: NotRequired[Count]
    stores: NotRequired[Count]
    detaches: NotRequired[Count]
    recomputes: NotRequired[Count]


@with_config(STRICT)
class AllocatorStateModel(TypedDict):
    """An allocator at one moment; ``fragmentation`` is (reserved - allocated) / reserved."""

    allocated_bytes: Count
    reserved_bytes: Count
    largest_free_bytes: NotRequired[Count]
    fragmentation: NotRequired[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]]


@with_config(STRICT)
class AllocatorModel(TypedDict):
    """What an allocator made of the device tier; ``out_of_memory`` is null where it did not run out."""

    name: Literal["ledger", "caching", "caching-expandable", "static"]
    account: NotRequired[Literal["time", "program"]]
    peak_allocated_bytes: Count
    peak_active_bytes: NotRequired[Count]
    peak_reserved_bytes: Count
    at_peak: AllocatorStateModel
    out_of_memory: NotRequired[AllocatorStateModel | None]


@with_config(STRICT)
class ResultModel(TypedDict):
    """The figures of one replay; times are null where it was infeasible."""

    format: Literal["hosim.result/1"]
    workload: str
    hardware: str
    policy: str
    budget_bytes: Count
    feasible: bool
    error: NotRequired[str | None]
    makespan_ns: NotRequired[Count | None]
    busy_ns: NotRequired[Count | None]
    stall_ns: NotRequired[StallModel]
    drain_ns: NotRequired[Count | None]
    streams: NotRequired[dict[str, StreamModel]]
    slowed_ns: NotRequired[Count | None]
    lower_bound_ns: NotRequired[Count | None]
    peak_bytes: NotRequired[dict[str, Count]]
    peak_at_ns: NotRequired[dict[str, Count]]
    peak_breakdown: NotRequired[dict[str, dict[str, Count]]]
    channels: NotRequired[dict[str, ChannelModel]]
    plan: NotRequired[PlanCountModel]
    allocator: NotRequired[AllocatorModel]
    devices: NotRequired[DevicesModel]
    jitter: NotRequired[JitterModel]
    planning_s: NotRequired[Seconds]
    replay_s: NotRequired[Seconds]


@with_config(STRICT)
class MispredictionsModel(TypedDict):
    """How well one policy predicted the routing: counts of experts' tensors, bytes, and times in nanoseconds."""

    policy: str
    predictor: str
    decisions: NotRequired[Count]
    chosen: NotRequired[Count]
    resident: NotRequired[Count]
    prefetched: NotRequired[Count]
    missed: NotRequired[Count]
    missed_bytes: NotRequired[Count]
    wrong: NotRequired[Count]
    wrong_bytes: NotRequired[Count]
    wrong_ns: NotRequired[Count]
    makespan_ns: Count
    right_ns: NotRequired[Count | None]
    perfect_ns: NotRequired[Count | None]
    none_ns: NotRequired[Count | None]


@with_config(STRICT)
class ComparisonModel(TypedDict):
    """One result a policy; ``mispredictions`` of those that predict a routing."""

    format: Literal["hosim.comparison/1"]
    results: NotRequired[list[ResultModel]]
    mispredictions: NotRequired[list[MispredictionsModel]]


FORMAT = Format("result", lambda: TypeAdapter(ResultModel))
COMPARISON = Format("comparison", lambda: TypeAdapter(ComparisonModel))


def result_to_dict(result: Result) -> dict[str, Any]:
    """The result as ``--json`` prints it: every key, in the order of docs/formats.md; utilization to two decimals.

    ``streams`` is there only when the workload has other streams than the one whose figures stand above, ``allocator`` only when one
    placed the bytes, ``devices`` when there were several and ``jitter`` when there was some; a timeline is not part of it.
    ``peak_breakdown`` has every tier, with the kinds that hold bytes.
    """
    data: dict[str, Any] = {
        "format": reading.format_of("result"),
        "workload": result.workload,
        "hardware": result.hardware,
        "policy": result.policy,
        "budget_bytes": result.budget_bytes,
        "feasible": result.feasible,
        "error": result.error,
        "makespan_ns": result.makespan_ns,
        "busy_ns": result.busy_ns,
        "stall_ns": _all_of(STALL_CAUSES, result.stall_ns),
        "drain_ns": result.drain_ns,
    }
    if result.streams:
        data["streams"] = {
            name: {"busy_ns": stream.busy_ns, "stall_ns": _all_of(STALL_CAUSES, stream.stall_ns), "drain_ns": stream.drain_ns}
            for name, stream in result.streams.items()
        }
    if result.slowed_ns is not None:
        data["slowed_ns"] = result.slowed_ns
    tiers = list(dict.fromkeys([*result.peak_bytes, *result.peak_breakdown]))
    data |= {
        "lower_bound_ns": result.lower_bound_ns,
        "peak_bytes": dict(result.peak_bytes),
        "peak_at_ns": dict(result.peak_at_ns),
        "peak_breakdown": {tier: _by_kind(result.peak_breakdown.get(tier, {})) for tier in tiers},
        "channels": {name: asdict(channel) | {"utilization": round(channel.utilization, 2)} for name, channel in result.channels.items()},
        "plan": _counts(result.plan),
    }
    if result.allocator is not None:
        data["allocator"] = _allocator_to_dict(result.allocator)
    if result.devices is not None:
        data["devices"] = devices_to_dict(result.devices)
    if result.jitter is not None:
        data["jitter"] = asdict(result.jitter)
    return data | {"planning_s": result.planning_s, "replay_s": result.replay_s}


def _allocator_to_dict(figures: AllocatorFigures) -> dict[str, Any]:
    return {
        "name": figures.name,
        "account": figures.account,
        "peak_allocated_bytes": figures.peak_allocated_bytes,
        "peak_active_bytes": figures.peak_active_bytes,
        "peak_reserved_bytes": figures.peak_reserved_bytes,
        "at_peak": _state_to_dict(figures.at_peak),
        "out_of_memory": None if figures.out_of_memory is None else _state_to_dict(figures.out_of_memory),
    }


def _state_to_dict(state: AllocatorState) -> dict[str, Any]:
    return asdict(state) | {"fragmentation": round(state.fragmentation, 4)}


def _by_kind(held: Mapping[str, int]) -> dict[str, int]:
    kinds = [*KINDS, WORKSPACE]
    return {kind: held[kind] for kind in [*kinds, *(k for k in held if k not in kinds)] if held.get(kind)}


def result_from_dict(data: object, source: str | None = None) -> Result:
    """The result of a dictionary as :func:`result_to_dict` gives it; ``source`` names it in errors. Raises :class:`InputError`."""
    return _result(FORMAT.check(data, source))


def _result(data: ResultModel) -> Result:
    return Result(
        workload=data["workload"],
        hardware=data["hardware"],
        policy=data["policy"],
        budget_bytes=data["budget_bytes"],
        feasible=data["feasible"],
        error=data.get("error"),
        makespan_ns=data.get("makespan_ns"),
        busy_ns=data.get("busy_ns"),
        stall_ns=_stall_of(data),
        drain_ns=data.get("drain_ns"),
        lower_bound_ns=data.get("lower_bound_ns"),
        peak_bytes=data.get("peak_bytes", {}),
        peak_at_ns=data.get("peak_at_ns", {}),
        peak_breakdown=data.get("peak_breakdown", {}),
        channels={name: _channel(channel) for name, channel in data.get("channels", {}).items()},
        plan=_counts(data.get("plan", {})),
        allocator=_allocator(data["allocator"]) if "allocator" in data else None,
        devices=devices_from(data["devices"]) if "devices" in data else None,
        jitter=jitter_from(data["jitter"]) if "jitter" in data else None,
        streams={
            name: StreamFigures(stream.get("busy_ns", 0), _stall_of(stream), stream.get("drain_ns", 0))
            for name, stream in data.get("streams", {}).items()
        },
        slowed_ns=data.get("slowed_ns"),
        planning_s=data.get("planning_s", 0.0),
        replay_s=data.get("replay_s", 0.0),
    )


def _allocator(data: AllocatorModel) -> AllocatorFigures:
    ended = data.get("out_of_memory")
    return AllocatorFigures(
        name=data["name"],
        account=data.get("account", IN_TIME),
        peak_allocated_bytes=data["peak_allocated_bytes"],
        peak_active_bytes=data.get("peak_active_bytes", data["peak_allocated_bytes"]),
        peak_reserved_bytes=data["peak_reserved_bytes"],
        at_peak=_state(data["at_peak"]),
        out_of_memory=None if ended is None else _state(ended),
    )


def _state(data: AllocatorStateModel) -> AllocatorState:
    return AllocatorState(data["allocated_bytes"], data["reserved_bytes"], data.get("largest_free_bytes", 0))


def _stall_of(data: ResultModel | StreamModel) -> dict[str, int]:
    return _all_of(STALL_CAUSES, data.get("stall_ns", {}))


def _counts(given: Mapping[str, Any]) -> dict[str, int]:
    return _all_of(_PLAN, given) | ({"recomputes": given["recomputes"]} if given.get("recomputes") else {})


def _all_of(keys: Iterable[str], given: Mapping[str, Any]) -> dict[str, int]:
    return {key: given.get(key, 0) for key in keys}


def _channel(data: ChannelModel) -> ChannelFigures:
    return ChannelFigures(
        transfers=data.get("transfers", 0),
        bytes=data.get("bytes", 0),
        busy_ns=data.get("busy_ns", 0),
        queue_ns=data.get("queue_ns", 0),
        contention_ns=data.get("contention_ns", 0),
        exposed_ns=data.get("exposed_ns", 0),
        hidden_ns=data.get("hidden_ns", 0),
        utilization=data.get("utilization", 0.0),
    )


def comparison_to_dict(results: Iterable[Result], mispredictions: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What ``compare-policies --json`` prints: one result a policy, in the order given, and the mispredictions of those that predict."""
    data = {"format": reading.format_of("comparison"), "results": [result_to_dict(result) for result in results]}
    listed = [dict(row) for row in mispredictions]
    return data | {"mispredictions": listed} if listed else data


def comparison_from_dict(data: object, source: str | None = None) -> list[Result]:
    """The results of a dictionary as :func:`comparison_to_dict` gives it. Raises :class:`InputError`."""
    return [_result(result) for result in COMPARISON.check(data, source).get("results", [])]


def to_json(data: Mapping[str, Any]) -> str:
    """The JSON text of a result, a comparison or a schema: two spaces a level, ASCII, keys in the order given, no newline at the end."""
    return json.dumps(data, indent=2, allow_nan=False)
