"""First pass: op times, pressure and gaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import NS, hill, machine, plateau, training

from hosim.analysis import Gap, static_curve
from hosim.cache_plan import AT_START, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.hyperoffload.tensor_choices import analyse, check_floor, unhindered
from hosim.planner.schedule.tiers_below import fastest_tiers
from hosim.policies import policy_named


def gaps_of(
    graph: Graph, name: str, machine_: Hardware | None = None
) -> list[tuple[int, int, int, bool]]:
    problem = analyse(graph, machine_ or machine())
    t = graph.tensor_index[name]
    return [
        (gap.after, gap.before, gap.version, gap.returns) for gap in problem.gaps if gap.tensor == t
    ]


def uses(
    *,
    of: int,
    at: list[int],
    kind: str = "parameter",
    home: str | None = None,
    mutates: bool = False,
) -> Graph:
    """``of`` ops of 10 ns, of which those ``at`` use ``w``; the last of these writes it if
    ``mutates``.
    """
    b = GraphBuilder("uses")
    b.tensor("w", 8, kind, home)
    for i in range(of):
        writes = mutates and i == at[-1]
        b.op(
            f"f{i}",
            "op",
            inputs=["w"] if i in at and not writes else [],
            mutates=["w"] if writes else [],
            duration_ns=10,
        )
    return b.build()


def test_a_persistent_tensor_is_idle_before_between_and_after_its_uses() -> None:
    assert gaps_of(uses(of=8, at=[2, 3, 6]), "w") == [
        (AT_START, 2, 0, True),
        (3, 6, 0, True),
        (6, 8, 0, True),
    ]


def test_a_write_begins_a_version() -> None:
    graph = uses(of=8, at=[2, 5], mutates=True)
    assert gaps_of(graph, "w") == [(AT_START, 2, 0, True), (2, 5, 0, True), (5, 8, 1, True)]
    assert graph.writers == ((5,),)


def test_uses_at_the_ends_of_the_step_leave_no_gap_there() -> None:
    assert gaps_of(uses(of=5, at=[0, 4], kind="activation", home="hbm"), "w") == [(0, 4, 0, True)]


def test_a_persistent_tensor_that_the_first_op_uses_may_still_start_below() -> None:
    assert gaps_of(uses(of=5, at=[0, 4]), "w") == [(AT_START, 0, 0, True), (0, 4, 0, True)]


def test_what_lives_below_has_gaps_between_its_uses_only() -> None:
    graph = uses(of=8, at=[2, 5], home="ddr")
    assert gaps_of(graph, "w") == [(2, 5, 0, True)]
    assert analyse(graph, machine()).starts_below == {0: "ddr"}


def test_activations_have_gaps_between_uses_that_are_not_neighbours() -> None:
    graph = hill(3)
    assert gaps_of(graph, "a0") == [(1, 5, 1, True)]
    assert gaps_of(graph, "a2") == []  # b2 follows f2 at once


def test_an_output_need_not_come_back() -> None:
    b = GraphBuilder("output")
    b.tensor("y", 8, "output")
    b.op("f", "op", outputs=["y"], duration_ns=10)
    b.op("g", "op", duration_ns=10)
    b.op("h", "op", duration_ns=10)
    assert gaps_of(b.build(), "y") == [(0, 3, 1, False)]


def test_what_is_written_anew_need_not_come_back() -> None:
    b = GraphBuilder("anew")
    b.tensor("a", 8)
    b.op("f", "op", outputs=["a"], duration_ns=10)
    b.op("g", "op", duration_ns=10)
    b.op("h", "op", outputs=["a"], duration_ns=10)
    assert gaps_of(b.build(), "a") == [(0, 2, 1, False)]


@pytest.mark.parametrize(
    ("kind", "persistent", "expected"),
    [
        ("activation", False, [(AT_START, 2, 0, True)]),
        ("parameter", True, [(AT_START, 2, 0, True)]),
    ],
)
def test_what_is_there_at_time_0_has_a_gap_before_its_first_use(
    kind: str, persistent: bool, expected: list[tuple[int, int, int, bool]]
) -> None:
    assert gaps_of(uses(of=3, at=[2], kind=kind, home="hbm"), "w") == expected


def test_a_persistent_tensor_that_no_op_uses_has_the_whole_step() -> None:
    assert gaps_of(uses(of=3, at=[]), "w") == [(AT_START, 3, 0, False)]


def test_held_bytes_of_the_hill() -> None:
    # f0..f3 add 10 B each; b3 still holds all four, then each op's end releases one; nothing
    # survives the step
    assert analyse(hill(4), machine()).held_bytes == (10, 20, 30, 40, 40, 30, 20, 10, 0)


def test_held_bytes_count_what_lives_below_from_its_first_use_to_its_last() -> None:
    assert analyse(uses(of=6, at=[2, 4], home="ddr"), machine()).held_bytes == (0, 0, 8, 8, 8, 0, 0)
    assert analyse(uses(of=6, at=[2, 4]), machine()).held_bytes == (8,) * 7


@given(graphs(max_ops=10, homes=("hbm",)))
def test_held_bytes_are_the_liveness_curve_and_then_what_survives(graph: Graph) -> None:
    held = analyse(graph, machine()).held_bytes
    assert list(held[:-1]) == static_curve(graph)
    left = [t for t in graph.tensors if t.persistent]
    left += [
        t
        for i, t in enumerate(graph.tensors)
        if not t.persistent and graph.users[i] and t.kind == "output"
    ]
    left += [
        t
        for i, t in enumerate(graph.tensors)
        if not t.persistent and not graph.users[i] and i in graph.initial
    ]
    assert held[-1] == sum(t.size_bytes for t in left)


@given(graphs(max_ops=8, max_streams=3, homes=("hbm",)), hardware())
def test_unhindered_times_are_those_of_a_replay_with_everything_resident(
    graph: Graph, drawn: Hardware
) -> None:
    roomy = sized(drawn, graph)
    problem = analyse(graph, roomy)
    timeline = replay(Plan(graph), roomy, record=True).timeline
    assert timeline is not None
    assert (timeline.op_start_ns, timeline.op_end_ns) == (problem.start_ns, problem.end_ns)
    assert problem.horizon_ns == max(timeline.op_end_ns)


@given(graphs(max_ops=10, max_streams=2), hardware())
def test_gaps_lie_between_uses(graph: Graph, drawn: Hardware) -> None:
    problem = analyse(graph, drawn)
    assert len(set(problem.gaps)) == len(problem.gaps)
    for gap in problem.gaps:
        users = graph.users[gap.tensor]
        assert gap.after in (AT_START, *users)
        assert gap.before in (*users, len(graph.ops))
        assert not any(gap.after < user < gap.before for user in users)
        assert gap.before - gap.after > 1 or gap.after == AT_START
        assert gap.version == sum(gap.tensor in graph.ops[i].writes for i in range(gap.after + 1))


def test_the_floor_of_an_op_is_what_it_uses_and_its_workspace() -> None:
    b = GraphBuilder("floor")
    b.tensor("w", 8, "parameter")
    b.tensor("a", 4)
    b.op("f", "op", inputs=["w"], outputs=["a"], duration_ns=1, workspace_bytes=2)
    b.op("g", "op", inputs=["a"], duration_ns=1)
    problem = analyse(b.build(), machine())
    assert problem.floor_bytes == (14, 4)
    check_floor(problem, 14)
    with pytest.raises(
        InfeasibleError,
        match=r"op 'f' alone uses 14 B .* smallest budget that any plan could meet is 14 B",
    ):
        check_floor(problem, 13)


def test_the_position_after_the_last_op_holds_what_survives() -> None:
    held = analyse(training(2), machine()).held_bytes
    assert held[-1] == 2 * (10 + 20)


def test_lower_tiers_are_those_joined_both_ways_fastest_round_trip_first() -> None:
    tiers = (
        Tier("hbm", 100, NS),
        Tier("slow", 100, NS),
        Tier("fast", 100, NS),
        Tier("up_only", 100, NS),
    )
    channels = (
        Channel("s_up", "slow", "hbm", NS),
        Channel("s_down", "hbm", "slow", NS // 10),
        Channel("f_up", "fast", "hbm", NS // 2),
        Channel("f_down", "hbm", "fast", NS // 2),
        Channel("o_up", "up_only", "hbm", 10 * NS),
    )
    below = fastest_tiers(Hardware("h", tiers, channels, Compute({})))
    assert [(b.name, b.up.name, b.down.name) for b in below] == [
        ("fast", "f_up", "f_down"),
        ("slow", "s_up", "s_down"),
    ]


def test_other_times_can_be_planned_for() -> None:
    graph = plateau(2)
    problem = analyse(graph, machine(), ([5, 40], [25, 60]))
    assert (problem.start_ns, problem.end_ns, problem.horizon_ns) == ((5, 40), (25, 60), 60)
    assert problem.durations == (20, 20)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_on_one_stream_ops_follow_each_other(durations: list[int]) -> None:
    b = GraphBuilder("chain")
    for i, duration in enumerate(durations):
        b.op(f"f{i}", "op", duration_ns=duration)
    start, end = unhindered(b.build(), durations)
    assert start == [0, *end[:-1]]
    assert [e - s for s, e in zip(start, end, strict=True)] == durations


def test_gaps_are_plain_data() -> None:
    assert Gap(0, 1, 3, 0, True) == Gap(0, 1, 3, 0, True)
    assert hash(Gap(0, 1, 3, 0, True)) == hash(Gap(0, 1, 3, 0, True))


def with_a_rom(*more: Channel) -> Hardware:
    """Host memory, and a tier of which contents can only be read."""
    tiers = Tier("hbm", 100, 10**12, "device"), Tier("ddr", 1000, 10**11), Tier("rom", 1000, 10**10)
    both = Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)
    return Hardware("with a rom", tiers, (*both, *more), Compute({}))


def weights_in_rom(count: int, mutates: bool = False) -> Graph:
    b = GraphBuilder("rom")
    for k in range(count):
        w = b.tensor(f"w{k}", 40, "parameter", "rom")
        read = [w, *([f"a{k - 1}"] if k else [])]
        b.tensor(f"a{k}", 10)
        b.op(
            f"f{k}",
            "matmul",
            inputs=read[mutates:],
            mutates=[w] if mutates else [],
            outputs=[f"a{k}"],
            duration_ns=50,
        )
    return b.build()


def test_a_home_from_which_contents_only_come_up():
    """Six weights of 40 B come up, two of them at once with what is computed: 40 ns, then six ops
    of 50 ns.
    """
    hardware = with_a_rom(Channel("rom_read", "rom", "hbm", 10**9))
    plan = policy_named("hyperoffload").plan(weights_in_rom(6), hardware)
    assert replay(plan, hardware).makespan_ns == 40 + 6 * 50


@pytest.mark.parametrize(
    ("channels", "mutates", "ends"),
    [
        ((), False, "from rom to hbm"),
        ((Channel("rom_read", "rom", "hbm", 10**9),), True, "from hbm to rom"),
    ],
)
def test_a_home_without_a_way_is_named(channels, mutates, ends):
    with pytest.raises(InfeasibleError, match=f"no channels of with a rom lead {ends}"):
        analyse(weights_in_rom(2, mutates), with_a_rom(*channels))
