"""The weights of a served model by layer, and which part of an iteration's time each layer
takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hosim.costmodel import op_durations
from hosim.graph import Graph, GraphBuilder
from hosim.policies.own import WEIGHTS, layers_of, visits
from hosim.serving.block_gate import is_gate
from hosim.serving.modelled_iterations import ATTENTION, COUNTS, ModelledIterations, is_head
from hosim.serving.scheduler import Iteration

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
        head = self.modelled.head_ns(iteration)
        shared = zip(
            _share(dense, parts.dense_ns),
            _share(attention, parts.attentions),
            _share(head, parts.heads),
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
