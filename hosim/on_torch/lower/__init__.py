"""Run a plan as a torch graph: capture, cache ops as nodes, executors, bridges. Importing this
package does not import torch.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.on_torch.lower.exported_call import inference
    from hosim.on_torch.lower.guard import Guard, require_free
    from hosim.on_torch.lower.insert import Barrier, barriers, insert, is_cache_node
    from hosim.on_torch.lower.offloaded_step import OffloadedStep, training
    from hosim.on_torch.lower.offloading import (
        OFFLOADING,
        Replayed,
        machine_of,
        offload,
        planned,
        rule_of,
        within_reserved,
    )
    from hosim.on_torch.lower.order import order_of
    from hosim.on_torch.lower.replicas import STREAM, Replicas
    from hosim.on_torch.lower.run import Executor
    from hosim.on_torch.lower.sharded import Shards
    from hosim.on_torch.lower.step_values import StepValues
    from hosim.on_torch.lower.torch_program import TorchProgram, capture, read
    from hosim.on_torch.lower.training import capture_training
    from hosim.on_torch.lower.true_layouts import TrueLayouts
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "exported_call": "inference",
            "guard": "Guard require_free",
            "insert": "Barrier barriers insert is_cache_node",
            "offloaded_step": "OffloadedStep training",
            "offloading": "OFFLOADING Replayed machine_of offload planned rule_of within_reserved",
            "order": "order_of",
            "replicas": "Replicas STREAM",
            "run": "Executor",
            "sharded": "Shards",
            "step_values": "StepValues",
            "torch_program": "TorchProgram capture read",
            "training": "capture_training",
            "true_layouts": "TrueLayouts",
        },
    )

__all__ = [
    "OFFLOADING", "STREAM", "Barrier", "Executor", "Guard", "OffloadedStep", "Replayed", "Replicas",
    "Shards", "StepValues", "TorchProgram", "TrueLayouts", "barriers", "capture",
    "capture_training", "inference", "insert", "is_cache_node", "machine_of",
    "offload", "order_of", "planned", "read", "require_free", "rule_of", "training",
    "within_reserved",
]  # fmt: skip
