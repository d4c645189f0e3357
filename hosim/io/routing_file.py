"""The routing format: ``hosim.routing/1`` and :class:`~hosim.data.expert_routing.Routing`, whose
names are those of its graph.

The file has the gates and a trace. The trace is either ``steps``, the numbers of the experts that
each gate chooses in each step, or ``generate``, the arguments of a seeded random trace
(:func:`hosim.io.models.routing_draw.generate`).
"""

import os
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NotRequired

from hosim.base.files import read, write
from hosim.data.expert_routing import Expert, Gate, Routing
from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.io.key_tables import (
    COUNT,
    TEXT,
    Key,
    KeyTable,
    Kind,
    Names,
    constant,
    format_key,
    note,
    several,
)
from hosim.io.validators import Count, Format, mapping_type

_GENERATE: Any = mapping_type(
    "GenerateModel",
    "A seeded random trace.",
    {
        "steps": Count,
        "top": Count,
        "seed": NotRequired[Count],
        **dict.fromkeys(("zipf", "persistence"), NotRequired[float]),
    },
)


def _routing(graph: Graph) -> KeyTable[Routing]:
    """Return the table of a routing whose names are those of ``graph``."""
    tensors, ops = (
        Names("tensor", graph.tensor_index, graph.tensors),
        Names("op", graph.op_index, graph.ops),
    )
    expert = KeyTable(
        "ExpertModel",
        "One candidate of a gate: the tensors that only its ops use, and the ops that run only if "
        "it is chosen.",
        Expert,
        Key("tensors", tensors.many),
        Key("ops", ops.many),
    )
    gate = KeyTable(
        "GateModel",
        "The op whose end decides, and the experts that it chooses from; a trace numbers them "
        "from 0.",
        Gate,
        Key("op", ops.one),
        Key("experts", several(expert.kind)),
    )
    return KeyTable(
        "RoutingModel",
        "Which ops of a workload are conditional, and a trace of the choices, by step and gate.",
        Routing,
        format_key("routing"),
        constant("workload", TEXT, attrgetter("graph.name")),
        Key("meta", Kind(dict[str, Any], dict), brief=True),
        Key("gates", several(gate.kind), default=()),
        Key("steps", several(several(several(COUNT))), brief=True),
        note("generate", Kind(_GENERATE)),
    )


FORMAT = Format("routing", lambda: _routing(Graph("", (), ())).adapter)


def load_routing(path: str | os.PathLike[str], graph: Graph) -> Routing:
    """Return the routing in a file, for ``graph``. Raises :class:`InputError`, which names the file
    and the path inside it.
    """
    return routing_from_dict(read(path, "routing"), graph, source=os.fspath(path))


def save_routing(routing: Routing, path: str | os.PathLike[str]) -> None:
    """Write a routing as JSON, or YAML if the name says so; gzip if it ends in ``.gz``."""
    write(path, routing_to_dict(routing))


def routing_from_dict(data: object, graph: Graph, source: str | None = None) -> Routing:
    """Return the routing in a mapping like that of :func:`routing_to_dict`, for ``graph``;
    ``source`` names it in errors.

    Raises :class:`InputError` for another workload's routing, an unknown tensor or op, and anything
    that :class:`Routing` refuses.
    """
    checked = FORMAT.check(data, source)
    if checked["workload"] != graph.name:
        message = (
            f"this routing is for the workload {checked['workload']!r}, not for "
            f"{graph.name!r}; give the routing of this one"
        )
        raise InputError(message, source=source, where="workload")
    if "steps" in checked and "generate" in checked:
        raise InputError(
            "expected either the 'steps' of a trace or 'generate', got both",
            source=source,
            where="generate",
        )

    with errors_of(source):
        routing = _routing(graph).read(checked, graph=graph)
    return _generated(routing, checked["generate"], source) if "generate" in checked else routing


def _generated(routing: Routing, arguments: Mapping[str, Any], source: str | None) -> Routing:
    from hosim.io.models import generate

    try:
        return generate(routing.graph, routing.gates, **arguments)
    except InputError as error:
        raise InputError(error.message, source=source, where=f"generate.{error.where}") from None


def routing_to_dict(routing: Routing) -> dict[str, Any]:
    """Return the routing as in its file, with its trace step by step."""
    return _routing(routing.graph).write(routing)
