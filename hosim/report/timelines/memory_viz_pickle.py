"""A replay as a memory snapshot in the format of ``torch.cuda.memory._dump_snapshot``, which
pytorch.org/memory_viz shows.

Sizes and times are those of the replay, but *the addresses are synthetic*: an allocator assigns
them as tensors and workspaces are allocated and released in order of time. The stack frames of
every entry say so, and name the tensor or the op.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from hosim.analysis.packing import pack
from hosim.cache_plan import Plan
from hosim.data.allocator_blocks import MIN_BLOCK, in_blocks
from hosim.engine.allocators import CachingAllocator, Driver, PoolId
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.report.timelines.timeline_rows import end_ns, of_devices
from hosim.result import EXPANDABLE, STATIC, Residency, Result

LABEL = "hosim: synthetic addresses"
"""The text in each entry at the place of a recorded one's source file."""

_CAPACITY = 1 << 46
_FIRST_ADDRESS = 1 << 40
_EFFORT = 200_000_000

_Entry = dict[str, Any]
_Frames = list[dict[str, Any]]
_Change = tuple[int, bool, Residency]
"""The time, whether it is an allocation, and its block."""


def memory_viz(plan: Plan, hardware: Hardware, result: Result, allocator: str) -> dict[str, Any]:
    """The snapshot of a recorded replay, one device each; ``allocator`` as in
    :func:`hosim.engine.replay`, ``ledger`` meaning ``caching``.

    The allocator has unlimited memory: the snapshot shows where things would lie, not whether they
    fit.
    """
    segments: list[dict[str, Any]] = []
    traces = []
    for device, (_, one) in enumerate(of_devices(result)):
        placed = _static if allocator == STATIC else _caching
        found, trace = placed(
            plan.graph, _changes(plan.graph, hardware.device_tier, one), allocator == EXPANDABLE
        )
        segments += [{"device": device, **segment} for segment in found]
        traces.append(trace)
    return {
        "segments": segments,
        "device_traces": traces,
        "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
            if allocator == EXPANDABLE
            else "",
            "expandable_segments": allocator == EXPANDABLE,
            "garbage_collection_threshold": 0.0,
            "max_split_size": -1,
            "roundup_power2_divisions": {},
        },
        "note": f"{LABEL}, of the allocator {STATIC if allocator == STATIC else 'caching'}; "
        f"{result.workload} with {result.policy}",
    }


def to_pickle(snapshot: Mapping[str, Any]) -> bytes:
    """The snapshot as ``torch`` writes it: a pickle of plain containers; equal replays give equal
    bytes.
    """
    return pickle.dumps(snapshot, protocol=4)  # the viewer reads 2 to 4


def _changes(graph: Graph, tier: str, result: Result) -> list[_Change]:
    """Allocations and releases in order of time; at one instant, releases come first.

    What survives the step is not released at its end, and nothing is released at the end of a
    replay that ran out of memory.
    """
    assert result.timeline is not None
    end = end_ns(result)
    keyed = []
    for k, r in enumerate(result.timeline.residencies):
        if r.tier == tier and r.bytes:
            keyed.append(((r.start_ns, 1, k, 0), (r.start_ns, True, r)))
            stays = not result.feasible or (
                r.tensor >= 0 and not r.staged and graph.survives[r.tensor]
            )
            if r.end_ns < end or not stays:
                keyed.append(((r.end_ns, int(r.start_ns == r.end_ns), k, 1), (r.end_ns, False, r)))
    return [change for _, change in sorted(keyed)]


def _streams(graph: Graph) -> tuple[dict[str, int], list[int]]:
    """The number of each stream, and of each tensor's first user's stream, which its memory belongs
    to.
    """
    number = {name: s for s, name in enumerate(graph.streams)}
    return number, [number[graph.ops[users[0]].stream] if users else 0 for users in graph.users]


class _Named:
    """Frames that name the tensor or the op of an entry. Each frame is made once and shared."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[int, int], _Frames] = {}

    def __call__(self, r: Residency) -> _Frames:
        key = r.tensor, r.op
        if key not in self._made:
            ops, tensors = self._graph.ops, self._graph.tensors
            name = (
                f"{tensors[r.tensor].name} ({tensors[r.tensor].kind})"
                if r.tensor >= 0
                else f"{ops[r.op].name} (workspace)"
            )
            self._made[key] = [{"name": name, "filename": LABEL, "line": 0}]
        return self._made[key]


class _Driver(Driver):
    """Writes down which segments and pages the allocator asks for."""

    def __init__(self) -> None:
        super().__init__(_FIRST_ADDRESS)
        self.asked: list[tuple[str, int, int, int]] = []
        self._ranges: list[tuple[int, int, int]] = []

    def allocate(self, size: int, stream: int, pool_id: PoolId) -> int:
        """A new segment."""
        address = super().allocate(size, stream, pool_id)
        self.asked.append(("segment_alloc", address, size, stream))
        return address

    def reserve(self, size: int, stream: int, pool_id: PoolId) -> int:
        """Addresses of an expandable segment."""
        address = super().reserve(size, stream, pool_id)
        self._ranges.append((address, address + size, stream))
        return address

    def map(self, address: int, size: int) -> None:
        """Pages of an expandable segment."""
        stream = next(stream for start, end, stream in self._ranges if start <= address < end)
        self.asked.append(("segment_map", address, size, stream))


def _caching(
    graph: Graph, changes: Sequence[_Change], expandable: bool
) -> tuple[list[dict[str, Any]], list[_Entry]]:
    driver = _Driver()
    allocator = CachingAllocator(_CAPACITY, expandable=expandable, driver=driver)
    number, of_tensor = _streams(graph)
    frames = _Named(graph)
    where: dict[int, list[int]] = {}
    held: dict[int, Residency] = {}
    trace: list[_Entry] = []
    for now, begins, r in changes:
        stream = of_tensor[r.tensor] if r.tensor >= 0 else number[graph.ops[r.op].stream]
        if begins:
            address = allocator.malloc(r.bytes, stream)
            trace += [
                _entry(action, at, size, on, now, []) for action, at, size, on in driver.asked
            ]
            driver.asked.clear()
            where.setdefault(id(r), []).append(address)
            held[address] = r
            trace.append(_entry("alloc", address, r.bytes, stream, now, frames(r)))
        else:
            address = where[id(r)].pop()
            allocator.free(address)
            del held[address]
            trace += _freed(address, r.bytes, stream, now, frames(r))
    segments = [
        _segment(
            segment.address,
            segment.size_bytes,
            segment.stream,
            segment.small,
            segment.expandable,
            [
                _block(b.address, b.size_bytes, b.requested_bytes, frames(held[b.address]))
                if b.use == "allocated"
                else _block(b.address, b.size_bytes, 0, None)
                for b in segment.blocks
            ],
        )
        for segment in allocator.segments()
    ]
    return segments, trace


def _static(
    graph: Graph, changes: Sequence[_Change], _: bool
) -> tuple[list[dict[str, Any]], list[_Entry]]:
    """One segment, in which each allocation has the offset that a plan of the whole replay gives
    it.
    """
    order: dict[int, int] = {}
    lowers: list[int] = []
    uppers: list[int] = []
    taken: list[Residency] = []
    for place, (_now, begins, r) in enumerate(changes):
        if begins:
            order[id(r)] = len(taken)
            lowers.append(place)
            uppers.append(len(changes))
            taken.append(r)
        else:
            uppers[order[id(r)]] = place
    packing = pack(lowers, uppers, [r.bytes for r in taken], alignment=MIN_BLOCK, effort=_EFFORT)
    whole = in_blocks(packing.height)
    frames = _Named(graph)
    trace = [_entry("segment_alloc", _FIRST_ADDRESS, whole, 0, 0, [])] if whole else []
    live: dict[int, Residency] = {}
    for now, begins, r in changes:
        address = _FIRST_ADDRESS + packing.offsets[order[id(r)]]
        if begins:
            trace.append(_entry("alloc", address, r.bytes, 0, now, frames(r)))
            live[address] = r
        else:
            trace += _freed(address, r.bytes, 0, now, frames(r))
            del live[address]
    return (
        [_segment(_FIRST_ADDRESS, whole, 0, False, False, _filled(live, whole, frames))]
        if whole
        else []
    ), trace


def _filled(live: Mapping[int, Residency], whole: int, frames: _Named) -> list[dict[str, Any]]:
    """The blocks of the one segment: what is held, and what is free between."""
    blocks = []
    at = _FIRST_ADDRESS
    for address, r in sorted(live.items()):
        if address > at:
            blocks.append(_block(at, address - at, 0, None))
        size = in_blocks(r.bytes)
        blocks.append(_block(address, size, r.bytes, frames(r)))
        at = address + size
    if at < _FIRST_ADDRESS + whole:
        blocks.append(_block(at, _FIRST_ADDRESS + whole - at, 0, None))
    return blocks


def _entry(
    action: str, address: int, size: int, stream: int, now_ns: int, frames: _Frames
) -> _Entry:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": stream,
        "time_us": now_ns // 1000,
        "frames": frames,
    }


def _freed(address: int, size: int, stream: int, now_ns: int, frames: _Frames) -> list[_Entry]:
    return [
        _entry(action, address, size, stream, now_ns, frames)
        for action in ("free_requested", "free_completed")
    ]


def _block(address: int, size: int, requested: int, frames: _Frames | None) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": "inactive" if frames is None else "active_allocated",
        "frames": frames or [],
    }


def _segment(
    address: int,
    size: int,
    stream: int,
    small: bool,
    expandable: bool,
    blocks: list[dict[str, Any]],
) -> dict[str, Any]:
    held = [block for block in blocks if block["state"] != "inactive"]
    allocated = sum(block["size"] for block in held)
    return {
        "address": address,
        "total_size": size,
        "stream": stream,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": expandable,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(block["requested_size"] for block in held),
        "blocks": blocks,
        "frames": [],
    }
