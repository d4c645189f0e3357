"""Host memory of another socket as a tier with channels of its own, as docs/formats.md has it:
planners use the near one first.
"""

import hosim
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier


def machine(near: int) -> Hardware:
    """100 B of device memory; ``near`` bytes at 1 byte a nanosecond, and as many as one wants at
    half of that after 20 ns.
    """
    tiers = (
        Tier("hbm", 100, 10**12, "device"),
        Tier("ddr", near, 10**11),
        Tier("ddr-far", 1000, 10**11),
    )
    ways = (
        ("h2d", "ddr", "hbm"),
        ("d2h", "hbm", "ddr"),
        ("far_h2d", "ddr-far", "hbm"),
        ("far_d2h", "hbm", "ddr-far"),
    )
    channels = tuple(
        Channel(n, a, b, 10**9 // (1 + n.startswith("far")), 20 * n.startswith("far"))
        for n, a, b in ways
    )
    fabrics = (Fabric("up", 10**9, ("h2d", "far_h2d")), Fabric("down", 10**9, ("d2h", "far_d2h")))
    return Hardware("two sockets", tiers, channels, Compute({}), fabrics=fabrics)


def moved(near: int) -> dict[str, int]:
    b = hosim.GraphBuilder("layers")
    for k in range(6):
        b.tensor(f"w{k}", 30, "parameter")
        b.op(f"f{k}", "any", inputs=[f"w{k}"], duration_ns=100)
    result = hosim.replay(hosim.plan(b.build(), machine(near)), machine(near))
    assert result.feasible
    return {name: channel.bytes for name, channel in result.channels.items()}


def test_far_memory_is_used_where_the_near_one_has_no_room() -> None:
    roomy, full = moved(1000), moved(30)
    assert (roomy["far_h2d"], roomy["far_d2h"]) == (0, 0)
    assert roomy["h2d"] > 0
    assert full["far_h2d"] > 0
    assert full["h2d"] <= 2 * 30
