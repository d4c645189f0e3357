"""Planners do not count on hiding copies where a tier has no DMA (docs/contract.md, rule 22)."""

from dataclasses import replace

import hosim
from hosim.hardware import Channel, Compute, Hardware, Tier


def machine(dma: bool) -> Hardware:
    """60 B of device memory; ``ddr`` at 1 byte a nanosecond, which has DMA or not."""
    tiers = (Tier("hbm", 60, 10**12, "device"), Tier("ddr", 1000, 10**11, dma=dma))
    return Hardware(
        "two",
        tiers,
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({}),
    )


def graph() -> hosim.Graph:
    """Two weights, of 40 and of 10 B, are used at both ends of a step; what is held in its middle
    leaves room for one of them.
    """
    b = hosim.GraphBuilder("ends")
    for name, size in (("large", 40), ("small", 10)):
        b.tensor(name, size, "parameter")
    b.tensor("a", 20)
    b.op("first", "any", inputs=["large", "small"], duration_ns=200)
    b.op("makes", "any", outputs=["a"], duration_ns=200)
    for k in range(4):
        b.op(f"f{k}", "any", inputs=["a"] if k < 3 else [], duration_ns=200)
    b.op("last", "any", inputs=["large", "small"], duration_ns=200)
    return b.build()


def test_the_fewest_bytes_move_where_copies_cost_their_time() -> None:
    """Either of the two makes room, and comes back beside f3, which hides it. Without DMA 10 B cost
    their 10 ns.
    """
    held = hosim.replay(hosim.plan(graph(), machine(False)), machine(False))
    assert (
        held.makespan_ns,
        (held.slowed_ns or 0) + held.stall_ns["transfer"] + held.drain_ns,
    ) == (1400 + 10, 10)
    assert sum(channel.bytes for channel in held.channels.values()) == 10
    assert sum(channel.hidden_ns for channel in held.channels.values()) == 0
    hidden = hosim.replay(hosim.plan(graph(), machine(True)), machine(True))
    assert hidden.makespan_ns == 1400


def test_a_profile_says_it_of_a_tier() -> None:
    written = hosim.io.hardware_to_dict(machine(False))
    assert written["tiers"]["ddr"]["dma"] is False
    assert hosim.io.hardware_from_dict(written) == machine(False)
    assert "dma" not in hosim.io.hardware_to_dict(machine(True))["tiers"]["ddr"]
    assert replace(machine(False), devices=2).fair_share.copied_by_ops == (True, True)
