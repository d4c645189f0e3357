"""What ``validate`` and ``calibrate`` print, cell by cell: no two figures of an input are alike, so
none can stand in another's place.
"""

from typing import Any

import pytest
from rendered import rendered

from hosim.report.of_studies import calibration, rival_rows, rows, schemes, validation

CONSTANTS = {
    "wait": {"ns": 1_410, "low_ns": None, "high_ns": None, "samples": 0},
    "gap kernel kernel": {"ns": 1_300, "low_ns": 900, "high_ns": 2_050, "samples": 1_197},
}
STEP: dict[str, Any] = {
    "trace": "step",
    "device": "Toy",
    "kernels": 1_234,
    "makespan": {"measured_ns": 2_000_000, "simulated_ns": 1_900_000, "error": -0.05},
    "kernel_start": {"mean_error_ns": 30_000, "p95_error_ns": 70_000},
    "copies": {
        "count": 1_017,
        "bytes": 5 << 20,
        "total_ns": 110_000,
        "measured_overlap_ns": 80_000,
        "simulated_overlap_ns": 100_000,
    },
    "stream_waits": {
        "count": 1_009,
        "measured_ns": 50_000,
        "simulated_ns": 40_000,
        "contradicted": 1_003,
    },
    "memory": {
        "allocations": 7,
        "account": "program",
        "measured_peak_bytes": 1 << 30,
        "simulated_peak_bytes": 3 << 29,
        "max_abs_error_bytes": 12_345,
        "measured_reserved_peak_bytes": 2 << 30,
        "reserved_peak_bytes": 7 << 28,
        "mismatches": ["a block freed twice"],
    },
    "worst": [
        {"name": "k" * 61, "stream": 7, "measured_start_ns": 1_300_000, "start_error_ns": -17_000},
        {"name": "g[0]" * 15, "stream": 13, "measured_start_ns": 900, "start_error_ns": 0},
    ],
    "missing": ["[host] no calls"],
    "given": {
        "device_durations": 1_019,
        "host_segments": 1_021,
        "overlaps": 1_031,
        "starts": 1_033,
        "recurring": [{"name": "f", "ns": 8_000, "low_ns": 7_000, "high_ns": 9_000, "samples": 11}],
        "constants": CONSTANTS,
    },
    "errors": None,
}


def test_a_validation() -> None:
    assert rendered(validation(STEP)).split("\n") == [
        "step on Toy: 1,234 kernels",
        " figure                                          measured  simulated                     "
        "    error",
        " "
        "─────────────────────────────────────────────────────────────────────────────────────────────────",
        " makespan                                         2.00 ms    1.90 ms                     "
        "  -5.00 %",
        " start of a kernel, mean error                          -          -  30.0 us (1.50 % of "
        "the span)",
        " start of a kernel, P95 error                           -          -  70.0 us (3.50 % of "
        "the span)",
        " copies under kernels (1,017, 5.00 MiB, 110 us)   80.0 us     100 us                     "
        " +25.00 %",
        " waits for other streams (1,009)                  50.0 us    40.0 us                     "
        " -20.00 %",
        " allocated peak (program order)                  1.00 GiB   1.50 GiB                     "
        " +50.00 %",
        " allocated, furthest after any event                    -          -                     "
        " 12,345 B",
        " reserved peak                                   2.00 GiB   1.75 GiB                     "
        " -12.50 %",
        "Furthest off",
        " op                                                            stream  measured start    "
        " error",
        " "
        "──────────────────────────────────────────────────────────────────────────────────────────────",
        " kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk...       7         1.30 ms  "
        "-17.0 us",
        " g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]g[0]      13          900 ns    "
        " +0 ns",
        "not in the recording: [host] no calls",
        "contradiction in the recording: a block freed twice",
        "given: durations of 1,019 device ops and 1,021 host segments, 1,031 overlaps, 1,033 "
        "starts, 2 fitted constants, 1 recurring delay; 1,003 "
        "inferred waits dropped,",
        "as a recorded start contradicts them",
        " fitted constant       value  nine tenths of samples  samples",
        " ────────────────────────────────────────────────────────────",
        " wait               +1.41 us                       -        0",
        " gap kernel kernel  +1.30 us     +900 ns to +2.05 us    1,197",
        " before f           +8.00 us    +7.00 us to +9.00 us       11",
    ]


def test_a_validation_without_what_was_not_recorded() -> None:
    """No launch, copy, wait or allocation: a line of each figure that there is, and no cell of one
    that there is not.
    """
    bare = STEP | {
        "device": None,
        "makespan": {"measured_ns": None},
        "worst": [],
        "missing": [],
        "given": {},
        "memory": {},
    }
    bare |= {"copies": {"count": 0}, "stream_waits": {"count": 0}}
    assert rendered(validation(bare)).split("\n")[0] == "step: 1,234 kernels"
    assert rows(bare) == []
    memory = STEP["memory"] | {
        "measured_peak_bytes": None,
        "max_abs_error_bytes": None,
        "reserved_peak_bytes": None,
    }
    assert rows(bare | {"memory": memory}) == [
        ("allocated peak (program order)", "-", "1.50 GiB", "-"),
        ("allocated, furthest after any event", "-", "-", "-"),
        ("reserved peak", "2.00 GiB", "-", "-"),
    ]


@pytest.mark.parametrize(
    ("low", "high", "cells"),
    [
        (1 << 30, 3 << 30, ("1.00 GiB to 3.00 GiB", "within")),
        (1 << 30, None, ("at least 1.00 GiB", "within")),
        (3 << 30, None, ("at least 3.00 GiB", "outside")),
        (1 << 29, 1 << 30, ("512 MiB to 1.00 GiB", "outside")),
    ],
)
def test_a_reserved_peak_that_is_bounded(
    low: int, high: int | None, cells: tuple[str, str]
) -> None:
    memory = STEP["memory"] | {
        "reserved_peak_bytes": None,
        "reserved_low_bytes": low,
        "reserved_high_bytes": high,
    }
    assert rows(STEP | {"memory": memory})[-1] == ("reserved peak", "2.00 GiB", *cells)


def test_schemes_of_a_recording_kit() -> None:
    runs = [
        {
            "model": "3b",
            "mode": "prefill",
            "length": 4096,
            "scheme": "both",
            "makespan": {"measured_ns": 1_500_000, "simulated_ns": 1_410_000},
            "peak": {"measured_bytes": 3 << 30, "simulated_bytes": 0},
            "stall": {"simulated_ns": 33_000},
        },
        {
            "model": "1b",
            "mode": "train",
            "length": 64,
            "scheme": "resident",
            "makespan": {"measured_ns": None, "simulated_ns": 710_000},
            "peak": {"measured_bytes": 5 << 20, "simulated_bytes": None},
            "stall": {"simulated_ns": None},
        },
    ]
    assert rendered(
        schemes(
            {"device": "Toy", "recording": "kit[1]", "runs": runs, "plans": [], "dry_run": False}
        )
    ).split("\n") == [
        "kit[1] on Toy: predicted from the resident run and the sweep",
        "                             makespan   makespan  makespan      peak       peak       "
        "peak      stall",
        " run                 scheme  measured  predicted     error  measured  predicted      "
        "error  predicted",
        " "
        "────────────────────────────────────────────────────────────────────────────────────────────────────",
        " 3b prefill 4,096      both   1.50 ms    1.41 ms   -6.00 %  3.00 GiB        0 B  -100.00 "
        "%    33.0 us",
        " 1b train 64       resident         -     710 us         -  5.00 MiB          -          "
        "-          -",
    ]
    assert rendered(
        schemes({"device": None, "recording": "kit", "runs": [], "plans": [], "dry_run": True})
    ).startswith("A dry run: ")


def fitted(value: float, low: float, high: float, samples: int) -> dict[str, float]:
    return {"value": value, "low": low, "high": high, "samples": samples}


CHANNELS: list[dict[str, Any]] = [
    {
        "direction": "h2d",
        "memory": "pinned",
        "smallest_bytes": 4096,
        "largest_bytes": 1 << 28,
        "bandwidth_bytes_per_s": fitted(25e9, 24e9, 26e9, 1042),
        "latency_ns": fitted(9000, 8000, 11000, 1042),
        "residuals": {"median": 0.011, "p95": 0.052},
        "total_ns": fitted(2_000_000, 1_900_000, 2_300_000, 1042),
        "recorded_ns": 2_000_000,
    },
    {
        "direction": "d2h",
        "memory": "pageable",
        "smallest_bytes": 64,
        "largest_bytes": 1 << 20,
        "bandwidth_bytes_per_s": fitted(3e9, 3e9, 3e9, 17),
        "latency_ns": None,
        "residuals": {"median": None, "p95": 0.3},
        "total_ns": fitted(30_000, 30_000, 30_000, 17),
        "recorded_ns": 31_000,
    },
]
EFFICIENCY: list[dict[str, Any]] = [
    {
        "kind": "norm",
        "dtype": "fp32",
        "time_ns": 30_000,
        "efficiency": fitted(0.25, 0.24, 0.27, 1007),
        "residuals": {"median": 0.03, "p95": 0.07},
    },
    {
        "kind": "matmul",
        "dtype": "bf16",
        "time_ns": 900_000,
        "efficiency": fitted(0.75, 0.71, 0.78, 2003),
        "residuals": {"median": 0.02, "p95": 0.06},
    },
]


def part(
    samples: int,
    median: float,
    p95: float,
    total: float,
    zeros: int,
    resolved: int,
    resolved_median: float,
) -> dict[str, float]:
    return {
        "samples": samples,
        "median": median,
        "p95": p95,
        "total": total,
        "zeros": zeros,
        "resolved": resolved,
        "resolved_median": resolved_median,
    }


HELD: dict[str, Any] = {
    "trace": "made",
    "iterations": {"learned": 3, "held_out": 2},
    "parted": "between iterations",
    "ops": part(1200, 0.013, 0.041, 0.021, 3, 1202, 0.012),
    "transfers": part(30, 0.05, 0.09, -0.04, 0, 30, 0.06),
    "makespan": {"measured_ns": 5_000_000, "predicted_ns": 5_250_000, "error": 0.05},
    "missing": ["nothing else"],
}
FITTED: dict[str, Any] = {
    "device": "Toy",
    "base": "h100",
    "channels": CHANNELS,
    "launch": {
        "launch_ns": 7100,
        "gap_ns": fitted(1900, 1700, 2300, 1013),
        "host_ns": fitted(4300, 4100, 4700, 1011),
    },
    "efficiency": EFFICIENCY,
    "missing": ["[memory]"],
    "held_out": [HELD],
}


def test_a_calibration() -> None:
    assert rendered(calibration(FITTED)).split("\n") == [
        "Channels of Toy",
        " way  host memory  copies                sizes                           bandwidth       "
        "                latency  median error     P95",
        " "
        "─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────",
        " h2d  pinned        1,042  4.00 KiB to 256 MiB  25.0 GB/s (24.0 GB/s to 26.0 GB/s)  9.00 "
        "us (8.00 us to 11.0 us)         1.1 %   5.2 %",
        " d2h  pageable         17     64 B to 1.00 MiB                           3.00 GB/s       "
        "                      -             -  30.0 %",
        "h2d, pinned memory: 2.00 ms (1.90 ms to 2.30 ms) in total by the fit, 2.00 ms recorded",
        "d2h, pageable memory: 30.0 us in total by the fit, 31.0 us recorded",
        "launch of an op: 7.10 us, of which 1.90 us (1.70 us to 2.30 us) (n=1,013) between ops",
        "a launch occupies the host for 4.30 us (4.10 us to 4.70 us) (n=1,011)",
        "Efficiency, against h100",
        " kind    dtype    ops     time           efficiency  median error    P95",
        " ───────────────────────────────────────────────────────────────────────",
        " matmul  bf16   2,003   900 us  0.75 (0.71 to 0.78)         2.0 %  6.0 %",
        " norm    fp32   1,007  30.0 us  0.25 (0.24 to 0.27)         3.0 %  7.0 %",
        "not fitted: [memory]",
        "Unseen: made (3 iterations predict 2, between iterations)",
        " what                            number  median error    P95  in total",
        " ─────────────────────────────────────────────────────────────────────",
        " ops                              1,200         1.3 %  4.1 %    +2.1 %",
        " ops of 20 clock steps or more    1,202         1.2 %      -         -",
        " transfers                           30         5.0 %  9.0 %    -4.0 %",
        " makespan, 5.00 ms measured     5.25 ms             -      -    +5.0 %",
        "not predicted: nothing else",
    ]


@pytest.mark.parametrize(
    "given", [("channels", []), ("efficiency", []), ("missing", []), ("held_out", [])]
)
def test_a_calibration_without_a_part_is_the_others(given: tuple[str, Any]) -> None:
    whole, less = (
        rendered(calibration(data)).split("\n") for data in (FITTED, FITTED | dict([given]))
    )
    first = {
        "channels": "Channels of Toy",
        "efficiency": "Efficiency",
        "missing": "not fitted",
        "held_out": "Unseen",
    }[given[0]]
    gone = [line for line in whole if line not in less]
    assert gone[0].startswith(first)
    assert [line for line in whole if line not in gone] == less


def test_a_launch_that_was_not_fitted() -> None:
    for key, gone in (("launch_ns", "launch of an op"), ("host_ns", "a launch occupies")):
        text = rendered(calibration(FITTED | {"launch": FITTED["launch"] | {key: None}}))
        assert gone not in text
        assert ("launch of an op" in text) + ("a launch occupies" in text) == 1


def test_what_is_held_out_of_another_recording() -> None:
    """Nothing was learned from its iterations; its ops are all long enough for the clock; no
    makespan could be predicted.
    """
    other = HELD | {
        "iterations": {"learned": 0, "held_out": 4},
        "parted": "another recording",
        "missing": [],
    }
    other |= {
        "ops": part(1, 0.5, 0.6, 0.7, 2, 3, 0.4),
        "transfers": part(0, 0, 0, 0, 0, 0, 0),
        "makespan": {"error": None},
    }
    text = rendered(
        calibration(
            FITTED
            | {"device": None, "channels": CHANNELS[:1], "efficiency": [], "held_out": [other]}
        )
    ).split("\n")
    assert text[0] == "Channels"
    assert text[-4:] == [
        "Unseen: made (another recording)",
        " what  number  median error     P95  in total",
        " ────────────────────────────────────────────",
        " ops        1        50.0 %  60.0 %   +70.0 %",
    ]


def test_a_replay_beside_launches_alone_and_launches_with_waits() -> None:
    """Times have their share of a span of 1 ms, and some figures are not known."""
    keys = ("p95_start_ns", "p95_start_aligned_ns", "p95_gap_ns")
    shares = ("p95_start_aligned_of_idle", "gaps_of_waiting")

    def errors(of: int) -> dict[str, Any]:
        times = {key: 1_000 * (of + k) for k, key in enumerate(keys)}
        known = {key: (of + k) / 1_000 if of < 20 else None for k, key in enumerate(shares)}
        return {"makespan": of / 1_000, "span_ns": 1_000_000, **times, **known}

    listed = {"replay": errors(-10), "by_launches": errors(10), "by_held_host": errors(20)}
    listed["replay"] |= {"p95_start_ns": 3_000, "p95_start_aligned_ns": 0, "p95_gap_ns": 500}
    assert [cells[1:] for cells in rival_rows(listed)] == [
        ("-1.00 %", "+1.00 %", "+2.00 %"),
        ("3.00 us (0.30 %)", "10.0 us (1.00 %)", "20.0 us (2.00 %)"),
        ("0 ns (0.00 %)", "11.0 us (1.10 %)", "21.0 us (2.10 %)"),
        ("-1.00 %", "1.00 %", "-"),
        ("500 ns (0.05 %)", "12.0 us (1.20 %)", "22.0 us (2.20 %)"),
        ("-0.90 %", "1.10 %", "-"),
    ]
