"""Graphs of any format. :func:`load_any` recognises a format by a file's contents.

An importer is a line of :data:`_LOADERS`, by a title of
:func:`hosim.base.files.formats.known_formats`. Its module is imported when it is needed.
"""

import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

from hosim.base.files import check_names, content
from hosim.base.files.formats import (
    format_of_source,
    known_formats,
    read_source,
    recognised,
    seeming,
)
from hosim.errors import GraphError, InputError, errors_of
from hosim.extensions import added
from hosim.graph import Graph
from hosim.io import importers, models
from hosim.io.importers import onnx, recordings, torch_programs
from hosim.io.runtimes import with_runtime
from hosim.io.spec import import_spec
from hosim.io.workload_file import load_workload
from hosim.shipped import find_workload, is_path, workloads

_WITH_DIMS: Mapping[str, Callable[[Path, Mapping[str, int] | None], Graph]] = {
    "torch.export program (.pt2)": lambda path, dims: torch_programs.import_pt2(path, dims),
    "ONNX model": lambda path, dims: onnx.import_onnx(path, dims),
}
"""Loaders of formats whose models have free dimensions. Each takes the path, and the
sizes by name.
"""

_LOADERS: Mapping[str, Callable[[Path], Graph]] = {
    "workload (hosim.workload/1)": load_workload,
    "spec (hosim.spec/1)": import_spec,
    "PyTorch profile (Kineto)": lambda path: recordings.import_kineto(path),
    "PyTorch execution trace": lambda path: torch_programs.import_torch_trace(path),
    "config.json of transformers": lambda path: importers.import_model_config(path),
    "GGUF": lambda path: importers.import_model_config(path),
}
"""Loaders of the core's other formats. The attributes of a room are imported when they are first
used.
"""


def _loader(title: str) -> Callable[[Path], Graph]:
    """Return the loader of a format, of the core or of another room."""
    return _LOADERS[title] if title in _LOADERS else ChainMap(*added("loaders"))[title]


def _loaded(title: str, path: Path, dims: Mapping[str, int] | None) -> Graph:
    """Return the graph in the file or folder at ``path``. Raises :class:`InputError`, also for
    ``dims`` of a format without free dimensions.
    """
    if dims and title not in _WITH_DIMS:
        raise InputError(f"a {title} has no free dimensions to size", source=os.fspath(path))
    try:
        graph = _WITH_DIMS[title](path, dims) if title in _WITH_DIMS else _loader(title)(path)
    except GraphError as error:
        raise InputError(
            f"the graph that it describes is not a valid one: {error}", source=os.fspath(path)
        ) from None
    check_names(os.fspath(path), tensors=graph.tensors, ops=graph.ops, name=[graph])
    return graph


def load_any(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Graph:
    """Return the graph in a file or folder of any known format, which is recognised by its
    contents. ``dims`` are sizes of a model's free dimensions.

    Raises :class:`InputError` for an unknown format, with a list of the known ones, and for a
    damaged file.
    """
    source = read_source(Path(path))
    other = None if source.path.is_dir() or source.hosim_kind else seeming(source.head)
    if other is None:
        title = format_of_source(source)
        if title is not None:
            return _loaded(title, source.path, dims)
    if other is None and not source.path.is_dir():
        name = source.path.name
        other = recognised(os.fspath(path)) if source.hosim_kind else seeming(source.head, name)
    if other is not None:
        raise InputError(
            f"expected a model, a recording or a workload; {other}", source=os.fspath(path)
        )
    if source.path.is_dir():
        raise InputError(
            "this folder holds no graph: that of a checkpoint has its config.json; or name a file",
            source=os.fspath(path),
        )
    text = source.head.lstrip()[:1] in (b"{", b"[") or source.path.name.endswith((".yaml", ".yml"))
    if not source.hosim_kind and text and os.path.getsize(path) <= len(source.head):
        # report broken JSON or YAML with the place of the error; long files are not read beyond
        # their head
        content(os.fspath(path))
    known = "; ".join(known_formats())
    raise InputError(
        f"its format is unknown; a graph can be read from: {known}", source=os.fspath(path)
    )


# -- workloads by name -----------------------------------------------------------------------------
# A workload's name is a path, a shipped workload, or a model with parameters of its builder, such
# as ``gpt2:phase=decode:batch=8``.
#
# A model is a preset or the path of a ``config.json``.


def load_named(text: str) -> Graph:
    """Return the graph of a path, of a shipped workload, or of a model with ``:parameter=value``
    after it.

    A model is a preset of :mod:`hosim.io.models.presets`, a ``config.json`` or a folder with one. A
    path or a shipped workload takes precedence. A dot leads to a parameter in a mapping, as in
    ``config.n_layer=2``. The graph's name contains the parameters, so that a plan for others is not
    used for it. Raises :class:`InputError`.
    """
    model, *settings = text.split(":")
    if names_model(text):
        return _built(text)
    try:
        path = find_workload(text)
    except InputError as error:
        if settings and (is_path(model) or os.path.isdir(model)):
            return _built(text)
        if model in workloads():
            raise InputError(
                "a shipped workload takes no parameters; a model does, as in gpt2:phase=decode "
                "(see 'hosim workload models')",
                source=error.source,
            ) from None
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
    parameters, and not that of a file or a shipped workload.
    """
    if is_path(text) or text in workloads():
        return False
    model = text.partition(":")[0]
    return model in models.PRESETS or importers.is_hub_name(model)


def _built(text: str) -> Graph:
    parameters = importers.builder_parameters(text)
    with errors_of(f"workload {text.partition(':')[0]}"):
        return models.build(importers.name_of(parameters), with_runtime(parameters))
