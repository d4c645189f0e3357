"""MLPs with and without a gate, and mixtures of experts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hosim.analysis.costmodel.kernels.op_families import share_touched
from hosim.io.models.collectives import all_reduced, exchanged, replicated
from hosim.io.models.config import Decoder, Run
from hosim.io.models.dense import activated, factor, projected
from hosim.io.models.functions import (
    activation,
    add,
    cast,
    gathered,
    linear,
    mul,
    operands,
    scale,
    softmax,
    split,
    summed,
)
from hosim.io.models.names import NAMES
from hosim.io.models.norms import decoder_norm
from hosim.io.models.tape import ITEM_BYTES, Tape, Value


def feed_forward(
    t: Tape, config: Decoder, run: Run, x: Value, width: int, *, is_share: bool = False
) -> Value:
    """``down(act(gate(x)) * up(x))``, or without a gate ``down(act(up(x)))``.

    ``is_share``: return only this device's share of the result; ``x`` already has all tokens.
    """
    names, bias = NAMES[config.names], config.mlp_bias
    hidden, mine = x.shape[-1], width // run.tensor
    x = x if is_share else replicated(t, run, x)
    if not config.gated_mlp:
        inside = _activated(t, config, run, projected(t, run, names.up, x, mine, bias=bias))
    elif config.fused_projections or config.fused_gate_up:
        both = projected(t, run, names.gate_up, x, 2 * mine, bias=bias)
        inside = _opened(t, config, run, both, mine)
    else:
        gate = projected(t, run, names.gate, x, mine, bias=bias)
        if run.fused:
            up = projected(t, run, names.up, x, mine, bias=bias)
            inside = _swiglu(t, gate.shape, gate, up)
        else:
            opened = activated(t, run, config.hidden_act, gate)
            inside = mul(t, opened, projected(t, run, names.up, x, mine, bias=bias))
    if config.sub_norms:
        inside = decoder_norm(t, config, run, "ffn_sub_norm", inside)
    y = projected(t, run, names.down, inside, hidden, bias=bias)
    return y if is_share else all_reduced(t, run, y)


def half_of_layer(
    t: Tape,
    config: Decoder,
    run: Run,
    n: int,
    x: Value,
    mixed: Callable[[Tape, Decoder, Run, Value], Value],
    dense: Callable[[Tape, Decoder, Run, Value, int], Value],
) -> Value:
    """Return the result of layer ``n`` for ``x``, from a mixture of experts or a dense MLP."""
    names = NAMES[config.names]
    is_mixture = (
        config.num_experts > 0 and n >= config.first_k_dense_replace and not config.mixture_beside
    )
    with t.scope(names.mixture if is_mixture and names.mixture is not None else names.mlp):
        return (
            mixed(t, config, run, x)
            if is_mixture
            else dense(t, config, run, x, config.intermediate_size)
        )


def _activated(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """The activation of an MLP without a gate."""
    if config.hidden_act != "xielu":
        return activated(t, run, config.hidden_act, x)
    slopes = [t.parameter(f"act_fn.alpha_{side}", (1,), run.dtype) for side in ("p", "n")]
    y = t.op("xielu", "elementwise", [x, *slopes], x.shape)

    def gradient(g: Value) -> None:
        t.give(x, t.op("xielu.grad", "elementwise", [g, x, *slopes], x.shape))
        for slope in slopes:
            t.give(
                slope, t.op("xielu.grad_alpha", "reduction", [g, x], slope.shape, gradient_of=slope)
            )

    return t.note(y, gradient)


def _opened(t: Tape, config: Decoder, run: Run, both: Value, width: int) -> Value:
    """The activation of the first half of ``both``, times the second half; without a gate, the
    activation of all of it.
    """
    if not config.gated_mlp:
        return activated(t, run, config.hidden_act, both)
    if run.fused:
        return _swiglu(t, (*both.shape[:-1], width), both)
    gate, up = split(t, both, (width, width), "chunk")
    return mul(t, activated(t, run, config.hidden_act, gate), up)


def mixture(t: Tape, config: Decoder, run: Run, x: Value, scored: Value | None = None) -> Value:
    """The weighted sum of the chosen experts' outputs, plus the output of the shared ones.

    All experts' weights of a layer are two tensors, which grouped products take at once, as in
    transformers. With ``run.chosen_experts``, each expert has two tensors of its own. Tokens are
    assumed to spread evenly over the devices that share the experts.

    ``scored`` is the router's input, if it is not ``x``.

    If devices share every expert and have tokens of their own, the tokens of all are gathered once,
    for the router, too, as in torchtitan.
    """
    gathers, own = run.sequence_parallel and run.expert == 1, x
    if gathers:
        x = replicated(t, run, x)
    flat = x.view(x.rows, x.shape[-1])
    names = NAMES[config.names]
    with t.scope(names.router):
        weights, chosen = router(t, config, run, flat if scored is None else scored)
    weights = scaled_weights(t, config, run, weights, chosen)
    narrow = narrowed(t, config, run, flat)
    with t.scope(names.experts):
        y = (_experts if run.chosen_experts is None else _single_experts)(
            t, config, run, narrow, weights, chosen
        )
    y = widened(t, config, run, y, x.shape[-1])
    if config.shared_width:
        with t.scope(names.shared):
            z = feed_forward(t, config, run, flat, config.shared_width, is_share=gathers)
            y = y if config.shared_expert_gate else add(t, y, z)
        if config.shared_expert_gate:
            y = add(t, y, gated_share(t, config, run, flat, z), "add_shared")
    return all_reduced(t, run, y.view(*x.shape)) if gathers else y.view(*own.shape)


def gated_share(t: Tape, config: Decoder, run: Run, x: Value, shared: Value) -> Value:
    """The result of the shared expert, times the sigmoid of a product of ``x``."""
    name = NAMES[config.names].shared_gate
    weight = t.parameter(f"{name}.weight", (1, x.shape[-1]), run.dtype)
    share = activation(t, linear(t, x, weight, label=name), "sigmoid", keeps="output")
    return mul(t, shared, share, "share")


def beside(
    t: Tape,
    config: Decoder,
    run: Run,
    x: Value,
    y: Value,
    mixed: Callable[[Tape, Decoder, Run, Value, Value], Value],
) -> Value:
    """The norm of ``y``, the result of an MLP, plus the norm of the mixture ``mixed`` for ``x``,
    whose router has its own norm (Gemma 4).
    """
    y = decoder_norm(t, config, run, "post_feedforward_layernorm_1", y)
    flat = x.view(x.rows, x.shape[-1])
    scored = t.op(
        "router.norm",
        "norm",
        [flat, t.parameter("router.scale", (flat.shape[-1],), run.dtype)],
        flat.shape,
    )
    z = mixed(
        t, config, run, decoder_norm(t, config, run, "pre_feedforward_layernorm_2", x), scored
    )
    return add(t, y, decoder_norm(t, config, run, "post_feedforward_layernorm_2", z), "add_mixture")


def scaled_weights(t: Tape, config: Decoder, run: Run, weights: Value, chosen: Value) -> Value:
    """The weights of the chosen experts; in a mixture beside an MLP, each is multiplied by a number
    of the expert's own (Gemma 4).
    """
    if not config.mixture_beside:
        return weights
    own = t.parameter("router.per_expert_scale", (config.num_experts,), run.dtype)
    return t.op("expert_scale", "elementwise", [weights, own, chosen], weights.shape)


def narrowed(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """Return the operand that experts read: ``x``, or a projection of it if they work on narrower
    vectors.
    """
    return (
        projected(t, run, "fc1_latent_proj", x, config.moe_latent_size, bias=config.mlp_bias)
        if config.moe_latent_size
        else x
    )


def widened(t: Tape, config: Decoder, run: Run, y: Value, width: int) -> Value:
    """Return the result of experts, projected to the width of the hidden state if it is
    narrower.
    """
    return (
        projected(t, run, "fc2_latent_proj", y, width, bias=config.mlp_bias)
        if config.moe_latent_size
        else y
    )


def scores_of(config: Decoder) -> str:
    """Return the kind of a router's scores: one softmax, or a sigmoid for each."""
    return config.router or ("sigmoid" if config.n_group else "softmax")


def correction(t: Tape, config: Decoder, run: Run, name: str) -> Value | None:
    """Return the tensor that is added to a router's scores before experts are chosen; None if there
    is none.
    """
    kind = config.router_correction or ("buffer" if scores_of(config) == "sigmoid" else "none")
    if kind == "parameter":
        return t.parameter(name, (config.num_experts,), run.dtype)
    return t.held(name, (config.num_experts,), run.dtype, "buffer") if kind == "buffer" else None


def router(t: Tape, config: Decoder, run: Run, x: Value) -> tuple[Value, Value]:
    """Return the weights and the numbers of the chosen experts, [tokens, chosen] each."""
    tokens, top = x.shape[0], config.num_experts_per_tok
    weight = t.parameter("weight", (config.num_experts, x.shape[-1]), run.dtype)
    if scores_of(config) == "softmax":
        offset = (
            t.parameter("bias", (config.num_experts,), run.dtype) if config.expert_bias else None
        )
        chances = softmax(t, linear(t, x, weight, offset, label="router"), "fp32")
        added = correction(t, config, run, NAMES[config.names].correction)
        if added is None:
            found, chosen = _top(t, chances, top)
        else:
            chosen = t.op(
                "topk", "sort", [add(t, replace(chances, node=0), added)], (tokens, top), "int64"
            )
            found = gathered_columns(t, chances, chosen)
        total = summed(t, found, (tokens, 1))
        shares = mul(t, found, total, "div")
        return shares if config.router_fp32 and not run.merged else cast(
            t, shares, run.dtype
        ), chosen
    scores = activation(
        t,
        linear(t, cast(t, x, "fp32"), cast(t, weight, "fp32"), label="router"),
        "sigmoid",
        keeps="output",
    )
    bias = correction(t, config, run, NAMES[config.names].correction)
    left = replace(scores, node=0) if bias is None else add(t, replace(scores, node=0), bias)
    if config.n_group:
        groups = t.op(
            "group_topk",
            "sort",
            [left],
            (tokens, config.n_group),
            accessed=left.size + 8 * tokens * config.n_group,
        )
        left = t.op("mask_groups", "elementwise", [left, groups], left.shape)
    chosen = t.op("topk", "sort", [left], (tokens, top), "int64")
    found = gathered_columns(t, scores, chosen)
    total = summed(t, found, (tokens, 1))
    return scale(t, mul(t, found, total, "div")), chosen


def _top(t: Tape, chances: Value, top: int) -> tuple[Value, Value]:
    shape = (chances.shape[0], top)
    found, chosen = t.ops("topk", "sort", [chances], [(shape, chances.dtype), (shape, "int64")])
    t.note(
        found, lambda g: t.give(chances, t.op("topk.grad", "scatter", [g, chosen], chances.shape))
    )
    return found, replace(chosen, node=0)


def gathered_columns(t: Tape, x: Value, columns: Value) -> Value:
    """Return the elements at ``columns`` of each row of ``x``."""
    return t.note(
        t.op(
            "gather",
            "gather",
            [x, columns],
            columns.shape,
            accessed=2 * x.rows * columns.shape[-1] * ITEM_BYTES[x.dtype] + columns.size,
        ),
        lambda g: t.give(x, t.op("gather.grad", "scatter", [g, columns], x.shape)),
    )


def _experts(t: Tape, config: Decoder, run: Run, x: Value, weights: Value, chosen: Value) -> Value:
    tokens, hidden = x.shape
    rows = tokens * config.num_experts_per_tok
    mine = config.num_experts // run.expert
    width = config.moe_intermediate_size // (run.tensor if run.expert == 1 else 1)
    place = t.ops("sort", "sort", [chosen], [((rows,), "int64"), ((rows,), "int64")])[1]
    source = t.op("floor_divide", "elementwise", [place], (rows,))
    offsets = t.op("cumsum", "reduction", [place], (mine,), "int32")
    shares = run.expert == 1 and not run.sequence_parallel
    if (
        shares
    ):  # each device has a share of an output, and so only a share of the gradient of its weight
        x, weights = replicated(t, run, x), replicated(t, run, weights, "all_reduce_weights")
    picked = exchanged(t, run, gathered(t, x, source, rows), "dispatch")
    weight = gathered(t, weights.view(rows), place, rows, "index_weights")
    read = experts_read(t, config, tokens * run.expert, mine)
    first, wide = first_factor(config, width)
    up = expert_factor(t, run, first, (mine, wide, hidden), apart=read > 0)
    both = _grouped(t, config, run, picked, up, offsets, "gate_up")
    inside = _opened(
        t, config, run, _biased(t, config, run, both, mine, chosen, "gate_up_proj_bias"), width
    )
    down = expert_factor(t, run, "down_proj", (mine, hidden, width), apart=read > 0)
    choose_experts(t, chosen, (up, down), read)
    out = _grouped(t, config, run, inside, down, offsets, "down")
    out = _biased(t, config, run, out, mine, chosen, "down_proj_bias")
    out = exchanged(t, run, out, "combine")
    back = t.op("inverse", "scatter", [place], (rows,))
    weighted = gathered(t, mul(t, out, weight.view(rows, 1)), back, rows, "index_back")
    y = cast(t, summed(t, weighted, (tokens, hidden)), run.dtype)
    return all_reduced(t, run, y) if shares else y


def _single_experts(
    t: Tape, config: Decoder, run: Run, x: Value, weights: Value, chosen: Value
) -> Value:
    """Emit each expert's ops, which the router's op chooses: they read the expert's tokens and make
    its share of the result.
    """
    assert run.chosen_experts is not None
    tokens, hidden = x.shape
    width = config.moe_intermediate_size
    rows = -(-tokens * config.num_experts_per_tok // run.chosen_experts)
    outs, candidates = [], []
    mine = config.num_experts // run.expert
    first, wide = first_factor(config, width)
    shapes = {first: (mine, wide, hidden), "down_proj": (mine, hidden, width)}
    ups, downs = [expert_factor(t, run, name, shape, apart=True) for name, shape in shapes.items()]
    wides = {"gate_up_proj_bias": 2 * width, "down_proj_bias": hidden} if config.expert_bias else {}
    biases = [
        t.parameter(
            name,
            (mine, wide),
            run.dtype,
            "expert",
            run.experts_home,
            parts={str(e): (1, wide) for e in range(mine)},
        )
        for name, wide in wides.items()
    ]
    for e in range(mine):
        with t.scope(f"{e}"):
            up, down = [
                replace(value.part(str(e)), shape=value.shape[1:]) for value in (ups, downs)
            ]
            both_bias, down_bias = [
                replace(bias.part(str(e)), shape=bias.shape[1:]) for bias in biases
            ] or (None, None)
            both = linear(
                t, x.view(rows, hidden), up, both_bias, label="gate_up"
            )  # the product reads its rows directly
            inside = _opened(t, config, replace(run, fused=True), both, width)
            outs.append(linear(t, inside, down, down_bias, label="down"))
            own = tuple([value for value in (up, both_bias, down, down_bias) if value is not None])
            candidates.append((own, (both, inside, outs[-1])))
    t.choose(chosen, candidates, run.chosen_experts)
    accessed = run.chosen_experts * outs[0].size + x.size
    return t.op("combine", "elementwise", [weights, *outs], x.shape, run.dtype, accessed=accessed)


def first_factor(config: Decoder, width: int) -> tuple[str, int]:
    """The name and the width of the first weight of experts of ``width``: two halves with a gate,
    one without.
    """
    return ("gate_up_proj", 2 * width) if config.gated_mlp else ("up_proj", width)


_APART = 4096
"""The most experts of a device that are modelled separately. With more, all are assumed
to be read.
"""


def experts_read(t: Tape, config: Decoder, tokens: int, mine: int) -> int:
    """Return the expected number of ``mine`` experts that a step of ``tokens`` tokens reads; 0 if
    it reads all, or if experts are not modelled separately.
    """
    if not t.in_parts or mine > _APART:
        return 0
    expected = max(
        1, round(mine * share_touched(tokens, config.num_experts_per_tok, config.num_experts))
    )
    return expected if expected < mine else 0


def expert_factor(t: Tape, run: Run, name: str, shape: tuple[int, ...], *, apart: bool) -> Value:
    """The weights [experts, out, in] of a layer's experts; each expert is a part of them if experts
    are read ``apart``.
    """
    parts = {str(e): (1, *shape[1:]) for e in range(shape[0])} if apart else None
    return factor(t, run, name, shape, "expert", run.experts_home, parts)


def choose_experts(t: Tape, chosen: Value, factors: Sequence[Value], count: int) -> None:
    """Record that the op which makes ``chosen`` chooses ``count`` of the experts that ops read; 0
    means all.
    """
    if count:
        t.choose(
            chosen,
            [(tuple([value.part(e) for value in factors]), ()) for e in factors[0].parts],
            count,
        )


def _biased(
    t: Tape, config: Decoder, run: Run, x: Value, groups: int, chosen: Value, name: str
) -> Value:
    """Rows of ``x``, sorted by group, plus the bias of each row's group."""
    if not config.expert_bias:
        return x
    bias = t.parameter(name, (groups, x.shape[-1]), run.dtype, "expert", run.experts_home)
    accessed = 2 * x.size + min(bias.size, x.size) + chosen.size
    y = t.op(f"{name}.add", "elementwise", [x, bias, chosen], x.shape, accessed=accessed)

    def gradient(g: Value) -> None:
        t.give(bias, t.op(f"{name}.grad", "reduction", [g, chosen], bias.shape, gradient_of=bias))
        t.give(x, g)

    return t.note(y, gradient)


def _grouped(
    t: Tape, config: Decoder, run: Run, x: Value, weight: Value, offsets: Value, label: str
) -> Value:
    """Rows of ``x``, sorted by group, times each group's matrix of ``weight`` [groups, out, in].
    Only groups with rows are read.

    Their number is the expected one if each token chooses its experts evenly.
    """
    wide, narrow = weight.shape[1:]
    rows, top = x.shape[0], config.num_experts_per_tok
    flops = 2 * rows * wide * narrow
    result = rows * wide * ITEM_BYTES[x.dtype]
    tokens = rows // top * run.expert
    sizes = (tokens, top, config.num_experts, run.expert)
    entering, factor = operands(t, x, weight)
    share = share_touched(tokens, top, config.num_experts)
    read = round(min(weight.size, factor.size) * share) + offsets.size
    how: dict[str, Any] = {"flops": flops, "kernel": "expert_product", "computes": factor.computes}
    y = t.op(
        label,
        "matmul",
        [entering, factor, offsets],
        (rows, wide),
        x.dtype,
        accessed=entering.size + result + read,
        sizes=(*sizes, wide, narrow),
        **how,
    )

    def gradient(g: Value) -> None:
        arrived, factor = operands(t, replace(g, node=0), weight, once=True)  # as in a linear layer
        back = {**how, "computes": factor.computes}
        if x.node:
            inputs, accessed = [arrived, factor, offsets], arrived.size + x.size + read
            how_of = {"accessed": accessed, "sizes": (*sizes, narrow, wide), **back}
            t.give(x, t.op(f"{label}.grad_input", "matmul", inputs, x.shape, x.dtype, **how_of))
        inputs, shape = [arrived, entering, offsets], weight.shape
        how_of = {"gradient_of": weight, "sizes": (*sizes, wide, narrow), **back}
        t.give(
            weight, t.op(f"{label}.grad_weight", "matmul", inputs, shape, weight.dtype, **how_of)
        )

    return t.note(y, gradient)


def _swiglu(t: Tape, shape: tuple[int, ...], *parts: Value) -> Value:
    """The activation of a gate times the gated values, in ``shape``; both may be in one tensor."""
    y = t.op("swiglu", "elementwise", parts, shape)

    def gradient(g: Value) -> None:
        results = [(part.shape, part.dtype) for part in parts]
        grads = t.ops("swiglu.grad", "elementwise", [g, *parts], results)
        for part, grad in zip(parts, grads, strict=True):
            t.give(part, grad)

    return t.note(y, gradient)
