"""Workloads of the builders, a row each: all families with their options, and decoders with options
drawn together.

After a change that is meant to alter what a builder gives::

    python tests/kept/write.py kept_builds

writes the table anew. A build that is refused has its message in place of figures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any
from zlib import crc32

from kept_table import KeptTable, Row

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import workload_to_dict
from hosim.io.models import FAMILIES, PRESETS, build

COLUMNS = (
    "build",
    "parameters",
    "ops",
    "tensors",
    "bytes",
    "flops",
    "accessed_bytes",
    "workspace_bytes",
    "checksum",
)
SEED = 5
DRAWS = range(14)

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
EXPERTS = {**TINY, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
HEADS = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "num_key_value_heads": 4}
LATENT = {
    **EXPERTS,
    **HEADS,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "n_group": 2,
    "first_k_dense_replace": 1,
}
DECODERS = {
    "dense": {
        "model": "llama-3.1-8b",
        "config": {**TINY, "intermediate_size": 80},
        "sequence": 32,
        "context": 70,
    },
    "experts": {"model": "qwen3-30b-a3b", "config": EXPERTS, "sequence": 32, "context": 70},
    "latent": {
        "model": "deepseek-v3",
        "config": {**LATENT, "intermediate_size": 80},
        "sequence": 32,
        "context": 70,
    },
}
DECODERS["direct"] = {
    **DECODERS["latent"],
    "config": {**LATENT, "intermediate_size": 80, "q_lora_rank": 0},
}
Options = Mapping[str, Any]

EVERY: Sequence[Options] = (
    {"batch": 2},
    {"layers": 2},
    {"dtype": "fp16"},
    {"dtype": "fp32"},
    {"attention": "masked"},
    {"attention": "math"},
    {"fused": True},
    {"tensor": 2},
    {"tensor": 2, "link": "3 GB/s"},
    {"pipeline": 2},
    {"pipeline": 2, "stage": 1, "link": "3 GB/s"},
    {"pipeline": 3, "stage": 1},
    {"experts_home": "pool"},
    {"checkpoint": True},
)
TRAINING: Sequence[Options] = ({"optimizer": "none"}, {"states_home": "ddr"})
PROMPT: Sequence[Options] = ({"logits": "all"}, {"cache": False}, {"cache_home": "ddr"})
BLOCKS: Sequence[Options] = (
    {"cache_home": "ddr"},
    {"kv_block": 8},
    {"kv_block": 16, "sink_blocks": 0, "window_blocks": 1},
    {"kv_block": 8, "chosen_blocks": 9, "routing": {"steps": 3}},
    {
        "kv_block": 9,
        "chosen_blocks": 2,
        "routing": {"steps": 2, "seed": 4, "zipf": 0.5, "persistence": 0},
        "cache_home": "ddr",
    },
)
OPTIONS = {"train": (*EVERY, *TRAINING), "prefill": (*EVERY, *PROMPT), "decode": (*EVERY, *BLOCKS)}
"""Of each phase, options that go together, beside the defaults."""
OF_EXPERTS: Sequence[Options] = ({"expert": 2}, {"expert": 2, "link": "2 GB/s"})
OF_CHOICES: Sequence[Options] = (
    {"chosen_experts": 1},
    {"chosen_experts": 3, "routing": {"steps": 2, "seed": 1}},
)


MODELS = (
    *(
        "llama-3.1-8b",
        "qwen3-30b-a3b",
        "deepseek-v3",
        "gpt2",
        "gpt2-xl",
        "bert-base",
        "bert-large",
        "vit-l-16",
        "t5-large",
        "dit-xl-2",
    ),
)


def families() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model in every phase, with and without fused kernels and checkpoints."""
    for model in MODELS:
        family = FAMILIES[type(PRESETS[model])]
        for phase, fused, checkpoint in product(family.phases, (False, True), (False, True)):
            if checkpoint and phase != "train":
                continue
            has_sequence = "sequence" in family.takes and (
                phase != "decode" or model.startswith("t5")
            )
            sequence = {"sequence": 48} if has_sequence else {}
            options = {"fused": fused, "checkpoint": checkpoint} if checkpoint or fused else {}
            yield model, {"model": model, "phase": phase, "layers": 2, **sequence, **options}


def drawn(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Decoders of one kind with a few options drawn together."""
    lots = random.Random(f"{SEED} {kind}")
    for phase, options in OPTIONS.items():
        some = (
            options
            if kind == "dense"
            else (*options, *OF_EXPERTS, *(OF_CHOICES if phase != "train" else ()))
        )
        for _ in DRAWS:
            chosen = lots.sample(some, lots.randint(1, 4))
            yield (
                kind,
                {
                    **DECODERS[kind],
                    "phase": phase,
                    **{name: value for one in chosen for name, value in one.items()},
                },
            )


def rows(builds: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Row]:
    """A row for each build."""
    for number, (name, parameters) in enumerate(builds):
        said = {
            key: value
            for key, value in parameters.items()
            if key not in ("model", "config", "sequence", "context")
        }
        try:
            made = figures(build(name, parameters))
        except InputError as error:
            made = (str(error),)
        yield (f"{name}/{number}", json.dumps(said), *made)


def figures(graph: Graph) -> Row:
    """The totals of a graph, and a checksum of its file."""
    ops = graph.ops
    totals = (
        len(ops),
        len(graph.tensors),
        sum(t.size_bytes for t in graph.tensors),
        sum(op.flops for op in ops),
        sum(op.bytes_accessed for op in ops),
        sum(op.workspace_bytes for op in ops),
    )
    return (*map(str, totals), str(crc32(json.dumps(workload_to_dict(graph)).encode())))


BUILDS = {"families": families, **{kind: lambda kind=kind: drawn(kind) for kind in DECODERS}}

TABLE = KeptTable(
    "kept_builds", COLUMNS, lambda: chain.from_iterable(rows(made()) for made in BUILDS.values())
)
