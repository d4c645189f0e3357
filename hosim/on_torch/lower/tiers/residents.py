"""The places of the copies of tensors on a machine that runs a plan: before a run, according to the
queued work, and after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hosim.cache_plan import Plan
from hosim.errors import ExecutionError, InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower.tiers.transfers import Device, Event, Origin, Place, TierBlock


@dataclass(eq=False, slots=True)
class TensorCopies:
    """One tensor's copies. ``blocks`` and ``on_device`` are as they will be when all that is queued
    is done.

    ``last`` are the ends of its last cache op that moves bytes, ``leaving`` those of the last
    transfers that read its bytes on the device, ``ready`` those of its last prefetch to the device
    tier if no op has waited for it yet. ``is_late`` says whether one of them took several channels
    in this run, ``is_whole`` whether its storage has its contents now; ``known`` are all blocks
    that may have them now. ``storage`` is kept for tensors that survive a step; ``lent`` is a
    storage that has the contents in its place, while segments of ops run on addresses of their own.
    ``origin`` is where its contents come from if that is not the storage, and ``is_at_origin`` says
    whether they still are there.
    """

    size_bytes: int
    left: int
    """Ops and cache ops of this run that are not queued yet."""
    blocks: dict[str, TierBlock] = field(default_factory=dict)
    known: list[TierBlock] = field(default_factory=list)
    last: tuple[Event, ...] = ()
    leaving: tuple[Event, ...] = ()
    is_late: bool = False
    ready: tuple[Event, ...] = ()
    on_device: bool = True
    is_whole: bool = True
    storage: Any = None
    lent: Any = None
    origin: Origin | None = None
    is_at_origin: bool = False

    def add(self, tier: str, block: TierBlock) -> None:
        """Record a copy in a tier, or on its way there."""
        self.blocks[tier] = block
        self.known.append(block)


class Residents:
    """The tensors of a plan that are tracked: those that are not always in the device tier
    alone.
    """

    def __init__(self, plan: Plan, hardware: Hardware, device: Device) -> None:
        self._graph = graph = plan.graph
        self._device = device
        self._tier = hardware.device_tier
        self._initial = plan.residency(hardware.device_tier)
        self._uses = {c.tensor: len(graph.users[c.tensor]) for c in plan.cache_ops}
        self._uses |= {
            t: len(graph.users[t]) for t, tiers in self._initial.items() if tiers != (self._tier,)
        }
        for c in plan.cache_ops:
            self._uses[c.tensor] += 1
        self._now: dict[int, TensorCopies] = {}
        self.reads = [tuple(t for t in op.reads if t in self._uses) for op in graph.ops]
        """For each op, the tracked tensors that it reads."""
        self.writes = [tuple(t for t in op.writes if t in self._uses) for op in graph.ops]
        """For each op, the tracked tensors that it writes."""
        self.uses = [tuple(t for t in op.uses if t in self._uses) for op in graph.ops]
        """For each op, the tracked tensors that it touches."""

    def __getitem__(self, t: int) -> TensorCopies:
        """The copies of a tracked tensor."""
        if t not in self._now:
            self._now[t] = TensorCopies(self._graph.tensors[t].size_bytes, self._uses.get(t, 0))
        return self._now[t]

    def begin(self) -> None:
        """Begin a run."""
        for t, resident in self._now.items():
            resident.left = self._uses.get(t, 0)

    def used(self, t: int) -> TensorCopies | None:
        """Record that one op or cache op of a tensor is queued. If the tensor dies with it, return
        its copies and forget them.
        """
        resident = self[t]
        resident.left -= 1
        return self._now.pop(t) if not resident.left and not self._graph.survives[t] else None

    def arriving(self, tensors: Iterable[int]) -> list[Event]:
        """The ends of the prefetches of tensors for which no op has waited."""
        return [event for t in tensors if t in self._now for event in self._now[t].ready]

    # -- before and after runs
    # ---------------------------------------------------------------------------------

    def check(self, t: int | None, name: str, value: Any) -> None:
        """Raise :class:`InputError` for a value that cannot be tensor ``t``."""
        if t is None:
            return
        there, wanted = value.untyped_storage().nbytes(), self._graph.tensors[t].size_bytes
        if there != wanted and t not in self._now:
            raise InputError(
                f"placeholder {name!r} has a storage of {there} B; expected {wanted} B",
                source="values",
            )

    def wants(self, t: int) -> bool:
        """Return whether a tensor is tracked and not placed yet."""
        return t in self._uses and t not in self._now

    def place(self, t: int, storage: Any, origin: Origin | None = None) -> None:
        """Copy a tensor to where the plan has it at time 0: from its storage, or from its origin,
        past its storage.

        What its storage has stays there until :meth:`settle`. Raises :class:`ExecutionError` if
        there is no room for it.
        """
        self._device.wait()
        resident = self[t]
        resident.storage = storage
        tensor = self._graph.tensors[t]
        tiers = self._initial.get(t, (self._tier,))
        inside = self._device.on_device()
        source: Place = inside
        if origin is None:
            inside.open(storage, tensor.size_bytes)
        else:
            resident.origin, resident.is_at_origin = origin, True
            resident.on_device = resident.is_whole = False
            source = origin.contents()
        for tier in tiers:
            if tier != self._tier:
                block = self._device.block(tier, tensor.size_bytes, tensor.name)
                resident.add(tier, block)
                if not block.take():
                    raise ExecutionError(f"no room for tensor {tensor.name!r} in {tier}")
                try:
                    self._device.move_now(source, block)
                except OSError as error:
                    raise ExecutionError(
                        f"tensor {tensor.name!r} to {tier}: {error.strerror}"
                    ) from error
                block.valid = True
            elif origin is not None:
                self._device.allocate(storage, tensor.size_bytes)
                inside.open(storage, tensor.size_bytes)
                self._device.move_now(source, inside)
                resident.on_device = resident.is_whole = True
        inside.close()
        if origin is not None:
            origin.leave()
            resident.is_at_origin = False

    def settle(self, t: int) -> None:
        """Free the storage of a placed tensor that is not in the device tier at time 0."""
        resident = self._now[t]
        if resident.is_whole and self._tier not in self._initial.get(t, (self._tier,)):
            resident.on_device = resident.is_whole = False
            self._device.free(resident.storage, ())

    def bring_back(self, tensors: Iterable[int], *, to_origin: bool = True) -> list[str]:
        """Restore the contents of tensors and forget them; returns the names of those whose
        contents are lost.

        Contents go to their origin, or to their storages. Those for which there is no room stay as
        they are (:meth:`left`).
        """
        wanted = list(tensors)
        if wanted:
            self._device.wait()
        return [self._graph.tensors[t].name for t in wanted if not self._bring_back(t, to_origin)]

    def land(self) -> None:
        """Bring contents into the storages of tensors that have them at another address; those for
        which there is no room have none.
        """
        for resident in self._now.values():
            if resident.lent is not None and resident.is_whole and resident.storage is not None:
                self._device.wait()
                ends = self._device.on_device(), self._device.on_device()
                try:
                    self._device.allocate(resident.storage, resident.size_bytes)
                except self._device.out_of_memory:
                    resident.is_whole = False
                    continue
                for end, storage in zip(ends, (resident.lent, resident.storage), strict=True):
                    end.open(storage, resident.size_bytes)
                self._device.move_now(*ends)
            resident.lent = None

    def left(self, tensors: Iterable[int]) -> list[str]:
        """The names of those of ``tensors`` that were not brought back."""
        return [self._graph.tensors[t].name for t in tensors if t in self._now]

    def left_for_host(self) -> list[str]:
        """The names of those tensors that were not brought back because their origin, the host's
        memory, has no room.
        """
        return [
            self._graph.tensors[t].name
            for t, resident in self._now.items()
            if resident.origin is not None
        ]

    def _bring_back(self, t: int, to_origin: bool) -> bool:
        resident = self._now[t]
        if to_origin and resident.origin is not None:
            there = self._return(t, resident, resident.origin)
        else:
            there = self._restore(t, resident)
        if there is None:
            return True
        del self._now[t]
        for block in resident.known:
            block.release()
        if to_origin and resident.origin is not None:
            self._device.shrink()  # the contents are in the host's memory again
        return there

    def _restore(self, t: int, resident: TensorCopies) -> bool | None:
        """Fill a tensor's storage; returns whether there was a copy to fill it from, and ``None``
        without room for its bytes.
        """
        if resident.is_whole:
            return True
        copies, size = (
            [block for block in resident.known if block.valid],
            self._graph.tensors[t].size_bytes,
        )
        if copies:
            try:
                self._device.allocate(resident.storage, size)
            except self._device.out_of_memory:
                return None
        inside = self._device.on_device()
        inside.open(resident.storage, size)
        there = self._fill(copies, inside)
        inside.close()
        if not there:
            self._device.free(resident.storage, ())  # nobody must compute with incomplete contents
        return there

    def _return(self, t: int, resident: TensorCopies, origin: Origin) -> bool | None:
        """Fill a tensor's origin; as :meth:`_restore`."""
        if resident.is_at_origin or not origin.returns:
            return True
        copies: list[Place] = [block for block in resident.known if block.valid]
        if resident.is_whole:
            inside = self._device.on_device()
            inside.open(resident.storage, self._graph.tensors[t].size_bytes)
            copies.insert(0, inside)
        if not copies:
            return False
        try:
            room = origin.room()
        except (MemoryError, RuntimeError):
            return None
        if self._fill(copies, room):
            return True
        origin.leave()  # as above
        return False

    def _fill(self, copies: Sequence[Place], place: Place) -> bool:
        """Fill a place from the first copy that can be read; returns whether there is one."""
        for copy in copies:
            try:
                self._device.move_now(copy, place)
            except (ExecutionError, OSError):
                continue
            return True
        return False

    def returned(self, storages: Mapping[int, Any]) -> list[int]:
        """The tensors that a run returns (by position, with their storages) and that are not in the
        device tier at its end.
        """
        away = [
            t
            for t in storages
            if t in self._now and self._now[t].storage is None and not self._now[t].on_device
        ]
        for t in away:
            self._now[t].storage = storages[t]
        return away

    def beside_home(self, inputs: Collection[int]) -> list[TensorCopies]:
        """Tensors that outlive a run, other than its ``inputs``, which have a copy on the device
        at its end and none there at time 0.
        """
        return [
            resident
            for t, resident in self._now.items()
            if resident.storage is not None
            and resident.on_device
            and t not in inputs
            and self._tier not in self._initial.get(t, (self._tier,))
        ]

    def end(self) -> None:
        """End a run: release what is left of tensors that nobody holds, and of others what they do
        not have at time 0, when the next run begins.
        """
        for t, resident in list(self._now.items()):
            resident.is_late = False
            tiers = self._initial.get(t, (self._tier,)) if resident.storage is not None else ()
            for tier in [tier for tier in resident.blocks if tier not in tiers]:
                resident.blocks.pop(tier).release(resident.last)
            resident.known = list(resident.blocks.values())
            if resident.storage is None:
                del self._now[t]

    def take_over(self, other: Residents, shared: Iterable[tuple[int, int, Any]]) -> None:
        """Keep tensors that another plan has placed on the same machine, where this plan has them
        at time 0.

        ``shared`` has the position there, the position here and the storage of each. Between runs
        only. Raises :class:`ExecutionError` if one is lost or does not fit.
        """
        in_device = (self._tier,)
        lost: list[str] = []
        # those that leave the device tier first
        for theirs, ours, storage in sorted(
            shared, key=lambda entry: self._initial.get(entry[1], in_device) == in_device
        ):
            origin = other._now[theirs].origin if theirs in other._now else None
            is_followed = ours in self._uses or origin is not None
            if theirs in other._now:
                if is_followed and self._initial.get(ours, in_device) == other._initial.get(
                    theirs, in_device
                ):
                    self._now[ours] = other._now.pop(theirs)
                    self._now[ours].left = self._uses.get(ours, 0)
                    continue
                lost += other.bring_back([theirs], to_origin=False)
                if left := other.left([theirs]):
                    raise ExecutionError(f"no room for tensor {left[0]!r} in {self._tier}")
            if lost:
                break  # the others stay where they can be brought back from
            if is_followed and ours not in self._now:
                self[ours].origin = origin
                self.place(ours, storage)
                self.settle(ours)
        if lost:
            raise ExecutionError("a tier has lost its contents", lost=lost)

    def kept(self) -> Sequence[int]:
        """The tensors whose storage outlives the run."""
        return [t for t, resident in self._now.items() if resident.storage is not None]


def resizable(views: Sequence[Any]) -> Any:
    """The storage of these views. One that cannot be freed and filled again, a file's or numpy's,
    is replaced in all of them.
    """
    storage = views[0].untyped_storage()
    if not storage.resizable():
        storage = storage.clone()
        with torch.no_grad():
            for view in views:
                view.set_(storage, view.storage_offset(), view.size(), view.stride())
    return storage
