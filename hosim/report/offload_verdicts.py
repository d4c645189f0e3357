"""The sentence that advises against offloading."""

from __future__ import annotations

from hosim.analysis.remarks import NoOffload
from hosim.units import human_size, human_time


def no_offload_sentence(answer: NoOffload, budget_bytes: int) -> str:
    """The reason not to offload, with its figures."""
    alone = human_time(answer.resident_ns)
    if answer.reason == "fits" or answer.fastest_ns is None:
        held = f"{human_size(answer.resident_bytes)} of the budget of {human_size(budget_bytes)}"
        return f"Do not offload: everything fits. Resident, the step takes {alone} and {held}."
    return (
        "Do not offload: the link is too slow for this step. The fastest plan takes "
        f"{human_time(answer.fastest_ns)}; {answer.devices} devices hold the model and take "
        f"{alone} a step."
    )
