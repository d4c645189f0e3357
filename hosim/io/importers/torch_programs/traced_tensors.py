"""Tensors in execution traces, and the storages behind them.

PyTorch's execution trace observer (and Chakra, which is based on it) writes a tensor as ``[tensor
id, storage id, offset, elements, bytes per element, device]``. A storage id may be reused once its
storage is freed, so a trace is followed in program order: a storage that an op returns without
taking it is a new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LARGEST = 1 << 60  # bytes, elements and ids beyond any machine: a damaged record
DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
"""hosim's names of dtypes, by their C++ names in recordings."""


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """One mention of a tensor: the id of its storage in the trace, and the bytes from the storage's
    start to the tensor's last element.

    ``shown_bytes`` are the bytes of its distinct elements: an expanded tensor repeats elements.
    """

    storage: int
    reach_bytes: int
    device: str
    shown_bytes: int = 0

    @property
    def on_accelerator(self) -> bool:
        """Return whether it is on an accelerator, not in host memory and not on the meta device."""
        return self.device not in ("", "cpu", "meta")


def traced_tensors(value: Any, shape: Any = None, strides: Any = None) -> tuple[TracedTensor, ...]:
    """Return every tensor in a recorded argument, in lists of any depth (walked without recursion).

    ``shape`` and ``strides``, if the trace has them, are nested as ``value`` is: an expanded tensor
    reaches less than its elements would.
    """
    found = []
    waiting = [(value, shape, strides)]
    while waiting:
        value, shape, strides = waiting.pop()
        if not isinstance(value, (list, tuple)):
            continue
        if (
            len(value) == 6
            and isinstance(value[5], str)
            and all(type(part) is int for part in value[:5])
        ):
            _, storage, offset, elements, item_bytes, device = value
            if min(storage, offset, elements, item_bytes) < 0:
                continue
            span = _span(elements, shape, strides)
            reach = (offset + span) * item_bytes
            if max(storage, reach) < _LARGEST:
                found.append(TracedTensor(storage, reach, device, min(elements, span) * item_bytes))
        else:
            parts = zip(value, _parts(shape, len(value)), _parts(strides, len(value)), strict=True)
            waiting.extend(reversed(list(parts)))
    return tuple(found)


def _parts(nested: Any, count: int) -> Sequence[Any]:
    return nested if isinstance(nested, list) and len(nested) == count else (None,) * count


def _span(elements: int, shape: Any, strides: Any) -> int:
    """The number of elements from a tensor's first to its last; the tensor counts as contiguous if
    the strides are unknown.
    """
    for part in (shape, strides):
        if not isinstance(part, list) or not all(type(n) is int and n >= 0 for n in part):
            return elements
    if len(shape) != len(strides) or not elements:
        return elements
    return 1 + sum(int((n - 1) * stride) for n, stride in zip(shape, strides, strict=True) if n)


def dtype_of_types(types: Any) -> str:
    """The dtype of the first tensor in a record's list of types, such as ``fp32`` for
    ``Tensor(float)``; ``fp32`` if there is none.
    """
    for name in types if isinstance(types, list) else ():
        if isinstance(name, str) and name.startswith("Tensor("):
            return DTYPES.get(name[7:-1], "fp32")
    return "fp32"


class Storages:
    """The storages of a trace, numbered in the order of their first use, each with the largest
    reach of its tensors.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.at_start: list[bool] = []
        self._now: dict[int, int] = {}

    def knows(self, tensor: TracedTensor) -> bool:
        """Return whether the storage of ``tensor`` has been seen."""
        return tensor.storage in self._now

    def existing(self, tensor: TracedTensor) -> int:
        """Return the number of the storage that holds ``tensor`` now. A storage that was not seen
        before existed when the trace began.
        """
        number = self._now.get(tensor.storage)
        if number is None:
            return self._new(tensor, at_start=True)
        self.sizes[number] = max(self.sizes[number], tensor.reach_bytes)
        return number

    def fresh(self, tensor: TracedTensor) -> int:
        """Return the number of a new storage for ``tensor``, which its id refers to from now on."""
        return self._new(tensor, at_start=False)

    def _new(self, tensor: TracedTensor, *, at_start: bool) -> int:
        self._now[tensor.storage] = len(self.sizes)
        self.sizes.append(tensor.reach_bytes)
        self.at_start.append(at_start)
        return len(self.sizes) - 1
