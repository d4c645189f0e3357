"""All that the GPU's machine asks of torch about a GPU; the stand-in of the tests takes the place
of it.

The modules beside this one read these names when they use them.
"""

from typing import Any

import torch
from torch import cuda

__all__ = ["address", "at", "cuda", "gpu", "is_on", "to_host", "used_on"]


def gpu(index: int) -> Any:
    """The device of this number."""
    return torch.device("cuda", index)


def is_on(tensor: Any, device: Any) -> bool:
    """Return whether a tensor is on the device."""
    return bool(tensor.device == device)


def to_host(tensor: Any) -> Any:
    """A copy in the host's memory."""
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
    ).copy_(tensor)


def used_on(tensor: Any, stream: Any) -> None:
    """Keep the allocator from reusing the tensor's block before the work queued on the stream by
    its end has passed.
    """
    tensor.record_stream(stream)


def address(storage: Any) -> int:
    """Where a storage's bytes are."""
    found: int = storage.data_ptr()
    return found


def at(address: int, size_bytes: int, device: Any) -> Any:
    """A storage of the bytes at an address, which somebody else keeps."""
    return torch._C._construct_storage_from_data_pointer(address, device, size_bytes)
