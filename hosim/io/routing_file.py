"""The routing format: ``hosim.routing/1`` and :class:`~hosim.expert_routing.Routing`, whose names are those of its graph.

Beside the gates it has the trace: ``steps``, for each step and gate the numbers of the experts that were chosen; or ``generate``, the
arguments of a seeded one (:func:`hosim.models.routing_draw.generate`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from hosim.errors import GraphError, InputError
from hosim.expert_routing import Expert, Gate, Routing
from hosim.graph import Graph
from hosim.io import reading
from hosim.io.validators import STRICT, Count, Format


@with_config(STRICT)
class ExpertModel(TypedDict):
    """One candidate of a gate: the tensors that only its ops use, and the ops that run only if it is chosen."""

    tensors: list[str]
    ops: list[str]


@with_config(STRICT)
class GateModel(TypedDict):
    """The op whose end decides, and the experts between which it does; a trace numbers them from 0."""

    op: str
    experts: list[ExpertModel]


@with_config(STRICT)
class GenerateModel(TypedDict):
    """A seeded trace."""

    steps: Count
    top: Count
    seed: NotRequired[Count]
    zipf: NotRequired[float]
    persistence: NotRequired[float]


@with_config(STRICT)
class RoutingModel(TypedDict):
    """Which ops of a workload are conditional, and a trace of what was chosen: by step, by gate."""

    format: Literal["hosim.routing/1"]
    workload: str
    meta: NotRequired[dict[str, Any]]
    gates: NotRequired[list[GateModel]]
    steps: NotRequired[list[list[list[Count]]]]
    generate: NotRequired[GenerateModel]


FORMAT = Format("routing", lambda: TypeAdapter(RoutingModel))


def load_routing(path: str | os.PathLike[str], graph: Graph) -> Routing:
    """The routing in a file, for ``graph``. Raises :class:`InputError` naming file and path inside it."""
    return routing_from_dict(reading.read(path, "routing"), graph, source=os.fspath(path))


def save_routing(routing: Routing, path: str | os.PathLike[str]) -> None:
    """Write a routing as JSON, or YAML if the name says so; gzip if it ends in ``.gz``."""
    reading.write(path, routing_to_dict(routing))


def routing_from_dict(data: object, graph: Graph, source: str | None = None) -> Routing:
    """The routing as :func:`routing_to_dict` gives it, for ``graph``; ``source`` names it in errors.

    Raises :class:`InputError` for another workload's routing, an unknown tensor or op, and whatever :class:`Routing` objects to.
    """
    checked = FORMAT.check(data, source)
    if checked["workload"] != graph.name:
        message = f"this routing is for the workload {checked['workload']!r}, not for {graph.name!r}; give the routing of this one"
        raise InputError(message, source=source, where="workload")
    if "steps" in checked and "generate" in checked:
        raise InputError("expected a trace's 'steps' or how to 'generate' one, got both", source=source, where="generate")

    def positions(names: Sequence[str], at: Mapping[str, int], what: str, where: str) -> tuple[int, ...]:
        for j, name in enumerate(names):
            if name not in at:
                raise InputError(
                    reading.unknown_name(what, name, at), source=source, where=f"{where}[{j}]" if where.endswith("s") else where
                )
        return tuple([at[name] for name in names])

    gates = []
    for g, gate in enumerate(checked.get("gates", ())):
        experts = []
        for e, expert in enumerate(gate["experts"]):
            where = f"gates[{g}].experts[{e}]"
            tensors = positions(expert["tensors"], graph.tensor_index, "tensor", f"{where}.tensors")
            experts.append(Expert(tensors, positions(expert["ops"], graph.op_index, "op", f"{where}.ops")))
        gates.append(Gate(positions([gate["op"]], graph.op_index, "op", f"gates[{g}].op")[0], tuple(experts)))
    steps = tuple(tuple(tuple(chosen) for chosen in step) for step in checked.get("steps", ()))
    try:
        routing = Routing(graph, tuple(gates), steps, checked.get("meta", {}))
    except GraphError as error:
        raise InputError(error.message, source=source, where=error.where) from None
    return _generated(routing, checked["generate"], source) if "generate" in checked else routing


def _generated(routing: Routing, arguments: GenerateModel, source: str | None) -> Routing:
    from hosim.models.routing_draw import generate

    try:
        return generate(routing.graph, routing.gates, **arguments)
    except InputError as error:
        raise InputError(error.message, source=source, where=f"generate.{error.where}") from None


def routing_to_dict(routing: Routing) -> dict[str, Any]:
    """The routing as its file says it, its trace step by step."""
    tensors, ops = routing.graph.tensors, routing.graph.ops
    data: dict[str, Any] = {"format": reading.format_of("routing"), "workload": routing.graph.name}
    if routing.meta:
        data["meta"] = dict(routing.meta)
    data["gates"] = [
        {
            "op": ops[gate.op].name,
            "experts": [
                {"tensors": [tensors[t].name for t in expert.tensors], "ops": [ops[i].name for i in expert.ops]} for expert in gate.experts
            ],
        }
        for gate in routing.gates
    ]
    if routing.steps:
        data["steps"] = [[list(chosen) for chosen in step] for step in routing.steps]
    return data
