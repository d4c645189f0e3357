"""What a device of a replay runs: a plan compiled for the machine, and what the ops of the plan have to do with other devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hosim.analysis import StageExchange
from hosim.cache_plan import Plan
from hosim.costmodel import MemoryUse, copy_uses, op_durations
from hosim.costmodel.transfers import meeting_ranks, sent_bytes
from hosim.engine.compiled_plan import CompiledPlan, compile_plan
from hosim.engine.result_figures import tells_slowing
from hosim.graph import Graph
from hosim.hardware import Hardware

_NO_EXCHANGES: Mapping[int, StageExchange] = {}


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A plan as a device runs it.

    ``uses`` are the ops that copies can slow down, ``sent`` the bytes of those that cross fabrics, ``meetings`` the ranks of those for
    which devices with the same plan wait for one another, and ``exchanges`` those that are tied to ops of other stages. ``tells`` says
    whether that copies slow ops down is told even if none does.
    """

    plan: Plan
    compiled: CompiledPlan
    uses: Mapping[int, MemoryUse]
    sent: Mapping[int, int]
    meetings: Mapping[int, int]
    exchanges: Mapping[int, StageExchange]
    tells: bool

    @property
    def graph(self) -> Graph:
        """The ops that run."""
        return self.plan.graph


def program_of(
    plan: Plan,
    hardware: Hardware,
    tracked: bool,
    competes: bool,
    compete: bool | None,
    exchanges: Mapping[int, StageExchange] | None = None,
) -> DeviceProgram:
    """The program of a plan. With ``tracked``, every tensor is followed; ``exchanges`` are those of a stage, ``None``: it is no stage.

    ``competes`` says whether copies slow ops down, ``compete`` what the caller wants.
    """
    graph = plan.graph
    compiled = compile_plan(plan, hardware, _durations(graph, hardware), True) if tracked else plan.derived_on(hardware, _compiled)
    uses = graph.derived_on(hardware, _uses_beside if competes else _held)
    meetings = graph.derived(meeting_ranks) if hardware.devices > 1 and exchanges is None else {}
    sent = graph.derived_on(hardware, sent_bytes)
    return DeviceProgram(plan, compiled, uses, sent, meetings, exchanges or _NO_EXCHANGES, tells_slowing(graph, sent, compete))


def stopping_at(program: CompiledPlan, ops: Iterable[int]) -> CompiledPlan:
    """The program without steps to some ops, whose ends are not known when they start."""
    steps = list(program.steps)
    for i in ops:
        steps[program.graph.previous[i]] = None
    return replace(program, steps=steps)


def _durations(graph: Graph, hardware: Hardware) -> tuple[int, ...]:
    """Nanoseconds of each op; measured ones do not depend on the machine and are kept with the graph."""
    return graph.derived(_measured) or graph.derived_on(hardware, op_durations)


def _compiled(plan: Plan, hardware: Hardware) -> CompiledPlan:
    """The program of a plan that tracks only what has to be; not to be changed, as every replay has the same."""
    return compile_plan(plan, hardware, _durations(plan.graph, hardware))


def _uses_beside(graph: Graph, hardware: Hardware) -> dict[int, MemoryUse]:
    """The ops that copies can slow down or hold; not to be changed, as every replay has the same."""
    return copy_uses(graph, hardware, _durations(graph, hardware), True)


def _held(graph: Graph, hardware: Hardware) -> dict[int, MemoryUse]:
    """The ops that copies can hold where they do not share the bandwidth of memories."""
    return copy_uses(graph, hardware, _durations(graph, hardware), False)


def _measured(graph: Graph) -> tuple[int, ...]:
    """Durations if every op has one, else nothing."""
    known: dict[int, int] = {}  # equal durations are one object
    measured = [known.setdefault(op.duration_ns, op.duration_ns) for op in graph.ops if op.duration_ns is not None]
    return tuple(measured) if len(measured) == len(graph.ops) else ()
