"""hosim: how much memory a model's offload schedule needs, how long it takes and what waits for what, without the hardware.

An importer or a builder makes a :class:`Graph`, a policy turns it into a :class:`Plan`, and the engine replays the plan on a
:class:`Hardware` and returns a :class:`Result`.

>>> import hosim
>>> b = hosim.GraphBuilder("toy")
>>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
>>> plan = hosim.plan(b.build(), "toy", "layerwise")
>>> hosim.replay(plan, "toy").makespan_ns
90
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hosim import policies as policies
    from hosim.api.inputs import load
    from hosim.api.many_runs import compare, diff, robustness, sweep
    from hosim.api.one_plan import blame, explain, plan, replay
    from hosim.api.pipeline_stages import plan_stages, replay_stages
    from hosim.api.plotting import plot
    from hosim.api.searches import fit, frontier
    from hosim.api.serving_frontier import serve_frontier
    from hosim.api.serving_run import serve
    from hosim.api.serving_studies import serve_fit, serve_sweep
    from hosim.cache_plan import CacheOp, Plan
    from hosim.errors import ExecutionError, GraphError, HardwareError, HosimError, InfeasibleError, InputError, PlanError, UnitError
    from hosim.gpu.own_step import record
    from hosim.graph import Graph, GraphBuilder, Op, Tensor
    from hosim.hardware import Hardware
    from hosim.io import find_hardware, find_workload, load_hardware, load_plan, load_workload, save_plan, save_workload
    from hosim.lower.offload import offload
    from hosim.result import Result
    from hosim.stages import StagesResult
    from hosim.version import __version__

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
    "frontier",
    "load",
    "load_hardware",
    "load_plan",
    "load_workload",
    "offload",
    "plan",
    "plan_stages",
    "plot",
    "record",
    "replay",
    "replay_stages",
    "robustness",
    "save_plan",
    "save_workload",
    "serve",
    "serve_fit",
    "serve_frontier",
    "serve_sweep",
    "sweep",
]

# A module is imported when a name of it is first used: `import hosim` stays light, and the program can answer Ctrl-C at once.
_LAZY = {
    "CacheOp": "hosim.cache_plan",
    "ExecutionError": "hosim.errors",
    "Graph": "hosim.graph",
    "GraphBuilder": "hosim.graph",
    "GraphError": "hosim.errors",
    "Hardware": "hosim.hardware",
    "HardwareError": "hosim.errors",
    "HosimError": "hosim.errors",
    "InfeasibleError": "hosim.errors",
    "InputError": "hosim.errors",
    "Op": "hosim.graph",
    "Plan": "hosim.cache_plan",
    "PlanError": "hosim.errors",
    "Result": "hosim.result",
    "StagesResult": "hosim.stages",
    "Tensor": "hosim.graph",
    "UnitError": "hosim.errors",
    "__version__": "hosim.version",
    "blame": "hosim.api.one_plan",
    "compare": "hosim.api.many_runs",
    "diff": "hosim.api.many_runs",
    "explain": "hosim.api.one_plan",
    "find_hardware": "hosim.io",
    "find_workload": "hosim.io",
    "fit": "hosim.api.searches",
    "frontier": "hosim.api.searches",
    "load": "hosim.api.inputs",
    "load_hardware": "hosim.io",
    "load_plan": "hosim.io",
    "load_workload": "hosim.io",
    "offload": "hosim.lower.offload",
    "plan": "hosim.api.one_plan",
    "plan_stages": "hosim.api.pipeline_stages",
    "plot": "hosim.api.plotting",
    "record": "hosim.gpu.own_step",
    "replay": "hosim.api.one_plan",
    "replay_stages": "hosim.api.pipeline_stages",
    "robustness": "hosim.api.many_runs",
    "save_plan": "hosim.io",
    "save_workload": "hosim.io",
    "serve": "hosim.api.serving_run",
    "serve_fit": "hosim.api.serving_studies",
    "serve_frontier": "hosim.api.serving_frontier",
    "serve_sweep": "hosim.api.serving_studies",
    "sweep": "hosim.api.many_runs",
}


def __getattr__(name: str) -> Any:
    if name == "policies":  # a package: `hosim.policies.layerwise` is a policy
        return importlib.import_module("hosim.policies")
    if name not in _LAZY:
        raise AttributeError(f"module 'hosim' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "policies"})
