"""Describe what the files of a checkpoint say beside its ``config.json``: how the weights are
packed, and how many bytes they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hosim.errors import InputError
from hosim.files import opened, read_json
from hosim.models import INDEX

_PACKINGS = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""Files that say how weights are packed where the config does not: those of ModelOpt, AutoGPTQ and
AutoAWQ, by ``quant_method``.
"""

_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}
"""Names of AutoAWQ's file, and those that a config has for them."""

_WHOLE = "model.safetensors"
_MOST_HEADER = 100_000_000
"""Bytes of the header of a file of safetensors, at most, as its own reader has it."""


def beside(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The config with what the other files of its folder say: a ``quantization_config`` if it has
    none, and the index of the weights.

    Raises :class:`InputError`.
    """
    found = dict(config)
    for name, method in _PACKINGS.items():
        path = os.path.join(folder, name)
        if found.get("quantization_config") is None and os.path.isfile(path):
            found["quantization_config"] = _packing(_mapping(path), method, path)
    stated = _stated_bytes(folder)
    return found if stated is None else {**found, INDEX: {"metadata": {"total_size": stated}}}


def _packing(said: Mapping[str, Any], method: str, path: str) -> dict[str, Any]:
    if method == "modelopt":
        inner = said.get("quantization")
        if not isinstance(inner, Mapping):
            raise InputError("expected a mapping", source=path, where="quantization")
        said = inner
    return {
        "quant_method": method,
        **{_AWQ.get(key, key) if method == "awq" else key: value for key, value in said.items()},
    }


def _stated_bytes(folder: str) -> object:
    """The bytes of all weights, as the index of a checkpoint or its only file has them; ``None``
    where neither is there.
    """
    path = os.path.join(folder, INDEX)
    if os.path.isfile(path):
        metadata = _mapping(path).get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
        return int(size) if isinstance(size, float) and size.is_integer() else size
    path = os.path.join(folder, _WHOLE)
    if not os.path.isfile(path):
        return None
    with opened(path) as file:
        header = int.from_bytes(file.read(8), "little")
        weights = os.fstat(file.fileno()).st_size - 8 - header
    return weights if header <= _MOST_HEADER and weights > 0 else None


def _mapping(path: str) -> Mapping[str, Any]:
    found = read_json(path, "a checkpoint", "write or download it again")
    if not isinstance(found, Mapping):
        raise InputError("expected a mapping", source=path)
    return found
