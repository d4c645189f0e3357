"""Where the uncertainty of a makespan is from, and what would make it smaller."""

from collections.abc import Sequence

from hosim.analysis.remarks.paired_draws import beside_fastest
from hosim.data.draws import without
from hosim.notes import Note
from hosim.result import Result

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
    """How sure a comparison is, as notes: whether the fastest is faster than the next best, and
    what its uncertainty is from.
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
