"""What ``compare-policies``, ``replay`` and the listings print, cell by cell: no two figures of an
input are alike.
"""
# ruff: noqa: E501 - tables are shown as they are printed

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from rendered import facts, lines, table
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hosim.data.draws import FEW_DRAWS, Draws, LaterDraws, UncertainPart
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.io.models import ListedModel
from hosim.report import of_replays, printing
from hosim.report.listed import machine, machines, models, policies, workload, workloads
from hosim.report.printing import open_table
from hosim.result import AllocatorFigures, AllocatorState, ChannelFigures, Result, StreamFigures

GIB, MS = 1 << 30, 10**6
MACHINE = Hardware(
    "box[1]",
    (
        Tier("hbm", 80 * GIB, 3350 * 10**9, "device"),
        Tier("ddr", 512 * GIB, 10**11, pageable=("input",), pin_ns=3 * MS),
    ),
    (
        Channel("h2d", "ddr", "hbm", 55_700_000_000, 8_000, 2, ((1024, 10**6),)),
        Channel("d2h", "hbm", "ddr", 52 * 10**9, 5),
    ),
    Compute(
        {"fp32": 67 * 10**12, "bf16": 989 * 10**12},
        0.8,
        3_000,
        {"matmul": {"bf16": 0.7, "fp32": 0.6}},
    ),
    fabrics=(Fabric("pcie", 60 * 10**9, ("h2d", "d2h")),),
    inspect_ns=20_000,
    devices=8,
    devices_per_host=4,
    source="a data sheet",
)
SMALL = Hardware(
    "small", (Tier("sram", 100, 10**9, "device"),), (), Compute({}), device_tier="sram"
)
HELD = {"parameter": 15 * GIB, "activation": GIB}


def toy() -> Graph:
    b = GraphBuilder("toy[1]", meta={"source": "by hand", "shapes": {"w": [2]}, "batch": 3})
    b.tensor("w", 40, "parameter")
    b.tensor("v", 7, "parameter")
    b.tensor("a", 30)
    b.tensor("y", 11, "output")
    b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50, flops=2000, bytes_accessed=70)
    b.op(
        "g",
        "matmul",
        inputs=["a", "v"],
        outputs=["y"],
        duration_ns=50,
        flops=3000,
        bytes_accessed=48,
    )
    b.op("h", "norm", mutates=["y"], duration_ns=10, flops=0, bytes_accessed=1200)
    b.op("i", "copy", mutates=["y"], duration_ns=10, flops=0, bytes_accessed=22)
    return b.build()


def result(policy: str, makespan_ns: int | None, k: int = 1, **more: object) -> Result:
    """Figures that differ by ``k``."""
    fields: dict[str, object] = {
        "workload": "toy",
        "hardware": "box",
        "policy": policy,
        "budget_bytes": 12 * GIB,
        "feasible": makespan_ns is not None,
        "error": None if makespan_ns is not None else f"{policy} has no room",
        "makespan_ns": makespan_ns,
        "busy_ns": 400 * MS,
        "stall_ns": {
            "dependency": 0,
            "transfer": 11 * k * MS,
            "capacity": 13 * k * MS,
            "runtime": 17 * k * MS,
        },
        "drain_ns": 0,
        "lower_bound_ns": (410 - k) * MS,
        "peak_bytes": {"hbm": k * GIB, "ddr": 3 * k * GIB},
        "peak_at_ns": {"hbm": 19 * k * MS, "ddr": 23 * k * MS},
        "peak_breakdown": {
            "hbm": {"workspace": 29 * k << 20, "activation": 31 * k << 20},
            "ddr": {"parameter": 37 * k << 20, "input": 0},
        },
        "channels": {
            "h2d": ChannelFigures(
                1_000 * k, 41 * k << 20, 100 * MS, 43 * k, 47 * k, 53 * k, 59 * MS, 0.16 * k
            ),
            "d2h": ChannelFigures(0, 0, 0, 0, 0, 0, 0, 0.0),
            "p2p": ChannelFigures(k, k, 10, 0, 0, 0, 9, 0.001),
        },
        "plan": {"prefetches": 0, "stores": 0, "detaches": 0},
        "planning_s": 0.061 * k,
        "replay_s": 0.067 * k,
    }
    return Result(**(fields | more))  # type: ignore[arg-type]


ALLOCATED = AllocatorFigures(
    "caching", "played", 0, 0, 71 << 20, AllocatorState(73 << 20, 97 << 20, 79 << 20)
)
ENDED = AllocatorFigures(
    "caching",
    "program",
    0,
    0,
    83 << 20,
    AllocatorState(1, 4, 2),
    AllocatorState(89 << 20, 178 << 20, 3 << 20),
)
COMPARED = [
    result("belady[x]", 540 * MS, allocator=ALLOCATED),
    result("resident", None, 2, allocator=ENDED),
    result("g10", 999 * MS, 3, planning_s=None),
    result("manual", 540 * MS, 4),
    result("on_demand", None, 2),
]
STREAMED = result(
    "manual",
    540 * MS,
    streams={
        "main": StreamFigures(
            5 * MS,
            {"dependency": MS, "transfer": 2 * MS, "capacity": 3 * MS, "runtime": 4 * MS},
            6 * MS,
        ),
        "c[0]": StreamFigures(0, {"transfer": 7 * MS}, 0),
    },
)
POLICIES = [
    SimpleNamespace(
        name="a[b]",
        summary="does [this]",
        parameters={"k": 4, "seed": None, "rule": "x"},
        models="",
        leaves_out="",
    ),
    SimpleNamespace(name="plain", summary="does that", parameters={}, models="", leaves_out=""),
]


def test_a_comparison() -> None:
    assert lines(of_replays.comparison(toy(), MACHINE, HELD, COMPARED)) == table("""
        ╭───────────────────────────────────────────────────────────────────╮
        │ workload   toy[1]: 4 ops, 4 tensors                               │
        │ durations  times as given for all 4 ops                           │
        │ baseline   peak 16.0 GiB: parameter 15.0 GiB, activation 1.00 GiB │
        │ hardware   box[1]: hbm 80.0 GiB, ddr 512 GiB                      │
        │ budget     12.0 GiB of hbm, 75 % of the resident peak             │
        ╰───────────────────────────────────────────────────────────────────╯
        Time (lower bound 406 ms)
                                  gap to  dependency  transfer  capacity  runtime      peak      of
         policy         makespan   bound       stall     stall     stall    stall       hbm  budget
         ──────────────────────────────────────────────────────────────────────────────────────────
         belady[x]        540 ms   +33 %           -   11.0 ms   13.0 ms  17.0 ms  1.00 GiB   8.3 %
         resident   does not fit       -           -         -         -        -         -       -
         g10              999 ms   2.46x           -   33.0 ms   39.0 ms  51.0 ms  3.00 GiB    25 %
         manual           540 ms   +33 %           -   44.0 ms   52.0 ms  68.0 ms  4.00 GiB    33 %
         on_demand  does not fit       -           -         -         -        -         -       -
        Planning + replay took belady[x] 61.0 ms + 67.0 ms, resident 122 ms + 134 ms, g10 201 ms, manual 244 ms + 268 ms, on_demand 122 ms + 134 ms.
        Peak by kind of tensor
         policy     tier      peak  reached at  activation  workspace
         ────────────────────────────────────────────────────────────
         belady[x]  hbm   1.00 GiB     19.0 ms    31.0 MiB   29.0 MiB
         g10        hbm   3.00 GiB     57.0 ms    93.0 MiB   87.0 MiB
         manual     hbm   4.00 GiB     76.0 ms     124 MiB    116 MiB
        Channels
                                                                                     mean
         policy     channel  transfers     moved  utilization  overlapped  exposed  queue  contention
         ────────────────────────────────────────────────────────────────────────────────────────────
         belady[x]  h2d          1,000  41.0 MiB         16 %        59 %    53 ns   <0.1       47 ns
         belady[x]  p2p              1       1 B        0.1 %        90 %        -      -           -
         g10        h2d          3,000   123 MiB         48 %        59 %   159 ns   <0.1      141 ns
         g10        p2p              3       3 B        0.1 %        90 %        -      -           -
         manual     h2d          4,000   164 MiB         64 %        59 %   212 ns   <0.1      188 ns
         manual     p2p              4       4 B        0.1 %        90 %        -      -           -
        Allocator: caching
         policy     order    at             allocated  reserved  fragmentation  largest free  peak reserved
         ──────────────────────────────────────────────────────────────────────────────────────────────────
         belady[x]  played   peak            73.0 MiB  97.0 MiB           25 %      79.0 MiB       71.0 MiB
         resident   program  peak                 1 B       4 B           75 %           2 B       83.0 MiB
                             out of memory   89.0 MiB   178 MiB           50 %      3.00 MiB
        resident does not fit: resident has no room
        on_demand does not fit: on_demand has no room
        belady[x] and manual are fastest within 12.0 GiB: 540 ms, 33 % above the lower bound; g10 takes 1.85x as long; resident and on_demand do not fit.
    """)


def test_a_replay_of_two_streams() -> None:
    assert lines(of_replays.replay(toy(), MACHINE, HELD, STREAMED)) == table("""
        ╭───────────────────────────────────────────────────────────────────╮
        │ workload   toy[1]: 4 ops, 4 tensors                               │
        │ durations  times as given for all 4 ops                           │
        │ baseline   peak 16.0 GiB: parameter 15.0 GiB, activation 1.00 GiB │
        │ hardware   box[1]: hbm 80.0 GiB, ddr 512 GiB                      │
        │ budget     12.0 GiB of hbm, 75 % of the resident peak             │
        ╰───────────────────────────────────────────────────────────────────╯
        Time (lower bound 409 ms)
                           gap to  dependency  transfer  capacity  runtime      peak      of
         policy  makespan   bound       stall     stall     stall    stall       hbm  budget
         ───────────────────────────────────────────────────────────────────────────────────
         manual    540 ms   +32 %           -   11.0 ms   13.0 ms  17.0 ms  1.00 GiB   8.3 %
        Planning + replay took manual 61.0 ms + 67.0 ms.
        Peak by kind of tensor
         policy  tier      peak  reached at  parameter  activation  workspace
         ────────────────────────────────────────────────────────────────────
         manual  hbm   1.00 GiB     19.0 ms          -    31.0 MiB   29.0 MiB
         manual  ddr   3.00 GiB     23.0 ms   37.0 MiB           -          -
        Channels
                                                                                  mean
         policy  channel  transfers     moved  utilization  overlapped  exposed  queue  contention
         ─────────────────────────────────────────────────────────────────────────────────────────
         manual  h2d          1,000  41.0 MiB         16 %        59 %    53 ns   <0.1       47 ns
         manual  p2p              1       1 B        0.1 %        90 %        -      -           -
        Streams
         stream     busy  dependency stall  transfer stall  capacity stall  runtime stall    drain
         ─────────────────────────────────────────────────────────────────────────────────────────
         main    5.00 ms           1.00 ms         2.00 ms         3.00 ms        4.00 ms  6.00 ms
         c[0]          -                 -         7.00 ms               -              -        -
    """)


def test_a_machine() -> None:
    assert lines(machine(MACHINE)) == table("""
        box[1]: 8 devices, 4 on a host
        compute    fp32 67.0 TFLOP/s, bf16 989 TFLOP/s; 80 % of it reached, 3.00 us to launch an op
                   70 % of bf16, 60 % of fp32 reached by matmul
        runtime    20.0 us of inspection an op
        Tiers
         tier  scope   capacity  bandwidth
         ─────────────────────────────────
         hbm   device  80.0 GiB  3.35 TB/s
         ddr   host     512 GiB   100 GB/s
        Channels
         channel  from  to   bandwidth  latency  engines
         ───────────────────────────────────────────────
         h2d      ddr   hbm  55.7 GB/s  8.00 us        2
         d2h      hbm   ddr  52.0 GB/s     5 ns        1
        Fabrics
         fabric  scope  shared by  bandwidth
         ───────────────────────────────────
         pcie    host   h2d, d2h   60.0 GB/s
        h2d: 1.00 MB/s for 1.00 KiB
        ddr: pageable for input; 3.00 ms to pin a tensor, without a pool
        Source: a data sheet
    """)


def test_machines() -> None:
    assert lines(machines([MACHINE, SMALL], {"b": "box[1]", "c": "box[1]", "d": "other"})) == table("""
        Hardware
         name    short           compute        memory  bandwidth     way in    way out  other tiers
         ───────────────────────────────────────────────────────────────────────────────────────────
         box[1]  b      989 TFLOP/s bf16  hbm 80.0 GiB  3.35 TB/s  55.7 GB/s  52.0 GB/s  ddr 512 GiB
         small   -                     -    sram 100 B  1.00 GB/s          -          -            -
    """)


def test_a_workload() -> None:
    assert lines(workload(toy(), 40)) == table("""
        toy[1]: 4 ops, 4 tensors, peak in listed order 88 B (parameter 47 B, activation 30 B, output 11 B), first reached at op g
        88 B ┤ █
             │ █
             │ █
        79 B ┤▃█
             │██
             │██
        70 B ┤██
             │██
             │██
        61 B ┤██
        58 B └────
              op 0 op 3
        Tensors
         kind        tensors  bytes  at the peak
         ───────────────────────────────────────
         parameter         2   47 B         47 B
         activation        1   30 B         30 B
         output            1   11 B         11 B
        Ops
         kind    ops        work  bytes accessed
         ───────────────────────────────────────
         matmul    2  5.00 kFLOP           118 B
         norm      1           -        1.17 KiB
         copy      1           -            22 B
        source: by hand
        batch: 3
    """)


def test_workloads() -> None:
    assert lines(workloads([toy()])) == table("""
        Workloads
                                                peak in
         name    ops  tensors        work  listed order  of which
         ────────────────────────────────────────────────────────────────────────────────────────────
         toy[1]    4        4  5.00 kFLOP          88 B  parameter 47 B, activation 30 B, output 11 B
    """)


def test_policies() -> None:
    assert lines(policies(POLICIES, ["hosim", "hosim"])) == table("""
        Policies
         policy  parameters         summary
         ──────────────────────────────────────
         a[b]    k=4, seed, rule=x  does [this]
         plain   -                  does that
    """)


def styles(shown: RenderableType) -> list[object]:
    assert isinstance(shown, Table)
    return [row.style for row in shown.rows]


def test_figures_that_are_missing() -> None:
    """No bound, stall, peak or time of one: nothing is made up. What has a makespan and does not
    fit competes with nothing.
    """
    bare = result(
        "bare",
        540 * MS,
        lower_bound_ns=None,
        stall_ns={},
        peak_bytes={},
        peak_at_ns={},
        peak_breakdown={"hbm": {"input": 5}},
    )
    late = result("late", 7 * MS, feasible=False, error="too late", lower_bound_ns=3)
    endless = result("endless", None, feasible=True, error=None, lower_bound_ns=None)
    assert lines(of_replays.timing([bare, late, endless], MACHINE)) == table("""
        Time
                                gap to  dependency  transfer  capacity  runtime  peak      of
         policy       makespan   bound       stall     stall     stall    stall   hbm  budget
         ────────────────────────────────────────────────────────────────────────────────────
         bare           540 ms       -           -         -         -        -     -     0 %
         late     does not fit       -           -         -         -        -     -       -
         endless  does not fit       -           -         -         -        -     -       -
    """)
    assert (
        facts(of_replays.verdict([bare, late, endless]), "bare", "late")
        == "bare, 12.0 GiB, 540 ms, late"
    )
    assert facts(of_replays.verdict([late, endless])) == "12.0 GiB"
    assert facts(of_replays.verdict([late], 13 << 30)) == "12.0 GiB, 13.0 GiB"
    assert of_replays.least_bound([bare, late, endless]) is None
    assert of_replays.least_bound([late, result("a", MS), result("b", MS, 3)]) == 407 * MS
    assert lines(of_replays.peaks([bare], MACHINE)) == table("""
        Peak by kind of tensor
         policy  tier  peak  reached at  input
         ─────────────────────────────────────
         bare    hbm    0 B        0 ns    5 B
    """)
    assert lines(of_replays.header(toy(), MACHINE, 3, {})) == table("""
        ╭──────────────────────────────────────────────╮
        │ workload   toy[1]: 4 ops, 4 tensors          │
        │ durations  times as given for all 4 ops      │
        │ baseline   peak 0 B: nothing                 │
        │ hardware   box[1]: hbm 80.0 GiB, ddr 512 GiB │
        │ budget     3 B of hbm                        │
        ╰──────────────────────────────────────────────╯
    """)
    for nothing in (of_replays.failures([bare]), of_replays.allocators([bare])):
        assert isinstance(nothing, Text)
        assert (nothing.plain, nothing.end) == ("", "")


def test_colours_of_policies() -> None:
    """The fastest are green if there is something to compare; what does not fit is red."""
    slow, fast, none = result("slow", 2 * MS), result("fast", MS), result("none", None)
    assert styles(of_replays.timing([slow, fast, none, fast], MACHINE)) == [
        None,
        "green",
        "red",
        "green",
    ]
    assert styles(of_replays.timing([fast], MACHINE)) == [None]
    assert styles(of_replays.timing([fast, none], MACHINE)) == ["green", "red"]
    shown = of_replays.comparison(toy(), MACHINE, HELD, [fast])
    assert isinstance(shown, Group)
    assert isinstance(shown.renderables[-1], Text)
    assert shown.renderables[-1].style == "bold"
    assert of_replays.effort([fast]).style == "dim"
    failed = of_replays.failures([none])
    assert isinstance(failed, Text)
    assert (facts(failed.plain, "none"), failed.style) == ("none, none", "red")
    same = [replace(none, policy=name, error="too little") for name in ("a", "b", "c")]
    both = of_replays.failures([*same, none])
    assert isinstance(both, Text)
    assert [
        facts(line, "a", "b", "c", "none", "too little") for line in both.plain.splitlines()
    ] == [
        "a, b, c, too little",
        "none, none",
    ]


def test_columns_of_a_table() -> None:
    shown = open_table("t", "a", "b", "c", left=2)
    assert [(column.justify, column.no_wrap) for column in shown.columns] == [
        ("left", True),
        ("left", True),
        ("right", True),
    ]
    assert isinstance(shown.title, Text)
    assert (shown.title.plain, shown.title.style, shown.title_justify) == ("t", "bold", "left")


def test_drain_has_a_column_if_there_is_any() -> None:
    shown = of_replays.timing(
        [
            result("g10", 540 * MS, drain_ns=7 * MS),
            result("manual", 540 * MS),
            result("on_demand", None),
        ],
        MACHINE,
    )
    headers = [str(column.header) for column in shown.columns]
    assert headers[6:8] == ["runtime\nstall", "drain"]
    assert [str(cell) for cell in shown.columns[7].cells] == ["7.00 ms", "-", "-"]
    assert {len(list(column.cells)) for column in shown.columns} == {3}


def test_a_replay_alone_names_no_time_of_planning() -> None:
    assert (
        of_replays.effort([result("manual", 540 * MS, planning_s=0.0)]).plain
        == "Replay took 67.0 ms.\n"
    )


def test_three_policies_are_listed_with_commas() -> None:
    failing = [result(name, None) for name in "abc"]
    said = of_replays.verdict([result("fast", MS), *failing])
    assert facts(said, "fast", *"abc").endswith("a, b, c")


def test_percentages_and_multiples() -> None:
    cases = [
        (99, 100),
        (991, 1000),
        (9999, 10**4),
        (1005, 1000),
        (994, 10**4),
        (995, 10**4),
        (1, 1000),
        (999, 10**6),
        (1, 0),
    ]
    assert [printing.percent(*case) for case in cases] == [
        "99 %",
        ">99 %",
        ">99 %",
        "100 %",
        "9.9 %",
        "10 %",
        "0.1 %",
        "<0.1 %",
        "0 %",
    ]
    assert [printing.above(value, 100) for value in (199, 200, 205)] == [
        "+99 %",
        "2.00x",
        "2.05x",
    ]
    assert (
        printing.above(5, 0),
        printing.time_or_nothing(0),
        printing.time_or_nothing(None),
        printing.time_or_nothing(1),
    ) == (
        "-",
        "-",
        "-",
        "1 ns",
    )
    assert of_replays.ordered({"x", "workspace", "buffer", "a"}) == [
        "buffer",
        "workspace",
        "a",
        "x",
    ]
    assert of_replays.ordered({"x": 0, "workspace": 1, "parameter": 0, "buffer": 2}) == [
        "buffer",
        "workspace",
    ]


def test_columns_of_machines() -> None:
    """Without bf16 the peak of fp16 is shown, which stands in for it; without either the
    largest.
    """
    peaks = (
        {"fp32": 5 * 10**12, "fp16": 9 * 10**12, "int4": 10**14},
        {"fp32": 5 * 10**12, "int8": 6 * 10**12},
    )
    others = [Hardware("other", SMALL.tiers, (), Compute(of), device_tier="sram") for of in peaks]
    shown = machines([SMALL, *others], {})
    assert [str(cell) for cell in shown.columns[2].cells] == [
        "-",
        "9.00 TFLOP/s fp16",
        "6.00 TFLOP/s int8",
    ]
    assert [column.justify for column in shown.columns] == ["left"] * 2 + ["right"] * 6


def test_policies_of_other_packages() -> None:
    assert lines(policies(POLICIES, ["hosim", "theirs[x] 1.0"])) == table("""
        Policies
         policy  package        parameters         summary
         ─────────────────────────────────────────────────────
         a[b]    hosim          k=4, seed, rule=x  does [this]
         plain   theirs[x] 1.0  -                  does that
    """)


def drawn(policy: str, makespan: int, *factors: float, kind: str = "") -> Result:
    """A result and its draws: those of the makespan times these factors, one after the other again
    and again.
    """
    draws = tuple([round(makespan * factors[k % len(factors)]) for k in range(FEW_DRAWS)])
    source = UncertainPart("the copy bandwidth", 0.91, "`hosim calibrate`")
    return replace(
        result(policy, makespan), draws=LaterDraws.of(Draws(draws, sources=(source,), kind=kind))
    )


def test_how_sure_a_makespan_is() -> None:
    sure = result("sure", 500 * MS)
    fast = drawn("fast", 500 * MS, 0.9, 1.1)
    alike = drawn(
        "alike", 510 * MS, 0.9, 1.1, kind="its runtime policy decides anew in each draw"
    )  # both meet the same draws
    other = drawn("other", 510 * MS, 1.1, 0.9)
    certain = (
        "the makespan is certain to ±10 %: 91 % of that is the copy bandwidth; with it known "
        "(`hosim calibrate`) ±3.0 % is left."
    )
    interval, known = lines(of_replays.in_draws([fast]))
    assert facts(interval) == "90 %, 450 ms, 550 ms"
    assert known == certain
    assert lines(of_replays.in_draws([fast, alike, sure, other, result("late", None)])) == table(f"""
        Draws of what is uncertain
                                         does not           fast           times
         of        90 % interval  draws    fit in   is faster in         as long
         ───────────────────────────────────────────────────────────────────────
         fast   450 ms to 550 ms     20         -              -               -
         alike  459 ms to 561 ms     20         -      all draws  1.020 to 1.020
         other  459 ms to 561 ms     20         -  50 % of draws  0.835 to 1.247
        fast: {certain}
        alike: its runtime policy decides anew in each draw.
    """)
    ranked = lines(of_replays.in_draws([alike, fast], ["a", "b"], [(2, 2), (1, 2)]))
    rows = [row.split() for row in ranked if row.lstrip().startswith(("a ", "b "))]
    assert [(row[0], row[-3:]) for row in rows] == [
        ("b", ["1", "to", "2"]),
        ("a", ["to", "1.020", "2"]),
    ]
    assert not of_replays.in_draws([sure]).plain
    assert facts(of_replays.verdict([fast, other, alike]), "alike", "fast").endswith(
        "1.02x, alike, 1.02x, fast, fast, 50 %"
    )
    assert facts(of_replays.verdict([fast, alike]), "fast", "alike").endswith("fast, alike, 2.0 %")
    for compared in ([fast], [sure, alike], [fast, result("as fast", 500 * MS)]):
        assert "draws" not in of_replays.verdict(compared)
    for shown in (
        of_replays.comparison(toy(), MACHINE, HELD, [fast, alike]),
        of_replays.replay(toy(), MACHINE, HELD, fast),
    ):
        assert any("90 % interval" in line for line in lines(shown))


def test_columns_of_models() -> None:
    """A model of 999.9 million parameters has 1.00 billion of them, as it has in the names of
    models.
    """
    shown = lines(
        models(
            [
                ListedModel("small", 2, 999_885_952, ("train",)),
                ListedModel("tiny", 1, 999_400_000, ("train",)),
            ]
        )
    )
    assert [
        " ".join(cells.split()[2:4]) for cells in shown if cells.startswith((" small", " tiny"))
    ] == ["1.00 billion", "999 million"]


def test_an_optimum_that_is_not_proved_says_so() -> None:
    proved, open_, other = (
        result("optimal", 409 * MS),
        result("optimal:limit=3", 410 * MS),
        result("hyperoffload", 411 * MS),
    )
    assert [
        facts(line)
        for line in lines(
            of_replays.unproved([proved, open_, other, result("optimal:seed=1", None)])
        )
    ] == ["3, 409 ms"]
    assert not of_replays.unproved([proved, other]).plain
