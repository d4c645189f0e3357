"""The origin of a plan: the graph, the machine and the budget that its file says it was made for,
and what differs where it is replayed.

Names and the order of tensors mean nothing: sizes and ops are counted by what they are.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace

from hosim.analysis.canonical import canonical, digest, graph_fingerprint
from hosim.cache_plan import UNSAID, Plan, PlanOrigin
from hosim.errors import InputError
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.units import human_size


def origin_of(plan: Plan) -> PlanOrigin | None:
    """Return the origin of a plan: the one in its file, or else the one for which it was made here;
    ``None`` if neither is known.
    """
    if plan.origin is UNSAID:
        return None
    return (
        plan.origin
        if plan.origin is not None or plan.made_for is None
        else _origin(plan.workload, *plan.made_for)
    )


def _origin(graph: Graph, hardware: Hardware, budget_bytes: int) -> PlanOrigin:
    sizes, ops = (
        Counter(str(tensor.size_bytes) for tensor in graph.tensors.each()),
        Counter(map(_computes, graph.ops)),
    )
    return PlanOrigin(
        graph.derived(_fingerprint),
        _sorted(sizes),
        _sorted(ops),
        hardware.name,
        _machine(hardware),
        budget_bytes,
    )


def changed_line(plan: Plan, hardware: Hardware, budget_bytes: int) -> str | None:
    """Return the differences between a plan's origin and where it is replayed, as one line;
    ``None`` if there are none, or it does not say.
    """
    before = plan.origin
    if before is None:
        return None
    if before is UNSAID:
        return "does not say which workload, machine and budget it was made for"
    now = _origin(plan.workload, hardware, budget_bytes)
    found = []
    if before.graph != now.graph:
        sizes, ops = _different(before.sizes, now.sizes), _different(before.ops, now.ops)
        said = (
            ", ".join(
                [counted(number, word) for number, word in ((sizes, "size"), (ops, "op")) if number]
            )
            or "what its ops read, write or wait for"
        )
        found.append(
            f"another version of the workload ({said} {'differs' if sizes + ops < 2 else 'differ'})"
        )
    if before.machine and before.machine != now.machine:
        found.append(
            before.hardware
            if before.hardware != hardware.name
            else f"other figures of {hardware.name}"
        )
    if before.budget_bytes is not None and before.budget_bytes != budget_bytes:
        found.append(
            f"{human_size(before.budget_bytes)} of {hardware.device_tier}, not "
            f"{human_size(budget_bytes)}"
        )
    return f"made for {'; for '.join(found)}" if found else None


def check_made_for(plan: Plan, hardware: Hardware, budget_bytes: int, *, source: str) -> None:
    """Raise :class:`InputError` for a plan that was made for another workload, machine or budget,
    or does not say for which.
    """
    if (changed := changed_line(plan, hardware, budget_bytes)) is not None:
        raise InputError(
            f"{changed}; plan again, or replay it without --strict (strict = true)", source=source
        )


def _fingerprint(graph: Graph) -> str:
    return graph_fingerprint(canonical(graph))


def _computes(op: Op) -> str:
    return digest(repr(replace(op, name="", inputs=(), outputs=(), mutates=(), deps=())))[:8]


def _machine(hardware: Hardware) -> str:
    ignored = ("name", "source", "version", "price_per_hour")
    return digest(
        *(repr(getattr(hardware, f.name)) for f in fields(hardware) if f.name not in ignored)
    )


def _different(before: Mapping[str, int], now: Mapping[str, int]) -> int:
    """Return the number of entries of two multisets that have no partner in the other one; two that
    replaced one another are one.
    """
    gone, new = Counter(before) - Counter(now), Counter(now) - Counter(before)
    return max(gone.total(), new.total())


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (len(item[0]), item[0])))
