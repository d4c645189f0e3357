"""The imports that earlier releases documented: ``hosim.lower.insert`` and
``hosim.lower.bridges.hyper_parallel_planner``.
"""

import sys
from types import SimpleNamespace

from hosim.formats.bridges import HosimPlanner
from hosim.on_torch.lower import barriers

bridges, insert = SimpleNamespace(HosimPlanner=HosimPlanner), SimpleNamespace(barriers=barriers)
sys.modules |= {
    f"{__name__}.insert": insert,  # type: ignore[dict-item]
    f"{__name__}.bridges": bridges,  # type: ignore[dict-item]
    f"{__name__}.bridges.hyper_parallel_planner": bridges,  # type: ignore[dict-item]
}
