"""Policies named after systems that compute a part of a step on another processor: the builder
option that the workload needs, and a rebuild with that option.

The workload, not the plan, says on which processor an op runs (docs/contract.md, rule 20). So such
a policy needs a workload that was built with the option. If a builder made the workload without it,
the policy builds the workload again with it.
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
"""Plans for fixed processors, given the graph, the start tiers of tensors of other processors, and
parameters that replace the policy's values.
"""


@dataclass(frozen=True, slots=True)
class ComputedElsewhere:
    """The part of a step, named ``what``, that a system computes on a lower tier's processor; its
    ops use tensors of ``kind``.

    The builder's ``option`` names the tier, and ``beside`` has further options to set. If
    ``chosen``, the plan chooses which ops of the part run there, and the option is ``device/TIER``.
    """

    what: str
    kind: str
    option: str
    beside: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False


def computed_there(graph: Graph, hardware: Hardware, policy: str, part: ComputedElsewhere) -> Graph:
    """Return the workload with the part on another processor: the given one if some op is there or
    it has no such part, else one built again with the option.

    The first lower tier with a processor computes the part. Raises :class:`InputError` if there is
    no such tier, or the workload cannot be built again.
    """
    recipe = graph.meta.get("builder")
    told_before = graph.movable if part.chosen else graph.elsewhere or graph.movable
    if part.chosen and isinstance(recipe, Mapping) and part.option not in recipe:
        told_before = ()  # the movable ops are of other parts
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
    """Return the plan with each op of ``chosen`` (op name, processor) on its processor;
    ``initial_of`` returns the start tiers of the changed graph's tensors.
    """
    edits = Edits(graph, processors=tuple(chosen))
    fixed = edits.graph()
    initial = initial_of(fixed)
    made = make(fixed, initial, {})
    return replace(made, graph=fixed, edits=edits, initial={**made.initial, **initial})
