"""A plan as a torch graph that runs: capture, cache ops as nodes, executors, bridges. Nothing here imports torch before it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.lower.insert import insert
    from hosim.lower.llama_cpp_options import exported
    from hosim.lower.mindspore_search import Tried, export_to_dict, search
    from hosim.lower.offloading import Replayed, offload, planned, rule_of
    from hosim.lower.on_cpu import CpuDevice
    from hosim.lower.on_cuda import CudaDevice
    from hosim.lower.run import Executor
    from hosim.lower.torch_program import TorchProgram, capture
    from hosim.lower.training import capture_training
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "insert": "insert",
            "llama_cpp_options": "exported",
            "mindspore_search": "Tried export_to_dict search",
            "offloading": "Replayed offload planned rule_of",
            "on_cpu": "CpuDevice",
            "on_cuda": "CudaDevice",
            "run": "Executor",
            "torch_program": "TorchProgram capture",
            "training": "capture_training",
        },
    )

__all__ = [
    "CpuDevice",
    "CudaDevice",
    "Executor",
    "Replayed",
    "TorchProgram",
    "Tried",
    "capture",
    "capture_training",
    "export_to_dict",
    "exported",
    "insert",
    "offload",
    "planned",
    "rule_of",
    "search",
]
