"""How each number that a builder takes changes what it builds: a row for every builder and
parameter.

A row builds a model for several values of one parameter, and says of each quantity of the graphs
how it follows them. What it does not name stays the same. The words:

- ``times``: in proportion. ``steps``, ``falls``: by an equal amount for each unit. ``curve``: as a
  polynomial of degree 2.
- ``shared``: as 1/value. ``shares``: a part of it as 1/value, and the rest not.
- ``more``, ``less``: in that direction. ``changes``: neither way.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest

from hosim.io.models import FAMILIES, PRESETS, RoutingDraw, Run, build


class Row(NamedTuple):
    """``models`` by name, one parameter and its values, and the words of the quantities that follow
    it.

    Of ``told``, ``deep`` is how many layers the model has, and ``config`` replaces sizes of
    :data:`MODELS`.
    """

    models: str
    parameter: str
    values: tuple[Any, ...]
    phase: str
    expected: str
    told: Mapping[str, Any] = {}


HEADS = {"hidden_size": 64, "num_attention_heads": 4}
SIZES = {**HEADS, "num_hidden_layers": 2, "intermediate_size": 96}
GROUPED = {**SIZES, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 96}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
OF_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
MAMBA2 = {
    "mixer": "mamba2",
    "state_heads": 4,
    "state_head_dim": 8,
    "state_groups": 2,
    "state_size": 8,
    "conv_kernel": 4,
}
INDEXED = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
INPUTS = {"layer_input_size": 8, "layer_input_vocab": 96}
COMPRESSED = {
    "output_rank": 8,
    "output_groups": 2,
    "compress_rate": 4,
    "q_lora_rank": 16,
    "sliding_window": 8,
    "streams": 2,
}
COMPRESSED |= {"num_key_value_heads": 1}
UPDATED = {**INPUTS, "streams": 2, "laurel_rank": 8}
HALVES = {
    f"{half}_{part}": n
    for half in ("encoder", "decoder")
    for part, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
}
POSITIONS = {"max_source_positions": 24, "max_target_positions": 192}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "decoder": ("llama-3.1-8b", GROUPED),
    "experts": ("deepseek-v2-lite", {**GROUPED, **OF_EXPERTS, **LATENT, "n_group": 2}),
    "gpt2": (
        "gpt2",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 192},
    ),
    "bert": ("bert-base", {**SIZES, "vocab_size": 96, "max_position_embeddings": 192}),
    "t5": (
        "t5-small",
        {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 96, "vocab_size": 96},
    ),
    "whisper": (
        "whisper-tiny",
        {"d_model": 64, **HALVES, **POSITIONS, "vocab_size": 96, "num_mel_bins": 8},
    ),
    "vit": ("vit-b-16", {**SIZES, "image_size": 32, "patch_size": 8, "num_labels": 10}),
    "dit": (
        "dit-b-2",
        {
            **HEADS,
            "num_hidden_layers": 2,
            "input_size": 8,
            "num_classes": 10,
            "frequency_embedding_size": 16,
        },
    ),
}
OF_DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")
DECODERS, IMAGES = ("decoder", "experts", "gpt2"), ("vit", "dit")

ROWS = (
    Row(
        "decoder experts gpt2 bert t5 whisper vit dit",
        "batch",
        (8, 16, 24, 32),
        "train",
        "steps activation; times flops input workspace",
    ),
    Row(
        "decoder experts gpt2",
        "batch",
        (8, 16, 24, 32),
        "prefill",
        "steps activation; times flops input kv_cache output workspace",
    ),
    Row(
        "decoder experts gpt2",
        "batch",
        (8, 16, 24, 32),
        "decode",
        "steps activation; times flops input kv_cache output workspace",
        {"context": 48},
    ),
    Row(
        "bert whisper",
        "batch",
        (8, 16, 24, 32),
        "forward",
        "steps activation; times flops input output workspace",
    ),
    Row("t5", "batch", (8, 16, 24, 32), "forward", "steps activation; times flops input output"),
    Row(
        "vit dit",
        "batch",
        (8, 16, 24, 32),
        "forward",
        "times activation flops input output workspace",
    ),
    Row(
        "t5",
        "batch",
        (8, 16, 24, 32),
        "decode",
        "steps activation; times flops input kv_cache output",
        {"context": 48},
    ),
    Row(
        "whisper",
        "batch",
        (8, 16, 24, 32),
        "decode",
        "steps activation; times flops input kv_cache output workspace",
        {"context": 48},
    ),
    Row(
        "decoder experts gpt2 bert",
        "sequence",
        (16, 32, 48, 64),
        "train",
        "curve flops; steps activation; times input workspace",
    ),
    Row(
        "t5", "sequence", (16, 32, 48, 64), "train", "curve activation flops; times input workspace"
    ),
    Row(
        "whisper",
        "sequence",
        (16, 32, 48, 64),
        "train",
        "curve flops; steps activation input workspace",
    ),
    Row(
        "decoder gpt2",
        "sequence",
        (16, 32, 48, 64),
        "prefill",
        "curve flops; times activation input kv_cache workspace",
    ),
    Row(
        "experts",
        "sequence",
        (16, 32, 48, 64),
        "prefill",
        "curve flops; steps activation; times input kv_cache workspace",
    ),
    Row(
        "bert",
        "sequence",
        (16, 32, 48, 64),
        "forward",
        "curve flops; times activation input output workspace",
    ),
    Row(
        "t5", "sequence", (16, 32, 48, 64), "forward", "curve activation flops; times input output"
    ),
    Row(
        "whisper",
        "sequence",
        (16, 32, 48, 64),
        "forward",
        "curve flops; steps activation input workspace; times output",
    ),
    Row(
        "decoder experts gpt2", "context", (16, 32, 48, 64), "decode", "steps flops; times kv_cache"
    ),
    Row("t5", "context", (16, 32, 48, 64), "decode", "steps activation flops kv_cache"),
    Row("whisper", "context", (16, 32, 48, 64), "decode", "steps flops kv_cache"),
    Row("t5", "sequence", (16, 32, 48, 64), "decode", "steps activation flops kv_cache"),
    Row(
        "decoder t5 dit",
        "layers",
        (2, 4, 6, 8),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
        {"deep": 8},
    ),
    Row(
        "experts",
        "layers",
        (2, 4, 6, 8),
        "train",
        "steps activation expert flops gradient ops optimizer_state parameter workspace; times "
        "buffer",
        {"deep": 8},
    ),
    Row(
        "gpt2 bert whisper vit",
        "layers",
        (2, 4, 6, 8),
        "train",
        "steps activation flops gradient ops optimizer_state parameter; times workspace",
        {"deep": 8},
    ),
    Row(
        "decoder experts gpt2 bert whisper vit dit",
        "checkpoint_layers",
        (2, 4, 6, 8),
        "train",
        "steps activation flops ops workspace",
        {"deep": 8, "checkpoint": True},
    ),
    Row(
        "t5",
        "checkpoint_layers",
        (2, 4, 6, 8),
        "train",
        "steps activation flops ops",
        {"deep": 8, "checkpoint": True},
    ),
    Row(
        "decoder",
        "tensor",
        (1, 2, 4),
        "train",
        "more ops sent; shared flops; shares activation gradient optimizer_state parameter "
        "workspace",
    ),
    Row(
        "experts",
        "tensor",
        (1, 2, 4),
        "train",
        "less activation; more sent; changes ops; shared expert; shares flops gradient "
        "optimizer_state parameter workspace",
    ),
    Row(
        "gpt2",
        "tensor",
        (1, 2, 4),
        "train",
        "more ops sent; shared flops workspace; shares activation gradient optimizer_state "
        "parameter",
    ),
    Row(
        "decoder",
        "tensor",
        (1, 2, 4),
        "decode",
        "more ops sent; shared flops kv_cache output workspace; shares activation parameter",
        {"context": 48},
    ),
    Row(
        "experts",
        "tensor",
        (1, 2, 4),
        "decode",
        "more ops sent; shared expert output workspace; shares activation flops parameter",
        {"context": 48},
    ),
    Row(
        "gpt2",
        "tensor",
        (1, 2, 4),
        "decode",
        "more ops sent; shared flops kv_cache output; shares activation parameter workspace",
        {"context": 48},
    ),
    Row(
        "decoder",
        "tensor",
        (2, 4),
        "train",
        "falls activation gradient optimizer_state parameter sent; shared flops workspace",
        {"sequence_parallel": True},
    ),
    Row(
        "experts",
        "expert",
        (1, 2, 4),
        "train",
        "changes activation ops sent; shared expert; shares gradient optimizer_state",
        {"data": 4},
    ),
    Row(
        "experts",
        "expert",
        (1, 2, 4),
        "decode",
        "more ops sent; changes activation; shared expert",
        {"context": 48},
    ),
    Row("experts", "chosen_experts", (1, 2, 4, 8), "decode", "steps ops", {"context": 48}),
    Row(
        "decoder",
        "pipeline",
        (1, 2, 4),
        "train",
        "less activation flops gradient input ops optimizer_state parameter workspace; more sent",
        {"deep": 8, "micro_batches": 4},
    ),
    Row(
        "experts",
        "pipeline",
        (1, 2, 4),
        "train",
        "less activation flops gradient input ops optimizer_state parameter workspace; more sent; "
        "shared buffer; shares expert",
        {"deep": 8, "micro_batches": 4},
    ),
    Row(
        "gpt2",
        "pipeline",
        (1, 2, 4),
        "train",
        "less activation flops gradient input ops optimizer_state parameter; more sent; shared "
        "workspace",
        {"deep": 8, "micro_batches": 4},
    ),
    Row("decoder experts gpt2", "stage", (1, 2), "train", "", {"deep": 8, "pipeline": 4}),
    Row(
        "decoder gpt2",
        "context_parallel",
        (1, 2, 4),
        "train",
        "less activation flops workspace; more ops sent; shared input",
    ),
    Row(
        "decoder gpt2 bert t5 whisper vit dit",
        "micro_batches",
        (1, 2, 3, 4),
        "train",
        "steps activation; times flops input ops workspace",
    ),
    Row(
        "experts",
        "micro_batches",
        (1, 2, 3, 4),
        "train",
        "steps activation ops; times flops input workspace",
    ),
    Row(
        "decoder experts gpt2",
        "chunks",
        (2, 4),
        "train",
        "steps activation ops sent",
        {"deep": 8, "pipeline": 2, "schedule": "interleaved", "micro_batches": 4},
    ),
    Row(
        "decoder",
        "group",
        (16, 32, 64),
        "decode",
        "less parameter",
        {"weights": "int4", "context": 48},
    ),
    Row(
        "gpt2",
        "group",
        (16, 32, 64),
        "decode",
        "shares parameter",
        {"weights": "int4", "context": 48},
    ),
    Row(
        "experts",
        "group",
        (16, 32, 64),
        "decode",
        "less expert",
        {"weights": "int4", "packed": "experts", "context": 48},
    ),
    Row("decoder experts gpt2 bert t5 whisper vit dit", "data", (2, 4, 8), "train", ""),
    Row(
        "decoder experts gpt2 bert t5 whisper dit",
        "data",
        (2, 4, 8),
        "train",
        "shared optimizer_state; shares gradient",
        {"zero": 1},
    ),
    Row(
        "vit",
        "data",
        (2, 4, 8),
        "train",
        "shares gradient optimizer_state; steps sent",
        {"zero": 1},
    ),
    Row(
        "decoder gpt2 t5 whisper",
        "data",
        (2, 4, 8),
        "train",
        "shared optimizer_state parameter; shares gradient sent",
        {"zero": 3},
    ),
    Row(
        "experts",
        "data",
        (2, 4, 8),
        "train",
        "shared expert optimizer_state parameter; shares gradient sent",
        {"zero": 3},
    ),
    Row(
        "bert vit",
        "data",
        (2, 4, 8),
        "train",
        "less sent; shares gradient optimizer_state parameter; steps activation",
        {"zero": 3},
    ),
    Row(
        "dit",
        "data",
        (2, 4, 8),
        "train",
        "less gradient optimizer_state parameter sent; more activation",
        {"zero": 3},
    ),
    Row(
        "decoder gpt2 bert t5 whisper vit dit",
        "zero",
        (0, 1, 2, 3),
        "train",
        "less optimizer_state parameter; more activation gradient ops sent",
        {"data": 4},
    ),
    Row(
        "experts",
        "zero",
        (0, 1, 2, 3),
        "train",
        "less expert optimizer_state parameter; more activation gradient ops sent",
        {"data": 4},
    ),
    Row(
        "decoder experts gpt2 bert t5 whisper vit dit",
        "prefetch",
        (1, 2),
        "train",
        "",
        {"data": 4, "zero": 3},
    ),
    Row(
        "decoder experts gpt2 bert t5 whisper dit",
        "link_bytes_per_s",
        (1000000000, 2000000000, 4000000000),
        "train",
        "shared sent_ns",
        {"data": 4},
    ),
    Row(
        "vit",
        "link_bytes_per_s",
        (1000000000, 2000000000, 4000000000),
        "train",
        "less sent_ns",
        {"data": 4},
    ),
    Row(
        "decoder experts gpt2",
        "kv_block",
        (4, 8, 12, 16),
        "decode",
        "less activation ops; more flops; shares buffer",
        {"context": 96},
    ),
    Row(
        "decoder experts gpt2",
        "chosen_blocks",
        (1, 2, 3, 4),
        "decode",
        "steps activation flops ops",
        {"kv_block": 4, "context": 96},
    ),
    Row(
        "decoder experts gpt2",
        "sink_blocks",
        (1, 2, 3, 4),
        "decode",
        "falls buffer; steps flops",
        {"kv_block": 4, "context": 96},
    ),
    Row(
        "decoder experts gpt2",
        "window_blocks",
        (1, 2, 3, 4),
        "decode",
        "falls buffer; steps flops",
        {"kv_block": 4, "context": 96},
    ),
    Row(
        "decoder",
        "config.num_hidden_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
    ),
    Row(
        "experts",
        "config.num_hidden_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation expert flops gradient ops optimizer_state parameter workspace; times "
        "buffer",
    ),
    Row(
        "gpt2",
        "config.n_layer",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter; times workspace",
    ),
    Row(
        "bert",
        "config.num_hidden_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter; times workspace",
    ),
    Row(
        "t5",
        "config.num_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
    ),
    Row(
        "whisper",
        "config.encoder_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
    ),
    Row(
        "whisper",
        "config.decoder_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
    ),
    Row(
        "vit",
        "config.num_hidden_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter; times workspace",
    ),
    Row(
        "dit",
        "config.num_hidden_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
    ),
    Row(
        "decoder",
        "config.hidden_size",
        (64, 128, 192, 256),
        "train",
        "steps activation flops workspace; times gradient optimizer_state parameter",
    ),
    Row(
        "experts",
        "config.hidden_size",
        (64, 128, 192, 256),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace; times expert",
    ),
    Row(
        "bert vit",
        "config.hidden_size",
        (64, 128, 192, 256),
        "train",
        "curve flops gradient optimizer_state parameter; steps activation",
    ),
    Row(
        "dit",
        "config.hidden_size",
        (64, 128, 192, 256),
        "train",
        "curve flops gradient optimizer_state parameter; steps activation workspace; times buffer",
    ),
    Row(
        "gpt2",
        "config.n_embd",
        (64, 128, 192, 256),
        "train",
        "curve flops gradient optimizer_state parameter; steps activation workspace",
    ),
    Row(
        "t5",
        "config.d_model",
        (64, 128, 192, 256),
        "train",
        "steps activation flops gradient optimizer_state parameter; times workspace",
    ),
    Row(
        "whisper",
        "config.d_model",
        (64, 128, 192, 256),
        "train",
        "curve flops gradient optimizer_state parameter; steps activation",
    ),
    Row(
        "decoder experts",
        "config.num_attention_heads",
        (4, 8, 12, 16),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace",
    ),
    Row(
        "bert vit",
        "config.num_attention_heads",
        (1, 2, 4),
        "train",
        "steps activation; times workspace",
    ),
    Row("dit", "config.num_attention_heads", (1, 2, 4), "train", "steps activation workspace"),
    Row("gpt2", "config.n_head", (1, 2, 4), "train", "steps activation workspace"),
    Row(
        "decoder",
        "config.num_key_value_heads",
        (1, 2, 4),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace",
    ),
    Row("experts", "config.num_key_value_heads", (1, 2, 4), "train", ""),
    Row(
        "t5",
        "config.num_heads",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "whisper",
        "config.encoder_attention_heads",
        (1, 2, 4),
        "train",
        "steps activation workspace",
    ),
    Row(
        "whisper",
        "config.decoder_attention_heads",
        (1, 2, 4),
        "train",
        "steps activation workspace",
    ),
    Row(
        "decoder",
        "config.head_dim",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace; times buffer",
    ),
    Row("experts", "config.head_dim", (16, 32, 48, 64), "train", ""),
    Row(
        "t5",
        "config.d_kv",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "decoder experts bert vit",
        "config.intermediate_size",
        (96, 192, 288, 384),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "t5",
        "config.d_ff",
        (96, 192, 288, 384),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "whisper",
        "config.encoder_ffn_dim",
        (96, 192, 288, 384),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "whisper",
        "config.decoder_ffn_dim",
        (96, 192, 288, 384),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "dit",
        "config.mlp_ratio",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace",
    ),
    Row(
        "decoder experts gpt2 bert t5 whisper",
        "config.vocab_size",
        (96, 192, 288, 384),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "experts",
        "config.num_experts",
        (4, 8, 12, 16),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace; times expert",
        {"config": {"n_group": 0}},
    ),
    Row(
        "experts",
        "config.num_experts_per_tok",
        (1, 2, 3, 4),
        "train",
        "more activation ops; steps flops",
    ),
    Row(
        "experts",
        "config.moe_intermediate_size",
        (24, 48, 72, 96),
        "train",
        "steps activation flops gradient optimizer_state parameter; times expert",
    ),
    Row(
        "experts",
        "config.n_shared_experts",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "experts",
        "config.first_k_dense_replace",
        (1, 2, 3, 4),
        "train",
        "falls activation buffer expert gradient ops optimizer_state; steps flops parameter",
        {"deep": 8},
    ),
    Row("experts", "config.n_group", (1, 2, 4), "train", "steps activation"),
    Row(
        "experts",
        "config.kv_lora_rank",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace",
    ),
    Row(
        "experts",
        "config.q_lora_rank",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace",
    ),
    Row(
        "experts",
        "config.qk_nope_head_dim",
        (8, 16, 24, 32),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "experts",
        "config.qk_rope_head_dim",
        (8, 16, 24, 32),
        "train",
        "steps activation buffer flops gradient optimizer_state parameter workspace",
    ),
    Row(
        "experts",
        "config.v_head_dim",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "decoder",
        "config.sliding_window",
        (8, 16, 24, 32),
        "prefill",
        "steps flops; times kv_cache",
    ),
    Row(
        "decoder",
        "config.full_attention_every",
        (1, 2, 4),
        "prefill",
        "shares flops kv_cache",
        {"deep": 8, "config": {"sliding_window": 8}},
    ),
    Row(
        "decoder",
        "config.rotary_width",
        (4, 8, 12, 16),
        "train",
        "less ops; more activation; steps workspace; times buffer",
    ),
    Row(
        "decoder",
        "config.max_position_embeddings",
        (48, 96, 144, 192),
        "train",
        "steps gradient optimizer_state parameter",
        {"config": {"positions": "learned"}},
    ),
    Row(
        "gpt2",
        "config.n_positions",
        (48, 96, 144, 192),
        "train",
        "steps gradient optimizer_state parameter",
    ),
    Row(
        "bert",
        "config.max_position_embeddings",
        (48, 96, 144, 192),
        "train",
        "steps gradient optimizer_state parameter",
    ),
    Row(
        "whisper",
        "config.max_target_positions",
        (48, 96, 144, 192),
        "train",
        "steps gradient optimizer_state parameter",
    ),
    Row(
        "decoder",
        "config.extra_positions",
        (2, 4, 6, 8),
        "train",
        "steps gradient optimizer_state parameter",
        {"config": {"positions": "learned", "max_position_embeddings": 96}},
    ),
    Row(
        "decoder",
        "config.state_heads",
        (4, 8, 12, 16),
        "prefill",
        "steps activation flops kv_cache parameter",
        {"config": MAMBA2},
    ),
    Row(
        "decoder",
        "config.state_head_dim",
        (8, 16, 24, 32),
        "prefill",
        "steps activation flops kv_cache parameter",
        {"config": MAMBA2},
    ),
    Row(
        "decoder",
        "config.state_groups",
        (1, 2, 3, 4),
        "prefill",
        "steps activation flops kv_cache parameter",
        {"config": MAMBA2},
    ),
    Row(
        "decoder",
        "config.state_size",
        (8, 16, 24, 32),
        "prefill",
        "steps activation flops kv_cache parameter",
        {"config": MAMBA2},
    ),
    Row(
        "decoder",
        "config.conv_kernel",
        (2, 3, 4, 5),
        "prefill",
        "steps flops kv_cache parameter",
        {"config": MAMBA2},
    ),
    Row(
        "experts",
        "config.index_n_heads",
        (1, 2, 3, 4),
        "prefill",
        "steps activation flops parameter",
        {"config": INDEXED},
    ),
    Row(
        "experts",
        "config.index_head_dim",
        (16, 32, 48, 64),
        "prefill",
        "steps activation flops kv_cache parameter",
        {"config": INDEXED},
    ),
    Row(
        "experts",
        "config.index_topk",
        (8, 16, 24, 32),
        "prefill",
        "steps activation flops",
        {"config": INDEXED},
    ),
    Row(
        "experts",
        "config.shared_intermediate_size",
        (24, 48, 72, 96),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "experts",
        "config.moe_latent_size",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter; times expert",
    ),
    Row(
        "decoder",
        "config.layer_input_size",
        (8, 16, 24, 32),
        "train",
        "steps activation flops gradient optimizer_state parameter workspace",
        {"config": INPUTS},
    ),
    Row(
        "decoder",
        "config.layer_input_vocab",
        (96, 192, 288, 384),
        "train",
        "steps gradient optimizer_state parameter",
        {"config": INPUTS},
    ),
    Row(
        "decoder",
        "config.compress_rate",
        (4, 8, 16),
        "prefill",
        "shares activation flops kv_cache; steps parameter",
        {"config": COMPRESSED},
    ),
    Row(
        "decoder",
        "config.output_rank",
        (8, 16, 24, 32),
        "prefill",
        "steps activation flops parameter",
        {"config": COMPRESSED},
    ),
    Row(
        "decoder",
        "config.output_groups",
        (1, 2, 4),
        "prefill",
        "steps activation flops parameter",
        {"config": COMPRESSED},
    ),
    Row(
        "decoder",
        "config.laurel_rank",
        (4, 8, 12, 16),
        "prefill",
        "steps activation flops parameter",
        {"config": UPDATED},
    ),
    Row(
        "decoder",
        "config.streams",
        (2, 3, 4, 5),
        "prefill",
        "curve activation; more flops parameter",
        {"config": COMPRESSED},
    ),
    Row("decoder", "config.dropout", (0.1, 0.2), "train", "", {"attention": "math"}),
    Row("decoder", "config.embedding_dropout", (0.1, 0.2), "train", "", {"attention": "math"}),
    Row("decoder", "config.attention_dropout", (0.1, 0.2), "train", "", {"attention": "math"}),
    Row("gpt2", "config.dropout", (0.1, 0.2), "train", "", {"attention": "math"}),
    Row("gpt2", "config.embedding_dropout", (0.1, 0.2), "train", "", {"attention": "math"}),
    Row("gpt2", "config.attention_dropout", (0.1, 0.2), "train", "", {"attention": "math"}),
    Row("bert t5 whisper", "config.dropout", (0.1, 0.2), "train", ""),
    Row(
        "bert",
        "config.type_vocab_size",
        (1, 2, 3, 4),
        "train",
        "steps gradient optimizer_state parameter",
    ),
    Row(
        "t5",
        "config.relative_attention_num_buckets",
        (8, 16, 24, 32),
        "train",
        "steps gradient optimizer_state parameter",
    ),
    Row(
        "t5",
        "config.num_decoder_layers",
        (1, 2, 3, 4),
        "train",
        "steps activation flops gradient ops optimizer_state parameter workspace",
    ),
    Row(
        "whisper",
        "config.num_mel_bins",
        (8, 16, 24, 32),
        "train",
        "steps flops gradient input optimizer_state parameter",
    ),
    Row(
        "whisper",
        "config.max_source_positions",
        (24, 48, 72, 96),
        "train",
        "curve flops; steps activation gradient input optimizer_state parameter workspace",
    ),
    Row(
        "vit",
        "config.image_size",
        (16, 32, 48, 64),
        "train",
        "curve activation gradient input optimizer_state parameter workspace; more flops",
    ),
    Row(
        "vit",
        "config.patch_size",
        (4, 8, 16),
        "train",
        "less activation flops workspace; more gradient optimizer_state parameter",
    ),
    Row(
        "vit",
        "config.num_channels",
        (1, 2, 3, 4),
        "train",
        "steps flops gradient input optimizer_state parameter",
    ),
    Row(
        "vit",
        "config.num_labels",
        (10, 20, 30, 40),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "dit",
        "config.patch_size",
        (1, 2, 4),
        "train",
        "less activation buffer flops workspace; more gradient optimizer_state parameter",
    ),
    Row(
        "dit",
        "config.input_size",
        (8, 16, 24, 32),
        "train",
        "curve activation buffer input workspace; more flops",
    ),
    Row(
        "dit",
        "config.in_channels",
        (4, 8, 12, 16),
        "train",
        "steps activation flops gradient input optimizer_state parameter workspace",
    ),
    Row(
        "dit",
        "config.num_classes",
        (10, 20, 30, 40),
        "train",
        "steps gradient optimizer_state parameter",
    ),
    Row(
        "dit",
        "config.frequency_embedding_size",
        (16, 32, 48, 64),
        "train",
        "steps activation flops gradient optimizer_state parameter",
    ),
    Row(
        "decoder experts gpt2 bert t5 whisper vit dit",
        "optimizer_share",
        (0.5, 0.75, 1.0),
        "train",
        "more sent",
        {"optimizer_on": "ddr"},
    ),
    Row(
        "decoder experts gpt2",
        "lora_rank",
        (1, 2, 3, 4),
        "train",
        "times gradient optimizer_state; steps activation flops parameter",
    ),
    Row(
        "experts",
        "routing.steps",
        (1, 2, 3, 4),
        "decode",
        "times activation flops ops output workspace",
        {"context": 48, "chosen_experts": 2},
    ),
    Row("experts", "routing.seed", (1, 2), "decode", "", {"context": 48, "chosen_experts": 2}),
    Row("experts", "routing.zipf", (0.5, 1.0), "decode", "", {"context": 48, "chosen_experts": 2}),
    Row(
        "experts",
        "routing.persistence",
        (0.25, 0.75),
        "decode",
        "",
        {"context": 48, "chosen_experts": 2},
    ),
)


def parameters(model: str, row: Row, value: Any) -> Mapping[str, Any]:
    """What :func:`build` gets for one value."""
    name, sizes = MODELS[model]
    told = dict(row.told)
    deep = told.pop("deep", None)
    config = {
        **sizes,
        **({key: deep for key in OF_DEPTH if key in sizes} if deep else {}),
        **told.pop("config", {}),
    }
    if model not in IMAGES and (row.phase != "decode" or model not in DECODERS):
        told.setdefault("sequence", 48)
    given = {"model": name, "config": config, "phase": row.phase, "batch": 8, **told}
    *inside, key = row.parameter.split(".")
    return (
        {**given, inside[0]: {**given.get(inside[0], {}), key: value}}
        if inside
        else {**given, key: value}
    )


def quantities(given: Mapping[str, Any]) -> Counter[str]:
    """Bytes of the tensors of each kind, FLOP, workspaces, ops, and what is sent and how long that
    takes if a link is given.
    """
    graph, found = build("x", given), Counter[str]()
    for tensor in graph.tensors:
        found[tensor.kind] += tensor.size_bytes
    for op in graph.ops:
        found["ops"] += 1
        found["flops"] += op.flops
        found["workspace"] += op.workspace_bytes
        if op.stream != "compute":
            found["sent"] += op.bytes_accessed
            found["sent_ns"] += op.duration_ns or 0
    return found


def word(values: Sequence[Any], found: Sequence[int]) -> str:
    """How ``found`` follows ``values``; empty where it does not."""
    first, least = found[0], values[0]
    if len(set(found)) == 1:
        return ""
    if all(q * least == first * v for v, q in zip(values, found, strict=True)):
        return "times"
    if all(q * v == first * least for v, q in zip(values, found, strict=True)):
        return "shared"
    grows, spans = [b - a for a, b in pairwise(found)], [b - a for a, b in pairwise(values)]
    if all(grow * spans[0] == grows[0] * span for grow, span in zip(grows, spans, strict=True)):
        return "steps" if grows[0] > 0 else "falls"
    if len(found) > 3 and len(set(spans)) == 1 and grows[2] - grows[1] == grows[1] - grows[0]:
        return "curve"
    parts = [grow * a * b for grow, (a, b) in zip(grows, pairwise(values), strict=True)]
    if grows[0] < 0 and all(
        part * spans[0] == parts[0] * span for part, span in zip(parts, spans, strict=True)
    ):
        return "shares"
    return "more" if min(grows) >= 0 else "less" if max(grows) <= 0 else "changes"


@pytest.mark.parametrize(
    ("model", "row"),
    [pytest.param(m, r, id=f"{m}-{r.parameter}-{r.phase}") for r in ROWS for m in r.models.split()],
)
def test_quantities_follow_a_parameter(model: str, row: Row) -> None:
    each = [quantities(parameters(model, row, value)) for value in row.values]
    words = {
        key: word(row.values, [found[key] for found in each])
        for key in Counter(key for found in each for key in found)
    }
    said = {
        key: listed.split()[0] for listed in row.expected.split("; ") for key in listed.split()[1:]
    }
    assert {key: how for key, how in words.items() if how} == said


def numbers(of: type) -> set[str]:
    """The fields of a dataclass that are numbers."""
    hints = {
        name: hint for name, hint in get_type_hints(of).items() if get_origin(hint) is not tuple
    }
    return {name for name, hint in hints.items() if {int, float} & set(get_args(hint) or (hint,))}


def test_every_number_of_every_builder_has_a_row() -> None:
    had: dict[type, set[str]] = {}
    for row in ROWS:
        for model in row.models.split():
            had.setdefault(type(PRESETS[MODELS[model][0]]), set()).add(row.parameter)
    assert had.keys() == FAMILIES.keys()
    for of, family in FAMILIES.items():
        sizes = {f"config.{name}" for name in numbers(of)}
        alike = set().union(
            *[rows for other, rows in had.items() if FAMILIES[other].forward is family.forward]
        )
        missing = (sizes - had[of]) | ((numbers(Run) & family.takes) - alike)
        assert not missing, f"a row for {of.__name__}: {', '.join(sorted(missing))}"
    assert {f"routing.{name}" for name in numbers(RoutingDraw)} <= set().union(*had.values())


def test_each_word_means_what_it_says() -> None:
    """The words tell apart what they name: one of each kind, computed by hand."""
    values = (1, 2, 3, 4)
    made = {
        "": (5, 5, 5, 5),
        "times": (2, 4, 6, 8),
        "steps": (3, 5, 7, 9),
        "falls": (9, 8, 7, 6),
        "curve": (1, 4, 9, 16),
    }
    made |= {
        "shared": (12, 6, 4, 3),
        "shares": (13, 7, 5, 4),
        "more": (1, 2, 4, 8),
        "less": (8, 7, 3, 1),
        "changes": (1, 3, 2, 4),
    }
    assert {how: word(values, found) for how, found in made.items()} == {how: how for how in made}
