"""A room's façade: the names that other rooms use, each imported from its module when it is first
used.

So the import of a room costs nothing, and what nobody asks for is not loaded. The façade of a room
is its ``__init__.py``, in one form::

    if TYPE_CHECKING:
        from hosim.room.module import name
    else:
        __getattr__, __dir__ = lazy_names(__name__, {"module": "name"})

    __all__ = ["name"]
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(
    room: str, names_in: Mapping[str, str], packages: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: ``names_in`` has, for each module of the
    ``room``, its names with spaces between.

    ``packages`` are those of the room that are names of it themselves. A module that has the name
    of one of its functions does not hide it.
    """
    home = {
        name: f"{room}.{module}" for module, names in names_in.items() for name in names.split()
    }

    class Facade(ModuleType):
        """The package. Python sets each module of it as an attribute when it is loaded."""

        def __setattr__(self, name: str, value: object) -> None:
            if not (name in home and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

        def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
            return import_module, (room,)  # a function that names it goes to another process

    def get(
        name: str,
    ) -> Any:  # by __import__: what watches imports hears of it, as of an import statement
        if name in packages.split():
            return __import__(f"{room}.{name}", fromlist=(name,))
        if name not in home:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(__import__(home[name], fromlist=(name,)), name)

    sys.modules[room].__class__ = Facade
    return get, lambda: sorted([*home, *packages.split()])
