"""Cases of the gate that serve requests: what they ask, what they measure, and why they got
worse.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.gate.served_case import check_serve, explain_served, measure_served
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "served_case": "check_serve explain_served measure_served",
        },
    )

__all__ = ["check_serve", "explain_served", "measure_served"]
