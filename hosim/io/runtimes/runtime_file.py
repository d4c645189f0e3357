"""The runtime format: ``hosim.runtime/1`` and :class:`~hosim.data.runtime.Runtime`.

Each figure is a mapping: its value with a unit, its spread, its source, and a flag if it rests on
one row.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictInt, StrictStr

from hosim.base import files as reading
from hosim.data.runtime import COPIES, RUNTIME, Runtime, RuntimeFigure, as_data
from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.io.key_tables import (
    FLAG,
    NAME,
    TEXT,
    Key,
    KeyTable,
    Kind,
    format_key,
    literal,
    mapping,
    several,
)
from hosim.io.validators import Format, Name, Rate, Size, Time, mapping_type
from hosim.shipped import find_runtime, runtimes
from hosim.units import exact_rate, exact_size, exact_time

_SPREAD = Kind(Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)], float)
_RATIO = Kind(Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)], float)
_SHARE = Kind(Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)], float)
_COUNT = Kind(Annotated[int, Field(ge=1, le=2**31 - 1)], int, float)
_TIME = Kind(Time, lambda ns: exact_time(int(ns)), float)
_SIZE = Kind(Size, lambda size: exact_size(int(size)), float)
_RATE = Kind(Rate, lambda rate: exact_rate(int(rate)), float)


_PADS: Any = mapping_type(
    "PadsModel",
    "The numbers of which the sizes of experts in mxfp4 are multiples, once loaded.",
    dict.fromkeys(("hidden", "intermediate"), Annotated[int, Field(ge=1, le=2**20)]),
)


def _known(what: str, value: Kind) -> Kind:
    return KeyTable(
        f"{what}Model",
        "A figure: the standard deviation of its logarithm, its source, and whether it rests on "
        "one measurement.",
        RuntimeFigure,
        Key("value", value),
        Key("spread", _SPREAD),
        Key("source", TEXT),
        Key("one_row", FLAG, brief=True),
    ).kind


_RATIOS, _SHARES, _TIMES, _SIZES = (
    _known("Ratio", _RATIO),
    _known("Share", _SHARE),
    _known("HostTime", _TIME),
    _known("Held", _SIZE),
)
_RATES, _COUNTS = _known("CopyRate", _RATE), _known("Count", _COUNT)


def _keys() -> list[Key]:
    kinds = {
        "speed": _RATIOS,
        "row_rate": _RATES,
        "mixture": _TIMES,
        "exposed": _RATIOS,
        "host": _TIMES,
        "host_copy": _TIMES,
        "ahead": _COUNTS,
        "gathers": _COUNTS,
        "stores": _COUNTS,
        "pin": _TIMES,
        "pin_rate": _RATES,
        "cache_copy": _SIZES,
        "copy_time": _TIMES,
        "copy_buffers": _COUNTS,
        "request": _TIMES,
        "connector": _TIMES,
        "cpu_optimizer": _SHARES,
        "pageable": _RATES,
        "buffers": _SIZES,
        "allocated": _RATIOS,
        "reserved": _RATIOS,
        "iteration": _RATIOS,
        "recorded": _SHARES,
        "sampling": _RATIOS,
        "tokens": _COUNTS,
        "sequences": _COUNTS,
        **dict.fromkeys(("counted", "context", "collectives", "graphs"), _SIZES),
    }
    return [Key(name, kind, brief=True) for name, kind in kinds.items()]


TABLE = KeyTable(
    "RuntimeFileModel",
    "A runtime: the software around the kernels of a step. ``options`` are parameters of a "
    "builder that it sets.",
    Runtime,
    format_key("runtime"),
    Key("name", NAME),
    Key("software", TEXT, brief=True),
    Key("source", TEXT, brief=True),
    Key("runs", several(literal("train", "inference")), brief=True),
    Key("options", mapping(Kind(StrictBool | StrictInt | StrictStr), Name), brief=True),
    Key("pads", Kind(_PADS), brief=True),
    Key("graph_sizes", several(Kind(Annotated[StrictInt, Field(ge=1, le=2**20)])), brief=True),
    Key("blocks", several(NAME), brief=True),
    Key("pins", several(literal(*COPIES)), brief=True),
    Key("pins_once", FLAG, brief=True),
    Key("segments", FLAG, brief=True),
    *_keys(),
)

FORMAT = Format("runtime", lambda: TABLE.adapter)


def load_runtime(path: str | os.PathLike[str]) -> Runtime:
    """Return the runtime in a YAML or JSON file. Raises :class:`InputError`, which names the file
    and the path inside it.

    >>> from hosim.shipped import find_runtime
    >>> load_runtime(find_runtime("vllm")).name
    'vllm'
    """
    return runtime_from_dict(reading.read(path, "runtime"), source=os.fspath(path))


def runtime_from_dict(data: object, source: str | None = None) -> Runtime:
    """Return the runtime in a mapping like that of :func:`runtime_to_dict`; ``source`` names it in
    errors. Raises :class:`InputError`.
    """
    with errors_of(source):
        return TABLE.read(FORMAT.check(data, source))


def runtime_to_dict(runtime: Runtime) -> dict[str, Any]:
    """Return the runtime as in its file, every quantity as text with its unit."""
    return TABLE.write(runtime)


# -- the runtime of a workload ---------------------------------------------------------------------
# The runtime of a workload: the one that its builder names, or that a caller requests.


def runtime_named(asked: object) -> Runtime:
    """Return a runtime by its name or path, or from the mapping of its file. Raises
    :class:`InputError`.
    """
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
    """Return the parameters of a builder with the data of its runtime in place of the name. Raises
    :class:`InputError`.
    """
    asked = parameters.get(RUNTIME)
    named = isinstance(asked, str | Runtime) or (isinstance(asked, Mapping) and "format" in asked)
    return {**parameters, RUNTIME: as_data(runtime_named(asked))} if named else dict(parameters)


def runtimes_for(graph: Graph) -> list[Runtime]:
    """Return the shipped runtimes for the kind of step that a builder has made, the slowest first;
    none for other graphs, and for a graph that names its runtime.

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
    """Return the graph under a runtime. A builder's graph is built again with the runtime's
    options; another graph keeps its ops, and the runtime changes only time and memory.

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
