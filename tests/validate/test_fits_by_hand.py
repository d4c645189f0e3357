"""Fits, calibrations and profiles whose every figure follows by hand from a few round samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kineto_toys import COPY, KERNEL, call, device_op, span, trace
from rendered import facts

from hosim.errors import InputError
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io.importers.recordings import DeviceOp, KinetoTrace, parse_kineto
from hosim.validate import (
    Calibration,
    Measurements,
    Sweep,
    calibrate,
    calibrated_profile,
    host_channel,
    likely_base,
)
from hosim.validate.fits import (
    ChannelFit,
    ErrorSpread,
    Figure,
    MeasuredCopy,
    clock_tick,
    copies_of,
    draws,
    figure,
    fit_line,
    fit_slope,
    fit_ways,
    inverse,
    median_figure,
    spread,
)
from hosim.validate.op_costs import ASSUMED, Efficiency

# ---- figures and errors


def test_errors_of_a_hundred_samples() -> None:
    """0 to 99 % too long: the median is between the two in the middle, and 95 are below the
    96th.
    """
    found = spread([100] * 100, [100 + i for i in range(100)], tick=5)
    assert (found.samples, found.median, found.p95, found.total) == (
        100,
        0.495,
        0.95,
        pytest.approx(0.495),
    )
    assert (found.resolved, found.resolved_median, found.zeros) == (100, 0.495, 0)
    assert spread([100] * 100, [100] * 100, tick=6).resolved == 0
    assert spread([19, 20, 1, 0, 0], [19, 25, 3, 7, 9]) == ErrorSpread(
        3, 0.25, 2.0, 1, 0.25, 63 / 40 - 1, 2
    )
    assert spread([100], [50]) == ErrorSpread(1, 0.5, 0.5, 1, 0.5, -0.5, 0)
    assert spread([0], [5]) == ErrorSpread(0, None, None, 0, None, None, 1)
    assert found.to_dict() == {
        "samples": 100,
        "median": 0.495,
        "p95": 0.95,
        "resolved": 100,
        "resolved_median": 0.495,
        "total": found.total,
        "zeros": 0,
    }


def test_figures_and_what_is_made_of_them() -> None:
    """95 % of 0 to 100 lie from 2.5 to 97.5; a value outside widens the interval."""
    assert figure(50, range(101), 7) == Figure(50.0, pytest.approx(2.5), pytest.approx(97.5), 7)
    assert (figure(-1, range(101), 7).low, figure(200, range(101), 7).high) == (-1, 200)
    assert inverse(Figure(4, 2, 8, 3), 16) == Figure(4, 2, 8, 3)
    assert inverse(Figure(0, 0, 10, 3), 1.0) == Figure(
        pytest.approx(1e9), 0.1, pytest.approx(1e9), 3
    )
    assert median_figure([3, 9, 3]) == Figure(3, 3, 9, 3)
    many = median_figure(range(1, 5001))
    assert (many.value, many.samples) == (2500.5, 5000)
    assert 2300 < many.low < many.value < many.high < 2700
    assert draws(3).shape == (200, 3)
    assert set(draws(3).sum(axis=1)) == {3}
    assert draws(3).max() == 3
    assert (draws(3) == draws(3)).all()
    assert [clock_tick(times) for times in ([1500, 2500], [4000, 6000], [0, 0], [])] == [
        500,
        1000,
        1,
        1,
    ]


def test_samples_that_lie_on_a_line() -> None:
    latency, byte = fit_line([100, 1000, 10_000] * 6, [1200, 3000, 21_000] * 6)
    for found, value in ((latency, 1000), (byte, 2)):
        assert (found.value, found.low, found.high, found.samples) == (
            *[pytest.approx(value)] * 3,
            18,
        )
    latency, byte = fit_line([100, 100], [200, 200])
    assert (latency, byte.value) == (Figure(0, 0, 0, 2), pytest.approx(2))
    slope = fit_slope([10, 20, 40], [130, 160, 220], 100)
    assert slope == Figure(3, pytest.approx(3), pytest.approx(3), 3)
    assert fit_slope([10, 20], [90, 100], 100) == Figure(
        0, 0, 0, 2
    )  # nothing takes longer than the fixed time


def least(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex function is smallest."""
    for _ in range(80):
        third = (high - low) / 3
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return low


SIZES, TIMES = [100, 1000, 2000, 4000, 8000, 8000], [1300, 2900, 5200, 8700, 17_500, 40_000]


def soft_l1(latency: float, byte: float, weights: Sequence[float]) -> float:
    """An error counts in units of 2 % of the time and the clock's step, which is 100 ns."""
    units = [0.02 * time + 100 for time in TIMES]
    rows = zip(SIZES, TIMES, units, weights, strict=True)
    return sum(
        weight * math.sqrt(1 + ((latency + size * byte - time) / unit) ** 2)
        for size, time, unit, weight in rows
    )


def test_the_line_with_the_least_loss() -> None:
    """Of six samples, of which one is far off, found in another way."""

    def of_byte(byte: float) -> float:
        return soft_l1(
            least(lambda latency: soft_l1(latency, byte, [1] * 6), 0, 5000), byte, [1] * 6
        )

    byte = least(of_byte, 0, 10)
    latency = least(lambda latency: soft_l1(latency, byte, [1] * 6), 0, 5000)
    found = fit_line(SIZES, TIMES)
    assert (found[0].value, found[1].value) == (
        pytest.approx(latency, rel=1e-4),
        pytest.approx(byte, rel=1e-4),
    )
    assert found[0].low < latency < found[0].high
    slope = least(lambda unit: soft_l1(700, unit, TIMES), 0, 10)
    assert fit_slope(SIZES, TIMES, 700).value == pytest.approx(slope, rel=1e-4)


def test_draws_are_the_same_every_time() -> None:
    """So that a recording gives the same intervals wherever it is fitted."""
    assert draws(5)[:3].tolist() == [[0, 2, 1, 1, 1], [4, 0, 0, 0, 1], [0, 0, 1, 2, 2]]
    assert median_figure(range(1, 5001)) == Figure(
        2500.5, pytest.approx(2401.975), pytest.approx(2587.425), 5000
    )


# ---- channels


def copies(*samples: tuple[int, int]) -> list[MeasuredCopy]:
    return [MeasuredCopy("h2d", "pinned", size, time) for size, time in samples]


def on_a_line(*sizes: int) -> ChannelFit:
    """500 ns and 2 ns a byte."""
    return fit_ways(copies(*((size, 500 + 2 * size) for size in sizes)), ["a", "b"])[
        "h2d", "pinned"
    ]


def test_a_curve_needs_four_sizes_and_a_range_of_a_hundred() -> None:
    curved = on_a_line(1000, 2000, 50_000, 100_000)
    assert curved.curve == tuple(
        (size, pytest.approx(2.0 * size)) for size in (1000, 2000, 50_000, 100_000)
    )
    assert (curved.base_ns, curved.byte_ns) == (pytest.approx(500), pytest.approx(2))
    assert on_a_line(1000, 50_000, 100_000).curve == ()
    assert on_a_line(1000, 2000, 50_000, 99_999).curve == ()
    straight = on_a_line(1000, 3000)
    assert (straight.direction, straight.memory, straight.sizes, straight.sources) == (
        "h2d",
        "pinned",
        (1000, 3000),
        ("a", "b"),
    )
    assert straight.bandwidth.value == pytest.approx(5e8)
    assert straight.latency is not None
    assert straight.latency.value == pytest.approx(500)
    assert straight.residuals.samples == 2
    assert straight.residuals.median == pytest.approx(0, abs=1e-6)
    assert on_a_line(1000).latency is None
    ways = fit_ways(
        [*copies((1, 1)), MeasuredCopy("d2h", "pageable", 1, 1), MeasuredCopy("d2h", "host", 1, 1)]
    )
    assert list(ways) == [("d2h", "host"), ("d2h", "pageable"), ("h2d", "pinned")]


def of_copies(*samples: tuple[int, int]) -> ChannelFit:
    """The channel of copies of so many bytes and nanoseconds."""
    return fit_ways([MeasuredCopy("h2d", "pinned", size, time) for size, time in samples])[
        "h2d", "pinned"
    ]


def test_similar_sizes_are_one_point() -> None:
    """Up to 110 belong to 100; 111 begins anew, to which 122 belongs. A point has the medians of
    its sizes and times.
    """
    found = of_copies(
        (111, 7000),
        (100, 1000),
        (110, 2000),
        (105, 9000),
        (122, 8000),
        (1000, 9000),
        (100_000, 90_000),
    )
    assert [size for size, _ in found.curve] == [105, 116, 1000, 100_000]
    assert found.predict(105) / found.predict(116) == pytest.approx(
        2000 / 7500, rel=0.05
    )  # but for the time of their bytes
    assert not of_copies(
        (111, 7), (100, 1), (1000, 9), (9999, 90)
    ).curve  # less than a hundred times the smallest
    assert not of_copies((100, 1), (1000, 9), (100_000, 90)).curve  # three sizes


def test_a_curve_that_rises() -> None:
    """10 us once and 8 us three times, of more bytes, are 8.5 us."""
    found = of_copies((100, 10_000), *[(200, 8000)] * 3, (300, 20_000), (100_000, 100_000))
    longest = found.predict(300)
    assert [found.predict(size) / longest for size in (100, 200)] == [
        pytest.approx(8.5 / 20, rel=0.03)
    ] * 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 64, 700, 5000, 65_535, 65_536, 1 << 20]), st.integers(1, 10**6)
        ),
        min_size=8,
        max_size=30,
    )
)
def test_a_curve_rises_and_no_point_is_faster_than_the_channel(
    samples: list[tuple[int, int]],
) -> None:
    """Nor is the channel slower than the largest copies, where they are large enough to tell."""
    found = of_copies(*samples)
    assume(found.curve)
    times = [time for _, time in found.curve]
    assert times == sorted(times)
    assert found.base_ns >= 0
    assert all(time >= size * found.byte_ns * (1 - 1e-9) for size, time in found.curve)
    (largest, longest), known = found.curve[-1], found.latency
    assert found.tells_bandwidth == (largest >= 65_536)
    assert largest < 65_536 or longest <= 0 or found.byte_ns <= longest / largest * (1 + 1e-9)
    assert known is None or found.base_ns <= known.value * (1 + 1e-9)


def test_copies_whose_host_memory_is_not_known() -> None:
    ops = [
        DeviceOp("copy", "op", 0, 7, 10, 15, None, size_bytes=8, source=source, target=target)
        for source, target in ((None, "device"),)
    ]
    found = copies_of(ops)
    assert [copy.memory for copy in found] == ["unknown"] * len(found)


# ---- calibrations

SOURCES = ("base", "run", "walk", "GPU", "the maker")
RESIDUALS = ErrorSpread(9, 0.01, 0.05, 9, 0.01, 0.0, 0)


def fitted(direction: str, memory: str, **given: Any) -> ChannelFit:
    fields: dict[str, Any] = {
        "bandwidth": Figure(4e9, 3e9, 5e9, 9),
        "latency": Figure(5000.0, 4000.0, 6000.0, 9),
        "base_ns": 5000.4,
        "byte_ns": 0.25,
        "curve": (),
        "residuals": RESIDUALS,
        "sizes": (1024, 1 << 20),
        "sources": ("run", "walk"),
        "recorded_ns": 9,
        "total": Figure(9.0, 8.0, 10.0, 9),
    }
    return ChannelFit(direction, memory, **(fields | given))


def calibrated(*ways: ChannelFit, **given: Any) -> Calibration:
    fields: dict[str, Any] = {
        "sources": ("run", "walk"),
        "device": "GPU",
        "base": "toy",
        "ways": {(way.direction, way.memory): way for way in ways},
        "gap": Figure(1000.4, 900.0, 1200.0, 11),
        "fixed_ns": 70,
        "host_launch": Figure(5.0, 4.0, 6.0, 13),
        "efficiencies": (
            Efficiency("matmul", "bf16", Figure(0.54321, 0.5, 1.25, 17), 99, RESIDUALS),
        ),
        "both": (64, Figure(3e9, 2e9, 4e9, 19)),
        "missing": ("a line",),
    }
    return Calibration(**(fields | given))


def test_a_calibration_as_data() -> None:
    way = fitted("h2d", "pinned")
    assert calibrated(way).to_dict() == {
        "format": "hosim.calibration/1",
        "sources": ["run", "walk"],
        "device": "GPU",
        "base": "toy",
        "channels": [way.to_dict()],
        "both_ways": {
            "bytes": 64,
            "bandwidth_bytes_per_s": {"value": 3e9, "low": 2e9, "high": 4e9, "samples": 19},
        },
        "launch": {
            "launch_ns": 1070,
            "gap_ns": {"value": 1000.4, "low": 900.0, "high": 1200.0, "samples": 11},
            "fixed_ns": 70,
            "host_ns": {"value": 5.0, "low": 4.0, "high": 6.0, "samples": 13},
        },
        "efficiency": [
            {
                "kind": "matmul",
                "dtype": "bf16",
                "efficiency": {"value": 0.54321, "low": 0.5, "high": 1.25, "samples": 17},
                "time_ns": 99,
                "residuals": RESIDUALS.to_dict(),
            }
        ],
        "kernels": [],
        "missing": ["a line"],
    }
    nothing = calibrated(gap=None, host_launch=None, both=None, efficiencies=()).to_dict()
    assert nothing["launch"] == {
        "launch_ns": None,
        "gap_ns": None,
        "fixed_ns": None,
        "host_ns": None,
    }
    assert (nothing["both_ways"], nothing["channels"], nothing["efficiency"]) == (None, [], [])


def parsed(*events: dict[str, Any], name: str = "toy") -> KinetoTrace:
    return parse_kineto(trace(*events), name)


COPIES = [
    event
    for n in (1, 2)
    for event in (
        call("cudaMemcpyAsync", 10 * n, 2, n),
        device_op(COPY, "Memcpy HtoD (Pinned -> Device)", 10 * n + 3, 2, n, bytes=4096),
    )
]
SUM = span(
    "cpu_op", "aten::add", 100, 50, **{"Input Dims": [[4], [4]], "Input type": ["float", "float"]}
)
TOY = Hardware(
    "toy",
    (Tier("hbm", 1 << 30, 10**12, "device"),),
    (),
    Compute({"bf16": 10**14}),
    device_tier="hbm",
)


def kernel(at: float, number: int, duration: float) -> list[dict[str, Any]]:
    return [
        call("cudaLaunchKernel", at, 2, number),
        device_op(KERNEL, f"k{number}", at + 3, duration, number),
    ]


def test_what_a_recording_lacks_is_said() -> None:
    channels = [
        f"channel {end} memory: no such copy was recorded"
        for end in ("h2d, pageable", "d2h, pinned", "d2h, pageable")
    ]
    one_size = [
        "latency of h2d, pinned memory: all copies have 4,096 B",
        "bandwidth of h2d, pinned memory: no copy is larger than 4,096 B",
    ]
    found = calibrate(Measurements((parsed(*COPIES),)))
    assert found.missing == (
        *channels,
        *one_size,
        *found.missing[-2:],
    )
    assert [line.partition(":")[0] for line in found.missing[-2:]] == ["launch time", "efficiency"]
    assert (found.sources, found.device, found.base, found.gap, found.fixed_ns, found.both) == (
        ("toy",),
        "Toy",
        None,
        None,
        0,
        None,
    )
    assert found.ways["h2d", "pinned"].sources == ("toy",)
    other = parsed(SUM, *kernel(110, 1, 5), *kernel(200, 2, 15), name="other")
    found = calibrate(Measurements((parsed(*COPIES), other)))
    assert facts(found.missing[-1], "efficiency", "--base") == "efficiency, --base"
    assert (found.fixed_ns, found.efficiencies, found.ways["h2d", "pinned"].sources) == (
        5000,
        (),
        ("toy",),
    )
    assert found.host_launch is not None
    assert (found.host_launch.value, found.host_launch.samples) == (2000, 2)
    found = calibrate(Measurements((other,)), TOY)
    assert found.base == "toy"
    assert [facts(line, "elementwise fp32") for line in found.missing[-2:]] == [
        "3, elementwise fp32",
        "1, 75 %",
    ]
    with pytest.raises(InputError) as caught:
        calibrate(Measurements((parsed(*kernel(0, 1, 5)),)))
    assert (
        str(caught.value)
        == "toy: nothing to calibrate from: no copy to or from the host, no queued launches, no "
        "shapes"
    )


def test_both_ways_at_once() -> None:
    """2 copies of 4 bytes in 8, 2 and 16 ns: 1, 4 and half a gigabyte a second; smaller ones and
    what took no time do not count.
    """
    sweep = Sweep(
        "kit",
        None,
        tuple(copies((100, 200), (200, 300))),
        ((4, 8), (2, 1), (4, 2), (4, 0), (4, 16)),
    )
    found = calibrate(Measurements((), (sweep,)))
    assert found.both == (4, Figure(1e9, 5e8, 4e9, 3))
    assert found.missing == ()
    assert found.ways["h2d", "pinned"].sources == ("kit",)
    assert calibrate(Measurements((), (Sweep("kit", None, sweep.copies, ((4, 0),)),))).both is None


def test_the_profiles_of_a_device() -> None:
    known = ["h100-80gb-sxm", "h100-pcie", "g10-a100", "rtx-4090", "a1-100"]
    assert likely_base("NVIDIA GeForce-RTX-4090", known) == "rtx-4090"
    for device, said in {
        "NVIDIA H100": "a recording of NVIDIA H100: name the profile to start from: h100-80gb-sxm "
        "or h100-pcie",
        "NVIDIA A100": "a recording of NVIDIA A100: name the profile to start from (shipped: "
        f"{', '.join(known)})",
        None: "the recording does not name its device: name the profile to start from (shipped: "
        f"{', '.join(known)})",
    }.items():
        with pytest.raises(InputError) as caught:
            likely_base(device, known)
        assert str(caught.value) == f"--base: {said}"


# ---- profiles


def test_the_channel_to_the_host() -> None:
    """``ddr`` before faster tiers, then the fastest one that has a channel that way."""
    tiers = Tier("hbm", 1, 9, "device"), Tier("slow", 1, 2), Tier("fast", 1, 3), Tier("ddr", 1, 1)
    ways = [("s", "slow", "hbm"), ("f", "fast", "hbm"), ("d", "ddr", "hbm"), ("up", "hbm", "slow")]
    channels = tuple(Channel(name, source, destination, 1) for name, source, destination in ways)
    machine = Hardware("m", tiers, channels, Compute({}), device_tier="hbm")
    assert [host_channel(machine, direction).name for direction in ("h2d", "d2h")] == ["d", "up"]
    without = Hardware("m", tiers, (*channels[:2], channels[3]), Compute({}), device_tier="hbm")
    assert host_channel(without, "h2d").name == "f"
    with pytest.raises(InputError) as caught:
        host_channel(Hardware("m", tiers, channels[:3], Compute({}), device_tier="hbm"), "d2h")
    assert str(caught.value) == "m: channels: has no d2h channel between the device and host memory"


BASE: dict[str, Any] = {
    "format": "hosim.hardware/1",
    "name": "base",
    "device_tier": "hbm",
    "tiers": {
        "hbm": {"capacity": "1 GiB", "bandwidth": "1000 GB/s"},
        "ddr": {"capacity": "8 GiB", "bandwidth": "100 GB/s"},
    },
    "channels": {
        "h2d": {"from": "ddr", "to": "hbm", "bandwidth": "10 GB/s", "latency": "2 us"},
        "d2h": {
            "from": "hbm",
            "to": "ddr",
            "bandwidth": "10 GB/s",
            "latency": "2 us",
            "pageable": "9 GB/s",
            "source": "a book",
        },
    },
    "fabrics": {
        "pcie": {
            "bandwidth": "11 GB/s",
            "channels": ["h2d", "d2h"],
            "scope": "device",
            "source": "a sheet",
        }
    },
    "compute": {"peak": {"bf16": "1 TFLOP/s"}, "source": "a page"},
    "source": "the maker",
}


def test_everything_that_a_profile_says() -> None:
    small = fitted(
        "d2h", "pageable", latency=None, residuals=ErrorSpread(9, 0.01, None, 9, 0.01, 0.0, 0)
    )
    curved = fitted("h2d", "unknown", curve=((2048, 256.0), (4096, 1024.0), (8192, 1500.0)))
    profile = calibrated_profile(calibrated(curved, small, both=None), BASE, "new")
    interval = "Intervals: 95 % by bootstrap"
    assert facts(profile["source"], *SOURCES) == "base, run, walk, GPU, the maker"
    assumed = ", ".join(ASSUMED)
    assert profile["compute"].pop("efficiency_of")["matmul"] == {
        "bf16": 0.5432,
        "fp16": 0.543,
        "fp32": 0.65,
        "tf32": 0.65,
    }
    assert profile["compute"] == {
        "peak": {"bf16": "1 TFLOP/s"},
        "launch": "1.07 us",
        "source": "launch from run, walk: gap 1.00 us (900 ns to 1.20 us, n=11), 70 ns of the "
        "shortest ops. "
        "efficiency_of, against toy, from run, walk: matmul bf16 0.543 (0.5 to 1.25, n=17). "
        "efficiency_of, as kinds that are alike, in dtypes not listed: matmul. "
        f"efficiency_of, [assumption], in dtypes not listed: {assumed}. {interval}. Before: a page",
    }
    # 2048 bytes in 256 ns are 8 GB/s, but the channel has 4; 4096 in 1024 are 4; 8192 in 1500 no
    # longer than 4096 at 4
    assert profile["channels"]["h2d"] == {
        "from": "ddr",
        "to": "hbm",
        "bandwidth": "4 GB/s",
        "latency": "5 us",
        "spread": 0.13,  # ln(5 / 3) / (2 * 1.96)
        "curve": [{"size": size, "bandwidth": "4 GB/s"} for size in ("2 KiB", "4 KiB", "8 KiB")],
        "source": "unknown memory from run, walk: 4.00 GB/s (3.00 GB/s to 5.00 GB/s, n=9), "
        "latency 5.00 us (4.00 us to 6.00 us, n=9), "
        f"curve by size; 1.00 KiB to 1.00 MiB, residuals median 1.0 % P95 5.0 %. {interval}",
    }
    assert profile["channels"]["d2h"] == {
        "from": "hbm",
        "to": "ddr",
        "bandwidth": "10 GB/s",
        "latency": "2 us",
        "pageable": "4 GB/s",
        "source": "pageable memory from run, walk: 4.00 GB/s (3.00 GB/s to 5.00 GB/s, n=9), "
        "latency unknown: one size only; 1.00 KiB to "
        f"1.00 MiB. {interval}. bandwidth before: a book",
    }
    assert profile["fabrics"] == BASE["fabrics"]  # nothing beats it


def test_kinds_of_host_memory_in_order_of_preference() -> None:
    rates = {"unknown": 1e9, "host": 2e9, "pinned": 3e9}
    ways = [fitted("d2h", memory, byte_ns=1e9 / rate) for memory, rate in rates.items()]
    for last, bandwidth in ((3, "3 GB/s"), (2, "2 GB/s"), (1, "1 GB/s")):
        block = calibrated_profile(calibrated(*ways[:last]), BASE, "new")["channels"]["d2h"]
        assert (block["bandwidth"], block["pageable"]) == (
            bandwidth,
            bandwidth,
        )  # the base's is above that
    fast = calibrated_profile(calibrated(fitted("d2h", "pinned", byte_ns=1 / 16)), BASE, "new")
    assert (fast["channels"]["d2h"]["bandwidth"], fast["channels"]["d2h"]["pageable"]) == (
        "16 GB/s",
        "9 GB/s",
    )
    assert fast["fabrics"]["pcie"] == {
        **BASE["fabrics"]["pcie"],
        "bandwidth": "16 GB/s",
        "source": fast["fabrics"]["pcie"]["source"],
    }
    assert facts(fast["fabrics"]["pcie"]["source"], "a sheet") == "a sheet"
    unsaid = {key: value for key, value in BASE.items() if key not in ("source", "compute")} | {
        "compute": {"peak": {"bf16": "1 TFLOP/s"}}
    }
    bare = calibrated_profile(calibrated(device=None, efficiencies=()), unsaid, "new")
    assert facts(bare["source"], *SOURCES) == "base, run, walk"
    assert facts(bare["compute"]["source"], *SOURCES) == (
        "run, walk, 1.00 us, 900 ns, 1.20 us, 11, 70 ns, 95 %"
    )
    assert (
        calibrated_profile(calibrated(gap=None, efficiencies=()), BASE, "new")["compute"]
        == BASE["compute"]
    )


def test_a_curve_of_the_base_gives_way_to_what_was_fitted() -> None:
    """A line was fitted to copies of pinned memory; copies of pageable memory alone say nothing
    about the curve.
    """
    h2d = {**BASE["channels"]["h2d"], "curve": [{"size": "4 KiB", "bandwidth": "1 GB/s"}]}
    base = {**BASE, "channels": {**BASE["channels"], "h2d": h2d}}
    fitted_line = calibrated_profile(calibrated(fitted("h2d", "pinned")), base, "new")["channels"][
        "h2d"
    ]
    assert {key: value for key, value in fitted_line.items() if key != "source"} == {
        "from": "ddr",
        "to": "hbm",
        "bandwidth": "4 GB/s",
        "latency": "5 us",
        "spread": 0.13,
    }
    kept = calibrated_profile(calibrated(fitted("h2d", "pageable")), base, "new")["channels"]["h2d"]
    assert {key: value for key, value in kept.items() if key != "source"} == {
        **h2d,
        "pageable": "4 GB/s",
    }


def test_a_latency_below_a_nanosecond_is_one() -> None:
    """Exactly 0.5 + 2 x, in all draws of these samples; what goes through 0 instead has another
    slope.
    """
    latency, byte = fit_line([0.25, 0.75, 1.25] * 8, [1, 2, 3] * 8)
    assert (latency.low, latency.value, latency.high) == (pytest.approx(0.5, abs=1e-3),) * 3
    assert (byte.low, byte.value, byte.high) == (pytest.approx(2, abs=1e-3),) * 3


def test_a_line_that_would_begin_below_0_begins_at_0() -> None:
    latency, byte = fit_line([100, 1000, 10_000] * 6, [100, 1900, 19_900] * 6)  # 2 x - 100
    assert 0 <= latency.value < 1e-3
    assert 1.9 < byte.value < 2


def test_the_interval_of_a_median_is_that_of_all_values() -> None:
    """Of two values drawn twice, the median is the one, the other, or the middle."""
    assert median_figure([10, 20]) == Figure(15, 10, 20, 2)
