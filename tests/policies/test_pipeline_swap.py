"""``pipeline_swap`` on a toy of GPipe, by hand, and on a stage of a builder."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_machine import MACHINE

from hosim.analysis.verifying import verify
from hosim.base.groups import grouped
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.io.models import build
from hosim.policies import policy_named

ROOMY = replace(
    MACHINE, tiers=tuple([replace(tier, capacity_bytes=10**12) for tier in MACHINE.tiers])
)


def gpipe(micro_batches: int) -> Graph:
    """Each micro-batch m receives ``got<m>`` and goes forward by two ops: the first makes ``a<m>``,
    the second ``sent<m>``, which is sent. Its backward pass reads all three again.
    """
    b = GraphBuilder("gpipe")
    for m in range(micro_batches):
        at, got, a, sent = f"micro{m}.", f"got{m}", f"a{m}", f"sent{m}"
        b.tensor(got, 1), b.tensor(a, 20), b.tensor(sent, 1)
        b.op(f"{at}recv", "recv", outputs=[got], stream="recv", message=f"{at}in", duration_ns=1)
        b.op(f"{at}f", "matmul", inputs=[got], outputs=[a], duration_ns=100)
        b.op(f"{at}g", "matmul", inputs=[a], outputs=[sent], duration_ns=100)
        b.op(f"{at}send", "send", inputs=[sent], stream="send", message=f"{at}out", duration_ns=1)
    for m in range(micro_batches):
        used = [f"got{m}", f"a{m}", f"sent{m}"]
        b.op(f"backward.micro{m}.f", "matmul", inputs=used, duration_ns=100)
    return b.build()


def moved(graph: Graph, **parameters: int) -> dict[str, list[tuple[str, str]]]:
    """By tensor the cache ops, each with the op that it is issued after."""
    plan = policy_named("pipeline_swap").plan(graph, ROOMY, 10**12, **parameters)
    assert verify(plan, ROOMY, 10**12) == ()
    assert replay(plan, ROOMY).feasible
    assert all(one.after >= 0 for one in plan.cache_ops)
    return grouped(
        (graph.tensors[one.tensor].name, (one.op, graph.ops[one.after].name))
        for one in plan.cache_ops
    )


def test_passes_between_are_counted() -> None:
    """Of four micro-batches each comes back four passes later: down after its own forward pass,
    released after the next pass, and up before the last pass between.
    """
    last = {0: "micro0.g", 1: "micro1.g", 2: "micro2.g", 3: "micro3.g"}
    later = {m: f"backward.micro{m}.f" for m in range(4)}
    order = [*last.values(), *later.values()]  # the last op of each pass
    assert moved(gpipe(4)) == {
        f"a{m}": [
            ("store", order[m]),
            ("detach", order[m + 1]),
            ("prefetch", order[m + 2]),  # the pass m + 3 comes next, and then m's backward pass
        ]
        for m in range(4)
    }
    assert moved(gpipe(3)) == {}
    assert set(moved(gpipe(3), least_gap=3)) == {"a0", "a1", "a2"}


def test_stages_of_1f1b() -> None:
    """On stage 0 of 4 the backward pass comes 4 passes after the forward pass at least, on the last
    one at once.
    """
    asked = {
        "model": "gpt2",
        "phase": "train",
        "sequence": 8,
        "layers": 4,
        "micro_batches": 4,
        "pipeline": 4,
    }
    stages = [build("stage", {**asked, "stage": stage}) for stage in (0, 3)]
    assert all(stage.ops for stage in stages)
    assert moved(stages[0])
    assert not moved(stages[1])


def test_a_step_without_micro_batches_moves_nothing() -> None:
    b = GraphBuilder("step")
    b.tensor("a", 20)
    b.op("f", "matmul", outputs=["a"], duration_ns=100)
    b.op("backward.f", "matmul", inputs=["a"], duration_ns=100)
    graph = b.build()
    assert policy_named("pipeline_swap").plan(graph, MACHINE, 1000) == Plan(graph, "pipeline_swap")


def test_a_gap_with_nothing_between_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2, got 1"):
        policy_named("pipeline_swap").plan(gpipe(4), MACHINE, 1000, least_gap=1)
