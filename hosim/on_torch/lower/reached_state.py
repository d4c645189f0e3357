"""The state of Python that a model and its loss reach: attributes, closures, globals and what lies
in their containers. Imports torch.

A captured program has what its code read at the capture. :class:`Reached` walks to everything that
this code can read by name, keeps it, and says later what is another. It walks through the user's
own functions (those of installed packages are taken as they are), through closures, defaults, the
globals and the attributes that a function names, containers, and modules that are not part of the
model, such as the criterion of a loss. What it cannot reach (a clock) differs between two traces of
the same step, which are compared (:func:`hosim.on_torch.lower.two_traces.require_alike`).
"""

import builtins
import functools
import gc
import io
import operator
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from hosim.on_torch.lower.held_contents import (
    BOXES,
    DEPTH,
    MANY,
    MISSING,
    PLAIN,
    WITHOUT_ITEMS,
    copied,
    other_contents,
    plain,
    refill,
)
from hosim.on_torch.lower.names_in_code import (
    ANY,
    globals_of,
    is_own,
    is_own_module,
    makes_names,
    named_in,
)

OF_MODULES = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has: its parameters, buffers and hooks are looked after
elsewhere.
"""

_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_NOT_WALKED = ("torch", "numpy", "builtins", "logging", "hosim")
_CALLED = ("forward", "backward", "setup_context")
"""Methods that are called under no name of the user's, as are those with two underscores."""
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")
"""Of what a function consists that may be replaced in it."""
_MAKES = ("__new__", "__init__")
"""Methods that a call of a class calls."""
_OF_CLASSES = frozenset((*vars(type), *vars(object), "__annotations__", "__weakref__")) - {
    "__call__", "__getattribute__", "__setattr__", "__delattr__", "__hash__", "__eq__", "__ne__",
    "__lt__", "__le__", "__gt__", "__ge__", "__str__", "__repr__", "__format__",
}  # fmt: skip
"""Names that every class has and that no use of its objects calls."""


Made = tuple[MutableMapping[Any, Any], Any, Any]
"""A dictionary or the attributes of a module, the name in it, and the tensor or number that is kept
there since the capture began.
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
                return MISSING
        if isinstance(self.holder, (dict, type)):
            named = self.holder if isinstance(self.holder, dict) else vars(self.holder)
            return named.get(self.name, MISSING)
        return getattr(self.holder, self.name, MISSING)

    def restore(self) -> None:
        if self.now() is self.before:
            return
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = self.before
        elif self.before is MISSING:
            self.holder.pop(self.name, None)
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


@dataclass(frozen=True, eq=False, slots=True)
class _Namespace:
    """An object, its class with those that this inherits from, and the attributes that it had."""

    place: str
    key: str
    owner: Any
    kinds: tuple[type, ...]
    before: frozenset[str]


class Reached:
    """The objects that ``model`` and ``functions`` (by what to call each) reach now. ``modules``
    are those of the model and of the functions.
    """

    def __init__(self, model: torch.nn.Module, functions: dict[str, Any]) -> None:
        self.leaves: list[Made] = []
        """The values that the last trace left (:meth:`left`)."""
        self._names: set[str] = set()
        while True:
            known = len(self._names)
            self._slots: dict[tuple[int, str], _Slot] = {}
            self._contents: dict[int, _Contents] = {}
            self._namespaces: list[_Namespace] = []
            self._seen: dict[Any, Any] = {}
            self.iterators: list[tuple[str, str]] = []
            self._outside = set(functions)
            self.modules: dict[int, tuple[str, torch.nn.Module]] = {}
            self._ahead: list[tuple[str, str, Any, bool]] = []
            for name, module in model.named_modules():
                self._visit(f"module {name!r}" if name else type(model).__name__, "", module, True)
            for place, function in functions.items():
                self._visit(place, "", function, True)
            self._walk()
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
            if (one.reads or by_forward) and other_contents(one.box, one.before, by_forward):
                return one.place, one.key
        for space in () if by_forward else self._namespaces:
            if type(space.owner).__mro__ != space.kinds:
                return space.place, f"{space.key}.__class__" if space.key else "__class__"
            owns = _attributes_of(space.owner) or {}
            if not owns.keys() <= space.before:
                added = {
                    name
                    for name in owns.keys() - space.before
                    if self._is_named(name) or _is_called(name)
                }
                if added:
                    return space.place, f"{space.key}.{min(added)}" if space.key else min(added)
        return None

    def made(self) -> list[Made]:
        """Tensors and numbers that are kept now where none was, with the dictionary and the
        name.
        """
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
        for box, before in self._named_boxes():
            found += [
                (box, key, box[key])
                for key in box.keys() - before
                if isinstance(box[key], (torch.Tensor, *PLAIN))
            ]
        return found

    def left(self) -> list[Made]:
        """The names under which code has just left something: each that holds another object than
        before, and each new one, with what it holds.
        """
        found: list[Made] = [
            (one.holder, one.name, now)
            for one in self._slots.values()
            if isinstance(one.holder, dict)
            and (now := one.now()) is not one.before
            and now is not MISSING
        ]
        for box, before in self._named_boxes():
            found += [(box, key, box[key]) for key in box.keys() - before]
        return list({(id(box), key): (box, key, value) for box, key, value in found}.values())

    def take(self, holder: MutableMapping[Any, Any], name: Any, value: Any) -> None:
        """Take it that a name holds this from now on."""
        slot = self._slots.get((id(holder), name))
        if slot is not None:
            self._slots[id(holder), name] = replace(slot, before=value, plain=plain(value))
        contents = self._contents.get(id(holder))
        if contents is not None and isinstance(contents.before, dict):
            contents.before[name] = value
        self._namespaces = [
            replace(one, before=one.before | {name}) if vars(one.owner) is holder else one
            for one in self._namespaces
        ]

    def _named_boxes(self) -> Iterator[tuple[MutableMapping[Any, Any], Collection[Any]]]:
        """Each dictionary and each object's attributes, with the names that were there."""
        for one in self._contents.values():
            if isinstance(one.before, dict) and isinstance(one.box, MutableMapping):
                yield one.box, one.before.keys()
        for space in self._namespaces:
            yield _attributes_of(space.owner) or {}, space.before

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the place where a tensor, or one that shares its storage, was found."""
        storage = tensor.untyped_storage()._cdata

        def is_it(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == storage

        for slot in self._slots.values():
            if is_it(slot.before):
                return f"{slot.key!r} of {slot.place}"
        for one in self._contents.values():
            for key, value in _items(one.before):
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
        for space in self._namespaces:
            owns = _attributes_of(space.owner) or {}
            for key in owns.keys() - space.before:
                del owns[key]
        for one in self._contents.values():
            refill(one.box, one.before)
        for slot in self._slots.values():
            slot.restore()

    # -- the walk
    # ----------------------------------------------------------------------------------------------

    def _slot(self, place: str, key: str, holder: Any, name: str, value: Any, reads: bool) -> None:
        found = self._slots.get((id(holder), name))
        if found is None or (reads and not found.reads):
            self._slots[id(holder), name] = _Slot(
                place, key, holder, name, value, plain(value), reads
            )
            self._visit(place, key, value, reads)

    def _visit(self, place: str, key: str, value: Any, reads: bool) -> None:
        if not isinstance(value, (*PLAIN, torch.Tensor)):
            self._ahead.append((place, key, value, reads))

    def _walk(self) -> None:
        """Look at all that is ahead, what an object holds right after it. No call holds another, as
        lists may be nested deeper than Python's calls.
        """
        self._ahead.reverse()
        while self._ahead:
            one = self._ahead.pop()
            rest = len(self._ahead)
            self._look_at(*one)
            self._ahead[rest:] = reversed(self._ahead[rest:])

    def _look_at(self, place: str, key: str, value: Any, reads: bool) -> None:
        if isinstance(value, (tuple, frozenset)):
            for i, one in enumerate(value):
                self._visit(place, f"{key}[{i}]", one, reads)
            return
        seen = self._seen.get(id(value))
        if seen is not None and (seen[1] or not reads):
            return
        self._seen[id(value)] = value, reads
        if isinstance(value, BOXES):
            self._box(place, key, value, reads)
        elif isinstance(value, torch.nn.Module):
            self._module(place if not key else f"{key!r} of {place}", value, reads)
        elif isinstance(value, types.FunctionType):
            if reads and is_own(value):
                self._function(place, value)
            elif reads:
                self._installed(place, value)
        elif isinstance(value, Iterator) and not is_own(type(value).__next__):
            if reads and not isinstance(value, io.IOBase):
                self.iterators.append((place, key))
        elif isinstance(value, types.MethodType):
            self._visit(place, key, value.__func__, reads)
            self._visit(place, key or "self", value.__self__, reads)
        elif isinstance(value, weakref.ref):
            self._visit(place, key, value(), reads)
        elif isinstance(value, types.MappingProxyType):
            for one in gc.get_referents(value):  # the mapping that it shows
                self._visit(place, key, one, reads)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(place, key, part, reads)
        elif isinstance(value, _GETTERS):
            for name in value.__reduce__()[1]:
                self._names |= {*name.split(".")} if isinstance(name, str) else set()
        elif isinstance(value, types.ModuleType):
            self._python_module(place, key, value, reads)
        elif isinstance(value, type):
            self._class(place, key, value, reads)
            self._class(place, key, type(value), reads)
            for name, base in product(_MAKES, value.__mro__):
                made_by = vars(base).get(name)
                made_by = getattr(made_by, "__func__", made_by)
                if isinstance(made_by, types.FunctionType):
                    self._visit(place, key, made_by, reads)
        else:
            self._object(place, key, value, reads)

    def _box(self, place: str, key: str, box: Any, reads: bool) -> None:
        """A container, a random generator or an array, and what lies in it."""
        if box is not sys.modules:  # it grows where code imports, and must keep what it has
            self._contents[id(box)] = _Contents(place, key, box, copied(box), reads)
        if isinstance(box, WITHOUT_ITEMS) or len(box) > MANY:
            return
        for name, one in _items(box):
            # of all modules only the user's: others have objects that import when asked
            if box is not sys.modules or is_own_module(one):
                self._visit(place, f"{key}[{name!r}]", one, reads)

    def _python_module(self, place: str, key: str, module: types.ModuleType, reads: bool) -> None:
        """The attributes of a module of Python that code names."""
        counts: tuple[type, ...] = (object,)
        package = module.__name__.partition(".")[0]
        if package in sys.stdlib_module_names:
            # the environment, the arguments of the program, and who reads them
            counts = (MutableMapping, list, types.FunctionType)
        elif package in _NOT_WALKED:
            counts = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
        named = {
            name
            for name in self._names & vars(module).keys()
            if issubclass(type(vars(module)[name]), counts)
        }
        self._attributes(place, key, vars(module), reads, named)

    def _object(self, place: str, key: str, value: Any, reads: bool) -> None:
        """An object of any other class: its attributes, its class and its slots."""
        own = None if _room_of(type(value)) == "hosim" else _attributes_of(value)
        if own is not None:
            self._visit(place, key, own.get("__wrapped__"), reads)
        if reads and own is not None:
            only: Collection[str] = own
            if _room_of(type(value)) == "logging":  # loggers keep what is logged, at each call
                only = self._names & own.keys()
            else:
                self._namespace(place, key, value)
            self._attributes(place, key, own, reads, only)
        self._class(place, key, type(value), reads)
        for name in sorted(filter(self._is_named, _slots_of(type(value)))) if reads else ():
            if hasattr(value, name):
                named = f"{key}.{name}" if key else name
                self._slot(place, named, value, name, getattr(value, name), True)

    def _module(self, place: str, module: torch.nn.Module, reads: bool) -> None:
        if id(module) in self.modules:
            return
        self.modules[id(module)] = place, module
        if reads:
            self._namespace(place, "", module)
        self._class(place, "", type(module), reads)
        for name, value in list(vars(module).items()):
            if name not in OF_MODULES:
                self._slot(place, name, vars(module), name, value, reads and self._is_named(name))
        for name, part in module.named_children():
            self._visit(f"{place}.{name}", "", part, reads)

    def _namespace(self, place: str, key: str, owner: Any) -> None:
        self._namespaces.append(
            _Namespace(
                place, key, owner, type(owner).__mro__, frozenset(_attributes_of(owner) or ())
            )
        )

    def _attributes(
        self, place: str, key: str, named: dict[str, Any], reads: bool, only: Collection[str]
    ) -> None:
        """Attributes of a module of Python or of an object, as far as code names them."""
        for name in sorted(filter(self._is_named, only)) if reads else ():
            self._slot(place, f"{key}.{name}" if key else name, named, name, named[name], True)

    def _class(self, place: str, key: str, kind: type, reads: bool) -> None:
        """The attributes of a class of the user that code names, and its methods."""
        if not reads or ("class", kind) in self._seen:
            return
        self._seen["class", kind] = kind, True
        for base in kind.__mro__:
            if _room_of(base) in _NOT_WALKED and not base.__module__.startswith("torch.optim."):
                continue
            for name, value in list(vars(base).items()):
                is_plain = isinstance(value, (*PLAIN, *BOXES))
                if not (name in self._names if not is_plain else self._is_named(name)) and (
                    not _is_called(name)
                ):
                    continue
                called = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(called, types.FunctionType):
                    if is_own(called):
                        self._function(place, called)
                    else:
                        self._names |= set(named_in(called.__code__))
                if not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                    self._slot(place, f"{key}.{name}" if key else name, base, name, value, True)

    def _function(self, place: str, function: types.FunctionType) -> None:
        if ("function", function) in self._seen:
            return
        self._seen["function", function] = function, True
        names = set(named_in(function.__code__))
        self._names |= names | ({ANY} if makes_names(function.__code__) else set())
        place = place if place in self._outside else f"the code of {place}"
        self._outside.add(place)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            slot = _Slot("", "", cell, "", None, None, True)
            if slot.now() is not MISSING and name != "__class__":
                self._slot(place, name, cell, name, slot.now(), True)
        for name in sorted({*globals_of(function.__code__)}):
            value = function.__globals__.get(name, MISSING)
            if not name.startswith("__") and (value is not MISSING or name not in vars(builtins)):
                self._slot(place, name, function.__globals__, name, value, True)
        for name in sorted(names.intersection(sys.modules).difference(function.__globals__)):
            self._visit(place, name, sys.modules[name], True)
        for name in _OF_FUNCTIONS:
            key = f"{function.__name__}'s {name}"
            self._slot(place, key, function, name, getattr(function, name), True)
        for key, one in vars(function).items():
            self._visit(place, f"{function.__name__}'s {key}", one, True)

    def _is_named(self, name: Any) -> bool:
        """Return whether code reads an attribute of this name, or one whose name it makes."""
        return isinstance(name, str) and (name in self._names or ANY in self._names)

    def _installed(self, place: str, function: types.FunctionType) -> None:
        """Look at what an installed function has of the user: functions that it decorates, and the
        environment.
        """
        if ("function", function) in self._seen:
            return
        self._seen["function", function] = function, True
        for cell in function.__closure__ or ():
            held = _Slot("", "", cell, "", None, None, True).now()
            for one in held.values() if isinstance(held, dict) else (held,):
                if isinstance(one, (types.FunctionType, types.MethodType, functools.partial)):
                    self._visit(place, function.__name__, one, True)
        self._visit(place, function.__name__, vars(function).get("__wrapped__"), True)
        for name in globals_of(function.__code__):
            if function.__globals__.get(name) is os.environ:
                self._visit(place, "os.environ", os.environ, True)


def _is_called(name: Any) -> bool:
    """Return whether Python or torch calls a method of this name where no code names it."""
    is_pythons = isinstance(name, str) and name.startswith("__") and name.endswith("__")
    return name in _CALLED or (is_pythons and name not in _OF_CLASSES)


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, without asking its own code; ``None`` if it can have none."""
    is_asked = isinstance(type(value).__getattribute__, types.FunctionType)
    try:
        found = object.__getattribute__(value, "__dict__") if is_asked else vars(value)
    except (AttributeError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _room_of(kind: type) -> str:
    """The package that a class is of; empty for one in C that does not say it."""
    module: object = kind.__module__  # a descriptor in classes that Cython makes
    return module.partition(".")[0] if isinstance(module, str) else ""


def _slots_of(kind: type) -> set[str]:
    """The names of an object's slots, but for those that a class below makes something else."""
    return {
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)  # classes in C have others, which cannot be set back
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType) and getattr(kind, name) is value
    }


def _moved(slot: _Slot, now: Any) -> bool:
    """Return whether a name holds another thing for a call; one that lets a tensor of a module go
    frees memory, as users do.
    """
    if isinstance(slot.before, torch.Tensor):
        return now is not None
    return bool(plain(now) != slot.plain) if now is not MISSING else True


def _moved_by_forward(slot: _Slot, now: Any) -> bool:
    """Return whether code moves a name from one number to another: what it makes anew, or keeps
    once, another call makes as well.
    """
    if isinstance(slot.before, PLAIN):
        return (
            not isinstance(now, torch.Tensor)
            and now is not MISSING
            and isinstance(now, PLAIN)
            and bool(plain(now) != slot.plain)
        )
    if isinstance(slot.before, tuple) and isinstance(now, tuple):
        return [one for one in now if isinstance(one, PLAIN)] != [
            one for one in slot.before if isinstance(one, PLAIN)
        ]
    return False


def _items(box: Any) -> list[tuple[Any, Any]]:
    """What a container has by name or by position."""
    if isinstance(box, MutableMapping):
        return list(box.items())
    return list(enumerate(box)) if isinstance(box, (list, deque)) else []


def _tensors(value: Any, depth: int = 0) -> Sequence[torch.Tensor]:
    """The tensors in an attribute that is one, or a container of some."""
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    if depth >= DEPTH or not isinstance(value, (dict, list, tuple, set, deque)):
        return []
    return [tensor for one in inside for tensor in _tensors(one, depth + 1)]
