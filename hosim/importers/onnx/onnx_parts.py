"""The part of its first input that an ONNX operator reads, where constants say which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from hosim.importers.onnx.onnx_values import OnnxValue
from hosim.importers.stored import ViewedBytes, region


def shown_of(
    operator: str, inputs: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> ViewedBytes | None:
    """The bytes that a ``Gather`` or a ``Slice`` reads of a tensor; ``None`` where that is not one
    block, not known, or none.
    """
    first = inputs[0] if inputs else None
    if first is None or first.tensor is None or first.tensor.bits % 8 or not first.shape:
        return None
    find = {"Gather": _gathered, "Slice": _sliced}.get(operator)
    bounds = None if find is None else find(first.shape, list(inputs[1:]), attributes)
    if bounds is None or not all(map(len, bounds)):
        return None
    strides = [*accumulate(reversed(first.shape[1:]), int.__mul__, initial=1)][::-1]
    offset = sum(axis.start * stride for axis, stride in zip(bounds, strides, strict=True))
    steps = [axis.step * stride for axis, stride in zip(bounds, strides, strict=True)]
    return region(offset, [len(axis) for axis in bounds], steps, first.tensor.bits // 8)


def _gathered(
    shape: Sequence[int], given: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> list[range] | None:
    axis, rows = int(attributes.get("axis", 0)), _numbers(given, 0)
    if not rows or not -len(shape) <= axis < len(shape):
        return None
    chosen = sorted({row % shape[axis] for row in rows if -shape[axis] <= row < shape[axis]})
    if not chosen or chosen[-1] - chosen[0] >= len(chosen):
        return None
    bounds = [range(size) for size in shape]
    bounds[axis] = range(chosen[0], chosen[-1] + 1)
    return bounds


def _sliced(
    shape: Sequence[int], given: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> list[range] | None:
    found = [
        attributes.get(name, _numbers(given, place))
        for place, name in enumerate(("starts", "ends", "axes", "steps"))
    ]
    if any(
        numbers is None and (place < 2 or given[place : place + 1] not in ([], [None]))
        for place, numbers in enumerate(found)
    ):
        return None
    starts, ends, axes, steps = found
    bounds = [range(size) for size in shape]
    for axis, start, end, step in zip(
        axes or range(len(shape)), starts, ends, steps or [1] * len(shape), strict=False
    ):
        if not -len(shape) <= axis < len(shape) or step < 1:
            return None
        bounds[axis] = range(*slice(start, end, step).indices(shape[axis]))
    return bounds


def _numbers(given: Sequence[OnnxValue | None], place: int) -> list[int] | None:
    value = given[place] if place < len(given) else None
    return (
        None if value is None or value.known is None else [int(n) for n in value.known.reshape(-1)]
    )
