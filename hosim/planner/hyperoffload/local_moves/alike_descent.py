"""Descent where a search at random has ended: transfers of tensors that are alike are shifted together, and tensors change tiers.

The layers of a network give a plan many small decisions that are good or bad together, such as after how many ops their optimizer states
are stored. A change drawn at random seldom meets the right ones by the right distance; in order there are few of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hosim.planner.hyperoffload.local_moves.best_choices import BestChoices
from hosim.planner.hyperoffload.local_moves.choice_moves import ChoiceMoves

_BY = (1, 3, 10, 30, 100)
"""Ops by which transfers are shifted, each for as long as that helps."""


@dataclass(frozen=True)
class _Transfer:
    """A transfer of a tensor: the return from its gap of this ``number``, or the store before it; without one that for the end."""

    number: int | None
    store: bool


def descend(kept: BestChoices, moves: ChoiceMoves, alike: Sequence[Sequence[int]], until: int) -> None:
    """Once through all shifts of the tensors of each group, and through all tiers of each tensor; what is better is kept.

    It ends before where nothing can be better, or :attr:`PlanSimulator.work` comes to ``until``.
    """
    kept.back()
    simulator = kept.simulator
    for group in alike:
        for transfer in _transfers(moves, group):
            for by in (*_BY, *[-far for far in _BY]):
                while not kept.at_floor and simulator.work < until and _shift(kept, moves, group, transfer, by):
                    pass
    _change_tiers(kept, moves, until)


def _transfers(moves: ChoiceMoves, group: Sequence[int]) -> Iterator[_Transfer]:
    yield _Transfer(None, store=True)
    for number in range(max([len(moves.gaps[t]) for t in group])):
        yield _Transfer(number, store=True)
        yield _Transfer(number, store=False)


def _shift(kept: BestChoices, moves: ChoiceMoves, group: Sequence[int], transfer: _Transfer, by: int) -> bool:
    """Shift this transfer of each tensor that has it; says whether that is better."""
    choices, number = kept.simulator.choices, transfer.number
    changes = {}
    for t in group:
        gaps = moves.gaps[t]
        if number is None or number < len(gaps):
            gap = None if number is None else gaps[number]
            shifted = moves.shifted(t, choices.get(t), gap, by, store=transfer.store)
            if shifted is not None:
                changes[t] = shifted
    return bool(changes) and kept.better(changes)


def _change_tiers(kept: BestChoices, moves: ChoiceMoves, until: int) -> None:
    """Each tensor in each of the other tiers below, where it may be there."""
    simulator = kept.simulator
    for t in list(simulator.choices):
        for tier in simulator.tiers if t in moves.gaps and t not in moves.problem.starts_below else ():
            choice = simulator.choices[t]
            if tier != choice.below and not kept.at_floor and simulator.work < until:
                kept.better({t: choice.below_in(tier)})
