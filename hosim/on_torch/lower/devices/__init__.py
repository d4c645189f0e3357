"""The devices on which plans run: a GPU, or a CPU acting as one; memory, queues and pace."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.on_torch.lower.devices.cuda_graphs import CudaGraphs, same_view
    from hosim.on_torch.lower.devices.cuda_queues import CudaEvent
    from hosim.on_torch.lower.devices.model_origins import (
        CpuOrigin,
        Loader,
        fake_on,
        fakes,
        loader_of,
        named_tensors,
        origins,
        require_contents,
        views,
    )
    from hosim.on_torch.lower.devices.on_cpu import CpuDevice, CpuEvent
    from hosim.on_torch.lower.devices.on_cuda import CudaDevice
    from hosim.on_torch.lower.devices.pace import paces
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cuda_graphs": "CudaGraphs same_view",
            "cuda_queues": "CudaEvent",
            "model_origins": "CpuOrigin Loader fake_on fakes loader_of named_tensors origins "
            "require_contents views",
            "on_cpu": "CpuDevice CpuEvent",
            "on_cuda": "CudaDevice",
            "pace": "paces",
        },
    )

__all__ = [
    "CpuDevice", "CpuEvent", "CpuOrigin", "CudaDevice", "CudaEvent", "CudaGraphs", "Loader",
    "fake_on", "fakes", "loader_of", "named_tensors", "origins", "paces", "require_contents",
    "same_view", "views",
]  # fmt: skip
