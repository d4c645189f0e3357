"""Text of others, made safe to print: names in files are data, and never control a terminal or a log."""

from __future__ import annotations

__all__ = ["counted", "one_line", "printable"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular for 1.

    >>> counted(1, "tensor"), counted(1234, "op"), counted(2, "prefetch")
    ('1 tensor', '1,234 ops', '2 prefetches')
    """
    plural = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {noun}{plural}"


def printable(text: str) -> str:
    r"""The text with every character that cannot be printed, line breaks among them, as an escape such as ``\n`` or ``\x1b``.

    >>> printable("w\n::error::\x1b[31m")
    'w\\n::error::\\x1b[31m'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str, longest: int) -> str:
    """The text as one printable line of at most so many characters: what is too long loses its middle.

    >>> one_line("a long way to go", 9)
    'a lo...go'
    """
    line = printable(text)
    if len(line) <= longest:
        return line
    tail = (longest - 3) // 3
    return f"{line[: longest - 3 - tail]}...{line[len(line) - tail :]}"
