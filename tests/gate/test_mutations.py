"""30 mutations of a model, a machine or a plan: the gate fails exactly when something worsened
beyond tolerance, and names the culprit.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gate_toys import LAYERS, figures, machine, offloading, put, step, suite, verdict

from hosim.cache_plan import Plan
from hosim.gate import write
from hosim.graph import Graph, Op, Tensor
from hosim.hardware import Hardware

Mutated = tuple[Plan, Hardware, list[str]]
"""A plan and a machine, and the names one of which has to be in the explanation."""


def with_op(graph: Graph, name: str, **changes: object) -> Graph:
    ops = tuple(replace(op, **changes) if op.name == name else op for op in graph.ops)  # type: ignore[arg-type]
    return Graph(graph.name, graph.tensors, ops, graph.meta)


def with_tensor(graph: Graph, name: str, **changes: object) -> Graph:
    tensors = tuple(replace(t, **changes) if t.name == name else t for t in graph.tensors)  # type: ignore[arg-type]
    return Graph(graph.name, tensors, graph.ops, graph.meta)


def temporary(draw: random.Random) -> str:
    return f"layers.{draw.randrange(LAYERS)}.tmp"


def lives_longer(draw: random.Random, plan: Plan) -> Mutated:
    graph, name = plan.graph, temporary(draw)
    t = graph.tensor_index[name]
    op = draw.choice(graph.ops[graph.users[t][-1] + 1 :])
    return offloading(with_op(graph, op.name, inputs=(*op.inputs, t))), machine(), [f"`{name}`"]


def lives_shorter(draw: random.Random, plan: Plan) -> Mutated:
    graph, i = plan.graph, draw.randrange(1, LAYERS)
    op = graph.ops[graph.op_index[f"layers.{i}.back"]]
    kept = tuple(t for t in op.inputs if graph.tensors[t].name != f"layers.{i}.act")
    return offloading(with_op(graph, op.name, inputs=kept)), machine(), []


def doubled_sequence(draw: random.Random, plan: Plan) -> Mutated:
    return offloading(step(2)), machine(), [".act`", ".tmp`"]


def lost_in_place(draw: random.Random, plan: Plan) -> Mutated:
    """``norm`` gives another tensor, which ``relu`` reads."""
    graph, i = plan.graph, draw.randrange(LAYERS)
    old = graph.tensor_index[f"layers.{i}.tmp"]
    new = Tensor(f"layers.{i}.normed", graph.tensors[old].size_bytes + draw.randrange(60))
    graph = Graph(graph.name, (*graph.tensors, new), graph.ops)
    last = len(graph.tensors) - 1
    graph = with_op(graph, f"layers.{i}.norm", inputs=(old,), mutates=(), outputs=(last,))
    return (
        offloading(with_op(graph, f"layers.{i}.relu", inputs=(last,))),
        machine(),
        [f"`{new.name}`"],
    )


def larger(draw: random.Random, plan: Plan) -> Mutated:
    name = draw.choice(plan.graph.tensors).name
    size = plan.graph.tensors[plan.graph.tensor_index[name]].size_bytes + draw.choice([-10, 1, 40])
    return offloading(with_tensor(plan.graph, name, size_bytes=size)), machine(), [f"`{name}`"]


def slower_op(draw: random.Random, plan: Plan) -> Mutated:
    op: Op = draw.choice(plan.graph.ops)
    by = draw.choice([-5, 2, 4, 30])  # 1% of the makespan is between
    return (
        offloading(with_op(plan.graph, op.name, duration_ns=(op.duration_ns or 0) + by)),
        machine(),
        [f"`{op.name}`"],
    )


def more_workspace(draw: random.Random, plan: Plan) -> Mutated:
    name = draw.choice(plan.graph.ops).name
    return (
        offloading(with_op(plan.graph, name, workspace_bytes=draw.choice([10, 100]))),
        machine(),
        [f"`{name}`"],
    )


def smaller_bandwidth(draw: random.Random, plan: Plan) -> Mutated:
    name = draw.choice(["h2d", "d2h"])
    return (
        plan,
        machine(**{name: draw.choice([0.05, 0.1, 0.5, 2])}),
        [f"channels.{name}.bandwidth", "`layers.0.act`"],
    )


def fetched_at_another_place(draw: random.Random, plan: Plan) -> Mutated:
    places = [
        op.name
        for op in plan.graph.ops[5:]
        if op.name.startswith(("layers.2", "layers.3", "layers.1.back", "layers.1.relu"))
    ]
    return offloading(plan.graph, draw.choice(places)), machine(), ["`layers.0.act`"]


def never_away(draw: random.Random, plan: Plan) -> Mutated:
    return Plan(plan.graph, "manual"), machine(), ["`layers.0.act`"]


MUTATIONS: list[Callable[[random.Random, Plan], Mutated]] = [
    lives_longer,
    lives_shorter,
    doubled_sequence,
    lost_in_place,
    larger,
    slower_op,
    more_workspace,
    smaller_bandwidth,
    fetched_at_another_place,
    never_away,
]


def worse(before: dict[str, int], now: dict[str, int]) -> bool:
    """Whether a peak grew, or the makespan by more than 1%."""
    return (
        any(now[m] > before[m] for m in before if m != "makespan")
        or 100 * (now["makespan"] - before["makespan"]) > before["makespan"]
    )


@pytest.mark.parametrize("seed", range(30))
def test_it_fails_exactly_when_something_worsened_and_names_it(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    plan = offloading(step())
    put(tmp_path, plan, machine(), offloads=True)
    write(suite(tmp_path, offloads=True))
    mutated, hardware, named = MUTATIONS[seed % len(MUTATIONS)](draw, plan)
    put(tmp_path, mutated, hardware, offloads=True)
    found = verdict(tmp_path, offloads=True)
    assert found.fails() == worse(figures(plan, machine()), figures(mutated, hardware))
    if found.fails():
        assert 1 < len(found.explanation) <= 10
        assert any(name in line for name in named for line in found.explanation), found.explanation


def test_some_of_the_mutations_worsen_something_and_some_do_not() -> None:
    plan = offloading(step())
    before = figures(plan, machine())
    outcomes = [MUTATIONS[seed % len(MUTATIONS)](random.Random(seed), plan) for seed in range(30)]
    failing = sum(worse(before, figures(mutated, hardware)) for mutated, hardware, _ in outcomes)
    assert 10 <= failing <= 20
