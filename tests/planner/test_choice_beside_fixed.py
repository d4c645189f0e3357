"""Plans that choose processors beside plans of the same workload with all on the device, and with
all on the CPU (docs/processors.md).
"""

import random
from dataclasses import replace

import pytest
from naive_replay import NaiveReplay
from quick_cases import one_in

from hosim.analysis import static_curve
from hosim.analysis.verifying import verify
from hosim.edits import on_processors
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.planner.rewrites import halfway, updated_in_place
from hosim.policies import policy_named
from hosim.shipped import find_hardware

CASES = {
    "experts_on": (
        "rtx-4090",
        {"model": "mixtral-8x7b", "phase": "decode", "merged": True, "layers": 4, "context": 512},
    ),
    "attention_on": (
        "t4",
        {
            "model": "opt-30b",
            "phase": "decode",
            "merged": True,
            "layers": 8,
            "batch": 32,
            "context": 512,
        },
    ),
    "optimizer_on": (
        "gh200-96gb",
        {
            "model": "llama-3.1-8b",
            "phase": "train",
            "layers": 4,
            "sequence": 2048,
            "checkpoint": True,
            "fused": True,
        }
        | {"attention_kernel": "flash2"},
    ),
}


def step_ns(graph: Graph, hardware: Hardware, budget: int) -> float:
    """The step's nanoseconds under the planner, endless if nothing fits."""
    try:
        plan = policy_named("hyperoffload").plan(graph, hardware, budget, effort=0.0)
    except InfeasibleError:
        return float("inf")
    result = replay(plan, hardware, budget)
    return (
        result.makespan_ns if result.feasible and result.makespan_ns is not None else float("inf")
    )


@pytest.mark.long
@pytest.mark.parametrize("share", [0.75, 0.5, 0.3])
@pytest.mark.parametrize("key", CASES)
def test_a_choice_is_never_worse_than_all_on_one_processor(key: str, share: float) -> None:
    name, described = CASES[key]
    hardware, device = load_hardware(find_hardware(name)), build("step", described)
    budget = int(share * max(static_curve(device)))
    chosen = step_ns(build("step", {**described, key: "device/ddr"}), hardware, budget)
    assert chosen <= step_ns(device, hardware, budget)
    assert chosen <= step_ns(build("step", {**described, key: "ddr"}), hardware, budget)
    assert chosen < float("inf")


def test_an_update_on_either_processor_is_that_of_the_device_where_it_runs_there() -> None:
    described = {**CASES["optimizer_on"][1], "layers": 1}
    either, device = (
        build("step", {**described, "optimizer_on": "device/ddr"}),
        build("step", described),
    )
    chosen = on_processors(either, [(either.ops[i].name, "") for i in either.movable])
    assert chosen.ops != device.ops
    assert updated_in_place(chosen).ops == device.ops
    assert updated_in_place(device) is device


@pytest.mark.long
def test_a_choice_begins_with_what_one_processor_makes_of_it() -> None:
    """One layer's step in four fifths of its memory, so that it waits: no worse than the device
    alone.
    """
    hardware = load_hardware(find_hardware("gh200-96gb"))
    described = {"model": "gpt2", "phase": "train", "layers": 1, "sequence": 64, "fused": True}
    device = build("step", described)
    budget = int(0.8 * max(static_curve(device)))
    assert (
        step_ns(build("step", {**described, "optimizer_on": "device/ddr"}), hardware, budget)
        <= step_ns(device, hardware, budget)
        < float("inf")
    )


def test_numbers_between_those_tried_are_next() -> None:
    assert halfway([0, 8, 16], 8) == 4
    assert halfway([0, 4, 8, 16], 8) == 12
    assert halfway([0, 1], 0) == 0
    assert halfway([0, 2], 0) == 1
    assert halfway([0, 5, 9], 0) == 2


def overwriting(seed: int) -> tuple[Graph, Hardware]:
    """Layers that read a weight, then updates that overwrite each without reading it, on either
    processor; one byte a nanosecond.
    """
    r = random.Random(seed)
    b, layers = GraphBuilder("overwriting"), r.randint(2, 3)
    sizes = [r.randint(20, 60) for _ in range(layers)]
    for k, size in enumerate(sizes):
        b.tensor(f"w{k}", size, "parameter")
        b.tensor(f"g{k}", r.randint(5, 20))
        b.op(f"f{k}", "any", inputs=[f"w{k}"], outputs=[f"g{k}"], duration_ns=r.randint(5, 60))
    for k in r.sample(range(layers), layers):
        b.op(
            f"u{k}",
            "any",
            inputs=[f"g{k}"],
            outputs=[f"w{k}"],
            duration_ns=r.randint(5, 40),
            also_on={"ddr": r.randint(10, 150)},
        )
    tiers = (
        Tier("hbm", int(sum(sizes) * r.uniform(0.6, 1.2)) + 40, 10**12, "device"),
        Tier("ddr", 10**4, 10**11, compute=Compute({})),
    )
    channels = Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)
    return b.build(), Hardware("drawn", tiers, channels, Compute({}))


@pytest.mark.parametrize("seed", one_in(40, range(40)))
def test_a_plan_for_what_is_updated_in_place_holds_for_what_is_overwritten(seed: int) -> None:
    """Its ops are the workload's, which only write; verifier and naive replay agree with the engine
    about it.
    """
    graph, hardware = overwriting(seed)
    plan = policy_named("hyperoffload").plan(graph, hardware, effort=0.0)
    assert plan.workload is graph
    assert not any(op.mutates for op in plan.graph.ops)
    assert not verify(plan, hardware)
    result = replay(plan, hardware)
    assert result.feasible
    assert NaiveReplay(plan, hardware, None, None).figures()["makespan_ns"] == result.makespan_ns


@pytest.mark.parametrize("seed", one_in(20, range(20)))
def test_all_choices_are_planned_for_the_workload_itself(seed: int) -> None:
    """The optimum of what is overwritten need not keep it, so no uniform plan is better than the
    best of all choices.
    """
    pytest.importorskip("ortools")
    graph, hardware = overwriting(seed)
    best = replay(policy_named("optimal").plan(graph, hardware), hardware).makespan_ns
    device = on_processors(graph, [(graph.ops[i].name, "") for i in graph.movable])
    try:
        fixed = policy_named("optimal").plan(device, hardware)
    except InfeasibleError:
        return
    assert best <= replay(fixed, hardware).makespan_ns


def test_the_optimum_drops_what_is_overwritten() -> None:
    """f 5, g 5 without w, u 5 on the device, e beside them on the CPU: 15 ns. Where u changed w in
    place, w would come back in between.
    """
    pytest.importorskip("ortools")
    b = GraphBuilder("dropped")
    b.tensor("w", 40, "parameter")
    b.tensor("k", 1)
    b.op("e", "any", outputs=["k"], duration_ns=1000, also_on={"ddr": 10})
    b.op("f", "any", inputs=["w"], duration_ns=5)
    b.op("g", "any", workspace_bytes=30, duration_ns=5)
    b.op("u", "any", outputs=["w"], duration_ns=5, also_on={"ddr": 1000})
    _, machine = overwriting(0)
    hardware = replace(
        machine, tiers=(replace(machine.tiers[0], capacity_bytes=60), machine.tiers[1])
    )
    plan = policy_named("optimal").plan(b.build(), hardware)
    assert plan.processors == {"e": "ddr", "u": ""}
    assert replay(plan, hardware).makespan_ns == 15


def test_whether_rivals_are_tried_is_no_option() -> None:
    graph, hardware = overwriting(0)
    with pytest.raises(InputError, match="no parameter 'rivals'"):
        policy_named("hyperoffload").plan(graph, hardware, rivals=False)
