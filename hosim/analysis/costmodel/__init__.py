"""The durations of ops and transfers on a hardware profile: ops by roofline, transfers by bandwidth
and latency.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.costmodel.guessed_attention import guessed_attention_line
    from hosim.analysis.costmodel.guessed_collectives import (
        guessed_collectives,
        guessed_collectives_line,
    )
    from hosim.analysis.costmodel.memory_traffic import (
        HELD_BYTES_PER_S,
        MemoryUse,
        copies_compete,
        copy_uses,
        machine_of_copies,
        memory_uses,
        with_memories,
    )
    from hosim.analysis.costmodel.on_the_device import (
        base_line,
        base_of,
        known_on_device,
        on_the_device,
    )
    from hosim.analysis.costmodel.op_time import kernel_times_of, op_durations, time_origins
    from hosim.analysis.costmodel.origins import GUESS, MODEL, ORIGINS, TABLE
    from hosim.analysis.costmodel.peaks import peak_for
    from hosim.analysis.costmodel.rescaled import rescaled_from
    from hosim.analysis.costmodel.runtime_times import machine_under, share_beside, under_runtime
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "guessed_attention": "guessed_attention_line",
            "guessed_collectives": "guessed_collectives guessed_collectives_line",
            "memory_traffic": "HELD_BYTES_PER_S MemoryUse copies_compete copy_uses "
            "machine_of_copies memory_uses with_memories",
            "on_the_device": "base_line base_of known_on_device on_the_device",
            "op_time": "kernel_times_of op_durations time_origins",
            "origins": "GUESS MODEL ORIGINS TABLE",
            "peaks": "peak_for",
            "rescaled": "rescaled_from",
            "runtime_times": "machine_under share_beside under_runtime",
        },
    )

__all__ = [
    "GUESS", "HELD_BYTES_PER_S", "MODEL", "ORIGINS", "TABLE", "MemoryUse", "base_line", "base_of",
    "copies_compete", "copy_uses", "guessed_attention_line", "guessed_collectives",
    "guessed_collectives_line", "kernel_times_of", "known_on_device", "machine_of_copies",
    "machine_under", "memory_uses", "on_the_device", "op_durations", "peak_for", "rescaled_from",
    "share_beside", "time_origins", "under_runtime", "with_memories",
]  # fmt: skip
