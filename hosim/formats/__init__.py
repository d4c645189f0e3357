"""Formats of other programs, without which the core works: MindIR, Chakra, Nsight Systems, G10,
inductor, hyper-parallel; and exports.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.formats.activation_trace import (
        ActivationTrace,
        TracedOp,
        graph_of,
        import_hyper_parallel,
        read_document,
    )
    from hosim.formats.chakra import import_chakra
    from hosim.formats.g10_config import import_g10
    from hosim.formats.inductor import import_inductor
    from hosim.formats.mindir import import_mindir
    from hosim.formats.mindir_file import Function, MindirModel, Named, Node, Shape, read_model
    from hosim.formats.recognisers import (
        is_chakra,
        is_g10,
        is_hyper_parallel,
        is_inductor,
        is_mindir,
        is_nsys,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "activation_trace": "ActivationTrace TracedOp graph_of import_hyper_parallel "
            "read_document",
            "chakra": "import_chakra",
            "g10_config": "import_g10",
            "inductor": "import_inductor",
            "mindir": "import_mindir",
            "mindir_file": "Function MindirModel Named Node Shape read_model",
            "recognisers": "is_chakra is_g10 is_hyper_parallel is_inductor is_mindir is_nsys",
        },
    )

__all__ = [
    "ActivationTrace", "Function", "MindirModel", "Named", "Node", "Shape", "TracedOp", "graph_of",
    "import_chakra", "import_g10", "import_hyper_parallel", "import_inductor", "import_mindir",
    "is_chakra", "is_g10", "is_hyper_parallel", "is_inductor", "is_mindir", "is_nsys",
    "read_document", "read_model",
]  # fmt: skip
