"""A decoder's layer in inference engines: few kernels, each fused with the elementwise work around
it.

The projections of one input are one product. Rotary positions and the write of the cache are part
of attention, and the residual sum is part of the norm after it. A mixture of experts is one kernel
that sorts, multiplies and adds up.
"""

from dataclasses import replace

from hosim.analysis.costmodel.kernels import NO_WINDOW, UNKNOWN, causal_kernel
from hosim.analysis.costmodel.kernels.op_families import share_touched
from hosim.data.graph_parts import PAST
from hosim.io.models.attention import scores_in_memory
from hosim.io.models.collectives import all_reduced, exchanged
from hosim.io.models.config import Decoder, Run, key_heads
from hosim.io.models.dense import projected
from hosim.io.models.functions import add, gathered, linear, mul, operands, split, summed
from hosim.io.models.kv_cache import Cache, Written, make_cache, written
from hosim.io.models.latent_attention import latent_attention
from hosim.io.models.layer_inputs import Positions, from_input, sinks
from hosim.io.models.mixers import by_mixers
from hosim.io.models.mlp import (
    beside,
    choose_experts,
    correction,
    expert_factor,
    experts_read,
    feed_forward,
    first_factor,
    gated_share,
    half_of_layer,
    narrowed,
    scaled_weights,
    widened,
)
from hosim.io.models.names import NAMES
from hosim.io.models.norms import decoder_norm, head_norm_parameters, norm_parameters
from hosim.io.models.tape import Tape, Value


def engine_layer(
    t: Tape, config: Decoder, run: Run, n: int, x: Value, pending: Value | None, shared: Positions
) -> tuple[Value, Value]:
    """Return the sum so far and the tensor that the layer adds to it.

    ``pending`` is the tensor that the previous layer adds; ``shared`` has the positions for
    attention.
    """
    names = NAMES[config.names]
    if config.mixer == "none":
        return _with_mlp(t, config, run, n, x, pending, shared.inputs)
    x, inside = _entering(t, config, run, names.before_attention, x, pending)
    y = by_mixers(t, config, run, inside, lambda: _attention(t, config, run, inside, shared))
    if config.post_norms:
        y = decoder_norm(t, config, run, names.after_attention, y)
    if config.parallel_block:
        if not config.shared_norm:
            inside = decoder_norm(t, config, run, names.before_mlp, x)
        return x, add(t, y, _mlp(t, config, run, n, inside), "add_mlp")
    return _with_mlp(t, config, run, n, x, y, shared.inputs) if config.has_mlp else (x, y)


def _with_mlp(
    t: Tape,
    config: Decoder,
    run: Run,
    n: int,
    x: Value,
    pending: Value | None,
    inputs: Value | None,
) -> tuple[Value, Value]:
    """Return the sum so far, and the tensor that the MLP or the mixture adds to it."""
    names = NAMES[config.names]
    x, inside = _entering(t, config, run, names.before_mlp, x, pending)
    y = _mlp(t, config, run, n, inside)
    if config.mixture_beside and config.num_experts:
        y = beside(t, config, run, x, y, _mixture)
    y = decoder_norm(t, config, run, names.after_mlp, y) if config.post_norms else y
    if inputs is None:
        return x, y
    x = add(t, x, y, "add_mlp")
    return x, from_input(t, config, run, x, inputs)


def _entering(
    t: Tape, config: Decoder, run: Run, name: str, x: Value, pending: Value | None
) -> tuple[Value, Value]:
    """Return the sum of ``x`` and ``pending``, and the input of a half of the layer: its norm, or
    the sum itself if norms come after.
    """
    if config.pre_norms:
        return added_norm(t, config, run, name, x, pending)
    x = x if pending is None else add(t, x, pending)
    return x, x


def added_norm(
    t: Tape, config: Decoder, run: Run, name: str, x: Value, pending: Value | None
) -> tuple[Value, Value]:
    """The sum of ``x`` and ``pending``, and its norm ``name``."""
    if pending is None:
        return x, decoder_norm(t, config, run, name, x)
    with t.scope(name):
        label = "add_rms_norm" if config.norm.startswith("rms") else "add_layer_norm"
        whole, normed = t.ops(
            label,
            "norm",
            [x, pending, *norm_parameters(t, config, run, x.shape[-1])],
            [(x.shape, x.dtype)] * 2,
        )
    return whole, normed


def _mlp(t: Tape, config: Decoder, run: Run, n: int, x: Value) -> Value:
    dense = _gated_mlp if config.gated_mlp and not config.sub_norms else feed_forward
    return half_of_layer(t, config, run, n, x, _mixture, dense)


def _normed(t: Tape, config: Decoder, run: Run, both: Value, heads: int, kv_heads: int) -> Value:
    """Norm the heads of queries and keys in one kernel."""
    names, norms = NAMES[config.names], []
    for name, count in (("q", heads), *([] if config.shares_keys else [("k", kv_heads)])):
        with t.scope(getattr(names, f"{name}_norm")):
            norms += head_norm_parameters(t, config, run, count, config.head_dim)
    return t.op("qk_norm", "norm", [both, *norms], both.shape)


def _attention(t: Tape, config: Decoder, run: Run, x: Value, shared: Positions) -> Value:
    places = (*(shared.turns or ()), *shared.slopes)
    if config.kv_lora_rank:
        turns = (places[0], places[1]) if places else None
        return latent_attention(
            t, config, replace(run, fused=True), x, turns, None, make_cache(t, config, run)
        )
    batch, tokens, hidden = x.shape
    names, width = NAMES[config.names], config.head_dim
    heads, kv_heads = config.num_attention_heads // run.tensor, key_heads(config, run)
    wide = config.v_head_dim or width
    gates = heads * {"": 0, "heads": 1}.get(config.attention_gate, wide)
    made = 0 if config.shares_keys else kv_heads * (width + (0 if config.keys_are_values else wide))
    rows = heads * width + made
    both = projected(t, run, names.qkv, x, rows + gates, bias=config.qkv_bias)
    both, *gate = split(t, both, (rows, gates), "split_gate") if gates else [both]
    if config.qk_norm:
        both = _normed(t, config, run, both, heads, kv_heads)
    cache, earlier = _keys_of(t, config, run, both, shared)
    window = config.sliding_window or NO_WINDOW
    keys = min(run.context, window) if run.phase == "decode" else tokens
    q, k = both.view(batch, heads, tokens, width), both.view(batch, kv_heads, keys, width)
    kernel, sizes = causal_kernel(q.shape, k.shape, wide, window)
    scores = batch * heads * tokens * min(keys, window)
    in_memory = scores_in_memory(run.attention, scores, both.dtype) if tokens > 1 else None
    workspace, moved = in_memory or (0, 0)
    if in_memory is not None:
        kernel, sizes = UNKNOWN
    kept = [] if cache is None else [cache.first, cache.second]
    read = kept if config.shares_keys else [value.part(PAST) for value in kept if value.parts]
    new: Written = {} if cache is None or config.shares_keys else written(cache.decoding, *kept)
    result = batch * tokens * heads * wide * both.size // (both.rows * both.shape[-1])
    beside = [*places, *sinks(t, config, run)]
    passed = sum([value.size for value in (both, *earlier, *beside)]) + result
    with t.on(run.attention_on):
        (y,) = t.ops(
            "attention",
            "attention",
            [both, *earlier, *beside, *read],
            [((batch, tokens, heads * wide), both.dtype)],
            **new,
            flops=2 * scores * (width + wide),
            accessed=passed + sum([tensor.size for tensor in kept]) + moved,
            workspace=workspace,
            kernel=kernel,
            sizes=sizes,
            computes="" if cache is None else cache.first.computes,
        )
    if gate:
        y = mul(t, y, gate[0], "gate")
    if config.sub_norms:
        y = decoder_norm(t, config, run, "attn_sub_norm", y)
    return all_reduced(t, run, projected(t, run, names.out, y, hidden, bias=config.out_bias))


def _keys_of(
    t: Tape, config: Decoder, run: Run, both: Value, shared: Positions
) -> tuple[Cache | None, tuple[Value, ...]]:
    """Return the cache of the layer's keys, and other tensors that hold them: the product of an
    earlier layer whose keys it shares.
    """
    key = config.sliding_window > 0
    if not config.shares_keys:
        cache = make_cache(t, config, run)
        shared.made[key] = both, both, () if cache is None else (cache.first, cache.second)
        return cache, ()
    source, _, kept = shared.made[key]
    cache = Cache(kept[0], kept[1], True) if kept and run.phase == "decode" else None
    return cache, () if run.phase == "decode" else (source,)


def _gated_mlp(t: Tape, config: Decoder, run: Run, x: Value, width: int) -> Value:
    names, mine = NAMES[config.names], width // run.tensor
    both = projected(t, run, names.gate_up, x, 2 * mine, bias=config.mlp_bias)
    inside = t.op("swiglu", "elementwise", [both], (*x.shape[:-1], mine))
    return all_reduced(
        t, run, projected(t, run, names.down, inside, x.shape[-1], bias=config.mlp_bias)
    )


def _mixture(t: Tape, config: Decoder, run: Run, x: Value, scored: Value | None = None) -> Value:
    tokens, hidden = x.rows, x.shape[-1]
    top, mine = config.num_experts_per_tok, config.num_experts // run.expert
    tensor = run.tensor if run.expert == 1 else 1
    width = config.moe_intermediate_size // tensor
    weights, chosen = _routed(t, config, run, x if scored is None else scored)
    rows = narrowed(t, config, run, x.view(tokens, hidden))
    hidden = rows.shape[-1]
    if run.expert > 1:
        rows = exchanged(t, run, gathered(t, rows, chosen, tokens * top), "dispatch")
    batch = tokens * run.expert
    count = experts_read(t, config, batch, mine)
    first, wide = first_factor(config, width)
    up = expert_factor(t, run, first, (mine, wide, hidden), apart=count > 0)
    down = expert_factor(t, run, "down_proj", (mine, hidden, width), apart=count > 0)
    choose_experts(t, chosen, (up, down), count)
    biases = [
        t.parameter(f"{name}_proj_bias", (mine, wide), run.dtype, "expert", run.experts_home)
        for name, wide in (("gate_up", 2 * width), ("down", hidden))
        if config.expert_bias
    ]
    read = round(
        sum([value.size for value in (up, down, *biases)])
        * share_touched(batch, top, config.num_experts)
    )
    with t.on(run.experts_on):
        entering, up = operands(t, rows, up)
        y = t.op(
            "experts",
            "matmul",
            [entering, up, down, *biases, chosen, weights],
            rows.shape,
            rows.dtype,
            computes=up.computes,
            flops=2 * tokens * top * hidden * (wide + width),
            accessed=read + entering.size + rows.size,
            kernel="moe",
            sizes=(
                batch,
                hidden,
                config.moe_intermediate_size,
                top,
                config.num_experts,
                tensor,
                run.expert,
            ),
        )
    if run.expert > 1:
        y = summed(t, exchanged(t, run, y, "combine"), (tokens, hidden))
    y = widened(t, config, run, y, x.shape[-1]).view(*x.shape)
    y = all_reduced(t, run, y) if run.expert == 1 else y
    return _with_shared(t, config, run, x, y) if config.shared_width else y


def _routed(t: Tape, config: Decoder, run: Run, x: Value) -> tuple[Value, Value]:
    """Return the weights and the numbers of the experts that the router chooses for each token."""
    gate, shape = NAMES[config.names].router, (x.rows, config.num_experts_per_tok)
    offset = (
        t.parameter(f"{gate}.bias", (config.num_experts,), run.dtype)
        if config.expert_bias
        else None
    )
    weight = t.parameter(f"{gate}.weight", (config.num_experts, x.shape[-1]), run.dtype)
    scores = linear(t, x, weight, offset, label="router")
    added = correction(t, config, run, f"{gate}.{NAMES[config.names].correction}")
    beside = [] if added is None else [added]
    weights, chosen = t.ops(
        "topk", "sort", [scores, *beside], [(shape, run.dtype), (shape, "int64")]
    )
    return scaled_weights(t, config, run, weights, chosen), chosen


def _with_shared(t: Tape, config: Decoder, run: Run, x: Value, y: Value) -> Value:
    """The sum of the routed experts and the shared one, which takes every token."""
    with t.scope(NAMES[config.names].shared):
        shared = _gated_mlp if config.gated_mlp else feed_forward
        z = shared(t, config, run, x, config.shared_width)
        if not config.shared_expert_gate:
            return add(t, y, z)
    return add(t, y, gated_share(t, config, run, x, z), "add_shared")
