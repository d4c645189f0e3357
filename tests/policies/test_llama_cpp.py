"""llama.cpp's placement: by its options, by its own fit, and what it refuses. Figures of its
documentation, and small graphs by hand.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_layers import MIB, layers
from typer.testing import CliRunner

import hosim
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.cli.main import app
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.io.models import build
from hosim.policies import policy_named

RTX = hosim.load_hardware(hosim.find_hardware("rtx-4090"))


def placed(graph: Graph, budget: int = 100 * MIB, **parameters: Any) -> Plan:
    plan = policy_named("llama_cpp").plan(graph, RTX, budget, **{"fit_target": 0, **parameters})
    assert verify(plan, RTX, budget) == ()
    return plan


def on_cpu(plan: Plan) -> list[str]:
    return [op.name for op in plan.graph.ops if op.processor]


def layers_on_cpu(plan: Plan) -> list[int]:
    return [int(name.split(".")[1]) for name in on_cpu(plan) if name.endswith(".mlp")]


def test_layers_count_from_the_back_and_the_output_layer_is_the_first() -> None:
    graph = layers(3, experts=False)
    assert on_cpu(placed(graph, n_gpu_layers=4)) == ["embedding"]
    assert on_cpu(placed(graph, n_gpu_layers=99)) == ["embedding"]
    inside = [f"blk.{n}.{part}" for n in range(3) for part in ("q", "attention", "mlp", "add")]
    assert on_cpu(placed(graph, n_gpu_layers=1)) == [
        "embedding",
        *inside[:-1],
    ]  # what follows the last MLP is beside the head
    assert on_cpu(placed(graph, n_gpu_layers=0)) == ["embedding", *inside, "head"]
    two = placed(graph, n_gpu_layers=3)
    assert on_cpu(two) == ["embedding", *inside[:3]]
    # caches lie with their layers, and no weight crosses the link
    assert two.initial[graph.tensor_index["cache.0"]] == ("ddr",)
    assert {graph.tensors[op.tensor].kind for op in two.cache_ops} <= {"activation", "input"}


def test_a_dense_model_gets_as_many_layers_as_fit_from_the_back() -> None:
    """The head is 3 MiB, each layer 4 with its cache: in 12 MiB there are two layers, in 11 and
    some bytes two, in 10 one.
    """
    graph = layers(4, experts=False)
    for budget, expected in (
        (19 * MIB + 1000, []),
        (15 * MIB + 1000, [0]),
        (12 * MIB, [0, 1]),
        (10 * MIB, [0, 1, 2]),
        (4 * MIB, [0, 1, 2, 3]),
    ):
        assert layers_on_cpu(placed(graph, budget)) == expected
    assert "head" in on_cpu(placed(graph, 2 * MIB))


def test_a_mixture_gets_dense_parts_first_and_then_experts_from_the_front() -> None:
    """Without experts four layers and the head are 11 MiB; the experts of each are 10, and
    activations some bytes.
    """
    graph = layers(4, experts=True)
    assert layers_on_cpu(placed(graph, 52 * MIB)) == []
    for budget, expected in ((50, [3]), (32, [2, 3]), (31, [1, 2, 3]), (12, [0, 1, 2, 3])):
        plan = placed(graph, budget * MIB)
        assert layers_on_cpu(plan) == expected
        assert [name for name in on_cpu(plan) if name.endswith(".q")] == []
    assert layers_on_cpu(placed(graph, 33 * MIB, fit_target=1 * MIB)) == [2, 3]
    assert layers_on_cpu(placed(graph, 33 * MIB, fit_target=2 * MIB)) == [1, 2, 3]
    short = placed(
        graph, 8 * MIB
    )  # not even the dense parts: their layers from the back, all experts on the CPU
    assert layers_on_cpu(short) == [0, 1, 2, 3]
    assert [name for name in on_cpu(short) if name.endswith(".q")] == ["blk.0.q", "blk.1.q"]


@settings(max_examples=20)
@given(count=st.integers(1, 5), experts=st.booleans(), budget=st.integers(1, 70))
def test_no_other_count_would_fit(count: int, experts: bool, budget: int) -> None:
    """Whatever the memory, the plan fits, and with one layer more on the device it would not."""
    graph = layers(count, experts=experts)
    plan = placed(graph, budget * MIB)
    result = hosim.replay(plan, RTX, budget=budget * MIB)
    assert result.feasible
    below = layers_on_cpu(plan)
    if below and not [name for name in on_cpu(plan) if name.endswith(".q")]:
        free = budget * MIB - result.peak_bytes["hbm"]
        assert free < (10 if experts else 4) * MIB + 1000


def test_the_published_example_of_fit() -> None:
    """llama.cpp, tools/fit-params/README.md: Qwen3-30B-A3B in f16, 4096 tokens, 20,386 MiB free on
    an RTX 4090, of which 1,024 stay free.

    The experts of layers 14 to 47 go to the CPU; the model has 17,904 MiB on the device, the
    context 384. Its build (6895) leaves the output layer on the CPU, whose 593.5 MiB are added to
    the budget here, and counts a buffer of 898 MiB for a batch, which is taken off it. The router
    is f32 there.
    """
    told = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "context": 4096,
        "dtype": "fp16",
        "merged": True,
        "routing": None,
    }
    graph = build("readme", {**told, "layers_on": "device/ddr"})
    budget = round((20_386 + 593.5 - 898) * MIB)
    plan = policy_named("llama_cpp").plan(graph, RTX, budget)
    assert [
        int(re.findall(r"\d+", name)[0]) for name in on_cpu(plan) if name.endswith("experts")
    ] == list(range(14, 48))
    assert [name for name in on_cpu(plan) if not name.endswith("experts")] == ["model.embedding"]
    held = {
        t: tensor.size_bytes
        for t, tensor in enumerate(graph.tensors)
        if plan.residency("hbm").get(t) == ("hbm",)
    }
    kinds = {
        kind: sum([size for t, size in held.items() if graph.tensors[t].kind == kind]) / MIB
        for kind in ("parameter", "expert", "kv_cache")
    }
    assert kinds["kv_cache"] == 384
    router = 48 * 128 * 2048 * 2 / MIB  # as many bytes more in f32
    assert kinds["parameter"] + kinds["expert"] - 593.5 + router == pytest.approx(17_904, abs=1)


def test_patterns_come_before_counts_and_the_first_that_is_found_counts() -> None:
    graph = layers(4, experts=True)
    said = "blk\\.1\\.ffn_.*_exps=CUDA0/blk\\.[12]\\.ffn_.*_exps=CPU"
    assert layers_on_cpu(placed(graph, override_tensor=said)) == [2]
    assert layers_on_cpu(placed(graph, override_tensor=said, n_cpu_moe=2)) == [0, 2]
    assert layers_on_cpu(placed(graph, n_cpu_moe=3)) == [0, 1, 2]
    assert layers_on_cpu(placed(graph, override_tensor="exps=CPU")) == [0, 1, 2, 3]
    assert on_cpu(placed(graph, override_tensor="token_embd=CUDA0", n_cpu_moe=0)) == []


def test_an_op_without_weights_is_on_the_cpu_only_between_ops_that_are() -> None:
    graph = layers(3, experts=True)
    assert on_cpu(placed(graph, n_cpu_moe=3)) == [
        "embedding",
        "blk.0.mlp",
        "blk.1.mlp",
        "blk.2.mlp",
    ]
    assert "blk.0.add" in on_cpu(placed(graph, n_gpu_layers=2))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"override_tensor": "exps"}, "expected PATTERN=CPU or PATTERN=CUDA0"),
        ({"override_tensor": "exps=CUDA1"}, "expected PATTERN=CPU or PATTERN=CUDA0"),
        ({"override_tensor": "(exps=CPU"}, "no regular expression"),
        (
            {"override_tensor": "([a-z0-9._]+)+!=CPU"},
            "expected a pattern of at most 4 groups",
        ),  # it tried for ever
        (
            {"override_tensor": "(.|.)(.|.)(.|.)(.|.)(.|.)!=CPU"},
            "expected a pattern of at most 4 groups",
        ),
        ({"override_tensor": ".*.*.*.*!=CPU"}, "expected a pattern of at most 4 groups"),
        (
            {"override_tensor": "ffn_up_exps=CPU"},
            "patterns have to put all of these in the same place",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        placed(layers(2, experts=True), **parameters)


def test_a_tensor_whose_name_in_a_gguf_is_not_known_is_refused() -> None:
    asked = [
        "compare-policies",
        "gpt2:phase=decode:layers=1",
        "-H",
        "rtx-4090",
        "-p",
        "llama_cpp:override_tensor=attn=CPU",
    ]
    outcome = CliRunner().invoke(app, asked)
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "no name in a GGUF is known" in outcome.stderr


def test_ops_that_may_not_run_on_the_cpu_are_refused_by_the_name_of_what_says_so() -> None:
    fixed = layers(2, experts=False, movable=False)
    with pytest.raises(InputError, match="layers_on=device/TIER"):
        placed(fixed)
    with pytest.raises(InputError, match="has no tier below that computes"):
        policy_named("llama_cpp").plan(
            build("x", {"model": "gpt2", "phase": "decode"}),
            hosim.load_hardware(hosim.find_hardware("toy")),
        )
    part = GraphBuilder("part")
    _ = part.tensor("blk.0.w", 4, "parameter"), part.tensor("blk.1.w", 4, "parameter")
    part.op("blk.0.f", "m", inputs=["blk.0.w"], duration_ns=5)
    part.op("blk.1.f", "m", inputs=["blk.1.w"], duration_ns=5, also_on={"ddr": 9})
    with pytest.raises(
        InputError, match=r"'blk\.0\.f' on the CPU, and the workload does not let it"
    ):
        placed(part.build(), n_gpu_layers=1)


def test_a_prompt_is_refused_unless_it_is_computed_where_weights_lie() -> None:
    told = {"model": "llama-3.1-8b", "phase": "prefill", "sequence": 64, "layers": 4}
    small = 2 * 2**30
    with pytest.raises(InputError, match="op_offload=false"):
        hosim.plan(told, "rtx-4090", "llama_cpp", budget=small)
    assert on_cpu(hosim.plan(told, "rtx-4090", "llama_cpp:op_offload=false", budget=small))


def test_experts_that_no_token_reads_take_room_as_well() -> None:
    """A step reads 8 of 128 experts of a layer, and llama.cpp has all of a layer in one place."""
    asked = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "context": 64,
        "layers": 4,
        "merged": True,
        "layers_on": "device/ddr",
    }
    graph = build("drawn", asked)
    experts = sum([tensor.size_bytes for tensor in graph.tensors if tensor.kind == "expert"]) // 4
    budget = 2 * experts + 2 * 2**30
    plan = policy_named("llama_cpp").plan(graph, RTX, budget)
    assert [name for name in on_cpu(plan) if name.endswith("experts")] == [
        f"model.layers.{n}.mlp.experts" for n in (2, 3)
    ]
    there = plan.residency("hbm")
    assert (
        sum(
            [
                tensor.size_bytes
                for t, tensor in enumerate(graph.tensors)
                if tensor.kind == "expert" and there[t] == ("hbm",)
            ]
        )
        == 2 * experts
    )


def test_where_nothing_fits_it_says_so() -> None:
    with pytest.raises(InfeasibleError, match="with all layers on the CPU needs more"):
        placed(layers(2, experts=False), 1 * MIB, fit_target=1 * MIB)


def test_experts_of_ktransformers_are_on_the_cpu_where_the_plan_may_say_so() -> None:
    asked = {
        "model": "mixtral-8x7b",
        "phase": "decode",
        "context": 64,
        "layers": 2,
        "merged": True,
        "routing": None,
    }
    free, fixed = (
        hosim.plan({**asked, "layers_on": "device/ddr"}, "rtx-4090", "ktransformers"),
        hosim.plan(asked, "rtx-4090", "ktransformers"),
    )
    assert (
        on_cpu(free)
        == on_cpu(fixed)
        == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    )
    assert hosim.replay(free, "rtx-4090").makespan_ns == hosim.replay(fixed, "rtx-4090").makespan_ns


@pytest.mark.parametrize("on_device", [4, 1])
def test_layers_are_counted_over_all_stages(on_device: int) -> None:
    """What a step takes, and which layers are on the CPU, are those of one device."""
    model = "llama-3.1-8b:phase=decode:merged=true:layers=4:context=64"
    policy = f"llama_cpp:n_gpu_layers={on_device}"
    whole = hosim.plan(model, RTX, policy)
    stages = hosim.plan_stages(f"{model}:pipeline=2:stage_layers=3/1", RTX, policy)

    def there(plan: Plan) -> set[str]:
        ops = [op for op in plan.graph.ops if op.processor and op.kind == "matmul"]
        return {op.name for op in ops}

    assert there(whole) == set().union(*map(there, stages))
    alone, step = hosim.replay(whole, RTX).makespan_ns, hosim.replay_stages(stages).step_ns
    if on_device > 1:  # else both stages compute there, and each has half of the processor
        assert step == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize("said", ["many", None, float("inf"), [4]])
def test_a_file_may_say_no_number_of_layers(said: object) -> None:
    graph = layers(2, experts=False)
    damaged = Graph(graph.name, graph.tensors, graph.ops, {**graph.meta, "layers": said})
    with pytest.raises(InputError) as raised:
        policy_named("llama_cpp").plan(damaged, RTX, 64 * MIB)
    assert raised.value.where == "meta.layers"
