"""Seeded routing traces with the two regularities that published traces of mixture-of-experts models have.

*Popularity.* Some experts are chosen more often than others: each gate ranks its experts at random, and draws the expert of rank r with a
weight of ``1 / r ** zipf``. *Temporal locality.* Experts chosen in one step are likely to be chosen in the next: each expert of the
previous step stays with probability ``persistence``, and drawn experts fill the rest. Mixtral repeats choices from token to token more
often than at random (A. Q. Jiang et al., Mixtral of Experts, 2024, section 5); A. Eliseev and D. Mazur, Fast inference of
mixture-of-experts language models with offloading, 2023, exploit that with an LRU cache of experts.

All draws use :meth:`random.Random.random`, whose sequence for a seed Python guarantees, so that a seed means the same trace everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hosim.errors import InputError
from hosim.expert_routing import Gate, Routing
from hosim.graph import Graph
from hosim.limits import within


def generate(
    graph: Graph, gates: Sequence[Gate], *, steps: int, top: int | Sequence[int], seed: int = 0, zipf: float = 1.0, persistence: float = 0.5
) -> Routing:
    """A trace of ``steps`` steps in which each gate chooses ``top`` of its experts, or each its own number of them.

    ``zipf`` 0 makes all experts equally popular; ``persistence`` is between 0 and 1. The trace of gate g does not depend on the gates after
    it. Raises :class:`InputError` for invalid arguments.
    """
    each = [top] * len(gates) if isinstance(top, int) else list(top)
    least = top if isinstance(top, int) else min(each, default=1)
    for where, wrong, expected in (
        ("steps", steps < 0, "at least 0"),
        ("zipf", not 0 <= zipf < 100, "a number from 0 to below 100"),
        ("persistence", not 0 <= persistence <= 1, "a probability, from 0 to 1"),
        (
            "top",
            least < 1 or any([n > len(gate.experts) for n, gate in zip(each, gates, strict=True)]),
            "at least 1, and no more than each gate has experts",
        ),
    ):
        if wrong:
            raise InputError(f"expected {expected}", where=where)
    within("routing_steps", steps, where="steps")
    chosen = [_choices(Random(f"{seed}/{g}"), len(gate.experts), steps, each[g], zipf, persistence) for g, gate in enumerate(gates)]
    meta = {"seed": seed, "top": top if isinstance(top, int) else each, "zipf": zipf, "persistence": persistence}
    return Routing(graph, tuple(gates), tuple(zip(*chosen, strict=True)) if gates else ((),) * steps, meta)


def _choices(random: Random, experts: int, steps: int, top: int, zipf: float, persistence: float) -> list[tuple[int, ...]]:
    """What one gate chooses in each step, each choice ascending."""
    ranked: list[int] = []
    for e in range(experts):
        ranked.insert(int(random.random() * (len(ranked) + 1)), e)
    weights = {e: (rank + 1) ** -zipf for rank, e in enumerate(ranked)}
    chosen: list[tuple[int, ...]] = []
    kept: list[int] = []
    for _ in range(steps):
        now = [e for e in kept if random.random() < persistence]
        left = {e: w for e, w in weights.items() if e not in now} if len(now) < top else {}
        while len(now) < top:
            now.append(_draw(random, left))
            del left[now[-1]]
        kept = sorted(now)
        chosen.append(tuple(kept))
    return chosen


def _draw(random: Random, weights: dict[int, float]) -> int:
    """One of the keys, with probability in proportion to its weight."""
    left = random.random() * sum(weights.values())
    for e, weight in weights.items():
        left -= weight
        if left < 0:
            return e
    return next(reversed(weights))  # rounding left a crumb
