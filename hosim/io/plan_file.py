"""The plan format: ``hosim.plan/1`` and :class:`~hosim.cache_plan.Plan`, whose names are those of
its graph.
"""

import os
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any

from pydantic import Field

from hosim.analysis.costmodel.transfers import route
from hosim.analysis.remarks import origin_of
from hosim.base.collector import no_collection
from hosim.base.files import read, unknown_name, write
from hosim.base.search_control import (
    BY_BOUND,
    BY_CALLBACK,
    BY_CTRL_C,
    BY_TIME,
    BY_WORK,
    DONE,
    SearchRecord,
)
from hosim.cache_plan import (
    AT_START,
    DETACH,
    MANUAL,
    PREFETCH,
    STORE,
    UNSAID,
    CacheOp,
    Plan,
    PlanOrigin,
)
from hosim.edits import Edits, Recompute
from hosim.errors import InputError, errors_of
from hosim.graph import DEVICE, Graph
from hosim.hardware import Hardware
from hosim.io.key_tables import (
    COUNT,
    NAME,
    TEXT,
    Key,
    KeyTable,
    Kind,
    Names,
    constant,
    format_key,
    inside,
    literal,
    mapping,
    optional,
    several,
)
from hosim.io.validators import Format, Name
from hosim.plain_text import counted


def _cache_op(
    op: str,
    tensor: int,
    source: str,
    destination: str | None = None,
    after: int = AT_START,
    slack_ns: int | None = None,
) -> CacheOp:
    if op == DETACH and destination is not None:
        raise InputError("a detach has no destination; leave 'to' out", where="to")
    if op != DETACH and destination is None:
        raise InputError(f"missing; a {op} names the tier it copies to", where="to")
    if source == destination:
        raise InputError(f"a {op} copies between two tiers, both are {destination!r}", where="to")
    return CacheOp(op, tensor, source, destination, after, slack_ns)


def _cache_ops(tensors: Names, ops: Names) -> KeyTable[CacheOp]:
    after = Kind(
        str | None,
        lambda position: None if position == AT_START else ops.listed[position].name,
        lambda name: AT_START if name is None else ops.position(name),
    )
    keys = [
        Key("op", literal(PREFETCH, STORE, DETACH)),
        Key("tensor", tensors.one),
        Key("from", NAME, "source"),
        Key("to", optional(NAME), "destination", brief=True),
        Key("after", after),
        Key("slack_ns", optional(COUNT), brief=True),
    ]
    return KeyTable(
        "CacheOpModel",
        "A copy to another tier, or the release of one; ``after`` null: at time 0.",
        _cache_op,
        *keys,
    )


_RECOMPUTE = KeyTable(
    "RecomputeModel",
    "Op ``op`` of the workload runs again, as op ``name``, just before op ``before``; its outputs "
    "are then called ``a@name``.",
    Recompute,
    Key("op", TEXT),
    Key("before", TEXT),
    Key("name", NAME),
)


def _initial(tensors: Names) -> Kind:
    """Return the form in a file of the tiers in which tensors start, by name."""

    def tiers_of(name: str, tiers: list[str]) -> tuple[int, tuple[str, ...]]:
        try:
            if len(set(tiers)) != len(tiers):
                raise InputError("a tier is listed twice")
            return tensors.position(name), tuple(tiers)
        except InputError as error:
            raise inside(name, error) from None

    return Kind(
        dict[str, list[Name]],
        lambda initial: {tensors.listed[t].name: list(tiers) for t, tiers in initial.items()},
        lambda listed: dict(tiers_of(name, tiers) for name, tiers in listed.items()),
    )


_BY_HAND = (MANUAL, "imported")
"""Names of the policy in a plan that no policy made."""

_UNEDITED = Edits(Graph("", (), ()))

_PROCESSORS = Kind(
    dict[Name, Name],
    lambda chosen: {op: processor or DEVICE for op, processor in chosen},
    lambda chosen: tuple(
        [(op, processor if processor != DEVICE else "") for op, processor in chosen.items()]
    ),
)

_EDITS = (
    Key(
        "processors",
        _PROCESSORS,
        get=lambda plan: (plan.edits or _UNEDITED).processors,
        default=(),
        brief=True,
        is_read=False,
    ),
    Key(
        "order",
        several(TEXT),
        get=lambda plan: (plan.edits or _UNEDITED).order,
        default=(),
        brief=True,
        is_read=False,
    ),
    Key(
        "recompute",
        several(_RECOMPUTE.kind),
        get=lambda plan: (plan.edits or _UNEDITED).recompute,
        default=(),
        brief=True,
        is_read=False,
    ),
)
"""The fields with which a plan changes the workload. They are read first, because the names in the
others are those of the changed graph.
"""


_COUNTS = mapping(COUNT)

_ORIGIN = KeyTable(
    "PlanOriginModel",
    """The workload, by a fingerprint and by how many tensors have each size and how many ops each fingerprint; the machine and the budget.
    """,
    PlanOrigin,
    Key("graph", TEXT),
    Key("sizes", _COUNTS, required=True),
    Key("ops", _COUNTS, required=True),
    Key("hardware", TEXT, brief=True),
    Key("machine", TEXT, brief=True),
    Key("budget_bytes", optional(COUNT), brief=True),
)


_SEARCH = KeyTable(
    "SearchModel",
    """The search that found the plan: its work, why it ended, and the policy with its parameters that makes the plan again.

The plan fits in all but ``failed`` of ``draws`` of op and transfer times, and takes ``lost`` of its makespan more than planned on average.
It is the best in them of so many plans that are ``alike`` in makespan.
    """,
    SearchRecord,
    Key("work", COUNT),
    Key("ended", literal(DONE, BY_WORK, BY_BOUND, BY_TIME, BY_CTRL_C, BY_CALLBACK)),
    Key("again", TEXT, brief=True),
    Key("draws", COUNT, brief=True),
    Key("failed", COUNT, brief=True),
    Key(
        "lost",
        optional(Kind(Annotated[float, Field(ge=-1, allow_inf_nan=False)], float)),
        brief=True,
    ),
    Key("alike", COUNT, brief=True),
)


def _plan(graph: Graph) -> KeyTable[Plan]:
    """Return the table of a plan whose names are those of ``graph``."""
    tensors, ops = (
        Names("tensor", graph.tensor_index, graph.tensors),
        Names("op", graph.op_index, graph.ops),
    )
    return KeyTable(
        "PlanModel",
        """Cache ops, in order of issue among those of the same ``after``, and where tensors lie at time 0.

``processors`` names the processor of each op for which the plan chooses one; ``order`` lists the workload's ops if the plan changes their
order, ``recompute`` the ops that it runs again; cache ops refer to tensors and ops after these changes.
        """,
        Plan,
        format_key("plan"),
        constant("workload", TEXT, attrgetter("workload.name")),
        Key("policy", TEXT),
        Key("made_for", optional(_ORIGIN.kind), "origin", get=origin_of, default=None, brief=True),
        *_EDITS,
        Key("search", optional(_SEARCH.kind), default=None, brief=True),
        Key("initial", _initial(tensors)),
        Key("cache_ops", several(_cache_ops(tensors, ops).kind)),
    )


FORMAT = Format("plan", lambda: _plan(Graph("", (), ())).adapter)


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
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=0),
    ...     ),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plan(plan, os.path.join(folder, "plan.json"))
    ...     load_plan(os.path.join(folder, "plan.json"), plan.graph) == plan
    True
    """
    with no_collection():
        data = read(path, "plan")
        if not isinstance(graph, Graph):
            raise InputError(
                "expected the graph that the plan is for, which hosim.load makes; got "
                f"{type(graph).__name__}",
                source="graph",
            )
        plan = plan_from_dict(data, graph, source=os.fspath(path))
    is_made = plan.origin is None and plan.policy not in _BY_HAND
    return replace(plan, origin=UNSAID) if is_made else plan


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file.

    Parameters
    ----------
    plan
        The plan.
    path
        Where to write: YAML if the name ends in ``.yaml``, else JSON; compressed if it ends in
        ``.gz``.

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
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=0),
    ...     ),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plan(plan, os.path.join(folder, "plan.json"))
    ...     load_plan(os.path.join(folder, "plan.json"), plan.graph) == plan
    True
    """
    if not isinstance(plan, Plan):
        raise InputError(f"expected a plan, got {type(plan).__name__}", source="plan")
    write(path, plan_to_dict(plan))


def plan_from_dict(data: object, graph: Graph, source: str | None = None) -> Plan:
    """Return the plan in a mapping like that of :func:`plan_to_dict`, for ``graph``; ``source``
    names it in errors.

    Raises :class:`InputError` for another workload's plan, for an order or a recomputation that
    would change the results, for an unknown tensor or op, and for a copy without two different
    tiers. :func:`check_tiers` checks that the tiers exist, and the verifier that the plan is legal.
    """
    checked = FORMAT.check(data, source)
    if checked["workload"] != graph.name:
        raise InputError(
            f"this plan is for the workload {checked['workload']!r}, not for {graph.name!r}; plan "
            "again for this one",
            source=source,
            where="workload",
        )
    with errors_of(source):
        processors, order, recompute = (
            key.kind.read(checked[key.name]) if key.name in checked else () for key in _EDITS
        )
        edits = (
            Edits(graph, order, recompute, processors) if processors or order or recompute else None
        )
        edited = graph if edits is None else edits.graph()
        return _plan(edited).read(checked, graph=edited, edits=edits)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as in its file. Raises :class:`InputError` for a plan whose policy decides
    during the replay.
    """
    if plan.runtime is not None:
        raise InputError(
            f"the policy {plan.policy!r} decides during the replay: its plan cannot be written; "
            "replay it directly"
        )
    return _plan(plan.graph).write(plan)


def check_tiers(plan: Plan, hardware: Hardware, source: str | None = None) -> None:
    """Raise :class:`InputError` unless ``hardware`` has every tier that the plan names, and a route
    for every copy.

    Also check the homes of tensors that ``initial`` does not list, and that the positions of
    tensors and ops in a plan made by hand exist.
    """
    with errors_of(source):
        _check_initial(plan, hardware)
        joined = set(hardware.channel_between)
        for i, cache_op in enumerate(plan.cache_ops):
            _check_cache_op(plan, cache_op, hardware, f"cache_ops[{i}]", joined)


def _check_initial(plan: Plan, hardware: Hardware) -> None:
    tensors = plan.graph.tensors
    for t in plan.initial:
        _check_position(t, len(tensors), "tensor", "initial")
    for t, tiers in plan.initial.items():
        for j, tier in enumerate(tiers):
            _check_tier(tier, hardware, f"initial.{tensors[t].name}[{j}]")
    for t in plan.graph.initial:
        if t not in plan.initial:
            home = tensors[t].home or hardware.device_tier
            _check_tier(home, hardware, f"home of tensor {tensors[t].name!r}")


def _check_cache_op(
    plan: Plan, c: CacheOp, hardware: Hardware, where: str, joined: set[tuple[str, str]]
) -> None:
    """Check one cache op. Add its two tiers to ``joined`` if a channel or a route joins them."""
    kinds = PREFETCH, STORE, DETACH
    if c.op not in kinds:
        raise InputError(unknown_name("cache op", str(c.op), kinds), where=f"{where}.op")
    _check_position(c.tensor, len(plan.graph.tensors), "tensor", f"{where}.tensor")
    if c.after != AT_START:
        _check_position(c.after, len(plan.graph.ops), "op", f"{where}.after")
    _check_tier(c.source, hardware, f"{where}.from")
    if c.destination is None:
        return
    _check_tier(c.destination, hardware, f"{where}.to")
    if (c.source, c.destination) not in joined and not route(hardware, c.source, c.destination, 0):
        listed = ", ".join(f"{a} to {b}" for a, b in hardware.channel_between) or "none"
        raise InputError(
            f"no channels of {hardware.name!r} lead from {c.source!r} to {c.destination!r} "
            f"(channels: {listed})",
            where=f"{where}.to",
        )
    joined.add((c.source, c.destination))


def _check_position(position: object, count: int, what: str, where: str) -> None:
    if not isinstance(position, int) or not 0 <= position < count:
        raise InputError(
            f"no {what} number {position!r}; the graph has {counted(count, what)}", where=where
        )


def _check_tier(tier: object, hardware: Hardware, where: str) -> None:
    known = hardware.tier_index
    if not isinstance(tier, str) or tier not in known:
        said = f"{unknown_name('tier', str(tier), known)}; the hardware is {hardware.name!r}"
        raise InputError(said, where=where)
