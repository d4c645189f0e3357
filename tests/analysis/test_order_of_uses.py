"""The order of uses: beside a plain sort by what the tensors' uses are, on graphs whose lists are
shuffled.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from hosim.analysis import canonical, canonical_places
from hosim.graph import Graph, Op


def shuffled(graph: Graph, seed: int) -> Graph:
    """The graph with its tensors, and the lists of its ops, in another order."""
    rng = Random(seed)
    order = rng.sample(range(len(graph.tensors)), len(graph.tensors))
    place = {t: at for at, t in enumerate(order)}

    def moved(tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(rng.sample([place[t] for t in tensors], len(tensors)))

    ops = [
        replace(op, inputs=moved(op.inputs), outputs=moved(op.outputs), mutates=moved(op.mutates))
        for op in graph.ops
    ]
    return Graph(graph.name, tuple([graph.tensors[t] for t in order]), tuple(ops), graph.meta)


def by_uses(graph: Graph) -> list[str]:
    """The names of tensors by their uses, then by what they are: as the contract has it, one tensor
    at a time.
    """
    uses = [
        [
            (i, role)
            for i, op in enumerate(graph.ops)
            for role, listed in enumerate((op.inputs, op.outputs, op.mutates))
            if t in listed
        ]
        for t in range(len(graph.tensors))
    ]

    def key(t: int) -> tuple[object, ...]:
        tensor = graph.tensors[t]
        parts = [p for p, other in enumerate(graph.tensors) if tensor.of and other.of == tensor.of]
        whole = sorted([use for p in parts for use in uses[p]])
        what = tensor.size_bytes, tensor.kind, tensor.home or "", bool(tensor.persistent)
        return not uses[t], uses[t], *what, whole, tensor.name

    return [graph.tensors[t].name for t in sorted(range(len(graph.tensors)), key=key)]


@given(graphs(), st.integers(0, 99))
def test_tensors_come_in_the_order_of_their_uses_however_they_are_listed(
    graph: Graph, seed: int
) -> None:
    listed = shuffled(graph, seed)
    found = canonical(listed)
    assert [tensor.name for tensor in found.tensors] == by_uses(graph)
    assert found == canonical(graph)
    assert canonical(found) is found
    assert all([list(op.inputs) == sorted(op.inputs) for op in found.ops])
    places = canonical_places(listed)
    assert [tensor.name for tensor in found.tensors] == [
        name for _, name in sorted(zip(places, listed.tensor_index, strict=True))
    ]
    for before, after in zip(listed.ops, found.ops, strict=True):
        for one, other in zip(
            (before.inputs, before.outputs, before.mutates),
            (after.inputs, after.outputs, after.mutates),
            strict=True,
        ):
            assert {listed.tensors[t].name for t in one} == {found.tensors[t].name for t in other}
        bare = replace(before, inputs=(), outputs=(), mutates=(), deps=tuple(sorted(before.deps)))
        assert bare == replace(after, inputs=(), outputs=(), mutates=())


def test_ops_may_name_no_tensors_at_all() -> None:
    ops = Op("a", "any"), Op("b", "any"), Op("c", "any", deps=(1, 0))
    assert [op.deps for op in canonical(Graph("none", (), ops)).ops] == [(), (), (0, 1)]
