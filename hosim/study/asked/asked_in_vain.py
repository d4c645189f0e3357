"""Find settings with no effect, or less than expected: a machine's are errors, a policy's notes."""

from collections.abc import Iterator, Sequence

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.notes import Note
from hosim.planner.schedule.tiers_below import BY_KIND, read_placement
from hosim.result import Result
from hosim.study.asked.policy_choice import PolicyChoice
from hosim.units import human_size

_WEIGHTS = ("parameter", "expert")


def check_pinning(hardware: Hardware, results: Sequence[Result]) -> None:
    """Raise :class:`InputError` if a tier has a pinning time, tensors move, and none moves to that
    tier: then the time has no effect.
    """
    moved = {
        name for result in results for name, channel in result.channels.items() if channel.transfers
    }
    reached = {channel.destination for channel in hardware.channels if channel.name in moved}
    for tier in hardware.tiers:
        if tier.pin_ns and moved and tier.name not in reached:
            raise InputError(
                f"changes nothing here, since no plan moves a tensor to {tier.name}, and what "
                "lies there at time 0 is pinned already (rule "
                "14): leave it out, or see pageable for memory that is not pinned, and pins of a "
                "runtime for memory that the host pins for each copy",
                source=hardware.name,
                where=f"tiers.{tier.name}.pin",
            )


def notes_on_choice(choice: PolicyChoice, graph: Graph, hardware: Hardware) -> Iterator[Note]:
    """Yield a note if a placement by kind names parameters but not experts, or the reverse: both
    are weights, but of different kinds.
    """
    asked = choice.parameters.get("placement")
    if not isinstance(asked, str) or not asked.startswith(f"{BY_KIND}/"):
        return
    named = read_placement(asked, hardware).kinds
    for kind, other in (_WEIGHTS, _WEIGHTS[::-1]):
        size = sum([tensor.size_bytes for tensor in graph.tensors if tensor.kind == other])
        if kind in named and other not in named and size:
            yield Note(
                "placement",
                f"{asked} says nothing of kind {other}, {human_size(size)}, which goes where "
                f"{BY_KIND} puts it; {other}={named[kind]} does",
            )
