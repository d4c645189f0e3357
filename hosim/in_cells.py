"""What a cell of a notebook shows of hosim's data: a table instead of every field."""

from __future__ import annotations

import importlib
from typing import ClassVar


class InCells:
    """Data that a cell shows as HTML.

    A module writes it that is named and not imported: it imports the data, and is loaded for cells alone.
    """

    written_by: ClassVar[str] = "hosim.report.cells"
    """The module whose function ``cell`` writes it."""

    def _repr_html_(self) -> str:
        shown: str = importlib.import_module(self.written_by).cell(self)
        return shown
