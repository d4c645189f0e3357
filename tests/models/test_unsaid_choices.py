"""What a builder chooses where nobody says it: named in notes, and each with a parameter that says
otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hosim
from hosim.analysis import static_peak
from hosim.errors import InputError
from hosim.graph import Graph

TRAIN = {
    "model": "gpt2",
    "phase": "train",
    "layers": 2,
    "sequence": 16,
    "config": {"vocab_size": 64},
}
MOE = {"model": "qwen3-30b-a3b", "phase": "decode", "layers": 2, "context": 64}
BLOCKS = {
    "model": "llama-3.1-8b",
    "phase": "decode",
    "layers": 2,
    "context": 640,
    "kv_block": 64,
    "chosen_blocks": 2,
}


def assumed(parameters: dict[str, Any]) -> list[str]:
    return [
        line.removeprefix("assumed: ")
        for line in hosim.compare(parameters, "h100", "resident").attrs["notes"]
        if "assumed" in line
    ]


def gradient_bytes(graph: Graph) -> int:
    """The gradients that are held where most is."""
    return static_peak(graph).breakdown.get("gradient", 0)


@given(
    st.sampled_from([2, 3]),
    st.sampled_from([2, 4]),
    st.integers(2, 3),
    st.sampled_from(["gpt2", "llama-3.2-1b"]),
    st.booleans(),
)
def test_gradients_that_are_reduced_once_are_whole_until_then(
    zero: int, data: int, batches: int, model: str, wide: bool
) -> None:
    """All gradients are held at once, in the dtype of the step; each is sent once, and what each
    device updates is the same.
    """
    sizes = {
        "vocab_size": 64,
        **({"hidden_size": 128, "intermediate_size": 256} if model != "gpt2" else {"n_embd": 96}),
    }
    asked = {
        **TRAIN,
        "model": model,
        "config": sizes,
        "data": data,
        "zero": zero,
        "micro_batches": batches,
        "dtype": "fp32" if wide else "bf16",
    }
    each, once = hosim.load(asked), hosim.load({**asked, "sync_each_batch": False})
    whole = sum(
        t.size_bytes
        for t in hosim.load({**asked, "data": 1, "zero": 0}).tensors
        if t.kind == "parameter"
    )
    held = [
        sum(t.size_bytes for t in graph.tensors if t.kind == "gradient") for graph in (each, once)
    ]
    assert gradient_bytes(once) >= whole
    assert held[1] >= whole
    sent = [[op for op in graph.ops if op.kind == "reduce_scatter"] for graph in (each, once)]
    assert len(sent[0]) == batches * len(sent[1])
    assert {op.name for op in sent[1]} == {
        op.name for op in sent[0] if f"micro{batches - 1}." in op.name
    }
    states = [[t for t in graph.tensors if t.kind == "optimizer_state"] for graph in (each, once)]
    assert states[0] == states[1]


def test_gradients_stay_whole_over_micro_batches() -> None:
    """In bf16, as many as there are parameters (52 GB of all layers); reduced in each, a sixteenth
    in fp32 stays.
    """
    model = {"model": "gemma-2-27b", "layers": 4}
    asked = {
        **model,
        "phase": "train",
        "sequence": 2048,
        "data": 16,
        "zero": 3,
        "checkpoint": True,
        "micro_batches": 4,
    }
    once = static_peak(hosim.load({**asked, "sync_each_batch": False}))
    each = static_peak(hosim.load(asked))
    parameters = sum(
        [
            t.size_bytes
            for t in hosim.load({**model, "phase": "decode"}).tensors
            if t.kind == "parameter"
        ]
    )
    assert once.breakdown["gradient"] == pytest.approx(parameters, rel=0.05)
    assert once.bytes - each.bytes > 0.75 * parameters


def test_only_reduced_gradients_are_reduced_in_each_micro_batch() -> None:
    with pytest.raises(InputError, match="sync_each_batch: only zero=2 and zero=3"):
        hosim.load({**TRAIN, "data": 2, "zero": 1, "sync_each_batch": False})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {},
            [
                "AdamW is one fused kernel for each parameter, with two moments in fp32 and an "
                "fp32 copy of each bf16 parameter"
            ],
        ),
        (
            {"dtype": "fp32"},
            ["AdamW is one fused kernel for each parameter, with two moments in fp32"],
        ),
        ({"optimizer": "none"}, []),
        (
            {
                "optimizer": "none",
                "data": 2,
                "zero": 3,
                "micro_batches": 2,
                "sync_each_batch": False,
            },
            [],
        ),
        ({"phase": "prefill"}, []),
    ],
)
def test_what_a_training_step_takes_of_its_optimizer_is_said(
    more: dict[str, Any], said: list[str]
) -> None:
    assert assumed({**TRAIN, **more}) == said


def test_that_gradients_are_reduced_in_each_micro_batch_is_said() -> None:
    (said,) = assumed({**TRAIN, "optimizer": "none", "data": 2, "zero": 3, "micro_batches": 2})
    assert said.startswith("gradients are reduced in each micro-batch; sync_each_batch=false")


@pytest.mark.parametrize(
    ("asked", "many"),
    [(({**MOE, "chosen_experts": 8}), "8 of 128 experts"), (BLOCKS, "2 of 7 blocks of the cache")],
)
def test_a_routing_that_nobody_gave_is_drawn_and_named(asked: dict[str, Any], many: str) -> None:
    drawn, every = hosim.load(asked), hosim.load({**asked, "routing": None})
    routing = drawn.meta["builder"]["routing"]
    assert drawn == replace(hosim.load({**asked, "routing": routing}), name=drawn.name)
    assert drawn == replace(hosim.load(dict(drawn.meta["builder"])), name=drawn.name)
    assert len(drawn.ops) < len(every.ops)
    said = (
        f"which {many} each gate chooses is drawn (routing: {{steps: 1, seed: 0, zipf: 1.0, "
        f"persistence: 0.5}}); routing: null reads all"
    )
    assert assumed(asked) == [said]
    assert assumed({**asked, "routing": routing}) == assumed({**asked, "routing": None}) == []
