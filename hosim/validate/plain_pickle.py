"""Safe reader of pickles of plain containers: it looks up, calls and builds nothing.

A pickle is a program for a small machine. Before it runs, each of its instructions is checked against the few that make numbers, strings,
lists, tuples and dicts. An instruction that names a class or function, calls it, or sets the state of an object is refused, and so is one
that makes the machine reserve memory out of proportion to the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import deque
from typing import Any, NoReturn

from hosim.errors import InputError
from hosim.limits import limit, refusal

_ADMITTED = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    )
)
_NUMBERED = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
"""The machine makes room for every number up to the arguments of these."""


class _Unpickler(pickle.Unpickler):
    """The machine itself. After the check it has nothing to look up; if it tries, this refuses."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")


def load_plain(data: bytes) -> Any:
    """The value in a pickle of numbers, strings, None, lists, tuples and dicts.

    Raises `InputError`, before anything of the pickle runs, if it contains more or is damaged.
    """
    try:
        _check(data)
        return _Unpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # a damaged program can fail in any way
        raise InputError(f"the pickle is damaged: {str(error)[:100] or type(error).__name__}") from None


def _check(data: bytes) -> None:
    texts: deque[str] = deque(maxlen=2)
    most = limit("values")
    for count, (instruction, argument, _) in enumerate(pickletools.genops(data)):
        if count > most:
            raise refusal("values")
        if isinstance(argument, str):
            texts.append(argument[:60])
        if instruction.name not in _ADMITTED:
            names = ".".join(texts) if instruction.name == "STACK_GLOBAL" else argument[:60] if isinstance(argument, str) else ""
            raise InputError(f"expected plain containers only, it has the instruction {instruction.name}" + f" of {names}" * bool(names))
        if instruction.name in _NUMBERED and isinstance(argument, int) and not 0 <= argument <= count:
            raise InputError(f"expected at most {count} remembered values by then, it numbers one {argument}")
