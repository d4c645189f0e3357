"""Options, declared once: name, type, range, default, help, and the options that each needs and
excludes.

An :class:`Option` gives the option of a command, the keyword of a public function with its check
and its entry in the docstring (:func:`keywords`), the key of a case of the gate, and the refusal of
options that exclude each other (:func:`check_together`). :data:`OPTIONS` are shared by several
functions, commands or cases; a command's own are in its file, and those of a room beside the core
in that room.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hosim.base.whole_numbers import whole as whole_number
from hosim.errors import InputError
from hosim.plain_text import shown
from hosim.units import LARGEST, plain_number

REQUIRED: Any = Parameter.empty
"""Stands for a missing default."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    ``of`` is its type at the shell, where a quantity is text with its unit; ``takes`` is its type
    in Python, if that differs. ``help`` is for the shell, ``about`` for Python. ``flags`` are its
    spellings at the shell, by default its name; an ``argument`` has none. ``least`` and ``most``
    are the ends of a number's range. ``known`` returns its possible names, ``completes`` the
    beginnings that the shell completes. ``needs``: one of these options has to be given, too.
    ``excludes``: these must not be given, with the reason. ``unless``: one of these has to be given
    if this option is not. ``endings`` are those of a file that is written; ``None`` means that it
    is no such file.
    """

    name: str
    of: Any = str
    default: Any = None
    help: str = ""
    about: str = ""
    takes: str = ""
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    argument: bool = False
    least: float | None = None
    most: float | None = None
    known: Callable[[], Iterable[str]] | None = None
    completes: Callable[[], Iterable[str]] | None = None
    needs: tuple[str, ...] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    unless: tuple[str, ...] = ()
    endings: tuple[str, ...] | None = None
    shows_default: bool = True

    @property
    def flag(self) -> str:
        """Return the name as at the shell, for use in sentences."""
        if self.argument:
            return (self.metavar or self.name).removesuffix("...")
        return self.flags[0] if self.flags else "--" + self.name.replace("_", "-")

    @property
    def annotation(self) -> str:
        """Its type in Python, for a signature."""
        return self.takes or f"{self.of.__name__}{' | None' if self.default is None else ''}"

    def read(self, value: Any) -> Any:
        """Return the value of a keyword. Raises :class:`InputError` for a value of another type."""
        if value is None and self.default is None:
            return None
        if self.of in (bool, float, Path):
            return {bool: flag, float: real, Path: file_of}[self.of](value, self.name)
        if self.of is int:
            least = -1 if self.least is None else int(self.least)
            return whole(value, self.name, least, LARGEST if self.most is None else int(self.most))
        if self.of is Callable and not callable(value):
            raise InputError(f"expected a function, got {shown(value, 60)}", source=self.name)
        if self.of is str and not self.takes and not isinstance(value, str):
            raise InputError(f"expected a text, got {shown(value, 60)}", source=self.name)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise :class:`InputError` for a name that is not one of the known ones."""
        if self.known is not None:
            check_known(self.name.replace("_", " "), value, self.known(), self.name)


# -- values
# --------------------------------------------------------------------------------------------------


def whole(value: object, argument: str, least: int = 0, most: int = LARGEST) -> int:
    """Return a whole number of Python or numpy. Raises :class:`InputError` for anything else."""
    number = whole_number(value)
    if number is None or not least <= number <= most:
        end = "2^63-1" if most == LARGEST else most
        beyond = f" and at most {end}" if number is not None and number > most else ""
        raise InputError(
            f"expected a whole number of at least {least}{beyond}, got {shown(value, 60)}",
            source=argument,
        )
    return number


def real(value: object, argument: str) -> float:
    """Return a number of Python or numpy. Raises :class:`InputError` for anything else."""
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"expected a number, got {shown(value)}", source=argument)
    return number


def flag(value: object, argument: str) -> bool:
    """Return true or false, of Python or numpy. Raises :class:`InputError` for anything else."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise InputError(f"expected true or false, got {shown(value, 60)}", source=argument)
    return bool(value)


def file_of(path: object, argument: str) -> Path:
    """Return the path of a file to write. Raises :class:`InputError` for anything else."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file, got {shown(path)}", source=argument)
    return Path(path)


def check_known(what: str, name: str, known: Iterable[str], argument: str) -> None:
    """Raise :class:`InputError` for a name that is not one of the known ones."""
    from hosim.base.files import unknown_name  # imported here, because help needs only the table

    names = list(known)
    if name not in names:
        raise InputError(unknown_name(what, name, names), source=argument)


# -- what goes together
# --------------------------------------------------------------------------------------------


class Given(SimpleNamespace):
    """The values of options, by their names."""


Options = tuple[Option, ...]


def is_given(option: Option, value: Any) -> bool:
    """True if an option has another value than its default."""
    return value is not option.default and (
        type(value) is not type(option.default) or value != option.default
    )


def check_together(
    options: Options,
    given: Mapping[str, Any],
    source: str,
    where: str | None = None,
    *,
    at_shell: bool = False,
) -> None:
    """Raise :class:`InputError` for an option without one that it needs or beside one that it
    excludes, and if none of several options is given of which one is required.
    """
    there = {
        option.name: option
        for option in options
        if is_given(option, given.get(option.name, option.default))
    }
    named = {option.name: option.flag if at_shell else option.name for option in options}
    for option in there.values():
        said = None
        if option.needs and not any([name in there for name in option.needs]):
            said = f"requires {' or '.join(named[name] for name in option.needs)}"
        for other, why in option.excludes.items():
            if other in there and said is None:
                said = f"and {named[other]} exclude each other: {why or 'give one of them'}"
        if said is not None:
            raise InputError(f"{named[option.name]} {said}", source=source, where=where)
    for option in options:
        either = [name for name in (option.name, *option.unless) if name in named]
        if option.unless and not any(name in there for name in either):
            said = f"requires {' or '.join([named[name] for name in either])}"
            raise InputError(said, source=source, where=where)


def refuse_others(
    options: Options, given: Mapping[str, Any], fitting: str, why: str, source: str
) -> None:
    """Raise :class:`InputError` for a shell option that is given and not among ``fitting``."""
    for option in options:
        if option.name not in fitting.split() and is_given(option, given[option.name]):
            raise InputError(f"{option.flag} {why}", source=source)
