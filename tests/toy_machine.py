"""A machine small enough for plans by hand."""

from hosim.hardware import Channel, Compute, Hardware, Tier

GB = 10**9
MACHINE = Hardware(
    "machine",
    (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11)),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
    Compute({"bf16": 10**12}),
)
"""A byte takes a nanosecond, each way."""
