"""What types of models have that no builder knows, for the line that refuses them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

UNKNOWN_PARTS: Mapping[str, str] = MappingProxyType(
    {
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
        "longcat_flash": "two attentions a layer and experts that compute nothing (zero_expert_num)",
        "minimax_m3_vl_text": "blocks of keys that an index chooses (index_topk_blocks)",
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
