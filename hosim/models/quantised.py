"""How a model's ``config.json`` says that its weights are packed, as parameters of a run.

Only schemes of which :mod:`hosim.models.packed` has the bytes of their files; any other is left to be said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Packed = Mapping[str, Any]
"""``weights``, ``group``, ``packed`` and ``activations`` of :class:`~hosim.models.config.Run`."""

_WHOLE = ("lm_head", "embed_tokens", "gate", "router", "norm")
"""What is never packed here, either."""


def packing_of(config: Mapping[str, Any]) -> Packed | None:
    """The packing that a ``config.json`` asks for: none where it asks for none, ``None`` for one that is not known.

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
    found = None if reader is None else reader(said)
    return found if found is not None and _all_else(said, found) else None


def _all_else(said: Mapping[str, Any], found: Packed) -> bool:
    """Whether the modules that keep 16 bits are those that no packing has, too."""
    whole = (*_WHOLE, "self_attn") if found.get("packed") == "experts" else _WHOLE
    kept = said.get("modules_to_not_convert") or []
    return isinstance(kept, list) and all([isinstance(name, str) and name.rpartition(".")[2] in whole for name in kept])


def _grouped(said: Mapping[str, Any], weights: str) -> Packed | None:
    group = said.get("group_size", 128)
    if type(group) is not int or group == 0 or group < -1:
        return None
    return {"weights": weights, "group": 2**40 if group == -1 else group}


def _gptq(said: Mapping[str, Any]) -> Packed | None:
    bits = said.get("bits")
    return _grouped(said, f"gptq{bits}") if bits in (4, 8) and said.get("checkpoint_format", "gptq") == "gptq" else None


def _awq(said: Mapping[str, Any]) -> Packed | None:
    known = said.get("bits", 4) == 4 and said.get("zero_point", True) is True and str(said.get("version", "gemm")).lower() == "gemm"
    return _grouped(said, "awq4") if known else None


def _fp8(said: Mapping[str, Any]) -> Packed | None:
    block = said.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or block[0] != block[1] or type(block[0]) is not int or block[0] < 1:
        return None
    narrow = {"activations": "fp8"} if said.get("activation_scheme", "dynamic") == "dynamic" else {}
    return {"weights": "fp8_e4m3", "group": block[0], **narrow}


def _bitsandbytes(said: Mapping[str, Any]) -> Packed | None:
    four = said.get("load_in_4bit", said.get("_load_in_4bit")) is True and not said.get("bnb_4bit_use_double_quant", False)
    return {"weights": "nf4"} if four and said.get("bnb_4bit_quant_type", "fp4") in ("nf4", "fp4") else None


def _mxfp4(said: Mapping[str, Any]) -> Packed | None:
    return {"weights": "mxfp4", "packed": "experts"}


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Packed | None]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
}
"""By ``quant_method``."""
