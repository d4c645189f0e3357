"""The additions to the core by rooms beside it: formats, recordings, commands, cases of the gate.

The core asks by what it needs and knows no such room: :mod:`hosim`, which is above all of them,
says which there are. Each has a module ``added`` with a function for each thing that it adds, which
gives a table and imports what is in it when it is first used.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

ROOMS: tuple[str, ...] = ()
"""The rooms beside the core, as modules. One that has been taken out adds nothing."""


def added(what: str) -> list[Any]:
    """Return the additions of each room of a kind, such as ``loaders``, in the order of their
    names.
    """
    found = []
    for room in sorted(ROOMS):
        try:
            module = __import__(f"{room}.added", fromlist=(what,))
        except ModuleNotFoundError as missing:
            if missing.name != room:
                raise
            continue
        if hasattr(module, what):
            found.append(getattr(module, what)())
    return found


def with_added(own: Mapping[str, T], what: str) -> dict[str, T]:
    """The core's table with what the rooms add to it, each before the entry of the core's that it
    names.
    """
    whole: dict[str, T] = {}
    for name, value in own.items():
        for tables in added(what):
            whole |= tables.get(name, {})
        whole[name] = value
    return whole
