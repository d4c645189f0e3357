"""Tensors and ops made of the rows in which a builder of a graph keeps them until it is built.

Names stand in an index, in order. A row has everything else of a tensor, and of an op its kind, how
many inputs, outputs, mutated tensors and earlier ops it names, and the rest of its fields; what it
names stands in one list for all ops.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from hosim.data.frozen_twins import twin_of
from hosim.data.graph_parts import Op, Tensor

TensorRow = tuple[int, str, str | None, bool, str]
"""Bytes, kind, home, persistent, the whole that it is a part of."""

OpRow = tuple[Any, ...]

_TensorTwin, _OpTwin = twin_of(Tensor), twin_of(Op)


def make_tensors(names: Iterable[str], rows: list[TensorRow], made: list[Tensor]) -> None:
    """Make tensors of the rows, which are those of the last names, and take the rows away."""
    for name, (size_bytes, kind, home, persistent, of) in zip(
        islice(names, len(made), None), rows, strict=True
    ):
        tensor = _TensorTwin(name, size_bytes, kind, home, persistent, of)
        tensor.__class__ = Tensor
        made.append(tensor)
    rows.clear()


def make_ops(names: Iterable[str], rows: list[OpRow], named: list[int], made: list[Op]) -> None:
    """Make ops of the rows, which are those of the last names, and of what they name, and take both
    away.
    """
    positions, end = tuple(named), 0  # its slices are tuples
    outputs: tuple[int, ...] = ()
    named.clear()
    for name, row in zip(islice(names, len(made), None), rows, strict=True):
        (
            kind,
            read,
            written,
            mutated,
            awaited,
            stream,
            ns,
            flops,
            accessed,
            dtype,
            room,
            kernel,
            sizes,
            processor,
            others,
            message,
        ) = row
        inputs = positions[end : (end := end + read)]
        if inputs == outputs:
            inputs = outputs  # the same tuple as the op before: chains are long
        outputs = positions[end : (end := end + written)]
        mutates = positions[end : (end := end + mutated)] if mutated else ()
        deps = positions[end : (end := end + awaited)] if awaited else ()
        uses = inputs, outputs, mutates, deps
        op = _OpTwin(
            name,
            kind,
            *uses,
            stream,
            ns,
            flops,
            accessed,
            dtype,
            room,
            kernel,
            sizes,
            processor,
            others,
            message,
        )
        op.__class__ = Op
        made.append(op)
    rows.clear()
