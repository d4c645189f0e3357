"""Files and data: workloads, hardware, plans, routing and results as JSON (gzip) or YAML, in the
formats of docs/formats.md.

No other room uses pydantic. It is imported only when one of these functions is first used.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.any_format import load_any, load_named, names_model
    from hosim.io.hardware_file import (
        hardware_from_dict,
        hardware_to_dict,
        load_hardware,
        save_hardware,
    )
    from hosim.io.plan_file import check_tiers, load_plan, plan_from_dict, plan_to_dict, save_plan
    from hosim.io.rescaled_times import rescaled
    from hosim.io.result_file import (
        comparison_from_dict,
        comparison_to_dict,
        result_from_dict,
        result_to_dict,
        to_json,
    )
    from hosim.io.routing_file import load_routing, routing_from_dict, routing_to_dict, save_routing
    from hosim.io.schemas import schema
    from hosim.io.spec import import_spec, make
    from hosim.io.spec_file import check_spec
    from hosim.io.workload_file import (
        load_workload,
        save_workload,
        workload_from_dict,
        workload_to_dict,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "any_format": "load_any load_named names_model",
            "hardware_file": "hardware_from_dict hardware_to_dict load_hardware save_hardware",
            "plan_file": "check_tiers load_plan plan_from_dict plan_to_dict save_plan",
            "rescaled_times": "rescaled",
            "result_file": "comparison_from_dict comparison_to_dict result_from_dict result_to_dict "
            "to_json",
            "routing_file": "load_routing routing_from_dict routing_to_dict save_routing",
            "schemas": "schema",
            "spec": "import_spec make",
            "spec_file": "check_spec",
            "workload_file": "load_workload save_workload workload_from_dict workload_to_dict",
        },
    )

__all__ = [
    "check_spec", "check_tiers", "comparison_from_dict", "comparison_to_dict", "hardware_from_dict",
    "hardware_to_dict", "import_spec", "load_any", "load_hardware", "load_named", "load_plan",
    "load_routing", "load_workload", "make", "names_model", "plan_from_dict", "plan_to_dict",
    "rescaled", "result_from_dict", "result_to_dict", "routing_from_dict", "routing_to_dict",
    "save_hardware", "save_plan", "save_routing", "save_workload", "schema", "to_json",
    "workload_from_dict", "workload_to_dict",
]  # fmt: skip
