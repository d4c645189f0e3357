"""``layerwise``: streams tensors in lower tiers a layer ahead, double buffered: parameters, and
what else has its home there.

Source: weight offloading of vLLM (``--cpu-offload`` with prefetch) and of diffusers (group offload
with a stream), and parameter offload of ZeRO-3: while layer n computes, layer n +
``layers_ahead`` is copied up, and a layer's parameters are dropped when it has computed;
activations stay. A key-value cache or optimizer states with a home below are streamed with their
layers; what is at home in the device tier and of none of ``kinds`` stays.

Our reading: tensors of ``kinds`` start below, in the first tier with room, and end there; what the
step writes of what is streamed is stored back when its layer is left. A layer's prefetches are
issued when the layer ``layers_ahead`` before it begins. A layer is what tensor names say: the part
of the name up to its first number ("model.layers.7"), and between numbered layers what has no
number (the embedding, the head). What is no parameter and is used by an op together with one, as
optimizer states are, is of that one's layer. Where no two names share a layer, consecutive uses
form layers no larger than the largest tensor. Each return to a layer (backward, optimizer) is a
visit of its own. What the next ``layers_ahead`` visits use again stays.

Three systems are settings of it:

* ``zero_inference``: DeepSpeed ZeRO-Inference (R. Y. Aminabadi et al., DeepSpeed Inference, SC
  2022) has all weights below. A KV cache with a home below is streamed with its layers, unless the
  workload says that the attention runs there (``attention_on``), as the real one does with
  ``--kv-offload``.
* ``zero_offload``: ZeRO-Offload (J. Ren et al., ATC 2021) has the optimizer states below, and the
  parameters on the device. Where the workload says that the optimizer runs on the CPU
  (``optimizer_on``), the states stay below; each gradient is stored when the backward pass has made
  it, and each parameter comes back when the CPU has written it: 4 bytes a parameter over the link.
  The states of parameters that are updated on the device stay there (``optimizer_share``, the ratio
  of Twin-Flow). Where the optimizer runs on the device, the states come up and go back, 24 bytes a
  parameter for Adam in fp32 with master weights.
* ``swap_optimizer``: the optimizer swap of hyper-parallel (its issue 313 and pull request 982, on
  gitcode) and so of MindSpore 2.11 (its release notes) has the optimizer states below, in
  ``swap_times`` batches of about equal bytes in the order of their updates. When the update begins
  the first batch comes up. While one is updated the next one comes up, and the one before goes
  back. States below ``smallest`` stay (``min_numel``, of 4 bytes each).
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import itemgetter

from hosim.analysis import homes_below
from hosim.cache_plan import AT_START, Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import Absence, insert
from hosim.planner.schedule.tiers_below import (
    FASTEST,
    Placement,
    check_kind,
    read_placement,
    space_below,
)

WEIGHTS = ("parameter", "expert")
"""Kinds of tensors by which layers are told, and that are put below by default."""

_NUMBERED = re.compile(r"^(.*?(?:^|[._/\[-])[A-Za-z_]*\d+)(?=$|[._/\]-])")


@dataclass(frozen=True, slots=True)
class LayerVisit:
    """A run of ops ``first`` to ``last`` within one layer, and what they use of what is
    streamed.
    """

    first: int
    last: int
    tensors: frozenset[int]


_Use = tuple[object, int, list[int]]
"""A layer or batch, an op, and what that uses of it."""


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    layers_ahead: int,
    kinds: str = "/".join(WEIGHTS),
    placement: str = FASTEST,
) -> Plan:
    """The plan; of the budget it knows nothing. O(uses)."""
    return _streamed(graph, hardware, layers_ahead, kinds, placement, visits)


def _streamed(
    graph: Graph,
    hardware: Hardware,
    layers_ahead: int,
    kinds: str,
    placement: str,
    visits_to: Callable[[Graph, set[int]], list[LayerVisit]],
    smallest: int = 0,
) -> Plan:
    away = homes_below(graph, hardware)
    initial = put_below(
        graph, hardware, _kinds(kinds), read_placement(placement, hardware), smallest
    )
    persistent = set(graph.tensors.those(lambda tensor: tensor.persistent))
    streamed = {t for t in initial if t in persistent}
    streamed |= {t for t in away if graph.users[t]}
    visited = visits_to(graph, streamed)
    visits_of: dict[int, list[int]] = {t: [] for t in streamed}
    for v, visit in enumerate(visited):
        for t in visit.tensors:
            visits_of[t].append(v)
    absences = [
        a
        for t, mine in visits_of.items()
        for a in _absences(graph, t, visited, mine, layers_ahead, (initial.get(t) or away[t])[0])
    ]
    return insert(graph, hardware, "layerwise", absences, initial)


def put_below(
    graph: Graph,
    hardware: Hardware,
    kinds: Container[str],
    placement: Placement | None,
    smallest: int = 0,
) -> dict[int, tuple[str, ...]]:
    """The tiers of the tensors of these kinds that a plan starts below though the workload does
    not.
    """
    away = homes_below(graph, hardware)
    space = space_below(graph, hardware, away, placement)
    initial: dict[int, tuple[str, ...]] = {}
    movable = set(
        graph.tensors.those(lambda tensor: tensor.kind in kinds and tensor.size_bytes >= smallest)
    )
    for t in graph.initial:
        if t in movable and graph.users[t] and t not in away:
            tier = space.place(t, 0)
            if tier is not None:
                initial[t] = (tier,)
    return initial


def states_below(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    layers_ahead: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan of ``zero_offload``."""
    # planned around, updates on the CPU use no tensors (hosim.planner.schedule.forced_moves)
    on_cpu = any([op.kind == "optimizer" and not op.uses for op in graph.ops])
    return plan(
        graph,
        hardware,
        budget_bytes,
        layers_ahead=layers_ahead,
        kinds="" if on_cpu else "optimizer_state",
        placement=placement,
    )


def swapped_states(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    swap_times: int,
    smallest: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan of ``swap_optimizer``."""
    if swap_times < 1:
        raise InputError(
            f"expected a whole number of at least 1, got {swap_times}",
            where="policy swap_optimizer: swap_times",
        )

    def batches(graph: Graph, streamed: set[int]) -> list[LayerVisit]:
        return _batches(graph, streamed, swap_times)

    return _streamed(graph, hardware, 1, "optimizer_state", placement, batches, smallest)


def _batches(graph: Graph, streamed: set[int], times: int) -> list[LayerVisit]:
    """The ops that use what is streamed, in so many runs of about equal bytes. An empty visit at the
    first op comes before them: a batch comes up when the visit before its own begins.
    """
    sizes = {t: graph.tensors[t].size_bytes for t in streamed}
    total = sum(sizes.values())
    numbered: list[_Use] = []
    seen: set[int] = set()
    before = 0
    for i, op in enumerate(graph.ops):
        used = [t for t in op.uses if t in streamed]
        if used:
            numbered.append((before * times // max(1, total), i, used))
            before += sum([sizes[t] for t in set(used) - seen])
            seen.update(used)
    batches = _runs(numbered)
    return [*[LayerVisit(v.first, v.first, frozenset()) for v in batches[:1]], *batches]


def _runs(uses: Iterable[_Use]) -> list[LayerVisit]:
    """A visit for each run of uses of one layer or batch."""
    found = []
    for _, run in groupby(uses, key=itemgetter(0)):
        _, ops, used = zip(*run, strict=True)
        found.append(LayerVisit(ops[0], ops[-1], frozenset(chain(*used))))
    return found


def _kinds(text: str) -> frozenset[str]:
    """The kinds of tensors that a parameter lists; raises :class:`InputError` for one that there is
    not.
    """
    kinds = frozenset(filter(None, text.split("/")))
    for kind in sorted(kinds):
        check_kind(kind, "kinds")
    return kinds


def _absences(
    graph: Graph, t: int, visited: Sequence[LayerVisit], mine: Sequence[int], ahead: int, tier: str
) -> Iterator[Absence]:
    """Yield where tensor ``t`` is away: before its first visit, between visits further apart than
    ``ahead``, and after its last one.
    """
    users, end = graph.users[t], len(graph.ops)
    yield Absence(t, AT_START, users[0], AT_START, AT_START, _begin(visited, mine[0] - ahead), tier)
    for v, w in pairwise(mine):
        after = users[bisect_right(users, visited[v].last) - 1]
        before = users[bisect_left(users, visited[w].first)]
        if w - v > ahead and before - after > 1:
            yield Absence(
                t,
                after,
                before,
                visited[v].last,
                visited[v].last,
                max(_begin(visited, w - ahead), visited[v].last),
                tier,
            )
    if graph.survives[t]:
        yield Absence(t, users[-1], end, users[-1], users[-1], end, tier)


def _begin(visited: Sequence[LayerVisit], v: int) -> int:
    """The op at whose end visit ``v`` begins."""
    return visited[v].first - 1 if v >= 0 else AT_START


def visits(graph: Graph, streamed: set[int]) -> list[LayerVisit]:
    """The runs of ops within one layer, in listed order."""
    layers = layers_of(graph, streamed)
    uses: list[_Use] = []
    for i, op in enumerate(graph.ops):
        by_layer: dict[str, list[int]] = {}
        for t in op.uses:
            if t in streamed:
                by_layer.setdefault(layers[t], []).append(t)
        uses += [(layer, i, used) for layer, used in by_layer.items()]
    return _runs(uses)


def layers_of(graph: Graph, streamed: set[int]) -> Mapping[int, str]:
    """The layer of each streamed tensor, by name or, where no name has a number, by consecutive
    uses.
    """
    beside = _beside_weights(graph, streamed)
    layers = _layers_of_their_own(graph, streamed - beside.keys())
    return {**layers, **{t: layers[weight] for t, weight in beside.items()}}


def _beside_weights(graph: Graph, streamed: set[int]) -> Mapping[int, int]:
    """Of streamed tensors that are no weights, a streamed weight that an op uses together with
    them.
    """
    found: dict[int, int] = {}
    every_weight = set(graph.tensors.those(lambda tensor: tensor.kind in WEIGHTS))
    if streamed <= every_weight:
        return found
    for op in graph.ops:
        mine = [t for t in op.uses if t in streamed]
        weights = [t for t in mine if t in every_weight]
        if weights and len(weights) < len(mine):
            rest = [t for t in mine if t not in every_weight and t not in found]
            found.update(dict.fromkeys(rest, weights[0]))
    return found


def _layers_of_their_own(graph: Graph, streamed: set[int]) -> Mapping[int, str]:
    """The layer of each by name, or by consecutive uses."""
    names = {t: _NUMBERED.match(graph.tensors.names[t]) for t in streamed}
    numbered = {t: match[1] for t, match in names.items() if match}
    if len(set(numbered.values())) < len(numbered):
        return _by_name(graph, numbered, streamed)
    return _by_use(graph, streamed)  # no name has a number, or each has its own


def _by_name(graph: Graph, numbered: Mapping[int, str], streamed: set[int]) -> Mapping[int, str]:
    """Numbered tensors by their prefix; the others by the numbered layer that the ops before their
    first use are in.
    """
    layers = dict(numbered)
    current = ""
    for op in graph.ops:
        for t in op.uses:
            if t in streamed and t not in layers:
                layers[t] = f"{current}+"
            if t in numbered:
                current = numbered[t]
    return layers


def _by_use(graph: Graph, streamed: set[int]) -> Mapping[int, str]:
    """Layers filled in the order of first uses, none larger than the largest tensor."""
    sizes = {t: graph.tensors[t].size_bytes for t in streamed}
    most = max(sizes.values(), default=0)
    layers: dict[int, str] = {}
    number = held = 0
    for t in sorted(streamed, key=lambda t: (graph.users[t][0], t)):
        if held and held + sizes[t] > most:
            number, held = number + 1, 0
        held += sizes[t]
        layers[t] = str(number)
    return layers
