"""Candidate selection on toys whose answer is derived by hand, and its account of memory,
recomputed from the choices alone.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau, told, training

from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder, Op, Tensor
from hosim.hardware import Channel, Tier
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    TensorChoice,
    analyse,
    insert,
)


def chosen(
    graph: Graph,
    budget: int,
    weights: Weights = Weights(),  # noqa: B008
    below: tuple[str, ...] = ("ddr",),
) -> dict[str, TensorChoice]:
    selection = select(analyse(graph, machine(*below)), budget, weights)
    assert selection.short_bytes == 0
    return {graph.tensors[t].name: choice for t, choice in selection.choices.items()}


def held_by(
    graph: Graph, choices: Mapping[int, TensorChoice], starts_below: Mapping[int, str]
) -> list[int]:
    """Bytes of the device tier at each position of the listed order, the one after the last op
    included, from the choices alone.
    """
    count = len(graph.ops)
    held = [op.workspace_bytes for op in graph.ops] + [0]
    for t, tensor in enumerate(graph.tensors):
        users, choice = graph.users[t], choices.get(t)
        if not users and t not in graph.initial:
            continue
        first = 0 if t in graph.initial else users[0]
        last = count if graph.survives[t] or not users else users[-1]
        there = set(range(first, last + 1))
        if t in starts_below or (choice is not None and choice.start == BELOW):
            there = set(range(users[0], users[-1] + 1)) if users else set()
            back = choice.away.get(AT_START) if choice is not None else None
            if choice is not None and back is not None and users:
                there |= set(range(back + 1, users[0]))
        for after, back in (choice.away if choice is not None else {}).items():
            if after != AT_START:
                following = next((u for u in users if u > after), count + 1)
                there -= set(range(after + 1, following if back is None else back + 1))
            elif choice is not None and choice.start != BELOW and t not in starts_below:
                there -= set(range(back + 1 if back is not None else users[0]))
        for i in there:
            held[i] += tensor.size_bytes
    return held


def test_within_the_budget_nothing_moves() -> None:
    assert chosen(hill(4), 40) == {}


def test_gaps_in_which_no_op_exceeds_the_budget_are_not_judged() -> None:
    """x (10 B) and y (30 B) are idle for an op each, and only during the second one more than 35 B
    are held.
    """
    b = GraphBuilder("two")
    for name, size in (("x", 10), ("y", 30)):
        b.tensor(name, size)
        b.op(f"makes {name}", "op", outputs=[name], duration_ns=20)
        b.op(f"during {name}", "op", workspace_bytes=10, duration_ns=20)
        b.op(f"reads {name}", "op", inputs=[name], duration_ns=20)
    problem = analyse(b.build(), machine())
    assert len(problem.gaps) == 2
    assert select(problem, 40, Weights()).judged == 0
    found = select(problem, 35, Weights())
    assert (found.judged, [problem.graph.tensors[t].name for t in found.choices]) == (2, ["y"])


def test_a_hill_is_covered_by_the_gap_that_reaches_over_it() -> None:
    # held: 10 20 30 40 40 30 20 10; over 30 B at f3 and b3 (60 to 100 ns). Open at f3: a0 (f1 to
    # b0) and a1 (f2 to b1). Both are away for all 40 ns over budget; the first one listed goes. b0
    # starts at 140: its prefetch takes 130 to 140, after b2 ends at 120 (op 5). Its store has 20
    # (f0's end, which wrote it) to 40 (f1's, the last to read it before): the latest 10 ns of
    # these, issued at f0's end.
    assert chosen(hill(4), 30) == {"a0": TensorChoice("ddr", HOME, {1: 5}, {1: 0})}


def test_a_higher_hill_takes_the_next_gap_too() -> None:
    # 20 B: over at f2 (30), f3, b3 (40), b2 (30). a0 as before. Left over 20 B: f3 and b3, which a1
    # (f2 to b1) covers: b1 starts at 120, its prefetch takes 110 to 120, after b3 ends at 100 (op
    # 4). Its store ends with f2.
    assert chosen(hill(4), 20) == {
        "a0": TensorChoice("ddr", HOME, {1: 5}, {1: 0}),
        "a1": TensorChoice("ddr", HOME, {2: 4}, {2: 1}),
    }


def test_on_a_plateau_the_choice_is_spread_so_that_nothing_waits() -> None:
    # 8 weights of 10 B, 20 ns an op, half of a channel's time: within 3 weights each can come up
    # just before its use, and none waits
    graph = plateau(8)
    hw = machine()
    problem = analyse(graph, hw)
    selection = select(problem, 30, Weights())
    assert (selection.short_bytes, selection.expected_stall_ns) == (0, 0)
    plan = insert(problem, selection.choices, "test")
    assert plan.count("store") == 0
    result = replay(plan, hw, 30)
    assert result.feasible
    assert result.makespan_ns == problem.horizon_ns == 160
    returns = [back for choice in selection.choices.values() for back in choice.away.values()]
    assert len(set(returns)) == len(returns)  # no two at one place


def test_an_unwritten_parameter_leaves_without_a_store() -> None:
    graph = plateau(6)
    problem = analyse(graph, machine())
    selection = select(problem, 50, Weights())
    plan = insert(problem, selection.choices, "test")
    assert plan.count("detach") > 0
    assert plan.count("store") == 0
    assert {choice.start for choice in selection.choices.values()} <= {COPY, BELOW}


def test_without_copies_a_parameter_that_starts_at_home_is_stored_first() -> None:
    b = GraphBuilder("once")
    b.tensor("w", 10, "parameter")
    b.tensor("a", 10)
    b.op("f0", "op", inputs=["w"], duration_ns=20)
    b.op("f1", "op", duration_ns=20)
    b.op("f2", "op", outputs=["a"], duration_ns=20)
    b.op("f3", "op", duration_ns=20)
    b.op("f4", "op", inputs=["w"], duration_ns=20)
    graph = b.build()  # held: 10 10 20 10 10: over 10 B at f2 alone (a is used by nobody else)
    assert chosen(graph, 10) == {"w": TensorChoice("ddr", COPY, {0: 2})}
    # f0 reads while it is stored
    assert chosen(graph, 10, Weights(copies=False)) == {
        "w": TensorChoice("ddr", HOME, {0: 2}, {0: AT_START})
    }
    plan = insert(analyse(graph, machine()), {0: TensorChoice("ddr", HOME, {0: 2})}, "test")
    assert told(plan, "w") == ["store@f0", "detach@f0", "prefetch@f2"]


def test_short_lived_tensors_never_move() -> None:
    graph = training(4)
    problem = analyse(graph, machine())
    for budget in range(max(problem.floor_bytes), max(problem.held_bytes) + 1, 7):
        moved = {graph.tensors[t].name for t in select(problem, budget, Weights()).choices}
        assert not any(name.startswith("s") for name in moved)
        assert "a3" not in moved  # written by n3, read by b3 right behind it


def test_optimizer_states_leave_across_the_step() -> None:
    # with 40 B too little: states start below, come up for their update, and go down after it
    graph = training(3)
    problem = analyse(graph, machine())
    selection = select(problem, max(problem.held_bytes) - 40, Weights())
    assert selection.short_bytes == 0
    states = {
        graph.tensors[t].name: choice
        for t, choice in selection.choices.items()
        if graph.tensors[t].kind == "optimizer_state"
    }
    assert states
    plan = insert(problem, selection.choices, "test")
    for name, choice in states.items():
        assert choice.start == BELOW
        assert [step.partition("@")[0] for step in told(plan, name)] == [
            "prefetch",
            "store",
            "detach",
        ]


def test_what_lives_below_comes_up_as_late_as_hides() -> None:
    # w2 (10 B) is wanted at 40 ns: its prefetch takes 30 to 40, after f0 ends at 20; w1 takes 10 to
    # 20, so from time 0; w3 50 to 60
    assert chosen(plateau(4, home="ddr"), 1000) == {
        "w0": TensorChoice("ddr", HOME, {AT_START: AT_START}),
        "w1": TensorChoice("ddr", HOME, {AT_START: AT_START}),
        "w2": TensorChoice("ddr", HOME, {AT_START: 0}),
        "w3": TensorChoice("ddr", HOME, {AT_START: 1}),
    }


def test_what_cannot_be_met_is_said() -> None:
    problem = analyse(plateau(2, size=10), machine())
    assert select(problem, 4, Weights()).short_bytes == 6  # the op's own weight


def test_a_full_tier_takes_no_more() -> None:
    graph = hill(4)
    problem = analyse(graph, machine("ddr", below=15))
    selection = select(problem, 20, Weights())
    assert [graph.tensors[t].name for t in selection.choices] == ["a0"]
    assert selection.short_bytes == 10


def test_more_than_one_tier_is_used_when_the_first_is_full() -> None:
    graph = hill(4)
    problem = analyse(graph, machine("ddr", "pool", below=15))
    selection = select(problem, 20, Weights())
    assert {graph.tensors[t].name: choice.below for t, choice in selection.choices.items()} == {
        "a0": "ddr",
        "a1": "pool",
    }


def test_a_copy_that_leaves_for_good_after_its_last_use_starts_below() -> None:
    # found by chance: s2 leaves before its first use with a copy below, comes back, and is wanted
    # away after its last use as well
    sizes = [15, 2, 5, 31, 32, 27, 5, 22, 3, 34, 15, 2, 15, 7]
    kinds = ["input", "kv_cache", "optimizer_state", "input"] + ["activation"] * 10
    uses = [  # inputs, outputs, mutated, duration, workspace
        ((0, 1), (4,), (), 7, 0),
        ((0, 4), (5,), (1,), 27, 20),
        ((2, 1, 0), (), (), 33, 0),
        ((3, 0), (6, 7), (), 47, 20),
        ((), (8,), (), 38, 7),
        ((5, 2, 7), (9, 10), (), 19, 0),
        ((), (11,), (), 4, 0),
        ((9, 4, 11), (12,), (0,), 37, 0),
        ((1, 9), (), (), 54, 0),
        ((), (13,), (6,), 9, 0),
    ]
    tensors = tuple(
        Tensor(f"s{t}", size, kind) for t, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    )
    ops = tuple(
        Op(f"f{i}", "op", reads, writes, mutated, duration_ns=ns, workspace_bytes=work)
        for i, (reads, writes, mutated, ns, work) in enumerate(uses)
    )
    hw = machine()
    channels = tuple(
        replace(channel, bandwidth_bytes_per_s=10**10, latency_ns=1) for channel in hw.channels
    )
    problem = analyse(Graph("found", tensors, ops), replace(hw, channels=channels))
    selection = select(problem, 103, Weights())
    assert selection.short_bytes == 0
    assert max(held_by(problem.graph, selection.choices, {})) <= 103
    assert selection.choices[2].start == BELOW


@pytest.mark.parametrize("streams", [1, 2])
@given(data=st.data())
def test_the_account_in_listed_order_stays_within_the_budget(
    streams: int, data: st.DataObject
) -> None:
    graph = data.draw(graphs(max_ops=12, max_streams=streams))
    hw = sized(data.draw(hardware()), graph)
    problem = analyse(graph, hw)
    low, high = max(problem.floor_bytes, default=0), max(problem.held_bytes)
    budget = data.draw(st.integers(min(low, high), high))
    weights = data.draw(
        st.builds(
            Weights,
            waiting=st.sampled_from((0.0, 1.0)),
            copies=st.booleans(),
            slow=st.sampled_from((1.0, 0.4)),
        )
    )
    selection = select(problem, budget, weights)
    held = held_by(graph, selection.choices, problem.starts_below)
    if selection.short_bytes == 0:
        assert max(held) <= budget
    assert select(problem, budget, weights) == selection


@given(graphs(max_ops=12), hardware())
def test_a_budget_of_everything_moves_nothing_that_need_not(graph: Graph, drawn) -> None:
    hw = sized(drawn, graph)
    problem = analyse(graph, hw)
    everything = sum(tensor.size_bytes for tensor in graph.tensors) + max(
        op.workspace_bytes for op in graph.ops
    )
    selection = select(problem, everything, Weights())
    assert selection.short_bytes == 0
    assert set(selection.choices) <= set(problem.starts_below)
    assert all(list(choice.away) == [AT_START] for choice in selection.choices.values())


@pytest.mark.parametrize("room", [10**6, 30])
def test_a_tier_behind_another_takes_what_that_has_no_room_for(room: int) -> None:
    # on the way to nvme a tensor takes ddr's channels, which look free to a sweep; ddr keeps room
    # for a tensor of 10 B each way
    near = machine("ddr", below=room)
    ways = Channel("up_nvme", "nvme", "ddr", 10**9), Channel("down_nvme", "ddr", "nvme", 10**9)
    tiers = (*near.tiers, Tier("nvme", 10**6, 10**9))
    problem = analyse(
        hill(8, duration=5), replace(near, tiers=tiers, channels=(*near.channels, *ways))
    )
    used = [choice.below for choice in select(problem, 30, Weights()).choices.values()]
    assert used.count("ddr") == min(len(used), max(0, room // 10 - 2))
    assert ("nvme" in used) == (room - 20 < 10 * len(used))
