"""Graphs of a GPU: ops that were recorded once and run again by one launch, on the same addresses.

All graphs of one recording take their memory from one pool, which keeps it until they are dropped.
They run in the order in which they were recorded, so that one may use what another has freed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hosim.on_torch.lower.devices import torch_gpu


class CudaGraphs:
    """The graphs of one recording on the device of number ``index``, and their pool of memory."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._pool = torch_gpu.cuda.MemPool()
        self._stream = torch_gpu.cuda.Stream(index)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which graphs are captured, on a stream of its own: torch captures none on the
        default one. Nothing else runs meanwhile.
        """
        torch_gpu.cuda.synchronize(self._index)
        torch_gpu.cuda.empty_cache()
        with torch_gpu.cuda.stream(self._stream):
            yield

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes, from the pool."""
        with torch_gpu.cuda.use_mem_pool(self._pool, self._index):
            storage.resize_(size_bytes)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the pool laid out like another one."""
        with torch_gpu.cuda.use_mem_pool(self._pool, self._index):
            return torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )

    def captured(self, work: Callable[[], object]) -> Any:
        """The graph of what ``work`` launches, which does not run. Raises what torch raises for work
        that waits for the device, or that memory of the host takes part in.
        """
        graph = torch_gpu.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool.id)
        try:
            work()
        finally:
            graph.capture_end()
        return graph

    def there(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same bytes, which keeps no memory: the pool does."""
        again = self.storage_there(tensor.untyped_storage())
        return same_view(again, tensor).requires_grad_(tensor.requires_grad)

    def storage_there(self, storage: Any) -> Any:
        """A storage of the same bytes; as :meth:`there`."""
        return torch_gpu.at(torch_gpu.address(storage), storage.nbytes(), storage.device)


def same_view(storage: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on another storage: laid out, conjugated and negated as the given one is."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made
