"""The calls allowed while a program is imported; each is checked before it runs. Imports torch."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from hosim.errors import InputError
from hosim.units import LARGEST

aten = torch.ops.aten

_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
_HIGHEST_POWER = 64

_ARITHMETIC = frozenset(
    (
        "getitem",
        "add",
        "sub",
        "mul",
        "floordiv",
        "truediv",
        "mod",
        "pow",
        "neg",
        "pos",
        "abs",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    )
) | {"and_", "or_", "xor", "not_", "ceil", "floor", "trunc", "sqrt"}
"""The functions of the modules ``operator`` and ``math`` that may be called."""

_CUTS = {
    aten.unbind: ("dim",),
    aten.split: ("split_size", "dim"),
    aten.unsafe_split: ("split_size", "dim"),
    aten.chunk: ("chunks", "dim"),
    aten.unsafe_chunk: ("chunks", "dim"),
    aten.tensor_split: ("sections", "dim"),
    aten.hsplit: ("sections",),
    aten.vsplit: ("sections",),
    aten.dsplit: ("sections",),
}
"""Ops that return a list of parts, and the names of their arguments after the tensor."""


class OwnOp:
    """The class of targets that hosim makes itself; no file has one."""


def check_call(node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` unless a node calls a registered torch op, or does arithmetic on
    sizes with numbers.

    It is also an error if a call would return another number of tensors than the node's ``pieces``:
    a wrong number can be huge.
    """
    target: Any = node.target
    if isinstance(target, OwnOp):
        return
    if isinstance(target, torch._ops.OpOverload):
        found = pieces(target.overloadpacket, args, kwargs)
        if found is not None and found != node.meta.get("pieces", found):
            raise InputError(
                f"node {node.name!r} gives {found} tensors, but the program has names for "
                f"{node.meta['pieces']}"
            )
        return
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise InputError(
            f"node {node.name!r} calls the higher-order op {target.name()!r}, which hosim does "
            "not import; export without it"
        )
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", "")
    plain = module in ("_operator", "operator", "math") and name in _ARITHMETIC
    if not plain and not (
        module in ("torch", "torch.fx.experimental.symbolic_shapes") and name.startswith("sym_")
    ):
        raise InputError(
            f"node {node.name!r} calls {target!r}; expected a registered torch op or arithmetic "
            "on sizes"
        )
    if target is not operator.getitem:
        _check_operands(node, [*args, *kwargs.values()])


def _check_operands(node: Node, operands: Sequence[Any]) -> None:
    for one in operands:
        if isinstance(one, (list, tuple)) and node.target is torch.sym_sum:
            _check_operands(node, one)
        elif not isinstance(one, _NUMBERS):
            raise InputError(
                f"node {node.name!r} does arithmetic on sizes with {type(one).__name__} objects; "
                "expected numbers"
            )
    if node.target is operator.pow and abs(operands[-1]) > _HIGHEST_POWER:
        raise InputError(
            f"node {node.name!r} raises a size to the power of {operands[-1]}; expected at most "
            f"{_HIGHEST_POWER}"
        )


def check_number(node: Node, value: Any) -> None:
    """Raise :class:`InputError` if arithmetic on sizes gave an integer that is no size."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"node {node.name!r} gives a size beyond 64 bits")


def pieces(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the number of tensors that an op returns which cuts a tensor into equal parts;
    ``None`` for every other op.
    """
    if packet not in _CUTS:
        return None
    given = {**dict(zip(("self", *_CUTS[packet]), args, strict=False)), **kwargs}
    shape, dim = given["self"].size(), given.get("dim", 0)
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return None  # torch reports the error
    size = int(shape[dim])
    if packet is aten.unbind:
        return size
    parts = given.get(_CUTS[packet][0])
    if not isinstance(parts, int) or parts < 1:
        return None  # a list, whose length is in the program; or torch reports the error
    if packet in (aten.split, aten.unsafe_split):
        return max(-(-size // parts), 1)
    if packet in (aten.chunk, aten.unsafe_chunk) and size:
        return -(-size // -(-size // parts))
    return parts
