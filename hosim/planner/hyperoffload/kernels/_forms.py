"""The form in which a kernel runs here, compiled or not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from hosim.engine.cells import COMPILED, is_current

K = TypeVar("K")


def form_of(kernel: type[K]) -> type[K]:
    """Return a kernel of this folder as it runs here: from the extension that was compiled from
    these files, where the loop is compiled as well; else as it is.
    """
    extension = _extension()
    if extension is None:
        return kernel
    compiled: type[K] = getattr(extension, kernel.__name__)
    return compiled


@cache
def _extension() -> ModuleType | None:
    if not COMPILED:
        return None
    from hosim.planner.hyperoffload import compiled_search

    folder = Path(__file__).parent
    current = is_current(compiled_search, folder.parent, f"{folder.name}/[!_]*.py")
    return compiled_search if current else None
