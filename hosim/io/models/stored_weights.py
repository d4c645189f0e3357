"""The weights of a model in a file of llama.cpp: the size of each by its type, for the shape that a
builder gives it.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

from hosim.errors import InputError
from hosim.io.models.config_keys import Keys
from hosim.io.models.value import Value
from hosim.io.models.weight_bytes import WEIGHTS_OF_MODELS
from hosim.plain_text import counted
from hosim.units import human_size

# -- names in files of llama.cpp -------------------------------------------------------------------
# The names of a decoder's weights in llama.cpp's files (GGUF), by the names that builders give
# them.

_OUTSIDE: Mapping[str, str] = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
"""Modules outside layers, by the endings of their names."""

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
"""Modules of a layer. A tensor that holds several weights of a file has the names of
all of them.
"""

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
    """The weights of a GGUF that a tensor of a builder holds; none if it is not known. A name of a
    GGUF stands for itself.

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
    """The same for a file with the weights ``there``; none if some of those that belong together
    are missing.

    >>> gguf_names_in("model.layers.0.self_attn.kv_b_proj.weight", {"blk.0.attn_kv_b.weight"})
    ('blk.0.attn_kv_b.weight',)
    """
    fitting = [
        names for names in _choices(tensor) if names and all([name in there for name in names])
    ]
    return fitting[-1] if fitting else ()


def _choices(tensor: str) -> list[tuple[str, ...]]:
    """The usual names, followed by those in some files."""
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


# -- weights of files ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GgufType:
    """A type of weights: ``block`` elements of a row take ``size`` bytes together."""

    name: str
    block: int
    size: int


_LISTED: tuple[tuple[int, str, int, int], ...] = (
    *((0, "F32", 1, 4), (1, "F16", 1, 2), (30, "BF16", 1, 2), (28, "F64", 1, 8), (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4)),
    *((27, "I64", 1, 8), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34)),
    *((9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176)),
    *((14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98)),
    *((19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136)),
    *((29, "IQ1_M", 256, 56), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17)),
    *((40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18)),
)  # fmt: skip

TYPES: Mapping[int, GgufType] = MappingProxyType(
    {number: GgufType(name, block, size) for number, name, block, size in _LISTED}
)
"""Types by number: the table of ggml's ``gguf-py/gguf/constants.py`` (``GGML_QUANT_SIZES``)."""

BY_NAME: Mapping[str, GgufType] = MappingProxyType({each.name: each for each in TYPES.values()})


def bytes_of(name: str, elements: int) -> int:
    """The bytes of ``elements`` elements of a type, which are whole blocks.

    >>> bytes_of("Q4_K", 4096), bytes_of("MXFP4", 64), bytes_of("F32", 3)
    (2304, 34, 12)
    """
    found = BY_NAME[name]
    return elements // found.block * found.size


def computes_of(size: int, elements: int) -> str:
    """The dtype of an op that reads ``elements`` in ``size`` bytes beside operands in 16 bits;
    empty means the dtype of its other operands.

    >>> computes_of(4608, 8192), computes_of(34, 32), computes_of(2, 1)
    ('int4_weights', 'int8_weights', '')
    """
    bits = 8 * size / elements
    return "int4_weights" if bits <= 6 else "int8_weights" if bits < 16 else ""


GGUF = "gguf"
"""The key under which a config has the type and the elements of each weight, by name, from the
header of a GGUF.
"""

_NO_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tables of llama.cpp's own that are no weights of the model."""


class StoredWeights:
    """The weights of a file by name, each with its type and its elements. It remembers which of
    them a builder has requested.
    """

    def __init__(self, weights: Mapping[str, Sequence[Any]]) -> None:
        self._weights = weights
        self._used: set[str] = set()
        self._missing: list[str] = []

    def as_stored(self, value: Value, kind: str) -> Value:
        """Return a builder's tensor, of a ``kind``, with its size in the file; unchanged if the
        file does not have it.
        """
        learned = kind in WEIGHTS_OF_MODELS
        found = (
            self.of(value.tensor, value.shape, is_learned=learned)
            if learned or kind == "buffer"
            else None
        )
        return (
            value
            if found is None
            else replace(value, stored=found[:2], computes=value.computes or found[2])
        )

    def of(
        self, tensor: str, shape: Sequence[int], *, is_learned: bool = True
    ) -> tuple[int, int, str] | None:
        """The bytes and elements of a builder's tensor in the file, and the dtype of an op that
        reads it; ``None`` if the file does not have it.

        A tensor that ``is_learned`` and not in the file counts as missing; other tensors may be
        absent. Raises :class:`InputError` if the file has another number of elements.
        """
        names = gguf_names_in(tensor, self._weights)
        if not names:
            if is_learned and tensor not in self._missing:
                self._missing.append(tensor)
            return None
        self._used.update(names)
        elements = sum([self._weights[name][1] for name in names])
        if elements != prod(shape):
            have = (
                f"{' and '.join(names)} have {elements:,} elements"
                if len(names) > 1
                else f"{names[0]} has {elements:,} elements"
            )
            raise InputError(
                f"{have}, and {tensor} of the model that its metadata describes has "
                f"{prod(shape):,}",
                where=f"model.{GGUF}",
            )
        size = sum([bytes_of(*self._weights[name]) for name in names])
        return size, elements, computes_of(size, elements)

    def left_out(self, layers: int | None) -> tuple[str, ...]:
        """A line for weights of the file that the step, of its first ``layers``, does not use, and
        one for weights that the file lacks.
        """
        lines = []
        unused = [
            name
            for name in self._weights
            if name not in self._used
            and name not in _NO_WEIGHTS
            and _layer(name) < (layers or 2**40)
        ]
        if unused:
            size = sum([bytes_of(*self._weights[name]) for name in unused])
            lines.append(
                f"weights of the file that the model as built has not: {_some(unused)} "
                f"({human_size(size)})"
            )
        if self._missing:
            lines.append(
                f"weights that the file has not by a known name: {_some(self._missing)}, in the "
                "dtype of the run"
            )
        return tuple(lines)


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else "")


def _layer(name: str) -> int:
    first, _, rest = name.partition(".")
    return (
        int(rest.partition(".")[0]) if first == "blk" and rest.partition(".")[0].isdecimal() else -1
    )


def stored_weights(keys: Keys) -> StoredWeights | None:
    """Return the weights that a config has under :data:`GGUF`; ``None`` if it has none. Raises
    :class:`InputError`.
    """
    said = keys.value(GGUF)
    if said is None:
        return None
    keys.refuse(GGUF, not isinstance(said, Mapping), "expected a mapping of weights by name")
    for name, weight in said.items():
        known = (
            isinstance(weight, (list, tuple))
            and len(weight) == 2
            and weight[0] in BY_NAME
            and type(weight[1]) is int
        )
        keys.refuse(
            f"{GGUF}.{name}",
            not known or not 0 < weight[1] <= 2**50 or weight[1] % BY_NAME[weight[0]].block,
            "expected the type of a weight and its number of elements, in whole blocks",
        )
    return StoredWeights(said)
