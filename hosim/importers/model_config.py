"""A ``config.json`` of transformers, the folder of a checkpoint, or a GGUF, as a workload: the
model in its builder's usual run.

That is a prompt or a forward pass. Other runs are the ``builder`` of a spec, whose ``model`` is
what the file has, or parameters behind the name (:mod:`hosim.io.named_workload`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from hosim.errors import InputError
from hosim.files import content, read_head
from hosim.graph import Graph
from hosim.importers.checkpoint_folder import beside
from hosim.importers.gguf_config import config_of_gguf
from hosim.importers.gguf_header import is_gguf
from hosim.models import INDEX, build, sizes_of
from hosim.plain_text import shown


def import_model_config(path: str | os.PathLike[str]) -> Graph:
    """The graph of the model that a ``config.json``, that of a folder, or a GGUF describes. Raises
    :class:`InputError`.
    """
    source = _file(path)
    parameters = {"model": load_config(source)}
    try:
        return build(name_of(parameters), parameters)
    except InputError as error:
        where = (error.where or "").removeprefix("model.")
        raise InputError(error.message, source=source, where=where) from None


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a ``config.json``, or that of a folder, has, and what files of a checkpoint
    beside it say. Raises :class:`InputError`.
    """
    source = _file(path)
    if is_gguf(read_head(source)):
        return config_of_gguf(source)
    config = content(source, constants=True)
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(
            "expected a config.json of transformers, which has a model_type", source=source
        )
    folder, name = os.path.split(source)
    return beside(config, folder) if name == "config.json" else dict(config)


def _file(path: str | os.PathLike[str]) -> str:
    return os.path.join(path, "config.json") if os.path.isdir(path) else os.fspath(path)


def name_of(parameters: Mapping[str, Any]) -> str:
    """A name for the graph of a builder's parameters: the model's, the phase if there is one, and
    the other parameters.

    So a plan for another model is not mistaken for a plan for this one. A config has a fingerprint.

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
    """Six digits of what builders read of a config; nothing for one that no builder takes."""
    try:
        _, read, _ = sizes_of(config)
    except InputError:  # whoever builds it says why
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
