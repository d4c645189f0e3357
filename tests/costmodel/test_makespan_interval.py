"""Intervals of makespans, on graphs and spreads that are worked out by hand."""

from dataclasses import replace
from math import exp, sqrt

import pytest
from kernel_machine import GATHER, gathers, kernel_machine
from stream_spreads import StreamSpread, StreamTimes, makespan_spread, stream_times
from toy_machine import MACHINE

from hosim.analysis.costmodel.kernels import FITTED, has_own_constants
from hosim.analysis.costmodel.spreads import SHARED, SPREADS, pooled
from hosim.cache_plan import CacheOp, Plan
from hosim.data.expert_routing import with_draw_spread
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import MeasuredTimes
from hosim.io import load_hardware, result_from_dict, result_to_dict
from hosim.notes import notes
from hosim.shipped import find_hardware

_OWN, _OTHER = "fitted model", "fitted model of another machine"


def spread(
    main: StreamSpread | None,
    others: StreamSpread | None,
    makespan: int,
    stall: dict[str, int],
    drain: int = 0,
) -> float:
    """With half of the variance's root, gaps of 2 ns, and a tenth for copies, which are given
    here.
    """
    streams = {name: of for name, of in (("compute", main), ("comm", others)) if of is not None}
    return makespan_spread(
        streams, "compute", makespan, stall, drain, step_share=0.5, gap_ns=2.0, copies=0.1
    )


def test_sizes_of_one_class_share_a_part_of_their_error_and_classes_share_none() -> None:
    times = StreamTimes(4, {(_OWN, "gemm"): (30, 40), (_OWN, "moe"): (100,)})
    spreads = {_OWN: {"gemm": 0.2, "moe": 0.1}}
    # gemm: 0.04 x (70 x 70 / 4 + (900 + 1600) x 3 / 4) = 124; moe: 0.01 x 100 x 100 = 100
    assert times.spread(spreads, {_OWN: 0.25}) == StreamSpread(4, 170, pytest.approx(224))
    assert times.spread(spreads, {_OWN: 1.0}).variance == pytest.approx(0.04 * 4900 + 100)
    assert times.spread({}, {_OWN: 1.0}).variance == pytest.approx(
        4900 + 10_000
    )  # nobody measured these: a spread of 1


def test_what_a_makespan_is_unsure_by() -> None:
    main, comm = StreamSpread(3, 800, 100.0), StreamSpread(4, 200, 64.0)
    # the root of a quarter of 100, and of the square of 3 gaps of 2 ns
    assert spread(main, None, 1000, {}) == pytest.approx(sqrt(25 + 36) / 1000)
    # 100 ns of waiting for copies and for room, and 100 until the last copy ends
    assert spread(
        main, None, 1000, {"transfer": 60, "capacity": 40, "runtime": 500}, 100
    ) == pytest.approx(sqrt(25 + 36 + 400) / 1000)
    # waits for half of the other stream's 200 ns: 2 of its ops, and a quarter of its variance
    assert spread(main, comm, 1000, {"dependency": 60}, 40) == pytest.approx(
        sqrt((100 + 16) / 4 + (2 * 5) ** 2) / 1000
    )
    assert spread(main, comm, 1000, {"dependency": 900}) == pytest.approx(
        sqrt((100 + 64) / 4 + (2 * 7) ** 2) / 1000
    )
    assert spread(None, comm, 1000, {}) == 0
    assert spread(main, None, 0, {}) == 0


def test_what_is_known_of_each_op() -> None:
    machine, graph = kernel_machine(), gathers((2, 4_000_000), (4, 0), (2, 4_000_000))
    # two of 11 us and one of 13 are kernels of equal and of other sizes, the norm of 6 us is a
    # guess
    assert stream_times(graph, machine) == {
        "compute": StreamTimes(
            4, {(_OWN, "all_gather"): (22_000, 13_000), ("guess", "others"): (6_000,)}
        )
    }
    rows = MeasuredTimes("g.csv", "all_gather", "fp16", "uniform", ((2, 4_000_000),), (50.0,))
    with_table = replace(machine, compute=replace(machine.compute, tables=(rows,)))
    assert set(stream_times(gathers((2, 4_000_000)), with_table)["compute"].by_class) == {
        ("table", "all_gather"),
        ("guess", "others"),
    }


def test_sorts_of_guesses_and_ops_of_other_streams() -> None:
    builder = GraphBuilder("g")
    builder.op("a", "matmul", flops=10**9)
    builder.op("b", "attention", flops=10**9, duration_ns=5)
    builder.op("c", "all_reduce", stream="comm", bytes_accessed=10**6)
    found = stream_times(builder.build(), kernel_machine())
    assert {stream: (times.ops, list(times.by_class)) for stream, times in found.items()} == {
        "compute": (1, [("guess", "products")]),
        "comm": (1, [("guess", "collectives")]),
    }


@pytest.mark.parametrize(
    ("kind", "shares", "sort"),
    [
        ("attention", {}, "attention on other processors"),
        ("attention", {"attention": {"bf16": 0.11}}, "other processors"),
        (
            "attention",
            {"attention": {"fp16": 0.11}, "optimizer": {"fp32": 0.4}},
            "attention on other processors",
        ),
        ("matmul", {}, "other processors"),
    ],
)
def test_attention_on_a_host_is_less_sure_where_nobody_says_what_the_software_reaches(
    kind, shares, sort
) -> None:
    builder = GraphBuilder("g")
    builder.op("a", kind, bytes_accessed=10**9, dtype="bf16", stream="ddr", processor="ddr")
    hardware = load_hardware(find_hardware("h100"))
    ddr = hardware.tiers[hardware.tier_index["ddr"]]
    machine = replace(
        hardware,
        tiers=tuple(
            [
                replace(t, compute=replace(ddr.compute, efficiency_of=shares)) if t is ddr else t
                for t in hardware.tiers
            ]
        ),
    )
    graph = builder.build()
    assert list(stream_times(graph, machine)["ddr"].by_class) == [("guess", sort)]
    assert any("FlexGen 0.1" in str(note) for note in notes(graph, machine)) == (
        sort != "other processors"
    )
    both = [note.line for note in notes(graph, machine, replace(machine, name="second"))]
    assert [line for line in both if "second" in line] == [
        line.replace(machine.name, "second") for line in both if machine.name in line
    ]
    assert any("second" in line for line in both) == (sort != "other processors")


def test_waits_for_copies_of_pageable_memory_are_less_sure() -> None:
    """An op of 10 us that waits 1 s for a copy: a factor of exp(1.6449 x 0.085) to either side,
    from pageable memory exp(1.6449 x 0.61).
    """
    builder = GraphBuilder("g")
    builder.tensor("w", 10**9, "parameter", home="ddr")
    builder.op("a", "matmul", inputs=["w"], flops=10**7)
    graph = builder.build()
    factors = []
    for pageable, rate in (
        ((), None),
        (("parameter",), None),
        (("kv_cache",), 10**9),
        (("parameter",), 10**9),
    ):
        tiers = tuple(
            [replace(t, pageable=pageable) if t.name == "ddr" else t for t in MACHINE.tiers]
        )
        machine = replace(
            MACHINE,
            tiers=tiers,
            channels=tuple([replace(c, pageable_bytes_per_s=rate) for c in MACHINE.channels]),
        )
        plan = Plan(
            graph,
            cache_ops=(
                CacheOp("prefetch", 0, "ddr", "hbm"),
                CacheOp("detach", 0, "hbm", None, after=0),
            ),
        )
        result = replay(
            plan, replace(machine, tiers=tuple([replace(t, capacity_bytes=10**10) for t in tiers]))
        )
        assert result.makespan_high_ns is not None
        factors.append(result.makespan_high_ns / result.makespan_ns)
    assert factors == pytest.approx([exp(1.6449 * 0.085)] * 3 + [exp(1.6449 * 0.61)], rel=1e-3)


def test_whose_constants_a_class_has() -> None:
    h100 = load_hardware(find_hardware("h100-80gb-sxm"))
    assert h100.compute.processor is not None
    assert has_own_constants(h100, "gemm", "bf16")
    assert not has_own_constants(h100, "context_gradient", "bf16")  # nobody measured it
    assert not has_own_constants(
        load_hardware(find_hardware("a100-80gb-sxm")), "gemm", "fp8"
    )  # those of 16 bits
    smaller = replace(
        h100,
        compute=replace(
            h100.compute, processor=replace(h100.compute.processor, multiprocessors=114)
        ),
    )
    assert not has_own_constants(smaller, "gemm", "bf16")
    fitted = replace(
        smaller, compute=replace(smaller.compute, kernels={"gemm": FITTED["h100_sxm"]["gemm"]})
    )
    assert has_own_constants(fitted, "gemm", "bf16")
    assert not has_own_constants(fitted, "moe", "bf16")
    assert has_own_constants(
        kernel_machine(kernels={"all_gather": {"fp16": GATHER}}), "all_gather", "bf16"
    )
    backward = GraphBuilder("g")
    backward.op("g", "attention", kernel="context_gradient", sizes=(1, 64, 0, 8, 8, 64, 2**40))
    assert list(stream_times(backward.build(), h100)["compute"].by_class) == [
        (_OTHER, "context_attention")
    ]


def toy(duration_ns: int | None) -> Graph:
    builder = GraphBuilder("toy")
    builder.op("f", "matmul", flops=10**12, duration_ns=duration_ns)
    return builder.build()


def test_a_result_has_an_interval_unless_all_of_it_is_measured() -> None:
    machine = kernel_machine()
    modelled, measured = replay(Plan(toy(None)), machine), replay(Plan(toy(100_005_000)), machine)
    assert modelled.makespan_ns == measured.makespan_ns == 100_005_000
    assert modelled.makespan_low_ns is not None
    assert modelled.makespan_high_ns is not None
    assert 0 < modelled.makespan_low_ns < 100_005_000 < modelled.makespan_high_ns
    assert (measured.makespan_low_ns, measured.makespan_high_ns) == (None, None)
    # the last is there where copies may slow ops down, which is so where some are not measured
    assert [key for key in result_to_dict(modelled) if key not in result_to_dict(measured)] == [
        "makespan_low_ns",
        "makespan_high_ns",
        "draws",
        "slowed_ns",
    ]
    for result in (modelled, measured):
        again = result_from_dict(result_to_dict(result))
        assert again == result
        assert result_to_dict(again) == result_to_dict(result)  # with its interval


def test_what_does_not_fit_has_no_interval() -> None:
    builder = GraphBuilder("large")
    builder.tensor("w", 2 * 10**9, "parameter")
    builder.op("f", "matmul", inputs=["w"], flops=10**12)
    result = replay(Plan(builder.build()), kernel_machine())
    assert (result.feasible, result.makespan_low_ns, result.makespan_high_ns) == (False, None, None)


def test_the_spreads_of_several_sources_are_pooled_by_their_squares() -> None:
    sources = [{_OWN: {"gemm": 0.3}}, {_OWN: {"gemm": 0.4, "moe": 0.1}}, {_OTHER: {"gemm": 0.2}}]
    assert pooled(sources) == {
        _OWN: {"gemm": pytest.approx(0.5 / sqrt(2)), "moe": pytest.approx(0.1)},
        _OTHER: {"gemm": pytest.approx(0.2)},
    }


def test_every_origin_has_its_spreads_and_the_part_that_sizes_share() -> None:
    known = pooled(SPREADS.values())
    assert set(known) == set(SHARED) == {"table", _OWN, _OTHER, "guess"}
    assert all(0 <= part <= 1 for part in SHARED.values())
    # the less is measured, the less is known
    assert (
        known["table"]["gemm"]
        < known[_OWN]["gemm"]
        < known[_OTHER]["gemm"]
        < known["guess"]["attention"]
    )
    for of_machine in SPREADS.values():
        measured = [*of_machine.get("table", {}).values(), *of_machine.get(_OWN, {}).values()]
        assert all(0 < spread < 0.2 for spread in measured)
        assert max(measured, default=0) < min(of_machine.get("guess", {"": 1}).values())


@pytest.mark.parametrize(("spread", "expected"), [(0.0, 0.085), (0.2, sqrt(0.085**2 + 0.2**2))])
def test_a_step_bound_by_its_link_has_the_interval_of_the_link(
    spread: float, expected: float
) -> None:
    """10 ns of ops and 1 s of copies, whose rate spreads by 0.085; and by 0.2 more where others
    draw another routing.
    """
    builder = GraphBuilder("g")
    builder.tensor("w", 10**9, "parameter", home="ddr")
    builder.op("a", "matmul", inputs=["w"], flops=10**4)
    graph = builder.build()
    graph = replace(graph, meta={"routing": {}})
    graph = with_draw_spread(graph, spread) if spread else graph
    tiers = tuple([replace(tier, capacity_bytes=10**10) for tier in MACHINE.tiers])
    plan = Plan(
        graph,
        cache_ops=(
            CacheOp("prefetch", 0, "ddr", "hbm"),
            CacheOp("detach", 0, "hbm", None, after=0),
        ),
    )
    result = replay(plan, replace(MACHINE, tiers=tiers))
    factor = exp(1.6449 * expected)
    ends = result.makespan_low_ns / result.makespan_ns, result.makespan_high_ns / result.makespan_ns
    assert ends == pytest.approx((1 / factor, factor), rel=1e-3 if not spread else 0.05)
    names = ["the copy bandwidth between ddr and hbm", "the experts that a routing chooses"]
    assert [source.what for source in result.drawn.sources] == (
        names[::-1] if spread else names[:1]
    )
