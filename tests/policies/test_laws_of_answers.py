"""The order in which a file lists tensors, and their names, change no figure and no sentence of
bounds, studies, allocators and serving.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from test_laws_of_policies import renamed, shuffled

import hosim
from hosim import engine
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import lower_bound_ns
from hosim.engine import resident_step
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.policies import policy_named
from hosim.study import diff, side_of

Answer = Callable[[Graph, Hardware, int], Any]


def bound(graph: Graph, machine: Hardware, budget: int) -> Any:
    return lower_bound_ns(
        graph, op_durations(graph, machine), machine, None, budget
    ), resident_step(graph, machine)


def swept(graph: Graph, machine: Hardware, budget: int) -> Any:
    table = hosim.sweep(
        graph, machine, "longest_gap", vary={"budget": [budget, budget + 9]}, jobs=1
    )
    return table.to_dict("records"), table.attrs["notes"]


def blamed(graph: Graph, machine: Hardware, budget: int) -> Any:
    found = hosim.blame(graph, machine, "on_demand", budget)
    return str(found), found.stalls


def differing(graph: Graph, machine: Hardware, budget: int) -> Any:
    return diff(
        *(side_of(policy, graph, machine, budget) for policy in ("longest_gap", "on_demand"))
    )


def drawn(graph: Graph, machine: Hardware, budget: int) -> Any:
    """Makespans when times vary: a tensor has its luck whatever its name and its place in the
    file.
    """
    plan = policy_named("on_demand").plan(graph, machine, budget)
    jitter = Jitter(3, transfer_sigma=0.5)
    return engine.replay(plan, machine, budget, jitter=jitter).makespan_ns


def allocated(graph: Graph, machine: Hardware, budget: int) -> Any:
    plan = policy_named("longest_gap").plan(graph, machine, budget)
    found = [
        engine.replay(plan, machine, allocator=allocator).allocator
        for allocator in ("caching", "static")
    ]
    return [
        figures and (figures.peak_allocated_bytes, figures.at_peak.allocated_bytes)
        for figures in found
    ]


ANSWERS: tuple[tuple[Answer, bool], ...] = (
    (bound, True),
    (swept, False),
    (blamed, False),
    (differing, False),
    (drawn, True),
    (allocated, True),
)
"""Each with whether it names nothing."""


@st.composite
def questions(draw: st.DrawFn) -> tuple[Graph, Hardware, int]:
    machine = draw(hardware())
    graph = draw(graphs(9, 2, 5, homes=[tier.name for tier in machine.tiers]))
    if draw(st.integers(0, 3)):  # sizes that are often equal, of which ops access a part
        graph = replace(
            graph,
            tensors=tuple(
                replace(tensor, size_bytes=20 + tensor.size_bytes % 2) for tensor in graph.tensors
            ),
            ops=tuple(replace(op, bytes_accessed=5) for op in graph.ops),
        )
    machine = sized(machine, graph, 10**4)
    return (
        graph,
        machine,
        max(1, resident_step(graph, machine).peak_bytes * draw(st.integers(60, 90)) // 100),
    )


@pytest.mark.parametrize(
    ("answer", "nameless"), ANSWERS, ids=[answer.__name__ for answer, _ in ANSWERS]
)
def test_order_and_names_of_tensors_mean_nothing(answer: Answer, nameless: bool) -> None:
    @seed(21 + len(answer.__name__))
    @settings(
        max_examples=5,
        derandomize=False,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(questions(), st.randoms(use_true_random=False))
    def holds(question: tuple[Graph, Hardware, int], draw: random.Random) -> None:
        graph, machine, budget = question
        assume(len(graph.ops) > 3)

        def said(of: Graph) -> Any:
            try:
                return answer(of, machine, budget)
            except InfeasibleError as error:
                return "does not fit" if nameless else str(error)

        other = shuffled(graph, draw)
        assert repr(said(renamed(other, draw) if nameless else other)) == repr(said(graph))

    holds()


def test_a_note_names_the_tensor_that_is_used_first() -> None:
    """Of tensors as large as each other the note named the one that the file lists first."""
    said = []
    for names in (["late", "early"], ["early", "late"]):
        b = GraphBuilder("tables")
        for name in names:
            b.tensor(name, 80, "parameter", home="ddr")
        for name in ("early", "late"):
            b.tensor(f"{name} row", 8)
            b.op(
                f"look up {name}",
                "embedding",
                inputs=[name],
                outputs=[f"{name} row"],
                bytes_accessed=16,
            )
        (note,) = [
            line
            for line in hosim.replay(hosim.plan(b.build(), "toy", "layerwise"), "toy").notes
            if line.startswith("whole: ")
        ]
        said.append(note)
    assert said[0] == said[1]
    assert "early" in said[0]


def test_order_of_rows_and_numbers_of_blocks_mean_nothing_to_serving(tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [
        {
            "arrival_ms": 7 * i,
            "input_tokens": 64,
            "output_tokens": 3,
            "prefix_blocks_of_16": [10 * draw.randint(0, 2) + k for k in range(4)],
        }
        for i in range(12)
    ]
    numbers = dict(zip(range(30), draw.sample(range(1000), 30), strict=True))
    named = [
        row | {"prefix_blocks_of_16": [numbers[k] for k in row["prefix_blocks_of_16"]]}
        for row in rows
    ]
    found = []
    for listed in (rows, draw.sample(named, len(named))):
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in listed))
        served = hosim.serve("gpt2", "h100", str(tmp_path / "rows.jsonl"), kv="write_through")
        found.append((dict(served.summary()), served.frame().to_dict("records")))
    assert repr(found[0]) == repr(found[1])
