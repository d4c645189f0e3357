"""Read a GGUF, the file of llama.cpp: its metadata, and the name, shape and type of each weight.
Make the ``config.json`` of transformers for its model. The weights themselves are not read.

Source: ggml's page on GGUF. Versions 2 and 3, little endian. A model in several files has a header
in each. llama.cpp's ``gguf-py/gguf/constants.py`` lists the metadata of each architecture.
"""

import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from io import BufferedReader
from math import prod
from typing import Any

from hosim.base.files import opened
from hosim.errors import InputError
from hosim.io.models import GGUF, INDEX, TYPES, bytes_of
from hosim.limits import Budget, limit, within
from hosim.plain_text import shown

MAGIC = b"GGUF"

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Formats of :mod:`struct`, by the number of the metadata type."""
_TEXT, _ARRAY = 8, 9
_KEPT_TEXT, _KEPT_ITEMS = 10_000, 4_096
"""The longest text in bytes and the longest array in entries that are kept. Longer ones, such as a
vocabulary, are skipped.
"""
_LEAST_TENSOR, _LEAST_KEY = 32, 13
"""The fewest bytes of an entry. A tensor has a name's length, dimensions, a type and an offset; a
key has a name's length, a type and a value.
"""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """A weight: its dimensions, with the contiguous one first, and the name of its type."""

    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file, which comes before its weights. ``metadata`` has only the length
    of long arrays and of arrays of texts.
    """

    metadata: Mapping[str, Any]
    weights: Mapping[str, GgufWeight]


@dataclass(frozen=True, slots=True)
class Passed:
    """An array that was skipped, with its number of entries."""

    length: int


def is_gguf(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a GGUF."""
    return head.startswith(MAGIC)


def read_gguf(path: str | os.PathLike[str]) -> GgufHeader:
    """Return the header of a GGUF, with the weights of all files if the model is split into
    several. Raises :class:`InputError`.
    """
    source = os.fspath(path)
    found = _read_one(source)
    count = found.metadata.get("split.count", 1)
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or not 0 <= count <= limit("archive_records")
    ):
        raise InputError(
            f"expected a number of files, got {shown(count, 60)}",
            source=source,
            where="split.count",
        )
    if count <= 1:
        return found
    named = _PART.search(source)
    if named is None or int(named[2]) != count:
        raise InputError(
            f"is one of {count} files; keep the name that ends as in -00001-of-{count:05}.gguf",
            source=source,
        )
    parts = []
    for n in range(1, count + 1):
        other = f"{source[: named.start()]}-{n:05}-of-{count:05}.gguf"
        if not os.path.isfile(other):
            raise InputError(
                f"is one of {count} files, and number {n} is not beside it; download it, too",
                source=source,
            )
        parts.append(found if other == source else _read_one(other))
    weights: dict[str, GgufWeight] = {}
    for n, part in enumerate(parts):
        for name, weight in part.weights.items():
            if name in weights:
                raise InputError(
                    f"weight {shown(name, 60)} is listed twice, the second time in file {n + 1} "
                    f"of {count}",
                    source=source,
                )
            weights[name] = weight
    return GgufHeader({**found.metadata, **parts[0].metadata}, weights)


def _read_one(source: str) -> GgufHeader:
    with opened(source) as file:
        return _HeaderReader(file, source).header()


class _HeaderReader:
    """Reads a file from its beginning, and refuses sizes that exceed what is left of it."""

    def __init__(self, file: BufferedReader, source: str) -> None:
        self._file, self._source = file, source
        self._left = os.fstat(file.fileno()).st_size
        self._records = Budget("values")

    def header(self) -> GgufHeader:
        self._refuse(
            "",
            self._take(4, "magic") != MAGIC,
            "expected a GGUF, which begins with these four letters; unpack it first if it is "
            "compressed",
        )
        version = self._number("I", "version")
        if version not in (2, 3):
            big = version in (2 << 24, 3 << 24)
            raise self._refusal(
                "expected version 2 or 3, "
                f"{'got a big-endian file' if big else f'got {version}'}; convert it again"
            )
        tensors, keys = self._number("Q", "tensor_count"), self._number("Q", "metadata_kv_count")
        self._check_count(tensors, _LEAST_TENSOR, "tensor_count")
        self._check_count(keys, _LEAST_KEY, "metadata_kv_count")
        within("records", tensors, source=self._source, where="tensor_count")
        metadata: dict[str, Any] = {}
        for n in range(keys):
            key = self._name(f"metadata[{n}]")
            self._refuse(key, key in metadata, "is given twice")
            metadata[key] = self._value(self._number("I", key), key)
        weights: dict[str, GgufWeight] = {}
        for n in range(tensors):
            name = self._name(f"tensors[{n}]")
            self._refuse(name, name in weights, "is listed twice")
            weights[name] = self._weight(name)
        return GgufHeader(metadata, weights)

    def _weight(self, name: str) -> GgufWeight:
        count = self._number("I", name)
        self._refuse(name, not 1 <= count <= 4, f"expected 1 to 4 dimensions, got {count}")
        shape = tuple([self._number("Q", name) for _ in range(count)])
        number = self._number("I", name)
        self._number("Q", name)  # the weight's offset
        self._refuse(
            name,
            number not in TYPES,
            "expected a type of ggml that hosim knows "
            f"({', '.join(each.name for each in TYPES.values())}), got {number}",
        )
        self._refuse(
            name,
            not all([0 < each <= 2**40 for each in shape]) or prod(shape) > 2**50,
            f"expected dimensions of at least 1 and at most 2^50 elements, got {shape}",
        )
        kind = TYPES[number]
        self._refuse(
            name,
            shape[0] % kind.block,
            f"expected rows in blocks of {kind.block}, as {kind.name} has them, got {shape[0]}",
        )
        return GgufWeight(shape, kind.name)

    def _value(self, kind: int, where: str) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind], where)
        if kind == _TEXT:
            length = self._length(where)
            if length > _KEPT_TEXT:
                self._pass(length, where)
                return None
            return self._take(length, where).decode(errors="replace")
        if kind != _ARRAY:
            raise self._refusal(f"expected a type of metadata from 0 to 12, got {kind}", where)
        return self._array(where)

    def _array(self, where: str) -> Any:
        kind, count = self._number("I", where), self._number("Q", where)
        if kind in _NUMBERS:
            each = struct.calcsize(f"<{_NUMBERS[kind]}")
            self._check_count(count, each, where)
            if count > _KEPT_ITEMS:
                self._pass(count * each, where)
                return Passed(count)
            return list(struct.unpack(f"<{count}{_NUMBERS[kind]}", self._take(count * each, where)))
        self._refuse(
            where, kind != _TEXT, f"expected an array of numbers or texts, got one of type {kind}"
        )
        self._check_count(count, 8, where)
        for _ in range(count):
            self._records.draw(source=self._source, where=where)
            self._pass(self._length(where), where)
        return Passed(count)

    def _name(self, where: str) -> str:
        length = self._length(where)
        within("name_length", length, source=self._source, where=where)
        try:
            return self._take(length, where).decode()
        except UnicodeDecodeError:
            raise self._refusal("expected a name in UTF-8", where) from None

    def _length(self, where: str) -> int:
        length: int = self._number("Q", where)
        self._check_count(length, 1, where)
        return length

    def _check_count(self, count: int, each: int, where: str) -> None:
        if count * each > self._left:
            raise self._refusal(
                f"says {count:,}, which goes past the end of the file; download it again", where
            )

    def _number(self, form: str, where: str) -> Any:
        size = struct.calcsize(f"<{form}")
        return struct.unpack(f"<{form}", self._take(size, where))[0]

    def _take(self, count: int, where: str) -> bytes:
        found = self._file.read(count) if count <= self._left else b""
        if len(found) < count:
            raise self._refusal("the file ends here; download it again", where)
        self._left -= count
        return found

    def _pass(self, count: int, where: str) -> None:
        self._check_count(count, 1, where)
        self._file.seek(count, os.SEEK_CUR)
        self._left -= count

    def _refuse(self, where: str, broken: object, why: str) -> None:
        if broken:
            raise self._refusal(why, where)

    def _refusal(self, message: str, where: str = "") -> InputError:
        return InputError(
            message, source=self._source, where=shown(where, 100).strip("'\"") if where else None
        )


Config = dict[str, Any]


def config_of_gguf(path: str | os.PathLike[str]) -> Config:
    """Return the ``config.json`` that the model in a GGUF would have, and the types of its weights.
    Raises :class:`InputError`.
    """
    source = os.fspath(path)
    header = read_gguf(source)
    said = _Metadata(header, source)
    arch = said.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        near = get_close_matches(str(arch), ARCHITECTURES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(ARCHITECTURES)
        message = (
            f"expected an architecture that hosim knows of GGUF files ({known}), got "
            f"{shown(arch, 60)}{hint}"
        )
        raise InputError(
            f"{message}; the model's config.json may be one that a builder knows",
            source=source,
            where="general.architecture",
        )
    config = {**said.common(), **ARCHITECTURES[arch](said)}
    weights = {name: (weight.type, prod(weight.shape)) for name, weight in header.weights.items()}
    total = sum([bytes_of(*weight) for weight in weights.values()])
    return {
        **{key: value for key, value in config.items() if value is not None},
        INDEX: {"metadata": {"total_size": total}},
        GGUF: {name: list(w) for name, w in weights.items()},
    }


class _Metadata:
    """The metadata of one architecture, each value checked as it is read."""

    def __init__(self, header: GgufHeader, source: str) -> None:
        self.metadata, self._weights, self._source = header.metadata, header.weights, source
        self.arch = header.metadata.get("general.architecture")

    def size(self, key: str, *, needed: bool = False) -> int | None:
        """Return a number; ``None`` if it is missing and not ``needed``. An array with one value
        for each layer must have equal values. Raises :class:`InputError`.
        """
        where = f"{self.arch}.{key}"
        value = self.metadata.get(where)
        if isinstance(value, list):
            if len(set(map(repr, value))) > 1:
                raise InputError("expected layers of one size, got several; the model's "
                    "config.json may be one that a builder knows",
                                 source=self._source, where=where)  # fmt: skip
            value = value[0] if value else None
        if value is None and not needed:
            return None
        if type(value) is not int or not 0 <= value <= 2**40:
            raise InputError(
                f"expected a number from 0 to 2^40, got {shown(value, 60)}",
                source=self._source,
                where=where,
            )
        return value

    def needed(self, key: str) -> int:
        """Return a number that must be present."""
        found = self.size(key, needed=True)
        assert found is not None
        return found

    def has(self, weight: str) -> bool:
        """Return whether the file has this weight."""
        return weight in self._weights

    def common(self) -> Config:
        """Return the keys that all architectures have."""
        table = self._weights.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise InputError(
                "expected the weight token_embd.weight, of two dimensions",
                source=self._source,
                where="tensors",
            )
        further = self.size("nextn_predict_layers") or 0
        heads = self.needed("attention.head_count")
        return {
            "hidden_size": self.needed("embedding_length"),
            "num_hidden_layers": self.needed("block_count") - further,
            "num_nextn_predict_layers": further or None,
            "num_attention_heads": heads,
            "num_key_value_heads": self.size("attention.head_count_kv") or heads,
            "intermediate_size": self.size("feed_forward_length"),
            "vocab_size": table.shape[1],
            "max_position_embeddings": self.size("context_length"),
            "tie_word_embeddings": not self.has("output.weight"),
        }

    def head_dim(self) -> Config:
        """Return the width of heads. Raises :class:`InputError` if values are not as
        wide as keys.
        """
        keys, values = self.size("attention.key_length"), self.size("attention.value_length")
        if None not in (keys, values) and keys != values:
            raise InputError(
                f"expected values as wide as keys, {keys}, got {values}",
                source=self._source,
                where=f"{self.arch}.attention.value_length",
            )
        return {"head_dim": keys}

    def bias(self) -> Config:
        """Return whether the projections of attention have a bias."""
        return {"attention_bias": self.has("blk.0.attn_q.bias")}

    def experts(self, count: str, width: str | None = "moe_intermediate_size") -> Config:
        """Return the sizes of experts, under the keys that a family uses for them."""
        return {
            count: self.needed("expert_count"),
            "num_experts_per_tok": self.needed("expert_used_count"),
            **({} if width is None else {width: self.needed("expert_feed_forward_length")}),
        }


def _llama(said: _Metadata) -> Config:
    if said.size("expert_count"):
        return {
            "model_type": "mixtral",
            **said.experts("num_local_experts", None),
            **said.head_dim(),
        }
    return {"model_type": "llama", **said.bias(), **said.head_dim()}


def _qwen2moe(said: _Metadata) -> Config:
    shared = said.needed("expert_shared_feed_forward_length")
    return {
        "model_type": "qwen2_moe",
        **said.head_dim(),
        **said.experts("num_experts"),
        "shared_expert_intermediate_size": shared,
    }


def _deepseek2(said: _Metadata) -> Config:
    """DeepSeek-V3 if scores are sigmoids (``expert_gating_func`` 2), else V2. Files for latent
    attention have the lengths of keys and values under ``_mla``.
    """
    turned = said.needed("rope.dimension_count")
    keys = said.size("attention.key_length_mla") or said.needed("attention.key_length")
    return {
        "model_type": "deepseek_v3" if said.size("expert_gating_func") == 2 else "deepseek_v2",
        "num_key_value_heads": said.needed("attention.head_count"),
        "q_lora_rank": said.size("attention.q_lora_rank"),
        "kv_lora_rank": said.needed("attention.kv_lora_rank"),
        "qk_nope_head_dim": keys - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": said.size("attention.value_length_mla")
        or said.needed("attention.value_length"),
        **said.experts("n_routed_experts"),
        "n_shared_experts": said.size("expert_shared_count"),
        "first_k_dense_replace": said.size("leading_dense_block_count"),
        "n_group": said.size("expert_group_count"),
    }


def _gpt_oss(said: _Metadata) -> Config:
    window = said.size("attention.sliding_window")
    return {
        "model_type": "gpt_oss",
        **said.head_dim(),
        **said.experts("num_local_experts", "intermediate_size"),
        "sliding_window": window,
    }


def _phimoe(said: _Metadata) -> Config:
    more = {"lm_head_bias": said.has("output.bias"), **said.bias(), **said.head_dim()}
    return {"model_type": "phimoe", **said.experts("num_local_experts", None), **more}


ARCHITECTURES: Mapping[str, Callable[[_Metadata], Config]] = {
    "llama": _llama,
    "qwen2": lambda said: {"model_type": "qwen2", **said.head_dim()},
    "qwen3": lambda said: {"model_type": "qwen3", **said.head_dim(), **said.bias()},
    "qwen2moe": _qwen2moe,
    "qwen3moe": lambda said: {
        "model_type": "qwen3_moe",
        **said.head_dim(),
        **said.bias(),
        **said.experts("num_experts"),
    },
    "deepseek2": _deepseek2,
    "gpt-oss": _gpt_oss,
    "gemma3": lambda said: {
        "model_type": "gemma3_text",
        **said.head_dim(),
        "sliding_window": said.size("attention.sliding_window"),
    },
    "phimoe": _phimoe,
}
"""The functions that make a config, by ``general.architecture``."""
