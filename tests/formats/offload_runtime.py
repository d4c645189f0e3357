"""Classes of the shape that hyper-parallel documents, its greedy planner's rule, and a literal
runtime that follows a schedule.

Everything here is written from the documented behaviour of ``hyper_offload`` (``ir``,
``planning/greedy.py``, ``ReplayExecutor``, ``ResidencyManager``) and shares no code with hosim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise


class AccessKind(Enum):
    READ = auto()
    WRITE = auto()


@dataclass
class StorageAccess:
    op_id: int
    storage_id: int
    kind: AccessKind


@dataclass
class TraceOp:
    name: str
    duration_ms: float = 0.0
    accesses: list[StorageAccess] = field(default_factory=list)


@dataclass
class ActivationTrace:
    ops: list[TraceOp] = field(default_factory=list)
    storage_sizes: dict[int, int] = field(default_factory=dict)
    retained_sids: set[int] = field(default_factory=set)
    memory_limit_bytes: int | None = None
    d2h_bandwidth_gbps: float = 16.0
    h2d_bandwidth_gbps: float = 16.0


class ResidencyActionType(Enum):
    COPY_D2H = auto()
    COPY_H2D = auto()
    RELEASE_DEVICE = auto()
    RELEASE_HOST = auto()


@dataclass(frozen=True)
class ResidencyAction:
    op_id: int
    storage_id: int
    kind: ResidencyActionType


@dataclass
class ResidencySchedule:
    pre: dict[int, list[ResidencyAction]] = field(default_factory=dict)
    post: dict[int, list[ResidencyAction]] = field(default_factory=dict)

    def add_pre(self, op_id: int, kind: ResidencyActionType, storage_id: int) -> None:
        self.pre.setdefault(op_id, []).append(ResidencyAction(op_id, storage_id, kind))

    def add_post(self, op_id: int, kind: ResidencyActionType, storage_id: int) -> None:
        self.post.setdefault(op_id, []).append(ResidencyAction(op_id, storage_id, kind))

    def pre_actions(self, op_id: int) -> list[ResidencyAction]:
        return self.pre.get(op_id, [])


class BrokenScheduleError(AssertionError):
    """The runtime would raise, read what is not there, or read what is out of date."""


def run(trace: ActivationTrace, schedule: ResidencySchedule) -> int:
    """Follow the schedule op by op as the runtime does; the peak of device bytes, in program order.

    Contents are version numbers, one more with each write: an access that finds none on the device,
    or an older one, is an error, as is the loss of the only copy of what is still accessed or
    retained, and what stays behind at the end.
    """
    kind = ResidencyActionType
    version: dict[int, int] = {}
    device: dict[int, int] = {}
    host: dict[int, int] = {}
    last = {access.storage_id: access.op_id for op in trace.ops for access in op.accesses}
    peak = 0

    def needed(sid: int, after: int) -> bool:
        return last.get(sid, -1) > after or sid in trace.retained_sids

    for i, op in enumerate(trace.ops):
        for action in schedule.pre.get(i, []):
            if action.kind is not kind.COPY_H2D:
                raise BrokenScheduleError(f"{action}: before an op only a copy up is understood")
            if action.storage_id not in device:
                if action.storage_id not in host:
                    raise BrokenScheduleError(f"{action}: nothing on the host")
                device[action.storage_id] = host[action.storage_id]
        for access in op.accesses:
            sid = access.storage_id
            if sid in version and device.get(sid) != version[sid]:
                raise BrokenScheduleError(
                    f"op {i} finds version {device.get(sid)} of storage {sid}, not {version[sid]}"
                )
            if access.kind is AccessKind.WRITE:
                version[sid] = device[sid] = version.get(sid, 0) + 1
        peak = max(peak, sum(trace.storage_sizes[sid] for sid in device))
        for action in schedule.post.get(i, []):
            sid = action.storage_id
            if action.kind is kind.COPY_H2D:
                raise BrokenScheduleError(f"{action}: after an op no copy up is understood")
            if action.kind is kind.COPY_D2H:
                if sid not in device:
                    raise BrokenScheduleError(f"{action}: nothing on the device")
                host.setdefault(
                    sid, device[sid]
                )  # where there is a host copy, even an old one, it does nothing
            elif action.kind is kind.RELEASE_DEVICE:
                if needed(sid, i) and host.get(sid) != version[sid]:
                    raise BrokenScheduleError(f"{action}: the only copy")
                device.pop(sid, None)
            else:
                if needed(sid, i) and device.get(sid) != version[sid]:
                    raise BrokenScheduleError(f"{action}: the only copy")
                host.pop(sid, None)
    if any(device.get(sid) != version[sid] for sid in trace.retained_sids if sid in version):
        raise BrokenScheduleError("what is retained is not on the device at the end")
    if left := (set(device) | set(host)) - trace.retained_sids:
        raise BrokenScheduleError(f"storages {sorted(left)} are never released")
    return peak


def greedy(trace: ActivationTrace) -> ResidencySchedule:
    """hyper-parallel's own planner by its rule: the longest gaps that cover an op over the limit,
    until all fits.
    """
    schedule, kind = ResidencySchedule(), ResidencyActionType
    listed: dict[int, list[StorageAccess]] = {}
    for op in trace.ops:
        for access in op.accesses:
            listed.setdefault(access.storage_id, []).append(access)
    held = [0] * len(trace.ops)
    gaps = []
    for sid, accesses in listed.items():
        for i in range(accesses[0].op_id, accesses[-1].op_id + 1):
            held[i] += trace.storage_sizes[sid]
        for n, (a, b) in enumerate(pairwise(accesses)):
            if b.op_id - a.op_id > 1:
                copy = next((x for x in accesses[n::-1] if x.kind is AccessKind.WRITE), accesses[0])
                gaps.append(
                    (
                        b.op_id - a.op_id,
                        trace.storage_sizes[sid],
                        -a.op_id,
                        sid,
                        copy.op_id,
                        b.op_id,
                    )
                )
    limit = trace.memory_limit_bytes
    taken = set()
    for _, size, released, sid, copy, back in sorted(gaps, key=lambda gap: gap[:3], reverse=True):
        inside = range(1 - released, back)
        if limit is None or max(held) <= limit or all(held[i] <= limit for i in inside):
            continue
        for i in inside:
            held[i] -= size
        taken.add(sid)
        schedule.add_post(copy, kind.COPY_D2H, sid)
        schedule.add_post(-released, kind.RELEASE_DEVICE, sid)
        schedule.add_pre(back, kind.COPY_H2D, sid)
    for sid, accesses in listed.items():
        if sid not in trace.retained_sids:
            schedule.add_post(accesses[-1].op_id, kind.RELEASE_DEVICE, sid)
            if sid in taken:
                schedule.add_post(accesses[-1].op_id, kind.RELEASE_HOST, sid)
    return schedule
