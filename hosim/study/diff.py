"""Compare two plans or two results, figure by figure, tensor by tensor, op by op. Equal rows are
omitted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from hosim import engine, io
from hosim.analysis import canonical
from hosim.base.groups import grouped, summed
from hosim.base.in_cells import InCells
from hosim.cache_plan import AT_START, PREFETCH, STORE, CacheOp, Plan
from hosim.errors import InputError
from hosim.graph import Graph, Tensor
from hosim.hardware import Hardware
from hosim.notes import each_once, notes
from hosim.plain_text import counted, shown
from hosim.policies import policy_names
from hosim.result import STALL_CAUSES, Result
from hosim.study.asked import AnyPolicy, Value, as_choice, parse_choice
from hosim.study.runs import check, make_plan

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Value]

START = "(start)"
"""The op name of cache ops that are issued at time 0."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a plan, its replay, or both; ``label`` is its name."""

    label: str
    plan: Plan | None = None
    result: Result | None = None
    device_tier: str = "hbm"


@dataclass(frozen=True)
class Diff(InCells):
    """The differences between ``a`` and ``b``.

    ``figures`` has rows of ``figure a b change``. ``tensors`` has one row per tensor that the sides
    treat differently: its tier at the start, its moves and moved bytes, and, with timelines, its
    time in the device tier. ``ops`` has one row per op that differs: the cache ops after it that
    only one side has, and, with timelines, its start and its wait. Columns of the two sides end in
    ``_a`` and ``_b``. Plans that are not ``replayed`` have no figures. ``parts`` has the tensors
    that are parts of others, by name.
    """

    a: str
    b: str
    figures: Sequence[Row]
    tensors: Sequence[Row]
    ops: Sequence[Row]
    replayed: bool = True
    notes: Sequence[str] = ()
    parts: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Return whether nothing differs."""
        return not (self.figures or self.tensors or self.ops)

    def frame(self, which: str) -> DataFrame:
        """Return the rows of ``figures``, ``tensors`` or ``ops`` as a pandas frame. Raises
        :class:`InputError` for another name.
        """
        from hosim.study.rows_of_answers import frame

        if which not in ("figures", "tensors", "ops"):
            raise InputError(f"expected figures, tensors or ops, got {shown(which)}", source="diff")
        listed: Sequence[Row] = getattr(self, which)
        return frame(listed, list(dict.fromkeys(chain.from_iterable(listed))), self.notes)

    def __str__(self) -> str:
        if self.same:
            return f"{self.a} and {self.b} are the same"
        counts = f"{counted(len(self.tensors), 'tensor')} and {counted(len(self.ops), 'op')}"
        if not self.replayed:
            return (
                f"{self.a} and {self.b} differ in {counts}; no figures are compared without "
                "hardware to replay on (--hardware)"
            )
        return f"{self.a} and {self.b} differ in {counted(len(self.figures), 'figure')}, {counts}"

    __repr__ = __str__


def diff(a: Side, b: Side) -> Diff:
    """Return the differences between two sides that both have a plan, or both have a result.

    Raises :class:`InputError` for a plan and a result, and for plans of different workloads.
    """
    figures: list[Row] = []
    replayed = a.result is not None and b.result is not None
    tensors: dict[str, Row] = {}
    ops: dict[str, Row] = {}
    if a.plan is not None and b.plan is not None:
        _same_tensors(a.plan, b.plan)
        _plans(a.plan, b.plan, a.device_tier, tensors, ops)
        if (
            a.result is not None
            and b.result is not None
            and a.result.timeline is not None
            and b.result.timeline is not None
        ):
            _timelines(a, b, tensors, ops)
    elif a.result is None or b.result is None:
        raise InputError(
            f"{a.label} and {b.label} are a plan and a result: give two plans, two results, or a "
            "machine to replay the plan on",
            source="diff",
        )
    if a.result is not None and b.result is not None:
        figures = _figures(a.result, b.result)
    said = each_once(line for side in (a, b) for line in _notes(side))
    parts = {
        t.name: t
        for side in (a, b)
        if side.plan is not None
        for t in side.plan.graph.tensors
        if t.of
    }
    differ = _different(tensors, ("tensor", "kind", "size_bytes")), _different(ops, ("op",))
    return Diff(a.label, b.label, figures, *differ, replayed, said, parts)


def _notes(side: Side) -> Iterable[str]:
    if side.result is not None:
        return side.result.notes
    return () if side.plan is None else map(str, notes(side.plan.workload))


def _same_tensors(a: Plan, b: Plan) -> None:
    if [(t.name, t.size_bytes) for t in a.workload.tensors] != [
        (t.name, t.size_bytes) for t in b.workload.tensors
    ]:
        raise InputError(
            f"{a.policy} is a plan for {a.workload.name}, {b.policy} one for {b.workload.name} "
            "with other tensors",
            source="diff",
        )


def _different(rows: Mapping[str, Row], fixed: Sequence[str]) -> list[Row]:
    """Return the rows that differ between ``a`` and ``b``, without columns that never differ."""
    names = list(
        dict.fromkeys(key[:-2] for row in rows.values() for key in row if key not in fixed)
    )
    kept = [
        row
        for row in rows.values()
        if any(row.get(f"{name}_a") != row.get(f"{name}_b") for name in names)
    ]
    shown = [
        name for name in names if any(row.get(f"{name}_a") != row.get(f"{name}_b") for row in kept)
    ]
    return [
        {
            key: row.get(key)
            for key in (*fixed, *(f"{name}_{side}" for name in shown for side in "ab"))
        }
        for row in kept
    ]


# -- figures
# --------------------------------------------------------------------------------------------------


def flat(result: Result) -> dict[str, Value]:
    """Return the figures of a result by name."""
    figures: dict[str, Value] = {
        "feasible": result.feasible,
        "budget_bytes": result.budget_bytes,
        "makespan_ns": result.makespan_ns,
        "makespan_low_ns": result.makespan_low_ns,
        "makespan_high_ns": result.makespan_high_ns,
        "busy_ns": result.busy_ns,
        **{f"{cause}_stall_ns": result.stall_ns.get(cause) for cause in STALL_CAUSES},
        "drain_ns": result.drain_ns,
        "lower_bound_ns": result.lower_bound_ns,
    }
    for tier, peak in result.peak_bytes.items():
        figures |= {f"{tier}_peak_bytes": peak, f"{tier}_peak_at_ns": result.peak_at_ns.get(tier)}
        figures |= {
            f"{tier}_peak_{kind}_bytes": size
            for kind, size in result.peak_breakdown.get(tier, {}).items()
        }
    for name, c in result.channels.items():
        figures |= {
            f"{name}_transfers": c.transfers,
            f"{name}_moved_bytes": c.bytes,
            f"{name}_busy_ns": c.busy_ns,
        }
        figures |= {
            f"{name}_queue_ns": c.queue_ns,
            f"{name}_contention_ns": c.contention_ns,
            f"{name}_exposed_ns": c.exposed_ns,
        }
    return {**figures, **result.plan, "error": result.error}


def _figures(a: Result, b: Result) -> list[Row]:
    of_a, of_b = flat(a), flat(b)
    rows: list[Row] = []
    for name in dict.fromkeys((*of_a, *of_b)):
        one, other = of_a.get(name), of_b.get(name)
        if one != other:
            counted = isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool)
            rows.append(
                {"figure": name, "a": one, "b": other, "change": other - one if counted else None}  # type: ignore[operator]
            )
    return rows


# -- plans
# --------------------------------------------------------------------------------------------------


def _plans(a: Plan, b: Plan, device: str, tensors: dict[str, Row], ops: dict[str, Row]) -> None:
    for op in dict.fromkeys([START, *(op.name for plan in (a, b) for op in plan.graph.ops)]):
        ops[op] = {"op": op}
    for tensor in (tensor for plan in (a, b) for tensor in plan.graph.derived(canonical).tensors):
        tensors.setdefault(
            tensor.name,
            {"tensor": tensor.name, "kind": tensor.kind, "size_bytes": tensor.size_bytes},
        )
    for side, plan in (("a", a), ("b", b)):
        graph = plan.graph
        copies = Counter((c.tensor, c.op) for c in plan.cache_ops)
        for t, tensor in enumerate(graph.tensors):
            row = tensors[tensor.name]
            start = plan.initial.get(t, (tensor.home or device,) if t in graph.initial else ())
            prefetches, stores = copies[t, PREFETCH], copies[t, STORE]
            row |= {
                f"starts_in_{side}": "+".join(start) or None,
                f"prefetches_{side}": prefetches,
                f"stores_{side}": stores,
            }
            row |= {f"copied_bytes_{side}": (prefetches + stores) * tensor.size_bytes}
        for op, issued in _after(plan).items():
            ops[op][f"cache_ops_{side}"] = ", ".join(issued)
        for name, listed in grouped(
            (graph.tensors[cache_op.tensor].name, f"{cache_op.op} after {_place(plan, cache_op)}")
            for cache_op in sorted(plan.cache_ops, key=lambda c: c.after)
        ).items():
            tensors[name][f"cache_ops_{side}"] = ", ".join(listed)
    for row in ops.values():
        _without_shared(row)


def _without_shared(row: Row) -> None:
    """Keep only the cache ops of an op that one side alone has."""
    one, other = (Counter(str(row.get(f"cache_ops_{side}") or "").split(", ")) for side in "ab")
    for side, own, theirs in (("a", one, other), ("b", other, one)):
        row[f"cache_ops_{side}"] = ", ".join((own - theirs).elements()) or None


def _after(plan: Plan) -> dict[str, list[str]]:
    return grouped(
        (_place(plan, c), f"{c.op} {plan.graph.tensors[c.tensor].name}") for c in plan.cache_ops
    )


def _place(plan: Plan, cache_op: CacheOp) -> str:
    return START if cache_op.after == AT_START else plan.graph.ops[cache_op.after].name


# -- timelines
# --------------------------------------------------------------------------------------------------


def _timelines(a: Side, b: Side, tensors: dict[str, Row], ops: dict[str, Row]) -> None:
    for side, plan, result, device in (
        ("a", a.plan, a.result, a.device_tier),
        ("b", b.plan, b.result, b.device_tier),
    ):
        assert plan is not None
        assert result is not None
        assert result.timeline is not None
        timeline, graph = result.timeline, plan.graph
        moved = summed((x.tensor, x.bytes) for x in timeline.transfers)
        waited = summed((stall.op, stall.stall_ns) for stall in timeline.stalls)
        resident = summed(
            (r.tensor, r.end_ns - r.start_ns) for r in timeline.residencies if r.tier == device
        )
        for t, tensor in enumerate(graph.tensors):
            tensors[tensor.name].pop(
                f"copied_bytes_{side}", None
            )  # a tensor in transfer already takes its room
            tensors[tensor.name] |= {
                f"moved_bytes_{side}": moved.get(t, 0),
                f"resident_ns_{side}": resident.get(t, 0),
            }
        for i, op in enumerate(graph.ops):
            start, end = timeline.op_start_ns[i], timeline.op_end_ns[i]
            ran: Row = {
                f"start_ns_{side}": start,
                f"took_ns_{side}": end - start,
                f"stall_ns_{side}": waited.get(i, 0),
            }
            ops[op.name] |= ran if start >= 0 else {}


# -- sides by their names
# --------------------------------------------------------------------------------------------------


def side_of(
    what: AnyPolicy | os.PathLike[str] | Plan | Result,
    graph: Graph | None = None,
    hardware: Hardware | None = None,
    budget_bytes: int | None = None,
) -> Side:
    """Return one side of a comparison, from a plan, a result, the path of a plan or result file, or
    a policy (a name, an object or a function).

    With ``hardware``, plans are also replayed. Raises :class:`InputError` for anything else, and
    for a plan file or a policy that lacks the graph or the machine that it needs.
    """
    tier = "hbm" if hardware is None else hardware.device_tier
    if isinstance(what, Result):
        return Side(what.policy, result=what, device_tier=tier)
    if isinstance(what, Plan):
        return _planned(what.policy, what, hardware, budget_bytes, tier)
    if isinstance(what, str | os.PathLike):
        text = os.fspath(what)
        if os.path.exists(text):
            return _loaded(text, graph, hardware, budget_bytes, tier)
        if text.partition(":")[0] not in policy_names():
            raise InputError(
                f"neither a file nor a policy (policies: {', '.join(policy_names())})", source=text
            )
        choice, label = parse_choice(text), text
    else:
        choice = as_choice(what)
        label = choice.label
    if graph is None or hardware is None or budget_bytes is None:
        raise InputError(
            "a policy needs a workload and a machine to plan for: name both", source=label
        )
    made = replace(make_plan(graph, hardware, choice, budget_bytes), policy=choice.label)
    check(made, hardware, budget_bytes)
    return _planned(label, made, hardware, budget_bytes, tier)


def _loaded(
    path: str, graph: Graph | None, hardware: Hardware | None, budget_bytes: int | None, tier: str
) -> Side:
    from hosim.base.files import content
    from hosim.base.files.formats import unexpected

    try:
        data = content(path)
    except InputError as error:
        raise unexpected(path, "a plan or a result of hosim", ours=False) or error from None
    kind = data.get("format") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind.startswith("hosim.result/"):
        return Side(path, result=io.result_from_dict(data, path), device_tier=tier)
    if not isinstance(kind, str) or not kind.startswith("hosim.plan/"):
        got = InputError(
            f"expected a plan or a result of hosim, got {kind or 'another file'}", source=path
        )
        raise (None if kind else unexpected(path, "a plan or a result of hosim", ours=False)) or got
    if graph is None:
        raise InputError("name the workload that the plan is for (--workload)", source=path)
    plan = io.load_plan(path, graph)
    if hardware is not None:
        io.check_tiers(plan, hardware, source=path)
    return _planned(path, plan, hardware, budget_bytes, tier)


def _planned(
    label: str, plan: Plan, hardware: Hardware | None, budget_bytes: int | None, tier: str
) -> Side:
    result = None if hardware is None else engine.replay(plan, hardware, budget_bytes, record=True)
    return Side(label, plan, result, tier)
