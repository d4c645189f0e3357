"""Values that have broken readers before: numbers at the edge of their types, text that is markup,
a path, a formula or code somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any


class Raw(str):
    """Text that stands in JSON as it is."""

    __slots__ = ()


NUMBERS: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        2,
        255,
        65536,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**53 + 1,
        2**60,
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        10**30,
    ),
    *(0.0, 0.5, 1.5, -0.0, -1.5, 1e-300, 1e300, 5e-324, 1.7976931348623157e308, 1e18),
    *map(
        Raw,
        (
            "1e999",
            "-1e999",
            "NaN",
            "Infinity",
            "-Infinity",
            "1E400",
            "0x10",
            "01",
            "1_000",
            "+1",
            "1e-999",
            "-0",
        ),
    ),
    *(Raw("9" * 400), Raw("9" * 5000), Raw("1." + "3" * 400), Raw("-" + "9" * 999)),
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    Raw("[]"),
    Raw("{}"),
    Raw('""'),
    Raw("[[]]"),
    Raw("[null]"),
    Raw('{"": {}}'),
)
NESTED: tuple[Any, ...] = (
    Raw("[" * 300 + "]" * 300),
    Raw('{"a":' * 250 + "1" + "}" * 250),
    Raw("[" * 5000),
    Raw("[" * 150 + "]" * 150),
)
CODE = "__import__('os').system('touch canary')"
TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "\n",
        "\t",
        "a\nb",
        "\n::error::x",
        "::error file=a::x",
        "##[error]x",
        "a\rb",
        "\x00",
        "\x1b[31m",
        "\x1b]0;x\x07",
        "\x7f",
        "\x9b",
    ),
    *(
        "\u202e",
        "\u2028",
        "\u0085",
        "\ud800",
        "\udfff",
        "\ufeff",
        "é",
        "漢字",
        "🙂",
        "e\u0301" * 20,
        "x" * 300,
        "x" * 11_000,
        "\U000e0001",
    ),
    *(
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "'",
        '"',
        '"""',
        "\\",
        "[/]",
        "[bold]",
        "[link=x]",
        "[",
        "$a$",
        "$",
        r"$\frac$",
        "${HOME}",
        "%s",
        "{0}",
    ),
    *(
        "{",
        "{{}}",
        "<script>",
        "&amp;",
        "</svg>",
        "]]>",
        "--",
        "-h",
        "--help",
        ".",
        "..",
        "/",
        "../x",
        "/dev/zero",
        "/dev/stdin",
        "/etc/passwd",
    ),
    *(
        "a/b",
        "a,b",
        "a:b",
        "a=b",
        "a;b",
        "a+b",
        "a..b",
        "1..2",
        "1,2",
        "0",
        "-5",
        "1e999",
        "nan",
        "NaN",
        "inf",
        "None",
        "null",
        "true",
        "9" * 400,
    ),
    *(
        "0 B",
        "-1 B",
        "1 B",
        "1e400 GB",
        "nan GB",
        "inf GB",
        "1 b",
        "80",
        "80 GiB",
        "1e-30 B",
        "0.5 B",
        "99999999999 TiB",
        "1 GB/s",
        "0 GB/s",
    ),
    *(
        "-1 GB/s",
        "1e300 GB/s",
        "1e-300 GB/s",
        "inf GB/s",
        "0 ns",
        "-1 ns",
        "1e30 s",
        "1 us",
        "0%",
        "-1%",
        "50%",
        "101%",
        "1e9%",
        "nan%",
        "1e400%",
    ),
    *(
        CODE,
        "os:system",
        "hosim.cli.main:main",
        "builtins.eval",
        "module:function",
        "file:///etc/passwd",
        "http://127.0.0.1:9/x",
    ),
    *(
        "hosim.workload/1",
        "hosim.plan/1",
        "hosim.spec/1",
        "hosim.hardware/1",
        "hosim.result/9",
        "compute",
        "hbm",
        "ddr",
        "bf16",
        "fp8",
    ),
    *(
        "layerwise",
        "lookahead:k=4",
        "lookahead:k=0",
        "lookahead:k=-1",
        "lookahead:k=1e9",
        "lookahead:k=",
        "lookahead:",
        "all",
        "w",
        "a",
        "f",
    ),
)
BYTES: tuple[bytes, ...] = (
    *(
        b"\x00",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x1f\x8b",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"SQLite format 3\x00",
        b"\x80\x05",
        b"\x80\x04.",
    ),
    *(
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80" * 10,
        b"\xff" * 9 + b"\x01",
        b"\x00" * 8,
        b"\xff" * 4,
        b"\x7f\xff\xff\xff",
        b"\x0b",
        b"\x0c",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"'",
        b",",
        b":",
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"\n",
        b"\r\n",
        b"\t",
        b"\x0c",
        b"#",
        b"# x\n",
        b"- ",
        b"? ",
        b"|",
    ),
    *(
        b"&a [*a]",
        b"*a",
        b"<<: *a",
        b"!!python/object/apply:os.system ['touch canary']",
        b"!!binary x",
        b"!!set {a}",
        b"---\n",
        b"...\n",
        b"%YAML 9\n",
    ),
    *(
        b"1e999",
        b"NaN",
        b"-Infinity",
        b"9" * 2000,
        b"null",
        b"true",
        b"~",
        b"0x",
        b"1_0",
        b"1:2:3",
        b"2001-01-01",
        b"[[a]]\n",
        b"[a.b]\n",
        b"a.b = 1\n",
    ),
    *(
        b"=1+1",
        b"\x1b[31m",
        b"::error::x\n",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x80\xa8",
        b"cos\nsystem\n(S'touch canary'\ntR.",
    ),
)

_NUMBER = re.compile(r"\d+(\.\d+)?")
_UNITS = (
    "B",
    "kB",
    "KiB",
    "GiB",
    "TB",
    "GB/s",
    "TFLOP/s",
    "ns",
    "us",
    "s",
    "%",
    "",
    "b",
    "gb",
    "PiB/s",
)


def other_text(draw: Random, value: str) -> str:
    """A text like ``value`` but not equal, or one of those that have broken readers."""
    way = draw.randrange(8)
    if way == 0 and (found := _NUMBER.search(value)):
        number = draw.choice(("0", "-1", "1", "0.3", "1e30", "1e400", "nan", "9" * 30, "7"))
        return value[: found.start()] + number + value[found.end() :]
    if way == 1 and " " in value:
        return value.rpartition(" ")[0] + " " + draw.choice(_UNITS)
    if way == 2 and value:
        at = draw.randrange(len(value) + 1)
        return value[:at] + draw.choice(TEXTS) + value[at:]
    if way == 3:
        return draw.choice(
            (
                value.upper(),
                value + value,
                value[::-1],
                value[: len(value) // 2],
                value + " ",
                " " + value,
            )
        )
    return draw.choice(TEXTS)


def other_value(draw: Random, value: Any) -> Any:
    """A value to stand in the place of ``value``: of the same type more often than not."""
    way = draw.randrange(10)
    if isinstance(value, str) and way < 8:
        return other_text(draw, value)
    if isinstance(value, bool) and way < 5:
        return not value
    if isinstance(value, int | float) and way < 9:
        if way < 5:
            return draw.choice(
                (
                    value + 1,
                    value - 1,
                    -value,
                    value * 2,
                    value * 10**9,
                    str(value),
                    [value],
                    value * 1000,
                    value + 0.5,
                )
            )
        return draw.choice(NUMBERS)
    pool = draw.choice((NUMBERS, NUMBERS, OTHERS, TEXTS, TEXTS, OTHERS, NESTED))
    return draw.choice(pool)


EXTREMES: Mapping[type, tuple[Any, ...]] = {
    int: (
        0,
        -0.0,
        -1,
        1,
        2,
        3,
        10**6,
        2**31,
        2**53 + 1,
        2**63 - 1,
        2**64,
        10**30,
        0.5,
        1e-9,
        5e-324,
        1e300,
        *map(Raw, ("1e999", "NaN", "Infinity")),
    ),
    str: (
        "",
        " ",
        "\x00",
        "\x1b[31m",
        "\n",
        "x" * 9_999,
        "x" * 10_001,
        "\u202e",
        "0",
        "-1",
        "0 B",
        "0%",
        "100%",
        "1e300 GB",
        "nan",
        "inf%",
        "1e-9%",
    ),
    bool: (True, False, 0, "", "true"),
    type(None): (0, "", False),
}
"""Values at the edge of what a type allows, by that type; numbers are both kinds."""
ANY: tuple[Any, ...] = (
    None,
    0,
    "",
    True,
    Raw("[]"),
    Raw("{}"),
    Raw("9" * 5000),
    Raw("9" * 1000),
    Raw("[" * 199 + "]" * 199),
    Raw("[" * 300 + "]" * 300),
)


def extreme_value(draw: Random, value: Any) -> Any:
    """A value at the edge of the type of ``value``, or seldom one of another type."""
    kind = int if isinstance(value, float) else type(value)
    return draw.choice(EXTREMES[kind] if kind in EXTREMES and draw.random() < 0.85 else ANY)
