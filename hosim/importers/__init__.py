"""Outside formats as workload graphs; :func:`hosim.io.load_any` tells them apart by their contents."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.importers.activation_trace import ActivationTrace, TracedOp, graph_of, import_hyper_parallel, read_document
    from hosim.importers.aten_flops import CallShapes, aten_flops, aten_kernel, composed_flops
    from hosim.importers.cache_nodes import detach, initial, is_cache_node, prefetch, ready, store
    from hosim.importers.chakra import import_chakra
    from hosim.importers.g10_config import import_g10
    from hosim.importers.gguf_header import read_gguf
    from hosim.importers.inductor import import_inductor
    from hosim.importers.mindir import import_mindir
    from hosim.importers.mindir_file import Function, MindirModel, Named, Node, Shape, read_model
    from hosim.importers.model_config import import_model_config, name_of
    from hosim.importers.model_names import builder_parameters
    from hosim.importers.op_kinds import op_kind
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "activation_trace": "ActivationTrace TracedOp graph_of import_hyper_parallel read_document",
            "aten_flops": "CallShapes aten_flops aten_kernel composed_flops",
            "cache_nodes": "detach initial is_cache_node prefetch ready store",
            "chakra": "import_chakra",
            "g10_config": "import_g10",
            "gguf_header": "read_gguf",
            "inductor": "import_inductor",
            "mindir": "import_mindir",
            "mindir_file": "Function MindirModel Named Node Shape read_model",
            "model_config": "import_model_config name_of",
            "model_names": "builder_parameters",
            "op_kinds": "op_kind",
        },
    )

__all__ = [
    "ActivationTrace", "CallShapes", "Function", "MindirModel", "Named", "Node", "Shape", "TracedOp", "aten_flops", "aten_kernel",
    "builder_parameters", "composed_flops", "detach", "graph_of", "import_chakra", "import_g10", "import_hyper_parallel",
    "import_inductor", "import_mindir", "import_model_config", "initial", "is_cache_node", "name_of", "op_kind", "prefetch",
    "read_document", "read_gguf", "read_model", "ready", "store",
]  # fmt: skip
