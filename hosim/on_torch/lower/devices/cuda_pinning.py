"""Pinning of host memory by CUDA's driver, which undoes it; torch's pinned memory is rounded to
powers of two and kept for good.
"""

from __future__ import annotations

from hosim.errors import ExecutionError
from hosim.on_torch.lower.devices import torch_gpu
from hosim.units import human_size


class CudaPinning:
    """Like :class:`hosim.on_torch.lower.tiers.host_pool.Pinning`."""

    def pin(self, address: int, size_bytes: int) -> None:
        """Pin memory."""
        error = int(torch_gpu.cuda.cudart().cudaHostRegister(address, size_bytes, 0))
        if error:
            raise ExecutionError(
                f"the driver cannot pin {human_size(size_bytes)} of host memory (CUDA error "
                f"{error}): lower the tier's capacity, or "
                "raise the limit of locked memory (ulimit -l)"
            )

    def unpin(self, address: int) -> None:
        """Undo it."""
        torch_gpu.cuda.cudart().cudaHostUnregister(address)
