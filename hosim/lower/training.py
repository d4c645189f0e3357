"""A training step as one program: forward, backward and optimizer, traced by torch on fake tensors. Imports torch.

The step runs torch's own code (autograd, checkpointing, the optimizer), so the program's aten ops are those of the eager step, in the same
order and in place where it works in place. An update over lists of tensors (``_fused_adamw_``, ``_foreach_add_``) becomes one op per
tensor, which computes the same and needs only one parameter's states at a time. Gradients are made and released within the step. The
optimizer's settings (learning rate) are constants of the program.

A model whose code looks at the contents of tensors takes its path for tracing, which may use another kernel: without a mask, Llama of
transformers uses causal attention when called, and makes a mask when traced, whose gradients differ in the last bits. With a mask given,
both are the same.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module

from hosim.errors import InputError
from hosim.importers.torch_run import PlaceholderInput, quiet
from hosim.importers.torch_step import failures
from hosim.lower.torch_program import TorchProgram, read

_ZEROED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop)
"""Optimizers for which a first step without state equals one from a state of zeros."""

_ADVICE = "make the optimizer with fused=True, and the model with static control flow"

Loss = Callable[[torch.nn.Module, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class TrainingStep:
    """A captured step. ``values`` are the tensors of the program's placeholders, with None for inputs."""

    program: TorchProgram
    values: tuple[Any, ...]
    inputs: tuple[str, ...]


def capture_training(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    *,
    name: str,
    loss: Loss | None = None,
) -> TrainingStep:
    """The program of one step of ``model`` on ``inputs`` (tensors or constants by argument name) with ``optimizer``; it returns the loss.

    ``loss(model, inputs)`` is differentiated, by default ``model(**inputs).loss``. Missing state of the optimizer is made here, of zeros;
    nothing else of the model or the optimizer changes. Raises :class:`InputError` for a step that depends on the contents of tensors (make
    the optimizer with ``fused=True``).
    """
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError("the optimizer has parameters of another model; make it with model.parameters()")
    _make_state(optimizer)
    held = list(_held(model, optimizer))
    tensors = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    with failures(_ADVICE, "be traced"), quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes: dict[int, torch.Tensor] = {}
        for _, _, tensor in held:
            fakes[id(tensor)] = _fake(mode, tensor)
        given = {key: _fake(mode, value) if key in tensors else value for key, value in inputs.items()}
        module, gradients = _trace(model, optimizer, fakes, given, [fakes[id(t)] for _, _, t in held] + [given[k] for k in tensors], loss)
    givens = [PlaceholderInput("", tensor, wanted, kind, own=True) for wanted, kind, tensor in held]
    givens += [PlaceholderInput("", value, key, "input") for key, value in tensors.items()]
    values = [tensor for _, _, tensor in held] + [None] * len(tensors)
    constants = _lift_constants(module)
    givens += [PlaceholderInput("", value, key, "buffer", own=True) for key, value in constants.items()]
    values += constants.values()
    _split_lists(module)
    module.graph.lint()
    module.recompile()
    placeholders = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    named = [
        PlaceholderInput(placeholder, one.value, one.name, one.kind, one.own) for placeholder, one in zip(placeholders, givens, strict=True)
    ]
    program, _ = read(module, named, name=name, meta={"source": "torch training step"}, gradients=gradients)
    return TrainingStep(program, tuple(values), tuple(tensors))


def _held(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name, kind and tensor of everything that outlives the step, each tensor once."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        yield name, "expert" if "experts" in name.split(".") else "parameter", parameter
    for name, buffer in model.named_buffers():
        yield name, "buffer", buffer
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield f"{names.get(id(parameter), 'parameter')}.{key}", "optimizer_state", value


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter the state with which the optimizer would begin."""
    learned = [p for group in optimizer.param_groups for p in group["params"]]
    if all(optimizer.state.get(p) for p in learned if p.requires_grad):
        return
    fresh = copy.copy(optimizer)
    with failures(_ADVICE, "be traced"), quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        twins = {id(p): _fake(mode, p) for p in learned}
        for twin in twins.values():
            twin.grad = torch.empty_like(twin)
        fresh.param_groups = [{**group, "params": [twins[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
        fresh.state = defaultdict(dict)
        with torch.no_grad():
            fresh.step()
        made = {id(p): dict(fresh.state[twins[id(p)]]) for p in learned}
    if any(made.values()) and not isinstance(optimizer, _ZEROED):
        raise InputError(f"{type(optimizer).__name__} has no state yet; take one step with it before the step is captured")
    for p in learned:
        for key, value in made[id(p)].items():
            if isinstance(value, torch.Tensor) and key not in optimizer.state[p]:
                like = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
                optimizer.state[p][key] = like.as_strided(value.size(), value.stride()) if value.stride() != like.stride() else like


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    fake = mode.from_tensor(tensor, static_shapes=True)
    assert isinstance(fake, torch.Tensor)
    fake.grad = None  # gradients are made within the step
    return fake


def _trace(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    fakes: Mapping[int, torch.Tensor],
    given: Mapping[str, Any],
    flat: Sequence[torch.Tensor],
    loss: Loss | None,
) -> tuple[GraphModule, frozenset[str]]:
    """The graph of the step over ``flat``, and the names of the nodes whose values are gradients."""
    replaced = {key: fakes[id(t)] for key, t in (*model.named_parameters(), *model.named_buffers())}
    learned = [p for group in optimizer.param_groups for p in group["params"]]
    twin = copy.copy(optimizer)
    twin.param_groups = [{**group, "params": [fakes[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
    twin.state = defaultdict(dict)
    for p, state in optimizer.state.items():
        twin.state[fakes[id(p)]] = {key: fakes.get(id(value), value) for key, value in state.items()}

    def step(*_: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            value = getattr(model(**given), "loss", None) if loss is None else loss(model, given)
            if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
                raise InputError("the step gives no loss to differentiate; call the model with labels, or give its loss")
            value.backward()
        gradients = [g for p in learned if (g := fakes[id(p)].grad) is not None]
        with torch.no_grad():
            twin.step()
        return [value.detach(), *gradients]

    with _reparametrize_module(model, replaced, tie_weights=True):
        module = make_fx(step, tracing_mode="real")(*flat)
    (output,) = module.graph.find_nodes(op="output")
    result, *gradients = output.args[0]
    output.args = ((result,),)
    names = frozenset(node.name for node in gradients)
    module.graph.eliminate_dead_code()
    return module, names


def _lift_constants(module: GraphModule) -> dict[str, torch.Tensor]:
    """Make every constant tensor of the graph a placeholder after the others; returns them by name."""
    constants: dict[str, torch.Tensor] = {}
    *_, last = (node for node in module.graph.nodes if node.op == "placeholder")
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, node.target)
        with module.graph.inserting_after(last):
            last = module.graph.placeholder(f"constant_{len(constants)}")
        constants[last.name] = value
        node.replace_all_uses_with(last)
        module.graph.erase_node(node)
    return constants


def _split_lists(module: GraphModule) -> None:
    """Replace every in-place op over lists of tensors by one node per tensor."""
    for node in list(module.graph.nodes):
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if not name.startswith(("_fused_", "_foreach_")) or not name.endswith("_") or node.users:
            continue
        lists = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, (list, tuple)) and a]
        length = max((len(a) for a in lists), default=0)
        if length < 2 or any(len(a) != length for a in lists):
            continue
        for i in range(length):

            def one(argument: Any, i: int = i) -> Any:
                return [argument[i]] if isinstance(argument, (list, tuple)) and argument else argument

            with module.graph.inserting_before(node):
                module.graph.call_function(node.target, tuple(map(one, node.args)), {k: one(v) for k, v in node.kwargs.items()})
        module.graph.erase_node(node)
