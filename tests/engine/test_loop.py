"""The compiled loop against the engine: the same figures, to the nanosecond and byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs, hardware, sized, wild_plans
from test_naive_without_dma import without_dma

from hosim.cache_plan import Plan
from hosim.costmodel.memory_traffic import copy_uses, with_memories
from hosim.costmodel.op_time import op_durations
from hosim.engine import replay
from hosim.engine.flow_table import UncoveredError
from hosim.engine.ledger import LEDGER_KINDS
from hosim.engine.loop import ENDED, ILLEGAL, NEVER, STUCK
from hosim.engine.looped_replay import table_of
from hosim.engine.program_table import MOVES_OF_A_CHANNEL
from hosim.errors import PlanError
from hosim.hardware import Hardware


def compare(plan: Plan, machine: Hardware, budget: int | None = None, compete: bool = False) -> str:
    durations = op_durations(plan.graph, machine)
    shared = with_memories(machine) if compete else machine
    try:
        uses = copy_uses(plan.graph, machine, durations, compete)
        table = table_of(plan, machine, shared, durations, uses, machine.device.capacity_bytes if budget is None else budget)
    except UncoveredError:
        return "uncovered"
    except PlanError:
        return "illegal"
    status = STUCK
    if table.fits:
        table.loop.begin()
        status = table.run(NEVER, 1 << 30)
    try:
        result = replay(plan, machine, budget, compete=compete)
    except PlanError as error:
        assert status == ILLEGAL or (status == ENDED and "at the end of the step" in str(error)), (status, error)
        return "illegal"
    assert result.feasible == (status == ENDED), (status, result.error)
    cells = table.cells
    names = [tier.name for tier in machine.tiers]
    assert {name: cells["peak"][r] for r, name in enumerate(names)} == result.peak_bytes
    assert {name: cells["peak_at"][r] for r, name in enumerate(names)} == result.peak_at_ns
    if table.fits:
        kinds = len(LEDGER_KINDS)
        for r, name in enumerate(names):
            here = {kind: cells["peak_by_kind"][r * kinds + k] for k, kind in enumerate(LEDGER_KINDS)}
            assert {kind: size for kind, size in here.items() if size} == dict(result.peak_breakdown[name])
    if status != ENDED:
        return "out of memory"
    makespan = max([cells["scalars"][3], *[cells["free_since"][s] for s in range(cells["streams"])]])
    assert makespan == result.makespan_ns
    for s, stream in enumerate(plan.graph.streams):
        found = {cause: cells["stalls"][3 * s + k] for k, cause in enumerate(("dependency", "transfer", "capacity"))}
        expected = result.stall_ns if stream == plan.graph.main_stream else result.streams[stream].stall_ns
        assert found | {"runtime": 0} == dict(expected)
    assert sum(cells["slowed"][s] for s in range(cells["streams"])) == (result.slowed_ns or 0)
    for c, channel in enumerate(machine.channels):
        figures = result.channels[channel.name]
        found = list(cells["channel_figures"][MOVES_OF_A_CHANNEL * c : MOVES_OF_A_CHANNEL * c + 4])
        assert found == [figures.exposed_ns, figures.transfers, figures.busy_ns, figures.queue_ns]
    return "feasible"


@settings(max_examples=100, deadline=None)
@given(cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_legal_plans(case: Any) -> None:
    _, machine, plan = case
    compare(plan, machine)


@settings(max_examples=100, deadline=None)
@given(
    cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True, measured=False),
    st.sampled_from((4, 11, 40)),
    st.sampled_from(((1.0, 1.0), (0.6, 1.0), (0.75, 0.9))),
)
def test_ops_that_copies_slow_down(case: Any, bandwidth: int, reached: tuple[float, float]) -> None:
    _, machine, plan = case
    tiers = (replace(machine.tiers[0], bandwidth_bytes_per_s=bandwidth * 10**9), *machine.tiers[1:])
    compute = replace(machine.compute, efficiency=reached[0], beside_copies=reached[1])
    compare(plan, replace(machine, tiers=tiers, compute=compute), compete=True)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_plan(data: st.DataObject) -> None:
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    compare(plan, machine)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tiers_without_dma(data: st.DataObject) -> None:
    measured = data.draw(st.booleans())
    _, machine, plan = data.draw(cases(max_ops=7, max_streams=2, fabrics=True, roomy=None, measured=measured, uneven=True))
    compare(plan, without_dma(data, machine), compete=not measured)
