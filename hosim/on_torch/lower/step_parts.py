"""The two parts of a captured training step as programs of their own: forward and backward, and the
optimizer's update. Imports torch.

Between them gradients are tensors that the caller may read and write. Each part holds the same
tensors as the whole step, at the same positions of its graph, also those that it does not use:
their memory counts in each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from hosim.errors import InputError
from hosim.io.importers.torch_programs import PlaceholderInput
from hosim.on_torch.lower.replicas import COLLECTIVES, STREAM
from hosim.on_torch.lower.torch_program import TorchProgram, read

LOSS_GRADIENT = "loss_gradient"
"""The placeholder of what the loss is scaled with for its gradients."""


@dataclass(frozen=True)
class StepParts:
    """The parts of a step, by the names of nodes of ``module``.

    ``updating`` are the nodes of the update, ``settings`` the placeholders that only they take,
    ``inputs`` those of a call, and ``gradients`` the node of each gradient, by the position of its
    parameter among ``learned``. ``begins`` is the gradient of the loss. ``bind`` lets ops that are
    not torch's compute.
    """

    module: GraphModule = field(repr=False)
    givens: Sequence[PlaceholderInput] = field(repr=False)
    learned: Sequence[torch.Tensor] = field(repr=False)
    bind: Callable[[GraphModule], None] = field(repr=False)
    updating: frozenset[str]
    settings: frozenset[str]
    inputs: frozenset[str]
    gradients: Mapping[int, str]
    begins: str | None


def gradient_input(number: int) -> str:
    """The placeholder of the gradient of a parameter."""
    return f"gradient_{number}"


def backward_part(parts: StepParts, name: str, *, accumulate: bool) -> TorchProgram:
    """Forward and backward, which return the loss and the gradients.

    With ``accumulate`` it returns the loss alone, and adds to gradients that it is given. As torch
    does, a gradient is added in place where it would be assigned, before the hooks that see what is
    accumulated.
    """
    graph, env = Graph(), dict[Node, Node]()
    givens = _placeholders(parts, graph, env, parts.settings)
    by_name = {node.name: node for node in parts.module.graph.nodes}
    targets: dict[str, Node] = {}
    if parts.begins is not None:
        env[by_name[parts.begins]] = _input(graph, givens, LOSS_GRADIENT, by_name[parts.begins])
    for number, gradient in parts.gradients.items():
        if accumulate:
            targets[gradient] = _input(graph, givens, gradient_input(number), by_name[gradient])
    for node in parts.module.graph.nodes:
        if node.op in ("placeholder", "output") or node.name in parts.updating or node in env:
            continue
        env[node] = graph.node_copy(node, env.__getitem__)
        if node.name in targets:
            graph.call_function(torch.ops.aten.add_.Tensor, (targets[node.name], env[node]))
            env[node] = targets[node.name]
    (loss,) = parts.module.graph.output_node().args[0]
    wanted = (
        [loss]
        if accumulate
        else [loss, *(by_name[gradient] for gradient in parts.gradients.values())]
    )
    graph.output(tuple(_copied(node, graph, env) for node in wanted))
    return _program(parts, graph, givens, name)


def update_part(parts: StepParts, name: str) -> TorchProgram:
    """The update for gradients that are given."""
    graph, env = Graph(), dict[Node, Node]()
    givens = _placeholders(parts, graph, env, parts.inputs)
    by_name = {node.name: node for node in parts.module.graph.nodes}
    for number, gradient in parts.gradients.items():
        env[by_name[gradient]] = _input(graph, givens, gradient_input(number), by_name[gradient])
    (loss,) = parts.module.graph.output_node().args[0]
    for node in parts.module.graph.nodes:
        if node.name not in parts.updating or node is loss:
            continue
        if any(n not in env for n in node.all_input_nodes):
            raise InputError(
                "the optimizer's update uses more than gradients and states, so that it cannot "
                "run by itself"
            )
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(())
    return _program(parts, graph, givens, name)


def _placeholders(
    parts: StepParts, graph: Graph, env: dict[Node, Node], without: frozenset[str]
) -> list[PlaceholderInput]:
    """Copy all placeholders but some."""
    kept = []
    for node, one in zip(
        parts.module.graph.find_nodes(op="placeholder"), parts.givens, strict=True
    ):
        if node.name not in without:
            env[node] = graph.node_copy(node)
            env[node].name = node.name
            kept.append(one)
    return kept


def _input(graph: Graph, givens: list[PlaceholderInput], name: str, like: Node) -> Node:
    node = graph.placeholder(name)
    node.meta["val"] = like.meta["val"]
    givens.append(PlaceholderInput(name, like.meta["val"], name, "input"))
    return node


def _copied(node: Node, graph: Graph, env: dict[Node, Node]) -> Node:
    """The copy of a node, with what it is made of."""
    if node not in env:
        for source in node.all_input_nodes:
            _copied(source, graph, env)
        env[node] = graph.node_copy(node, env.__getitem__)
    return env[node]


def _program(
    parts: StepParts, graph: Graph, givens: Sequence[PlaceholderInput], name: str
) -> TorchProgram:
    module = GraphModule(parts.module, graph)
    module.graph.lint()
    return program_of(module, givens, name, parts.bind)


def program_of(
    module: GraphModule,
    givens: Sequence[PlaceholderInput],
    name: str,
    bind: Callable[[GraphModule], None],
    gradients: frozenset[str] = frozenset(),
) -> TorchProgram:
    """The program of a training step or of a part of it. Its exchanges with other processes have a
    stream of their own.
    """
    program, _ = read(
        module, givens, name=name, meta={"source": "torch training step"}, gradients=gradients
    )
    exchanges = {node.name for node in module.graph.nodes if node.target in COLLECTIVES}
    bind(module)
    if not exchanges:
        return program
    graph = program.graph
    ops = [replace(op, stream=STREAM) if op.name in exchanges else op for op in graph.ops]
    return replace(program, graph=type(graph)(graph.name, graph.tensors, ops, graph.meta))


def split_lists(module: GraphModule) -> None:
    """Replace every in-place op over lists of tensors by one node per tensor."""
    for node in list(module.graph.nodes):
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if not name.startswith(("_fused_", "_foreach_")) or not name.endswith("_") or node.users:
            continue
        lists = [
            a for a in (*node.args, *node.kwargs.values()) if isinstance(a, (list, tuple)) and a
        ]
        length = max((len(a) for a in lists), default=0)
        if length < 2 or any(len(a) != length for a in lists):
            continue
        for i in range(length):

            def one(argument: Any, i: int = i) -> Any:
                return (
                    [argument[i]] if isinstance(argument, (list, tuple)) and argument else argument
                )

            with module.graph.inserting_before(node):
                module.graph.call_function(
                    node.target,
                    tuple(map(one, node.args)),
                    {k: one(v) for k, v in node.kwargs.items()},
                )
        module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
