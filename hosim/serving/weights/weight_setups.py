"""Weights of a served model as a policy plans them: once, for an iteration in which all that run
decode.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hosim.analysis.costmodel import op_durations
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.policies import Policy
from hosim.policies.own import WEIGHTS, layers_of, visits
from hosim.serving.block_gate import is_gate
from hosim.serving.blocks import KvSetup, engines_per_host
from hosim.serving.modelled_iterations import ATTENTION, COUNTS, ModelledIterations, is_head
from hosim.serving.requests import Request
from hosim.serving.scheduler import EngineLimits, Iteration
from hosim.serving.weights.weight_program import weight_program
from hosim.serving.weights.weight_stream import WeightSetup
from hosim.units import human_size

# -- weight layers
# --------------------------------------------------------------------------------------------------
# The weights of a served model by layer, and which part of an iteration's time each layer takes.

_PROMPT = 16
"""Tokens of a prompt that shows which weights there are."""


class _VisitParts(NamedTuple):
    """The parts of an iteration in the visits of layers: nanoseconds of most kernels, how many
    attentions, how many heads.
    """

    dense_ns: tuple[int, ...]
    attentions: tuple[int, ...]
    heads: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class WeightLayers:
    """The layers of ``modelled``, as names say them: a layer's weights move together.

    An iteration visits layers one after the other. A layer that is visited twice, such as an
    embedding that is the head as well, has one copy.
    """

    modelled: ModelledIterations
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    reads: tuple[int, ...]
    """The layer of each visit, by position."""
    _parts: dict[int, _VisitParts] = field(default_factory=dict, repr=False)

    @property
    def beside_bytes(self) -> int:
        """Bytes of what is not moved: constants."""
        return self.modelled.weight_bytes - sum(self.sizes)

    def parts_ns(self, iteration: Iteration) -> Sequence[int]:
        """The part that each visit has of an iteration, by the cost model; ops before the first one
        count as its own.
        """
        count = next((count for count in COUNTS if count >= iteration.tokens), COUNTS[-1])
        if count not in self._parts:
            self._parts[count] = self._of_graph(self.modelled.graph(count))
        parts = self._parts[count]
        dense, attention = (
            self.modelled.dense_ns(iteration.tokens),
            self.modelled.attention_ns(iteration),
        )
        shared = zip(
            _share(dense, parts.dense_ns),
            _share(attention, parts.attentions),
            _share(self.modelled.head_ns(iteration), parts.heads),
            strict=True,
        )
        return [sum(of_visit) for of_visit in shared]

    def graph(self, iteration: Iteration) -> Graph:
        """An iteration to plan for: an op for each visit, which reads the layer."""
        builder = GraphBuilder(self.modelled.name)
        for name, size in zip(self.names, self.sizes, strict=True):
            builder.tensor(name, size, "parameter")
        for number, (layer, took) in enumerate(
            zip(self.reads, self.parts_ns(iteration), strict=True)
        ):
            builder.op(
                f"{self.names[layer]}#{number}",
                "matmul",
                inputs=[self.names[layer]],
                duration_ns=took,
            )
        return builder.build()

    def _of_graph(self, graph: Graph) -> _VisitParts:
        firsts = [visit.first for visit in visits(graph, _weights(graph))]
        dense, attentions, heads = ([0] * len(firsts) for _ in range(3))
        for number, (op, took) in enumerate(
            zip(graph.ops, op_durations(graph, self.modelled.hardware), strict=True)
        ):
            visit = max(0, bisect_left(firsts, number + 1) - 1)
            if op.kernel in ATTENTION:
                attentions[visit] += 1
            elif is_head(op):
                heads[visit] += 1
            elif not is_gate(op):  # that is a part of attention's time
                dense[visit] += took
        return _VisitParts(tuple(dense), tuple(attentions), tuple(heads))


def weight_layers(modelled: ModelledIterations) -> WeightLayers:
    """The layers of a model: what names say up to their first number, and between these what has
    none (the embedding, the head).
    """
    graph = modelled.graph(_PROMPT)
    weights = _weights(graph)
    layers = layers_of(graph, weights)
    sizes: Counter[str] = Counter()
    names: dict[str, str] = {}
    for t in sorted(weights, key=lambda t: (graph.users[t][0], t)):
        sizes[layers[t]] += graph.tensors[t].size_bytes
        first = graph.tensors[t].name  # what has no number is called after its first weight
        names.setdefault(layers[t], layers[t] if first.startswith(f"{layers[t]}.") else first)
    places = list(sizes)
    reads = [places.index(layers[min(visit.tensors)]) for visit in visits(graph, weights)]
    return WeightLayers(
        modelled, tuple(names[layer] for layer in places), tuple(sizes.values()), tuple(reads)
    )


def _weights(graph: Graph) -> set[int]:
    """Return the tensors that policies move: parameters and experts that some op uses."""
    return {
        t for t, tensor in enumerate(graph.tensors) if tensor.kind in WEIGHTS and graph.users[t]
    }


def _share(whole: int, weights: Sequence[int]) -> list[int]:
    """A time divided by weights, to nanoseconds below."""
    total = sum(weights)
    return [whole * weight // total if total else 0 for weight in weights]


def weight_setup(
    policy: Policy,
    parameters: Mapping[str, Any],
    label: str,
    modelled: ModelledIterations,
    usual: Iteration,
    budget_bytes: int,
    engines: int = 1,
) -> WeightSetup:
    """Weights of engines that a policy plans within ``budget_bytes`` of each device, for iterations
    such as ``usual``.

    Of what engines share, it plans with a fair share. Raises :class:`InputError` for a policy that
    cannot, and :class:`InfeasibleError` where it finds no plan that fits.
    """
    layers = weight_layers(modelled)
    room = budget_bytes - layers.beside_bytes
    if room < 1:
        raise InfeasibleError(
            f"constants of {human_size(layers.beside_bytes)} do not fit in the "
            f"{human_size(budget_bytes)} for weights"
        )
    every = joined_tiers(replace(modelled.hardware, devices=modelled.devices * engines))
    plan = policy.plan(layers.graph(usual), every, room, **parameters)
    machine = replace(modelled.hardware, devices=modelled.devices)
    return WeightSetup(
        label,
        machine,
        weight_program(plan, every, room),
        layers.parts_ns,
        modelled.beside_ns,
        layers.beside_bytes,
        engines_per_host(modelled.hardware, modelled.devices),
    )


def joined_tiers(machine: Hardware) -> Hardware:
    """The machine with the tiers from which a channel leads to the device, so that policies put
    weights nowhere else.
    """
    device = machine.device_tier
    tiers = tuple(
        tier
        for tier in machine.tiers
        if tier.name == device or (tier.name, device) in machine.channel_between
    )
    names = {tier.name for tier in tiers}
    kept = [
        channel for channel in machine.channels if {channel.source, channel.destination} <= names
    ]
    left = {channel.name for channel in kept}
    return replace(
        machine,
        tiers=tiers,
        channels=tuple(
            replace(one, beside=tuple(pair for pair in one.beside if pair[0] in left))
            for one in kept
        ),
        fabrics=tuple(
            replace(one, channels=tuple(name for name in one.channels if name in left))
            for one in machine.fabrics
        ),
    )


def usual_iteration(requests: Sequence[Request], limits: EngineLimits) -> Iteration:
    """As many sequences as can run decode, each with the mean of the keys that requests have
    half-way through their answers.
    """
    running = min(len(requests), limits.max_sequences, limits.token_budget)
    keys = sum(request.prompt_tokens + request.output_tokens // 2 for request in requests) // len(
        requests
    )
    return Iteration((), running, running * keys, ())


def check_beside_cache(weights: WeightSetup, kv: KvSetup, engines: int) -> None:
    """Raise :class:`InputError` where tiers have no room for weights and cache, or layers of an
    iteration wait for the cache too.
    """
    if kv.layers > 1:
        raise InputError(
            "layers of the cache that come up with moved weights are not modelled: leave out "
            "loading=layers",
            source="kv",
        )
    if kv.reads is not None:
        raise InputError(
            "blocks that attention chooses are not modelled beside moved weights: leave out sparse",
            source="kv",
        )
    machine = kv.machine
    for name, blocks in kv.tiers:
        one = {"device": 1, "host": min(engines, weights.per_host or engines), "global": engines}[
            machine.tier_scope(name)
        ]
        held = machine.devices * one * weights.program.below.get(name, 0)
        cache = machine.devices * blocks * kv.block_bytes
        whole = machine.tiers[machine.tier_index[name]].capacity_bytes
        if held and held + cache > whole:
            raise InputError(
                f"weights take {human_size(held)} of {name}, and the cache {human_size(cache)}, "
                f"but {machine.name} has "
                f"{human_size(whole)}: give the cache less, as in "
                f"tiers={name}={(whole - held) // 10**9}GB",
                source="kv",
                where="tiers",
            )
