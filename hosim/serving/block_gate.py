"""The cost of choosing the blocks that attention reads: one op a layer of the builders
(:mod:`hosim.io.models.kv_cache`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosim.errors import InputError
from hosim.graph import Op
from hosim.io.models import ITEM_BYTES, Run, build


@dataclass(frozen=True, slots=True)
class BlockGate:
    """Of one of ``layers`` layers: the flop of a query and a block, the bytes that a query and the
    summary of a block have.

    A block has ``block_tokens`` tokens; ``always_blocks`` are read without being chosen.
    """

    flops: int
    query_bytes: int
    block_bytes: int
    layers: int
    dtype: str
    block_tokens: int
    always_blocks: int


def gate_of(parameters: Mapping[str, Any]) -> BlockGate:
    """The gate of a model whose parameters have ``kv_block``, from a step that chooses one of two
    blocks.
    """
    sinks, window = (
        parameters.get(name, getattr(Run(), name)) for name in ("sink_blocks", "window_blocks")
    )
    few = {"sink_blocks": 0, "window_blocks": 1, "chosen_blocks": 1}
    try:
        graph = build(
            "gate",
            {
                **parameters,
                **few,
                "routing": None,
                "phase": "decode",
                "context": 3 * parameters["kv_block"],
            },
        )
    except InputError as error:
        if error.where != "context":
            raise
        raise InputError(
            f"expected blocks of which the model has at least three: {error.message}",
            where="kv_block",
        ) from None
    gates = [op for op in graph.ops if is_gate(op)]
    gate, flops = gates[0], gates[0].flops // 2
    summaries = graph.tensors[gate.inputs[1]].size_bytes // 2
    query = (
        flops // 2 * ITEM_BYTES[gate.dtype]
    )  # of each element a product and a sum; its tensor may have keys and values, too
    return BlockGate(
        flops, query, summaries, len(gates), gate.dtype, parameters["kv_block"], sinks + window
    )


def is_gate(op: Op) -> bool:
    """Return whether it chooses blocks of the cache."""
    return op.kind == "sort" and op.name.endswith(".select")
