"""How transfers share bandwidth: max-min fair rates, exact to the nanosecond.

A *link* is anything with a bandwidth that flows share: a channel, a fabric. Max-min fairness by progressive
filling: raise all rates together; when a link is full, the flows that cross it keep their rate and the rest go on (Bertsekas and
Gallager, Data Networks, section 6.5.2).
Rates and remaining bytes are fractions, so that nothing drifts; a transfer ends, and rates change, at whole nanoseconds only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

NS_PER_S = 10**9
L = TypeVar("L", bound=Hashable)


def max_min_rates(paths: Sequence[Sequence[L]], capacity: Mapping[L, int | Fraction]) -> list[Fraction]:
    """Rate of each flow, in bytes per nanosecond.

    ``paths`` are the links that each flow crosses (at least one), ``capacity`` the bytes per second of each link.
    """
    rates = [Fraction(0)] * len(paths)
    left = {link: Fraction(capacity[link], NS_PER_S) for path in paths for link in path}
    crossing: dict[L, set[int]] = {link: set() for link in left}
    for f, path in enumerate(paths):
        for link in path:
            crossing[link].add(f)
    unfrozen = set(range(len(paths)))
    while unfrozen:
        share, bottleneck = min(((left[link] / len(flows), link) for link, flows in crossing.items() if flows), key=lambda s: s[0])
        for f in list(crossing[bottleneck]):
            rates[f] = share
            unfrozen.discard(f)
            for link in paths[f]:
                left[link] -= share
                crossing[link].discard(f)
    return rates
