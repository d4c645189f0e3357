"""Is the plan for a training step slower than one with checkpointed layers? ``python
tests/bench/checkpointing.py``.

Every model with training, machine and share of its memory is planned twice within the same bytes:
the step as it is, in which hyperoffload chooses what runs again, and the step whose layers the
builder has checkpointed, as users do it (``checkpoint: true``), in which it may choose more. A line
for each: both makespans, their ratio, and the seconds of CPU that the plan of the step as it is
took. At the end the largest ratio and the geometric mean. ``--draw N --seed S`` takes N steps at
random in place of the listed ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from statistics import geometric_mean

from hosim.engine import read_budget, replay
from hosim.errors import HosimError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import load_hardware, make
from hosim.io.models import PRESETS
from hosim.policies import policy_named
from hosim.shipped import find_hardware

SHARES = ("60%", "45%", "30%")
MACHINES = (
    "a100-80gb-sxm",
    "h100-80gb-sxm",
    "gh200-96gb",
    "rtx-4090",
    "l40s",
    "ascend-910c-supernode",
)
MODELS: tuple[Mapping[str, object], ...] = (
    {"model": "bert-large", "batch": 64, "sequence": 512},
    {"model": "t5-large", "batch": 8, "sequence": 512, "layers": 8},
    {"model": "gpt2-xl", "batch": 4, "sequence": 1024, "layers": 12},
    {"model": "llama-3.1-8b", "sequence": 4096, "layers": 8},
    {"model": "vit-l-16", "batch": 64},
)
MOST_OPS = 3_000
"""Drawn steps have no more ops, so that one takes seconds."""


@dataclass(frozen=True)
class Step:
    """A training step of a builder on a machine within a share of what it holds at its peak."""

    builder: Mapping[str, object]
    machine: str
    share: str

    def graph(self, *, checkpoint: bool = False) -> Graph:
        """The step as it is, or with checkpointed layers."""
        builder = {
            **self.builder,
            "phase": "train",
            "fused": True,
            **({"checkpoint": True} if checkpoint else {}),
        }
        return make({"format": "hosim.spec/1", "name": "step", "builder": builder}, "step")

    def hardware(self) -> Hardware:
        """The machine."""
        return load_hardware(find_hardware(self.machine))

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.builder.values()))} on {self.machine} at {self.share}"


def listed() -> Iterator[Step]:
    """Every model on an H100 within every share."""
    for model in MODELS:
        for share in SHARES:
            yield Step(model, "h100-80gb-sxm", share)


def drawn(count: int, seed: int) -> Iterator[Step]:
    """Steps at random that have few enough ops."""
    draw = Random(seed)
    while count:
        builder = {
            "model": draw.choice(sorted(PRESETS)),
            "batch": draw.choice((1, 2, 4, 8, 16, 32)),
            "layers": draw.choice((2, 3, 4, 6, 8, 12)),
        }
        length = draw.choice((256, 512, 1024, 2048))
        step = Step({**builder, "sequence": length}, draw.choice(MACHINES), draw.choice(SHARES))
        try:
            ops = len(step.graph().ops)
        except HosimError:  # a model without a sequence, or one that is not trained
            continue
        if ops <= MOST_OPS:
            count -= 1
            yield step


def makespan_ns(graph: Graph, hardware: Hardware, budget: int) -> int | None:
    """That of hyperoffload's plan; None if nothing fits."""
    try:
        return replay(
            policy_named("hyperoffload").plan(graph, hardware, budget), hardware, budget
        ).makespan_ns
    except HosimError:
        return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=int, metavar="N", help="N steps at random")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    ratios = []
    for step in listed() if given.draw is None else drawn(given.draw, given.seed):
        graph, hardware = step.graph(), step.hardware()
        _, budget = read_budget(step.share).of(graph, hardware)
        begun = time.process_time()
        own = makespan_ns(graph, hardware, budget)
        took = time.process_time() - begun
        rival = makespan_ns(step.graph(checkpoint=True), hardware, budget)
        if own is None or rival is None:
            print(
                f"{step}: "
                f"{'nothing fits' if own is rival else 'checkpointed alone fits' if own is None else 'fits as it is alone'}",
                flush=True,
            )
            continue
        ratios.append(own / rival)
        print(
            f"{step}: {own / 1e6:.2f} ms, checkpointed {rival / 1e6:.2f} ms, ratio "
            f"{own / rival:.3f}, planned in {took:.1f} s",
            flush=True,
        )
    if ratios:
        print(
            f"{len(ratios)} steps: largest ratio {max(ratios):.3f}, geometric mean "
            f"{geometric_mean(ratios):.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
