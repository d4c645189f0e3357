"""The sizes of decoders with layer norms and MLPs without a gate, from their ``config.json``. Each
family has its own names for the keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hosim.io.models.config import Decoder, Gpt2, Layered
from hosim.io.models.config_keys import Keys, all_biases
from hosim.io.models.config_parts import kinds_of, share_turned


def _opt(keys: Keys) -> Decoder:
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    keys.only(
        do_layer_norm_before=True,
        word_embed_proj_dim=hidden,
        layer_norm_elementwise_affine=True,
        _remove_final_layer_norm=False,
    )
    bias = keys.flag("enable_bias", True)
    return _plain(
        keys,
        (
            hidden,
            keys.size("num_hidden_layers"),
            heads,
            heads,
            keys.size("ffn_dim"),
            keys.size("vocab_size", 50272),
        ),
        positions="learned",
        max_position_embeddings=keys.size("max_position_embeddings", 2048),
        extra_positions=2,
        hidden_act=keys.activation("activation_function", "relu"),
        dropout=keys.share("dropout", 0.1),
        names="opt",
        **all_biases(bias),
    )


def _bloom(keys: Keys) -> Decoder:
    keys.only(apply_residual_connection_post_layernorm=False)
    hidden, heads = (
        keys.either("hidden_size", "n_embed"),
        keys.either("n_head", "num_attention_heads"),
    )
    return _plain(
        keys,
        (
            hidden,
            keys.either("n_layer", "num_hidden_layers"),
            heads,
            heads,
            4 * hidden,
            keys.size("vocab_size", 250880),
        ),
        positions="alibi",
        embedding_norm=True,
        fused_projections=True,
        hidden_act="gelu",
        dropout=keys.share("hidden_dropout", 0.0),
        names="bloom",
        **all_biases(True),
    )


def _falcon(keys: Keys) -> Decoder:
    """The first architecture has one head of keys or as many as of queries. The new one has groups
    and, by default, two norms in a block.
    """
    hidden, heads = (
        keys.either("hidden_size", "n_embed"),
        keys.either("num_attention_heads", "n_head"),
    )
    new, bias = keys.flag("new_decoder_architecture", False), keys.flag("bias", False)
    keys.only(**({"parallel_attn": True} if new else {"num_ln_in_parallel_attn": 1}))
    parallel = keys.flag("parallel_attn", True)
    one_norm = parallel and not (new and keys.size("num_ln_in_parallel_attn", 2) == 2)
    if new:
        kv_heads = keys.either("num_kv_heads", "n_head_kv", default=heads)
    else:
        kv_heads = 1 if keys.flag("multi_query", True) else heads
    sizes = (
        hidden,
        keys.either("num_hidden_layers", "n_layer"),
        heads,
        kv_heads,
        keys.size("ffn_hidden_size", 4 * hidden),
    )
    return _plain(
        keys,
        (*sizes, keys.size("vocab_size", 65024)),
        positions="alibi" if keys.flag("alibi", False) else "rotary",
        parallel_block=parallel,
        shared_norm=one_norm,
        fused_projections=True,
        hidden_act=keys.activation("activation", "gelu"),
        dropout=keys.share("hidden_dropout", 0.0),
        names="falcon-two-norms" if parallel and not one_norm else "falcon",
        **all_biases(bias),
    )


def _mpt(keys: Keys) -> Decoder:
    keys.only(no_bias=True, expansion_ratio=4)
    attention = keys.inside("attn_config")
    attention.only(alibi=True, attn_type="multihead_attention", qk_ln=False)
    hidden, heads = keys.size("d_model"), keys.size("n_heads")
    return _plain(
        keys,
        (hidden, keys.size("n_layers"), heads, heads, 4 * hidden, keys.size("vocab_size", 50368)),
        norm="layer_without_bias",
        positions="alibi",
        fused_projections=True,
        hidden_act="gelu",
        attention_dropout=attention.share("attn_pdrop", 0.0),
        names="mpt",
    )


def _gpt_neox(keys: Keys) -> Decoder:
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    turned = int(hidden // heads * share_turned(keys, keys.share("rotary_pct", 0.25)))
    bias = keys.flag("attention_bias", True)
    return _plain(
        keys,
        (
            hidden,
            keys.size("num_hidden_layers"),
            heads,
            heads,
            keys.size("intermediate_size"),
            keys.size("vocab_size", 50432),
        ),
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        parallel_block=keys.flag("use_parallel_residual", True),
        rotary_width=turned if turned < hidden // heads else 0,
        fused_projections=True,
        hidden_act=keys.activation("hidden_act", "gelu"),
        dropout=keys.share("hidden_dropout", 0.0),
        embedding_dropout=keys.share("hidden_dropout", 0.0),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        names="gpt-neox",
    )


def _gptj(keys: Keys) -> Decoder:
    hidden, heads = (
        keys.either("n_embd", "hidden_size"),
        keys.either("n_head", "num_attention_heads"),
    )
    sizes = (
        hidden,
        keys.either("n_layer", "num_hidden_layers"),
        heads,
        heads,
        keys.size("n_inner", 4 * hidden),
    )
    width = keys.size("rotary_dim", 64)
    return _plain(
        keys,
        (*sizes, keys.size("vocab_size", 50400)),
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        parallel_block=True,
        shared_norm=True,
        rotary_width=width if width < hidden // heads else 0,
        hidden_act=keys.activation("activation_function", "gelu_new"),
        dropout=keys.share("resid_pdrop", 0.0),
        embedding_dropout=keys.share("embd_pdrop", 0.0),
        attention_dropout=keys.share("attn_pdrop", 0.0),
        mlp_bias=True,
        head_bias=True,
        names="gptj",
    )


def _codegen(keys: Keys) -> Decoder:
    """GPT-J with one product for queries, keys and values."""
    return replace(_gptj(keys), fused_projections=True)


def _gpt_bigcode(keys: Keys) -> Decoder:
    """GPT-2 with one head of keys, or as many as of queries."""
    hidden, heads = (
        keys.either("n_embd", "hidden_size"),
        keys.either("n_head", "num_attention_heads"),
    )
    keys.only(add_cross_attention=False)
    kv_heads = 1 if keys.flag("multi_query", True) else heads
    layers, inner = keys.either("n_layer", "num_hidden_layers"), keys.size("n_inner", 4 * hidden)
    return _plain(
        keys,
        (hidden, layers, heads, kv_heads, inner, keys.size("vocab_size", 50257)),
        positions="learned",
        max_position_embeddings=keys.either("n_positions", "max_position_embeddings", default=1024),
        fused_projections=True,
        hidden_act=keys.activation("activation_function", "gelu_pytorch_tanh"),
        dropout=keys.share("resid_pdrop", 0.1),
        embedding_dropout=keys.share("embd_pdrop", 0.1),
        attention_dropout=keys.share("attn_pdrop", 0.1),
        names="gpt2",
        **all_biases(True),
    )


def _gpt_neo(keys: Keys) -> Decoder:
    """Layers see all keys or a window, as ``attention_types`` lists them; by default they
    alternate.
    """
    hidden, heads = keys.size("hidden_size"), keys.either("num_heads", "num_attention_heads")
    layers = keys.either("num_layers", "num_hidden_layers")
    given = keys.value("attention_types") or [[["global", "local"], layers]]
    names = [name for kinds, count in given for _ in range(count) for name in kinds][:layers]
    keys.refuse(
        "attention_types",
        len(names) < layers or not {*names} <= {"global", "local"},
        f"expected {layers} layers of 'global' or 'local', got {given!r}",
    )
    windows = {
        "global": {"sliding_window": 0},
        "local": {"sliding_window": keys.size("window_size", 256)},
    }
    return _plain(
        keys,
        (
            hidden,
            layers,
            heads,
            heads,
            keys.size("intermediate_size", 4 * hidden),
            keys.size("vocab_size", 50257),
        ),
        positions="learned",
        max_position_embeddings=keys.size("max_position_embeddings", 2048),
        hidden_act=keys.activation("activation_function", "gelu_new"),
        dropout=keys.share("resid_dropout", 0.0),
        embedding_dropout=keys.share("embed_dropout", 0.0),
        out_bias=True,
        mlp_bias=True,
        names="gpt-neo",
        **kinds_of([windows[name] for name in names]),
    )


def _plain(keys: Keys, sizes: tuple[int, int, int, int, int, int], **more: Any) -> Decoder:
    """A decoder with layer norms and MLPs without a gate, whose heads are together as wide as its
    hidden state.
    """
    if sizes[0] % sizes[2]:
        width = next(
            key for key in ("d_model", "n_embd", "n_embed", "hidden_size") if key in keys.read
        )
        raise keys.refusal(width, f"expected a multiple of the {sizes[2]} heads, got {sizes[0]}")
    tied = keys.flag("tie_word_embeddings", True)
    dropped = (
        {}
        if "attention_dropout" in more
        else {"attention_dropout": keys.share("attention_dropout", 0.0)}
    )
    return Decoder(
        *sizes,
        **{
            "head_dim": sizes[0] // sizes[2],
            "tie_word_embeddings": tied,
            "gated_mlp": False,
            "norm": "layer",
            **dropped,
            **more,
        },
    )


def _gpt2(keys: Keys) -> Gpt2:
    width = keys.size("n_embd")
    keys.only(
        n_inner=4 * width,
        activation_function="gelu_new",
        tie_word_embeddings=True,
        add_cross_attention=False,
    )
    dropped = keys.share("resid_pdrop", 0.1)
    others = [
        share if share != dropped else None
        for share in (keys.share("embd_pdrop", 0.1), keys.share("attn_pdrop", 0.1))
    ]
    return Gpt2(
        width,
        keys.size("n_layer"),
        keys.size("n_head"),
        keys.size("vocab_size", 50257),
        keys.size("n_positions", 1024),
        dropped,
        *others,
    )


PLAIN: Mapping[str, Callable[[Keys], Layered]] = MappingProxyType(
    {
        "opt": _opt,
        "bloom": _bloom,
        "falcon": _falcon,
        "mpt": _mpt,
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "gptj": _gptj,
        "codegen": _codegen,
        "gpt_bigcode": _gpt_bigcode,
        "gpt_neo": _gpt_neo,
        "gpt-sw3": _gpt2,
    }
)
"""By ``model_type``."""
