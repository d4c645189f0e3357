"""A decoder's layer as inference engines run it: few kernels, each with what is beside it inside.

The projections of one input are one product; rotary positions and the write of the cache are part of attention, the residual sum part of
the norm after it, and a mixture of experts is one kernel that sorts, multiplies and adds up.
"""

from __future__ import annotations

from hosim.costmodel.kernels.expert_loads import share_touched
from hosim.costmodel.kernels.sizes_of_ops import NO_WINDOW, causal_kernel
from hosim.models.collectives import all_reduced, exchanged
from hosim.models.config import Decoder, Run
from hosim.models.functions import gathered, linear, summed
from hosim.models.kv_cache import make_cache
from hosim.models.mlp import plain_mlp
from hosim.models.norms import rms_norm
from hosim.models.tape import Tape, Value


def engine_layer(
    t: Tape, config: Decoder, run: Run, n: int, x: Value, pending: Value | None, turns: tuple[Value, Value]
) -> tuple[Value, Value]:
    """The sum so far and what the layer adds to it; ``pending`` is what the layer before adds, ``turns`` are cosines and sines."""
    with t.scope("input_layernorm"):
        x, normed = added_norm(t, run, x, pending)
    with t.scope("self_attn"):
        y = _attention(t, config, run, normed, turns)
    with t.scope("post_attention_layernorm"):
        x, normed = added_norm(t, run, x, y)
    with t.scope("mlp"):
        if config.num_experts and n >= config.first_k_dense_replace:
            return x, _mixture(t, config, run, normed)
        if not config.gated_mlp:
            return x, plain_mlp(t, run, normed, config.intermediate_size)
        return x, _mlp(t, run, normed, config.intermediate_size)


def added_norm(t: Tape, run: Run, x: Value, pending: Value | None) -> tuple[Value, Value]:
    """The sum of ``x`` and ``pending``, and its norm."""
    weight = t.parameter("weight", x.shape[-1:], run.dtype)
    if pending is None:
        return x, rms_norm(t, x, weight, fused=True)
    whole, normed = t.ops("add_rms_norm", "norm", [x, pending, weight], [(x.shape, x.dtype)] * 2)
    return whole, normed


def _attention(t: Tape, config: Decoder, run: Run, x: Value, turns: tuple[Value, Value]) -> Value:
    batch, tokens, hidden = x.shape
    width = config.head_dim
    heads, kv_heads = config.num_attention_heads // run.tensor, config.num_key_value_heads // run.tensor
    rows = (heads + 2 * kv_heads) * width
    weight = t.parameter("qkv_proj.weight", (rows, hidden), run.dtype)
    bias = t.parameter("qkv_proj.bias", (rows,), run.dtype) if config.qkv_bias else None
    both = linear(t, x, weight, bias, label="qkv_proj")
    if config.qk_norm:
        norms = [t.parameter(f"{name}_norm.weight", (width,), run.dtype) for name in ("q", "k")]
        both = t.op("qk_norm", "norm", [both, *norms], both.shape)
    cache = make_cache(t, config, run)
    window = config.sliding_window or NO_WINDOW
    keys = min(run.context, window) if run.phase == "decode" else tokens
    q, k = both.view(batch, heads, tokens, width), both.view(batch, kv_heads, keys, width)
    kernel, sizes = causal_kernel(q.shape, k.shape, width, window)
    kept = [] if cache is None else [cache.first, cache.second]
    result = batch * tokens * heads * width * both.size // (both.rows * both.shape[-1])
    passed = both.size + sum([turn.size for turn in turns]) + result
    (y,) = t.ops(
        "attention",
        "attention",
        [both, *turns],
        [((batch, tokens, heads * width), both.dtype)],
        mutates=kept,
        flops=4 * batch * heads * tokens * min(keys, window) * width,
        accessed=passed + sum([tensor.size for tensor in kept]),
        kernel=kernel,
        sizes=sizes,
    )
    return all_reduced(t, run, linear(t, y, t.parameter("o_proj.weight", (hidden, heads * width), run.dtype), label="o_proj"))


def _mlp(t: Tape, run: Run, x: Value, width: int) -> Value:
    hidden, mine = x.shape[-1], width // run.tensor
    both = linear(t, x, t.parameter("gate_up_proj.weight", (2 * mine, hidden), run.dtype), label="gate_up_proj")
    inside = t.op("swiglu", "elementwise", [both], (*x.shape[:-1], mine))
    return all_reduced(t, run, linear(t, inside, t.parameter("down_proj.weight", (hidden, mine), run.dtype), label="down_proj"))


def _mixture(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    tokens, hidden = x.rows, x.shape[-1]
    top, mine = config.num_experts_per_tok, config.num_experts // run.expert
    tensor = run.tensor if run.expert == 1 else 1
    width = config.moe_intermediate_size // tensor
    scores = linear(t, x, t.parameter("gate.weight", (config.num_experts, hidden), run.dtype), label="router")
    weights, chosen = t.ops("topk", "sort", [scores], [((tokens, top), run.dtype), ((tokens, top), "int64")])
    rows = x.view(tokens, hidden)
    if run.expert > 1:
        rows = exchanged(t, run, gathered(t, rows, chosen, tokens * top), "dispatch")
    up = t.parameter("gate_up_proj", (mine, 2 * width, hidden), run.dtype, "expert", run.experts_home)
    down = t.parameter("down_proj", (mine, hidden, width), run.dtype, "expert", run.experts_home)
    batch = tokens * run.expert
    read = round((up.size + down.size) * share_touched(batch, top, config.num_experts))
    y = t.op(
        "experts",
        "matmul",
        [rows, up, down, chosen, weights],
        rows.shape,
        flops=6 * tokens * top * hidden * width,
        accessed=read + 2 * rows.size,
        kernel="moe",
        sizes=(batch, hidden, config.moe_intermediate_size, top, config.num_experts, tensor, run.expert),
    )
    if run.expert > 1:
        y = summed(t, exchanged(t, run, y, "combine"), (tokens, hidden))
    y = y.view(*x.shape)
    return all_reduced(t, run, y) if run.expert == 1 else y
