"""Folding of names that differ only in numbers into one: ``layers.{0-31}.mlp.act``. It is short to
review and lossless.

A name's own braces are doubled. Several braces in one name stand for every combination.
"""

import re
from collections.abc import Iterable
from itertools import groupby, product
from math import prod

from hosim.limits import within

_PART = re.compile(r"\{\{|\}\}|\{([\d,-]+)\}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SEEN = re.compile(r"\{([+-]\d+)?\}")

NEAR = 9
"""The largest distance, in layers, of a name that is still written relative to a layer."""

_Numbers = tuple[int, ...]


def fold(names: Iterable[str]) -> list[tuple[str, int]]:
    """Folded names and how many each stands for, in the order of their text.

    >>> fold(["a.2.x", "a.0.x", "a.1.x", "b"])
    [('a.{0-2}.x', 3), ('b', 1)]
    """
    rows = {tuple(_tokens(name)) for name in names}
    for at in range(1, max((len(row) for row in rows), default=0), 2):
        merged: dict[tuple[object, ...], list[int]] = {}
        kept = set()
        for row in rows:
            numbers = row[at] if at < len(row) else ""
            if isinstance(numbers, tuple):
                merged.setdefault((*row[:at], None, *row[at + 1 :]), []).extend(numbers)
            else:
                kept.add(row)
        rows = kept | {
            (*key[:at], tuple(sorted(listed)), *key[at + 1 :])  # type: ignore[arg-type]
            for key, listed in merged.items()
        }
    return sorted((_text(row), _count(row)) for row in rows)


def unfold(text: str) -> list[str]:
    """The names that a folded name stands for.

    Raises :class:`ValueError` for braces that :func:`fold` does not write, and
    :class:`~hosim.errors.InputError` for too many names.

    >>> unfold("a.{0-1,7}.x")
    ['a.0.x', 'a.1.x', 'a.7.x']
    """
    parts: list[list[str]] = []
    at = 0
    for match in _PART.finditer(text):
        parts.append([_literal(text[at : match.start()])])
        parts.append([str(n) for n in _numbers(match[1])] if match[1] else [match[0][0]])
        at = match.end()
    parts.append([_literal(text[at:])])
    within("records", prod(map(len, parts)))
    return ["".join(chosen) for chosen in product(*parts)]


def relative(text: str, name: str) -> str:
    """``text`` with its numbers relative to the first number of ``name``: ``{}`` for the same, and
    its first one, if near, as an offset.

    Equal statements about all layers thus become one text. A text with braces of its own stays as
    it is.

    >>> relative("layers.4.norm", "layers.5.w"), relative("linear_5.2", "layers.5.w")
    ('layers.{-1}.norm', 'linear_{}.2')
    """
    base = _NUMBER.search(name)
    if base is None or "{" in text or "}" in text:
        return text
    first = True

    def seen(found: re.Match[str]) -> str:
        nonlocal first
        offset = (
            int(found[0]) - int(base[0]) if first and _plain(found[0]) and _plain(base[0]) else 0
        )
        first = False
        if found[0] == base[0]:
            return "{}"
        return f"{{{offset:+d}}}" if 0 < abs(offset) <= NEAR else found[0]

    return _NUMBER.sub(seen, text)


def absolute(text: str, name: str) -> str:
    """The inverse of :func:`relative`.

    >>> absolute("layers.{-1}.norm", "layers.5.w"), absolute("linear_{}.2", "layers.5.w")
    ('layers.4.norm', 'linear_5.2')
    """
    base = _NUMBER.search(name)
    if base is None:
        return text
    return _SEEN.sub(lambda found: str(int(base[0]) + int(found[1])) if found[1] else base[0], text)


def _plain(number: str) -> bool:
    """Return whether Python writes a number this way."""
    return str(int(number)) == number


def _tokens(name: str) -> list[str | _Numbers]:
    """Text and numbers in turn; a number that Python would write differently stays text."""
    return [
        (int(part),) if i % 2 and _plain(part) else part
        for i, part in enumerate(re.split(r"([0-9]{1,9})", name))
    ]


def _text(row: tuple[str | _Numbers, ...]) -> str:
    return "".join(
        [
            part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else _range(part)
            for part in row
        ]
    )


def _count(row: tuple[str | _Numbers, ...]) -> int:
    count = 1
    for part in row:
        count *= len(part) if isinstance(part, tuple) else 1
    return count


def _range(numbers: _Numbers) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    runs = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        listed = [n for _, n in run]
        runs.append(str(listed[0]) if len(listed) == 1 else f"{listed[0]}-{listed[-1]}")
    return "{" + ",".join(runs) + "}"


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        listed = range(int(first), int(last or first) + 1)
        within(
            "records", len(numbers) + listed.stop - listed.start
        )  # the length of a range may be more than Python can say
        numbers += listed
    return numbers


def _literal(text: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError(f"unexpected brace in {text!r}")
    return text
