"""Drawn worlds whose spreads are known: the share of draws in which one plan is faster is the share
of worlds in which it is.
"""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from toy_machine import MACHINE

from hosim.analysis.costmodel.spreads import (
    INFERENCE,
    PRODUCTS,
    SHARED,
    SPREADS,
    STEP_SHARE,
    pooled,
)
from hosim.analysis.costmodel.spreads import UNMEASURED_MACHINE as MACHINES
from hosim.analysis.remarks import paired
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.result import Result

LARGE = replace(
    MACHINE, tiers=tuple([replace(tier, capacity_bytes=10**12) for tier in MACHINE.tiers])
)
LINK, WORLDS = 0.085, 20_000


def step(products: list[int], copied: int) -> Result:
    """Guessed products one after the other, of so many nanoseconds each, and before them a copy of
    as many.
    """
    b = GraphBuilder("step")
    b.tensor("w", copied, "parameter", home="ddr")
    for i, ns in enumerate(products):
        b.op(f"f{i}", "matmul", inputs=[] if i else ["w"], flops=ns * 1000, dtype="bf16")
    moves = CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)
    return replay(Plan(b.build(), cache_ops=moves), LARGE)


def worlds(cases: list[tuple[list[int], int]], seed: int) -> np.ndarray:
    """The times of steps in worlds, which are drawn by numpy from the spreads as docs/kernels.md
    tells them.
    """
    rng = np.random.default_rng(seed)
    whole = STEP_SHARE * pooled(SPREADS.values())["guess"][PRODUCTS]
    shared, own = whole * SHARED["guess"] ** 0.5, whole * (1 - SHARED["guess"]) ** 0.5
    common = (
        rng.normal(0, shared, WORLDS)
        + rng.normal(INFERENCE.mean, INFERENCE.spread, WORLDS)
        + rng.normal(0, MACHINES, WORLDS)
    )
    link = np.exp(rng.normal(0, LINK, WORLDS))
    of_size = {
        ns: np.exp(common + rng.normal(0, own, WORLDS)) for ns in {n for c in cases for n in c[0]}
    }
    return np.array(
        [sum(ns * of_size[ns] for ns in products) + copied * link for products, copied in cases]
    )


def off(seed: int) -> float:
    """How far the stated share of a drawn pair of steps is from that of the worlds."""
    random = Random(seed)
    sizes = [random.randrange(10**8, 10**9) for _ in range(3)]
    first = (
        [random.choice(sizes) for _ in range(random.randint(1, 3))],
        random.randrange(10**7, 10**9),
    )
    more = random.choice(sizes)
    second = [*first[0], more], max(10**6, first[1] - round(more * random.uniform(0.7, 1.6)))
    pair = paired(step(*first), step(*second), ("first", "second"))
    one, two = worlds([first, second], seed)
    assert pair is not None
    return pair.faster_share - float(np.mean(one < two))


@pytest.mark.parametrize("cases", [20, pytest.param(200, marks=pytest.mark.long)])
def test_the_stated_share_is_that_of_the_worlds(cases: int) -> None:
    """Products are computed in place of copies: who is faster depends on both."""
    found = [off(seed) for seed in range(cases)]
    assert abs(float(np.mean(found))) <= 0.01
    assert np.mean(np.abs(found) <= 0.05) >= 0.95
    assert max(map(abs, found)) <= 0.07
