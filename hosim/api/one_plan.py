"""Make one plan, replay it, explain it, and find what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hosim import engine as engines
from hosim import io, report, study
from hosim.analysis.lower_bounds import bound_of_result_ns
from hosim.analysis.verifying import verify
from hosim.api.cell_progress import in_cell
from hosim.api.inputs import (
    Budget,
    Machine,
    Workload,
    jitter_of,
    machine_of,
    question,
)
from hosim.cache_plan import Plan
from hosim.engine import read_budget, resident_step, with_slack
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io.options import Option, declared, keywords
from hosim.result import Result
from hosim.study.asked import AnyPolicy

if TYPE_CHECKING:
    from hosim.study import Blame

_REPLAY = declared(
    "budget_bytes devices record allocator account jitter fold reserve_bytes compete engine",
    Option(
        "budget_bytes",
        of=int,
        least=1,
        excludes={"budget": ""},
        about="The budget in bytes, which may exceed the device's capacity. Give one of the two.",
    ),
    Option(
        "record",
        of=bool,
        default=False,
        about="Whether to keep the timeline in the result; :func:`hosim.plot` needs it.",
    ),
    Option(
        "jitter",
        takes="Jitter | None",
        about="How the times of ops and transfers vary; the plan does not know.",
    ),
    Option(
        "fold",
        of=bool,
        default=True,
        about="Whether devices that do the same at the same time are replayed as one. The result "
        "is "
        "the same either way.",
    ),
    Option(
        "reserve_bytes",
        of=int,
        least=1,
        about="Bytes that the allocator may reserve, if not the budget.",
    ),
    Option(
        "compete",
        of=bool,
        about="Whether copies take memory bandwidth from ops. By default they do, unless every op "
        "has a measured duration and none says which bytes it accesses.",
    ),
    Option(
        "engine",
        about="What replays it: ``reference``, which is ``docs/contract.md`` in plain SimPy, or "
        "``loop``, which is the same rules compiled, without timelines, allocators and a few "
        "rules. "
        "The figures are the same; ``None``: the loop where it covers what is asked for. The "
        "result "
        "says which it was.",
    ),
)


@keywords(*declared("devices rescale within time work progress"))
def plan(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    **options: Any,
) -> Plan:
    """Plan when each tensor moves between the memories.

    Returns
    -------
    Plan
        The tiers in which tensors start, and the cache ops. It breaks no rule of the contract. Some
        policies do not check the budget: the replay shows if their plans fit, and how long a plan
        takes. In a plan that fits, each copy has its slack (``CacheOp.slack_ns``), unless the
        policy decides during the replay or the devices do different work. ``search`` has the
        amount of work that was done, and what ended it.

    Raises
    ------
    InputError
        If an argument is invalid.
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
    from hosim.study.asked import searching
    from hosim.study.runs import check, make_plan

    asked = question(workload, hardware, policy, budget, **options)
    with in_cell() as tell, searching(asked.ends, tell, options["progress"]) as (_, begins):
        begins(f"{asked.choice.label}: planning")
        made = make_plan(asked.graph, asked.hardware, asked.choice, asked.budget_bytes)
    check(made, asked.hardware, asked.budget_bytes)
    made_for = asked.hardware, asked.budget_bytes
    return replace(with_slack(made, *made_for), made_for=made_for)


@keywords(*_REPLAY)
def replay(
    plan: Plan, hardware: Machine | None = None, budget: Budget = None, **options: Any
) -> Result:
    """Replay a plan on a machine by the rules of ``docs/contract.md``; two runs give equal results.

    Parameters
    ----------
    plan
        A plan of :func:`hosim.plan` or :func:`hosim.load_plan`, or one that you made.
    hardware
        The machine: a name, a path, a mapping or a profile. ``None`` is the machine that
        :func:`hosim.plan` made the plan for, with the same budget unless you give another. If the
        machine has several devices, each runs the plan on its own tensors, and they share only
        memory and bandwidth.

    Returns
    -------
    Result
        Times in nanoseconds, sizes in bytes. ``lower_bound_ns`` is a time that no plan can beat;
        ``slowdown`` is the makespan divided by the one with everything resident. If the plan does
        not fit, ``feasible`` is false, ``error`` has the reason, times are ``None``, and peaks are
        those reached until then.

    Raises
    ------
    InputError
        If an argument is invalid, or the plan names a tier or a channel that the machine does not
        have.
    PlanError
        If the plan breaks a rule of the contract during the replay.

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
    _expect_plan(plan)
    budget_bytes, compete = options.pop("budget_bytes"), options["compete"]
    jitter_of(options["jitter"])
    profile, planned_bytes = _machine_of(plan, hardware, options.pop("devices"))
    io.check_tiers(plan, profile, source="plan")
    if budget is not None:
        budget_bytes = read_budget(budget).of(plan.workload, profile)[1]
    usable = planned_bytes if budget_bytes is None else budget_bytes
    result = engines.replay(plan, profile, usable, **options)
    result = replace(
        result,
        ideal_ns=resident_step(plan.workload, profile).makespan_ns,
        replayed=(plan, profile),
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


@keywords(*declared("devices"))
def explain(
    plan: Plan, hardware: Machine | None = None, budget: Budget = None, **options: Any
) -> report.PlanExplanation:
    """Explain why each tensor moves or stays.

    Parameters
    ----------
    plan
        A plan of a policy that decides before the replay.
    hardware
        The machine: a name, a path, a mapping or a profile. ``None`` is the machine that
        :func:`hosim.plan` made the plan for, with the same budget unless you give another.

    Returns
    -------
    PlanExplanation
        The reasons. It prints as the tables of ``hosim plan --explain``; ``as_dict`` returns the
        figures.

    Raises
    ------
    InputError
        If an argument is invalid, or the plan's policy decides during the replay.
    InfeasibleError
        If the plan does not fit the budget.

    References
    ----------
    :mod:`hosim.planner.hyperoffload.explanations.explain` takes each reason from the planner's
    notes, and the effects from the plan's replay.

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
    from hosim.planner.hyperoffload.explanations import explain as explained

    _expect_plan(plan)
    profile, planned_bytes = _machine_of(plan, hardware, options["devices"])
    io.check_tiers(plan, profile, source="plan")
    usable = planned_bytes if budget is None else read_budget(budget).of(plan.workload, profile)[1]
    return report.PlanExplanation(
        explained(plan, profile, profile.device.capacity_bytes if usable is None else usable)
    )


def _machine_of(
    plan: Plan, hardware: Machine | None, devices: int | None
) -> tuple[Hardware, int | None]:
    """Return the given machine and ``None``, or the machine that the plan was made for and its
    budget in bytes. Raises :class:`InputError` if there is neither.
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


@keywords(*declared("devices more_memory more_bandwidth rescale"))
def blame(
    workload: Workload | Plan,
    hardware: Machine | None = None,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    **options: Any,
) -> Blame:
    """Find what a plan waits for, and how much time more memory or more bandwidth would save.

    Parameters
    ----------
    workload
        The workload: a name, a path, a mapping or a graph. Or a plan, which is replayed unchanged.
    hardware
        The machine: a name, a path, a mapping or a profile. For a plan of :func:`hosim.plan`,
        ``None`` is the machine that it was made for, with the same budget unless you give another.
    policy
        The policy that plans, unless you give a plan: text such as ``lookahead:k=4``, an object or
        a function.

    Returns
    -------
    Blame
        ``frame`` has one row per stall (nanoseconds, op, cause, tensor, channel); ``prices`` has
        the nanoseconds that more of each resource would save.

    Raises
    ------
    InputError
        If an argument is invalid.
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
    memory, bandwidth = study.steps_of(options["more_memory"], options["more_bandwidth"])
    plan = workload if isinstance(workload, Plan) else None
    if plan is not None:
        hardware, planned_bytes = _machine_of(plan, hardware, options["devices"])
        io.check_tiers(plan, hardware, source="plan")
        options["devices"] = hardware.devices
        budget = planned_bytes if budget is None else budget
    elif hardware is None:
        raise InputError("name the machine that the workload is to run on", source="hardware")
    asked = question(
        workload if plan is None else plan.workload, hardware, policy, budget, **options
    )
    with in_cell() as tell:
        return study.blame(asked, plan, memory, bandwidth, tell)
