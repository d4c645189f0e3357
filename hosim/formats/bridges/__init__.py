"""Plans for other runtimes, in their own terms: MindSpore, HyperParallel, llama.cpp."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.formats.bridges.hyper_parallel_planner import HosimPlanner, document_of
    from hosim.formats.bridges.llama_cpp_options import (
        command_line,
        exported,
        options_of,
    )
    from hosim.formats.bridges.mindspore_search import (
        STRATEGIES,
        Setting,
        Tried,
        auto_offload,
        environment,
        export_to_dict,
        search,
        shell,
    )
    from hosim.formats.bridges.residency_schedule import (
        Action,
        Planned,
        hardware_of,
        plan_of,
        plan_trace,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "hyper_parallel_planner": "HosimPlanner document_of",
            "llama_cpp_options": "command_line exported options_of",
            "mindspore_search": "STRATEGIES Setting Tried auto_offload environment export_to_dict search "
            "shell",
            "residency_schedule": "Action Planned hardware_of plan_of plan_trace",
        },
    )

__all__ = [
    "STRATEGIES", "Action", "HosimPlanner", "Planned", "Setting", "Tried", "auto_offload",
    "command_line", "document_of", "environment", "export_to_dict", "exported", "hardware_of",
    "options_of", "plan_of", "plan_trace", "search", "shell",
]  # fmt: skip
