"""What a plan loses in drawn worlds against one made for each, by hand."""

from dataclasses import replace

import pytest
from rendered import lines
from toy_machine import MACHINE
from typer.testing import CliRunner

import hosim
from hosim.analysis.costmodel.spreads import drawn_world
from hosim.cache_plan import CacheOp, Plan
from hosim.cli.main import app
from hosim.data.draws import FEW_DRAWS, Regret
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.report.of_replays import regrets
from hosim.study import regret
from hosim.study.asked import as_choice, parse_choice
from hosim.study.runs import Question

LARGE = replace(
    MACHINE, tiers=tuple([replace(tier, capacity_bytes=10**9) for tier in MACHINE.tiers])
)


def streamed() -> Graph:
    """Four layers whose weights come up in 100 us each, beside 100 us of computing."""
    b = GraphBuilder("streamed")
    for i in range(4):
        b.tensor(f"w{i}", 100_000, "parameter", home="ddr")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], flops=10**8, dtype="bf16")
    return b.build()


def moved(graph: Graph, ahead: int) -> Plan:
    """Each weight is copied so many ops before its own."""
    ops = [CacheOp("prefetch", t, "ddr", "hbm", after=max(-1, t - 1 - ahead)) for t in range(4)]
    ops += [CacheOp("detach", t, "hbm", None, after=t) for t in range(4)]
    return Plan(graph, cache_ops=tuple(sorted(ops, key=lambda c: c.after)))


def early(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
    return moved(graph, 4)


def late_where_links_are_fast(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
    """The link of the machine as it is has 1 GB/s."""
    return moved(graph, 0 if hardware.channels[0].bandwidth_bytes_per_s >= 10**9 else 4)


def losses(question: Question, plan: Plan, draws: int) -> tuple[float | None, ...]:
    (found,) = regret(question, plan, replay(plan, LARGE), draws)
    return found.losses


def test_a_world_is_the_draw() -> None:
    graph = streamed()
    plan = moved(graph, 4)
    drawn = replay(plan, LARGE).drawn.makespan_ns
    for d in (0, 1, FEW_DRAWS - 1):
        world, machine = drawn_world(graph, LARGE, d)
        there = replay(replace(plan, graph=world), machine, compete=True)
        assert there.makespan_ns == pytest.approx(drawn[d], rel=1e-4)
        assert there.draws is None  # all is known there
    given = replace(graph, ops=(replace(graph.ops[0], duration_ns=5), *graph.ops[1:]))
    assert drawn_world(given, LARGE, 0)[0].ops[0].duration_ns == 5


def test_a_plan_that_is_the_same_in_all_worlds_regrets_nothing() -> None:
    asked = Question(streamed(), LARGE, as_choice(early), None)
    assert losses(asked, early(asked.graph, LARGE, 0), 4) == (0.0,) * 4


def test_what_is_lost_is_what_the_plan_made_for_the_world_takes_less() -> None:
    """Copies one op ahead wait where the link is slow; in these worlds the policy copies early."""
    asked = Question(streamed(), LARGE, as_choice(late_where_links_are_fast), None)
    plan = late_where_links_are_fast(asked.graph, LARGE, 0)
    found = losses(asked, plan, 6)
    expected = []
    for d in range(6):
        graph, machine = drawn_world(asked.graph, LARGE, d)
        slow = machine.channels[0].bandwidth_bytes_per_s < 10**9
        took = [replay(moved(graph, n), machine, compete=True).makespan_ns for n in (0, 4)]
        expected.append(max(0.0, took[0] / took[1] - 1) if slow else 0.0)
    assert found == pytest.approx(tuple(expected))
    assert losses(asked, moved(asked.graph, 4), 6) == (0.0,) * 6  # never below 0
    assert any(expected)
    assert not all(expected)


def test_a_policy_that_decides_anew_and_a_world_without_room() -> None:
    graph = streamed()
    asked = Question(graph, LARGE, parse_choice("on_demand"), None)
    plan = parse_choice("on_demand").policy.plan(graph, LARGE, 10**9)
    assert regret(asked, plan, replay(plan, LARGE), 2) == []
    tight = Question(graph, LARGE, as_choice(early), 100)
    assert losses(tight, early(graph, LARGE, 0), 2) == (None, None)


def test_the_table() -> None:
    known = Regret("a", (0.0, 0.01, None, 0.03))
    assert (known.known, known.mean) == ([0.0, 0.01, 0.03], pytest.approx(0.04 / 3))
    shown = "\n".join(lines(regrets([known, Regret("b", (None,) * 4)])))
    assert "Regret in 4 draws" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith((" a ", " b "))] == [
        ["a", "1.3", "%", "0.0", "%", "to", "3.0", "%", "1", "of", "4"],
        ["b", "-", "-", "4", "of", "4"],
    ]


def test_python_and_the_shell_say_the_same() -> None:
    ways = {"early": early, "late_where_links_are_fast": late_where_links_are_fast}
    found = hosim.compare(streamed(), LARGE, list(ways.values()), regret=6).attrs["regret"]
    for one, (name, policy) in zip(found, ways.items(), strict=True):
        asked = Question(streamed(), LARGE, as_choice(policy), None)
        known = losses(asked, policy(asked.graph, LARGE, 0), 6)
        assert (one.policy, one.losses) == (name, pytest.approx(known))
    assert hosim.compare(streamed(), LARGE, early).attrs["regret"] == []


def test_the_option_is_bounded() -> None:
    asks = ["compare-policies", "gpt2:phase=decode", "-H", "h100", "--regret", "21"]
    done = CliRunner().invoke(app, asks)
    assert (done.exit_code, "less than or equal to 20" in done.output) == (2, True)
    with pytest.raises(hosim.InputError, match="at least 0 and at most 20, got 21"):
        hosim.compare(streamed(), LARGE, early, regret=21)
    with pytest.raises(hosim.InputError, match="regret are for one machine"):
        hosim.compare(streamed(), [LARGE, "toy"], regret=1)
