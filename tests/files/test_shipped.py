"""The hardware profiles that come with hosim, and how shipped files are found."""

import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest

import hosim.io
from hosim import shipped
from hosim.analysis.costmodel import peak_for
from hosim.base.files import read
from hosim.errors import InputError
from hosim.io import hardware_from_dict, hardware_to_dict, load_hardware, load_workload
from hosim.shipped import find_hardware, find_workload
from hosim.units import parse_rate, parse_size

PROFILES = (
    "a100-40gb-sxm",
    "a100-80gb-sxm",
    "a6000",
    "ascend-910b",
    "ascend-910b3",
    "ascend-910c-supernode",
    "b200-180gb-sxm",
    "b300-288gb-sxm",
    "g10-a100-40gb",
    "g10-a100-40gb-ssd",
    "gb200-186gb",
    "gh200-96gb",
    "h100-80gb-cxl",
    "h100-80gb-sxm",
    "h100-96gb",
    "h20-96gb",
    "h200-141gb-sxm",
    "l40s",
    "mi300x-192gb",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
    "t4",
    "toy",
    "v100-32gb",
)


def test_all_profiles_are_there():
    assert shipped.hardware() == list(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_profile(name):
    hardware = load_hardware(shipped.hardware_path(name))
    assert hardware.name == name
    assert hardware_from_dict(hardware_to_dict(hardware)) == hardware
    assert hardware.device_tier == "hbm"
    assert hardware.device.scope == "device"
    assert peak_for(hardware, "bf16")
    for tier in hardware.tiers[
        1:
    ]:  # every memory can be filled and emptied, directly or over others
        for start, end in ((tier.name, "hbm"), ("hbm", tier.name)):
            reached = {start}
            for _ in hardware.channels:
                reached |= {c.destination for c in hardware.channels if c.source in reached}
            assert end in reached
    ends = {c.name: (c.source, c.destination) for c in hardware.channels}
    assert ends.get("h2d", ("ddr", "hbm")) == ("ddr", "hbm")
    assert ends.get("d2h", ("hbm", "ddr")) == ("hbm", "ddr")


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "toy"])
def test_every_block_names_its_source(name):
    data = read(shipped.hardware_path(name), "hardware")
    blocks = [data, data["compute"], data["runtime"]] + [
        b for group in ("tiers", "channels", "fabrics") for b in data.get(group, {}).values()
    ]
    assert all(len(block.get("source", "")) > 10 for block in blocks)


def test_toy_is_the_design_s_without_its_fabric():
    toy = load_hardware(shipped.hardware_path("toy"))
    assert [(t.name, t.capacity_bytes, t.bandwidth_bytes_per_s) for t in toy.tiers] == [
        ("hbm", 100, 10**12),
        ("ddr", 1000, 10**11),
    ]
    assert [(c.name, c.bandwidth_bytes_per_s, c.latency_ns) for c in toy.channels] == [
        ("h2d", 10**9, 0),
        ("d2h", 10**9, 0),
    ]
    assert toy.fabrics == ()


@pytest.mark.parametrize(
    ("name", "memory", "rate", "peak"),
    [
        ("a100-80gb-sxm", "80 GiB", "2.039 TB/s", 312),
        ("h100-80gb-sxm", "81559 MiB", "3.35 TB/s", 989),
        ("h200-141gb-sxm", "143771 MiB", "4.8 TB/s", 989),
        ("gh200-96gb", "97871 MiB", "4 TB/s", 989),
        ("rtx-4090", "24564 MiB", "1008 GB/s", 165.2),
        ("ascend-910c-supernode", "128 GB", "3.2 TB/s", 752),
        ("g10-a100-40gb", "40 GiB", "1.555 TB/s", 312),
        ("b200-180gb-sxm", "183359 MiB", "7.672 TB/s", 2250),
        ("gb200-186gb", "186 GB", "7.672 TB/s", 2500),
        ("mi300x-192gb", "192 GiB", "5.3 TB/s", 1307.4),
        ("l40s", "46068 MiB", "864 GB/s", 362),
        ("rtx-3090", "24576 MiB", "936 GB/s", 71),
        ("a100-40gb-sxm", "40960 MiB", "1.555 TB/s", 312),
        ("b300-288gb-sxm", "275040 MiB", "7.672 TB/s", 2250),
        ("rtx-5090", "32607 MiB", "1792 GB/s", 209.5),
        ("rtx-pro-6000", "97887 MiB", "1792 GB/s", 503.8),
        ("a6000", "49140 MiB", "768 GB/s", 154.8),
        ("t4", "15360 MiB", "320 GB/s", 65),
        ("v100-32gb", "32510 MiB", "900 GB/s", 125),
        ("ascend-910b", "64 GiB", "1.6 TB/s", 353.9),
        ("ascend-910b3", "64 GiB", "1.6 TB/s", 294.9),
        ("h20-96gb", "97871 MiB", "4 TB/s", 148),
        ("h100-80gb-cxl", "81559 MiB", "3.35 TB/s", 989),
        ("h100-96gb", "95830 MiB", "3.9 TB/s", 835),
    ],
)
def test_published_figures(name, memory, rate, peak):
    hardware = load_hardware(shipped.hardware_path(name))
    assert hardware.device.capacity_bytes == parse_size(memory)
    assert hardware.device.bandwidth_bytes_per_s == parse_rate(rate)
    peaks = hardware.compute.peak_flops
    assert peaks.get("bf16", peaks.get("fp16")) == int(peak * 10**12)
    processor = hardware.compute.processor
    if processor is not None:  # a whole number of FLOP a cycle: the clock is that of the peak
        each = peak * 1e12 / processor.multiprocessors / processor.clock_hz
        assert each == pytest.approx(2 ** round(math.log2(each)), rel=0.015)


@pytest.mark.parametrize("name", PROFILES)
def test_drives_are_no_faster_than_host_memory(name):
    """Else plans would rather read weights from a drive."""
    hardware = load_hardware(shipped.hardware_path(name))
    into = {c.source: c.bandwidth_bytes_per_s for c in hardware.channels if c.destination == "hbm"}
    assert into.get("nvme", 0) <= into.get("ddr", into.get("nvme", 0))


def test_what_the_devices_of_a_node_get_each():
    """Of the memory of both sockets, and of what two GPUs behind one switch share: 5 to 6 GB/s were
    seen where all A100 copy both ways.
    """
    a100, h100 = (
        replace(load_hardware(shipped.hardware_path(name)), devices=8).fair_share
        for name in ("a100-80gb-sxm", "h100-80gb-sxm")
    )
    assert [machine.tiers[1].bandwidth_bytes_per_s for machine in (a100, h100)] == [
        51_200_000_000,
        76_800_000_000,
    ]
    shares = [
        {fabric.name: fabric.bandwidth_bytes_per_s for fabric in machine.fabrics}
        for machine in (a100, h100)
    ]
    assert shares[0]["uplinks"] == 2 * 6 * 10**9
    assert (shares[1]["uplinks_in"], shares[1]["uplinks_out"]) == (27_850_000_000, 26_400_000_000)


def test_g10_machine():
    g10 = load_hardware(shipped.hardware_path("g10-a100-40gb"))
    rates = {c.name: (c.bandwidth_bytes_per_s, c.latency_ns) for c in g10.channels}
    assert rates["h2d"] == rates["d2h"] == (15_754_000_000, 0)
    assert (rates["nvme_read"], rates["nvme_write"]) == (
        (3_200_000_000, 12_000),
        (3_200_000_000, 16_000),
    )
    alone = load_hardware(shipped.hardware_path("g10-a100-40gb-ssd"))
    assert {t.name for t in alone.tiers} == {"hbm", "nvme"}
    assert {c.name: (c.bandwidth_bytes_per_s, c.latency_ns) for c in alone.channels} == {
        n: r for n, r in rates.items() if "nvme" in n
    }


# --------------------------------------------------------------------------------------------------
# finding


def test_find_by_name_and_by_path(tmp_path, monkeypatch):
    assert find_hardware("toy") == shipped.hardware_path("toy")
    mine = tmp_path / "toy"
    mine.write_text("format: hosim.hardware/1")
    assert find_hardware(str(mine)) == mine
    monkeypatch.chdir(tmp_path)
    assert find_hardware("toy").resolve() == mine  # a file of that name comes first
    mine.unlink()
    mine.mkdir()
    assert find_hardware("toy") == shipped.hardware_path("toy")  # a folder does not
    with pytest.raises(InputError, match="this is a folder: name a hardware profile"):
        find_hardware("./toy")


def test_short_names():
    assert find_hardware("H100") == find_hardware("h100") == shipped.hardware_path("h100-80gb-sxm")
    assert set(shipped.ALIASES.values()) <= set(shipped.hardware())
    assert not set(shipped.ALIASES) & set(shipped.hardware())


def test_not_found():
    listed = re.escape(f"(shipped: {len(PROFILES)}, see 'hosim hardware list')")
    with pytest.raises(
        InputError, match=rf"^abc: no file and no shipped hardware profile of that name.* {listed}$"
    ):
        find_hardware("abc")
    with pytest.raises(
        InputError, match=r"^h100-80gb-sx: .*; did you mean 'h100-80gb-sxm'\? \(shipped: "
    ):
        find_hardware("h100-80gb-sx")
    with pytest.raises(
        InputError,
        match=r"; did you mean 'rtx-3090', 'rtx-4090', 'rtx-5090' or 'rtx-pro-6000'\? \(",
    ):
        find_hardware("RTX")
    with pytest.raises(InputError, match=r"no file and no shipped workload of that name"):
        find_workload("x" * 5000)
    with pytest.raises(InputError, match=r"^'': no file and no shipped workload"):
        find_workload("")


def test_the_wheel_s_place_comes_first(tmp_path, monkeypatch):
    inside, beside = tmp_path / "hosim" / "workloads", tmp_path / "workloads"
    beside.mkdir()
    for name in ("b-1.5.json.gz", "b-1.5.yaml", "b-1.5.json", "c.json", "README.md"):
        (beside / name).touch()
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "hosim")
    assert shipped.workloads() == ["b-1.5", "c"]
    assert find_workload("b-1.5") == beside / "b-1.5.json.gz"
    inside.mkdir(parents=True)
    (inside / "a.json").touch()
    assert shipped.workloads() == ["a"]
    assert shipped.hardware() == []


@pytest.mark.parametrize("name", shipped.workloads())
def test_shipped_workloads_load(name):
    assert load_workload(shipped.workload_path(name)).ops


# --------------------------------------------------------------------------------------------------
# the room itself


def test_every_public_name_is_there():
    for name in hosim.io.__all__:
        assert callable(getattr(hosim.io, name))
    assert dir(hosim.io) == hosim.io.__all__
    with pytest.raises(AttributeError, match="no attribute 'load_nothing'"):
        hosim.io.load_nothing  # noqa: B018


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = (
        "import sys, hosim, hosim.io, hosim.shipped; print(*sorted({'pydantic', 'yaml', "
        "'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_short_name_is_meant_too():
    with pytest.raises(InputError, match="did you mean 'h100'"):
        find_hardware("h1000")
