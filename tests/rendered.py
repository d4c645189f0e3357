"""Tables as a person sees them, and what a sentence says."""

import re
from io import StringIO
from textwrap import dedent

from rich.console import Console, RenderableType


def rendered(renderable: RenderableType, width: int = 160) -> str:
    """The text that is printed, without blanks at the ends of lines and lines that are empty."""
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())


def lines(renderable: RenderableType, width: int = 160) -> list[str]:
    """The same, a line each."""
    return rendered(renderable, width).split("\n")


def table(text: str) -> list[str]:
    """The lines of a table as a test has it, less its indent."""
    return [line.rstrip() for line in dedent(text).split("\n") if line.strip()]


_FACT = (
    r"`[^`]+`|(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
    r"(?:x\b| ?%| ?(?:B|[KMGT]i?B|k?[KMGT]?FLOP)(?:/s)?\b| ?[num]?s\b)?"
)


def facts(text: str, *names: str) -> str:
    """What a sentence says, whatever its words are: its figures with their units, the names in
    backquotes, and ``names``, in order.

    >>> facts("`a` (activation) of lru has 45 B, 1.5x as much, for 3 ops (+50.0 %)", "lru")
    'a, lru, 45 B, 1.5x, 3, +50.0 %'
    """
    named = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in names]
    return ", ".join(
        fact.strip("`").rstrip(",") for fact in re.findall("|".join([*named, _FACT]), text)
    )
