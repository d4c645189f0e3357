"""hosim as hyper-parallel's planner: its schedules followed by a literal runtime, and against that
library's own rule.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from offload_runtime import (
    AccessKind,
    ActivationTrace,
    BrokenScheduleError,
    ResidencyActionType,
    ResidencySchedule,
    StorageAccess,
    TraceOp,
    greedy,
    run,
)
from quick_cases import one_in

from hosim.analysis.verifying import verify
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.formats import graph_of, read_document
from hosim.formats.bridges import Action, HosimPlanner, Planned, document_of, hardware_of, plan_of
from hosim.formats.bridges.residency_schedule import (
    _advance,
    _Away,
    _held,
    _makespan_ns,
    _planned,
    _shrink,
    _waits,
)
from hosim.graph import Graph, GraphBuilder
from hosim.io import load_any
from hosim.on_torch.lower import barriers

pytestmark = pytest.mark.slow

MIB = 2**20
READ, WRITE = AccessKind.READ, AccessKind.WRITE


QUICK = {"effort": 0.0}
"""Of the planner: what these tests assert, it finds without a search."""


def planner(policy: str = "hyperoffload", **settings) -> HosimPlanner:
    settings = QUICK | settings if policy == "hyperoffload" else settings
    return HosimPlanner(policy, schedule=ResidencySchedule, actions=ResidencyActionType, **settings)


def trace_of(
    *ops: tuple[float, str, str],
    sizes: dict[int, int],
    retained: str = "",
    limit: int | None = None,
) -> ActivationTrace:
    """A trace from (milliseconds, storages read, storages written); storages are digits, their
    sizes in MiB.
    """
    made = ActivationTrace(
        storage_sizes={s: size * MIB for s, size in sizes.items()},
        retained_sids=set(map(int, retained)),
    )
    for i, (ms, reads, writes) in enumerate(ops):
        accesses = [
            StorageAccess(i, int(s), kind)
            for kind, listed in ((READ, reads), (WRITE, writes))
            for s in listed
        ]
        made.ops.append(TraceOp("mm.default", ms, accesses))
    made.memory_limit_bytes = limit and limit * MIB
    return made


def step(layers: int, ms: float = 2.0, limit: int | None = None) -> ActivationTrace:
    """Forward and backward through so many layers of 64 MiB of activations."""
    made = ActivationTrace(
        memory_limit_bytes=limit, storage_sizes=dict.fromkeys(range(2 * layers), 64 * MIB)
    )
    made.retained_sids = {2 * layers - 1}
    for i in range(layers):
        accesses = [StorageAccess(i, i, WRITE), *([StorageAccess(i, i - 1, READ)] if i else [])]
        made.ops.append(TraceOp("mm.default", ms, accesses))
    for i in range(layers, 2 * layers):
        reads = [StorageAccess(i, 2 * layers - 1 - i, READ), StorageAccess(i, i - 1, READ)]
        made.ops.append(
            TraceOp("mm_backward.default", 2 * ms, [*reads, StorageAccess(i, i, WRITE)])
        )
    return made


def listed(trace: ActivationTrace, schedule: ResidencySchedule) -> list[Action]:
    both = ((True, schedule.pre), (False, schedule.post))
    return [
        Action(i, before, action.kind.name, action.storage_id)
        for i in range(len(trace.ops))
        for before, part in both
        for action in part.get(i, [])
    ]


def makespan(trace: ActivationTrace, schedule: ResidencySchedule) -> int:
    """Nanoseconds of a schedule by hosim's replay, on the machine of the trace."""
    read = read_document(document_of(trace))
    plan = plan_of(listed(trace, schedule), graph_of(read, "activations", retained_to_the_end=True))
    result = replay(plan, hardware_of(read), trace.memory_limit_bytes)
    assert result.makespan_ns is not None, result.error
    return result.makespan_ns


# --------------------------------------------------------------------------------------------------
# by hand

GAP = [
    (10.0, "", "1"),
    (10.0, "", "2"),
    (10.0, "2", ""),
    (10.0, "", "3"),
    (10.0, "3", ""),
    (10.0, "1", ""),
]
"""Storage 1 is made by op 0 and read by op 5; 2 and 3 come and go between."""


def test_one_gap_by_hand() -> None:
    trace = trace_of(*GAP, sizes={1: 64, 2: 40, 3: 40}, limit=100)
    schedule = planner().build(trace)
    # 64 MiB take 3.9 ms each way at 16 GiB/s: down during op 1, which cannot begin before it is
    # gone, and up during op 4 at the latest
    assert listed(trace, schedule) == [
        Action(0, False, "COPY_D2H", 1),
        Action(0, False, "RELEASE_DEVICE", 1),
        Action(2, False, "RELEASE_DEVICE", 2),
        Action(4, False, "RELEASE_DEVICE", 3),
        Action(5, True, "COPY_H2D", 1),
        Action(5, False, "RELEASE_DEVICE", 1),
        Action(5, False, "RELEASE_HOST", 1),
    ]
    assert run(trace, schedule) == 64 * MIB


def test_copies_up_begin_ahead_of_the_op_where_there_is_room() -> None:
    trace = trace_of(
        *GAP[:3],
        (10.0, "", "3"),
        (10.0, "3", ""),
        (10.0, "", ""),
        (10.0, "1", ""),
        sizes={1: 64, 2: 90, 3: 30},
        limit=100,
    )
    schedule = planner().build(trace)
    (up,) = [action for action in listed(trace, schedule) if action.kind == "COPY_H2D"]
    assert up.op < 6  # before an op that comes before its use
    assert run(trace, schedule) <= 100 * MIB


def test_without_a_limit_what_is_dead_is_released_and_nothing_moves() -> None:
    trace = trace_of(*GAP, sizes={1: 64, 2: 40, 3: 40}, retained="1")
    built = planner()
    schedule = built.build(trace)
    assert listed(trace, schedule) == [
        Action(2, False, "RELEASE_DEVICE", 2),
        Action(4, False, "RELEASE_DEVICE", 3),
    ]
    assert run(trace, schedule) == 104 * MIB
    assert built.planned is not None
    assert built.planned.result is None


def test_a_host_copy_that_a_write_made_stale_goes_before_the_next_copy_down() -> None:
    """The runtime skips a copy down where there is a host copy, however old."""
    ops = [
        (9.0, "", "1"),
        (9.0, "", "2"),
        (9.0, "2", ""),
        (9.0, "", "1"),
        (9.0, "", "3"),
        (9.0, "3", ""),
        (9.0, "1", ""),
    ]
    trace = trace_of(*ops, sizes={1: 50, 2: 60, 3: 60}, limit=100)
    schedule = planner().build(trace)
    kinds = [
        (action.op, action.kind)
        for action in listed(trace, schedule)
        if action.storage == 1 and not action.before
    ]
    assert kinds == [
        (0, "COPY_D2H"),
        (0, "RELEASE_DEVICE"),
        (3, "RELEASE_HOST"),
        (3, "COPY_D2H"),
        (3, "RELEASE_DEVICE"),
        (6, "RELEASE_DEVICE"),
        (6, "RELEASE_HOST"),
    ]
    assert run(trace, schedule) == 60 * MIB
    with pytest.raises(
        BrokenScheduleError, match="the only copy"
    ):  # what the library's own rule plans would lose the write
        run(trace, greedy(trace))


def test_what_is_retained_ends_on_the_device() -> None:
    ops = [(9.0, "", "1"), (9.0, "", "2"), (9.0, "2", ""), (9.0, "", "")]
    trace = trace_of(*ops, sizes={1: 50, 2: 60}, retained="1", limit=100)
    schedule = planner().build(trace)
    assert run(trace, schedule) <= 100 * MIB
    assert "COPY_H2D" in [action.kind for action in listed(trace, schedule)]


def test_storages_that_no_op_made_are_left_alone() -> None:
    """The runtime has no buffer for them: an action on one would raise."""
    trace = trace_of(
        (5.0, "9", "1"),
        (5.0, "", "2"),
        (5.0, "2", ""),
        (5.0, "19", ""),
        sizes={1: 64, 2: 60, 9: 500},
        limit=100,
    )
    assert {action.storage for action in listed(trace, planner().build(trace))} == {1, 2}


def test_gibibytes_per_second_and_one_stream() -> None:
    trace = ActivationTrace(
        [TraceOp("f", 1.0)], d2h_bandwidth_gbps=8.0, h2d_bandwidth_gbps=20.5, memory_limit_bytes=7
    )
    hardware = hardware_of(read_document(document_of(trace)), host_bytes=11)
    assert [(c.name, c.bandwidth_bytes_per_s) for c in hardware.channels] == [
        ("h2d", 41 * 2**29),
        ("d2h", 8 * 2**30),
    ]
    assert [tier.capacity_bytes for tier in hardware.tiers] == [7, 11]
    assert hardware.queue_of == {"h2d": "h2d", "d2h": "h2d"}
    assert (hardware.name, hardware.source) == ("hyper-parallel", "an activation trace")
    assert (
        hardware_of(read_document(document_of(trace))).tiers[1].capacity_bytes
        == HosimPlanner().host_bytes
        == 68_719_476_736
    )
    assert [
        tier.capacity_bytes
        for tier in hardware_of(replace(read_document(document_of(trace)), limit_bytes=0), 0).tiers
    ] == [1, 1]


# --------------------------------------------------------------------------------------------------
# any trace, any policy


@st.composite
def traces(draw) -> ActivationTrace:
    """A trace of up to 12 ops, most of which make a storage and use an earlier one, with a limit
    below its resident peak.
    """
    made = ActivationTrace(
        d2h_bandwidth_gbps=draw(st.sampled_from((4, 16.0))),
        h2d_bandwidth_gbps=draw(st.sampled_from((4.0, 50))),
    )
    sids: list[int] = []
    for i in range(draw(st.integers(5, 12))):
        accesses = []
        for sid in draw(st.lists(st.sampled_from(sids), max_size=2, unique=True)) if sids else ():
            kind = draw(st.sampled_from(("r", "r", "r", "w", "rw")))
            accesses += [StorageAccess(i, sid, READ if letter == "r" else WRITE) for letter in kind]
        for size in draw(st.sampled_from(((), (9,), (16,), (25,), (40,), (0, 12)))):
            sids.append(len(sids) + 1)
            made.storage_sizes[sids[-1]] = size * MIB
            accesses.append(StorageAccess(i, sids[-1], WRITE))
        made.ops.append(TraceOp("mm.default", draw(st.sampled_from((0, 0, 1.0, 5.5))), accesses))
    made.retained_sids = set(draw(st.lists(st.sampled_from(sids), max_size=1)) if sids else ())
    ends = [made.retained_sids if i + 1 == len(made.ops) else set() for i in range(len(made.ops))]
    needs = [
        sum(made.storage_sizes[s] for s in {a.storage_id for a in op.accesses} | end)
        for op, end in zip(made.ops, ends, strict=True)
    ]
    peak, need = run(made, planner().build(made)), max(needs)
    assume(peak > need)
    made.memory_limit_bytes = need + (peak - need) * draw(st.integers(0, 9)) // 10
    return made


POLICIES = st.sampled_from(
    ("hyperoffload", "longest_gap", "g10", "layerwise", "distance", "memory_peak")
)


@settings(max_examples=15)
@given(traces(), POLICIES)
def test_every_schedule_finds_its_storages_loses_none_and_keeps_the_limit(
    trace: ActivationTrace, policy: str
) -> None:
    settings = {"prefetch_distance": 2} if policy in ("distance", "memory_peak") else {}
    settings |= (
        {"select_distance": 2}
        if policy == "distance"
        else {"effort": 0.05}
        if policy == "hyperoffload"
        else {}
    )
    built = planner(policy, **settings)
    try:
        schedule = built.build(trace)
    except InfeasibleError:
        return
    assert trace.memory_limit_bytes is not None
    assert run(trace, schedule) <= trace.memory_limit_bytes
    assert built.planned is not None
    assert (
        verify(
            built.planned.plan,
            hardware_of(read_document(document_of(trace))),
            trace.memory_limit_bytes,
        )
        == ()
    )
    assert built.planned.result is not None
    assert built.planned.result.makespan_ns == makespan(trace, schedule)


@pytest.mark.long
@settings(max_examples=12)
@given(traces())
def test_never_slower_than_the_longest_gaps(trace: ActivationTrace) -> None:
    try:
        theirs = planner("longest_gap").build(trace)
    except InfeasibleError:
        return
    assert makespan(trace, planner(effort=0.2).build(trace)) <= makespan(trace, theirs)


@pytest.mark.parametrize(("share", "longer"), one_in(3, [(0.7, 1.21), (0.9, 1.08), (0.5, 1.34)]))
def test_a_training_step_against_the_librarys_own_planner(share: float, longer: float) -> None:
    trace = step(24)
    trace.memory_limit_bytes = int(run(trace, planner().build(trace)) * share)
    ours, theirs = planner().build(trace), greedy(trace)
    assert run(trace, ours) <= trace.memory_limit_bytes
    assert run(trace, theirs) <= trace.memory_limit_bytes
    alone = sum(round(op.duration_ms * 10**6) for op in trace.ops)
    assert makespan(trace, ours) <= alone * (
        1.04 if share == 0.5 else 1
    )  # at half the memory the copies down take all of the time
    assert makespan(trace, theirs) > longer * makespan(trace, ours)


# --------------------------------------------------------------------------------------------------
# steps of the planner


def five() -> Graph:
    """Storages of 5 bytes: a is used by ops 0 and 5, b by 1 and 2, c by 0 and 4."""
    builder = GraphBuilder("five")
    for name in "abc":
        builder.tensor(name, 5)
    users = {0: "ac", 1: "b", 2: "b", 3: "", 4: "c", 5: "a"}
    made: set[str] = set()
    for i, used in users.items():
        builder.op(
            f"f{i}",
            "m",
            inputs=[x for x in used if x in made],
            outputs=[x for x in used if x not in made],
            duration_ns=1,
        )
        made |= set(used)
    return builder.build()


def test_bytes_in_program_order() -> None:
    graph = five()
    assert _held(graph, []) == [10, 15, 15, 10, 10, 5]
    assert _held(graph, [_Away(0, 0, 5, 1, 4, 2, 0), _Away(2, 0, 4, 0, 3, 1, 0)]) == [
        10,
        10,
        5,
        5,
        10,
        5,
    ]


def test_actions_are_where_the_replay_of_the_plan_has_them() -> None:
    """64 MiB take 3.9 ms: released when the copy down has ended, during op 1, and copied up where
    the plan issues it, behind op 3.
    """
    trace = read_document(document_of(trace_of(*GAP, sizes={1: 64, 2: 40, 3: 40}, limit=1000)))
    graph = graph_of(trace, "activations", retained_to_the_end=True)
    moves = (
        CacheOp(STORE, 0, "hbm", "ddr", 0),
        CacheOp(DETACH, 0, "hbm", None, 0),
        CacheOp(PREFETCH, 0, "ddr", "hbm", 3),
    )
    planned = _planned(Plan(graph, "mine", moves), trace, hardware_of(trace))
    assert planned.actions == (
        Action(0, False, "COPY_D2H", 1),
        Action(1, False, "RELEASE_DEVICE", 1),
        Action(2, False, "RELEASE_DEVICE", 2),
        Action(4, True, "COPY_H2D", 1),
        Action(4, False, "RELEASE_DEVICE", 3),
        Action(5, False, "RELEASE_DEVICE", 1),
        Action(5, False, "RELEASE_HOST", 1),
    )
    assert (planned.plan.policy, planned.plan.cache_ops) == (
        "mine",
        (moves[0], replace(moves[1], after=1), moves[2]),
    )
    assert planned.result == replay(planned.plan, hardware_of(trace), 1000 * MIB)


def shrunk(aways: list[_Away]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """What is held at each op of ``five`` and when each tensor is released and fetched: at first,
    with room for 10, and with room for 5.
    """
    graph = five()
    held = _held(graph, aways)
    steps = []
    for limit in (None, 10, 5):
        if limit is not None:
            _shrink(graph, aways, held, limit)
        steps.append((list(held), [(away.release, away.fetch) for away in aways]))
    return steps


def test_copies_up_are_delayed_before_releases_are_advanced() -> None:
    """At op 2 the copy of a, which is needed last, is delayed; that suffices until op 3; nothing
    can be done about op 0.
    """
    assert shrunk([_Away(2, 0, 4, 0, 2, 1, 0), _Away(0, 0, 5, 0, 2, 1, 0)]) == [
        ([10, 5, 15, 10, 10, 5], [(0, 2), (0, 2)]),
        ([10, 5, 10, 10, 10, 5], [(0, 2), (0, 3)]),
        ([10, 5, 5, 5, 5, 5], [(0, 3), (0, 5)]),
    ]


def test_releases_are_advanced_where_copies_up_are_late_already() -> None:
    assert shrunk([_Away(0, 0, 5, 2, 5, 3, 0), _Away(2, 0, 4, 2, 4, 3, 0)]) == [
        ([10, 15, 15, 0, 5, 5], [(2, 5), (2, 4)]),
        ([10, 10, 10, 0, 5, 5], [(0, 5), (2, 4)]),
        ([10, 5, 5, 0, 5, 5], [(0, 5), (0, 4)]),
    ]


def test_copies_up_move_ahead_in_their_order() -> None:
    """The copy of c may come from op 1 on, but only at op 3 there is room; that of a not before it,
    though it was wanted at op 2.
    """
    graph = five()
    aways = [_Away(2, 0, 4, 0, 4, 1, 0), _Away(0, 0, 5, 0, 5, 2, 1)]
    held = _held(graph, aways)
    assert held == [10, 5, 5, 0, 5, 5]
    _advance(graph, aways, held, 5)
    assert ([away.fetch for away in aways], held) == ([3, 5], [10, 5, 5, 5, 5, 5])
    _advance(graph, aways, held, 10)
    assert ([away.fetch for away in aways], held) == ([1, 3], [10, 10, 10, 10, 10, 5])


def test_what_runs_is_faster_than_what_does_not() -> None:
    """At 15 bytes the six ops of 1 ns fit; at 14 the second has no room; without a limit there is
    no replay.
    """
    plan = Plan(five(), "none", ())
    hardware = hardware_of(read_document(document_of(trace_of(*GAP, sizes={1: 64, 2: 40, 3: 40}))))
    fits, fails, unknown = (
        Planned((), plan, r) for r in (replay(plan, hardware, 15), replay(plan, hardware, 14), None)
    )
    assert [_makespan_ns(planned) for planned in (fits, fails, unknown)] == [6, 10**18, 10**18]
    assert [_waits(planned) for planned in (fits, fails, unknown)] == [False, True, True]
    assert fits.result is not None
    late = replace(fits.result, stall_ns=fits.result.stall_ns | {"transfer": 1})
    assert _waits(Planned((), plan, late))


# --------------------------------------------------------------------------------------------------
# errors


def test_nothing_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"needs 64.0 MiB .* the budget is 1.00 MiB"):
        planner().build(trace_of(*GAP, sizes={1: 64, 2: 1, 3: 1}, limit=1))


class Greedy:
    """The library's own planner."""

    def build(self, trace: ActivationTrace) -> ResidencySchedule:
        return greedy(trace)


def library(monkeypatch: pytest.MonkeyPatch, place: str, **classes: object) -> None:
    parts = ["hyper_parallel", "auto_parallel", "hyper_offload", *place.split(".")]
    for n in range(1, len(parts) + 1):
        if ".".join(parts[:n]) not in sys.modules:
            monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    vars(sys.modules[".".join(parts)]).update(classes)


@pytest.mark.parametrize("where", ["given", "installed"])
def test_where_nothing_fits_the_librarys_own_schedule_is_taken(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(*GAP, sizes={1: 64, 2: 1, 3: 1}, limit=1)
    if where == "installed":
        library(monkeypatch, "planning.greedy", GreedyResidencyPlanner=Greedy)
    ours = planner(**({"fallback": Greedy()} if where == "given" else {}))
    with pytest.warns(
        UserWarning,
        match=r"hosim found no plan, so Greedy plans this session: .* the budget is 1.00 MiB",
    ):
        assert ours.build(trace) == greedy(trace)
    assert ours.planned is None


@pytest.mark.long
def test_a_session_plans_again_from_a_later_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step's ops take ten times as long as the second's."""

    class Session:
        mode, residency_manager = "warmup", object()

        def __init__(self, planner: HosimPlanner) -> None:
            self.planner = planner
            self.executor: object = None

        def step(self, factor: float) -> None:
            if self.mode == "warmup":
                ops = [(ms * factor, reads, writes) for ms, reads, writes in GAP]
                self.schedule = self.planner.build(
                    trace_of(*ops, sizes={1: 64, 2: 40, 3: 40}, limit=100)
                )
                self.mode = "replay"

    class WarmUp:
        def __init__(self, residency_manager: object, memory_limit_bytes: int) -> None:
            self.given = residency_manager, memory_limit_bytes

    ours = planner()
    session = Session(ours)
    with pytest.raises(InputError, match="plan again after the first step"):
        ours.plan_again(session)
    session.step(10)
    first = ours.planned
    with pytest.raises(InputError, match="give its WarmupExecutor as warm_up="):
        ours.plan_again(session)
    library(monkeypatch, "execution.warmup", WarmupExecutor=WarmUp)
    ours.plan_again(session)
    assert isinstance(session.executor, WarmUp)
    assert session.executor.given == (session.residency_manager, 100 * MIB)
    session.step(1)
    assert first is not None
    assert ours.planned is not None
    assert first.result is not None
    assert ours.planned.result is not None
    assert [op.duration_ns for op in ours.planned.plan.graph.ops] == [
        (op.duration_ns or 0) // 10 for op in first.plan.graph.ops
    ]


class Steps:
    """A session as the library's: an executor for each step, reset when the step begins, and the
    planner asked after a recorded one.
    """

    current: Steps | None = None

    def __init__(self, planner: HosimPlanner) -> None:
        self.planner, self.residency_manager = planner, object()
        self.mode, self.executor = "warmup", Recording(self.residency_manager, 100 * MIB)
        self.modes: list[str] = []

    @classmethod
    def get_active(cls) -> Steps | None:
        return cls.current

    def step(self, factor: float) -> None:
        self.executor.reset()
        Steps.current = self
        self.modes.append(self.mode)
        if self.mode == "replay":
            for op in range(len(GAP)):
                self.executor.schedule.pre_actions(op)
        Steps.current = None
        if self.mode == "warmup":
            ops = [(ms * factor, reads, writes) for ms, reads, writes in GAP]
            self.executor = Replaying(
                self.planner.build(trace_of(*ops, sizes={1: 64, 2: 40, 3: 40}, limit=100))
            )
            self.mode = "replay"


class Recording:
    def __init__(self, residency_manager: object, memory_limit_bytes: int) -> None:
        self.given, self.resets = (residency_manager, memory_limit_bytes), 0

    def reset(self) -> None:
        self.resets += 1


class Replaying(Recording):
    def __init__(self, schedule: ResidencySchedule) -> None:
        self.schedule, self.resets = schedule, 0


@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_session_records_its_third_step_by_itself(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "execution.warmup", WarmupExecutor=Recording)
    library(monkeypatch, "api.session", OffloadSession=Steps)
    ours = planner(again=again)
    session, other = Steps(ours), Steps(planner(again=False))
    plans, resets = [], []
    for factor in (10, 5, 1, 1, 1, 1):
        session.step(factor)
        other.step(factor)
        plans.append(ours.planned.plan.graph.ops[0].duration_ns if ours.planned else None)
        resets.append(session.executor.resets)
    assert session.modes == [
        "warmup",
        "replay",
        "warmup" if again else "replay",
        "replay",
        "replay",
        "replay",
    ]
    assert other.modes == ["warmup", *["replay"] * 5]
    first, later = 100 * 10**6, 10 * 10**6
    assert plans == [first, first, *[later if again else first] * 4]
    assert resets == ([0, 1, 0, 1, 2, 3] if again else [0, 1, 2, 3, 4, 5])


def test_without_the_librarys_classes_a_session_plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, "api.session", OffloadSession=Steps)
    session = Steps(planner())
    for _ in range(4):
        session.step(1)
    assert session.modes == ["warmup", "replay", "replay", "replay"]


@pytest.mark.parametrize("policy", ["on_demand", "belady"])
def test_a_policy_that_decides_during_the_run(policy: str) -> None:
    with pytest.raises(
        InputError,
        match="decides during the run; a schedule needs a policy that plans ahead and keeps the "
        "order",
    ):
        planner(policy)


def test_a_plan_that_changes_the_order_of_the_ops() -> None:
    """Storage 2 could be made after storage 1's last use: the planner would, and a running program
    cannot.
    """
    ops = [(1.0, "", "1"), (1.0, "", "2"), (1.0, "", ""), (1.0, "1", ""), (1.0, "2", "")]
    trace = trace_of(*ops, sizes={1: 60, 2: 60}, limit=60)
    with pytest.raises(InputError, match="changes the order of the ops"):
        planner(reorder=True).build(trace)
    assert run(trace, planner().build(trace)) <= 60 * MIB


def test_a_step_without_ops() -> None:
    assert planner().build(ActivationTrace(memory_limit_bytes=1)) == ResidencySchedule()


def test_a_trace_that_contradicts_itself() -> None:
    trace = trace_of(*GAP, sizes={1: 64, 2: 40, 3: 40}, limit=100)
    trace.ops[3].accesses[0].op_id = 7
    with pytest.raises(
        InputError, match=r"ops\[3\].accesses\[0\].op_id: expected the number of its op, 3, got 7"
    ):
        planner().build(trace)


def test_the_librarys_classes_are_taken_from_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(*GAP, sizes={1: 64, 2: 40, 3: 40}, limit=100)
    with pytest.raises(InputError) as raised:
        HosimPlanner().build(trace)
    assert str(raised.value) == (
        "HosimPlanner: hyper-parallel cannot be imported (No module named 'hyper_parallel'); "
        "install it, or give its classes as schedule= and actions="
    )
    parts = ["hyper_parallel", "auto_parallel", "hyper_offload", "ir", "schedule"]
    for n in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    module = sys.modules[".".join(parts)]
    module.ResidencySchedule, module.ResidencyActionType = ResidencySchedule, ResidencyActionType  # type: ignore[attr-defined]
    assert HosimPlanner(**QUICK).build(trace) == planner().build(trace)


def test_saved_traces_are_workloads(tmp_path) -> None:
    trace = step(6, limit=400 * MIB)
    planner(save=tmp_path / "step.json.gz").build(trace)
    graph = load_any(tmp_path / "step.json.gz")
    assert graph == graph_of(read_document(json.loads(json.dumps(document_of(trace)))), "step")
    assert [op.kind for op in graph.ops[:2]] == ["matmul", "matmul"]
    assert graph.meta["memory_limit_bytes"] == 400 * MIB


def test_the_import_of_earlier_releases_goes_on_working() -> None:
    assert import_module("hosim.lower.bridges.hyper_parallel_planner").HosimPlanner is HosimPlanner
    assert import_module("hosim.lower.insert").barriers is barriers
