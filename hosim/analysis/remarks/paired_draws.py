"""The share of draws in which one plan is faster than another, where both meet the same draws.

What is common to both cancels: a link that is slower than its profile says makes both slower. So
two plans whose intervals overlap may still be told apart.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from hosim.analysis.remarks.strongest_rival import NO_RIVALS
from hosim.data.draws import CERTAINTY, interval, without
from hosim.notes import Note
from hosim.result import Result

TIE = "tie"
"""The verdict where neither is faster often enough."""

_NEAR, _OFTEN = 0.01, 0.8
"""By so little, and so often, may a simpler policy be slower and still be the one to take."""
_PARTS = 10**6
"""Ratios are compared in millionths."""


@dataclass(frozen=True, slots=True)
class PairedDraws:
    """Two plans in the same draws.

    Shares and ends are of the draws in which both fit; ``unfit`` are the shares of all draws in
    which the one and the other do not. ``faster_share``: in which the ``first`` is faster than the
    ``second`` (both as long counts half). ``low`` and ``high`` are the ends of the 90 % interval of
    the second's time over the first's, less 1. ``near_share``: in which the second takes at most 1
    % more; and ``simpler`` is whether it is a rule, where the first is found by a search.
    """

    first: str
    second: str
    draws: int
    faster_share: float
    low: float
    high: float
    near_share: float
    simpler: bool = False
    unfit: tuple[float, float] = (0.0, 0.0)

    @property
    def faster(self) -> str:
        """The faster of the two, or :data:`TIE`."""
        if self.faster_share >= CERTAINTY:
            return self.first
        return self.second if self.faster_share <= 1 - CERTAINTY else TIE

    @property
    def verdict(self) -> str:
        """The advice, in a sentence or two.

        >>> PairedDraws("a", "b", 200, 0.97, 0.002, 0.014, 0.4).verdict
        'a is faster than b in 97 % of draws, by 0.2 to 1.4 %.'
        >>> PairedDraws("a", "b", 200, 0.55, -0.02, 0.03, 0.6).verdict
        'a and b are a tie: a is faster in 55 % of draws. Calibrate to decide.'
        """
        take = (
            f" {self.second} is within 1 % in {often(self.near_share)}: take the simpler one."
            if self._take_simpler
            else ""
        )
        if self.faster == TIE:
            said = (
                f"{self.first} and {self.second} are a tie: {self.first} is faster in "
                f"{often(self.faster_share)}{self._where}."
            )
            return f"{said}{take or ' Calibrate to decide.'}{self._misfits}"
        one, other, share = self.first, self.second, self.faster_share
        low, high = self.low, self.high
        if self.faster == self.second:
            one, other, share = other, one, 1 - share
            low, high = 1 / (1 + high) - 1, 1 / (1 + low) - 1
        return (
            f"{one} is faster than {other} in {often(share)}{self._where}, "
            f"{by(low, high)}.{take}{self._misfits}"
        )

    @property
    def row(self) -> dict[str, Any]:
        """All of it, with the verdict, as JSON has it."""
        return asdict(self) | {"faster": self.faster, "verdict": self.verdict}

    @property
    def _where(self) -> str:
        return " in which both fit" if any(self.unfit) else ""

    @property
    def _misfits(self) -> str:
        one, two = self.unfit
        if one > two + 1 - CERTAINTY:
            return f" But {self.first} does not fit in {often(one)}: take {self.second}."
        named = zip((self.first, self.second), self.unfit, strict=True)
        return "".join(
            [f" {name} does not fit in {often(share)}." for name, share in named if share]
        )

    @property
    def _take_simpler(self) -> bool:
        return self.simpler and self.near_share >= _OFTEN and self.faster != self.second


def in_both(first: Sequence[int | None], second: Sequence[int | None]) -> list[tuple[int, int]]:
    """The makespans of two plans in the draws that both have and fit in."""
    return [(a, b) for a, b in zip(first, second, strict=False) if a is not None and b is not None]


def share_faster(both: Sequence[tuple[int, int]]) -> float:
    """The share of some pairs in which the first is less; equal ones count half."""
    return sum([0.5 if a == b else a < b for a, b in both]) / len(both)


def paired(
    first: Result, second: Result, names: tuple[str, str] | None = None
) -> PairedDraws | None:
    """Two results in the draws that both have, by their policies or other ``names``; ``None`` where
    they have none in common.
    """
    one, two = first.drawn, second.drawn
    if one is None or two is None or one.said or two.said:
        return None
    count = min(one.count, two.count)
    both = in_both(one.makespan_ns, two.makespan_ns)
    wins = share_faster(both) if both else 0.5
    near = sum([b <= (1 + _NEAR) * a for a, b in both]) / len(both) if both else 0.0
    ratios = [round(_PARTS * b / a) for a, b in both if a]
    low, high = interval(ratios) or (_PARTS, _PARTS)
    rule = [result.policy.partition(":")[0] not in NO_RIVALS for result in (first, second)]
    labels = names or (first.policy, second.policy)
    return PairedDraws(
        *labels,
        count,
        wins,
        low / _PARTS - 1,
        high / _PARTS - 1,
        near,
        rule == [False, True],
        (one.unfit_share, two.unfit_share),
    )


def beside_fastest(results: Sequence[Result], names: Sequence[str] = ()) -> list[PairedDraws]:
    """The fastest of some results beside each other one that fits, in the order given; none where
    nothing is drawn.
    """
    labels = names or [result.policy for result in results]
    fitting = [
        (result, label)
        for result, label in zip(results, labels, strict=True)
        if result.feasible and result.makespan_ns is not None
    ]
    if len(fitting) < 2:
        return []
    best, name = min(fitting, key=lambda pair: pair[0].makespan_ns or 0)
    found = [paired(best, result, (name, label)) for result, label in fitting if result is not best]
    return [pair for pair in found if pair is not None]


def ranks(results: Sequence[Result]) -> list[tuple[int, int] | None]:
    """The ends of the 90 % interval of each result's rank among those that are drawn, 1 for the
    shortest, in the order given; ``None`` for one that is not.

    All meet the same draws. What does not fit in a draw ranks last there, and equals share the
    better rank.
    """
    drawn = [() if r.drawn is None or r.drawn.said else r.drawn.makespan_ns for r in results]
    count = min([len(each) for each in drawn if each], default=0)
    times = [[inf if ns is None else ns for ns in each[:count]] for each in drawn]
    others = [each for each in times if each]
    return [
        interval([1 + sum([other[d] < ns for other in others]) for d, ns in enumerate(each)])
        for each in times
    ]


def by(low: float, high: float) -> str:
    """By what share a time is longer than another one, as a range in words.

    >>> by(0.002, 0.014), by(-0.003, 0.012), by(1.2, 2.0), by(0.5, 0.5)
    ('by 0.2 to 1.4 %', 'by up to 1.2 %', 'by a factor of 2.20 to 3.00', 'by 50 %')
    """
    if low >= 1:
        return f"by a factor of {1 + low:.2f}" + (
            f" to {1 + high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else ""
        )
    one, two = [f"{100 * max(0.0, end):.{0 if end >= 0.0995 else 1}f}" for end in (low, high)]
    if one == two:
        return f"by {one} %"
    return f"by {one} to {two} %" if low > 0 else f"by up to {two} %"


def often(share: float) -> str:
    """A share of draws: all or none of them only where it is so.

    >>> often(1.0), often(0.998), often(0.553), often(0.0)
    ('all draws', '99 % of draws', '55 % of draws', 'no draw')
    """
    if share in (0, 1):
        return "all draws" if share else "no draw"
    return f"{min(99, max(1, round(100 * share)))} % of draws"


# -- where the uncertainty is from
# --------------------------------------------------------------------------------------------------

_MOST = 3
"""The number of sources that a line names."""
_WORTH = 0.1
"""The share from which on a source is named."""


def uncertainty_line(result: Result) -> str | None:
    """The largest sources of the uncertainty of a result's makespan, and what removing the first
    one would do; ``None`` without draws.

    >>> from hosim.data.draws import Draws, LaterDraws, UncertainPart
    >>> from dataclasses import replace
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = b.op("f", "matmul", duration_ns=100)
    >>> result = hosim.replay(
    ...     hosim.Plan(b.build()), hosim.load_hardware(hosim.find_hardware("toy"))
    ... )
    >>> made = Draws(
    ...     (84, 116), sources=(UncertainPart("the copy bandwidth", 0.9, "`hosim calibrate`"),)
    ... )
    >>> uncertainty_line(replace(result, draws=LaterDraws.of(made)))
    'the makespan is certain to ±16 %: 90 % of that is the copy bandwidth; with it known (`hosim calibrate`) ±5.1 % is left'
    """
    drawn = result.drawn
    ends = None if drawn is None else drawn.makespan_interval
    if drawn is None or ends is None or not drawn.sources:
        return None
    low, high = ends
    named = [
        source for k, source in enumerate(drawn.sources[:_MOST]) if source.share >= _WORTH or not k
    ]
    said = ", ".join(
        [
            f"{round(100 * source.share)} %{' of that' if not k else ''} is {source.what}"
            for k, source in enumerate(named)
        ]
    )
    first, width = named[0], without(0.0, low, high)
    brings = (
        f"; with it known ({first.remedy}) ±{_percent(without(first.share, low, high))} is left"
        if first.remedy
        else ""
    )
    return f"the makespan is certain to ±{_percent(width)}: {said}{brings}"


def beside_next(results: Sequence[Result]) -> str:
    """The verdict on the fastest and the next best of some results, where they meet the same draws;
    empty where there is none.
    """
    following = sorted(
        [r for r in results if r.feasible and r.makespan_ns is not None],
        key=lambda r: r.makespan_ns or 0,
    )[:2]
    return "".join([pair.verdict for pair in beside_fastest(following)])


def draws_notes(results: Sequence[Result]) -> list[str]:
    """Return notes on the certainty of a comparison: whether the fastest is faster than the next
    best, and what its uncertainty is from.
    """
    best = min(
        [r for r in results if r.makespan_ns is not None],
        key=lambda r: r.makespan_ns or 0,
        default=None,
    )
    said = beside_next(results), None if best is None else uncertainty_line(best)
    return [
        str(Note(word, line.rstrip(".")))
        for word, line in zip(("draws", "uncertain"), said, strict=True)
        if line
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"
