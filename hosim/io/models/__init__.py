"""Builders of model graphs from a model's sizes, and their parts."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.models.builder import build, parameters_of
    from hosim.io.models.config import (
        Decoder,
        RoutingDraw,
        Run,
    )
    from hosim.io.models.config_json import READERS, sizes_of
    from hosim.io.models.families import FAMILIES
    from hosim.io.models.functions import add, scale
    from hosim.io.models.grouped_attention import keys_of_chunk
    from hosim.io.models.listing import ListedModel, listed_models
    from hosim.io.models.packed import (
        PACKINGS,
        WEIGHTS,
        packed_bytes,
        packing_of,
    )
    from hosim.io.models.pipeline_schedule import (
        bubble,
        in_flight,
        passes,
    )
    from hosim.io.models.presets import PRESETS
    from hosim.io.models.processors_of_run import PROCESSORS
    from hosim.io.models.routing_draw import generate
    from hosim.io.models.stored_weights import (
        GGUF,
        TYPES,
        bytes_of,
        gguf_names,
    )
    from hosim.io.models.tape import ITEM_BYTES, Tape
    from hosim.io.models.weight_bytes import INDEX
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "builder": "build parameters_of",
            "config": "Decoder RoutingDraw Run",
            "config_json": "READERS sizes_of",
            "families": "FAMILIES",
            "functions": "add scale",
            "grouped_attention": "keys_of_chunk",
            "listing": "ListedModel listed_models",
            "packed": "PACKINGS WEIGHTS packed_bytes packing_of",
            "pipeline_schedule": "bubble in_flight passes",
            "presets": "PRESETS",
            "processors_of_run": "PROCESSORS",
            "routing_draw": "generate",
            "stored_weights": "GGUF TYPES bytes_of gguf_names",
            "tape": "ITEM_BYTES Tape",
            "weight_bytes": "INDEX",
        },
    )

__all__ = [
    "FAMILIES", "GGUF", "INDEX", "ITEM_BYTES", "PACKINGS", "PRESETS", "PROCESSORS", "READERS",
    "TYPES", "WEIGHTS", "Decoder", "ListedModel", "RoutingDraw", "Run", "Tape", "add", "bubble",
    "build", "bytes_of", "generate", "gguf_names", "in_flight", "keys_of_chunk", "listed_models",
    "packed_bytes", "packing_of", "parameters_of", "passes", "scale", "sizes_of",
]  # fmt: skip
