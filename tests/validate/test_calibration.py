"""Calibration: known parameters of synthetic recordings are found again, nothing of a held-out part
is fitted to, profiles load.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares
from synthetic_trace import COPIES, TRUTH, base_machine, copy_us, recording

from hosim.errors import InputError
from hosim.io import hardware_from_dict, hardware_to_dict, load_hardware
from hosim.io.importers.recordings import DeviceInfo, KinetoTrace, parse_kineto
from hosim.shipped import find_hardware, hardware
from hosim.validate import (
    Calibration,
    Measurements,
    base_with_figures,
    calibrate,
    calibrated_profile,
    likely_base,
    read_measurements,
)
from hosim.validate.fits import (
    MeasuredCopy,
    copies_of,
    draws,
    figure,
    fit_line,
    fit_slope,
    fit_ways,
    spread,
)

SEEDS = (1, 2, 3)


def made(iterations: int = 12, seed: int = 1, **given: Any) -> KinetoTrace:
    return parse_kineto(recording(iterations, seed, **given), "made")


def fitted(seed: int = 1) -> Calibration:
    return calibrate(Measurements((made(seed=seed),)), base_machine())


@pytest.mark.parametrize("seed", SEEDS)
def test_channels_are_found_again(seed: int) -> None:
    """3 % of noise, and no copy that takes longer than the others."""
    ways = calibrate(
        Measurements((made(seed=seed, truth=replace(TRUTH, outliers=0)),)), base_machine()
    ).ways
    assert len(ways) == 4
    for direction, memory, latency, bandwidth in TRUTH.channels:
        way = ways[direction, memory.lower()]
        assert way.bandwidth.value == pytest.approx(bandwidth, rel=0.03)
        assert way.latency is not None
        assert way.latency.value == pytest.approx(1000 * latency, rel=0.05)
        assert way.bandwidth.samples == 12 * len(COPIES)
        assert way.residuals.median is not None
        assert way.residuals.median < 0.04
        for size in COPIES:
            assert way.predict(size) == pytest.approx(
                1000 * copy_us((direction, memory, latency, bandwidth), size), rel=0.05
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_slow_copies_stretch_the_fit_and_do_not_bend_it(seed: int) -> None:
    """One copy in 20 takes three times as long: all of them together take what was recorded, and
    each its share of that.
    """
    trace = made(seed=seed)
    for way in fitted(seed).ways.values():
        copies = [copy for copy in copies_of(trace.ops) if copy.way == (way.direction, way.memory)]
        recorded = sum(copy.time_ns for copy in copies)
        assert (way.recorded_ns, way.total.samples) == (recorded, len(copies))
        assert (
            sum(way.predict(copy.size_bytes) for copy in copies)
            == pytest.approx(recorded)
            == way.total.value
        )
        assert way.total.low < recorded < way.total.high < 1.5 * recorded
        truth = next(
            one for one in TRUTH.channels if (one[0], one[1].lower()) == (way.direction, way.memory)
        )
        shares = [way.predict(size) / (1000 * copy_us(truth, size)) for size in COPIES]
        assert max(shares) < 1.1 * min(shares)
        assert way.bandwidth.low <= truth[3] <= 1.01 * way.bandwidth.high


@given(st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(0, 10**9)), min_size=1, max_size=40))
def test_the_interval_of_the_total_holds_what_was_recorded(copies: list[tuple[int, int]]) -> None:
    (way,) = fit_ways([MeasuredCopy("h2d", "pinned", size, time) for size, time in copies]).values()
    assert way.total.low <= way.recorded_ns == sum(time for _, time in copies) <= way.total.high
    if way.recorded_ns:
        assert sum(way.predict(size) for size, _ in copies) == pytest.approx(
            way.recorded_ns, rel=1e-6
        )


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """95 % of them: of 160 intervals of channels and 40 of slopes, whatever the seed, nine tenths
    have to.
    """
    held = slopes = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        copies = []
        for way in TRUTH.channels:
            times = [1000 * copy_us(way, size) for size in COPIES for _ in range(12)]
            noisy = (
                times
                * random.lognormal(0, TRUTH.noise, len(times))
                * np.where(random.random(len(times)) < TRUTH.outliers, 3, 1)
            )
            sizes = [size for size in COPIES for _ in range(12)]
            copies += [
                MeasuredCopy(way[0], way[1].lower(), size, round(time))
                for size, time in zip(sizes, noisy, strict=True)
            ]
        ways = fit_ways(copies)
        for direction, memory, latency, bandwidth in TRUTH.channels:
            way = ways[direction, memory.lower()]
            assert way.latency is not None
            held += (way.bandwidth.low <= bandwidth <= way.bandwidth.high) + (
                way.latency.low <= 1000 * latency <= way.latency.high
            )
        for _ in range(2):
            rooflines = random.uniform(10_000, 300_000, 40)
            slope = fit_slope(
                rooflines.tolist(),
                np.round((2000 + rooflines / 0.6) * random.lognormal(0, 0.05, 40))
                .astype(int)
                .tolist(),
                2000,
            )
            slopes += slope.low <= 1 / 0.6 <= slope.high
    assert held >= 0.9 * 160
    assert slopes >= 0.9 * 40


@pytest.mark.parametrize("seed", SEEDS)
def test_efficiency_and_launch_are_found_again(seed: int) -> None:
    calibration = fitted(seed)
    found = {(e.kind, e.dtype): e for e in calibration.efficiencies}
    assert found.keys() == {("matmul", "bf16"), ("elementwise", "fp32")}
    for which, true in (
        (("matmul", "bf16"), TRUTH.product),
        (("elementwise", "fp32"), TRUTH.addition),
    ):
        assert found[which].fraction.low <= true <= found[which].fraction.high
        assert found[which].fraction.value == pytest.approx(true, rel=0.02)
    assert calibration.gap is not None
    assert calibration.gap.value == pytest.approx(1000 * TRUTH.gap_us, abs=2)
    assert calibration.fixed_ns == pytest.approx(1000 * TRUTH.fixed_us, rel=0.1)
    assert calibration.launch_ns == round(calibration.gap.value) + calibration.fixed_ns


def test_other_parameters_give_other_figures() -> None:
    slow = replace(TRUTH, product=0.3, channels=(("h2d", "Pinned", 40.0, 6e9),))
    calibration = calibrate(Measurements((made(truth=slow),)), base_machine())
    assert {e.kind: e.fraction.value for e in calibration.efficiencies}["matmul"] == pytest.approx(
        0.3, rel=0.02
    )
    assert calibration.ways["h2d", "pinned"].bandwidth.value == pytest.approx(6e9, rel=0.03)
    assert any("d2h, pinned" in line for line in calibration.missing)


@pytest.mark.parametrize("fixed", [5000, -300])  # where it is below 0, there is no latency
def test_the_interval_of_a_line_is_that_of_scipys_fits_of_all_draws(fixed: int) -> None:
    random = np.random.default_rng(5)
    sizes = np.repeat([2.0**k for k in range(12, 26)], 6)
    times = np.round((fixed + sizes / 10) * random.lognormal(0, 0.05, len(sizes))).astype(int)
    latency, byte = fit_line(sizes.tolist(), times.tolist())
    assert fit_slope(sizes.tolist(), times.tolist(), fixed).value == pytest.approx(0.1, rel=0.05)
    rows = np.stack([np.ones_like(sizes), sizes / 1e6], axis=1) / (0.02 * times + 1)[:, None]
    wanted = rows[:, 0] * times
    fits = []
    for count in draws(len(sizes)).astype(int)[:200]:
        a, b = np.repeat(rows, count, axis=0), np.repeat(wanted, count)
        fits.append(
            least_squares(
                lambda x, a=a, b=b: a @ x - b,
                [5000, 1e5],
                bounds=(0, np.inf),
                loss="soft_l1",
                x_scale=[5000, 1e5],
            ).x
        )
    for found, values in zip(
        (latency, byte), np.array(fits).T / np.array([[1], [1e6]]), strict=True
    ):
        theirs = figure(found.value, values, len(sizes))
        assert (found.low, found.high) == (
            pytest.approx(theirs.low, rel=1e-3, abs=0.5),
            pytest.approx(theirs.high, rel=1e-3, abs=0.5),
        )


def test_a_line_without_latency_and_one_of_one_size() -> None:
    latency, byte = fit_line([10, 100, 1000], [20, 200, 2000])
    assert latency.value == pytest.approx(0, abs=1e-3)
    assert byte.value == pytest.approx(2)
    latency, byte = fit_line([100, 100, 100], [200, 210, 900])
    assert latency.value == 0
    assert byte.value == pytest.approx(2.1, rel=0.02)


def test_errors_are_relative_and_what_the_clock_shows_as_nothing_is_counted() -> None:
    found = spread([100, 200, 0, 4000], [110, 200, 5, 3000], tick=100)
    assert (found.samples, found.zeros, found.resolved) == (3, 1, 1)
    assert found.median == pytest.approx(0.1)
    assert found.resolved_median == pytest.approx(0.25)
    assert found.total == pytest.approx(3315 / 4300 - 1)
    assert spread([], []).median is None


# ---- sweeps of the recording kit


def sweep_file(folder: Path, latency: float = 9000, ns_a_byte: float = 0.04, both: int = 2) -> Path:
    folder.mkdir()
    rows = []
    for direction in ("h2d", "d2h", "both"):
        for size in (1 << power for power in range(12, 27, 2)):
            times = [
                round((latency + size * ns_a_byte * (both if direction == "both" else 1)) * factor)
                for factor in (0.99, 1, 1.01)
            ]
            rows.append(
                {
                    "direction": direction,
                    "pinned": True,
                    "bytes": size,
                    "median_ns": times[1],
                    "ns": times,
                }
            )
    content = {
        "format": "hosim.gpu/1",
        "device": {"name": "Toy"},
        "copies": rows,
        "host_allocations": [],
    }
    (folder / "bandwidth.json").write_text(json.dumps(content))
    return folder


def test_a_sweep_gives_channels_their_curve_and_what_both_ways_share(tmp_path: Path) -> None:
    measured = read_measurements([sweep_file(tmp_path / "kit")])
    assert measured.device == "Toy"
    calibration = calibrate(measured)
    assert calibration.ways["h2d", "pinned"].bandwidth.value == pytest.approx(25e9, rel=0.01)
    assert calibration.both is not None
    assert calibration.both[1].value == pytest.approx(25e9, rel=0.01)
    fabric = {"bandwidth": "9 GB/s", "channels": ["h2d", "d2h"], "scope": "device"}
    profile = calibrated_profile(
        calibration, {**hardware_to_dict(base_machine()), "fabrics": {"pcie": fabric}}, "new"
    )
    machine = hardware_from_dict(profile)
    assert machine.fabrics[0].bandwidth_bytes_per_s == pytest.approx(25e9, rel=0.01)
    assert len(machine.channels[0].curve) == 8
    from hosim.analysis.costmodel.transfers import alone_ns

    for size in (1 << 12, 1 << 20, 1 << 26):
        assert alone_ns(machine, "h2d", size) == pytest.approx(9000 + size * 0.04, rel=0.02)


def test_what_the_kit_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from hosim.on_torch.gpu.gpu_seam import CpuBackend
    from hosim.on_torch.gpu.measuring import sweep
    from hosim.on_torch.gpu.output_files import write_json
    from hosim.validate.kit import FORMAT

    device = CpuBackend()
    write_json(
        tmp_path / "bandwidth.json",
        {"format": FORMAT, "device": device.describe(), **sweep(device, (4096, 8192), 2)},
    )
    found = read_measurements([tmp_path])
    assert {copy.way for copy in found.sweeps[0].copies} == {
        (d, m) for d in ("h2d", "d2h") for m in ("pinned", "pageable")
    }
    assert len(found.sweeps[0].both) == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            {"format": "hosim.recording/2", "copies": []},
            "expected a file that `python -m hosim.gpu` writes",
        ),
        (
            {"format": "hosim.gpu/1", "copies": [{"direction": "up", "bytes": 1, "ns": [1]}]},
            r"copies\[0\]",
        ),
        (
            {"format": "hosim.gpu/1", "copies": [{"direction": "h2d", "bytes": 0, "ns": [1]}]},
            r"copies\[0\]",
        ),
    ],
    ids=["format", "direction", "bytes"],
)
def test_a_damaged_sweep(tmp_path: Path, content: dict[str, Any], problem: str) -> None:
    (tmp_path / "bandwidth.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=problem):
        read_measurements([tmp_path])


# ---- profiles


def test_the_profile_says_where_its_figures_are_from() -> None:
    plain = made(truth=replace(TRUTH, outliers=0))
    calibration = calibrate(Measurements((plain,)), base_machine())
    profile = calibrated_profile(calibration, hardware_to_dict(base_machine()), "new")
    machine = hardware_from_dict(profile)
    assert machine.name == "new"
    assert machine.compute.launch_ns == calibration.launch_ns
    assert machine.compute.efficiency_of["matmul"]["bf16"] == pytest.approx(TRUTH.product, rel=0.02)
    assert machine.compute.efficiency == 0.5
    for channel in machine.channels:
        assert channel.bandwidth_bytes_per_s == pytest.approx(
            {"h2d": 25e9, "d2h": 20e9}[channel.name], rel=0.05
        )
        assert channel.pageable_bytes_per_s == pytest.approx(
            {"h2d": 5e9, "d2h": 3e9}[channel.name], rel=0.05
        )
        assert channel.spread == profile["channels"][channel.name]["spread"]
        assert 0.02 <= channel.spread < 0.085  # surer than what nobody measured
        source = profile["channels"][channel.name]["source"]
        assert "made" in source
        assert f"n={12 * len(COPIES)}" in source
        assert " to " in source
        assert "residuals" in source
    assert "matmul bf16" in profile["compute"]["source"]
    again = calibrate(Measurements((plain,)), base_machine())
    assert profile == calibrated_profile(again, hardware_to_dict(base_machine()), "new")


def test_small_copies_tell_no_bandwidth() -> None:
    copies = [MeasuredCopy("h2d", "pinned", size, 2000 + size) for size in (8, 64, 512)] * 3
    way = fit_ways(copies)["h2d", "pinned"]
    assert not way.tells_bandwidth
    calibration = replace(fitted(), ways={("h2d", "pinned"): way})
    profile = calibrated_profile(calibration, hardware_to_dict(base_machine()), "new")
    assert profile["channels"]["h2d"]["bandwidth"] == "1 GB/s"


def test_the_base_of_a_device() -> None:
    devices = {
        "NVIDIA H100 80GB HBM3": "h100-80gb-sxm",
        "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
        "NVIDIA RTX A6000": "a6000",
        "Tesla T4": "t4",
        "Tesla V100-SXM2-32GB": "v100-32gb",
        "AMD Instinct MI300X": "mi300x-192gb",
        "NVIDIA GB200": "gb200-186gb",
    }
    assert {device: likely_base(device, hardware()) for device in devices} == devices
    for unknown in (
        "NVIDIA GeForce RTX 2080 Ti",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA L40",
        "NVIDIA A100-PG509-200",
        "NVIDIA H100 PCIe",
        None,
    ):
        with pytest.raises(InputError, match="name the profile to start from"):
            likely_base(unknown, hardware())


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ((304, 206_141_652_992), "mi300x-192gb"),
        ((304, 60_000_000_000), None),
        ((303, 206_141_652_992), None),
        ((None, None), None),
    ],
)
def test_a_device_without_a_name_is_known_by_its_figures(
    figures: tuple[int | None, int | None], expected: str | None
) -> None:
    profiles = [
        load_hardware(find_hardware(name)) for name in ("mi300x-192gb", "h100-80gb-sxm", "toy")
    ]
    assert (
        base_with_figures(
            DeviceInfo("", memory_bytes=figures[1], multiprocessors=figures[0]), profiles
        )
        == expected
    )
    assert (
        base_with_figures(DeviceInfo("", figures[1], figures[0]), [*profiles, profiles[0]]) is None
    )  # of two alike
