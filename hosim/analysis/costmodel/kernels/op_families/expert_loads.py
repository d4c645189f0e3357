"""The spread of a mixture's tokens over its experts, and the load of the busiest rank.

Two distributions, and recorded loads (:func:`busiest`). *uniform*: every choice of a token is any
expert. *power_law_A*: an expert's share is drawn from a density that falls as ``share ** -A``
between 1 and 0.8 of the tokens (between 0.01 and 2 where there are fewer choices than experts),
then scaled to the sum and rounded; that is how the measured tables of TensorRT-LLM were made. The
draws are always the same, and their mean counts. No expert has more rows than there are tokens.
Ranks have equal numbers of experts, in listed order; the others wait for the one with the most
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log, sqrt
from random import Random

TILES = (16, 64, 128)
"""Rows of the tiles that a grouped product may have; an expert's rows are rounded up to them."""

_DRAWS = 12


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """The busiest rank's work: ``rows`` of tokens, the experts that have any, and rows with each
    expert's rounded up to :data:`TILES`.
    """

    rows: float
    touched: float
    padded: tuple[float, ...]


@lru_cache(maxsize=4096)
def expected_loads(
    tokens: int, top: int, experts: int, ranks: int, distribution: str
) -> ExpertLoads:
    """Return the average loads of the busiest of ``ranks``, if each of ``tokens`` tokens chooses
    ``top`` of ``experts`` experts.

    ``distribution`` is ``uniform`` or ``power_law_A``. Raises :class:`ValueError` for another one.
    """
    if distribution == "uniform":
        return _uniform(tokens, top, experts, ranks)
    law, _, exponent = distribution.rpartition("_")
    if law != "power_law" or not exponent.replace(".", "", 1).isdigit() or float(exponent) == 1:
        raise ValueError(
            f"unknown distribution {distribution!r}: expected uniform, or power_law_A with a "
            "number A other than 1"
        )
    random = Random(0)
    drawn = [
        busiest(_power_law(random, tokens, top, experts, float(exponent)), ranks)
        for _ in range(_DRAWS)
    ]
    return ExpertLoads(
        sum([d.rows for d in drawn]) / _DRAWS,
        sum([d.touched for d in drawn]) / _DRAWS,
        tuple(sum([d.padded[i] for d in drawn]) / _DRAWS for i in range(len(TILES))),
    )


def _uniform(tokens: int, top: int, experts: int, ranks: int) -> ExpertLoads:
    """A rank's rows are nearly a Poisson variable."""
    each = experts / ranks
    mean = tokens * top / ranks
    rows = min(
        mean + sqrt(2 * mean * log(ranks)), tokens * min(top, each)
    )  # the largest of so many, to first order
    touched = each * share_touched(tokens, top, experts)
    return ExpertLoads(
        rows, touched, tuple(touched * ceil(rows / touched / tile) * tile for tile in TILES)
    )


def share_touched(tokens: int, top: int, experts: int) -> float:
    """The part of all experts that some token can be expected to choose, if each of ``tokens``
    chooses ``top`` of them evenly.
    """
    return 1 - (1 - top / experts) ** tokens


def busiest(loads: Sequence[int], ranks: int) -> ExpertLoads:
    """The work of the rank with the most rows, where ``loads`` are the rows of each expert."""
    each = len(loads) // ranks
    mine = max((loads[r * each : (r + 1) * each] for r in range(ranks)), key=sum)
    padded = tuple(float(sum([ceil(rows / tile) * tile for rows in mine])) for tile in TILES)
    return ExpertLoads(float(sum(mine)), float(sum([rows > 0 for rows in mine])), padded)


def _power_law(random: Random, tokens: int, top: int, experts: int, exponent: float) -> list[int]:
    low, high = (1.0, max(1.0, tokens * 0.8)) if tokens * top > experts else (0.01, 2.0)
    least, most, root = low ** (1 - exponent), high ** (1 - exponent), 1 / (1 - exponent)
    shares = [((most - least) * random.random() + least) ** root for _ in range(experts)]
    scale = tokens * top / sum(shares)
    rows = [min(tokens, round(share * scale)) for share in shares]
    left = tokens * top - sum(rows)
    order = sorted(range(experts), key=lambda e: -rows[e])
    while (
        left > 0
    ):  # the largest that have room take what rounding and the limit left over, one each in turn
        having_room = [e for e in order if rows[e] < tokens]
        turns = min(left // len(having_room), tokens - max([rows[e] for e in having_room]))
        for e in having_room if turns else having_room[:left]:
            rows[e] += max(1, turns)
            left -= max(1, turns)
    for e in reversed(order):  # and the smallest give up what rounding added
        given = min(rows[e], -left) if left < 0 else 0
        rows[e] -= given
        left += given
    return rows
