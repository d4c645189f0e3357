"""Presets: each plans as the policy that it is a setting of, under its own name. And whose system
each policy models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from toy_machine import MACHINE

from hosim.analysis.verifying import verify
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Hardware, Tier
from hosim.policies import policy_named, policy_names
from hosim.policies.own import AT_RUNTIME, RIVALS, static_rivals


def step(states: bool) -> Graph:
    """Three layers, used and then updated."""
    b = GraphBuilder("step")
    for i in range(3):
        b.tensor(f"layers.{i}.w", 10, "parameter")
        b.op(f"f{i}", "m", inputs=[f"layers.{i}.w"], duration_ns=20)
    for i in range(3):
        if states:
            b.tensor(f"optimizer.layers.{i}.w", 20, "optimizer_state")
        b.op(
            f"u{i}",
            "m",
            mutates=[f"layers.{i}.w", *([f"optimizer.layers.{i}.w"] if states else [])],
            duration_ns=20,
        )
    return b.build()


@pytest.mark.parametrize(
    ("preset", "policy", "parameters", "below"),
    [
        ("zero_inference", "layerwise", {}, {"parameter"}),
        ("zero_offload", "layerwise", {"kinds": "optimizer_state"}, {"optimizer_state"}),
        (
            "zero_infinity",
            "layerwise",
            {"kinds": "parameter/optimizer_state"},
            {"parameter", "optimizer_state"},
        ),
    ],
)
def test_a_preset_plans_as_its_policy_does(
    preset: str, policy: str, parameters: dict[str, Any], below: set[str]
) -> None:
    graph = step(states=True)
    chosen = replace(policy_named(preset), elsewhere=None)  # as where the workload has said it
    named = chosen.plan(graph, MACHINE, 80)
    same = policy_named(policy).plan(graph, MACHINE, 80, **parameters)
    assert (named.cache_ops, named.initial) == (same.cache_ops, same.initial)
    assert {graph.tensors[t].kind for t in named.initial} == below
    assert named.policy == preset
    assert verify(named, MACHINE, 80) == ()


def test_flexgen_searches_its_shares() -> None:
    # Four layers, each with a weight of 20 and a cache of 20 that it reads; the device has 120 of
    # 160.
    b = GraphBuilder("generate")
    for i in range(4):
        b.tensor(f"layers.{i}.w", 20, "parameter")
        b.tensor(f"layers.{i}.c", 20, "kv_cache")
        b.op(f"f{i}", "m", inputs=[f"layers.{i}.w"], duration_ns=30)
        b.op(f"a{i}", "m", inputs=[f"layers.{i}.c"], duration_ns=5)
    graph = b.build()

    def makespan(**parameters: Any) -> int | None:
        return replay(
            policy_named("flexgen").plan(graph, MACHINE, 120, **parameters), MACHINE, 120
        ).makespan_ns

    quarters = [makespan(cache=share / 4) for share in range(5)]
    assert makespan(search=True) == min(took for took in quarters if took is not None) == 140
    assert makespan() == 160


@pytest.mark.parametrize("placement", [None, "nearest"])
def test_the_planner_tries_other_policies_at_their_defaults(placement: str | None) -> None:
    def tried(machine: Hardware) -> list[str]:
        return [
            name
            for name, _ in static_rivals(step(states=True), machine, 80, lambda: None, placement)
        ]

    plain = tried(MACHINE)
    assert set(plain) == {*RIVALS, *AT_RUNTIME} - {"resident"}  # which does not fit
    nvme = (
        Tier("nvme", 10**6, 10**9),
        Channel("up2", "nvme", "hbm", 10**8),
        Channel("down2", "hbm", "nvme", 10**8),
    )
    deeper = replace(
        MACHINE, tiers=(*MACHINE.tiers, nvme[0]), channels=(*MACHINE.channels, *nvme[1:])
    )
    # with several tiers below it makes a difference which of them g10 takes
    assert set(tried(deeper)) - set(plain) == (
        {"g10:placement=fastest"} if placement is None else set()
    )


def test_every_policy_of_hosim_says_whose_system_it_models() -> None:
    assert all(policy_named(name).models for name in policy_names())
