"""Recordings of Nsight Systems."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.formats.nsight.nsys import read_nsys
    from hosim.formats.nsight.sqlite_tables import plain_tables
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"nsys": "read_nsys", "sqlite_tables": "plain_tables"}
    )

__all__ = ["plain_tables", "read_nsys"]
