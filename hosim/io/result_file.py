"""The result format: ``hosim.result/1`` (the output of ``--json``), ``hosim.comparison/1`` and
:class:`~hosim.result.Result`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field

from hosim.analysis.remarks import NoOffload, beside_fastest, draws_notes, strongest_rival
from hosim.base.files import format_of
from hosim.data.draws import Draws, LaterDraws, UncertainPart
from hosim.data.seen_peaks import VERDICTS, SeenPeak, SeenPeaks
from hosim.data.unknown_ops import UnknownOps
from hosim.graph import KINDS
from hosim.io.key_tables import (
    COUNT,
    FLAG,
    TEXT,
    Key,
    KeyTable,
    Kind,
    format_key,
    keys,
    literal,
    mapping,
    note,
    optional,
    several,
)
from hosim.io.validators import Count, Format, mapping_type
from hosim.jitter import Jitter
from hosim.notes import each_once
from hosim.result import (
    ACCOUNTS,
    ALLOCATORS,
    IN_TIME,
    STALL_CAUSES,
    WORKSPACE,
    AllocatorFigures,
    AllocatorState,
    ChannelFigures,
    DeviceFigures,
    DeviceLine,
    Result,
    Spread,
    StreamFigures,
)

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

NON_NEGATIVE = Kind(Annotated[float, Field(ge=0, allow_inf_nan=False)])

_PLAN, _CHANGES = ("prefetches", "stores", "detaches"), ("recomputes", "moved_ops")


_STALLS: Any = mapping_type(
    "StallModel",
    "The time that a stream waited, by cause.",
    dict.fromkeys(STALL_CAUSES, NotRequired[Count]),
)

_PLAN_COUNTS: Any = mapping_type(
    "PlanCountModel",
    "The number of cache ops of each kind, and of recomputed ops, if any.",
    dict.fromkeys((*_PLAN, *_CHANGES), NotRequired[Count]),
)

_MISPREDICTIONS: Any = mapping_type(
    "MispredictionsModel",
    "The quality of one policy's routing predictions: counts of experts' tensors, bytes, and times\n"
    "in nanoseconds.",
    {
        **dict.fromkeys(("policy", "predictor"), str),
        **dict.fromkeys(("decisions", "chosen", "resident", "prefetched"), NotRequired[Count]),
        **dict.fromkeys(("missed", "missed_bytes"), NotRequired[Count]),
        **dict.fromkeys(("wrong", "wrong_bytes", "wrong_ns"), NotRequired[Count]),
        "makespan_ns": Count,
        **dict.fromkeys(("right_ns", "perfect_ns", "none_ns"), NotRequired[Count | None]),
    },
)

_STRONGEST_RIVAL: Any = mapping_type(
    "StrongestRivalModel",
    "The fastest policy that is not hosim's planner, and the part of its makespan that\n"
    "hyperoffload takes less.",
    {"policy": str, "makespan_ns": Count, "ahead": float},
)

_PAIRED_DRAWS: Any = mapping_type(
    "PairedDrawsModel",
    "The fastest policy beside another one, in the same draws of what is uncertain.",
    {
        "first": str,
        "second": str,
        "draws": int,
        **dict.fromkeys(("faster_share", "low", "high", "near_share"), float),
        "simpler": bool,
        "unfit": list[float],
        "faster": str,
        "verdict": str,
    },
)

_REGRET: Any = mapping_type(
    "RegretModel",
    "The loss of a policy's plan in each of some draws, against one made for that world.",
    {"policy": str, "losses": list[float | None]},
)

_NO_OFFLOAD: Any = mapping_type(
    "NoOffloadModel",
    "The reason not to offload (everything fits, or the link is too slow), and the time, bytes and\n"
    "devices of a step with everything resident.",
    {
        "reason": Literal["fits", "link"],
        **dict.fromkeys(("resident_ns", "resident_bytes", "devices"), Count),
        "fastest_ns": Count | None,
    },
)


def _all_of(keys: Iterable[str], given: Mapping[str, Any]) -> dict[str, int]:
    return {key: given.get(key, 0) for key in keys}


def _stalls(given: Mapping[str, Any]) -> dict[str, int]:
    return _all_of(STALL_CAUSES, given)


def _counts(given: Mapping[str, Any]) -> dict[str, int]:
    return _all_of(_PLAN, given) | {label: given[label] for label in _CHANGES if given.get(label)}


def _breakdown(result: Result) -> dict[str, dict[str, int]]:
    """Return every tier, with the kinds that hold bytes."""
    tiers = dict.fromkeys([*result.peak_bytes, *result.peak_breakdown])
    return {tier: _by_kind(result.peak_breakdown.get(tier, {})) for tier in tiers}


def _by_kind(held: Mapping[str, int]) -> dict[str, int]:
    kinds = [*KINDS, WORKSPACE]
    return {
        kind: held[kind]
        for kind in [*kinds, *(k for k in held if k not in kinds)]
        if held.get(kind)
    }


STALLS, PLAN_COUNTS, TIME, BYTES = (
    Kind(_STALLS, _stalls, _stalls),
    Kind(_PLAN_COUNTS, _counts, _counts),
    optional(COUNT),
    mapping(COUNT),
)

_STREAM = KeyTable(
    "StreamModel",
    "Division of the makespan of one stream.",
    StreamFigures,
    Key("busy_ns", COUNT, default=0),
    Key("stall_ns", STALLS, default={}),
    Key("drain_ns", COUNT, default=0),
)

_CHANNEL = KeyTable(
    "ChannelModel",
    "One channel over the replay.",
    ChannelFigures,
    *keys(
        COUNT,
        "transfers",
        "bytes",
        "busy_ns",
        "queue_ns",
        "contention_ns",
        "exposed_ns",
        "hidden_ns",
        default=0,
    ),
    Key("utilization", Kind(Share, lambda share: round(share, 2)), default=0.0),
)

_STATE = KeyTable(
    "AllocatorStateModel",
    "An allocator at one moment; ``fragmentation`` is (reserved - allocated) / reserved.",
    AllocatorState,
    *keys(COUNT, "allocated_bytes", "reserved_bytes"),
    Key("largest_free_bytes", COUNT, default=0),
    Key("fragmentation", Kind(Share, lambda share: round(share, 4)), is_read=False),
)


def _allocator(**read: Any) -> AllocatorFigures:
    return AllocatorFigures(**{"peak_active_bytes": read["peak_allocated_bytes"]} | read)


_ALLOCATOR = KeyTable(
    "AllocatorModel",
    "The figures of an allocator of the device tier; ``out_of_memory`` is null if it did not run "
    "out.",
    AllocatorFigures,
    Key("name", literal(*ALLOCATORS)),
    Key("account", literal(*ACCOUNTS), default=IN_TIME),
    Key("peak_allocated_bytes", COUNT),
    Key("peak_active_bytes", COUNT, required=False),
    Key("peak_reserved_bytes", COUNT),
    Key("at_peak", _STATE.kind),
    Key("out_of_memory", optional(_STATE.kind)),
    make=_allocator,
)

_SPREAD = KeyTable(
    "SpreadModel",
    "The least, the lower median and the most of a figure over several devices.",
    Spread,
    *keys(COUNT, "min", "median", "max"),
)

_DEVICE = KeyTable(
    "DeviceModel",
    "One of several devices; without a makespan, it did not fit.",
    DeviceLine,
    Key("makespan_ns", TIME, default=None),
    Key("stall_ns", COUNT, default=0),
    Key("peak_bytes", BYTES, default={}),
)

_DEVICES = KeyTable(
    "DevicesModel",
    "Several devices that ran together; ``each`` is there where they are few.",
    DeviceFigures,
    *keys(COUNT, "count", "feasible"),
    *keys(optional(_SPREAD.kind), "makespan_ns", "stall_ns", default=None),
    Key("peak_bytes", mapping(_SPREAD.kind), default={}),
    Key("each", several(_DEVICE.kind), brief=True),
)

_UNKNOWN = KeyTable(
    "UnknownOpsModel",
    "The ops whose FLOP nobody could count, their share of the bytes that ops read and write, and "
    "their kinds.",
    UnknownOps,
    Key("ops", COUNT, required=True),
    Key("bytes_share", Kind(Share, lambda share: round(share, 4)), default=0.0),
    Key("kinds", several(TEXT), default=()),
)

_SEEN_PEAK = KeyTable(
    "SeenPeakModel",
    "A peak in bytes and the ends of its 90 % interval.",
    SeenPeak,
    *keys(COUNT, "bytes", "low_bytes", "high_bytes"),
)

_SEEN_PEAKS = KeyTable(
    "SeenPeaksModel",
    "The peak of the device's memory: what the allocator hands out and holds, and what the device "
    "has in use of what is usable.",
    SeenPeaks,
    *keys(_SEEN_PEAK.kind, "allocated", "reserved", "device"),
    Key("usable_bytes", COUNT),
    Key("verdict", literal(*VERDICTS), required=True, is_read=False),
)

_JITTER = KeyTable(
    "JitterModel",
    "By how much, relative to their nominal times, ops and transfers vary; see "
    ":class:`hosim.jitter.Jitter`.",
    Jitter,
    Key("seed", COUNT, required=True),
    *keys(NON_NEGATIVE, "op_sigma", "transfer_sigma"),
)


_PART = KeyTable(
    "UncertainPartModel",
    "A part of what is uncertain: its share of the variance of the makespan, and what would make "
    "it more certain.",
    UncertainPart,
    *keys(TEXT, "what"),
    Key("share", Kind(Share)),
    Key("remedy", TEXT, brief=True),
)

_DRAWS = KeyTable(
    "DrawsModel",
    "Draws of what is uncertain: how many, in how many the plan does not fit, and 90 % intervals.",
    Draws,
    Key("count", COUNT),
    Key("unfit", COUNT, default=0, brief=True),
    Key(
        "stall_ns",
        several(COUNT),
        get=lambda draws: draws.stall_interval or (),
        default=(),
        brief=True,
    ),
    Key(
        "peak_bytes",
        several(COUNT),
        get=lambda draws: draws.peak_interval or (),
        default=(),
        brief=True,
    ),
    Key("sources", several(_PART.kind), brief=True),
    Key("kind", TEXT, brief=True),
    make=lambda count, unfit, **figures: Draws((), said=(count, unfit), **figures),
)


def _read_result(
    makespan_low_ns: int | None = None,
    makespan_high_ns: int | None = None,
    draws: Draws | None = None,
    **figures: Any,
) -> Result:
    """Return the result of a file. Of its draws, only the ends of the intervals are kept."""
    if makespan_low_ns is None or makespan_high_ns is None:
        return Result(**figures, draws=None if draws is None else LaterDraws.of(draws))
    known = replace(draws or Draws.of_ends(0, 0), makespan_ns=(makespan_low_ns, makespan_high_ns))
    return Result(**figures, draws=LaterDraws.of(known))


_RESULT = KeyTable(
    "ResultModel",
    "The figures of one replay; times are null if it was infeasible.",
    Result,
    format_key("result"),
    *keys(TEXT, "workload", "hardware", "policy"),
    Key("budget_bytes", COUNT),
    Key("feasible", FLAG),
    Key("error", optional(TEXT), default=None),
    Key("failed", FLAG, brief=True),
    Key("makespan_ns", TIME, default=None),
    *keys(TIME, "makespan_low_ns", "makespan_high_ns", brief=True, default=None),
    Key(
        "draws",
        optional(_DRAWS.kind),
        get=lambda result: (
            result.drawn if result.drawn is not None and result.drawn.count else None
        ),
        default=None,
        brief=True,
    ),
    Key("busy_ns", TIME, default=None),
    Key("stall_ns", STALLS, default={}),
    Key("drain_ns", TIME, default=None),
    Key("streams", mapping(_STREAM.kind), brief=True),
    *keys(TIME, "slowed_ns", "peers_ns", brief=True),
    Key("lower_bound_ns", TIME, default=None),
    Key("ideal_ns", TIME, brief=True),
    *keys(BYTES, "peak_bytes", "peak_at_ns", default={}),
    Key("peak_breakdown", mapping(BYTES), get=_breakdown, default={}),
    Key("channels", mapping(_CHANNEL.kind), default={}),
    Key("plan", PLAN_COUNTS, default={}),
    Key("unknown_ops", _UNKNOWN.kind, brief=True),
    Key("guessed_collectives", COUNT, brief=True),
    Key("unused_bytes", COUNT, brief=True),
    Key("seen_peaks", _SEEN_PEAKS.kind, brief=True),
    Key("notes", several(TEXT), brief=True),
    Key("allocator", _ALLOCATOR.kind, brief=True),
    Key("devices", _DEVICES.kind, brief=True),
    Key("jitter", _JITTER.kind, brief=True),
    *keys(NON_NEGATIVE, "planning_s", "replay_s"),
    make=_read_result,
)

_COMPARISON: KeyTable[tuple[Result, ...]] = KeyTable(
    "ComparisonModel",
    "One result per policy, the ``mispredictions`` of those that predict a routing, and ``regret``.",
    lambda results: results,
    format_key("comparison"),
    Key("results", several(_RESULT.kind), default=()),
    note("answer", Kind(str)),
    note("strongest_rival", Kind(_STRONGEST_RIVAL)),
    note("do_not_offload", Kind(_NO_OFFLOAD)),
    note("paired", Kind(list[_PAIRED_DRAWS])),
    note("mispredictions", Kind(list[_MISPREDICTIONS])),
    note("regret", Kind(list[_REGRET])),
    note("notes", Kind(list[str])),
)

FORMAT = Format("result", lambda: _RESULT.adapter)
COMPARISON = Format("comparison", lambda: _COMPARISON.adapter)


def result_to_dict(result: Result) -> dict[str, Any]:
    """Return the result as ``--json`` prints it: every key, in the order of docs/formats.md;
    utilization to two decimals.

    ``makespan_low_ns``, ``makespan_high_ns`` and ``draws`` are present only if some op has no
    measured duration, ``streams`` only if the workload has streams beside the main one, ``failed``
    only if the policy failed, ``ideal_ns`` only if that was replayed, ``unknown_ops``,
    ``guessed_collectives``, ``unused_bytes`` and ``notes`` only if there are some, ``allocator``
    only if one placed the bytes, ``devices`` only if there were several, ``jitter`` only if there
    was some. The timeline is not included. ``peak_breakdown`` has every tier, with the kinds that
    hold bytes.
    """
    return _RESULT.write(result)


def result_from_dict(data: object, source: str | None = None) -> Result:
    """Return the result in a mapping like that of :func:`result_to_dict`; ``source`` names it in
    errors. Raises :class:`InputError`.
    """
    return _RESULT.read(FORMAT.check(data, source))


def comparison_to_dict(
    results: Iterable[Result],
    mispredictions: Iterable[Mapping[str, Any]] = (),
    answer: NoOffload | None = None,
    regret: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the output of ``compare-policies --json``: one result per policy, in the order given,
    the mispredictions of those that predict, and the ``regret`` of their plans, if it is known.

    It also has the best alternative to hosim's planner, if there is one; the reason not to offload,
    if that is the ``answer``; the fastest policy compared with each other one in the same draws
    (``paired``); and every note of the results once.
    """
    listed = list(results)
    data: dict[str, Any] = {
        "format": format_of("comparison"),
        "results": [result_to_dict(result) for result in listed],
    }
    rival = strongest_rival(listed)
    if rival is not None:
        data["strongest_rival"] = asdict(rival)
    if answer is not None:
        data["do_not_offload"] = asdict(answer)
    if pairs := beside_fastest(listed):
        data["paired"] = [pair.row for pair in pairs]
    if said := each_once(
        [*[line for result in listed for line in result.notes], *draws_notes(listed)]
    ):
        data["notes"] = said
    more = {"mispredictions": mispredictions, "regret": regret}
    rows = {name: [dict(row) for row in found] for name, found in more.items()}
    return data | {name: found for name, found in rows.items() if found}


def comparison_from_dict(data: object, source: str | None = None) -> list[Result]:
    """Return the results in a mapping like that of :func:`comparison_to_dict`. Raises
    :class:`InputError`.
    """
    return list(_COMPARISON.read(COMPARISON.check(data, source)))


def to_json(data: Mapping[str, Any]) -> str:
    """Return the JSON text of a result, a comparison or a schema: two spaces per level, ASCII, keys
    in the order given, no newline at the end.
    """
    return json.dumps(data, indent=2, allow_nan=False)
