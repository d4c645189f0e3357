"""The names that the code of a function reads, and whose code it is."""

import dis
import os
import sys
import sysconfig
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

INSTALLED = tuple(
    {sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {one for one in sys.path if os.path.basename(one) in ("site-packages", "dist-packages")}
)
"""Where code is that is not the user's: also that of the environment below a virtual one."""
ANY = "*"
"""Stands among names for those that code makes."""
_OF_ALL_ATTRIBUTES = frozenset(("vars", "__dict__", "__getattribute__"))
"""Names by which code reads all attributes of an object."""
_BY_NAME = {"getattr": 2, "hasattr": 2, "attrgetter": 1, "methodcaller": 1}
"""The position of the argument of a function that is the name of an attribute."""
_OF_TEXTS = frozenset(("eval", "exec"))
"""Functions that run a text, which names what it likes."""


def named_in(code: types.CodeType) -> Iterator[str]:
    """Every name in a function: of globals, attributes, and texts that may be names."""
    yield from code.co_names
    for constant in _constants(code.co_consts):
        if isinstance(constant, types.CodeType):
            yield from named_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def globals_of(code: types.CodeType) -> Iterator[str]:
    """Every name that a function takes from its globals, by name or by text."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
            if step.argval == "globals":
                yield from named_in(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_of(constant)


def makes_names(code: types.CodeType) -> bool:
    """Return whether a function reads attributes whose names it makes or has from elsewhere."""
    within = any(makes_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    asks = not (_BY_NAME.keys() | _OF_TEXTS).isdisjoint(code.co_names)
    steps = list(dis.get_instructions(code)) if asks else []
    return (
        within
        or not _OF_ALL_ATTRIBUTES.isdisjoint(code.co_names)
        or any(
            (one.argval in _OF_TEXTS and one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
            or (one.argval in _BY_NAME and not _has_its_name(steps[at + 1 :], _BY_NAME[one.argval]))
            for at, one in enumerate(steps)
        )
    )


def is_own(function: Any) -> bool:
    """Return whether a function is the user's: not of an installed package, of hosim or in C."""
    if not isinstance(function, types.FunctionType):
        return False
    is_hosims = str(function.__globals__.get("__name__")).startswith("hosim.")
    return not (is_hosims or function.__code__.co_filename.startswith(INSTALLED))


def is_own_module(module: Any) -> bool:
    """Return whether a module is the user's, made by code or from a file: not of Python, of hosim or
    of an installed package.
    """
    if not isinstance(module, types.ModuleType):
        return False
    package = module.__name__.partition(".")[0]
    if package == "hosim" or package in sys.stdlib_module_names:
        return False
    of = vars(sys.modules.get(package, module))
    places = (of.get("__file__"), *of.get("__path__", ()))
    return not any(str(place).startswith(INSTALLED) for place in places)


def _constants(constants: Collection[Any]) -> Iterator[Any]:
    """These constants, and those within tuples and sets of them."""
    for one in constants:
        yield from _constants(one) if isinstance(one, (tuple, frozenset)) else (one,)


def _has_its_name(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Return whether the argument at a place, from 1, is a text in the call whose arguments begin
    here.
    """
    depth, name = 0, cast(Any, None)
    for step in steps:
        if step.opname in ("PRECALL", "CALL") and step.arg == depth:
            return isinstance(name, str)
        before, depth = depth, depth + dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth == place:
            name = step.argval if (before, step.opname) == (place - 1, "LOAD_CONST") else None
    return False
