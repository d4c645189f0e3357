"""Compare machines for one workload, and find the memory of each that is enough
(:mod:`hosim.study.searches.enough`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hosim.analysis.remarks import PairedDraws, beside_fastest, ranks
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.notes import Note, notes
from hosim.result import Result
from hosim.study.asked import Value
from hosim.study.rows_of_answers import FIRST_COLUMNS, SLOWDOWN, figures, frame
from hosim.study.runs import Question, bounded_attempt, failed
from hosim.study.searches import (
    NEAR,
    attempt,
    smallest_enough,
    step_costs,
)
from hosim.units import human_percent, human_size, human_time

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    *FIRST_COLUMNS,
    "ideal_ns",
    SLOWDOWN,
    "peak_bytes",
    "lower_bound_ns",
    "enough_bytes",
    "enough_makespan_ns",
    "failed",
    "error",
)
"""The columns of :attr:`Machines.frame`. If a machine has a price, the cost of a step and of a
million tokens come with them.
"""


@dataclass(frozen=True, slots=True)
class OnMachine:
    """One policy on one machine.

    ``result`` is the result with the given budget. ``enough`` is the result with the smallest
    budget that is enough (:mod:`hosim.study.searches.enough`); ``None`` if the given one is not.
    """

    hardware: Hardware
    result: Result
    enough: Result | None


@dataclass(frozen=True)
class Machines:
    """One workload on several machines: a line for each machine and policy, in the order given, and
    the notes on them.
    """

    graph: Graph
    lines: Sequence[OnMachine]
    notes: Sequence[Note] = ()

    @property
    def frame(self) -> DataFrame:
        """One row per machine and policy, with the columns :data:`COLUMNS`."""
        return frame(self.rows, tuple(self.rows[0]), self.notes)

    @property
    def rows(self) -> list[dict[str, Value]]:
        """One row per machine and policy, by :data:`COLUMNS`: ``enough_bytes`` is the smallest
        budget that is enough, if any is.
        """
        costs = [step_costs(line.result, self.graph, line.hardware) for line in self.lines]
        none = dict.fromkeys([column for cost in costs for column in cost])
        return [
            {**_row(line), **none, **cost} for line, cost in zip(self.lines, costs, strict=True)
        ]

    def __str__(self) -> str:
        fitting = sorted(
            (line for line in self.lines if line.result.feasible),
            key=lambda line: line.result.makespan_ns or 0,
        )
        said = [
            f"{_name(self, line)} takes {human_time(line.result.makespan_ns or 0)}{_enough(line)}"
            for line in fitting
        ]
        said += [
            f"{_name(self, line)}: {'failed' if line.result.failed else 'does not fit'}"
            for line in self.lines
            if not line.result.feasible
        ]
        following = _name(self, fitting[1]) if len(fitting) > 1 else ""
        pair = [each for each in self.paired if each.second == following]
        return ". ".join(
            ["; ".join(said), *[each.verdict.rstrip(".") for each in pair], *self._cheapest()]
        )

    def _cheapest(self) -> list[str]:
        """Return the sentence on the line with the lowest cost per token, or per step; an empty
        list if no machine has a price.
        """
        column, unit = "cost_per_million_tokens", "1M tokens"
        costs = dict(zip(self.names, self.rows, strict=True))
        if all([row.get(column) is None for row in costs.values()]):
            column, unit = "cost", "step"
        known = {name: float(str(c)) for name, row in costs.items() if (c := row.get(column))}
        least = min(known, key=lambda name: known[name], default=None)
        return [] if least is None else [f"{least} costs least: {known[least]:.3g} per {unit}"]

    @property
    def names(self) -> list[str]:
        """The name of each line: its machine, and its policy if there are several."""
        return [_name(self, line) for line in self.lines]

    @property
    def paired(self) -> list[PairedDraws]:
        """Each other line beside the fastest one, in the same draws.

        Each machine has its own factors; factors that all machines share cancel.
        """
        return beside_fastest([line.result for line in self.lines], self.names)

    @property
    def ranks(self) -> list[tuple[int, int] | None]:
        """The lowest and highest rank of each line in 9 of 10 of these draws."""
        return ranks([line.result for line in self.lines])


def _row(line: OnMachine) -> dict[str, Value]:
    row = {
        **figures(line.result, line.hardware),
        "failed": line.result.failed,
        "peak_bytes": line.result.peak_bytes.get(line.hardware.device_tier),
        "enough_bytes": None if line.enough is None else line.enough.budget_bytes,
        "enough_makespan_ns": None if line.enough is None else line.enough.makespan_ns,
    }
    return {column: row[column] for column in COLUMNS}


def compare_machines(
    questions: Sequence[Question],
    progress: Callable[[str], None] = lambda doing: None,
    *,
    enough: bool = True,
) -> Machines:
    """Plan and replay the workload on each machine with each policy within the budget; ``enough``
    also searches for the smallest budget that is enough.

    ``questions`` differ in their machines and policies. A policy that finds no plan, or one that is
    not hosim's own and fails, also has a line; its result is not feasible. ``progress`` gets the
    name of each step as it starts. Raises :class:`InputError` for two machines of one name, and
    :class:`PlanError` if the plan of one of hosim's own policies breaks a rule.
    """
    first = questions[0]
    for name, count in Counter(
        one.hardware.name for one in questions if one.choice == first.choice
    ).items():
        if count > 1:
            raise InputError(
                f"{count} machines are called {name!r}; give each once, by a name of its own",
                source="hardware",
            )
    each = {one.hardware.name: one for one in questions}
    said = (
        [note for one in each.values() for note in one.notes]
        if first.rescale
        else notes(first.graph, *[one.hardware for one in each.values()])
    )
    lines = [_on_machine(one, progress, enough) for one in questions]
    return Machines(first.graph, lines, (*said, *_out_of_order(first.graph, lines)))


def _on_machine(question: Question, progress: Callable[[str], None], enough: bool) -> OnMachine:
    name = f"{question.hardware.name}, {question.choice.label}"
    progress(f"{name}: planning")
    try:
        result = attempt(question)
    except HosimError as error:
        result = failed(
            question.graph, question.hardware, question.choice, question.budget_bytes, error
        )
    return OnMachine(
        question.hardware,
        bounded_attempt(result),
        smallest_enough(
            question, result, lambda budget: progress(f"{name} within {human_size(budget)}")
        )
        if enough
        else None,
    )


def _name(found: Machines, line: OnMachine) -> str:
    several = len({line.result.policy for line in found.lines}) > 1
    return f"{line.hardware.name} by {line.result.policy}" if several else line.hardware.name


def _enough(line: OnMachine) -> str:
    if line.enough is not None:
        return (
            f", and {human_size(line.enough.budget_bytes)} are enough to be within "
            f"{human_percent(NEAR - 1, 0)} of everything resident"
        )
    slowdown = line.result.slowdown
    return "" if slowdown is None else f", {slowdown:.2f} times as long as with everything resident"


_BOUND_BY_BYTES = 2
"""A step counts as memory-bound if its bytes take at least this many times as long as its FLOP."""


def _out_of_order(graph: Graph, lines: Sequence[OnMachine]) -> Iterator[Note]:
    """Yield a note for each machine on which a memory-bound step takes longer than on a machine
    with less bandwidth.

    With everything resident, machines should be in the order of their bandwidth on a memory-bound
    step. Another order comes from constants of the kernel models.
    """
    times = {
        line.hardware.name: (line.hardware, line.result.ideal_ns)
        for line in lines
        if line.result.ideal_ns
    }
    bound = [(machine, ns) for machine, ns in times.values() if _bound_by_bytes(graph, machine)]
    for machine, took in bound:
        slower = [
            (other, ns)
            for other, ns in bound
            if other.device.bandwidth_bytes_per_s < machine.device.bandwidth_bytes_per_s
        ]
        ahead = min(
            (pair for pair in slower if pair[1] < took),
            key=lambda pair: pair[0].device.bandwidth_bytes_per_s,
            default=None,
        )
        if ahead is not None:
            more = machine.device.bandwidth_bytes_per_s / ahead[0].device.bandwidth_bytes_per_s
            line = (
                f"{ahead[0].name} is ahead of {machine.name}, whose memory has {more:.2g} times "
                "its bandwidth, in a step that memory "
                "bounds: that order comes from constants of kernels that nobody measured on these "
                "machines, so do not rely on it"
            )
            yield Note("order", line)


def _bound_by_bytes(graph: Graph, machine: Hardware) -> bool:
    """Return whether the ops' bytes take at least :data:`_BOUND_BY_BYTES` times as long on the
    machine as their FLOP at the peak of their type (else at the largest peak).
    """
    if any(op.duration_ns is not None for op in graph.ops) or not machine.compute.peak_flops:
        return False
    moved = sum(op.bytes_accessed for op in graph.ops.each()) / machine.device.bandwidth_bytes_per_s
    computed = sum(
        op.flops
        / machine.compute.peak_flops.get(op.dtype, max(machine.compute.peak_flops.values()))
        for op in graph.ops
    )
    return moved >= _BOUND_BY_BYTES * computed
