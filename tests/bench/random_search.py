"""Is there a better plan nearby? A random search that knows nothing of the planner: it changes a
plan, and replays it.

What comes out a little slower is kept at first, less and less later (threshold accepting), with
returns to the best plan. Every plan that is kept has passed the verifier. :mod:`random_moves` has
the changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from plan_states import plan_of, state_of
from random_moves import Moves

from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import HosimError
from hosim.hardware import Hardware
from hosim.result import Result

_TRIES = 20
"""How many changes are drawn for each replay that is asked for, at most: one that changes nothing
is not replayed.
"""


@dataclass(frozen=True)
class Found:
    """What a search has found: the best plan, its nanoseconds, those at the beginning, and how much
    it replayed and verified.
    """

    plan: Plan
    makespan_ns: int
    begin_ns: int
    replays: int
    verified: int
    seconds: float

    @property
    def gain(self) -> float:
        """The part of the time that is saved."""
        return 1 - self.makespan_ns / self.begin_ns


def search(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    *,
    seed: int = 0,
    replays: int | None = None,
    seconds: float | None = None,
    enough: float = 1.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Found:
    """Search from a plan until so many replays, or CPU seconds of this process, are spent, or this
    part of the time is saved.

    For a number of replays it is the same plan each time.
    """
    return _Search(plan, hardware, budget_bytes, seed).run(replays, seconds, enough, tell)


class _Search:
    """One search, with what it has seen of the last plan that it kept."""

    def __init__(self, plan: Plan, hardware: Hardware, budget_bytes: int, seed: int) -> None:
        self.plan, self.hardware, self.budget = plan, hardware, budget_bytes
        self.draw = Random(seed)
        self.begin = time.process_time()
        self.tried = self.replays = self.verified = 0
        self.state = self.best = state_of(plan)
        result = self._replay(plan, record=True)
        if result is None:
            raise ValueError("expected a plan that fits")
        self.makespan = self.best_ns = self.begin_ns = self._ns(result)
        self.best_plan = self.kept_plan = plan
        self.moves = Moves(plan.graph, hardware, self.draw)
        self.moves.look(result, self.state)

    def run(
        self, replays: int | None, seconds: float | None, enough: float, tell: Callable[[str], None]
    ) -> Found:
        """The best of all plans seen."""
        stale, told, stuck = 0, 0.0, 0
        while (spent := self._spent(replays, seconds)) < 1 and self._gain() < enough:
            threshold = 0.0004 * (1 - spent)
            kept = self._step(threshold)
            stale = 0 if kept == 2 else stale + 1
            stuck = 0 if kept else stuck + 1
            if stale > 400 + 800 * spent and self.state is not self.best:  # back to the best
                self.state, self.makespan, self.kept_plan, stale = (
                    self.best,
                    self.best_ns,
                    self.best_plan,
                    0,
                )
                self._look()
            if stuck > 60:
                self.moves.anywhere()
                stuck = 0
            if spent >= told:
                tell(
                    f"{spent:4.0%} {self.replays} replays, {self.best_ns / 1e6:.3f} of "
                    f"{self.begin_ns / 1e6:.3f} ms ({self._gain():.2%})"
                )
                told += 0.1
        return Found(
            self.best_plan,
            self.best_ns,
            self.begin_ns,
            self.replays,
            self.verified,
            time.process_time() - self.begin,
        )

    def _gain(self) -> float:
        return 1 - self.best_ns / self.begin_ns

    def _spent(self, replays: int | None, seconds: float | None) -> float:
        parts = [0.0]
        if replays is not None:
            parts += [self.replays / replays, self.tried / (_TRIES * replays)]
        if seconds is not None:
            parts.append((time.process_time() - self.begin) / max(seconds, 1e-9))
        return max(parts)

    def _step(self, threshold: float) -> int:
        """Tries one change: 0 it is refused, 1 kept, 2 the best so far."""
        self.tried += 1
        move = self.moves.draw_move(self.state)
        if move is None:
            return 0
        state = self.state.changed(*move)
        plan = plan_of(state, self.plan)
        if plan == self.kept_plan:
            return 0
        result = self._replay(plan)
        if result is None or self._ns(result) > self.makespan * (1 + threshold):
            return 0
        if self._ns(result) == self.makespan and self.draw.random() < 0.5:
            return 0
        self.verified += 1
        if verify(plan, self.hardware, self.budget):
            return 0
        self.moves.learn(max(0.0, 1 - self._ns(result) / self.makespan))
        self.state, self.makespan, self.kept_plan = state, self._ns(result), plan
        better = self.makespan < self.best_ns
        if better:
            self.best, self.best_ns, self.best_plan = state, self.makespan, plan
        if better or self.draw.random() < 0.2:
            self._look()
        return 1 + better

    def _look(self) -> None:
        result = self._replay(plan_of(self.state, self.plan), record=True)
        if result is not None:
            self.moves.look(result, self.state)

    def _replay(self, plan: Plan, *, record: bool = False) -> Result | None:
        self.replays += 1
        try:
            result = replay(plan, self.hardware, self.budget, record=record)
        except HosimError:
            return None
        return result if result.feasible else None

    @staticmethod
    def _ns(result: Result) -> int:
        assert result.makespan_ns is not None
        return result.makespan_ns
