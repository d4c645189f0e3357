"""The account in program order, by hand: bytes count from where the host allocates to where it
frees.
"""

import pytest
from both_engines import replay
from by_hand import machine, plan, workload
from hypothesis import given
from strategies import cases

from hosim.analysis import idle_below, static_peak
from hosim.cache_plan import Plan
from hosim.engine import program_account
from hosim.errors import InputError

MIB = 1 << 20


def counted(steps, hardware, allocator="ledger", ahead=1024):
    result = replay(steps, hardware, record=True)
    account = program_account(
        steps, hardware, result.timeline, hardware.device.capacity_bytes, allocator, ahead
    )
    return account.figures, account.error


def queue_of_prefetches():
    # Each of three weights of 40 is read by one op of 10 ns and detached after it; all are
    # prefetched at the start, at 1 B/ns.
    graph = workload(
        dict.fromkeys("uvw", (40, "parameter", "ddr")),
        {f"f{t}": {"ns": 10, "inputs": [t]} for t in "uvw"},
    )
    moves = [(f"prefetch {t}", None) for t in "uvw"] + [(f"detach {t}", f"f{t}") for t in "uvw"]
    return plan(graph, *moves)


def test_a_prefetch_counts_from_where_it_is_issued():
    # In time u moves over 0..40 and is detached at 50, v over 40..80, w over 80..120: never more
    # than two. The host issued all at once.
    steps = queue_of_prefetches()
    result = replay(steps, machine(), account="program")
    assert not result.feasible
    assert result.error == (
        "out of memory in program order: prefetch of 'w' wants 40 B (40 B) of hbm, where 80 B (80 "
        "B) of 100 B (100 B) are held "
        "(allocator ledger: 80 B (80 B) reserved, fragmentation 0.0 %, largest free block 0 B (0 "
        "B))"
    )
    assert (
        result.makespan_ns,
        result.peak_bytes["hbm"],
        result.allocator.out_of_memory.allocated_bytes,
    ) == (None, 80, 80)
    roomy = replay(steps, machine(hbm=120), account="program")
    assert (roomy.feasible, roomy.peak_bytes["hbm"], roomy.allocator.peak_allocated_bytes) == (
        True,
        80,
        120,
    )
    assert roomy.makespan_ns == replay(steps, machine(hbm=120)).makespan_ns == 130


def stored_aside():
    # x is stored over 10..40 (30 B) and its block freed at once by the host; y is allocated next. x
    # comes back for the last op.
    graph = workload(
        {"x": (30,), "y": (30,), "z": (5,)},
        {
            "f": {"ns": 10, "outputs": ["x"]},
            "g": {"ns": 40, "outputs": ["z"]},
            "h": {"ns": 10, "outputs": ["y"]},
            "i": {"ns": 10, "inputs": ["x"]},
        },
    )
    return plan(graph, ("store x", "f"), ("detach x", "f"), ("prefetch x", "h"))


def test_a_freed_block_is_active_until_the_store_that_reads_it_has_passed():
    # Allocated: x 30; freed; z 5, freed; y 30, freed; x 30. Active: the first x waits until 40,
    # when the store ends.
    steps = stored_aside()
    for ahead, active in ((0, 35), (1, 60), (1024, 60)):
        # A host that waits for each op allocates z at 10 (30 + 5), y at 50. One op ahead, it
        # allocates z at 0, y at 10 (30 + 30) and x at 50. Far ahead, all are allocated at 0, and
        # only the first x waits.
        figures, error = counted(steps, machine(hbm=1000), ahead=ahead)
        assert error is None
        assert figures.peak_allocated_bytes == 30
        assert figures.peak_active_bytes == active
    # When memory is short the host waits instead of failing.
    figures, error = counted(steps, machine(hbm=40))
    assert (error, figures.peak_active_bytes) == (None, 35)


def test_blocks_of_another_streams_tensors_wait_for_its_op():
    # x is written on the stream a, and read on b over 10..60; it is dead behind that op in the
    # list. y is a's next.
    graph = workload(
        {"x": (30,), "y": (30,)},
        {
            "f": {"ns": 10, "outputs": ["x"], "stream": "a"},
            "g": {"ns": 50, "inputs": ["x"], "stream": "b"},
            "h": {"ns": 10, "outputs": ["y"], "stream": "a"},
        },
    )
    for ahead, active in ((0, 30), (1, 60)):
        figures, _ = counted(plan(graph), machine(), ahead=ahead)
        assert (figures.peak_allocated_bytes, figures.peak_active_bytes) == (30, active)


@pytest.mark.parametrize(("between", "active"), [(1023, 60), (1024, 30)])
def test_a_host_is_1024_ops_ahead_unless_told(between, active):
    # As above, with ops of 1 ns on a before h, which is op number between + 2. With 1024 ops behind
    # it that have not ended, the host allocates y when op number between + 1 - 1024 has ended: f at
    # 10, or g at 60, which is when x is free.
    graph = workload(
        {"x": (30,), "y": (30,)},
        {
            "f": {"ns": 10, "outputs": ["x"], "stream": "a"},
            "g": {"ns": 50, "inputs": ["x"], "stream": "b"},
            **{f"n{k}": {"ns": 1, "stream": "a"} for k in range(between)},
            "h": {"ns": 10, "outputs": ["y"], "stream": "a"},
        },
    )
    timeline = replay(plan(graph), machine(), record=True).timeline
    figures = program_account(plan(graph), machine(), timeline, 100).figures
    assert (figures.peak_allocated_bytes, figures.peak_active_bytes) == (30, active)


def test_the_caching_allocator_reserves_for_what_is_pending():
    graph = workload(
        {"x": (30 * MIB,), "y": (30 * MIB,), "z": (1,)},
        {
            "f": {"ns": 10, "outputs": ["x"]},
            "h": {"ns": 10, "outputs": ["y"]},
            "i": {"ns": 10, "inputs": ["x"], "outputs": ["z"]},
        },
    )
    steps = plan(graph, ("store x", "f"), ("detach x", "f"), ("prefetch x", "h"))

    def hardware(mib):
        return machine(hbm=mib * MIB, ddr=100 * MIB, d2h=MIB * 10**9, h2d=MIB * 10**9)

    figures, error = counted(steps, hardware(100), "caching")
    # x's block waits for its store; y needs a segment of its own, which x's second block reuses:
    # its stream is the same. z is small.
    assert error is None
    assert (
        figures.peak_allocated_bytes,
        figures.peak_active_bytes,
        figures.peak_reserved_bytes,
    ) == (
        30 * MIB + 512,
        60 * MIB + 512,
        62 * MIB,
    )
    # With room for one: the allocator waits for the store, gives the segment back, and asks again.
    figures, error = counted(steps, hardware(40), "caching")
    assert (error, figures.peak_reserved_bytes) == (None, 32 * MIB)
    figures, error = counted(steps, hardware(31), "caching")
    assert "op 'i' wants 1 B (1 B) of hbm" in error
    assert figures.out_of_memory.reserved_bytes == 30 * MIB


def test_what_has_no_program_order_is_refused():
    steps = queue_of_prefetches()
    with pytest.raises(InputError, match="static has no account in program order"):
        replay(steps, machine(), allocator="static", account="program")
    with pytest.raises(InputError, match="no account 'wall'"):
        replay(steps, machine(), account="wall")
    with pytest.raises(InputError, match="a runtime policy decides during the replay"):
        replay(Plan(steps.graph, "runtime", (), {}, lambda: None), machine(), account="program")


def allocated_in_program_order(steps, tier):
    """The largest sum of what the host holds, walking through the plan with a set."""
    graph = steps.graph
    size = [t.size_bytes for t in graph.tensors]
    held = {t for t, where in steps.residency(tier).items() if tier in where}
    peak, dead = sum(size[t] for t in held), set()

    def moves(place):
        nonlocal peak
        for c in steps.cache_ops:
            if c.after == place and c.tensor not in dead:
                if c.op == "detach" and c.source == tier:
                    held.discard(c.tensor)
                elif c.destination == tier:
                    held.add(c.tensor)
                peak = max(peak, sum(size[t] for t in held))

    moves(-1)
    for i, op in enumerate(graph.ops):
        held.update(op.outputs)
        peak = max(peak, sum(size[t] for t in held) + op.workspace_bytes)
        gone = {t for t in op.uses if graph.users[t][-1] == i and not graph.survives[t]}
        dead |= gone
        held -= gone
        moves(i)
    return peak


@given(cases(max_ops=9, max_streams=3, fabrics=True, measured=False))
def test_allocated_bytes_are_those_of_a_walk_through_the_plan(case):
    _, hardware, steps = case
    timeline = replay(steps, hardware, record=True).timeline
    expected = allocated_in_program_order(steps, hardware.device_tier)
    figures = [
        program_account(steps, hardware, timeline, 1 << 50, "ledger", ahead).figures
        for ahead in (0, 2, 1024)
    ]
    assert [f.peak_allocated_bytes for f in figures] == [expected] * 3
    assert (
        expected
        <= figures[0].peak_active_bytes
        <= figures[1].peak_active_bytes
        <= figures[2].peak_active_bytes
    )
    placed = program_account(steps, hardware, timeline, 1 << 50, "caching").figures
    assert placed.peak_reserved_bytes >= placed.peak_active_bytes >= figures[2].peak_active_bytes


@given(cases(max_ops=9, measured=False))
def test_with_everything_resident_it_is_the_static_account(case):
    graph, hardware, _ = case
    tier = hardware.device_tier
    idle = idle_below(graph, tier)
    resident = Plan(graph, initial={t: (tier,) for t in graph.initial if t not in idle})
    assert (
        replay(resident, hardware, 1 << 50, account="program").allocator.peak_allocated_bytes
        == static_peak(graph, tier).bytes
    )
