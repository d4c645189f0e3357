"""The inputs of a sweep: its weights, and a problem as the arrays of the kernels
(:mod:`hosim.planner.hyperoffload.kernels.gap_sweep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import alone_ns, channel_bandwidth
from hosim.engine.cells import Cells, flags, ints, longs, made_cells
from hosim.planner.hyperoffload.kernels import PARTS, SHARE, STALL_WEIGHT, GapSweep
from hosim.planner.hyperoffload.tensor_choices import (
    Problem,
    TensorColumns,
    least_size_that_counts,
    left_rates,
    timelines,
)
from hosim.planner.schedule.tiers_below import BALANCED, Placement, TierSpace, has_hops

Numbers = npt.NDArray[Any]
S = TypeVar("S", bound=GapSweep)

_LONG = 2**30
"""Bytes so many that the latency does not matter."""
_LOOK = 4
"""The candidates judged again before one is taken, since their places in the heap may be stale."""
_MOST = 2**62
"""Sweeps compute with 64-bit integers if all numbers are below this, else with Python's."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights by which candidates are judged.

    ``waiting`` weighs over-budget time spent waiting after an early return, in thousandths.
    ``slow`` is what transfer times are multiplied with (above 1: room for contention; below: the
    step is stretched). ``copies`` says whether persistent tensors may start with a second copy
    below, and ``placement`` by which rule a tensor gets its tier: None takes the one that hides
    most. With an ``alpha`` gaps are ranked by the cost of the HyperOffload description
    (:mod:`hosim.planner.hyperoffload.selection`), and neither ``waiting`` nor a stall counts.
    """

    waiting: float = 0.0
    copies: bool = True
    slow: float = 1.0
    placement: Placement | None = None
    alpha: float | None = None


class SweepArrays:
    """A problem as the arrays of the kernel, ``given``, and the room in the lower tiers, ``space``.

    A sweep changes both, so each object serves one sweep.
    """

    def __init__(self, problem: Problem, budget_bytes: int, weights: Weights) -> None:
        graph, rule = problem.graph, weights.placement.rule if weights.placement else None
        self.problem, self.budget_bytes, self.weights = problem, budget_bytes, weights
        self.space = TierSpace(
            graph,
            problem.hardware,
            [below.name for below in problem.below],
            {t: (tier,) for t, tier in problem.starts_below.items()},
            weights.placement,
        )
        self.given: Given = {
            **_of_ops(problem, budget_bytes),
            **_of_tensors(problem),
            **_of_gaps(problem),
            **_trips(problem, weights),
            **_channels(problem),
            **_room_below(problem, self.space, rule),
        }
        columns = problem.columns
        gaps, sizes, tiers = len(columns.tensor), len(columns.sizes), len(problem.below)
        self.numbers = {
            "ops": len(graph.ops),
            "tensors": len(graph.tensors),
            "gaps": gaps,
            "forced": columns.forced,
            "contents": columns.contents,
            "tiers": tiers,
            "sizes": sizes,
            "trips": tiers * sizes,
            "spans": len(graph.ops) // self.space.span + 1,
            "span": self.space.span,
            "room": max(1, gaps),
            "channels": len(self.given["smallest"]),
            "copies": int(weights.copies),
            "ruled": int(rule is not None),
            "balanced": int(rule == BALANCED),
            "look": _LOOK,
        }

    def are_large(self) -> bool:
        """Return True if a sweep may compute numbers that do not fit in 64 bits."""
        columns, trips = self.problem.columns, list(self.given["trip_ns"])
        sizes, count = columns.sizes.tolist(), len(columns.sizes)
        times = np.bincount(columns.size_class[columns.tensor], minlength=count).tolist()
        moved = sum([size * n for size, n in zip(sizes, times, strict=True)])
        moving = sum([max(trips[k::count], default=0) * n for k, n in enumerate(times)])
        longest = (self.problem.horizon_ns + moving) * PARTS * (1 + STALL_WEIGHT)
        return bool(max(max(self.problem.held_bytes, default=0) + moved, longest) >= _MOST)

    def begin(self, kernel: type[S], *, plain: bool) -> S:
        """Return a sweep that has not run. With ``plain`` its arrays are lists of Python's
        integers, for classes that are not compiled and for large numbers.
        """
        self.cells = {
            **self.numbers,
            **{name: _cells(_DECLARED[name], each, plain) for name, each in self.given.items()},
            **made_cells(GapSweep, self.numbers, plain=plain),
        }
        waiting = round(self.weights.waiting * PARTS)
        known = sum([t >= 0 for t in self.given["chosen"]])
        return kernel(self.cells, self.budget_bytes, self.problem.horizon_ns, waiting, known)

    def full(self) -> str:
        """Return as text the tiers in which the finished sweep found no room."""
        room, refused = self.cells["free"], self.cells["full"]
        for k, (tier, free) in enumerate(self.space.free.items()):
            free[:] = room[k * len(free) : (k + 1) * len(free)]
            if refused[k]:
                self.space.refused.add(tier)
        return self.space.full()


def _cells(declared: str, values: Numbers | Sequence[int], plain: bool) -> Cells:
    if plain:
        return (values.tolist() if isinstance(values, np.ndarray) else list(values)) or [0]
    return {"Flags": flags, "Ints": ints, "Longs": longs}[declared](values)


_DECLARED = {
    name: declared
    for kernel in GapSweep.__mro__
    for name, declared in vars(kernel).get("__annotations__", {}).items()
}

Given = dict[str, Numbers | Sequence[int]]
"""The arrays of the kernel by name."""


def _of_ops(problem: Problem, budget_bytes: int) -> Given:
    horizon, held = problem.horizon_ns, problem.held_bytes
    over = [d if h > budget_bytes else 0 for h, d in zip(held, problem.durations, strict=False)]
    return {
        "held": held,
        "start_ns": problem.start_ns,
        "end_ns": problem.end_ns,
        "ends": list(accumulate(problem.end_ns, max)),
        "begins": [*problem.start_ns, horizon],
        "finishes": [*problem.end_ns, horizon],
        "over": [0, *accumulate(over)],
    }


def _of_tensors(problem: Problem) -> Given:
    columns, tensors = problem.columns, problem.graph.derived(TensorColumns)
    tier = {below.name: k for k, below in enumerate(problem.below)}
    home, tier_of = np.full(len(tensors.size), -1, "i"), np.full(len(tensors.size), -1, "i")
    chosen = np.full(len(tensors.size), -1, "i")
    known = 0
    for t, name in problem.starts_below.items():
        home[t] = tier.get(name, len(tier))
        users = problem.graph.users[t]
        if users and name in tier and t not in problem.graph.ops[users[0]].reads:
            tier_of[t], chosen[known], known = tier[name], t, known + 1  # stored at the end alone
    ends = np.array([*problem.end_ns, -1], "q" if problem.horizon_ns < _MOST else object)
    return {
        "size": tensors.size,
        "size_class": columns.size_class,
        "persistent": tensors.persistent,
        "initial": tensors.initial,
        "written_ns": ends[tensors.last_writer],
        "last_user": tensors.last_user,
        "last_op": tensors.last_op,
        "last_gap": columns.last_gap,
        "home": home,
        "tier_of": tier_of,
        "chosen": chosen,
    }


def _of_gaps(problem: Problem) -> Given:
    columns = problem.columns
    return {
        "tensor": columns.tensor,
        "after": columns.after,
        "before": columns.before,
        "version": columns.version,
        "returns": columns.returns,
        "written": columns.written,
        "content": columns.content,
    }


def _trips(problem: Problem, weights: Weights) -> Given:
    """Return the times of transfers up and down, and the shares of them that the bytes would take
    on the fastest tier, in both directions and up only. A share is near 0 for a small tensor, whose
    latency occupies the channel, and for a slow tier.
    """
    hardware, sizes = machine_of_copies(problem.graph, problem.hardware), problem.columns.sizes
    ways, slow = _ways(problem), weights.slow
    left = [(way[tier], rate) for way in ways for tier, rate in left_rates(hardware, way).items()]
    own = {channel: channel_bandwidth(hardware, channel) for channel, _ in left}
    shared = {channel: (own[channel], rate) for channel, rate in left if rate < own[channel]}

    def times(channel: str) -> list[int]:
        rate, beside = shared.get(channel, (1, 1))
        return [
            int((alone_ns(hardware, channel, n) + n * 10**9 // beside - n * 10**9 // rate) * slow)
            for n in sizes.tolist()
        ]

    ups, downs = [[times(channel) for channel in way.values()] for way in ways]
    up, down = [np.array([*chain(*each)], float) for each in (ups, downs)]
    bytes_of = np.tile(sizes, len(problem.below))
    fastest = [
        alone_ns(hardware, next(iter(way.values())), _LONG) / _LONG * slow for way in ways if way
    ]
    return {
        "trip_ns": [*chain(*ups, *downs)],
        "clean_share": _shares(sum(fastest[:1]) * bytes_of / np.maximum(1, up)),
        "stored_share": _shares(sum(fastest) * bytes_of / np.maximum(1, up + down)),
    }


def _ways(problem: Problem) -> tuple[dict[str, str], dict[str, str]]:
    """Return the channel up of each tier, and the channel down of each."""
    below = problem.below
    return {tier.name: tier.up.name for tier in below}, {
        tier.name: tier.down.name for tier in below
    }


def _shares(shares: Numbers) -> Sequence[int]:
    """Return shares, at most 1, as integers, rounded up a little so that three thirds make one."""
    return [int(share) + 2 ** (SHARE - 52) for share in np.minimum(1.0, shares) * 2.0**SHARE]


def _channels(problem: Problem) -> Given:
    """Return the timelines of the channels, up before down, and the timeline of each tier."""
    columns, hardware = problem.columns, machine_of_copies(problem.graph, problem.hardware)
    sizes = problem.graph.derived(TensorColumns).size[columns.tensor[columns.forced :]]
    usual, smallest = least_size_that_counts(sizes.tolist()), list[int]()
    channel_of = list[list[int]]()
    for way in _ways(problem):
        leaders, shortest = timelines(hardware, way, usual)
        number = {tier: len(smallest) + k for k, tier in enumerate(shortest)}
        channel_of.append([number[leaders[tier]] for tier in way])
        smallest += shortest.values()
    return {"up_channel": channel_of[0], "down_channel": channel_of[1], "smallest": smallest}


def _room_below(problem: Problem, space: TierSpace, rule: str | None) -> Given:
    """Return the free bytes of the lower tiers over the step, and each tensor's order of preferred
    tiers if there is a placement rule.
    """
    tensors, tiers = problem.graph.tensors, {name: k for k, name in enumerate(space.tiers)}
    preferred, way_ns = list[int](), list[int]()
    if rule == BALANCED:
        preferred = [*tiers.values()] * len(tensors)
        sizes = problem.columns.sizes.tolist()
        way_ns = [space.round_trip(tier, size) for tier in tiers for size in sizes]
    elif rule is not None:
        known: dict[tuple[str, int], list[int]] = {}
        for t, tensor in enumerate(tensors):
            key = tensor.kind, tensor.size_bytes
            if key not in known:
                known[key] = [tiers[tier] for tier in space.order(t)]
            preferred += known[key]
    return {
        "behind": [has_hops(problem.hardware, below) for below in problem.below],
        "preferred": preferred,
        "way_ns": way_ns or [0] * len(tiers) * len(problem.columns.sizes),
        "load": [space.load[tier] for tier in tiers],
        "free": np.concatenate([space.free[tier] for tier in tiers]) if tiers else [],
        "ample": [space.ample[tier] for tier in tiers],
    }
