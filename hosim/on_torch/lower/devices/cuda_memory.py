"""The memory of a GPU under a budget: what a program has allocated, what copies still read of what
it has freed, and what is reserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hosim.data.allocator_blocks import in_blocks
from hosim.on_torch.lower.devices import torch_gpu
from hosim.on_torch.lower.devices.deferred_calls import DeferredCalls
from hosim.on_torch.lower.tiers import RunMemory

RESERVE = 1.05
"""How many times its budget a program's part of torch's allocator may be: free memory lies in
pieces between what is held.
"""


class CudaMemory:
    """Storages of the GPU of number ``index``. ``budget_bytes`` bounds what the program holds, what
    copies still read included; ``None``: nothing does.
    """

    def __init__(self, calls: DeferredCalls, index: int) -> None:
        self.budget_bytes: int | None = None
        self._index = index
        self._callers_fraction = 1.0
        self.use = RunMemory()
        self._calls = calls
        self._freeing: dict[int, object] = {}
        self._pending_bytes = 0
        self._outside_bytes = 0
        self._slack_bytes = 0
        self._is_running = False

    def begin(self, resident_bytes: int) -> None:
        """Begin a run: find what is reserved for others, and give back what the model had before it
        was moved to other tiers.
        """
        self.use = RunMemory()
        self._is_running = True
        if self.budget_bytes is not None:
            self._calls.look()
            self._outside_bytes = max(
                0,
                torch_gpu.cuda.memory_allocated(self._index) - resident_bytes - self._pending_bytes,
            )
            if torch_gpu.cuda.memory_reserved(self._index) > self._limit_bytes():
                torch_gpu.cuda.empty_cache()
            self._callers_fraction = torch_gpu.cuda.get_per_process_memory_fraction(self._index)
            self._limit()

    def end(self) -> None:
        """End a run: note what torch's allocator has from the device, and what of it is beyond the
        budget.
        """
        self._is_running = False
        self._calls.look()
        self.use.reserved_bytes = torch_gpu.cuda.memory_reserved(self._index)
        if self.budget_bytes is not None:
            self.use.over_budget_bytes = max(
                0, self.use.reserved_bytes - self._outside_bytes - self.budget_bytes
            )
            torch_gpu.cuda.set_per_process_memory_fraction(self._callers_fraction, self._index)

    def _limit_bytes(self) -> int:
        """Return the bytes that torch's allocator may reserve for the whole process."""
        assert self.budget_bytes is not None
        return int(self._outside_bytes + self.budget_bytes * RESERVE + self._slack_bytes)

    def _limit(self) -> None:
        """Let torch's allocator give unused memory back before it takes more than the budget from
        the device.
        """
        _, total = torch_gpu.cuda.mem_get_info(self._index)
        torch_gpu.cuda.set_per_process_memory_fraction(
            min(self._callers_fraction, self._limit_bytes() / total), self._index
        )

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes, in the order of the compute stream; bytes that a transfer still
        reads can be used again.
        """
        if self._freeing.pop(storage._cdata, None) is not None:
            self._pending_bytes -= in_blocks(storage.nbytes())
        elif storage.nbytes() != size_bytes:
            try:
                storage.resize_(size_bytes)
            except torch_gpu.cuda.OutOfMemoryError:
                self._allocate_again(storage, size_bytes)

    def _allocate_again(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes once there is room. Raises torch's error if there never is."""
        may_help = True
        while may_help:
            may_help = self.recover()
            try:
                storage.resize_(size_bytes)
            except torch_gpu.cuda.OutOfMemoryError:
                if not may_help:
                    raise
            else:
                return

    def free(self, storage: Any, after: Sequence[Any]) -> None:
        """Free a storage's bytes once no transfer reads them, when the host next looks.

        ``Tensor.record_stream`` would give them to the allocator at once, which keeps them as long:
        then nothing would say how much waits.
        """
        key, token, size = storage._cdata, object(), in_blocks(storage.nbytes())
        if all([event.done() for event in after]):
            storage.resize_(0)
            return
        self._freeing[key] = token
        self._pending_bytes += size

        def now() -> None:
            if self._freeing.get(key) is token:
                del self._freeing[key]
                self._pending_bytes -= size
                storage.resize_(0)

        self._calls.later(after, now)

    def linger(self, size_bytes: int, after: Sequence[Any]) -> None:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Device.linger`."""
        size = in_blocks(size_bytes)
        self._pending_bytes += size

        def ended() -> None:
            self._pending_bytes -= size

        self._calls.later(after, ended)

    def hold_back(self, level_bytes: int) -> None:
        """Before the program holds ``level_bytes``: let the host wait until they, and what
        transfers still read, fit the budget.
        """
        if self._pending_bytes:
            self._calls.look()
            if self.budget_bytes is not None:
                while self._pending_bytes and level_bytes + self._pending_bytes > self.budget_bytes:
                    self._calls.wait_for_first()
        self.use.note(level_bytes, self._pending_bytes)

    def recover(self) -> bool:
        """After a request found no room: wait for all that is freed, and let the program reserve
        more; whether a second try may succeed.
        """
        waits = bool(self._pending_bytes)
        torch_gpu.cuda.synchronize(self._index)
        self._calls.look()
        torch_gpu.cuda.empty_cache()
        if waits:
            return True
        if (
            not self._is_running
            or self.budget_bytes is None
            or self._limit_bytes() >= torch_gpu.cuda.mem_get_info(self._index)[1]
        ):
            return False
        self._slack_bytes = max(2 * self._slack_bytes, int(self.budget_bytes / 64))
        self._limit()
        return True
