"""ONNX models: read without weights, shapes inferred with the onnx package, and FLOP counted node
by node.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.importers.onnx.onnx_graph import import_onnx, without_weights
    from hosim.io.importers.onnx.onnx_operators import ContribCall, contrib, onnx_flops, onnx_kernel
    from hosim.io.importers.onnx.onnx_values import (
        DTYPES,
        OnnxValue,
        attributes_of,
        compute,
        constant,
        dtype_of,
        infer,
        of_type,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "onnx_operators": "ContribCall contrib onnx_flops onnx_kernel",
            "onnx_graph": "import_onnx without_weights",
            "onnx_values": "DTYPES OnnxValue attributes_of compute constant dtype_of infer of_type",
        },
    )

__all__ = [
    "DTYPES", "ContribCall", "OnnxValue", "attributes_of", "compute", "constant", "contrib",
    "dtype_of", "import_onnx", "infer", "of_type", "onnx_flops", "onnx_kernel", "without_weights",
]  # fmt: skip
