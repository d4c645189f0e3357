"""The values of a ``config.json``, which are checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

from hosim.errors import InputError
from hosim.io.models.packed import WEIGHTS

_MISSING = object()

_ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("silu", "swish"), "silu"),
        # each of these is one kernel
        **dict.fromkeys(
            ("gelu", "gelu_pytorch_tanh", "gelu_python", "gelu_fast", "gelu_accurate"), "gelu"
        ),
        "gelu_new": "gelu_new",
        "relu": "relu",
        "relu2": "relu2",
        "xielu": "xielu",
    }
)

QUANTISED = "the quantisation of the weights"
"""The beginning of the line that says that weights are not as published."""

_UNTIMED: Mapping[str, str] = MappingProxyType(
    {
        "attn_logit_softcapping": "the bound on attention's scores",
        "residual_multiplier": "multiplying what attention and MLP add",
        "clip_qkv": "the bounds of queries, keys and values",
        "logits_scaling": "dividing the logits",
        "logit_scale": "multiplying the logits",
    }
)
"""Keys of elementwise work that builders omit."""


USUAL_DTYPE = "bf16"
_DTYPES: Mapping[str, str] = MappingProxyType(
    {"bfloat16": USUAL_DTYPE, "float16": "fp16", "float32": "fp32"}
)


def _check_finite(value: object, where: str) -> None:
    """Raise :class:`InputError` for a number that is not finite, also inside a list or
    a mapping.
    """
    if isinstance(value, Mapping):
        for key, inside in value.items():
            _check_finite(inside, f"{where}.{key}")
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            _check_finite(inside, f"{where}[{number}]")
    elif isinstance(value, float) and not isfinite(value):
        raise InputError(f"expected a finite number, got {value}", where=where)


def all_biases(every: bool) -> dict[str, Any]:
    """Biases for all products of attention and of the MLP, or for none."""
    return dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), every)


class Keys:
    """The values of a config. ``read`` has the values that were read and are present.

    ``within`` is the prefix of the mappings that contain the config.
    """

    def __init__(self, config: Mapping[str, Any], within: str = "") -> None:
        self._config = config
        self._within = within
        self.read: dict[str, Any] = {}

    def value(self, key: str, default: object = None) -> Any:
        """The value of a key; ``default`` if it is missing or null."""
        value = self._config.get(key)
        if value is None:
            return default
        _check_finite(value, f"{self._within}{key}")
        self.read[key] = value
        return value

    def dtype(self) -> str | None:
        """The builders' name for the dtype of the weights; ``None`` if the config does not say."""
        key = "dtype" if self._config.get("dtype") is not None else "torch_dtype"
        named = self._config.get(key)
        if named in (None, "auto"):
            return None
        found = _DTYPES.get(named.removeprefix("torch.")) if isinstance(named, str) else None
        if found is None:
            raise self.refusal(key, f"the builder knows {', '.join(_DTYPES)} only, got {named!r}")
        if found != USUAL_DTYPE:
            self.read[key] = named
        return found

    def size(self, key: str, default: object = _MISSING, least: int = 1) -> int:
        """A number of at least ``least``; ``default`` if the key is missing or null."""
        value = self.value(key, default)
        self.refuse(key, value is _MISSING, "expected a number, the config has none")
        self.refuse(
            key,
            type(value) is not int or not least <= value <= 2**40,
            f"expected a number from {least} to 2^40, got {value!r}",
        )
        return int(value)

    def either(self, *names: str, default: object = _MISSING) -> int:
        """The size under the first of several keys that is present, because older files use other
        names.
        """
        there = [name for name in names if self._config.get(name) is not None]
        return self.size(there[0] if there else names[0], default)

    def entries(self, key: str, name: str, default: int) -> int:
        """The size ``name``, which a config may give as the number of entries of the mapping
        ``key``.
        """
        listed = self._config.get(key)
        if self._config.get(name) is None and isinstance(listed, Mapping) and listed:
            self.read[name] = len(listed)
            return len(listed)
        return self.size(name, default)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.value(key, default)
        self.refuse(key, type(value) is not bool, f"expected true or false, got {value!r}")
        return bool(value)

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.value(key, default)
        self.refuse(
            key,
            type(value) not in (int, float) or not 0 <= value <= 1,
            f"expected a number from 0 to 1, got {value!r}",
        )
        return float(value)

    def activation(self, key: str, default: str) -> str:
        """The builders' name for the activation of an MLP."""
        value = self.value(key, default)
        self.refuse(
            key,
            not isinstance(value, str) or value not in _ACTIVATIONS,
            f"the builder knows {', '.join(_ACTIVATIONS)} only, got {value!r}",
        )
        return _ACTIVATIONS[value]

    def inside(self, key: str) -> Keys:
        """The mapping under a key; an empty one if there is none."""
        value = self._config.get(key)
        self.refuse(
            key,
            value is not None and not isinstance(value, Mapping),
            f"expected a mapping, got {value!r}",
        )
        keys = Keys(value or {}, f"{self._within}{key}.")
        if value:
            self.read[key] = keys.read
        return keys

    def only(self, **expected: object) -> None:
        """Raise :class:`InputError` for a key with a value that the builder does not have; a
        missing key is accepted.
        """
        for key, value in expected.items():
            known = value if isinstance(value, tuple) else (value,)
            got = self.value(key)
            self.refuse(
                key,
                got is not None and got not in known,
                f"the builder knows {' or '.join(map(repr, known))} only, got {got!r}",
            )

    def refusal(self, key: str, message: str) -> InputError:
        """The error for a key."""
        return InputError(message, where=f"{self._within}{key}")

    def refuse(self, key: str, broken: object, why: str) -> None:
        """Raise :class:`InputError` for a key if ``broken`` is true."""
        if broken:
            raise self.refusal(key, why)

    def left_out(self) -> tuple[str, ...]:
        """Lines for the things that builders omit, for any model."""
        lines = []
        quantised = self.value("quantization_config")
        if quantised is not None:
            method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
            packs = f"; weights={method} packs them" if method in WEIGHTS else ""
            lines.append(
                f"{QUANTISED} ({method or 'unnamed'}): all are in the dtype of the run{packs}"
            )
        if isinstance(quantised, Mapping) and (
            quantised.get("kv_cache_quant_algo") or quantised.get("kv_cache_scheme")
        ):
            lines.append(
                "the packing of the cache: it is in the dtype of the run, unless cache_dtype says "
                "otherwise"
            )
        for key, what in _UNTIMED.items():
            if self.value(key) not in (None, 1):
                lines.append(f"the time of {what} ({key})")
        if "laurel_rank" in self.read and self.value("activation_sparsity_pattern"):
            lines.append("the choice of the largest activations (activation_sparsity_pattern)")
        if "attention_chunk_size" in self.read:
            lines.append(
                "the chunks of attention (attention_chunk_size): they are timed as a window of "
                "their size"
            )
        further = self.value("num_nextn_predict_layers")
        if further:
            lines.append(
                f"the layers that predict further tokens (num_nextn_predict_layers: {further}), "
                "as in transformers"
            )
        return tuple(lines)

    def window(self) -> int:
        """Return the number of keys that a query sees; 0 if it sees all earlier ones, also because
        the model has no more positions than the window.
        """
        if not self.flag("use_sliding_window", True):
            return 0
        window = self.size("sliding_window", 0, 0)
        return 0 if window >= self.size("max_position_embeddings", 2**40) else window

    def windows(self, layers: int, every: int) -> dict[str, Any] | None:
        """The window, and the distance between layers that see all keys (``every`` if the config
        does not say), as fields of a decoder.

        ``None`` if layers of these two kinds come in another order.
        """
        kinds = self.value("layer_types")
        if kinds is None:
            return {"sliding_window": self.window(), "full_attention_every": every}
        known = (
            isinstance(kinds, list)
            and len(kinds) >= layers
            and {*map(str, kinds)} <= {"sliding_attention", "full_attention"}
        )
        full = (
            [n + 1 for n, kind in enumerate(kinds[:layers]) if kind == "full_attention"]
            if known
            else []
        )
        if known and len(full) == layers:
            return {}
        step = full[0] if full else 0
        if not known or full != (list(range(step, layers + 1, step)) if step else []):
            return None
        return {"sliding_window": self.window(), "full_attention_every": step}
