"""Files and data: workload, hardware, plan, routing and result, in JSON (gzip) or YAML, as docs/formats.md defines them.

No other room uses pydantic. It is imported only when one of these functions is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hosim.io.hardware_file import hardware_from_dict, hardware_to_dict, load_hardware, save_hardware
    from hosim.io.plan_file import check_tiers, load_plan, plan_from_dict, plan_to_dict, save_plan
    from hosim.io.result_file import comparison_to_dict, result_from_dict, result_to_dict, to_json
    from hosim.io.routing_file import load_routing, routing_from_dict, routing_to_dict, save_routing
    from hosim.io.schemas import schema
    from hosim.io.shipped import find_hardware, find_workload
    from hosim.io.workload_file import load_workload, save_workload, workload_from_dict, workload_to_dict

_HOMES = {
    "hardware_file": ("hardware_from_dict", "hardware_to_dict", "load_hardware", "save_hardware"),
    "plan_file": ("check_tiers", "load_plan", "plan_from_dict", "plan_to_dict", "save_plan"),
    "result_file": ("comparison_to_dict", "result_from_dict", "result_to_dict", "to_json"),
    "routing_file": ("load_routing", "routing_from_dict", "routing_to_dict", "save_routing"),
    "schemas": ("schema",),
    "shipped": ("find_hardware", "find_workload"),
    "workload_file": ("load_workload", "save_workload", "workload_from_dict", "workload_to_dict"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "check_tiers",
    "comparison_to_dict",
    "find_hardware",
    "find_workload",
    "hardware_from_dict",
    "hardware_to_dict",
    "load_hardware",
    "load_plan",
    "load_routing",
    "load_workload",
    "plan_from_dict",
    "plan_to_dict",
    "result_from_dict",
    "result_to_dict",
    "routing_from_dict",
    "routing_to_dict",
    "save_hardware",
    "save_plan",
    "save_routing",
    "save_workload",
    "schema",
    "to_json",
    "workload_from_dict",
    "workload_to_dict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
