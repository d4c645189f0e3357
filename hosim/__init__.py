"""hosim: what a model's schedule in hierarchical memory needs, how long it takes and what waits for what, without the hardware.

One way through: an importer or a builder makes a :class:`Graph`, a policy turns it into a :class:`Plan`, the
engine replays the plan on a :class:`Hardware` and gives a :class:`Result`.

>>> from hosim import GraphBuilder, Plan, find_hardware, load_hardware, replay
>>> b = GraphBuilder("toy")
>>> _ = b.tensor("w", 40, "parameter"), b.tensor("a", 30)
>>> _ = b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50)
>>> replay(Plan(b.build()), load_hardware(find_hardware("toy"))).makespan_ns
50
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hosim.cache_plan import CacheOp, Plan
from hosim.errors import GraphError, HardwareError, HosimError, InfeasibleError, InputError, PlanError, UnitError
from hosim.graph import Graph, GraphBuilder, Op, Tensor
from hosim.hardware import Hardware
from hosim.result import Result

if TYPE_CHECKING:
    from hosim.engine import replay
    from hosim.io import find_hardware, find_workload, load_hardware, load_plan, load_workload, save_plan, save_workload
    from hosim.lower.offload import offload
    from hosim.study.api import blame, compare, diff, fit, frontier, load, robustness, sweep

__version__ = "0.1.0"

__all__ = [
    "CacheOp",
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
    "Tensor",
    "UnitError",
    "__version__",
    "blame",
    "compare",
    "diff",
    "find_hardware",
    "find_workload",
    "fit",
    "frontier",
    "load",
    "load_hardware",
    "load_plan",
    "load_workload",
    "offload",
    "replay",
    "robustness",
    "save_plan",
    "save_workload",
    "sweep",
]

# Rooms that need third-party packages are entered when they are first asked for: `import hosim` stays light.
_LAZY = {
    "blame": "hosim.study.api",
    "compare": "hosim.study.api",
    "diff": "hosim.study.api",
    "find_hardware": "hosim.io",
    "find_workload": "hosim.io",
    "fit": "hosim.study.api",
    "frontier": "hosim.study.api",
    "load": "hosim.study.api",
    "load_hardware": "hosim.io",
    "load_plan": "hosim.io",
    "load_workload": "hosim.io",
    "offload": "hosim.lower.offload",
    "replay": "hosim.engine",
    "robustness": "hosim.study.api",
    "save_plan": "hosim.io",
    "save_workload": "hosim.io",
    "sweep": "hosim.study.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hosim' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
