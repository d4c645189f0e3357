"""A tensor of a model with a shape, as the functions that build models see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from hosim.data.graph_parts import part_name
from hosim.io.models.packed import PACKINGS, packed_bytes

ITEM_BYTES = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element by dtype; the widest floating-point dtypes come first."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor with a shape. Values of one ``node`` share a gradient; node 0 has none.

    ``dtype`` may be one of :data:`~hosim.io.models.packed.PACKINGS`, in groups of ``group``;
    ``computes`` is the dtype of an op that multiplies it. ``parts``: the selected parts of a tensor
    that is held in parts (:meth:`Tape.held`). ``stored``: the bytes and the elements of the whole
    tensor in a file, if these give its size and not its dtype.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    node: int = 0
    group: int = 0
    computes: str = ""
    parts: tuple[str, ...] = ()
    stored: tuple[int, int] | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors that hold it."""
        if not self.parts:
            return (self.tensor,)
        return tuple([part_name(self.tensor, part) for part in self.parts])

    def part(self, *names: str) -> Value:
        """Return the value with only those of its parts that have these names; a tensor that is not
        held in parts stays the same.
        """
        return replace(self, parts=tuple([part for part in self.parts if part in names]))

    @property
    def size(self) -> int:
        """The size in bytes."""
        if self.stored is not None:
            size, elements = self.stored
            return prod(self.shape) * size // elements
        if self.dtype in PACKINGS:
            return packed_bytes(self.shape, self.dtype, self.group)
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def rows(self) -> int:
        """The product of all dimensions but the last."""
        return prod(self.shape[:-1])

    def view(self, *shape: int) -> Value:
        """Return the same elements in another shape or order. Neither the view nor its gradient has
        an op.
        """
        return replace(self, shape=shape)
