"""Models of image patches: the vision transformer, and the diffusion transformer, conditioned on a
time and a class.
"""

from dataclasses import dataclass

from hosim.io.models.config import Run, layers_of
from hosim.io.models.dense import (
    attended,
    convolution,
    dense,
    gelu,
    gelu_new,
    looked_up,
    mlp,
    normed,
    repeated,
    scored,
)
from hosim.io.models.functions import (
    activation,
    add,
    cast,
    mul,
    scale,
    split,
    square,
    summed,
)
from hosim.io.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Vit:
    """The sizes of a vision transformer. Fields are named as in the public
    ``config.json`` files.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    num_labels: int = 1000


@dataclass(frozen=True, slots=True)
class Dit:
    """The sizes of a diffusion transformer. Fields are named as in the published code
    (facebookresearch/DiT, ``models.py``); ``input_size`` is that of the latent image.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    patch_size: int = 2
    input_size: int = 32
    in_channels: int = 4
    mlp_ratio: int = 4
    num_classes: int = 1000
    frequency_embedding_size: int = 256


def patches(t: Tape, run: Run, name: str, image: Value, patch: int, width: int) -> Value:
    """Each square of ``image`` [batch, channels, side, side] as a vector of ``width``: a
    convolution whose kernel is as wide as its stride.
    """
    batch, channels, side, _ = image.shape
    tokens, narrow = (side // patch) ** 2, channels * patch * patch
    with t.scope(name):
        return convolution(t, run, "conv2d", image, (width, narrow), (batch, tokens, width))


def vit(t: Tape, config: Vit, run: Run) -> Value:
    """The loss in training, else the logits of each image."""
    width = config.hidden_size
    image = t.held(
        "pixel_values",
        (run.batch, config.num_channels, config.image_size, config.image_size),
        run.dtype,
        "input",
    )
    with t.scope("vit"):
        with t.scope("embeddings"):
            x = patches(t, run, "patch_embeddings.projection", image, config.patch_size, width)
            tokens = x.shape[1] + 1
            first = t.parameter("cls_token", (1, 1, width), run.dtype)
            x = _behind(t, first, x)
            x = add(t, x, t.parameter("position_embeddings", (1, tokens, width), run.dtype))
        x = repeated(
            t, run, layers_of(config, run), "layers", x, lambda x: _vit_layer(t, config, run, x)
        )
        x = normed(t, run, "layernorm", x)
    first = _first_token(t, x)
    with t.scope("classifier"):
        weight, bias = [
            t.parameter(name, shape, run.dtype)
            for name, shape in (
                ("weight", (config.num_labels, width)),
                ("bias", (config.num_labels,)),
            )
        ]
    return scored(t, run, first, weight, bias, "classifier.linear", kernel="")


def _vit_layer(t: Tape, config: Vit, run: Run, x: Value) -> Value:
    width = config.hidden_size
    y = normed(t, run, "layernorm_before", x)
    with t.scope("attention"):
        q, k, v = [dense(t, run, f"{name}_proj", y, width) for name in "qkv"]
        x = add(
            t,
            dense(t, run, "o_proj", attended(t, run, q, k, v, config.num_attention_heads), width),
            x,
        )
    y = normed(t, run, "layernorm_after", x)
    with t.scope("mlp"):
        return add(t, mlp(t, run, y, ("fc1", "fc2"), config.intermediate_size, gelu), x)


def _behind(t: Tape, first: Value, x: Value) -> Value:
    """The tokens of ``x`` after one token that all images share."""
    batch, tokens, width = x.shape
    y = t.op("cat", "copy", [first, x], (batch, tokens + 1, width), accessed=2 * x.size)

    def gradient(g: Value) -> None:
        t.give(
            first,
            t.op(
                "cat.grad_first",
                "reduction",
                [g],
                first.shape,
                accessed=g.size // (tokens + 1),
                gradient_of=first,
            ),
        )
        t.give(x, t.op("cat.grad", "copy", [g], x.shape))

    return t.note(y, gradient)


def _first_token(t: Tape, x: Value) -> Value:
    """A view of the first token of each image; its gradient is that of all tokens, with zeros
    elsewhere.
    """
    return t.note(
        t.alias(x).view(x.shape[0], x.shape[-1]),
        lambda g: t.give(x, t.op("select.grad", "copy", [g], x.shape)),
    )


def dit(t: Tape, config: Dit, run: Run) -> Value:
    """The loss of one denoising step in training, else the predicted noise and variance."""
    width = config.hidden_size
    latent = (run.batch, config.in_channels, config.input_size, config.input_size)
    image = t.held("x", latent, run.dtype, "input")
    x = patches(t, run, "x_embedder.proj", image, config.patch_size, width)
    x = add(t, x, t.held("pos_embed", (1, x.shape[1], width), run.dtype, "buffer"))
    with t.scope("t_embedder"):
        time = t.held("t", (run.batch,), "fp32", "input")
        waves = cast(
            t,
            t.op(
                "frequencies", "elementwise", [time], (run.batch, config.frequency_embedding_size)
            ),
            run.dtype,
        )
        y = dense(
            t, run, "mlp.2", activation(t, dense(t, run, "mlp.0", waves, width), "silu"), width
        )
    label = t.held("y", (run.batch,), "int64", "input")
    with t.scope("y_embedder"):  # one entry more than classes, for "no class", which guidance needs
        condition = add(
            t, y, looked_up(t, run, "embedding_table", label, config.num_classes + 1, width)
        )
    x = repeated(
        t,
        run,
        layers_of(config, run),
        "blocks",
        x,
        lambda x: _dit_layer(t, config, run, x, condition),
    )
    out = config.patch_size**2 * config.in_channels * 2
    with t.scope("final_layer"):
        shift, factor = _modulation(t, run, condition, 2, width)
        x = _modulated(t, normed(t, run, "norm_final", x, affine=False), shift, factor)
        x = dense(t, run, "linear", x, out)
    shape = (run.batch, 2 * config.in_channels, config.input_size, config.input_size)
    if not run.training:
        return t.op("unpatchify", "copy", [x], shape, result_kind="output")
    target = t.held("noise", x.shape, run.dtype, "input")
    return summed(t, square(t, cast(t, add(t, x, target, "sub"), "fp32")), (), "mse")


def _dit_layer(t: Tape, config: Dit, run: Run, x: Value, condition: Value) -> Value:
    """Attention and MLP, each scaled, shifted and gated by three of six vectors that the condition
    gives (adaLN-Zero).
    """
    width = config.hidden_size
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = _modulation(t, run, condition, 6, width)
    y = _modulated(t, normed(t, run, "norm1", x, affine=False), shift_a, scale_a)
    with t.scope("attn"):
        q, k, v = split(t, dense(t, run, "qkv", y, 3 * width), (width,) * 3)
        y = dense(t, run, "proj", attended(t, run, q, k, v, config.num_attention_heads), width)
    x = add(t, x, mul(t, gate_a, y, "gate"))
    y = _modulated(t, normed(t, run, "norm2", x, affine=False), shift_m, scale_m)
    with t.scope("mlp"):
        y = mlp(t, run, y, ("fc1", "fc2"), config.mlp_ratio * width, gelu_new)
    return add(t, x, mul(t, gate_m, y, "gate"))


def _modulation(t: Tape, run: Run, condition: Value, count: int, width: int) -> list[Value]:
    with t.scope("adaLN_modulation"):
        return split(
            t, dense(t, run, "1", activation(t, condition, "silu"), count * width), (width,) * count
        )


def _modulated(t: Tape, x: Value, shift: Value, factor: Value) -> Value:
    return add(t, mul(t, x, scale(t, factor, "add"), "modulate"), shift, "shift")
