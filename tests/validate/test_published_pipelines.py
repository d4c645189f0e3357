"""Steps of Megatron-LM on A100s that Korthikanti et al. published (arXiv 2205.05198, tables 3 and
5), beside all stages replayed together.

Eight devices share each layer. ``full``: layers are computed again; ``selective``: attention alone,
with sequence parallelism. Memory is what Calculon's account has for the busiest stage
(calculon-ai/calculon, its validation of figure 1 of that paper).
"""

import pytest

import hosim
from hosim.analysis import static_peak
from hosim.analysis.costmodel import op_durations
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.shipped import find_hardware

MACHINE = "a100-80gb-sxm"
SIZES = {
    "22B": (6144, 64, 48, 4),
    "175B": (12288, 96, 96, 1),
    "530B": (20480, 128, 105, 1),
    "1T": (25600, 160, 128, 1),
}
"""Width, heads, layers, sequences of a micro-batch."""
STAGES = {"175B": (8, 3, 64), "530B": (35, 3, 280), "1T": (64, 1, 512)}
"""Stages, chunks of layers on each, micro-batches."""
MODES = {
    "full": {"checkpoint": True},
    "selective": {"sequence_parallel": True, "recompute_attention": True, "regather": True},
    "none": {},
}
SECONDS = {
    ("22B", "full"): 1.42,
    ("22B", "selective"): 1.10,
    ("175B", "full"): 18.13,
    ("175B", "selective"): 13.75,
    ("530B", "full"): 49.05,
    ("530B", "selective"): 37.83,
    ("1T", "full"): 94.42,
    ("1T", "selective"): 71.49,
}
GIB = {"none": 45.5625 + 59.25, "selective": 45.5625 + 9.5625}
"""Of a device at 22B: weights, gradients and states, and activations."""


def megatron(name, mode):
    """A decoder with these sizes: rotary positions and RMSNorm for learned ones and LayerNorm, one
    embedding for input and output.
    """
    hidden, heads, layers, batch = SIZES[name]
    config = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    config |= {
        "intermediate_size": 4 * hidden,
        "head_dim": hidden // heads,
        "vocab_size": 51200,
        "gated_mlp": False,
    }
    config |= {"dropout": 0.1, "attention_dropout": 0.1, "tie_word_embeddings": True}
    step = {
        "model": "llama-3.1-8b",
        "phase": "train",
        "fused": True,
        "tensor": 8,
        "sequence": 2048,
        "batch": batch,
        "config": config,
    }
    step |= {"attention": "scores", "main_gradients": True, "dtype": "fp16", **MODES[mode]}
    stages, chunks, count = STAGES.get(name, (1, 1, 1))
    if stages > 1:
        step |= {"pipeline": stages, "micro_batches": count}
    return step | ({"schedule": "interleaved", "chunks": chunks} if chunks > 1 else {})


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_a_step_of_one_stage(compared, mode):
    graph = build("22B", megatron("22B", mode))
    took = sum(op_durations(graph, load_hardware(find_hardware(MACHINE)))) / 1e9
    compared("Megatron-LM", f"22B, {mode}", "step, s", SECONDS["22B", mode], took, within=0.05)


@pytest.mark.parametrize("mode", GIB)
def test_the_memory_of_one_stage(compared, mode):
    compared(
        "Calculon",
        f"22B, {mode}",
        "peak, GiB",
        GIB[mode],
        static_peak(build("22B", megatron("22B", mode))).bytes / 2**30,
        within=0.04,
    )


@pytest.mark.long
@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("name", STAGES)
def test_a_step_of_all_stages(compared, name, mode):
    step = hosim.replay_stages(hosim.plan_stages(megatron(name, mode), MACHINE, "resident"))
    compared(
        "Megatron-LM",
        f"{name}, {mode}",
        "step, s",
        SECONDS[name, mode],
        step.step_ns / 1e9,
        within=0.06,
    )
