"""``pipeline_swap``: what a micro-batch saves in a pipeline stage is offloaded where enough passes of
others lie between its forward and its backward pass.

The activation swap of MindSpore and hyper-parallel under a pipeline schedule (hyper-parallel's issue
280 and ``hyper_parallel/core/pipeline_parallel``, ``MIN_SWAP_GAP``): the passes of a stage count one
each, in their order. Where the backward pass comes ``least_gap`` passes after the forward pass or
later,

- the copies down begin when the forward pass has ended;
- the pass after that releases the device's memory at its end;
- the copies up begin before the last pass that lies between.

Elsewhere everything stays, and so does what stages send each other. In those runtimes users wrap the
modules whose activations move; here all that is saved moves.

Our reading: a pass is a run of ops whose names say one micro-batch and one direction, as those of
builders do (``micro0.``, ``backward.micro0.``); recomputing counts to the backward pass. A copy
begins when the ops before it have ended. Copies of both directions on one stream are the machine's
(``queue`` of its channels).

Not modelled: that the outputs of the last stage stay on the device.
"""

from __future__ import annotations

import re
from itertools import groupby

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import Absence, insert
from hosim.planner.schedule.tiers_below import FASTEST, read_placement, space_below
from hosim.policies.own.saved_activations import LATER, saved_gaps

_MICRO_BATCH = re.compile(r"micro\d+\.")


def plan(
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
    residency = Plan(graph).residency(hardware.device_tier)
    space = space_below(graph, hardware, residency, read_placement(placement, hardware))
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
