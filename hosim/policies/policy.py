"""What a policy is to the rest of hosim: a name, a line, parameters, and a function that makes plans."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hosim.cache_plan import Plan
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.units import parse_size

__all__ = ["Maker", "Parameter", "Policy", "PolicyError"]

Maker = Callable[..., Plan]
"""``make(graph, hardware, budget_bytes, **parameters)``, with every parameter given."""

_EXPECTED = {
    "int": "a whole number of at least 0",
    "float": "a number of at least 0",
    "bool": "true or false",
    "size": "a size such as '4 GiB'",
}


class PolicyError(InputError):
    """A policy that cannot be had: nobody registered it, or its plugin cannot be loaded."""


class Parameter(NamedTuple):
    """One parameter of a policy: its default, its type and what it means in one line.

    ``type`` is ``int``, ``float``, ``bool``, ``str`` or ``size`` (whole bytes; as text with a unit). A default of ``None`` stands for
    what ``help`` says, such as the budget.
    """

    default: int | float | bool | str | None
    type: Literal["int", "float", "bool", "str", "size"]
    help: str

    def read(self, text: str, where: str) -> Any:
        """The value that ``text`` means; raises :class:`InputError` with ``where`` if it means none."""
        text = text.strip()
        value: Any = text
        if self.type == "bool":
            value = {"true": True, "false": False}.get(text)
        elif self.type == "size":
            try:
                value = parse_size(text)
            except InputError as error:
                raise InputError(error.message, where=where) from None
        elif self.type in ("int", "float"):
            try:
                value = int(text) if self.type == "int" else float(text)
            except ValueError:
                value = None
        if value is None:
            raise InputError(f"expected {_EXPECTED[self.type]}, got {text!r}", where=where)
        return self.check(value, where)

    def check(self, value: Any, where: str) -> Any:
        """``value``, if it is one for this parameter; raises :class:`InputError` with ``where`` if not."""
        if value is None and self.default is None:
            return None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.type == "str":
            right = isinstance(value, str)
        elif self.type == "bool":
            right = isinstance(value, bool)
        elif self.type == "float":
            right = number and math.isfinite(value) and value >= 0
        else:
            right = number and isinstance(value, int) and value >= 0
        if not right:
            raise InputError(f"expected {_EXPECTED.get(self.type, 'text')}, got {value!r}", where=where)
        return value


@dataclass(frozen=True)
class Policy:
    """A registered policy.

    ``make`` is its function, or where it is (``"module:function"``), so that listing policies imports none. ``runtime`` says that its
    decisions are taken during the replay, ``needs_routing`` that without a routing it does what another policy does,
    ``by_name_only`` that a comparison of all policies leaves it out: it takes too long, or does not know every workload.
    """

    name: str
    summary: str
    make: Maker | str = field(repr=False)
    settings: Mapping[str, Parameter] = field(default_factory=dict)
    runtime: bool = False
    needs_routing: bool = False
    by_name_only: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The default of each parameter."""
        return MappingProxyType({key: parameter.default for key, parameter in self.settings.items()})

    def read(self, key: str, text: str) -> Any:
        """The value that ``text`` means for the parameter ``key``; raises :class:`InputError` on either being wrong."""
        return self._setting(key).read(text, f"policy {self.name}: {key}")

    def plan(self, graph: Graph, hardware: Hardware, budget_bytes: int | None = None, **parameters: Any) -> Plan:
        """The plan that the policy makes within ``budget_bytes`` of the device tier (default: its capacity).

        Of what several devices share, it plans with a fair share.
        Raises :class:`InputError` on a parameter it has not or a value that is none, and :class:`InfeasibleError` where nothing of its rule
        can fit; a plan that may or may not fit is returned, and the replay says which.
        """
        for key, value in parameters.items():
            self._setting(key).check(value, f"policy {self.name}: {key}")
        capacity = hardware.device.capacity_bytes
        budget = capacity if budget_bytes is None else min(capacity, budget_bytes)
        _ops_fit(graph, hardware, budget)
        plan = self._maker()(graph, hardware.fair_share, budget, **{**self.parameters, **parameters})
        _start_fits(plan, hardware.fair_share, budget)
        return plan

    def _setting(self, key: str) -> Parameter:
        if key not in self.settings:
            known = ", ".join(f"{k}={p.default}" for k, p in self.settings.items()) or "none"
            raise InputError(f"no parameter {key!r} (parameters: {known})", where=f"policy {self.name}")
        return self.settings[key]

    def _maker(self) -> Maker:
        if not isinstance(self.make, str):
            return self.make
        module, _, function = self.make.partition(":")
        maker: Maker = getattr(importlib.import_module(module), function)
        return maker


def _ops_fit(graph: Graph, hardware: Hardware, budget: int) -> None:
    """Raise :class:`InfeasibleError` if some op cannot run whatever the plan: what it uses is in the device tier while it does."""
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    for op in graph.ops:
        needed = sum([sizes[t] for t in op.uses]) + op.workspace_bytes
        if needed > budget:
            raise InfeasibleError(
                f"out of memory: op {op.name!r} needs {needed:,} B of {hardware.device_tier} for what it uses and its workspace; "
                f"the budget is {budget:,} B: give it at least that"
            )


def _start_fits(plan: Plan, hardware: Hardware, budget: int) -> None:
    """Raise :class:`InfeasibleError` if the plan's tensors do not fit where they are at time 0."""
    held: dict[str, int] = {}
    for t, where in plan.residency(hardware.device_tier).items():
        for tier in where:
            held[tier] = held.get(tier, 0) + plan.graph.tensors[t].size_bytes
    for name, size in held.items():
        capacity = hardware.tiers[hardware.tier_index[name]].capacity_bytes if name in hardware.tier_index else size
        if name == hardware.device_tier:
            capacity = budget
        if size > capacity:
            text = f"out of memory: {plan.policy} has {size:,} B of tensors in {name} at time 0; there are {capacity:,} B"
            raise InfeasibleError(text + (_below(held, hardware) if name == hardware.device_tier else ""))


def _below(held: dict[str, int], hardware: Hardware) -> str:
    """In words, what the tiers below hold at time 0: those that are full are why the rest is not there."""
    tiers = [tier for tier in hardware.tiers if tier.name != hardware.device_tier and held.get(tier.name)]
    lines = [f"{tier.name} {held[tier.name]:,} of {tier.capacity_bytes:,} B" for tier in tiers]
    return f"; the tiers below hold {', '.join(lines)}" if lines else ""
