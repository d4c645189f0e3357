"""The sharing of links between flows: max-min fair rates.

A *link* is anything with a bandwidth that flows share: a channel with several engines, a fabric.
Max-min fairness by progressive filling: raise all rates together; when a link is full, the flows
that cross it keep their rate and the rest go on (Bertsekas and Gallager, Data Networks, section
6.5.2).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

NS_PER_S = 10**9

Link = tuple[str, str, int]
"""The identity of a link: channel or fabric, its name, and its instance."""


def max_min_rates(
    classes: Sequence[tuple[int, Fraction | None, Sequence[Link]]],
    capacity: Mapping[Link, Fraction],
) -> list[Fraction]:
    """The rate of each flow of each class, in bytes per second.

    ``classes`` have a number of flows, at least one, the most that each of them may take (``None``:
    what the links give) and the links that each crosses; ``capacity`` has the bytes per second of
    each link.
    """
    rates = [Fraction(0)] * len(classes)
    left = {link: capacity[link] for _, _, links in classes for link in links}
    flows = dict.fromkeys(left, 0)
    for count, _, links in classes:
        for link in links:
            flows[link] += count
    rising = list(range(len(classes)))
    while rising:
        shares = [(left[link] / n, link) for link, n in flows.items() if n]
        share, bottleneck = min(shares, key=lambda s: s[0]) if shares else (None, None)
        # whoever takes no more than the least share leaves the others at least as much: such limits
        # hold whatever comes
        full = {
            k: limit
            for k in rising
            if (limit := classes[k][1]) is not None and (share is None or limit <= share)
        }
        if not full and share is not None:
            full = {k: share for k in rising if bottleneck in classes[k][2]}
        for k, rate in full.items():
            count, _, links = classes[k]
            rates[k] = rate
            for link in links:
                left[link] -= count * rate
                flows[link] -= count
        rising = [k for k in rising if k not in full]
    return rates
