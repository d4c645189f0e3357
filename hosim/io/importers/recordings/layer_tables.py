"""Tables of the times of one model's layers, as the profiler of LLMServingSim records them
(casys-kaist/LLMServingSim, MIT): the kernels among them, with their sizes by the model.

``kernels_dense.csv`` has ``layer``, ``tokens`` and ``time_us``, ``kernels_per_sequence.csv``
``layer``, ``sequences`` and ``time_us``, ``kernels_attention.csv`` ``prefill_chunk``,
``kv_prefill``, ``n_decode``, ``kv_decode`` and ``time_us``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hosim.analysis.costmodel.kernels import NO_WINDOW
from hosim.analysis.costmodel.kernels.op_families import Array
from hosim.errors import InputError
from hosim.io.importers.recordings.table_columns import TableColumns, check_sizes
from hosim.io.models import build
from hosim.plain_text import counted

_COUNTS = ("tokens", "sequences")
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
Timed = tuple[str, Mapping[str, Array], Array]
"""A class of kernels, the sizes of some of it, and microseconds."""
_STEP = {"phase": "prefill", "sequence": 16, "layers": 1, "merged": True, "fused": True}


def kernels_of_layers(
    columns: TableColumns, model: Mapping[str, Any], tell: Callable[[str], None]
) -> list[Timed]:
    """The class, the sizes and the times of each product and of attention in a table of layers.

    ``model`` are the parameters of a builder (:func:`hosim.io.models.builder.build`), with ``tensor``
    if several devices shared a layer. ``tell`` is told of layers that are none of hosim's classes
    of kernels, and how many rows have prompts beside sequences that decode. Raises
    :class:`InputError` for other columns, and where nothing is left.
    """
    count = next((name for name in _COUNTS if columns.has(name)), "")
    if columns.has("time_us") and columns.has("layer") and count:
        found = list(_products(columns, count, model, tell))
    elif columns.has("time_us") and all(map(columns.has, _ATTENTION)):
        found = list(_attention(columns, model, tell))
    else:
        raise InputError(
            "expected layer, tokens or sequences, and time_us, or "
            f"{', '.join(_ATTENTION)} and time_us",
            source=columns.source,
            where="line 1",
        )
    if not found:
        raise InputError(
            "has no layer that is a product or attention of this model", source=columns.source
        )
    return found


def _kernels(model: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The last part of the name, the class and the sizes of each kernel of a layer and the head."""
    for op in build("layer", {**model, **_STEP}).ops:
        if op.kernel:
            yield op.name.rpartition(".")[2], op.kernel, op.sizes


def _products(
    columns: TableColumns, count: str, model: Mapping[str, Any], tell: Callable[[str], None]
) -> Iterator[Timed]:
    rows, us = columns.numbers(count, 1), columns.numbers("time_us", 1e-9)
    sizes = {name: of for name, kernel, of in _kernels(model) if kernel == "gemm"}
    layers = columns.frame["layer"].to_numpy(str)
    other = sorted(set(layers.tolist()) - set(sizes))
    if other:
        tell(f"left out, as they are no products: {', '.join(other)}")
    for layer in [name for name in sizes if name in layers]:
        chosen, (_, n, k) = layers == layer, sizes[layer]
        m = rows[chosen]
        named = {"m": m, "n": np.full(len(m), float(n)), "k": np.full(len(m), float(k))}
        check_sizes("gemm", named, chosen, columns.source)
        yield "gemm", named, us[chosen]


def _attention(
    columns: TableColumns, model: Mapping[str, Any], tell: Callable[[str], None]
) -> Iterator[Timed]:
    chunk, before, decodes, keys = (columns.numbers(name) for name in _ATTENTION)
    us = columns.numbers("time_us", 1e-9)
    found = [of for _, kernel, of in _kernels(model) if kernel == "context_attention"]
    if not found:
        return
    *_, heads, kv_heads, width, _ = map(float, found[0])
    mixed = (chunk > 0) & (decodes > 0)
    if mixed.any():
        tell(
            f"left out: {counted(int(mixed.sum()), 'row')} of prompts beside sequences that decode, "
            "which are one kernel there and two here"
        )
    prompts, steps = (chunk > 0) & ~mixed, (decodes > 0) & ~mixed & (keys > 0)
    for kernel, chosen, sizes in (
        (
            "context_attention",
            prompts,
            {"batch": np.ones(len(us)), "queries": chunk, "before": before},
        ),
        ("generation_attention", steps, {"batch": decodes, "keys": keys}),
    ):
        if chosen.any():
            alike = {"heads": heads, "kv_heads": kv_heads, "width": width}
            alike |= {"window": float(NO_WINDOW)} if kernel == "context_attention" else {}
            sizes |= {name: np.full(len(us), value) for name, value in alike.items()}
            sizes = {name: values[chosen] for name, values in sizes.items()}
            check_sizes(kernel, sizes, chosen, columns.source)
            yield kernel, sizes, us[chosen]
