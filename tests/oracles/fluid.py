"""Transfers as fluids: a third account of shared bandwidth, in floating point and by linear
programs.

Max-min fair rates by their definition: raise the least rate as far as it goes, fix those that
cannot go further, and again with the rest. Each raise is a linear program, another one finds who
can go further. Nothing is shared with the engine or the literal replay.
"""

from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from scipy.optimize import linprog

EPSILON = 1e-5
"""Bytes a nanosecond by which everybody who is not at a limit can go further at once: limits here
are no nearer than that.
"""


@dataclass
class Flow:
    """One transfer: when it is issued, its size, its channel; and, once known, when it begins,
    flows and ends.
    """

    issue: int
    size: int
    channel: str
    begin: int | None = None
    flows: int | None = None
    end: int | None = None
    left: float = 0.0


def fair(limits: np.ndarray, carried: np.ndarray) -> np.ndarray:
    """Max-min fair rates of flows: ``limits`` has a row a link, 1 where a flow crosses it;
    ``carried`` is what each carries.
    """
    count = limits.shape[1]
    rates = np.full(count, -1.0)
    while (rates < 0).any():
        rising = rates < 0
        # variables: the rates, and the least of the rising ones, to be raised
        least = np.zeros((rising.sum(), count + 1))
        least[np.arange(rising.sum()), np.flatnonzero(rising)] = -1
        least[:, -1] = 1
        held = [(0, None) if up else (rate, rate) for up, rate in zip(rising, rates, strict=True)]
        within = np.hstack([limits, np.zeros((len(limits), 1))])
        objective = np.zeros(count + 1)
        objective[-1] = -1
        level = linprog(
            objective,
            np.vstack([within, least]),
            np.concatenate([carried, np.zeros(len(least))]),
            bounds=[*held, (0, None)],
            method="highs",
        ).x[-1]
        # who can go further, a little, when all others have at least this level
        little = [
            (level, level + EPSILON) if up else (rate, rate + 1e-12)
            for up, rate in zip(rising, rates, strict=True)
        ]
        further = linprog(
            -rising.astype(float), limits, carried + 1e-11, bounds=little, method="highs"
        ).x
        fixed = rising & (further < level + EPSILON / 2)
        assert fixed.any()
        rates[fixed] = level
    return rates


def run(flows, channels, fabrics, beside, ceiling):
    """Let ``flows`` run to their ends.

    ``channels`` are (bandwidth, latency, engines) by name, ``fabrics`` (bandwidth, names of
    channels), ``beside`` (channel, other channel, bandwidth) and ``ceiling`` gives the most that a
    flow reaches; bandwidths in bytes a nanosecond.
    """
    now, known = 0, {}
    while any(f.end is None for f in flows):
        for f in flows:  # in order of issue
            ahead = [
                g for g in flows if g.channel == f.channel and g.issue <= now and g.end is None
            ]
            if f.issue <= now and f.begin is None and ahead.index(f) < channels[f.channel][2]:
                f.begin, f.flows, f.left = now, now + channels[f.channel][1], float(f.size)
        moving = [f for f in flows if f.end is None and f.begin is not None and f.flows <= now]
        key = tuple(map(id, moving))
        if key not in known:
            known[key] = _rates(moving, channels, fabrics, beside, ceiling) if moving else []
        rates = known[key]
        ends = [now + ceil(f.left / rate - 1e-6) for f, rate in zip(moving, rates, strict=True)]
        starts = [f.flows for f in flows if f.begin is not None and f.flows > now] + [
            f.issue for f in flows if f.issue > now
        ]
        upcoming = min([*ends, *starts], default=inf)
        for f, rate, end in zip(moving, rates, ends, strict=True):
            f.left -= rate * (upcoming - now)
            if end == upcoming:
                f.end = end
        now = upcoming


def _rates(moving, channels, fabrics, beside, ceiling):
    names = {f.channel for f in moving}
    rows = [
        ([f.channel == name for f in moving], bandwidth)
        for name, (bandwidth, _, _) in channels.items()
    ]
    rows += [([f.channel in members for f in moving], bandwidth) for bandwidth, members in fabrics]
    rows += [
        ([f.channel == name for f in moving], bandwidth)
        for name, other, bandwidth in beside
        if other in names
    ]
    rows += [([f is g for f in moving], ceiling(g)) for g in moving]
    rows = [row for row in rows if any(row[0])]
    return fair(
        np.array([row for row, _ in rows], dtype=float),
        np.array([bandwidth for _, bandwidth in rows]),
    )
