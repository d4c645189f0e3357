"""The names that the weights of a decoder have in llama.cpp's files (GGUF), beside those that
builders give them.
"""

import re
from collections.abc import Container, Mapping

_OUTSIDE: Mapping[str, str] = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
"""Modules outside layers, by how their names end."""

_INSIDE: Mapping[str, tuple[str, ...]] = {
    "input_layernorm": ("attn_norm",),
    "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.o_proj": ("attn_output",),
    "self_attn.q_norm": ("attn_q_norm",),
    "self_attn.k_norm": ("attn_k_norm",),
    "self_attn.sinks": ("attn_sinks",),
    "self_attn.q_a_proj": ("attn_q_a",),
    "self_attn.q_a_layernorm": ("attn_q_a_norm",),
    "self_attn.q_b_proj": ("attn_q_b",),
    "self_attn.kv_a_proj_with_mqa": ("attn_kv_a_mqa",),
    "self_attn.kv_a_layernorm": ("attn_kv_a_norm",),
    "self_attn.kv_b_proj": ("attn_k_b", "attn_v_b"),
    "post_attention_layernorm": ("ffn_norm",),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
    "mlp.down_proj": ("ffn_down",),
    "mlp.gate": ("ffn_gate_inp",),
    "mlp.router": ("ffn_gate_inp",),
    **{
        f"mlp.{shared}.{name}": tuple(
            [f"ffn_{factor}_shexp" for factor in name.removesuffix("_proj").split("_")]
        )
        for shared in ("shared_expert", "shared_experts")
        for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
    },
    "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
}
"""Modules of a layer. A tensor that holds several weights of a file has the names of all."""

_EXPERTS: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "up_proj": ("ffn_up_exps",),
    "down_proj": ("ffn_down_exps",),
}

_ALSO: Mapping[str, tuple[str, ...]] = {
    "post_attention_layernorm": ("post_attention_norm",),
    "self_attn.kv_b_proj": ("attn_kv_b",),
    "self_attn.qkv_proj": ("attn_qkv",),
}
"""Other names in files of some architectures and versions, by the module of a layer."""

_ALSO_EXPERTS: Mapping[str, tuple[str, ...]] = {"gate_up_proj": ("ffn_gate_up_exps",)}

_LAYER = re.compile(r"^(?:.*\.)?layers\.(\d+)\.(.+)$")
_OWN = re.compile(r"^(blk\.\d+\.|token_embd|output)[a-z0-9_.]*$")


def gguf_names(tensor: str) -> tuple[str, ...]:
    """The weights of a GGUF that a tensor of a builder holds; none where that is not known. A name
    of a GGUF stands for itself.

    >>> (
    ...     gguf_names("model.layers.3.mlp.gate_up_proj"),
    ...     gguf_names("model.layers.3.mlp.gate_up_proj.weight"),
    ... )
    (('blk.3.ffn_gate_exps.weight', 'blk.3.ffn_up_exps.weight'), ('blk.3.ffn_gate.weight', 'blk.3.ffn_up.weight'))
    >>> (
    ...     gguf_names("lm_head.weight"),
    ...     gguf_names("blk.0.attn_q.weight"),
    ...     gguf_names("transformer.h.0.attn.c_attn.weight"),
    ... )
    (('output.weight',), ('blk.0.attn_q.weight',), ())
    """
    return next(iter(_choices(tensor)), ())


def gguf_names_in(tensor: str, there: Container[str]) -> tuple[str, ...]:
    """The same for a file that has these weights; none where it has not all that belong together.

    >>> gguf_names_in("model.layers.0.self_attn.kv_b_proj.weight", {"blk.0.attn_kv_b.weight"})
    ('blk.0.attn_kv_b.weight',)
    """
    fitting = [
        names for names in _choices(tensor) if names and all([name in there for name in names])
    ]
    return fitting[-1] if fitting else ()


def _choices(tensor: str) -> list[tuple[str, ...]]:
    """The usual names, and after them those of some files."""
    if _OWN.match(tensor):
        return [(tensor,)]
    found = _LAYER.match(tensor)
    if found is None:
        module, _, what = tensor.rpartition(".")
        return [
            (f"{name}.{what}",)
            for end, name in _OUTSIDE.items()
            if module == end or module.endswith(f".{end}")
        ]
    layer, inside = found.groups()
    if inside.endswith("e_score_correction_bias"):
        return [(f"blk.{layer}.exp_probs_b.bias",)]
    expert = re.fullmatch(r"mlp(?:\.experts)?\.(gate_up_proj|up_proj|down_proj)(_bias)?", inside)
    if expert is not None:
        module, what, tables = (
            expert[1],
            "bias" if expert[2] else "weight",
            (_EXPERTS, _ALSO_EXPERTS),
        )
    else:
        module, _, what = inside.rpartition(".")
        if what not in ("weight", "bias"):
            module, what = inside, "weight"
        tables = (_INSIDE, _ALSO)
    return [
        tuple([f"blk.{layer}.{name}.{what}" for name in table[module]])
        for table in tables
        if module in table
    ]
