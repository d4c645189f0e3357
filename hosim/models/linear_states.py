"""Describe what mixers of linear time keep of earlier tokens: the last tokens of a convolution, and
a state of one size for any context.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.models.config import Decoder, Run
from hosim.models.tape import Tape, Value


def convolved(t: Tape, config: Decoder, run: Run, x: Value, name: str = "conv1d") -> Value:
    """Each channel of ``x`` [batch, tokens, channels] over its last ``conv_kernel`` tokens, and the
    activation after it: one kernel.

    It keeps as many tokens of each channel as it covers, as transformers does.
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

    A token takes ``once`` FLOP where it is computed by itself, as in decoding, and ``chunked`` ones
    where a kernel takes tokens in chunks.
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
    """An op that reads and writes a state in decoding, writes it for a prompt whose cache is kept,
    and else has none.
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
