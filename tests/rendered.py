"""Tables as a person sees them."""

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
