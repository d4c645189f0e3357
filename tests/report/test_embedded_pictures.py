"""Pictures within pages and cells: SVG with short paths, or PNG where very much is drawn."""

import re

from matplotlib.patches import Polygon

from hosim.report.drawn import blank, embedded, image


def corners(path: str) -> list[tuple[float, float]]:
    """The points of a path of M, L, H, V and z."""
    found: list[tuple[float, float]] = []
    for command, text in re.findall(r"([MLHV])([^MLHVz]*)", path):
        x, y = found[-1] if found else (0.0, 0.0)
        numbers = [float(word) for word in text.split()]
        ends = {"H": (numbers[0], y), "V": (x, numbers[0])}
        found.append(ends.get(command, (numbers[0], numbers[-1])))
    return found


def test_a_path_of_steps_keeps_its_corners_and_no_point_between() -> None:
    """On a figure of 4 by 2 inches, which an SVG has as 288 by 144 points from above."""
    figure, (axes,) = blank([2], 4)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, 1))
    axes.set(xlim=(0, 4), ylim=(0, 2))
    points = [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 2),
        (2, 2),
        (2, 1),
        (3.00001, 1),
        (3, 0.5),
        (4, 0),
    ]
    axes.add_patch(Polygon(points, color="#123456"))
    (path,) = re.findall(r' d="([^"]*)"[^>]*#123456', image(figure, "svg").decode())
    assert path.endswith("z")
    assert corners(path)[:7] == [
        (0, 144),
        (0, 0),
        (144, 0),
        (144, 72),
        (216, 72),
        (216, 108),
        (288, 144),
    ]


def test_a_picture_in_a_page_is_an_svg_unless_very_much_is_drawn() -> None:
    figure, (axes,) = blank([2], 4)
    axes.broken_barh([(k, 0.5) for k in range(20)], (0, 1))
    kind, data = embedded(figure)
    assert (kind, data[:5]) == ("image/svg+xml", b"<?xml")
    axes.broken_barh([(k, 0.5) for k in range(2000)], (0, 1))
    kind, data = embedded(figure)
    assert (kind, data[:4]) == ("image/png", b"\x89PNG")
    assert len(data) < len(image(figure))
