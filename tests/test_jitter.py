"""Jitter: factors that depend on the seed, the device and what they are for, and on nothing
else.
"""

from itertools import pairwise, product
from statistics import fmean, pstdev

import pytest

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.jitter import Jitter


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.5])
def test_factors_have_mean_one_and_the_deviation_asked_for(sigma):
    ops = [Jitter(7, op_sigma=sigma).op_factor(d, i) for d, i in product(range(20), range(1000))]
    copies = [
        Jitter(7, transfer_sigma=sigma).transfer_factor(0, t, n)
        for t, n in product(range(1000), range(20))
    ]
    for factors in (ops, copies):
        # 20,000 draws: the standard error of the mean is sigma / 141
        assert fmean(factors) == pytest.approx(1, abs=4 * sigma / 141)
        assert pstdev(factors) == pytest.approx(sigma, rel=0.05)
        assert len(set(factors)) == len(factors)


def test_what_a_factor_depends_on():
    jitter = Jitter(3, 0.1, 0.1)
    base = jitter.op_factor(1, 2)
    others = [
        jitter.op_factor(2, 2),
        jitter.op_factor(1, 3),
        Jitter(4, 0.1).op_factor(1, 2),
        jitter.transfer_factor(1, 2, 0),
    ]
    assert base not in others
    assert len(set(others)) == 4
    assert jitter.op_factor(1, 2) == base == Jitter(3, 0.1).op_factor(1, 2)
    # neighbours do not move together
    pairs = [(jitter.op_factor(0, i) - 1, jitter.op_factor(1, i) - 1) for i in range(5000)]
    assert abs(fmean(a * b for a, b in pairs)) < 4 * 0.01 / 71


def test_no_sigma_is_no_jitter():
    assert Jitter(5).is_none
    assert not Jitter(0, transfer_sigma=0.1).is_none
    assert (
        Jitter(5, transfer_sigma=0.1).op_factor(1, 2)
        == Jitter(5, op_sigma=0.1).transfer_factor(1, 2, 3)
        == 1.0
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (0, -0.1),
            "jitter: op_sigma: expected a relative standard deviation of at least 0, got -0.1",
        ),
        (
            (0, 0.1, float("inf")),
            "jitter: transfer_sigma: expected a relative standard deviation of at least 0, got inf",
        ),
        (
            (0, float("nan")),
            "jitter: op_sigma: expected a relative standard deviation of at least 0, got nan",
        ),
        ((-1,), "jitter: seed: expected a seed of at least 0, got -1"),
    ],
)
def test_what_is_no_jitter(values, message):
    with pytest.raises(InputError) as caught:
        Jitter(*values)
    assert str(caught.value) == message


def test_copies_never_speed_up_an_op_whose_factor_leaves_it_less_than_its_launch():
    """Ops of 100 ns of launch and 10 of reading, beside a copy that takes a tenth of the memory
    throughout.
    """
    b = GraphBuilder("launches")
    b.tensor("w", 10_000, "parameter", "ddr")
    for i in range(40):
        b.op(f"f{i}", "matmul", bytes_accessed=100)
    b.op("last", "matmul", inputs=["w"], duration_ns=1)
    tiers = Tier("hbm", 10**6, 10 * 10**9, "device"), Tier("ddr", 10**6, 10**12)
    machine = Hardware(
        "m", tiers, (Channel("h2d", "ddr", "hbm", 9 * 10**8),), Compute({}, launch_ns=100)
    )
    plan = Plan(
        b.build(),
        "manual",
        (CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=40)),
    )
    jitter = Jitter(2, op_sigma=0.3)
    alone = [round(110 * jitter.op_factor(0, i)) for i in range(40)]
    assert min(alone) < 100 < max(alone)
    starts = replay(plan, machine, jitter=jitter, record=True).timeline.op_start_ns
    taken = [after - start for start, after in pairwise(starts)]  # one begins as the other ends
    assert all(ns >= least for ns, least in zip(taken, alone, strict=True))
    assert any(ns > least for ns, least in zip(taken, alone, strict=True))
