"""The parts of a run on the processors of lower tiers, and their requirements on the rest of the
run.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from hosim.errors import Rule, refuse
from hosim.graph import DEVICE
from hosim.io.models.config import Layered, Run

_HOMES = {"optimizer_on": "states_home", "experts_on": "experts_home", "attention_on": "cache_home"}
"""The parameters for the homes of tensors that only the ops of another processor read; by default
its tier.
"""

PROCESSORS = (*_HOMES, "layers_on")
"""The parameters of a run that place ops on the processor of a tier."""


def at_home(given: Collection[str], config: Layered, run: Run) -> Run:
    """Return the run with the homes that its processors imply. Raises :class:`InputError` for parts
    that the phase or the model does not have.

    >>> from hosim.io.models import PRESETS
    >>> at_home((), PRESETS["llama-3.1-8b"], Run(phase="train", optimizer_on="ddr")).states_home
    'ddr'
    """
    refuse(_of_optimizer(given, run))
    refuse(_of_parts(config, run))
    # if a plan chooses the processor, the tensors that these ops read have no implied home
    implied = {
        home: tier
        for key, home in _HOMES.items()
        if (tier := getattr(run, key)) is not None
        and "/" not in tier
        and getattr(run, home) is None
    }
    return replace(run, **implied)


def _of_optimizer(given: Collection[str], run: Run) -> Sequence[Rule]:
    """Rules for an optimizer on another processor: there is one, and it can run there."""
    optimizer = run.optimizer_on
    return (
        (
            "update",
            optimizer is None and "update" in given,
            "only an optimizer on another processor has it; give optimizer_on, too",
        ),
        (
            "optimizer_share",
            run.optimizer_share != 1 and ("/" in (optimizer or "/") or run.update != "synchronous"),
            "works with optimizer_on: TIER and update: synchronous",
        ),
        (
            "optimizer_on",
            optimizer is not None and run.optimizer == "none",
            "there is no optimizer to run there",
        ),
        (
            "update",
            run.update == "delayed"
            and (run.replicas > 1 or run.main_gradients or run.dtype == "fp32"),
            "delayed works for one device, a dtype narrower than fp32, and without main_gradients",
        ),
    )


def _of_parts(config: Layered, run: Run) -> Sequence[Rule]:
    """Rules for parts on other processors: the phase and the model have them."""
    experts, heads, layers = run.experts_on, run.attention_on, run.layers_on
    latent = int(getattr(config, "kv_lora_rank", 0)) > 0
    return (
        (
            "experts_on",
            experts is not None and not getattr(config, "num_experts", 0),
            "this model has no experts",
        ),
        (
            "experts_on",
            experts is not None and (not run.merged or run.tensor > 1 or run.expert > 1),
            "works with merged: true and experts that one device has",
        ),
        (
            "attention_on",
            heads is not None and run.phase != "decode",
            "works for phase=decode; the attention of a prompt runs on the device",
        ),
        (
            "attention_on",
            heads is not None and (not run.merged or latent),
            "works with merged: true, over heads of keys",
        ),
        (
            "update",
            "/" in (run.optimizer_on or "") and run.update != "synchronous",
            f"{run.update} is for an optimizer that is always on the other processor",
        ),
        (
            "layers_on",
            layers is not None and (run.training or not run.merged or run.devices > run.pipeline),
            "works for inference with merged: true, on one device or stages of a pipeline",
        ),
        (
            "layers_on",
            layers is not None and "/" not in layers,
            f"expected {DEVICE}/TIER: which layers run where is the plan's to say; got {layers!r}",
        ),
        *[
            (
                key,
                "/" in tier and not re.fullmatch(f"{DEVICE}/[^/]+", tier),
                f"expected a tier, or {DEVICE}/TIER for one of the two, got {tier!r}",
            )
            for key in PROCESSORS
            if (tier := getattr(run, key)) is not None
        ],
    )
