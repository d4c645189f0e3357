"""The sizes of a model from its public ``config.json``, as transformers writes it.

Keys that change neither sizes nor work are ignored. A key that does, and that no builder knows, is
an error, because the model would be another one without it. Parts that a builder can omit without
an error in the rest, such as quantised weights, are reported.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from hosim.errors import InputError
from hosim.io.models.config import Layered
from hosim.io.models.config_keys import Keys
from hosim.io.models.configs_of_mixers import OF_MIXERS, OF_PATTERNS
from hosim.io.models.configs_of_others import OF_DEEPSEEK4, OF_GEMMA4, OTHERS
from hosim.io.models.configs_of_parts import GATED, OF_PARTS
from hosim.io.models.configs_of_plain import PLAIN
from hosim.io.models.stored_weights import stored_weights
from hosim.io.models.weight_bytes import stated_bytes

_BY_KEY: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "num_key_value_heads": (
        (
            8,
            "mistral mixtral gpt_oss qwen2_vl_text qwen2_5_vl_text iquestcoder "
            "emu3_text_model glm4_moe solar_open minimax_m2 phimoe seed_oss llama4_text "
            "ministral ministral3 cwm exaone hy_v3 bamba falcon_h1 nemotron_h jamba lfm2 "
            "lfm2_moe minimax laguna",
        ),
        (
            4,
            "qwen3_moe gemma2 qwen2_5_omni_text qwen3_omni_moe_text sarvam_moe smollm3 "
            "ernie4_5_moe granite_swa vaultgemma mellum qwen3_5_text flint kolibri1 "
            "lara_mini lfm3 gemma4_text gemma4_unified_text",
        ),
        (
            2,
            "starcoder2 internlm3 glm glm4 ernie4_5 qwen3_next qwen3_5_moe_text gemma3n_text",
        ),
        (5, "bitnet"),
    ),
    "sliding_window": (
        (
            4096,
            "mistral gemma2 gemma3_text cohere2 exaone4 exaone_moe ministral vaultgemma "
            "cohere2_moe",
        ),
        (128, "gpt_oss granite_swa granitemoe_swa"),
        (8192, "cwm"),
        (513, "flint kolibri1"),
        (1024, "gemma4_unified_text"),
    ),
    "n_shared_experts": ((1, "deepseek_v3 sarvam_mla"),),
    "q_lora_rank": (
        (1536, "deepseek_v3 deepseek_v32 youtu"),
        (768, "glm4_moe_lite minicpm3"),
        (2048, "glm_moe_dsa"),
    ),
    "final_logit_softcapping": (
        (30.0, "gemma2 vaultgemma"),
        (15.0, "nanochat"),
    ),
    "n_group": (
        (1, "sarvam_mla"),
        (8, "deepseek_v32"),
    ),
    "first_k_dense_replace": ((1, "sarvam_mla"),),
    "tie_word_embeddings": ((True, "granite_swa mt5"),),
    "moe_intermediate_size": ((1408, "qwen3_vl_moe_text"),),
    "num_experts_per_tok": (
        (4, "qwen3_vl_moe_text"),
        (6, "afmoe"),
    ),
    "num_local_experts": ((60, "qwen3_vl_moe_text"),),
    "attention_dropout": ((0.1, "emu3_text_model seed_oss"),),
    "use_qk_norm": ((True, "sarvam_moe"),),
    "partial_rotary_factor": ((1.0, "sarvam_moe"),),
    "head_dim": (
        (128, "minimax_m2 mellum"),
        (256, "qwen3_next qwen3_5_moe_text"),
    ),
    "use_post_norm": ((True, "hyperclovax"),),
    "num_shared_experts": ((2, "afmoe"),),
    "moe_shared_expert_intermediate_size": ((7688, "nemotron_h"),),
    "id2label": (({"0": "", "1": ""}, "vit"),),
}
"""Defaults by key: values, each with the types that it is for."""


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the defaults of the keys that it omits.

    >>> with_defaults({"model_type": "bitnet"})
    {'num_key_value_heads': 5, 'model_type': 'bitnet'}
    """
    kind = config.get("model_type")
    taken = {
        key: value
        for key, values in _BY_KEY.items()
        for value, kinds in values
        if kind in kinds.split()
    }
    return {**taken, **config}


# -- parts that hosim does not know ----------------------------------------------------------------


_TRANSLATORS = (
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "marian",
    "mbart",
    "mvp",
    "pegasus",
    "plbart",
    "prophetnet",
)
_ENCODERS = (
    *(
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
    ),
    *(
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ),
)

UNKNOWN_PARTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            _TRANSLATORS, "an encoder and a decoder that reads it, other than T5's and Whisper's"
        ),
        **dict.fromkeys(
            _ENCODERS, "an encoder with another embedding, position or head than BERT's"
        ),
        **dict.fromkeys(
            ("moshi", "musicgen", "musicgen_melody"),
            "several streams of codes at once (num_codebooks)",
        ),
        **dict.fromkeys(
            ("inkling_text", "inkling2_text", "inkling2_loop_text"),
            "short convolutions of keys and values, and learned distances",
        ),
        **dict.fromkeys(
            ("biogpt", "ctrl", "openai-gpt", "xglm"),
            "positions or an order of norms that no builder has",
        ),
        "axk2": "norms with an MLP of their own (gated_norm_rank)",
        "hy_v4": "latent attention with a gate among hyper-connections (hc_mult)",
        "dory": "layers that run in a loop (n_recurrent_loops)",
        "axk1": "a norm inside the mixture (post_mlp_layernorm)",
        "bailing_hybrid": "delta attention whose decay is a product of full rank",
        "blt": "patches of bytes",
        "dbrx": "norms of a block of norm and attention (norm_attn_norm)",
        "diffllama": "the difference of two attentions",
        "doge": "the mask of dynamic attention",
        "jetmoe": "mixtures of attention",
        "longcat_flash": "two attentions a layer and experts that compute nothing "
        "(zero_expert_num)",
        "minimax_m3": "blocks of keys that an index chooses (sparse_attention_config)",
        "minimax_m3_vl_text": "blocks of keys that an index chooses (index_topk_blocks)",
        "cohere_compass_text": "positions of three dimensions (mrope) in Cohere's layers",
        "cpmant": "learned distances in buckets (position_bias_num_buckets)",
        "dots3_note_text": "latent attention of two widths with gates (k_rope_only_layernorm)",
        "git": "an image before the text, which every layer reads",
        "gpt_neox_japanese": "a bias of attention in the last layer alone",
        "hrm_text": "two stacks of layers that run in turns (H and L)",
        "modernbert-decoder": "a first layer without a norm",
        "nemotron-nas": "blocks that each have sizes of their own (block_configs)",
        "qwen4_exp_text": "gates between several residual streams (hc_count)",
        "trocr": "a decoder that reads an image's encoder",
        "mllama": "attention over an image in some layers (cross_attention_layers)",
        "mpnet": "relative positions in buckets",
        "phi4_multimodal": "adapters of images and sound",
        "recurrent_gemma": "the gated linear recurrence of Griffin",
        "reformer": "attention within buckets of a hash",
        "rwkv": "the time mixing of RWKV",
        "xlnet": "attention over permutations",
        "xlstm": "the memories of xLSTM",
        "zamba": "layers that share one attention",
        "zamba2": "layers that share one attention",
        "zaya": "compressed convolutional attention",
    }
)
"""The part that no builder knows, by ``model_type``."""


# -- configurations --------------------------------------------------------------------------------


def sizes_of(config: Mapping[str, Any]) -> tuple[Layered, Mapping[str, Any], tuple[str, ...]]:
    """The sizes that a ``config.json`` describes.

    Parameters
    ----------
    config
        The contents of the file, with ``model_type``.

    Returns
    -------
    tuple
        Sizes for the builder of the model's family, the part of ``config`` that they come from, and
        a line for each thing that ``config`` requests and the builder omits.

    Raises
    ------
    InputError
        If no builder knows the model's type, a size is missing or is not a number, or a key
        requests something that the builder does not have.

    References
    ----------
    The configuration classes of transformers, the source of the defaults of optional keys.

    Examples
    --------
    >>> from hosim.io.models import sizes_of
    >>> sizes, read, _ = sizes_of(
    ...     {
    ...         "model_type": "gpt2",
    ...         "n_embd": 768,
    ...         "n_layer": 12,
    ...         "n_head": 12,
    ...         "torch_dtype": "float32",
    ...     }
    ... )
    >>> sizes.vocab_size, sorted(read)
    (50257, ['model_type', 'n_embd', 'n_head', 'n_layer', 'torch_dtype'])
    """
    kind = config.get("model_type")
    where = next((key for key in _TEXTS if isinstance(config.get(key), Mapping)), "")
    inside: Mapping[str, Any] = config[where] if where else {}
    if (
        isinstance(kind, str)
        and (kind not in READERS or kind in _WITH_TEXT)
        and (inside or kind in _WITH_TEXT)
    ):
        # older files have the text model's keys among the others, or give it no type
        text = f"{kind}_text" if f"{kind}_text" in {**READERS, **UNKNOWN_PARTS} else None
        inside = {
            **(inside or config),
            "model_type": inside.get("model_type") or _WITH_TEXT.get(kind) or text,
        }
        try:
            sizes, read, left_out = sizes_of(inside)
        except InputError as error:
            raise InputError(
                error.message, where=f"{where}.{error.where}" if where else error.where
            ) from None
        outside = Keys({key: value for key, value in config.items() if key not in inside})
        _beside_sizes(outside)
        left_out = (*left_out, *outside.left_out(), f"all of {kind} but its text model")
        return (
            sizes,
            {**({where: read} if where else read), "model_type": kind, **outside.read},
            left_out,
        )
    if kind is None:
        raise InputError(
            "missing; a config.json of transformers has one, such as llama", where="model_type"
        )
    if not isinstance(kind, str) or kind not in READERS:
        raise _unknown(kind)
    given = with_defaults(config)
    keys = Keys(given)
    sizes = READERS[kind](keys)
    _beside_sizes(keys)
    left_out, defaults = keys.left_out(), given.keys() - config.keys()
    read = {key: value for key, value in keys.read.items() if key not in defaults}
    return sizes, {"model_type": kind, **read}, left_out


def _unknown(kind: object) -> InputError:
    """The error for a type that no builder knows. It names the unknown part of the model, if it is
    listed.
    """
    part = UNKNOWN_PARTS.get(kind) if isinstance(kind, str) else None
    if part is not None:
        return InputError(f"no builder knows {part}, which {kind!r} has", where="model_type")
    near = get_close_matches(str(kind), READERS, n=3)
    hint = f" (near: {', '.join(near)})" if near else ""
    many = f"expected a model_type that a builder knows, of which there are {len(READERS)}{hint}"
    return InputError(f"{many}; docs/formats.md has them; got {kind!r}", where="model_type")


def _beside_sizes(keys: Keys) -> None:
    """Read the keys that are no sizes but change the bytes of the weights: their dtype, and the
    sizes in a checkpoint's files.

    Raises :class:`InputError` for layers with sizes of their own that the type's reader has not
    read.
    """
    keys.dtype()
    keys.refuse(
        "per_layer_config",
        "per_layer_config" not in keys.read and keys.value("per_layer_config"),
        "expected none: of this model_type the builder has no layers with sizes of their own",
    )
    stated_bytes(keys)
    stored_weights(keys)


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """The dtype of the weights in a ``config.json``; ``None`` if it does not say. Raises
    :class:`InputError`.

    >>> (
    ...     dtype_of({"torch_dtype": "float32"}),
    ...     dtype_of({"text_config": {"dtype": "bfloat16"}}),
    ...     dtype_of({}),
    ... )
    ('fp32', 'bf16', None)
    """
    inside = config.get("text_config")
    return Keys(config).dtype() or (
        Keys(inside, "text_config.").dtype() if isinstance(inside, Mapping) else None
    )


_TEXTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys under which models of images and sound have their text model."""
_WITH_TEXT: Mapping[str, str] = MappingProxyType(
    {
        "qwen2_vl": "qwen2_vl_text",
        "qwen2_5_vl": "qwen2_5_vl_text",
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_vl_moe": "qwen3_vl_moe_text",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
        "gemma3": "gemma3_text",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text",
        "llama4": "llama4_text",
        "kimi_vl": "deepseek_v3",
        "kimi_k25": "kimi_k2",
        "llava": "llama",
        "mistral3": "mistral",
    }
)
"""Models whose config has a text model, with its type if the config does not say."""
READERS: Mapping[str, Callable[[Keys], Layered]] = MappingProxyType(
    {
        **GATED,
        **OF_PARTS,
        **OF_MIXERS,
        **OF_PATTERNS,
        **OF_GEMMA4,
        **OF_DEEPSEEK4,
        **PLAIN,
        **OTHERS,
    }
)
"""Functions that read a config, by ``model_type``."""
