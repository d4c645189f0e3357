"""Tables say what the results say, in units a person reads, within 120 columns."""

from dataclasses import replace
from io import StringIO

import pytest
from rendered import facts
from rich.console import Console, RenderableType

from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.report import of_replays
from hosim.report.listed import machine, machines, workload, workloads
from hosim.result import ChannelFigures, Result, StreamFigures

GIB = 2**30
MS = 10**6


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("toy", meta={"source": "by hand", "shapes": {"w": [2]}})
    b.tensor("w", 40, "parameter")
    b.tensor("a", 30)
    b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50, flops=2000, bytes_accessed=70)
    return b.build()


@pytest.fixture
def hardware() -> Hardware:
    tiers = (Tier("hbm", 80 * 10**9, 3350 * 10**9, "device"), Tier("ddr", 512 * GIB, 10**11))
    channels = (
        Channel("h2d", "ddr", "hbm", 55_700_000_000, 8_000, 2),
        Channel("d2h", "hbm", "ddr", 52 * 10**9),
    )
    compute = Compute({"bf16": 989 * 10**12, "fp32": 67 * 10**12}, 0.8, 3_000)
    return Hardware(
        "box",
        tiers,
        channels,
        compute,
        fabrics=(Fabric("pcie", 60 * 10**9, ("h2d", "d2h")),),
        source="a data sheet",
    )


def result(policy: str, makespan_ns: int | None, error: str | None = None) -> Result:
    return Result(
        workload="toy",
        hardware="box",
        policy=policy,
        budget_bytes=12 * GIB,
        feasible=error is None,
        error=error,
        makespan_ns=makespan_ns,
        busy_ns=400 * MS,
        stall_ns={"dependency": 0, "transfer": 123 * MS, "capacity": 12_300_000, "runtime": 3 * MS},
        drain_ns=0,
        lower_bound_ns=400 * MS,
        peak_bytes={"hbm": 11 * GIB, "ddr": 15 * GIB},
        peak_at_ns={"hbm": 40 * MS, "ddr": 0},
        peak_breakdown={
            "hbm": {"workspace": 4096, "activation": GIB, "parameter": 10 * GIB},
            "ddr": {"parameter": 15 * GIB},
        },
        channels={
            "h2d": ChannelFigures(1234, 15 * GIB, 300 * MS, 10 * MS, 0, 75 * MS, 225 * MS, 0.44),
            "d2h": ChannelFigures(0, 0, 0, 0, 0, 0, 0, 0.0),
        },
        plan={"prefetches": 1234, "stores": 0, "detaches": 1234},
        planning_s=0.01,
        replay_s=0.3,
    )


def text(renderable: RenderableType, width: int = 100) -> str:
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def row(output: str, start: str) -> str:
    """The first line whose first word is ``start``, with single spaces."""
    return next(
        " ".join(line.split()) for line in output.splitlines() if line.split()[:1] == [start]
    )


def test_a_row_has_every_figure_of_its_result(graph: Graph, hardware: Hardware) -> None:
    output = text(of_replays.timing([result("layerwise", 540 * MS)], hardware))
    assert (
        row(output, "layerwise") == "layerwise 540 ms +35 % - 123 ms 12.3 ms 3.00 ms 11.0 GiB 92 %"
    )


def test_the_slowdown_against_everything_resident_stands_beside_the_bound(
    hardware: Hardware,
) -> None:
    found = [
        replace(result("layerwise", 540 * MS), ideal_ns=500 * MS),
        replace(result("resident", 1200 * MS), ideal_ns=500 * MS),
    ]
    output = text(of_replays.timing(found, hardware))
    assert "Time (lower bound 400 ms, baseline 500 ms)" in output
    assert row(output, "layerwise").startswith("layerwise 540 ms +35 % 1.080x -")
    assert row(output, "resident").startswith("resident 1.20 s 3.00x 2.40x -")


def test_the_verdict_where_the_fastest_takes_no_time() -> None:
    said = of_replays.verdict([result("resident", 0), result("on_demand", 20_000)])
    assert facts(said, "resident").startswith("resident, 12.0 GiB, 0 ns")
    assert "on_demand takes 20.0 us" in said


def test_channels_that_moved_something_are_shown_and_no_others() -> None:
    """Transfers wait for 10 ms together: in 540 ms that is less than a twentieth of a transfer at
    each time, and in 4 ms it is 2.5.
    """
    output = text(of_replays.channels([result("layerwise", 540 * MS)]))
    assert row(output, "layerwise") == "layerwise h2d 1,234 15.0 GiB 44 % 75 % 75.0 ms <0.1 -"
    assert row(text(of_replays.channels([result("layerwise", 4 * MS)])), "layerwise").endswith(
        "75.0 ms 2.5 -"
    )
    assert "d2h" not in output
    assert (
        text(of_replays.channels([replace(result("resident", MS), channels={})])).strip()
        == "Channels: nothing moved."
    )


def test_the_peak_is_divided_by_kind_in_the_order_of_the_kinds(hardware: Hardware) -> None:
    output = text(of_replays.peaks([result("layerwise", 540 * MS)], hardware))
    assert row(output, "policy").split()[-3:] == ["parameter", "activation", "workspace"]
    assert row(output, "layerwise") == "layerwise hbm 11.0 GiB 40.0 ms 10.0 GiB 1.00 GiB 4.00 KiB"


def test_the_whole_comparison_fits_a_hundred_columns_without_cutting_a_word(
    graph: Graph, hardware: Hardware
) -> None:
    results = [
        result("resident", None, "out of memory at 3.20 ms: op 'linear_3' wanted 1073741824 B"),
        result("on_demand", 999 * MS),
        result("lookahead:k=4", 540 * MS),
    ]
    output = text(
        of_replays.comparison(graph, hardware, {"parameter": 15 * GIB, "activation": GIB}, results)
    )
    assert max(len(line) for line in output.splitlines()) <= 100
    assert "…" not in output
    assert "1 op, 2 tensors" in output
    assert "12.0 GiB, hbm, 75 %, resident" in facts(output, "hbm", "resident")
    assert "peak 16.0 GiB: parameter 15.0 GiB, activation 1.00 GiB" in output
    assert "resident, 3.20 ms, 1073741824 B" in facts(output, "resident")


def test_the_verdict_names_the_fastest_the_slower_and_those_that_do_not_fit() -> None:
    failing = result("resident", None, "out of memory")
    sentence = of_replays.verdict(
        [failing, result("on_demand", 1080 * MS), result("layerwise", 540 * MS)]
    )
    assert (
        facts(sentence, "layerwise", "on_demand", "resident")
        == "layerwise, 12.0 GiB, 540 ms, 35 %, on_demand, 2.00x, resident"
    )
    assert (
        facts(of_replays.verdict([result("a", 900 * MS), result("b", 900 * MS)]))
        == "12.0 GiB, 900 ms, 2.25x"
    )
    assert facts(of_replays.verdict([result("a", 400 * MS)])) == "12.0 GiB, 400 ms"
    assert facts(of_replays.verdict([failing])).startswith("12.0 GiB")


def test_every_row_is_held_against_the_bound_of_the_best_start(hardware: Hardware) -> None:
    streamed = replace(result("layerwise", 540 * MS), lower_bound_ns=540 * MS)
    output = text(of_replays.timing([result("resident", 400 * MS), streamed], hardware))
    assert "Time (lower bound 400 ms)" in output
    assert row(output, "resident").startswith("resident 400 ms +0 %")
    assert row(output, "layerwise").startswith("layerwise 540 ms +35 %")


def test_names_are_text_and_never_markup(graph: Graph, hardware: Hardware) -> None:
    odd = replace(graph, name="model[bold]x[/bold]")
    assert "model[bold]x[/bold]" in text(of_replays.header(odd, hardware, GIB, {"parameter": 1}))
    assert row(text(of_replays.timing([result("p[red]", MS)], hardware)), "p[red]")


def test_a_replay_with_several_streams_shows_each(graph: Graph, hardware: Hardware) -> None:
    stalls = {"dependency": 5 * MS, "transfer": 0, "capacity": 0, "runtime": 0}
    both = replace(
        result("manual", 540 * MS),
        streams={"compute": StreamFigures(1, stalls, 2), "comm": StreamFigures(MS, stalls, 2 * MS)},
    )
    output = text(of_replays.replay(graph, hardware, {"parameter": 40}, both))
    assert row(output, "comm") == "comm 1.00 ms 5.00 ms - - - 2.00 ms"
    assert "ddr 15.0 GiB 0 ns 15.0 GiB" in " ".join(output.split())


def test_a_machine_is_shown_whole(hardware: Hardware) -> None:
    output = text(machine(hardware))
    assert " beside d2h" not in output
    (ddr,) = [t for t in hardware.tiers if t.name == "ddr"]
    ddr = replace(ddr, pageable=("input",), pin_ns=3_000_000, pin_pool=True)
    h2d = replace(
        hardware.channels[0],
        curve=((1024, 10**6),),
        pageable_bytes_per_s=10**8,
        beside=(("d2h", 10**7),),
    )
    tiers = tuple(ddr if t.name == "ddr" else t for t in hardware.tiers)
    uneven = text(machine(replace(hardware, tiers=tiers, channels=(h2d, *hardware.channels[1:]))))
    assert (
        "h2d: 1.00 MB/s for 1.00 KiB, 100 MB/s for pageable memory, 10.0 MB/s beside d2h\n"
        in uneven
    )
    assert "ddr: pageable for input; 3.00 ms to pin a tensor, from a pool\n" in uneven
    assert row(output, "hbm") == "hbm device 74.5 GiB 3.35 TB/s"
    assert row(output, "h2d") == "h2d ddr hbm 55.7 GB/s 8.00 us 2"
    assert facts(row(output, "pcie"), "pcie", "h2d", "d2h") == "pcie, h2d, d2h, 60.0 GB/s"
    assert "Source: a data sheet" in output
    listed = text(machines([hardware], {}), 120)
    assert (
        row(listed, "box")
        == "box - 989 TFLOP/s bf16 hbm 74.5 GiB 3.35 TB/s 55.7 GB/s 52.0 GB/s ddr 512 GiB"
    )


def test_a_workload_is_shown_by_kind(graph: Graph) -> None:
    output = text(workload(graph))
    said = (
        "toy: 1 op, 2 tensors, peak in listed order 70 B (parameter 40 B, activation 30 B), "
        "first reached at op f"
    )
    assert " ".join(output.split()).startswith(said)
    assert row(output, "parameter") == "parameter 1 40 B 40 B"
    assert row(output, "matmul") == "matmul 1 2.00 kFLOP 70 B"
    assert "source: by hand" in output
    assert "shapes" not in output
    assert (
        row(text(workloads([graph])), "toy")
        == "toy 1 2 2.00 kFLOP 70 B parameter 40 B, activation 30 B"
    )
