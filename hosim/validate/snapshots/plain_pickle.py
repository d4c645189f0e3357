"""Safe reader of pickles of plain containers: it looks up, calls and builds nothing else.

A pickle is a program for a small machine. This is that machine with the few instructions that make
numbers, strings, lists, tuples and dicts. An instruction that names a class or function, calls it,
or sets the state of an object is refused. So is a key that is neither text nor a small number,
because a dict of chosen numbers can take quadratic time.
"""

import pickletools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from hosim.errors import InputError
from hosim.limits import Budget

_PUSHED = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    )
)
_MADE: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_REMEMBERED = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_RECALLED = frozenset(("GET", "BINGET", "LONG_BINGET"))
_LARGEST_KEY = 1 << 16
_PROTOCOL = 5
"""The newest protocol whose instructions are known."""


def load_plain(data: bytes) -> Any:
    """Return the value in a pickle of numbers, strings, None, lists, tuples and dicts.

    Raises `InputError` if it contains more, is damaged, or has a key that is neither text nor a
    number below 65,536.
    """
    try:
        return _PickleMachine().run(data)
    except InputError:
        raise
    except Exception as error:  # a damaged program can fail in any way
        raise InputError(
            f"the pickle is damaged: {str(error)[:100] or type(error).__name__}"
        ) from None


class _PickleMachine:
    """The values that are being made, those below each open mark, and those that are remembered."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memory: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        texts: deque[str] = deque(maxlen=2)
        budget = Budget("values")
        for instruction, argument, _ in pickletools.genops(data):
            budget.draw()
            name = instruction.name
            if name in _PUSHED:
                self._stack.append(argument)
            elif name == "STOP":
                return self._stack.pop()
            elif not self._do(name, argument):
                names = argument[:60] if isinstance(argument, str) else ""
                if name == "STACK_GLOBAL":
                    names = ".".join(texts)
                raise InputError(
                    f"expected plain containers only, it has the instruction {name}"
                    + f" of {names}" * bool(names)
                )
            if isinstance(argument, str):
                texts.append(argument[:60])
        raise ValueError("it does not end")

    def _do(self, name: str, argument: Any) -> bool:
        """Execute an instruction that pushes no number or text of its own. Return false for one
        that is not allowed.
        """
        if name in _MADE:
            self._stack.append(_MADE[name]())
        elif name in _REMEMBERED:
            self._memory[len(self._memory) if name == "MEMOIZE" else argument] = self._stack[-1]
        elif name in _RECALLED:
            self._stack.append(self._memory[argument])
        elif name == "MARK":
            self._below.append(self._stack)
            self._stack = []
        elif name == "APPEND":
            item = self._stack.pop()
            self._list().append(item)
        elif name == "SETITEM":
            pair = [self._stack.pop(-2), self._stack.pop()]
            _put(self._stack[-1], pair)
        elif name in _TUPLES:
            count = _TUPLES[name]
            self._stack[-count:] = [tuple(self._stack[-count:])]
        elif name in ("APPENDS", "SETITEMS", "LIST", "TUPLE", "DICT"):
            self._collect(name)
        elif name == "PROTO":
            if argument > _PROTOCOL:
                raise ValueError(f"it is of protocol {argument}")
        elif name != "FRAME":
            return False
        return True

    def _collect(self, name: str) -> None:
        """Execute an instruction that takes everything since the last mark."""
        items, self._stack = self._stack, self._below.pop()
        if name == "APPENDS":
            self._list().extend(items)
        elif name == "SETITEMS":
            _put(self._stack[-1], items)
        elif name == "DICT":
            made: dict[Any, Any] = {}
            _put(made, items)
            self._stack.append(made)
        else:
            self._stack.append(items if name == "LIST" else tuple(items))

    def _list(self) -> list[Any]:
        if not isinstance(self._stack[-1], list):
            raise TypeError("it appends to what is no list")
        return self._stack[-1]


def _put(target: Any, items: list[Any]) -> None:
    """Put alternating keys and values into a dict."""
    if not isinstance(target, dict) or len(items) % 2:
        raise ValueError("it sets items of what is no dict, or keys without values")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str and not (type(key) is int and 0 <= key < _LARGEST_KEY):
            raise InputError(f"expected keys of dicts that are text, got {ascii(key)[:40]}")
        target[key] = value
