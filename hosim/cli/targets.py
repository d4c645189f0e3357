"""The files that a command writes: what cannot be one, or is one that the command reads, is refused
before the work begins.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from hosim.errors import InputError

DATA = (".json", ".yaml", ".yml")
"""The endings of files in hosim's own formats."""

PAGE = (".html", ".htm")
"""The endings of pages."""

_WRITES = "hosim.cli.targets"
"""Under this key a command's context has the names of the parameters that are files to write."""


def written(*names: str, says: str, endings: Sequence[str] = ()) -> Any:
    """The option of a file that a command writes, and how its name may end, if not in any way;
    ``says`` is its help.
    """

    def target(
        context: typer.Context, parameter: typer.CallbackParam, path: Path | None
    ) -> Path | None:
        if path is not None:
            from hosim.base.files import check_ending, check_target

            if str(path) == "-":
                raise InputError("expected a file name, got '-'", source=names[0])
            if endings:
                check_ending(path, *endings, packed=endings != PAGE)
            check_target(path)
            context.meta.setdefault(_WRITES, []).append(parameter.name)
        return path

    return typer.Option(*names, metavar="FILE", callback=target, help=says)


def check_overwrites_nothing_given(context: typer.Context) -> None:
    """Raise :class:`InputError` for a file to write that another option or argument of the command
    names as well.
    """
    values: Mapping[str, Any] = context.params
    parameters: Sequence[Any] = context.command.params
    for name in context.meta.get(_WRITES, ()):
        option = next(one for one in parameters if one.name == name)
        for other in parameters:
            given = values.get(other.name)
            if (
                other is not option
                and given != other.default
                and any(_same(values[name], path) for path in _paths(given))
            ):
                called = (
                    other.opts[0]
                    if other.param_type_name == "option"
                    else other.metavar.removesuffix("...")
                )
                raise InputError(
                    f"also given as {called}; name another file",
                    source=f"{option.opts[0]} {values[name]}",
                )


def _paths(given: object) -> Iterator[str]:
    """Whatever a value may name as a file: itself, one of several machines, a model before its
    parameters.
    """
    if isinstance(given, list | tuple):
        for one in given:
            yield from _paths(one)
    elif isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        yield from {text, text.partition(":")[0], *map(str.strip, text.split(","))} - {""}


def _same(path: Path, other: str) -> bool:
    try:
        return os.path.realpath(path) == os.path.realpath(other) or os.path.samefile(path, other)
    except (OSError, ValueError):  # one is not there, or no path at all
        return False
