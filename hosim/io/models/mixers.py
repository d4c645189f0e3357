"""Mixers of tokens that take linear time: Mamba, Mamba-2, gated delta nets, and similar ones. They
are built for inference.

The FLOP of a recurrence are those of its formula. A single token decays its state, adds to it and
reads it (Mamba: 5 for each element of the state; the delta rule, which first reads the element that
it replaces: 7). For chunks of ``CHUNK`` tokens the kernel multiplies matrices, within a chunk and
between a chunk and the state (Mamba-2: T. Dao and A. Gu, 2024; delta: S. Yang et al., 2024).

References
----------
A. Gu and T. Dao, Mamba, 2023. T. Dao and A. Gu, Transformers are SSMs, 2024. S. Yang et al., Gated
Delta Networks, 2024. Kimi Team, Kimi Linear, 2025.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hosim.io.models.config import Decoder, Run
from hosim.io.models.dense import projected
from hosim.io.models.functions import add, concatenated, mul, split
from hosim.io.models.names import NAMES
from hosim.io.models.tape import Tape, Value

# -- linear states ---------------------------------------------------------------------------------


def convolved(t: Tape, config: Decoder, run: Run, x: Value, name: str = "conv1d") -> Value:
    """The convolution of each channel of ``x`` [batch, tokens, channels] over its last
    ``conv_kernel`` tokens, and the activation after it: one kernel.

    It keeps the last ``conv_kernel`` tokens of each channel, as transformers does.
    """
    channels, width = x.shape[-1], config.conv_kernel
    parameters = [t.parameter(f"{name}.weight", (channels, 1, width), run.dtype)]
    if config.conv_bias:
        parameters.append(t.parameter(f"{name}.bias", (channels,), run.dtype))
    return _with_state(
        t,
        run,
        name,
        "convolution",
        [x, *parameters],
        x.shape,
        "conv_state",
        (channels, width),
        run.dtype,
        2 * width * x.rows * channels,
    )


def scanned(
    t: Tape,
    run: Run,
    inputs: Sequence[Value],
    shape: tuple[int, ...],
    state: tuple[int, ...],
    *,
    once: int,
    chunked: int,
) -> Value:
    """The result in ``shape`` of a recurrence over ``inputs``, with a ``state`` in fp32 for each
    sequence: one kernel.

    A token takes ``once`` FLOP if it is computed alone, as in decoding, and ``chunked`` FLOP if a
    kernel takes tokens in chunks.
    """
    tokens = shape[0] * shape[1]
    flops = tokens * (once if run.phase == "decode" else chunked)
    label = "recurrence" if run.phase == "decode" else "chunked_recurrence"
    return _with_state(
        t, run, label, "scan", list(inputs), shape, "recurrent_state", state, "fp32", flops
    )


def _with_state(
    t: Tape,
    run: Run,
    label: str,
    kind: str,
    inputs: list[Value],
    shape: tuple[int, ...],
    name: str,
    state: tuple[int, ...],
    dtype: str,
    flops: int,
) -> Value:
    """An op that reads and writes a state in decoding, and writes it for a prompt whose cache is
    kept; otherwise it has no state.
    """
    if run.phase != "decode" and not run.cache:
        return t.op(label, kind, inputs, shape, flops=flops)
    kept = t.held(name, (run.batch, *state), dtype, "kv_cache", run.cache_home)
    mutated, overwritten = ([kept], []) if run.phase == "decode" else ([], [kept])
    return t.ops(
        label,
        kind,
        inputs,
        [(shape, inputs[0].dtype)],
        flops=flops,
        mutates=mutated,
        overwrites=overwritten,
    )[0]


# -- mixers ----------------------------------------------------------------------------------------


CHUNK = 64
"""The tokens of a chunk in kernels of gated delta nets; those of Mamba-2 take 128 or 256."""


def by_mixers(t: Tape, config: Decoder, run: Run, x: Value, attend: Callable[[], Value]) -> Value:
    """Return the result for ``x`` [batch, tokens, hidden] of attention (``attend``), of one of
    :data:`MIXERS`, or of both added up.
    """
    names, found = NAMES[config.names], []
    for kind in sorted(config.mixer.split("+"), key="attention".__eq__):  # attention is last
        with t.scope(names.attention if kind == "attention" else names.mixer):
            found.append(attend() if kind == "attention" else MIXERS[kind](t, config, run, x))
    return found[0] if len(found) == 1 else add(t, found[0], found[1], "add_mixers")


def _vector(t: Tape, run: Run, name: str, *shape: int) -> Value:
    return t.parameter(name, shape, run.dtype)


def _gated_norm(
    t: Tape, config: Decoder, run: Run, y: Value, gate: Value, name: str, width: int
) -> Value:
    """The norm of ``y`` over ``width``, times the activation of ``gate``, in one kernel; without a
    norm only the gate.
    """
    if not config.state_norm:
        return mul(t, y, gate, "gate")
    return t.op("gated_norm", "norm", [y, gate, _vector(t, run, f"{name}.weight", width)], y.shape)


def _mamba2(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    heads, width, size, groups = (
        config.state_heads,
        config.state_head_dim,
        config.state_size,
        config.state_groups,
    )
    inner, keys = heads * width, groups * size
    bias = config.state_bias
    both = projected(t, run, "in_proj", x, 2 * inner + 2 * keys + heads, bias=bias)
    gate, entering, step = split(t, both, (inner, inner + 2 * keys, heads))
    made = convolved(t, config, run, entering)
    own = [_vector(t, run, name, heads) for name in ("dt_bias", "A_log", "D")]
    chunked = 4 * CHUNK * (keys + inner) + 4 * size * inner  # chunks of 128
    y = scanned(
        t,
        run,
        [made, step, *own],
        gate.shape,
        (heads, width, size),
        once=5 * size * inner,
        chunked=chunked,
    )
    return projected(
        t,
        run,
        "out_proj",
        _gated_norm(t, config, run, y, gate, "norm", inner),
        x.shape[-1],
        bias=bias,
    )


def _mamba(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """The first Mamba, whose kernel takes one token after the other; ``state_groups`` is the rank
    of its time steps.
    """
    inner, size, rank = config.state_heads, config.state_size, config.state_groups
    entering, gate = split(
        t, projected(t, run, "in_proj", x, 2 * inner, bias=config.state_bias), (inner, inner)
    )
    made = convolved(t, config, run, entering)
    step, *pair = split(t, projected(t, run, "x_proj", made, rank + 2 * size), (rank, size, size))
    if config.state_norm:
        named = zip((step, *pair), ("dt", "b", "c"), strict=True)
        step, *pair = [
            t.op(
                f"{name}_layernorm",
                "norm",
                [y, _vector(t, run, f"{name}_layernorm.weight", y.shape[-1])],
                y.shape,
            )
            for y, name in named
        ]
    step = projected(t, run, "dt_proj", step, inner, bias=True)
    own = [_vector(t, run, "A_log", inner, size), _vector(t, run, "D", inner)]
    flops = 5 * size * inner
    y = scanned(
        t,
        run,
        [made, step, *pair, gate, *own],
        made.shape,
        (inner, size),
        once=flops,
        chunked=flops,
    )
    return projected(t, run, "out_proj", y, x.shape[-1], bias=config.state_bias)


def _delta_sizes(config: Decoder) -> tuple[int, int, int, int]:
    """Return the widths of all keys and of all values, and the FLOP of a token alone
    and in chunks.
    """
    keys, values = (
        config.state_groups * config.state_size,
        config.state_heads * config.state_head_dim,
    )
    state = config.state_size * values
    within = 2 * CHUNK * config.state_heads * (3 * config.state_size + 2 * config.state_head_dim)
    return keys, values, 7 * state, within + 6 * state


def _recurred(t: Tape, config: Decoder, run: Run, made: Value, beside: list[Value]) -> Value:
    """The delta rule over queries, keys and values ``made``."""
    *rows, _ = made.shape
    _, values, once, chunked = _delta_sizes(config)
    state = (config.state_heads, config.state_size, config.state_head_dim)
    return scanned(t, run, [made, *beside], (*rows, values), state, once=once, chunked=chunked)


def _delta(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """Qwen3-Next: one product makes queries, keys, values and the gate, another one the write
    strength and the decay.
    """
    keys, values, *_ = _delta_sizes(config)
    heads = config.state_heads
    both = projected(t, run, "in_proj_qkvz", x, 2 * keys + 2 * values)
    beside = projected(t, run, "in_proj_ba", x, 2 * heads)
    entering, gate = split(t, both, (2 * keys + values, values))
    return _delta_end(t, config, run, x, entering, gate, [beside])


def _delta_apart(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """Qwen3.5: four products."""
    keys, values, *_ = _delta_sizes(config)
    entering, gate = (
        projected(t, run, "in_proj_qkv", x, 2 * keys + values),
        projected(t, run, "in_proj_z", x, values),
    )
    beside = [projected(t, run, f"in_proj_{name}", x, config.state_heads) for name in ("b", "a")]
    return _delta_end(t, config, run, x, entering, gate, beside)


def _delta_end(
    t: Tape, config: Decoder, run: Run, x: Value, entering: Value, gate: Value, beside: list[Value]
) -> Value:
    made = convolved(t, config, run, entering)
    own = [_vector(t, run, name, config.state_heads) for name in ("dt_bias", "A_log")]
    y = _recurred(t, config, run, made, [*beside, *own])
    return projected(
        t,
        run,
        "out_proj",
        _gated_norm(t, config, run, y, gate, "norm", config.state_head_dim),
        x.shape[-1],
    )


def _three(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """Queries, keys and values from three products, through one convolution."""
    keys, values, *_ = _delta_sizes(config)
    made = [
        projected(t, run, f"{name}_proj", x, width)
        for name, width in (("q", keys), ("k", keys), ("v", values))
    ]
    return convolved(t, config, run, concatenated(t, made, "cat_qkv"))


def _delta_own(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """OLMo-Hybrid: a product for each input."""
    made, heads = _three(t, config, run, x), config.state_heads
    beside = [projected(t, run, f"{name}_proj", x, heads) for name in ("a", "b")]
    own = [_vector(t, run, name, heads) for name in ("A_log", "dt_bias")]
    gate = projected(t, run, "g_proj", x, _delta_sizes(config)[1])
    y = _gated_norm(
        t,
        config,
        run,
        _recurred(t, config, run, made, [*beside, *own]),
        gate,
        "o_norm",
        config.state_head_dim,
    )
    return projected(t, run, "o_proj", y, x.shape[-1])


def _kimi_delta(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """Kimi Linear: each element of a key has its own decay; gates are products of low rank."""
    heads, width, made = config.state_heads, config.state_head_dim, _three(t, config, run, x)
    with t.scope("forget_gate"):
        decay = projected(
            t, run, "f_b_proj", projected(t, run, "f_a_proj", x, width), heads * width
        )
        own = [_vector(t, run, "dt_bias", heads * width), _vector(t, run, "A_log", heads)]
    beside = [decay, *own, projected(t, run, "b_proj", x, heads)]
    gate = projected(t, run, "g_b_proj", projected(t, run, "g_a_proj", x, width), heads * width)
    y = _gated_norm(t, config, run, _recurred(t, config, run, made, beside), gate, "o_norm", width)
    return projected(t, run, "o_proj", y, x.shape[-1])


def _short_convolution(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """LFM2: a convolution between two gates."""
    hidden = x.shape[-1]
    before, after, entering = split(
        t, projected(t, run, "in_proj", x, 3 * hidden, bias=config.conv_bias), (hidden,) * 3
    )
    made = convolved(t, config, run, mul(t, before, entering, "gate_before"), "conv")
    return projected(
        t, run, "out_proj", mul(t, made, after, "gate_after"), hidden, bias=config.conv_bias
    )


def _lightning(t: Tape, config: Decoder, run: Run, x: Value) -> Value:
    """MiniMax-01: heads of linear attention, each of whose states decays by its own factor."""
    heads, width = config.num_attention_heads, config.head_dim
    inner = heads * width
    made = projected(t, run, "qkv_proj", x, 3 * inner)
    chunked = 8 * CHUNK * inner + 4 * width * inner  # chunks of 256; half of the scores are masked
    shape = (*x.shape[:-1], inner)
    y = scanned(
        t, run, [made], shape, (heads, width, width), once=5 * width * inner, chunked=chunked
    )
    y = t.op("norm", "norm", [y, _vector(t, run, "norm.weight", inner)], shape)
    return projected(
        t,
        run,
        "out_proj",
        mul(t, y, projected(t, run, "output_gate", x, inner), "gate"),
        x.shape[-1],
    )


MIXERS: Mapping[str, Callable[[Tape, Decoder, Run, Value], Value]] = MappingProxyType(
    {
        "mamba2": _mamba2,
        "mamba": _mamba,
        "delta": _delta,
        "delta_apart": _delta_apart,
        "delta_own": _delta_own,
        "kimi_delta": _kimi_delta,
        "convolution": _short_convolution,
        "lightning": _lightning,
    }
)
"""The mixers, by :attr:`hosim.io.models.config.Decoder.mixer`."""
