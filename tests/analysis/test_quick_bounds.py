"""The quick lower bound: never above the bound itself, nor above what any plan takes."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from instances import Instance, instance, instance_of_parts, instance_on_streams

from hosim.analysis.lower_bounds import LowerBounds
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named

DRAWS: tuple[Callable[[int, int], Instance], ...] = (
    instance,
    instance_on_streams,
    instance_of_parts,
)


@given(draw=st.sampled_from(DRAWS), number=st.integers(0, 400))
def test_it_is_no_more_than_the_bound(draw: Callable[[int, int], Instance], number: int) -> None:
    case = draw(number, 33)
    bounds = LowerBounds(case.graph, case.hardware)
    quick = bounds.quick_ns(case.budget_bytes)
    assert (
        0
        < quick
        <= bounds.bound_ns(case.budget_bytes, quick, repeats=True, homes_kept=True, compete=None)
    )
    for name in ("static_split", "layerwise", "g10", "belady"):
        try:
            plan = policy_named(name).plan(case.graph, case.hardware, case.budget_bytes)
        except InfeasibleError:
            continue
        taken = replay(plan, case.hardware, case.budget_bytes).makespan_ns
        assert taken is None or quick <= taken


def test_it_knows_what_has_to_come_up() -> None:
    """w (40 B) comes up in 40 ns, and f takes 50."""
    b = GraphBuilder("toy")
    b.tensor("w", 40, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    graph = b.build()
    tiers = (Tier("hbm", 100, 10**12, "device"), Tier("ddr", 1000, 10**11))
    hw = Hardware(
        "toy",
        tiers,
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({}),
    )
    assert LowerBounds(graph, hw).quick_ns(80) == 90
