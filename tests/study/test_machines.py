"""Machines beside each other: the smallest budget that is enough is that of trying every byte."""

from dataclasses import replace
from math import exp

import pytest
from asked import questions
from pandas.testing import assert_frame_equal
from rendered import facts, lines
from sweeping import MACHINE, chain

import hosim
from hosim.analysis import static_peak
from hosim.api import machine
from hosim.cache_plan import Plan
from hosim.engine import resident_step
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.report.of_studies import machine_comparison as machines_table
from hosim.study import compare_machines
from hosim.study.asked import as_choice, parse_choice, parse_choices
from hosim.study.runs import Question
from hosim.study.searches import NEAR, attempt

SLOW = replace(
    MACHINE,
    name="slow link",
    channels=tuple(replace(c, bandwidth_bytes_per_s=10**7) for c in MACHINE.channels),
)
SMALL = replace(
    MACHINE, name="small", tiers=(replace(MACHINE.tiers[0], capacity_bytes=20), MACHINE.tiers[1])
)
FAST = replace(
    MACHINE,
    name="fast link",
    channels=tuple(replace(c, bandwidth_bytes_per_s=10**10) for c in MACHINE.channels),
)


def test_each_machine_has_a_line_and_the_smallest_budget_that_is_enough() -> None:
    graph, policy = chain(4), parse_choice("layerwise")
    found = compare_machines(questions(graph, [FAST, SLOW, SMALL], [policy]))
    assert [(line.hardware.name, line.result.feasible) for line in found.lines] == [
        ("fast link", True),
        ("slow link", True),
        ("small", False),
    ]
    assert {line.result.ideal_ns for line in found.lines} == {80}  # four ops of 20 ns
    peak = static_peak(graph).bytes
    enough = []
    for line in found.lines:
        asked = Question(graph, line.hardware, policy)
        results = {budget: attempt(replace(asked, budget=budget)) for budget in range(1, peak + 1)}
        near = [
            budget
            for budget, result in results.items()
            if result.feasible
            and result.makespan_ns <= NEAR * resident_step(asked.graph, asked.hardware).makespan_ns
        ]
        enough.append(near[0] if near else None)
        assert (line.enough is None) == (not near)
        if line.enough is not None:
            assert (
                near[0] <= line.enough.budget_bytes <= near[0] + peak // 64
            )  # one part in 64 of what the machine would use
            assert line.enough.makespan_ns == results[line.enough.budget_bytes].makespan_ns
    assert enough == [63, None, None]  # two weights of 30 bytes, the input and two activations


def test_a_budget_bounds_what_each_machine_uses() -> None:
    layerwise = [parse_choice("layerwise")]
    whole, quarter = (
        compare_machines(questions(chain(12), [FAST], layerwise, budget)).lines[0]
        for budget in (None, 60)
    )
    assert quarter.result.budget_bytes == 60 < whole.result.budget_bytes == 1000
    assert quarter.result.slowdown > NEAR
    assert quarter.enough is None
    assert whole.result.slowdown <= NEAR
    assert whole.enough.budget_bytes > 60
    with pytest.raises(InputError, match="leaves no memory"):
        compare_machines(questions(chain(12), [MACHINE], layerwise, 0))


def test_the_verdict_names_the_fastest_first() -> None:
    found = compare_machines(questions(chain(4), [SMALL, SLOW, FAST], parse_choices("layerwise")))
    # the first weight, of 30 bytes at 10 bytes a nanosecond, comes before the first op
    first, second, _ = str(found).split("; ")
    assert facts(first, "fast", "link").startswith("fast, link, 83 ns")
    assert facts(first, "resident").endswith("5 %, resident")
    assert second.startswith("slow link takes ")
    assert facts(
        str(compare_machines(questions(chain(2), [FAST], parse_choices("resident,belady")))),
        "fast",
        "link",
        "resident",
    ).startswith("fast, link, resident, 40 ns")


def test_a_policy_that_fails_is_not_said_to_lack_memory() -> None:
    def mine(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        raise ValueError("no idea")

    found = compare_machines(questions(chain(2), [FAST], [as_choice(mine)]))
    assert str(found) == "fast link: failed"
    shown = lines(machines_table(found.rows, {FAST.name: FAST}, NEAR, str(found)))
    assert any("1000 B    failed" in line for line in shown)
    assert not any("does not fit" in line for line in shown)


def test_from_python_it_is_one_frame() -> None:
    said: list[str] = []
    table = hosim.compare(chain(4), [FAST, "toy"], "resident,layerwise", budget="100%")
    wanted = compare_machines(
        questions(chain(4), [FAST, machine("toy")], parse_choices("resident,layerwise"), "100%"),
        said.append,
    ).frame
    assert_frame_equal(table, wanted)
    assert list(table.columns) == [
        *(
            "workload",
            "hardware",
            "policy",
            "budget_bytes",
            "feasible",
            "makespan_ns",
            "makespan_low_ns",
            "makespan_high_ns",
            "ideal_ns",
        ),
        *(
            "slowdown",
            "peak_bytes",
            "lower_bound_ns",
            "enough_bytes",
            "enough_makespan_ns",
            "failed",
            "error",
        ),
    ]
    assert list(table["hardware"]) == ["fast link", "fast link", "toy", "toy"]
    assert str(table["enough_bytes"].dtype) == str(table["ideal_ns"].dtype) == "Int64"
    assert facts(said[0], "fast link", "resident") == "fast link, resident"
    assert any(facts(line, "fast link", "resident").endswith(" B") for line in said)
    # a machine is judged by hosim's own planner unless somebody asks for other policies
    assert list(hosim.compare(chain(1), ["toy"])["policy"]) == ["hyperoffload"]


def test_two_machines_of_one_name_are_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"^hardware: 2 machines are called 'slow link'; give each once, by a name of its "
        r"own$",
    ):
        compare_machines(
            questions(
                chain(2), [SLOW, FAST, replace(FAST, name="slow link")], [parse_choice("resident")]
            )
        )


def test_machines_meet_the_draws_that_they_have_in_common() -> None:
    """Two machines that differ in their link: each link is drawn by itself, guessed ops are not."""
    builder = hosim.GraphBuilder("streamed")
    for i in range(4):
        builder.tensor(f"w{i}", 20, "parameter", home=MACHINE.tiers[1].name)
        builder.op(f"f{i}", "matmul", inputs=[f"w{i}"], flops=20_000)
    graph = builder.build()
    near = replace(
        FAST,
        name="nearly as fast",
        channels=tuple(
            replace(c, bandwidth_bytes_per_s=c.bandwidth_bytes_per_s * 99 // 100)
            for c in FAST.channels
        ),
    )
    machines = [
        replace(one, compute=replace(one.compute, peak_flops={"bf16": 10**6}))
        for one in (FAST, near, SLOW)
    ]
    layerwise = parse_choice("layerwise")
    found = compare_machines([Question(graph, one, layerwise) for one in machines])
    assert [(each.first, each.second) for each in found.paired] == [
        ("fast link", "nearly as fast"),
        ("fast link", "slow link"),
    ]
    # 20 ns of copies in 80 ms of ops, whose guesses and software are the same on both: what is left
    # is that nobody measured either machine, 10 % each
    for end, sign in ((found.paired[0].low, -1), (found.paired[0].high, 1)):
        assert 1 + end == pytest.approx(exp(sign * 1.6449 * 2**0.5 * 0.1), rel=0.05)
    assert "fast link, nearly as fast" in facts(str(found), "fast link", "nearly as fast")
