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

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from hosim.analysis import Gap, static_curve
from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START, Plan
from hosim.edits import BACKWARD, RECOMPUTE
from hosim.engine import verdict
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import Absence, between_uses, insert
from hosim.planner.schedule.tiers_below import FASTEST, TierSpace, read_placement, space_below
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
    space = _space(graph, hardware, placement)
    saved = sorted(_saved(graph, layers_ahead), key=lambda a: (a.after, a.tensor))
    left = activations * sum([graph.tensors[a.tensor].size_bytes for a in saved])
    absences = []
    for absence in saved:
        left -= graph.tensors[absence.tensor].size_bytes
        tier = space.place(absence.tensor, absence.after) if left >= 0 else None
        if tier is not None:
            absences.append(absence._replace(tier=tier))
    return insert(graph, hardware, "saved_activations", absences)


def _space(graph: Graph, hardware: Hardware, placement: str) -> TierSpace:
    """The room below, with all tensors at home."""
    residency = Plan(graph).residency(hardware.device_tier)
    return space_below(graph, hardware, residency, read_placement(placement, hardware))


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


# -- pipeline swap
# --------------------------------------------------------------------------------------------------
# ``pipeline_swap``: what a micro-batch saves in a pipeline stage is offloaded where enough passes of
# others lie between its forward and its backward pass.
#
# The activation swap of MindSpore and hyper-parallel under a pipeline schedule (hyper-parallel's issue
# 280 and ``hyper_parallel/core/pipeline_parallel``, ``MIN_SWAP_GAP``): the passes of a stage count one
# each, in their order. Where the backward pass comes ``least_gap`` passes after the forward pass or
# later,
#
# - the copies down begin when the forward pass has ended;
# - the pass after that releases the device's memory at its end;
# - the copies up begin before the last pass that lies between.
#
# Elsewhere everything stays, and so does what stages send each other. In those runtimes users wrap the
# modules whose activations move; here all that is saved moves.
#
# Our reading: a pass is a run of ops whose names say one micro-batch and one direction, as those of
# builders do (``micro0.``, ``backward.micro0.``); recomputing counts to the backward pass. A copy
# begins when the ops before it have ended. Copies of both directions on one stream are the machine's
# (``queue`` of its channels).
#
# Not modelled: that the outputs of the last stage stay on the device.


_MICRO_BATCH = re.compile(r"micro\d+\.")


def pipeline_swap(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    least_gap: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan; of the budget it knows nothing. O(ops + uses).

    Raises :class:`InputError` for a graph with gradients that does not name its backward pass, and
    for a ``least_gap`` below 2: nothing lies between such passes.
    """
    if least_gap < 2:
        raise InputError(
            f"expected a whole number of at least 2, got {least_gap}",
            where="policy pipeline_swap: least_gap",
        )
    space = _space(graph, hardware, placement)
    runs, run_of = _passes(graph)
    sent = {t for op in graph.ops if op.message for t in op.uses}
    absences = []
    for gap in saved_gaps(graph):
        if gap.tensor in sent or gap.after not in run_of or gap.before not in run_of:
            continue
        forward, backward = run_of[gap.after], run_of[gap.before]
        if backward - forward < least_gap:
            continue
        down, release = runs[forward][-1], runs[forward + 1][-1]
        tier = space.place(gap.tensor, down)
        if tier is not None:
            up = max(runs[backward - 2][-1], release)
            absences.append(Absence(gap.tensor, gap.after, gap.before, down, release, up, tier))
    return insert(graph, hardware, "pipeline_swap", absences)


def _passes(graph: Graph) -> tuple[list[list[int]], dict[int, int]]:
    """The ops of each pass of a micro-batch, in the order of the passes, and the pass of each op.

    Without micro-batches there are none: the step is one.
    """
    of: list[tuple[int, tuple[bool, str]]] = []
    for i, op in enumerate(graph.ops):
        found = _MICRO_BATCH.search(op.name)
        if found is not None and op.stream == graph.main_stream:
            of.append((i, (op.name.startswith(LATER), found[0])))
    runs = [[i for i, _ in run] for _, run in groupby(of, key=lambda pair: pair[1])]
    return runs, {i: at for at, run in enumerate(runs) for i in run}


# -- deepcompile
# --------------------------------------------------------------------------------------------------
# ``deepcompile``: what the forward pass saves for the backward pass is offloaded, all of it at first,
# and the largest of it stays as far as the peak then leaves room.
#
# DeepSpeed's DeepCompile (M. Tanaka et al., arXiv 2504.09983) with ``offload_activation``, as
# ``deepspeed/compile/passes/offload_activation.py`` of DeepSpeed 0.19.8 has it (pull request 8255):
#
# - what may move is a saved activation of 5 MiB or more;
# - the *floor* is the peak with all of them moved. Largest first, each one that fits into what the
#   floor leaves of the budget less the margin stays on the device. Where all fit, nothing moves;
# - a copy down begins after the last use in the forward pass;
# - a copy up goes back from its first use in the backward pass, op by op, until the ops passed take
#   as long as the copy, or until the peak at the op, what comes up before and this tensor exceed the
#   budget less the margin. Where the peaks of the backward pass could not be measured, as it ran out
#   of memory, each comes up just before its first use.
#
# Our reading: the floor is the peak of a replay with everything moved. Peaks of ops are those with
# everything resident, since a profile of the backward pass has all that is saved as its inputs. The
# backward pass is told as in :mod:`hosim.policies.own.saved_activations`, and times of ops and the
# link are the profile's.
#
# Not modelled: the compute stream's wait for each copy down; a margin measured as what the allocator
# holds unused (10 to 25 %); other passes of DeepCompile.


def deepcompile(
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
    space = _space(graph, hardware, placement)
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
    return insert(graph, hardware, "deepcompile", away)


def _floor(graph: Graph, hardware: Hardware, budget_bytes: int, moved: Sequence[Absence]) -> int:
    """The peak with everything moved; all of the budget where it does not fit even then."""
    try:
        result = verdict(insert(graph, hardware, "deepcompile", moved), hardware, budget_bytes)
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
