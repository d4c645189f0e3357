"""Names of tensors and their order in the file say nothing: no verdict, metric or fingerprint
changes with them.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from gate_toys import machine, put, step
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from hosim.analysis import canonical, graph_fingerprint
from hosim.cache_plan import Plan
from hosim.gate import Case, Suite, check, write
from hosim.gate.judged_metrics import SAME
from hosim.graph import Graph


def shuffled(graph: Graph, seed: int, rename: bool = True) -> Graph:
    """The graph with its tensors in another order, each op's lists too, and, if asked for, other
    names of all tensors.
    """
    draw = random.Random(seed)
    order = list(range(len(graph.tensors)))
    draw.shuffle(order)
    new = {t: i for i, t in enumerate(order)}

    def moved(tensors: tuple[int, ...]) -> tuple[int, ...]:
        listed = [new[t] for t in tensors]
        draw.shuffle(listed)
        return tuple(listed)

    ops = tuple(
        replace(op, inputs=moved(op.inputs), outputs=moved(op.outputs), mutates=moved(op.mutates))
        for op in graph.ops
    )
    tensors = [
        replace(graph.tensors[t], name=f"t{new[t]}" if rename else graph.tensors[t].name)
        for t in order
    ]
    return Graph(graph.name, tuple(tensors), ops)


@given(graphs(), st.integers(0, 99))
def test_the_canonical_graph_is_the_same_from_any_order(graph: Graph, seed: int) -> None:
    one, other = canonical(graph), canonical(shuffled(graph, seed))
    nameless = [tuple(replace(t, name="") for t in g.tensors) for g in (one, other)]
    assert nameless[0] == nameless[1]
    assert one.ops == other.ops
    assert graph_fingerprint(one) == graph_fingerprint(other)


def test_a_field_of_ops_that_came_later_counts_where_it_says_something() -> None:
    """An op without it has the fingerprint that it had before there was one, in hosim 0.1."""
    graph = replace(step(), ops=step().ops[:1])
    later = {"kernel": "k", "sizes": (3,), "processor": "ddr", "also_on": (("ddr", None),)}
    changed = [
        replace(graph, ops=(replace(graph.ops[0], **{name: value}),))
        for name, value in later.items()
    ]
    assert len({graph_fingerprint(one) for one in (graph, *changed)}) == 5
    assert graph_fingerprint(graph) == "645561303bd39ac1"


@pytest.mark.parametrize(
    "policy",
    [
        "resident",
        "hyperoffload",
        "belady",
        "longest_gap",
        "on_demand",
        "lookahead",
        "g10",
        "hybrid",
    ],
)
def test_no_verdict_changes_with_them(policy: str, tmp_path: Path) -> None:
    cases = Suite(
        "hosim.toml",
        tmp_path / "b",
        (
            Case(
                "step",
                "small.yaml",
                str(tmp_path),
                workload="step.json",
                policy=policy,
                budget="370 B",
            ),
        ),
    )
    put(tmp_path, Plan(step()), machine(), offloads=False)
    if policy == "resident":
        cases = replace(cases, cases=(replace(cases.cases[0], budget=None),))
    write(cases)
    before = _without_source(cases)
    assert ("[moved." in "".join(before)) == (policy != "resident")
    for seed in range(3):
        put(tmp_path, Plan(shuffled(step(), seed)), machine(), offloads=False)
        (found,) = check(cases)
        assert found.verdict == SAME
        assert not found.explanation
    put(tmp_path, Plan(shuffled(step(), 0, rename=False)), machine(), offloads=False)
    write(cases)
    assert _without_source(cases) == before


def _without_source(suite: Suite) -> list[str]:
    """The lines of the baseline, without the fingerprint of the file, which has the names."""
    return [
        line.partition(", source = ")[0] for line in suite.baseline("step").read_text().splitlines()
    ]
