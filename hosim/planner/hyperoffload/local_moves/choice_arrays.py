"""What the kernels of local search read: a problem as arrays, and its choices as cells and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.transfers import slowest_hop
from hosim.cache_plan import AT_START
from hosim.engine import ProgramTable
from hosim.engine.cells import Cells, fill, flags, ints, longs
from hosim.planner.hyperoffload.kernels import (
    AT_HOME,
    AWAY,
    BELOW_IN,
    FIELDS,
    LEAVE,
    RETURN,
    SAVE,
    SAVE_TURN,
    SHARES,
    START,
    STARTS_BELOW,
    STAYS,
    STORE,
    STORE_TURN,
    TIER,
    TURN,
    UNSET,
    WITH_COPY,
)
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    Choices,
    Problem,
    TensorChoice,
)

_STARTS = {HOME: AT_HOME, COPY: WITH_COPY, BELOW: STARTS_BELOW}
_NAMES = {number: name for name, number in _STARTS.items()}

_SMALLEST = 200
"""Tensors of less than such a part of the largest are not given absences."""
_LONGEST_NS = 1 << 46
"""What a transfer is taken to take at most: a day."""


def problem_cells(problem: Problem, table: ProgramTable, tiers: Iterable[str]) -> dict[str, Any]:
    """The given arrays of :class:`~hosim.planner.hyperoffload.kernels.choice_cells.ChoiceCells`, of
    a problem whose moves stand in a table, and whose tensors move to ``tiers``.
    """
    graph, hardware, cells = problem.graph, problem.hardware, table.cells
    ops, tensors, index = len(graph.ops), len(graph.tensors), hardware.tier_index
    lead = [max(graph.writers[t], default=-1) for t in range(tensors)]
    channels = np.full(len(hardware.tiers) ** 2, -1)
    for (source, target), name in hardware.channel_between.items():
        channels[index[source] * len(hardware.tiers) + index[target]] = hardware.channels.index(
            name
        )
    shares = [kind for kind, share in enumerate(SHARES) for _ in range(share)]
    below = [index[tier] for tier in tiers]
    starts = np.maximum.accumulate([*problem.start_ns, problem.horizon_ns])
    return {
        "ops": ops,
        "tensors": tensors,
        "streams": max(1, len(graph.streams)),
        "tiers": len(hardware.tiers),
        "device": index[hardware.device_tier],
        "last_write": ints(lead),
        "forced": ints(_by_tensor(tensors, {t: index[r] for t, r in problem.starts_below.items()})),
        "home_mask": ints(
            _by_tensor(
                tensors,
                {
                    t: 1 << index[problem.starts_below.get(t, hardware.device_tier)]
                    for t in problem.initial
                },
                0,
            )
        ),
        "channel_between": ints(channels),
        "clock": ints([count for clock in problem.order.clock for count in clock]),
        "most_uses": max([len(users) for users in graph.users], default=0),
        "persistent": flags([bool(tensor.persistent) for tensor in graph.tensors]),
        "op_start": longs(starts),
        "below_tiers": len(below),
        "below_tier": ints(below),
        "up_ns": longs(_up_ns(problem, np.asarray(cells["size"])[:tensors])),
        "shares": len(shares),
        "share": ints(shares),
        **table.flow_cells(),
        **_slot_cells(problem, cells),
        **_alike_cells(problem, bool(below)),
        **{
            name: cells[name]
            for name in (
                "survives", "move_from", "size", "queue_from", "queue", "stream_of", "place", "scalars",
                "done", "free_since", "held", "part", "changed", "kept_time", "op_idle", "op_cause", "op_held",
            )
        },
    }  # fmt: skip


def _by_tensor(count: int, values: Mapping[int, int], none: int = -1) -> npt.NDArray[Any]:
    found = np.full(count, none)
    found[list(values)] = list(values.values())
    return found


def _slot_cells(problem: Problem, cells: Mapping[str, Any]) -> dict[str, Any]:
    """The slots of all tensors, and which the search may use."""
    ops, tensors = len(problem.graph.ops), len(problem.graph.tensors)
    uses = cells["use_from"][ops]
    user = np.asarray(cells["user"])[:uses]
    used, of = np.asarray(cells["use_op"])[user], np.asarray(cells["use_tensor"])[user]
    what, at, slots = np.asarray(cells["use_flags"])[user], np.arange(uses) + of, uses + tensors
    before, after, how = np.full(slots, ops), np.full(slots, AT_START), np.zeros(slots, "B")
    before[at], after[at + 1], how[at] = used, used, what
    first = np.asarray(cells["user_from"])[: tensors + 1] + np.arange(tensors + 1)
    after[first[:-1]] = AT_START
    tensor = np.repeat(np.arange(tensors), np.diff(first))
    gaps = np.array([*chain(*problem.gaps_of.values())], "q").reshape(-1, 6)
    keys = tensor * (ops + 2) + after
    place = np.searchsorted(keys, gaps[:, 0] * (ops + 2) + gaps[:, 1])
    is_gap, returns, version = np.zeros(slots, "B"), np.zeros(slots, "B"), np.zeros(slots, "B")
    written = np.full(slots, AT_START)
    is_gap[place], written[place], returns[place] = 1, gaps[:, 5], gaps[:, 4]
    version[place] = gaps[:, 3] == 0
    return {
        "slots": slots,
        "first_slot": ints(first),
        "slot_after": ints(after),
        "slot_before": ints(before),
        "slot_reads": flags(how & 1),
        "slot_writes": flags(how >> 1 & 1),
        "slot_tensor": ints(tensor),
        "gap": flags(is_gap),
        "gap_written": ints(written),
        "gap_returns": flags(returns),
        "gap_first": flags(version),
    }


def _up_ns(problem: Problem, sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What each tensor takes from each tier to the device tier, tier by tier."""
    hardware = problem.hardware
    up = {tier.name: tier.up.bandwidth_bytes_per_s for tier in problem.below}
    largest = int(max(sizes, default=0))
    for name in sorted({*problem.starts_below.values()} - up.keys()):  # nothing goes down to these
        slowest = slowest_hop(hardware, name, hardware.device_tier, largest)
        if slowest is not None:
            up[name] = slowest.bandwidth_bytes_per_s
    rates = [up.get(tier.name, 1) for tier in hardware.tiers]
    taken = [np.minimum(sizes * (1e9 / rate), _LONGEST_NS) for rate in rates]
    return np.concatenate(taken).astype("q")


def _alike_cells(problem: Problem, some: bool) -> dict[str, Any]:
    """Which tensors a search moves, which of them are alike, and which are large enough to be given
    absences, if there are ``some`` tiers to go to.
    """
    graph = problem.graph
    sizes = {t: graph.tensors[t].size_bytes for t in sorted(problem.gaps_of)}
    groups: dict[object, list[int]] = {}
    for t, size in sizes.items():
        if size:
            groups.setdefault((size, graph.tensors[t].kind, len(graph.users[t])), []).append(t)
    alike = [t for group in groups.values() for t in group]
    count, begin = len(graph.tensors), 0
    ends = np.full((3, count), -1)
    for group in groups.values():
        end = begin + len(group)
        ends[0, group], ends[1, group], ends[2, group] = begin, end, range(begin, end)
        begin = end
    largest = max(sizes.values(), default=0)
    large = [t for t, size in sizes.items() if some and size and size * _SMALLEST >= largest]
    return {
        "candidates": len(sizes),
        "candidate": ints(sizes),
        "larges": len(large),
        "large": ints(large),
        "alike": ints(alike),
        "alike_from": ints(ends[0]),
        "alike_to": ints(ends[1]),
        "alike_at": ints(ends[2]),
    }


class ChoiceCoding:
    """Choices of a problem as cells, and back; ``cells`` are those of :func:`problem_cells`."""

    def __init__(self, problem: Problem, cells: Mapping[str, Any]) -> None:
        self._users, self._tier = problem.graph.users, problem.hardware.tier_index
        self._tiers = [tier.name for tier in problem.hardware.tiers]
        self._ops, self._tensors, self._slots = (cells[n] for n in ("ops", "tensors", "slots"))
        self._first, self._slot_tensor = cells["first_slot"], cells["slot_tensor"]
        self._after = np.asarray(cells["slot_after"])

    def _absent(self, t: int, choice: TensorChoice) -> Iterator[tuple[int, int]]:
        """The cells of slots that a choice sets."""
        slot = {after: s for s, after in enumerate((AT_START, *self._users[t]), self._first[t])}
        tiers = {after: self._tier[tier] for after, tier in choice.tiers.items()}
        for field, given in (
            (AWAY, dict.fromkeys(choice.away, 1)),
            (RETURN, choice.away),
            (STORE, choice.stores),
            (LEAVE, choice.leaves),
            (TURN, choice.turns),
            (STORE_TURN, choice.store_turns),
            (TIER, tiers),
        ):
            for after, value in given.items():
                if after in slot and value is not None:
                    yield field * self._slots + slot[after], value

    def write(self, cells: Cells, choices: Choices) -> None:
        """Let cells say these choices."""
        values = np.full(len(cells), UNSET)
        by_tensor = values[FIELDS * self._slots :].reshape(4, -1)
        values[AWAY * self._slots : (AWAY + 1) * self._slots] = 0
        by_tensor[START] = STAYS
        chosen = [*choices]
        by_tensor[START, chosen] = [_STARTS[choice.start] for choice in choices.values()]
        by_tensor[BELOW_IN, chosen] = [self._tier[choice.below] for choice in choices.values()]
        for field, of in (
            (SAVE, [choice.stores for choice in choices.values()]),
            (SAVE_TURN, [choice.store_turns for choice in choices.values()]),
        ):
            by_tensor[field, chosen] = [each.get(self._ops, UNSET) for each in of]
        absent = [*chain.from_iterable(map(self._absent, chosen, choices.values()))]
        if absent:
            at, value = np.array(absent, "q").T
            values[at] = value
        fill(cells, values)

    def choices(self, cells: Cells) -> dict[int, TensorChoice]:
        """The choices that cells say."""
        values = np.asarray(cells)
        by_slot = values[: FIELDS * self._slots].reshape(FIELDS, -1)
        by_tensor = values[FIELDS * self._slots :].reshape(4, -1)
        given: list[dict[int, dict[int, int]]] = []
        for field in range(FIELDS):
            unset = 0 if field == AWAY else UNSET
            given.append({})
            for s in np.flatnonzero(by_slot[field] != unset).tolist():
                of = given[field].setdefault(self._slot_tensor[s], {})
                of[int(self._after[s])] = int(by_slot[field, s])
        found = {}
        for t in np.flatnonzero(by_tensor[START] != STAYS).tolist():
            start, below, save, turn = (int(value) for value in by_tensor[:, t])
            away, back, stores, leaves, turns, store_turns, tiers = (
                given[field].get(t, {})
                for field in (AWAY, RETURN, STORE, LEAVE, TURN, STORE_TURN, TIER)
            )
            found[t] = TensorChoice(
                self._tiers[below],
                _NAMES[start],
                {after: back.get(after) for after in away},
                stores | ({self._ops: save} if save != UNSET else {}),
                {after: self._tiers[tier] for after, tier in tiers.items()},
                turns,
                store_turns | ({self._ops: turn} if turn != UNSET else {}),
                leaves,
            )
        return found
