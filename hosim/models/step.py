"""One step of a model: its forward pass, and in training the backward pass and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hosim.expert_routing import Gate, gates_of
from hosim.graph import Graph
from hosim.models.collectives import received
from hosim.models.config import Run
from hosim.models.optimizer import adamw
from hosim.models.tape import Tape, Value

Config = TypeVar("Config")


def step(
    name: str, forward: Callable[[Tape, Config, Run], Value], config: Config, run: Run, meta: Mapping[str, Any]
) -> tuple[Graph, tuple[Gate, ...]]:
    """The graph of ``forward`` on a fresh tape, in training with its backward pass and the optimizer; and the gates in it."""
    t = Tape(name, training=run.training, main_gradients=run.main_gradients)
    t.builder.meta = dict(meta)
    result = forward(t, config, run)
    if run.training:
        if result.shape:  # not the last stage: the gradient of what it sent comes back
            start = received(t, run, result.shape, "recv_grad")
        else:
            start = t.ops("loss.grad", "fill", [], [((), result.dtype)])[0]
        t.backward(result, start)
        if run.optimizer == "adamw":
            adamw(t, run)
    graph = t.build()
    return graph, gates_of(graph, t.gates)
