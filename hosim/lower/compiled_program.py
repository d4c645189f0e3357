"""A program as inductor compiles it: one op for each kernel or op of torch that its text calls. Imports torch.

Inductor fuses first; then hosim plans the calls of the text that it wrote, and cache ops stand between them. So nothing can be fused or
moved across one, and each call is inductor's own: results are those of ``torch.compile`` to the bit. Each buffer of the text is a tensor
of the plan. Inductor is asked not to reuse one buffer's memory for another, since that decides what the plan decides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from hosim.errors import InputError
from hosim.importers.torch_kernels import extent
from hosim.lower.compiled_models import require_plannable
from hosim.lower.step_ops import StepOp
from hosim.lower.torch_program import TorchProgram, read
from hosim.lower.wrapper_text import GATHERED, READ, UPDATED, WRITTEN, WrapperCall, WrapperText, read_wrapper

_OURS: Mapping[str, Any] = {
    "allow_buffer_reuse": False,
    "memory_planning": False,
    "cpp_wrapper": False,
    "graph_partition": False,
    "triton.cudagraphs": False,
}
"""Settings of inductor by which its text has one buffer for each result, and is one piece of Python."""

_library = torch.library.Library("hosim_step", "FRAGMENT")
_library.define("fused(Tensor[] reads, Tensor(a!)[] updates, *, Tensor(b!)[] out) -> ()")
_library.impl("fused", lambda reads, updates, *, out: None, "CompositeExplicitAutograd")


def compiled_program(program: TorchProgram, settings: Mapping[str, Any]) -> TorchProgram:
    """``program`` compiled by inductor with these settings, over the same placeholders.

    Raises :class:`InputError` if inductor cannot compile it, and if the text that it writes has lines that cannot be planned.
    """
    _require_one_name_for_each_written(program)
    module, results = _returning_new_tensors(program)
    source = _source(program, module, settings)
    wrapper = read_wrapper(source)
    taken = [given.placeholder for given in program.givens if isinstance(given.value, torch.Tensor)]
    if len(wrapper.inputs) != len(taken) or len(wrapper.results) != len(module.graph.output_node().args[0]):
        raise InputError("inductor's program takes or returns other tensors than the model; offload the model uncompiled")
    return _Building(program, wrapper, _namespace(source)).program(dict(zip(wrapper.inputs, taken, strict=True)), results)


def _require_one_name_for_each_written(program: TorchProgram) -> None:
    """Inductor sees each placeholder as memory of its own, which must be so where it writes."""
    written = {t for op in program.graph.ops for t in op.mutates}
    seen: set[int] = set()
    for given in program.givens:
        t = program.tensor_of.get(given.placeholder)
        if t in written and t in seen:
            raise InputError(
                f"the program writes {given.name!r}, which shares its memory with another tensor; offload the model uncompiled"
            )
        if t is not None:
            seen.add(t)


def _returning_new_tensors(program: TorchProgram) -> tuple[GraphModule, Sequence[int | Any]]:
    """The module that returns each tensor that it makes once, and what the program returns: the place of one of these, or what it is."""
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
    constants = {given.placeholder for given in program.givens if not isinstance(given.value, torch.Tensor)}
    for node in graph.find_nodes(op="placeholder"):
        if node.name in constants or node.target in constants:
            if node.users:
                raise InputError(f"input {node.name!r} is a number that the program computes with; offload the model uncompiled")
            graph.erase_node(node)
    return GraphModule(program.module, graph), results


def _source(program: TorchProgram, module: GraphModule, settings: Mapping[str, Any]) -> str:
    """The text that inductor writes for a module over fake inputs."""
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
            fakes = [_fake(given.value) for given in program.givens if isinstance(given.value, torch.Tensor)]
        with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
            inductor.compile_fx(module, fakes, inner_compile=keep, config_patches={**settings, **_OURS})
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"torch.compile cannot compile {program.graph.name}: {reason[:200]}") from error
    if len(found) != 1 or not getattr(found[0], "source_code", ""):
        raise InputError(f"inductor compiles {program.graph.name} to {len(found)} programs; expected one. Offload the model uncompiled")
    if any(isinstance(value, torch.Tensor) for value in (found[0].constants or {}).values()):
        raise InputError("inductor's program has constant tensors of its own, which a plan does not see; offload the model uncompiled")
    return str(found[0].source_code)


def _fake(example: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(example.size(), example.stride(), dtype=example.dtype, device="cpu")


def _namespace(source: str) -> dict[str, Any]:
    """What the names in inductor's text are, its compiled kernels among them."""
    names: dict[str, Any] = {"__name__": "hosim.lower.compiled_program.text"}
    exec(compile(source, "<inductor>", "exec"), names)
    return names


class _Building:
    """Builds the graph of a text: first with functions that only say what they do to fake tensors, and then with those that compute."""

    def __init__(self, base: TorchProgram, wrapper: WrapperText, names: dict[str, Any]) -> None:
        self.base = base
        self.wrapper = wrapper
        self.names = names
        self.graph = Graph()
        self.values: dict[str, Node] = {}
        self.real: dict[Node, StepOp] = {}
        roles = {name: _told(roles) for name, roles in wrapper.kernels.items()}
        checks = dict.fromkeys(("assert_size_stride", "assert_alignment"), lambda *_: None)
        views = {"reinterpret_tensor": _reinterpreted, "empty_strided_cpu": _allocated}
        self.told = {**names, **roles, **checks, **views}

    def program(self, inputs: Mapping[str, str], results: Sequence[Any]) -> TorchProgram:
        placeholders = {}
        for given in self.base.givens:
            placeholders[given.placeholder] = node = self.graph.placeholder(given.placeholder)
            node.name = given.placeholder
        self.values = {name: placeholders[placeholder] for name, placeholder in inputs.items()}
        for call in self.wrapper.calls:
            self.add(call, _fused_name(call.function) if call.function in self.wrapper.kernels else _op_name(call.function))
        made = [self.add(call, "result") for call in self.wrapper.results]
        returned = [made[one] if isinstance(one, int) else self.given(one[0], placeholders) for one in results]
        self.graph.output(tuple(returned))
        module = GraphModule(torch.nn.Module(), self.graph)
        module.graph.lint()
        givens = [replace(given) for given in self.base.givens]
        program, _ = read(module, givens, name=self.base.graph.name, meta={"source": "torch.compile"})
        for node, real in self.real.items():
            node.target = real
        return program

    def given(self, value: Any, placeholders: Mapping[str, Node]) -> Any:
        """What the program returns beside what it makes: one of its inputs, or a constant."""
        return placeholders[value.name] if isinstance(value, Node) else value

    def add(self, call: WrapperCall, name: str) -> Node:
        """The node of a call, and those of its results."""
        taken = [self.value(one) for one in call.takes]
        title = "hosim.fused.default" if call.function in self.wrapper.kernels else _title(call.function)
        tags = getattr(self._called(call.function), "tags", ()) if call.function else ()
        told, real = (StepOp(title, _function(call, names), tags=tags) for names in (self.told, self.names))
        node = self.graph.create_node("call_function", told, tuple(taken), name=name)
        self.real[node] = real
        if len(call.gives) == 1:
            self.values[call.gives[0]] = node
        for i, one in enumerate(call.gives if len(call.gives) > 1 else ()):
            self.values[one] = self.graph.call_function(operator.getitem, (node, i))
        return node

    def value(self, name: str) -> Node:
        """The node of a value, that of one of several results among them."""
        if name not in self.values:
            base, i = self.wrapper.items[name]
            self.values[name] = self.graph.call_function(operator.getitem, (self.value(base), i))
        return self.values[name]

    def _called(self, function: str) -> Any:
        found: Any = None
        for i, part in enumerate(function.split(".")):
            found = self.names.get(part) if i == 0 else getattr(found, part, None)
        return found


def _function(call: WrapperCall, names: dict[str, Any]) -> Callable[..., Any]:
    """The lines of a call as a function of what they take."""
    given = call.gives[0] if len(call.gives) == 1 else f"({', '.join(call.gives)})"
    text = "\n    ".join((f"def call({', '.join(call.takes)}):", *call.lines, f"return {given if call.gives else None}"))
    made: dict[str, Any] = {}
    exec(compile(text, "<a call of inductor's program>", "exec"), names, made)
    function: Callable[..., Any] = made["call"]
    return function


def _told(roles: Sequence[str]) -> Callable[..., None]:
    """What a compiled kernel does to fake tensors: it says what it reads and writes."""

    def kernel(*tensors: torch.Tensor) -> None:
        by_role = {role: [t for t, own in zip(tensors, roles, strict=True) if own == role] for role in (READ, UPDATED, WRITTEN, GATHERED)}
        most = max((t.numel() for t, own in zip(tensors, roles, strict=True) if own != GATHERED), default=0)
        rows = [_reinterpreted(t, (min(most, extent(t) // t.itemsize),), (1,), 0) for t in by_role[GATHERED]]
        torch.ops.hosim_step.fused.default([*by_role[READ], *rows], by_role[UPDATED], out=by_role[WRITTEN])

    return kernel


def _reinterpreted(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    return torch.as_strided(x, size, stride, int(x.storage_offset()) + offset)


def _allocated(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _title(function: str) -> str:
    """The name of an op by what is called: ``aten.mm.default`` for ``extern_kernels.mm``."""
    if not function:
        return "hosim.result.default"
    parts = function.removeprefix("torch.ops.").split(".")
    return f"aten.{parts[1]}.default" if parts[0] == "extern_kernels" else ".".join(parts)


def _op_name(function: str) -> str:
    """The name of a call's node: ``mm`` for ``extern_kernels.mm``."""
    return _title(function).split(".")[1].strip("_")


def _fused_name(kernel: str) -> str:
    """The name of a fused kernel's node: ``fused_add_relu`` for ``cpp_fused_add_relu_3``; the graph numbers those that are alike."""
    return kernel.removeprefix("cpp_").rstrip("0123456789").rstrip("_")
