"""One plan: make it, replay it, explain it, and ask what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hosim import engine as engines
from hosim.analysis.lower_bounds import bound_of_result_ns
from hosim.analysis.verifying import verify
from hosim.api.cell_progress import in_cell
from hosim.api.inputs import (
    Budget,
    Machine,
    Workload,
    budget_of,
    callback,
    flag,
    jitter_of,
    machine_of,
    question,
    whole,
)
from hosim.base.search_control import SearchProgress
from hosim.cache_plan import Plan
from hosim.engine import resident_step, with_slack
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.plain_text import shown
from hosim.result import IN_TIME, LEDGER, Result
from hosim.study.asked import AnyPolicy, as_choice

if TYPE_CHECKING:
    from hosim.report import PlanExplanation
    from hosim.study import Blame


def plan(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    *,
    devices: int | None = None,
    rescale: bool = False,
    within: float | str | None = None,
    time: float | str | None = None,
    work: int | None = None,
    progress: Callable[[SearchProgress], object] | None = None,
) -> Plan:
    """Plan when each tensor moves between the memories.

    Parameters
    ----------
    workload
        What to run: a name, a path, a mapping or a graph (see :func:`hosim.load`).
    hardware
        What to run it on: a name, a path, a mapping or a profile.
    policy
        Which policy plans: text such as ``lookahead:k=4``, an object such as
        ``hosim.policies.lookahead``, or a function ``(graph, hardware, budget_bytes)`` that returns
        a plan. ``hosim policies`` lists them.
    budget
        Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the resident peak
        (``"75%"``, 0.75) or ``None``: all of it.
    devices
        How many devices run the program together; ``None``: as many as the workload is for, or as
        the profile says.
    rescale
        Whether durations that were measured on another machine are scaled to this one, by the ratio
        of the cost model's times of each op on the two; the interval of the makespan says how
        unsure that is. Without it they are refused.
    within
        Ends the search of ``hyperoffload`` at a plan at most so far above the lower bound:
        ``"1%"``, 0.01.
    time
        Ends it after so long, with the best plan so far: ``"2s"``, or a number of seconds. Ctrl-C
        ends it, too; a second one is a ``KeyboardInterrupt``.
    work
        Ends it after so much work, which makes again what ``time`` ended (``Plan.search``).
    progress
        Is called at each of its checkpoints with how far it is
        (:class:`hosim.base.search_control.SearchProgress`). What is true ends it there.

    Returns
    -------
    Plan
        Where tensors lie at the start, and the cache ops. It breaks no rule of the contract; the
        replay says how long it takes, and whether a plan that its policy did not check against the
        budget fits. Where it does, each copy has its slack (``CacheOp.slack_ns``), unless the
        policy decides during the replay, or devices do not all do the same. ``search`` says how
        much work was done, and what ended it.

    Raises
    ------
    InputError
        If an argument is not what it should be.
    InfeasibleError
        If the policy finds no plan within the budget.

    References
    ----------
    ``docs/planner.md`` describes ``hyperoffload``; the other policies name their papers in
    :mod:`hosim.policies`.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> hosim.plan(b.build(), "toy", "layerwise").count("prefetch")
    1
    >>> hosim.plan(b.build(), "toy", within="1%").search.ended
    'within'
    """
    from hosim.study.asked import read_search_ends, searching
    from hosim.study.runs import check, make_plan

    ends = read_search_ends(within, time, work)
    (choice,) = ends.of([as_choice(policy)])
    asked = question(workload, hardware, choice, budget, devices, rescale)
    with in_cell() as tell, searching(ends, tell, callback(progress, "progress")) as (_, begins):
        begins(f"{asked.choice.label}: planning")
        made = make_plan(asked.graph, asked.hardware, asked.choice, asked.budget_bytes)
    check(made, asked.hardware, asked.budget_bytes)
    made_for = asked.hardware, asked.budget_bytes
    return replace(with_slack(made, *made_for), made_for=made_for)


def replay(
    plan: Plan,
    hardware: Machine | None = None,
    budget: Budget = None,
    *,
    budget_bytes: int | None = None,
    devices: int | None = None,
    record: bool = False,
    allocator: str = LEDGER,
    account: str = IN_TIME,
    jitter: Jitter | None = None,
    fold: bool = True,
    reserve_bytes: int | None = None,
    compete: bool | None = None,
    engine: str | None = None,
) -> Result:
    """Replay a plan on a machine by the rules of ``docs/contract.md``; two runs give equal results.

    Parameters
    ----------
    plan
        The plan, whoever made it: :func:`hosim.plan`, :func:`hosim.load_plan`, or you.
    hardware
        The machine: a name, a path, a mapping or a profile; ``None``: the one that
        :func:`hosim.plan` made the plan for, within the same budget unless another is given. On one
        of several devices, each device runs the plan on tensors of its own; they share only room
        and bandwidth.
    budget
        Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the resident peak
        (``"75%"``, 0.75) or ``None``: all of it.
    budget_bytes
        The same in bytes, which may exceed the device's capacity. Give one of the two.
    devices
        How many devices run the program together; ``None``: as many as the workload is for, or as
        the profile says.
    record
        Whether to keep the timeline in the result; :func:`hosim.plot` needs it.
    allocator
        What places the device's bytes: ``ledger`` only counts them; ``caching``,
        ``caching-expandable`` and ``static`` place them, and then what they reserve has to stay
        within the budget too.
    account
        The order in which the allocator's bytes are counted: ``time``, what the device holds at
        each instant, or ``program``, what a host that runs ahead of the device has allocated.
    jitter
        How the times of ops and transfers vary; the plan does not know.
    fold
        Whether devices that do the same at the same time are replayed as one. The result is the
        same either way.
    reserve_bytes
        Bytes that the allocator may reserve, if not the budget.
    compete
        Whether copies take memory bandwidth from ops. By default they do, unless every op has a
        measured duration and none says which bytes it accesses.
    engine
        What replays it: ``reference``, which is ``docs/contract.md`` in plain SimPy, or ``loop``,
        which is the same rules compiled, without timelines, allocators and a few rules. The figures
        are the same; ``None``: the loop where it covers what is asked for. The result says which it
        was.

    Returns
    -------
    Result
        Times in nanoseconds, sizes in bytes; ``lower_bound_ns`` is a time that no plan can beat,
        ``slowdown`` is against everything resident. If the plan does not fit, ``feasible`` is
        false, ``error`` says why, times are ``None``, and peaks are those reached until then.

    Raises
    ------
    InputError
        If an argument is not what it should be, or the plan names a tier or a channel that the
        machine does not have.
    PlanError
        If the plan breaks a rule on the way.

    References
    ----------
    ``docs/contract.md`` has the rules; :mod:`hosim.engine` implements them.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> up, off = (
    ...     hosim.CacheOp("prefetch", 0, "ddr", "hbm"),
    ...     hosim.CacheOp("detach", 0, "hbm", None, after=0),
    ... )
    >>> hosim.replay(hosim.Plan(b.build(), cache_ops=(up, off)), "toy", budget="100%").makespan_ns
    90
    """
    from hosim.io import check_tiers

    _expect_plan(plan)
    if budget is not None and budget_bytes is not None:
        raise InputError("give one of budget and budget_bytes", source="replay")
    for name, given in (("allocator", allocator), ("account", account)):
        if not isinstance(given, str):
            raise InputError(f"expected a name, got {shown(given, 60)}", source=name)
    jitter = jitter_of(jitter)
    record, fold, compete = (
        flag(record, "record"),
        flag(fold, "fold"),
        None if compete is None else flag(compete, "compete"),
    )
    if budget_bytes is not None:
        budget_bytes = whole(budget_bytes, "budget_bytes", 1)
    if reserve_bytes is not None:
        reserve_bytes = whole(reserve_bytes, "reserve_bytes", 1)
    profile, planned_bytes = _machine_of(plan, hardware, devices)
    check_tiers(plan, profile, source="plan")
    if budget is not None:
        budget_bytes = budget_of(budget, plan.workload, profile)
    usable = planned_bytes if budget_bytes is None else budget_bytes
    result = engines.replay(
        plan,
        profile,
        usable,
        record=record,
        allocator=allocator,
        account=account,
        jitter=jitter,
        fold=fold,
        reserve_bytes=reserve_bytes,
        compete=compete,
        engine=engine,
    )
    result = replace(
        result, ideal_ns=resident_step(plan.workload, profile).makespan_ns, replayed=(plan, profile)
    )
    return result.bounded_by(
        lambda: bound_of_result_ns(
            result,
            plan,
            profile,
            usable,
            repeats=not verify(plan, profile, usable),
            compete=compete,
        )
    )


def explain(
    plan: Plan,
    hardware: Machine | None = None,
    budget: Budget = None,
    *,
    devices: int | None = None,
) -> PlanExplanation:
    """Explain why each tensor moves or stays.

    Parameters
    ----------
    plan
        A plan of a policy that decides before the replay.
    hardware
        The machine: a name, a path, a mapping or a profile; ``None``: the one that
        :func:`hosim.plan` made the plan for, within the same budget unless another is given.
    budget
        Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the resident peak
        (``"75%"``, 0.75) or ``None``: all of it.
    devices
        How many devices run the program together; ``None``: as many as the workload is for, or as
        the profile says.

    Returns
    -------
    PlanExplanation
        Prints as the tables of ``hosim plan --explain``; ``as_dict`` gives the figures.

    Raises
    ------
    InputError
        If an argument is not what it should be, or the plan's policy decides during the replay.
    InfeasibleError
        If the plan does not fit the budget.

    References
    ----------
    :mod:`hosim.planner.hyperoffload.explanations.explain` takes each reason from what the planner
    noted, and the effects from the plan's replay.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> why = hosim.explain(hosim.plan(b.build(), "toy", "layerwise"))
    >>> print(str(why).splitlines()[1])
    If what lives below came up at its first use and nothing else moved, hbm would hold 40 B at op f; the plan holds 40 B at
    """
    from hosim.io import check_tiers
    from hosim.planner.hyperoffload.explanations import explain as explained
    from hosim.report import PlanExplanation

    _expect_plan(plan)
    profile, planned_bytes = _machine_of(plan, hardware, devices)
    check_tiers(plan, profile, source="plan")
    usable = planned_bytes if budget is None else budget_of(budget, plan.workload, profile)
    return PlanExplanation(
        explained(plan, profile, profile.device.capacity_bytes if usable is None else usable)
    )


def _machine_of(
    plan: Plan, hardware: Machine | None, devices: int | None
) -> tuple[Hardware, int | None]:
    """The machine that is given, or that the plan was made for with its budget. Raises
    :class:`InputError` if there is neither.
    """
    if hardware is not None:
        return machine_of(plan.workload, hardware, devices), None
    if plan.made_for is None:
        raise InputError(
            "the plan does not say which machine it is for: name one, as in hosim.replay(plan, "
            "'toy')",
            source="plan",
        )
    profile, budget_bytes = plan.made_for
    return machine_of(
        plan.workload, profile, profile.devices if devices is None else devices
    ), budget_bytes


def _expect_plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise InputError(
            f"expected a plan, got {type(plan).__name__}: hosim.plan makes one, "
            "hosim.load_plan(path, workload) reads one",
            source="plan",
        )


def blame(
    workload: Workload | Plan,
    hardware: Machine | None = None,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    *,
    devices: int | None = None,
    more_memory: str = "1 GB",
    more_bandwidth: str = "10 GB/s",
    rescale: bool = False,
) -> Blame:
    """Find what a plan waits for, and what more memory or more bandwidth would save.

    Parameters
    ----------
    workload
        What to run: a name, a path, a mapping or a graph. Or a plan, which is judged as it is.
    hardware
        The machine to run it on: a name, a path, a mapping or a profile. For a plan of
        :func:`hosim.plan`, ``None`` is the machine that it was made for, within the same budget
        unless another is given.
    policy
        Which policy plans, unless a plan is given: text such as ``lookahead:k=4``, an object or a
        function.
    budget
        Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the resident peak
        (``"75%"``, 0.75) or ``None``: all of it.
    devices
        How many devices run the program together; ``None``: as many as the workload is for, or as
        the profile says.
    more_memory
        How much more device memory to price: ``"1 GB"``.
    more_bandwidth
        How much more bandwidth to price, channel by channel: ``"10 GB/s"``.
    rescale
        Whether durations that were measured on another machine are scaled to this one, by the ratio
        of the cost model's times of each op on the two; the interval of the makespan says how
        unsure that is. Without it they are refused.

    Returns
    -------
    Blame
        ``frame`` has one row per stall (nanoseconds, op, cause, tensor, channel), ``prices`` what
        each resource would save.

    Raises
    ------
    InputError
        If an argument is not what it should be.
    InfeasibleError
        If the workload does not fit the budget.

    References
    ----------
    :mod:`hosim.study.prices` defines shadow prices; ``docs/contract.md`` defines the causes of
    stalls.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> why = hosim.blame(
    ...     b.build(), "toy", "layerwise", more_bandwidth="1 GB/s", more_memory="10 B"
    ... )
    >>> print(why)
    layerwise takes 90 ns, and its streams wait 40 ns: 40 ns for h2d; its critical path is 50 ns ops on hbm, 40 ns copies over h2d
    >>> print(why.prices[0])
    +1.00 GB/s of h2d saves 20 ns
    """
    from hosim.io import check_tiers
    from hosim.study import blame as blamed
    from hosim.study import steps_of

    memory, bandwidth = steps_of(more_memory, more_bandwidth)
    plan = workload if isinstance(workload, Plan) else None
    if isinstance(workload, Plan):
        profile, planned_bytes = _machine_of(workload, hardware, devices)
        check_tiers(workload, profile, source="plan")
        asked = question(
            workload.workload,
            profile,
            policy,
            planned_bytes if budget is None else budget,
            profile.devices,
            rescale,
        )
    elif hardware is None:
        raise InputError("name the machine that the workload is to run on", source="hardware")
    else:
        asked = question(workload, hardware, policy, budget, devices, rescale)
    with in_cell() as tell:
        return blamed(asked, plan, memory, bandwidth, tell)
