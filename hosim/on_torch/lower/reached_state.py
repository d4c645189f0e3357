"""The state of Python that a model and its loss reach: attributes, closures, globals and what lies
in their containers. Imports torch.

A captured program has what its code read at the capture. :class:`Reached` walks to everything that
this code can read by name, keeps it, and says later what is another. It walks through the user's
own functions (those of installed packages are taken as they are), through closures, defaults, the
globals and the attributes that a function names, containers, and modules that are not part of the
model, such as the criterion of a loss. What it cannot reach (a clock, a counter written in C)
differs between two traces of the same step, which are compared
(:func:`hosim.on_torch.lower.two_traces.require_alike`).
"""

from __future__ import annotations

import enum
import functools
import random
import sys
import sysconfig
import types
import zlib
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

OF_MODULES = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has: its parameters, buffers and hooks are looked after
elsewhere.
"""

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, numpy.generic),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
_DRAWING = (
    numpy.random.Generator,
    numpy.random.RandomState,
    numpy.random.BitGenerator,
    random.Random,
    torch.Generator,
)
_BOXES = (list, MutableMapping, set, deque, bytearray, numpy.ndarray, *_DRAWING)
_MISSING = object()
_MANY = 10_000
"""For a container with more items only their number is watched."""
_DEPTH = 6
"""How deep in one another containers are compared; below, an object counts by which one it is."""
_INSTALLED = tuple(
    {sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_NOT_WALKED = ("torch", "numpy", "builtins")
_CALLED = ("forward", "backward", "setup_context", "__call__", "__getattr__", "__getitem__")
"""Methods that are called under no name of the user's."""


Made = tuple[MutableMapping[Any, Any], Any, torch.Tensor]
"""A dictionary or the attributes of a module, the name in it, and the tensor that is kept there
since the capture began.
"""


@dataclass(frozen=True, eq=False, slots=True)
class _Slot:
    """A name that holds something; ``holder`` is a dictionary, a cell, a class or an object with
    slots.

    Without ``reads`` no code is known to read it.
    """

    place: str
    key: str
    holder: Any
    name: str
    before: Any
    plain: Any
    reads: bool

    def now(self) -> Any:
        if isinstance(self.holder, types.CellType):
            try:
                return self.holder.cell_contents
            except ValueError:
                return _MISSING
        if isinstance(self.holder, (dict, type)):
            named = self.holder if isinstance(self.holder, dict) else vars(self.holder)
            return named.get(self.name, _MISSING)
        return getattr(self.holder, self.name, _MISSING)

    def restore(self) -> None:
        if self.now() is self.before:
            return
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = self.before
        elif isinstance(self.holder, dict):
            self.holder[self.name] = self.before
        else:
            setattr(self.holder, self.name, self.before)


@dataclass(frozen=True, eq=False, slots=True)
class _Contents:
    """A container, a random generator or an array, with what it held."""

    place: str
    key: str
    box: Any
    before: Any
    reads: bool


class Reached:
    """The objects that ``model`` and ``functions`` (by what to call each) reach now. ``modules``
    are those of the model and of the functions.
    """

    def __init__(self, model: torch.nn.Module, functions: dict[str, Any]) -> None:
        self._names: set[str] = set()
        while True:
            known = len(self._names)
            self._slots: dict[tuple[int, str], _Slot] = {}
            self._contents: dict[int, _Contents] = {}
            self._seen: dict[Any, Any] = {}
            self._outside = set(functions)
            self.modules: dict[int, tuple[str, torch.nn.Module]] = {}
            for name, module in model.named_modules():
                self._visit(f"module {name!r}" if name else type(model).__name__, "", module, True)
            for place, function in functions.items():
                self._visit(place, "", function, True)
            if (
                len(self._names) == known
            ):  # what was found last may name attributes of what was found first
                return

    def changed(self, *, by_forward: bool) -> tuple[str, str] | None:
        """Place and name of the first thing that is another than it was; ``None`` if there is none.

        With ``by_forward`` it is asked right after the code ran: then an object that is made anew
        at each call, and a tensor kept for later, is no change; :meth:`made` has these tensors.
        Without it, only what code is known to read counts, and numbers.
        """
        for slot in self._slots.values():
            now = slot.now()
            if now is not slot.before and (
                slot.reads or by_forward or isinstance(slot.before, (int, float, str, torch.Tensor))
            ):
                moved = _moved_by_forward(slot, now) if by_forward else _moved(slot, now)
                if moved:
                    return slot.place, slot.key
        for one in self._contents.values():
            if (one.reads or by_forward) and _other_contents(one, by_forward):
                return one.place, one.key
        return None

    def made(self) -> list[Made]:
        """Tensors that are kept now where none was, with the dictionary and the name."""
        nones = [
            one
            for one in self._slots.values()
            if one.before is None and isinstance(one.holder, dict)
        ]
        found: list[Made] = [
            (one.holder, one.name, now)
            for one in nones
            if isinstance(now := one.now(), torch.Tensor)
        ]
        known = {(id(one.holder), one.name) for one in self._slots.values()}
        boxes: list[tuple[MutableMapping[Any, Any], Container[Any]]]
        boxes = [
            (one.box, one.before)
            for one in self._contents.values()
            if isinstance(one.before, dict) and isinstance(one.box, MutableMapping)
        ]
        boxes += [(vars(module), OF_MODULES) for _, module in self.modules.values()]
        for box, before in boxes:
            added = [
                (key, value)
                for key, value in box.items()
                if key not in before and (id(box), key) not in known
            ]
            found += [(box, key, value) for key, value in added if isinstance(value, torch.Tensor)]
        return found

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the place where a tensor, or one that shares its storage, was found."""
        storage = tensor.untyped_storage()._cdata

        def is_it(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == storage

        for slot in self._slots.values():
            if is_it(slot.before):
                return f"{slot.key!r} of {slot.place}"
        for one in self._contents.values():
            items = (
                one.before.items()
                if isinstance(one.before, dict)
                else enumerate(one.before)
                if isinstance(one.before, list)
                else ()
            )
            for key, value in items:
                if is_it(value):
                    return f"{f'{one.key}[{key!r}]'!r} of {one.place}"
        return None

    def kept_by_modules(self) -> set[int]:
        """The storage of each tensor that a module has: as a parameter or a buffer, or in an
        attribute and what that reaches.
        """
        found: set[int] = set()
        for _, module in self.modules.values():
            for value in (*module._parameters.values(), *module._buffers.values()):
                found |= {tensor.untyped_storage()._cdata for tensor in _tensors(value)}
        places: list[_Slot | _Contents] = [*self._slots.values(), *self._contents.values()]
        for one in places:
            if one.place not in self._outside:
                found |= {tensor.untyped_storage()._cdata for tensor in _tensors(one.before)}
        return found

    def restore(self) -> None:
        """Put everything back."""
        for one in self._contents.values():
            _refill(one.box, one.before)
        for slot in self._slots.values():
            slot.restore()

    # -- the walk
    # ----------------------------------------------------------------------------------------------

    def _slot(self, place: str, key: str, holder: Any, name: str, value: Any, reads: bool) -> None:
        found = self._slots.get((id(holder), name))
        if found is None or (reads and not found.reads):
            self._slots[id(holder), name] = _Slot(
                place, key, holder, name, value, _plain(value), reads
            )
            self._visit(place, key, value, reads)

    def _visit(self, place: str, key: str, value: Any, reads: bool) -> None:
        if isinstance(value, (*_PLAIN, torch.Tensor)):
            return
        if isinstance(value, (tuple, frozenset)):
            for i, one in enumerate(value):
                self._visit(place, f"{key}[{i}]", one, reads)
            return
        seen = self._seen.get(id(value))
        if seen is not None and (seen[1] or not reads):
            return
        self._seen[id(value)] = value, reads
        if isinstance(value, _BOXES):
            self._contents[id(value)] = _Contents(place, key, value, _copied(value), reads)
            items = (
                value.items()
                if isinstance(value, MutableMapping)
                else enumerate(value)
                if isinstance(value, (list, deque))
                else ()
            )
            if not isinstance(value, (numpy.ndarray, *_DRAWING)) and len(value) <= _MANY:
                for name, one in list(items):
                    self._visit(place, f"{key}[{name!r}]", one, reads)
        elif isinstance(value, torch.nn.Module):
            self._module(place if not key else f"{key!r} of {place}", value, reads)
        elif isinstance(value, types.FunctionType):
            if reads and _is_own(value):
                self._function(place, value)
        elif isinstance(value, types.MethodType):
            self._visit(place, key, value.__func__, reads)
            self._visit(place, key or "self", value.__self__, reads)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(place, key, part, reads)
        elif isinstance(value, types.ModuleType):
            is_pythons = (
                value.__name__ in sys.stdlib_module_names
            )  # of which only the environment counts
            named = {
                k: v
                for k, v in vars(value).items()
                if not is_pythons or isinstance(v, MutableMapping)
            }
            self._attributes(place, key, vars(value), value.__name__, reads, named)
        elif isinstance(value, type):
            self._class(place, key, value, reads)
        else:
            self._attributes(
                place, key, getattr(value, "__dict__", {}), type(value).__module__, reads
            )
            self._class(place, key, type(value), reads)
            for name in sorted(self._names) if reads else ():
                if isinstance(
                    getattr(type(value), name, None), types.MemberDescriptorType
                ) and hasattr(value, name):
                    self._slot(
                        place,
                        f"{key}.{name}" if key else name,
                        value,
                        name,
                        getattr(value, name),
                        True,
                    )

    def _module(self, place: str, module: torch.nn.Module, reads: bool) -> None:
        if id(module) in self.modules:
            return
        self.modules[id(module)] = place, module
        self._class(place, "", type(module), reads)
        for name, value in list(vars(module).items()):
            if name not in OF_MODULES:
                self._slot(place, name, vars(module), name, value, reads and name in self._names)
        for name, part in module.named_children():
            self._visit(f"{place}.{name}", "", part, reads)

    def _attributes(
        self,
        place: str,
        key: str,
        named: dict[str, Any],
        home: str,
        reads: bool,
        only: Collection[str] = (),
    ) -> None:
        """Attributes of a module of Python or of an object, as far as code names them."""
        if reads and home.partition(".")[0] not in _NOT_WALKED:
            for name in sorted(self._names & set(only or named)):
                self._slot(place, f"{key}.{name}" if key else name, named, name, named[name], True)

    def _class(self, place: str, key: str, kind: type, reads: bool) -> None:
        """The attributes of a class of the user that code names, and its methods."""
        if not reads or ("class", kind) in self._seen:
            return
        self._seen["class", kind] = kind, True
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] in _NOT_WALKED:
                continue
            for name, value in list(vars(base).items()):
                if name not in self._names and name not in _CALLED:
                    continue
                called = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(called, types.FunctionType):
                    if _is_own(called):
                        self._function(place, called)
                    else:
                        self._names |= set(_named(called.__code__))
                elif not isinstance(
                    value, (property, types.MemberDescriptorType, types.GetSetDescriptorType)
                ):
                    self._slot(place, f"{key}.{name}" if key else name, base, name, value, True)

    def _function(self, place: str, function: types.FunctionType) -> None:
        if id(function.__code__) in self._seen and not function.__closure__:
            return
        self._seen[id(function.__code__)] = function.__code__, True
        names = set(_named(function.__code__))
        self._names |= names
        place = place if place in self._outside else f"the code of {place}"
        self._outside.add(place)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            slot = _Slot("", "", cell, "", None, None, True)
            if slot.now() is not _MISSING and name != "__class__":
                self._slot(place, name, cell, name, slot.now(), True)
        for name in sorted(names & set(function.__globals__)):
            if not name.startswith("__"):
                self._slot(
                    place, name, function.__globals__, name, function.__globals__[name], True
                )
        for value in (function.__defaults__ or (), function.__kwdefaults__ or {}, vars(function)):
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                self._visit(place, f"{function.__name__}'s default {key}", one, True)


def _named(code: types.CodeType) -> Iterator[str]:
    """Every name in a function: of globals, attributes, and texts that may be names."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _is_own(function: types.FunctionType) -> bool:
    """Return whether a function is the user's, and not of an installed package."""
    return not function.__code__.co_filename.startswith(_INSTALLED)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the value by itself: numbers and texts, in containers as well; other objects count by
    which one they are.
    """
    if isinstance(value, _PLAIN):
        return "nan" if value != value else value
    if depth < _DEPTH and isinstance(value, (list, tuple)) and len(value) <= _MANY:
        return type(value), tuple(_plain(one, depth + 1) for one in value)
    if depth < _DEPTH and isinstance(value, dict) and len(value) <= _MANY:
        return type(value), tuple((key, _plain(one, depth + 1)) for key, one in value.items())
    if isinstance(value, numpy.ndarray):
        return value.shape, value.dtype.str, _copied(value)[1]
    return id(value)


def _moved(slot: _Slot, now: Any) -> bool:
    """Return whether a name holds another thing for a call; one that lets a tensor of a module go
    frees memory, as users do.
    """
    if isinstance(slot.before, torch.Tensor):
        return now is not None
    return bool(_plain(now) != slot.plain) if now is not _MISSING else True


def _moved_by_forward(slot: _Slot, now: Any) -> bool:
    """Return whether code moves a name from one number to another: what it makes anew, or keeps
    once, another call makes as well.
    """
    if isinstance(slot.before, _PLAIN):
        return (
            not isinstance(now, torch.Tensor)
            and now is not _MISSING
            and _is_number(now)
            and bool(_plain(now) != slot.plain)
        )
    if isinstance(slot.before, tuple) and isinstance(now, tuple):
        return [one for one in now if isinstance(one, _PLAIN)] != [
            one for one in slot.before if isinstance(one, _PLAIN)
        ]
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, _PLAIN)


def _copied(box: Any) -> Any:
    """Return the contents of a container, or the state of a generator."""
    if isinstance(box, MutableMapping):
        return dict(box) if len(box) <= _MANY else len(box)
    if isinstance(box, (list, deque)):
        return list(box) if len(box) <= _MANY else len(box)
    if isinstance(box, set):
        return set(box)
    if isinstance(box, bytearray):
        return bytes(box)
    if isinstance(box, numpy.ndarray):
        plain = box.dtype != object
        return (box.copy() if box.nbytes <= 1 << 24 else None), zlib.crc32(
            numpy.ascontiguousarray(box).tobytes()
        ) if plain else 0
    return _state_of(box)[0]()


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


def _other_contents(one: _Contents, by_forward: bool) -> bool:
    now = _copied(one.box)
    if (
        isinstance(one.before, dict)
        and isinstance(now, dict)
        and isinstance(one.box, MutableMapping)
    ):
        added = now.keys() - one.before.keys()
        is_more = any(not (by_forward and isinstance(now[key], torch.Tensor)) for key in added)
        return (
            is_more
            or bool(one.before.keys() - now.keys())
            or any(_differs(one.before[key], now[key]) for key in one.before)
        )
    if isinstance(one.before, list) and isinstance(now, list):
        return len(now) != len(one.before) or any(map(_differs, one.before, now))
    if isinstance(one.box, numpy.ndarray):
        return bool(now[1] != one.before[1])
    return (
        repr(now) != repr(one.before) if isinstance(one.box, _DRAWING) else bool(now != one.before)
    )


def _differs(before: Any, now: Any) -> bool:
    return before is not now and (
        not isinstance(before, _PLAIN) or not _is_number(now) or bool(_plain(before) != _plain(now))
    )


def _refill(box: Any, before: Any) -> None:
    """Let a container hold what it held, or a generator go on where it was."""
    if isinstance(before, int):
        return
    if isinstance(box, (MutableMapping, set)):
        if (
            len(box) != len(before)
            or isinstance(box, set)
            or any(box.get(key, _MISSING) is not v for key, v in before.items())
        ):
            box.clear()
            box.update(before)
    elif isinstance(box, (list, deque)):
        if len(box) != len(before) or any(a is not b for a, b in zip(box, before, strict=True)):
            box.clear()
            box.extend(before)
    elif isinstance(box, bytearray):
        box[:] = before
    elif isinstance(box, numpy.ndarray):
        if before[0] is not None and box.flags.writeable and _copied(box)[1] != before[1]:
            box[...] = before[0]
    else:
        _state_of(box)[1](before)


def _tensors(value: Any, depth: int = 0) -> Sequence[torch.Tensor]:
    """The tensors in an attribute that is one, or a container of some."""
    if isinstance(value, torch.Tensor):
        return [value]
    inside = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple, set, deque))
        else ()
    )
    return (
        [tensor for one in inside for tensor in _tensors(one, depth + 1)] if depth < _DEPTH else []
    )
