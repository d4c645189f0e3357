"""Graphs of cases, and the cache folder for graphs of formats that are slow to import.

A cached graph's name is a digest of the source's content, of hosim's own code and of the versions
of torch and transformers. Nothing in the folder is ever stale, and all of it may be deleted; what
cannot be read, or was not written by this user's hosim, is imported again.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from hosim.errors import HosimError, InputError
from hosim.gate.records import source_digest
from hosim.graph import Graph


def kept_in() -> Path:
    """The folder of cached graphs: ``$HOSIM_CACHE``, or ``hosim`` in the user's cache folder."""
    own = os.environ.get("HOSIM_CACHE")
    return (
        Path(own)
        if own
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hosim"
    )


def graph_of_file(path: Path, kept: Path | None) -> Graph:
    """The graph in a file or folder of any known format; ``kept`` is the folder of cached graphs.
    Raises :class:`InputError`.
    """
    from hosim.gate.kept_graphs import keep_graph, kept_graph
    from hosim.io import load_any

    if kept is None:
        return load_any(path)
    try:
        key = source_digest(path, code_digest())
    except OSError:  # the importer says what is wrong with it
        return load_any(path)
    graph = kept_graph(kept, key)
    if graph is None:
        graph = load_any(path)
        keep_graph(graph, kept, key)
    return graph


def graph_of_entry(entry: str, folder: str) -> Graph:
    """The graph that ``package.module:function`` returns; its package may lie in ``folder``.

    The function returns a :class:`Graph`, or a torch model and its example inputs (a tuple, or a
    mapping by name); for a training step also the loss and the optimizer (:func:`graph_of_model`).
    It is called each time, because what it depends on is unknown. Raises
    :class:`InputError`.
    """
    module, _, name = entry.partition(":")
    # what the project prints must not mix with hosim's output
    with _importable(folder), redirect_stdout(sys.stderr):
        try:
            loaded = import_module(module)
        except ImportError as error:
            advice = (
                "; pip install 'hosim[torch]' installs it"
                if error.name in ("torch", "transformers")
                else ""
            )
            raise InputError(f"cannot be imported: {error}{advice}", source=entry) from None
        except (Exception, SystemExit) as error:
            raise InputError(f"cannot be imported: {_raised(error)}", source=entry) from error
        if not hasattr(loaded, name):
            raise InputError(f"module {module} has no {name!r}", source=entry)
        try:
            given = getattr(loaded, name)()
        except HosimError:
            raise
        except (
            Exception,
            SystemExit,
        ) as error:  # an exit of the project's code must not look like a verdict
            raise InputError(_raised(error), source=entry) from error
    if isinstance(given, Graph):
        return given
    if not isinstance(given, tuple) or len(given) not in (2, 4):
        raise InputError(
            "expected the function to return a model and its example inputs (and the loss and the "
            "optimizer, for a training step), or a hosim.Graph",
            source=entry,
        )
    return graph_of_model(*given, name=name, source=entry)


def graph_of_model(
    model: Any, inputs: Any, loss: Any = None, optimizer: Any = None, *, name: str, source: str
) -> Graph:
    """The graph of a torch model called with ``inputs``, or with an optimizer of a training step,
    as :func:`hosim.load` takes them. Raises :class:`InputError`.
    """
    from hosim.io.importers.torch_programs import import_torch_model, require_torch

    require_torch()
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, got {type(model).__name__}", source=source)
    try:
        with redirect_stdout(sys.stderr):
            return import_torch_model(model, inputs, loss, optimizer, name)
    except InputError as error:
        raise InputError(error.message, source=source, where=error.where) from error


def _raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {_line(error)}"


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    place = os.path.abspath(folder)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(place)


@cache
def code_digest() -> str:
    """A digest of hosim's source and of the packages with which it imports models."""
    found = hashlib.sha256()
    package = os.path.dirname(os.path.dirname(__file__))
    listed = [os.path.join(at, name) for at, _, names in os.walk(package) for name in names]
    for file in sorted([path for path in listed if path.endswith(".py")]):
        found.update(f"\0{file.removeprefix(package)}\0".encode())
        with open(file, "rb") as source:
            found.update(source.read())
    for name in ("torch", "transformers", "onnx"):
        with suppress(metadata.PackageNotFoundError):
            found.update(f"\0{name} {metadata.version(name)}".encode())
    return found.hexdigest()
