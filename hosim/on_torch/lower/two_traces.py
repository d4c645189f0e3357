"""Two traces of the same code have to be the same program, and hold no tensor but the model's.
Imports torch.

What differs between them (a clock, a counter, a set's order) would be frozen in a captured program.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from hosim.errors import InputError
from hosim.on_torch.lower.reached_state import Made, Reached
from hosim.on_torch.lower.torch_program import OWN_GENERATOR, TorchProgram

T = TypeVar("T")


def settled(
    first: Sequence[Any], made: Sequence[Made], trace: Callable[[], tuple[T, Sequence[Any]]]
) -> T:
    """Return the result of ``trace``, with its calls (:func:`written`): a trace that is the same as
    the one before, at first ``first``.

    ``made`` is what the first one kept. The very first trace in a process may differ
    in a copy, by what torch itself keeps, so that a third one may settle it. Raises
    :class:`InputError` if it does not.
    """
    kept = [name for _, name, value in made if isinstance(value, torch.Tensor)]
    for _ in range(1 if kept else 2):
        try:
            found, calls = trace()
        except InputError:
            if not kept:
                raise
            break
        if _are_alike(first, calls):
            return found
        first = calls
    if kept:
        raise InputError(
            f"the model keeps a tensor under {kept[0]!r} in its first call and reads it in "
            "later ones; call the model once before it is "
            "offloaded"
        )
    raise _differing()


def require_alike(first: Sequence[Any], calls: Sequence[Any]) -> None:
    """Raise :class:`InputError` if a later trace is another one than the first."""
    if not _are_alike(first, calls):
        raise _differing()


def _differing() -> InputError:
    return InputError(
        "two traces of the model differ: it computes by a clock, a counter or something else that "
        "changes from call to call, which a "
        "captured program would repeat; give it as an input, or keep it in a buffer"
    )


def _are_alike(first: Sequence[Any], calls: Sequence[Any]) -> bool:
    return len(first) == len(calls) and all(map(_is_same, first, calls))


def written(
    module: GraphModule, inputs: Sequence[Any] | None = None, until: object = None
) -> list[Any]:
    """The calls of a traced module one after the other, up to the one whose target and last
    argument are ``until``.

    Nodes are numbers, ``inputs`` (what the placeholders stand for, by default their names) are
    these objects, and constants are their values.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    stand_for = [node.name for node in placeholders] if inputs is None else inputs
    names: dict[Node, Any] = dict(zip(placeholders, map(_Referred, stand_for), strict=True))
    found: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            names[node] = _Referred(attrgetter(str(node.target))(module))
        elif node.op == "call_function":
            names[node] = len(found)
            args, kwargs = (map_arg(one, names.__getitem__) for one in (node.args, node.kwargs))
            found.append((node.target, args, kwargs))
            if (node.target, node.args[-1:]) == until:
                break
    return found


@dataclass(frozen=True, eq=False)
class _Referred:
    """A value that nodes refer to, which is no argument of its own."""

    value: Any


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, _Referred) and isinstance(second, _Referred):
        return first.value is second.value or _is_same_constant(first.value, second.value)
    if isinstance(first, (list, tuple)):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(map(_is_same, first, second))
        )
    if isinstance(first, Mapping):
        return (
            isinstance(second, Mapping)
            and first.keys() == second.keys()
            and all(_is_same(first[key], second[key]) for key in first)
        )
    if isinstance(first, slice):
        return isinstance(second, slice) and _is_same(
            (first.start, first.stop, first.step), (second.start, second.stop, second.step)
        )
    return first is second or bool(first == second) or (first != first and second != second)


def _is_same_constant(first: Any, second: Any) -> bool:
    """Return whether two constants have the same contents; a module of torch, as control flow has,
    is compared by its text.
    """
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if isinstance(first, FakeTensor) or isinstance(second, FakeTensor):
            return False
        with _disable_current_modes():
            return (
                first.dtype == second.dtype
                and first.shape == second.shape
                and bool(torch.equal(first, second))
            )
    if isinstance(first, GraphModule) and isinstance(second, GraphModule):
        return bool(first.code == second.code)
    return type(first) is type(second) and (not isinstance(first, str) or first == second)


def require_of_modules(
    constants: Mapping[str, torch.Tensor], again: Sequence[torch.Tensor], reached: Reached
) -> None:
    """Raise :class:`InputError` for a constant that the code has from elsewhere than a module.

    ``again`` are the constants of the other trace: one that is there as well was not made by the
    code itself.
    """
    if any(isinstance(one, torch.Generator) for one in constants.values()):
        raise InputError(OWN_GENERATOR)
    known = reached.kept_by_modules()
    others = {tensor.untyped_storage()._cdata for tensor in again}
    for tensor in constants.values():
        storage = tensor.untyped_storage()._cdata
        if storage in others and storage not in known:
            name = reached.name_of(tensor) or f"a tensor {tuple(tensor.shape)} of {tensor.dtype}"
            raise InputError(
                f"the captured program would keep the contents of {name}, which later calls may "
                "find changed; give it as an input, or "
                "register it as a buffer of a module"
            )


def require_own_results(program: TorchProgram) -> None:
    """Raise :class:`InputError` for a result that is a tensor of the model, or a part of one: its
    bytes lie elsewhere after a call.
    """
    held = {
        program.tensor_of[one.placeholder]: one.name
        for one in program.givens
        if one.own and one.placeholder in program.tensor_of
    }
    (returned,) = program.module.graph.find_nodes(op="output")
    for node in returned.all_input_nodes:
        name = held.get(program.tensor_of.get(node.name, -1))
        if name is not None:
            raise InputError(
                f"the model returns its own {name!r}, or a view of it, which hosim moves; return "
                "a clone of it"
            )
