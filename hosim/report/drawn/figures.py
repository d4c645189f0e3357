"""The common parts of all pictures: styles that differ in black and white, units, and reproducible
files.

A picture is a function that draws on the caller's axes and returns them. The commands make and save
figures within :func:`style`, which no matplotlib setting of the machine changes.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.result import STALL_CAUSES, WORKSPACE, Result
from hosim.units import human_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH = 11.0
"""The width of a figure, in inches."""

_CELL_DPI = 80
"""Points an inch in a notebook, which keeps its pictures."""

_SVG, _MOST_SVG = "image/svg+xml", 120_000
"""The most bytes of an SVG in a page: a timeline of a thousand bars has more."""

_FORMATS: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""The formats of pictures, and the metadata to leave out so that files are reproducible."""

_PATH = re.compile(rb' d="([^"]*)"')
_NUMBERS = {b"M": 2, b"L": 2, b"Q": 4, b"C": 6, b"z": 0}
"""The number of numbers after each command of a path."""

_CLIP_PATH = re.compile(rb'(clip-path="url\(#|<clipPath id=")(p[0-9a-f]{10})(?=[")])')

Style = Mapping[str, Any]


def _filled(colour: str, hatch: str = "") -> Style:
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.0}


KIND_STYLES: Mapping[str, Style] = {
    "parameter": _filled("#3f5f8a"),
    "gradient": _filled("#c6dbef", "\\\\\\"),
    "optimizer_state": _filled("#7ba7d0", "///"),
    "activation": _filled("#fbc67f"),
    "kv_cache": _filled("#e6853d", "\\\\\\"),
    "expert": _filled("#8fc98f", "|||"),
    "input": _filled("#e9e9e9"),
    "output": _filled("#7a7a7a"),
    "buffer": _filled("#cccccc", "xxx"),
    WORKSPACE: _filled("white", "---"),
}
"""The fill of the bytes of each kind of tensor."""

CAUSE_STYLES: Mapping[str, Style] = dict(
    zip(
        STALL_CAUSES,
        (
            _filled("#fff3b0", ".."),
            _filled("#f4a582", "////"),
            _filled("#92c5de", "\\\\\\\\"),
            _filled("#b8e186", "xxxx"),
        ),
        strict=True,
    )
)
"""The fill of a stall of each cause."""

OP_STYLE, TRANSFER_STYLE = _filled("0.25"), _filled("0.62")

LINES: Sequence[Style] = (
    {"color": "black", "linestyle": "-"},
    {"color": "#c2542d", "linestyle": "--"},
    {"color": "#2f6fb0", "linestyle": "-."},
    {"color": "#3c8a3c", "linestyle": ":"},
    {"color": "0.55", "linestyle": "-"},
    {"color": "#8a5fa8", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
)
"""Line styles that differ in their dashes; they repeat after the last."""

LIMIT: Style = {"color": "#b2182b", "linestyle": "--"}
"""The line of a budget or a capacity."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")


def time_unit(span_ns: float) -> tuple[int, str]:
    """The unit for an axis of times up to ``span_ns``: its nanoseconds and its name.

    >>> time_unit(90), time_unit(45_000_000)
    ((1, 'ns'), (1000000, 'ms'))
    """
    return next(
        (unit, name)
        for unit, name in ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
        if span_ns >= 2 * unit or unit == 1
    )


def size_unit(most_bytes: float) -> tuple[int, str]:
    """The unit for an axis of sizes up to ``most_bytes``: its bytes and its name.

    >>> size_unit(12 * 2**30), size_unit(70)
    ((1073741824, 'GiB'), (1, 'B'))
    """
    units = [(1024**i, f"{prefix}iB") for i, prefix in reversed(list(enumerate("KMGTPE", 1)))]
    return next((unit for unit in units if most_bytes >= 2 * unit[0]), (1, "B"))


@contextmanager
def style() -> Iterator[None]:
    """Draw and save within this: the fonts and lines are hosim's, whatever the machine's own
    settings say.

    Raises :class:`InputError` if a file of settings is so damaged that matplotlib refuses to load.
    """
    try:
        import matplotlib.style
    except ImportError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(
            f"matplotlib cannot be loaded: {why}; look for its file of settings, matplotlibrc, in "
            "the folder"
        ) from None
    own = {
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "hatch.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": "medium",
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "svg.fonttype": "none",  # text that can be searched, in half of the bytes
        "svg.hashsalt": "hosim",
        "text.parse_math": False,  # names are data: dollar signs in them are no mathematics
    }
    with matplotlib.style.context(["default", own]):
        yield


def blank(heights: Sequence[float], width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A figure with axes one below the other, of these heights in inches."""
    figure = _shown_in_cells()(figsize=(width, sum(heights)), layout="constrained")
    return figure, list(
        figure.subplots(
            len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": list(heights)}
        )[:, 0]
    )


@cache
def _shown_in_cells() -> type[Figure]:
    """The class of figures. A notebook shows matplotlib's own only once pyplot is imported."""
    from matplotlib.figure import Figure

    class CellFigure(Figure):
        def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
            kind, data = embedded(self, _CELL_DPI)
            return {kind: data.decode() if kind == _SVG else base64.b64encode(data).decode()}

    return CellFigure


def over_time(axes: Axes, end: int, unit: int, name: str) -> None:
    """The horizontal axis: time up to ``end``."""
    axes.set_xlim(0, max(end, 1) / unit)
    axes.set_xlabel(f"time, {name}")


def limit_of(result: Result, hardware: Hardware, tier: str) -> tuple[int, str]:
    """The bytes that a tier may hold in a replay, and what that is called."""
    capacity = next(t.capacity_bytes for t in hardware.tiers if t.name == tier)
    return (
        (min(result.budget_bytes, capacity), "budget")
        if tier == hardware.device_tier
        else (capacity, "capacity")
    )


def is_near(limit: int, most: int) -> bool:
    """Return whether a limit is drawn beside the ``most`` that is held: one far above is only
    named, as a line would leave no room for the rest.
    """
    return limit <= 2 * most


def limit_line(
    axes: Axes,
    limit: int,
    most: int,
    unit: tuple[int, str],
    called: str = "budget",
    across: bool = False,
) -> None:
    """Draw a limit of bytes at its height, or ``across``, in the axis's unit, which the legend has;
    of one that is not near (:func:`is_near`) the name alone.
    """
    label = f"{called} {human_in(limit, unit)}"
    if not is_near(limit, most):
        axes.plot([], [], " ", label=f"({label})")
        return
    line = axes.axvline if across else axes.axhline
    line(limit / unit[0], linewidth=1.4, label=label, **LIMIT)


def legend_beside(axes: Axes, **more: Any) -> None:
    """Add a legend to the right of the axes, where it hides nothing, if anything has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), borderaxespad=0.0, **more)


def image(figure: Figure, kind: str = "png", dpi: int = 130) -> bytes:
    """The figure as a file of ``kind`` (png, svg or pdf), with ``dpi`` points an inch; equal
    figures give equal bytes.
    """
    data = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font", UserWarning
        )  # a name in a script that the font lacks is a box
        figure.savefig(data, format=kind, dpi=dpi, metadata=dict(_FORMATS[kind]))
    return _shortened(data.getvalue()) if kind == "svg" else data.getvalue()


def embedded(figure: Figure, dpi: int = 130) -> tuple[str, bytes]:
    """The media type and the bytes of a figure within a page or a cell: SVG, or PNG where so much
    is drawn that an SVG would be several times as large.

    The PNG has 256 colours, which for drawings is a third of the bytes and looks the same.
    """
    svg = image(figure, "svg")
    if len(svg) <= _MOST_SVG:
        return _SVG, svg
    from PIL import Image

    data = io.BytesIO()
    with Image.open(io.BytesIO(image(figure, dpi=dpi))) as whole:
        whole.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            data, "PNG", optimize=True
        )
    return "image/png", data.getvalue()


def _shortened(svg: bytes) -> bytes:
    """The picture with its clip paths called after their order (some releases of matplotlib call
    them after addresses in memory), with shorter paths, and with fonts for those who lack ours.
    """
    numbers: dict[bytes, int] = {}
    svg = _CLIP_PATH.sub(
        lambda found: b"%sclip%d" % (found[1], numbers.setdefault(found[2], len(numbers))), svg
    )
    return _PATH.sub(_short_path, svg).replace(
        b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, sans-serif"
    )


def _short_path(path: re.Match[bytes]) -> bytes:
    """The path to a hundredth of a point, with ``H`` and ``V`` for the parts of a step."""
    words = path[1].split()
    shorter: list[bytes] = []
    place = 0
    x = y = b""
    while place < len(words):
        command = words[place]
        count = _NUMBERS[command]
        numbers = [b"%.2f" % float(word) for word in words[place + 1 : place + 1 + count]]
        numbers = [word.rstrip(b"0").rstrip(b".") for word in numbers]
        place += 1 + count
        before, (x, y) = (x, y), tuple(numbers[-2:] or (b"", b""))
        part = command + b" ".join(numbers)
        if command == b"L" and (x, y) == before:
            continue
        if command == b"L" and (x == before[0] or y == before[1]):
            part = b"V" + y if x == before[0] else b"H" + x
            if shorter[-1][:1] == part[:1]:
                shorter.pop()  # further the same way
        shorter.append(part)
    return b' d="%s"' % b"".join(shorter)


def image_kind(path: Path) -> str:
    """The format of a picture with this name; raises :class:`InputError` unless it is png, svg or
    pdf.

    >>> image_kind(Path("out.png"))
    'png'
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(
            f"expected a picture whose name ends in {', '.join(f'.{known}' for known in _FORMATS)}",
            source=str(path),
        )
    return kind
