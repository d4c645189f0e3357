"""The parts that architectures consist of. Each reads its sizes from keys of a ``config.json``.

A part is a function from keys to fields of :class:`~hosim.io.models.config.Decoder`; fields that
differ between layers are a list, with one entry for each layer, under :data:`LAYERS`. A family is a
line of parts (:mod:`hosim.io.models.configs_of_parts`).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hosim.io.models.config import Decoder
from hosim.io.models.config_keys import Keys

Fields = dict[str, Any]
Part = Callable[[Keys], Fields]
LAYERS = "by_layer"
NO_DEFAULTS: Mapping[str, int] = MappingProxyType({})
_FULL, _WINDOW, _LINEAR = (
    ("full_attention", "attention"),
    "sliding_attention",
    ("linear_attention", "mamba", "conv"),
)


def _decoder_of(keys: Keys, defaults: Mapping[str, int], **more: Any) -> Decoder:
    """Return the sizes of a decoder with rotary positions and gated MLPs. ``more`` are fields of
    the family, ``defaults`` the sizes of keys that may be missing.
    """

    def size(name: str, *default: int) -> int:
        if name in more:
            keys.value(name)
            return int(more[name])
        return keys.size(name, defaults[name]) if name in defaults else keys.size(name, *default)

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return Decoder(
        **{
            "hidden_size": hidden,
            "num_hidden_layers": size("num_hidden_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": size("num_key_value_heads", heads),
            "intermediate_size": size("intermediate_size"),
            "vocab_size": size("vocab_size"),
            "head_dim": size("head_dim", hidden // heads),
            "hidden_act": more["hidden_act"]
            if "hidden_act" in more
            else keys.activation("hidden_act", "silu"),
            "tie_word_embeddings": keys.flag("tie_word_embeddings", False),
            "mlp_bias": keys.flag("mlp_bias", False),
            "attention_dropout": keys.share("attention_dropout", 0.0),
            **more,
        }
    )


def by_parts(
    *parts: Part, defaults: Mapping[str, int] = NO_DEFAULTS, **fixed: Any
) -> Callable[[Keys], Decoder]:
    """Return the reader of a family that consists of ``parts``. ``fixed`` are fields of all its
    models, ``defaults`` the sizes of keys that may be missing. Later parts override earlier ones.
    """

    def read(keys: Keys) -> Decoder:
        fields: Fields = dict(fixed)
        layers: list[Fields] = []
        for part in parts:
            found = part(keys)
            for n, more in enumerate(found.pop(LAYERS, ())):
                if n == len(layers):
                    layers.append({})
                layers[n].update(more)
            fields.update(found)
        return _decoder_of(keys, defaults, **{**fields, **kinds_of(layers)})

    return read


def kinds_of(layers: Sequence[Fields]) -> Fields:
    """The kinds of layers that there are, and the kind of each layer."""
    frozen = [tuple(sorted(each.items())) for each in layers]
    kinds = tuple(dict.fromkeys(frozen))
    return (
        {}
        if len(kinds) < 2 and not any(kinds)
        else {"kinds": kinds, "pattern": tuple([kinds.index(each) for each in frozen])}
    )


def count_of_layers(keys: Keys) -> int:
    """Return the number of layers."""
    return keys.size("num_hidden_layers")


def named_layers(
    keys: Keys, key: str, known: Mapping[str, Fields], usual: Callable[[int], str]
) -> list[Fields]:
    """The fields of each layer, by its name in the list ``key``; ``usual`` returns the name of a
    layer if there is no list.
    """
    layers = count_of_layers(keys)
    listed = keys.value(key)
    if listed is None:
        return [known[usual(n)] for n in range(layers)]
    keys.refuse(
        key,
        not isinstance(listed, list) or len(listed) < layers,
        f"expected a list of {layers} kinds of layers, got {listed!r}",
    )
    for name in listed[:layers]:
        keys.refuse(
            key,
            not isinstance(name, str) or name not in known,
            f"the builder knows {' or '.join(map(repr, known))} only, got {name!r}",
        )
    return [known[name] for name in listed[:layers]]


def biases(default: bool = False, *, key: str = "attention_bias", out: bool = True) -> Part:
    """Biases of queries, keys and values and, with ``out``, of the output: all or none."""
    return lambda keys: dict.fromkeys(
        ("qkv_bias", "out_bias") if out else ("qkv_bias",), keys.flag(key, default)
    )


def heads_of(width: int) -> Part:
    """Heads of this width, if the config does not say another."""
    return lambda keys: {"head_dim": keys.size("head_dim", width)}


def share_turned(keys: Keys, default: float) -> float:
    """The share of a head that has rotary positions."""
    return keys.inside("rope_parameters").share(
        "partial_rotary_factor", keys.share("partial_rotary_factor", default)
    )


def turned(default: float) -> Part:
    """The width of the part of a head that has rotary positions; 0: all of it."""

    def read(keys: Keys) -> Fields:
        width = keys.size("head_dim", keys.size("hidden_size") // keys.size("num_attention_heads"))
        part = (
            int(width * share_turned(keys, default))
            if keys.value("rotary_dim") is None
            else keys.size("rotary_dim")
        )
        return {"rotary_width": part if part < width else 0}

    return read


def tied(default: bool = True, *, other: str = "") -> Part:
    """Use the embedding table as the output layer, if the config says so; ``other`` is the key's
    name in older files.
    """
    return lambda keys: {
        "tie_word_embeddings": keys.flag(
            other if other and keys.value(other) is not None else "tie_word_embeddings", default
        )
    }


def activation(key: str, default: str) -> Part:
    """The activation of an MLP."""
    return lambda keys: {"hidden_act": keys.activation(key, default)}


def only(**expected: object) -> Part:
    """Keys for which the builder supports one value only."""

    def read(keys: Keys) -> Fields:
        keys.only(**expected)
        return {}

    return read


def normed_heads(key: str = "", *, default: bool = True, over: str = "head") -> Part:
    """Norms of queries and keys, always or if ``key`` says so."""
    return lambda keys: {"qk_norm": keys.flag(key, default) if key else True, "qk_norm_over": over}


def every_nth_full(default: int, *, bare: bool = False, window: int = 0) -> Part:
    """Layers with a sliding window, among which every n-th, or each that ``layer_types`` names,
    sees all keys; ``bare``: these have no positions.
    """

    def read(keys: Keys) -> Fields:
        known = {
            **_windowed(keys, window),
            "full_attention": {"sliding_window": 0, **({"positions": "none"} if bare else {})},
        }
        if keys.value("sliding_window") is None and not window:
            known = {name: {} for name in known}
        every = keys.size("sliding_window_pattern", default)
        return {
            LAYERS: named_layers(
                keys,
                "layer_types",
                known,
                lambda n: _WINDOW if (n + 1) % every else "full_attention",
            )
        }

    return read


def _windowed(keys: Keys, default: int = 0) -> dict[str, Fields]:
    window = keys.size("sliding_window", default, 0)
    return {_WINDOW: {"sliding_window": window}, "full_attention": {"sliding_window": 0}}


def windows(default: int, key: str = "") -> Part:
    """A window, and full attention in each n-th layer: ``default`` or the value of ``key``; or the
    kinds that ``layer_types`` lists, in any order.
    """

    def read(keys: Keys) -> Fields:
        found = keys.windows(
            count_of_layers(keys) if keys.value("num_hidden_layers") is not None else 26,
            keys.size(key, default) if key else default,
        )
        return (
            kinds_of(named_layers(keys, "layer_types", _windowed(keys), lambda n: ""))
            if found is None
            else found
        )

    return read


def capped(keys: Keys) -> Fields:
    """Logits are bounded if the config gives a bound."""
    return {"final_softcap": keys.value("final_logit_softcapping") is not None}


def late_windows(keys: Keys) -> Fields:
    """A window in the layers from ``max_window_layers`` on, or in those that ``layer_types`` lists,
    if windows are used (Qwen).
    """
    if not keys.flag("use_sliding_window", False) or not keys.value("sliding_window"):
        return {}
    first = keys.size("max_window_layers", 28, 0)
    return {
        LAYERS: named_layers(
            keys,
            "layer_types",
            _windowed(keys),
            lambda n: _WINDOW if n >= first else "full_attention",
        )
    }


def listed_windows(usual: Callable[[int, Keys], str]) -> Part:
    """Layers with a sliding window and with full attention, as ``layer_types`` lists them;
    ``usual`` is the default.
    """
    return lambda keys: {
        LAYERS: named_layers(keys, "layer_types", _windowed(keys), lambda n: usual(n, keys))
    }


def all_windowed(keys: Keys) -> Fields:
    """A window in all layers, if there is one."""
    return {"sliding_window": keys.window()}


def mixed(
    linear: Fields,
    usual: Callable[[int, Keys], str] | None = None,
    *,
    others: Fields | None = None,
    key: str = "layer_types",
) -> Part:
    """Layers of ``linear`` between layers of attention, as ``layer_types`` lists them; ``others``
    are fields of the latter.
    """

    def read(keys: Keys) -> Fields:
        known = {**{name: others or {} for name in _FULL}, **dict.fromkeys(_LINEAR, linear)}
        return {
            LAYERS: named_layers(
                keys, key, known, lambda n: usual(n, keys) if usual else _LINEAR[0]
            )
        }

    return read


def every(default: int, key: str = "full_attention_interval") -> Callable[[int, Keys], str]:
    """Every n-th layer is one of attention."""
    return lambda n, keys: _LINEAR[0] if (n + 1) % keys.size(key, default) else _FULL[0]


def bare_layers(keys: Keys) -> Fields:
    """Return the layers without positions: those whose entry in ``no_rope_layers`` is 0, or every
    n-th.
    """
    count, step = count_of_layers(keys), keys.size("no_rope_layer_interval", 4)
    listed = keys.value("no_rope_layers") or [int((n + 1) % step != 0) for n in range(count)]
    keys.refuse(
        "no_rope_layers",
        not isinstance(listed, list)
        or len(listed) < count
        or not all([type(each) in (int, bool) for each in listed]),
        f"expected a list of {count} numbers, got {listed!r}",
    )
    return {LAYERS: [{} if has else {"positions": "none"} for has in listed[:count]]}


def latent(keys: Keys) -> Fields:
    """Attention over latent vectors."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rotated = keys.size("qk_rope_head_dim")
    return {
        "q_lora_rank": keys.size("q_lora_rank", 0, 0),
        "head_dim": rotated,
        **{name: keys.size(name) for name in names},
    }


def indexed(heads: int) -> Part:
    """Return the fields of the indexer that chooses the latents for a query; layers that
    ``indexer_types`` calls shared use another layer's choice.
    """

    def read(keys: Keys) -> Fields:
        count = keys.size("index_n_heads", heads)
        known = {"full": {}, "shared": {"index_n_heads": 0}}
        pattern = keys.value("index_topk_pattern")
        freq, offset = keys.size("index_topk_freq", 1), keys.size("index_skip_topk_offset", 2, 0)
        if isinstance(pattern, str) and keys.value("indexer_types") is None:
            layers = [known["shared" if letter == "S" else "full"] for letter in pattern]
        else:
            layers = named_layers(
                keys,
                "indexer_types",
                known,
                lambda n: "shared" if max(n - offset + 1, 0) % freq else "full",
            )
        sizes = {
            "index_topk": keys.size("index_topk", 2048),
            "index_head_dim": keys.size("index_head_dim", 128),
        }
        return {**sizes, "index_n_heads": count, LAYERS: layers}

    return read


# -- mixtures of experts, and mixers of linear time ------------------------------------------------
# Parts for mixtures of experts and for mixers of linear time, from the keys of a ``config.json``.

Sparse = Callable[[Keys], list[bool]]
"""A function that returns, for each layer, whether it has experts."""

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
    """Experts behind a router with ``scores``, with ``added`` as their correction, in the layers
    ``where``.

    If the config does not say, ``top`` is the number of experts that a token takes, ``count`` their
    number and ``wide`` their width; ``width`` is the key of the width.
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
        keys.refuse(
            "num_experts_per_tok",
            sizes["num_experts_per_tok"] > sizes["num_experts"],
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
    """All layers are mixtures; the width of a dense MLP is set to that of an expert."""
    return {"intermediate_size": keys.size("moe_intermediate_size")}


def listed(first: int, key: str = "first_k_dense_replace") -> Sparse:
    """The layers that ``mlp_layer_types`` calls sparse, or all after the first ``first``."""

    def read(keys: Keys) -> list[bool]:
        before = keys.size(key, first, 0)
        known = {"dense": {}, "sparse": {"is": True}}
        found = named_layers(
            keys, "mlp_layer_types", known, lambda n: "dense" if n < before else "sparse"
        )
        return [bool(each) for each in found]

    return read


def stepped(keys: Keys) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer except those of ``mlp_only_layers`` (Qwen)."""
    step, dense = keys.size("decoder_sparse_step", 1), keys.value("mlp_only_layers") or []
    return [(n + 1) % step == 0 and n not in dense for n in range(count_of_layers(keys))]


def between(keys: Keys) -> list[bool]:
    """Every ``moe_layer_interval``-th layer from a first to a last one (ERNIE)."""
    layers, step = count_of_layers(keys), keys.size("moe_layer_interval", 1)
    start, end = keys.size("moe_layer_start_index", 1, 0), keys.size("moe_layer_end_index", -1, -1)
    last = layers - 1 if end == -1 else end
    return [(n + 1) % step == 0 and start <= n <= last for n in range(layers)]


def interleaved(keys: Keys) -> list[bool]:
    """The layers in ``moe_layers``, or every ``interleave_moe_layer_step``-th (Llama 4)."""
    layers, given = count_of_layers(keys), keys.value("moe_layers")
    if given is not None:
        return [n in given for n in range(layers)]
    step = keys.size("interleave_moe_layer_step", 1, 0)
    return [step > 0 and (n + 1) % step == 0 for n in range(layers)]


def periodic(keys: Keys) -> list[bool]:
    """Every ``expert_layer_period``-th layer from an offset on (Jamba)."""
    period, offset = keys.size("expert_layer_period", 2), keys.size("expert_layer_offset", 1, 0)
    return [n % period == offset for n in range(count_of_layers(keys))]


def shared(key: str = "n_shared_experts", default: int = 0) -> Part:
    """The number of experts that all tokens pass."""
    return lambda keys: {"n_shared_experts": keys.size(key, default, 0)}


def shared_wide(key: str, default: int = 0, *, gated: bool = False) -> Part:
    """Return the width of the expert that all tokens pass; ``gated``: its result is multiplied by a
    sigmoid.
    """

    def read(keys: Keys) -> Fields:
        width = keys.size(key, default, 0)
        return {"shared_intermediate_size": width, "shared_expert_gate": gated and width > 0}

    return read


def delta(heads: tuple[int, int] = (16, 32), widths: tuple[int, int] = (128, 128)) -> Part:
    """The sizes of gated delta nets. ``heads`` and ``widths`` are the defaults for keys
    and values.
    """
    return lambda keys: {
        "state_groups": keys.size("linear_num_key_heads", heads[0]),
        "state_heads": keys.size("linear_num_value_heads", heads[1]),
        "state_size": keys.size("linear_key_head_dim", widths[0]),
        "state_head_dim": keys.size("linear_value_head_dim", widths[1]),
        "conv_kernel": keys.size("linear_conv_kernel_dim", 4),
    }


def mamba2(*, inner: str = "") -> Part:
    """The sizes of Mamba-2 under the keys of Bamba, Granite and Falcon-H1; ``inner`` is the key of
    its width, if there is one.
    """

    def read(keys: Keys) -> Fields:
        heads = keys.size("mamba_n_heads", 128)
        wide = keys.size("mamba_expand", 2) * keys.size("hidden_size")
        wide = keys.size(inner, wide) if inner else wide
        given = keys.value("mamba_d_head")
        width = wide // heads if given in (None, "auto") else keys.size("mamba_d_head")
        keys.refuse(
            "mamba_d_head",
            width * heads != wide,
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
