"""Fit: the answer is that of trying every value, with evidence on both sides, and says so where
values contradict one another.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rendered import facts
from sweeping import MACHINE, chain
from typer.testing import CliRunner

from hosim.cache_plan import Plan
from hosim.cli.main import app
from hosim.engine import resident_step
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware
from hosim.io import save_hardware, save_workload
from hosim.io.models import build
from hosim.study.asked import Axis, as_choice, parse_axis, parse_choice
from hosim.study.runs import Question
from hosim.study.searches import Fit, Wanted, fit


def question(policy: str = "layerwise", budget: int | str | None = 200) -> Question:
    return Question(chain(12), MACHINE, parse_choice(policy), budget)


def by_trying(
    asked: Question, field: str, values: tuple[object, ...], slowdown: float
) -> list[object]:
    """The values within the limits, each tried."""
    found = []
    for value in values:
        here = asked.with_settings({field: value})
        try:
            result = here.attempt()
        except Exception:
            continue
        if (
            result.feasible
            and result.makespan_ns
            <= slowdown * resident_step(here.graph, here.hardware).makespan_ns
        ):
            found.append(value)
    return found


@pytest.mark.parametrize(
    "slowdown", [pytest.param(share, marks=pytest.mark.long) for share in (1.05, 1.2, 1.5, 3.0)]
)
def test_the_smallest_bandwidth_is_that_of_trying_all(slowdown: float) -> None:
    axis = parse_axis("channels.h2d.bandwidth=500MB/s..4GB/s:36")
    found = fit(question(), "smallest", axis, slowdown)
    within = by_trying(question(), "channels.h2d.bandwidth", axis.values, slowdown)
    assert found.value == (within[0] if within else None)
    if within and within[0] != axis.values[0]:
        assert found.exact
        assert found.beyond.value == axis.values[axis.values.index(within[0]) - 1]
        assert "times" in found.beyond.why
        assert found.answer.slowdown <= slowdown
        assert found.beyond.slowdown is None or slowdown < found.beyond.slowdown
    assert not found.contradictions
    assert len(found.probes) < 14


def test_a_fabric_does_not_hold_a_channel_that_is_varied() -> None:
    """It is as wide as the channel was, which is not enough: the answer is that without it. A
    fabric that is named stays as it is.
    """
    link = replace(MACHINE, fabrics=(Fabric("link", 10**9, ("h2d",)),))
    axis = parse_axis("channels.h2d.bandwidth=1GB/s..2GB/s:3")
    free, held = (
        fit(replace(question(), profile=machine), "smallest", axis, 1.2, bounds=False)
        for machine in (MACHINE, link)
    )
    assert held.value == free.value == "1.5 GB/s"
    assert held.notes == []
    asked = question("resident", None)
    guessed = replace(
        asked,
        graph=replace(
            asked.graph, ops=tuple([replace(op, duration_ns=None) for op in asked.graph.ops])
        ),
    )
    found = fit(
        guessed,
        "smallest",
        parse_axis("channels.h2d.bandwidth=100GB/s..200GB/s:2"),
        1.0,
        bounds=False,
    )
    bound = (
        "channels.h2d.bandwidth exceeds that of tiers.ddr, 100 GB/s: "
        "channels.h2d.bandwidth+tiers.ddr.bandwidth=... varies both"
    )
    assert str(found).endswith(f"; {bound}")


def test_the_smallest_memory() -> None:
    axis = parse_axis("tiers.hbm.capacity=20B..200B:7")
    found = fit(question(budget=None), "smallest", axis)
    within = by_trying(question(budget=None), "tiers.hbm.capacity", axis.values, 1e9)
    assert (found.value, found.exact) == (within[0], True)
    assert found.beyond.why.startswith("does not fit")
    assert found.frame["within"].sum() == sum(probe.within for probe in found.probes)
    assert facts(str(found)).startswith(within[0])
    assert repr(found) == str(found)


@pytest.mark.long
def test_the_largest_sequence_batch_and_layers() -> None:
    graph = build(
        "small",
        {
            "model": "gpt2-xl",
            "phase": "prefill",
            "sequence": 64,
            "layers": 2,
            "config": {"n_embd": 100},
        },
    )
    machine = replace(
        MACHINE,
        tiers=(
            replace(MACHINE.tiers[0], capacity_bytes=10**9),
            replace(MACHINE.tiers[1], capacity_bytes=10**12),
        ),
    )
    asked = Question(graph, machine, parse_choice("on_demand"), 10_500_000)
    for text in ("workload.sequence=64..1024:11", "workload.batch=1..17", "workload.layers=1..16"):
        axis = parse_axis(text)
        found = fit(asked, "largest", axis)
        within = by_trying(asked, axis.fields[0], axis.values, 1e9)
        assert within
        assert found.value == within[-1]
        assert found.exact
    refused = fit(asked, "largest", parse_axis("workload.layers=40..60"))
    assert refused.value == 48
    assert refused.beyond.why.endswith("the model has 48 layers, got 49")


def test_all_or_none_within_the_limits() -> None:
    easy = fit(question(), "smallest", parse_axis("channels.h2d.bandwidth=10GB/s..20GB/s:11"))
    assert (easy.value, easy.beyond, easy.exact) == ("10 GB/s", None, True)
    hard = fit(question(budget=20), "largest", parse_axis("channels.h2d.bandwidth=1GB/s..2GB/s:3"))
    assert (hard.answer, hard.value, hard.exact) == (None, None, False)
    assert facts(str(hard)).startswith("1 GB/s")


def fit_where(within: Callable[[int], bool], wanted: Wanted, values: range) -> Fit:
    """The fit of the engines of a channel for a policy that has a plan only for some numbers of
    them.
    """

    def policy(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        if not within(hardware.channels[0].engines):
            raise InfeasibleError("it is odd")
        return Plan(graph)

    asked = Question(chain(2), MACHINE, as_choice(policy), 200)
    return fit(asked, wanted, Axis(("channels.h2d.engines",), tuple(values)), bounds=False)


def test_values_that_contradict_one_another_are_said() -> None:
    # every value but the middle ones is within the limits: both ends are, and only the probes
    # besides tell
    found = fit_where(lambda engines: not 41 <= engines < 61, "largest", range(1, 102))
    assert found.value == 101
    why = "does not fit within 200 B: it is odd"
    (contradiction,) = found.contradictions
    assert facts(contradiction, f"({why})") == f"51, ({why}), 101"
    # and one beyond the limit that bisection finds
    beyond = fit_where(lambda engines: engines < 31 or 71 < engines < 81, "largest", range(1, 102))
    assert beyond.value == 76
    assert beyond.contradictions
    assert not beyond.exact


@pytest.mark.parametrize(
    ("wanted", "tried"),
    [
        # halves: 1, 101, 51, 26, 38, 44, 41, 39, 40; then the middles of the widest gaps below 40
        # (1-26, 13-26) and above (51-101, 76-101)
        ("largest", [1, 13, 19, 26, 38, 39, 40, 41, 44, 51, 76, 88, 101]),
        # from 101 down: 101, 1, 51, 26, 39, 45, 42, 41, 40; then above 41 (101-51, 76-51) and below
        # (26-1, 14-1)
        ("smallest", [1, 8, 14, 26, 39, 40, 41, 42, 45, 51, 64, 76, 101]),
    ],
)
def test_which_values_are_tried(wanted: Wanted, tried: list[int]) -> None:
    """Halving for the limit at 41, and two more on either side of it."""
    found = fit_where(
        lambda engines: (engines < 41) == (wanted == "largest"), wanted, range(1, 102)
    )
    assert [probe.value for probe in found.probes] == tried
    assert (found.value, found.beyond.value) == ((40, 41) if wanted == "largest" else (41, 40))
    assert found.exact
    assert not found.contradictions


def test_which_values_are_tried_where_none_is_within_the_limits() -> None:
    """Both ends; then the middles of the widest stretches: 50 of 1 and 100, 75 of 50 and 100."""
    found = fit_where(lambda engines: False, "largest", range(1, 101))
    assert [probe.value for probe in found.probes] == [1, 50, 75, 100]
    assert found.answer is None


@pytest.mark.parametrize(
    ("text", "slowdown", "said"),
    [
        ("channels.h2x.bandwidth=1GB/s..2GB/s:3", None, "did you mean 'h2d'?"),
        ("channels.h2d.bandwidth=1GB/s", None, "expected at least two values"),
        (
            "channels.h2d.bandwidth=1GB/s..2GB/s:3",
            0.5,
            "slowdown: expected a multiple of at least 1",
        ),
        ("policy=on_demand,layerwise", None, "which can be ordered; got 'on_demand'"),
        ("workload.batch=1..4", None, "does not say how it was built"),
    ],
)
def test_what_is_no_question(text: str, slowdown: float | None, said: str) -> None:
    with pytest.raises(InputError) as refused:
        fit(question(), "largest", parse_axis(text), slowdown)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_workload(chain(12), "w.json")
    save_hardware(MACHINE, "hw.yaml")
    arguments = ["fit", "w.json", "-H", "hw.yaml", "-p", "layerwise", "-b", "200 B"]
    smallest = [*arguments, "--smallest", "channels.h2d.bandwidth=1..4GB/s:31", "--slowdown", "1.2"]
    done = CliRunner().invoke(app, [*smallest, "--json"])
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["format"], data["wanted"], data["exact"]) == ("hosim.fit/1", "smallest", True)
    values = {row["channels.h2d.bandwidth"]: row["within"] for row in data["rows"]}
    assert values[data["value"]]
    assert not values[data["beyond"]]
    uncounted = CliRunner().invoke(
        app, [*smallest[:-3], "channels.h2d.bandwidth=1..100GB/s", "--slowdown", "1.2", "--json"]
    )
    assert json.loads(uncounted.stdout)["value"] == "2 GB/s"  # of 1, 2, ... 100
    table = CliRunner().invoke(app, smallest, env={"COLUMNS": "120"}).stdout
    said = facts(" ".join(table.split()), "channels.h2d.bandwidth")
    assert f"channels.h2d.bandwidth, {data['value']}" in said
    assert (
        CliRunner()
        .invoke(app, [*arguments[:-1], "20 B", "--largest", "channels.h2d.engines=1..3"])
        .exit_code
        == 3
    )
    for wrong in (
        [],
        ["--largest", "a=1..2", "--smallest", "a=1..2"],
        ["--largest", "channels.h2d.engine=1..2"],
    ):
        ended = CliRunner().invoke(app, [*arguments, *wrong])
        errors = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")]
        assert (ended.exit_code, ended.stdout, len(errors)) == (2, "", 1)


def test_a_value_that_no_plan_can_keep_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lower bound: of three values one is planned, and the answer is that of trying all."""
    asked, axis = question(budget=200), parse_axis("channels.h2d.bandwidth=10MB/s,20MB/s,9GB/s", 9)
    tried: list[Question] = []
    attempt = Question.attempt
    monkeypatch.setattr(Question, "attempt", lambda asked: (tried.append(asked), attempt(asked))[1])
    found = fit(asked, "smallest", axis, 1.2)
    assert found.value == "9GB/s"
    assert len(tried) == 1
    assert [probe.by_bound for probe in found.probes] == [True, True, False]
    assert found.interval is None  # every time is given
    # a value that is not planned has no figures, and is not feasible
    assert list(found.frame["feasible"]) == [False, False, True]
    assert list(found.frame["makespan_ns"].isna()) == [True, True, False]
    assert by_trying(asked, axis.fields[0], axis.values, 1.2) == [found.value]
