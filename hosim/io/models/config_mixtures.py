"""The parts of architectures that are mixtures of experts and mixers of linear time, from the keys
of a ``config.json``.
"""

from collections.abc import Callable

from hosim.io.models.config_keys import Keys
from hosim.io.models.config_parts import LAYERS, Fields, Part, count_of_layers, named_layers

Sparse = Callable[[Keys], list[bool]]
"""The layers that have experts."""

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOPS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
DENSE: Fields = {"num_experts": 0}


def mixture(
    top: int | None = None,
    *,
    width: str = "moe_intermediate_size",
    scores: str = "softmax",
    added: str = "none",
    grouped: bool = False,
    where: Sparse | None = None,
    count: int | None = None,
    wide: int | None = None,
) -> Part:
    """Experts behind a router of ``scores``, with ``added`` as their correction, in the layers
    ``where``.

    ``top``, ``count`` and ``wide`` are how many a token takes, how many there are and how wide they
    are where the config does not say; ``width`` is the key of the latter.
    """

    def read(keys: Keys) -> Fields:
        sizes = {
            "num_experts": keys.either(*_COUNTS, **({} if count is None else {"default": count})),
            "num_experts_per_tok": keys.either(*_TOPS, **({} if top is None else {"default": top})),
            "moe_intermediate_size": keys.size(width) if wide is None else keys.size(width, wide),
        }
        how: Fields = {"router": scores, "router_correction": added}
        if grouped:
            how["n_group"] = keys.either("n_group", "num_expert_group", default=1)
        if sizes["num_experts_per_tok"] > sizes["num_experts"]:
            raise keys.refusal(
                "num_experts_per_tok",
                f"expected at most the {sizes['num_experts']} experts, got "
                f"{sizes['num_experts_per_tok']}",
            )
        return {
            **sizes,
            **how,
            **(
                {LAYERS: [{} if is_sparse else DENSE for is_sparse in where(keys)]} if where else {}
            ),
        }

    return read


def no_dense(keys: Keys) -> Fields:
    """All layers are mixtures: the width of a dense MLP is that of an expert."""
    return {"intermediate_size": keys.size("moe_intermediate_size")}


def listed(first: int, key: str = "first_k_dense_replace") -> Sparse:
    """The layers that ``mlp_layer_types`` calls sparse, or all after the first ones."""

    def read(keys: Keys) -> list[bool]:
        before = keys.size(key, first, 0)
        known = {"dense": {}, "sparse": {"is": True}}
        found = named_layers(
            keys, "mlp_layer_types", known, lambda n: "dense" if n < before else "sparse"
        )
        return [bool(each) for each in found]

    return read


def stepped(keys: Keys) -> list[bool]:
    """Each ``decoder_sparse_step``-th layer but those of ``mlp_only_layers`` (Qwen)."""
    step, dense = keys.size("decoder_sparse_step", 1), keys.value("mlp_only_layers") or []
    return [(n + 1) % step == 0 and n not in dense for n in range(count_of_layers(keys))]


def between(keys: Keys) -> list[bool]:
    """Each ``moe_layer_interval``-th layer from one to another one (ERNIE)."""
    layers, step = count_of_layers(keys), keys.size("moe_layer_interval", 1)
    start, end = keys.size("moe_layer_start_index", 1, 0), keys.size("moe_layer_end_index", -1, -1)
    last = layers - 1 if end == -1 else end
    return [(n + 1) % step == 0 and start <= n <= last for n in range(layers)]


def interleaved(keys: Keys) -> list[bool]:
    """The layers of ``moe_layers``, or each ``interleave_moe_layer_step``-th (Llama 4)."""
    layers, given = count_of_layers(keys), keys.value("moe_layers")
    if given is not None:
        return [n in given for n in range(layers)]
    step = keys.size("interleave_moe_layer_step", 1, 0)
    return [step > 0 and (n + 1) % step == 0 for n in range(layers)]


def periodic(keys: Keys) -> list[bool]:
    """Each ``expert_layer_period``-th layer from an offset on (Jamba)."""
    period, offset = keys.size("expert_layer_period", 2), keys.size("expert_layer_offset", 1, 0)
    return [n % period == offset for n in range(count_of_layers(keys))]


def shared(key: str = "n_shared_experts", default: int = 0) -> Part:
    """Experts that all tokens pass, by their number."""
    return lambda keys: {"n_shared_experts": keys.size(key, default, 0)}


def shared_wide(key: str, default: int = 0, *, gated: bool = False) -> Part:
    """Return what all tokens pass beside experts, by its width; ``gated``: times a sigmoid."""

    def read(keys: Keys) -> Fields:
        width = keys.size(key, default, 0)
        return {"shared_intermediate_size": width, "shared_expert_gate": gated and width > 0}

    return read


def delta(heads: tuple[int, int] = (16, 32), widths: tuple[int, int] = (128, 128)) -> Part:
    """The sizes of gated delta nets; those of keys and of values where the config does not say."""

    def read(keys: Keys) -> Fields:
        return {
            "state_groups": keys.size("linear_num_key_heads", heads[0]),
            "state_heads": keys.size("linear_num_value_heads", heads[1]),
            "state_size": keys.size("linear_key_head_dim", widths[0]),
            "state_head_dim": keys.size("linear_value_head_dim", widths[1]),
            "conv_kernel": keys.size("linear_conv_kernel_dim", 4),
        }

    return read


def mamba2(*, inner: str = "") -> Part:
    """The sizes of Mamba-2 under the keys of Bamba, Granite and Falcon-H1; ``inner``: the key of
    its width, if it has one.
    """

    def read(keys: Keys) -> Fields:
        heads = keys.size("mamba_n_heads", 128)
        wide = keys.size("mamba_expand", 2) * keys.size("hidden_size")
        wide = keys.size(inner, wide) if inner else wide
        given = keys.value("mamba_d_head")
        width = wide // heads if given in (None, "auto") else keys.size("mamba_d_head")
        if width * heads != wide:
            raise keys.refusal(
                "mamba_d_head",
                f"expected {heads} heads to be {wide} wide together, got {width} each",
            )
        return {
            "state_heads": heads,
            "state_head_dim": width,
            "state_groups": keys.size("mamba_n_groups", 1),
            "state_size": keys.size("mamba_d_state", 256),
            "conv_kernel": keys.size("mamba_d_conv", 4),
            "conv_bias": keys.flag("mamba_conv_bias", True),
            "state_bias": keys.flag("mamba_proj_bias", False),
        }

    return read


def mamba(prefix: str, *, norms: bool) -> Part:
    """The sizes of the first Mamba, whose keys have a ``prefix`` in Jamba."""

    def read(keys: Keys) -> Fields:
        hidden = keys.size("hidden_size")
        state, conv, rank = (
            ("d_state", "d_conv", "dt_rank")
            if prefix
            else ("state_size", "conv_kernel", "time_step_rank")
        )
        inner = keys.size(f"{prefix}expand", 2) * hidden
        given = keys.value(f"{prefix}{rank}")
        return {
            "state_heads": inner if prefix else keys.size("intermediate_size", inner),
            "state_head_dim": 1,
            "state_groups": -(-hidden // 16)
            if given in (None, "auto")
            else keys.size(f"{prefix}{rank}"),
            "state_size": keys.size(f"{prefix}{state}", 16),
            "conv_kernel": keys.size(f"{prefix}{conv}", 4),
            "conv_bias": keys.flag("mamba_conv_bias" if prefix else "use_conv_bias", True),
            "state_bias": keys.flag("mamba_proj_bias" if prefix else "use_bias", False),
            "state_norm": norms,
        }

    return read
