"""Weights and caches in 8 and 4 bits: the bytes of these and their scales, the kernels that
multiply them, and the packing in a model's ``config.json`` as parameters of a run.

A row of a packed tensor has its elements, rounded up to whole bytes, and a scale for each group of
elements, symmetric unless something else is said. A group of 0 means that a whole row has one
scale. Of the schemes in a ``config.json``, those are read whose files' bytes are known here; others
have to be given as parameters.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class PackedDtype:
    """The layout of a packed tensor: ``scale_bytes`` and ``zero_bits`` for each ``group``, and
    ``index_bytes`` for each column. If scales are packed, too, each group of ``scales`` of them has
    one more in fp32.

    ``computes`` is the dtype of an op that reads the tensor beside operands in 16 bits.
    """

    bits: int
    group: int
    scale_bytes: int
    computes: str
    blocks: bool = False
    """True if a given group is also a block of this many rows, as in DeepSeek-V3."""
    zero_bits: int = 0
    index_bytes: int = 0
    scales: int = 0


PACKINGS: Mapping[str, PackedDtype] = {
    # a scale in fp32 for each row, or for each block
    "fp8_e4m3": PackedDtype(8, 0, 4, "int8_weights", blocks=True),
    "fp8_e5m2": PackedDtype(8, 0, 4, "int8_weights", blocks=True),
    # scales in 16 bits, as GPTQ's and compressed-tensors' symmetric ones
    "int8": PackedDtype(8, 0, 2, "int8_weights"),
    "int4": PackedDtype(4, 128, 2, "int4_weights"),
    # a zero in 16 bits beside each scale, as torchao's int4 weights and HQQ have
    "uint4": PackedDtype(4, 128, 4, "int4_weights"),
    # the layouts of files: a zero of as many bits beside each scale, and in GPTQ's files the group
    # of each column
    "gptq4": PackedDtype(4, 128, 2, "int4_weights", zero_bits=4, index_bytes=4),
    "gptq8": PackedDtype(8, 128, 2, "int8_weights", zero_bits=8, index_bytes=4),
    "awq4": PackedDtype(4, 128, 2, "int4_weights", zero_bits=4),
    # FlexGen (arXiv 2303.06865, section 5.1): a scale and a minimum in 16 bits for 64 elements
    "flexgen4": PackedDtype(4, 64, 4, ""),
    # OCP Microscaling Formats 1.0: an exponent of 8 bits for 32 elements
    "mxfp4": PackedDtype(4, 32, 1, "int4_weights"),
    # ModelOpt: an exponent and mantissa of 8 bits for 16 elements
    "nvfp4": PackedDtype(4, 16, 1, "int4_weights"),
    # bitsandbytes without double quantisation: a maximum in fp32 for 64 elements
    "nf4": PackedDtype(4, 64, 4, "int4_weights"),
    # QLoRA (T. Dettmers et al., NeurIPS 2023), double quantisation: 8-bit maxima, a scale for 256
    "nf4_double": PackedDtype(4, 64, 1, "int4_weights", scales=256),
    # caches; vLLM's fp8 has one scale for all, the others a scale and a minimum in 16 bits for a
    # head's row, or as FlexGen for 64 elements
    "fp8_cache": PackedDtype(8, 0, 0, "fp16_fp8_cache"),
    "int8_cache": PackedDtype(8, 0, 4, "fp16_fp8_cache"),
    "int4_cache": PackedDtype(4, 64, 4, "fp16_int4_cache"),
    "flexgen4_cache": PackedDtype(4, 64, 4, ""),
}
WEIGHTS = (
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "int4",
    "uint4",
    "gptq4",
    "gptq8",
    "awq4",
    "flexgen4",
    "mxfp4",
    "nvfp4",
    "nf4",
    "nf4_double",
)
PACKED = ("all", "experts")
CACHES: Mapping[str, str] = {
    "fp8_e4m3": "fp8_cache",
    "fp8_e5m2": "fp8_cache",
    "int8": "int8_cache",
    "int4": "int4_cache",
    "flexgen4": "flexgen4_cache",
}
"""Packings of a cache, by the value of the builder's parameter."""
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {"fp8": ("fp8_e4m3", "fp8_e5m2"), "int8": ("int8",)}
"""The dtypes that both operands of a product can have, and the weights that are needed for it."""
SEPARATE = frozenset({"nf4", "nf4_double", "flexgen4"})
"""Packings without a kernel for several rows: bitsandbytes first unpacks the whole weight into 16
bits.
"""
FOR_TRANSFER = frozenset({"flexgen4", "flexgen4_cache"})
"""Packings that save bytes only in transfers and in memory: a tensor is unpacked into 16 bits
before it is read, even for one row.
"""


def packed_bytes(shape: tuple[int, ...], dtype: str, group: int = 0) -> int:
    """The bytes of a packed tensor with its scales. ``group`` 0 is the usual one of ``dtype``, one
    of :data:`PACKINGS`.

    >>> (
    ...     packed_bytes((4096, 4096), "int4"),
    ...     packed_bytes((4096, 4096), "int4", 32),
    ...     packed_bytes((256, 130), "fp8_e4m3", 128),
    ... )
    (8650752, 9437184, 33296)
    """
    packing = PACKINGS[dtype]
    *outer, rows, width = (1, *shape)
    size = group or packing.group or width
    scales = (
        -(-width // size) * (-(-rows // size) if packing.blocks and group else rows) if width else 0
    )
    beside = (
        scales * packing.scale_bytes
        + -(-scales * packing.zero_bits // 8)
        + width * packing.index_bytes
        + (-(-scales // packing.scales) * 4 if packing.scales else 0)
    )
    return prod(outer) * (rows * -(-width * packing.bits // 8) + beside)


Packed = Mapping[str, Any]
"""``weights``, ``group``, ``packed`` and ``activations`` of :class:`~hosim.io.models.config.Run`."""

_KEPT = (
    "modules_to_not_convert",
    "exclude_modules",
    "ignore",
    "ignored_layers",
    "llm_int8_skip_modules",
)
"""Keys that list the modules which stay unpacked; each program that writes them has its own."""

_OTHERWISE = ("modules_in_block_to_quantize", "dynamic")
"""Keys that state this in other forms, which are not read."""

_UNLIKE_TEXT = ("vis", "audio", "mtp", "multi_modal", "mm_")
"""Prefixes of modules that no builder of a text model has."""


def packing_of(config: Mapping[str, Any]) -> Packed | None:
    """Return the packing that a ``config.json`` requests: empty if it requests none, ``None`` for
    one that is not known.

    :func:`kept_modules` lists the modules that it leaves unpacked.

    >>> packing_of({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}})
    {'weights': 'gptq4', 'group': 64}
    >>> packing_of({}), packing_of({"quantization_config": {"quant_method": "gptq", "bits": 3}})
    ({}, None)
    """
    said = config.get("quantization_config")
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        return None
    reader = _READERS.get(str(said.get("quant_method")))
    listed = [said.get(key) or [] for key in _KEPT]
    if any([said.get(key) for key in _OTHERWISE]) or not all(
        [isinstance(names, list) and {*map(type, names)} <= {str} for names in listed]
    ):
        return None
    return None if reader is None else reader(said)


def kept_modules(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules that a config known to :func:`packing_of` leaves unpacked, by name or pattern.

    >>> kept_modules(
    ...     {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}}
    ... )
    ('lm_head',)
    """
    said = config.get("quantization_config") or {}
    return tuple([name for key in _KEPT for name in said.get(key) or []])


def covers(module: str, weight: str) -> bool:
    """Return whether the module has the weight in it; the module may be a pattern such as
    ``*.mlp.gate`` or ``re:.*gate$``.

    Programs differ in the part of a name before the layers, which is ignored. A regular expression
    that is more than a pattern covers everything.

    >>> (
    ...     covers("model.layers.0.mlp", "model.layers.0.mlp.up_proj.weight"),
    ...     covers("mlp.gate", "model.layers.0.mlp.gate_proj.weight"),
    ... )
    (True, False)
    >>> (
    ...     covers("re:.*self_attn.*", "model.layers.3.self_attn.q_proj.weight"),
    ...     covers("lm_head", "model.layers.3.mlp.up_proj.weight"),
    ... )
    (True, False)
    """
    if module.startswith("re:"):
        module = (
            module.removeprefix("re:")
            .removeprefix("^")
            .removesuffix("$")
            .replace(".*", "*")
            .replace("\\.", ".")
        )
        if _EXPRESSION.search(module):
            return True
    module = re.sub(r"\.experts\..*", ".experts", module)  # experts share a tensor here
    before, layers, after = (
        module.rpartition("layers.") if ".layers." in module else ("", "", module)
    )
    if any([part.startswith(_UNLIKE_TEXT) for part in (before or after).split(".")]):
        return False
    name = f".{layers}{after}." if not (layers + after).startswith("*") else f"{layers}{after}."
    return fnmatchcase(f".{weight}.", f"*{name if not name.endswith('*.') else name[:-1]}*")


_EXPRESSION = re.compile(r"[\\^$+?()\[\]{}|]")


def _grouped(said: Mapping[str, Any], weights: str) -> Packed | None:
    group = said.get("group_size", 128)
    if type(group) is not int or group == 0 or group < -1:
        return None
    return {"weights": weights, "group": 2**40 if group == -1 else group}


def _gptq(said: Mapping[str, Any]) -> Packed | None:
    bits = said.get("bits")
    return (
        _grouped(said, f"gptq{bits}")
        if bits in (4, 8) and said.get("checkpoint_format", "gptq") == "gptq"
        else None
    )


def _awq(said: Mapping[str, Any]) -> Packed | None:
    known = (
        said.get("bits", 4) == 4
        and said.get("zero_point", True) is True
        and str(said.get("version", "gemm")).lower() == "gemm"
    )
    return _grouped(said, "awq4") if known else None


def _fp8(said: Mapping[str, Any]) -> Packed | None:
    block = said.get("weight_block_size")
    if block is None:
        return {"weights": "fp8_e4m3", "activations": "fp8"}
    if (
        not isinstance(block, list)
        or len(block) != 2
        or block[0] != block[1]
        or type(block[0]) is not int
        or block[0] < 1
    ):
        return None
    narrow = {"activations": "fp8"} if said.get("activation_scheme", "dynamic") == "dynamic" else {}
    return {"weights": "fp8_e4m3", "group": block[0], **narrow}


def _modelopt(said: Mapping[str, Any]) -> Packed | None:
    """The packing of NVIDIA's ModelOpt, by the name of its algorithm."""
    asked = said.get("quant_algo")
    if asked is None:
        return {}
    if asked in ("W4A16_AWQ", "INT4_AWQ"):
        return _grouped(said, "int4")
    return _MODELOPT.get(str(asked))


_MODELOPT: Mapping[str, Packed] = {
    "FP8": {"weights": "fp8_e4m3", "activations": "fp8"},
    "FP8_PER_CHANNEL_PER_TOKEN": {"weights": "fp8_e4m3", "activations": "fp8"},
    "FP8_PB_WO": {"weights": "fp8_e4m3", "group": 128},
    "FP8_PB_REAL": {"weights": "fp8_e4m3", "group": 128, "activations": "fp8"},
    "W8A8_SQ_PER_CHANNEL": {"weights": "int8", "activations": "int8"},
    "W8A16": {"weights": "int8"},
    "MXFP4": {"weights": "mxfp4", "packed": "all"},
    "NVFP4": {"weights": "nvfp4"},
    "NVFP4_AWQ": {"weights": "nvfp4"},
}


def _compressed_tensors(said: Mapping[str, Any]) -> Packed | None:
    """The packing of compressed-tensors with one group of all linear layers, and scales of rows,
    groups, blocks, or the whole tensor.
    """
    groups = said.get("config_groups")
    (only,) = groups.values() if isinstance(groups, Mapping) and len(groups) == 1 else (None,)
    if (
        not isinstance(only, Mapping)
        or only.get("targets") != ["Linear"]
        or not isinstance(only.get("weights"), Mapping)
    ):
        return None
    weights, inputs = only["weights"], only.get("input_activations")
    bits, kind, strategy = (weights.get(key) for key in ("num_bits", "type", "strategy"))
    narrow = isinstance(inputs, Mapping) and inputs.get("num_bits") == 8
    if (bits, kind) == (8, "float"):
        block = weights.get("block_structure") if strategy == "block" else None
        found = _fp8({"weight_block_size": block}) if strategy != "group" else None
        return (
            found
            if found is None or narrow
            else {key: value for key, value in found.items() if key != "activations"}
        )
    if (bits, kind, weights.get("symmetric")) == (8, "int", True) and strategy in (
        "channel",
        "tensor",
    ):
        return {"weights": "int8", **({"activations": "int8"} if narrow else {})}
    if (bits, kind, weights.get("symmetric"), strategy) == (4, "int", True, "group"):
        return _grouped(weights, "int4")
    return (
        {"weights": "nvfp4"}
        if (bits, kind, weights.get("group_size")) == (4, "float", 16)
        else None
    )


def _bitsandbytes(said: Mapping[str, Any]) -> Packed | None:
    four = said.get("load_in_4bit", said.get("_load_in_4bit")) is True
    double = bool(said.get("bnb_4bit_use_double_quant", False))
    return (
        {"weights": "nf4_double" if double else "nf4"}
        if four and said.get("bnb_4bit_quant_type", "fp4") in ("nf4", "fp4")
        else None
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Packed | None]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "fbgemm_fp8": lambda said: {"weights": "fp8_e4m3", "activations": "fp8"},
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": lambda said: {"weights": "mxfp4", "packed": "experts"},
}
"""Functions that read a packing, by ``quant_method``."""
