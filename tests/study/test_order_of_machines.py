"""Machines whose order contradicts what bounds a step: said, not passed over."""

from __future__ import annotations

import json
from dataclasses import replace

from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.cli.main import app

TOY = hosim.load_hardware(hosim.find_hardware("toy"))


def read(flops: int) -> hosim.Graph:
    b = hosim.GraphBuilder("read")
    b.tensor("w", 100, "parameter")
    b.op("f", "matmul", inputs=["w"], flops=flops, bytes_accessed=10**9)
    return b.build()


def machine(name: str, bandwidth: int, launch_ns: int = 0) -> hosim.Hardware:
    device = replace(TOY.device, bandwidth_bytes_per_s=bandwidth)
    tiers = tuple([device if tier.name == TOY.device_tier else tier for tier in TOY.tiers])
    return replace(TOY, name=name, tiers=tiers, compute=replace(TOY.compute, launch_ns=launch_ns))


def said(graph: hosim.Graph, *machines: hosim.Hardware) -> list[str]:
    return [
        note
        for note in hosim.compare(graph, list(machines), "resident").attrs["notes"]
        if note.startswith("order: ")
    ]


def test_a_machine_with_more_bandwidth_that_is_slower_at_reading_is_named() -> None:
    narrow, wide, slow = (
        machine("narrow", 10**12),
        machine("wide", 2 * 10**12),
        machine("slow", 2 * 10**12, launch_ns=10**6),
    )
    graph = read(flops=1)
    assert (
        op_durations(graph, wide)[0] < op_durations(graph, narrow)[0] < op_durations(graph, slow)[0]
    )
    assert said(graph, narrow, wide) == []
    (line,) = said(graph, slow, narrow)
    assert facts(line, "narrow", "slow").startswith("narrow, slow, 2")
    assert said(read(flops=10**15), slow, narrow) == []  # computation bounds it


def test_packed_weights_on_three_cards() -> None:
    asked = "qwen3-8b:phase=decode:weights=int4:merged=true:context=512"
    outcome = CliRunner().invoke(
        app, ["compare-policies", asked, "-H", "rtx-5090,rtx-4090,l40s", "-p", "resident", "--json"]
    )
    rows = {row["hardware"]: row["makespan_ns"] for row in json.loads(outcome.stdout)["rows"]}
    assert rows["rtx-5090"] < rows["rtx-4090"] < rows["l40s"]  # by what their memories move
    assert not any("is ahead of" in line for line in json.loads(outcome.stdout).get("notes", []))
