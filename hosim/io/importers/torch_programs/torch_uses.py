"""The part of a storage that a torch kernel reads or writes, from the views in its arguments and
from its indices. Imports torch.

The contents of indices are never read: an index with n entries chooses n rows, as if all were
different.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch

from hosim.io.importers.stored import GROUPED, MASKED, OVERLAP, Use, region, whole

aten = torch.ops.aten

GATHERS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten.take}
"""Ops that read only as much of their first argument as they return."""

OVERWRITES = {aten.copy_, aten.fill_, aten.zero_}
"""In-place ops that do not read the memory that they write."""

_ROWS, _ELEMENTS, _POINTS = "rows", "elements", "points"

_INDEXED: Mapping[Any, tuple[str, int]] = {
    aten.embedding: (_ROWS, 1),
    aten.index_select: (_ROWS, 2),
    aten.index_copy_: (_ROWS, 2),
    aten.index_add_: (_ROWS, 2),
    aten.index_fill_: (_ROWS, 2),
    aten.gather: (_ELEMENTS, 2),
    aten.scatter_: (_ELEMENTS, 2),
    aten.scatter_add_: (_ELEMENTS, 2),
    aten.take: (_ELEMENTS, 1),
    aten.index: (_POINTS, 1),
    aten.index_put_: (_POINTS, 1),
}
"""Ops that touch the elements of their first argument that an index chooses: the kind of its
choice, and its position. At position 2 a dimension precedes it.
"""

_ADDS = {aten.index_add_, aten.scatter_add_}
_MASKS = {aten.masked_fill_, aten.masked_scatter_}
_GROUPED = {"_grouped_mm", "grouped_mm", "grouped_mm_fallback", "_scaled_grouped_mm"}


_REPLACING = ("slice_scatter", "select_scatter", "index_put", "index_copy", "index_fill", "scatter")
_KEEPING = {**{getattr(aten, name): slice(1) for name in _REPLACING}, aten.where: slice(1, 3)}
"""Ops whose result is an argument with a part replaced, and the arguments that this may be."""


def partly_kept(target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an op of which its result may be a copy with a part replaced."""
    return args[_KEEPING.get(getattr(target, "overloadpacket", None), slice(0))]


def extent(tensor: torch.Tensor) -> int:
    """The bytes of a view's distinct elements; expanded dimensions repeat elements."""
    if not tensor.numel():
        return 0
    return int(
        tensor.itemsize
        * prod(n for n, stride in zip(tensor.size(), tensor.stride(), strict=True) if stride)
    )


def grouped_bytes(packet: Any, args: Sequence[Any]) -> int | None:
    """The bytes of its matrices that a grouped product reads: at most as many groups have rows as
    there are rows; ``None`` for other ops.
    """
    if packet.__name__ not in _GROUPED or len(args) < 3 or args[0].dim() != 2 or args[1].dim() != 3:
        return None
    rows, groups = args[0].size(0), args[1].size(0)
    return extent(args[1]) // max(int(groups), 1) * min(int(rows), int(groups))


def uses_of(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    watched: Sequence[tuple[int, torch.Tensor, bool | None]],
    which: Callable[[torch.Tensor], Hashable],
) -> Iterator[Use]:
    """Yield a kernel's uses of the ``watched`` tensors: (number of the storage, tensor, ``None`` if
    it is read, else whether it is an ``out`` argument).

    ``which`` identifies the contents of an index tensor.
    """
    packet = func.overloadpacket
    chosen, masked = _chosen(packet, args, which)
    grouped = grouped_bytes(packet, args)
    for number, tensor, out in watched:
        if not tensor.numel():
            continue
        place = region(
            int(tensor.storage_offset()), tensor.size(), tensor.stride(), tensor.itemsize
        )
        count, key, why = None, None, ""
        if grouped is not None and tensor is args[1]:
            count, key, why = (
                grouped,
                which(args[2]) if isinstance(args[2], torch.Tensor) else None,
                GROUPED,
            )
        elif args and tensor is args[0]:
            (count, key), why = chosen, masked
        fresh = bool(out) or (
            out is False
            and (packet in OVERWRITES or (count is not None and not _adds(packet, args, kwargs)))
        )
        if place is None:
            place, count, why, fresh = (
                whole(tensor.untyped_storage().nbytes()),
                None,
                OVERLAP,
                False,
            )
        elif count is not None and count >= place.bytes:
            count, why, fresh = None, "", False  # some elements may be chosen twice, others never
        if count != 0:
            yield Use(
                number, place, count, None if count is None else key, out is not None, fresh, why
            )


def _adds(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an op that writes at indices also reads the old values."""
    if packet is aten.index_put_:
        return bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    return packet in _ADDS or "reduce" in kwargs


def _chosen(
    packet: Any, args: Sequence[Any], which: Callable[[torch.Tensor], Hashable]
) -> tuple[tuple[int | None, Hashable], str]:
    """Return the number of bytes of its first argument that an op touches by an index, and a key
    for the choice; or the reason that they are not known.
    """
    if packet in _MASKS:
        return (None, None), MASKED
    if packet not in _INDEXED:
        return (None, None), ""
    how, place = _INDEXED[packet]
    x, index = args[0], args[place]
    if how is _POINTS:
        listed = [one for one in index if one is not None]
        if any(one.dtype in (torch.bool, torch.uint8) for one in listed):
            return (None, None), MASKED
        points = prod(torch.broadcast_shapes(*(one.shape for one in listed)))
        inner = prod(
            n for n, one in zip(x.shape, (*index, *[None] * x.dim()), strict=False) if one is None
        )
        key: Hashable = (how, tuple(None if one is None else which(one) for one in index))
        return (points * inner * x.itemsize, key), ""
    dim = args[1] % max(x.dim(), 1) if place == 2 else 0 if how is _ROWS else None
    each = x.numel() // max(x.size(dim), 1) if how is _ROWS and x.dim() else 1
    return (index.numel() * each * x.itemsize, (how, dim, which(index))), ""
