"""Fit and frontier in draws of what is uncertain: the interval of an answer is that of trying every
value in every draw.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rendered import facts
from sweeping import MACHINE as SMALL

from hosim.data.draws import FEW_DRAWS, Draws, LaterDraws
from hosim.engine import resident_step
from hosim.graph import Graph, GraphBuilder
from hosim.study.asked import parse_axis, parse_choice
from hosim.study.runs import Question
from hosim.study.searches import fit, frontier, last_in_draws
from hosim.units import human_size, human_time

MACHINE = replace(SMALL, tiers=tuple([replace(tier, capacity_bytes=10**9) for tier in SMALL.tiers]))


def modelled(layers: int) -> Graph:
    """Layers of 40 kB and 100 us each, by guesses."""
    builder = GraphBuilder("modelled")
    for i in range(layers):
        builder.tensor(f"w{i}", 40_000, "parameter", home="ddr")
        builder.op(f"f{i}", "matmul", inputs=[f"w{i}"], flops=10**8, dtype="bf16")
    return builder.build()


@given(
    st.integers(1, 40).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.lists(st.integers(-1, size - 1), min_size=FEW_DRAWS, max_size=FEW_DRAWS),
            st.integers(0, size - 1),
        )
    )
)
def test_the_ends_are_the_second_least_and_the_second_largest_last_place(case) -> None:
    size, lasts, start = case
    ordered = sorted(lasts)
    found = last_in_draws(size, lambda draw, place: place <= lasts[draw], start)
    assert found == (ordered[1], ordered[-2])


def question() -> Question:
    return Question(modelled(12), MACHINE, parse_choice("layerwise"), 200_000)


def test_the_interval_of_a_fit_is_that_of_trying_every_value_in_every_draw() -> None:
    asked, slowdown = question(), 1.5
    axis = parse_axis("channels.h2d.bandwidth=100MB/s..1GB/s:19")
    within = []
    for value in axis.values:
        here = asked.with_settings({"channels.h2d.bandwidth": value})
        drawn = here.attempt().in_few_draws.drawn
        alone = resident_step(here.graph, here.hardware).draws.few()
        pairs = zip(drawn.makespan_ns, alone.makespan_ns, strict=True)
        within.append([ns <= slowdown * least for ns, least in pairs])
    smallest = sorted(next(k for k in range(len(within)) if within[k][d]) for d in range(FEW_DRAWS))
    found = fit(asked, "smallest", axis, slowdown)
    assert found.interval == (axis.values[smallest[1]], axis.values[smallest[-2]])
    assert found.interval[0] != found.interval[1]
    assert f" {found.interval[0]} to {found.interval[1]} (" in str(found)


def test_a_value_that_fits_in_no_draw_but_by_its_figures_has_an_interval_that_says_so() -> None:
    found = fit(question(), "largest", parse_axis("budget=1B..30B:30"))
    assert (found.answer, found.interval) == (None, None)  # nothing fits, so nothing is drawn
    found = fit(question(), "smallest", parse_axis("channels.h2d.bandwidth=1..2MB/s:3"), 1.5)
    assert (found.answer, found.interval) == (None, (None, None))


def test_a_row_has_few_draws() -> None:
    result = question().attempt()
    assert result.in_few_draws.drawn.makespan_ns == result.drawn.makespan_ns[:FEW_DRAWS]
    assert result.in_few_draws == result
    low, high = question().answer().drawn.makespan_interval
    assert low < result.makespan_ns < high


def test_a_budget_is_sure_where_the_plan_fits_in_nine_of_ten_draws() -> None:
    found = frontier(question(), points=3, refine=0)
    assert found.sure_bytes == found.smallest_bytes
    assert f" ({human_time(found.pareto[0].makespan_low_ns)} to " in str(found)
    unfit = LaterDraws.of(Draws((None, None, None, *((900_000,) * 17))))
    least = replace(found.results[0], draws=unfit)
    unsure = replace(found, results=[least, *found.results[1:]])
    assert unsure.sure_bytes == found.results[1].budget_bytes > unsure.smallest_bytes
    assert f"{human_size(unsure.sure_bytes)}, 9, 10" in facts(str(unsure))
    never = replace(found, results=[least])
    assert never.sure_bytes is None
