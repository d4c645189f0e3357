"""The cost of a step, and of its tokens, if a device has a price."""

from dataclasses import dataclass, replace

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import shown
from hosim.result import Result

COST, COST_OF_TOKENS = "cost", "cost_per_million_tokens"
"""The columns of costs, in the currency of the price."""

_NS_PER_HOUR = 3600 * 10**9
_MOST = 1e6


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step on all devices that share its model; ``per_million_tokens`` is ``None`` if
    the number of tokens is unknown.
    """

    step: float
    per_million_tokens: float | None


def priced(hardware: Hardware, price: object) -> Hardware:
    """Return the machine with ``price`` per device and hour; ``None`` keeps the profile's price.
    Raises :class:`InputError`.
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
    """Read each machine's price per device and hour from a text such as ``h100=2.5,l40s=0.9``.
    Raises :class:`InputError`.

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
    """Return the cost columns of a result's row; an empty mapping if there is no price."""
    cost = step_cost(result, graph, hardware)
    return {} if cost is None else {COST: cost.step, COST_OF_TOKENS: cost.per_million_tokens}


def tokens_of(graph: Graph) -> int | None:
    """Return the number of tokens in a step's inputs named ``input_ids``; ``None`` if it has none.

    A decoding step has one token per sequence.
    """
    ids = [
        t.size_bytes
        for t in graph.tensors
        if t.kind == "input" and t.name.rpartition(".")[2] == "input_ids"
    ]
    return sum(ids) // 8 or None


def sharing_devices(graph: Graph) -> int:
    """Return the number of devices that process the same tokens: the product of the builder's
    ``tensor`` and ``pipeline``.
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
    """Return the cost of a result; ``None`` without a price, or if it does not fit."""
    if not hardware.price_per_hour or result.makespan_ns is None:
        return None
    step = hardware.price_per_hour * sharing_devices(graph) * result.makespan_ns / _NS_PER_HOUR
    tokens = tokens_of(graph)
    return StepCost(step, None if tokens is None else step / tokens * 10**6)
