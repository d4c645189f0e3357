"""A room's façade: the names that other rooms use, each imported from its module when it is first used.

So the import of a room costs nothing, and what nobody asks for is not loaded. The façade of a room is its ``__init__.py``, in one form::

    if TYPE_CHECKING:
        from hosim.room.module import name
    else:
        __getattr__, __dir__ = lazy_names(__name__, {"module": "name"})

    __all__ = ["name"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(room: str, names_in: Mapping[str, str], packages: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: ``names_in`` has, for each module of the ``room``, its names with spaces between.

    ``packages`` are those of the room that are names of it themselves.
    """
    home = {name: f"{room}.{module}" for module, names in names_in.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in packages.split():
            return import_module(f"{room}.{name}")
        if name not in home:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return get, lambda: sorted([*home, *packages.split()])
