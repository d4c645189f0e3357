"""Builders of model graphs from sizes alone, and their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.models.builder import build, parameters_of
    from hosim.models.config import Run
    from hosim.models.config_json import sizes_of
    from hosim.models.gguf_names import gguf_names
    from hosim.models.gguf_types import TYPES, bytes_of
    from hosim.models.listing import ListedModel, listed_models
    from hosim.models.presets import PRESETS
    from hosim.models.processors_of_run import PROCESSORS
    from hosim.models.routing_draw import generate
    from hosim.models.stored_weights import GGUF
    from hosim.models.tape import ITEM_BYTES
    from hosim.models.weight_bytes import INDEX
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "builder": "build parameters_of",
            "config": "Run",
            "config_json": "sizes_of",
            "gguf_names": "gguf_names",
            "gguf_types": "TYPES bytes_of",
            "listing": "ListedModel listed_models",
            "presets": "PRESETS",
            "processors_of_run": "PROCESSORS",
            "routing_draw": "generate",
            "stored_weights": "GGUF",
            "tape": "ITEM_BYTES",
            "weight_bytes": "INDEX",
        },
    )

__all__ = [
    "GGUF", "INDEX", "ITEM_BYTES", "PRESETS", "PROCESSORS", "TYPES", "ListedModel", "Run", "build", "bytes_of", "generate", "gguf_names",
    "listed_models", "parameters_of", "sizes_of",
]  # fmt: skip
