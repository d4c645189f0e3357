"""Checks of single values in the JSON of a ``.pt2`` archive: each gives the value, or raises an
error with its place, ``where``.
"""

from collections.abc import Sequence
from typing import Any

from hosim.errors import InputError
from hosim.limits import within
from hosim.units import LARGEST


def _shown(data: Any) -> str:
    return (
        "a list"
        if isinstance(data, list)
        else "an object"
        if isinstance(data, dict)
        else ascii(data)[:40]
    )


def _checked(data: Any, is_valid: bool, expected: str, where: str) -> Any:
    if not is_valid:
        raise InputError(f"expected {expected}, got {_shown(data)}", where=where)
    return data


def whole(data: Any, where: str) -> int:
    """``data``, if it is an integer of 64 bits."""
    fits = type(data) is int and -LARGEST - 1 <= data <= LARGEST
    return int(_checked(data, fits, "an integer of 64 bits", where))


def number(data: Any, where: str) -> float:
    """``data`` as a float; torch writes the infinite ones as words."""
    if isinstance(data, int):
        return float(whole(data, where))
    known = isinstance(data, float) or data in ("Infinity", "-Infinity", "NaN")
    return float(_checked(data, known, "a number", where))


def flag(data: Any, where: str) -> bool:
    """``data``, if it is true or false."""
    return bool(_checked(data, isinstance(data, bool), "true or false", where))


def text(data: Any, where: str, *, any_length: bool = False) -> str:
    """``data``, if it is text, and no longer than a name."""
    found = str(_checked(data, isinstance(data, str), "text", where))
    if not any_length:
        within("name_length", len(found), where=where)
    return found


def texts(data: Any, where: str) -> None:
    """Raise :class:`InputError` unless ``data`` is a list of texts."""
    for item in items(data, where):
        text(item, where, any_length=True)


def word(data: Any, where: str) -> str:
    """The name of a value. It must be a word: torch writes Python code with it."""
    is_word = isinstance(data, str) and data.isidentifier()
    return text(_checked(data, is_word, "the name of a value", where), where)


def items(data: Any, where: str) -> Sequence[Any]:
    """``data``, if it is a list."""
    return list(_checked(data, isinstance(data, list), "a list", where))


def mapping(data: Any, where: str) -> dict[str, Any]:
    """``data``, if it is an object."""
    return dict(_checked(data, isinstance(data, dict), "an object", where))


def fields(
    data: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``data``, if it is an object with these keys and no other."""
    found = mapping(data, where)
    for key in found:
        if key not in required and key not in optional:
            raise InputError(
                f"unknown key {key[:40]!r}; write it again with torch 2.13", where=where
            )
    for key in required:
        if key not in found:
            raise InputError(
                f"key {key!r} is missing; write it again with torch.export.save", where=where
            )
    return found


def only(data: Any, where: str) -> tuple[str, Any]:
    """Key and value of an object with one key, which says what it is."""
    found = mapping(data, where)
    if len(found) != 1:
        raise InputError(f"expected an object with one key, got {len(found)}", where=where)
    return next(iter(found.items()))
