"""The runtime of a workload: that which its builder names, or which a caller asks for."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hosim.data.runtime import RUNTIME, Runtime, as_data
from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.io.runtimes.runtime_file import load_runtime, runtime_from_dict
from hosim.shipped import find_runtime, runtimes


def runtime_named(asked: object) -> Runtime:
    """A runtime by its name or path, or the mapping of its file. Raises :class:`InputError`."""
    if isinstance(asked, Runtime):
        return asked
    if isinstance(asked, os.PathLike):
        asked = os.fspath(asked)
    if isinstance(asked, Mapping):
        return runtime_from_dict(dict(asked), source="runtime")
    if not isinstance(asked, str):
        raise InputError(
            f"expected the name or the path of a runtime, got {asked!r}", source="runtime"
        )
    return load_runtime(find_runtime(asked))


def with_runtime(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a builder, whose runtime is data and not the name of one. Raises
    :class:`InputError`.
    """
    asked = parameters.get(RUNTIME)
    named = isinstance(asked, str | Runtime) or (isinstance(asked, Mapping) and "format" in asked)
    return {**parameters, RUNTIME: as_data(runtime_named(asked))} if named else dict(parameters)


def runtimes_for(graph: Graph) -> list[Runtime]:
    """The shipped runtimes that run the kind of step that a builder has made, the slowest first;
    none for other graphs, and for one that names its runtime.

    >>> from hosim.io.models import build
    >>> graph = build("step", {"model": "gpt2", "phase": "decode", "layers": 1})
    >>> {"vllm", "gpt-fast"} <= {runtime.name for runtime in runtimes_for(graph)}
    True
    """
    recipe = graph.meta.get("builder")
    if not isinstance(recipe, Mapping) or RUNTIME in graph.meta:
        return []
    kind = "train" if recipe.get("phase") == "train" else "inference"
    found = [each for each in map(runtime_named, runtimes()) if kind in each.runs]
    return sorted(found, key=lambda each: (each.speed.value, each.name))


def under_runtime(graph: Graph, asked: object) -> Graph:
    """The graph under a runtime: built again with what it sets, where the graph is a builder's;
    else as it is, in its time and memory.

    Raises :class:`InputError`.

    >>> from hosim.io.models import build
    >>> graph = under_runtime(
    ...     build("step", {"model": "gpt2", "phase": "train"}), "torchtitan-compiled"
    ... )
    >>> (
    ...     graph.meta["runtime"]["name"],
    ...     len(graph.ops) < len(build("step", {"model": "gpt2", "phase": "train"}).ops),
    ... )
    ('torchtitan-compiled', True)
    """
    from hosim.io.models import build

    runtime = runtime_named(asked)
    recipe = graph.meta.get("builder")
    if not isinstance(recipe, Mapping):
        return replace(graph, meta={**graph.meta, RUNTIME: as_data(replace(runtime, options={}))})
    with errors_of(f"workload {graph.name} under {runtime.name}"):
        return build(graph.name, {**recipe, RUNTIME: as_data(runtime)})
