"""Describe what types of models have that no builder knows, for the line that refuses them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
"""By ``model_type``."""
