"""The steps of a routing trace that ``--steps`` selects."""

from __future__ import annotations

from hosim.errors import InputError


def parse_steps(text: str | None, count: int) -> range:
    """The steps out of ``count`` that ``text`` selects: one (``3``), a range without its end
    (``0:8``, ``:8``, ``2:``), or all (``None``).

    Raises :class:`InputError` for any other text, for steps that do not exist, and for an empty
    range.

    >>> parse_steps("2:", 8)
    range(2, 8)
    """
    first, colon, last = (":" if text is None else text).partition(":")
    begin, end = _number(first, 0), _number(last, count)
    if begin is not None and end is not None and (colon or first.strip()):
        wanted = range(begin, end if colon else begin + 1)
        if wanted and wanted[-1] < count:
            return wanted
    has = f"the routing has steps 0 to {count - 1}" if count else "the routing has none"
    raise InputError(
        "expected a step such as 3 or a range such as 0:8, got "
        f"{'all' if text is None else repr(text)}; {has}",
        source="steps",
    )


def _number(text: str, default: int) -> int | None:
    """The number in a text, ``default`` if that is blank, ``None`` if it is something else."""
    text = text.strip()
    if not text:
        return default
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
