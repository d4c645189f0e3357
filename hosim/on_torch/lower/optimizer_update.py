"""An optimizer's update on fake tensors: traced once, and asked again for the numbers in it
whenever a setting has changed. Imports torch.

The learning rate and all other settings that are numbers reach torch's ops as numbers, some of them
computed from others. The optimizer's own code runs again to compute them, so a schedule of any kind
gives what it would give without hosim. Whether a tensor is a setting is asked of the optimizer's
groups.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from hosim.errors import InputError
from hosim.io.importers.torch_programs import failures, quiet
from hosim.on_torch.lower.held_contents import is_plain
from hosim.on_torch.lower.sharded_tensors import fake_of, local, sharded_like
from hosim.on_torch.lower.true_layouts import TrueLayouts

_NUMBERS = (
    *("float", "number", "Tensor", "Optional[float]", "Optional[number]", "Optional[Tensor]"),
    *("List[float]", "List[number]", "Optional[List[float]]"),
)
"""Types of arguments that may be numbers computed from settings: torch also takes a number for a
tensor.
"""

_ZEROED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop)
"""Optimizers whose first step without state equals one from a state of zeros, if no momentum is
dampened: also for classes that inherit their ``step``.
"""

OF_THE_OPTIMIZER = "make the optimizer with fused=True"
"""What to do about an optimizer that torch cannot trace."""

_CHANGED = "the optimizer's settings have changed since the step was captured; offload it again"


@dataclass(frozen=True, slots=True)
class _UpdateOp:
    """One op of an update: everything about it that is neither a tensor nor a number, and its
    numbers.
    """

    what: tuple[Any, ...]
    numbers: tuple[float, ...]


class Update:
    """The update of ``optimizer`` on fakes (by the address of what they stand for), which must all
    be of ``mode``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        fakes: Mapping[int, torch.Tensor],
        mode: FakeTensorMode,
    ) -> None:
        self._optimizer = optimizer
        self._fakes = fakes
        self._mode = mode
        self.learned = [p for group in optimizer.param_groups for p in group["params"]]
        self._with_gradient: list[torch.Tensor] = []
        self._structure: list[tuple[Any, ...]] | None = None
        self._seen = settings_of(optimizer)
        self._numbers: list[float] = []

    def apply(self) -> None:
        """Let the optimizer update the fakes by the gradients that they have; its hooks are not
        called.

        Raises :class:`InputError` for an optimizer that counts in numbers of its own.
        """
        twin = twin_of(self._optimizer)
        twin.param_groups = [
            {
                key: [self._fakes[id(p)] for p in value] if key == "params" else self._faked(value)
                for key, value in group.items()
            }
            for group in self._optimizer.param_groups
        ]
        twin.state = defaultdict(dict)
        for p, state in self._optimizer.state.items():
            twin.state[self._fakes[id(p)]] = {
                key: self._faked(value) for key, value in state.items()
            }
        before = _kept(twin)
        with torch.no_grad():
            step_alone(twin)
        if _kept(twin) != before:
            name = type(self._optimizer).__name__
            raise InputError(
                f"{name} replaces numbers or tensors that it keeps, instead of writing into "
                "tensors; use one of torch.optim"
            )
        self._with_gradient = [p for p in self.learned if self._fakes[id(p)].grad is not None]

    def _faked(self, value: Any) -> Any:
        return self._fakes.get(id(value), value) if isinstance(value, torch.Tensor) else value

    def numbers_as_inputs(self, module: GraphModule, nodes: list[Node]) -> list[Node]:
        """Make each number in the ops of the update a placeholder behind the others; ``nodes`` are
        the update's. Returns the placeholders.

        None if the graph has other ops than the optimizer runs by itself; then a change of settings
        is refused.
        """
        calls = self._calls()
        ops = [node for node in nodes if _counts(node.target)]
        if [node.target for node in ops] != [call.what[0] for call in calls]:
            return []
        self._structure = [call.what for call in calls]
        self._numbers = [number for call in calls for number in call.numbers]
        made: list[Node] = []
        *_, last = (node for node in module.graph.nodes if node.op == "placeholder")
        for node in ops:

            def placeholder(value: Any) -> Any:
                nonlocal last
                with module.graph.inserting_after(last):
                    last = module.graph.placeholder(f"setting_{len(made)}")
                made.append(last)
                return last

            node.args, node.kwargs = _with_numbers(node.target, node.args, node.kwargs, placeholder)
        return made

    def numbers(self) -> list[float]:
        """The numbers of the update for the settings that the optimizer has now.

        Raises :class:`InputError` if the optimizer would now run other ops, or has other parameters
        or states.
        """
        now = settings_of(self._optimizer)
        if now != self._seen:
            if self._structure is None or now[1:] != self._seen[1:]:
                raise InputError(_CHANGED)
            calls = self._calls()
            if [call.what for call in calls] != self._structure:
                raise InputError(_CHANGED)
            self._numbers = [number for call in calls for number in call.numbers]
            self._seen = now
        return self._numbers

    def _calls(self) -> list[_UpdateOp]:
        """Return what the optimizer does now."""
        log = _UpdateLog()
        with quiet(), self._mode, log:
            for p in self._with_gradient:
                fake = self._fakes[id(p)]
                fake.grad = torch.empty_like(fake)
            log.calls.clear()
            self.apply()
            calls = list(log.calls)
            for p in self._with_gradient:
                self._fakes[id(p)].grad = None
        return calls


def twin_of(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer with the attributes of another, its own ones too, which torch's copy forgets."""
    twin = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer))
    return twin


def step_alone(optimizer: torch.optim.Optimizer) -> None:
    """Step an optimizer without calling hooks, of its own or of all optimizers."""
    step: Callable[..., Any] = type(optimizer).step
    step = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
    step(optimizer)


def make_state(optimizer: torch.optim.Optimizer, learned: Sequence[torch.Tensor]) -> None:
    """Give each of these parameters, which get gradients, the state with which the optimizer would
    begin.
    """
    if all(optimizer.state.get(p) for p in learned):
        return
    fresh = twin_of(optimizer)
    with (
        failures(OF_THE_OPTIMIZER, "be traced"),
        quiet(),
        TrueLayouts() as mode,
    ):
        twins = {
            id(p): fake_of(mode, p) for group in optimizer.param_groups for p in group["params"]
        }
        for p in learned:
            twins[id(p)].grad = torch.empty_like(twins[id(p)])
        fresh.param_groups = [
            {**group, "params": [twins[id(p)] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        fresh.state = defaultdict(dict)
        with torch.no_grad():
            step_alone(fresh)
        made = {id(p): dict(fresh.state[twins[id(p)]]) for p in learned}
    groups = optimizer.param_groups
    damped = any(group.get("momentum") and group.get("dampening") for group in groups)
    zeroed = {inspect.unwrap(kind.step) for kind in _ZEROED}
    if any(made.values()) and (damped or inspect.unwrap(type(optimizer).step) not in zeroed):
        raise InputError(
            f"{type(optimizer).__name__} has no state yet; take one step with it before the step "
            "is captured"
        )
    for p in learned:
        for key, value in made[id(p)].items():
            if isinstance(value, torch.Tensor) and key not in optimizer.state[p]:
                like = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
                if isinstance(optimizer, torch.optim.SGD):
                    like = -like  # eager begins with a copy of the gradient, which may have -0
                if value.stride() != like.stride():
                    like = like.as_strided(value.size(), value.stride())
                if value.shape == local(p).shape:
                    like = sharded_like(p, like)
                optimizer.state[p][key] = like


def settings_of(
    optimizer: torch.optim.Optimizer,
) -> tuple[list[dict[str, Any]], list[list[int]], list[int]]:
    """The optimizer's settings by group and its own, the parameters by group, and the tensors that are states;
    tensors by their address.
    """
    groups = [
        {
            key: id(value) if isinstance(value, torch.Tensor) else copy.copy(value)
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]
    parameters = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    states = [
        id(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return [*groups, _own_of(optimizer)], parameters, states


def _own_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The attributes of an optimizer of the user's that are numbers, texts and lists of them."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return {}
    return {
        key: copy.copy(value)
        for key, value in vars(optimizer).items()
        if key != "_opt_called" and is_plain(value)
    }


def tensor_settings(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The settings that are tensors, such as a learning rate on the device."""
    found = {
        id(value): value
        for group in optimizer.param_groups
        for value in group.values()
        if isinstance(value, torch.Tensor)
    }
    return list(found.values())


def _kept(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the tensors that an optimizer would rebind, if it did not write into tensors: the
    storages of parameters, and its states.
    """
    storages = [
        p.untyped_storage()._cdata for group in optimizer.param_groups for p in group["params"]
    ]
    states = [
        {
            key: id(value) if isinstance(value, torch.Tensor) else copy.copy(value)
            for key, value in state.items()
        }
        for state in optimizer.state.values()
        if state
    ]
    return [storages, states, _own_of(optimizer)]


def _counts(target: Any) -> bool:
    """Return whether a call is an op that computes: questions about a tensor and detaching, which
    torch 2.14 traces as an alias, do not.
    """
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace != "prim"
        and target not in (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
    )


class _UpdateLog(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Notes every op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_UpdateOp] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _counts(func):
            return func(*args, **(kwargs or {}))
        numbers: list[float] = []

        def taken(value: Any) -> str:
            numbers.append(value)
            return "number"

        rest = _with_numbers(func, args, kwargs or {}, taken)
        self.calls.append(_UpdateOp((func, *_without_tensors(rest)), tuple(numbers)))
        return func(*args, **(kwargs or {}))


def _with_numbers(
    func: Any, args: Any, kwargs: Mapping[str, Any], replaced: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with its numbers replaced, in the order in which they stand."""
    types = {argument.name: str(argument.type) for argument in func._schema.arguments}

    def of(name: str, value: Any) -> Any:
        if types.get(name) not in _NUMBERS:
            return value
        if isinstance(value, (list, tuple)):
            return [replaced(item) if _is_number(item) else item for item in value]
        return replaced(value) if _is_number(value) else value

    return tuple(of(n, v) for n, v in zip(types, args, strict=False)), {
        key: of(key, value) for key, value in kwargs.items()
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _without_tensors(value: Any) -> Iterator[Any]:
    """Yield what stands in nested arguments, with a word for each tensor."""
    if isinstance(value, (list, tuple)):
        yield len(value)
        for item in value:
            yield from _without_tensors(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _without_tensors(item)
    else:
        yield "tensor" if isinstance(value, torch.Tensor) else value
