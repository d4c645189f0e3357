"""The registry of policies by name: hosim's own and those of plugins.

A plugin is a package with an entry point in the group ``hosim.policies`` that resolves to a
:class:`~hosim.policies.policy.Policy`, or to a function ``(graph, hardware, budget_bytes)`` that
makes plans::

    [project.entry-points."hosim.policies"]
    mine = "my_package.offload:POLICY"

hosim's own are listed without importing the planners; plugins are imported at the first request. A
plugin that cannot be loaded gives one warning when all names are listed, and an error when it is
requested by name.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from hosim.cache_plan import Plan
from hosim.errors import LONGEST
from hosim.plain_text import one_line
from hosim.policies.catalogue import BUILT_IN
from hosim.policies.policy import Parameter, Policy, unknown_policy
from hosim.policies.strangers import FAILURES, PolicyError

__all__ = ["GROUP", "Parameter", "Policy", "attribute", "policy_named", "policy_names"]

GROUP = "hosim.policies"
"""The entry-point group in which plugins announce policies."""


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies: hosim's own in the order of their history, then those of
    plugins that load, sorted by name.
    """
    plugins, broken = _plugins()
    for message in broken.values():
        _warn(message)
    return (*(policy.name for policy in BUILT_IN), *sorted(plugins))


def package_of(name: str) -> str:
    """Return the package and version of a plugin's policy; ``hosim`` for hosim's own.

    >>> package_of("layerwise")
    'hosim'
    """
    plugins, _ = _plugins()
    return plugins[name][1] if name in plugins else "hosim"


def policy_named(name: str) -> Policy:
    """Find a policy by its name.

    Parameters
    ----------
    name
        The name of one of hosim's own policies, or of a plugin's.

    Returns
    -------
    Policy
        The policy.

    Raises
    ------
    InputError
        If there is none of that name (the error has the nearest ones), or its plugin cannot be
        loaded.

    References
    ----------
    docs/planner.md lists hosim's own policies.

    Examples
    --------
    >>> policy_named("layerwise").parameters["layers_ahead"]
    1
    """
    for policy in BUILT_IN:
        if policy.name == name:
            return policy
    plugins, broken = _plugins()
    if name in plugins:
        return plugins[name][0]
    if name in broken:
        raise PolicyError(broken[name])
    raise PolicyError(unknown_policy(name, policy_names()))


def attribute(name: str) -> Policy:
    """Return a policy as an attribute of :mod:`hosim.policies`. Raises :class:`AttributeError` with
    the nearest name if there is none.
    """
    if name in policy_names():
        return policy_named(name)
    near = get_close_matches(name, policy_names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the policies are {', '.join(policy_names())}"
    raise AttributeError(f"module 'hosim.policies' has no policy {name!r}; {hint}")


def _plugins() -> tuple[dict[str, tuple[Policy, str]], dict[str, str]]:
    """Return the plugins' policies and packages by name, and the errors of plugins that do not load
    by name.
    """
    return _plugins_of(tuple(sys.path))


@cache
def _plugins_of(path: tuple[str, ...]) -> tuple[dict[str, tuple[Policy, str]], dict[str, str]]:
    """Do the same for the packages on ``path``; a changed ``sys.path`` is searched again."""
    loaded: dict[str, tuple[Policy, str]] = {}
    broken: dict[str, str] = {}
    own = {policy.name for policy in BUILT_IN}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        policy = _load(point)
        if isinstance(policy, str):
            broken[point.name] = policy
        elif policy.name in own or policy.name in loaded:
            broken[point.name] = (
                f"policy plugin {point.name!r} ({point.value}) is left out: there is a policy "
                f"{policy.name!r} already"
            )
        else:
            loaded[policy.name] = policy, _package(point)
    return loaded, broken


@cache
def _warn(message: str) -> None:
    """Log a warning once."""
    logging.getLogger("hosim").warning("%s", one_line(message, LONGEST))


def _package(point: EntryPoint) -> str:
    return (
        f"{point.dist.name} {point.dist.version}"
        if point.dist is not None
        else point.value.partition(":")[0]
    )


def _load(point: EntryPoint) -> Policy | str:
    """Return the policy of an entry point, or an error message."""
    where = f"policy plugin {point.name!r} ({point.value})"
    try:
        policy = point.load()
    except FAILURES as error:
        return f"{where} cannot be loaded: {type(error).__name__}: {error}"
    if inspect.isfunction(policy):
        try:
            policy = replace(policy_of(policy), name=point.name)
        except PolicyError as error:
            return f"{where}: {error}"
    if not isinstance(policy, Policy):
        return (
            f"{where} is of type {type(policy).__name__}: expected a "
            "hosim.policies.registry.Policy, or a function"
        )
    return policy


# -- a policy from a user's function, such as in a notebook: no package, no entry point
# --------------------------------------------------------------------------------------------------


_TYPES: tuple[tuple[type, Literal["bool", "int", "float", "str"]], ...] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
)
"""The types of defaults and of their parameters; bool is first, since True is also an int."""
_TAKEN = 3
"""The graph, the machine and the budget in bytes."""


def policy_of(function: Callable[..., Plan]) -> Policy:
    """Return the policy that plans with a function ``(graph, hardware, budget_bytes)``.

    It has the function's name. Each further argument is a parameter, and needs a number, true,
    false or text as its default. Raises :class:`PolicyError` for a function of another form.

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
    except (TypeError, ValueError):  # some functions written in C have no signature
        return Policy(name, _summary(function), function)
    settings = {
        p.name: Parameter(p.default, _type(name, p), f"the {p.name} of {name}")
        for p in taken[_TAKEN:]
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    takes_three = len(taken) >= _TAKEN or any(p.kind == p.VAR_POSITIONAL for p in taken)
    if not takes_three or any(p.kind == p.KEYWORD_ONLY for p in taken[:_TAKEN]):
        raise PolicyError(
            f"policy {name}: expected a function (graph, hardware, budget_bytes), got "
            f"{name}{inspect.signature(function)}"
        )
    return Policy(name, _summary(function), function, settings)


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
