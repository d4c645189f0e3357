"""A curve in text: a row for each point, with a bar as long as its value."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LINES, _BAR, _WIDTH = 12, 32, 79
"""Lines at most, the characters of the longest bar, and those that a line may have."""


def text_curve(
    points: Sequence[tuple[str, float | None, str]], most: int = MOST_LINES
) -> list[str]:
    """Lines for points that each have a name, a value (``None``: there is none) and its text. Of
    more than ``most`` points the first, the last and evenly spaced ones between are drawn.

    >>> for line in text_curve([("8 GiB", 40.0, "40 ms"), ("12 GiB", 20.0, "20 ms")]):
    ...     print(line)
    8 GiB   ################################  40 ms
    12 GiB  ################  20 ms
    >>> text_curve([("4 GiB", None, "does not fit")])
    ['4 GiB  does not fit']
    """
    if len(points) > most:
        points = [points[k * (len(points) - 1) // (most - 1)] for k in range(most)]
    room = max((len(name) for name, _, _ in points), default=0)
    longest = max((value for _, value, _ in points if value is not None), default=0.0)
    said = max((len(text) for _, _, text in points), default=0)
    widest = max(4, min(_BAR, _WIDTH - room - said - 4))
    lines = []
    for name, value, text in points:
        bar = "#" * max(1, round(widest * value / longest)) if value and longest else ""
        lines.append("  ".join([name.ljust(room), *([bar] if bar else []), text]))
    return lines
