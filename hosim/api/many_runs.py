"""Several plans, policies, budgets or machines beside each other: comparisons and sweeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hosim.api.cell_progress import in_cell
from hosim.api.inputs import (
    AnyRuntime,
    Budget,
    Machine,
    Policies,
    Vary,
    Workload,
    budget_of,
    callback,
    choices_of,
    file_of,
    flag,
    less_than_asked,
    load,
    machine,
    machine_of,
    number_of,
    policies_in,
    question,
    real,
    several,
    under,
    whole,
)
from hosim.base.search_control import SearchProgress
from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.io import rescaled
from hosim.jitter import Jitter
from hosim.notes import each_once
from hosim.plain_text import shown
from hosim.result import Result
from hosim.study.asked import AnyPolicy, SearchEnds, Value, read_search_ends, read_vary, searching

if TYPE_CHECKING:
    from distributed import Client
    from pandas import DataFrame

    from hosim.study import Diff


def compare(
    workload: Workload,
    hardware: Machine | Sequence[Machine],
    policies: Policies = None,
    budget: Budget = None,
    *,
    devices: int | None = None,
    rescale: bool = False,
    runtime: AnyRuntime = None,
    within: float | str | None = None,
    time: float | str | None = None,
    work: int | None = None,
    progress: Callable[[SearchProgress], object] | None = None,
) -> DataFrame:
    """Compare policies on one workload, one machine and one budget; or machines, of which each says
    how much memory is enough.

    Parameters
    ----------
    workload
        What to run: a name, a path, a mapping or a graph (see :func:`hosim.load`).
    hardware
        What to run it on: a name, a path, a mapping or a profile. Or a list of these, which are
        compared.
    policies
        The policies: text separated by commas, or a list of texts, of objects such as
        ``hosim.policies.lookahead`` and of functions ``(graph, hardware, budget_bytes)`` that
        return a plan; ``None`` stands for all but models of whole systems, ``hybrid`` and
        ``optimal``, and for ``hyperoffload`` where machines are compared.
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
    runtime
        The software that runs it: the name or the path of a runtime (``hosim runtime list``), or
        the mapping of its file; ``None``: that which the workload names, or none.
    within
        Ends the search of ``hyperoffload`` on one machine at a plan so near the bound, as in
        :func:`hosim.plan`.
    time
        Ends it after so long. Ctrl-C ends it, too, and then the frame has the policies whose
        results are known by then.
    work
        Ends it after so much work.
    progress
        Is told how far it is.

    Returns
    -------
    pandas.DataFrame
        A cell of a notebook shows its main columns with units. One row per policy, with
        the columns of :func:`hosim.study.rows_of_answers.rows.figure_columns`: times in
        nanoseconds, sizes in bytes. ``attrs["notes"]`` are lines about what a reader of the figures
        has to know (:mod:`hosim.notes`), and machines that have less memory than the budget.
        ``slowdown`` is against ``ideal_ns``, which is the makespan with everything resident, as if
        the device had enough memory. ``planning_s`` and ``replay_s`` are the seconds that planning
        and replaying took here. If a policy does not fit, ``feasible`` is false and ``error`` says
        why; if a policy of your own fails, likewise, and :func:`hosim.plan` raises its error with
        the traceback. With several machines: one row per machine and policy, with the columns of
        :data:`hosim.study.machines.COLUMNS`; ``enough_bytes`` is the smallest budget with which the
        makespan is at most 5 % above that with everything resident, if there is one.

    Raises
    ------
    InputError
        If an argument is not what it should be.
    PlanError
        If the plan of one of hosim's own policies breaks a rule, which is a bug.

    References
    ----------
    ``docs/contract.md`` defines the figures.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = [b.tensor(f"w{i}", 40, "parameter", home="ddr") for i in range(3)]
    >>> _ = [b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50) for i in range(3)]
    >>> table = hosim.compare(b.build(), "toy", ["resident", "layerwise"], budget="80 B")
    >>> table[["policy", "feasible", "makespan_ns", "hbm_peak_bytes"]]
          policy  feasible  makespan_ns  hbm_peak_bytes
    0   resident     False         <NA>              80
    1  layerwise      True          190              80

    A policy of your own is a function; what is wrong with it is its row's ``error``.

    >>> def mine(graph, hardware, budget_bytes):
    ...     return hosim.Plan(graph)
    >>> list(hosim.compare(b.build(), "toy", [mine, hosim.policies.belady], 0.9)["policy"])
    ['mine', 'belady']

    >>> there = hosim.GraphBuilder("weights on the device")
    >>> _ = (
    ...     there.tensor("w", 120, "parameter"),
    ...     there.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> hosim.compare(there.build(), ["toy", "h100-80gb-sxm"])[
    ...     ["hardware", "feasible", "makespan_ns", "enough_bytes"]
    ... ]
            hardware  feasible  makespan_ns  enough_bytes
    0            toy     False         <NA>          <NA>
    1  h100-80gb-sxm      True           50           120
    """
    from hosim.api.compared_frame import ComparedFrame
    from hosim.study import compare as compared
    from hosim.study.rows_of_answers import DEVICE_TIER, figure_columns, figures, frame

    graph, ends = under(load(workload), runtime), read_search_ends(within, time, work)
    if isinstance(hardware, Sequence) and not isinstance(hardware, str):
        from hosim.study import compare_machines

        if ends != SearchEnds() or progress is not None:
            raise InputError(
                "within, time, work and progress are for one machine: give one, or leave them out",
                source="hardware",
            )

        machines = [
            machine_of(graph, one, devices)
            for one in several(hardware, "hardware", "a list of machines")
        ]
        if not machines:
            raise InputError("expected at least one machine, got an empty list", source="hardware")
        choices = choices_of("hyperoffload" if policies is None else policies)
        with in_cell() as tell:
            found = compare_machines(
                graph, machines, choices, budget, tell, number_of(devices), rescale=rescale
            ).frame
        table = ComparedFrame(found)
        table.attrs["notes"] = [*found.attrs["notes"], *less_than_asked(budget, graph, machines)]
        return table
    profile = machine_of(graph, hardware, devices)
    graph = rescaled(graph, profile) if flag(rescale, "rescale") else graph
    choices = ends.of(choices_of(policies, graph))
    with in_cell() as tell, searching(ends, tell, callback(progress, "progress")) as (_, begins):
        results = compared(graph, profile, choices, budget_of(budget, graph, profile), begins)
    more = ("planning_s", "replay_s")
    rows: list[dict[str, Value]] = [
        {**figures(r, profile), **{name: getattr(r, name) for name in more}} for r in results
    ]
    said = [
        *(line for result in results for line in result.notes),
        *less_than_asked(budget, graph, [profile]),
    ]
    if len(results) < len(choices):
        said.append(
            "interrupted: no result of "
            f"{', '.join([choice.label for choice in choices[len(results) :]])}"
        )
    table = ComparedFrame(frame(rows, [*figure_columns(profile), *more]))
    table.attrs["notes"] = each_once(said)
    table.attrs[DEVICE_TIER] = profile.device_tier  # hosim.plot draws its peak
    return table


def sweep(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    *,
    devices: int | None = None,
    vary: Vary,
    output: str | os.PathLike[str] | None = None,
    jobs: int = -1,
    scheduler: str | Client | None = None,
    progress: Callable[[int, int, int], None] | None = None,
    rescale: bool = False,
) -> DataFrame:
    """Replay a workload once for each value of some fields.

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
    vary
        Which fields take which values. A grid: texts such as
        ``channels.h2d.bandwidth=25..200GB/s:8``, or a mapping from fields to lists of values. Or a
        list of mappings or a frame, one point each. A value of ``policy`` may be an object or a
        function, too.
    output
        A CSV or Parquet file that gets each row as soon as it is known. The same call continues an
        interrupted sweep.
    jobs
        How many processes compute; -1: one per core.
    scheduler
        A Dask cluster that computes instead: its address, or a client.
    progress
        Called with the number of rows done, of all rows, and of those that do not fit. A cell of a
        notebook shows them in any case.
    rescale
        Whether durations that were measured on another machine are scaled to this one, by the ratio
        of the cost model's times of each op on the two; the interval of the makespan says how
        unsure that is. Without it they are refused.

    Returns
    -------
    pandas.DataFrame
        One row per point: the value of each varied field, then the columns of
        :func:`hosim.study.rows_of_answers.rows.figure_columns` in nanoseconds and bytes. A point
        that fails has its ``error``. ``attrs["notes"]`` are lines about what a reader of the
        figures has to know, and about what bounds a channel whose bandwidth is varied beyond it.

    Raises
    ------
    InputError
        If an argument is not what it should be, or a field does not exist.

    References
    ----------
    :mod:`hosim.study.runs.scenario` names the fields.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = [b.tensor(f"w{i}", 40, "parameter", home="ddr") for i in range(3)]
    >>> _ = [b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50) for i in range(3)]
    >>> table = hosim.sweep(
    ...     b.build(), "toy", "layerwise", "80 B", vary="channels.h2d.bandwidth=1..4GB/s:4", jobs=1
    ... )
    >>> table[["channels.h2d.bandwidth_bytes_per_s", "makespan_ns", "transfer_stall_ns"]]
       channels.h2d.bandwidth_bytes_per_s  makespan_ns  transfer_stall_ns
    0                          1000000000          190                 40
    1                          2000000000          170                 20
    2                          3000000000          164                 14
    3                          4000000000          160                 10
    """
    from hosim.study import capped, same_everywhere, under_way
    from hosim.study import sweep as swept
    from hosim.study.rows_of_answers import frame
    from hosim.study.runs import cluster, pool

    runner = pool(whole(jobs, "jobs", -1)) if scheduler is None else cluster(scheduler)
    target = None if output is None else file_of(output, "output")
    if progress is not None and not callable(progress):
        raise InputError(
            f"expected a function (done, total, failed), got {shown(progress)}", source="progress"
        )
    vary, others = policies_in(vary)
    points = read_vary(vary)
    asked = replace(question(workload, hardware, policy, budget, devices, rescale), others=others)
    with in_cell() as tell:

        def told(done: int, total: int, failed: int) -> None:
            tell(under_way(done, total, failed))
            if progress is not None:
                progress(done, total, failed)

        found = swept(asked, points, target, runner, told)
    why = same_everywhere(asked, points, found.rows)
    return frame(
        found.rows,
        found.columns,
        (*asked.notes, *capped(asked, points), *([] if why is None else [why])),
    )


def diff(
    a: AnyPolicy | os.PathLike[str] | Plan | Result,
    b: AnyPolicy | os.PathLike[str] | Plan | Result,
    workload: Workload | None = None,
    hardware: Machine | None = None,
    budget: Budget = None,
    *,
    devices: int | None = None,
) -> Diff:
    """Compare two plans or two results: figure by figure, tensor by tensor, op by op.

    Parameters
    ----------
    a
        A plan, a result, the path of a file of either, or a policy (text, an object or a function),
        which plans for the workload on the hardware.
    b
        Likewise.
    workload
        What the plans are for, if ``a`` is no plan: a name, a path, a mapping or a graph.
    hardware
        A machine on which plans are replayed as well: a name, a path, a mapping or a profile.
    budget
        Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the resident peak
        (``"75%"``, 0.75) or ``None``: all of it.
    devices
        How many devices run the program together; ``None``: as many as the workload is for, or as
        the profile says.

    Returns
    -------
    Diff
        ``figures``, ``tensors`` and ``ops`` that differ, in nanoseconds and bytes; ``frame`` gives
        each as a pandas frame.

    Raises
    ------
    InputError
        If an argument is not what it should be, or there is nothing to compare.

    References
    ----------
    ``docs/formats.md`` describes the figures of a result.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> print(hosim.diff("layerwise", "on_demand", b.build(), "toy"))
    layerwise and on_demand differ in 3 figures, 1 tensor and 2 ops
    """
    from hosim.study import diff as differ
    from hosim.study import side_of

    graph = None if workload is None else load(workload)
    if isinstance(a, Plan):
        if graph is not None and graph != a.workload:
            raise InputError(
                f"the plan is for {a.workload.name}, not for {graph.name}: leave the workload out",
                source="diff",
            )
        graph = a.workload
    profile = budget_bytes = None
    if hardware is not None:
        profile = machine(hardware) if graph is None else machine_of(graph, hardware, devices)
    if graph is not None and profile is not None:
        budget_bytes = budget_of(budget, graph, profile)
    return differ(
        side_of(a, graph, profile, budget_bytes), side_of(b, graph, profile, budget_bytes)
    )


def robustness(
    workload: Workload,
    hardware: Machine,
    policies: Policies = None,
    budget: Budget = None,
    *,
    devices: int | None = None,
    runs: int = 20,
    op_sigma: float = 0.05,
    transfer_sigma: float = 0.1,
    seed: int = 0,
    order: bool = False,
    rescale: bool = False,
) -> DataFrame:
    """Replay each policy's plan with op and transfer times that vary, or with its ops in other
    orders.

    Every policy plans on nominal times, and all policies meet the same variations.

    Parameters
    ----------
    workload
        What to run: a name, a path, a mapping or a graph (see :func:`hosim.load`).
    hardware
        What to run it on: a name, a path, a mapping or a profile.
    policies
        The policies: text separated by commas, or a list of texts, of objects such as
        ``hosim.policies.lookahead`` and of functions ``(graph, hardware, budget_bytes)`` that
        return a plan; ``None`` stands for all but models of whole systems, ``hybrid`` and
        ``optimal``.
    budget
        Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the resident peak
        (``"75%"``, 0.75) or ``None``: all of it.
    devices
        How many devices run the program together; ``None``: as many as the workload is for, or as
        the profile says.
    runs
        How many variations to replay. Run 0 comes before them, with nominal times.
    op_sigma
        Relative standard deviation of the ops' times.
    transfer_sigma
        Relative standard deviation of the time during which a transfer's bytes flow.
    seed
        Seed of the variations; the same seed gives the same times.
    order
        Whether each run also has another order of the ops, drawn with the seed: each op follows its
        producers, and each cache op the op that it is issued after. A run in which the plan then
        breaks a rule does not fit. With both sigmas 0 the order alone varies.
    rescale
        Whether durations that were measured on another machine are scaled to this one, by the ratio
        of the cost model's times of each op on the two; the interval of the makespan says how
        unsure that is. Without it they are refused.

    Returns
    -------
    pandas.DataFrame
        One row per policy and run: ``policy run feasible makespan_ns stall_ns peak_bytes slowdown
        error``; the slowdown is against everything resident, with nominal times.
        :func:`hosim.study.robustness.percentiles` summarises it.

    Raises
    ------
    InputError
        If an argument is not what it should be.

    References
    ----------
    :mod:`hosim.jitter` describes the distribution.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> hosim.robustness(b.build(), "toy", "layerwise", runs=2)[["policy", "run", "peak_bytes"]]
          policy  run  peak_bytes
    0  layerwise    0          40
    1  layerwise    1          40
    2  layerwise    2          40
    """
    from hosim.study import robustness as drawn

    graph = load(workload)
    profile = machine_of(graph, hardware, devices)
    graph = rescaled(graph, profile) if flag(rescale, "rescale") else graph
    choices = choices_of(policies, graph)
    budget_bytes = budget_of(budget, graph, profile)
    jitter = Jitter(
        whole(seed, "seed"), real(op_sigma, "op_sigma"), real(transfer_sigma, "transfer_sigma")
    )
    with in_cell() as tell:
        return drawn(
            graph,
            profile,
            choices,
            budget_bytes,
            jitter,
            whole(runs, "runs", 1),
            tell,
            flag(order, "order"),
        )
