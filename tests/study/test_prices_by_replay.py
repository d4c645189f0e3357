"""What blame says of more of a resource is what a replay with it gives: every row, on drawn plans
with ops on other processors.
"""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import processor_plans
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import PlanError
from hosim.io import hardware_from_dict, hardware_to_dict
from hosim.units import parse_rate

TWICE = {
    "twice the bandwidth": "bandwidth",
    "twice the room": "capacity",
    "twice the FLOP/s": "peak",
}


def doubled(profile: dict[str, Any], price: Any) -> dict[str, Any]:
    """The file of a profile with what a price says written into it, and nothing of what made the
    price.
    """
    made = json.loads(json.dumps(profile))
    field = TWICE[price.added]
    (group,) = [
        name for name in ("tiers", "channels", "fabrics") if price.what in made.get(name, {})
    ]
    part = made[group][price.what]
    if field == "peak":
        part = made["compute"] if price.what == made["device_tier"] else part["compute"]
        part["peak"] = {dtype: twice(text) for dtype, text in part["peak"].items()}
        return made
    carried = part[field]
    part[field] = twice(carried)
    for name in price.together:
        wider = made["fabrics"][name]
        sharers = {"device": 1}.get(wider.get("scope", "host"), made["devices"])
        wider["bandwidth"] = added(wider["bandwidth"], carried, sharers)
    return made


def twice(text: str) -> str:
    number, unit = text.split()
    return f"{float(number) * 2!r} {unit}"


def added(text: str, more: str, times: int) -> str:
    return f"{parse_rate(text) + times * parse_rate(more)} B/s"


@settings(max_examples=15)
@given(st.data())
def test_doubling_what_is_priced_gives_the_price(data: st.DataObject) -> None:
    machine = data.draw(machines())
    graph = data.draw(on_processors(machine, False).filter(lambda graph: graph.elsewhere))
    plan = data.draw(processor_plans(graph, machine))
    try:
        found = hosim.blame(plan, machine)
    except (PlanError, hosim.InfeasibleError):
        return
    profile = hardware_to_dict(machine)
    for price in found.prices:
        if price.added not in TWICE or price.saves_ns is None:
            continue
        budget = (
            2 * found.result.budget_bytes
            if (price.what, price.added) == (machine.device_tier, "twice the room")
            else None
        )
        then = hosim.replay(plan, hardware_from_dict(doubled(profile, price)), budget)
        assert found.result.makespan_ns - then.makespan_ns == price.saves_ns, str(price)
    assert {price.what for price in found.prices if price.added == "twice the FLOP/s"} >= {
        graph.ops[i].processor for i in graph.elsewhere
    }
    drain = [stall.stall_ns for stall in found.stalls if stall.cause == "drain"]
    assert sum(drain) == found.result.drain_ns
    assert sum(found.path_ns.values()) == found.result.makespan_ns


def answer(tmp_path: Path, profile: str, *arguments: str) -> dict[str, Any]:
    (tmp_path / "hw.yaml").write_text(profile)
    done = CliRunner().invoke(app, ["blame", *arguments, "-H", str(tmp_path / "hw.yaml"), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


DESKTOP = """\
format: hosim.hardware/1
name: desktop
device_tier: hbm
compute: {peak: {bf16: 100 TFLOP/s}, efficiency: 0.8, launch: 3 us}
tiers:
  hbm: {capacity: 24 GiB, bandwidth: 900 GB/s, scope: device}
  ddr:
    capacity: 256 GB
    bandwidth: 100 GB/s
    scope: host
    PAGEABLE
    compute: {peak: {fp32: 0.8 TFLOP/s}, efficiency: 0.5, launch: 10 us}
channels:
  h2d: {from: ddr, to: hbm, bandwidth: 13 GB/s, latency: 5 us, pageable: 3 GB/s}
  d2h: {from: hbm, to: ddr, bandwidth: 13 GB/s, latency: 5 us, pageable: 3 GB/s}
"""


def test_the_drain_of_a_step_with_adam_on_the_cpu_is_named_and_priced(tmp_path: Path) -> None:
    """The device has ended, and the CPU goes on: it reads memory, so twice its bandwidth nearly
    halves its part.
    """
    asked = "gpt2:phase=train:layers=2:batch=1:sequence=256:optimizer_on=ddr"
    found = answer(tmp_path, DESKTOP.replace("PAGEABLE", ""), asked, "-p", "zero_offload")
    (drain,) = [stall for stall in found["stalls"] if stall["cause"] == "drain"]
    assert (drain["stream"], drain["op"], drain["processor"], drain["end_ns"]) == (
        "compute",
        "",
        "ddr",
        found["makespan_ns"],
    )
    path = {part["what"]: part["ns"] for part in found["critical_path"]}
    assert sum(path.values()) == found["makespan_ns"]
    saved = {(price["what"], price["added"]): price["saves_ns"] for price in found["prices"]}
    assert 0.4 * path["ops on ddr"] < saved["ddr", "twice the bandwidth"] < 0.6 * path["ops on ddr"]
    assert saved["ddr", "twice the bandwidth"] > saved["ddr", "10.0 GB/s"] > 0
    assert saved["ddr", "twice the FLOP/s"] == 0


def test_pinning_is_named_where_copies_wait_for_pageable_memory(tmp_path: Path) -> None:
    """Weights come up at 3 GB/s for 13, or the other way round; without a rate nothing is priced,
    and the answer says so.
    """
    asked = ("gpt2:phase=prefill:layers=4:sequence=64", "-b", "100 MB", "-p", "layerwise")
    listed = answer(tmp_path, DESKTOP.replace("PAGEABLE", "pageable: [parameter]"), *asked)
    pinned = answer(tmp_path, DESKTOP.replace("PAGEABLE", ""), *asked)
    rows = [
        {price["added"]: price for price in found["prices"] if price["what"] == "ddr"}
        for found in (listed, pinned)
    ]
    assert (
        rows[0]["pinning"]["saves_ns"]
        == -rows[1]["pageable memory"]["saves_ns"]
        == listed["makespan_ns"] - pinned["makespan_ns"]
        > 0
    )
    assert listed["prices"][0]["added"] == "pinning"
    unknown = answer(
        tmp_path, DESKTOP.replace("PAGEABLE", "").replace(", pageable: 3 GB/s", ""), *asked
    )
    (row,) = [price for price in unknown["prices"] if price["added"] == "pageable memory"]
    assert (row["saves_ns"], row["note"].count("channels.h2d.pageable")) == (None, 1)


def test_a_comparison_says_what_it_takes_to_be_pinned(tmp_path: Path) -> None:
    """Without a rate for pageable memory; where the profile has one, or nothing moves, there is
    nothing to say.
    """

    def said(profile: str, *more: str) -> list[str]:
        (tmp_path / "hw.yaml").write_text(profile.replace("PAGEABLE", ""))
        asked = [
            "compare-policies",
            "gpt2:phase=prefill:layers=4:sequence=64",
            "-H",
            str(tmp_path / "hw.yaml"),
            *more,
            "--json",
        ]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.output
        return [
            line for line in json.loads(done.stdout).get("notes", []) if line.startswith("pinned")
        ]

    bare = DESKTOP.replace(", pageable: 3 GB/s", "")
    line = (
        "pinned: copies of ddr are timed as pinned, and desktop has no rate for pageable ones "
        "(channels.h2d.pageable)"
    )
    assert said(bare, "-b", "100 MB", "-p", "layerwise") == [line]
    assert said(bare, "-p", "resident") == []
    (known,) = said(DESKTOP, "-b", "100 MB", "-p", "layerwise")
    assert known.endswith("reach 3.00 GB/s over h2d")
