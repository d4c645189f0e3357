"""Questions of a home PC: a mixture of experts whose weights do not fit a card, decoded on the card
and the CPU beside it.

Which experts a token will choose is not known, so that a layer's experts are one tensor (``routing:
null``): a placement holds for all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import hosim
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.models import PRESETS, build
from hosim.policies import policy_named
from hosim.result import Result

MODELS = ("qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b", "deepseek-v2-lite")
MACHINES = ((8, 4, 512), (8, 5, 16_384), (12, 4, 16_384), (16, 5, 512), (24, 4, 16_384))
"""Memory of the card in GiB, the generation of the host's memory, and the tokens in the cache."""

_RATES = {4: 51_200_000_000, 5: 89_600_000_000}
"""Bytes a second of two channels of DDR4-3200 and of DDR5-5600."""


@dataclass(frozen=True)
class Question:
    """``layers``: the model has only so many, and the card as much less memory."""

    model: str
    weights: str
    gib: int
    ddr: int
    context: int
    layers: int | None = None

    def __str__(self) -> str:
        short = f"-{self.layers}layers" if self.layers else ""
        return f"{self.model}-{self.weights}-{self.gib}GiB-DDR{self.ddr}-{self.context}{short}"

    @property
    def budget(self) -> int:
        whole = int(PRESETS[self.model].num_hidden_layers)
        return self.gib * 2**30 * (self.layers or whole) // whole

    def graph(self, **more: Any) -> Graph:
        told = {
            "model": self.model,
            "phase": "decode",
            "context": self.context,
            "weights": self.weights,
            "merged": True,
            "routing": None,
        }
        return build(
            str(self), {**told, **({"layers": self.layers} if self.layers else {}), **more}
        )


QUESTIONS = tuple(
    Question(model, weights, *machine)
    for model, weights, machine in product(MODELS, ("int4", "int8"), MACHINES)
)


@cache
def machine(ddr: int) -> Hardware:
    """An RTX 4090 beside the host memory of a generation; the memory of another card is a
    budget.
    """
    hardware = hosim.load_hardware(hosim.find_hardware("rtx-4090"))
    tiers = [
        replace(tier, bandwidth_bytes_per_s=_RATES[ddr]) if tier.name == "ddr" else tier
        for tier in hardware.tiers
    ]
    return replace(hardware, tiers=tuple(tiers))


def result_of(question: Question, policy: str, **parameters: Any) -> Result | None:
    """The result of a policy; none where it does not fit."""
    hardware = machine(question.ddr)
    try:
        plan = policy_named(policy).plan(
            question.graph(layers_on="device/ddr"), hardware, question.budget, **parameters
        )
    except InfeasibleError:
        return None
    result = replay(plan, hardware, question.budget)
    return result if result.feasible else None


def naive_choices(question: Question) -> dict[str, Result]:
    """What people choose by hand: those that fit."""
    whole = question.layers or int(PRESETS[question.model].num_hidden_layers)
    found = {
        "all experts on the CPU": result_of(question, "ktransformers"),
        "the first experts on the device": result_of(question, "llama_cpp", fit_target=0),
        "everything on the device": result_of(question, "resident"),
    }
    fits, fails = 0, whole + 2
    while fails - fits > 1:
        n = (fits + fails) // 2
        result = result_of(question, "llama_cpp", n_gpu_layers=n)
        if result is None:
            fails = n
        else:
            fits, found["so many layers on the device as fit"] = n, result
    return {name: result for name, result in found.items() if result is not None}
