"""The cost of a step, and of one of its tokens, where a device has a price."""

from dataclasses import dataclass, replace

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import shown
from hosim.result import Result

COST, COST_OF_TOKENS = "cost", "cost_per_million_tokens"
"""Columns, in the currency of the price."""

_NS_PER_HOUR = 3600 * 10**9
_MOST = 1e6


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of all devices that share the step's model, for their hours; ``per_million_tokens`` is
    ``None`` where tokens are not known.
    """

    step: float
    per_million_tokens: float | None


def priced(hardware: Hardware, price: object) -> Hardware:
    """The machine whose devices cost ``price`` an hour each; ``None``: as its profile says. Raises
    :class:`InputError`.
    """
    if price is None:
        return hardware
    if type(price) not in (int, float) or not 0 < float(str(price)) <= _MOST:
        raise InputError(
            f"expected what a device costs an hour, from above 0 to {_MOST:,.0f}, got "
            f"{shown(price)}",
            source="price",
        )
    return replace(hardware, price_per_hour=float(str(price)))


def prices_of(text: str) -> dict[str, float]:
    """The price of a device of each machine an hour, as in ``h100=2.5,l40s=0.9``. Raises
    :class:`InputError`.

    >>> prices_of("h100=2.5, l40s=0.9")
    {'h100': 2.5, 'l40s': 0.9}
    """
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, _, price = part.strip().partition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            raise InputError(
                "expected what a device of each machine costs an hour, as in h100=2.5,l40s=0.9; "
                f"got {shown(text)}",
                source="price",
            ) from None
    return prices


def step_costs(result: Result, graph: Graph, hardware: Hardware) -> dict[str, float | None]:
    """The columns of a row whose machine has a price; none without one."""
    cost = step_cost(result, graph, hardware)
    return {} if cost is None else {COST: cost.step, COST_OF_TOKENS: cost.per_million_tokens}


def tokens_of(graph: Graph) -> int | None:
    """The tokens that a step takes in: those of its inputs that are called ``input_ids``; ``None``
    if it has none.

    A decoding step takes, and gives, one a sequence.
    """
    ids = [
        t.size_bytes
        for t in graph.tensors
        if t.kind == "input" and t.name.rpartition(".")[2] == "input_ids"
    ]
    return sum(ids) // 8 or None


def sharing_devices(graph: Graph) -> int:
    """Return the number of devices that have the same tokens: those that share layers, and the
    stages of a pipeline, as the builder was told.
    """
    builder = graph.meta.get("builder")
    counts = (
        [builder.get(key, 1) for key in ("tensor", "pipeline")] if isinstance(builder, dict) else []
    )
    product = 1
    for count in counts:
        product *= count if type(count) is int and count > 0 else 1
    return product


def step_cost(result: Result, graph: Graph, hardware: Hardware) -> StepCost | None:
    """The cost of a result; ``None`` without a price, or if it does not fit."""
    if not hardware.price_per_hour or result.makespan_ns is None:
        return None
    step = hardware.price_per_hour * sharing_devices(graph) * result.makespan_ns / _NS_PER_HOUR
    tokens = tokens_of(graph)
    return StepCost(step, None if tokens is None else step / tokens * 10**6)
