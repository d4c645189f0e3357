"""The cost of choices, at any size of the graph: a run of the engine's loop from the last snapshot
before a change begins to matter.

The simulator keeps the run of the present choices as snapshots, one every few ops. A change of a
few choices is put into the program table, judged by a run from the last snapshot before the first
cache op that it changes, and taken out again: by kernels, which have the choices as cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hosim.analysis.costmodel import copies_compete, copy_uses, machine_of_copies
from hosim.engine import MOVES, ProgramBase, ProgramTable, UncoveredError, one_for_all
from hosim.engine.cells import StateCells, made_cells
from hosim.planner.hyperoffload.kernels import ChoiceSearch, form_of
from hosim.planner.hyperoffload.local_moves.choice_arrays import problem_cells
from hosim.planner.hyperoffload.tensor_choices import ChoiceCoding, Choices, Problem, TensorChoice

SimulatedCost = tuple[int, int, int]
"""Less is better: ops that never start (0: it fits), makespan in nanoseconds, bytes moved."""

_LEAST_STRIDE, _SNAPSHOTS = 8, 16
"""Ops between two snapshots, at least; how many snapshots there are."""


class PlanSimulator:
    """Judges choices for a problem within ``budget_bytes``. The run of the present choices is kept.

    ``stride`` is how many ops lie between two snapshots. ``form`` is the form of the kernels, if not
    the one that runs here.
    """

    def __init__(
        self,
        problem: Problem,
        budget_bytes: int,
        stride: int | None = None,
        form: type[ChoiceSearch] | None = None,
    ) -> None:
        self.problem = problem
        self.owner: object = None
        """The record of the search whose choices are the present ones, if it is a search's."""
        graph, hardware = problem.graph, problem.hardware
        device, between = hardware.device_tier, hardware.channel_between
        self._direct = {
            tier.name
            for tier in hardware.tiers
            if (tier.name, device) in between and (device, tier.name) in between
        }
        self._alike = one_for_all(hardware)
        count = len(graph.ops)
        stride = stride or max(_LEAST_STRIDE, count // _SNAPSHOTS)
        try:
            table = self._table(budget_bytes, count // stride + 1)
            cells = problem_cells(problem, table, self.tiers)
        except UncoveredError:
            self._alike = False
            return
        self.coding = ChoiceCoding(problem)
        """Between choices and the cells of ``cells``."""
        self._state = StateCells(ChoiceSearch, cells)
        cells |= made_cells(ChoiceSearch, cells) | self._state.by_name
        self.cells = cells
        usual_ns = sum(problem.durations) // max(1, count)
        self.kernel = (form or form_of(ChoiceSearch))(cells, table.loop, table, stride, usual_ns)

    def _table(self, budget_bytes: int, kept: int) -> ProgramTable:
        """The table of the problem, before anything moves."""
        problem, graph, hardware = self.problem, self.problem.graph, self.problem.hardware
        uses = copy_uses(graph, hardware, problem.durations, graph.derived(copies_compete))
        machine = machine_of_copies(graph, hardware)
        movable = {gap.tensor for gap in problem.gaps} | {
            t for t in problem.starts_below if graph.users[t]
        }
        room = [
            MOVES * (len(users) + 1) if t in movable else 0 for t, users in enumerate(graph.users)
        ]
        base = ProgramBase(graph, machine, problem.durations, uses, {})
        table = ProgramTable(base, budget_bytes, room, kept=kept)
        tier, device = hardware.tier_index, hardware.device_tier
        table.reset({t: (tier[problem.starts_below.get(t, device)],) for t in problem.initial})
        return table

    @property
    def tiers(self) -> Sequence[str]:
        """The tiers below that a channel joins to the device tier each way: where tensors may be,
        in the order of the problem's.
        """
        return [tier.name for tier in self.problem.below if tier.name in self._direct]

    def covers(self, choices: Choices) -> bool:
        """Return whether the engine says the same: not where tensors take several channels, or
        devices do not all do the same.
        """
        used = {
            tier for choice in choices.values() for tier in (choice.below, *choice.tiers.values())
        } | set(self.problem.starts_below.values())
        return self._alike and used <= self._direct

    # -- the present choices
    # -----------------------------------------------------------------------------------

    @property
    def choices(self) -> dict[int, TensorChoice]:
        """The present choices."""
        return self.coding.choices(self.cells["cells"])

    @property
    def cost(self) -> SimulatedCost:
        """The cost of the present choices."""
        return self.kernel.cost()

    @property
    def work(self) -> int:
        """What all judgements took, in instants simulated."""
        return self.kernel.work

    def begin(self, choices: Choices) -> SimulatedCost:
        """Simulate choices from the start, and keep them as the present ones."""
        self.owner = None
        self.coding.write(self.cells["cells"], choices)
        if not self.kernel.load():
            raise UncoveredError
        return self.cost

    # -- what a search keeps while another one uses the simulator
    # ----------------------------------------------------------------------------------------------

    def record(self) -> Any:
        """The present choices, and the record of a search."""
        return self._state.kept()

    def put_back(self, record: Any) -> None:
        """Make the present choices and the record of a search what they were."""
        self._state.put_back(record)
        if not self.kernel.resume():
            raise UncoveredError

    def best(self) -> dict[int, TensorChoice]:
        """The best choices of the search that uses the simulator."""
        return self.coding.choices(self.cells["best_cells"])
