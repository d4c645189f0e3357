"""What fields may be set to, in full, and the rows, curves and prices that studies make of results,
by hand.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from rendered import facts
from sweeping import MACHINE, chain

from hosim.cache_plan import CacheOp, Plan
from hosim.data.draws import Draws, LaterDraws
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Fabric, Hardware
from hosim.result import ChannelFigures, Result
from hosim.study import blame, capped
from hosim.study.asked import (
    Value,
    as_choice,
    parse_axis,
    parse_choice,
    parse_steps,
    read_points,
    read_vary,
    scalar,
)
from hosim.study.rows_of_answers import (
    figure_columns,
    figures,
    frame,
    results_of,
    varied,
    varied_columns,
)
from hosim.study.runs import Question, pack, unplanned
from hosim.study.searches import Frontier

QUESTION = Question(chain(2), MACHINE, parse_choice("belady"), 100)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a",
            "expected FIELD=VALUES such as channels.h2d.bandwidth=25..200GB/s:8 or "
            "policy.k=1,2,4, got 'a'",
        ),
        ("a=", "a: expected values such as 1,2,4 or a range such as 25..200GB/s:8, got ''"),
        (
            "a+b=1..",
            "a + b: expected a range between two numbers, such as 25..200GB/s:8, got '1..'",
        ),
        ("a=1..2GB/s", "a: expected a count after a colon, such as 1..2GB/s:8, got '1..2GB/s'"),
        (
            "a=1..2:1",
            "a: expected a range such as 25..200GB/s:8 with at least 2 values after the colon, "
            "got '1..2:1'",
        ),
        (
            "a=1..2:100001",
            "a: expected at most 100000 points in a grid, got 100001; "
            'HOSIM_LIMITS="grid_points=100001" raises this limit',
        ),
        (
            "a=1GB..2:3",
            "a: expected the unit at the end of the range, such as 25..200GB/s:8, got '1GB..2:3'",
        ),
        (
            "a=1..2Gb/s:3",
            "a: expected two sizes, rates or times, such as 25..200GB/s:8, got '1..2Gb/s:3'",
        ),
        (
            "a=1GB..50%:3",
            "a: expected percentages at both ends of a range or at neither, got '1GB..50%:3'",
        ),
        ("a=0.5..1", "a: expected a count after a colon, such as 0.5..1:8, got '0.5..1'"),
        (
            "policy.k+budget=5GiB,7",
            "budget: expected sizes with their unit or shares, such as 40GiB,50GiB or "
            "50..100%:6, got 7",
        ),
    ],
)
def test_what_is_no_axis(text: str, said: str) -> None:
    assert refused(lambda: parse_axis(text)) == said


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        (["a=1", "b+a=2"], "vary: a is varied twice; list all its values in one place"),
        (3, "vary: expected a mapping from fields to values, or a list of points, got 3"),
        ({}, "vary: expected fields and their values, such as {'budget': [0.5, 0.75]}, got none"),
        ([], "vary: expected points, each a mapping from fields to values"),
        ([{}], "vary: expected points, each a mapping from fields to values"),
        (["a=1", {}], "vary: expected points, each a mapping from fields to values"),
        ([{"a": 1}, {"b": 1}], "vary: expected every point of the list to set the same fields"),
        ({"a": []}, "a: expected a list of numbers or texts, got []"),
        ({"a": [[1]]}, "a: expected a list of numbers or texts, got [[1]]"),
    ],
)
def test_what_is_nothing_to_vary(vary: object, said: str) -> None:
    assert refused(lambda: read_vary(vary)) == said


@pytest.mark.parametrize(
    ("text", "count", "ends"),
    [
        ("a=0..64", 65, (0, 1, 63, 64)),
        ("a=0..65", 65, (0, 1, 64, 65)),  # no more than that without a count
        ("a=65..0", 65, (65, 64, 1, 0)),
        ("a=-1..1", 3, (-1, 0, 0, 1)),
        ("a=1_000..1_001", 2, (1000, 1001, 1000, 1001)),
        ("a=1..100000:100000", 100_000, (1, 2, 99_999, 100_000)),
        ("a=0.5..1.5%:3", 3, ("0.5%", "1.0%", "1.0%", "1.5%")),
        ("a=10ns..1us:2", 2, ("10 ns", "1 us", "10 ns", "1 us")),
        ("a=1..2TFLOP/s:2", 2, ("1 TFLOP/s", "2 TFLOP/s", "1 TFLOP/s", "2 TFLOP/s")),
    ],
)
def test_ranges(text: str, count: int, ends: tuple[Value, ...]) -> None:
    values = parse_axis(text).values
    assert (len(values), (*values[:2], *values[-2:])) == (count, ends)


@pytest.mark.parametrize(
    ("text", "count", "ends"),
    [
        ("a=1..64", 64, (1, 2, 63, 64)),
        ("a=1..1000", 101, (1, 10, 990, 1000)),
        ("a=1000..1", 101, (1000, 990, 10, 1)),
        ("a=1024..65536", 64, (1024, 2048, 64512, 65536)),
        ("a=4096..2000000", 101, (4096, 20_000, 1_980_000, 2_000_000)),
        ("a=5..200GB/s", 99, ("5 GB/s", "6 GB/s", "198 GB/s", "200 GB/s")),
        ("a=10..80GiB", 71, ("10 GiB", "11 GiB", "79 GiB", "80 GiB")),
        ("a=0.5..1.5%", 101, ("0.5%", "0.51%", "1.49%", "1.5%")),
        ("a=3..3GB/s", 1, ("3 GB/s", "3 GB/s")),
        ("a=1..1000:4", 4, (1, 334, 667, 1000)),
    ],
)
def test_a_range_whose_count_is_left_to_a_search_has_round_values(
    text: str, count: int, ends: tuple[Value, ...]
) -> None:
    values = parse_axis(text, 100).values
    assert (len(values), (*values[:2], *values[-2:])[: len(ends)]) == (count, ends)


def test_values_of_a_mapping_and_of_a_file(tmp_path) -> None:
    assert read_vary({"a": 3, "b": None}) == [{"a": 3, "b": None}]
    assert [list(map(type, point.values())) for point in read_vary({"a+b": (1, True, 1.0, 1)})] == [
        [int] * 2,
        [bool] * 2,
        [float] * 2,
    ]
    path = tmp_path / "points.csv"
    path.write_text("a,b\n")
    assert (
        refused(lambda: read_points(str(path)))
        == f"{path}: expected a line of fields and lines of their values, separated by commas"
    )
    path.write_text("a,b\n1,2\n\n3\n")
    assert refused(lambda: read_points(str(path))) == f"{path}: line 3: expected 2 values, got 1"


def test_steps_of_a_routing() -> None:
    asked = ("3", None, "7", "2:8", ":2", " 1 : 3 ", "000000001")
    assert [parse_steps(text, 8) for text in asked] == [
        range(3, 4),
        range(8),
        range(7, 8),
        range(2, 8),
        range(2),
        range(1, 3),
        range(1, 2),
    ]
    for text in ("", "8", "2:2", "2:9", "x", "1:x", "0000000001"):
        has = "the routing has steps 0 to 7"
        assert refused(lambda text=text: parse_steps(text, 8)) == (
            f"steps: expected a step such as 3 or a range such as 0:8, got {text!r}; {has}"
        )
    assert refused(lambda: parse_steps(None, 0)) == (
        "steps: expected a step such as 3 or a range such as 0:8, got all; the routing has none"
    )


def result(budget: int, makespan: int | None, peak: int = 0) -> Result:
    """A result that fits if it has a makespan."""
    made = unplanned(QUESTION.graph, MACHINE, QUESTION.choice, budget, "out of memory")
    if makespan is None:
        return made
    return replace(
        made, feasible=True, error=None, makespan_ns=makespan, peak_bytes={"hbm": peak, "ddr": 1}
    )


def test_rows_of_results() -> None:
    up = ChannelFigures(1, 30, 31, 0, 0, 32, 0, 0.5)
    done = replace(
        result(90, 70, 60),
        stall_ns={"transfer": 5},
        channels={"h2d": up},
        busy_ns=40,
        plan={"prefetches": 2, "stores": 1},
    )
    done = replace(done, draws=LaterDraws.of(Draws.of_ends(65, 78)))
    row = figures(done, MACHINE)
    assert list(row) == figure_columns(MACHINE)
    named = {
        "workload": "chain",
        "hardware": "two tiers",
        "policy": "belady",
        "budget_bytes": 90,
        "feasible": True,
        "makespan_ns": 70,
    }
    named |= {"makespan_low_ns": 65, "makespan_high_ns": 78}
    waits = {
        "busy_ns": 40,
        "dependency_stall_ns": 0,
        "transfer_stall_ns": 5,
        "capacity_stall_ns": 0,
        "runtime_stall_ns": 0,
    }
    waits |= {"ideal_ns": 40, "slowdown": 1.75}  # two ops of 20 ns
    held = {
        "hbm_peak_bytes": 60,
        "ddr_peak_bytes": 1,
        "h2d_moved_bytes": 30,
        "h2d_busy_ns": 31,
        "h2d_exposed_ns": 32,
    }
    assert {key: value for key, value in row.items() if value is not None} == {
        **named,
        **waits,
        **held,
        "prefetches": 2,
        "stores": 1,
    }
    unfit = figures(replace(result(9, None), error=" two\n lines "), MACHINE)
    assert {key: value for key, value in unfit.items() if value is not None} == {
        **{key: named[key] for key in ("workload", "hardware", "policy")},
        "budget_bytes": 9,
        "feasible": False,
        "ideal_ns": 40,
        "error": "two lines",
    }
    table = frame([row, unfit], figure_columns(MACHINE))
    assert (
        str(table["makespan_ns"].dtype),
        table["feasible"].dtype,
        str(table["prefetches"].dtype),
    ) == ("Int64", bool, "Int64")
    table.attrs["device_tier"] = "hbm"
    again, tier = results_of(table)
    assert tier == "hbm"
    assert again == [
        replace(
            done, stall_ns={}, channels={}, plan={}, busy_ns=40, notes=()
        ),  # the notes are the frame's, not a row's
        replace(result(9, None), error="two lines", notes=()),
    ]
    wrong = (
        "plot: expected a plan, the result of hosim.replay(..., record=True), the answer of "
        "hosim.frontier, the frame of hosim.sweep, or the frame of hosim.compare with all its "
        "columns"
    )
    assert (
        refused(lambda: results_of(table[:0]))
        == refused(lambda: results_of(table.drop(columns="makespan_ns")))
        == wrong
    )
    table.attrs.clear()
    assert refused(lambda: results_of(table)) == refused(lambda: results_of(3)) == wrong


def test_columns_of_varied_fields() -> None:
    points = [
        {"a": "1 GB/s", "b": "3 B", "budget": "1 B", "policy": "x"},
        {"a": "2 GB/s", "b": 4, "budget": "2 B", "policy": "y"},
    ]
    columns = varied_columns(points)
    assert columns == {"a": "a_bytes_per_s", "b": "b", "budget": "budget"}
    assert [varied(point, columns) for point in points] == [
        {"a_bytes_per_s": 10**9, "b": "3 B", "budget": "1 B"},
        {"a_bytes_per_s": 2 * 10**9, "b": 4, "budget": "2 B"},
    ]


def test_a_curve_that_says_what_contradicts_it() -> None:
    """From 50 B on it fits; 60 B takes as long with a higher peak, 80 B longer than 70 B, and 90 B
    does not fit.
    """
    listed = [
        result(40, None),
        result(50, 30, 45),
        result(60, 30, 55),
        result(70, 20, 66),
        result(80, 21, 70),
        result(90, None),
    ]
    said = [
        "80 B takes 21 ns, longer than 20 ns within 70 B",
        "90 B does not fit although 70 B does",
    ]
    found = Frontier(QUESTION, listed, 50, 40, said)
    assert [r.budget_bytes for r in found.pareto] == [50, 70]
    assert str(found) == repr(found)
    assert str(found).endswith(f"; {said[0]}; {said[1]}")
    assert facts(str(found), "belady").startswith("belady, 50 B, 40 B, 30 ns, 45 B, 20 ns, 66 B, ")
    assert list(found.frame["pareto"]) == [False, True, False, True, False, False]
    assert (
        facts(str(Frontier(QUESTION, listed[1:2], 50, None, ())), "belady")
        == "belady, 50 B, 30 ns, 45 B, 30 ns, 45 B"
    )
    assert facts(str(Frontier(QUESTION, listed[:1], None, None, ())), "belady") == "belady"


def test_the_policy_plans_again_for_device_memory_alone() -> None:
    """More memory does not fit, the link is raised with its channel, and d2h, which moves nothing,
    and its fabric have no price.
    """
    machine = replace(
        MACHINE, fabrics=(Fabric("link", 10**9, ("h2d",)), Fabric("other", 10**9, ("d2h",)))
    )
    b = GraphBuilder("one")
    b.op("f", "any", inputs=[b.tensor("w", 40, "parameter", home="ddr")], duration_ns=10)
    graph = b.build()
    plan = Plan(
        graph,
        "mine",
        cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, 0)),
    )
    asked: list[tuple[Hardware, int]] = []

    def mine(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        asked.append((hardware, budget_bytes))
        if budget_bytes > 100:
            raise InfeasibleError("no idea")
        return plan

    said: list[str] = []
    question = Question(graph, machine, as_choice(mine), 100)
    found = blame(question, None, 3, 10**9, said.append).prices
    given = "the times of all of its ops are given"
    rate = (
        "copies of ddr are timed as pinned, and two tiers has no rate for pageable ones "
        "(channels.h2d.pageable)"
    )
    assert [
        (price.what, price.added, price.makespan_ns, price.saves_ns, price.together, price.note)
        for price in found
    ] == [
        ("h2d", "1.00 GB/s", 30, 20, ("link",), ""),
        ("h2d", "twice the bandwidth", 30, 20, ("link",), ""),
        ("hbm", "3 B", None, None, (), ""),
        ("hbm", "twice the room", None, None, (), ""),
        ("link", "1.00 GB/s", 50, 0, (), ""),
        ("link", "twice the bandwidth", 50, 0, (), ""),
        ("hbm", "twice the bandwidth", None, None, (), given),
        ("hbm", "twice the FLOP/s", None, None, (), given),
        ("ddr", "twice the room", 50, 0, (), ""),
        ("ddr", "pageable memory", None, None, (), rate),
    ]
    assert [facts(line, "mine", "hbm", "h2d") for line in said[:4]] == [
        "mine",
        "3 B, hbm",
        "100 B, hbm",
        "1.00 GB/s, h2d",
    ]
    assert [(hardware.device.capacity_bytes, budget) for hardware, budget in asked] == [
        (1000, 100),
        (1003, 103),
        (1100, 200),
    ]
    as_it_is = blame(question, plan, 2 * 10**9, 10**9).prices
    assert {price.added: price.saves_ns for price in as_it_is if price.what == "hbm"} == {
        "2 GB": 0,
        "twice the room": 0,
        "twice the bandwidth": None,
        "twice the FLOP/s": None,
    }
    for memory, bandwidth in ((0, 1), (1, 0)):
        wrong = refused(
            lambda memory=memory, bandwidth=bandwidth: blame(question, plan, memory, bandwidth)
        )
        assert wrong == "prices: expected at least 1 B of memory and 1 B/s of bandwidth"


def test_a_channel_with_more_bandwidth_raises_its_fabrics_by_as_much() -> None:
    fabrics = (
        Fabric("link", 10**9, ("h2d", "d2h"), "device"),
        Fabric("root", 5 * 10**9, ("d2h",)),
        Fabric("other", 7, ()),
    )
    machine = replace(MACHINE, devices=4, fabrics=fabrics)
    asked = Question(chain(2), machine, parse_choice("belady"))

    def carries(**fields: str) -> list[int]:
        varied = asked.with_settings(
            {f"{name.replace('_', 's.')}.bandwidth": value for name, value in fields.items()}
        )
        return [fabric.bandwidth_bytes_per_s for fabric in varied.hardware.fabrics]

    assert carries(channel_h2d="3 GB/s") == [3 * 10**9, 5 * 10**9, 7]
    assert carries(channel_h2d="3 GB/s", channel_d2h="2 GB/s") == [
        4 * 10**9,
        9 * 10**9,
        7,
    ]  # the root is that of four devices
    assert carries(channel_h2d="3 GB/s", fabric_link="2 GB/s") == [2 * 10**9, 5 * 10**9, 7]
    assert carries(channel_h2d="1 MB/s") == [10**9, 5 * 10**9, 7]


def test_what_still_caps_a_channel() -> None:
    """A fabric only if its own bandwidth is varied, or it was narrower; a memory only where copies
    take of its bandwidth.
    """
    machine = replace(
        MACHINE, fabrics=(Fabric("link", 10**9, ("h2d",)), Fabric("narrow", 10**8, ("d2h",)))
    )
    asked = Question(chain(2), machine, parse_choice("belady"))
    assert (
        capped(
            asked,
            [
                {"channels.h2d.bandwidth": "300 GB/s"},
                {"budget": 3},
                {"channels.h2d.bandwidth": "no"},
            ],
        )
        == []
    )
    both = {"channels.h2d.bandwidth": "3 GB/s", "hardware.fabrics.link.bandwidth": "2 GB/s"}
    said = (
        "channels.h2d.bandwidth exceeds that of {}, {}: "
        "channels.h2d.bandwidth+{}.bandwidth=... varies both"
    )
    assert capped(asked, [both]) == [said.format("fabrics.link", "2.00 GB/s", "fabrics.link")]
    assert (
        len(capped(asked, [{"channels.d2h.bandwidth": "3 GB/s", "channels.h2d.latency": "1 ns"}]))
        == 1
    )
    guessed = replace(
        asked,
        graph=replace(
            asked.graph, ops=(replace(asked.graph.ops[0], duration_ns=None), *asked.graph.ops[1:])
        ),
    )
    assert capped(guessed, [{"channels.h2d.bandwidth": "300 GB/s"}]) == [
        said.format("tiers.ddr", "100 GB/s", "tiers.ddr")
    ]


def test_who_packs_a_question_need_not_unpack_it() -> None:
    asked = replace(QUESTION, budget=123)
    assert pack(asked).question() is asked


def test_what_a_text_stands_for() -> None:
    texts = (
        "true",
        "false",
        "null",
        "True",
        "-12",
        "1_0",
        "0x1",
        "1e3",
        "-.5",
        "1.",
        "9" * 18,
        "9" * 19,
        "",
    )
    expected = (
        True,
        False,
        None,
        "True",
        -12,
        "1_0",
        "0x1",
        1000.0,
        -0.5,
        1.0,
        int("9" * 18),
        float("9" * 19),
        "",
    )
    found = tuple(map(scalar, texts))
    assert (found, tuple(map(type, found))) == (expected, tuple(map(type, expected)))


@pytest.mark.parametrize("span", [0, 1, 2, 31, 40, 63, 64])
def test_a_short_range_of_whole_numbers_has_all_of_them(span: int) -> None:
    assert parse_axis(f"a=-3..{span - 3}").values == tuple(range(-3, span - 2))
    assert parse_axis(f"a={span}..0").values == tuple(range(span, -1, -1))


def test_a_field_with_values_of_two_kinds_has_no_unit() -> None:
    assert varied_columns([{"f": "25 GB/s"}, {"f": "4 ns"}]) == {"f": "f"}
    assert varied_columns([{"f": "25 GB/s"}, {"f": "4 GB/s"}]) == {"f": "f_bytes_per_s"}


def test_the_types_of_columns() -> None:
    rows = [
        {"policy": "a", "error": "b", "policy.x": 1.5, "policy.k": 3},
        {"policy": "b", "error": None, "policy.x": 2.5, "policy.k": None},
    ]
    made = frame(rows, ["policy", "error", "policy.x", "policy.k"])
    assert [str(kind) for kind in made.dtypes] == ["str", "object", "float64", "Int64"]


def test_a_number_that_is_not_finite_is_text() -> None:
    """What is printed as JSON has no infinity."""
    assert [scalar(text) for text in ("1e999", "-1e999", "1e308")] == ["1e999", "-1e999", 1e308]


def test_thirds_of_a_range_have_three_decimals() -> None:
    assert parse_axis("x=20..60GB/s:4").values == (
        "20 GB/s",
        "33.333 GB/s",
        "46.667 GB/s",
        "60 GB/s",
    )
    assert (
        parse_axis("x=1..1.001GB/s:4").values[1] == "1000.333333 MB/s"
    )  # where values are near each other, none is rounded
