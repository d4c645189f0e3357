"""No figure of one answer contradicts another: what commands print in tables, sentences, JSON and
pages, and frames have, is one number.

The numbers are of one replay of the policy's plan, and of one step with everything resident.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from processor_strategies import machines, on_processors
from rendered import facts
from strategies import graphs, hardware, sized
from typer.testing import CliRunner

import hosim
from hosim.analysis import static_peak
from hosim.cli.main import app
from hosim.engine import most_needed, resident_step
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import load_plan, save_hardware, save_workload
from hosim.report.drawn import blank, image
from hosim.result import Result
from hosim.study.asked import as_integer, parse_choice
from hosim.study.runs import check, make_plan, replay
from hosim.units import human_size, human_time

POLICY = "longest_gap"


def _detail(command: tuple[str, ...]) -> list[str]:
    """Every figure, of commands that print an answer."""
    answers = {
        "blame",
        "compare-policies",
        "diff",
        "fit",
        "frontier",
        "pipeline",
        "replay",
        "robustness",
        "sweep",
        "workload",
    }
    return ["--detail"] if command[0] in answers and "--json" not in command else []


@dataclass(frozen=True)
class Asked:
    """A question in files, and its one answer."""

    folder: Path
    graph: Graph
    machine: Hardware
    percent: int

    @property
    def tier(self) -> str:
        return self.machine.device_tier

    @cached_property
    def resident(self) -> Any:
        return resident_step(self.graph, self.machine)

    @cached_property
    def budget_bytes(self) -> int:
        return min(
            self.resident.peak_bytes * self.percent // 100, self.machine.device.capacity_bytes
        )

    @cached_property
    def result(self) -> Result | None:
        """Of the policy; ``None`` if it has no plan, or one that does not fit."""
        try:
            plan = make_plan(self.graph, self.machine, parse_choice(POLICY), self.budget_bytes)
            check(plan, self.machine, self.budget_bytes)
        except InfeasibleError:
            return None
        result = replay(plan, self.machine, self.budget_bytes)
        return result if result.feasible else None

    @property
    def peak(self) -> int:
        assert self.result is not None
        return self.result.peak_bytes[self.tier]

    @property
    def moved(self) -> dict[str, int]:
        assert self.result is not None
        return {name: channel.bytes for name, channel in self.result.channels.items()}

    def said(self, *command: str, question: bool = True) -> str:
        """What a command prints; with ``question``, of the workload on the machine within the
        budget under the policy.
        """
        asked = ["w.json", "-H", "h.yaml", "-b", f"{self.percent}%"] if question else []
        first = 2 if command[1:2] == ("p.json",) else 1
        done = CliRunner().invoke(
            app,
            [*command[:first], *asked, *command[first:], *_detail(command)],
            env={"COLUMNS": "400"},
            catch_exceptions=False,
        )
        assert done.exit_code in (0, 1, 3), done.output
        return done.stdout if "--json" in command else re.sub(r"[\s│]+", " ", done.output)

    def data(self, *command: str, question: bool = True) -> Any:
        return json.loads(self.said(*command, "--json", question=question))

    def row(self, text: str, first: str) -> str:
        """What follows the first ``first`` that begins a cell."""
        return text[text.index(f" {first} ") :]


def figures(asked: Asked, row: Any) -> None:
    """A row of figures, as a JSON object or a row of a frame, has the numbers of the answer."""
    assert (row["budget_bytes"], row["feasible"]) == (asked.budget_bytes, asked.result is not None)
    if row.get("ideal_ns") is not None or asked.result is not None:
        assert row["ideal_ns"] == asked.resident.makespan_ns
    if asked.result is not None:
        assert (row["makespan_ns"], row[f"{asked.tier}_peak_bytes"]) == (
            asked.result.makespan_ns,
            asked.peak,
        )
        assert {name: row[f"{name}_moved_bytes"] for name in asked.moved} == asked.moved


def result_figures(asked: Asked, data: Any, ideal: bool = True) -> None:
    """The object of one result has the numbers of the answer."""
    moved = {f"{name}_moved_bytes": channel["bytes"] for name, channel in data["channels"].items()}
    peaks = {f"{tier}_peak_bytes": size for tier, size in data["peak_bytes"].items()}
    figures(
        asked,
        {"ideal_ns": asked.resident.makespan_ns if not ideal else None, **data, **peaks, **moved},
    )


def shown(asked: Asked, text: str) -> None:
    """Tables of a replay, or of a comparison of the one policy, have the numbers of the answer."""
    assert f"baseline peak {human_size(asked.resident.peak_bytes)}:" in text
    assert f"budget {human_size(asked.budget_bytes)} of {asked.tier}" in text
    if (result := asked.result) is not None:
        assert result.makespan_ns is not None
        if asked.resident.makespan_ns:
            assert f"baseline {human_time(asked.resident.makespan_ns)})" in text
        if asked.peak:
            time, peak = (
                re.escape(human_time(result.makespan_ns)),
                re.escape(human_size(asked.peak)),
            )
            assert re.search(rf"{POLICY} {time} .*? {peak} .*?{POLICY} {asked.tier} {peak} ", text)
        for name, moved in asked.moved.items():
            assert not moved or re.search(
                rf"{POLICY} {name} [\d,]+ {re.escape(human_size(moved))} ", text
            )


def plain(written: Path) -> str:
    """The text of a page's tables and paragraphs."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", written.read_text(), flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def compare_policies(asked: Asked) -> None:
    data, text = (
        asked.data("compare-policies", "-p", POLICY),
        asked.said("compare-policies", "-p", POLICY),
    )
    result_figures(asked, data["results"][0], ideal=False)
    shown(asked, text)
    if asked.result is not None:
        assert (
            f"within {human_size(asked.budget_bytes)}: {human_time(asked.result.makespan_ns or 0)}"
            in text
        )
        figures(
            asked, hosim.compare(asked.graph, asked.machine, POLICY, f"{asked.percent}%").iloc[0]
        )
    (row,) = asked.data("compare-policies", "-H", "h.yaml,h.yaml", "-p", POLICY)["rows"]
    assert row["budget_bytes"] == asked.budget_bytes
    if asked.result is not None:
        expected = asked.result.makespan_ns, asked.peak, asked.resident.makespan_ns
        assert (row["makespan_ns"], row["peak_bytes"], row["ideal_ns"]) == expected


def plan(asked: Asked) -> None:
    said = asked.said("plan", "-p", POLICY, "-o", "p.json")
    if takes := re.search(
        r"Resident, the step takes (\S+ \S+) and (\S+ \S+) of the budget of (\S+ \w+)", said
    ):
        sizes = human_size(asked.resident.peak_bytes), human_size(asked.budget_bytes)
        assert takes.groups() == (human_time(asked.resident.makespan_ns), *sizes)
    if asked.result is None or asked.graph.elsewhere:
        return
    data, text = (
        asked.data("plan", "-p", POLICY, "--explain"),
        asked.said("plan", "-p", POLICY, "--explain", "--all"),
    )
    found = data["budget_bytes"], data["makespan_ns"], data["peak"]["after_bytes"]
    assert found == (asked.budget_bytes, asked.result.makespan_ns, asked.peak)
    assert {name: channel["bytes"] for name, channel in data["channels"].items()} == asked.moved
    assert f"{human_size(asked.peak)}, {human_size(asked.budget_bytes)}" in facts(text)
    at_home = all(tensor.home in (None, asked.tier) for tensor in asked.graph.tensors)
    if len(asked.graph.streams) == 1 and at_home:  # else it is named for what it is
        assert data["peak"]["before_bytes"] == asked.resident.peak_bytes


def replayed(asked: Asked) -> None:
    if asked.result is None:
        return
    asked.said("plan", "-p", POLICY, "-o", "p.json")
    result_figures(asked, asked.data("replay", "p.json"))
    shown(asked, asked.said("replay", "p.json"))
    again = hosim.replay(
        load_plan(asked.folder / "p.json", asked.graph), asked.machine, f"{asked.percent}%"
    )
    assert (
        again.makespan_ns,
        again.peak_bytes[asked.tier],
        again.budget_bytes,
        again.ideal_ns,
    ) == (
        asked.result.makespan_ns,
        asked.peak,
        asked.budget_bytes,
        asked.resident.makespan_ns,
    )


def fit(asked: Asked) -> None:
    c = asked.machine.channels[0]
    limits = (
        "--smallest",
        f"channels.{c.name}.bandwidth={c.bandwidth_bytes_per_s}..{2 * c.bandwidth_bytes_per_s}B/s:2",
        "-p",
        POLICY,
    )
    data, text = asked.data("fit", *limits), asked.said("fit", *limits)
    now = "_bytes_per_s", c.bandwidth_bytes_per_s
    probed = [row for row in data["rows"] if as_integer(row[f"channels.{c.name}.bandwidth"]) == now]
    for row in probed:
        assert row["within"] == (asked.result is not None)
        if asked.result is not None:
            figures(asked, row)
            assert f" yes {human_time(asked.result.makespan_ns or 0)} " in text
    assert probed or asked.result is None


def sweep(asked: Asked) -> None:
    vary = ("--vary", f"budget={asked.percent}%,100%", "-p", POLICY, "--jobs", "1")
    data, text = asked.data("sweep", *vary), asked.said("sweep", *vary)
    figures(asked, data["rows"][0])
    if asked.result is not None:
        time, peak = human_time(asked.result.makespan_ns or 0), human_size(asked.peak)
        assert re.search(
            rf" {asked.percent}% {human_size(asked.budget_bytes)} {re.escape(time)} .*? "
            rf"{re.escape(peak)} ",
            text,
        )
    frame = hosim.sweep(
        asked.graph, asked.machine, POLICY, None, vary={"budget": [f"{asked.percent}%"]}, jobs=1
    )
    figures(asked, frame.iloc[0])


def frontier(asked: Asked) -> None:
    points = ("-p", POLICY, "--points", "2", "--refine", "0")
    data, text = asked.data("frontier", *points), asked.said("frontier", *points)
    assert all(row["ideal_ns"] == asked.resident.makespan_ns for row in data["rows"])
    last = data["rows"][-1]
    assert last["budget_bytes"] == min(asked.budget_bytes, most_needed(asked.graph, asked.machine))
    if last["budget_bytes"] == asked.budget_bytes:
        figures(asked, last)
        frame = hosim.frontier(
            asked.graph, asked.machine, POLICY, f"{asked.percent}%", points=2, refine=0
        ).frame
        figures(asked, frame.iloc[-1])
        if asked.result is not None:
            peak, time = human_size(asked.peak), human_time(asked.result.makespan_ns or 0)
            assert f" {human_size(asked.budget_bytes)} {peak} {time} " in text
    assert f"baseline {human_time(asked.resident.makespan_ns)})" in text


def blame(asked: Asked) -> None:
    if asked.result is None:
        return
    data, text = asked.data("blame", "-p", POLICY), asked.said("blame", "-p", POLICY)
    assert (data["budget_bytes"], data["makespan_ns"]) == (
        asked.budget_bytes,
        asked.result.makespan_ns,
    )
    assert sum(part["ns"] for part in data["critical_path"]) == asked.result.makespan_ns
    assert f"{POLICY} takes {human_time(asked.result.makespan_ns or 0)}" in text


def diff(asked: Asked) -> None:
    if asked.result is None:
        return
    sides = ("diff", "resident", POLICY, "-w", "w.json", "-H", "h.yaml", "-b", f"{asked.percent}%")
    text = asked.said(*sides, question=False)
    if " Figures" not in f" {text}":  # everything resident breaks a rule on such a machine
        return
    data = asked.data(*sides, question=False)
    expected = {
        "budget_bytes": asked.budget_bytes,
        "makespan_ns": asked.result.makespan_ns,
        f"{asked.tier}_peak_bytes": asked.peak,
    }
    expected |= {f"{name}_moved_bytes": moved for name, moved in asked.moved.items()}
    listed = {row["figure"]: row["b"] for row in data["figures"]}
    assert {
        name: value for name, value in listed.items() if name in expected
    }.items() <= expected.items()
    if "makespan_ns" in listed:
        assert f" {human_time(asked.result.makespan_ns or 0)} " in asked.row(text, "makespan")
    if data["tensors"] and all("moved_bytes_b" in row for row in data["tensors"]):
        assert sum(row["moved_bytes_b"] for row in data["tensors"]) <= sum(asked.moved.values())


def gate(asked: Asked) -> None:
    case = (
        f'workload = "w.json"\nhardware = "h.yaml"\npolicy = "{POLICY}"\nbudget = '
        f'"{asked.percent}%"\n'
    )
    (asked.folder / "hosim.toml").write_text(f"[cases.c]\n{case}")
    asked.said("baseline", "write", "-j", "1", question=False)
    if asked.result is None:
        return
    metrics = {"makespan": asked.result.makespan_ns, f"peak.{asked.tier}": asked.peak}
    metrics |= {f"moved.{name}": moved for name, moved in asked.moved.items() if moved}
    kept = asked.data("baseline", "show", "c", question=False)["metrics"]
    (checked,) = asked.data("check", "-j", "1", question=False)["cases"]
    now = {name: metric["now"] for name, metric in checked["metrics"].items()}
    assert metrics.items() <= kept.items()
    assert metrics.items() <= now.items()
    text = asked.said("baseline", "show", "c", question=False)
    assert f" makespan {human_time(asked.result.makespan_ns or 0)} " in text
    assert f" peak.{asked.tier} {human_size(asked.peak)} " in text


def robustness(asked: Asked) -> None:
    drawn = ("-p", POLICY, "--runs", "1", "--op-sigma", "0.1")
    data, text = asked.data("robustness", *drawn), asked.said("robustness", *drawn)
    assert (data["budget_bytes"], data["ideal_ns"]) == (
        asked.budget_bytes,
        asked.resident.makespan_ns,
    )
    assert f"baseline {human_time(asked.resident.makespan_ns)})" in text
    if asked.result is not None:
        (row,) = data["policies"]
        assert (row["makespan_ns"]["nominal"], row["peak_bytes"]["nominal"]) == (
            asked.result.makespan_ns,
            asked.peak,
        )
        assert f" {human_time(asked.result.makespan_ns or 0)} " in asked.row(text, POLICY)


def workload(asked: Asked) -> None:
    """What no machine is given for has a name of its own: it is another figure than the peak on a
    machine.
    """
    peak = static_peak(asked.graph).bytes
    data = asked.data("workload", "show", "w.json", question=False)
    assert (
        data["listed_order_peak_bytes"] == sum(data["listed_order_peak_breakdown"].values()) == peak
    )
    texts = [
        asked.said("workload", "show", "w.json", question=False),
        asked.said("import", "w.json", "-o", "v.json", question=False),
    ]
    assert all(
        f"peak in listed order {human_size(peak)} (" in text and "resident" not in text
        for text in texts
    )


def pages(asked: Asked) -> None:
    asked.said("compare-policies", "-p", POLICY, "--html", "c.html")
    shown(asked, plain(asked.folder / "c.html"))
    if asked.result is not None:
        asked.said("plan", "-p", POLICY, "-o", "p.json")
        asked.said("replay", "p.json", "--html", "r.html")
        shown(asked, plain(asked.folder / "r.html"))


@st.composite
def questions(draw: st.DrawFn, processors: bool) -> tuple[Graph, Hardware, int]:
    if processors:
        machine = draw(machines())
        graph = draw(on_processors(machine, draw(st.booleans())))
    else:
        machine = draw(hardware())
        graph = draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    tiers = tuple(
        replace(tier, pin_ns=0, pin_pool=False) for tier in sized(machine, graph, 10**6).tiers
    )
    return graph, replace(machine, tiers=tiers), draw(st.sampled_from((55, 70, 85, 100)))


COMMANDS: tuple[Callable[[Asked], None], ...] = (
    compare_policies,
    plan,
    replayed,
    fit,
    sweep,
    frontier,
    blame,
    diff,
    gate,
    robustness,
    workload,
    pages,
)


@pytest.mark.parametrize("processors", [False, True], ids=["device", "processors"])
@pytest.mark.parametrize(
    ("number", "command"), list(enumerate(COMMANDS)), ids=[command.__name__ for command in COMMANDS]
)
def test_the_same_quantity_is_the_same_number_in_every_answer(
    number: int,
    command: Callable[[Asked], None],
    processors: bool,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @seed(number)  # other questions for each command
    @settings(
        max_examples=1,
        derandomize=False,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(questions(processors))
    def holds(question: tuple[Graph, Hardware, int]) -> None:
        graph, machine, percent = question
        assume(len(graph.ops) > 2 and resident_step(graph, machine).peak_bytes * percent >= 100)
        folder = tmp_path_factory.mktemp("question")
        save_workload(graph, folder / "w.json")
        save_hardware(machine, folder / "h.yaml")
        monkeypatch.chdir(folder)
        asked = Asked(
            folder, hosim.load(folder / "w.json"), hosim.load_hardware(folder / "h.yaml"), percent
        )
        assume(asked.result is not None or processors)
        command(asked)

    empty = image(blank([1])[0])
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, file, **how: file.write(empty)
    )  # what takes long has no text
    holds()
