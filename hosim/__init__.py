"""hosim: how much memory a model's offload schedule needs, how long it takes and what waits for
what, without the hardware.

An importer or a builder makes a :class:`Graph`, a policy turns it into a :class:`Plan`, and the
engine replays the plan on a :class:`Hardware` and returns a :class:`Result`.

>>> import hosim
>>> b = hosim.GraphBuilder("toy")
>>> _ = (
...     b.tensor("w", 40, "parameter", home="ddr"),
...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
... )
>>> plan = hosim.plan(b.build(), "toy", "layerwise")
>>> hosim.replay(plan, "toy").makespan_ns
90
"""

from typing import TYPE_CHECKING

from hosim import extensions
from hosim.base.in_cells import InCells
from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim import policies as policies
    from hosim.api import (
        blame,
        compare,
        diff,
        explain,
        fit,
        fits,
        frontier,
        load,
        plan,
        plan_stages,
        plot,
        replay,
        replay_stages,
        robustness,
        runtime_fit,
        sweep,
        what_if,
    )
    from hosim.cache_plan import CacheOp, Plan
    from hosim.data.stages import StagesResult
    from hosim.errors import (
        ExecutionError,
        GraphError,
        HardwareError,
        HosimError,
        InfeasibleError,
        InputError,
        PlanError,
        UnitError,
    )
    from hosim.graph import Graph, GraphBuilder, Op, Tensor
    from hosim.hardware import Hardware
    from hosim.io import load_hardware, load_plan, load_workload, save_plan, save_workload
    from hosim.on_torch.bridges import offload_callback
    from hosim.on_torch.gpu.own_step import record
    from hosim.on_torch.lower import offload
    from hosim.result import Result
    from hosim.serving.api import serve, serve_fit, serve_frontier, serve_sweep
    from hosim.serving.requests import Request
    from hosim.shipped import find_hardware, find_workload
    from hosim.version import __version__
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "api": "blame compare diff explain fit fits frontier load plan plan_stages plot replay "
            "replay_stages robustness runtime_fit sweep what_if",
            "cache_plan": "CacheOp Plan",
            "errors": "ExecutionError GraphError HardwareError HosimError InfeasibleError "
            "InputError PlanError UnitError",
            "graph": "Graph GraphBuilder Op Tensor",
            "hardware": "Hardware",
            "io": "load_hardware load_plan load_workload save_plan save_workload",
            "on_torch.gpu.own_step": "record",
            "on_torch.bridges": "offload_callback",
            "on_torch.lower": "offload",
            "result": "Result",
            "serving.api": "serve serve_fit serve_frontier serve_sweep",
            "serving.requests": "Request",
            "shipped": "find_hardware find_workload",
            "data.stages": "StagesResult",
            "version": "__version__",
        },
        packages="policies",
    )

__all__ = [
    "CacheOp",
    "ExecutionError",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "Hardware",
    "HardwareError",
    "HosimError",
    "InfeasibleError",
    "InputError",
    "Op",
    "Plan",
    "PlanError",
    "Request",
    "Result",
    "StagesResult",
    "Tensor",
    "UnitError",
    "__version__",
    "blame",
    "compare",
    "diff",
    "explain",
    "find_hardware",
    "find_workload",
    "fit",
    "fits",
    "frontier",
    "load",
    "load_hardware",
    "load_plan",
    "load_workload",
    "offload",
    "offload_callback",
    "plan",
    "plan_stages",
    "plot",
    "record",
    "replay",
    "replay_stages",
    "robustness",
    "runtime_fit",
    "save_plan",
    "save_workload",
    "serve",
    "serve_fit",
    "serve_frontier",
    "serve_sweep",
    "sweep",
    "what_if",
]


def _cell(of: object) -> str:
    from hosim.api import cell

    return cell(of)


InCells.written_by = _cell
extensions.ROOMS = ("hosim.formats", "hosim.serving")
