"""A torch program as one flat graph of aten nodes beside the workload graph that hosim makes of it.
Imports torch.

Everything that the program holds or is called with is a placeholder; subgraphs that only set a mode
are inlined. If a functional program returns a new value of a buffer, a node of the graph copies it
into the buffer. A node that computes is the op of the same name.
"""

import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from hosim.cache_plan import LAUNCHED_ALONE, Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io.importers import torch_programs
from hosim.io.importers.torch_programs import PlaceholderInput, plan_of, workload_of
from hosim.on_torch.lower.true_layouts import TrueLayouts

OWN_GENERATOR = (
    "the model draws from a generator of its own, which a captured program cannot; "
    "draw from torch's default one"
)


@dataclass(frozen=True)
class TorchProgram:
    """A graph module and its workload graph.

    ``givens`` say what each placeholder takes, in the placeholders' order. ``tensor_of`` has the
    position in ``graph.tensors`` of each node's value that is one tensor (by ``name[0]`` of one in
    a value that is several), ``op_of`` the position in ``graph.ops`` of each node that computes;
    both by the node's name. ``gradients`` are the nodes whose values' tensors are of that kind.
    """

    module: GraphModule = field(repr=False)
    graph: Graph
    givens: tuple[PlaceholderInput, ...] = field(repr=False)
    tensor_of: Mapping[str, int] = field(repr=False)
    op_of: Mapping[str, int] = field(repr=False)
    gradients: frozenset[str] = frozenset()


def capture(program: ExportedProgram, *, name: str) -> TorchProgram:
    """The program of an exported inference. Its module returns the user's outputs as a flat tuple.

    Raises :class:`InputError` as
    :func:`hosim.io.importers.torch_programs.torch_export.import_exported` does, and for a subgraph
    under autocast.
    """
    return read(
        flattened(program),
        torch_programs.given(program),
        name=name,
        meta={"source": "torch.export"},
    )[0]


def read(
    module: GraphModule,
    givens: Sequence[PlaceholderInput],
    *,
    name: str,
    meta: Mapping[str, Any] | None = None,
    policy: str = "imported",
    gradients: frozenset[str] = frozenset(),
) -> tuple[TorchProgram, Plan]:
    """The program of a flat module, and the plan in its cache nodes (an empty plan without cache
    nodes).

    Raises :class:`InputError` for a module that cannot run on fake tensors, and for cache nodes
    that are not those of one plan.
    """
    givens = [
        replace(one, placeholder=node.name)
        for node, one in zip(module.graph.find_nodes(op="placeholder"), givens, strict=True)
    ]  # passes may rename them
    run = torch_programs.run_module(module, givens, TrueLayouts())
    kinds = {run.places[node]: "gradient" for node in gradients}
    alone = _taking_numbers(module, givens, {step.name for step in run.steps})
    said = {LAUNCHED_ALONE: alone} if alone else {}
    graph, positions = workload_of(run, name, {**(meta or {}), **said}, kinds)
    # a storage that no op touches and that does not exist from the start holds nothing
    tensor_of = {
        node: positions[storage] for node, storage in run.places.items() if storage in positions
    }
    program = TorchProgram(module, graph, tuple(givens), tensor_of, graph.op_index, gradients)
    return program, plan_of(run, graph, positions, policy)


def _taking_numbers(
    module: GraphModule, givens: Sequence[PlaceholderInput], ops: Set[str]
) -> list[str]:
    """The ops that take a number of the call, themselves or through views and other numbers: a
    captured graph would keep it.
    """
    numbers = {one.placeholder for one in givens if not isinstance(one.value, torch.Tensor)}
    found = []
    for node in module.graph.nodes:
        if any(n.name in numbers for n in node.all_input_nodes):
            if node.name in ops:
                found.append(node.name)
            else:
                numbers.add(node.name)
    return found


def flattened(program: ExportedProgram) -> GraphModule:
    """The graph of ``program`` without subgraphs, with its updates as nodes, and returning the
    user's outputs alone.
    """
    source = program.graph_module
    graph = torch.fx.Graph()
    env: dict[Node, Any] = {}
    for node in source.graph.nodes:
        if node.op == "placeholder":
            env[node] = graph.node_copy(node)
            env[
                node
            ].name = node.name  # which may be that of a builtin (``input``): fx would give another
    returned = _inline(source.graph, source, graph, env)
    placeholders = {node.name: env[node] for node in source.graph.nodes if node.op == "placeholder"}
    results = []
    for spec, value in zip(program.graph_signature.output_specs, returned, strict=True):
        updated = torch_programs.updated(program, spec)
        if updated is not None and isinstance(value, Node):
            held = placeholders[updated]
            if value is not held:
                copy = graph.call_function(torch.ops.aten.copy_.default, (held, value))
                copy.meta["val"] = held.meta.get("val")
        else:
            results.append(value)
    graph.output(tuple(results))
    for node in graph.nodes:
        _without_example(node)
    module = GraphModule(source, graph)
    module.graph.lint()
    return module


def _without_example(node: Node) -> None:
    """Let an op that asks another tensor for its size or dtype alone take that itself, so that it
    keeps no storage alive.
    """
    aten = torch.ops.aten
    by_size = {
        aten.expand_as.default: aten.expand.default,
        aten.reshape_as.default: aten.reshape.default,
        aten.view_as.default: aten.view.default,
    }
    if node.target not in (*by_size, aten.type_as.default, aten.to.other):
        return
    value, example = node.args[:2]
    assert isinstance(value, Node)
    assert isinstance(example, Node)
    like = example.meta["val"]
    if node.target in by_size:
        node.target, node.args = by_size[node.target], (value, list(like.shape))
    elif value.meta["val"].device == like.device:
        node.target, node.args = aten.to.dtype, (value, like.dtype, *node.args[2:])


def _inline(
    source: torch.fx.Graph, owner: torch.nn.Module, graph: torch.fx.Graph, env: dict[Node, Any]
) -> Sequence[Any]:
    """Copy the nodes of ``source`` that compute into ``graph``; returns what it returns. ``env``
    has a value for each placeholder.
    """
    for node in source.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            result = map_arg(node.args[0], env.__getitem__)
            return result if isinstance(result, (list, tuple)) else (result,)
        if node.op == "get_attr" and isinstance(getattr(owner, str(node.target)), GraphModule):
            continue
        wrapped = torch_programs.wrapped(node)
        if wrapped == "wrap_with_set_grad_enabled":
            inner = getattr(owner, node.args[1].target)
            operands = (env[n] if isinstance(n, Node) else n for n in node.args[2:])
            names = (n for n in inner.graph.nodes if n.op == "placeholder")
            env[node] = _inline(inner.graph, inner, graph, dict(zip(names, operands, strict=True)))
        elif wrapped is not None:
            raise InputError(
                f"node {node.name!r} sets autocast around a subgraph, which cannot be lowered; "
                "export without it"
            )
        elif node.target is operator.getitem and isinstance(env[node.args[0]], (list, tuple)):
            env[node] = env[node.args[0]][node.args[1]]  # of what a subgraph returned
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    raise AssertionError("a graph ends with its output")


def lift_constants(module: GraphModule) -> dict[str, torch.Tensor]:
    """Make every constant tensor of the graph a placeholder after the others; returns them by
    name.
    """
    constants: dict[str, torch.Tensor] = {}
    *_, last = (node for node in module.graph.nodes if node.op == "placeholder")
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, node.target)
        if isinstance(value, torch.Generator):
            raise InputError(OWN_GENERATOR)
        if isinstance(value, FakeTensor):
            raise InputError(
                "a tensor that is no parameter of the model gets a gradient, which a captured step "
                "would not give it; register it as a parameter, or detach it"
            )
        with module.graph.inserting_after(last):
            last = module.graph.placeholder(f"constant_{len(constants)}")
        constants[last.name] = value
        node.replace_all_uses_with(last)
        module.graph.erase_node(node)
    return constants
