"""One step of a model: its forward pass, and in training the passes of every micro-batch and the
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from hosim.data.expert_routing import Gate, gates_of
from hosim.graph import Graph
from hosim.models.collectives import arrived, summed_at_both_ends, summed_over_tokens
from hosim.models.config import Run
from hosim.models.data_parallel import shared_step
from hosim.models.optimizer import adamw, has_master, moments_by_parts, update_by_parts
from hosim.models.pipeline_schedule import passes
from hosim.models.routing_draw import Chosen
from hosim.models.stored_weights import StoredWeights
from hosim.models.tape import Learned, Note, Tape, Value

Config = TypeVar("Config")


def step(
    name: str,
    forward: Callable[[Tape, Config, Run], Value],
    config: Config,
    run: Run,
    meta: Mapping[str, Any],
    *,
    in_parts: bool = True,
    stored: StoredWeights | None = None,
) -> tuple[Graph, tuple[Gate, ...], tuple[Chosen, ...]]:
    """The graph of ``forward`` on a fresh tape, in training with its backward pass and the
    optimizer.

    And the gates in it, with what each chooses. ``in_parts`` and ``stored``: as of :class:`Tape`.
    """
    main = run.main_gradients and run.zero < 2
    t = Tape(name, training=run.training, main_gradients=main, merged=run.merged, in_parts=in_parts)
    t.stored = stored
    t.builder.meta = dict(meta)
    if not run.training:
        forward(t, config, run)
        graph = t.build()
        return graph, gates_of(graph, t.gates), _chosen(t, run)
    apart = _passes(t, forward, config, run)
    summed_at_both_ends(t, config, run)
    if not apart:
        summed_over_tokens(t, config, run)
    if run.replicas > 1:
        shared = replace(run, data=run.replicas)
        return (
            shared_step(t.build(), list(t.parameters.values()), apart or [t.learned()], shared),
            (),
            (),
        )
    if run.optimizer == "adamw" and run.foreach:
        update_by_parts(t, moments_by_parts(t, run, t.learned(), has_master(run)))
    elif run.optimizer == "adamw":
        adamw(t, run, t.learned(), master=has_master(run))
    graph = t.build()
    return graph, gates_of(graph, t.gates), _chosen(t, run)


def _chosen(t: Tape, run: Run) -> tuple[Chosen, ...]:
    """Return the choices of each gate: experts by every token, where all of them are on one device,
    and blocks by all tokens together.
    """
    found = []
    for count, shape in t.choices:
        by_token = run.expert == 1 and len(shape) == 2 and shape[1] <= count
        found.append(Chosen(count, *(shape if by_token else (1, count))))
    return tuple(found)


def _passes(
    t: Tape, forward: Callable[[Tape, Config, Run], Value], config: Config, run: Run
) -> list[Learned]:
    """The forward and backward passes of the device's micro-batches, in the order of the schedule.

    Gradients add up on the tape; where devices share them, those of each micro-batch are returned
    instead, if these are reduced each.
    """
    count = run.micro_batches_of_step
    apart: list[Learned] = []
    kept: dict[tuple[int, int], tuple[Value, list[Note]]] = {}
    for each in passes(run.schedule, run.pipeline, run.stage, count, run.chunks):
        t.micro_batch = f"micro{each.micro_batch}." if count > 1 else ""
        place = each.micro_batch, each.chunk
        if each.backward:
            result, notes = kept.pop(place)
            if result.shape:  # not the last stage: the gradient of what it sent comes back
                behind = each.chunk * run.pipeline + run.stage + 1
                start = arrived(t, run, result.shape, "recv_grad", f"gradient.{behind}")
            else:
                start = t.ops("loss.grad", "fill", [], [((), result.dtype)])[0]
            t.backward(result, start, notes)
            if run.zero >= 2 and run.sync_each_batch:
                apart.append(t.taken())
        else:
            part = replace(
                run, pipeline=run.pipeline * run.chunks, stage=each.chunk * run.pipeline + run.stage
            )
            kept[place] = forward(t, config, part), t.recorded()
    t.micro_batch = ""
    return apart
