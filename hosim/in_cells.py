"""What a cell of a notebook shows of hosim's data: a table instead of every field."""

from __future__ import annotations

import importlib


class InCells:
    """Data that a cell shows as HTML.

    :mod:`hosim.report.cells` writes it. That module is named and not imported: it imports the data, and is loaded for cells alone.
    """

    def _repr_html_(self) -> str:
        shown: str = importlib.import_module("hosim.report.cells").cell(self)
        return shown
