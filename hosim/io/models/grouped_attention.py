"""Attention whose heads of queries share heads of keys and values, with the norms and gates of its
family; also over a sequence that several devices share.
"""

from math import prod

from hosim.analysis.costmodel.kernels import NO_WINDOW, causal_kernel
from hosim.io.models.attention import AttentionKernel, attention, rotated
from hosim.io.models.collectives import all_reduced, ns_to_send, of_own_heads, replicated, shared
from hosim.io.models.config import Decoder, Run, key_heads
from hosim.io.models.dense import projected
from hosim.io.models.functions import activation, concatenated, mul, split
from hosim.io.models.kv_cache import Cache, keys_read, make_blocks, select_blocks, sparse_attention
from hosim.io.models.layer_inputs import Positions, sinks
from hosim.io.models.names import NAMES
from hosim.io.models.norms import applied_norm, decoder_norm, head_norm_parameters, rms_norm
from hosim.io.models.tape import ITEM_BYTES, Tape, Value

# -- gathered attention
# --------------------------------------------------------------------------------------------------
# Attention over a window of a sequence that several devices share: each device gathers all keys
# and values.
#
# As in Transformer Engine, whose ring takes no windows (``cp_comm_type="all_gather"``, in its
# ``context_parallel.py``), a device has two chunks of the sequence, as in
# :func:`ring_attention`. Keys and values are gathered, which nothing overlaps, and put in the order
# of the sequence. Each chunk of queries then has one kernel, which gets only the keys from the
# first to the last that these queries see. The backward pass gathers keys and values again. It adds
# up their gradients for the whole sequence, in its order, and each device gets the sum for its own
# tokens. The layout is ``sbhd``, in which a chunk needs no copy.


def gathered_attention(
    t: Tape, run: Run, q: Value, k: Value, v: Value, window: int, label: str = "sdpa"
) -> Value:
    """Causal attention of the device's queries [batch, heads, tokens, width], each over ``window``
    keys: [batch, tokens, heads, width].

    Selective recomputation keeps its result, and gathers nothing again.
    """
    y, *kept = t.kept(lambda: _forward(t, run, (q, k, v), window, label))
    return t.note(y, lambda g: _gradient(t, run, (q, k, v), kept, g, window, label))


def keys_of_chunk(chunk: int, size: int, window: int) -> range:
    """The keys that the queries of a chunk of ``size`` see: each sees its own key and those before
    it, ``window`` in all.

    >>> keys_of_chunk(3, 4, 6)
    range(7, 16)
    """
    return range(max(0, chunk * size - window + 1), (chunk + 1) * size)


def _forward(
    t: Tape, run: Run, operands: tuple[Value, Value, Value], window: int, label: str
) -> tuple[Value, ...]:
    q, k, v = operands
    batch, heads, tokens, width = q.shape
    whole = _gathered(t, run, (k, v), label)
    kept: list[Value] = []
    for n, (keys, flops, kernel, sizes) in enumerate(_chunks(run, q, k, window)):
        part = q.view(batch, heads, tokens // 2, width)
        seen = [x.view(batch, x.shape[1], keys, width) for x in whole]
        results = [(part.shape, q.dtype), (part.shape[:3], "fp32")]
        accessed = 2 * part.size + sum([x.size for x in seen])
        name = f"{run.attention_kernel or 'context'}_attention"
        kept += t.ops(
            f"{label}.chunk_{n}",
            "attention",
            [part, *seen],
            results,
            flops=flops,
            accessed=accessed,
            kernel=kernel and name,
            sizes=sizes,
        )
    return (
        t.op(f"{label}.join", "copy", [kept[0], kept[2]], (batch, tokens, heads, width), q.dtype),
        *kept,
    )


def _gathered(t: Tape, run: Run, pair: tuple[Value, Value], label: str) -> list[Value]:
    """Keys and values of the whole sequence, in its order."""
    found = []
    for name, x in zip("kv", pair, strict=True):
        shape = (*x.shape[:2], run.sequence, x.shape[3])
        whole = shared(
            t, run, x, f"{label}.gather_{name}", "all_gather", shape, run.context_parallel, STREAM
        )
        found.append(t.op(f"{label}.order_{name}", "copy", [whole], shape))
    return found


def _chunks(
    run: Run, q: Value, k: Value, window: int
) -> list[tuple[int, int, str, tuple[int, ...]]]:
    """Return, for each chunk of the last device: the number of keys that it sees, the FLOP if every
    query sees as many keys as it can, and the kernel with its sizes.
    """
    batch, heads, tokens, width = q.shape
    size, found = tokens // 2, []
    for chunk in (run.context_parallel - 1, run.context_parallel):
        keys = len(keys_of_chunk(chunk, size, window))
        kernel, sizes = causal_kernel(
            (batch, heads, size, width), (batch, k.shape[1], keys, width), width, window
        )
        found.append((keys, 4 * batch * heads * size * min(keys, window) * width, kernel, sizes))
    return found


def _gradient(
    t: Tape,
    run: Run,
    operands: tuple[Value, Value, Value],
    kept: list[Value],
    g: Value,
    window: int,
    label: str,
) -> None:
    q, k, v = operands
    batch, heads, tokens, width = q.shape
    whole = _gathered(t, run, (k, v), f"{label}.grad")
    totals = [
        t.ops(f"{label}.grad.zero_{name}", "fill", [], [(x.shape, x.dtype)])[0]
        for name, x in zip("kv", whole, strict=True)
    ]
    parts = []
    for n, (keys, flops, kernel, sizes) in enumerate(_chunks(run, q, k, window)):
        out, lse = kept[2 * n : 2 * n + 2]
        part = q.view(batch, heads, tokens // 2, width)
        seen = [x.view(batch, x.shape[1], keys, width) for x in whole]
        name = f"{run.attention_kernel or 'context'}_gradient"
        results = [(x.shape, x.dtype) for x in (part, *seen)]
        dq, *pair = t.ops(
            f"{label}.grad.chunk_{n}",
            "attention",
            [g.view(*part.shape), part, *seen, out, lse],
            results,
            flops=flops * 5 // 2,
            workspace=prod(lse.shape) * ITEM_BYTES[lse.dtype],
            kernel=kernel and name,
            sizes=sizes,
        )
        parts.append(dq)
        for which, total, own in zip("kv", totals, pair, strict=True):
            t.ops(
                f"{label}.grad.add_{which}_{n}",
                "elementwise",
                [own],
                [],
                mutates=[total],
                accessed=3 * own.size,
            )
    t.give(q, t.op(f"{label}.grad.join", "copy", parts, q.shape))
    for name, x, total in zip("kv", (k, v), totals, strict=True):
        ordered = t.op(f"{label}.grad.order_d{name}", "copy", [total], total.shape)
        t.give(
            x,
            shared(
                t,
                run,
                ordered,
                f"{label}.grad.scatter_{name}",
                "reduce_scatter",
                x.shape,
                run.context_parallel,
                STREAM,
            ),
        )


# -- attention over exchanged heads ----------------------------------------------------------------


def exchanged_attention(
    t: Tape, run: Run, q: Value, k: Value, v: Value, scores: Value, window: int, label: str = "sdpa"
) -> Value:
    """Causal attention of the device's queries [batch, heads, tokens, width], each over ``window``
    keys: [batch, tokens, heads, width].

    ``scores`` are the learned ones of each head.
    """
    devices, (batch, heads, tokens, width) = run.context_parallel, q.shape
    by_head = [
        _exchanged(
            t, run, x, f"{label}.{name}", (batch, x.shape[1] // devices, tokens * devices, width)
        )
        for name, x in zip("qkv", (q, k, v), strict=True)
    ]
    extra = (_own(t, run, scores, label),)
    kernel = AttentionKernel(causal=True, window=window, library=run.attention_kernel)
    q, k, v = by_head
    y = attention(t, q, k, v, kernel, extra=extra, label=label)
    return _exchanged(t, run, y, f"{label}.out", (batch, tokens, heads, width))


def _exchanged(t: Tape, run: Run, x: Value, label: str, shape: tuple[int, ...]) -> Value:
    """``x`` exchanged among the devices, in another shape with as many elements;
    gradients go back.
    """

    def sent(value: Value, name: str, made: tuple[int, ...]) -> Value:
        packed = t.op(f"{name}.pack", "copy", [value], value.shape)
        there = shared(
            t, run, packed, f"{name}.exchange", "all_to_all", made, run.context_parallel, STREAM
        )
        return t.op(f"{name}.order", "copy", [there], made)

    return t.note(sent(x, label, shape), lambda g: t.give(x, sent(g, f"{label}.grad", x.shape)))


def _own(t: Tape, run: Run, scores: Value, label: str) -> Value:
    """The learned scores of the device's own heads; their gradients are gathered."""
    devices = run.context_parallel
    own = t.op(f"{label}.own_scores", "copy", [scores], (scores.shape[0] // devices,))

    def gradient(g: Value) -> None:
        t.give(
            scores,
            shared(
                t,
                run,
                g,
                f"{label}.gather_scores.grad",
                "all_gather",
                scores.shape,
                devices,
                STREAM,
                gradient_of=scores,
            ),
        )

    return t.note(own, gradient)


# -- grouped attention -----------------------------------------------------------------------------


def grouped_attention(
    t: Tape, config: Decoder, run: Run, x: Value, shared: Positions, cache: Cache | None
) -> Value:
    """Attention whose heads of queries share heads of keys and values."""
    x = replicated(t, run, x)
    batch, tokens, hidden = x.shape
    q, k, v, gate = _projections(t, config, run, x, shared)
    y = _attended(t, config, run, (q, k, v), shared, cache)
    y = y.view(batch, tokens, q.shape[1] * v.shape[-1])
    if gate is not None:
        gate = activation(t, gate, "sigmoid", keeps="output")
        by_gate = y.view(*y.shape[:2], gate.shape[-1], y.shape[-1] // gate.shape[-1])
        y = mul(t, by_gate, gate.view(*gate.shape, 1), "gate.mul").view(*y.shape)
    if config.sub_norms:
        y = decoder_norm(t, config, run, "attn_sub_norm", y)
    y = projected(t, run, NAMES[config.names].out, y, hidden, bias=config.out_bias)
    return all_reduced(t, run, y)


def _projections(
    t: Tape, config: Decoder, run: Run, x: Value, shared: Positions
) -> tuple[Value, Value, Value, Value | None]:
    """Queries, keys and values [batch, heads, tokens, width], and the gate of the result, if there
    is one.
    """
    batch, tokens, _ = x.shape
    names, width = NAMES[config.names], config.head_dim
    heads, kv_heads = config.num_attention_heads // run.tensor, key_heads(config, run)
    if config.shares_keys:
        return _shared_projections(t, config, run, x, shared)
    parts = {"q": heads, "k": kv_heads, "v": kv_heads}
    copied = max(1, run.tensor // config.num_key_value_heads)
    widths = {"q": width, "k": width, "v": config.v_head_dim or width}
    gate: Value | None = None
    made_of_keys = x

    def by_head(name: str, y: Value) -> Value:
        y = y.view(batch, tokens, parts[name], widths[name])
        if config.qk_norm and name != "v":
            y = _head_norm(t, config, run, f"{name}_norm", y)
        if config.value_norm and name == "v":
            with t.scope("v_norm"):
                y = rms_norm(t, y, None, fused=run.fused)
        y = y.view(batch, parts[name], tokens, widths[name])
        return y if name == "v" else _turned(t, config, run, y, shared.turns, f"rope_{name}")

    if config.fused_projections:
        copies = 2 * kv_heads * width, copied
        both = projected(
            t, run, names.qkv, x, sum(parts.values()) * width, bias=config.qkv_bias, copies=copies
        )
        pieces = split(t, both, [count * width for count in parts.values()], "split_qkv")
        q, k, v = [by_head(name, piece) for name, piece in zip(parts, pieces, strict=True)]
    else:
        made = []
        for (name, count), of in zip(parts.items(), (1, copied, copied), strict=True):
            rows = count * widths[name]
            if name == "v" and config.keys_are_values:
                made.append(by_head(name, made_of_keys))
                continue
            gated = name == "q" and config.attention_gate == "queries"
            wide, part, copies = rows * (1 + gated), getattr(names, name), (rows, of)
            y = projected(t, run, part, x, wide, bias=config.qkv_bias, copies=copies)
            if gated:
                y, gate = split(t, y, (rows, rows), "split_q")
            made_of_keys = y
            made.append(by_head(name, y))
        q, k, v = made
    if config.attention_gate in ("own", "heads"):
        wide = heads * (widths["v"] if config.attention_gate == "own" else 1)
        gate = projected(t, run, names.attention_gate, x, wide)
    return q, k, v, gate


def _shared_projections(
    t: Tape, config: Decoder, run: Run, x: Value, shared: Positions
) -> tuple[Value, Value, Value, None]:
    """Queries for the keys and values of an earlier layer."""
    batch, tokens, _ = x.shape
    heads, width = config.num_attention_heads // run.tensor, config.head_dim
    q = projected(t, run, NAMES[config.names].q, x, heads * width, bias=config.qkv_bias).view(
        batch, tokens, heads, width
    )
    q = _head_norm(t, config, run, "q_norm", q) if config.qk_norm else q
    k, v, _ = shared.made[config.sliding_window > 0]
    return (
        _turned(t, config, run, q.view(batch, heads, tokens, width), shared.turns, "rope_q"),
        k,
        v,
        None,
    )


def _head_norm(t: Tape, config: Decoder, run: Run, name: str, y: Value) -> Value:
    """The norm of queries or keys ``y`` [batch, tokens, heads, width]."""
    shape = y.shape
    with t.scope(getattr(NAMES[config.names], name)):
        parameters = [
            of_own_heads(t, run, weight)
            for weight in head_norm_parameters(t, config, run, *shape[2:])
        ]
        if config.qk_norm_over == "all":
            y = y.view(*shape[:2], shape[2] * shape[3])
        return applied_norm(t, config, run, y, parameters).view(*shape)


def _attended(
    t: Tape,
    config: Decoder,
    run: Run,
    heads: tuple[Value, Value, Value],
    shared: Positions,
    cache: Cache | None,
) -> Value:
    """The result of attention, in the order of tokens."""
    q, k, v = heads
    if run.phase == "decode" and run.kv_block is not None:
        return sparse_attention(t, run, q, (k, v), make_blocks(t, config, run), config.head_dim)
    extra: tuple[Value, ...] = ()
    kv_heads = k.shape[1]
    if config.shares_keys:
        extra = shared.made[config.sliding_window > 0][2]
    elif cache is not None:
        k, v, extra = cache.update(t, k, v)
    shared.made[config.sliding_window > 0] = k, v, extra
    select_blocks(t, run, q, kv_heads)
    drops, window = config.attention_dropout > 0, keys_read(config, run)
    scores = sinks(t, config, run)
    extra = (*extra, *shared.slopes, *scores)
    if run.context_parallel > 1 and scores:
        return exchanged_attention(t, run, q, k, v, scores[0], window)
    if run.context_parallel > 1 and config.sliding_window:
        return gathered_attention(t, run, q, k, v, window)
    if run.context_parallel > 1:
        return ring_attention(t, run, q, k, v)
    kernel = AttentionKernel(
        run.attention, causal=True, drops=drops, window=window, library=run.attention_kernel
    )
    return attention(t, q, k, v, kernel, shared.mask, extra=extra, again=run.recompute_attention)


def _turned(
    t: Tape, config: Decoder, run: Run, x: Value, turns: tuple[Value, Value] | None, label: str
) -> Value:
    """Apply rotary positions to the part of each head that has them."""
    if turns is None:
        return x
    if config.rotary_width in (0, config.head_dim) or run.fused:
        return rotated(t, x, *turns, fused=run.fused, label=label)
    turned, kept = split(
        t, x, (config.rotary_width, config.head_dim - config.rotary_width), f"{label}.split"
    )
    return concatenated(t, (rotated(t, turned, *turns, label=label), kept), f"{label}.join")


# -- attention in a ring ---------------------------------------------------------------------------
# Ring attention over a sequence that several devices share: keys and values go round (Liu et al.,
# ICLR 2024).
#
# As in torch's context parallel, a sequence is cut into two chunks for each of n devices. Device r
# has chunks r and 2n - 1 - r, so that all devices do equal work. A device begins with its
# own tokens and sends on its keys and values meanwhile; then it has those of the previous device,
# and so on. Of another device's chunks half of the scores count; for the last device, which is
# modelled, these are the scores of all its queries with the first chunk. In the backward pass keys
# and values go round again. So do their gradients in fp32, with one more step to return to their
# device.


STREAM = "ring"
"""The stream of the ring's transfers."""

Pair = tuple[Value, ...]
"""Keys and values, or their gradients."""


def ring_attention(t: Tape, run: Run, q: Value, k: Value, v: Value, label: str = "sdpa") -> Value:
    """Causal attention of the device's queries [batch, heads, tokens, width] over the keys of all:
    [batch, tokens, heads, width].

    Selective recomputation keeps its result, and sends nothing again, as in torch, where the ring
    is inside one op.
    """
    y, lse = t.kept(lambda: _ring_forward(t, run, q, k, v, label))
    return t.note(y, lambda g: _ring_gradient(t, run, (q, k, v), y, lse, g, label))


def _ring_forward(
    t: Tape, run: Run, q: Value, k: Value, v: Value, label: str
) -> tuple[Value, Value]:
    batch, heads, queries, width = q.shape
    own: Pair = (k, v)
    acc: Value | None = None
    for n in range(run.context_parallel):
        beside = own
        if n < run.context_parallel - 1:
            own = exchanged_round(t, run, own, f"{label}.send_{n}")
        flops, kernel, sizes = _block(run, q, k, n, "attention")
        results = [((batch, heads, queries, width), q.dtype), (q.shape[:3], "fp32")]
        # the kernel computes as many scores as one over the whole causal context of these queries
        accessed = q.size * 2 + sum([x.size for x in beside]) // (2 if n else 1)
        out, seen = t.ops(
            f"{label}.block_{n}",
            "attention",
            [q, *beside],
            results,
            flops=flops,
            accessed=accessed,
            kernel=kernel,
            sizes=sizes,
        )
        if acc is None:
            acc, lse = t.op(f"{label}.begin", "copy", [out], out.shape, "fp32"), seen
        else:
            t.ops(f"{label}.merge_{n}", "elementwise", [out, seen], [], mutates=[acc, lse])
    assert acc is not None
    return t.op(f"{label}.end", "copy", [acc], (batch, queries, heads, width), q.dtype), lse


def exchanged_round(t: Tape, run: Run, sent: Pair, label: str) -> Pair:
    """Return the pair that the previous device sends, while this one sends as many bytes on."""
    size = sum([x.size for x in sent])
    results = [(x.shape, x.dtype) for x in sent]
    # an exchange between two devices: each sends half of their sum
    return t.ops(
        label,
        "all_to_all",
        sent,
        results,
        stream=STREAM,
        accessed=2 * size,
        duration_ns=ns_to_send(run, size),
        kernel="all_to_all",
        sizes=(2, 2 * size),
    )


def _block(run: Run, q: Value, k: Value, n: int, what: str) -> tuple[int, str, tuple[int, ...]]:
    """The FLOP of the products of queries with a device's keys, which torch counts in full, and the
    kernel that computes as many scores.
    """
    batch, heads, queries, width = q.shape
    flops = 4 * batch * heads * queries * (k.shape[2] // (2 if n else 1)) * width
    kernel = f"{run.attention_kernel or 'context'}_{what}"
    return flops, kernel, (batch, queries, 0, heads, k.shape[1], width, NO_WINDOW)


def _ring_gradient(
    t: Tape,
    run: Run,
    operands: tuple[Value, Value, Value],
    y: Value,
    lse: Value,
    g: Value,
    label: str,
) -> None:
    q, k, v = operands
    own: Pair = (k, v)
    queries: Value | None = None
    total: Pair = ()
    for n in range(run.context_parallel):
        beside = own
        if n < run.context_parallel - 1:
            own = exchanged_round(t, run, own, f"{label}.grad.send_{n}")
        flops, kernel, sizes = _block(run, q, k, n, "gradient")
        seen = [
            (x.shape if n == 0 else (*x.shape[:2], x.shape[2] // 2, x.shape[3]), x.dtype)
            for x in beside
        ]
        dq, *pair = t.ops(
            f"{label}.grad.block_{n}",
            "attention",
            [g, q, *beside, y, lse],
            [(q.shape, q.dtype), *seen],
            flops=flops * 5 // 2,
            kernel=kernel,
            sizes=sizes,
        )
        if queries is None:
            queries = t.op(f"{label}.grad.begin", "copy", [dq], q.shape, "fp32")
            total = t.ops(
                f"{label}.grad.begin_pair", "copy", pair, [(x.shape, "fp32") for x in pair]
            )
        else:
            accessed = 2 * (2 * queries.size + 3 * sum([x.size for x in pair])) // 2
            t.ops(
                f"{label}.grad.add_{n}",
                "elementwise",
                [dq, *pair],
                [],
                mutates=[queries, *total],
                accessed=dq.size + accessed,
            )
        total = exchanged_round(t, run, total, f"{label}.grad.send_back_{n}")
    assert queries is not None
    t.give(q, t.op(f"{label}.grad.end", "copy", [queries], q.shape, q.dtype))
    for name, x, whole in zip("kv", (k, v), total, strict=True):
        t.give(x, t.op(f"{label}.grad.end_{name}", "copy", [whole], x.shape, x.dtype))
