"""Tables as a person sees them."""

from io import StringIO

from rich.console import Console, RenderableType


def rendered(renderable: RenderableType, width: int = 160) -> str:
    """The text that is printed, without blanks at the ends of lines and lines that are empty."""
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())
