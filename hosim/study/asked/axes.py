"""The fields that a study varies: ``channels.h2d.bandwidth=25..200GB/s:8``, ``policy.k=1,2,4``,
``budget=50..100%:6``.

An axis has one field, or several with the same value (``a+b=...``). Its values are a list separated
by commas, or a linear range that includes both ends, with a count after a colon. Quantities have
units as in the YAML files.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import isfinite, prod
from typing import Any

from hosim.errors import InputError, UnitError
from hosim.limits import listed_within, within
from hosim.plain_text import shown
from hosim.units import (
    LARGEST,
    exact_compute,
    exact_rate,
    exact_size,
    exact_time,
    parse_compute,
    parse_rate,
    parse_size,
    parse_time,
    plain_number,
)


def parse_steps(text: str | None, count: int) -> range:
    """Return the steps, of ``count``, that ``text`` selects: one (``3``), a range without its end
    (``0:8``, ``:8``, ``2:``), or all (``None``).

    Raises :class:`InputError` for any other text, for steps that do not exist, and for an empty
    range.

    >>> parse_steps("2:", 8)
    range(2, 8)
    """
    first, colon, last = (":" if text is None else text).partition(":")
    begin, end = _number(first, 0), _number(last, count)
    if begin is not None and end is not None and (colon or first.strip()):
        wanted = range(begin, end if colon else begin + 1)
        if wanted and wanted[-1] < count:
            return wanted
    has = f"the routing has steps 0 to {count - 1}" if count else "the routing has none"
    raise InputError(
        "expected a step such as 3 or a range such as 0:8, got "
        f"{'all' if text is None else repr(text)}; {has}",
        source="steps",
    )


def _number(text: str, default: int) -> int | None:
    """Return the number in a text, ``default`` for a blank text, ``None`` for any other text."""
    text = text.strip()
    if not text:
        return default
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


Value = int | float | bool | str | None
"""One value of a field, as in a file: a quantity is text with its unit."""

Settings = Mapping[str, Value]
"""Values by field: one point of a study."""

_QUANTITIES: tuple[tuple[str, Callable[[object], int], Callable[[int], str]], ...] = (
    ("_bytes", parse_size, exact_size),
    ("_bytes_per_s", parse_rate, exact_rate),
    ("_ns", parse_time, exact_time),
    ("_flops", parse_compute, exact_compute),
)
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "null": None}
WHOLE_STEPS = 64
"""A range of at most this many whole numbers needs no count: it has all of them."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Fields that get each of the ``values`` together."""

    fields: tuple[str, ...]
    values: tuple[Value, ...]


def parse_axis(text: str, count: int | None = None) -> Axis:
    """Read an axis from ``field=values``. A range without a count gets about ``count`` round
    values.

    Raises :class:`InputError`.

    >>> parse_axis("channels.h2d.bandwidth=25..100GB/s:4").values
    ('25 GB/s', '50 GB/s', '75 GB/s', '100 GB/s')
    >>> parse_axis("workload.batch=1..4").values, parse_axis("policy.k=2,8").values
    ((1, 2, 3, 4), (2, 8))
    """
    left, equals, right = text.partition("=")
    fields = tuple(part.strip() for part in left.split("+"))
    if not equals or not all(fields):
        raise InputError(
            "expected FIELD=VALUES such as channels.h2d.bandwidth=25..200GB/s:8 or "
            f"policy.k=1,2,4, got {shown(text)}"
        )
    values = parse_values(right, " + ".join(fields), count)
    bare = (
        next((value for value in values if type(value) is int), None)
        if "budget" in fields
        else None
    )
    if (
        bare is not None
        # a budget in text needs a unit; only in Python is a whole number a number of bytes
    ):
        raise InputError(
            "expected sizes with their unit or shares, such as 40GiB,50GiB or 50..100%:6, got "
            f"{bare}",
            source="budget",
        )
    return Axis(fields, values)


def parse_values(text: str, where: str, count: int | None = None) -> tuple[Value, ...]:
    """Return the values of a list or a range, in its order, each once. Raises :class:`InputError`
    with ``where`` as its source.
    """
    if ".." in text:
        return _range(text, where, count)
    values = [scalar(part.strip()) for part in text.split(",") if part.strip()]
    if not values:
        raise InputError(
            f"expected values such as 1,2,4 or a range such as 25..200GB/s:8, got {shown(text)}",
            source=where,
        )
    return _once(values)


def _once(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return each value once; ``1`` and ``true`` are different values."""
    return tuple({(type(value), value): value for value in values}.values())


def scalar(text: str) -> Value:
    """Return a text's value: a whole number, a finite number, true, false, null, or the text."""
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    return (
        float(text)
        if _NUMBER.fullmatch(text) and "_" not in text and isfinite(float(text))
        else text
    )


def _range(text: str, where: str, count: int | None) -> tuple[Value, ...]:
    ends, colon, many = text.partition(":")
    low, _, high = ends.partition("..")
    if colon:
        if not many.strip().isdecimal() or len(many) > 18 or int(many) < 2:
            raise InputError(
                "expected a range such as 25..200GB/s:8 with at least 2 values after the colon, "
                f"got {shown(text)}",
                source=where,
            )
        count = within("grid_points", int(many), source=where)
    spread = _linear if colon or count is None else _round
    first, unit_of_first = _split(low, where, text)
    last, unit_of_last = _split(high, where, text)
    unit_of_first = unit_of_first or unit_of_last
    if not unit_of_last:
        if unit_of_first:
            raise InputError(
                "expected the unit at the end of the range, such as 25..200GB/s:8, got "
                f"{shown(text)}",
                source=where,
            )
        return _numbers(first, last, count, where, text, lambda value: value, spread)
    if unit_of_last == "%":
        if unit_of_first != "%":
            raise InputError(
                f"expected percentages at both ends of a range or at neither, got {shown(text)}",
                source=where,
            )
        return _numbers(first, last, count, where, text, lambda value: f"{value}%", spread)
    if count is None:
        raise InputError(
            f"expected a count after a colon, such as {ends}:8, got {shown(text)}", source=where
        )
    for _, parse, write in _QUANTITIES:
        try:
            bounds = parse(f"{low.strip()} {unit_of_first}" if not _unit(low) else low), parse(high)
            unit = parse(f"1 {unit_of_last}")
        except UnitError:
            continue
        ends_in_units = Fraction(bounds[0], unit), Fraction(bounds[1], unit)
        values = spread(*ends_in_units, count)
        if abs(ends_in_units[1] - ends_in_units[0]) >= Fraction(
            count, 10
        ):  # thirds have no last digit, so use 33.333 GB/s
            values = (round(value, 3) for value in values)
        return tuple(dict.fromkeys(write(round(value * unit)) for value in values))
    raise InputError(
        f"expected two sizes, rates or times, such as 25..200GB/s:8, got {shown(text)}",
        source=where,
    )


def _numbers(
    first: Fraction,
    last: Fraction,
    count: int | None,
    where: str,
    text: str,
    write: Callable[[int | float], Value],
    spread: Callable[[Fraction, Fraction, int], Iterable[Fraction]],
) -> tuple[Value, ...]:
    whole = first.denominator == last.denominator == 1
    if count is None:
        if not whole:
            raise InputError(
                f"expected a count after a colon, such as {text}:8, got {shown(text)}", source=where
            )
        count = WHOLE_STEPS + 1  # in a shorter range, several values round to one number
    values = spread(first, last, max(count, 2))
    return tuple(
        dict.fromkeys(write(round(value)) if whole else write(float(value)) for value in values)
    )


def _linear(first: Fraction, last: Fraction, count: int) -> Iterable[Fraction]:
    return (first + (last - first) * i / (count - 1) for i in range(count))


def _round(first: Fraction, last: Fraction, count: int) -> Iterable[Fraction]:
    """Return both ends and about ``count`` round values between them: multiples of 1, 2, 2.5 or 5
    times a power of ten.

    Between multiples of 1024 they are multiples of a power of two, as sequence lengths are.

    >>> [int(value) for value in _round(Fraction(4096), Fraction(2_000_000), 9)]
    [4096, 250000, 500000, 750000, 1000000, 1250000, 1500000, 1750000, 2000000]
    >>> [int(value) for value in _round(Fraction(1024), Fraction(65536), 9)]
    [1024, 8192, 16384, 24576, 32768, 40960, 49152, 57344, 65536]
    """
    low, high = min(first, last), max(first, last)
    least = (high - low) / max(count - 1, 1)
    whole = low.denominator == high.denominator == 1
    if not least or (whole and least <= 1):
        count = int(high - low) + 1 if whole else 1
        return [first + i * (1 if last > first else -1) for i in range(count)]
    steps = (
        Fraction(times) * Fraction(10) ** power
        for power in range(-12, 310)
        for times in (1, 2, Fraction(5, 2), 5)
    )
    if whole and not any(int(end) % 1024 for end in (low, high)):
        steps = (Fraction(2) ** power for power in range(1100))
    step = next(
        step for step in steps if step >= least * 9 / 10 and not (whole and step.denominator > 1)
    )
    between = [step * i for i in range(int(low // step) + 1, -int(-high // step))]
    values = [low, *between, high]
    return values if first <= last else reversed(values)


def _split(text: str, where: str, whole: str) -> tuple[Fraction, str]:
    text = text.strip()
    number = _NUMBER.match(text)
    if number is None:
        raise InputError(
            f"expected a range between two numbers, such as 25..200GB/s:8, got {shown(whole)}",
            source=where,
        )
    if not isfinite(float(number[0])):  # its fraction would have as many digits as its exponent
        raise InputError(
            f"expected a range between two finite numbers, got {shown(whole)}", source=where
        )
    return Fraction(number[0].replace("_", "")), text[number.end() :].strip()


def _unit(text: str) -> str:
    number = _NUMBER.match(text.strip())
    return text.strip()[number.end() :] if number else ""


def as_integer(value: Value) -> tuple[str, int] | None:
    """Return the suffix and the integer of a quantity, such as ``("_bytes_per_s", 25000000000)``;
    ``None`` for anything else.

    >>> as_integer("25 GB/s"), as_integer(4), as_integer("nearest")
    (('_bytes_per_s', 25000000000), None, None)
    """
    if isinstance(value, str):
        for suffix, parse, _ in _QUANTITIES:
            try:
                return suffix, parse(value)
            except UnitError:
                continue
    return None


def written(suffix: str, value: float) -> str:
    """Return the text of a quantity of ``value`` nanoseconds, bytes, bytes per second or FLOP per
    second; ``suffix`` selects the unit.

    >>> written("_bytes_per_s", 20e9)
    '20 GB/s'
    """
    write = next(write for named, _, write in _QUANTITIES if named == suffix)
    return write(round(value)) if isfinite(value) and value >= 0 else write(1)


def grid(axes: Sequence[Axis]) -> list[dict[str, Value]]:
    """Return every combination of the axes' values; the last axis varies fastest. Raises
    :class:`InputError` if two axes set one field.

    >>> grid([parse_axis("workload.batch=1,2"), parse_axis("policy.k=4")])
    [{'workload.batch': 1, 'policy.k': 4}, {'workload.batch': 2, 'policy.k': 4}]
    """
    named = [field for axis in axes for field in axis.fields]
    if len(set(named)) < len(named):
        twice = next(field for field in named if named.count(field) > 1)
        raise InputError(
            f"{twice} is varied twice; list all its values in one place", source="vary"
        )
    within("grid_points", prod(len(axis.values) for axis in axes), source="vary")
    return [
        {field: value for axis, value in zip(axes, values, strict=True) for field in axis.fields}
        for values in product(*(axis.values for axis in axes))
    ]


def read_vary(vary: object) -> list[dict[str, Value]]:
    """Return the points of a study from its ``vary`` argument.

    Texts for :func:`parse_axis`, or a mapping from fields to values (a list, or text), span a grid.
    A list of mappings from fields to single values is a list of points. Raises :class:`InputError`.

    >>> read_vary({"workload.batch": [1, 2], "budget": "50..100%:2"})[1]
    {'workload.batch': 1, 'budget': '100%'}
    """
    if isinstance(vary, str):
        return grid([parse_axis(vary)])
    if isinstance(vary, Mapping):
        if not vary:
            raise InputError(
                "expected fields and their values, such as {'budget': [0.5, 0.75]}, got none",
                source="vary",
            )
        return grid([_axis(key, values) for key, values in vary.items()])
    if not isinstance(vary, Iterable):
        raise InputError(
            f"expected a mapping from fields to values, or a list of points, got {shown(vary)}",
            source="vary",
        )
    try:
        listed = listed_within("grid_points", vary, source="vary")
    except TypeError:  # an array of no dimension is iterable by its type alone
        raise InputError(
            f"expected a mapping from fields to values, or a list of points, got {shown(vary)}",
            source="vary",
        ) from None
    if listed and all(isinstance(item, str) for item in listed):
        return grid([parse_axis(item) for item in listed])
    if not listed or not all(isinstance(item, Mapping) and item for item in listed):
        raise InputError("expected points, each a mapping from fields to values", source="vary")
    listed = [{_field(key): plain_number(value) for key, value in item.items()} for item in listed]
    wrong = [(key, value) for item in listed for key, value in item.items() if not _is_value(value)]
    if wrong:
        raise InputError(
            f"expected a number up to 2^63-1 or a text, got {shown(wrong[0][1], 60)}",
            source=wrong[0][0],
        )
    if len({tuple(sorted(item)) for item in listed}) > 1:
        raise InputError("expected every point of the list to set the same fields", source="vary")
    return listed


def read_points(path: str) -> list[dict[str, Value]]:
    """Read the points of a CSV file with one column per field and one row per point. Raises
    :class:`InputError`.
    """
    from hosim.base.files import check_widths, csv_rows, decode, read_bytes
    from hosim.base.files.formats import TABLE, unexpected

    try:
        lines = [line for line in csv_rows(decode(read_bytes(path), path).encode(), path) if line]
        within("grid_points", len(lines) - 1, source=path)
        if len(lines) < 2:
            raise InputError(
                "expected a line of fields and lines of their values, separated by commas",
                source=path,
            )
        check_widths(lines, path)
    except InputError as error:
        raise (
            unexpected(path, "a table of the points of a sweep (CSV)", but=TABLE) or error
        ) from None
    fields = [field.strip() for field in lines[0]]
    return [
        {field: scalar(text.strip()) for field, text in zip(fields, line, strict=True)}
        for line in lines[1:]
    ]


def _field(key: object) -> str:
    if not isinstance(key, str):
        raise InputError(f"expected the name of a field, got {shown(key, 60)}", source="vary")
    return key


def _is_value(value: object) -> bool:
    """Return whether a field may have this value: ``None``, a text, or a number that a table can
    hold.
    """
    return (
        value is None
        or isinstance(value, str | float)
        or (isinstance(value, int) and abs(value) <= LARGEST)
    )


def _axis(key: object, values: object) -> Axis:
    name = _field(key)
    if isinstance(values, str):
        return parse_axis(f"{name}={values}")
    try:
        given = (
            listed_within("grid_points", values, source=name)
            if isinstance(values, Iterable)
            else [values]
        )
    except TypeError:  # an array of no dimension is iterable by its type alone
        given = [values]
    listed: list[Any] = [plain_number(value) for value in given]
    if not listed or not all(map(_is_value, listed)):
        most = (
            " up to 2^63-1"
            if any(isinstance(value, int) for value in listed if not _is_value(value))
            else ""
        )
        raise InputError(
            f"expected a list of numbers{most} or texts, got {shown(values)}", source=name
        )
    return Axis(tuple(part.strip() for part in name.split("+")), _once(listed))
