"""Models by name: a preset, a ``config.json`` or the folder of a checkpoint, and parameters of the
builder.

Whoever takes a model from a user asks here, so that a name means the same in every command and
function.
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
# Models by their names on the Hugging Face hub, as in ``meta-llama/Llama-3.1-8B``: a preset of the
# same sizes, or the ``config.json`` that the hub's cache on this machine has. Nothing is
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
"""Names that presets have otherwise; the models of the comments in :mod:`hosim.io.models.presets`."""


def is_hub_name(text: str) -> bool:
    """Return whether a text looks like an owner and a model, and names no file.

    >>> is_hub_name("Qwen/Qwen3-8B"), is_hub_name("models/mine.json"), is_hub_name("gpt2")
    (True, False, False)
    """
    return (
        _HUB_NAME.fullmatch(text) is not None
        and not text.endswith(_ENDINGS)
        and not os.path.exists(text.partition("/")[0])
    )


def model_on_hub(name: str) -> str:
    """The preset of a model's name on the hub, or the path of its ``config.json`` in the hub's
    cache. Raises :class:`InputError` if there is neither.

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
    """The ``config.json`` of the revision that the hub's cache calls main, else of its last one."""
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
    """The parameters of a builder (:func:`hosim.io.models.builder.build`) for a model as a user names
    it.

    A text is a model with or without ``:parameter=value`` behind it, and a mapping is a
    ``config.json`` or parameters with a ``model``. Raises :class:`InputError`.

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
    """Raise :class:`InputError` for parameters that no file could have: names that are no texts,
    and values without an end.
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
    """Return the model as builders take it: the name of a preset, also for the name of a model on
    the hub, and the keys of a ``config.json`` for the path of one or of its folder.

    A relative path is relative to ``folder``. What has a preset's name hides the preset only where
    it is spelled as a path, as in ``./gpt2``. Anything else is returned as it is, and refused by
    the builder. Raises :class:`InputError` for a file that cannot be read.
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
    """The parameters with those of texts such as ``batch=8``; one of a mapping has a dot. Raises
    :class:`InputError`.
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
    """A number, ``true``, ``false`` or ``null``; else the text itself.

    >>> _value("8"), _value("true"), _value("400 GB/s")
    (8, True, '400 GB/s')
    """
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"-?\d{1,20}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{0,20}\.\d{1,20}", text) else text
