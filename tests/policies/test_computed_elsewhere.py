"""Policies named after systems that compute a part beside the device: the workload says so, or they
tell its builder, or refuse.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io import save_workload
from hosim.policies import policy_named, policy_names

H100 = hosim.load_hardware(hosim.find_hardware("h100"))
TRAIN = {"model": "gpt2", "phase": "train", "layers": 1, "sequence": 32}
MOE = {"model": "mixtral-8x7b", "phase": "decode", "layers": 1, "context": 64}
PARTS = [
    ("ktransformers", MOE, {"experts_on": "ddr", "merged": True}),
    ("zero_offload", TRAIN, {"optimizer_on": "ddr"}),
    ("zero_infinity", TRAIN, {"optimizer_on": "ddr"}),
    ("superoffload", TRAIN, {"optimizer_on": "ddr", "update": "speculative"}),
    (
        "fsdp_offload",
        {**TRAIN, "data": 4},
        {"optimizer_on": "ddr", "zero": 3, "shards_home": "ddr"},
    ),
]


def test_these_are_all() -> None:
    found = {
        name: part for name in policy_names() if (part := policy_named(name).elsewhere) is not None
    }
    assert {name for name, part in found.items() if not part.chosen} == {name for name, *_ in PARTS}
    assert {name for name, part in found.items() if part.chosen} == {
        "llama_cpp"
    }  # test_llama_cpp.py has what it plans


@pytest.mark.parametrize(("policy", "asked", "told"), PARTS)
def test_it_plans_for_what_its_builder_makes_of_it_and_says_so(
    policy: str, asked: dict[str, Any], told: dict[str, Any]
) -> None:
    plan = hosim.plan(asked, "h100", policy)
    said = hosim.load({**asked, **told})
    assert plan.workload == replace(said, name=plan.workload.name)
    assert plan.workload.elsewhere
    assert hosim.plan(said, "h100", policy).cache_ops == plan.cache_ops
    (note,) = [
        line for line in hosim.replay(plan, "h100").notes if f"since {policy} computes" in line
    ]
    assert note.startswith(f"assumed: {next(iter(told))}=ddr")
    assert note in hosim.compare(asked, "h100", policy).attrs["notes"]


@pytest.mark.parametrize(("policy", "asked", "told"), PARTS)
def test_where_nobody_can_tell_the_builder_it_refuses_by_the_options_name(
    policy: str, asked: dict[str, Any], told: dict[str, Any], tmp_path: Path
) -> None:
    graph = hosim.load(asked)
    option = next(iter(told))
    own = hosim.GraphBuilder("mine")
    part = policy_named(policy).elsewhere
    assert part is not None
    own.tensor("x", 8, part.kind)
    own.op("f", "m", inputs=["x"], duration_ns=5)
    for unknown in (
        own.build(),
        hosim.Graph(graph.name, graph.tensors, graph.ops[:-1], graph.meta),
    ):
        with pytest.raises(InputError, match=f"{option}=TIER"):
            hosim.plan(unknown, "h100", policy)
    with pytest.raises(InputError, match="toy has no tier below that computes"):
        hosim.plan(asked, "toy", policy)
    save_workload(own.build(), tmp_path / "w.json")
    outcome = CliRunner().invoke(
        app, ["compare-policies", str(tmp_path / "w.json"), "-H", "h100", "-p", policy]
    )
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert f"{option}=TIER" in outcome.stderr


def test_a_model_whose_experts_no_builder_puts_there_is_refused() -> None:
    """Experts with ops of their own ran on the device under the policy that never moves experts,
    and all of them moved.
    """
    asked = (
        "deepseek-v3:phase=decode:layers=5:context=4096:batch=1:experts_home=ddr:chosen_experts=8"
    )
    outcome = CliRunner().invoke(
        app, ["compare-policies", asked, "-H", "h100", "-b", "20GiB", "-p", "ktransformers"]
    )
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "experts_on=TIER" in outcome.stderr


def test_a_step_without_the_part_is_planned_as_it_is() -> None:
    """No optimizer, no experts; and what the workload says already stays."""
    prefill = {"model": "gpt2", "phase": "prefill", "layers": 1, "sequence": 32}
    for policy, *_ in PARTS:
        assert not hosim.plan(prefill, "h100", policy).workload.elsewhere
    said = {**TRAIN, "optimizer_on": "device/ddr"}
    assert hosim.plan(said, "h100", "zero_offload").workload == hosim.load(said)


def test_the_planner_still_streams_states_where_the_device_updates() -> None:
    """Its rivals are the streams, not the systems: a plan is for the workload that was asked
    about.
    """
    asked = [
        "compare-policies",
        "gpt2:phase=train:layers=1:sequence=9",
        "-H",
        "h100",
        "-b",
        "98%",
        "-p",
        "hyperoffload:effort=0",
        "--json",
    ]
    outcome = CliRunner().invoke(app, asked)
    assert outcome.exit_code == 0, outcome.output
    assert not any("computes" in line for line in json.loads(outcome.stdout).get("notes", ()))
