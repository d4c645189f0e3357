"""The live-memory curve of a workload, as a picture and drawn with characters: what the device tier
holds while each op runs, with everything resident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hosim.analysis import static_curve
from hosim.graph import Graph
from hosim.plain_text import printable
from hosim.report.drawn import figures
from hosim.report.drawn.replay_figures import COLUMNS
from hosim.units import human_in, human_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = len(_EIGHTHS) - 1


def resident_figure(graph: Graph, tier: str, budget_bytes: int) -> Figure:
    """The bytes that each op needs in a tier with everything resident, in the order of the ops, and the
    budget: what is above it has to be elsewhere then.
    """
    curve = _columns(static_curve(graph, tier), COLUMNS) or [0]
    unit = figures.size_unit(max(curve))
    edges = [len(graph.ops) * k / len(curve) for k in range(len(curve) + 1)]
    with figures.style():
        figure, (axes,) = figures.blank([2.6])
        axes.stairs(
            [held / unit[0] for held in curve],
            edges,
            fill=True,
            color="0.75",
            label=f"needs at most {human_in(max(curve), unit)}",
        )
        figures.limit_line(axes, budget_bytes, max(curve), unit)
        axes.set(ylabel=unit[1], xlabel="op", ylim=(0, None), xlim=(0, max(edges[-1], 1)))
        axes.set_title(printable(f"Memory with everything resident: {tier}"))
        figures.legend_beside(axes)
    return figure


def memory_curve(graph: Graph, width: int = 100, height: int = 10) -> Text:
    """The curve in at most ``width`` columns, including its scale, and ``height`` lines, with a
    line for the ops below.

    A column shows the maximum of the ops that it stands for, in listed order. The scale goes from
    the minimum to the peak, which has a colour of its own. Empty for a graph without ops.
    """
    curve = static_curve(graph)
    if not curve:
        return Text()
    low, high = min(curve), max(curve)
    *marks, lowest = _labels(
        [*(low + (high - low) * (height - line) // height for line in range(0, height, 3)), low]
    )
    left = max(map(len, [*marks, lowest]))
    columns = _columns(curve, max(width - left - 2, 1))
    levels = [_level(most, low, high, height) for most in columns]
    text = Text()
    for line in range(height):
        floor = (height - 1 - line) * _PARTS
        marked = line % 3 == 0
        text.append(f"{marks[line // 3] if marked else '':>{left}} {'┤' if marked else '│'}")
        for most, level in zip(columns, levels, strict=True):
            text.append(
                _EIGHTHS[max(0, min(_PARTS, level - floor))],
                style="bold red" if most == high else "cyan",
            )
        text.append("\n")
    text.append(f"{lowest:>{left}} └{'─' * len(columns)}\n")
    end = f"op {len(curve) - 1:,}"
    text.append(f"{'':>{left}}  op 0{end:>{max(len(columns) - 4, len(end) + 1)}}\n")
    return text


def _labels(sizes: list[int]) -> list[str]:
    """Sizes with three digits, the lowest last; where these would make different ones look alike,
    what others are above it.
    """
    short = [human_size(size) for size in sizes]
    return (
        short
        if len({*short}) == len({*sizes})
        else [*[f"+{human_size(size - sizes[-1])}" for size in sizes[:-1]], short[-1]]
    )


def _columns(curve: list[int], count: int) -> list[int]:
    """The largest value of each of ``count`` equal parts of the curve; the whole curve if it is
    shorter.
    """
    count = min(count, len(curve))
    return [
        max(curve[len(curve) * j // count : len(curve) * (j + 1) // count]) for j in range(count)
    ]


def _level(value: int, low: int, high: int, height: int) -> int:
    """Height of a bar in eighths of a line: rounded up, so that whatever is above the lowest is
    seen.
    """
    return -(-(value - low) * height * _PARTS // (high - low)) if high > low else height * _PARTS
