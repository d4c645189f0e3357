"""The report of ``hosim validate`` as one HTML file, with pictures of both timelines and of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.report import figures, page, recorded_figures
from hosim.report.recorded_figures import Interval
from hosim.report.validation_table import rows, signed_time, taken_from_recording
from hosim.units import human_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hosim.report.recorded_figures import Curve

Drawn = tuple[str, Interval, Interval]
"""An op: its device and stream as ``0:7``, and the nanoseconds of its start and end as recorded and as replayed."""


def validation_page(data: Mapping[str, Any], ops: Sequence[Drawn], memory: tuple[Curve, Mapping[str, Curve | None]] | None) -> str:
    """The page for a ``hosim.validation/1``, its ops, and its curves of bytes by name over one axis of nanoseconds."""
    device = f" on {data['device']}" if data["device"] else ""
    parts = [page.table(("figure", "measured", "simulated", "error"), rows(data))]
    parts += [page.paragraph(f"Not in the recording: {line}") for line in data["missing"]]
    if data["given"]:
        parts.append(page.paragraph(taken_from_recording(data)))
    if ops:
        with figures.style():
            parts += _times(ops)
    if data["worst"]:
        parts.append(page.heading("Furthest off"))
        worst = [
            (op["name"], str(op["stream"]), human_time(op["measured_start_ns"]), signed_time(op["start_error_ns"])) for op in data["worst"]
        ]
        parts.append(page.table(("op", "stream", "measured start", "error"), worst))
    if memory is not None:
        with figures.style():
            figure = _figure(4)
            recorded_figures.memory(figure.add_subplot(), *memory)
        parts += [page.heading("Memory"), page.picture(figure, "Memory over time, recorded and replayed")]
    return page.page(f"{data['trace']}{device}: recording and replay", parts)


def _times(ops: Sequence[Drawn]) -> list[str]:
    streams = sorted({stream for stream, _, _ in ops}, key=lambda name: tuple(map(int, name.split(":"))))
    measured = {name: [interval for stream, interval, _ in ops if stream == name] for name in streams}
    simulated = {name: [interval for stream, _, interval in ops if stream == name] for name in streams}
    begin, end = min(start for _, (start, _), _ in ops), max(max(x[1], y[1]) for _, x, y in ops)
    worst = max(ops, key=lambda op: abs(op[2][0] - op[1][0]))[1][0]
    near = max((end - begin) // 100, 1)
    parts = []
    for title, within in (("All of it", (begin, end)), ("Around the op that is furthest off", (worst - near, worst + near))):
        figure = _figure(1.2 + 0.9 * len(streams))
        recorded_figures.timeline(figure.add_subplot(), measured, simulated, within)
        parts += [page.heading(title), page.picture(figure, title)]
    figure = _figure(3.5)
    recorded_figures.start_errors(figure.add_subplot(), [x[0] for _, x, _ in ops], [y[0] - x[0] for _, x, y in ops])
    return [*parts, page.heading("Errors of starts"), page.picture(figure, "Errors of starts")]


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(11, height), layout="constrained")
