"""Compare plans, policies, budgets and machines, sweep over values, and search for a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pandas import DataFrame

from hosim import study
from hosim.analysis.remarks import (
    beside_fastest,
    draws_notes,
    fastest_with_ours,
    least_in_parts,
    no_offload,
)
from hosim.api.cell_progress import in_cell
from hosim.api.inputs import (
    Budget,
    Machine,
    Policies,
    Vary,
    Workload,
    less_than_asked,
    load,
    machine,
    machine_of,
    policies_in,
    question,
    questions,
    several,
)
from hosim.api.notebook import ANSWER, ComparedFrame
from hosim.cache_plan import Plan
from hosim.data.draws import Regret
from hosim.engine import read_budget, resident_step
from hosim.errors import InputError
from hosim.io.options import Option, declared, keywords
from hosim.notes import each_once
from hosim.report import answers
from hosim.report.answers import Answer
from hosim.result import Result
from hosim.study import rows_of_answers, runs, searches
from hosim.study.asked import AnyPolicy, Value, parse_axis, read_vary, searching
from hosim.study.rows_of_answers import DEVICE_TIER, VARIED

if TYPE_CHECKING:
    from hosim.study import Diff
    from hosim.study.runs import Question
    from hosim.study.searches import Fit, Frontier


_ROWS_DONE = Option(
    "progress",
    of=Callable,
    takes="Callable[[int, int, int], None] | None",
    about="Called with the number of rows done, of all rows, and of those that do not fit. A cell "
    "of "
    "a notebook shows them in any case.",
)
_RUNS = declared(
    "devices runs op_sigma transfer_sigma seed order rescale", op_sigma=0.05, transfer_sigma=0.1
)


@keywords(*declared("devices rescale runtime within time work progress regret"))
def compare(
    workload: Workload,
    hardware: Machine | Sequence[Machine],
    policies: Policies = None,
    budget: Budget = None,
    **options: Any,
) -> DataFrame:
    """Compare policies on one machine, or machines by the smallest budget that is enough.

    Parameters
    ----------
    hardware
        The machine: a name, a path, a mapping or a profile. Or a list of machines to compare.
    policies
        The policies: text separated by commas, or a list of texts, of objects such as
        ``hosim.policies.lookahead`` and of functions ``(graph, hardware, budget_bytes)`` that
        return a plan. ``None`` is all policies except models of whole systems, ``hybrid`` and
        ``optimal``; if several machines are compared, it is ``hyperoffload``.

    Returns
    -------
    pandas.DataFrame
        One row per policy, with the columns of
        :func:`hosim.study.rows_of_answers.rows.figure_columns`: times in nanoseconds, sizes in
        bytes. A cell of a notebook shows the main columns with units. ``slowdown`` is the makespan
        divided by ``ideal_ns``, the makespan with everything resident, as if the device had enough
        memory. ``planning_s`` and ``replay_s`` are the seconds that planning and replaying took
        here. If a policy does not fit, ``feasible`` is false and ``error`` has the reason. The same
        holds if your own policy fails; :func:`hosim.plan` raises its error with the traceback.
        ``attrs["notes"]`` has lines that a reader of the figures needs (:mod:`hosim.notes`), and
        names machines that have less memory than the budget. ``attrs["answer"]`` is the answer that
        the command prints (:class:`hosim.report.answers.Answer`). ``attrs["paired"]`` compares the
        fastest policy with each other policy in the same draws
        (:class:`hosim.analysis.remarks.paired_draws.PairedDraws`).
        With several machines there is one row per machine and policy, with the columns of
        :data:`hosim.study.machines.COLUMNS`; ``enough_bytes`` is the smallest budget with which the
        makespan is at most 5 % above that with everything resident, if there is one.

    Raises
    ------
    InputError
        If an argument is invalid.
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

    Your own policy is a function; if it fails, its row has the ``error``.

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
    if isinstance(hardware, Sequence) and not isinstance(hardware, str):
        return _compared_machines(workload, hardware, policies, budget, options)

    asked = questions(workload, [hardware], policies, budget, **options)
    profile, regrets = asked[0].hardware, list[Regret]()
    with (
        in_cell() as tell,
        searching(asked[0].ends, tell, options["progress"]) as (_, begins),
    ):

        def keep(one: Question, plan: Plan, result: Result) -> None:
            regrets.extend(study.regret(one, plan, result, options["regret"], begins))

        results = study.compare(asked, begins, keep)
    more = ("planning_s", "replay_s")
    rows: list[dict[str, Value]] = [
        {**rows_of_answers.figures(r, profile), **{name: getattr(r, name) for name in more}}
        for r in results
    ]
    said = [
        *(line for result in results for line in result.notes),
        *less_than_asked(asked),
    ]
    there = {result.policy for result in results}
    if missing := [one.choice.label for one in asked if one.choice.label not in there]:
        said.append(f"interrupted: no result of {', '.join(missing)}")
    table = ComparedFrame(
        rows_of_answers.frame(rows, [*rows_of_answers.figure_columns(profile), *more])
    )
    table.attrs["notes"] = each_once([*said, *draws_notes(results)])
    table.attrs["paired"] = beside_fastest(results)
    table.attrs["regret"] = regrets
    table.attrs[DEVICE_TIER] = profile.device_tier  # hosim.plot draws its peak
    table.attrs[ANSWER] = _answered(asked, results)
    return table


def _answered(asked: Sequence[Question], results: Sequence[Result]) -> Answer:
    """The answer of a comparison, as the command shows it."""
    one = asked[0]
    alone = resident_step(one.graph, one.hardware)
    title = answers.comparison_title(
        one.graph.name, one.hardware, one.budget_bytes, alone.peak_bytes
    )
    moved = fastest_with_ours(results), least_in_parts(results)
    advice = no_offload(one.graph, alone.makespan_ns, alone.peak_bytes, one.budget_bytes, *moved)
    return answers.comparison_answer(
        title, one.hardware, results, advice, tokens=searches.tokens_of(one.graph)
    )


def _compared_machines(
    workload: Workload,
    machines: Sequence[Machine],
    policies: Policies,
    budget: Budget,
    options: dict[str, Any],
) -> DataFrame:
    one = ("within", "time", "work", "progress", "regret")
    if any([options[name] for name in one]):
        raise InputError(
            f"{', '.join(one[:-1])} and {one[-1]} are for one machine: give one, or leave them out",
            source="hardware",
        )
    listed = several(machines, "hardware", "a list of machines")
    if not listed:
        raise InputError("expected at least one machine, got an empty list", source="hardware")
    asked = questions(
        workload, listed, "hyperoffload" if policies is None else policies, budget, **options
    )
    with in_cell() as tell:
        found = study.compare_machines(asked, tell).frame
    table = ComparedFrame(found)
    table.attrs["notes"] = [*found.attrs["notes"], *less_than_asked(asked)]
    return table


@keywords(*declared("devices output jobs scheduler progress rescale", _ROWS_DONE))
def sweep(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    *,
    vary: Vary,
    **options: Any,
) -> DataFrame:
    """Replay a workload once for each value of some fields.

    Parameters
    ----------
    vary
        The fields and their values. Texts such as ``channels.h2d.bandwidth=25..200GB/s:8``, or a
        mapping from fields to lists of values, span a grid. A list of mappings, or the rows of a
        frame, are single points. A value of ``policy`` may also be an object or a function.

    Returns
    -------
    pandas.DataFrame
        One row per point. First come the varied fields, as they were given, and quantities also as
        whole numbers of the unit in the column's name. Then come the columns of
        :func:`hosim.study.rows_of_answers.rows.figure_columns` in nanoseconds and bytes;
        ``.in_units()`` returns them as texts with units. A point that fails has its ``error``.
        ``attrs["notes"]`` has lines that a reader of the figures needs; they also name the limit of
        a channel whose bandwidth is varied beyond it.

    Raises
    ------
    InputError
        If an argument is invalid, or a field does not exist.

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
    scheduler, progress = options["scheduler"], options["progress"]
    runner = runs.pool(options["jobs"]) if scheduler is None else runs.cluster(scheduler)
    vary, others = policies_in(vary)
    points = read_vary(vary)
    asked = replace(question(workload, hardware, policy, budget, **options), others=others)
    with in_cell() as tell:

        def told(done: int, total: int, failed: int) -> None:
            tell(study.under_way(done, total, failed))
            if progress is not None:
                progress(done, total, failed)

        found = study.sweep(asked, points, options["output"], runner, told)
    plain = rows_of_answers.frame(
        found.rows,
        found.columns,
        (
            *asked.notes,
            *study.capped(asked, points),
            *study.notes_on_rows(asked, found.given, found.rows),
        ),
    )
    table = ComparedFrame(plain)
    table.attrs["notes"] = plain.attrs["notes"]
    for field, column in found.varying.items():
        if column != field:
            given = [point.get(field) for point in found.given]
            table.insert(list(table.columns).index(column), field, given)
    # hosim.plot reads these attributes
    chosen = {"policy": "policy"} if any("policy" in point for point in found.given) else {}
    table.attrs[VARIED] = {**found.varying, **chosen}
    table.attrs[DEVICE_TIER] = asked.hardware.device_tier
    title = f"{asked.graph.name} on {asked.hardware.name}"
    table.attrs[ANSWER] = answers.sweep_answer(
        title, found.rows, list(found.varying), asked.hardware
    )
    return table


@keywords(*declared("devices"))
def diff(
    a: AnyPolicy | os.PathLike[str] | Plan | Result,
    b: AnyPolicy | os.PathLike[str] | Plan | Result,
    workload: Workload | None = None,
    hardware: Machine | None = None,
    budget: Budget = None,
    **options: Any,
) -> Diff:
    """Compare two plans or two results: figure by figure, tensor by tensor, op by op.

    Parameters
    ----------
    a
        A plan, a result, the path of a plan or result file, or a policy (text, an object or a
        function), which plans the workload on the hardware.
    b
        The same kinds of value as ``a``.
    workload
        The workload of the plans, unless ``a`` is a plan: a name, a path, a mapping or a graph.
    hardware
        A machine on which the plans are also replayed: a name, a path, a mapping or a profile.

    Returns
    -------
    Diff
        The ``figures``, ``tensors`` and ``ops`` that differ, in nanoseconds and bytes; ``frame``
        returns each as a pandas frame.

    Raises
    ------
    InputError
        If an argument is invalid, or there is nothing to compare.

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
        profile = (
            machine(hardware) if graph is None else machine_of(graph, hardware, options["devices"])
        )
    if graph is not None and profile is not None:
        budget_bytes = read_budget(budget).of(graph, profile)[1]
    return study.diff(
        study.side_of(a, graph, profile, budget_bytes),
        study.side_of(b, graph, profile, budget_bytes),
    )


@keywords(*_RUNS)
def robustness(
    workload: Workload,
    hardware: Machine,
    policies: Policies = None,
    budget: Budget = None,
    **options: Any,
) -> DataFrame:
    """Replay each policy's plan with varied times of ops and transfers, or other orders of ops.

    Every policy plans on nominal times, and all policies meet the same variations.

    Returns
    -------
    pandas.DataFrame
        One row per policy and run: ``policy run feasible makespan_ns stall_ns peak_bytes slowdown
        error``; the slowdown is against everything resident, with nominal times.
        :func:`hosim.study.robustness.percentiles` summarises it.

    Raises
    ------
    InputError
        If an argument is invalid.

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
    asked = questions(workload, [hardware], policies, budget, **options)
    with in_cell() as tell:
        return study.robustness(asked, options["runs"], tell, options["order"])


@keywords(*declared("devices points refine price rescale"))
def frontier(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    **options: Any,
) -> Frontier:
    """Trace peak memory against makespan, down to the smallest budget that has a plan.

    Returns
    -------
    Frontier
        ``frame`` has one row per budget probed (bytes, nanoseconds), ``pareto`` is the curve,
        ``smallest_bytes`` the smallest budget that fits.

    Raises
    ------
    InputError
        If an argument is invalid.

    References
    ----------
    :mod:`hosim.study.searches.frontiers` describes the search.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = [b.tensor(f"w{i}", 40, "parameter", home="ddr") for i in range(3)]
    >>> _ = [b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50) for i in range(3)]
    >>> print(hosim.frontier(b.build(), "toy", "belady", points=3, refine=0))
    belady needs 40 B; from 60.3 us with a peak of 40 B to 60.3 us with one of 40 B
    """
    asked = question(workload, hardware, policy, budget, **options)
    asked = replace(asked, profile=searches.priced(asked.profile, options["price"]))
    with in_cell() as tell:
        return searches.frontier(asked, options["points"], options["refine"], tell)


@keywords(*declared("devices largest smallest slowdown rescale"))
def fit(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    **options: Any,
) -> Fit:
    """Find the largest or the smallest value of a field with which the workload fits the budget.

    Returns
    -------
    Fit
        ``value`` is the answer (``None`` if no value fits), ``frame`` has one row per value probed.

    Raises
    ------
    InputError
        If an argument is invalid, or not exactly one of ``largest`` and ``smallest`` is given.

    References
    ----------
    :mod:`hosim.study.searches.fits` describes the search.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = [b.tensor(f"w{i}", 40, "parameter", home="ddr") for i in range(3)]
    >>> _ = [b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50) for i in range(3)]
    >>> answer = hosim.fit(
    ...     b.build(),
    ...     "toy",
    ...     "layerwise",
    ...     "80 B",
    ...     smallest="channels.h2d.bandwidth=1..10GB/s:10",
    ...     slowdown=1.1,
    ... )
    >>> answer.value, answer.beyond.value
    ('3 GB/s', '2 GB/s')
    """
    wanted, text = searches.sought(options["largest"], options["smallest"])
    asked = question(workload, hardware, policy, budget, **options)
    with in_cell() as tell:
        return searches.fit(
            asked, wanted, parse_axis(text, searches.STEPS), options["slowdown"], tell
        )
