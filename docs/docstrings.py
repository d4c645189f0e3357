"""Makes docstrings readable as Markdown for the site: an extension of griffe, which mkdocstrings
reads them with.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(?:~(?:[\w.]+\.)?)?([\w.]+)`")
_PAGE = re.compile(r"(?:``)?docs/([a-z]+)\.md(?:``)?(, rule (\d+))?")
_DOCTEST = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)
_EXAMPLES = re.compile(r"^Examples\n-+$", re.MULTILINE)


def readable(docstring: str) -> str:
    """The docstring with Sphinx roles as code, pages of the documentation as links, and doctests in
    fences.

    Under a heading of numpydoc, griffe finds doctests by itself.

    >>> readable("See :class:`~hosim.graph.Graph` and docs/contract.md, rule 8.")
    'See `Graph` and [docs/contract.md, rule 8](contract.md#rule-8).'
    """
    docstring = _ROLE.sub(r"`\1`", docstring)
    docstring = _PAGE.sub(_link, docstring)
    if _EXAMPLES.search(docstring):
        return docstring
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", docstring)


def _link(page: re.Match[str]) -> str:
    anchor = f"#rule-{page[3]}" if page[3] else ""
    return f"[docs/{page[1]}.md{page[2] or ''}]({page[1]}.md{anchor})"


def with_options(function: griffe.Function) -> None:
    """Give a function the signature and the docstring that its ``keywords`` make when it is
    imported.
    """
    asked = getattr(import_module(function.module.path), function.name)
    assert function.docstring is not None
    function.docstring.value = inspect.getdoc(asked) or ""
    function.parameters = griffe.Parameters(
        *[
            griffe.Parameter(
                one.name,
                annotation=str(one.annotation),
                kind=griffe.ParameterKind(one.kind.description),
                default=None if one.default is one.empty else repr(one.default),
            )
            for one in inspect.signature(asked).parameters.values()
        ]
    )


class Readable(griffe.Extension):
    """Applies :func:`readable` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once an object is loaded."""
        if isinstance(obj, griffe.Function) and any(
            "keywords" in str(one.value) for one in obj.decorators
        ):
            with_options(obj)
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)
