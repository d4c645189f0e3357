"""The times and the work of recorded ops: learned by kind, and fitted as efficiencies."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.op_costs.kernel_scale import KernelScale, scale_kernels, scaled_constants
    from hosim.validate.op_costs.kind_times import (
        ASSUMED,
        KindEfficiency,
        efficiency_of,
        written_kinds,
    )
    from hosim.validate.op_costs.op_fit import (
        Efficiency,
        by_kind,
        fit_efficiencies,
        fit_gap,
        fit_host_launch,
        fixed_time,
    )
    from hosim.validate.op_costs.op_times import (
        LEVELS,
        Keys,
        OpTimes,
        is_transfer,
        keys_of,
        learn,
        size_of,
    )
    from hosim.validate.op_costs.op_work import Counted, OpWork, graph_of, work_of
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "kernel_scale": "KernelScale scale_kernels scaled_constants",
            "kind_times": "ASSUMED KindEfficiency efficiency_of written_kinds",
            "op_fit": "Efficiency by_kind fit_efficiencies fit_gap fit_host_launch fixed_time",
            "op_times": "Keys LEVELS OpTimes is_transfer keys_of learn size_of",
            "op_work": "Counted OpWork graph_of work_of",
        },
    )

__all__ = [
    "ASSUMED", "LEVELS", "Counted", "Efficiency", "KernelScale", "Keys", "KindEfficiency",
    "OpTimes", "OpWork", "by_kind", "efficiency_of", "fit_efficiencies", "fit_gap",
    "fit_host_launch", "fixed_time", "graph_of", "is_transfer", "keys_of", "learn", "scale_kernels",
    "scaled_constants", "size_of", "work_of", "written_kinds",
]  # fmt: skip
