"""Importers of torch: exported programs, modules, training steps and execution traces."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.importers.torch_programs.pt2_archive import read_archive
    from hosim.io.importers.torch_programs.torch_export import (
        import_exported,
        import_plan,
        import_pt2,
        plan_of,
        require_torch,
        workload_of,
    )
    from hosim.io.importers.torch_programs.torch_guard import OwnOp
    from hosim.io.importers.torch_programs.torch_model import (
        exported,
        import_torch_model,
        is_torch_model,
    )
    from hosim.io.importers.torch_programs.torch_pt2 import load
    from hosim.io.importers.torch_programs.torch_run import (
        PlaceholderInput,
        given,
        quiet,
        run_module,
        updated,
        wrapped,
    )
    from hosim.io.importers.torch_programs.torch_step import (
        default_dtype,
        dtype_of,
        failures,
        loss_of,
    )
    from hosim.io.importers.torch_programs.torch_trace import (
        RecordedCall,
        import_torch_trace,
        recorded_calls,
    )
    from hosim.io.importers.torch_programs.torch_train import import_training
    from hosim.io.importers.torch_programs.torch_uses import extent
    from hosim.io.importers.torch_programs.traced_tensors import DTYPES, Storages, TracedTensor
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "pt2_archive": "read_archive",
            "torch_export": "import_exported import_plan import_pt2 plan_of require_torch "
            "workload_of",
            "torch_guard": "OwnOp",
            "torch_model": "exported import_torch_model is_torch_model",
            "torch_pt2": "load",
            "torch_run": "PlaceholderInput given quiet run_module updated wrapped",
            "torch_step": "default_dtype dtype_of failures loss_of",
            "torch_trace": "RecordedCall import_torch_trace recorded_calls",
            "torch_train": "import_training",
            "torch_uses": "extent",
            "traced_tensors": "DTYPES Storages TracedTensor",
        },
    )

__all__ = [
    "DTYPES", "OwnOp", "PlaceholderInput", "RecordedCall", "Storages", "TracedTensor",
    "default_dtype", "dtype_of", "exported", "extent", "failures", "given", "import_exported",
    "import_plan", "import_pt2", "import_torch_model", "import_torch_trace", "import_training",
    "is_torch_model", "load", "loss_of", "plan_of", "quiet", "read_archive", "recorded_calls", "require_torch",
    "run_module", "updated", "workload_of", "wrapped",
]  # fmt: skip
