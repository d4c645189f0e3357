"""Import a ``config.json`` of transformers, the folder of a checkpoint, or a GGUF as a workload:
the model in its builder's default run.

The default run is a prompt or a forward pass. For other runs, give the file's contents as the
``model`` of a spec's ``builder``, or add parameters to the name (:mod:`hosim.io.any_format`).
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from hosim.base.files import content, opened, read_head, read_json
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io.importers.gguf import config_of_gguf, is_gguf
from hosim.io.models import INDEX, build, sizes_of
from hosim.plain_text import shown

# -- folders of checkpoints ------------------------------------------------------------------------


_PACKINGS = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""Files that say how weights are packed if the config does not, with their ``quant_method``: those
of ModelOpt, AutoGPTQ and AutoAWQ.
"""

_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}
"""Keys of AutoAWQ's file, and the keys that a config has for the same."""

_WHOLE = "model.safetensors"
_MOST_HEADER = 100_000_000
"""The most bytes of a safetensors file's header; its own reader has the same limit."""


def beside(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the config, completed from other files in its folder: a ``quantization_config`` if it
    has none, and the size of all weights.

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
    """The bytes of all weights, from the checkpoint's index or its only file; ``None`` if neither
    says.
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


# -- configurations --------------------------------------------------------------------------------


def import_model_config(path: str | os.PathLike[str]) -> Graph:
    """Return the graph of the model that a ``config.json``, a folder with one, or a GGUF describes.
    Raises :class:`InputError`.
    """
    source = _file(path)
    parameters = {"model": load_config(source)}
    try:
        return build(name_of(parameters), parameters)
    except InputError as error:
        where = (error.where or "").removeprefix("model.")
        raise InputError(error.message, source=source, where=where) from None


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of a ``config.json`` or of the one in a folder, completed from the
    checkpoint's other files; for a GGUF, the ``config.json`` that its model would have. Raises
    :class:`InputError`.
    """
    source = _file(path)
    if is_gguf(read_head(source)):
        return config_of_gguf(source)
    config = content(source, constants=True)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(
            "expected a config.json of transformers, which has a model_type", source=source
        )
    folder, name = os.path.split(source)
    return beside(config, folder) if name == "config.json" else dict(config)


def _file(path: str | os.PathLike[str]) -> str:
    return os.path.join(path, "config.json") if os.path.isdir(path) else os.fspath(path)


def name_of(parameters: Mapping[str, Any]) -> str:
    """Name the graph of a builder's parameters: the model, the phase if there is one, and the other
    parameters.

    The name prevents a plan for one model from being used for another. A config is named by a
    fingerprint of its sizes.

    >>> name_of({"model": "gpt2", "phase": "decode", "layers": 2, "config": {"n_head": 4}})
    'gpt2-decode:config.n_head=4:layers=2'
    >>> name_of({"model": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}})
    'gpt2:sizes=ebd83b'
    """
    model = parameters.get("model", "")
    names = [
        model.get("model_type") if isinstance(model, Mapping) else model,
        parameters.get("phase"),
    ]
    others = {key: value for key, value in parameters.items() if key not in ("model", "phase")}
    sizes = _fingerprint(model) if isinstance(model, Mapping) else ""
    return ":".join(
        [
            "-".join([str(name) for name in names if name]),
            *sorted([*_settings(others), *([f"sizes={sizes}"] if sizes else [])]),
        ]
    )


def _fingerprint(config: Mapping[str, Any]) -> str:
    """Return six hexadecimal digits, a hash of the keys of a config that builders read; empty for a
    config that no builder takes.
    """
    try:
        _, read, _ = sizes_of(config)
    except InputError:  # the builder reports the reason
        return ""
    read = {key: value for key, value in read.items() if key != INDEX}
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:6]


def _settings(parameters: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{inside}{key}.")
        else:
            try:
                yield f"{inside}{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"
            except (ValueError, TypeError, RecursionError):
                raise InputError(
                    f"expected a number or a text, got {shown(value, 60)}", where=f"{inside}{key}"
                ) from None
