"""The plan format: ``hosim.plan/1`` and :class:`~hosim.cache_plan.Plan`, whose names are those of its graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from hosim.cache_plan import AT_START, DETACH, CacheOp, Plan
from hosim.costmodel.routes import route
from hosim.edits import Edits, Recompute
from hosim.errors import GraphError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import reading
from hosim.io.validators import STRICT, Format, Name

# "from" is a keyword: no class body can declare it
CacheOpModel = TypedDict(
    "CacheOpModel",
    {
        "op": Literal["prefetch", "store", "detach"],
        "tensor": str,
        "from": Name,
        "to": NotRequired[Name | None],
        "after": NotRequired[str | None],
    },
)
with_config(STRICT)(CacheOpModel)


@with_config(STRICT)
class RecomputeModel(TypedDict):
    """Op ``op`` of the workload runs again, as op ``name``, just before op ``before``; its outputs are then called ``a@name``."""

    op: str
    before: str
    name: Name


@with_config(STRICT)
class PlanModel(TypedDict):
    """Cache ops in order of issue among those of the same ``after``, and where tensors lie at time 0.

    ``order`` lists the workload's ops where the plan runs them in another order, ``recompute`` those that it runs again; cache ops name
    the tensors and ops that there are then.
    """

    format: Literal["hosim.plan/1"]
    workload: str
    policy: NotRequired[str]
    order: NotRequired[list[str]]
    recompute: NotRequired[list[RecomputeModel]]
    initial: NotRequired[dict[str, list[Name]]]
    cache_ops: NotRequired[list[CacheOpModel]]


FORMAT = Format("plan", lambda: TypeAdapter(PlanModel))


def load_plan(path: str | os.PathLike[str], graph: Graph) -> Plan:
    """Load a plan from a file.

    Parameters
    ----------
    path
        A JSON or YAML file, compressed if its name ends in ``.gz``.
    graph
        The workload that the plan is for.

    Returns
    -------
    Plan
        The plan.

    Raises
    ------
    InputError
        If the file is not a plan for this workload; names the file and the path inside it.

    References
    ----------
    ``docs/formats.md`` describes the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> plan = Plan(b.build(), cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plan(plan, os.path.join(folder, "plan.json"))
    ...     load_plan(os.path.join(folder, "plan.json"), plan.graph) == plan
    True
    """
    with reading.no_collection():
        return plan_from_dict(reading.read(path, "plan"), graph, source=os.fspath(path))


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file.

    Parameters
    ----------
    plan
        The plan.
    path
        Where to write: YAML if the name ends in ``.yaml``, else JSON; compressed if it ends in ``.gz``.

    Raises
    ------
    InputError
        If the plan's policy decides during the replay, or the file cannot be written.

    References
    ----------
    ``docs/formats.md`` describes the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> plan = Plan(b.build(), cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plan(plan, os.path.join(folder, "plan.json"))
    ...     load_plan(os.path.join(folder, "plan.json"), plan.graph) == plan
    True
    """
    reading.write(path, plan_to_dict(plan))


def plan_from_dict(data: object, graph: Graph, source: str | None = None) -> Plan:
    """The plan as :func:`plan_to_dict` gives it, for ``graph``; ``source`` names it in errors.

    Raises :class:`InputError` for another workload's plan, an order or a recomputation that would change what is computed, an unknown
    tensor or op and a copy without two different tiers. Whether the tiers exist is :func:`check_tiers`' business, whether the plan is
    legal the verifier's.
    """
    checked = FORMAT.check(data, source)
    if checked["workload"] != graph.name:
        raise InputError(
            f"this plan is for the workload {checked['workload']!r}, not for {graph.name!r}; plan again for this one",
            source=source,
            where="workload",
        )
    edits = _edits(checked, graph)
    if edits is not None:
        try:
            graph = edits.graph()
        except GraphError as error:
            raise InputError(error.message, source=source, where=error.where) from None
    tensor_at, op_at = graph.tensor_index, graph.op_index

    def position(name: str, at: Mapping[str, int], what: str, where: str) -> int:
        found = at.get(name)
        if found is None:
            raise InputError(reading.unknown_name(what, name, at), source=source, where=where)
        return found

    initial = {}
    for name, tiers in checked.get("initial", {}).items():
        if len(set(tiers)) != len(tiers):
            raise InputError("a tier is listed twice", source=source, where=f"initial.{name}")
        initial[position(name, tensor_at, "tensor", f"initial.{name}")] = tuple(tiers)
    listed: list[Any] = checked.get("cache_ops", [])
    cache_ops = []
    for i, entry in enumerate(listed):
        op, name, start, end, after = entry["op"], entry["tensor"], entry["from"], entry.get("to"), entry.get("after")
        tensor = position(name, tensor_at, "tensor", f"cache_ops[{i}].tensor")
        if op == DETACH and end is not None:
            raise InputError("a detach copies nowhere; leave 'to' out", source=source, where=f"cache_ops[{i}].to")
        if op != DETACH and end is None:
            raise InputError(f"missing; a {op} names the tier it copies to", source=source, where=f"cache_ops[{i}].to")
        if start == end:
            raise InputError(f"a {op} joins two different tiers, both are {end!r}", source=source, where=f"cache_ops[{i}].to")
        issue = AT_START if after is None else position(after, op_at, "op", f"cache_ops[{i}].after")
        cache_ops.append(CacheOp(op, tensor, start, end, issue))
    return Plan(graph, checked.get("policy", "manual"), tuple(cache_ops), initial, edits=edits)


def _edits(checked: PlanModel, graph: Graph) -> Edits | None:
    """What the plan changes about the workload ``graph``; ``None`` if nothing."""
    order, recompute = checked.get("order", []), checked.get("recompute", [])
    if not order and not recompute:
        return None
    return Edits(graph, tuple(order), tuple([Recompute(entry["op"], entry["before"], entry["name"]) for entry in recompute]))


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as its file says it. Raises :class:`InputError` for one that decides during the replay."""
    if plan.runtime is not None:
        raise InputError(f"the policy {plan.policy!r} decides during the replay: its plan cannot be written; replay it directly")
    tensors, ops = plan.graph.tensors, plan.graph.ops
    cache_ops = []
    for c in plan.cache_ops:
        entry: dict[str, Any] = {"op": c.op, "tensor": tensors[c.tensor].name, "from": c.source}
        if c.destination is not None:
            entry["to"] = c.destination
        entry["after"] = None if c.after == AT_START else ops[c.after].name
        cache_ops.append(entry)
    edits: dict[str, Any] = {}
    if plan.edits is not None and plan.edits.order:
        edits["order"] = list(plan.edits.order)
    if plan.edits is not None and plan.edits.recompute:
        edits["recompute"] = [{"op": r.op, "before": r.before, "name": r.name} for r in plan.edits.recompute]
    return {
        "format": reading.format_of("plan"),
        "workload": plan.workload.name,
        "policy": plan.policy,
        **edits,
        "initial": {tensors[t].name: list(tiers) for t, tiers in plan.initial.items()},
        "cache_ops": cache_ops,
    }


def check_tiers(plan: Plan, hardware: Hardware, source: str | None = None) -> None:
    """Raise :class:`InputError` unless every tier that the plan names is one of ``hardware``'s and every copy has a channel.

    The homes of the graph's tensors count too, where ``initial`` says nothing else.
    """
    known = hardware.tier_index
    tensors = plan.graph.tensors

    def check(tier: str, where: str) -> None:
        if tier not in known:
            raise InputError(f"{reading.unknown_name('tier', tier, known)}; the hardware is {hardware.name!r}", source=source, where=where)

    for t, tiers in plan.initial.items():
        for j, tier in enumerate(tiers):
            check(tier, f"initial.{tensors[t].name}[{j}]")
    for t in plan.graph.initial:
        if t not in plan.initial:
            check(tensors[t].home or hardware.device_tier, f"home of tensor {tensors[t].name!r}")
    joined = set(hardware.channel_between)
    for i, c in enumerate(plan.cache_ops):
        check(c.source, f"cache_ops[{i}].from")
        if c.destination is None:
            continue
        check(c.destination, f"cache_ops[{i}].to")
        if (c.source, c.destination) not in joined:
            if not route(hardware, c.source, c.destination, 0):
                listed = ", ".join(f"{a} to {b}" for a, b in hardware.channel_between) or "none"
                message = f"no channels of {hardware.name!r} lead from {c.source!r} to {c.destination!r} (channels: {listed})"
                raise InputError(message, source=source, where=f"cache_ops[{i}].to")
            joined.add((c.source, c.destination))
