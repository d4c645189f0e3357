"""Programs that torch compiled: their text read, and called op by op."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.on_torch.lower.compiled.compiled_calls import (
        IN_ORDER,
        InductorProgram,
        StepOp,
        bind_calls,
    )
    from hosim.on_torch.lower.compiled.compiled_models import (
        CompiledModel,
        require_no_hooks,
        require_one_process,
        uncompiled,
    )
    from hosim.on_torch.lower.compiled.compiled_training import traced_by_calls
    from hosim.on_torch.lower.compiled.program_of_text import compiled_program
    from hosim.on_torch.lower.compiled.wrapper_text import (
        GATHERED,
        READ,
        UPDATED,
        WRITTEN,
        read_wrapper,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "compiled_calls": "IN_ORDER InductorProgram StepOp bind_calls",
            "compiled_models": "CompiledModel require_no_hooks require_one_process uncompiled",
            "compiled_training": "traced_by_calls",
            "program_of_text": "compiled_program",
            "wrapper_text": "GATHERED READ UPDATED WRITTEN read_wrapper",
        },
    )

__all__ = [
    "GATHERED", "IN_ORDER", "READ", "UPDATED", "WRITTEN", "CompiledModel", "InductorProgram",
    "StepOp", "bind_calls", "compiled_program", "read_wrapper", "require_no_hooks",
    "require_one_process", "traced_by_calls", "uncompiled",
]  # fmt: skip
