"""Seeded jitter on the times of ops and transfers. It depends on the seed, not on the replay.

A time is multiplied by a lognormal factor with mean 1 and a relative standard deviation sigma. Each
factor is a function of only the seed, the device and its op or the n-th copy of its tensor. It
depends neither on the order of calls nor on the policy, so policies that are compared under one
seed meet the same jitter.

A factor is exp(s z - s^2 / 2) with s^2 = ln(1 + sigma^2), where z is the normal quantile at a hash
of these numbers: splitmix64's finalizer (Steele, Lea and Flood, Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014), chained over them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp, inf, log, log1p, sqrt

from hosim.base.whole_numbers import keep_whole
from hosim.errors import InputError
from hosim.plain_text import shown
from hosim.units import plain_number

_BITS = 64
_MASK = (1 << _BITS) - 1
_GAMMA = 0x9E3779B97F4A7C15
_OPS, _TRANSFERS = 1, 2
_OF_ALL = 3
"""The count of leading numbers that many factors share: seed, device, and op or transfer."""
_SQUARE_IS_FINITE = 1e150


@dataclass(frozen=True, slots=True)
class Jitter:
    """The variation of times: the relative standard deviations of op times and of transfer times,
    and the seed (at least 0).

    A transfer's factor scales the time for which its bytes flow, not its latency. A sigma of 0 is
    no jitter at all, to the nanosecond. Raises :class:`InputError` for invalid values.
    """

    seed: int = 0
    op_sigma: float = 0.0
    transfer_sigma: float = 0.0

    def __post_init__(self) -> None:
        for name, sigma in (("op_sigma", self.op_sigma), ("transfer_sigma", self.transfer_sigma)):
            number = plain_number(sigma)
            if (
                isinstance(number, bool)
                or not isinstance(number, int | float)
                or not 0 <= number < inf
            ):
                raise InputError(
                    "expected a relative standard deviation of at least 0, got "
                    f"{shown(number, 60)}",
                    source="jitter",
                    where=name,
                )
        keep_whole(self, InputError, "jitter")
        if self.seed < 0:
            raise InputError(
                f"expected a seed of at least 0, got {self.seed}", source="jitter", where="seed"
            )

    @property
    def is_none(self) -> bool:
        """True if it changes no time."""
        return not (self.op_sigma or self.transfer_sigma)

    def op_factor(self, device: int, op: int) -> float:
        """Return the factor on the time of an op, by its position in the workload."""
        return _lognormal(self.op_sigma, self.seed, device, _OPS, op)

    def transfer_factor(self, device: int, tensor: int, copy: int) -> float:
        """Return the factor on the flow time of a tensor's ``copy``-th transfer on the device,
        counted from 0.

        ``tensor`` is its position in canonical order (:mod:`hosim.analysis.canonical`).
        """
        return _lognormal(self.transfer_sigma, self.seed, device, _TRANSFERS, tensor, copy)


def _lognormal(sigma: float, *numbers: int) -> float:
    if not sigma:
        return 1.0
    bits = _chained(_begun(*numbers[:_OF_ALL]), numbers[_OF_ALL:])
    scale, less = _scale(sigma)
    quantile = ((bits >> 11) + 0.5) / (1 << 53)  # 53 bits: never 0 nor 1
    return exp(scale * _normal_quantile()(quantile) - less)


@lru_cache
def _begun(*numbers: int) -> int:
    return _chained(0, numbers)


def _chained(bits: int, numbers: Sequence[int]) -> int:
    for number in numbers:
        bits = _mixed(bits ^ (number & _MASK))
    return bits


@lru_cache
def _scale(sigma: float) -> tuple[float, float]:
    s2 = log1p(sigma * sigma) if sigma < _SQUARE_IS_FINITE else 2 * log(sigma)
    return sqrt(s2), s2 / 2


@cache
def _normal_quantile() -> Callable[[float], float]:
    from statistics import (
        NormalDist,
    )  # takes longer to import than all of this package that a look at its help needs

    return NormalDist().inv_cdf


def _mixed(bits: int) -> int:
    bits = (bits + _GAMMA) & _MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _MASK
    return bits ^ bits >> 31
