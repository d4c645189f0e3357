"""The contents of plain values, containers, arrays and random generators, to be compared and put
back. Imports torch.
"""

import array
import contextvars
import ctypes
import enum
import io
import mmap
import random
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from hosim.on_torch.lower.names_in_code import is_own

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, numpy.generic),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
"""Types whose values are compared by themselves."""
_DRAWING = (
    numpy.random.Generator,
    numpy.random.RandomState,
    numpy.random.BitGenerator,
    random.Random,
    torch.Generator,
)
_BYTES = (bytearray, array.array, memoryview, mmap.mmap, ctypes.Array.__mro__[1])
_TEXTS = (io.StringIO, io.BytesIO)


class _ArrayLike(ABC):
    """Objects that numpy can make an array of, as frames of pandas; none of the user's own classes,
    which may have more than the array says.
    """

    @abstractmethod
    def __array__(self) -> Any: ...

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        made = next(
            (vars(one)["__array__"] for one in kind.__mro__ if "__array__" in vars(one)), None
        )
        return made is not None and not is_own(made)


WITHOUT_ITEMS: tuple[Any, ...] = (_ArrayLike, contextvars.ContextVar, *_BYTES, *_TEXTS, *_DRAWING)
"""Of which a walk looks at no items."""
BOXES = (list, MutableMapping, set, deque, *WITHOUT_ITEMS)
MISSING = object()
"""Stands where a name holds nothing."""
MANY = 10_000
"""For a container with more items only their number is watched."""
DEPTH = 6
"""The depth to which containers are compared; below it, objects are equal only if they are the same
one.
"""


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value by itself: numbers and texts, in containers as well; other objects count by
    which one they are.
    """
    if isinstance(value, PLAIN):
        return "nan" if value != value else value
    if depth < DEPTH and isinstance(value, (list, tuple)) and len(value) <= MANY:
        return type(value), tuple(plain(one, depth + 1) for one in value)
    if depth < DEPTH and isinstance(value, dict) and len(value) <= MANY:
        return type(value), tuple((key, plain(one, depth + 1)) for key, one in value.items())
    if isinstance(value, numpy.ndarray):
        return value.shape, value.dtype.str, copied(value)[1]
    return id(value)


def is_plain(value: Any) -> bool:
    """Return whether a value is a number or a text, or a list or tuple of some."""
    return isinstance(value, PLAIN) or (
        isinstance(value, (list, tuple)) and all(map(is_plain, value))
    )


def copied(box: Any) -> Any:
    """Return the contents of a container, or the state of a generator."""
    if isinstance(box, MutableMapping):
        return dict(box) if len(box) <= MANY else len(box)
    if isinstance(box, (list, deque)):
        return list(box) if len(box) <= MANY else len(box)
    if isinstance(box, set):
        return set(box)
    if isinstance(box, _BYTES):
        return _bytes_of(box)
    if isinstance(box, contextvars.ContextVar):
        return plain(box.get(None))
    if isinstance(box, _TEXTS):
        return None if box.closed else (box.getvalue(), box.tell())
    if isinstance(box, _ArrayLike):
        held = _array_of(box)
        bits = (
            numpy.ascontiguousarray(held).tobytes()
            if held.dtype != object
            else repr([plain(one) for one in held.ravel()[:MANY]]).encode()
        )
        return (held.copy() if held.nbytes <= 1 << 24 else None), zlib.crc32(bits)
    return _state_of(box)[0]()


def _array_of(box: Any) -> Any:
    """Return an object as an array; one without elements if it is none yet, as a symbol."""
    try:
        return numpy.asarray(box)
    except Exception:  # whatever the object's own code raises
        return numpy.empty(0)


def _bytes_of(box: Any) -> bytes | None:
    """Return what an object with a buffer has; ``None`` for one that is closed or released."""
    try:
        with memoryview(box) as held:
            return held.tobytes()
    except ValueError:
        return None


def _state_of(drawing: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return how to read and to set the state of a random generator."""
    if isinstance(drawing, random.Random):
        return drawing.getstate, drawing.setstate
    if isinstance(drawing, torch.Generator):
        return lambda: _of_torch(drawing), lambda state: None
    if isinstance(drawing, numpy.random.RandomState):
        return lambda: drawing.get_state(legacy=False), drawing.set_state
    bits = drawing.bit_generator if isinstance(drawing, numpy.random.Generator) else drawing
    return lambda: bits.state, lambda state: setattr(bits, "state", state)


def _of_torch(drawing: torch.Generator) -> tuple[int, ...]:
    with _disable_current_modes():  # the state is a tensor, and a fake one has no contents
        return tuple(drawing.get_state().tolist())


def other_contents(box: Any, before: Any, by_forward: bool) -> bool:
    """Return whether a container or generator holds another thing than ``before``; with
    ``by_forward`` tensors under new names do not count.
    """
    now = copied(box)
    if isinstance(before, dict) and isinstance(now, dict) and isinstance(box, MutableMapping):
        added = now.keys() - before.keys()
        is_more = any(not (by_forward and isinstance(now[key], torch.Tensor)) for key in added)
        return (
            is_more
            or bool(before.keys() - now.keys())
            or any(_differs(before[key], now[key]) for key in before)
        )
    if isinstance(before, list) and isinstance(now, list):
        return len(now) != len(before) or any(map(_differs, before, now))
    if isinstance(box, _ArrayLike):
        return bool(now[1] != before[1])
    return repr(now) != repr(before) if isinstance(box, _DRAWING) else bool(now != before)


def _differs(before: Any, now: Any) -> bool:
    return before is not now and (
        not isinstance(before, PLAIN)
        or not isinstance(now, PLAIN)
        or bool(plain(before) != plain(now))
    )


def refill(box: Any, before: Any) -> None:
    """Let a container hold what it held, or a generator go on where it was."""
    if before is None or isinstance(before, int):
        return
    if isinstance(box, (MutableMapping, set)):
        if (
            len(box) != len(before)
            or isinstance(box, set)
            or any(key not in box or box[key] is not v for key, v in before.items())
        ):
            box.clear()
            box.update(before)
    elif isinstance(box, (list, deque)):
        if len(box) != len(before) or any(a is not b for a, b in zip(box, before, strict=True)):
            box.clear()
            box.extend(before)
    elif isinstance(box, array.array):
        box[:] = array.array(box.typecode, before)
    elif isinstance(box, bytearray):
        box[:] = before
    elif isinstance(box, _BYTES):
        if _bytes_of(box) not in (None, before):
            _write(box, before)
    elif isinstance(box, _TEXTS):
        if copied(box) not in (None, before):  # one that is closed, or shown by a buffer, stays
            box.seek(0)
            box.truncate()
            box.write(before[0])
            box.seek(before[1])
    elif isinstance(box, numpy.ndarray):
        if before[0] is not None and box.flags.writeable and copied(box)[1] != before[1]:
            box[...] = before[0]
    elif isinstance(box, _DRAWING):
        _state_of(box)[1](before)


def _write(box: Any, before: bytes) -> None:
    """Write into a buffer, unless it is read-only or has another size now."""
    with memoryview(box) as held:
        if held.readonly or held.nbytes != len(before):
            return
        if held.c_contiguous:
            held.cast("B")[:] = before
        else:
            items = numpy.asarray(held)
            items[...] = numpy.frombuffer(before, items.dtype).reshape(items.shape)
