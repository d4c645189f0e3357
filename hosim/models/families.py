"""Which function builds the models of which sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hosim.models.config import Decoder, Run
from hosim.models.decoder import decoder
from hosim.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Family:
    """``forward`` gives the loss in training, else the result; ``defaults`` are those of :class:`Run` that differ for it."""

    forward: Callable[[Tape, Any, Run], Value]
    phases: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[type, Family] = {Decoder: Family(decoder, ("train", "prefill", "decode"))}
"""By the dataclass of a model's sizes."""
