"""What the kernels of local search read beside choices: a problem as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.transfers import slowest_hop
from hosim.cache_plan import AT_START
from hosim.engine import ProgramTable
from hosim.engine.cells import flags, ints, longs
from hosim.planner.hyperoffload.kernels import SHARES
from hosim.planner.hyperoffload.tensor_choices import (
    Problem,
    SlotColumns,
    TensorColumns,
    lowering_cells,
)

_SMALLEST = 200
"""Tensors of less than such a part of the largest are not given absences."""
_LONGEST_NS = 1 << 46
"""What a transfer is taken to take at most: a day."""
_OF_THE_TABLE = (
    "move_from", "size", "scalars", "done", "free_since", "held", "part", "changed", "kept_time",
    "op_idle", "op_cause", "op_held",
)  # fmt: skip
"""Arrays that a search has together with the table of its moves."""


def problem_cells(problem: Problem, table: ProgramTable, tiers: Iterable[str]) -> dict[str, Any]:
    """The given arrays of
    :class:`~hosim.planner.hyperoffload.kernels.judged_choices.JudgedChoices`, of a problem whose
    moves stand in a table, and whose tensors move to ``tiers``.
    """
    graph, hardware, cells = problem.graph, problem.hardware, table.cells
    index = hardware.tier_index
    channels = np.full((len(index), len(index)), -1)
    for (source, target), name in hardware.channel_between.items():
        channels[index[source], index[target]] = hardware.channels.index(name)
    shares = [kind for kind, share in enumerate(SHARES) for _ in range(share)]
    below = [index[tier] for tier in tiers]
    starts = np.maximum.accumulate([*problem.start_ns, problem.horizon_ns])
    lowering = lowering_cells(problem)
    return {
        **lowering,
        "most_moves": 4 * lowering["most_uses"] + 8,
        "channel_between": ints(channels.reshape(-1)),
        "persistent": flags(graph.derived(TensorColumns).persistent),
        "op_start": longs(starts),
        "below_tiers": len(below),
        "below_tier": ints(below),
        "up_ns": longs(_up_ns(problem, np.asarray(cells["size"])[: len(graph.tensors)])),
        "shares": len(shares),
        "share": ints(shares),
        **table.flow_cells(),
        **_gap_cells(problem),
        **_alike_cells(problem, bool(below)),
        **{name: cells[name] for name in _OF_THE_TABLE},
    }


def _gap_cells(problem: Problem) -> dict[str, Any]:
    """Which slots the search may use."""
    columns = problem.graph.derived(SlotColumns)
    gaps = np.array([*chain(*problem.gaps_of.values())], "q").reshape(-1, 6)
    slots, _ = columns.found(gaps[:, 0], gaps[:, 1])
    is_gap, returns, first = np.zeros((3, len(columns.tensor)), "B")
    written = np.full(len(columns.tensor), AT_START)
    is_gap[slots], first[slots] = 1, gaps[:, 3] == 0
    returns[slots], written[slots] = gaps[:, 4], gaps[:, 5]
    return {
        "slot_tensor": ints(columns.tensor),
        "gap": flags(is_gap),
        "gap_written": ints(written),
        "gap_returns": flags(returns),
        "gap_first": flags(first),
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
