"""Limits on what hosim reads, unpacks and computes, so that no file and no option takes all of the
memory or hours.

A limit has a default, which ``HOSIM_LIMITS`` replaces:
``HOSIM_LIMITS="unpacked_bytes=8GiB,devices=100000"``. The variable is read when a limit is asked
for. Whoever reads input asks :func:`limit` before it allocates, and refuses with :func:`refusal`,
or calls :func:`within`; what an input repeats without writing it again is counted by a
:class:`Budget` while it is written out.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

from hosim.errors import InputError, UnitError
from hosim.units import LARGEST, exact_size, parse_size

Item = TypeVar("Item")

VARIABLE = "HOSIM_LIMITS"
"""The environment variable that replaces defaults: ``NAME=VALUE``, separated by commas."""

_OF_PYTHON = "PYTHONINTMAXSTRDIGITS"
"""The environment variable that says how many digits Python reads, 4300 without it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: its default, what it counts, as a refusal says it, and what it is for.
    ``in_bytes`` says that its value is a size.
    """

    default: int
    counted: str
    meaning: str
    in_bytes: bool = False

    def text(self, value: int) -> str:
        """A value of this limit as users write it: ``192MiB`` or ``16384``.

        >>> LIMITS["file_bytes"].text(192 * 1024**2), LIMITS["devices"].text(16384)
        ('192MiB', '16384')
        """
        return exact_size(value).replace(" ", "") if self.in_bytes else str(value)


def _size(default: str, counted: str, meaning: str) -> Limit:
    return Limit(parse_size(default), counted, meaning, in_bytes=True)


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "file_bytes": _size("192 MiB", "in a file", "the size of a file that is read as a whole"),
        "unpacked_bytes": _size(
            "192 MiB",
            "after unpacking",
            "the size of a gzip file, or of a record of an archive, once it is unpacked",
        ),
        "database_bytes": _size(
            "8 GiB", "in a database", "the size of a database, of which only some tables are read"
        ),
        "model_bytes": _size(
            "64 GiB", "in a model", "the size of an ONNX or MindIR file, whose weights are not read"
        ),
        "archive_bytes": _size(
            "64 GiB", "in an archive", "the size of an archive, of which only some records are read"
        ),
        "archive_records": Limit(
            100_000, "records in an archive", "how many records an archive has"
        ),
        "values": Limit(
            10_000_000,
            "values",
            "how many values a JSON file has: its commas and opening brackets; how many parts the "
            "prompts of a trace's sessions have",
        ),
        "yaml_values": Limit(
            500_000,
            "values",
            "how many values a YAML or TOML file has: its lines, commas and opening brackets",
        ),
        "records": Limit(
            1_000_000,
            "records",
            "how many entries, nodes, messages or rows are read from a trace, model, table or "
            "database",
        ),
        "nodes": Limit(
            100_000, "nodes", "how many nodes the functions of a model become where they are called"
        ),
        "nesting_depth": Limit(
            200, "levels of nesting", "how deep lists, objects and messages lie in one another"
        ),
        "integer_digits": Limit(1_000, "digits in a number", "how long a number is written"),
        "name_length": Limit(10_000, "characters in a name", "how long a name is"),
        "csv_field_bytes": _size(
            "128 KiB", "in a field of CSV", "how long a field of a CSV file is"
        ),
        "layers": Limit(1_000, "layers", "how many layers a model of a spec has"),
        "model_parts": Limit(
            50_000,
            "parts of a model",
            "how many experts, blocks of a cache or blocks of a ring a built model keeps apart, "
            "over all layers; "
            "how many modules of torch a spec makes",
        ),
        "kernels": Limit(
            100_000,
            "kernels",
            "how many kernels a torch program launches, and into how many parts an op cuts a "
            "tensor",
        ),
        "devices": Limit(16_384, "devices", "how many devices run a program together"),
        "grid_points": Limit(
            100_000, "points in a grid", "the product of the numbers of values of a grid"
        ),
        "routing_steps": Limit(
            10_000, "steps of a routing", "how many steps a routing has or generates"
        ),
        "processes": Limit(1_024, "processes", "how many processes compute together"),
        "runs": Limit(100_000, "runs", "how often a replay is repeated with other random times"),
    }
)
"""Every limit by its name."""


def limit(name: str) -> int:
    """The value of a limit that is in force: its default, or what the environment variable
    ``HOSIM_LIMITS`` says.

    Raises :class:`InputError` if the variable says something that is no list of limits.

    >>> limit("devices")
    16384
    """
    return _raised(os.environ.get(VARIABLE, "")).get(name, LIMITS[name].default)


@lru_cache(maxsize=1)
def _raised(variable: str) -> Mapping[str, int]:
    """The limits that the environment variable names."""
    found: dict[str, int] = {}
    for part in variable.split(","):
        if not part.strip():
            continue
        name, text = (piece.strip() for piece in part.partition("=")[::2])
        if name not in LIMITS:
            raise InputError(
                f"unknown limit {name[:60]!r}; expected NAME=VALUE with one of {', '.join(LIMITS)}",
                source=VARIABLE,
            )
        if name in found:
            raise InputError("is given twice; keep one", source=VARIABLE, where=name)
        found[name] = _value(LIMITS[name], text, name)
    return found


def _value(asked: Limit, text: str, name: str) -> int:
    """The value that a text gives a limit; raises :class:`InputError`."""
    digits = text.replace("_", "")
    if digits.isascii() and digits.isdecimal() and len(digits) < 20 and 0 < int(digits) <= LARGEST:
        if int(digits) > _most_of(name):
            expected = f"expected at most {_most_of(name)}, what Python itself reads, got {digits}"
            raise InputError(
                f"{expected}; {_OF_PYTHON}={digits} raises that", source=VARIABLE, where=name
            )
        return int(digits)
    if asked.in_bytes:
        try:
            if size := parse_size(text):
                return size
        except UnitError:
            pass
    expected = "a size above 0 such as 8GiB" if asked.in_bytes else "a whole number above 0"
    raise InputError(f"expected {expected}, got {text[:60]!r}", source=VARIABLE, where=name)


def _most_of(name: str) -> int:
    """Return the most that a limit can be raised to: Python has one of its own for digits, which
    has a variable, too.
    """
    return sys.get_int_max_str_digits() or LARGEST if name == "integer_digits" else LARGEST


def refusal(
    name: str, found: int | None = None, *, source: str | None = None, where: str | None = None
) -> InputError:
    """The error for input beyond a limit, in one line: what was expected, what was found, and how
    to raise the limit.

    ``found`` is ``None`` if it is only known that there is more. ``source`` is the file or option,
    and ``where`` the place in it.

    >>> print(refusal("devices", 10**9, source="hw.yaml", where="devices"))
    hw.yaml: devices: expected at most 16384 devices, got 1000000000; HOSIM_LIMITS="devices=1000000000" raises this limit
    >>> print(refusal("unpacked_bytes", source="trace.json.gz"))
    trace.json.gz: expected at most 192MiB after unpacking, got more; HOSIM_LIMITS="unpacked_bytes=384MiB" raises this limit
    """
    asked, most = LIMITS[name], limit(name)
    exact = None if found is None or found > LARGEST else found
    told = "more" if exact is None else asked.text(exact)
    enough = min(2 * most, LARGEST) if exact is None else exact
    raises = f'{VARIABLE}="{name}={asked.text(enough)}" raises this limit'
    if enough > _most_of(name):
        raises = f"with {_OF_PYTHON}={enough}, {raises}"
    message = f"expected at most {asked.text(most)} {asked.counted}, got {told}; {raises}"
    return InputError(message, source=source, where=where)


def within(name: str, found: int, *, source: str | None = None, where: str | None = None) -> int:
    """``found``, if it is within a limit; raises the :func:`refusal` otherwise.

    >>> within("devices", 8)
    8
    """
    if found > limit(name):
        raise refusal(name, found, source=source, where=where)
    return found


def listed_within(name: str, values: Iterable[Item], *, source: str | None = None) -> list[Item]:
    """The items of ``values``, which may have no end, if they are within a limit; raises the
    :func:`refusal` otherwise.

    >>> listed_within("devices", range(3))
    [0, 1, 2]
    """
    found = list(islice(values, limit(name) + 1))
    within(name, len(found), source=source)
    return found


class Budget:
    """The remainder of a limit for one input: all that is read from it, and all that is written out
    of it, is drawn from here.

    Parameters
    ----------
    name
        The limit, such as ``records``.

    Examples
    --------
    >>> budget = Budget("devices")
    >>> budget.draw(16_000)
    >>> budget.draw(1_000, where="stages")
    Traceback (most recent call last):
    hosim.errors.InputError: stages: expected at most 16384 devices, got more; HOSIM_LIMITS="devices=32768" raises this limit
    """

    __slots__ = ("_left", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = limit(name)

    def draw(self, count: int = 1, *, source: str | None = None, where: str | None = None) -> None:
        """Take ``count`` of what is left; raises the :func:`refusal` if there is less."""
        self._left -= count
        if self._left < 0:
            raise refusal(self._name, source=source, where=where)
