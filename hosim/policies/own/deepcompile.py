"""``deepcompile``: what the forward pass saves for the backward pass is offloaded, all of it at first,
and the largest of it stays as far as the peak then leaves room.

DeepSpeed's DeepCompile (M. Tanaka et al., arXiv 2504.09983) with ``offload_activation``, as
``deepspeed/compile/passes/offload_activation.py`` of DeepSpeed 0.19.8 has it (pull request 8255):

- what may move is a saved activation of 5 MiB or more;
- the *floor* is the peak with all of them moved. Largest first, each one that fits into what the
  floor leaves of the budget less the margin stays on the device. Where all fit, nothing moves;
- a copy down begins after the last use in the forward pass;
- a copy up goes back from its first use in the backward pass, op by op, until the ops passed take
  as long as the copy, or until the peak at the op, what comes up before and this tensor exceed the
  budget less the margin. Where the peaks of the backward pass could not be measured, as it ran out
  of memory, each comes up just before its first use.

Our reading: the floor is the peak of a replay with everything moved. Peaks of ops are those with
everything resident, since a profile of the backward pass has all that is saved as its inputs. The
backward pass is told as in :mod:`hosim.policies.own.saved_activations`, and times of ops and the
link are the profile's.

Not modelled: the compute stream's wait for each copy down; a margin measured as what the allocator
holds unused (10 to 25 %); other passes of DeepCompile.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.analysis import static_curve
from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import Plan
from hosim.engine import verdict
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import Absence, insert
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below
from hosim.policies.own.saved_activations import LATER, saved_gaps

_NAME = "deepcompile"


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    margin: float,
    smallest: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan. O(uses log uses + gaps ops), and a replay.

    Raises :class:`InputError` for a graph with gradients that does not name its backward pass.
    """
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    residency = Plan(graph).residency(hardware.device_tier)
    space = space_below(graph, hardware, residency, read_placement(placement, hardware))
    moved = []
    for gap in sorted(saved_gaps(graph), key=lambda gap: (-sizes[gap.tensor], gap.after)):
        t, last, back = gap.tensor, gap.after, gap.before - 1
        tier = space.place(t, last) if sizes[t] >= smallest and back > last else None
        if tier is not None:
            moved.append(Absence(t, last, gap.before, last, last, back, tier))
    usable = int(budget_bytes * (1 - margin))
    room = usable - _floor(graph, hardware, budget_bytes, moved)
    away = []
    for absence in moved:
        if sizes[absence.tensor] <= room:
            room -= sizes[absence.tensor]
        else:
            away.append(absence)
    away = _ahead(graph, hardware, away, budget_bytes, usable)
    return insert(graph, hardware, _NAME, away)


def _floor(graph: Graph, hardware: Hardware, budget_bytes: int, moved: Sequence[Absence]) -> int:
    """The peak with everything moved; all of the budget where it does not fit even then."""
    try:
        result = verdict(insert(graph, hardware, _NAME, moved), hardware, budget_bytes)
    except InfeasibleError:
        return budget_bytes
    return result.peak_bytes[hardware.device_tier] if result.feasible else budget_bytes


def _ahead(
    graph: Graph, hardware: Hardware, away: Sequence[Absence], budget_bytes: int, usable: int
) -> list[Absence]:
    """The absences with the prefetch of each as early as the rule has it."""
    held = static_curve(graph, hardware.device_tier)
    durations = op_durations(graph, hardware)
    begin = next((i for i, op in enumerate(graph.ops) if op.name.startswith(LATER)), 0)
    if max(held[begin:], default=0) > budget_bytes:
        return list(away)
    placed, coming = [], 0
    for absence in sorted(away, key=lambda absence: absence.before):
        tensor = graph.tensors[absence.tensor]
        channel = hardware.channel_between.get((absence.tier, hardware.device_tier))
        needed = (
            0
            if channel is None
            else alone_ns(hardware, channel.name, tensor.size_bytes, tensor.kind)
        )
        place, passed = absence.before, 0
        while place > begin and passed < needed:
            if held[place - 1] + coming + tensor.size_bytes > usable:
                break
            place -= 1
            passed += durations[place]
        coming += tensor.size_bytes
        placed.append(absence._replace(prefetch=max(place - 1, absence.release)))
    return placed
