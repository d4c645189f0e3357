"""Collectives between devices that share a model: ops of the stream ``comm`` on one device's
tensors.
"""

from collections.abc import Sequence
from dataclasses import replace

from hosim.analysis.costmodel.kernels import CUSTOM_BYTES
from hosim.io.models.config import Decoder, Run
from hosim.io.models.names import NAMES
from hosim.io.models.tape import Learned, Tape, Value

STREAM = "comm"

_OF_OWN_TOKENS = (".gate.", "_a_proj", "_a_layernorm")
"""Parts of the names of parameters that are used before tokens are gathered and are not as wide as
a hidden state: routers and latent vectors.
"""

RECEIVES, SENDS = "recv", "send"
"""The streams of messages between stages that run together. In a group of NCCL, sends and receives
run at once. They also run beside the collectives of devices that share a stage, which have a
communicator of their own.
"""


def all_reduced(t: Tape, run: Run, x: Value, label: str = "all_reduce") -> Value:
    """Replace ``x`` by its sum over devices, in place; its gradient is the same on each. With
    sequence parallelism each device gets the sum for its own tokens only.
    """
    if run.tensor == 1:
        return x
    if run.sequence_parallel:
        return _of_tokens(t, run, x, gathers=False)
    _in_place(t, run, x, label, run.tensor)
    return x


def replicated(t: Tape, run: Run, x: Value, label: str = "all_reduce") -> Value:
    """Return ``x``, which every device has and multiplies by its own weights; its gradient is the
    sum over devices.

    If each device has only its own tokens, the tokens of all are gathered.
    """
    if run.tensor == 1:
        return x
    if run.sequence_parallel:
        return _of_tokens(t, run, x, gathers=True)
    y = t.alias(x)

    def gradient(g: Value) -> None:
        _in_place(t, run, g, f"{label}.grad", run.tensor)
        t.give(x, g)

    return t.note(y, gradient)


def of_own_heads(t: Tape, run: Run, weight: Value) -> Value:
    """Return ``weight``, of which each device has a copy that it uses for its own heads: its
    gradient is the sum over devices.
    """
    if run.tensor > 1 and run.training:
        t.on_gradient(weight, lambda g: _in_place(t, run, g, "all_reduce.grad", run.tensor))
    return weight


def of_copies(t: Tape, run: Run, parameter: Value, rows: int, devices: int) -> None:
    """Sum the gradient of the last ``rows`` of a parameter over the ``devices`` that have copies of
    them, each for its own queries.
    """
    if devices > 1 and run.training:
        shape = (rows, *parameter.shape[1:])
        t.on_gradient(
            parameter,
            lambda g: _in_place(t, run, replace(g, shape=shape), "all_reduce.grad", devices),
        )


def _of_tokens(t: Tape, run: Run, x: Value, *, gathers: bool) -> Value:
    """Gather ``x`` [..., tokens, width] of all tokens from each device's own, or sum it over
    devices for each device's own tokens; gradients go the other way.
    """
    *outer, tokens, width = x.shape
    kind, label = (
        ("all_gather", "gather_tokens") if gathers else ("reduce_scatter", "scatter_tokens")
    )
    shape = (*outer, tokens * run.tensor if gathers else tokens // run.tensor, width)
    y = shared(t, run, x, label, kind, shape, run.tensor)
    if gathers and run.regather:
        t.dropped(
            y, lambda: shared(t, run, replace(x, node=0), f"{label}.again", kind, shape, run.tensor)
        )

    def gradient(g: Value) -> None:
        back = "reduce_scatter" if gathers else "all_gather"
        t.give(x, shared(t, run, g, f"{label}.grad", back, x.shape, run.tensor))

    return t.note(y, gradient)


def shared(
    t: Tape,
    run: Run,
    x: Value,
    label: str,
    kind: str,
    shape: tuple[int, ...],
    devices: int,
    stream: str = STREAM,
    gradient_of: Value | None = None,
) -> Value:
    """Gather, scatter or exchange ``x`` among some devices, each of which then has ``shape``."""
    whole = max(Value("", shape, x.dtype).size, x.size)
    duration_ns = ns_to_send(run, whole * (devices - 1) // devices)
    (y,) = t.ops(
        label,
        kind,
        [x],
        [(shape, x.dtype)],
        stream=stream,
        duration_ns=duration_ns,
        kernel=kind,
        sizes=(devices, whole),
        gradient_of=gradient_of,
    )
    return y


def of_own_tokens(config: object, run: Run, learned: Learned) -> list[Value]:
    """The gradients of norms, biases, routers and projections to latents, of which each device has
    only the part of its own tokens.
    """
    if not run.sequence_parallel or not isinstance(config, Decoder):
        return []
    width = (config.hidden_size,)
    return [
        gradient
        for p, gradient in learned
        if p.shape == width or any([part in p.tensor for part in _OF_OWN_TOKENS])
    ]


def summed_over_tokens(t: Tape, run: Run, label: str, own: Sequence[Value]) -> None:
    """Sum such gradients over the devices, in place."""
    if own:
        size = sum([g.size for g in own])
        duration_ns = ns_to_send(run, 2 * size * (run.tensor - 1) // run.tensor)
        sizes = (run.tensor, size)
        t.ops(
            label,
            "all_reduce",
            [],
            [],
            mutates=own,
            stream=STREAM,
            duration_ns=duration_ns,
            kernel="all_reduce",
            sizes=sizes,
        )


def exchanged(t: Tape, run: Run, x: Value, label: str) -> Value:
    """Send rows of ``x`` to the devices that have their experts, and receive as many; the backward
    pass returns their gradients.
    """
    if run.expert == 1:
        return x
    return t.note(
        _exchange(t, run, x, label), lambda g: t.give(x, _exchange(t, run, g, f"{label}.grad"))
    )


def received(t: Tape, run: Run, shape: tuple[int, ...], label: str = "recv") -> Value:
    """Return the tensor that the previous stage sends; the backward pass sends its
    gradient back.
    """
    x = arrived(t, run, shape, label, f"activation.{run.stage}")
    x = t.detached(x) if run.training else x
    return t.note(x, lambda g: sent(t, run, g, f"{label}.grad", f"gradient.{run.stage}"))


def arrived(t: Tape, run: Run, shape: tuple[int, ...], label: str, border: str) -> Value:
    """Return the tensor that another stage sends over a ``border``. Its name has the kind,
    activation or gradient, and the number of the stage behind it; chunks count as stages.
    """
    taken = ns_to_send(run, Value("", shape, run.dtype).size)
    if not run.tied:
        return t.ops(label, "recv", [], [(shape, run.dtype)], stream=STREAM, duration_ns=taken)[0]
    before = [t.last_ops["compute"]] if "compute" in t.last_ops else []
    message = t.micro_batch + border
    return t.ops(
        label,
        "recv",
        [],
        [(shape, run.dtype)],
        stream=RECEIVES,
        duration_ns=taken,
        deps=before,
        message=message,
    )[0]


def sent(t: Tape, run: Run, x: Value, label: str = "send", border: str = "") -> None:
    """Send ``x`` over a ``border``, by default to the next stage."""
    message = t.micro_batch + (border or f"activation.{run.stage + 1}") if run.tied else ""
    stream = SENDS if run.tied else STREAM
    t.ops(
        label, "send", [x], [], stream=stream, duration_ns=ns_to_send(run, x.size), message=message
    )


def summed_at_both_ends(t: Tape, config: object, run: Run) -> None:
    """Sum the gradients of a table of which the first stage, which looks it up, and the last stage,
    which multiplies by it, each have a copy.
    """
    if (
        run.pipeline == 1
        or run.stage not in (0, run.pipeline - 1)
        or not isinstance(config, Decoder)
        or not config.tie_word_embeddings
    ):
        return
    names = NAMES[config.names]
    for parameter, gradient in t.learned():
        if parameter.tensor == f"{names.model}.{names.table}.weight":
            _in_place(t, run, gradient, "all_reduce_embedding", 2, "embedding" if run.tied else "")


def _exchange(t: Tape, run: Run, x: Value, label: str) -> Value:
    leaves = x.size * (run.expert - 1) // run.expert
    sizes = (run.expert, x.size)
    results = [(x.shape, x.dtype)]
    return t.ops(
        label,
        "all_to_all",
        [x],
        results,
        stream=STREAM,
        duration_ns=ns_to_send(run, leaves),
        kernel="all_to_all",
        sizes=sizes,
    )[0]


def _in_place(t: Tape, run: Run, x: Value, label: str, devices: int, message: str = "") -> None:
    # a ring: each device sends every byte twice, except its own share
    duration_ns = ns_to_send(run, 2 * x.size * (devices - 1) // devices)
    kernel = "all_reduce" if run.training or x.size >= CUSTOM_BYTES else "custom_all_reduce"
    sizes = (devices, x.size)
    t.ops(
        label,
        "all_reduce",
        [],
        [],
        mutates=[x],
        stream=STREAM,
        duration_ns=duration_ns,
        kernel=kernel,
        sizes=sizes,
        message=message,
    )


def ns_to_send(run: Run, size: int) -> int | None:
    """The nanoseconds in which a device sends ``size`` bytes; ``None`` if its link is not known."""
    return None if run.link_bytes_per_s is None else -(-size * 10**9 // run.link_bytes_per_s)
