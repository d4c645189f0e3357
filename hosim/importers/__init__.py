"""Outside formats as workload graphs; :func:`hosim.io.load_any` tells them apart by their contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.importers.activation_trace import import_hyper_parallel
    from hosim.importers.chakra import import_chakra
    from hosim.importers.g10_config import import_g10
    from hosim.importers.inductor import import_inductor
    from hosim.importers.kineto_workload import import_kineto
    from hosim.importers.mindir import import_mindir
    from hosim.importers.model_config import import_model_config
    from hosim.importers.onnx_graph import import_onnx
    from hosim.importers.torch_export import import_pt2
    from hosim.importers.torch_trace import import_torch_trace
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "activation_trace": "import_hyper_parallel",
            "chakra": "import_chakra",
            "g10_config": "import_g10",
            "inductor": "import_inductor",
            "kineto_workload": "import_kineto",
            "mindir": "import_mindir",
            "model_config": "import_model_config",
            "onnx_graph": "import_onnx",
            "torch_export": "import_pt2",
            "torch_trace": "import_torch_trace",
        },
    )

__all__ = [
    "import_chakra",
    "import_g10",
    "import_hyper_parallel",
    "import_inductor",
    "import_kineto",
    "import_mindir",
    "import_model_config",
    "import_onnx",
    "import_pt2",
    "import_torch_trace",
]
