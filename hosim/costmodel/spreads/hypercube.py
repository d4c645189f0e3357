"""Draws that fill what may be evenly: a Latin hypercube whose first draws are one, too.

Each factor has its values from the middles of equally likely parts, one from each, in an order of
its own (McKay, Beckman and Conover, Technometrics 1979). After each draw comes the opposite one, in
which all factors have the other sign: errors of the one and the other cancel (antithetic variates;
Hammersley and Morton 1956). The first
:data:`hosim.data.draws.FEW_DRAWS` of them are from different ones of as many larger parts, so that
few draws are the first of many. An order depends on the name of its factor alone: whoever asks for
the same factor meets the same draws.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.data.draws import DRAWS, FEW_DRAWS

Floats = npt.NDArray[np.float64]

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), as in :mod:`hosim.jitter`."""


def normal_draws(name: str) -> Floats:
    """:data:`DRAWS` values of a standard normal distribution, in the order of the factor of this
    name.

    >>> found = normal_draws("a link")
    >>> len(found), round(float(found.sum()), 9), sorted(found) == sorted(normal_draws("another"))
    (200, 0.0, True)
    """
    return _quantiles()[_order(name)]


@cache
def _quantiles() -> Floats:
    inverse = NormalDist().inv_cdf
    half = np.array([inverse((k + 0.5) / DRAWS) for k in range(DRAWS // 2)])
    return np.concatenate([half, -half[::-1]])  # symmetric to the last bit


def _order(name: str) -> npt.NDArray[np.intp]:
    """The order of the parts: one of two opposite ones, then the other."""
    pairs, few = DRAWS // 2, FEW_DRAWS // 2
    seed = int.from_bytes(sha256(name.encode()).digest()[:8], "little")
    larger, within, after, side = np.split(
        _hashed(seed, few + 2 * pairs), [few, 2 * few, few + pairs]
    )
    first = np.argsort(larger, kind="stable") * (pairs // few) + (within % (pairs // few)).astype(
        np.intp
    )
    left = np.setdiff1d(np.arange(pairs), first)
    lower = np.concatenate([first, left[np.argsort(after, kind="stable")]])
    one = np.where(side % 2 == 0, lower, DRAWS - 1 - lower)
    return np.stack([one, DRAWS - 1 - one], axis=1).ravel()


def _hashed(seed: int, count: int) -> npt.NDArray[Any]:
    """So many numbers of 64 bits."""
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(seed)
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(_FIRST)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(_SECOND)
    return bits ^ bits >> np.uint64(31)
