"""hosim's plans inside the training loops and compilers of others. Importing it imports
no torch.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.on_torch.bridges.graph_trainer_tags import GraphTrainerOffload
    from hosim.on_torch.bridges.inductor_marks import InductorOffload
    from hosim.on_torch.bridges.training_loops import offload_callback
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "graph_trainer_tags": "GraphTrainerOffload",
            "inductor_marks": "InductorOffload",
            "training_loops": "offload_callback",
        },
    )

__all__ = ["GraphTrainerOffload", "InductorOffload", "offload_callback"]
