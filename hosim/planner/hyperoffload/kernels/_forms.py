"""The form in which a kernel runs here, compiled or not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from hosim.engine.cells import forms_of

K = TypeVar("K")


@cache
def form_of(kernel: type[K]) -> type[K]:
    """A kernel of this folder as it runs here: of the extension that was compiled of these files,
    or interpreted.
    """
    return forms_of([kernel], _extension, Path(__file__).parent)[0]


def _extension() -> ModuleType:
    from hosim.planner.hyperoffload import compiled_search

    return compiled_search
