"""The machine that a folder of the kit was measured on, as a profile."""

from pathlib import Path

from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.validate.kit import bandwidth_sweep, measured_device, swept_channels


def measured_machine(out: Path) -> Hardware:
    """Its free memory and its measured channels, and half of the host's memory, as that much may be
    pinned.

    A dry run has a machine that is slow enough to cause waits. Raises :class:`InputError` for a
    folder that was not measured.
    """
    about = measured_device(out / "meta.json")
    if about["kind"] == "cpu":
        tiers = (Tier("hbm", 1 << 32, 10**11, "device"), Tier("ddr", 1 << 32, 10**10, "host"))
        slow = (
            Channel("h2d", "ddr", "hbm", 10**9, 10_000),
            Channel("d2h", "hbm", "ddr", 10**9, 10_000),
        )
        return Hardware("cpu stand-in", tiers, slow, Compute({}))
    channels = swept_channels(bandwidth_sweep(out / "bandwidth.json"), host="ddr", device="hbm")
    tiers = (
        Tier("hbm", about["free_memory_bytes"], 10**12, "device"),
        Tier("ddr", about["host_memory_bytes"] // 2, 10**11, "host"),
    )
    return Hardware(about["name"], tiers, channels, Compute({}))
