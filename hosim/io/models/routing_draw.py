"""Seeded routing traces with the two regularities of published traces of mixture-of-experts models.

*Popularity.* Some experts are chosen more often than others: each gate ranks its experts at random,
and draws the expert of rank r with a weight of ``1 / r ** zipf``. *Temporal locality.* Experts
chosen in one step are likely to be chosen in the next: each expert of the previous step stays with
probability ``persistence``, and drawn experts fill the rest. Mixtral repeats choices from token to
token more often than at random (A. Q. Jiang et al., Mixtral of Experts, 2024, section 5). A.
Eliseev and D. Mazur, Fast inference of mixture-of-experts language models with offloading, 2023,
exploit that with an LRU cache of experts.

*Spread of draws.* A graph has one draw, with as many experts of each gate as its tokens are
expected to choose. :func:`draw_spread` returns by how much other draws differ, which are drawn
token by token.

All draws use :meth:`random.Random.random`, whose sequence for a seed Python guarantees, so that a
seed means the same trace everywhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import fsum, log, sqrt
from random import Random

from hosim.data.expert_routing import Gate, Routing
from hosim.errors import refuse
from hosim.graph import Graph
from hosim.limits import within


def generate(
    graph: Graph,
    gates: Sequence[Gate],
    *,
    steps: int,
    top: int | Sequence[int],
    seed: int = 0,
    zipf: float = 1.0,
    persistence: float = 0.5,
) -> Routing:
    """Return a trace of ``steps`` steps in which each gate chooses ``top`` of its experts; a
    sequence has a number for each gate.

    ``zipf`` 0 makes all experts equally popular; ``persistence`` is between 0 and 1. The trace of
    gate g does not depend on the gates after it. Raises :class:`InputError` for invalid arguments.
    """
    each = [top] * len(gates) if isinstance(top, int) else list(top)
    least = top if isinstance(top, int) else min(each, default=1)
    fits = all([n <= len(gate.experts) for n, gate in zip(each, gates, strict=True)])
    refuse(
        (
            ("steps", steps < 0, "expected at least 0"),
            ("zipf", not 0 <= zipf < 100, "expected a number from 0 to below 100"),
            ("persistence", not 0 <= persistence <= 1, "expected a probability, from 0 to 1"),
            (
                "top",
                least < 1 or not fits,
                "expected at least 1, and no more than each gate has experts",
            ),
        )
    )
    within("routing_steps", steps, where="steps")
    chosen = [
        _choices(Random(f"{seed}/{g}"), len(gate.experts), steps, each[g], zipf, persistence)
        for g, gate in enumerate(gates)
    ]
    meta = {
        "seed": seed,
        "top": top if isinstance(top, int) else each,
        "zipf": zipf,
        "persistence": persistence,
    }
    return Routing(
        graph, tuple(gates), tuple(zip(*chosen, strict=True)) if gates else ((),) * steps, meta
    )


def _choices(
    random: Random, experts: int, steps: int, top: int, zipf: float, persistence: float
) -> list[tuple[int, ...]]:
    """Return the choices of one gate in each step, each in ascending order."""
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choices of a gate: ``count`` candidates in all, ``top`` by each of ``tokens`` tokens."""

    count: int
    tokens: int
    top: int


_OTHERS, _TOKENS, _FEWEST = 16, 1024, 4
"""The most other draws, the token choices that they may have in all (more choices mean fewer
draws), and the fewest draws.
"""


def draw_spread(
    routing: Routing, chosen: Sequence[Chosen], *, seed: int, zipf: float, persistence: float
) -> float:
    """Return the relative difference between other draws and a trace in the number of experts to
    load: the root of the mean square.

    An expert has to be loaded in each step in which its gate chooses it and did not choose it in
    the previous step. In the other draws each token chooses by itself, with the same ``zipf`` and
    ``persistence``; gates draw independently, and gates of equal sizes share one mean.
    """
    steps = len(routing.steps)
    own = sum(_coming([step[g] for step in routing.steps]) for g in range(len(routing.gates)))
    alike = Counter(
        [
            (len(gate.experts), each.tokens, each.top)
            for gate, each in zip(routing.gates, chosen, strict=True)
        ]
    )
    mean, variance = 0.0, 0.0
    for (experts, tokens, top), gates in alike.items():
        others = max(_FEWEST, min(_OTHERS, _TOKENS // max(1, tokens * steps)))
        draws = [
            _coming(
                _by_tokens(
                    Random(f"{seed}/others/{k}"), experts, tokens, top, steps, zipf, persistence
                )
            )
            for k in range(others)
        ]
        mean += gates * fsum(draws) / others
        variance += (
            gates * fsum([(count - fsum(draws) / others) ** 2 for count in draws]) / (others - 1)
        )
    return sqrt((mean - own) ** 2 + variance) / own if own else 0.0


def _coming(steps: Iterable[Iterable[int]]) -> int:
    """Return the number of experts that are chosen in a step and were not chosen in the previous
    one, summed over all steps.
    """
    count, before = 0, frozenset[int]()
    for step in steps:
        now = frozenset(step)
        count, before = count + len(now - before), now
    return count


def _by_tokens(
    random: Random, experts: int, tokens: int, top: int, steps: int, zipf: float, persistence: float
) -> Iterator[set[int]]:
    """Yield the experts that a gate chooses in each step if each of its tokens draws by itself."""
    weights = [(rank + 1) ** -zipf for rank in range(experts)]
    kept: list[list[int]] = [[] for _ in range(tokens)]
    for _ in range(steps):
        for n, last in enumerate(kept):
            now = [e for e in last if random.random() < persistence]
            if len(now) < top:  # draws without replacement: the first arrivals at these rates
                arrival = {
                    e: -log(1 - random.random()) / weights[e]
                    for e in range(experts)
                    if e not in now
                }
                now += nsmallest(top - len(now), arrival, key=arrival.__getitem__)
            kept[n] = now
        yield {e for now in kept for e in now}


def _draw(random: Random, weights: dict[int, float]) -> int:
    """Return one of the keys, with a probability in proportion to its weight."""
    left = random.random() * sum(weights.values())
    for e, weight in weights.items():
        left -= weight
        if left < 0:
            return e
    return next(reversed(weights))  # rounding left a remainder
