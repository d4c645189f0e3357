"""The ways into the engine: who replays a plan, and the accounts in which memory is counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hosim.analysis import bubbles, exchanges
from hosim.cache_plan import Plan
from hosim.collector import no_collection
from hosim.engine import result_figures
from hosim.engine.fast_replay import FastReplay
from hosim.engine.flow_table import UncoveredError
from hosim.engine.ledger import AsymmetryError
from hosim.engine.other_processors import check_other_processors
from hosim.engine.program_account import check_program_account, in_program_order
from hosim.engine.replay_by_loop import looped, not_covered
from hosim.engine.result_figures import tells_slowing
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on
from hosim.plain_text import shown
from hosim.result import ENGINES, IN_TIME, LEDGER, LOOP, REFERENCE, Result
from hosim.stages import StagesResult

if TYPE_CHECKING:
    from hosim.engine.reference import Simulation


def replay(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int | None = None,
    *,
    record: bool = False,
    allocator: str = LEDGER,
    account: str = IN_TIME,
    jitter: Jitter | None = None,
    fold: bool = True,
    reserve_bytes: int | None = None,
    compete: bool | None = None,
    engine: str | None = None,
) -> Result:
    """Replay a plan on a machine by the rules of docs/contract.md; two runs give equal results.

    ``budget_bytes`` bounds the device tier further than its capacity does. ``record`` keeps the timeline in the result. ``allocator`` says
    what the device tier's bytes take beyond themselves (:mod:`hosim.engine.arenas`): with another than ``ledger`` the result has its
    figures, and what it reserves has to stay within the budget too. It counts in time, as the replay does; with ``account`` set to
    ``program`` the replay counts bytes alone, and the figures are those in program order (:mod:`hosim.engine.program_account`).
    ``reserve_bytes`` lets the allocator reserve more or less than the budget, which then bounds the bytes themselves alone.
    A plan that does not fit gives a result with ``feasible`` false and an ``error`` that begins with ``out of memory``; its times are
    ``None`` and its peaks those reached until then. ``lower_bound_ns`` is left to the caller (:mod:`hosim.analysis.lower_bounds.bounds`).

    ``jitter`` varies the times of ops and transfers; the plan knows nothing of it.

    Copies take bandwidth of the memories at their ends: with ``compete`` they share it, and an op that needs the device tier's goes slower
    while they flow (:mod:`hosim.costmodel.memory_traffic`); ``slowed_ns`` is what that cost. By default it is so where some op has no
    ``duration_ns``, so that its time is the cost model's, or has ``bytes_accessed``.

    ``engine`` is one of :data:`hosim.result.ENGINES`, which give the same figures; ``None``: the fast one.

    On a machine of several devices each runs the plan, on tensors of its own: nothing is shared but room and bandwidth. Where all of
    them do the same at the same time, one is replayed for all; ``fold`` false replays each in any case, to the same result.
    Raises :class:`hosim.errors.PlanError` if the plan breaks a rule on the way, and :class:`hosim.errors.InputError` for an unknown
    allocator, account or engine.

    >>> from hosim.graph import GraphBuilder
    >>> from hosim.shipped import find_hardware
    >>> from hosim.io import load_hardware
    >>> from hosim.cache_plan import CacheOp
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> plan = Plan(b.build(), cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)))
    >>> replay(plan, load_hardware(find_hardware("toy"))).makespan_ns
    90
    """
    check_engine(engine)
    if plan.graph.elsewhere:
        check_other_processors(plan, allocator, account)
    if account != IN_TIME:
        check_program_account(plan, allocator, account)
        told = replay(plan, hardware, budget_bytes, record=True, jitter=jitter, fold=fold, compete=compete, engine=engine)
        return in_program_order(told, plan, hardware, allocator, reserve_bytes, record)
    if jitter is not None and jitter.is_none:
        jitter = None
    begin = time.perf_counter()
    placing = allocator, reserve_bytes
    with no_collection():  # a replay leaves no cycles while it runs
        if engine == REFERENCE:
            from hosim.engine.reference import Simulation

            told = Simulation(plan, hardware, budget_bytes, record=record, placing=placing, jitter=jitter, compete=compete).run()
            return replace(told, replay_s=time.perf_counter() - begin)
        if engine == LOOP:
            looped = _looped(plan, hardware, budget_bytes, record or allocator != LEDGER, jitter, compete)
            if looped is not None:
                return replace(looped, replay_s=time.perf_counter() - begin)
        folded = fold and jitter is None and _alike(hardware)
        # named, so that it outlives the collection that begins afterwards: freeing all of it is no part of a replay
        run = FastReplay([plan], hardware, budget_bytes, record, placing, jitter, compete, folded=folded)
        try:
            result = run.run()
        except AsymmetryError:
            run = FastReplay([plan], hardware, budget_bytes, record, placing, jitter, compete)
            result = run.run()
    return replace(result, replay_s=time.perf_counter() - begin)


def replay_stages(
    plans: Sequence[Plan],
    hardware: Hardware,
    budget_bytes: int | Sequence[int | None] | None = None,
    *,
    record: bool = False,
    jitter: Jitter | None = None,
    compete: bool | None = None,
    engine: str | None = None,
) -> StagesResult:
    """Replay the plans of the stages of a pipeline together, on a machine that has one device for each (docs/contract.md, rule 21).

    ``budget_bytes`` bounds the device tier of each, or there is one for each. ``record`` keeps the timelines of the stages in their
    results; the other arguments are those of :func:`replay`. Raises :class:`InputError` for fewer than two stages, another number of
    devices, or messages that are not those of exchanges that can happen, and what :func:`replay` raises.
    """
    if len(plans) < 2 or hardware.devices != len(plans):
        message = f"expected a machine of one device for each of 2 stages or more, got {hardware.devices} for {len(plans)}"
        raise InputError(message, source="stages")
    check_engine(engine)
    begin = time.perf_counter()
    graphs = [plan.graph for plan in plans]
    for plan in plans:
        if plan.graph.elsewhere:
            check_other_processors(plan, LEDGER, IN_TIME)
    with no_collection():
        tied = exchanges(graphs)
        if jitter is not None and jitter.is_none:
            jitter = None
        run: Simulation | FastReplay
        if engine == REFERENCE:
            from hosim.engine.reference import Simulation

            run = Simulation(plans, hardware, budget_bytes, record=True, jitter=jitter, compete=compete, tied=tied)
        else:
            run = FastReplay(plans, hardware, budget_bytes, True, (LEDGER, None), jitter, compete, tied=tied)
        whole = run.run()
    bubble = bubbles(graphs, [r.timeline for r in whole.by_device if r.timeline is not None], tied) if whole.feasible else (0,) * len(plans)
    return StagesResult(whole if record else result_figures.without_timelines(whole), bubble, time.perf_counter() - begin)


def _looped(
    plan: Plan, hardware: Hardware, budget_bytes: int | None, wants_more: bool, jitter: Jitter | None, compete: bool | None
) -> Result | None:
    """The loop's result; ``None`` for a plan that does not end well, of which another engine says why.

    Raises :class:`InputError` for what the loop does not cover. ``wants_more``: a timeline, or addresses.
    """
    check_measured_on(plan.workload, hardware)
    reason = "timelines and allocators" if wants_more else not_covered(plan, hardware, jitter)
    budget = hardware.device.capacity_bytes if budget_bytes is None else budget_bytes
    if reason is None:
        try:
            did = looped(plan, hardware, budget, jitter, compete)
        except UncoveredError:
            reason = "routes, or figures beyond 128 bits"
    if reason is not None:
        raise InputError(f"the loop does not cover {reason}; leave engine out, or give {REFERENCE}", source="engine")
    if did is None:
        return None
    modelled = tells_slowing(plan.graph, {}, compete), False
    return result_figures.of_device(did, plan, hardware, budget, jitter, modelled, LOOP)


def check_engine(engine: object) -> None:
    """Raise :class:`InputError` for what is no engine; ``None`` is the default one."""
    if engine is not None and engine not in ENGINES:
        raise InputError(f"no engine {shown(engine, 60)} (engines: {', '.join(ENGINES)})", source="engine")


def _alike(hardware: Hardware) -> bool:
    """Whether one device may stand for all of several: they have equal parts of everything, as there are equally many on each host.

    Equal devices with equal parts of every link have equal max-min rates, so that they do the same as long as each step is possible
    for all of them: until room in a shared tier is too small for all (:class:`AsymmetryError`). There the order among them decides.
    """
    return hardware.devices > 1 and hardware.devices % hardware.sharers("host") == 0
