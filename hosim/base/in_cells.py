"""The display of hosim's data in a notebook cell: a table instead of every field."""

from collections.abc import Callable
from typing import ClassVar


class InCells:
    """Data that a cell shows as HTML.

    ``written_by`` is the function that writes it: :mod:`hosim`, which is above all rooms, says
    which it is, as tables stand above the data.
    """

    written_by: ClassVar[Callable[[object], str]] = repr

    def _repr_html_(self) -> str:
        return type(self).written_by(self)
