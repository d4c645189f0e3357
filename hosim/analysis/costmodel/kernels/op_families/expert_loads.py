"""The spread of a mixture's tokens over its experts, and the load of the busiest rank.

Three distributions, and recorded loads (:func:`busiest`). *uniform*: every choice of a token is any
expert. *zipf_A*: a token draws its experts one after the other, the one of rank r in popularity with
a weight of ``1 / r ** A``; popular ones are on any device. *power_law_A*: an expert's share is drawn
from a density that falls as ``share ** -A`` between 1 and 0.8 of the tokens (between 0.01 and 2
where there are fewer choices than experts), then scaled to the sum and rounded; that is how the
measured tables of TensorRT-LLM were made. The draws are always the same, and their mean counts. No
expert has more rows than there are tokens. Ranks have equal numbers of experts, in listed order;
the others wait for the one with the most rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, expm1, log, log1p, sqrt
from random import Random

TILES = (16, 64, 128)
"""Rows of the tiles that a grouped product may have; an expert's rows are rounded up to them."""

_DRAWS = 12
_LEAST = 1e-300
"""The least weight of an expert, so that each can be drawn."""


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

    ``distribution`` is ``uniform``, ``zipf_A`` or ``power_law_A``. Raises :class:`ValueError` for
    another one.
    """
    if distribution == "uniform":
        return _uniform(tokens, top, experts, ranks)
    law, _, exponent = distribution.rpartition("_")
    known = exponent.replace(".", "", 1).isdigit()
    if law == "zipf" and known:
        return _zipf(tokens, top, experts, ranks, float(exponent))
    if law != "power_law" or not known or float(exponent) == 1:
        raise ValueError(
            f"unknown distribution {distribution!r}: expected uniform, zipf_A with a number A, or "
            "power_law_A with a number A other than 1"
        )
    random = Random(0)
    return _mean(
        [
            busiest(_power_law(random, tokens, top, experts, float(exponent)), ranks)
            for _ in range(_DRAWS)
        ]
    )


def _mean(drawn: Sequence[ExpertLoads]) -> ExpertLoads:
    return ExpertLoads(
        sum([d.rows for d in drawn]) / len(drawn),
        sum([d.touched for d in drawn]) / len(drawn),
        tuple(sum([d.padded[i] for d in drawn]) / len(drawn) for i in range(len(TILES))),
    )


def _uniform(tokens: int, top: int, experts: int, ranks: int) -> ExpertLoads:
    each = experts / ranks
    rows = _most_rows(tokens * top / ranks, tokens, top, experts, ranks)
    touched = each * share_touched(tokens, top, experts)
    return ExpertLoads(
        rows, touched, tuple(touched * ceil(rows / touched / tile) * tile for tile in TILES)
    )


def _most_rows(mean: float, tokens: int, top: int, experts: int, ranks: int) -> float:
    """The largest of so many ranks' rows, which are nearly a Poisson variable, to first order."""
    return min(mean + sqrt(2 * mean * log(ranks)), tokens * min(top, experts / ranks))


def _zipf(tokens: int, top: int, experts: int, ranks: int, exponent: float) -> ExpertLoads:
    each = _shares(top, experts, exponent)
    random, drawn = Random(0), []
    for _ in range(_DRAWS if ranks > 1 else 1):
        order = sorted(each, key=lambda _: random.random())
        mine = max([order[rank::ranks] for rank in range(ranks)], key=sum)
        most = sum(mine)
        rows = _most_rows(tokens * most, tokens, top, experts, ranks)
        touched = [1 - (1 - share) ** tokens for share in mine]
        of_one = [
            (part, rows * share / most / part)
            for share, part in zip(mine, touched, strict=True)
            if part  # it is 0 for the least popular experts of a steep distribution
        ]
        padded = tuple(sum([part * ceil(n / tile) * tile for part, n in of_one]) for tile in TILES)
        drawn.append(ExpertLoads(rows, sum(touched), padded))
    return _mean(drawn)


@lru_cache(maxsize=256)
def _shares(top: int, experts: int, exponent: float) -> tuple[float, ...]:
    """Of each expert the probability that a token has it among its ``top``: those of so many draws
    with replacement that their sum is ``top``.
    """
    if top >= experts:
        return (1.0,) * experts
    weights = [max(_LEAST, (rank + 1) ** -exponent) for rank in range(experts)]
    total = sum(weights)
    missed = [log1p(-min(weight / total, 1 - 2**-53)) for weight in weights]
    low, high = 0.0, 709.0  # of the logarithm of the draws
    for _ in range(64):
        middle = (low + high) / 2
        few = sum([-expm1(exp(middle) * one) for one in missed]) < top
        low, high = (middle, high) if few else (low, middle)
    return tuple(-expm1(exp(high) * one) for one in missed)


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
