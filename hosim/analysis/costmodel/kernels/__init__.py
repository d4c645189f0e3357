"""The times of kernels by their sizes: one function for each class of kernels, with few constants
that are fitted to measured times.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.costmodel.kernels.classes import (
        CLASSES,
        DTYPES,
        LABELS,
        KernelClass,
        first_wrong,
    )
    from hosim.analysis.costmodel.kernels.constants import (
        CONSTANTS_OF,
        check_constants,
        constants_for,
        has_own_constants,
        most_like,
    )
    from hosim.analysis.costmodel.kernels.fitted_constants import FITTED
    from hosim.analysis.costmodel.kernels.op_kernels import (
        TimeTable,
        kernel_times,
        kernel_us,
        processor_for,
    )
    from hosim.analysis.costmodel.kernels.sizes_of_ops import (
        CUSTOM_BYTES,
        NO_WINDOW,
        UNKNOWN,
        KernelSizes,
        causal_kernel,
        full_kernel,
        product_kernel,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "classes": "CLASSES DTYPES KernelClass LABELS first_wrong",
            "constants": "CONSTANTS_OF check_constants constants_for has_own_constants most_like",
            "fitted_constants": "FITTED",
            "op_kernels": "TimeTable kernel_times kernel_us processor_for",
            "sizes_of_ops": "CUSTOM_BYTES KernelSizes NO_WINDOW UNKNOWN causal_kernel full_kernel "
            "product_kernel",
        },
    )

__all__ = [
    "CLASSES", "CONSTANTS_OF", "CUSTOM_BYTES", "DTYPES", "FITTED", "LABELS", "NO_WINDOW", "UNKNOWN",
    "KernelClass", "KernelSizes", "TimeTable", "causal_kernel", "check_constants", "constants_for",
    "first_wrong", "full_kernel", "has_own_constants", "kernel_times", "kernel_us", "most_like",
    "processor_for", "product_kernel",
]  # fmt: skip
