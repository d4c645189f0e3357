"""Fake tensors whose strides are those of the real kernels. Imports torch.

torch's fake of an op says how its result lies in memory, and is sometimes wrong: the fake of
softplus_backward is contiguous, the real result lies as the gradient does. A program traced on
wrong strides takes other ways than eager does, and may fail at its first step.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from hosim.on_torch.lower.op_schema import draws_or_writes

_SMALL = 8
"""Sizes up to this one stay as they are (kernels, groups, heads); larger ones become small ones
that differ from one another.
"""


class TrueLayouts(FakeTensorMode):  # type: ignore[misc]
    """A mode of fake tensors that runs each op once for each layout of its arguments on small real
    tensors, and lays its fake results out as the real ones.

    An op that cannot be run on small tensors (its numbers speak of sizes) keeps torch's answer; so
    do views, ops that write in place, and ops that draw at random.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._known: dict[Any, Any] = {}

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Return the fake result of an op, with the strides of the real one."""
        found = super().dispatch(func, types, args, kwargs or {})
        if not _is_checked(func, found):
            return found
        given = args, dict(kwargs or {})
        key = func, str(tree_map(_written, given))
        if key not in self._known:
            try:
                self._known[key] = _orders(_on_small_tensors(func, given))
            except (RuntimeError, IndexError, ValueError, TypeError):  # as said of such ops above
                self._known[key] = None
        wanted = self._known[key]
        leaves, spec = tree_flatten(found)
        if wanted is None or len(wanted) != len(leaves):
            return found
        with self:
            laid = [_laid_out(leaf, order) for leaf, order in zip(leaves, wanted, strict=True)]
        return spec.unflatten(laid)


def _is_checked(func: Any, found: object) -> bool:
    """Return whether an op makes tensors of its own, and torch's fake of it is composed of other
    ops in Python. The others' layouts are found by the kernel's own rules; some of them end the
    process if their arguments are not what another kernel has noted.
    """
    if not isinstance(func, torch._ops.OpOverload) or func not in decomposition_table:
        return False
    schema = func._schema
    if draws_or_writes(func) or any(
        one.alias_info is not None for one in (*schema.arguments, *schema.returns)
    ):
        return False
    leaves, _ = tree_flatten(found)
    return any(
        isinstance(leaf, FakeTensor) and sum(size > 1 for size in leaf.shape) > 1 for leaf in leaves
    )


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of more than one element, from the largest stride to the smallest."""
    wide = [d for d, size in enumerate(tensor.shape) if size > 1]
    return tuple(sorted(wide, key=lambda d: (-tensor.stride(d), d)))


def _strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """The strides of a tensor without gaps whose dimensions lie in this order in memory."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], step = step, step * shape[d]
    return [step if size == 1 else strides[d] for d, size in enumerate(shape)]


def _is_dense(tensor: torch.Tensor) -> bool:
    strides = _strides(tensor.shape, _order(tensor))
    return tensor.layout == torch.strided and all(
        size <= 1 or tensor.stride(d) == strides[d] for d, size in enumerate(tensor.shape)
    )


def _written(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), tuple(value.stride()), str(value.device)
    return value


def _orders(found: object) -> list[tuple[int, ...] | None]:
    return [
        _order(leaf) if isinstance(leaf, torch.Tensor) and _is_dense(leaf) else None
        for leaf in tree_flatten(found)[0]
    ]


def _laid_out(leaf: Any, order: tuple[int, ...] | None) -> Any:
    """A fake result with its dimensions in this order in memory."""
    if not isinstance(leaf, FakeTensor) or order is None or _order(leaf) == order:
        return leaf
    if {*order} != {*_order(leaf)} or not _is_dense(leaf):
        return leaf
    strides = _strides(leaf.shape, order)
    return torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=leaf.device)


def _on_small_tensors(func: Callable[..., Any], given: Any) -> Any:
    """The result of an op on real tensors of ones, whose large sizes are made small."""
    tensors = [one for one in tree_flatten(given)[0] if isinstance(one, torch.Tensor)]
    if not tensors or any(
        one.layout != torch.strided or one.dtype == torch.uint8 or not one.numel()
        for one in tensors
    ):
        # bytes, or no element, may be what a kernel has noted for its backward: ones for it would
        # end the process
        raise ValueError("not plain tensors of numbers")
    sizes = sorted({size for one in tensors for size in one.shape if size > _SMALL})
    small = dict(zip(sizes, count(_SMALL + 1), strict=False))

    def real(value: torch.Tensor) -> torch.Tensor:
        return _ones_laid_out(value, [small.get(size, size) for size in value.shape])

    def listed(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value):
            return type(value)([small.get(x, x) for x in value])
        return value

    with _disable_current_modes(), torch.no_grad():
        args, kwargs = tree_map(
            listed, given, is_leaf=lambda x: isinstance(x, (list, tuple)) and listed(x) is not x
        )
        args, kwargs = tree_map_only(torch.Tensor, real, (args, kwargs))
        return func(*args, **kwargs)


def _ones_laid_out(like: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Real ones (zeros of integers, which may be positions) of a shape, with the dimensions in
    memory as another tensor has them.
    """
    expanded = {d for d, step in enumerate(like.stride()) if step == 0}
    order = sorted(range(like.dim()), key=lambda d: (-like.stride(d), d))
    laid = [1 if d in expanded else shape[d] for d in order]
    fill = torch.ones if like.dtype.is_floating_point or like.dtype.is_complex else torch.zeros
    made = fill(laid, dtype=like.dtype, device=like.device)
    return made.permute([order.index(d) for d in range(like.dim())]).expand(shape)
