"""Tables of what there is: workloads, machines, policies, devices, op times."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.listed.installation import (
        EXTRAS,
        TRIED,
        installation,
        installation_table,
    )
    from hosim.report.listed.listings import (
        machine,
        machines,
        model_figures,
        models,
        op_times,
        origin_lines,
        policies,
        policy_figures,
        runtime,
        runtimes,
        workload,
        workload_figures,
        workload_line,
        workloads,
    )
    from hosim.report.listed.memory_fit_table import memory_fit, memory_fit_to_dict
    from hosim.report.listed.short_lists import (
        machine_in_short,
        machines_in_short,
        models_in_short,
        policies_in_short,
        runtime_in_short,
        runtimes_in_short,
        workload_in_short,
        workloads_in_short,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "installation": "EXTRAS TRIED installation installation_table",
            "listings": "machine machines model_figures models op_times origin_lines policies "
            "policy_figures runtime runtimes workload workload_figures workload_line "
            "workloads",
            "memory_fit_table": "memory_fit memory_fit_to_dict",
            "short_lists": "machine_in_short machines_in_short models_in_short policies_in_short "
            "runtime_in_short runtimes_in_short workload_in_short workloads_in_short",
        },
    )

__all__ = [
    "EXTRAS", "TRIED", "installation", "installation_table", "machine", "machine_in_short",
    "machines", "machines_in_short", "memory_fit", "memory_fit_to_dict", "model_figures", "models",
    "models_in_short", "op_times", "origin_lines", "policies", "policies_in_short",
    "policy_figures", "runtime", "runtime_in_short", "runtimes", "runtimes_in_short", "workload",
    "workload_figures", "workload_in_short", "workload_line", "workloads", "workloads_in_short",
]  # fmt: skip
