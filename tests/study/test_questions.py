"""Questions with changed fields: which fields there are, and what each wrong one is told, in
full.
"""

import json
import math
import sys
from dataclasses import replace

import pytest
from sweeping import MACHINE, chain

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import read_budget
from hosim.errors import InputError, PlanError
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware
from hosim.io.models import build
from hosim.study import sweep
from hosim.study.asked import Axis, PolicyChoice, as_choice, parse_choice
from hosim.study.runs import Question, check_fields, check_values, cluster, failure, recipe
from hosim.study.searches import fit

SMALL = {"model": "gpt2-xl", "phase": "prefill", "sequence": 64, "layers": 1}
TRACED = {
    "model": {"name": "llama", "config": {"hidden_size": 8, "layers": [1, 2]}},
    "inputs": {"input_ids": {"shape": [1, 64], "dtype": "int64"}},
}
CURVED = replace(
    MACHINE,
    channels=(
        replace(MACHINE.channels[0], curve=((10, 10**8), (20, 15 * 10**7))),
        MACHINE.channels[1],
    ),
    fabrics=(Fabric("link", 10**9, ("h2d",)),),
)


def question(graph: Graph | None = None, policy: str = "lookahead") -> Question:
    return Question(graph or build("small", SMALL), CURVED, parse_choice(policy), "50%")


def traced(**more: object) -> Graph:
    """A graph that says it was imported from a model."""
    return replace(chain(2), meta={**TRACED, **more})


def test_a_multiple_is_of_what_the_profile_has() -> None:
    """Exact, also for 1.7, which no binary fraction is."""
    before = question().profile
    now = question().with_settings({"channels.h2d.bandwidth": "1.7x", "tiers.ddr.capacity": "2x"})
    up, down = now.profile.channels
    assert 10 * up.bandwidth_bytes_per_s == 17 * before.channels[0].bandwidth_bytes_per_s
    assert down == before.channels[1]
    assert now.profile.tiers[1].capacity_bytes == 2 * before.tiers[1].capacity_bytes
    with pytest.raises(InputError, match=r"^channels\.h2d\.from: 2x of what"):
        question().with_settings({"channels.h2d.from": "2x"})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "channels.h2d.curve.2.bandwidth",
            "1 GB/s",
            "channels.h2d.curve.2: unknown field '2'; there is no field at all",
        ),
        (
            "channels.h2d.curve.x.bandwidth",
            "1 GB/s",
            "channels.h2d.curve.x: unknown field 'x'; there is no field at all",
        ),
        (
            "channels.h2d.curve.0.bandwith",
            "1 GB/s",
            "channels.h2d.curve.0.bandwith: unknown field 'bandwith'; did you mean 'bandwidth'?",
        ),
        ("fabrics.link.channels.1", "d2h", "fabrics.link.channels.1: expected a path to one value"),
        ("fabrics.link.channels.x", "d2h", "fabrics.link.channels.x: expected a path to one value"),
        ("tiers.hbm", "1 B", "tiers.hbm: expected a path to one value, such as tiers.hbm.capacity"),
        ("device_tier", "ddr", "device_tier: this field cannot be varied"),
        ("hardware.name", "x", "name: this field cannot be varied"),
        (
            "speed",
            1,
            "speed: unknown field; expected workload.X, policy.X, budget, or a path in the profile "
            "(compare-policies -H a,b compares machines)",
        ),
        ("sequence", 1, "sequence: unknown field; did you mean 'workload.sequence'?"),
        (
            "compute.efficency",
            1,
            "compute.efficency: unknown field 'efficency'; did you mean 'efficiency'?",
        ),
    ],
)
def test_what_is_no_field_of_a_machine(field: str, value: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        check_fields(question(), [field])
    assert str(refused.value) == said


def test_fields_that_a_profile_may_leave_out() -> None:
    check_fields(
        question(),
        ["devices", "devices_per_host", "chunk", "pin.bandwidth", "fabrics.link.bandwidth"],
    )
    varied = question().with_settings(
        {
            "devices": 2,
            "chunk": "4 B",
            "fabrics.link.bandwidth": "3 GB/s",
            "fabrics.link.channels.0": "d2h",
        }
    )
    assert (varied.hardware.devices, varied.hardware.chunk_bytes) == (2, 4)
    assert varied.hardware.fabrics == (Fabric("link", 3 * 10**9, ("d2h",)),)
    bare = Question(chain(2), MACHINE, parse_choice("resident")).with_settings(
        {"channels.h2d.latency": "3 ns", "channels.h2d.engines": 2}
    )
    assert bare.hardware.channels[0] == replace(MACHINE.channels[0], latency_ns=3, engines=2)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "channels.h2d.bandwidth",
            20e9,
            "channels.h2d.bandwidth: expected a quantity with its unit, such as '20 GB/s', got "
            "20000000000.0",
        ),
        (
            "hardware.tiers.hbm.capacity",
            1000,
            "hardware.tiers.hbm.capacity: expected a quantity with its unit, such as '1 kB', got "
            "1000",
        ),
        (
            "channels.h2d.bandwidth",
            -3,
            "channels.h2d.bandwidth: expected a quantity with its unit, such as '1 B/s', got -3",
        ),
        (
            "channels.h2d.bandwidth",
            math.nan,
            "channels.h2d.bandwidth: expected a quantity with its unit, such as '1 B/s', got nan",
        ),
        (
            "channels.h2d.curve.0.bandwidth",
            5,
            "channels.h2d.curve.0.bandwidth: expected a quantity with its unit, such as '5 B/s', "
            "got 5",
        ),
    ],
)
def test_a_number_without_its_unit_is_refused_before_anything_is_planned(
    field: str, value: float, said: str
) -> None:
    for refuse in (
        lambda: check_values(question(), [{field: "1 GB/s"}, {field: value}]),
        lambda: sweep(question(), [{field: value}]),
        lambda: fit(question(), "smallest", Axis((field,), ("1 GB/s", value))),
    ):
        with pytest.raises(InputError) as refused:
            refuse()
        assert str(refused.value) == said
    check_values(
        question(),
        [
            {
                "devices": 2,
                "compute.efficiency": 0.5,
                "budget": 0.5,
                "policy.k": 3,
                "channels.h2d.latency": True,
            }
        ],
    )


def test_a_budget_is_a_size_or_a_share() -> None:
    with pytest.raises(InputError) as refused:
        question().with_settings({"budget": True})
    assert (
        str(refused.value)
        == "budget: expected whole bytes, a size such as '40 GiB' or a share of the resident peak "
        "such as '75%' or 0.75, got True"
    )
    assert (
        question().with_settings({"budget": 0.5}).budget_bytes
        == question().with_settings({"budget": "50%"}).budget_bytes
    )
    assert question().with_settings({"budget": None}).budget == read_budget(None)
    assert question().with_settings({"budget": 77}).budget_bytes == 77
    assert question().with_settings({"budget": "60%"}).budget == read_budget("60%")


def test_another_policy_and_other_parameters() -> None:
    asked = question(policy="lookahead:k=2")
    assert asked.with_settings({"policy": "belady"}).choice == PolicyChoice("belady", {}, "belady")
    assert asked.with_settings({"policy.k": 2}).choice is asked.choice
    assert asked.with_settings({"policy.k": "7"}).choice == PolicyChoice(
        "lookahead", {"k": 7}, "lookahead:k=7"
    )
    assert asked.with_settings({"policy": "lookahead:k=5", "policy.k": 6}).choice == PolicyChoice(
        "lookahead", {"k": 6}, "lookahead:k=6"
    )
    recomputing = question(policy="hyperoffload").with_settings({"policy.recompute": True})
    assert recomputing.choice == PolicyChoice(
        "hyperoffload", {"recompute": True}, "hyperoffload:recompute=true"
    )
    unchanged = asked.with_settings({})
    assert unchanged.graph is asked.graph
    assert unchanged.hardware is asked.hardware
    assert unchanged.choice is asked.choice
    assert unchanged.budget == read_budget("50%")


def test_the_answer_is_that_of_a_plan_that_was_checked() -> None:
    asked = Question(chain(2), MACHINE, parse_choice("lookahead:k=2"), 100)
    answer = asked.answer()
    assert (answer.policy, answer.budget_bytes, answer.planning_s is None) == (
        "lookahead:k=2",
        100,
        False,
    )
    with pytest.raises(InputError) as refused:
        check_fields(asked, ["policy.k", "policy.kk"])
    assert str(refused.value) == "policy lookahead: unknown parameter 'kk'; did you mean 'k'?"

    def sloppy(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        return Plan(graph, cache_ops=(CacheOp("detach", 1, "hbm", None),))

    with pytest.raises(PlanError, match="policy sloppy made a plan that breaks a rule"):
        replace(asked, choice=as_choice(sloppy)).answer()


def test_fields_of_a_builder() -> None:
    asked = question().with_settings(
        {"workload.layers": 2, "workload.config.n_embd": 800, "workload.config.n_head": 5}
    )
    assert asked.graph == build(
        "small", {**SMALL, "layers": 2, "config": {"n_embd": 800, "n_head": 5}}
    )
    again = asked.with_settings({"workload.config.n_embd": 400})
    assert again.graph == build(
        "small", {**SMALL, "layers": 2, "config": {"n_embd": 400, "n_head": 5}}
    )
    with pytest.raises(InputError) as refused:
        question().with_settings({"workload.layers": 99})
    assert str(refused.value) == "workload: layers: the model has 48 layers, got 99"
    with pytest.raises(InputError) as refused:
        question().with_settings({"workload.config": 3})
    assert str(refused.value).startswith("workload: config: expected ")


def test_fields_of_a_traced_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec that is imported again has the changed fields; the graph's own does not change."""
    made: list[object] = []
    monkeypatch.setattr(
        "hosim.io.spec.make",
        lambda spec, source: made.append((json.loads(json.dumps(spec)), source)) or chain(3),
    )
    asked = question(traced())
    varied = asked.with_settings(
        {"workload.model.config.hidden_size": 16, "workload.inputs.input_ids.shape.1": 32}
    )
    model = {"name": "llama", "config": {"hidden_size": 16, "layers": [1, 2]}}
    inputs = {"input_ids": {"shape": [1, 32], "dtype": "int64"}}
    assert made == [
        (
            {"name": "chain", "importer": "torch_export", "model": model, "inputs": inputs},
            "workload",
        )
    ]
    assert varied.graph == chain(3)
    assert recipe(asked.graph) == {"importer": "torch_export", **TRACED}
    check_fields(asked, ["workload.inputs.input_ids.shape.0"])
    for field, said in (
        (
            "inputs.input_id.shape.0",
            "inputs.input_id: unknown field 'input_id'; did you mean 'input_ids'?",
        ),
        ("inputs.input_ids.shape.2", "inputs.input_ids.shape.2: expected a path to one value"),
        (
            "model.config",
            "model.config: expected a path to one value, such as model.config.hidden_size",
        ),
        (
            "sequence",
            "workload: unknown field 'sequence' (known: importer, model, inputs); the workload is "
            "traced from a model, and its sizes are "
            "in 'model' and 'inputs'",
        ),
    ):
        with pytest.raises(InputError) as refused:
            check_fields(asked, [f"workload.{field}"])
        assert str(refused.value) == said


def test_how_a_graph_was_built() -> None:
    assert recipe(build("small", SMALL)) == {"builder": SMALL}
    assert recipe(traced()) == {"importer": "torch_export", **TRACED}
    assert recipe(traced(training={"optimizer": "sgd"})) == {
        "importer": "torch_train",
        "training": {"optimizer": "sgd"},
        **TRACED,
    }
    assert recipe(traced(inputs="x")) is None
    assert recipe(chain(2)) is None
    with pytest.raises(InputError) as refused:
        check_fields(question(chain(2)), ["workload.batch"])
    assert str(refused.value) == (
        "workload: chain does not say how it was built, so its fields cannot be varied; give a "
        "spec with a builder, such as "
        "llama-3.1-8b-prefill-32k"
    )


def test_an_error_in_a_row_is_one_line() -> None:
    assert failure(InputError("expected a size", source="budget")) == "budget: expected a size"
    assert failure(ValueError("two\n  lines")) == "ValueError: two lines"


def test_every_path_of_a_profile_that_may_be_varied() -> None:
    bare = replace(MACHINE, channels=MACHINE.channels[:1])
    ways = [f"channels.h2d.{key}" for key in ("from", "to", "bandwidth", "latency", "engines")]
    tiers = [
        f"tiers.{tier}.{key}"
        for tier in ("hbm", "ddr")
        for key in ("capacity", "bandwidth", "scope")
    ]
    compute = ["compute.peak.bf16", "compute.efficiency", "compute.launch"]
    asked = replace(question(), profile=bare)
    for path in ("devices", *compute, "runtime.inspect", *tiers, *ways):
        check_fields(asked, [path])
    with pytest.raises(InputError) as refused:
        question().with_settings({"channels.d2h.bandwidth": "0 GB/s"})
    assert str(refused.value).startswith(
        "two tiers: channels.d2h.bandwidth: expected a bandwidth above 0 B/s"
    )


def test_a_cluster_needs_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError) as refused:
        cluster("tcp://host:8786")
    assert (
        str(refused.value)
        == "scheduler: --scheduler needs Dask, which is not installed; run: pip install "
        "'hosim[dask]'"
    )
