"""``hybrid``: a static plan for the backbone, runtime decisions for what routing decides.

What a gate chooses is unknown when a plan is made. So the tensors of conditional experts
(:mod:`hosim.data.expert_routing`) are left out of it: they start below, ``cache_bytes`` of the
device tier are set apart for them, and ``hyperoffload`` plans the graph without them in what
remains. Where everything fits, nothing is dynamic either. While the step runs,
:mod:`hosim.planner.schedule.experts.expert_cache` fetches and evicts them in that cache: what is predicted
before the gate has decided, what was mispredicted when it has. The machine's inspection time is
spent at these decisions only.

Source: the "hybrid approach" of the HyperOffload description, for graphs with data-dependent
control flow: static scheduling for the fixed backbone, runtime scheduling for dynamic branches. A
graph without routing has nothing dynamic: its plan is ``hyperoffload``'s.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hosim.analysis import homes_below, static_peak
from hosim.cache_plan import AT_START, PREFETCH, CacheOp, Plan
from hosim.data.expert_routing import Routed, routed
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.notes import CLAIRVOYANT, KNEW, ON_DEMAND, Note
from hosim.planner import hyperoffload
from hosim.planner.schedule.experts import (
    HOTTEST,
    KEEPS,
    LFU,
    LRU,
    PREDICTORS,
    ExpertCache,
    ExpertTable,
    Fetch,
    Rule,
    expert_table,
    hottest,
)
from hosim.planner.schedule.tiers_below import (
    FASTEST,
    PLANNED,
    Placement,
    planned_placement,
    route,
    space_below,
)
from hosim.policies.own.hyperoffload import plan as plan_all
from hosim.result import Result, Timeline
from hosim.units import human_size

__all__ = ["Deciding", "plan"]


@dataclass(frozen=True)
class Deciding:
    """The dynamic part of a plan: makes the
    :class:`~hosim.planner.schedule.experts.expert_cache.ExpertCache` of each replay.

    A replay appends what it prefetches to ``fetches``.
    """

    table: ExpertTable
    rule: Rule
    fetches: list[Fetch] | None = None

    def __call__(self) -> ExpertCache:
        """An empty cache."""
        return ExpertCache(self.table, self.rule, self.fetches)


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    cache_bytes: int | None,
    predictor: str,
    top: int | None,
    hit_rate: float = 1.0,
    seed: int = 0,
    keeps: str = LRU,
    placement: str = PLANNED,
) -> Plan:
    """The plan; its ``runtime`` is a :class:`Deciding`.

    Without ``cache_bytes`` the cache is what the backbone leaves when nothing of it moves, but at
    least twice what the largest decision chooses (what is used, and what comes), or where that
    leaves too little for the backbone, once, or what the largest op uses. Experts and blocks of a
    cache without a home below live in the fastest tier with room, unless ``placement`` names
    another rule, which is the backbone's, too. With ``keeps`` "hottest" as much of the cache as the
    largest decision does not need holds the experts that are chosen most often, from the start to
    the end. Raises
    :class:`InfeasibleError` where the backbone does not fit beside the cache, :class:`InputError`
    for a value that a parameter has not.
    """
    _check(predictor, keeps, hit_rate)
    decides = Rule(predictor, top, False, hit_rate, seed, keeps)
    rule, dynamic = planned_placement(placement, hardware), routed(graph)
    if (
        dynamic is None
        or not dynamic.marked
        or (cache_bytes is None and _all_fits(graph, dynamic, hardware, budget_bytes))
    ):
        return plan_all(
            graph,
            hardware,
            budget_bytes,
            seed=0,
            reorder=None,
            recompute=None,
            placement=placement,
        )
    homes = _homes(graph, dynamic, hardware, rule or Placement(FASTEST))
    backbone, sizes = _backbone(graph, homes), _sizes(graph, dynamic)
    refused: InfeasibleError | None = None
    for cache in (
        [cache_bytes]
        if cache_bytes is not None
        else _caches(static_peak(backbone, hardware.device_tier).bytes, sizes, budget_bytes)
    ):
        _check_cache(cache, sizes.op)
        try:
            found = _beside(cache, backbone, hardware, budget_bytes, rule)
        except InfeasibleError as error:
            refused = error
            continue
        result = replay(found, hardware, budget_bytes - cache, record=True)
        hot = (
            hottest(
                dynamic, {t: graph.tensors[t].size_bytes for t in homes}, cache - sizes.decision
            )
            if keeps == HOTTEST
            else ()
        )
        hops = {t: route(hardware, [tier], hardware.device_tier) for t, tier in homes.items()}
        kept = expert_table(graph, dynamic, cache, hardware.device_tier, hops, hot)
        return _with_experts(found, result, homes, Deciding(kept, decides))
    assert refused is not None
    raise refused


def _check_cache(cache_bytes: int, used_bytes: int) -> None:
    if cache_bytes < used_bytes:
        raise InfeasibleError(
            f"an op uses {human_size(used_bytes)} ({used_bytes} B) of experts, which the cache of "
            f"{human_size(cache_bytes)} cannot hold: give hybrid cache_bytes of at least that"
        )


def _beside(
    cache_bytes: int, backbone: Graph, hardware: Hardware, budget_bytes: int, rule: Placement | None
) -> Plan:
    """The plan of the backbone in what the cache leaves. Raises :class:`InfeasibleError`."""
    left = budget_bytes - cache_bytes
    try:
        return hyperoffload.search(backbone, hardware, left, placement=rule).plan
    except InfeasibleError as error:
        beside = f"beside a cache of {human_size(cache_bytes)} for experts"
        message = f"{beside}, the backbone does not fit: {error}"
        raise InfeasibleError(message, report=error.report) from None


def _with_experts(
    backbone: Plan, result: Result, homes: Mapping[int, str], decides: Deciding
) -> Plan:
    """The plan of the backbone, as it was replayed, with the experts and who decides about them."""
    assert result.timeline is not None
    table = decides.table
    cache_ops = as_started(backbone, result.timeline, table.device)
    there = {t: (table.device, tier) if t in table.hot else (tier,) for t, tier in homes.items()}
    return Plan(
        table.graph,
        "hybrid",
        tuple(cache_ops),
        {**backbone.initial, **there},
        decides,
        notes=(str(Note(KNEW, _knew(decides.rule, table))),),
    )


def _check(predictor: str, keeps: str, hit_rate: float) -> None:
    for key, value, known in (("predictor", predictor, PREDICTORS), ("keeps", keeps, KEEPS)):
        if value not in known:
            raise InputError(
                f"expected one of {', '.join(known)}, got {value!r}", where=f"policy hybrid: {key}"
            )
    if hit_rate > 1:
        raise InputError(
            f"expected a share from 0 to 1, got {hit_rate:g}", where="policy hybrid: hit_rate"
        )


def _knew(rule: Rule, table: ExpertTable) -> str:
    """Return a text on what the plan knows of what gates choose, and when; and on what stays in the
    cache.
    """
    by = {
        "previous": "each gate's last choice, as a guess at its next one (predicted: previous)",
        "popular": "each gate's most frequent choices so far, as a guess at its next one "
        "(predicted: popular)",
        "none": ON_DEMAND,
        "perfect": CLAIRVOYANT,
        "predicted": f"{rule.hit_rate:.0%} of what each gate chooses before it does, drawn with "
        f"seed {rule.seed} (predicted)",
    }[rule.predictor]
    if rule.keeps != HOTTEST:
        return (
            f"{by}; "
            f"{'the least frequently used' if rule.keeps == LFU else 'the least recently used'} "
            "give way"
        )
    size = human_size(sum([table.graph.tensors[t].size_bytes for t in table.hot]))
    trace = "the steps before" if table.routed.history else "these very steps, which no run knows"
    return (
        f"{by}; {size} of the experts that were chosen most often stay, counted over {trace} "
        "(hottest)"
    )


def _all_fits(graph: Graph, dynamic: Routed, hardware: Hardware, budget_bytes: int) -> bool:
    """Return whether no expert lives below, and none has to."""
    device = hardware.device_tier
    return (
        all([graph.tensors[t].home in (None, device) for t in dynamic.marked])
        and static_peak(graph, device).bytes <= budget_bytes
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of experts: of all, of the largest decision, and of the op that uses most."""

    total: int
    decision: int
    op: int


def _sizes(graph: Graph, dynamic: Routed) -> _Sizes:
    by_op: dict[int, int] = {}
    for visit in dynamic.visits:
        for t, users in visit.uses.items():
            for i in users:
                by_op[i] = by_op.get(i, 0) + graph.tensors[t].size_bytes
    decisions = [sum(graph.tensors[t].size_bytes for t in visit.uses) for visit in dynamic.visits]
    total = sum(graph.tensors[t].size_bytes for t in dynamic.marked)
    return _Sizes(total, max(decisions, default=0), max(by_op.values(), default=0))


def _caches(backbone_bytes: int, sizes: _Sizes, budget: int) -> Iterator[int]:
    """Sizes of the cache to try, the largest first; ``backbone_bytes`` is the peak of everything
    else with nothing moved.
    """
    left = budget - backbone_bytes
    ample = min(sizes.total, 2 * sizes.decision)
    yield from sorted(
        {max(ample, min(left, sizes.total)), ample, sizes.decision, sizes.op}, reverse=True
    )


def _homes(graph: Graph, dynamic: Routed, hardware: Hardware, rule: Placement) -> dict[int, str]:
    """The tier below in which each expert's tensor lives: its home if that is one, else the first
    with room by the rule.
    """
    initial = homes_below(graph, hardware)
    space = space_below(graph, hardware, initial, rule)
    homes: dict[int, str] = {}
    for t in dynamic.marked:
        tier = initial[t][0] if t in initial else space.place(t, 0)
        if tier is None:
            raise InfeasibleError(
                f"no tier below {hardware.device_tier} of {hardware.name} has room for expert tensor "
                f"{graph.tensors[t].name!r}"
            )
        homes[t] = tier
    return homes


def _backbone(graph: Graph, homes: dict[int, str]) -> Graph:
    """The graph in which no op uses an expert's tensor: same positions, same durations."""
    tensors = tuple(
        [
            replace(tensor, home=homes[t]) if t in homes else tensor
            for t, tensor in enumerate(graph.tensors)
        ]
    )
    ops = tuple(
        [replace(op, inputs=tuple([t for t in op.inputs if t not in homes])) for op in graph.ops]
    )
    return Graph(graph.name, tensors, ops, graph.meta)


def as_started(plan: Plan, timeline: Timeline, device: str) -> list[CacheOp]:
    """The plan's cache ops, each prefetch issued no earlier than by the last op that had ended when
    it started.

    In its own replay that changes nothing. Beside the cache of experts, a prefetch that waited for
    memory would find the experts' free, and an expert that an op waits for would find none: the
    backbone must keep to what it held.
    """
    graph, ends = plan.graph, timeline.op_end_ns
    queues = {
        name: [i for i, op in enumerate(graph.ops) if op.stream == name] for name in graph.streams
    }
    started = {x.cache_op: x.start_ns for x in timeline.transfers}
    moved: list[CacheOp] = []
    for k, cache_op in enumerate(plan.cache_ops):
        users = [i for i in graph.users[cache_op.tensor] if i > cache_op.after]
        if (
            cache_op.op == PREFETCH
            and cache_op.destination == device
            and k in started
            and (users or cache_op.after != AT_START)
        ):
            queue = queues[
                graph.ops[users[0] if cache_op.after == AT_START else cache_op.after].stream
            ]
            place = bisect_right(queue, started[k], key=lambda i: ends[i]) - 1
            if place >= 0 and cache_op.after < queue[place] < (users[0] if users else len(ends)):
                cache_op = replace(cache_op, after=queue[place])
        moved.append(cache_op)
    # those of one op in the order in which they started
    return [
        moved[k]
        for k in sorted(
            range(len(moved)), key=lambda k: (moved[k].after, plan.cache_ops[k].after, k)
        )
    ]
