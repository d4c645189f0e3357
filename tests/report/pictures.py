"""Comparison of a picture with the one that is stored: `HOSIM_STORE_PICTURES=1 pytest tests/report`
stores them anew, to be looked at.
"""

import os
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from matplotlib.testing.exceptions import ImageComparisonFailure

from hosim.report.drawn import image

BASELINE = Path(__file__).parent / "baseline"
TOLERANCE = 3.0
"""Root mean square of the difference of all channels of all pixels, of 255. Four stalls of another
cause in a picture of 310 us make 9.
"""

STORED_WITH = "3.11"
"""The release of matplotlib. Others set letters otherwise and move everything (hinting alone makes
40): there nothing is compared.
"""


def difference(figure: Figure, name: str, folder: Path) -> float:
    """How far the figure is from the stored picture ``name``; infinite if the sizes differ."""
    return _difference(image(figure, dpi=60), name, folder)


def is_as_stored(figure: Figure, name: str, folder: Path) -> bool:
    """Whether the figure is the stored picture, within the tolerance."""
    drawn = image(figure, dpi=60)  # once: a layout that is refined again may move by a point
    if os.environ.get("HOSIM_STORE_PICTURES"):
        (BASELINE / f"{name}.png").write_bytes(drawn)
    if not matplotlib.__version__.startswith(f"{STORED_WITH}."):
        pytest.skip(f"the stored pictures are of matplotlib {STORED_WITH}")
    return _difference(drawn, name, folder) <= TOLERANCE


def _difference(drawn: bytes, name: str, folder: Path) -> float:
    path = folder / f"{name}.png"
    path.write_bytes(drawn)
    try:
        found = compare_images(str(BASELINE / path.name), str(path), 0.0, in_decorator=True)
    except ImageComparisonFailure:
        return float("inf")
    return found["rms"] if found else 0.0
