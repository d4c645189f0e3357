"""A mixture of experts at toy scale, whose figures are derived by hand: 1 byte takes 1 ns."""

from collections.abc import Sequence

from hosim.data.expert_routing import Choices, Routing, gates_of
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier

ATTENTION, GATE, FFN, COMBINE = 100, 10, 50, 20
"""Durations in ns."""
EXPERT = 40
"""Bytes of an expert, and ns of its transfer."""
INSPECT = 5


def graph(layers: int, experts: int, weight: int = 8) -> Graph:
    """``x -> attention -> gate -> experts -> combine -> x``, each layer with its own weight;
    experts live in ddr.
    """
    b = GraphBuilder("moe")
    b.tensor("x", 1, "input")
    below = "x"
    for n in range(layers):
        b.tensor(f"a{n}.w", weight, "parameter")
        b.tensor(f"a{n}", 1)
        b.tensor(f"g{n}", 1)
        b.op(
            f"attention{n}",
            "attention",
            inputs=[below, f"a{n}.w"],
            outputs=[f"a{n}"],
            duration_ns=ATTENTION,
        )
        b.op(f"gate{n}", "matmul", inputs=[f"a{n}"], outputs=[f"g{n}"], duration_ns=GATE)
        for e in range(experts):
            b.tensor(f"w{n}.{e}", EXPERT, "expert", home="ddr")
            b.tensor(f"h{n}.{e}", 1)
            b.op(
                f"ffn{n}.{e}",
                "matmul",
                inputs=[f"a{n}", f"w{n}.{e}"],
                outputs=[f"h{n}.{e}"],
                duration_ns=FFN,
            )
        below = b.tensor(f"x{n}", 1, "output" if n == layers - 1 else "activation")
        b.op(
            f"combine{n}",
            "add",
            inputs=[f"g{n}", *(f"h{n}.{e}" for e in range(experts))],
            outputs=[below],
            duration_ns=COMBINE,
        )
    return b.build()


def routing(layers: int, experts: int, steps: Sequence[Choices] = (), weight: int = 8) -> Routing:
    """The toy's gates with a trace."""
    made = graph(layers, experts, weight)
    named = {
        f"gate{n}": [([f"w{n}.{e}"], [f"ffn{n}.{e}"]) for e in range(experts)]
        for n in range(layers)
    }
    return Routing(made, gates_of(made, named), tuple(steps))


def machine(capacity: int = 1000, inspect: int = INSPECT) -> Hardware:
    """1 byte a nanosecond each way between hbm and ddr."""
    return Hardware(
        "toy",
        (Tier("hbm", capacity, 10**12), Tier("ddr", 10**6, 10**11)),
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({"bf16": 10**12}),
        inspect_ns=inspect,
    )
