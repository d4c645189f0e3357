"""The sentence for the case that not to offload is the answer."""

from __future__ import annotations

from hosim.analysis.remarks import NoOffload
from hosim.units import human_size, human_time


def no_offload_sentence(answer: NoOffload, budget_bytes: int) -> str:
    """Why not to offload, with the figures."""
    alone = human_time(answer.resident_ns)
    if answer.reason == "fits" or answer.fastest_ns is None:
        held = f"{human_size(answer.resident_bytes)} of the budget of {human_size(budget_bytes)}"
        return f"Do not offload: everything fits. Resident, the step takes {alone} and {held}."
    together = human_time(answer.devices * answer.resident_ns)
    return (
        "Do not offload: the link is too slow for this step. The fastest plan takes "
        f"{human_time(answer.fastest_ns)}; with everything "
        f"resident the step takes {alone}, so that the {answer.devices} devices which hold it "
        f"take {together} together."
    )
