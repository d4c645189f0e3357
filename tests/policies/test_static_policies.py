"""Static policies on toys, with the plans that their rules give derived by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_machine import GB, MACHINE

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Hardware, Tier
from hosim.policies import policy_named


def moves(
    policy: str, graph: Graph, budget: int = 1000, hardware: Hardware = MACHINE, **parameters
):
    """(sort, tensor, place) of the plan's cache ops by tensor, and the replay's result."""
    plan = policy_named(policy).plan(graph, hardware, budget, **parameters)
    assert verify(plan, hardware, budget) == ()
    names = [tensor.name for tensor in graph.tensors]
    listed = sorted(plan.cache_ops, key=lambda c: c.tensor)
    return [(c.op, names[c.tensor], c.after) for c in listed], engine.replay(plan, hardware, budget)


# --------------------------------------------------------------------------------------------------
# resident


def test_resident_brings_up_once_and_returns_what_was_written() -> None:
    b = GraphBuilder("resident")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("m", 20, "optimizer_state", home="ddr")
    b.tensor("unused", 7, "parameter", home="ddr")
    b.tensor("here", 9, "parameter")
    b.op("f", "m", inputs=["w", "here"], duration_ns=50)
    b.op("g", "m", mutates=["m"], duration_ns=10)
    listed, result = moves("resident", b.build())
    assert listed == [("prefetch", "w", -1), ("prefetch", "m", -1), ("store", "m", 1)]
    # w comes 0..40, f runs 40..90, g 90..100, m goes back 100..120
    assert (result.makespan_ns, result.stall_ns["transfer"], result.drain_ns) == (120, 40, 20)
    assert result.peak_bytes == {"hbm": 69, "ddr": 67}


# --------------------------------------------------------------------------------------------------
# layerwise


def layers(*names: str, size: int = 10, ns: int = 20, home: str | None = None) -> Graph:
    b = GraphBuilder("layers")
    for name in dict.fromkeys(names):
        b.tensor(name, size, "parameter", home)
    for i, name in enumerate(names):
        b.op(f"f{i}", "m", inputs=[name], duration_ns=ns)
    return b.build()


def test_layerwise_streams_one_layer_ahead() -> None:
    listed, result = moves("layerwise", layers("layers.0.w", "layers.1.w", "layers.2.w"))
    assert listed == [
        ("prefetch", "layers.0.w", -1),
        ("detach", "layers.0.w", 0),
        ("prefetch", "layers.1.w", -1),  # when layer 0 begins
        ("detach", "layers.1.w", 1),
        ("prefetch", "layers.2.w", 0),  # when layer 1 begins
        ("detach", "layers.2.w", 2),
    ]
    # up 0..10, 10..20 and 30..40; ops 10..30, 30..50, 50..70
    assert (result.makespan_ns, result.peak_bytes["hbm"]) == (70, 20)


def test_layerwise_two_ahead_holds_three() -> None:
    listed, result = moves(
        "layerwise", layers("layers.0.w", "layers.1.w", "layers.2.w", "layers.3.w"), layers_ahead=2
    )
    assert [after for op, name, after in listed if op == "prefetch"] == [-1, -1, -1, 0]
    assert result.peak_bytes["hbm"] == 30


def test_layerwise_visits_again_in_the_backward_and_stores_what_is_written() -> None:
    b = GraphBuilder("training")
    for i in range(3):
        b.tensor(f"layers.{i}.w", 10, "parameter")
    for i in range(3):
        b.op(f"f{i}", "m", inputs=[f"layers.{i}.w"], duration_ns=20)
    for i in reversed(range(3)):
        b.op(f"b{i}", "m", mutates=[f"layers.{i}.w"], duration_ns=20)
    listed, _ = moves("layerwise", b.build())
    # The visits are of layers 0, 1, 2 (ops 2 and 3), 1 and 0: layer 2 stays between forward and
    # backward; those of layer 1 are 2 apart.
    assert [(op, after) for op, name, after in listed if name == "layers.2.w"] == [
        ("prefetch", 0),
        ("store", 3),
        ("detach", 3),
    ]
    assert [(op, after) for op, name, after in listed if name == "layers.1.w"] == [
        ("prefetch", -1),
        ("detach", 1),
        ("prefetch", 1),  # layer 2 begins when op 1 ends
        ("store", 4),
        ("detach", 4),
    ]


def test_layers_by_name_by_place_and_by_use() -> None:
    from hosim.policies.own import layers_of

    graph = layers(
        "embed.weight",
        "model.layers.0.q.weight",
        "model.layers.0.k1.weight",
        "model.layers.1.q.weight",
        "head.weight",
    )
    found = layers_of(graph, set(range(5)))
    assert found[1] == found[2] == "model.layers.0"
    assert len({found[0], found[1], found[3], found[4]}) == 4
    # no two names share a number: consecutive uses, none larger than the largest
    b = GraphBuilder("sizes")
    for name, size in (("w0", 30), ("w1", 10), ("w2", 20), ("w3", 15)):
        b.tensor(name, size, "parameter")
        b.op(f"use {name}", "m", inputs=[name], duration_ns=1)
    found = layers_of(b.build(), set(range(4)))
    assert [found[t] for t in range(4)] == ["0", "1", "1", "2"]


def test_layerwise_keeps_everything_else_and_what_has_no_room_below() -> None:
    b = GraphBuilder("rest")
    b.tensor("layers.0.w", 30, "parameter")
    b.tensor("cache", 50, "kv_cache")
    b.tensor("layers.1.w", 30, "parameter")
    b.op("f", "m", inputs=["layers.0.w", "cache"], duration_ns=20)
    b.op("g", "m", inputs=["layers.1.w"], duration_ns=20)
    small = replace(MACHINE, tiers=(MACHINE.tiers[0], Tier("ddr", 40, 10**11)))
    listed, _ = moves("layerwise", b.build(), hardware=small)
    assert listed == [("prefetch", "layers.0.w", -1), ("detach", "layers.0.w", 0)]


def test_layerwise_streams_a_cache_that_lives_below_with_its_layers() -> None:
    b = GraphBuilder("cache")
    for i in range(4):
        b.tensor(f"layers.{i}.w", 10, "parameter")
        b.tensor(f"layers.{i}.cache", 30, "kv_cache", home="ddr")
        b.op(f"f{i}", "m", inputs=[f"layers.{i}.w"], mutates=[f"layers.{i}.cache"], duration_ns=50)
    listed, result = moves("layerwise", b.build())
    assert [(op, after) for op, name, after in listed if name == "layers.2.cache"] == [
        ("prefetch", 0),
        ("store", 2),
        ("detach", 2),
    ]
    assert (
        result.peak_bytes["hbm"] == 110
    )  # of four layers two, and the cache of one more while it is stored


def test_layerwise_has_states_in_the_layers_of_their_parameters() -> None:
    from hosim.policies.own import layers_of

    b = GraphBuilder("states")
    for i in range(2):
        for name in ("q", "k"):
            b.tensor(f"layers.{i}.{name}", 10, "parameter")
            b.tensor(f"optimizer.layers.{i}.{name}", 10, "optimizer_state")
            b.op(
                f"update {i}.{name}",
                "m",
                mutates=[f"layers.{i}.{name}", f"optimizer.layers.{i}.{name}"],
                duration_ns=1,
            )
    assert list(layers_of(b.build(), set(range(8))).items()) == [
        *((t, f"layers.{t // 4}") for t in (0, 2, 4, 6)),
        *((t, f"layers.{t // 4}") for t in (1, 3, 5, 7)),
    ]


def test_layerwise_puts_other_kinds_below_on_request() -> None:
    b = GraphBuilder("states alone")
    b.tensor("layers.0.w", 10, "parameter")
    b.tensor("layers.0.m", 10, "optimizer_state")
    b.op("update", "m", mutates=["layers.0.w", "layers.0.m"], duration_ns=1)
    assert {name for _, name, _ in moves("layerwise", b.build(), kinds="optimizer_state")[0]} == {
        "layers.0.m"
    }
    with pytest.raises(InputError, match="no kind 'state' of tensors"):
        moves("layerwise", b.build(), kinds="state")


# --------------------------------------------------------------------------------------------------
# distance


def stack(*sizes: int, ns: int = 10) -> Graph:
    """Op m<i> makes a<i>, one after the other; then u<i> reads them, the last one first: at 2
    sizes, a0 is used by ops 0 and 3.
    """
    b = GraphBuilder("stack")
    for i, size in enumerate(sizes):
        b.tensor(f"a{i}", size)
        b.op(f"m{i}", "m", outputs=[f"a{i}"], duration_ns=ns)
    for i in reversed(range(len(sizes))):
        b.op(f"u{i}", "m", inputs=[f"a{i}"], duration_ns=ns)
    return b.build()


def test_distance_takes_the_widest_whatever_the_budget() -> None:
    graph = stack(10, 20, 30, 40)  # uses are 7, 5, 3 and 1 ops apart
    listed, _ = moves("distance", graph, select_distance=4, prefetch_distance=2, release_distance=1)
    assert listed == [
        ("store", "a0", 0),
        ("detach", "a0", 1),  # one op later
        ("prefetch", "a0", 4),  # just before op 7 would be after op 6; two ops sooner
        ("store", "a1", 1),
        ("detach", "a1", 2),
        ("prefetch", "a1", 3),
    ]
    listed, _ = moves("distance", graph, select_distance=4, select_num=1)
    assert listed == [
        ("store", "a0", 0),
        ("detach", "a0", 0),
        ("prefetch", "a0", 0),
    ]  # 50 ops sooner is more than there are
    assert moves("distance", graph)[0] == []  # the published distance of 100


def test_distance_leaves_what_is_written_in_place() -> None:
    b = GraphBuilder("mutated")
    b.tensor("a", 10)
    b.op("make", "m", outputs=["a"], duration_ns=1)
    for i in range(5):
        b.op(f"f{i}", "m", duration_ns=1)
    b.op("add", "m", mutates=["a"], duration_ns=1)
    assert moves("distance", b.build(), select_distance=2)[0] == []


def test_tensors_start_below_if_they_do_not_fit_and_come_up_at_the_distance() -> None:
    graph = layers("w0", "w1", "w2", "w3")
    listed, result = moves("distance", graph, 30, prefetch_distance=1)
    assert listed == [
        *(("prefetch", "w0", -1), ("detach", "w0", 0), ("prefetch", "w1", -1), ("detach", "w1", 1)),
        *(("prefetch", "w2", 0), ("detach", "w2", 2), ("prefetch", "w3", 1), ("detach", "w3", 3)),
    ]
    assert result.feasible
    assert moves("distance", graph, 40)[0] == []


# --------------------------------------------------------------------------------------------------
# memory_peak

PEAK = {
    "prefetch_distance": 0,
    "peak_modeled_headroom_bytes": 0,
    "score_weight_neighbor_impact": 0.0,
}
"""Account by hand: no lead, no margin, no penalty."""


def peaked() -> Graph:
    """90 bytes while ops 2 and 3 run: a0 (10) is idle over ops 1 to 4, a1 (30) over 2 and 3, a2
    (50) never.
    """
    return stack(10, 30, 50)


def test_memory_peak_takes_the_best_score_that_covers_the_peak() -> None:
    # peak at op 2. a0: 10/30 + 2/2 + 2/2 (away from 0 to 4); a1: 30/30 + 1/2 + 1/2 (from 1 to 3).
    # a0 wins, and 80 fit
    listed, _ = moves("memory_peak", peaked(), 85, **PEAK)
    assert listed == [("store", "a0", 0), ("detach", "a0", 0), ("prefetch", "a0", 4)]
    # by size alone a1 wins
    listed, _ = moves(
        "memory_peak",
        peaked(),
        85,
        **PEAK,
        score_weight_cover_start=0.0,
        score_weight_cover_end=0.0,
    )
    assert listed == [("store", "a1", 1), ("detach", "a1", 1), ("prefetch", "a1", 3)]


def test_memory_peak_goes_on_until_it_fits_or_nothing_covers_the_peak() -> None:
    assert moves("memory_peak", peaked(), 90, **PEAK)[0] == []
    both = [name for op, name, _ in moves("memory_peak", peaked(), 79, **PEAK)[0] if op == "store"]
    assert both == ["a0", "a1"]
    listed = moves("memory_peak", peaked(), 50, **PEAK)[
        0
    ]  # 50 of a2 are left: that is the peak, and it fits
    assert [name for op, name, _ in listed if op == "store"] == ["a0", "a1"]


def test_memory_peak_keeps_its_margin() -> None:
    assert moves("memory_peak", peaked(), 1000, max_device_memory=95, **PEAK)[0] == []
    margin = PEAK | {"peak_modeled_headroom_bytes": 6}
    assert len(moves("memory_peak", peaked(), 1000, max_device_memory=95, **margin)[0]) == 3
    default = {"prefetch_distance": 0}  # a tenth of 95: 9 bytes, so 86
    assert len(moves("memory_peak", peaked(), 1000, max_device_memory=95, **default)[0]) == 3
    assert moves("memory_peak", peaked(), 1000, max_device_memory=0, **PEAK)[0] == []


def test_memory_peak_penalizes_neighbours() -> None:
    # Three equal tensors, idle from 0 to 14, 1 to 13 and 4 to 10, and a peak of 50 at op 7; two
    # must go.
    b = GraphBuilder("neighbours")
    for name in "abc":
        b.tensor(name, 10)
    b.tensor("p", 20)
    made, read = {0: "a", 1: "b", 4: "c", 7: "p"}, {10: "c", 13: "b", 14: "a"}
    for i in range(15):
        b.op(
            f"f{i}",
            "m",
            inputs=[read[i]] if i in read else [],
            outputs=[made[i]] if i in made else [],
            duration_ns=1,
        )
    taken = [
        name for op, name, _ in moves("memory_peak", b.build(), 30, **PEAK)[0] if op == "store"
    ]
    assert taken == ["a", "b"]
    # Near is within 1 op. After a (away from op 1 on, back for op 13) b's places, ops 2 and 12, are
    # near both of a's; c's are not.
    near = PEAK | {"prefetch_distance": 1, "score_weight_neighbor_impact": 100.0}
    taken = [
        name for op, name, _ in moves("memory_peak", b.build(), 30, **near)[0] if op == "store"
    ]
    assert taken == ["a", "c"]


def test_memory_peak_adapts_distances_to_transfer_times() -> None:
    graph = stack(10, 20, 30, 40)  # ops of 10 ns; a0 is used by ops 0 and 7
    adapt = {"enable_adaptive_prefetch_distance": True, "enable_adaptive_release_distance": True}
    # 10 bytes at 0.5 GB/s take 20 ns: 2 ops sooner; at 1 GB/s 10 ns: 1 op later
    listed, _ = moves(
        "memory_peak", graph, 95, h2d_bandwidth_gbps=0.5, d2h_bandwidth_gbps=1.0, **adapt, **PEAK
    )
    assert listed == [("store", "a0", 0), ("detach", "a0", 1), ("prefetch", "a0", 4)]


def test_memory_peak_waits_from_the_start_for_what_starts_below() -> None:
    # w is counted out from op 2 on: 20 bytes at 1 GB/s take as long as ops 0 and 1. So op 2 needs
    # its workspace and a, and a stays.
    b = GraphBuilder("below")
    b.tensor("w", 20, "parameter", "ddr")
    b.tensor("a", 10)
    b.op("f0", "m", outputs=["a"], duration_ns=10)
    b.op("f1", "m", duration_ns=10)
    b.op("f2", "m", workspace_bytes=20, duration_ns=10)
    b.op("f3", "m", inputs=["w", "a"], duration_ns=10)
    adapt = {"enable_adaptive_release_distance": True, "d2h_bandwidth_gbps": 1.0}
    assert moves("memory_peak", b.build(), 30, **adapt, **PEAK)[0] == [
        ("prefetch", "w", 2),
        ("detach", "w", 3),
    ]


# --------------------------------------------------------------------------------------------------
# longest_gap


def test_longest_gap_takes_the_longest_that_covers_an_op_over_budget() -> None:
    listed, result = moves("longest_gap", peaked(), 85)
    assert listed == [("store", "a0", 0), ("detach", "a0", 0), ("prefetch", "a0", 4)]
    # ops 0..50 without a wait; then a0 comes 50..60 with nothing to hide it, and is read 60..70
    assert (result.makespan_ns, result.stall_ns["transfer"]) == (70, 10)
    assert [name for op, name, _ in moves("longest_gap", peaked(), 60)[0] if op == "store"] == [
        "a0",
        "a1",
    ]
    assert moves("longest_gap", peaked(), 90)[0] == []


@pytest.mark.parametrize("names", ["pq", "qp"])
def test_longest_gap_takes_the_larger_of_equal_length_and_of_equal_size_the_one_released_first(
    names: str,
) -> None:
    first, second = names

    def taken(sizes: tuple[int, int], beside: int) -> set[str]:
        """``first`` is idle over ops 2 and 3, ``second`` over 3 and 4, the peak is at op 3."""
        b = GraphBuilder("equal lengths")
        for name, size in zip(names, sizes, strict=True):
            b.tensor(name, size)
        for i in range(7):
            written = [names[i - 1]] if i in (1, 2) else []
            read = [names[i - 4]] if i in (4, 5) else []
            room = beside if i == 3 else 0
            b.op(f"f{i}", "m", inputs=read, outputs=written, workspace_bytes=room, duration_ns=1)
        listed, _ = moves("longest_gap", b.build(), sum(sizes) + beside - 5)
        return {name for _, name, _ in listed}

    assert taken((10, 20), 30) == {second}
    assert taken((20, 10), 30) == taken((10, 10), 30) == {first}


def test_longest_gap_passes_over_gaps_that_cover_nothing_over_budget() -> None:
    b = GraphBuilder("early")
    b.tensor("long", 10)
    b.tensor("big", 80)
    b.tensor("more", 20)
    b.op("a", "m", outputs=["long"], duration_ns=1)
    for i in range(4):
        b.op(f"f{i}", "m", duration_ns=1)
    b.op("b", "m", inputs=["long"], duration_ns=1)
    b.op("c", "m", outputs=["big"], duration_ns=1)
    b.op("d", "m", outputs=["more"], duration_ns=1)  # over budget, and big is idle
    b.op("e", "m", inputs=["more"], duration_ns=1)
    b.op("f", "m", inputs=["big"], duration_ns=1)
    assert {name for _, name, _ in moves("longest_gap", b.build(), 90)[0]} == {"big"}


def test_longest_gap_copies_down_from_the_latest_write_on_and_leaves_parameters() -> None:
    b = GraphBuilder("written")
    b.tensor("w", 50, "parameter")
    b.tensor("a", 10)
    b.tensor("p", 50)
    b.op("make", "m", inputs=["w"], outputs=["a"], duration_ns=10)
    b.op("look", "m", inputs=["a"], duration_ns=10)
    b.op("peak", "m", outputs=["p"], duration_ns=10)
    b.op("use", "m", inputs=["a", "w"], duration_ns=10)
    listed, _ = moves("longest_gap", b.build(), 109)
    assert listed == [("store", "a", 0), ("detach", "a", 1), ("prefetch", "a", 2)]


# --------------------------------------------------------------------------------------------------
# g10


def test_g10_reserves_slots_on_both_sides_of_the_gap() -> None:
    # a0: gone in slot 1, back in slot 4: frees 10 bytes over ops 2 and 3, 20 ns, for a round trip
    # of 20 ns. a1 would need 60 ns and has 20.
    listed, result = moves("g10", peaked(), 85)
    assert listed == [("store", "a0", 0), ("detach", "a0", 0), ("prefetch", "a0", 3)]
    assert (result.makespan_ns, result.peak_bytes["hbm"]) == (60, 80)  # all of it hidden


def test_g10_takes_the_later_slots_when_the_first_are_reserved() -> None:
    # Two equal tensors, idle over ops 2..5 and 2..6 of 10 ns; a peak over ops 4 (and 3). The first
    # takes slots 2 and 5, the second must take slot 3, and slot 6.
    b = GraphBuilder("two")
    b.tensor("a", 10)
    b.tensor("b", 10)
    b.tensor("p", 80)
    b.op("make a", "m", outputs=["a"], duration_ns=10)
    b.op("make b", "m", outputs=["b"], duration_ns=10)
    b.op("f2", "m", duration_ns=10)
    b.op("f3", "m", duration_ns=10)
    b.op("peak", "m", outputs=["p"], duration_ns=10)
    b.op("f5", "m", duration_ns=10)
    b.op("use a", "m", inputs=["a"], duration_ns=10)
    b.op("use b", "m", inputs=["b"], duration_ns=10)
    listed, result = moves("g10", b.build(), 80)
    # a is gone during slot 1 already, b during slot 2; both are prefetched earlier than their last
    # slots (5 and 6) as nothing but the peak is in the way: when op 4 has ended
    assert listed == [
        *(("store", "a", 0), ("detach", "a", 0), ("prefetch", "a", 4)),
        *(("store", "b", 1), ("detach", "b", 1), ("prefetch", "b", 4)),
    ]
    assert (result.makespan_ns, result.peak_bytes["hbm"]) == (80, 80)


def test_g10_prefers_the_slow_tier_until_its_slots_are_taken() -> None:
    # The SSD takes 20 ns for 10 bytes. Gaps of 80 ns and more: a goes to it; b's eviction would be
    # delayed by a's there, so it goes to ddr.
    b = GraphBuilder("tiers")
    for name in "ab":
        b.tensor(name, 10)
    b.tensor("p", 80)
    b.op("make", "m", outputs=["a", "b"], duration_ns=10)
    for i in range(6):
        b.op(f"f{i}", "m", duration_ns=20)
    b.op("peak", "m", outputs=["p"], duration_ns=10)
    for i in range(6, 12):
        b.op(f"f{i}", "m", duration_ns=20)
    b.op("use", "m", inputs=["a", "b"], duration_ns=10)
    machine = replace(
        MACHINE,
        tiers=(*MACHINE.tiers, Tier("nvme", 1000, 10**10)),
        channels=(
            *MACHINE.channels,
            Channel("read", "nvme", "hbm", GB // 2),
            Channel("write", "hbm", "nvme", GB // 2),
        ),
    )
    plan = policy_named("g10").plan(b.build(), machine, 80)
    assert verify(plan, machine, 80) == ()
    assert [(c.tensor, c.destination) for c in plan.cache_ops if c.op == "store"] == [
        (0, "nvme"),
        (1, "ddr"),
    ]
    assert engine.replay(plan, machine, 80).makespan_ns == 270
    fastest = policy_named("g10").plan(b.build(), machine, 80, placement="fastest")
    assert [(c.tensor, c.destination) for c in fastest.cache_ops if c.op == "store"] == [
        (0, "ddr"),
        (1, "ddr"),
    ]


def test_g10_takes_the_most_relief_per_time_of_a_transfer() -> None:
    # Both peaks need 100 of 90 bytes. a frees 10 bytes over both, 20 ns, for a round trip of 20 ns;
    # b frees 20 over the first, 10 ns, for a round trip of 40 ns: half as much, so a alone goes.
    b = GraphBuilder("relief")
    b.tensor("a", 10)
    b.tensor("b", 20)
    b.op("make a", "m", outputs=["a"], duration_ns=10)
    b.op("make b", "m", outputs=["b"], duration_ns=10)
    b.op("f2", "m", duration_ns=40)
    b.op("peak", "m", outputs=[b.tensor("p", 70)], duration_ns=10)
    b.op("f4", "m", duration_ns=40)
    b.op("use b", "m", inputs=["b"], outputs=[b.tensor("q", 70)], duration_ns=10)
    b.op("f6", "m", duration_ns=40)
    b.op("use a", "m", inputs=["a"], duration_ns=10)
    listed, result = moves("g10", b.build(), 90)
    assert listed == [("store", "a", 0), ("detach", "a", 0), ("prefetch", "a", 5)]
    assert (result.makespan_ns, result.peak_bytes["hbm"]) == (170, 90)


@pytest.mark.parametrize("policy", ["distance", "memory_peak", "longest_gap", "g10"])
def test_what_fits_stays(policy: str) -> None:
    listed, result = moves(policy, stack(10, 20, 30, 40), 1000)
    assert listed == []
    assert result.makespan_ns == 80
