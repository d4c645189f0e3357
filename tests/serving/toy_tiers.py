"""A toy engine with a cache in several tiers: iterations take 10 ns and 1 ns for each token, and
channels carry 1 byte a nanosecond.
"""

from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.serving import EngineLimits, serve_requests
from hosim.serving.blocks import KvSetup

GB = 10**9


def toy_machine(up=GB, down=GB, latency=0, engines=1, shared=None, capacity=10**9, memory=10**11):
    """Tiers hbm, ddr and nvme; nvme is read through ddr. ``shared`` is the bandwidth of a fabric
    over both channels of hbm, ``memory`` that of ddr itself.
    """
    tiers = (
        Tier("hbm", 10**9, 10**12, "device"),
        Tier("ddr", capacity, memory),
        Tier("nvme", capacity, 10**10),
    )
    channels = (
        Channel("h2d", "ddr", "hbm", up, latency, engines),
        Channel("d2h", "hbm", "ddr", down, latency, engines),
        Channel("read", "nvme", "ddr", up, latency),
        Channel("write", "ddr", "nvme", down, latency),
    )
    fabrics = () if shared is None else (Fabric("pcie", shared, ("h2d", "d2h"), "device"),)
    return Hardware("toy", tiers, channels, Compute({"bf16": 10**12}), fabrics=fabrics)


def toy_ns(iteration):
    return 10 + iteration.tokens


def served(
    requests,
    kv="lru",
    blocks=3,
    tiers=(("ddr", 100),),
    bytes_=6,
    machine=None,
    ahead=False,
    swaps=False,
    budget=8,
    most=4,
    ns=toy_ns,
    lives=None,
):
    """Blocks of 4 tokens and ``bytes_`` bytes; ``kv`` None: no tiers below."""
    machine = machine or toy_machine()
    setup = (
        None if kv is None else KvSetup(kv, machine, tuple(tiers), bytes_, swaps, lives_ns=lives)
    )
    return serve_requests(
        requests, EngineLimits(budget, most, 4), blocks, ns, ahead=ahead, kv=setup
    )
