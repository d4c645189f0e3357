"""The parts of a run on the processors of tiers below the device, and what they demand of the rest
of the run.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from hosim.errors import InputError
from hosim.graph import DEVICE
from hosim.io.models.config import Layered, Run

_HOMES = {"optimizer_on": "states_home", "experts_on": "experts_home", "attention_on": "cache_home"}
"""The home of what only the ops of another processor read, which is by default its tier."""

PROCESSORS = (*_HOMES, "layers_on")
"""The parameters of a run that place ops on the processor of a tier."""


def at_home(given: Collection[str], config: Layered, run: Run) -> Run:
    """The run with the homes that its processors imply. Raises :class:`InputError` for parts that
    the phase or the model does not have.

    >>> from hosim.io.models import PRESETS
    >>> at_home((), PRESETS["llama-3.1-8b"], Run(phase="train", optimizer_on="ddr")).states_home
    'ddr'
    """
    if run.optimizer_on is None and "update" in given:
        raise InputError(
            "only an optimizer on another processor has it; give optimizer_on, too", where="update"
        )
    if run.optimizer_share != 1 and (
        "/" in (run.optimizer_on or "/") or run.update != "synchronous"
    ):
        raise InputError(
            "works with optimizer_on: TIER and update: synchronous", where="optimizer_share"
        )
    if run.optimizer_on is not None and run.optimizer == "none":
        raise InputError("there is no optimizer to run there", where="optimizer_on")
    if run.update == "delayed" and (run.replicas > 1 or run.main_gradients or run.dtype == "fp32"):
        raise InputError(
            "delayed works for one device, a dtype narrower than fp32, and without main_gradients",
            where="update",
        )
    if run.experts_on is not None:
        if not getattr(config, "num_experts", 0):
            raise InputError("this model has no experts", where="experts_on")
        if not run.merged or run.tensor > 1 or run.expert > 1:
            raise InputError(
                "works with merged: true and experts that one device has", where="experts_on"
            )
    if run.attention_on is not None:
        if run.phase != "decode":
            raise InputError(
                "works for phase=decode; the attention of a prompt runs on the device",
                where="attention_on",
            )
        if not run.merged or int(getattr(config, "kv_lora_rank", 0)) > 0:
            raise InputError("works with merged: true, over heads of keys", where="attention_on")
    if "/" in (run.optimizer_on or "") and run.update != "synchronous":
        raise InputError(
            f"{run.update} is for an optimizer that is always on the other processor",
            where="update",
        )
    if run.layers_on is not None:
        if run.training or not run.merged or run.devices > run.pipeline:
            raise InputError(
                "works for inference with merged: true, on one device or stages of a pipeline",
                where="layers_on",
            )
        if "/" not in run.layers_on:
            raise InputError(
                f"expected {DEVICE}/TIER: which layers run where is the plan's to say; got "
                f"{run.layers_on!r}",
                where="layers_on",
            )
    implied = {}
    for key in PROCESSORS:
        processor, home = getattr(run, key), _HOMES.get(key)
        if processor is None:
            continue
        if "/" in processor and not re.fullmatch(f"{DEVICE}/[^/]+", processor):
            raise InputError(
                f"expected a tier, or {DEVICE}/TIER for one of the two, got {processor!r}",
                where=key,
            )
        if (
            home is not None and getattr(run, home) is None and "/" not in processor
        ):  # where a plan chooses, what these ops read has no home
            implied[home] = processor
    return replace(run, **implied)
