"""Policies named after systems that compute a part of a step beside the device: what the workload
has to say for that, and who says it.

Which processor an op runs on is the workload's, not the plan's (docs/contract.md, rule 20). So such
a policy plans for a workload whose builder was told, and tells it itself where the workload is one
that a builder made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hosim.analysis import canonical
from hosim.cache_plan import Plan
from hosim.edits import Edits
from hosim.errors import InputError
from hosim.graph import DEVICE, Graph
from hosim.hardware import Hardware
from hosim.notes import ASSUMED

Initial = Mapping[int, tuple[str, ...]]
Make = Callable[[Graph, Initial, Mapping[str, Any]], Plan]
"""A policy for fixed processors: the graph, where tensors of other processors start, and parameters
that are not the policy's own.
"""


@dataclass(frozen=True, slots=True)
class ComputedElsewhere:
    """The part that a system computes on the processor of a tier below: ``what``, which is with
    tensors of a ``kind``.

    ``option`` of a builder names the tier; ``beside`` are others that it takes. ``chosen``: the
    plan says which ops of the part run there, so that the option is ``device/TIER``.
    """

    what: str
    kind: str
    option: str
    beside: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False


def computed_there(graph: Graph, hardware: Hardware, policy: str, part: ComputedElsewhere) -> Graph:
    """The workload with the part on another processor: itself if some op is, or it has no such
    part, else what its builder makes of it.

    The first tier below with a processor computes it. Raises :class:`InputError` where nobody can
    tell a builder.
    """
    recipe = graph.meta.get("builder")
    told_before = graph.movable if part.chosen else graph.elsewhere or graph.movable
    if part.chosen and isinstance(recipe, Mapping) and part.option not in recipe:
        told_before = ()  # of other parts, which are fewer ops
    if told_before or not any(
        [
            tensor.kind == part.kind and users
            for tensor, users in zip(graph.tensors, graph.users, strict=True)
        ]
    ):
        return graph
    takes = f"{part.option}={DEVICE}/TIER" if part.chosen else f"{part.option}=TIER"
    needs = (
        f"{policy} computes {part.what} beside the device, and this workload does not say so: "
        f"it takes {takes}"
    )
    tier = next(
        (
            tier.name
            for tier in hardware.tiers
            if tier.name != hardware.device_tier and tier.compute is not None
        ),
        None,
    )
    if tier is None:
        raise InputError(
            f"{needs}, and {hardware.name} has no tier below that computes",
            source=f"policy {policy}",
        )
    if not isinstance(recipe, Mapping):
        raise InputError(
            f"{needs} where hosim builds it; in a workload file ops name their processor",
            source=f"policy {policy}",
        )
    from hosim.io.models import build

    told = {
        part.option: f"{DEVICE}/{tier}" if part.chosen else tier,
        **{key: value for key, value in part.beside.items() if key not in recipe},
    }
    try:
        if canonical(build(graph.name, recipe)) != graph.derived(canonical):
            raise InputError("its graph is no longer what the builder made")
        made = build(graph.name, {**recipe, **told})
    except InputError as error:
        raise InputError(f"{needs}, which was tried: {error}", source=f"policy {policy}") from None
    said = ", ".join(
        f"{key}={str(value).lower() if value is True else value}" for key, value in told.items()
    )
    assumed = [
        *made.meta.get(ASSUMED, ()),
        f"{said}, since {policy} computes {part.what} there; the plan is for that workload",
    ]
    return replace(made, meta={**made.meta, ASSUMED: assumed})


def made_on(
    graph: Graph,
    chosen: Sequence[tuple[str, str]],
    make: Make,
    initial_of: Callable[[Graph], Initial],
) -> Plan:
    """The plan with each op of ``chosen`` on the processor beside its name; ``initial_of`` says
    where tensors of that graph start.
    """
    edits = Edits(graph, processors=tuple(chosen))
    fixed = edits.graph()
    initial = initial_of(fixed)
    made = make(fixed, initial, {})
    return replace(made, graph=fixed, edits=edits, initial={**made.initial, **initial})
