"""Names that differ in numbers alone, as one: ``layers.{0-31}.mlp.act``. Short to review, and nothing is lost.

Braces of a name itself are doubled. Several braces in one stand for every combination.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, product

_PART = re.compile(r"\{\{|\}\}|\{([\d,-]+)\}")
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
        rows = kept | {(*key[:at], tuple(sorted(listed)), *key[at + 1 :]) for key, listed in merged.items()}  # type: ignore[arg-type]
    return sorted((_text(row), _count(row)) for row in rows)


def unfold(text: str) -> list[str]:
    """The names that a folded one stands for. Raises :class:`ValueError` for braces that are none of :func:`fold`'s.

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
    return ["".join(chosen) for chosen in product(*parts)]


def _tokens(name: str) -> list[str | _Numbers]:
    """Text and numbers in turn; a number that Python would write otherwise stays text."""
    return [(int(part),) if i % 2 and str(int(part)) == part else part for i, part in enumerate(re.split(r"([0-9]{1,9})", name))]


def _text(row: tuple[str | _Numbers, ...]) -> str:
    return "".join([part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else _range(part) for part in row])


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


def _numbers(text: str) -> Iterable[int]:
    for run in text.split(","):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _literal(text: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError(f"a brace that stands for nothing in {text!r}")
    return text
