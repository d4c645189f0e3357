"""A result with the lower bound on the makespan of any plan of its workload, on its machine and
within its budget.
"""

from dataclasses import replace

from hosim.analysis.liveness import homes_below
from hosim.analysis.lower_bounds.bounds import LowerBounds
from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.result import Result


def bounded(
    result: Result,
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int | None,
    *,
    repeats: bool = True,
) -> Result:
    """The result of a plan's replay with ``lower_bound_ns`` (:func:`bound_of_result_ns`)."""
    return replace(
        result,
        lower_bound_ns=bound_of_result_ns(result, plan, hardware, budget_bytes, repeats=repeats),
    )


def bound_of_result_ns(
    result: Result,
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int | None,
    *,
    repeats: bool = True,
    compete: bool | None = None,
) -> int | None:
    """Return the time that no plan can beat, in nanoseconds; that of the result if the plan did not
    fit, or if times varied.

    The bound holds for every plan that starts what the workload puts below there (docs/contract.md,
    rule 2), wherever all else starts. For a plan that starts such tensors elsewhere, it holds for
    every plan whatever. For one that edits the graph it covers all edits of the workload.
    ``repeats`` says whether the plan restores what rule 2 wants restored: one that does not may be
    faster than all that do, and its bound is that of such plans. So is that of a runtime policy,
    which need not restore anything. ``compete`` is that of the replay.
    """
    if not result.feasible or result.makespan_ns is None or result.jitter is not None:
        return result.lower_bound_ns
    workload = plan.workload
    repeats = repeats and plan.runtime is None
    homes = homes_below(workload, hardware)
    homes_kept = all(
        plan.initial.get(t, home) == home for t, home in homes.items()
    )  # edits leave tensors in their places
    known = workload.derived_on(hardware, LowerBounds)
    any_order = known.any_order_ns(
        budget_bytes, repeats=repeats, homes_kept=homes_kept, compete=compete
    )
    if plan.edits is not None and (plan.edits.order or plan.edits.recompute):
        return any_order
    in_order = known.bound_ns(
        budget_bytes, result.makespan_ns, repeats=repeats, homes_kept=homes_kept, compete=compete
    )
    bound = max(any_order, in_order)
    proof = plan.proof
    if (
        proof is None
        or not (repeats and homes_kept)
        or (proof.workload, proof.hardware) != (workload, hardware)
    ):
        return bound
    capacity = hardware.device.capacity_bytes
    within = capacity if budget_bytes is None else min(budget_bytes, capacity)
    return max(bound, proof.bound_ns) if within == proof.budget_bytes else bound
