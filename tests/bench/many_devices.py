"""What many devices in one replay take, each with its own events."""

from long_chain import pooled, supernode
from measures import cpu_seconds, measure

from hosim.engine import replay
from hosim.jitter import Jitter

OPS = 2000


@measure("384 devices of 2,000 ops each, in lockstep, none left out", most=180, unit="s")
def alike() -> float:
    return cpu_seconds(lambda: replay(pooled(OPS), supernode(384), fold=False))


@measure(
    "48 devices of 2,000 ops each with jitter: no two do the same at the same time",
    most=180 / 8,
    unit="s",
)
def jittered() -> float:
    return cpu_seconds(
        lambda: replay(pooled(OPS), supernode(48), fold=False, jitter=Jitter(1, 0.05, 0.1))
    )
