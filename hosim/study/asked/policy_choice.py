"""A policy and the values of its parameters, as users give them: ``lookahead:k=4``, a policy
object, or a function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.plain_text import shown
from hosim.policies import BUILT_IN, Policy, policy_named, policy_names, policy_of, written_settings

RECOMPUTE, REORDER = "recompute", "reorder"
"""The parameters of a policy that allow recomputation and reordering of ops."""


AnyPolicy: TypeAlias = "str | Policy | Callable[..., Plan] | PolicyChoice"
"""The forms of a policy in Python: text as in the shell, a policy object, or a function
``(graph, hardware, budget_bytes)``.
"""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy's name, the parameters that the user set, and its label in results.

    ``given`` is the policy object, if the user gave one; the registry has the others.
    """

    name: str
    parameters: Mapping[str, Any]
    label: str
    given: Policy | None = field(default=None)

    @property
    def policy(self) -> Policy:
        """The policy object. Raises :class:`InputError` if there is none of that name."""
        return policy_named(self.name) if self.given is None else self.given


def as_choice(policy: AnyPolicy) -> PolicyChoice:
    """Return the choice for a text, a policy or a function. Raises :class:`InputError` for anything
    else.

    >>> as_choice("lookahead:k=2").label, as_choice(policy_named("layerwise")).label
    ('lookahead:k=2', 'layerwise')
    """
    if isinstance(policy, str):
        return parse_choice(policy)
    if isinstance(policy, PolicyChoice):
        return policy
    if not isinstance(policy, Policy) and not callable(policy):
        raise InputError(
            "expected a policy: its name, hosim.policies.NAME, or a function (graph, hardware, "
            f"budget_bytes); got {shown(policy)}",
            source="policy",
        )
    given = policy if isinstance(policy, Policy) else policy_of(policy)
    if any(own.name == given.name and own != given for own in BUILT_IN):
        raise InputError(
            "hosim has a policy of that name; give yours another", source=f"policy {given.name}"
        )
    return PolicyChoice(given.name, {}, given.name, given)


def parse_choice(text: str) -> PolicyChoice:
    """Read a choice from ``name`` or ``name:parameter=value:parameter=value``. Raises
    :class:`InputError` for an unknown policy or parameter.
    """
    name, *settings = text.strip().split(":")
    policy = policy_named(name)
    parameters: dict[str, Any] = {}
    for key, value in written_settings(settings, f"policy {name}"):
        parameters[key] = policy.read(key, value)
    return PolicyChoice(name, parameters, text.strip())


def without(choice: PolicyChoice, *changes: str) -> PolicyChoice:
    """Return the choice with these changes to the graph (:data:`RECOMPUTE`, :data:`REORDER`) set to
    false, for a runtime that cannot make them.

    A policy without such a parameter makes no such change. Raises :class:`InputError` if the choice
    sets one to true.
    """
    settings = choice.policy.settings
    for change in changes:
        if choice.parameters.get(change):
            raise InputError(
                f"{change}=true is ruled out here; leave it out", source=f"policy {choice.label}"
            )
        if change in settings and change not in choice.parameters:
            choice = replace(
                choice,
                parameters={**choice.parameters, change: False},
                label=f"{choice.label}:{change}=false",
            )
    return choice


def parse_choices(
    text: str | None, routed: bool = False, graph: Graph | None = None
) -> list[PolicyChoice]:
    """Read choices from a comma-separated list; ``None`` is the default list of a comparison.

    The default list has all registered policies at their defaults, except those that need a routing
    (unless the workload is ``routed``), those that run by name only (models of whole systems, and
    the optimum of small graphs), and those that cannot plan ``graph`` because of its processors.
    """
    if text is None:
        every = [policy_named(name) for name in policy_names()]
        every = [p for p in every if graph is None or p.plans_for(graph)]
        return [
            PolicyChoice(p.name, {}, p.name)
            for p in every
            if (routed or not p.needs_routing) and not p.by_name_only
        ]
    choices = [parse_choice(part) for part in text.split(",") if part.strip()]
    if not choices:
        raise InputError(
            f"no policy named; expected some of {', '.join(policy_names())}", source="policies"
        )
    return choices
