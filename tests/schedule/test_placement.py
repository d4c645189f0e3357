"""Policies over several tiers below: what each rule makes of them, what spills, and who is told
that they are full.
"""

import pytest

from hosim.analysis.verifying import verify
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named
from hosim.timeline import occupancy

GB = 10**9
BELOW = ("ddr", "pool", "nvme")


def machine(ddr, pool, nvme, hbm=200):
    """ddr, pool and nvme at 4, 2 and 1 bytes a nanosecond each way."""
    capacities = zip(BELOW, (ddr, pool, nvme), strict=True)
    tiers = [
        Tier("hbm", hbm, 10**12, "device"),
        *(Tier(name, capacity, 10**11) for name, capacity in capacities),
    ]
    rates = dict(zip(BELOW, (4, 2, 1), strict=True))
    ways = [
        Channel(f"{a}-{b}", a, b, rate * GB)
        for t, rate in rates.items()
        for a, b in ((t, "hbm"), ("hbm", t))
    ]
    return Hardware("three below", tuple(tiers), tuple(ways), Compute({}))


def there_and_back(layers=8) -> Graph:
    """Activations of 40 B pile up and are read in reverse, each beside a parameter and an optimizer
    state of 20 B.
    """
    b = GraphBuilder("there and back")
    for i in range(layers):
        b.tensor(f"w{i}", 20, "parameter")
        b.tensor(f"o{i}", 20, "optimizer_state")
        before = [f"a{i - 1}"] if i else []
        b.op(
            f"f{i}",
            "m",
            inputs=[f"w{i}", *before],
            outputs=[b.tensor(f"a{i}", 40)],
            duration_ns=100,
        )
    for i in reversed(range(layers)):
        b.op(f"b{i}", "m", inputs=[f"a{i}"], mutates=[f"w{i}", f"o{i}"], duration_ns=100)
    return b.build()


def moved(plan):
    """Tiers below by kind of what the plan moves or starts there."""
    kinds: dict[str, set[str]] = {}
    for c in plan.cache_ops:
        for tier in (c.source, c.destination):
            if tier in BELOW:
                kinds.setdefault(plan.graph.tensors[c.tensor].kind, set()).add(tier)
    return kinds


POLICIES = (
    "hyperoffload",
    "layerwise",
    "memory_peak",
    "distance",
    "longest_gap",
    "on_demand",
    "lookahead",
    "belady",
)


@pytest.mark.parametrize("placement", ["nearest", "fastest", "balanced", "by_kind"])
@pytest.mark.parametrize("name", POLICIES)
def test_tiers_below_are_never_fuller_than_they_are_large(name, placement):
    graph, hardware = there_and_back(), machine(100, 200, 600)
    parameters = (
        {"effort": 0.05}
        if name == "hyperoffload"
        else {"select_distance": 2}
        if name == "distance"
        else {}
    )
    plan = policy_named(name).plan(graph, hardware, placement=placement, **parameters)
    if plan.runtime is None:
        assert not [f for f in verify(plan, hardware) if "hbm" not in str(f)]
    result = replay(plan, hardware, record=True)
    assert result.feasible or "of hbm" in result.error
    used = {tier: max(occupancy(result.timeline, tier).values, default=0) for tier in BELOW}
    assert used == {tier: result.peak_bytes[tier] for tier in BELOW}
    assert all(
        used[tier] <= capacity for tier, capacity in zip(BELOW, (100, 200, 600), strict=True)
    )
    assert used["ddr"] or placement == "by_kind"
    if name != "longest_gap":  # which moves activations alone
        assert used["pool"] or used["nvme"]  # 640 B in all do not fit into hbm and ddr


@pytest.mark.parametrize("name", ["hyperoffload", "on_demand", "memory_peak", "layerwise"])
def test_kinds_have_their_tiers(name):
    graph, hardware = there_and_back(), machine(1000, 1000, 1000)
    parameters = {"effort": 0.05} if name == "hyperoffload" else {}
    by_default = moved(policy_named(name).plan(graph, hardware, placement="by_kind", **parameters))
    assert by_default
    expected = {"parameter": {"pool"}, "optimizer_state": {"nvme"}, "activation": {"ddr"}}
    assert all(by_default[kind] == expected[kind] for kind in by_default)
    told = moved(
        policy_named(name).plan(
            graph, hardware, placement="by_kind/parameter=nvme/activation=pool", **parameters
        )
    )
    assert all(
        told[kind]
        == {"parameter": {"nvme"}, "optimizer_state": {"nvme"}, "activation": {"pool"}}[kind]
        for kind in told
    )


def test_balanced_uses_all_channels_and_fastest_one():
    graph, hardware = there_and_back(), machine(1000, 1000, 1000)
    moves = {}
    for placement in ("fastest", "balanced"):
        plan = policy_named("hyperoffload").plan(graph, hardware, placement=placement, effort=0.05)
        moves[placement] = {t for kind in moved(plan).values() for t in kind}
    assert moves == {"fastest": {"ddr"}, "balanced": {"ddr", "pool", "nvme"}}


def test_what_is_full_is_named():
    graph, few = there_and_back(), there_and_back(6)
    with pytest.raises(
        InfeasibleError,
        match="of the tiers below, ddr is full: 60 B of 60 B are taken; pool is full: 60 B of 60 B",
    ):
        policy_named("hyperoffload").plan(few, machine(60, 60, 60, hbm=100), effort=0.0)
    assert (
        policy_named("hyperoffload").plan(few, machine(60, 60, 900, hbm=100), effort=0.0).cache_ops
    )
    with pytest.raises(
        InfeasibleError,
        match=r"in hbm at time 0; .*; the lower tiers hold ddr 60 B of 60 B, pool 60 B of 60 B, "
        r"nvme "
        r"40 B of 45 B",
    ):
        policy_named("layerwise").plan(graph, machine(60, 60, 45, hbm=100))


def test_rules_that_there_are_not():
    graph, hardware = there_and_back(), machine(1000, 1000, 1000)
    for name in POLICIES:
        with pytest.raises(InputError, match="placement: expected one of nearest"):
            policy_named(name).plan(graph, hardware, placement="best")
    with pytest.raises(InputError, match="not together with reorder"):
        policy_named("hyperoffload").plan(graph, hardware, placement="fastest", reorder=True)
