"""Searches: the curve of peak memory against makespan, and the largest or smallest value with which
a workload fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hosim.api.cell_progress import in_cell
from hosim.api.inputs import Budget, Machine, Workload, question
from hosim.io.options import declared, keywords
from hosim.study.asked import AnyPolicy, parse_axis

if TYPE_CHECKING:
    from hosim.study.searches import Fit, Frontier


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

    asked = question(workload, hardware, policy, budget, **options)
    asked = replace(asked, profile=priced(asked.profile, options["price"]))
    with in_cell() as tell:
        return traced(asked, options["points"], options["refine"], tell)


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

    wanted, text = sought(options["largest"], options["smallest"])
    asked = question(workload, hardware, policy, budget, **options)
    with in_cell() as tell:
        return fitted(asked, wanted, parse_axis(text, STEPS), options["slowdown"], tell)
