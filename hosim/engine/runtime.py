"""Runtime policies inside a replay: what they may see, and their decisions compiled into cache ops."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from hosim.cache_plan import CacheOp, RuntimePolicy
from hosim.engine.program import IssuedOp, way
from hosim.hardware import Hardware

if TYPE_CHECKING:
    from hosim.engine.device import Device


class DeviceView:
    """The :class:`hosim.cache_plan.MemoryView` of a device."""

    def __init__(self, device: Device, tier_names: Sequence[str]) -> None:
        self._device = device
        self._tiers = tier_names

    @property
    def now_ns(self) -> int:
        """The current instant."""
        return self._device.clock.time

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the device tier under the budget."""
        return self._device.ledger.capacity

    @property
    def free_bytes(self) -> int:
        """Bytes of the device tier that nothing holds now."""
        ledger = self._device.ledger
        return ledger.capacity - ledger.held

    def residents(self) -> Iterable[int]:
        """Tensors that hold bytes in the device tier now, including those still in flight, ascending."""
        return (t for t, state in enumerate(self._device.memory.resident) if state)

    def is_resident(self, tensor: int) -> bool:
        """Whether the tensor holds bytes in the device tier now, valid or in flight."""
        return bool(self._device.memory.resident[tensor])

    def is_busy(self, tensor: int) -> bool:
        """Whether an op that runs now uses the tensor, or a cache op of it is issued and not yet done."""
        device = self._device
        return tensor in device.memory.pending or any(
            stream.running >= 0 and tensor in device.graph.ops[stream.running].uses for stream in device.streams
        )

    def tiers_of(self, tensor: int) -> Sequence[str]:
        """Tiers other than the device tier that hold a valid copy."""
        device = self._device
        if not device.memory.copies_below[tensor]:
            return ()
        return [self._tiers[k] for k in range(len(self._tiers)) if k != device.memory.tier and device.memory.has_valid(tensor, k)]


class Runtime:
    """A runtime policy bound to one device of one replay. Raises :class:`hosim.errors.PlanError` on a tier it does not have.

    A policy that decides before some ops only names them in ``inspected``; before the others it is not asked, and no time is spent.
    """

    def __init__(self, policy: RuntimePolicy, hardware: Hardware) -> None:
        self._inspect_ns = hardware.inspect_ns
        self._inspected: Container[int] | None = getattr(policy, "inspected", None)
        self._policy = policy
        self._hardware = hardware
        self._view: DeviceView | None = None

    def attach(self, view: DeviceView) -> None:
        """Show the policy this device."""
        self._view = view

    def inspection_ns(self, i: int) -> int:
        """Time that the policy spends before op ``i``."""
        return self._inspect_ns if self._inspected is None or i in self._inspected else 0

    def before_op(self, i: int) -> list[IssuedOp]:
        """Decisions just before op ``i`` is launched."""
        assert self._view is not None
        if self._inspected is not None and i not in self._inspected:
            return []
        return self._compiled(self._policy.before_op(i, self._view))

    def make_room(self, i: int, wanted: int) -> list[IssuedOp]:
        """Decisions when ``i`` waits for ``wanted`` bytes and nothing is under way."""
        assert self._view is not None
        return self._compiled(self._policy.make_room(i, wanted, self._view))

    def _compiled(self, decisions: Iterable[CacheOp]) -> list[IssuedOp]:
        return [(-1, c.tensor, way(c.op, c.source, c.destination, self._hardware, "runtime policy")) for c in decisions]
