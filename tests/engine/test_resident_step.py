"""The step with everything resident is one step, wherever its time, its peak and shares of it are
printed.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import graphs, hardware
from typer.testing import CliRunner

import hosim
from hosim.analysis import static_peak
from hosim.analysis.costmodel import base_of, op_durations
from hosim.cli.main import app
from hosim.engine import resident_step
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import save_hardware, save_workload
from hosim.units import human_size, human_time

pytestmark = pytest.mark.slow

H100 = hosim.load_hardware(hosim.find_hardware("h100"))
TRAIN, DECODE = (
    "gpt2:phase=train:layers=1:sequence=16",
    "qwen3-30b-a3b:phase=decode:merged=true:layers=1:context=64",
)


@pytest.mark.parametrize(
    ("step", "placed"),
    [
        (TRAIN, "optimizer_on=ddr"),
        (TRAIN, "optimizer_on=ddr:update=delayed"),
        (TRAIN, "optimizer_on=device/ddr"),
        (f"{TRAIN}:data=2:zero=2", "optimizer_on=ddr"),
        (DECODE, "experts_on=ddr"),
        (DECODE, "attention_on=ddr"),
        (DECODE, "cache_home=ddr:experts_home=ddr"),
    ],
)
def test_slowdowns_are_against_the_step_that_is_all_on_the_device(step: str, placed: str) -> None:
    assert resident_step(hosim.load(step), H100) == resident_step(
        hosim.load(f"{step}:{placed}"), H100
    )


def with_cpu(**adam: Any) -> Graph:
    b = hosim.GraphBuilder("file")
    b.tensor("w", 40, "parameter")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    b.op("adam", "adam", inputs=["w"], mutates=["w"], stream="ddr", processor="ddr", **adam)
    return b.build()


@pytest.mark.parametrize(
    ("adam", "base"),
    [
        ({"bytes_accessed": 80, "flops": 40}, ""),
        (
            {"bytes_accessed": 80, "duration_ns": 900_000},
            "",
        ),  # measured there, but what it does is known
        ({"duration_ns": 900_000, "also_on": {"": 7}}, ""),
        ({"duration_ns": 900_000}, "ops on ddr"),
    ],
)
def test_a_file_without_a_builder_is_timed_on_the_device_or_its_base_is_named(
    adam: dict[str, Any], base: str, tmp_path: Path
) -> None:
    graph = with_cpu(**adam)
    assert base_of(graph, H100) == base
    taken = resident_step(graph, H100).makespan_ns
    assert (
        taken == (900_050 if base else 57) if "bytes_accessed" not in adam else 50 < taken < 900_000
    )
    save_workload(graph, tmp_path / "w.json")
    named = [
        *compared(tmp_path / "w.json", "h100", "--json").get("notes", []),
        *hosim.compare(graph, "h100", "resident").attrs["notes"],
    ]
    shown = re.sub(
        r"\s+",
        " ",
        CliRunner()
        .invoke(
            app,
            [
                "compare-policies",
                str(tmp_path / "w.json"),
                "-H",
                "h100",
                "-p",
                "resident",
                "--detail",
            ],
        )
        .stdout,
    )
    assert (
        ("slowdown vs" in shown)
        == any("step with ops on ddr" in note for note in named)
        == bool(base)
    )


def test_an_op_in_a_dtype_that_the_device_does_not_compute_in_keeps_its_time() -> None:
    machine = replace(
        H100, compute=replace(H100.compute, peak_flops={"bf16": 10**15}, tables=(), processor=None)
    )
    graph = with_cpu(bytes_accessed=80, flops=40, dtype="fp32")
    assert base_of(graph, machine) == "ops on ddr"
    assert resident_step(graph, machine).makespan_ns == 50 + op_durations(graph, machine)[1]
    assert base_of(graph, H100) == ""


def compared(workload: Path, machine: str, *more: str) -> Any:
    done = CliRunner().invoke(
        app,
        ["compare-policies", str(workload), "-H", machine, "-p", "resident", *more],
        env={"COLUMNS": "400"},
    )
    assert done.exit_code in (0, 3), done.output
    return json.loads(done.stdout) if "--json" in more else done.stdout


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, Hardware]:
    if draw(st.booleans()):
        machine = draw(machines())
        return draw(on_processors(machine, draw(st.booleans()))), machine
    machine = draw(hardware())
    return draw(graphs(9, 3, homes=[tier.name for tier in machine.tiers])), machine


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_the_same_quantity_is_the_same_number_wherever_it_is_printed(
    case: tuple[Graph, Hardware], tmp_path_factory: Any
) -> None:
    graph, machine = case
    tiers = [replace(t, pin_ns=0) for t in machine.tiers]
    tiers[machine.tier_index[machine.device_tier]] = replace(machine.device, capacity_bytes=10**6)
    machine = replace(machine, tiers=tuple(tiers))
    resident = resident_step(graph, machine)
    assert sum(resident.breakdown.values()) == resident.peak_bytes
    idle_parts = any(
        [tensor.of and not users for tensor, users in zip(graph.tensors, graph.users, strict=True)]
    )
    if len(graph.streams) == 1 and not graph.elsewhere and not idle_parts:
        assert resident.peak_bytes == static_peak(graph, machine.device_tier).bytes
    folder = tmp_path_factory.mktemp("case")
    save_workload(graph, folder / "w.json")
    save_hardware(machine, folder / "h.yaml")
    data, shown = (
        compared(folder / "w.json", str(folder / "h.yaml"), "--json"),
        compared(folder / "w.json", str(folder / "h.yaml"), "--detail"),
    )
    (result,) = data["results"]
    assert result.get("ideal_ns") == resident.makespan_ns
    if resident.peak_bytes:
        assert f"peak {human_size(resident.peak_bytes)}" in shown
        half = (
            compared(folder / "w.json", str(folder / "h.yaml"), "--json", "-b", "50%")
            if resident.peak_bytes > 1
            else None
        )
        assert half is None or half["results"][0]["budget_bytes"] == resident.peak_bytes // 2
    if resident.makespan_ns:
        assert f"baseline {human_time(resident.makespan_ns)}" in shown or not result["feasible"]
    if (said := data.get("do_not_offload")) is not None:
        assert (said["resident_ns"], said["resident_bytes"]) == (
            resident.makespan_ns,
            resident.peak_bytes,
        )
        at_home = not any(
            tensor.home not in (None, machine.device_tier) for tensor in graph.tensors
        )
        if said["reason"] == "fits":
            assert human_time(resident.makespan_ns) in shown
            assert human_size(resident.peak_bytes) in shown
            assert not at_home or (
                result["makespan_ns"],
                result["peak_bytes"][machine.device_tier],
            ) == (
                resident.makespan_ns,
                resident.peak_bytes,
            )
    elif graph.ops and not graph.elsewhere:
        assert resident.peak_bytes == 0 or resident.peak_bytes > machine.device.capacity_bytes


@pytest.mark.parametrize(
    ("names", "wholes", "held"),
    [("ab", ("", ""), 40), (("w[0]", "w[1]"), ("", ""), 40), ("ab", ("w", "w"), 70)],
)
def test_a_part_is_one_because_it_says_so(names: Any, wholes: tuple[str, str], held: int) -> None:
    """Names mean nothing: with everything resident the other parts of a whole are there, and only
    they.
    """
    b = hosim.GraphBuilder("toy")
    for name, size, of in zip(names, (30, 30), wholes, strict=True):
        b.tensor(name, size, "parameter", home="ddr", of=of)
    b.tensor("y", 10)
    b.op("f", "matmul", inputs=[names[0]], outputs=["y"], duration_ns=5)
    assert resident_step(b.build(), H100).peak_bytes == held


def test_more_bytes_than_a_tier_can_have_are_refused_by_the_graphs_name() -> None:
    b = hosim.GraphBuilder("huge")
    b.op("f", "m", inputs=[b.tensor(name, 2**62, "parameter") for name in "ab"], duration_ns=1)
    with pytest.raises(InputError, match=r"^huge: its tensors and workspaces take more than 2\^63"):
        resident_step(b.build(), hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm")))
