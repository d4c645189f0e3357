"""Tell whether the fields of a frozen dataclass are of the kinds that it declares: texts, lists,
mappings and objects of hosim.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from hosim.base.whole_numbers import not_whole
from hosim.plain_text import shown
from hosim.units import plain_number

_WHOLES = tuple[int, ...]
_CONTAINERS = (tuple, list, Mapping, set, frozenset)


class _UnfitError(Exception):
    """The value, and what was expected."""


def keep_kinds(made: Any, error: Callable[..., Exception], about: str) -> None:
    """Raise the ``error`` for the first field whose value is of another kind than its annotation
    says; lists become tuples.

    Whole numbers are left to :func:`hosim.base.whole_numbers.keep_whole`, except where a list or a
    mapping stands in place of one.
    """
    for name, hint, plain in _fields(made.__class__):
        value = getattr(made, name)
        if value.__class__ is plain and plain is not tuple:
            continue
        if value.__class__ is plain and (
            not value or (hint == _WHOLES and {*map(type, value)} == {int})
        ):
            continue
        try:
            found = _fit(value, hint)
        except _UnfitError as unfit:
            wrong, expected = unfit.args
            where = f"{about}, {name}" if about else name
            if expected == "a whole number":
                raise error(not_whole(name, wrong), where=where) from None
            raise error(f"expected {expected}, got {shown(wrong, 60)}", where=where) from None
        if found is not value:
            object.__setattr__(made, name, found)


def _fit(value: Any, hint: Any) -> Any:
    """The value as the hint has it. Raises :class:`_UnfitError`."""
    origin = get_origin(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, types.UnionType):
        return _fit_one_of(value, hint)
    if origin is tuple:
        return _fit_tuple(value, hint)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _UnfitError(value, "a mapping")
        of_key, of_value = get_args(hint)
        found = {_fit(key, of_key): _fit(part, of_value) for key, part in value.items()}
        return value if all(found[key] is part for key, part in value.items()) else found
    if hint is int:
        if isinstance(value, _CONTAINERS):
            raise _UnfitError(value, "a whole number")
        return value
    if hint is float:
        number = None if isinstance(value, str) else plain_number(value)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _UnfitError(value, "a number")
        return (
            float(number) if isinstance(number, float) and number.__class__ is not float else number
        )
    if hint is str and isinstance(value, str):
        return str.__str__(value)  # a text of numpy is one by its class
    if not isinstance(hint, type) or isinstance(value, hint):
        return value
    raise _UnfitError(value, _NAMES.get(hint) or f"an object of {hint.__module__}.{hint.__name__}")


_NAMES = {str: "a text", bool: "true or false", type(None): "nothing"}


def _fit_one_of(value: Any, hint: Any) -> Any:
    options = [each for each in get_args(hint) if each is not type(None)]
    if value is None and len(options) < len(get_args(hint)):
        return value
    for each in options[:-1]:
        try:
            return _fit(value, each)
        except _UnfitError:
            continue
    return _fit(value, options[-1])


def _fit_tuple(value: Any, hint: Any) -> Any:
    if not isinstance(value, tuple | list):
        raise _UnfitError(value, "a tuple")
    parts = get_args(hint)
    if parts[-1] is Ellipsis:
        found = tuple([_fit(part, parts[0]) for part in value])
    elif len(parts) != len(value):
        raise _UnfitError(value, f"a tuple of {len(parts)}")
    else:
        found = tuple([_fit(part, each) for part, each in zip(value, parts, strict=True)])
    same = isinstance(value, tuple) and all(
        new is old for new, old in zip(found, value, strict=True)
    )
    return value if same else found


@cache
def _fields(made: Any) -> tuple[tuple[str, Any, Any], ...]:
    """The fields of a class that have a kind to check: name, hint, and the class that needs no
    further look.
    """
    hints = get_type_hints(made)
    listed = [
        (field.name, hints[field.name])
        for field in fields(made)
        if hints[field.name] not in (int, int | None)
    ]
    return tuple(
        [(name, hint, tuple if get_origin(hint) is tuple else hint) for name, hint in listed]
    )
