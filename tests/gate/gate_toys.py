"""Small cases of the gate, and what a change of them is expected to do, worked out without the
gate.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.gate import Case, Suite, check
from hosim.gate.verdicts import CaseVerdict
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.io import hardware_from_dict, save_hardware, save_plan, save_workload

LAYERS = 4

HARDWARE: dict[str, Any] = {
    "format": "hosim.hardware/1",
    "name": "small",
    "compute": {"peak": {"bf16": "1 TFLOP/s"}},
    "tiers": {
        "hbm": {"capacity": "2 kB", "bandwidth": "1 TB/s"},
        "ddr": {"capacity": "20 kB", "bandwidth": "100 GB/s"},
    },
    "channels": {
        "h2d": {"from": "ddr", "to": "hbm", "bandwidth": "1 GB/s"},
        "d2h": {"from": "hbm", "to": "ddr", "bandwidth": "1 GB/s"},
    },
}


def step(scale: int = 1) -> Graph:
    """Forward and backward of a few layers: ``scale`` is that of the sequence. In ``norm`` an
    activation is changed in place.
    """
    b = GraphBuilder("step")
    b.tensor("x", 20 * scale, "input")
    before = "x"
    for i in range(LAYERS):
        w, a, h = f"layers.{i}.w", f"layers.{i}.act", f"layers.{i}.tmp"
        b.tensor(w, 50 + i, "parameter")
        b.tensor(a, (30 + 3 * i) * scale)
        b.tensor(h, (17 + i) * scale)
        b.op(
            f"layers.{i}.matmul",
            "matmul",
            inputs=[before, w],
            outputs=[h],
            duration_ns=(40 + i) * scale,
            workspace_bytes=5,
        )
        b.op(f"layers.{i}.norm", "norm", mutates=[h], duration_ns=10 * scale)
        b.op(f"layers.{i}.relu", "relu", inputs=[h], outputs=[a], duration_ns=11 * scale)
        before = a
    for i in reversed(range(LAYERS)):
        g = f"layers.{i}.grad"
        b.tensor(g, 50 + i, "gradient")
        b.op(
            f"layers.{i}.back",
            "matmul",
            inputs=[f"layers.{i}.act", f"layers.{i}.w"],
            outputs=[g],
            duration_ns=(60 + i) * scale,
        )
        b.op(f"layers.{i}.sgd", "sgd", inputs=[g], mutates=[f"layers.{i}.w"], duration_ns=9)
    return b.build()


def machine(**changes: Any) -> Hardware:
    """The small machine; ``h2d`` and ``d2h`` are its bandwidths in bytes a nanosecond."""
    made = hardware_from_dict(HARDWARE)
    rates = {name: changes.get(name, 1) * 10**9 for name in ("h2d", "d2h")}
    return replace(
        made,
        channels=tuple(replace(c, bandwidth_bytes_per_s=int(rates[c.name])) for c in made.channels),
    )


def offloading(graph: Graph, fetch_after: str = "layers.2.back") -> Plan:
    """The first layer's activation is away from the second layer's matmul on; ``fetch_after`` is
    the op after which it comes back.
    """
    t, ops = graph.tensor_index["layers.0.act"], graph.op_index
    moves = (
        CacheOp("store", t, "hbm", "ddr", ops["layers.1.matmul"]),
        CacheOp("detach", t, "hbm", None, ops["layers.1.matmul"]),
        CacheOp("prefetch", t, "ddr", "hbm", ops[fetch_after]),
    )
    return Plan(graph, "manual", moves)


def figures(plan: Plan, hardware: Hardware) -> dict[str, int]:
    """Peaks and makespan of a replay."""
    result = replay(plan, hardware)
    assert result.feasible
    assert result.makespan_ns is not None
    return {
        **{f"peak.{tier}": held for tier, held in result.peak_bytes.items()},
        "makespan": result.makespan_ns,
    }


def put(folder: Path, plan: Plan, hardware: Hardware, *, offloads: bool) -> None:
    """The case's files."""
    save_workload(plan.graph, folder / "step.json")
    save_hardware(hardware, folder / "small.yaml")
    if offloads:
        save_plan(plan, folder / "plan.json")


def suite(folder: Path, *, offloads: bool) -> Suite:
    """One case, of a plan file or of the policy ``resident``."""
    plan = "plan.json" if offloads else None
    case = Case(
        "step", "small.yaml", str(folder), workload="step.json", policy="resident", plan=plan
    )
    return Suite("hosim.toml", folder / "hosim-baselines", (case,))


def verdict(folder: Path, *, offloads: bool) -> CaseVerdict:
    """The verdict of the case in a folder."""
    (only,) = check(suite(folder, offloads=offloads))
    return only


def write_config(folder: Path) -> None:
    """A folder with two cases, for the commands."""
    put(folder, offloading(step()), machine(), offloads=True)
    (folder / "hosim.toml").write_text(
        '[cases.resident]\nworkload = "step.json"\nhardware = "small.yaml"\npolicy = "resident"\n\n'
        '[cases.planned]\nworkload = "step.json"\nhardware = "small.yaml"\nplan = "plan.json"\n'
    )


def edit(path: Path, change: Any) -> None:
    """A JSON file with a change made to its data."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
