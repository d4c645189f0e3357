"""Importers of other programs' formats as workload graphs. :func:`hosim.io.load_any` recognises a
format by the file's contents.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.importers.aten_flops import (
        CallShapes,
        aten_flops,
        aten_kernel,
        composed_flops,
    )
    from hosim.io.importers.cache_nodes import (
        detach,
        initial,
        is_cache_node,
        prefetch,
        ready,
        store,
    )
    from hosim.io.importers.flop_formulas import convolution_flops, matmul_flops
    from hosim.io.importers.gguf import read_gguf
    from hosim.io.importers.model_config import import_model_config, name_of
    from hosim.io.importers.model_names import builder_parameters, is_hub_name
    from hosim.io.importers.op_kinds import op_kind, operator_kind
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "aten_flops": "CallShapes aten_flops aten_kernel composed_flops",
            "cache_nodes": "detach initial is_cache_node prefetch ready store",
            "flop_formulas": "convolution_flops matmul_flops",
            "gguf": "read_gguf",
            "model_config": "import_model_config name_of",
            "model_names": "builder_parameters is_hub_name",
            "op_kinds": "op_kind operator_kind",
        },
    )

__all__ = [
    "CallShapes", "aten_flops", "aten_kernel", "builder_parameters", "composed_flops",
    "convolution_flops", "detach", "import_model_config", "initial", "is_cache_node",
    "is_hub_name", "matmul_flops", "name_of", "op_kind", "operator_kind", "prefetch", "read_gguf",
    "ready", "store",
]  # fmt: skip
