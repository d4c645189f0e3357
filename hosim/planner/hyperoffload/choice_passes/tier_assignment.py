"""The tensors that give way where a tier below fills up: tiers assigned by interval, after a plan
says when each tensor is away.

A sweep gives tensors room in the order in which they leave, so that what leaves first fills the
fast tier, and what leaves later and for a short time is left with the slow one. Here it is the
other way round: where the fast tier would hold more than it can, those go to the next tier that are
away the longest there. Each of them frees its bytes for the most time, and its slow transfers have
the most time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hosim.costmodel import machine_of_copies
from hosim.costmodel.transfers import alone_ns
from hosim.planner.hyperoffload.tensor_choices import HOME, Choices, Problem, TensorChoice


def assigned_tiers(problem: Problem, choices: Choices) -> Mapping[int, str]:
    """The tier below of each tensor that the choices move, with the least harm where tiers fill up;
    empty where the fastest has room.

    Each tier takes what its capacity holds at every op and what its channels carry within the step;
    the last one takes the rest.
    """
    left = {
        t: _away(problem, t, choice)
        for t, choice in choices.items()
        if t not in problem.starts_below
    }
    machine, tiers = machine_of_copies(problem.graph, problem.hardware), problem.below
    found: dict[int, str] = {}
    for place, tier in enumerate(tiers):
        spilled = (
            _spilled(problem, left, tier.capacity_bytes - _lives_there(problem, tier.name))
            if place + 1 < len(tiers)
            else {}
        )
        if not place and not spilled:
            return {}
        stays = {t: away for t, away in left.items() if t not in spilled}
        if (
            place
        ):  # what its channels have no time for goes back to where the sweeps find room for it
            busy = 0
            for t in sorted(stays, key=lambda t: (stays[t][0] - stays[t][1], t)):
                size = problem.graph.tensors[t].size_bytes
                busy += max(
                    alone_ns(machine, tier.up.name, size), alone_ns(machine, tier.down.name, size)
                )
                if busy <= problem.horizon_ns:
                    found[t] = tier.name
        left = spilled
    return found


def nearer_tiers(problem: Problem, choices: Choices, part: float) -> Choices:
    """The choices with those in far tiers in nearer ones, large ones first, while these hold no
    more than a part of their capacity.

    What a tier holds is by the listed order. What is away at all is there from when it first leaves
    to its last use, or all the time.
    """
    place = {tier.name: k for k, tier in enumerate(problem.below)}
    sizes = [tensor.size_bytes for tensor in problem.graph.tensors]
    away = {
        t: _away(problem, t, choice)
        for t, choice in choices.items()
        if t not in problem.starts_below
    }
    held = {
        tier.name: np.full(len(problem.graph.ops), _lives_there(problem, tier.name))
        for tier in problem.below
    }
    for t, (begin, end) in away.items():
        held[choices[t].below][begin:end] += sizes[t]
    found = dict(choices)
    for t in sorted(away, key=lambda t: (-place[choices[t].below], -sizes[t], t)):
        begin, end = away[t]
        for tier in problem.below[: place[choices[t].below]]:
            level = held[tier.name][begin:end]
            if level.max(initial=0) + sizes[t] <= part * tier.capacity_bytes:
                level += sizes[t]
                found[t] = choices[t].below_in(tier.name)
                break
    return found


def _lives_there(problem: Problem, tier: str) -> int:
    return sum(
        problem.graph.tensors[t].size_bytes
        for t, home in problem.starts_below.items()
        if home == tier
    )


def _away(problem: Problem, t: int, choice: TensorChoice) -> tuple[int, int]:
    """Op positions from and up to which the tier below holds a tensor's copy."""
    users, count = problem.graph.users[t], len(problem.graph.ops)
    if choice.start != HOME or not choice.away or problem.graph.survives[t]:
        return 0, count
    return max(0, min(choice.away)), users[-1] + 1 if users else count


def _spilled(
    problem: Problem, away: Mapping[int, tuple[int, int]], capacity: int
) -> dict[int, tuple[int, int]]:
    """Those away the longest that have to give way for the others to fit within ``capacity`` at
    every op.
    """
    sizes = [tensor.size_bytes for tensor in problem.graph.tensors]
    change = np.zeros(len(problem.graph.ops) + 2, dtype=np.int64)
    for t, (begin, end) in away.items():
        change[begin] += sizes[t]
        change[end] -= sizes[t]
    held = np.cumsum(change)
    spilled: dict[int, tuple[int, int]] = {}
    for t in sorted(away, key=lambda t: (away[t][0] - away[t][1], t)):
        begin, end = away[t]
        if (held[begin:end] > capacity).any():
            held[begin:end] -= sizes[t]
            spilled[t] = away[t]
    return spilled
