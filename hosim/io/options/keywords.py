"""Keywords of public functions: options with their checks, added to the signature and the
docstring.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter
from typing import Any, TypeVar, cast

from hosim.io.options.option import Option, Options, check_known, check_together
from hosim.io.options.shared import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 92
"""The width of docstring entries, in columns."""


def keywords(*options: Option) -> Callable[[F], F]:
    """Decorate a function that takes ``**options``: they become its keywords, each checked or at
    its default.

    They are added to the signature and the docstring. The docstring need not describe parameters
    that are in :data:`OPTIONS`.
    """

    def with_keywords(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        added = [
            Parameter(
                one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.annotation
            )
            for one in options
        ]
        named = {one.name: one for one in options}
        positions = [one.name for one in own]
        together = [OPTIONS[name] for name in positions if name in OPTIONS]

        @wraps(function)
        def asked(*arguments: Any, **given: Any) -> Any:
            for name in given:
                if name not in named:
                    check_known("option", name, [*positions, *named], function.__name__)
            read = {
                name: one.read(given[name]) if name in given else one.default
                for name, one in named.items()
            }
            there = dict(zip(positions, arguments, strict=False)) | given | read
            check_together((*together, *options), there, function.__name__)
            return function(*arguments, **{**given, **read})

        asked.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        asked.__doc__ = _documented(function.__doc__ or "", positions, options)
        return cast(F, asked)

    return with_keywords


_ENTRY = re.compile(r"^    (\w+)\n((?:        .*\n|\n(?=        ))+)", re.MULTILINE)
_PARAMETERS = re.compile(r"    Parameters\n    -+\n((?:    .*\n)+?\n|\n)?(?=    Returns\n)")


def _documented(docstring: str, own: Iterable[str], options: Options) -> str:
    """Return the docstring with a section of parameters: its own entries, and the declared ones for
    the others.
    """
    section = _PARAMETERS.search(docstring)
    said = dict(_ENTRY.findall(section[0])) if section else {}
    known = {**OPTIONS, **{option.name: option for option in options}}
    entries = []
    for name in [*own, *(option.name for option in options)]:
        about = (
            textwrap.indent(textwrap.fill(known[name].about, _WIDTH), " " * 8) + "\n"
            if name not in said
            else said[name]
        )
        entries.append(f"    {name}\n{about}")
    made = f"    Parameters\n    ----------\n{''.join(entries)}\n"
    return (
        docstring.replace(section[0], made)
        if section
        else docstring.replace("    Returns\n", f"{made}    Returns\n", 1)
    )
