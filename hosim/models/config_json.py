"""The sizes of a model from its public ``config.json``, as transformers writes it.

Keys that change neither sizes nor work are passed over. One that does, and that no builder knows, is an error: a model that is built
without it would be another. What a builder leaves out without being wrong about the rest, such as quantised weights, is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hosim.errors import InputError
from hosim.models.config import Layered
from hosim.models.config_keys import Keys
from hosim.models.configs_of_gated import GATED
from hosim.models.configs_of_others import OTHERS
from hosim.models.configs_of_parts import OF_PARTS
from hosim.models.configs_of_plain import PLAIN
from hosim.models.weight_bytes import stated_bytes


def sizes_of(config: Mapping[str, Any]) -> tuple[Layered, Mapping[str, Any], tuple[str, ...]]:
    """The sizes that a ``config.json`` describes.

    Parameters
    ----------
    config
        What the file has, with ``model_type`` among it.

    Returns
    -------
    tuple
        Sizes for the builder of the model's family, the part of ``config`` that they are from, and a line for each thing that ``config``
        asks for and the builder leaves out.

    Raises
    ------
    InputError
        If no builder knows the model's type, a size is missing or is not a number, or a key asks for what the builder does not have.

    References
    ----------
    The configuration classes of transformers, from which the defaults of optional keys are.

    Examples
    --------
    >>> from hosim.models.config_json import sizes_of
    >>> sizes, read, _ = sizes_of({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "torch_dtype": "float32"})
    >>> sizes.vocab_size, sorted(read)
    (50257, ['model_type', 'n_embd', 'n_head', 'n_layer', 'torch_dtype'])
    """
    kind, inside = config.get("model_type"), config.get("text_config")
    if isinstance(kind, str) and kind not in READERS and isinstance(inside, Mapping) and inside.get("model_type") in [*GATED, *OF_PARTS, *PLAIN]:
        try:
            sizes, read, left_out = sizes_of(inside)
        except InputError as error:
            raise InputError(error.message, where=f"text_config.{error.where}") from None
        outside = Keys({key: value for key, value in config.items() if key not in inside})
        _beside_sizes(outside)
        left_out = (*left_out, *outside.left_out(), f"all of {kind} but its text model")
        return sizes, {"model_type": kind, "text_config": read, **outside.read}, left_out
    if kind is None:
        raise InputError("missing; a config.json of transformers has one, such as llama", where="model_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise InputError(
            f"expected a model_type that a builder knows, one of {', '.join(READERS)}; got {kind!r}",
            where="model_type",
        )
    keys = Keys(config)
    sizes = READERS[kind](keys)
    _beside_sizes(keys)
    left_out = keys.left_out()
    return sizes, {"model_type": kind, **keys.read}, left_out


def _beside_sizes(keys: Keys) -> None:
    """What is no size and changes the bytes of the weights: their dtype, and what a checkpoint's files say."""
    keys.dtype()
    stated_bytes(keys)


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """The dtype of the weights that a ``config.json`` asks for; ``None`` where it does not say. Raises :class:`InputError`.

    >>> dtype_of({"torch_dtype": "float32"}), dtype_of({"text_config": {"dtype": "bfloat16"}}), dtype_of({})
    ('fp32', 'bf16', None)
    """
    inside = config.get("text_config")
    return Keys(config).dtype() or (Keys(inside, "text_config.").dtype() if isinstance(inside, Mapping) else None)


READERS: Mapping[str, Callable[[Keys], Layered]] = MappingProxyType({**GATED, **OF_PARTS, **PLAIN, **OTHERS})
"""By ``model_type``."""
