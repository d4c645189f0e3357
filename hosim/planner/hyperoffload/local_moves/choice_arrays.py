"""Choices as the cells of a kernel, and back."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hosim.engine import ProgramTable
from hosim.engine.cells import StateCells, flags, forms_of, ints, longs, made_cells
from hosim.planner.hyperoffload import kernels
from hosim.planner.hyperoffload.kernels import (
    AT_HOME,
    AWAY,
    BELOW_IN,
    FIELDS,
    LEAVE,
    RETURN,
    SAVE,
    SAVE_TURN,
    START,
    STARTS_BELOW,
    STAYS,
    STORE,
    STORE_TURN,
    TIER,
    TURN,
    UNSET,
    WITH_COPY,
    ChoiceCells,
    LoweredChoices,
)
from hosim.planner.hyperoffload.tensor_choices import BELOW, COPY, HOME, Problem, TensorChoice

_STARTS = {HOME: AT_HOME, COPY: WITH_COPY, BELOW: STARTS_BELOW}


def problem_cells(problem: Problem, table: ProgramTable) -> dict[str, Any]:
    """The given arrays of :class:`~hosim.planner.hyperoffload.kernels.choice_cells.ChoiceCells`, of
    a problem whose moves stand in a table.
    """
    graph, hardware, cells = problem.graph, problem.hardware, table.cells
    ops, tensors, tiers = len(graph.ops), len(graph.tensors), len(hardware.tiers)
    uses = cells["use_from"][ops]
    user = np.asarray(cells["user"])[:uses]
    used = np.asarray(cells["use_op"])[user]
    what = np.asarray(cells["use_flags"])[user]
    at = np.arange(uses) + np.asarray(cells["use_tensor"])[user]
    slots = uses + tensors
    before, after, how = np.full(slots, ops), np.full(slots, -1), np.zeros(slots, "i")
    before[at], after[at + 1], how[at] = used, used, what
    channels = np.full(tiers * tiers, -1)
    index = hardware.tier_index
    for (source, target), name in hardware.channel_between.items():
        channels[index[source] * tiers + index[target]] = hardware.channels.index(name)
    order = problem.order
    flows = [table.flow_of(t, 0)[1:] for t in range(tensors)]
    return {
        "ops": ops,
        "tensors": tensors,
        "streams": max(1, len(graph.streams)),
        "tiers": tiers,
        "device": index[hardware.device_tier],
        "slots": slots,
        "first_slot": ints(np.asarray(cells["user_from"])[: tensors + 1] + np.arange(tensors + 1)),
        "slot_after": ints(after),
        "slot_before": ints(before),
        "slot_reads": flags(how & 1),
        "slot_writes": flags(how >> 1 & 1),
        "last_write": ints([max(graph.writers[t], default=-1) for t in range(tensors)]),
        "forced": ints(_by_tensor(tensors, {t: index[r] for t, r in problem.starts_below.items()})),
        "home_mask": ints(
            [
                1 << index[problem.starts_below.get(t, hardware.device_tier)]
                if t in problem.initial
                else 0
                for t in range(tensors)
            ]
        ),
        "channel_between": ints(channels),
        "flow_class": ints(
            [table.flow_of(t, c)[0] for c in range(len(hardware.channels)) for t in range(tensors)]
        ),
        "flow_high": longs([high for high, _ in flows]),
        "flow_low": longs([low for _, low in flows]),
        "clock": ints([count for clock in order.clock for count in clock]),
        "most_uses": max([len(users) for users in graph.users], default=0),
        **{
            name: cells[name]
            for name in ("survives", "move_from", "queue_from", "queue", "stream_of", "place")
        },
    }


def _by_tensor(count: int, values: dict[int, int]) -> list[int]:
    return [values.get(t, -1) for t in range(count)]


class ChoiceArrays:
    """The choices of a problem in a kernel, whose cells they are; of the ``form`` that runs here."""

    def __init__(
        self, problem: Problem, table: ProgramTable, form: type[LoweredChoices] | None = None
    ) -> None:
        self.problem = problem
        numbers = problem_cells(problem, table)
        self.state = StateCells(ChoiceCells, numbers)
        self._cells = numbers | made_cells(ChoiceCells, numbers) | self.state.by_name
        self.kernel = (form or kernel_form())(self._cells)
        self._tiers = [tier.name for tier in problem.hardware.tiers]
        self._tier = problem.hardware.tier_index
        cells = self._cells["cells"]
        for t in range(numbers["tensors"]):
            cells[self._of_tensor(START, t)] = STAYS
        for field in (AWAY,):
            for s in range(numbers["slots"]):
                cells[field * numbers["slots"] + s] = 0

    def _of_tensor(self, field: int, t: int) -> int:
        cells = self._cells
        return int(FIELDS * cells["slots"] + field * cells["tensors"] + t)

    def rows(self, count: int) -> list[int]:
        """The rows that the kernel has lowered last."""
        return [*self._cells["rows"][:count]]

    def put(self, t: int, choice: TensorChoice | None) -> None:
        """Let a tensor have a choice."""
        cells, numbers = self._cells["cells"], self._cells
        first, end = numbers["first_slot"][t], numbers["first_slot"][t + 1]
        for field in range(FIELDS):
            for s in range(first, end):
                cells[field * numbers["slots"] + s] = 0 if field == AWAY else UNSET
        for field in (START, BELOW_IN, SAVE, SAVE_TURN):
            cells[self._of_tensor(field, t)] = STAYS if field == START else UNSET
        if choice is None:
            return
        cells[self._of_tensor(START, t)] = _STARTS[choice.start]
        cells[self._of_tensor(BELOW_IN, t)] = self._tier[choice.below]
        slot = {-1: first} | {u: first + 1 + k for k, u in enumerate(self.problem.graph.users[t])}
        end_op = len(self.problem.graph.ops)
        for field, given in (
            (RETURN, choice.away),
            (STORE, choice.stores),
            (LEAVE, choice.leaves),
            (TURN, choice.turns),
            (STORE_TURN, choice.store_turns),
            (TIER, {after: self._tier[tier] for after, tier in choice.tiers.items()}),
        ):
            for after, value in given.items():
                if after in slot and value is not None:
                    cells[field * numbers["slots"] + slot[after]] = value
        for after in choice.away:
            if after in slot:
                cells[AWAY * numbers["slots"] + slot[after]] = 1
        for field, ends in ((SAVE, choice.stores), (SAVE_TURN, choice.store_turns)):
            if end_op in ends:
                cells[self._of_tensor(field, t)] = ends[end_op]


@cache
def kernel_form() -> type[LoweredChoices]:
    """The kernel as it runs here, compiled or not."""

    def load() -> ModuleType:
        from hosim.planner.hyperoffload import compiled_search

        return compiled_search

    return forms_of([LoweredChoices], load, Path(kernels.__file__).parent)[0]
