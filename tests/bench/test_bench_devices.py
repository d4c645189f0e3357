"""What many devices in one replay take: events in proportion to their number, and seconds.

The workload is that of ``test_bench_replay``, with parameters that come from a pool of all devices over one switch.
"""

import sys
import time
from dataclasses import replace

import pytest
from test_bench_replay import GB, chain_and_branches

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.engine.clock import Clock
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.jitter import Jitter

OPS = 2000
DEVICES = 384
SECONDS = 180
"""For all 384; about 10 s here, and about 30 s with jitter, when no two devices do the same at the same time."""


def pooled(ops: int) -> Plan:
    plan = chain_and_branches(ops, 1)
    cache_ops = tuple(replace(c, source="pool") if c.op == "prefetch" else c for c in plan.cache_ops)
    return replace(plan, cache_ops=cache_ops, initial=dict.fromkeys(plan.graph.initial, ("pool",)))


def machine(devices: int) -> Hardware:
    """A switch that gives each device a third of what its channels carry."""
    return Hardware(
        "supernode",
        (Tier("hbm", GB, 10**12, "device"), Tier("pool", 10**6 * GB, 10**12, "global")),
        (Channel("read", "pool", "hbm", GB, 300), Channel("write", "hbm", "pool", GB, 300)),
        Compute({}),
        fabrics=(Fabric("switch", devices * GB // 3, ("read", "write"), "global"),),
        devices=devices,
    )


def test_events_grow_linearly_with_devices(monkeypatch):
    clocks: list[Clock] = []

    class Watched(Clock):
        def __init__(self):
            super().__init__()
            clocks.append(self)

    monkeypatch.setattr(sys.modules["hosim.engine.replay"], "Clock", Watched)

    def events(plan: Plan, devices: int, jitter: Jitter | None) -> int:
        """How many events an unfolded replay puts into simpy's schedule."""
        assert replay(plan, machine(devices), fold=False, jitter=jitter).feasible
        return next(clocks[-1]._eid)

    plan = pooled(400)
    # One event an op and device. All devices transfer at once: the switch's alarm rings twice for each of the 100 parameters, when the
    # latencies of all are over and when the bytes of all are through.
    assert [events(plan, n, None) for n in (2, 8, 32)] == [400 * n + 2 * 100 for n in (2, 8, 32)]
    # With jitter each transfer has its own latency and end, and at most once more the alarm rings too soon, where it has slowed others
    jitter = Jitter(1, 0.05, 0.1)
    assert all(400 * n < events(plan, n, jitter) <= (400 + 3 * 100) * n for n in (8, 32))


@pytest.mark.parametrize(("devices", "jitter"), [(DEVICES, None), (DEVICES // 8, Jitter(1, 0.05, 0.1))], ids=["384", "48 with jitter"])
def test_seconds_of_many_devices(devices, jitter, benchmark):
    plan, hardware = pooled(OPS), machine(devices)
    begin = time.process_time()
    result = benchmark.pedantic(replay, args=(plan, hardware), kwargs={"fold": False, "jitter": jitter}, rounds=1)
    taken = time.process_time() - begin
    print(f"{devices} devices x {OPS} ops: {taken:.1f} s")
    assert result.devices.feasible == devices
    assert sum(r.channels["read"].transfers for r in result.by_device) == devices * OPS // 4
    assert taken <= SECONDS * devices / DEVICES
    if jitter is None:
        assert replay(plan, hardware) == result  # folded
    else:
        assert len({r.makespan_ns for r in result.by_device}) > devices // 2
