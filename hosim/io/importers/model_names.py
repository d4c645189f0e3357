"""Find a model by its name, and return parameters of the builder. A name is a preset, a
``config.json`` or the folder of a checkpoint.

All commands and functions use this, so that a name means the same everywhere.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.io.importers.model_config import load_config
from hosim.io.models import PRESETS
from hosim.plain_text import one_line, shown

# -- names on the Hugging Face hub -----------------------------------------------------------------
# A name on the Hugging Face hub, such as ``meta-llama/Llama-3.1-8B``, gives a preset of the
# same sizes, or the ``config.json`` in the hub's cache on this machine. Nothing is
# downloaded.

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ENDINGS = (".json", ".json.gz", ".gguf", ".yaml", ".yml", ".onnx", ".pt2", ".et", ".mindir")
_TUNED = re.compile(r"(-(instruct|chat|hf|it|pt|base|2507))+$")
"""Endings of the names of tuned versions, which have the sizes of the original model."""

_CALLED: Mapping[str, str] = {
    "mistral-7b-v0.3": "mistral-7b",
    "mistral-7b-instruct-v0.3": "mistral-7b",
    "mistral-nemo-base-2407": "mistral-nemo-12b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "mistral-small-24b-base-2501": "mistral-small-24b",
    "mistral-small-24b-instruct-2501": "mistral-small-24b",
    "mistral-large-instruct-2407": "mistral-large-123b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "mixtral-8x22b-instruct-v0.1": "mixtral-8x22b",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "phi-3-medium-4k-instruct": "phi-3-medium",
    "bloom": "bloom-176b",
    "c4ai-command-r-v01": "command-r-35b",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "vit-base-patch16-224": "vit-b-16",
    "vit-large-patch16-224": "vit-l-16",
    "vit-huge-patch14-224-in21k": "vit-h-14",
}
"""Presets by the hub's names for their models, where these differ. Comments in
:mod:`hosim.io.models.presets` name the models.
"""


def is_hub_name(text: str) -> bool:
    """Return whether a text looks like an owner and a model, and is not the name of a file.

    >>> is_hub_name("Qwen/Qwen3-8B"), is_hub_name("models/mine.json"), is_hub_name("gpt2")
    (True, False, False)
    """
    return (
        _HUB_NAME.fullmatch(text) is not None
        and not text.endswith(_ENDINGS)
        and not os.path.exists(text.partition("/")[0])
    )


def model_on_hub(name: str) -> str:
    """Return the preset for a model's name on the hub, or else the path of its ``config.json`` in
    the hub's cache. Raises :class:`InputError` if there is neither.

    >>> model_on_hub("meta-llama/Llama-3.1-8B-Instruct"), model_on_hub("google-bert/bert-base-uncased")
    ('llama-3.1-8b', 'bert-base')
    """
    called = name.partition("/")[2].lower().removeprefix("meta-")
    found = _CALLED.get(called) or _TUNED.sub("", called)
    if found in PRESETS:
        return found
    kept = _kept_config(name)
    if kept is None:
        raise InputError(
            "no such file, no preset of that name (see 'hosim workload models'), and no config.json "
            "of it in the hub's cache; give the path of its config.json",
            source=name,
        )
    return str(kept)


def _kept_config(name: str) -> Path | None:
    """The cached ``config.json`` of the revision ``main``, or else of the last revision by name;
    ``None`` if there is none.
    """
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = hub / f"models--{name.replace('/', '--')}"
    try:
        main = (folder / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    listed = sorted(folder.glob("snapshots/*/config.json"))
    named = [path for path in listed if path.parent.name == main]
    return [*listed, *named][-1] if listed else None


_WORDS = {"true": True, "false": False, "null": None}
_FILES = (".json", ".json.gz", ".gguf")


def builder_parameters(model: object, folder: str = "") -> dict[str, Any]:
    """Return parameters of a builder (:func:`hosim.io.models.builder.build`) for a model that a
    user gives.

    The model is a text, with or without ``:parameter=value`` after the name, or a mapping: a
    ``config.json``, or parameters with a ``model``. Raises :class:`InputError`.

    >>> builder_parameters("gpt2:batch=8:config.n_layer=2")
    {'model': 'gpt2', 'batch': 8, 'config': {'n_layer': 2}}
    >>> builder_parameters({"model": "gpt2", "tensor": 2})
    {'model': 'gpt2', 'tensor': 2}
    """
    if isinstance(model, Mapping):
        _check_written(model)
        return (
            {"model": dict(model)}
            if "model_type" in model
            else {**model, "model": model_of(model.get("model"), folder)}
        )
    if not isinstance(model, str) or os.path.exists(os.path.join(folder, model)):
        return {"model": model_of(model, folder)}
    name, *settings = model.split(":")
    return with_settings({"model": model_of(name, folder)}, settings, f"workload {name}")


def _check_written(model: Mapping[Any, Any]) -> None:
    """Raise :class:`InputError` for parameters that no file could have: names that are not text,
    and values that JSON cannot express.
    """
    for key, value in model.items():
        if not isinstance(key, str):
            raise InputError(
                f"expected the name of a parameter, got {shown(key, 60)}", source="model"
            )
        try:
            json.dumps(value, default=str)
        except (TypeError, ValueError, RecursionError):
            raise InputError(
                f"expected numbers and texts, got {shown(value, 60)}", source="model", where=key
            ) from None


def model_of(model: object, folder: str = "") -> object:
    """Return the model in the form that builders take: the name of a preset, or the keys of a
    ``config.json``. A path names that file or its folder, relative to ``folder``; a name on the hub
    is looked up first.

    A file with a preset's name is read only if it is written as a path, such as ``./gpt2``.
    Anything else is returned unchanged, and the builder refuses it. Raises :class:`InputError` for
    a file that cannot be read and for a name on the hub that is not found.
    """
    if not isinstance(model, str | os.PathLike):
        return model
    text = os.fspath(model)
    path = os.path.join(folder, text)
    if not os.path.exists(path) and is_hub_name(text):
        path = text = model_on_hub(text)
    if (
        text
        and text not in PRESETS
        and (os.path.exists(path) or "/" in text or text.endswith(_FILES))
    ):
        return load_config(path)
    return text


def with_settings(parameters: dict[str, Any], settings: list[str], source: str) -> dict[str, Any]:
    """Add settings such as ``batch=8`` to ``parameters`` and return them; a dot leads into a
    mapping, as in ``config.n_layer=2``. Raises :class:`InputError`.
    """
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(
                f"expected parameter=value after the colon, got {one_line(setting, 100)!r}",
                source=source,
            )
        *way, last = key.split(".")
        if key == "model":
            raise InputError("the model is named before the colon", source=source, where=key)
        inside = parameters
        for step in way:
            inside = inside.setdefault(step, {})
            if not isinstance(inside, dict):
                raise InputError(
                    "expected parameters that are no part of one another", source=source, where=key
                )
        if last in inside:
            raise InputError("is given twice; keep one", source=source, where=key)
        inside[last] = _value(value)
    return parameters


def _value(text: str) -> Any:
    """Read a number, ``true``, ``false`` or ``null``; return any other text unchanged.

    >>> _value("8"), _value("true"), _value("400 GB/s")
    (8, True, '400 GB/s')
    """
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"-?\d{1,20}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{0,20}\.\d{1,20}", text) else text
