"""``hosim.offload``: a torch model that runs under hosim's plan, within a budget of device memory. Imports torch when called."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hosim.analysis.budget import parse_budget
from hosim.analysis.verifier import verify
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError, illegal_plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.importers.torch_export import require_torch
from hosim.io import find_hardware, load_hardware
from hosim.policies import registry
from hosim.result import IN_PROGRAM_ORDER, Result
from hosim.schedule.late_prefetches import late_prefetches
from hosim.units import human_size

if TYPE_CHECKING:
    from hosim.lower.callable import OffloadedModel

_SHARES = (1.0, 0.97, 0.93, 0.85, 0.7, 0.5, 0.3)
"""Shares of the budget that a policy gets in turn, until its plan also fits in program order."""

Replayed = Callable[[Plan, Hardware, int], Result]
"""Replays a plan within a number of bytes of the device tier; infeasible if it needs more."""


def offload(
    model: Any,
    example_inputs: Any,
    *,
    hardware: Hardware | str | os.PathLike[str],
    budget: int | float | str | None = None,
    optimizer: Any = None,
    loss: Any = None,
    policy: str = "hyperoffload",
    parameters: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    device: Any = None,
    directories: Mapping[str, str | os.PathLike[str]] | None = None,
    name: str | None = None,
) -> OffloadedModel:
    """Make a callable that computes exactly what a torch model computes, with its tensors where hosim's plan puts them.

    The tensors of the model belong to the callable until it is closed. Until then they cannot be read, written, copied or saved, and the
    model cannot be called. The callable closes as a context manager, by ``close``, or when it is garbage collected. Calls from several
    threads run one after the other.

    Parameters
    ----------
    model
        A ``torch.nn.Module``.
    example_inputs
        A tensor, a tuple, or a mapping by argument name. Later inputs must have the same sizes.
    hardware
        A profile, its path, or the name of a shipped one.
    budget
        Device memory that the program may use: bytes, a size (``"12 GiB"``), a share of the resident peak (``"75%"`` or 0.75), or ``None``
        for all of it.
    optimizer
        Makes each call a whole training step, which updates parameters and states in place and returns the loss. Without it a call is
        inference, without gradients, and returns what the model returns.
    loss
        ``loss(model, inputs)``; by default ``model(**inputs).loss``.
    policy
        Which policy plans.
    parameters
        The policy's parameters.
    plan
        A plan for the workload of the same program, instead of a policy.
    device
        What runs it, a :class:`hosim.lower.transfers.Device`: by default the GPU that has the parameters, or a machine made of the CPU's
        memory.
    directories
        A folder for each tier that consists of files.
    name
        What results call the workload; by default the class of the model.

    Returns
    -------
    OffloadedModel
        The callable; ``predicted_peak_bytes`` and ``result`` are what hosim predicts.

    Raises
    ------
    InfeasibleError
        If nothing fits the budget.
    PlanError
        If the plan breaks a rule.
    InputError
        If the model cannot be captured, or an argument is not what it should be.

    References
    ----------
    ``docs/executor.md`` describes the executor and what it was measured on.

    Examples
    --------
    >>> import torch
    >>> model, x = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))), torch.ones(4, 64)
    >>> wanted = model(x)
    >>> with offload(model, x, hardware="h100-80gb-sxm", budget="50%") as offloaded:
    ...     bool((offloaded(x) == wanted).all()), offloaded.predicted_peak_bytes <= offloaded.result.budget_bytes
    (True, True)
    """
    require_torch()
    from hosim.lower import callable as callables
    from hosim.lower.guard import require_free

    require_free(model)
    machine = hardware if isinstance(hardware, Hardware) else load_hardware(find_hardware(os.fspath(hardware)))
    title = name or type(model).__name__
    captured: callables.Captured
    if optimizer is None:
        captured = callables.inference(model, example_inputs, title)
    else:
        captured = callables.training(model, _by_name(model, example_inputs), optimizer, loss, title)
    graph = captured.program.graph
    budget_bytes = parse_budget(budget, graph, machine)[1]
    if plan is None:
        plan, result = planned(graph, machine, budget_bytes, policy, parameters or {})
    else:
        result = _checked(plan, machine, budget_bytes)
        if not result.feasible:
            raise InfeasibleError(str(result.error))
    return callables.OffloadedModel(captured, plan, result, machine, device, directories)


def planned(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    policy: str = "hyperoffload",
    parameters: Mapping[str, Any] | None = None,
    replayed: Replayed | None = None,
) -> tuple[Plan, Result]:
    """A plan that keeps within ``budget_bytes`` in program order, which is how torch allocates, and its replay with that account.

    If a plan does not fit, its prefetches are issued later (:mod:`hosim.schedule.late_prefetches`). If it still does not, the policy gets
    less than the budget until its plan fits: first without effort, if it has such a parameter, and then with the wanted effort at the share
    found. ``replayed`` checks and replays a plan; by default the verifier and a replay do. Raises :class:`InfeasibleError` if no plan fits.
    """
    chosen = registry.get(policy)
    asked = dict(parameters or {})
    if "recompute" in chosen.settings:
        asked.setdefault("recompute", False)  # no op of a lowered program runs twice
    quick = {**asked, "effort": 0.0} if "effort" in chosen.settings else asked
    check, failure = replayed or _checked, ""
    for share in _SHARES:
        drafts = []
        for settings in (quick, asked) if quick != asked else (asked,):
            try:
                plan = chosen.plan(graph, hardware, int(budget_bytes * share), **settings)
            except InfeasibleError as error:
                failure = failure or str(error)
                break
            if plan.runtime is not None:
                raise InputError(f"policy {policy} decides during the run; expected one that plans beforehand", source="policy")
            result = check(plan, hardware, budget_bytes)
            timeline = None if result.feasible else replay(plan, hardware, budget_bytes, record=True).timeline
            if timeline is not None:
                plan = late_prefetches(plan, hardware.device_tier, timeline)
                result = check(plan, hardware, budget_bytes)
            if not result.feasible:
                failure = failure or str(result.error)
                break
            drafts.append((plan, result))
        if drafts:
            return min(drafts, key=lambda draft: draft[1].makespan_ns or 0)
    raise InfeasibleError(f"no plan of policy {policy} stays within {human_size(budget_bytes)} in program order: {failure}")


def _checked(plan: Plan, hardware: Hardware, budget_bytes: int) -> Result:
    """The replay of a plan in program order. Raises :class:`PlanError` if it breaks a rule."""
    if findings := verify(plan, hardware):
        raise illegal_plan(f"policy {plan.policy} made a plan that breaks a rule", findings)
    return replay(plan, hardware, budget_bytes, account=IN_PROGRAM_ORDER)


def _by_name(model: Any, inputs: Any) -> dict[str, Any]:
    """Inputs by argument name."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    names = list(inspect.signature(model.forward).parameters)
    if len(values) > len(names):
        raise InputError(f"{len(values)} example inputs; {type(model).__name__} takes {len(names)}", source="example_inputs")
    return dict(zip(names, values, strict=False))
