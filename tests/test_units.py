"""Quantities with units: what is read, what is refused, what people and files are shown."""

from __future__ import annotations

from decimal import ROUND_UP, localcontext

import pytest

from hosim.errors import UnitError
from hosim.units import (
    exact_compute,
    exact_rate,
    exact_size,
    exact_time,
    human_compute,
    human_rate,
    human_size,
    human_time,
    parse_compute,
    parse_rate,
    parse_size,
    parse_time,
)


def test_every_unit() -> None:
    decimal = [f"1 {p}" for p in ("", "k", "M", "G", "T", "P", "E")]
    binary = [f"1 {p}i" for p in "KMGTPE"]
    assert [parse_size(f"{p}B") for p in decimal] == [1000**i for i in range(7)]
    assert [parse_size(f"{p}B") for p in binary] == [1024**i for i in range(1, 7)]
    assert [parse_rate(f"{p}B/s") for p in (*decimal, *binary)] == [
        parse_size(f"{p}B") for p in (*decimal, *binary)
    ]
    assert [parse_compute(f"{p}FLOP/s") for p in decimal] == [1000**i for i in range(7)]
    times = [parse_time(f"2 {unit}") for unit in ("ns", "us", "µs", "ms", "s", "min")]
    assert times == [2, 2_000, 2_000, 2_000_000, 2_000_000_000, 120_000_000_000]
    assert [
        parse_size(text)
        for text in (" 1_000B ", "+.5 kB", "1e3 B", "0.5 B", "1.5 B", "9223372036854775807 B")
    ] == [
        1000,
        500,
        1000,
        0,
        2,
        2**63 - 1,
    ]


def test_halves_are_even_in_any_context() -> None:
    with localcontext() as context:
        context.rounding = ROUND_UP
        assert [parse_size(f"{n}.5 B") for n in range(4)] == [0, 2, 2, 4]


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_size, 80, "expected a size with its unit, such as '80 GiB', got 80"),
        (parse_size, "80", "expected a size with its unit, such as '80 GiB', got '80'"),
        (parse_size, "much", "expected a size such as '80 GiB', got 'much'"),
        (parse_size, "1 XB", "expected a size such as '80 GiB', got '1 XB': unknown unit 'XB'"),
        (
            parse_size,
            "12gb",
            "expected a size such as '80 GiB', got '12gb': unknown unit 'gb'; did you mean '12 "
            "GB'?",
        ),
        (
            parse_size,
            "12 gi",
            "expected a size such as '80 GiB', got '12 gi': unknown unit 'gi'; did you mean '12 "
            "GiB'?",
        ),
        (
            parse_size,
            "1 Gib",
            "expected a size such as '80 GiB', got '1 Gib': unknown unit 'Gib'; 'b' would be "
            "bits: write 'B' for bytes",
        ),
        (
            parse_size,
            "1e999999999999 B",
            "expected a size such as '80 GiB', got '1e999999999999 B'",
        ),
        (
            parse_size,
            "1e999999 B",
            "expected a size from 0 to 2^63-1 B, got '1e999999 B'",
        ),
        (parse_size, "-1 B", "expected a size from 0 to 2^63-1 B, got '-1 B'"),
        (
            parse_size,
            "9223372036854775808 B",
            "expected a size from 0 to 2^63-1 B, got '9223372036854775808 B'",
        ),
        (parse_rate, "1 GB", "expected a rate such as '55 GB/s', got '1 GB': unknown unit 'GB'"),
        (
            parse_rate,
            "1 Gbps",
            "expected a rate such as '55 GB/s', got '1 Gbps': unknown unit 'Gbps'; 'b' would be "
            "bits: write 'B' for bytes",
        ),
        (parse_time, "1e30 s", "expected a time from 0 to 2^63-1 ns, got '1e30 s'"),
        (parse_time, "1 h", "expected a time such as '10 us', got '1 h': unknown unit 'h'"),
        (
            parse_compute,
            "1 GiFLOP/s",
            "expected a compute rate such as '989 TFLOP/s', got '1 GiFLOP/s': unknown unit "
            "'GiFLOP/s'",
        ),
    ],
)
def test_what_is_refused(parse, text: object, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_texts_that_parse_back() -> None:
    sizes = {
        0: "0 B",
        1: "1 B",
        999: "999 B",
        1000: "1 kB",
        1024: "1 KiB",
        1536: "1.5 KiB",
        101_000: "101 kB",
        5 * 2**29: "2.5 GiB",
        2**60: "1 EiB",
    }
    assert {value: exact_size(value) for value in sizes} == sizes
    for value in (*sizes, 12_345, 123_456_789_012_345):
        assert parse_size(exact_size(value)) == value
    assert [exact_rate(n) for n in (0, 1_000_001, 2**30, 25 * 10**9)] == [
        "0 B/s",
        "1.000001 MB/s",
        "1 GiB/s",
        "25 GB/s",
    ]
    assert [exact_time(n) for n in (999, 1000, 60 * 10**9, 1_500_000)] == [
        "999 ns",
        "1 us",
        "60 s",
        "1.5 ms",
    ]
    assert exact_size(1_000_000_100) == "1000.0001 MB"  # six decimals at most
    assert exact_compute(67 * 10**12 + 10**11) == "67.1 TFLOP/s"


def test_what_people_are_shown() -> None:
    sizes = [
        0,
        1,
        1023,
        1024,
        10_234,
        102_340,
        1023 * 1024,
        1024**2 - 1,
        10 * 1024 - 1,
        1024**6 * 3,
        -2048,
    ]
    assert [human_size(n) for n in sizes] == [
        "0 B",
        "1 B",
        "1023 B",
        "1.00 KiB",
        "9.99 KiB",
        "99.9 KiB",
        "1023 KiB",
        "1.00 MiB",
        "10.0 KiB",
        "3.00 EiB",
        "-2.00 KiB",
    ]
    assert [
        human_time(n) for n in (999, 1000, 9_994, 9_995, 99_940, 99_951, 999_600, 10**9, 10**13)
    ] == [
        "999 ns",
        "1.00 us",
        "9.99 us",
        "10.0 us",
        "99.9 us",
        "100 us",
        "1.00 ms",
        "1.00 s",
        "10000 s",
    ]
    assert [human_rate(n) for n in (5, 2_000, 3 * 10**6, 55_700_000_000)] == [
        "5 B/s",
        "2.00 kB/s",
        "3.00 MB/s",
        "55.7 GB/s",
    ]
    assert [human_compute(n) for n in (5, 2 * 10**15, 10**18)] == [
        "5 FLOP/s",
        "2.00 PFLOP/s",
        "1.00 EFLOP/s",
    ]
