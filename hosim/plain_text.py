"""Text of others, made safe to print: names in files are data, and never control a terminal or a
log.
"""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["counted", "flat", "named", "of_all", "one_line", "printable", "shown", "written"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular for 1.

    >>> counted(1, "tensor"), counted(1234, "op"), counted(2, "prefetch"), counted(2, "policy")
    ('1 tensor', '1,234 ops', '2 prefetches', '2 policies')
    """
    if number != 1:
        noun = f"{noun[:-1]}ie" if re.search("[^aeiou]y$", noun) else noun
        noun += "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {noun}"


def of_all(number: int, every: int, noun: str) -> str:
    """A number of all that there are, with their noun.

    >>> of_all(2, 3, "op"), of_all(3, 3, "op"), of_all(1, 1, "op")
    ('2 of 3 ops', 'all 3 ops', 'its 1 op')
    """
    if number != every:
        return f"{number:,} of {counted(every, noun)}"
    return f"{'its' if every == 1 else 'all'} {counted(every, noun)}"


def printable(text: str) -> str:
    r"""The text with every character that cannot be printed, line breaks among them, as an escape
    such as ``\n`` or ``\x1b``.

    >>> printable("w\n::error::\x1b[31m")
    'w\\n::error::\\x1b[31m'
    """
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    )


def one_line(text: str, longest: int) -> str:
    """The text as one printable line of at most so many characters: what is too long loses its
    middle.

    >>> one_line("a long way to go", 9)
    'a lo...go'
    """
    line = printable(text)
    if len(line) <= longest:
        return line
    tail = (longest - 3) // 3
    return f"{line[: longest - 3 - tail]}...{line[len(line) - tail :]}"


def named(name: object) -> str:
    """A name as it is, made printable, or whatever stands in the place of one as Python shows it.

    >>> named("w"), named(3)
    ('w', '3')
    """
    return printable(name) if isinstance(name, str) else shown(name, 60)


def shown(value: object, longest: int = 400) -> str:
    """Any value as one printable line, as Python shows it; one that cannot be shown, as it is
    nested too deeply, by its type.

    >>> shown("w"), shown([1, 2, 3], 7)
    ("'w'", '[1,...]')
    """
    try:
        return one_line(repr(value), longest)
    except Exception:  # whatever the value's own class raises
        return f"a {type(value).__name__} that cannot be shown"


def written(value: Any) -> str:
    """A value of a file as a baseline repeats it.

    >>> written("a.jsonl"), written({"model": "gpt2", "layers": 2}), written(True)
    ('a.jsonl', 'layers=2, model=gpt2', 'true')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={written(value[key])}" for key in sorted(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def flat(data: Mapping[str, Any], within: str = "") -> dict[str, str]:
    """The values in nested mappings by their paths.

    >>> flat({"training": {"checkpoint": True, "micro_batches": 2}, "name": "m"})
    {'training.checkpoint': 'true', 'training.micro_batches': '2', 'name': 'm'}
    """
    found: dict[str, str] = {}
    for key, value in data.items():
        where = f"{within}.{key}" if within else key
        found |= flat(value, where) if isinstance(value, Mapping) else {where: written(value)}
    return found
