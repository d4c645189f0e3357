"""The processor that runs each op, and the refusal of other processors by code that knows only the
device's (docs/contract.md, rule 20).
"""

from hosim.errors import HardwareError, InputError
from hosim.graph import Graph, Op
from hosim.hardware import Compute, Hardware


def tier_of(op: Op, hardware: Hardware) -> str:
    """The tier that an op reads and writes: that of its processor."""
    return op.processor or hardware.device_tier


def compute_of(op: Op, hardware: Hardware) -> Compute:
    """The processor of an op. Raises :class:`HardwareError` if the machine has none where the op
    runs.
    """
    if not op.processor:
        return hardware.compute
    tier = hardware.tier_index.get(op.processor)
    compute = None if tier is None else hardware.tiers[tier].compute
    if compute is None:
        known = ", ".join(t.name for t in hardware.tiers if t.compute is not None) or "none"
        raise HardwareError(
            f"op {op.name!r} runs on the processor of {op.processor!r}, which {hardware.name!r} "
            f"has not (tiers with compute: {known}); "
            f"say in the profile what it computes with",
            where=f"tiers.{op.processor}.compute",
        )
    return compute


def others_of(op: Op, hardware: Hardware) -> tuple[str, ...]:
    """The other processors that an op may run on, of those that the machine has."""
    having = {tier.name for tier in hardware.tiers if tier.compute is not None}
    return tuple([name for name, _ in op.also_on if not name or name in having])


def tiers_elsewhere(graph: Graph, hardware: Hardware) -> dict[int, int]:
    """The ops that run on other processors than the device, with the position of the tier of each.
    Raises as :func:`compute_of` does.
    """
    found = {}
    for i in graph.elsewhere:
        compute_of(graph.ops[i], hardware)  # which says if there is none
        found[i] = hardware.tier_index[graph.ops[i].processor]
    return found


def refuse_other_processors(graph: Graph, who: str) -> None:
    """Raise :class:`InputError` if some op runs on another processor than the device; ``who`` does
    not know what that means.
    """
    if graph.elsewhere:
        op = graph.ops[graph.elsewhere[0]]
        raise InputError(
            f"op {op.name!r} runs on the processor of {op.processor!r}: {who}", source=graph.name
        )
