"""The function that builds each family of models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hosim.io.models.bert import Bert, bert
from hosim.io.models.config import Decoder, Gpt2, Run
from hosim.io.models.decoder import decoder
from hosim.io.models.t5 import T5, t5
from hosim.io.models.tape import Tape, Value
from hosim.io.models.vision import Dit, Vit, dit, vit
from hosim.io.models.whisper import Whisper, whisper


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models. ``forward`` returns the loss in training, else the result. ``defaults``
    has the defaults of :class:`Run` that differ for the family.

    ``takes`` are the fields of :class:`Run` that it uses.
    """

    forward: Callable[[Tape, Any, Run], Value]
    phases: tuple[str, ...]
    takes: frozenset[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)


_EVERY = frozenset(f.name for f in fields(Run))
_CHECKPOINTED = frozenset(
    ("checkpoint", "checkpoint_layers", "selective", "every_other_product", "kept_dtype")
)
_IMAGES = _CHECKPOINTED | {
    "phase",
    "batch",
    "micro_batches",
    "layers",
    "dtype",
    "fused",
    "optimizer",
    "foreach",
    "main_gradients",
    "states_home",
}
_IMAGES |= {"optimizer_on", "optimizer_share", "update"}
_IMAGES |= {
    "data",
    "zero",
    "sync_each_batch",
    "reshard",
    "prefetch",
    "shards_home",
    "link_bytes_per_s",
}
_TEXT = _IMAGES | {"sequence"}
_HALVES = ("train", "forward", "decode")

_DECODER = Family(decoder, ("train", "prefill", "decode"), _EVERY)

FAMILIES: Mapping[type, Family] = {
    Decoder: _DECODER,
    Gpt2: _DECODER,
    Bert: Family(bert, ("train", "forward"), _TEXT, {"sequence": 512, "phase": "forward"}),
    T5: Family(
        t5,
        _HALVES,
        _TEXT | {"context", "cache_home"},
        {"sequence": 512, "context": 512, "phase": "forward"},
    ),
    Whisper: Family(whisper, _HALVES, _TEXT | {"context", "cache_home"}, {"phase": "forward"}),
    Vit: Family(vit, ("train", "forward"), _IMAGES, {"phase": "forward"}),
    Dit: Family(dit, ("train", "forward"), _IMAGES, {"phase": "forward"}),
}
"""Families by the dataclass of a model's sizes."""
