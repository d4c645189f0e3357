"""Whole numbers: what Python, numpy and pandas take for one, and the integer fields of public
objects.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import index, is_
from typing import Any, get_type_hints

from hosim.plain_text import one_line, shown

_ONE: dict[Any, str] = {int: "int", int | None: "int | None"}
_WHOLE = _ONE | {
    hint: str(hint)
    for hint in (
        tuple[int, ...],
        Mapping[str, int],
        tuple[tuple[int, int], ...],
        tuple[tuple[str, int], ...],
        tuple[tuple[str, int | None], ...],
    )
}
"""Types of fields that hold whole numbers, and names and lists around them, each with its text."""

_UNITS = {
    "_ns": " of ns",
    "_bytes": " of bytes",
    "_per_s": " of bytes a second",
    "_tokens": " of tokens",
}


def whole(value: object) -> int | None:
    """The integer that a value is; ``None`` for anything else, ``True`` and ``2.0`` among them.

    >>> whole(3), whole(True), whole(3.0), whole(float("nan"))
    (3, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def not_whole(name: str, value: object) -> str:
    """Return the message about a field's value that is no whole number, with the unit that the
    field's name ends in.

    >>> not_whole("duration_ns", 1.5)
    'expected a whole number of ns, got 1.5'
    """
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
    return f"expected a whole number{unit}, got {shown(value, 60)}"


def keep_whole(
    made: Any, error: Callable[..., Exception], about: str, most: int | None = None
) -> None:
    """Make the integer fields of a frozen dataclass integers of Python, ``most`` or less.

    Raises the ``error`` for one that is none, which it names.
    """
    for name, annotation in _fields(made.__class__):
        value = getattr(made, name)
        where = f"{about}, {name}" if about else name
        if annotation in _ONE.values():
            if value is None and annotation == "int | None":
                continue
            found: object = whole(value)
            if found is None:
                raise error(not_whole(name, value), where=where)
            if most is not None and found > most:  # type: ignore[operator]
                raise error(
                    f"expected an integer up to {most}, got {one_line(str(value), 60)}", where=where
                )
        else:
            wrong: list[object] = []
            found = _kept(value, "str" in annotation, "None" in annotation, wrong)
            if wrong:
                raise error(not_whole(name, wrong[0]), where=where)
        if found is not value:
            object.__setattr__(made, name, found)


def _kept(value: object, texts: bool, nothing: bool, wrong: list[object]) -> object:
    """The value with integers of Python in it, itself if it has no others; what is no whole number
    goes to ``wrong``.
    """
    if (texts and isinstance(value, str)) or (nothing and value is None):
        return value
    if isinstance(value, tuple | list):
        last = len(value) - 1  # a name stands before its number
        parts = [
            _kept(part, texts and not (at == last and isinstance(part, str)), nothing, wrong)
            for at, part in enumerate(value)
        ]
        return value if all(map(is_, parts, value)) else tuple(parts)
    if isinstance(value, Mapping):
        found = {key: whole(part) for key, part in value.items()}
        wrong += [part for key, part in value.items() if found[key] is None]
        return value if all(map(is_, found.values(), value.values())) else found
    number = whole(value)
    if number is None:
        wrong.append(value)
    return number


@cache
def _fields(made: Any) -> tuple[tuple[str, str], ...]:
    """The fields of a class that hold whole numbers, each with its annotation."""
    hints = get_type_hints(made)
    names = [field.name for field in fields(made) if hints[field.name] in _WHOLE]
    return tuple([(name, _WHOLE[hints[name]]) for name in names])
