"""Comparison of a picture with the one that is stored: `HOSIM_STORE_PICTURES=1 pytest tests/report` stores them anew, to be looked at."""

import os
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from matplotlib.testing.exceptions import ImageComparisonFailure

from hosim.report.figures import image

BASELINE = Path(__file__).parent / "baseline"
TOLERANCE = 3.0
"""Root mean square of the difference of all channels of all pixels, of 255. Four stalls of another cause in a picture of 310 us make 9."""

STORED_WITH = "3.11"
"""The release of matplotlib. Others set letters otherwise and move everything (hinting alone makes 40): there nothing is compared."""


def difference(figure: Figure, name: str, folder: Path) -> float:
    """How far the figure is from the stored picture ``name``; infinite if the sizes differ."""
    drawn = folder / f"{name}.png"
    drawn.write_bytes(image(figure, dpi=60))
    try:
        found = compare_images(str(BASELINE / drawn.name), str(drawn), 0.0, in_decorator=True)
    except ImageComparisonFailure:
        return float("inf")
    return found["rms"] if found else 0.0


def is_as_stored(figure: Figure, name: str, folder: Path) -> bool:
    """Whether the figure is the stored picture, within the tolerance."""
    if os.environ.get("HOSIM_STORE_PICTURES"):
        (BASELINE / f"{name}.png").write_bytes(image(figure, dpi=60))
    if not matplotlib.__version__.startswith(f"{STORED_WITH}."):
        image(figure)
        pytest.skip(f"the stored pictures are of matplotlib {STORED_WITH}")
    return difference(figure, name, folder) <= TOLERANCE
