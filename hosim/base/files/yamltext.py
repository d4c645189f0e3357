"""The plain part of YAML.

A mapping's keys are text. A plain scalar is an integer (decimal, no leading zero), a finite decimal
number, ``true``, ``false``, ``null`` (or empty), or else text: ``yes``, ``010``, ``1:30``,
``0x10``, ``.inf`` and dates are text. Repeated keys, tags, and anchors and aliases (which can grow
a file of a kilobyte into gigabytes) are refused.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from hosim.limits import limit

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,39})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> object:
    """The data in one YAML document; ``None`` if it is empty. Raises :class:`ValueError` with its
    place, or :class:`RecursionError`.
    """
    try:
        events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        data: object = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _refusal("expected one document, found a second ('---')", event)
                data = _build(next(events), events, limit("nesting_depth"))
        return data
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        tabs = "; YAML indents with spaces, not tabs" if "\\t" in str(error.problem) else ""
        raise ValueError(
            f"broken YAML{place}: {_one_line(error.problem or error.context)}{tabs}"
        ) from None
    except yaml.YAMLError as error:
        raise ValueError(f"broken YAML: {_one_line(error)}") from None


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _refusal(message: str, event: yaml.Event) -> ValueError:
    mark = event.start_mark
    return ValueError(
        f"line {mark.line + 1}, column {mark.column + 1}: {message}" if mark else message
    )


def _build(event: yaml.Event, events: Iterator[yaml.Event], levels: int) -> object:
    """The data of the node that begins with ``event``, and has so many levels at most; consumes its
    further events.
    """
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise _refusal("anchors (&) and aliases (*) are not allowed; write the value out", event)
    if isinstance(event, yaml.ScalarEvent):
        _no_tag(event)
        return _scalar(event.value) if event.implicit[0] else event.value
    if not levels:
        raise RecursionError
    if isinstance(event, yaml.SequenceStartEvent):
        _no_tag(event)
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_build(event, events, levels - 1))
        return items
    _no_tag(event)
    data: dict[str, object] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent) or event.anchor:
            raise _refusal("expected a plain key", event)
        if event.value in data:
            raise _refusal(f"key {event.value!r} is given twice; keep one of them", event)
        _no_tag(event)
        data[event.value] = _build(next(events), events, levels - 1)
    return data


def _no_tag(event: yaml.Event) -> None:
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise _refusal(f"tags such as {tag!r} are not allowed; drop it", event)


def _scalar(text: str) -> int | float | bool | str | None:
    """The value of a plain scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else text
    return text


class _Dumper(yaml.SafeDumper):
    """Block style outside, flow style for the innermost collections; text that :func:`load` would
    read as something else is quoted.
    """

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = "\n" in text or not isinstance(_scalar(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(
    str, lambda dumper, text: _represent_text(dumper, str.__str__(text))
)  # a text of numpy

Unwritable = yaml.representer.RepresenterError
"""The error that :func:`dump` raises for a value that has no form in YAML."""


def dump(data: Mapping[str, Any]) -> str:
    """The YAML text of ``data``, keys in the order given; :func:`load` reads it back."""
    return yaml.dump(
        dict(data),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        width=140,
        allow_unicode=False,
    )
