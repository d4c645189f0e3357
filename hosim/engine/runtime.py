"""Runtime policies inside a replay: what they may see, and their decisions compiled into cache ops."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from hosim.cache_plan import CacheOp, RuntimePolicy
from hosim.engine.compiled_plan import IssuedOp, resolve_hop
from hosim.engine.device_memory import DeviceMemory
from hosim.engine.stream import Stream
from hosim.hardware import Hardware


class DeviceView:
    """The :class:`hosim.cache_plan.MemoryView` of a device."""

    def __init__(self, memory: DeviceMemory, streams: Sequence[Stream], tier_names: Sequence[str]) -> None:
        self._memory = memory
        self._ledger = memory.ledgers[memory.tier]
        self._streams = streams
        self._tiers = tier_names

    @property
    def now_ns(self) -> int:
        """The current instant."""
        return self._memory.clock.time

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the device tier under the budget."""
        return self._ledger.capacity

    @property
    def free_bytes(self) -> int:
        """Bytes of the device tier that nothing holds now."""
        return self._ledger.capacity - self._ledger.held

    def residents(self) -> Iterable[int]:
        """Tensors that hold bytes in the device tier now, including those still in flight, ascending."""
        return (t for t, state in enumerate(self._memory.resident) if state)

    def is_resident(self, tensor: int) -> bool:
        """Whether the tensor holds bytes in the device tier now, valid or in flight."""
        return bool(self._memory.resident[tensor])

    def is_busy(self, tensor: int) -> bool:
        """Whether an op that runs now uses the tensor, or a cache op of it is issued and not yet done."""
        memory = self._memory
        return tensor in memory.pending or any(
            stream.running >= 0 and tensor in memory.graph.ops[stream.running].uses for stream in self._streams
        )

    def tiers_of(self, tensor: int) -> Sequence[str]:
        """Tiers other than the device tier that hold a valid copy."""
        memory = self._memory
        if not memory.copies_below[tensor]:
            return ()
        return [self._tiers[k] for k in range(len(self._tiers)) if k != memory.tier and memory.has_valid(tensor, k)]


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
        return [(-1, c.tensor, resolve_hop(c.op, c.source, c.destination, self._hardware, "runtime policy")) for c in decisions]
