"""Outside formats as workload graphs. :func:`load_any` tells them apart by their contents.

An importer is a line of :data:`FORMATS`: its title, how to recognise a file, how to load it. Its module is imported when needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hosim.errors import GraphError, InputError
from hosim.graph import Graph
from hosim.io.bounded import check_names, read_directory, read_head
from hosim.io.reading import content
from hosim.io.recognised import hosim_kind, recognised, seeming

__all__ = ["FORMATS", "Source", "SourceFormat", "load_any", "read_source"]


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder to import. ``head`` are the file's first bytes, unpacked if it is gzip: they tell its format. Empty for a folder."""

    path: Path
    head: bytes

    @property
    def hosim_kind(self) -> str | None:
        """``workload`` for a file of ``hosim.workload/1``; empty for a file of another program."""
        return hosim_kind(self.head, self.path.name)


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """One format: ``loader`` is ``module:function`` and takes the path, and ``dims`` if ``has_dims``: sizes of free dimensions by name."""

    title: str
    recognises: Callable[[Source], bool]
    loader: str
    has_dims: bool = False

    def load(self, path: Path, dims: Mapping[str, int] | None = None) -> Graph:
        """The graph in the file or folder at ``path``. Raises :class:`InputError`, also for ``dims`` that the format does not have."""
        if dims and not self.has_dims:
            raise InputError(f"a {self.title} has no free dimensions to size", source=os.fspath(path))
        module, _, function = self.loader.partition(":")
        load = getattr(import_module(module), function)
        try:
            graph = load(path, dims) if self.has_dims else load(path)
        except GraphError as error:
            raise InputError(f"the graph that it describes is not a valid one: {error}", source=os.fspath(path)) from None
        assert isinstance(graph, Graph)
        check_names(os.fspath(path), tensors=graph.tensors, ops=graph.ops, name=[graph])
        return graph


def _is_g10(source: Source) -> bool:
    from hosim.importers.g10_config import is_g10

    return source.path.is_dir() and is_g10(source.path)


def _is_kineto(source: Source) -> bool:
    from hosim.importers.kineto import is_kineto

    return is_kineto(source.head)


def _is_torch_trace(source: Source) -> bool:
    from hosim.importers.torch_trace import is_torch_trace

    return is_torch_trace(source.head)


def _is_chakra(source: Source) -> bool:
    from hosim.importers.chakra import is_chakra

    return is_chakra(source.head)


def _is_inductor(source: Source) -> bool:
    from hosim.importers.inductor import is_inductor

    return is_inductor(source.head)


def _is_hyper_parallel(source: Source) -> bool:
    from hosim.importers.activation_trace import is_hyper_parallel

    return is_hyper_parallel(source.head)


def _is_mindir(source: Source) -> bool:
    from hosim.importers.mindir_file import is_mindir

    return is_mindir(source.head)


def _is_onnx(source: Source) -> bool:
    from hosim.importers.onnx_graph import is_onnx

    return is_onnx(source.head)


def _is_model_config(source: Source) -> bool:
    from hosim.importers.model_config import is_model_config, is_model_folder

    return is_model_folder(source.path) if source.path.is_dir() else is_model_config(source.head)


FORMATS: Sequence[SourceFormat] = (
    SourceFormat("workload (hosim.workload/1)", lambda s: s.hosim_kind == "workload", "hosim.io.workload_file:load_workload"),
    SourceFormat("spec (hosim.spec/1)", lambda s: s.hosim_kind == "spec", "hosim.importers.spec:import_spec"),
    SourceFormat(
        "torch.export program (.pt2)", lambda s: s.head.startswith(b"PK\x03\x04"), "hosim.importers.torch_export:import_pt2", has_dims=True
    ),
    SourceFormat("G10 folder", _is_g10, "hosim.importers.g10_config:import_g10"),
    SourceFormat("PyTorch profile (Kineto)", _is_kineto, "hosim.importers.kineto_workload:import_kineto"),
    SourceFormat("PyTorch execution trace", _is_torch_trace, "hosim.importers.torch_trace:import_torch_trace"),
    SourceFormat("Chakra trace", _is_chakra, "hosim.importers.chakra:import_chakra"),
    SourceFormat("inductor graph", _is_inductor, "hosim.importers.inductor:import_inductor"),
    SourceFormat("hyper-parallel trace", _is_hyper_parallel, "hosim.importers.activation_trace:import_hyper_parallel"),
    SourceFormat("config.json of transformers", _is_model_config, "hosim.importers.model_config:import_model_config"),
    SourceFormat("GGUF", lambda s: s.head.startswith(b"GGUF"), "hosim.importers.model_config:import_model_config"),
    SourceFormat("MindIR model", _is_mindir, "hosim.importers.mindir:import_mindir"),
    SourceFormat("ONNX model", _is_onnx, "hosim.importers.onnx_graph:import_onnx", has_dims=True),
)
"""Every format that can be imported, in the order in which they are tried."""


def load_any(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Graph:
    """The graph in a file or folder of any known format, recognised by its contents. ``dims`` are sizes of a model's free dimensions.

    Raises :class:`InputError` for an unknown format, with a list of the known ones, and for a damaged file.
    """
    source = read_source(Path(path))
    other = None if source.path.is_dir() or source.hosim_kind else seeming(source.head)
    if other is None:
        for form in FORMATS:
            if form.recognises(source):
                return form.load(source.path, dims)
    if other is None and not source.path.is_dir() and not source.hosim_kind:
        other = seeming(source.head, source.path.name)
    if other is not None:
        raise InputError(f"expected a model, a recording or a workload; {other}", source=os.fspath(path))
    if source.path.is_dir():
        raise InputError("this folder holds no graph: that of a checkpoint has its config.json; or name a file", source=os.fspath(path))
    kind = source.hosim_kind
    text = source.head.lstrip()[:1] in (b"{", b"[") or source.path.name.endswith((".yaml", ".yml"))
    if not kind and text and os.path.getsize(path) <= len(source.head):
        content(os.fspath(path))  # broken JSON or YAML has its error, with the place; of a long file no more is read than its head
    found = "its format is unknown"
    if kind:
        own = recognised(os.fspath(path))
        found = f"this is a {kind} of hosim where a workload belongs" + (f" ({own.advice})" if own else "")
    known = "; ".join(form.title for form in FORMATS)
    raise InputError(f"{found}; a graph can be read from: {known}", source=os.fspath(path))


def read_source(path: Path) -> Source:
    """The file or folder at ``path``. Raises :class:`InputError` if it is not there, cannot be read, or is damaged gzip."""
    if os.path.isdir(path):
        return Source(path, b"")
    head = read_head(os.fspath(path))
    # what a zip file holds stands at its end: weights may fill its begin
    return Source(path, head[:4] + read_directory(os.fspath(path)) or head if head.startswith(b"PK\x03\x04") else head)
