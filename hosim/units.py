"""Quantities with units: strict in, readable out.

Inside hosim everything is an integer: bytes, nanoseconds, bytes per second, FLOP per second. This
module is the only place that turns text such as ``80 GiB`` into those integers and back. A unit is
mandatory, ``B`` is bytes and ``b`` is refused (a bit is a factor of eight of confusion), and a
size, a rate, a time and a compute rate are different types: ``parse_size("55 GB/s")`` is an error.

Decimal (``k M G T P E``) and binary (``Ki Mi Gi Ti Pi Ei``) prefixes are powers of 1000 and of
1024.
"""

import re
from decimal import ROUND_HALF_EVEN, Decimal
from numbers import Integral, Real
from typing import Any

from hosim.errors import UnitError
from hosim.plain_text import shown

_PREFIXES = (
    {"": 1}
    | {p: 1000**i for i, p in enumerate("kMGTPE", 1)}
    | {f"{p}i": 1024**i for i, p in enumerate("KMGTPE", 1)}
)
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}

_SIZE = {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()}
_RATE = {f"{unit}/s": factor for unit, factor in _SIZE.items()}
_COMPUTE = {f"{p}FLOP/s": f for p, f in _PREFIXES.items() if not p.endswith("i")}
_FREQUENCY = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*")
LARGEST = 2**63 - 1
"""The most bytes, nanoseconds or FLOP that a file of hosim holds."""


def plain_number(value: Any) -> Any:
    """The number of Python that one of numpy stands for; anything else as it is."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _parse(text: object, units: dict[str, int], what: str, example: str) -> int:
    if not isinstance(text, str):
        raise UnitError(f"expected {what} with its unit, such as '{example}', got {shown(text)}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"expected {what} such as '{example}', got {shown(text)}")
    number, unit = match[1], match[2]
    if unit is None:
        raise UnitError(f"expected {what} with its unit, such as '{example}', got {shown(text)}")
    if unit not in units:
        near = next(
            (u for u in units if unit.lower() in (u.lower(), u.lower().removesuffix("b"))), None
        )
        hint = f"; did you mean '{number} {near}'?" if near else ""
        if re.fullmatch(r"[kKMGTPE]?i?b(/s|ps)?", unit):
            hint = "; 'b' would be bits: write 'B' for bytes"
        raise UnitError(
            f"expected {what} such as '{example}', got {shown(text)}: unknown unit {unit!r}{hint}"
        )
    try:
        value = (Decimal(number.replace("_", "")) * units[unit]).to_integral_value(
            rounding=ROUND_HALF_EVEN
        )
    except ArithmeticError:  # an exponent beyond what decimals have
        raise UnitError(f"expected {what} such as '{example}', got {shown(text)}") from None
    if not 0 <= value <= LARGEST:
        smallest = min(units, key=lambda name: units[name])
        raise UnitError(f"expected {what} from 0 to 2^63-1 {smallest}, got {shown(text)}")
    return int(value)


def parse_size(text: object) -> int:
    """Bytes of a size such as ``80 GiB``, ``40GiB``, ``1.5 MB`` or ``12 B``.

    >>> parse_size("80 GiB"), parse_size("80 GB")
    (85899345920, 80000000000)
    """
    return _parse(text, _SIZE, "a size", "80 GiB")


def parse_rate(text: object) -> int:
    """Bytes per second of a rate such as ``55 GB/s``.

    >>> parse_rate("3.35 TB/s")
    3350000000000
    """
    return _parse(text, _RATE, "a rate", "55 GB/s")


def parse_time(text: object) -> int:
    """Nanoseconds of a time such as ``10 us``.

    >>> parse_time("1.5 us"), parse_time("0 ns")
    (1500, 0)
    """
    return _parse(text, _TIMES, "a time", "10 us")


def human_percent(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """A share as people write it.

    >>> human_percent(0.0523), human_percent(0.5, 0), human_percent(0.1, 2, signed=True)
    ('5.2 %', '50 %', '+10.00 %')
    """
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


def parse_compute(text: object) -> int:
    """FLOP per second of a compute rate such as ``989 TFLOP/s``.

    >>> parse_compute("989 TFLOP/s")
    989000000000000
    """
    return _parse(text, _COMPUTE, "a compute rate", "989 TFLOP/s")


def parse_frequency(text: object) -> int:
    """Cycles per second of a frequency such as ``1.41 GHz``.

    >>> parse_frequency("1.41 GHz")
    1410000000
    """
    return _parse(text, _FREQUENCY, "a frequency", "1.41 GHz")


def parse_share(text: str) -> float:
    """A share such as ``1%`` or ``0.01``.

    >>> parse_share("1%"), parse_share("0.5")
    (0.01, 0.5)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        value = Decimal(number.strip()) / (100 if percent else 1)
    except ArithmeticError:
        value = Decimal(-1)
    if rest or not (value.is_finite() and 0 <= value <= 1):
        raise UnitError(f"expected a share from 0 to 1 such as '1%', got {shown(text)}")
    return float(value)


def _exact(value: int, units: dict[str, int]) -> str:
    """The text with the fewest digits, over ``units``, that parses back to ``value`` exactly; ties
    go to the larger unit.
    """
    whole = next(f"{value} {unit}" for unit, factor in units.items() if factor == 1)
    fitting = [
        (factor, unit)
        for unit, factor in units.items()
        if value >= factor and value * 10**6 % factor == 0
    ]
    texts = [(factor, _plain(Decimal(value) / factor), unit) for factor, unit in fitting]
    best = min(texts, key=lambda t: (len(t[1].replace(".", "")), -t[0]), default=None)
    return f"{best[1]} {best[2]}" if best else whole


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def exact_size(value: int) -> str:
    """The text with the fewest digits that parses back to exactly ``value`` bytes.

    >>> exact_size(85899345920), exact_size(80_000_000_000), exact_size(101)
    ('80 GiB', '80 GB', '101 B')
    """
    return _exact(value, _SIZE)


def exact_rate(value: int) -> str:
    """The text with the fewest digits that parses back to exactly ``value`` bytes per second.

    >>> exact_rate(15_754_000_000)
    '15.754 GB/s'
    """
    return _exact(value, _RATE)


def exact_time(value: int) -> str:
    """The text with the fewest digits that parses back to exactly ``value`` nanoseconds.

    >>> exact_time(12_000), exact_time(0)
    ('12 us', '0 ns')
    """
    return _exact(value, {u: f for u, f in _TIMES.items() if u not in ("µs", "min")})


def exact_compute(value: int) -> str:
    """The text with the fewest digits that parses back to exactly ``value`` FLOP per second.

    >>> exact_compute(989 * 10**12)
    '989 TFLOP/s'
    """
    return _exact(value, _COMPUTE)


def exact_frequency(value: int) -> str:
    """The text with the fewest digits that parses back to exactly ``value`` cycles per second.

    >>> exact_frequency(1_410_000_000)
    '1.41 GHz'
    """
    return _exact(value, _FREQUENCY)


def _human(value: int, steps: list[tuple[int, str]]) -> str:
    """Three significant digits in the largest unit of ``steps`` (ascending) that keeps the number
    at least one.
    """
    sign, value = ("-", -value) if value < 0 else ("", value)
    index = max((i for i, (factor, _) in enumerate(steps) if value >= factor), default=0)
    while True:
        factor, unit = steps[index]
        if factor == 1:
            return f"{sign}{value} {unit}"
        scaled = value / factor
        digits = 2 if scaled < 9.995 else int(scaled < 99.95)
        text = f"{scaled:.{digits}f}"
        # 1023.9 MiB rounds to 1024 MiB: say 1.00 GiB instead
        if index + 1 < len(steps) and int(text.split(".")[0]) * factor >= steps[index + 1][0]:
            index += 1
            continue
        return f"{sign}{text} {unit}"


def human_size(value: int) -> str:
    """A size for people, in binary units with three digits.

    >>> human_size(41_000_000_000), human_size(512), human_size(1073741823)
    ('38.2 GiB', '512 B', '1.00 GiB')
    """
    return _human(value, [(1, "B"), *((1024**i, f"{p}iB") for i, p in enumerate("KMGTPE", 1))])


def human_time(value: int) -> str:
    """A time for people, with three digits.

    >>> human_time(1_234_567), human_time(90), human_time(61_000_000_000)
    ('1.23 ms', '90 ns', '61.0 s')
    """
    return _human(value, [(1, "ns"), (10**3, "us"), (10**6, "ms"), (10**9, "s")])


def human_in(value: int, unit: tuple[int, str]) -> str:
    """A quantity in a given unit, as the axis of a picture has it, with three digits.

    >>> human_in(1_234_567_890, (10**6, "ms")), human_in(600 * 2**20, (2**30, "GiB"))
    ('1235 ms', '0.59 GiB')
    """
    return _human(value, [unit])


def human_rate(value: int) -> str:
    """A rate for people, in decimal units as vendors and measurements give them.

    >>> human_rate(55_700_000_000)
    '55.7 GB/s'
    """
    return _human(value, [(1, "B/s"), *((1000**i, f"{p}B/s") for i, p in enumerate("kMGTPE", 1))])


def human_compute(value: int) -> str:
    """A compute rate for people.

    >>> human_compute(989 * 10**12)
    '989 TFLOP/s'
    """
    return _human(
        value, [(1, "FLOP/s"), *((1000**i, f"{p}FLOP/s") for i, p in enumerate("kMGTPE", 1))]
    )


def human_flops(value: int) -> str:
    """An amount of floating-point operations for people.

    >>> human_flops(2 * 10**12)
    '2.00 TFLOP'
    """
    return human_compute(value).removesuffix("/s")


def human_clock(value: int) -> str:
    """A clock for people.

    >>> human_clock(1_830_000_000)
    '1.83 GHz'
    """
    return _human(value, [(1, "Hz"), *((1000**i, f"{p}Hz") for i, p in enumerate("kMG", 1))])
