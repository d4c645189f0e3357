"""A policy and the values of its parameters, as people write them: ``lookahead:k=4``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosim.errors import InputError
from hosim.policies import registry

RECOMPUTE, REORDER = "recompute", "reorder"
"""The parameters of a policy that say whether ops may run again, and whether they may trade places."""


@dataclass(frozen=True)
class PolicyChoice:
    """A registered policy's name, the parameters that differ from its defaults, and its label in results."""

    name: str
    parameters: Mapping[str, Any]
    label: str


def parse_choice(text: str) -> PolicyChoice:
    """A choice from ``name`` or ``name:parameter=value:parameter=value``; raises :class:`InputError` for an unknown policy or parameter."""
    name, *settings = text.strip().split(":")
    policy = registry.get(name)
    parameters: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"expected parameter=value after the colon, got {setting!r}", source=f"policy {name}")
        parameters[key] = policy.read(key, value)
    return PolicyChoice(name, parameters, text.strip())


def without(choice: PolicyChoice, *changes: str) -> PolicyChoice:
    """The choice for a runtime that cannot make such changes to the graph (:data:`RECOMPUTE`, :data:`REORDER`): they are set to false.

    Policies without such a parameter make no such changes. Raises :class:`InputError` for a choice that asks for one.
    """
    settings = registry.get(choice.name).settings
    for change in changes:
        if choice.parameters.get(change):
            raise InputError(f"{change}=true is ruled out here; leave it out", source=f"policy {choice.label}")
        if change in settings and change not in choice.parameters:
            choice = PolicyChoice(choice.name, {**choice.parameters, change: False}, f"{choice.label}:{change}=false")
    return choice


def parse_choices(text: str | None, routed: bool = False) -> list[PolicyChoice]:
    """Choices from a comma-separated list; ``None`` stands for every registered policy with its defaults.

    ``None`` leaves out policies that need a routing unless the workload is ``routed``, and policies for small graphs alone.
    """
    if text is None:
        every = [registry.get(name) for name in registry.names()]
        return [PolicyChoice(p.name, {}, p.name) for p in every if (routed or not p.needs_routing) and not p.by_name_only]
    choices = [parse_choice(part) for part in text.split(",") if part.strip()]
    if not choices:
        raise InputError(f"no policy named; expected some of {', '.join(registry.names())}", source="policies")
    return choices
