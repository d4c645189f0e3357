"""``hosim.offload``: a torch model that runs under hosim's plan, within a budget of device memory.
Imports torch when called.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hosim import policies
from hosim.analysis.costmodel import machine_under
from hosim.analysis.verifying import verify
from hosim.api import in_cell
from hosim.api import machine as profile_of
from hosim.cache_plan import DETACH, PREFETCH, CacheOp, Plan
from hosim.edits import is_repeatable
from hosim.engine import read_budget, replay
from hosim.errors import InfeasibleError, InputError, illegal_plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import require_torch
from hosim.io.options import OPTIONS, Given, Option, keywords
from hosim.on_torch.lower import devices
from hosim.planner.schedule import late_prefetches
from hosim.result import IN_PROGRAM_ORDER, Result
from hosim.units import human_size

if TYPE_CHECKING:
    from hosim.on_torch.lower.callable import Captured, OffloadedModel
    from hosim.on_torch.lower.compiled import CompiledModel
    from hosim.on_torch.lower.tiers import Device
    from hosim.on_torch.lower.torch_program import TorchProgram

_SHARES = (1.0, 0.97, 0.93, 0.85, 0.7, 0.5, 0.3)
"""Shares of the budget that a policy gets in turn, until its plan also fits in program order."""

Replayed = Callable[[Plan, Hardware, int], Result]
"""Replays a plan within a number of bytes of the device tier; infeasible if it needs more."""


OFFLOADING: tuple[Option, ...] = (
    Option(
        "loss",
        takes="Any",
        about="``loss(model, inputs)`` of a training step; by default what the model returns, or "
        "its ``loss``.",
    ),
    replace(OPTIONS["policy"], takes="str", about="Which policy plans."),
    Option("parameters", takes="Mapping[str, Any] | None", about="The policy's parameters."),
    Option(
        "plan",
        takes="Plan | None",
        about="A plan for the program as it runs, whose tensors are whole "
        "(``hosim.offload(...).plan.graph``), instead of a policy.",
    ),
    Option(
        "device",
        takes="Any",
        about='What runs it: torch\'s device or its name (``"cuda"``), or a '
        ":class:`hosim.on_torch.lower.tiers.Device`. By default the GPU that has the "
        "parameters, or a machine made of the CPU's memory; for a model on meta a GPU, if "
        "there is one.",
    ),
    Option(
        "directories",
        takes="Mapping[str, str | os.PathLike[str]] | None",
        about="A folder for each tier that consists of files.",
    ),
    Option(
        "loader",
        takes="Callable[[str], Any] | str | os.PathLike[str] | None",
        about="The contents of tensors on meta: a function from the name of a parameter or buffer "
        "to a tensor, a ``.safetensors`` file, or a folder of them. A model on meta stays "
        "there, for inference alone.",
    ),
    Option(
        "check",
        bool,
        False,
        about="Compare one call for the example inputs with one without hosim, bit by bit, and "
        "refuse a difference. The model has to fit the device.",
    ),
    Option(
        "check_every",
        int,
        least=1,
        about="Trace the model again after so many calls, and refuse to go on if it has become "
        "another program.",
    ),
    Option(
        "graphs",
        bool,
        False,
        about="On a GPU, launch the ops between two cache ops as one call, as CUDA graphs do, from "
        "the second call on. ``segments`` of the result says how many calls there are, and "
        "``no_segments`` why there are none.",
    ),
    Option("name", about="What results call the workload; by default the class of the model."),
)
"""The options of :func:`offload`, which a training loop under a plan takes, too."""


@keywords(*OFFLOADING)
def offload(
    model: Any,
    example_inputs: Any,
    *,
    hardware: Hardware | str | os.PathLike[str],
    budget: int | float | str | None = None,
    optimizer: Any = None,
    **options: Any,
) -> OffloadedModel:
    """Make a callable that computes what a torch model does, its tensors where a plan has them.

    The tensors of the model belong to the callable until it is closed. Until then they cannot be
    read, written, copied or saved, and the model cannot be called. The callable closes as a context
    manager, by ``close``, or when it is garbage collected. Calls from several threads run one after
    the other.

    Parameters
    ----------
    model
        A ``torch.nn.Module``, or what ``torch.compile`` has made of one. It is where it is to run
        or, for another ``device``, on the CPU or on meta (with a ``loader``). It is never on the
        device as a whole: only what the plan has there.
    example_inputs
        A tensor, a tuple, or a mapping by argument name. Later inputs may have other sizes: the
        first call with some captures and plans a program for them, over the same tensors.
    hardware
        A profile, its path, or the name of a shipped one.
    budget
        Device memory that the program may use: bytes, a size (``"12 GiB"``), a share of the
        peak of a call without hosim (``"75%"`` or 0.75), or ``None`` for all of it. Where that
        peak is not known (``eager_peak_bytes``), it is a share of the program's peak with
        everything resident.
    optimizer
        Makes each call a whole training step, which updates parameters and states in place and
        returns the loss. Without it a call is inference, without gradients, and returns what the
        model returns. ``step.backward(**batch)`` and ``step.optimizer_step()`` are the parts of a
        step.

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
    ExecutionError
        If tensors cannot be moved to where the plan has them, such as host memory that cannot be
        pinned; the model is as it was before. Where there is no room to bring contents back, the
        error names them, and its ``held.close()`` tries again.

    References
    ----------
    ``docs/executor.md`` describes the executor, its limits, and what of it has not run on a GPU.

    Examples
    --------
    >>> import torch
    >>> model, x = (
    ...     torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))),
    ...     torch.ones(4, 64),
    ... )
    >>> wanted = model(x)
    >>> with offload(model, x, hardware="h100-80gb-sxm", budget="50%") as offloaded:
    ...     (
    ...         bool((offloaded(x) == wanted).all()),
    ...         offloaded.predicted_peak_bytes <= offloaded.result.budget_bytes,
    ...     )
    (True, True)
    """
    require_torch()
    from hosim.on_torch.lower.compiled import uncompiled
    from hosim.on_torch.lower.eager_check import require_eagers_bits
    from hosim.on_torch.lower.exported_call import arguments
    from hosim.on_torch.lower.guard import require_free
    from hosim.on_torch.lower.replicas import unwrapped

    asked = Given(**options)
    model, compiled = uncompiled(model)
    require_free(model)
    devices.require_contents(model, asked.loader)
    machine = profile_of(hardware)
    title = asked.name or type(unwrapped(model)).__name__
    runs_on = machine_of(model, asked.device, machine, asked.directories or {})
    runs_on.captures = asked.graphs
    if runs_on.runtime is not None:
        machine = machine_under(machine, runs_on.runtime)
    try:
        step = None if optimizer is None else _by_name(unwrapped(model), example_inputs)
        given = example_inputs if step is None else step
        captured = _captured(model, given, optimizer, asked, title, runs_on, compiled)
        budget_bytes = _bytes_of(budget, captured, machine)
        check = rule_of(runs_on.allocator)
        how = budget_bytes, asked.policy, asked.parameters, check

        def planner(part: TorchProgram) -> tuple[Plan, Result]:
            with in_cell() as tell:
                tell(f"planning {title} with {asked.policy}")
                return as_launched(part, machine, lambda on: planned(part.graph, on, *how))

        plan, result = (
            planner(captured.program)
            if asked.plan is None
            else _replayed(asked.plan, captured.program, machine, budget_bytes, check)
        )
        make = partial(_kind_of(model, optimizer), captured, plan, result, machine, planner)
        if asked.check:
            inputs = arguments(example_inputs) if step is None else ((), step)
            beside = partial(machine_of, model, None, machine, asked.directories or {})
            once = captured, lambda: make(beside()), inputs, runs_on
            require_eagers_bits(*once, optimizer, asked.loss)
        made: OffloadedModel = make(runs_on)
        made.check_every = asked.check_every
        return made
    except BaseException as error:
        if runs_on is not asked.device and not getattr(error, "left", ()):
            runs_on.close()
        raise


def _captured(
    model: Any,
    inputs: Any,
    optimizer: Any,
    asked: Given,
    title: str,
    runs_on: Device,
    compiled: CompiledModel | None,
) -> Captured:
    """A model's call, or with an optimizer its training step, as a program."""
    from hosim.on_torch.lower.exported_call import inference
    from hosim.on_torch.lower.offloaded_step import training

    load = None if asked.loader is None else devices.loader_of(asked.loader)
    with in_cell() as tell:
        tell(f"tracing {title}")
        captured: Captured = (
            inference(model, inputs, title, runs_on, load, compiled)
            if optimizer is None
            else training(model, inputs, optimizer, asked.loss, title, runs_on, compiled)
        )
    if asked.check_every and captured.retraced is None:
        raise InputError(
            "check_every traces the model again, which one that is compiled or exchanges "
            "tensors with other processes cannot be; leave it out"
        )
    return captured


def _replayed(
    plan: Plan, program: TorchProgram, machine: Hardware, budget_bytes: int, check: Replayed
) -> tuple[Plan, Result]:
    """A plan that was given, and its replay. Raises :class:`InfeasibleError` if it does not fit."""
    _, result = as_launched(program, machine, lambda on: (plan, check(plan, on, budget_bytes)))
    if not result.feasible:
        raise InfeasibleError(str(result.error))
    return plan, result


def _bytes_of(budget: Any, captured: Captured, machine: Hardware) -> int:
    """The bytes of a budget; a share is one of the peak without hosim, where that is known."""
    wanted, alone = read_budget(budget), captured.eager_peak_bytes
    if wanted.share is not None and alone is not None:
        wanted = replace(wanted, share=None, wanted_bytes=int(alone * wanted.share))
    return wanted.of(captured.program.graph, machine)[1]


def _kind_of(model: Any, optimizer: Any) -> type[OffloadedModel]:
    """The class of what runs a model under a plan."""
    from hosim.on_torch.lower.callable import OffloadedModel
    from hosim.on_torch.lower.generation import OffloadedGenerator
    from hosim.on_torch.lower.offloaded_step import OffloadedStep

    if optimizer is not None:
        return OffloadedStep
    generates = hasattr(model, "generate") and hasattr(model, "prepare_inputs_for_generation")
    return OffloadedGenerator if generates else OffloadedModel


def machine_of(
    model: Any,
    device: Any,
    hardware: Hardware,
    directories: Mapping[str, str | os.PathLike[str]],
) -> Device:
    """The machine that runs a model: the given one, or the one of torch's device; by default the
    GPU that has the model.

    A model on meta goes to a GPU, if there is one. Without a GPU the machine is made of the CPU's
    memory. Raises :class:`InputError` for what is no machine.
    """
    import torch

    if device is None:
        kinds = {
            tensor.device.type: tensor.device for tensor in devices.named_tensors(model).values()
        }
        device = kinds.get(
            "cuda", torch.device("cuda" if "meta" in kinds and torch.cuda.is_available() else "cpu")
        )
    elif isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise InputError(
                f"torch knows no device {device!r}; expected cuda, cuda:1 or cpu", source="device"
            ) from error
    if not isinstance(device, torch.device):
        return cast("Device", device)
    if device.type == "cuda":
        return devices.CudaDevice(hardware, directories=directories, index=device.index)
    if device.type == "cpu":
        return devices.CpuDevice(hardware, directories=directories)
    raise InputError(f"plans run on GPUs and CPUs, not on {device}", source="device")


def as_launched(
    program: TorchProgram,
    hardware: Hardware,
    plan_on: Callable[[Hardware], tuple[Plan, Result]],
) -> tuple[Plan, Result]:
    """A plan for a program on a machine, and its replay; for a host that launches ops one by one
    where segments of them cannot be launched under that plan.
    """
    from hosim.on_torch.lower.segments import why_one_by_one

    plan, result = plan_on(hardware)
    runtime = hardware.software
    if runtime is None or not runtime.segments:
        return plan, result
    if not why_one_by_one(program, plan, hardware.device_tier, result.budget_bytes):
        return plan, result
    return plan_on(replace(hardware, software=replace(runtime, segments=False)))


def planned(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    policy: str = "hyperoffload",
    parameters: Mapping[str, Any] | None = None,
    replayed: Replayed | None = None,
) -> tuple[Plan, Result]:
    """A plan that keeps within ``budget_bytes`` in program order, which is how torch allocates, and
    its replay with that account.

    If a plan does not fit, its prefetches are issued later (:mod:`hosim.planner.schedule.late_prefetches`).
    If it still does not, the policy gets less than the budget until its plan fits: first without
    effort, if it has such a parameter, and then with the wanted effort at the share found. Unless
    the parameters say whether ops may run again, they do only where no plan fits otherwise, or,
    with effort, where one waits and such a plan is faster. ``replayed`` checks and replays a plan;
    by default the verifier and a replay do. Raises :class:`InfeasibleError` if no plan fits.
    """
    chosen = policies.policy_named(policy)
    asked = dict(parameters or {})
    if "recompute" not in chosen.settings or "recompute" in asked:
        return _planned(graph, hardware, budget_bytes, policy, asked, replayed)
    failure: InfeasibleError | None = None
    best: tuple[Plan, Result] | None = None
    try:
        best = _planned(
            graph, hardware, budget_bytes, policy, {**asked, "recompute": False}, replayed
        )
    except InfeasibleError as error:
        failure = error
    if is_repeatable(graph) and (
        best is None or (asked.get("effort") != 0 and sum(best[1].stall_ns.values()))
    ):
        with suppress(InfeasibleError):
            other = _planned(
                graph, hardware, budget_bytes, policy, {**asked, "recompute": True}, replayed
            )
            best = other if best is None else min(best, other, key=_makespan_ns)
    if best is None:
        assert failure is not None
        raise failure
    return best


def _makespan_ns(draft: tuple[Plan, Result]) -> int:
    return draft[1].makespan_ns or 0


def _planned(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    policy: str,
    asked: Mapping[str, Any],
    replayed: Replayed | None,
) -> tuple[Plan, Result]:
    """A plan of one policy with these parameters alone, as :func:`planned` looks for it."""
    chosen = policies.policy_named(policy)
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
                raise InputError(
                    f"policy {policy} decides during the run; expected one that plans beforehand",
                    source="policy",
                )
            plan = _returning(plan, hardware.device_tier)
            result = check(plan, hardware, budget_bytes)
            timeline = (
                None
                if result.feasible
                else replay(plan, hardware, budget_bytes, record=True).timeline
            )
            if timeline is not None:
                plan = late_prefetches(plan, hardware.device_tier, timeline)
                result = check(plan, hardware, budget_bytes)
            if not result.feasible:
                failure = failure or str(result.error)
                break
            drafts.append((plan, result))
        if drafts:
            return min(drafts, key=_makespan_ns)
    raise InfeasibleError(
        f"no plan of policy {policy} stays within {human_size(budget_bytes)} in program order: "
        f"{failure}"
    )


def _returning(plan: Plan, device_tier: str) -> Plan:
    """The plan, with what it makes and leaves in tiers below brought back after the last op: a call
    returns its results on the device.
    """
    last, held = len(plan.graph.ops) - 1, plan.residency(device_tier)
    where: dict[int, dict[str, None]] = {}
    for cache_op in plan.cache_ops:
        tiers = where.setdefault(cache_op.tensor, {device_tier: None})
        if cache_op.destination is not None:
            tiers[cache_op.destination] = None
        if cache_op.op == DETACH:
            tiers.pop(cache_op.source, None)
    back = tuple(
        CacheOp(PREFETCH, t, next(iter(tiers)), device_tier, last)
        for t, tiers in sorted(where.items())
        if t not in held and plan.graph.survives[t] and tiers and device_tier not in tiers
    )
    return replace(plan, cache_ops=(*plan.cache_ops, *back)) if back else plan


def _checked(plan: Plan, hardware: Hardware, budget_bytes: int) -> Result:
    """The replay of a plan in program order. Raises :class:`PlanError` if it breaks a rule."""
    if findings := verify(plan, hardware):
        raise illegal_plan(f"policy {plan.policy} made a plan that breaks a rule", findings)
    return _accounted(plan, hardware, budget_bytes)


def _accounted(plan: Plan, hardware: Hardware, budget_bytes: int, **rule: Any) -> Result:
    """The replay in program order. What the host takes to launch counts in its times alone: its
    memory is that with a host that takes no time, which is further ahead and holds more.
    """
    result = replay(plan, hardware, budget_bytes, account=IN_PROGRAM_ORDER, **rule)
    if hardware.software is None:
        return result
    ahead = replace(hardware, software=None)
    held = replay(plan, ahead, budget_bytes, account=IN_PROGRAM_ORDER, **rule)
    if not (result.feasible and held.feasible):
        return result if held.feasible else held
    return replace(result, allocator=held.allocator)


def rule_of(allocator: str | None) -> Replayed:
    """Return the rule by which plans are checked: by their account in program order, and with one
    of torch's allocators by what that reserves.
    """
    return _checked if allocator is None else partial(within_reserved, allocator=allocator)


def within_reserved(plan: Plan, hardware: Hardware, budget_bytes: int, allocator: str) -> Result:
    """The replay in program order; infeasible also if torch's ``allocator``, which may reserve no
    more than the budget, runs out of it.
    """
    result = _checked(plan, hardware, budget_bytes)
    if not result.feasible:
        return result
    placed = _accounted(plan, hardware, budget_bytes, allocator=allocator)
    return placed if placed.feasible else replace(result, feasible=False, error=placed.error)


def _by_name(model: Any, inputs: Any) -> dict[str, Any]:
    """Inputs by argument name."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    names = list(inspect.signature(model.forward).parameters)
    if len(values) > len(names):
        raise InputError(
            f"{len(values)} example inputs; {type(model).__name__} takes {len(names)}",
            source="example_inputs",
        )
    return dict(zip(names, values, strict=False))
