"""Run one policy on a workload, a machine and a budget: plan, verify the plan, replay it."""

from dataclasses import dataclass, replace

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.data.expert_routing import META as ROUTING
from hosim.engine import resident_step
from hosim.errors import HosimError, illegal_plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on
from hosim.notes import CLAIRVOYANT, KNEW, ON_DEMAND, Note, notes
from hosim.result import IN_TIME, LEDGER, Result
from hosim.study.asked import PolicyChoice


@dataclass(frozen=True, slots=True)
class Counting:
    """The method of counting the device tier's bytes: ``allocator`` and ``account`` as in
    :func:`hosim.engine.replay`.

    Runtime policies are always counted in time, because their decisions have no program order.
    """

    allocator: str = LEDGER
    account: str = IN_TIME


BY_BYTES: Counting = Counting()

_RUNS_AHEAD = Note(
    "account",
    "the host runs ahead without end, so memory that several streams use is freed late "
    "(record_stream); one that waits for the device, as "
    "limit_all_gathers of FSDP does, or avoids record_stream, reserves less",
)


def make_plan(graph: Graph, hardware: Hardware, choice: PolicyChoice, budget_bytes: int) -> Plan:
    """Make the plan of one choice.

    Raises :class:`InfeasibleError` if the policy finds none within the budget, and
    :class:`InputError` for durations that were measured on another machine.
    """
    check_measured_on(graph, hardware)
    made = choice.policy.plan(graph, hardware, budget_bytes, **choice.parameters)
    said = [Note("slower", choice.policy.slower)] if choice.policy.slower else []
    if graph.meta.get(ROUTING) and not any([line.startswith(f"{KNEW}: ") for line in made.notes]):
        said.append(
            Note(KNEW, CLAIRVOYANT if made.runtime is None or choice.policy.foresees else ON_DEMAND)
        )
    return replace(made, notes=(*made.notes, *map(str, said))) if said else made


def check(plan: Plan, hardware: Hardware, budget_bytes: int) -> None:
    """Raise :class:`PlanError` if a policy's plan breaks a rule. Plans of runtime policies pass:
    their decisions are made during the replay.
    """
    if plan.runtime is not None:
        return
    if findings := verify(plan, hardware, budget_bytes):
        raise illegal_plan(
            f"policy {plan.policy} made a plan that breaks a rule, which is a bug of the policy",
            findings,
        )


def replay(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    *,
    repeats: bool = True,
    counting: Counting = BY_BYTES,
    reserve_bytes: int | None = None,
    jitter: Jitter | None = None,
    record: bool = False,
    bounds: bool = True,
) -> Result:
    """Replay one plan, and add the lower bound of any plan's makespan
    (:func:`hosim.analysis.lower_bounds.bounded_result.bounded`).

    Set ``repeats`` to false for a plan that does not put every copy back (rule 2), and so may be
    faster than one that does. ``reserve_bytes`` is the limit of the allocator's reserved bytes, if
    not the budget. ``record`` keeps the timeline. Set ``bounds`` to false for a result that nobody
    sees: the bound often takes longer than the replay.
    """
    account = counting.account if plan.runtime is None else IN_TIME
    result = engine.replay(
        plan,
        hardware,
        budget_bytes,
        record=record,
        allocator=counting.allocator,
        account=account,
        reserve_bytes=reserve_bytes,
        jitter=jitter,
    )
    waits = hardware.software is not None and hardware.software.waits
    if account != IN_TIME and len(plan.graph.streams) > 1 and not waits:
        result = replace(result, notes=(*result.notes, str(_RUNS_AHEAD)))
    if not bounds:
        return result
    from hosim.analysis.lower_bounds import bounded

    return bounded(result, plan, hardware, budget_bytes, repeats=repeats)


def failed(
    graph: Graph, hardware: Hardware, choice: PolicyChoice, budget_bytes: int, error: HosimError
) -> Result:
    """Return the result for a policy that failed, so that the results of other policies are kept.

    Raises ``error`` if the policy is hosim's own.
    """
    if choice.policy.is_own:
        raise error
    return replace(unplanned(graph, hardware, choice, budget_bytes, str(error)), failed=True)


def unplanned(
    graph: Graph, hardware: Hardware, choice: PolicyChoice, budget_bytes: int, error: str
) -> Result:
    """Return the result for a policy that found no plan within the budget."""
    return Result(
        workload=graph.name,
        hardware=hardware.name,
        policy=choice.label,
        budget_bytes=budget_bytes,
        feasible=False,
        error=error,
        makespan_ns=None,
        busy_ns=None,
        stall_ns={},
        drain_ns=None,
        lower_bound_ns=None,
        peak_bytes={},
        peak_at_ns={},
        peak_breakdown={},
        channels={},
        plan={},
        notes=tuple(map(str, notes(graph, hardware))),
        ideal_ns=resident_step(graph, hardware).makespan_ns,
    )
