"""``saved_activations``: what the forward pass saves for the backward pass is offloaded, and comes
back a layer ahead of its use there.

What training runtimes call activation offload: torchtune's ``enable_activation_offloading`` and
TRL's ``activation_offloading``, ``torch.autograd.graph.save_on_cpu``, DeepSpeed's
``cpu_checkpointing``, and Megatron-LM's ``cpu_offloading_num_layers`` (``activations``: the share
that the first layers have). A saved activation is stored when it has been written for the last
time, dropped after its last use in the forward pass, and prefetched when the layer ``layers_ahead``
before that of its next use begins. With ``checkpoint`` that is the input of each layer. What lives
within a layer stays, as do parameters, gradients and what is used again so soon.

Our reading: an op is of the backward pass, or computes again for it, if its name says so
(``backward.``, ``recompute.``), as those of builders and of traced training steps do. Layers are
told by the weights that ops use (:mod:`hosim.policies.own.layerwise`). Copies that the host waits
for, as those of ``save_on_cpu`` and ``cpu_checkpointing``, a limit on copies under way
(``max_fwd_stash_size``) and memory that is pinned for each are the runtime's (``blocks``,
``stores``, ``pins``).

Not modelled: a prefetch as early as the host is ahead of the device, as torchtune's is issued.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from hosim.analysis import Gap
from hosim.cache_plan import AT_START, Plan
from hosim.edits import BACKWARD, RECOMPUTE
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import Absence, between_uses, insert
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below
from hosim.policies.own.layerwise import WEIGHTS, visits

LATER = (BACKWARD, RECOMPUTE)
"""The prefix of the names of ops of the backward pass."""


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    activations: float,
    layers_ahead: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan; of the budget it knows nothing. O(uses log layers).

    Raises :class:`InputError` for a graph with gradients that does not name its backward pass.
    """
    residency = Plan(graph).residency(hardware.device_tier)
    space = space_below(graph, hardware, residency, read_placement(placement, hardware))
    saved = sorted(_saved(graph, layers_ahead), key=lambda a: (a.after, a.tensor))
    left = activations * sum([graph.tensors[a.tensor].size_bytes for a in saved])
    absences = []
    for absence in saved:
        left -= graph.tensors[absence.tensor].size_bytes
        tier = space.place(absence.tensor, absence.after) if left >= 0 else None
        if tier is not None:
            absences.append(absence._replace(tier=tier))
    return insert(graph, hardware, "saved_activations", absences)


def saved_gaps(graph: Graph) -> Iterator[Gap]:
    """The gaps of activations between their last use in the forward pass and their first one in the
    backward pass.

    Raises :class:`InputError` for a graph with gradients that does not name its backward pass.
    """
    later = [op.name.startswith(LATER) for op in graph.ops]
    if not any(later) and any([tensor.kind == "gradient" for tensor in graph.tensors]):
        raise InputError(
            "the backward pass is recognised by the names of its ops, and none of "
            f"{graph.name} begins with {BACKWARD!r}; longest_gap offloads activations by their gaps"
        )
    kept = [t for t, tensor in enumerate(graph.tensors) if tensor.kind == "activation"]
    for gap in between_uses(graph, kept):
        if later[gap.before] and not later[gap.after]:
            yield gap


def _saved(graph: Graph, ahead: int) -> Iterator[Absence]:
    """Where saved activations are away, in no tier yet."""
    tensors = graph.tensors
    weights = {t for t, tensor in enumerate(tensors) if tensor.kind in WEIGHTS and graph.users[t]}
    begins = [visit.first for visit in visits(graph, weights)]
    for gap in saved_gaps(graph):
        visit = bisect_right(begins, gap.before) - 1 - ahead
        back = begins[visit] - 1 if visit >= 0 else AT_START
        if back > gap.after:
            yield Absence(gap.tensor, gap.after, gap.before, gap.written, gap.after, back, "")
