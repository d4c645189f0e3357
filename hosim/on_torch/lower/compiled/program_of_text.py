"""A program as inductor compiles it: one op for each kernel or op of torch that its text calls.
Imports torch.

Inductor fuses first; then hosim plans the calls of the text that it wrote, and cache ops stand
between them. So nothing can be fused or moved across one, and each call is inductor's own: results
are those of ``torch.compile`` to the bit. Each buffer of the text is a tensor of the plan. Inductor
is asked not to reuse one buffer's memory for another, since that decides what the plan decides.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from hosim.errors import InputError
from hosim.on_torch.lower.compiled.compiled_calls import OURS, InductorProgram, bind_calls
from hosim.on_torch.lower.compiled.compiled_models import require_plannable
from hosim.on_torch.lower.compiled.wrapper_text import WrapperCall
from hosim.on_torch.lower.torch_program import TorchProgram, read


def compiled_program(program: TorchProgram, settings: Mapping[str, Any]) -> TorchProgram:
    """``program`` compiled by inductor with these settings, over the same placeholders.

    Raises :class:`InputError` if inductor cannot compile it, and if the text that it writes has
    lines that cannot be planned.
    """
    _require_one_name_for_each_written(program)
    module, results = _returning_new_tensors(program)
    compiled = _compiled(program, module, settings)
    wrapper = compiled.wrapper
    taken = [given.placeholder for given in program.givens if isinstance(given.value, torch.Tensor)]
    if len(wrapper.inputs) != len(taken) or len(wrapper.results) != len(
        module.graph.output_node().args[0]
    ):
        raise InputError(
            "inductor's program takes or returns other tensors than the model; offload the model "
            "uncompiled"
        )
    return _Building(program, compiled).program(
        dict(zip(wrapper.inputs, taken, strict=True)), results
    )


def _require_one_name_for_each_written(program: TorchProgram) -> None:
    """Inductor sees each placeholder as memory of its own, which must be so where it writes."""
    written = {t for op in program.graph.ops for t in op.mutates}
    seen: set[int] = set()
    for given in program.givens:
        t = program.tensor_of.get(given.placeholder)
        if t in written and t in seen:
            raise InputError(
                f"the program writes {given.name!r}, which shares its memory with another tensor; "
                "offload the model uncompiled"
            )
        if t is not None:
            seen.add(t)


def _returning_new_tensors(program: TorchProgram) -> tuple[GraphModule, Sequence[int | Any]]:
    """The module that returns each tensor that it makes once, and what the program returns: the
    place of one of these, or what it is.
    """
    graph = Graph()
    env: dict[Node, Node] = {}
    output = program.module.graph.output_node()
    for node in program.module.graph.nodes:
        if node is not output:
            env[node] = graph.node_copy(node, env.__getitem__)
    made: dict[Node, int] = {}
    results: list[Any] = []
    for value in output.args[0]:
        if isinstance(value, Node) and value.op != "placeholder":
            results.append(made.setdefault(env[value], len(made)))
        else:
            results.append((value,))
    graph.output(tuple(made))
    constants = {
        given.placeholder for given in program.givens if not isinstance(given.value, torch.Tensor)
    }
    for node in graph.find_nodes(op="placeholder"):
        if node.name in constants or node.target in constants:
            if node.users:
                raise InputError(
                    f"input {node.name!r} is a number that the program computes with; offload the "
                    "model uncompiled"
                )
            graph.erase_node(node)
    return GraphModule(program.module, graph), results


def _compiled(
    program: TorchProgram, module: GraphModule, settings: Mapping[str, Any]
) -> InductorProgram:
    """Return the result of inductor for a module over fake inputs."""
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx as inductor
    from torch._inductor import config

    require_plannable({**config.get_config_copy(), **settings})
    found: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        found.append(inductor.compile_fx_inner(*args, **kwargs))
        return found[-1]

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [
                _fake(given.value)
                for given in program.givens
                if isinstance(given.value, torch.Tensor)
            ]
        with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
            inductor.compile_fx(
                module, fakes, inner_compile=keep, config_patches={**settings, **OURS}
            )
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"torch.compile cannot compile {program.graph.name}: {reason[:200]}"
        ) from error
    if len(found) != 1 or not getattr(found[0], "source_code", ""):
        raise InputError(
            f"inductor compiles {program.graph.name} to {len(found)} programs; expected one. "
            "Offload the model uncompiled"
        )
    return InductorProgram(found[0])


def _fake(example: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(example.size(), example.stride(), dtype=example.dtype, device="cpu")


@dataclass(eq=False)
class _Building:
    """Builds the graph of a text."""

    base: TorchProgram
    compiled: InductorProgram
    graph: Graph = field(default_factory=Graph)
    values: dict[str, Node] = field(default_factory=dict)

    def program(self, inputs: Mapping[str, str], results: Sequence[Any]) -> TorchProgram:
        placeholders = {}
        for given in self.base.givens:
            placeholders[given.placeholder] = node = self.graph.placeholder(given.placeholder)
            node.name = given.placeholder
        self.values = {name: placeholders[placeholder] for name, placeholder in inputs.items()}
        for call in self.compiled.wrapper.calls:
            self.add(call, self.compiled.name(call))
        made = [self.add(call, "result") for call in self.compiled.wrapper.results]
        returned = [
            made[one] if isinstance(one, int) else self.given(one[0], placeholders)
            for one in results
        ]
        self.graph.output(tuple(returned))
        module = GraphModule(torch.nn.Module(), self.graph)
        module.graph.lint()
        givens = [replace(given) for given in self.base.givens]
        program, _ = read(
            module, givens, name=self.base.graph.name, meta={"source": "torch.compile"}
        )
        bind_calls(module)
        return program

    def given(self, value: Any, placeholders: Mapping[str, Node]) -> Any:
        """Return the result of the program that it does not make: one of its inputs, or a
        constant.
        """
        return placeholders[value.name] if isinstance(value, Node) else value

    def add(self, call: WrapperCall, name: str) -> Node:
        """The node of a call, and those of its results."""
        taken = tuple([self.value(one) for one in call.takes])
        node = self.graph.create_node("call_function", self.compiled.op(call), taken, name=name)
        if len(call.gives) == 1:
            self.values[call.gives[0]] = node
        for i, one in enumerate(call.gives if len(call.gives) > 1 else ()):
            self.values[one] = self.graph.call_function(operator.getitem, (node, i))
        return node

    def value(self, name: str) -> Node:
        """The node of a value, that of one of several results among them."""
        if name not in self.values:
            base, i = self.compiled.wrapper.items[name]
            self.values[name] = self.graph.call_function(operator.getitem, (self.value(base), i))
        return self.values[name]
