"""Workloads by name: a path, a shipped workload, or a model with parameters of its builder, such as ``gpt2:phase=decode:batch=8``.

A model is a preset or the path of a ``config.json``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.importers import load_any
from hosim.importers.model_config import load_config, name_of
from hosim.io import find_workload
from hosim.io.shipped import is_path, workloads
from hosim.plain_text import one_line

_WORDS = {"true": True, "false": False, "null": None}


def load_named(text: str) -> Graph:
    """The graph of a path, of a shipped workload, or of a model with ``:parameter=value`` behind it.

    A model is a preset of :mod:`hosim.models.presets`, a ``config.json`` or the folder of one. A path or a shipped workload wins.
    A parameter of a mapping has a dot, as ``config.n_layer=2``. The graph's name has the parameters, so that no plan for others is taken
    for one of it. Raises :class:`InputError`.
    """
    model, *settings = text.split(":")
    if text not in workloads() and names_model(text):
        return _built(model, model, settings)
    try:
        path = find_workload(text)
    except InputError as error:
        if settings and (is_path(model) or os.path.isdir(model)):
            return _built(model, load_config(model), settings)
        from hosim.models.presets import PRESETS

        near = get_close_matches(model, [*workloads(), *PRESETS], n=1)
        if near and near[0] in PRESETS:
            raise InputError(
                f"no file, no shipped workload and no model of that name; did you mean {near[0]!r}? (see 'hosim workload models')",
                source=error.source,
            ) from None
        raise
    return load_any(path)


def names_model(text: str) -> bool:
    """Whether ``text`` is the name of a model, with or without parameters, and of no file."""
    from hosim.models.presets import PRESETS

    return not is_path(text) and text.partition(":")[0] in PRESETS


def _built(name: str, model: str | Mapping[str, Any], settings: list[str]) -> Graph:
    from hosim.models.build import build

    parameters: dict[str, Any] = {"model": model}
    source = f"workload {name}"
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"expected parameter=value after the colon, got {one_line(setting, 100)!r}", source=source)
        *way, last = key.split(".")
        if key == "model":
            raise InputError("the model is named before the colon", source=source, where=key)
        inside = parameters
        for step in way:
            inside = inside.setdefault(step, {})
            if not isinstance(inside, dict):
                raise InputError("expected parameters that are no part of one another", source=source, where=key)
        if last in inside:
            raise InputError("is given twice; keep one", source=source, where=key)
        inside[last] = _value(value)
    try:
        return build(name_of(parameters), parameters)
    except InputError as error:
        raise InputError(error.message, source=source, where=error.where) from None


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
