"""Reports as a whole, with every figure: of a recording's replays, of fitted ops, of a profile
written from fits by hand.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from kineto_toys import step
from rendered import facts

from hosim.errors import InputError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io import hardware_from_dict
from hosim.io.importers.recordings import DeviceOp, parse_kineto
from hosim.validate import (
    Calibration,
    Measurements,
    Sweep,
    Validation,
    beside,
    calibrated_profile,
    read_measurements,
    read_trace,
    validate,
    validation_to_dict,
)
from hosim.validate.fits import ChannelFit, ErrorSpread, Figure, MeasuredCopy, copies_of
from hosim.validate.op_costs import OpWork, fit_efficiencies, fixed_time, is_transfer, size_of
from hosim.validate.recorded_steps import GivenNumbers, Latencies, structural_replay, structure
from hosim.validate.snapshots import replay_memory

# ---- hosim validate

NO_MEMORY = (
    *("measured_peak_bytes", "simulated_peak_bytes", "max_abs_error_bytes", "requested_peak_bytes"),
    *("reserved_peak_bytes", "reserved_low_bytes", "reserved_high_bytes"),
)


def test_a_report_without_replays_has_nulls() -> None:
    assert validation_to_dict(Validation("t", None, None, None, ("times: none",))) == {
        "format": "hosim.validation/1",
        "trace": "t",
        "device": None,
        "kernels": 0,
        "explained": None,
        "reasons": [],
        "errors": None,
        "makespan": {"measured_ns": None, "simulated_ns": None, "error": None},
        "kernel_start": {"mean_error_ns": None, "p95_error_ns": None},
        "copies": {
            "count": 0,
            "bytes": 0,
            "total_ns": None,
            "measured_overlap_ns": None,
            "simulated_overlap_ns": None,
        },
        "stream_waits": {
            "count": 0,
            "inferred": 0,
            "contradicted": 0,
            "measured_ns": None,
            "simulated_ns": None,
        },
        "memory": dict.fromkeys(NO_MEMORY),
        "given": None,
        "worst": [],
        "missing": ["times: none"],
    }


def test_a_report_of_times_and_memory() -> None:
    """The step of the toy recording: copies of 100 and 8 us, kernels of 60 and 30 us, one wait of a
    stream, one block of 512 bytes.
    """
    recorded = parse_kineto(step(), "toy")
    times, memory = structural_replay(structure(recorded)), replay_memory(recorded)
    report = validation_to_dict(Validation("toy", "Toy", times, memory, ()))
    assert (report["trace"], report["device"], report["kernels"], report["missing"]) == (
        "toy",
        "Toy",
        2,
        [],
    )
    assert report["makespan"]["measured_ns"] == 210_000  # from 1040 to 1250 us
    assert report["makespan"] == beside("ns", times.measured_ns, times.simulated_ns)
    assert {key: report["copies"][key] for key in ("count", "bytes", "total_ns")} == {
        "count": 2,
        "bytes": 4160,
        "total_ns": 108_000,
    }
    assert report["copies"]["measured_overlap_ns"] == report["copies"]["simulated_overlap_ns"] == 0
    assert {key: report["stream_waits"][key] for key in ("count", "inferred", "contradicted")} == {
        "count": 1,
        "inferred": 1,  # the trace does not say of which event
        "contradicted": 0,
    }
    assert report["memory"]["start_bytes"] == 3584
    assert (
        report["memory"]["measured_peak_bytes"] == report["memory"]["simulated_peak_bytes"] == 4096
    )
    assert (
        report["memory"]["max_abs_error_bytes"],
        report["memory"]["mismatches"],
        report["memory"]["device"],
    ) == (0, [], 0)
    names = [
        (op["name"], op["kind"], op["stream"], op["measured_start_ns"]) for op in report["worst"]
    ]
    assert len(set(names)) == 4
    assert {name[:3] for name in names} == {(op.name, op.kind, op.stream) for op in recorded.ops}
    for op in report["worst"]:
        assert op["start_error_ns"] == op["simulated_start_ns"] - op["measured_start_ns"]
    drawn = Validation("toy", "Toy", times, memory, ()).drawn_ops
    assert sorted(end - start for *_, (start, end), _ in drawn) == [8_000, 30_000, 60_000, 100_000]
    assert sorted((device, stream) for _, _, device, stream, _, _ in drawn) == [
        (0, 7),
        (0, 7),
        (0, 20),
        (0, 20),
    ]


def test_an_error_is_relative_to_what_was_measured() -> None:
    assert beside("ns", 4, 5) == {"measured_ns": 4, "simulated_ns": 5, "error": 0.25}
    assert beside("bytes", 0, 5) == {"measured_bytes": 0, "simulated_bytes": 5, "error": None}
    assert beside("ns", 4, None) == {"measured_ns": 4, "simulated_ns": None, "error": None}


# ---- ops

MACHINE = Hardware(
    "toy",
    (Tier("hbm", 1 << 30, 10**12, "device"),),
    (),
    Compute({"bf16": 10**14}),
    device_tier="hbm",
)
"""1000 bytes a nanosecond."""


def works(
    kind: str, times: list[int], size: int = 10**6, dtype: str = "bf16", flops: int = 0
) -> list[OpWork]:
    """Ops of one, two, three ... times so many bytes: at full efficiency 1, 2, 3 ... us."""
    return [OpWork(kind, dtype, flops, size * i, time) for i, time in enumerate(times, 1)]


def test_what_is_fitted_and_what_is_not_is_said() -> None:
    given = [
        *works("matmul", [2100, 4100, 6100, 8100]),  # 100 ns fixed, twice the roofline
        *works("norm", [600, 1100, 1600, 2100]),  # half of the roofline
        *works(
            "reduce", [2100, 4100]
        ),  # too few: work without time, and time without work, do not count
        *works("reduce", [0]),
        *works("reduce", [5000], size=0),
        *works("fill", [199, 199, 199]),  # less than twice the fixed time
        *works("softmax", [1100, 2100, 3100], dtype="fp64", flops=1),  # no peak
        *works("cast", [110, 10**7, 10**9]),
    ]
    found, missing = fit_efficiencies(given, MACHINE, 100)
    assert [(e.kind, e.dtype, e.written, e.time_ns, e.fraction.samples) for e in found] == [
        ("matmul", "bf16", 0.5, 20400, 4),
        ("norm", "bf16", 1.0, 5400, 4),
    ]
    assert [e.fraction.value for e in found] == pytest.approx([0.5, 2.0])
    assert found[0].residuals.median == pytest.approx(0)
    assert found[1].residuals.median == pytest.approx(
        (1000 / 1100 + 1500 / 1600) / 2
    )  # 500, 1000, 1500, 2000 ns too long
    kinds = [f"{kind} bf16" for kind in ("reduce", "cast", "fill")]
    assert [facts(line, "norm", "toy", *kinds) for line in missing if "fp64" not in line] == [
        "norm, 2.00, toy, 1",
        "3, reduce bf16",
        "cast bf16",
        "fill bf16",
    ]
    (other,) = (line for line in missing if "fp64" in line)
    assert facts(other, "softmax").startswith("softmax")


def test_the_time_of_the_shortest_ops() -> None:
    assert fixed_time(works("matmul", [0, *range(100, 0, -1)])) == 6
    assert fixed_time(works("matmul", [0])) == 0


def copy(
    direction: str | None, size: int | None, kind: str = "copy", grid: tuple[int, ...] = ()
) -> DeviceOp:
    ends = {"h2d": ("pinned", "device"), "d2h": ("device", "pageable")}.get(
        direction or "", ("device", "device")
    )
    return DeviceOp(
        kind, "op", 0, 7, 10, 15, None, size_bytes=size, source=ends[0], target=ends[1], grid=grid
    )


def test_which_ops_are_copies_of_the_host() -> None:
    ops = [
        copy("h2d", 64),
        copy("d2h", 32),
        copy(None, 16),
        copy("h2d", None),
        copy("h2d", 64, kind="memset"),
    ]
    assert [is_transfer(op) for op in ops] == [True, True, False, True, False]
    assert copies_of(ops) == (
        MeasuredCopy("h2d", "pinned", 64, 5),
        MeasuredCopy("d2h", "pageable", 32, 5),
    )
    assert [size_of(op) for op in (*ops[:4], copy(None, 9, kind="kernel", grid=(4, 3, 2)))] == [
        64,
        32,
        16,
        0,
        24,
    ]


# ---- profiles


def figure(value: float, samples: int = 9) -> Figure:
    return Figure(value, 0.9 * value, 1.1 * value, samples)


def way(
    direction: str, memory: str, bandwidth: float, latency: float | None = 5000.0, **given: Any
) -> ChannelFit:
    measured = figure(latency) if latency is not None else None
    errors = ErrorSpread(9, 0.01, 0.05, 9, 0.01, 0.0, 0)
    return ChannelFit(
        direction,
        memory,
        figure(bandwidth),
        measured,
        latency or 0.0,
        1e9 / bandwidth,
        (),
        errors,
        (1024, 1 << 20),
        (),
        9,
        figure(9.0),
        **given,
    )


def calibration(*ways: ChannelFit, **given: Any) -> Calibration:
    found = {(one.direction, one.memory): replace(one, sources=("run",)) for one in ways}
    return Calibration(("run",), "GPU", None, found, None, 0, None, (), given.pop("both", None), ())


BASE: dict[str, Any] = {
    "format": "hosim.hardware/1",
    "name": "base",
    "device_tier": "hbm",
    "tiers": {
        "hbm": {"capacity": "1 GiB", "bandwidth": "1000 GB/s"},
        "ddr": {"capacity": "8 GiB", "bandwidth": "100 GB/s"},
    },
    "channels": {
        "h2d": {
            "from": "ddr",
            "to": "hbm",
            "bandwidth": "10 GB/s",
            "latency": "2 us",
            "pageable": "4 GB/s",
            "beside": {"d2h": "8 GB/s"},
            "curve": [
                {"size": "4 KiB", "bandwidth": "1 GB/s"},
                {"size": "1 MiB", "bandwidth": "9 GB/s"},
            ],
            "source": "a book",
        },
        "d2h": {"from": "hbm", "to": "ddr", "bandwidth": "10 GB/s", "latency": "2 us"},
    },
    "fabrics": {"pcie": {"bandwidth": "10 GB/s", "channels": ["h2d"], "scope": "device"}},
    "compute": {"peak": {"bf16": "1 TFLOP/s"}},
}


def test_the_base_is_a_profile() -> None:
    assert hardware_from_dict(BASE).name == "base"


def test_pageable_copies_alone_keep_the_channel_but_for_their_own_rate() -> None:
    profile = calibrated_profile(calibration(way("h2d", "pageable", 3e9)), BASE, "new")
    assert profile["name"] == "new"
    assert facts(profile["source"], "base", "run", "GPU") == "base, run, GPU"
    block = dict(profile["channels"]["h2d"])
    assert block.pop("source").startswith("pageable memory ")
    before = dict(BASE["channels"]["h2d"])
    del before["source"]
    assert block == {**before, "pageable": "3 GB/s"}
    assert {k: v for k, v in profile.items() if k not in ("name", "source", "channels")} == {
        k: v for k, v in BASE.items() if k not in ("name", "channels")
    }
    assert profile["channels"]["d2h"] == BASE["channels"]["d2h"]


def test_pageable_copies_that_beat_the_channel_raise_it() -> None:
    """What was measured is possible: the channel gets their rate, and so does the fabric that it
    uses.
    """
    profile = calibrated_profile(calibration(way("h2d", "pageable", 12e9)), BASE, "new")
    block = profile["channels"]["h2d"]
    assert (block["bandwidth"], block["pageable"], block["latency"]) == (
        "12 GB/s",
        "12 GB/s",
        "2 us",
    )
    assert block["curve"] == BASE["channels"]["h2d"]["curve"]
    assert "95 %" in block["source"]
    assert block["source"].endswith(": a book")
    assert profile["fabrics"]["pcie"] == {
        **BASE["fabrics"]["pcie"],
        "bandwidth": "12 GB/s",
        "source": profile["fabrics"]["pcie"]["source"],
    }


def test_pinned_copies_replace_the_channel() -> None:
    """At 3 GB/s nothing beside it or pageable is faster; the curve of the base goes, that of the
    fit comes.
    """
    fit = replace(way("h2d", "pinned", 3e9), curve=((4096, 4096.0), (1 << 20, (1 << 20) / 3)))
    block = calibrated_profile(calibration(fit), BASE, "new")["channels"]["h2d"]
    said = block.pop("source")
    assert facts(said).startswith("3.00 GB/s, 2.70 GB/s, 3.30 GB/s, 9")
    assert said.endswith(
        "; 1.00 KiB to 1.00 MiB, residuals median 1.0 % P95 5.0 %. Intervals: 95 % by bootstrap"
    )
    assert block == {
        "from": "ddr",
        "to": "hbm",
        "bandwidth": "3 GB/s",
        "latency": "5 us",
        "spread": 0.051,  # ln(3.3 / 2.7) / (2 * 1.96)
        "pageable": "3 GB/s",
        "beside": {"d2h": "3 GB/s"},
        "curve": [
            {"size": "4 KiB", "bandwidth": "1 GB/s"},
            {"size": "1 MiB", "bandwidth": "3 GB/s"},
        ],
    }


def test_a_fabric_of_both_directions_gets_what_both_reached() -> None:
    base = {
        **BASE,
        "fabrics": {
            "pcie": {"bandwidth": "10 GB/s", "channels": ["h2d", "d2h"], "scope": "device"}
        },
    }
    both = 1 << 20, figure(19e9)
    profile = calibrated_profile(
        calibration(way("h2d", "pinned", 12e9), way("d2h", "pinned", 11e9), both=both), base, "new"
    )
    assert profile["fabrics"]["pcie"]["bandwidth"] == "19 GB/s"
    assert facts(profile["fabrics"]["pcie"]["source"]).startswith("1.00 MiB, 19.0 GB/s")
    assert [profile["channels"][name]["bandwidth"] for name in ("h2d", "d2h")] == [
        "12 GB/s",
        "11 GB/s",
    ]
    both = 1 << 20, figure(9e9)  # never less than one channel alone
    profile = calibrated_profile(
        calibration(way("h2d", "pinned", 12e9), way("d2h", "pinned", 11e9), both=both), base, "new"
    )
    assert profile["fabrics"]["pcie"]["bandwidth"] == "12 GB/s"


def test_a_base_without_the_channel() -> None:
    base = {**BASE, "channels": {"d2h": BASE["channels"]["d2h"]}, "fabrics": {}}
    with pytest.raises(InputError) as caught:
        calibrated_profile(calibration(way("h2d", "pinned", 3e9)), base, "new")
    assert (
        str(caught.value) == "base: channels: has no h2d channel between the device and host memory"
    )


def test_the_time_of_a_copy_between_measured_sizes() -> None:
    """Latency 1000 ns. Beyond it, 100 bytes take 50 ns and 300 bytes 450 ns; further bytes 2 ns
    each.
    """
    fit = replace(
        way("h2d", "pinned", 5e8), base_ns=1000.0, byte_ns=2.0, curve=((100, 50.0), (300, 450.0))
    )
    assert [fit.predict(size) for size in (0, 50, 100, 200, 300, 400)] == [
        1000,
        1025,
        1050,
        1250,
        1450,
        1650,
    ]
    assert replace(fit, curve=()).predict(50) == 1100
    assert [replace(fit, sizes=(8, top)).tells_bandwidth for top in (65535, 65536)] == [False, True]
    assert fit.to_dict() == {
        "direction": "h2d",
        "memory": "pinned",
        "bandwidth_bytes_per_s": {
            "value": 5e8,
            "low": 4.5e8,
            "high": pytest.approx(5.5e8),
            "samples": 9,
        },
        "latency_ns": {"value": 5000.0, "low": 4500.0, "high": pytest.approx(5500.0), "samples": 9},
        "curve": [{"bytes": 100, "ns": 1050}, {"bytes": 300, "ns": 1450}],
        "smallest_bytes": 1024,
        "largest_bytes": 1 << 20,
        "residuals": fit.residuals.to_dict(),
        "recorded_ns": 9,
        "total_ns": fit.total.to_dict(),
        "sources": [],
    }


# ---- sweeps


def sweep(folder: Path, name: str = "bandwidth.json", device: Any = None, rows: Any = ()) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(
        json.dumps({"format": "hosim.gpu/1", "device": device, "copies": list(rows)})
    )
    return folder / name


def row(direction: str, size: int, *times: int, pinned: bool = True) -> dict[str, Any]:
    return {"direction": direction, "pinned": pinned, "bytes": size, "ns": list(times)}


def test_a_sweep_as_read(tmp_path: Path) -> None:
    rows = [row("h2d", 1, 5, 6), row("d2h", 2, 0, pinned=False), row("both", 4, 7, 8)]
    copies = (
        MeasuredCopy("h2d", "pinned", 1, 5),
        MeasuredCopy("h2d", "pinned", 1, 6),
        MeasuredCopy("d2h", "pageable", 2, 0),
    )
    path = sweep(tmp_path / "kit", "x-bandwidth.json", {"name": "GPU"}, rows)
    expected = Sweep("kit", "GPU", copies, ((4, 7), (4, 8)))
    assert read_measurements([path]) == Measurements((), (expected,), {"kit": str(path)})
    inside = sweep(tmp_path / "other", device="GPU", rows=rows).parent
    found = read_measurements([inside, path])
    assert found.sweeps == (replace(expected, name="other", device=None), expected)
    assert (found.names, found.device) == (("other", "kit"), "GPU")


def test_sweeps_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_measurements([tmp_path])
    assert str(caught.value).endswith("as python -m hosim.gpu and hosim.record write them")
    assert caught.value.source == str(tmp_path)
    one, two = (sweep(tmp_path / name, device={"name": name}) for name in "ba")
    with pytest.raises(InputError) as caught:
        read_measurements([one, two])
    assert (
        str(caught.value)
        == f"{one}, {two}: expected recordings of one device, got a and b; calibrate each "
        "separately"
    )
    damaged = [
        [],
        5,
        row("up", 1, 1),
        row("h2d", 0, 1),
        {**row("h2d", 1), "ns": 5},
        row("h2d", 1, 2, -1),
        {**row("h2d", 1, 2), "bytes": True},
    ]
    for bad in damaged:
        path = sweep(tmp_path / "c", rows=[row("h2d", 1, 1), bad])
        with pytest.raises(InputError) as caught:
            read_measurements([path])
        assert caught.value.source == str(path)
        assert caught.value.where.startswith("copies[1]")
    other = "expected a file that `python -m hosim.gpu` writes (format hosim.gpu/1)"
    for content, expected in [
        ([], other),
        ({"format": "hosim.gpu/1", "copies": {}}, "copies: expected a list of copies"),
        ({"format": "hosim.recording/2", "copies": []}, other),
    ]:
        path.write_text(json.dumps(content))
        with pytest.raises(InputError) as caught:
            read_measurements([path])
        assert str(caught.value) == f"{path}: {expected}"


def test_what_a_replay_was_given_and_what_is_drawn_of_it() -> None:
    constants = Latencies(
        {}, {}, {"device_sync": 5}, {}, {}, 3, {"back device_sync": 7}, {"back device_sync": (4, 6)}
    )
    replayed = structural_replay(structure(parse_kineto(step(), "step")))
    times: Any = replace(
        replayed, given=GivenNumbers(1, 2, 4, 8, 16), constants=constants, recurring=()
    )
    assert times.given.total == 31
    listed = validation_to_dict(Validation("t", None, times, None, ()))["given"]
    fitted = {
        "back device_sync": {"ns": 5, "samples": 7, "low_ns": 4, "high_ns": 6},
        "wait": {"ns": 3, "samples": 0, "low_ns": None, "high_ns": None},
    }
    assert listed == {
        "device_durations": 1,
        "host_segments": 2,
        "overlaps": 4,
        "starts": 8,
        "constants": fitted,
        "recurring": [],
    }
    assert list(listed["constants"]) == ["back device_sync", "wait"]
    names = (
        "times_ns",
        "measured_bytes",
        "simulated_bytes",
        "measured_reserved_bytes",
        "simulated_reserved_bytes",
    )
    memory: Any = SimpleNamespace(**{name: i for i, name in enumerate(names)})
    curves = {
        "allocated, recorded": 1,
        "allocated, simulated": 2,
        "reserved, recorded": 3,
        "reserved, simulated": 4,
    }
    assert Validation("t", None, None, memory, ()).drawn_memory == (0, curves)
    nothing = Validation("t", None, None, None, ())
    assert (nothing.drawn_memory, nothing.drawn_ops, validation_to_dict(nothing)["given"]) == (
        None,
        [],
        None,
    )
    op = SimpleNamespace(name="f", kind="kernel", device=1, stream=7, start_ns=2, end_ns=5)
    drawn: Any = SimpleNamespace(
        ops=(SimpleNamespace(op=op, simulated_start_ns=3, simulated_end_ns=8),)
    )
    assert Validation("t", None, drawn, None, ()).drawn_ops == [
        ("f", "kernel", 1, 7, (2, 5), (3, 8))
    ]


def test_a_file_that_cannot_be_opened_is_left_to_the_reader_of_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(self: Path, mode: str) -> IO[Any]:
        if self.suffix == ".json":
            raise PermissionError(13, "Permission denied")
        return opened(self, mode)  # a module that is imported only now

    (tmp_path / "trace.json").write_text("{}")
    monkeypatch.setattr(Path, "open", refuse)
    for read, expected in (
        (read_trace, "a profiler trace: "),
        (validate, "a trace of the PyTorch profiler (JSON), "),
    ):
        with pytest.raises(InputError) as refused:
            read(tmp_path / "trace.json")
        assert str(refused.value).startswith(f"{tmp_path}/trace.json: expected {expected}")
