"""Workloads by name: a path, a shipped workload, or a model with parameters of its builder, such as
``gpt2:phase=decode:batch=8``.

A model is a preset or the path of a ``config.json``.
"""

import os
from difflib import get_close_matches

from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.io import importers, models
from hosim.io.any_format import load_any
from hosim.io.runtimes import with_runtime
from hosim.shipped import find_workload, is_path, workloads


def load_named(text: str) -> Graph:
    """The graph of a path, of a shipped workload, or of a model with ``:parameter=value`` behind
    it.

    A model is a preset of :mod:`hosim.io.models.presets`, a ``config.json`` or the folder of one. A
    path or a shipped workload wins. A parameter of a mapping has a dot, as ``config.n_layer=2``.
    The graph's name has the parameters, so that no plan for others is taken for one of it. Raises
    :class:`InputError`.
    """
    model, *settings = text.split(":")
    if names_model(text):
        return _built(text)
    try:
        path = find_workload(text)
    except InputError as error:
        if settings and (is_path(model) or os.path.isdir(model)):
            return _built(text)
        near = get_close_matches(model, [*workloads(), *models.PRESETS], n=1)
        if near and near[0] in models.PRESETS:
            raise InputError(
                "no file, no shipped workload and no model of that name; did you mean "
                f"{near[0]!r}? (see 'hosim workload models')",
                source=error.source,
            ) from None
        raise
    return load_any(path)


def names_model(text: str) -> bool:
    """Return whether ``text`` is the name of a model, a preset's or the hub's, with or without
    parameters, and of no file and no shipped workload.
    """
    if is_path(text) or text in workloads():
        return False
    model = text.partition(":")[0]
    return model in models.PRESETS or importers.is_hub_name(model)


def _built(text: str) -> Graph:
    parameters = importers.builder_parameters(text)
    with errors_of(f"workload {text.partition(':')[0]}"):
        return models.build(importers.name_of(parameters), with_runtime(parameters))
