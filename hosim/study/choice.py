"""A policy and the values of its parameters, as people write them: ``lookahead:k=4``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hosim.errors import InputError
from hosim.policies import registry
from hosim.units import parse_size


@dataclass(frozen=True)
class Choice:
    """A registered policy's name and the parameters that differ from its defaults; ``label`` is what results call it."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            values = (f":{key}={value}" for key, value in self.parameters.items())
            object.__setattr__(self, "label", "".join((self.name, *values)))


def parse_choice(text: str) -> Choice:
    """A choice from ``name`` or ``name:parameter=value:parameter=value``; raises :class:`InputError` on what no policy has.

    Values are read as the parameter's default is: whole numbers, numbers, ``true`` or ``false``, text; a parameter in
    bytes takes a size with its unit.
    """
    name, *settings = text.strip().split(":")
    defaults = registry.get(name).parameters
    parameters: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in defaults:
            known = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "none"
            raise InputError(f"no parameter {setting!r}; expected name=value of {known}", source=f"policy {name}")
        parameters[key] = _value(value, defaults[key], f"policy {name}", key)
    return Choice(name, parameters, text.strip())


def parse_choices(text: str | None) -> list[Choice]:
    """Choices from a comma-separated list; every registered policy with its defaults if there is none."""
    if text is None:
        return [Choice(name) for name in registry.names()]
    choices = [parse_choice(part) for part in text.split(",") if part.strip()]
    if not choices:
        raise InputError(f"no policy named; expected some of {', '.join(registry.names())}", source="policies")
    return choices


def _value(text: str, default: object, source: str, key: str) -> Any:
    if key.endswith("_bytes"):
        try:
            return parse_size(text)
        except InputError as error:
            raise InputError(error.message, source=source, where=key) from None
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise InputError(f"expected true or false, got {text!r}", source=source, where=key)
        return text == "true"
    if isinstance(default, str):
        return text
    kind, what = (int, "a whole number") if isinstance(default, int) else (float, "a number")
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"expected {what}, got {text!r}", source=source, where=key) from None
