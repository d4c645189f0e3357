"""A training step as one program: forward, backward and optimizer, traced by torch on fake tensors.
Imports torch.

The step runs torch's own code (autograd, checkpointing, the optimizer), so the program's aten ops
are those of the eager step, in the same order and in place where it works in place. An update over
lists of tensors (``_fused_adamw_``, ``_foreach_add_``) becomes one op per tensor, which computes
the same and needs only one parameter's states at a time. Gradients are made and released within the
step. Numbers in the update, which come from the optimizer's settings, are inputs
(:mod:`hosim.on_torch.lower.optimizer_update`). Hooks of parameters are ops
(:mod:`hosim.on_torch.lower.parameter_hooks`).

A model whose code looks at the contents of tensors takes its path for tracing, which may use
another kernel: without a mask, Llama of transformers uses causal attention when called, and makes a
mask when traced, whose gradients differ in the last bits. With a mask given, both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from hosim.errors import InputError
from hosim.io.importers.torch_programs import PlaceholderInput, failures, loss_of, quiet
from hosim.on_torch.lower import parameter_hooks
from hosim.on_torch.lower.compiled import (
    CompiledModel,
    StepOp,
    bind_calls,
    require_no_hooks,
    require_one_process,
    traced_by_calls,
)
from hosim.on_torch.lower.devices import fake_on
from hosim.on_torch.lower.eager_peak import eager_peak_bytes
from hosim.on_torch.lower.op_schema import by_name
from hosim.on_torch.lower.optimizer_update import (
    OF_THE_OPTIMIZER,
    Update,
    make_state,
    tensor_settings,
)
from hosim.on_torch.lower.python_state import (
    WritesUndone,
    no_look_is_hidden,
    python_state_kept,
    stand_ins,
)
from hosim.on_torch.lower.reached_state import Made, Reached
from hosim.on_torch.lower.replicas import Replicas, replicas_of, unwrapped
from hosim.on_torch.lower.sharded import Shards, shards_of
from hosim.on_torch.lower.sharded_tensors import fake_of, local
from hosim.on_torch.lower.step_parts import StepParts, program_of, split_lists
from hosim.on_torch.lower.torch_program import TorchProgram, lift_constants
from hosim.on_torch.lower.true_layouts import TrueLayouts
from hosim.on_torch.lower.two_traces import (
    require_of_modules,
    require_own_results,
    settled,
    written,
)
from hosim.plain_text import shown

_OF_THE_MODEL = "write the model and its loss without looking at what tensors contain"

_KEEPS = (torch.ops.aten.mkldnn_rnn_layer.default,)
"""Ops that give backward what it needs only while gradients are on; a program runs with them
off.
"""

Loss = Callable[[torch.nn.Module, Mapping[str, Any]], Any]

Exchanges = Replicas | Shards
"""The exchange of a step with other processes."""


@dataclass(frozen=True)
class TrainingStep:
    """A captured step.

    ``values`` are what the program's placeholders take, with None for the inputs of the call
    (``inputs`` are their names). ``settings`` are the placeholders of what comes from the
    optimizer's settings, which ``settings_now`` returns as they are now.
    """

    program: TorchProgram
    values: tuple[Any, ...]
    inputs: tuple[str, ...]
    settings: tuple[str, ...]
    settings_now: Callable[[], list[Any]] = field(repr=False)
    parts: StepParts = field(repr=False)
    reached: Reached = field(repr=False)
    exchanges: Exchanges | None = None
    constants: frozenset[str] = frozenset()
    """The names of tensors that the program holds, and neither the model nor the optimizer."""
    eager_peak_bytes: int | None = None
    resized: Callable[[Mapping[str, Any], str], TrainingStep] | None = field(
        default=None, repr=False
    )
    """Captures the step for inputs of other sizes."""


def capture_training(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    *,
    name: str,
    loss: Loss | None = None,
    device: torch.device | None = None,
    compiled: CompiledModel | None = None,
) -> TrainingStep:
    """The program of one step of ``model`` on ``inputs`` (tensors or constants by argument name)
    with ``optimizer``; it returns the loss.

    ``loss(model, inputs)`` is differentiated, by default what the model returns, or its ``loss``;
    with ``compiled``, what torch.compile has made of the model, it is given that. The step is that of a
    model on ``device``, by default where it is. Missing state of the optimizer is made here, of
    zeros; nothing else of the model or the optimizer changes. Raises :class:`InputError` for a step
    that depends on the contents of tensors (make the optimizer with ``fused=True``).
    """
    if not hasattr(optimizer, "param_groups"):
        raise InputError(
            f"expected an optimizer of torch over model.parameters(), got {shown(optimizer, 60)}",
            source="optimizer",
        )
    exchanges: Exchanges | None = replicas_of(model) or shards_of(model)
    if compiled is not None and exchanges is not None:
        raise InputError(
            "the model is compiled by torch.compile and exchanges tensors with other processes "
            "(DistributedDataParallel or FSDP), which "
            "its programs do not show; train it uncompiled"
        )
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError(
            "the optimizer has parameters of another model; make it with model.parameters()"
        )
    model = unwrapped(model)
    require_one_process(model, sharded=isinstance(exchanges, Shards))
    require_no_hooks(model)
    tensors = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    for key, value in inputs.items():
        leaves = [] if key in tensors else tree_leaves(value)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise InputError(
                f"input {key!r} has tensors within a {type(value).__name__}; give each tensor "
                "as an input of its own"
            )
    rates = tensor_settings(optimizer)
    learned = [p for group in optimizer.param_groups for p in group["params"]]
    reached = Reached(model, {} if loss is None else {"the loss": loss})
    mode = TrueLayouts()
    with failures(_OF_THE_MODEL, "be traced"), quiet(), mode:
        fakes = {id(tensor): fake_of(mode, tensor, device) for _, _, tensor in _held(model, {})}
        given = {
            key: fake_of(mode, value, device) if key in tensors else value
            for key, value in inputs.items()
        }
        stepping = _Stepping(model, learned, fakes, given, loss, exchanges, compiled, reached)
        first = [*fakes.values(), *(given[key] for key in tensors)]
        trial = stepping.traced(first)
    make_state(optimizer, [learned[i] for i in trial.gradients])
    held = list(_held(model, optimizer.state))
    with failures(OF_THE_OPTIMIZER, "be traced"), quiet(), mode:
        fakes |= {id(rate): fake_of(mode, rate) for rate in rates if id(rate) not in fakes}
        fakes |= {id(t): fake_of(mode, t, device) for _, _, t in held if id(t) not in fakes}
        update = Update(optimizer, fakes, mode)
    return _step_of(_Ready(stepping, update, mode, held, rates, device), inputs, name, first, trial)


@dataclass(frozen=True)
class _Ready:
    """The data that steps of one model and optimizer share: ``held`` has name, kind and tensor of
    what they hold, ``rates`` are the settings that are tensors.
    """

    stepping: _Stepping
    update: Update
    mode: FakeTensorMode
    held: Sequence[tuple[str, str, torch.Tensor]]
    rates: Sequence[torch.Tensor]
    device: torch.device | None

    def resized(self, inputs: Mapping[str, Any], name: str) -> TrainingStep:
        """The step for inputs of other sizes, which holds the same tensors. Raises
        :class:`InputError` as the first one does.
        """
        stepping = self.stepping
        with failures(_OF_THE_MODEL, "be traced"), quiet(), self.mode:
            given = {
                key: fake_of(self.mode, value, self.device)
                if isinstance(value, torch.Tensor)
                else value
                for key, value in inputs.items()
            }
            stepping = replace(stepping, given=given)
            first = [
                *(self.stepping.fakes[id(tensor)] for _, _, tensor in self.held),
                *(given[key] for key, value in inputs.items() if isinstance(value, torch.Tensor)),
            ]
            trial = stepping.traced(first)
        return _step_of(replace(self, stepping=stepping), inputs, name, first, trial)


def _step_of(
    ready: _Ready,
    inputs: Mapping[str, Any],
    name: str,
    first: Sequence[torch.Tensor],
    trial: _TracedStep,
) -> TrainingStep:
    """The step whose forward and backward were traced on ``first`` as ``trial``."""
    stepping, update, exchanges = ready.stepping, ready.update, ready.stepping.exchanges
    tensors = {  # fakes, so that the step does not keep what the inputs contain
        key: fake_on(ready.mode, value, value.device)
        for key, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }
    traced, eager_peak = _settled(ready, tensors, first, trial)
    module, gradients = traced.module, traced.gradients
    if exchanges is not None:
        exchanges.require_gradients(stepping.learned, list(gradients))
    module.graph.eliminate_dead_code()
    updating, begins = _marked(module)
    last = updating[0].prev if updating else module.graph.output_node().prev
    constants = _constants(module, trial, ready)
    count = len(update.numbers_as_inputs(module, updating))
    split_lists(module)
    nodes = list(module.graph.nodes)
    placeholders = [node.name for node in nodes if node.op == "placeholder"]
    givens = _givens(placeholders, ready, tensors, constants, update.numbers()[:count])
    whole = Graph()
    whole.output(whole.graph_copy(module.graph, {}))
    given, settings = len(ready.held), len(ready.held) + len(tensors)
    names = (
        *placeholders[settings : settings + len(ready.rates)],
        *placeholders[len(placeholders) - count :],
    )
    bind = partial(_bind, update, exchanges)
    parts = StepParts(
        GraphModule(module, whole),
        givens,
        update.learned,
        bind,
        frozenset(node.name for node in nodes[nodes.index(last) + 1 : -1]),
        frozenset(names),
        frozenset(placeholders[given:settings]),
        gradients,
        begins,
    )
    program = program_of(module, givens, name, bind, frozenset(gradients.values()))
    require_own_results(program)
    return TrainingStep(
        program,
        tuple(None if given <= i < settings else one.value for i, one in enumerate(givens)),
        tuple(tensors),
        names,
        partial(_settings_now, ready, count),
        parts,
        stepping.reached,
        exchanges,
        frozenset(constants),
        eager_peak,
        ready.resized if exchanges is None and stepping.compiled is None else None,
    )


def _settled(
    ready: _Ready,
    tensors: Mapping[str, torch.Tensor],
    first: Sequence[torch.Tensor],
    trial: _TracedStep,
) -> tuple[_TracedStep, int | None]:
    """The whole step, whose last two traces are the same, and its peak without hosim."""
    stepping, update, fakes = ready.stepping, ready.update, ready.stepping.fakes
    backward_done = parameter_hooks.mark, (_BACKWARD_DONE,)
    with failures(OF_THE_OPTIMIZER, "be traced"), quiet(), ready.mode:
        flat = [
            *(fakes[id(t)] for _, _, t in ready.held),
            *(stepping.given[k] for k in tensors),
            *(fakes[id(t)] for t in ready.rates),
        ]

        def again() -> tuple[_TracedStep, list[Any]]:
            found = stepping.traced(flat, update, trial.kept)
            return found, written(found.module, flat, backward_done)

        traced = settled(written(trial.module, first, backward_done), trial.kept, again)
        return traced, stepping.eager_peak(flat, update, trial.kept)


def _constants(
    module: GraphModule, trial: _TracedStep, ready: _Ready
) -> Mapping[str, torch.Tensor]:
    """The constants of a traced step, which are placeholders of it then. Raises
    :class:`InputError` for one that a captured step could not follow.
    """
    before = trial.module.graph.find_nodes(op="get_attr")
    again = [getattr(trial.module, node.target) for node in before]
    constants = lift_constants(module)
    require_of_modules(constants, again, ready.stepping.reached)
    held = {local(tensor).untyped_storage()._cdata for _, _, tensor in ready.held}
    if any(value.untyped_storage()._cdata in held for value in constants.values()):
        raise InputError(
            "the model computes with a parameter or buffer that it keeps under no name, which "
            "a captured step cannot follow"
        )
    return constants


def _givens(
    placeholders: Sequence[str],
    ready: _Ready,
    tensors: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor],
    numbers: Sequence[float],
) -> list[PlaceholderInput]:
    """The inputs of a traced step, in the order of its placeholders."""
    givens = [
        *[PlaceholderInput("", local(t), name, kind, own=True) for name, kind, t in ready.held],
        *[PlaceholderInput("", value, key, "input") for key, value in tensors.items()],
        *[PlaceholderInput("", t, f"setting_{i}", "input") for i, t in enumerate(ready.rates)],
        *[PlaceholderInput("", value, key, "buffer", own=True) for key, value in constants.items()],
        *[PlaceholderInput("", value) for value in numbers],
    ]
    return [
        replace(one, placeholder=placeholder)
        for placeholder, one in zip(placeholders, givens, strict=True)
    ]


def _bind(update: Update, exchanges: Exchanges | None, module: GraphModule) -> None:
    """Let ops of a step that are not torch's compute."""
    for node in module.graph.nodes:
        if node.target in _KEEPS:
            op = node.target
            node.target = StepOp(
                op.overloadpacket.__name__, partial(_with_gradients_on, op), tags=op.tags
            )
    bind_calls(module)
    parameter_hooks.call_hooks(module, update.learned)
    if exchanges is not None:
        exchanges.bind(module)


def _settings_now(ready: _Ready, count: int) -> list[Any]:
    """The settings of the optimizer as they are now, ``count`` of them numbers."""
    changed = ready.update.numbers()  # it raises an error for settings that need another program
    return [*(rate.clone() for rate in ready.rates), *changed[:count]]


def _with_gradients_on(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The results of an op that runs with gradients on, on tensors without."""
    with torch.enable_grad():
        return op(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def _held(
    model: torch.nn.Module, states: Mapping[torch.Tensor, Mapping[str, Any]]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name, kind and tensor of everything that outlives the step, each tensor once."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        yield name, "expert" if "experts" in name.split(".") else "parameter", parameter
    for name, buffer in model.named_buffers():
        yield name, "buffer", buffer
    for parameter, state in states.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield f"{names.get(id(parameter), 'parameter')}.{key}", "optimizer_state", value


_FORWARD_DONE, _BACKWARD_DONE = -1, -2
"""Numbers of the marks in a traced step; those of gradients are the positions of their
parameters.
"""


@dataclass(frozen=True)
class _TracedStep:
    """A traced step with marks, the node of each gradient by its parameter's position among the
    learned, and what it kept in Python.
    """

    module: GraphModule
    gradients: dict[int, str]
    kept: list[Made]


@dataclass(frozen=True)
class _Stepping:
    """The data on which a step is traced: the tensors of ``given`` are fakes, and those of the
    model and the optimizer are ``fakes`` by address.
    """

    model: torch.nn.Module
    learned: Sequence[torch.Tensor]
    fakes: Mapping[int, torch.Tensor]
    given: Mapping[str, Any]
    loss: Loss | None
    exchanges: Exchanges | None
    compiled: CompiledModel | None
    reached: Reached

    def traced(
        self, flat: Sequence[torch.Tensor], update: Update | None = None, kept: Sequence[Made] = ()
    ) -> _TracedStep:
        """The graph of the step over ``flat``, of forward and backward alone without ``update``."""
        with self._ready(update, kept) as (step, made), no_look_is_hidden():
            module = make_fx(step, tracing_mode="real")(*flat)
        grads = [self.fakes[id(p)].grad for p in self.learned]
        numbers = [i for i, grad in enumerate(grads) if grad is not None]
        (output,) = module.graph.find_nodes(op="output")
        result, *gradients = output.args[0]
        output.args = ((result,),)
        return _TracedStep(
            module, {i: node.name for i, node in zip(numbers, gradients, strict=True)}, made
        )

    def eager_peak(
        self, flat: Sequence[torch.Tensor], update: Update, kept: Sequence[Made]
    ) -> int | None:
        """The peak of the step without hosim, in bytes; ``None`` where it is not known: it looks at
        contents, is compiled, or exchanges tensors with other processes.
        """
        if self.compiled is not None or self.exchanges is not None:
            return None
        with self._ready(update, kept) as (step, _):
            return eager_peak_bytes(flat, step)

    @contextmanager
    def _ready(
        self, update: Update | None, kept: Sequence[Made]
    ) -> Iterator[tuple[Callable[..., list[torch.Tensor]], list[Made]]]:
        """The step, ready to run on the fakes, and what it keeps in Python."""
        model, fakes = self.model, self.fakes
        for fake in fakes.values():
            fake.grad = None
        named = dict((*model.named_parameters(), *model.named_buffers()))
        called, calling = (
            (model, nullcontext())
            if self.compiled is None
            else (self.compiled.module, traced_by_calls(self.compiled))
        )
        learned = [(i, p, fakes[id(p)]) for i, p in enumerate(self.learned)]
        handles = [
            h
            for i, p, fake in learned
            if p.requires_grad
            for h in parameter_hooks.register(fake, p, i)
        ]
        exchanging: Any = nullcontext()
        if self.exchanges is not None:
            handles += self.exchanges.register(fakes, self.learned)
            exchanging = self.exchanges.tracing(fakes)
        by_id = {id(t): fakes[id(t)] for t in named.values()}

        caches_casts = torch.is_autocast_cache_enabled()

        def step(*_: torch.Tensor) -> list[torch.Tensor]:
            torch.clear_autocast_cache()  # of casts of an earlier trace
            torch.set_autocast_cache_enabled(caches_casts)  # make_fx sets it back
            with (
                WritesUndone() if self.compiled is None else nullcontext()
            ):  # torch.compile compiles nothing under a mode
                value = self._differentiated(
                    called, {key: fakes[id(t)] for key, t in named.items()}
                )
            gradients = [fake.grad for _, _, fake in learned if fake.grad is not None]
            if update is not None:
                update.apply()
            return [value, *gradients]

        try:
            with (
                python_state_kept(model, self.reached, called, kept) as made,
                stand_ins(model, by_id),
                exchanging,
                calling,
            ):
                yield step, made
        finally:
            for handle in handles:
                handle.remove()

    def _differentiated(
        self, called: torch.nn.Module, held: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """The loss, whose gradients the fakes have then. Raises :class:`InputError` without one,
        and for parameters and buffers (``held``) that are replaced.
        """
        if self.exchanges is not None:
            self.exchanges.begin(lambda buffer: self.fakes[id(buffer)])
        with torch.enable_grad():
            value = loss_of(called, self.given, self.loss)
            # FSDP itself puts gathered parameters in the place of shards
            parameters = () if isinstance(self.exchanges, Shards) else self.model.named_parameters()
            now = dict((*parameters, *self.model.named_buffers()))
            for key, tensor in held.items():
                if now.get(key, tensor) is not tensor:
                    kind = "buffer" if tensor.is_leaf and not tensor.requires_grad else "parameter"
                    raise InputError(
                        f"the model replaces its {kind} {key!r}, which a captured step would not "
                        "repeat; write into it (copy_)"
                    )
            parameter_hooks.mark(value.detach(), _FORWARD_DONE)
            value.backward()
            parameter_hooks.mark(value.detach(), _BACKWARD_DONE)
        return value.detach()


def _marked(module: GraphModule) -> tuple[list[Node], str | None]:
    """The nodes of the update, and the name of the gradient of the loss; the marks are removed."""
    update: list[Node] | None = None
    begins: str | None = None
    is_backward = False
    for node in list(module.graph.nodes):
        if node.target is parameter_hooks.mark:
            is_backward = node.args[1] != _BACKWARD_DONE
            update = update if is_backward else []
            module.graph.erase_node(node)
        elif update is not None and node.op == "call_function":
            update.append(node)
        elif is_backward and _draws(node):
            raise InputError(
                "the model draws random numbers in backward, as checkpointing does to repeat "
                "dropout, and a captured step would draw "
                "others: leave out dropout or checkpointing (hosim's plans run ops again where "
                "that pays)"
            )
        elif is_backward and begins is None and node.target is torch.ops.aten.ones_like.default:
            begins = node.name
    module.graph.eliminate_dead_code()
    assert update is not None
    return [node for node in update if not node._erased], begins


def _draws(node: Node) -> bool:
    """Return whether an op of torch draws random numbers; attention does with dropout alone."""
    op = node.target
    if (
        not isinstance(op, torch._ops.OpOverload)
        or op.namespace != "aten"
        or torch.Tag.nondeterministic_seeded not in op.tags
    ):
        return False
    given = by_name(op, node.args, node.kwargs)
    return "attention" not in op.overloadpacket.__name__ or bool(given.get("dropout_p"))
