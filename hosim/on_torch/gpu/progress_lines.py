"""The lines that the kit prints while it works."""

import sys


def say(text: str) -> None:
    """A line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
