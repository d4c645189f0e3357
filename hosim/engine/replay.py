"""The ways into the engine: who replays a plan, and the accounts in which memory is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from hosim.analysis import bubbles, exchanges
from hosim.base.collector import no_collection
from hosim.cache_plan import Plan
from hosim.data.stages import StagesResult
from hosim.edits import COLLECTIVE_KINDS
from hosim.engine import result_figures
from hosim.engine.decisions import Remembering
from hosim.engine.drawn_replays import later_draws, stage_draws
from hosim.engine.flow_table import UncoveredError
from hosim.engine.program_account import (
    CountFields,
    MemoryCount,
    check_program_account,
    in_program_order,
)
from hosim.engine.program_base import one_for_all
from hosim.engine.replay_by_loop import check_loop, looped, looped_times
from hosim.errors import InputError, PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on
from hosim.plain_text import shown
from hosim.processors import refuse_other_processors
from hosim.result import ENGINES, IN_TIME, LEDGER, LOOP, REFERENCE, EventTimes, Result, Timeline

if TYPE_CHECKING:
    from hosim.engine.reference import Simulation


def replay(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int | None = None,
    *,
    record: bool = False,
    jitter: Jitter | None = None,
    fold: bool = True,
    compete: bool | None = None,
    engine: str | None = None,
    **counted: Unpack[CountFields],
) -> Result:
    """Replay a plan on a machine by the rules of docs/contract.md; two runs give equal results.

    ``budget_bytes`` bounds the device tier further than its capacity does. ``record`` keeps the
    timeline in the result. ``counted`` are ``allocator``, ``account`` and ``reserve_bytes``
    (:class:`~hosim.engine.program_account.MemoryCount`): ``allocator`` says what the device tier's
    bytes take beyond themselves (:mod:`hosim.engine.arenas`): with another than ``ledger`` the
    result has its figures, and what it reserves has to stay within the budget too. It counts in
    time, as the replay does; with ``account`` set to ``program`` the replay counts bytes alone, and
    the figures are those in program order (:mod:`hosim.engine.program_account`). ``reserve_bytes``
    lets the allocator reserve more or less than the budget, which then bounds the bytes themselves
    alone. A plan that does not fit gives a result with ``feasible`` false and an ``error`` that
    begins with ``out of memory``; its times are ``None`` and its peaks those reached until then.
    ``lower_bound_ns`` is left to the caller (:mod:`hosim.analysis.lower_bounds.bounds`).

    ``jitter`` varies the times of ops and transfers; the plan knows nothing of it.

    Copies take bandwidth of the memories at their ends: with ``compete`` they share it, and an op
    that needs the device tier's goes slower while they flow
    (:mod:`hosim.analysis.costmodel.memory_traffic`); ``slowed_ns`` is what that cost. By default it is so
    where some op has no ``duration_ns``, so that its time is the cost model's, or has
    ``bytes_accessed``.

    ``engine`` is one of :data:`hosim.result.ENGINES`, which give the same figures: the compiled
    loop, which has no timelines, no allocators and not all rules, or the reference, which is the
    contract in plain SimPy. ``None``: the loop where it covers what is asked for; the result says
    which it was.

    On a machine of several devices each runs the plan, on tensors of its own: nothing is shared but
    room and bandwidth. Where all of them do the same at the same time, one is replayed for all;
    ``fold`` false replays each in any case, to the same result. Raises
    :class:`hosim.errors.PlanError` if the plan breaks a rule on the way, and
    :class:`hosim.errors.InputError` for an unknown allocator, account or engine.

    >>> from hosim.graph import GraphBuilder
    >>> from hosim.shipped import find_hardware
    >>> from hosim.io import load_hardware
    >>> from hosim.cache_plan import CacheOp
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=0),
    ...     ),
    ... )
    >>> replay(plan, load_hardware(find_hardware("toy"))).makespan_ns
    90
    """
    count = MemoryCount(**counted)
    check_engine(engine)
    if plan.graph.elsewhere:
        _check_other_processors(plan, count)
    if count.account != IN_TIME:
        check_program_account(plan, count)
        told = replay(
            plan,
            hardware,
            budget_bytes,
            record=True,
            jitter=jitter,
            fold=fold,
            compete=compete,
            engine=engine,
        )
        return in_program_order(told, plan, hardware, count, record)
    return _replayed(
        plan,
        hardware,
        budget_bytes,
        None if jitter is not None and jitter.is_none else jitter,
        compete,
        fold=fold,
        record=record,
        placing=(count.allocator, count.reserve_bytes),
        engine=engine,
    )


def verdict(plan: Plan, hardware: Hardware, budget_bytes: int) -> Result:
    """Like :func:`replay`, but a plan that the loop finds not to fit, or to break a rule on the way,
    has an ``error`` that does not say why.

    This saves the replay by the reference that finds the reason. The reference replays what the
    loop does not cover: then :class:`hosim.errors.PlanError` is raised as by :func:`replay`.
    """
    if plan.graph.elsewhere:
        _check_other_processors(plan, MemoryCount())
    return _replayed(plan, hardware, budget_bytes, None, None, error="does not fit")


def _replayed(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int | None,
    jitter: Jitter | None,
    compete: bool | None,
    *,
    fold: bool = True,
    record: bool = False,
    placing: tuple[str, int | None] = (LEDGER, None),
    engine: str | None = None,
    error: str | None = None,
) -> Result:
    """The result of a plan by the loop, or by the reference where that does not cover it or finds
    that it does not fit; with an ``error`` the loop says that itself.
    """
    begin = time.perf_counter()
    folded = fold and jitter is None and hardware.devices > 1 and one_for_all(hardware)
    policy = None if plan.runtime is None else Remembering(plan.runtime())
    whole = hardware.device.capacity_bytes if budget_bytes is None else budget_bytes
    with no_collection():  # a replay leaves no cycles while it runs
        result = None
        if engine != REFERENCE:
            check_measured_on(plan.workload, hardware)

            def by_loop() -> Result | None:
                check_loop(hardware, folded, record or placing[0] != LEDGER)
                return looped(plan, hardware, whole, jitter, compete, policy, error)

            result = _covered(by_loop, engine == LOOP)
        if result is None:
            from hosim.engine.reference import Simulation

            kept: dict[str, Any] = {
                "record": record,
                "placing": placing,
                "jitter": jitter,
                "compete": compete,
            }
            result = _by_reference(
                partial(Simulation, plan, hardware, budget_bytes, **kept), folded, policy
            )
    return _drawn(result, plan, hardware, whole, jitter, compete, time.perf_counter() - begin)


def _covered(by_loop: Callable[[], Result | None], forced: bool) -> Result | None:
    """Return the result of the loop; ``None`` where it does not cover the question, an error if
    ``forced``.
    """
    try:
        return by_loop()
    except UncoveredError as error:
        if not forced:
            return None
        raise InputError(
            f"the loop does not cover {error}; leave engine out, or give {REFERENCE}",
            source="engine",
        ) from None


def _by_reference(
    simulation: Callable[..., Simulation], folded: bool, policy: Remembering | None
) -> Result:
    """The result of the reference, which replays each device by itself where one cannot stand for
    all.
    """
    try:
        return simulation(fold=folded, policy=policy and policy.again()).run()
    except UncoveredError:
        return simulation(policy=policy and policy.again()).run()


def _drawn(
    result: Result,
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter | None,
    compete: bool | None,
    took_s: float,
) -> Result:
    """The result with its draws, and the seconds that the replay took."""
    if not result.feasible:
        return replace(result, replay_s=took_s)
    timeline = result.timeline

    def recorded() -> Timeline | None:
        if timeline is not None:
            return timeline
        return replay(
            plan, hardware, budget_bytes, record=True, jitter=jitter, compete=compete
        ).timeline

    return replace(
        result,
        draws=later_draws(plan, hardware, budget_bytes, jitter, compete, recorded),
        replay_s=took_s,
    )


def times_of(plan: Plan, hardware: Hardware, budget_bytes: int) -> EventTimes | Timeline | None:
    """Return the start and the end of each op and transfer of a plan in a replay, of several
    devices on one that stands for all.

    ``None`` where the plan does not fit, or breaks a rule on the way, where a runtime policy
    decides, and where devices do not all do the same. It is the compiled loop's, where that covers
    the plan: many times as fast as a recorded replay.

    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.graph import GraphBuilder
    >>> from hosim.io import load_hardware
    >>> from hosim.shipped import find_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=0),
    ...     ),
    ... )
    >>> times = times_of(plan, load_hardware(find_hardware("toy")), 100)
    >>> times.op_start_ns, times.op_end_ns, times.transfers[0].end_ns
    ((40,), (90,), 40)
    """
    if plan.runtime is not None:
        return None
    try:
        with no_collection():
            check_loop(hardware, one_for_all(hardware), False)
            return looped_times(plan, hardware, budget_bytes)
    except UncoveredError:
        if hardware.devices > 1:
            return None
    except PlanError:
        return None
    try:
        result = replay(plan, hardware, budget_bytes, record=True)
    except PlanError:
        return None
    return result.timeline if result.feasible else None


def replay_stages(
    plans: Sequence[Plan],
    hardware: Hardware,
    budget_bytes: int | Sequence[int | None] | None = None,
    *,
    record: bool = False,
    jitter: Jitter | None = None,
    compete: bool | None = None,
) -> StagesResult:
    """Replay the plans of the stages of a pipeline together, on a machine that has one device for
    each (docs/contract.md, rule 21).

    ``budget_bytes`` bounds the device tier of each, or there is one for each. ``record`` keeps the
    timelines of the stages in their results; the other arguments are those of :func:`replay`.
    Raises :class:`InputError` for fewer than two stages, another number of devices, or messages
    that are not those of exchanges that can happen, and what :func:`replay` raises.
    """
    if len(plans) < 2 or hardware.devices != len(plans):
        raise InputError(
            "expected a machine of one device for each of 2 stages or more, got "
            f"{hardware.devices} for {len(plans)}",
            source="stages",
        )
    begin = time.perf_counter()
    graphs = [plan.graph for plan in plans]
    hardware = _with_processors_of_one(graphs, hardware)
    for plan in plans:
        if plan.graph.elsewhere:
            _check_other_processors(plan, MemoryCount())
    with no_collection():
        tied = exchanges(graphs)
        if jitter is not None and jitter.is_none:
            jitter = None
        from hosim.engine.reference import Simulation

        whole = Simulation(
            plans, hardware, budget_bytes, record=True, jitter=jitter, compete=compete, tied=tied
        ).run()
    if whole.feasible:
        drawn = [
            replace(r, draws=stage_draws(plan, hardware, r.timeline))
            for plan, r in zip(plans, whole.by_device, strict=True)
        ]
        last = max(drawn, key=lambda r: r.makespan_ns or 0)
        whole = replace(whole, by_device=tuple(drawn), draws=last.draws)
    bubble: tuple[int, ...] = (0,) * len(plans)
    if whole.feasible:
        timelines = [r.timeline for r in whole.by_device if r.timeline is not None]
        bubble = bubbles(graphs, timelines, tied)
    return StagesResult(
        whole if record else result_figures.without_timelines(whole),
        bubble,
        time.perf_counter() - begin,
    )


def _with_processors_of_one(graphs: Sequence[Graph], hardware: Hardware) -> Hardware:
    """The machine whose tiers on which one stage alone computes are not in parts (rule 21)."""
    used = [{graph.ops[i].processor for i in graph.elsewhere} for graph in graphs]
    tiers = [
        replace(tier, compute=replace(tier.compute, alone=True))
        if tier.compute is not None and sum([tier.name in each for each in used]) == 1
        else tier
        for tier in hardware.tiers
    ]
    return hardware if tiers == list(hardware.tiers) else replace(hardware, tiers=tuple(tiers))


def check_engine(engine: object) -> None:
    """Raise :class:`InputError` for what is no engine; ``None`` is the default one."""
    if engine is not None and engine not in ENGINES:
        raise InputError(
            f"no engine {shown(engine, 60)} (engines: {', '.join(ENGINES)})", source="engine"
        )


def _check_other_processors(plan: Plan, count: MemoryCount) -> None:
    """Raise :class:`InputError` for a replay with ops on other processors that the rules do not
    define.
    """
    graph = plan.graph
    if plan.runtime is not None:
        refuse_other_processors(
            graph, f"runtime policies such as {plan.policy} know only the device's ops"
        )
    if count.allocator != LEDGER:
        refuse_other_processors(
            graph,
            f"a replay with such ops counts bytes alone (allocator {LEDGER}, not {count.allocator})",
        )
    if count.account != IN_TIME:
        refuse_other_processors(
            graph, f"a replay with such ops counts in time (account {IN_TIME}, not {count.account})"
        )
    if any([graph.ops[i].kind in COLLECTIVE_KINDS for i in graph.elsewhere]):
        refuse_other_processors(
            graph, "collectives are done by devices, and one of these ops is a collective"
        )
