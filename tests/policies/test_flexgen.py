"""``flexgen`` places weights as FlexGen does: small cases worked by hand with its rule, and what
one of its runs took.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_machine import MACHINE

from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.policies import policy_named
from hosim.shipped import find_hardware

SMALL = build(
    "small",
    {
        "model": "opt-125m",
        "config": {
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_hidden_layers": 3,
            "vocab_size": 100,
        },
        "phase": "decode",
        "context": 8,
    },
)


def below(graph: Graph, weights: float) -> set[str]:
    """The weights of layers that a plan starts below, each once for all layers, whose placement has
    to be the same.
    """
    plan = policy_named("flexgen").plan(
        graph, load_hardware(find_hardware("rtx-4090")), weights=weights
    )
    layers = [
        {
            name.split(f"layers.{n}.")[1]
            for t in plan.initial
            if f"layers.{n}." in (name := graph.tensors[t].name)
        }
        for n in range(3)
    ]
    assert layers[0] == layers[1] == layers[2]
    return layers[0]


# Elements of an attention in FlexGen's order, of 64 wide: q 4096, its bias 64, k, bias, v, bias,
# out, bias, and 64 + 64 of the norm: 16,768 together. Middles in percent: q 12.2, bias 24.6, k
# 37.0, bias 49.4, v 61.8, bias 74.2, out 86.6, bias 99.0, norm 99.4 and 99.8. Of an MLP: fc1 16384,
# bias 256, fc2 16384, bias 64, norm 128: 33,216; fc1 24.66, bias 49.7, fc2 74.8, bias 99.5, norm
# 99.7 and 99.9.
Q, K, V, OUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
STEPS = [
    (0.1, []),
    (0.2, [f"{Q}.weight"]),
    (0.246, []),
    (0.2464, [f"{Q}.bias"]),
    (0.25, ["fc1.weight"]),
    (0.4, [f"{K}.weight"]),
    (0.495, [f"{K}.bias"]),
    (0.5, ["fc1.bias"]),
    (0.7, [f"{V}.weight"]),
    (0.745, [f"{V}.bias"]),
    (0.75, ["fc2.weight"]),
    (0.9, [f"{OUT}.weight"]),
    (0.992, [f"{OUT}.bias"]),
    (
        1.0,
        [
            "fc2.bias",
            *(
                f"{norm}.{part}"
                for norm in ("self_attn_layer_norm", "final_layer_norm")
                for part in ("weight", "bias")
            ),
        ],
    ),
]


def test_a_weight_goes_below_where_its_middle_does() -> None:
    expected: set[str] = set()
    for share, more in STEPS:
        expected |= set(more)
        assert below(SMALL, share) == expected, share


def test_a_unit_of_one_weight_is_below_from_a_half_on() -> None:
    b = GraphBuilder("one")
    b.tensor("w", 40, "parameter")
    b.op("f", "m", inputs=["w"], duration_ns=20)
    graph = b.build()
    plans = {
        share: policy_named("flexgen").plan(graph, MACHINE, 80, weights=share)
        for share in (0.5, 0.51)
    }
    assert {share: len(plan.initial) for share, plan in plans.items()} == {0.5: 0, 0.51: 1}


def test_the_output_lists_its_norm_first() -> None:
    """A norm of 64 and a product of 6400 elements without a bias: the middle of the product is
    behind the half.
    """
    graph = build(
        "small",
        {
            **SMALL.meta["builder"],
            "config": {**SMALL.meta["builder"]["config"], "tie_word_embeddings": False},
        },
    )
    head = next(t for t, tensor in enumerate(graph.tensors) if tensor.name == "lm_head.weight")
    hardware = load_hardware(find_hardware("rtx-4090"))
    placed = [
        head in policy_named("flexgen").plan(graph, hardware, weights=share).initial
        for share in (0.5, 0.52)
    ]
    assert placed == [False, True]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_of_a_larger_share_no_fewer_are_below(shares: list[float]) -> None:
    less, more = (below(SMALL, share) for share in sorted(shares))
    assert less <= more


def test_without_a_share_the_smallest_that_fits_is_below() -> None:
    hardware = load_hardware(find_hardware("rtx-4090"))
    graph = build("opt", {"model": "opt-6.7b", "phase": "decode", "context": 64, "layers": 4})
    budget = 1100 * 2**20
    plan = policy_named("flexgen").plan(graph, hardware, budget)
    assert replay(plan, hardware, budget).error is None
    held = sum(graph.tensors[t].size_bytes for t in plan.initial)
    assert 0 < held < sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")


def test_memory_of_a_run(compared: Callable[..., None]) -> None:
    """FMInference/FlexLLMGen#108: OPT-30B, ``--percent 25 75 60 40 0 100``, 2 batches of 1, prompt
    20, 15 tokens; with 30 %, out of 24 GB.

    Between the two FlexGen's rule moves the second product of each MLP, 18.4 GiB.
    """
    hardware = load_hardware(find_hardware("rtx-4090"))
    graph = build(
        "opt", {"model": "opt-30b", "phase": "decode", "batch": 2, "context": 34, "dtype": "fp16"}
    )
    peaks = {}
    for gpu in (25, 30):
        plan = policy_named("flexgen").plan(graph, hardware, weights=1 - gpu / 100, cache=0.4)
        peaks[gpu] = replay(plan, hardware).peak_bytes["hbm"] / 2**30
    compared(
        "FlexGen",
        "OPT-30B, a quarter of the weights asked for",
        "peak, GiB",
        6.0679,
        peaks[25],
        within=0.07,
    )
    assert peaks[30] - peaks[25] == pytest.approx(48 * 7168 * 28672 * 2 / 2**30, rel=0.03)
