"""The order in which a pipeline stage runs the passes of a step's micro-batches, and the number of
passes whose activations it keeps.

GPipe (Huang et al., NeurIPS 2019) runs all forward passes, then all backward passes. 1F1B
(PipeDream-flush, Narayanan et al., ICML 2021) runs only as many forward passes ahead as fill the
later stages, and then a backward pass after each forward pass. The interleaved schedule (Narayanan
et al., SC 2021, as in Megatron-LM) gives each device several chunks of layers, which are a whole
round of stages apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SCHEDULES = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True, slots=True)
class Pass:
    """The forward or backward pass of a micro-batch through one of the device's chunks
    of layers.
    """

    backward: bool
    micro_batch: int
    chunk: int = 0


def passes(
    schedule: str, stages: int, stage: int, micro_batches: int, chunks: int = 1
) -> tuple[Pass, ...]:
    """The passes of ``stage``, counted from 0, in order; ``micro_batches`` is a multiple of
    ``stages`` if there are several ``chunks``.

    >>> [f"{'B' if p.backward else 'F'}{p.micro_batch}" for p in passes("1f1b", 4, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    total = micro_batches * chunks
    ahead = warm_up(schedule, stages, stage, micro_batches, chunks)
    order = []
    for n in range(total + ahead):
        if n < total:
            order.append(_nth(n, stages, chunks, backward=False))
        if n >= ahead:
            order.append(_nth(n - ahead, stages, chunks, backward=True))
    return tuple(order)


def warm_up(schedule: str, stages: int, stage: int, micro_batches: int, chunks: int = 1) -> int:
    """Return the number of forward passes that a stage runs before the first one that a backward
    pass follows directly.
    """
    total = micro_batches * chunks
    behind = stages - stage - 1
    ahead = {"gpipe": total - 1, "1f1b": behind, "interleaved": 2 * behind + (chunks - 1) * stages}[
        schedule
    ]
    return min(ahead, total - 1)


def in_flight(order: Iterable[Pass]) -> int:
    """The most passes whose activations are kept at once.

    For stage s of p stages and m micro-batches: m with GPipe, min(p - s, m) with 1F1B, and min(2 (p
    - s - 1) + (v - 1) p + 1, m v) with v interleaved chunks, each of a v-th of the layers.

    >>> [in_flight(passes("1f1b", 4, stage, 8)) for stage in range(4)]
    [4, 3, 2, 1]
    """
    kept = most = 0
    for each in order:
        kept += -1 if each.backward else 1
        most = max(most, kept)
    return most


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the waits of equal stages for one another as a share of their computation: (p - 1) /
    (m v) with each of the schedules.
    """
    return (stages - 1) / (micro_batches * chunks)


def _nth(n: int, stages: int, chunks: int, *, backward: bool) -> Pass:
    """The n-th pass. Chunks take turns: each runs as many micro-batches as there are stages; the
    last chunk begins the backward passes.
    """
    if chunks == 1:
        return Pass(backward, n)
    group, place = divmod(n, stages * chunks)
    chunk, micro_batch = divmod(place, stages)
    return Pass(backward, group * stages + micro_batch, chunks - 1 - chunk if backward else chunk)
