"""A policy from a function of somebody's own, as a notebook has it: no package, no entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from hosim.cache_plan import Plan
from hosim.policies.policy import Parameter, Policy
from hosim.policies.strangers import PolicyError

_TYPES: tuple[tuple[type, Literal["bool", "int", "float", "str"]], ...] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
)
"""What a default may be, and the parameter that it makes; true is an int, too."""
_TAKEN = 3
"""The graph, the machine and the budget in bytes."""


def policy_of(function: Callable[..., Plan]) -> Policy:
    """The policy that a function ``(graph, hardware, budget_bytes)`` makes plans for.

    Its name is the function's. What else it takes, with a number, true, false or text as the
    default, is a parameter. Raises :class:`PolicyError` for a function that takes anything else.

    >>> def mine(graph, hardware, budget_bytes, *, lead=4): ...
    >>> policy_of(mine).name, dict(policy_of(mine).parameters)
    ('mine', {'lead': 4})
    """
    name = (
        getattr(function, "__name__", "")
        or getattr(getattr(function, "func", None), "__name__", "")
        or type(function).__name__
    )
    name = name.strip("<>")
    try:
        taken = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some of what is written in C does not say
        return Policy(name, _summary(function), function)
    settings = _settings(
        name, [p for p in taken[_TAKEN:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    )
    if any(p.kind == p.KEYWORD_ONLY for p in taken[:_TAKEN]) or not _takes_three(taken):
        raise PolicyError(
            f"policy {name}: expected a function (graph, hardware, budget_bytes), got "
            f"{name}{inspect.signature(function)}"
        )
    return Policy(name, _summary(function), function, settings)


def _takes_three(taken: list[inspect.Parameter]) -> bool:
    return len(taken) >= _TAKEN or any(p.kind == p.VAR_POSITIONAL for p in taken)


def _settings(name: str, more: list[inspect.Parameter]) -> Mapping[str, Parameter]:
    return {p.name: Parameter(p.default, _type(name, p), f"the {p.name} of {name}") for p in more}


def _type(name: str, parameter: inspect.Parameter) -> Literal["bool", "int", "float", "str"]:
    found = next((said for kind, said in _TYPES if isinstance(parameter.default, kind)), None)
    if found is None:
        raise PolicyError(
            f"policy {name}: expected a number, true, false or text as the default of its "
            f"parameter {parameter.name}"
        )
    return found


def _summary(function: Callable[..., Any]) -> str:
    lines = (inspect.getdoc(function) or "").splitlines()
    return lines[0] if lines else "a function"
