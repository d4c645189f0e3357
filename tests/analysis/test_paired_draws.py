"""Two plans in the same draws: who is faster how often, and what is said of it."""

from dataclasses import replace
from math import exp, log
from random import Random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts
from toy_machine import MACHINE

from hosim.analysis.remarks import beside_fastest, paired, ranks, uncertainty_line
from hosim.cache_plan import CacheOp, Plan
from hosim.data.draws import DRAWS, FEW_DRAWS, Draws, LaterDraws, UncertainPart
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.result import Result


def of(policy: str, *makespans: int | None, nominal: int = 1000) -> Result:
    builder = GraphBuilder("g")
    builder.op("f", "matmul", duration_ns=nominal)
    made = replay(Plan(builder.build(), policy=policy), MACHINE)
    return replace(made, draws=LaterDraws.of(Draws(makespans)) if makespans else None)


def test_who_is_faster_how_often_by_how_much() -> None:
    one = of("hyperoffload", *[1000] * DRAWS)
    two = of("layerwise", *[1010 if k % 20 else 990 for k in range(DRAWS)])
    pair = paired(one, two)
    assert pair is not None
    assert (pair.draws, pair.faster_share, pair.faster, pair.near_share) == (
        200,
        0.95,
        "hyperoffload",
        1.0,
    )
    assert (pair.low, pair.high) == pytest.approx((0.0, 0.01), abs=1e-2)
    assert pair.simpler
    assert (
        facts(pair.verdict, "hyperoffload", "layerwise")
        == "hyperoffload, layerwise, 95 %, 1.0 %, layerwise, 1 %"
    )
    assert not paired(two, one).simpler  # type: ignore[union-attr]
    assert facts(paired(two, one).verdict, "hyperoffload", "layerwise").startswith(
        "hyperoffload, layerwise, 95 %"
    )  # type: ignore[union-attr]


def test_draws_that_do_not_fit_are_told_apart() -> None:
    one, two = of("a", *[1000] * 20), of("b", *[None] * 12, *[900] * 8)
    pair = paired(one, two)
    assert pair is not None
    assert (pair.faster_share, pair.faster, pair.unfit) == (0.0, "b", (0.0, 0.6))
    assert pair.low == pytest.approx(-0.1)
    faster = "b is faster than a in all draws in which both fit, by 11 %."
    assert facts(pair.verdict) == f"{facts(faster)}, 60 %"
    back = paired(two, one)
    assert back is not None
    assert facts(back.verdict) == f"{facts(faster)}, 60 %"
    never = paired(one, of("c", *[None] * 20))
    assert never is not None
    assert (never.faster_share, never.unfit) == (0.5, (0.0, 1.0))


def test_few_draws_are_compared_with_the_first_of_many_and_ends_of_files_with_none() -> None:
    many, few = of("a", *range(1000, 1000 + DRAWS)), of("b", *range(2000, 2000 + FEW_DRAWS))
    pair = paired(many, few)
    assert pair is not None
    assert (pair.draws, pair.faster_share) == (FEW_DRAWS, 1.0)
    assert paired(many, replace(many, draws=LaterDraws.of(Draws.of_ends(900, 1100)))) is None
    assert paired(many, of("measured")) is None
    assert [each.second for each in beside_fastest([many, of("measured"), few])] == ["b"]
    assert beside_fastest([many]) == []


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=FEW_DRAWS, max_size=60))
def test_shares_of_two_are_one_together(drawn: list[tuple[int, int]]) -> None:
    one, two = (
        of(name, *column) for name, column in zip("ab", zip(*drawn, strict=True), strict=True)
    )
    there, back = paired(one, two), paired(two, one)
    assert there is not None
    assert back is not None
    assert there.faster_share + back.faster_share == pytest.approx(1)
    assert there.faster == back.faster
    assert there.low <= there.high


def test_ranks_are_those_of_the_draws() -> None:
    """The first is ahead in all draws; the other two swap in half of them, and one that does not
    fit in a draw is last there.
    """
    first, swapped = of("a", *[900] * 20), of("b", *[1000, 1200] * 10)
    other, unfit = of("c", *[1100] * 20), of("d", *[None] * 10, *[800] * 10)
    assert ranks([first, swapped, other]) == [(1, 1), (2, 3), (2, 3)]
    assert ranks([swapped, of("measured"), first]) == [(2, 2), None, (1, 1)]
    assert ranks([unfit, first]) == [(1, 2), (1, 2)]
    assert ranks([first, first]) == [(1, 1), (1, 1)]
    assert ranks([of("measured")]) == [None]


def test_the_share_is_that_of_known_worlds() -> None:
    """Worlds in which the second takes more by a normal distribution of known mean: the stated
    share is right within 5 points.
    """
    random = Random(1)
    for mean, true in ((0.0, 0.5), (0.5, 0.6915), (1.2816, 0.9), (-1.0, 0.1587)):
        stated = []
        for _ in range(50):
            gains = [random.gauss(mean, 1) for _ in range(DRAWS)]
            pair = paired(
                of("a", *[10_000] * DRAWS), of("b", *[round(10_000 + 100 * gain) for gain in gains])
            )
            assert pair is not None
            stated.append(pair.faster_share)
        assert sum(stated) / len(stated) == pytest.approx(true, abs=0.05)


def test_nothing_is_said_of_the_uncertainty_where_there_is_none() -> None:
    assert uncertainty_line(of("a")) is None
    assert uncertainty_line(of("a", 900, 1100)) is None
    two = Draws(
        (900, 1100),
        sources=(
            UncertainPart("gaps", 0.6),
            UncertainPart("links", 0.3, "x"),
            UncertainPart("few", 0.05),
        ),
    )
    line = uncertainty_line(replace(of("a"), draws=LaterDraws.of(two)))
    assert facts(line) == "10 %, 60 %, 30 %"


@pytest.mark.parametrize("ratio", [1.0, 1.03, 1.06, 1.1, 1.2])
def test_links_of_two_machines_by_hand(ratio: float) -> None:
    """A step of 1 s of copies on two machines whose links differ: each rate spreads by 0.085 by
    itself, so that the share is that of a normal distribution.
    """
    builder = GraphBuilder("g")
    builder.tensor("w", 10**9, "parameter", home="ddr")
    builder.op("a", "matmul", inputs=["w"], flops=10**4)
    moves = CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)
    plan = Plan(builder.build(), cache_ops=moves)
    results = []
    for name, rate in (("one", round(ratio * 10**9)), ("two", 10**9)):
        machine = replace(
            MACHINE,
            name=name,
            tiers=tuple([replace(tier, capacity_bytes=10**10) for tier in MACHINE.tiers]),
            channels=tuple([replace(c, bandwidth_bytes_per_s=rate) for c in MACHINE.channels]),
        )
        results.append(replay(plan, machine))
    pair = paired(*results)
    assert pair is not None
    known = NormalDist().cdf(log(ratio) / (2**0.5 * 0.085))
    assert pair.faster_share == pytest.approx(known, abs=0.05)
    width = 1.6449 * 2**0.5 * 0.085
    assert 1 + pair.low == pytest.approx(ratio * exp(-width), rel=0.05)
    assert 1 + pair.high == pytest.approx(ratio * exp(width), rel=0.05)
