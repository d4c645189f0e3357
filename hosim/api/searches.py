"""Searches: the curve of peak memory against makespan, and the largest or smallest value with which
a workload fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hosim.api.cell_progress import in_cell
from hosim.api.inputs import Budget, Machine, Workload, question, real, whole
from hosim.study.asked import AnyPolicy, parse_axis

if TYPE_CHECKING:
    from hosim.study.searches import Fit, Frontier


def frontier(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    *,
    devices: int | None = None,
    points: int = 9,
    refine: int = 4,
    price: float | None = None,
    rescale: bool = False,
) -> Frontier:
    """Trace peak memory against makespan, down to the smallest budget for which the policy finds a
    plan.

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
    points
        How many evenly spaced budgets to replay.
    refine
        How many more budgets to replay where the curve has its largest steps.
    price
        What a device costs an hour, in any currency; ``None``: as the profile's ``price_per_hour``
        says. With one, ``frame`` has what a step costs, and a million tokens.
    rescale
        Whether durations that were measured on another machine are scaled to this one, by the ratio
        of the cost model's times of each op on the two; the interval of the makespan says how
        unsure that is. Without it they are refused.

    Returns
    -------
    Frontier
        ``frame`` has one row per budget probed (bytes, nanoseconds), ``pareto`` is the curve,
        ``smallest_bytes`` the smallest budget that fits.

    Raises
    ------
    InputError
        If an argument is not what it should be.

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
    from hosim.study.searches import frontier as traced
    from hosim.study.searches import priced

    asked = question(workload, hardware, policy, budget, devices, rescale)
    asked = replace(asked, profile=priced(asked.profile, price))
    with in_cell() as tell:
        return traced(asked, whole(points, "points"), whole(refine, "refine"), tell)


def fit(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    *,
    devices: int | None = None,
    largest: str | None = None,
    smallest: str | None = None,
    slowdown: float | None = None,
    rescale: bool = False,
) -> Fit:
    """Find the largest or the smallest value of a field with which the workload fits the budget.

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
    largest
        A field and its range, of which the largest value that fits is wanted:
        ``workload.batch=1..64``.
    smallest
        A field and its range, of which the smallest value that fits is wanted:
        ``channels.h2d.bandwidth=5..200GB/s:40``. A range without a count has about 100 round
        values.
    slowdown
        How many times the makespan with everything resident the makespan may be; ``None``: any time
        will do.
    rescale
        Whether durations that were measured on another machine are scaled to this one, by the ratio
        of the cost model's times of each op on the two; the interval of the makespan says how
        unsure that is. Without it they are refused.

    Returns
    -------
    Fit
        ``value`` is the answer (``None`` if no value fits), ``frame`` has one row per value probed.

    Raises
    ------
    InputError
        If an argument is not what it should be, or not exactly one of ``largest`` and ``smallest``
        is given.

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
    from hosim.study.searches import STEPS, sought
    from hosim.study.searches import fit as fitted

    wanted, text = sought(largest, smallest, "fit")
    limit = None if slowdown is None else real(slowdown, "slowdown")
    asked = question(workload, hardware, policy, budget, devices, rescale)
    with in_cell() as tell:
        return fitted(asked, wanted, parse_axis(text, STEPS), limit, tell)
