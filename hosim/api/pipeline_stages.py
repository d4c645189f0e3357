"""One step of a pipeline: build a graph for each stage, plan each, and replay them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hosim import analysis, io
from hosim import engine as engines
from hosim.analysis.costmodel import under_runtime
from hosim.api.cell_progress import in_cell
from hosim.api.inputs import (
    Budget,
    Machine,
    Workload,
    jitter_of,
    load,
    machine,
    several,
)
from hosim.cache_plan import Plan
from hosim.data.runtime import RUNTIME
from hosim.data.stages import StagesResult
from hosim.engine import read_budget
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.models import build
from hosim.io.options import flag
from hosim.jitter import Jitter
from hosim.study.asked import REORDER, AnyPolicy, PolicyChoice, as_choice, without

_PIPELINE = "pipeline"


def stages_of(workload: Workload | Sequence[Workload]) -> list[Graph]:
    """Return the graphs of the stages of a pipeline: the given ones, or, for a single workload, all
    stages of its model.

    Raises :class:`InputError` for one workload that is not of a builder with ``pipeline``.
    """
    if isinstance(workload, Sequence) and not isinstance(workload, str):
        graphs = [load(each) for each in workload]
        if len(graphs) > 1:
            return graphs
        graph = graphs[0] if graphs else Graph("", (), ())
    else:
        graph = load(workload)
    parameters = graph.meta.get("builder")
    if not isinstance(parameters, Mapping) or int(parameters.get(_PIPELINE, 1)) < 2:
        raise InputError(
            "expected a model with pipeline=2 or more, as in llama-3.1-8b:phase=train:pipeline=4, "
            "or one workload for each stage",
            source="stages",
        )
    given: dict[str, Any] = {key: value for key, value in parameters.items() if key != "stage"}
    name = graph.name.replace(f":stage={parameters.get('stage')}", "")
    return [
        build(f"{name}:stage={n}", {**given, "stage": n, "tied": True})
        for n in range(int(parameters[_PIPELINE]))
    ]


def _on_stages(graphs: Sequence[Graph], profile: Hardware) -> Hardware:
    """Return the machine with one device per stage, under the runtime that the stages name, if any.
    Raises :class:`InputError` if they name several.
    """
    first, *others = [graph.meta.get(RUNTIME) for graph in graphs]
    if any([each != first for each in others]):
        raise InputError(
            "the stages name several runtimes, and a step has one", source="workload", where=RUNTIME
        )
    return replace(under_runtime(graphs[0], profile), devices=len(graphs))


def plan_stages(
    workload: Workload | Sequence[Workload],
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
) -> list[Plan]:
    """Plan each stage of a pipeline.

    Each stage is planned alone, as if all devices of the machine ran it: its plan does not know
    when it waits for other stages. If stages with reordered ops would deadlock, all are planned
    again in the workload's order.

    Parameters
    ----------
    workload
        A model with ``pipeline`` (see :func:`hosim.load`); its ``stage`` does not matter. Or one
        workload per stage, whose sends and receives have messages.
    hardware
        The machine: a name, a path, a mapping or a profile. It gets one device for each stage.
    policy
        The policy that plans: text such as ``lookahead:k=4``, an object or a function.
    budget
        The memory of each device that may be used: bytes, a size (``"12 GiB"``), a share of the
        resident peak of each stage (``"75%"``, 0.75), or ``None`` for all of it.

    Returns
    -------
    list of Plan
        One plan per stage, in the order of the stages.

    Raises
    ------
    InputError
        If an argument is invalid, if a message lacks its sender or its receiver, if its sizes
        differ, or if the stages deadlock.
    InfeasibleError
        If the policy finds no plan for a stage within the budget; the error names the stage.

    References
    ----------
    ``docs/pipelines.md`` describes stages, their messages and the results.

    Examples
    --------
    >>> import hosim
    >>> step = {
    ...     "model": "gpt2",
    ...     "phase": "train",
    ...     "sequence": 64,
    ...     "pipeline": 2,
    ...     "micro_batches": 4,
    ... }
    >>> len(hosim.plan_stages(step, "h100", "resident"))
    2
    """
    from hosim.errors import InfeasibleError
    from hosim.study.runs import check, make_plan

    graphs = stages_of(workload)
    analysis.exchanges(graphs)  # what does not fit together need not be planned first
    profile = _on_stages(graphs, machine(hardware))
    choice = as_choice(policy)

    def planned(choice: PolicyChoice) -> list[Plan]:
        plans = []
        for stage, graph in enumerate(graphs):
            tell(f"{choice.label}: planning stage {stage}")
            budget_bytes = read_budget(budget).of(graph, profile)[1]
            try:
                made = make_plan(graph, profile, choice, budget_bytes)
            except InfeasibleError as error:
                raise InfeasibleError(f"stage {stage}: {error}") from None
            check(made, profile, budget_bytes)
            plans.append(replace(made, made_for=(profile, budget_bytes)))
        return plans

    with in_cell() as tell:
        plans = planned(choice)
        try:
            analysis.exchanges([plan.graph for plan in plans])
        except InputError:  # the workload's own order has passed
            plans = planned(without(choice, REORDER))
            analysis.exchanges([plan.graph for plan in plans])
    return plans


def replay_stages(
    plans: Iterable[Plan],
    hardware: Machine | None = None,
    budget: Budget = None,
    *,
    record: bool = False,
    jitter: Jitter | None = None,
    compete: bool | None = None,
) -> StagesResult:
    """Replay the stages of a pipeline together, each on its own device, with their messages.

    Parameters
    ----------
    plans
        One plan per stage, from :func:`hosim.plan_stages` or from elsewhere.
    hardware
        The machine: a name, a path, a mapping or a profile. It gets one device for each stage.
        ``None`` is the machine that the plans were made for, each with its own budget unless you
        give another.
    budget
        The memory of each device that may be used: bytes, a size, a share of the resident peak of
        each stage, or ``None`` for all of it.
    record
        Keep the timelines in the results of the stages.
    jitter
        The variation of op and transfer times; the plans do not know it.
    compete
        Let copies take memory bandwidth from ops, as in :func:`hosim.replay`.

    Returns
    -------
    StagesResult
        The time of the step, and for each stage its result and its bubble, the time for which it
        waits for other stages.

    Raises
    ------
    InputError
        If an argument is invalid, if a message lacks its sender or receiver or their sizes differ,
        or if the stages deadlock.
    PlanError
        If a plan breaks a rule of the contract during the replay.

    References
    ----------
    ``docs/contract.md``, rule 21, has the rules.

    Examples
    --------
    >>> import hosim
    >>> step = {
    ...     "model": "gpt2",
    ...     "phase": "train",
    ...     "sequence": 64,
    ...     "pipeline": 2,
    ...     "micro_batches": 4,
    ... }
    >>> result = hosim.replay_stages(hosim.plan_stages(step, "h100", "resident"))
    >>> len(result.stages), 0 < result.bubble < 1
    (2, True)
    """
    listed = several(plans, "plans", "plans, which hosim.plan_stages makes")
    wrong = next((each for each in listed if not isinstance(each, Plan)), None)
    if wrong is not None:
        raise InputError(
            f"expected plans, got {type(wrong).__name__}: hosim.plan_stages makes them",
            source="plans",
        )
    if len(listed) < 2:
        raise InputError(
            f"expected the plans of 2 stages or more, got {len(listed)}", source="plans"
        )
    made_for = listed[0].made_for
    found = (
        machine(hardware) if hardware is not None else made_for[0] if made_for is not None else None
    )
    if found is None:
        raise InputError(
            "the plans do not say which machine they are for: name one, as in "
            "hosim.replay_stages(plans, 'h100')",
            source="plans",
        )
    compete = None if compete is None else flag(compete, "compete")
    profile = _on_stages([each.graph for each in listed], found)
    for stage, each in enumerate(listed):
        io.check_tiers(each, profile, source=f"the plan of stage {stage}")
    if budget is not None or hardware is not None:
        budgets = [read_budget(budget).of(each.workload, profile)[1] for each in listed]
    else:
        budgets = [
            profile.device.capacity_bytes if each.made_for is None else each.made_for[1]
            for each in listed
        ]
    record, drawn = flag(record, "record"), jitter_of(jitter)
    return engines.replay_stages(
        listed, profile, budgets, record=record, jitter=drawn, compete=compete
    )
