"""``saved_activations`` on a toy by hand, and on steps of a builder."""

from __future__ import annotations

from typing import Any

import pytest
from toy_machine import MACHINE

import hosim
from hosim import engine
from hosim.analysis.verifying import verify
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.io import load_named
from hosim.policies import policy_named


def three_layers(forward_alone: bool = False) -> Graph:
    """Ops of 100 ns: f0, f1 and f2, each of which reads the result of the one before, of 20 B; then
    the backward pass, whose op of a layer reads what that layer made.

    ``skip`` is read again within the forward pass, and the gradient ``d2`` within the backward
    pass.
    """
    b = GraphBuilder("three layers")
    for i in range(3):
        b.tensor(f"layers.{i}.w", 10, "parameter")
        b.tensor(f"a{i}", 20, "activation")
    b.tensor("skip", 20, "activation")
    b.tensor("d2", 20, "activation")
    more: dict[int, dict[str, list[str]]] = {0: {"outputs": ["skip"]}, 2: {"inputs": ["skip"]}}
    for i in range(3):
        before = [f"a{i - 1}"] * (i > 0)
        b.op(
            f"f{i}",
            "m",
            inputs=[f"layers.{i}.w", *before, *more.get(i, {}).get("inputs", [])],
            outputs=[f"a{i}", *more.get(i, {}).get("outputs", [])],
            duration_ns=100,
        )
    if forward_alone:
        return b.build()
    for i in (2, 1, 0):
        made = [] if i == 2 else ["d2"] * (i == 0)
        b.op(
            f"backward.b{i}",
            "m",
            inputs=[f"layers.{i}.w", f"a{i}", *made],
            outputs=["d2"] * (i == 2),
            duration_ns=100,
        )
    return b.build()


def moved(graph: Graph, **parameters: Any) -> tuple[list[tuple[str, str, int]], int | None]:
    """The cache ops of the plan, each with its tensor and the op after which it is issued, and the
    makespan.
    """
    plan = policy_named("saved_activations").plan(graph, MACHINE, 1000, **parameters)
    assert verify(plan, MACHINE, 1000) == ()
    ops = [(c.op, graph.tensors[c.tensor].name, c.after) for c in plan.cache_ops]
    return ops, engine.replay(plan, MACHINE).makespan_ns


@pytest.mark.parametrize(
    ("parameters", "cache_ops", "makespan_ns"),
    [
        # the visits to layers begin at f0, f1, f2 (with b2), b1 and b0. a0 is back when b1 begins,
        # at the end of b2 (op 3), and its copy takes 20 of b1's 100 ns. a1 would come when f2
        # begins, which reads it: it stays
        (
            {},
            [("store", "a0", 0), ("detach", "a0", 1), ("prefetch", "a0", 3)],
            600,
        ),
        # each when its own layer begins: b1 and b0 wait 20 ns for theirs
        (
            {"layers_ahead": 0},
            [
                ("store", "a0", 0), ("store", "a1", 1), ("detach", "a0", 1), ("detach", "a1", 2),
                ("prefetch", "a1", 3), ("prefetch", "a0", 4),
            ],
            640,
        ),
        # half of the 40 B: what is saved first
        (
            {"layers_ahead": 0, "activations": 0.5},
            [("store", "a0", 0), ("detach", "a0", 1), ("prefetch", "a0", 4)],
            620,
        ),
        ({"layers_ahead": 2}, [], 600),
    ],
)  # fmt: skip
def test_what_the_backward_pass_reads_is_away_until_a_layer_before(
    parameters: dict[str, Any], cache_ops: list[tuple[str, str, int]], makespan_ns: int
) -> None:
    assert moved(three_layers(), **parameters) == (cache_ops, makespan_ns)


def test_a_step_without_a_backward_pass_saves_nothing() -> None:
    assert moved(three_layers(forward_alone=True)) == ([], 300)


def test_a_backward_pass_that_no_name_tells_is_refused() -> None:
    b = GraphBuilder("unnamed")
    b.tensor("g", 1, "gradient")
    b.op("f", "m", outputs=["g"], duration_ns=1)
    with pytest.raises(InputError, match=r"none of unnamed begins with 'backward\.'; longest_gap"):
        moved(b.build())


def test_the_inputs_of_layers_are_what_a_step_that_computes_them_again_saves() -> None:
    step = "llama-3.2-1b:phase=train:sequence=64:layers=6:fused=true"
    machine = hosim.load_hardware(hosim.find_hardware("h100"))
    plans = {
        again: policy_named("saved_activations").plan(
            load_named(f"{step}:checkpoint={again}"), machine, 2**40
        )
        for again in ("true", "false")
    }
    sizes = {
        again: sorted(
            [plan.graph.tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op == "store"]
        )
        for again, plan in plans.items()
    }
    rotary = 64 * 64
    assert sizes["true"] == [rotary * 2] * 2 + [64 * 2048 * 2] * 6
    assert len(sizes["false"]) > 5 * len(sizes["true"])
