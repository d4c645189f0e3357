"""From choices to a plan: choices become cells of the kernels and back, and the kernel that lists the
moves of cells is the one place in which both plans and local search get them.

Insertion pass of the pipeline: a :class:`Plan` keeps every rule of docs/contract.md by construction,
whatever the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, Plan, plain_cache_op
from hosim.engine.cells import Cells, StateCells, fill, flags, ints, made_cells
from hosim.graph import Graph
from hosim.planner.hyperoffload.kernels import (
    AT_HOME,
    AWAY,
    BELOW_IN,
    LEAVE,
    RETURN,
    SAVE,
    SAVE_TURN,
    START,
    STARTS_BELOW,
    STAYS,
    STORE_TURN,
    TIER,
    TURN,
    UNSET,
    WITH_COPY,
    LoweredChoices,
    form_of,
)
from hosim.planner.hyperoffload.kernels import STORE as STORED
from hosim.planner.hyperoffload.tensor_choices.choices import (
    BELOW,
    COPY,
    HOME,
    Choices,
    TensorChoice,
)
from hosim.planner.hyperoffload.tensor_choices.gap_columns import TensorColumns
from hosim.planner.hyperoffload.tensor_choices.problem import Problem

_OF_A_SLOT = (AWAY, RETURN, STORED, LEAVE, TURN, STORE_TURN, TIER)
"""The cells of a slot, in order."""

STARTS = {AT_HOME: HOME, WITH_COPY: COPY, STARTS_BELOW: BELOW}
"""How a tensor starts, by the number that the kernels have for it."""


class SlotColumns:
    """The slots of a graph's tensors, as the ``cells`` of
    :class:`~hosim.planner.hyperoffload.kernels.lowered_choices.LoweredChoices` that depend on the
    graph alone.
    """

    def __init__(self, graph: Graph) -> None:
        users, order = graph.compact_users, graph.derived(HappensBefore)
        ops, tensors, uses = len(graph.ops), len(graph.tensors), len(users.flags)
        begin, used = np.asarray(users.begin), np.asarray(users.listed)[:uses]
        of = np.repeat(np.arange(tensors), np.diff(begin))
        at, slots = np.arange(uses) + of, uses + tensors
        before, after, how = np.full(slots, ops), np.full(slots, AT_START), np.zeros(slots, "B")
        before[at], after[at + 1], how[at] = used, used, users.flags
        first = begin + np.arange(tensors + 1)
        after[first[:-1]] = AT_START
        self.tensor = np.repeat(np.arange(tensors), np.diff(first))
        self._step = ops + 2
        self._keys = self.tensor * self._step + after
        self.cells: dict[str, Any] = {
            "ops": ops,
            "tensors": tensors,
            "streams": max(1, len(graph.streams)),
            "slots": slots,
            "most_uses": int(max(np.diff(begin), default=0)),
            "first_slot": ints(first),
            "slot_after": ints(after),
            "slot_before": ints(before),
            "slot_reads": flags(how & 1),
            "slot_writes": flags(how >> 1),
            "last_write": ints(graph.derived(TensorColumns).last_writer),
            "survives": flags(graph.survives),
            "queue_from": ints([*accumulate(map(len, order.queues), initial=0)]),
            "queue": ints([*chain(*order.queues)]),
            "stream_of": ints(order.stream_of),
            "place": ints(order.place),
            "clock": ints([*chain(*order.clock)]),
        }

    def found(self, tensor: Any, after: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The slots of tensors after ops, and which of them there are."""
        keys = np.asarray(tensor, "q") * self._step + np.asarray(after, "q")
        slots = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        return slots, self._keys[slots] == keys


def lowering_cells(problem: Problem) -> dict[str, Any]:
    """The given arrays of a problem for
    :class:`~hosim.planner.hyperoffload.kernels.lowered_choices.LoweredChoices`.
    """
    index, count = problem.hardware.tier_index, len(problem.graph.tensors)
    forced, home_mask = np.full(count, -1), np.zeros(count, "q")
    device = index[problem.hardware.device_tier]
    home_mask[[*problem.initial]] = 1 << device
    for t, tier in problem.starts_below.items():
        forced[t] = index[tier]
        home_mask[t] = 1 << index[tier]
    return {
        **problem.graph.derived(SlotColumns).cells,
        "tiers": len(index),
        "device": device,
        "forced": ints(forced),
        "home_mask": ints(home_mask),
    }


class ChoiceCoding:
    """Choices of a problem as cells, and back."""

    def __init__(self, problem: Problem) -> None:
        self._columns = problem.graph.derived(SlotColumns)
        self._tier = problem.hardware.tier_index
        self._tiers = [tier.name for tier in problem.hardware.tiers]
        self._ops, self._tensors = len(problem.graph.ops), len(problem.graph.tensors)
        self._slots = len(self._columns.tensor)
        self._starts = {start: number for number, start in STARTS.items()}
        self._of_slots = len(_OF_A_SLOT) * self._slots
        self._of_a_tensor = len((START, BELOW_IN, SAVE, SAVE_TURN))
        self._count = self._of_slots + self._of_a_tensor * self._tensors

    def _fields(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Cells as a row for each field of slots, and for each of tensors."""
        by_slot, by_tensor = np.split(values[: self._count], [self._of_slots])
        return (
            by_slot.reshape(len(_OF_A_SLOT), self._slots),
            by_tensor.reshape(self._of_a_tensor, self._tensors),
        )

    def write(self, cells: Cells, choices: Choices) -> None:
        """Let cells say these choices."""
        values = np.full(self._count, UNSET)
        by_slot, by_tensor = self._fields(values)
        by_slot[AWAY], by_tensor[START] = 0, STAYS
        chosen, of = [*choices], [*choices.values()]
        by_tensor[START, chosen] = [self._starts[choice.start] for choice in of]
        by_tensor[BELOW_IN, chosen] = [self._tier[choice.below] for choice in of]
        stores, turns = [choice.stores for choice in of], [choice.store_turns for choice in of]
        by_tensor[SAVE, chosen] = [each.get(self._ops, UNSET) for each in stores]
        by_tensor[SAVE_TURN, chosen] = [each.get(self._ops, UNSET) for each in turns]
        for field, given in (
            (RETURN, [choice.away for choice in of]),
            (STORED, stores),
            (LEAVE, [choice.leaves for choice in of]),
            (TURN, [choice.turns for choice in of]),
            (STORE_TURN, turns),
            (TIER, [choice.tiers for choice in of]),
        ):
            counts = [len(each) for each in given]
            if not any(counts):
                continue
            said: list[Any] = [value for each in given for value in each.values()]
            if field == RETURN:
                said = [UNSET if position is None else position for position in said]
            elif field == TIER:
                said = [self._tier[tier] for tier in said]
            slots, known = self._columns.found(np.repeat(chosen, counts), [*chain(*given)])
            by_slot[field, slots[known]] = np.array(said)[known]
            if field == RETURN:
                by_slot[AWAY, slots[known]] = 1
        fill(cells, values)

    def choices(self, cells: Cells) -> dict[int, TensorChoice]:
        """The choices that cells say."""
        by_slot, by_tensor = self._fields(np.asarray(cells))
        given: list[dict[int, dict[int, int]]] = []
        tensor, after = self._columns.tensor, np.asarray(self._columns.cells["slot_after"])
        for field in _OF_A_SLOT:
            given.append({})
            (slots,) = np.nonzero(by_slot[field] != (0 if field == AWAY else UNSET))
            said = by_slot[field, slots]
            for t, u, value in zip(
                tensor[slots].tolist(), after[slots].tolist(), said.tolist(), strict=True
            ):
                given[field].setdefault(t, {})[u] = value
        found = {}
        for t in np.flatnonzero(by_tensor[START] != STAYS).tolist():
            start, below, save, turn = by_tensor[:, t].tolist()
            away, back, stores, leaves, turns, store_turns, tiers = (
                given[field].get(t, {}) for field in _OF_A_SLOT
            )
            found[t] = TensorChoice(
                self._tiers[below],
                STARTS[start],
                {after: back.get(after) for after in away},
                stores | ({self._ops: save} if save != UNSET else {}),
                {after: self._tiers[tier] for after, tier in tiers.items()},
                turns,
                store_turns | ({self._ops: turn} if turn != UNSET else {}),
                leaves,
            )
        return found


class Lowering:
    """Makes plans of choices for a problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._coding = problem, ChoiceCoding(problem)
        given = lowering_cells(problem)
        given["most_moves"] = 3 * given["slots"] + given["tensors"]
        made = made_cells(LoweredChoices, given)
        self._cells = given | made | StateCells(LoweredChoices, given).by_name
        self._kernel = form_of(LoweredChoices)(self._cells)

    def plan(self, choices: Choices, policy: str) -> Plan:
        """The plan that follows from choices. Cache ops of one position: stores, then detaches, then
        prefetches by the use they serve.
        """
        self._coding.write(self._cells["cells"], choices)
        self._kernel.list_all()
        device, tiers = self._problem.hardware.device_tier, self._problem.hardware.tier_index
        names: Sequence[Any] = [*tiers, None]
        ops = [*[PREFETCH if tier == device else STORE for tier in tiers], DETACH]
        source, target, at, order = (
            np.asarray(self._cells[f"move_{name}"][: self._kernel.moves], "q")
            for name in ("source", "target", "at", "order")
        )
        tensor, by_place = order % self._cells["tensors"], np.lexsort((order, at))
        columns = [column[by_place].tolist() for column in (target, tensor, source, at)]
        cache_ops = [
            plain_cache_op(ops[to], t, names[begin], names[to], after)
            for to, t, begin, after in zip(*columns, strict=True)
        ]
        return Plan(self._problem.graph, policy, tuple(cache_ops), self._initial(choices))

    def _initial(self, choices: Choices) -> Mapping[int, tuple[str, ...]]:
        """The tiers of what does not start at home, the device tier first, then that below."""
        tiers, mask = self._problem.hardware.tier_index, self._cells["mask"]
        some = {
            t: dict.fromkeys(
                (self._problem.hardware.device_tier, choice.below, *choice.tiers.values())
            )
            for t, choice in sorted(choices.items())
            if t not in self._problem.starts_below and choice.start != HOME
        }
        return {
            t: tuple([tier for tier in listed if mask[t] >> tiers[tier] & 1])
            for t, listed in some.items()
        }


def insert(problem: Problem, choices: Choices, policy: str) -> Plan:
    """The plan that follows from choices."""
    return Lowering(problem).plan(choices, policy)
