"""Local search from some choices on: one change after the other where ops wait, drawn by how long
they do.

A change is taken if the plan is no slower. Where none has been better for a while, the search goes
back to the best choices, makes a few changes that may be a little slower, and goes on from there
(iterated local search, Lourenço, Martin and Stützle 2003): what is better than the best is often
several changes away.
"""

from __future__ import annotations

from typing import Any

from hosim.planner.hyperoffload.kernels.drawn_changes import SEED
from hosim.planner.hyperoffload.kernels.lowered_choices import FIELDS, WHOLE
from hosim.planner.hyperoffload.kernels.stall_changes import WHOLE_RUN, StallChanges

STALE, REFUSED, LEADING, HAS_LOOKED, DIFFERING, BEST_LEFT, BEST_NS, BEST_BYTES, FLOOR_NS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
"""Places in the record of a search: changes without a better plan, and refused ones; changes left
that lead away; whether it has looked; tensors that do something else in the best choices, and the
cost of these; what no plan takes less than.
"""

LOST = 60
"""Refused changes after which stalls no longer say where to change."""
STUCK_AFTER, AWAY_BY, WORSE = 100, 8, 100
"""After so many changes without a better plan, so many lead away from the best choices, each slower
by such a part or a usual op at most.
"""
OF_A_DRAW = 10
"""The work of drawing a change."""


class ChoiceSearch(StallChanges):
    """Searches on, from the present choices or from where it ended; its record goes with it."""

    def __init__(self, cells: Any, loop: Any, table: Any, stride: int, usual_ns: int) -> None:
        StallChanges.__init__(self, cells, loop, table, stride)
        self.usual_ns = usual_ns

    def begin(self, seed: int, floor_ns: int, whole: int) -> None:
        """Let the present choices be the best; no plan takes less than ``floor_ns``.

        ``whole`` is the work of a whole run.
        """
        for k in range(12):
            self.search[k] = 0
        self.search[SEED] = seed % 0xFFFFFFFF + 1
        self.search[FLOOR_NS] = floor_ns
        self.search[WHOLE_RUN] = max(1, whole)
        for k in range(24):
            self.gained[k] = 0
            self.spent[k] = 0
            self.paid[k] = 0
        for t in range(self.tensors):
            self.differs[t] = 0
        self.best_cells[:] = self.cells
        self.note_best()

    def note_best(self) -> None:
        """The present choices are the best."""
        for j in range(self.search[DIFFERING]):
            t = self.differing[j]
            self.differs[t] = 0
            self.copy_tensor(t, False)
        self.search[DIFFERING] = 0
        self.search[BEST_LEFT] = self.cost_left
        self.search[BEST_NS] = self.cost_ns
        self.search[BEST_BYTES] = self.cost_bytes
        self.improved = True

    def copy_tensor(self, t: int, back: bool) -> None:
        """Make the best choice of a tensor what it does, or the other way round."""
        for field in range(FIELDS):
            for s in range(self.first_slot[t], self.first_slot[t + 1]):
                self.copy_cell(t, field * self.slots + s, back)
        for field in range(WHOLE):
            self.copy_cell(t, FIELDS * self.slots + field * self.tensors + t, back)

    def copy_cell(self, t: int, k: int, back: bool) -> None:
        """Make the best choice of a tensor in a cell what it does, or the other way round."""
        if back:
            self.put(t, k, self.best_cells[k])
        else:
            self.best_cells[k] = self.cells[k]

    def go_back(self) -> None:
        """Make the best choices the present ones."""
        for j in range(self.search[DIFFERING]):
            self.differs[self.differing[j]] = 0
            self.copy_tensor(self.differing[j], True)
        self.search[DIFFERING] = 0
        self.insert(0)
        self.accept()

    def take_over(self) -> None:
        """Take the changes, and note the choices if they are the best."""
        for j in range(self.changes):
            t = self.touched_tensor[j]
            if not self.differs[t]:
                self.differs[t] = 1
                self.differing[self.search[DIFFERING]] = t
                self.search[DIFFERING] += 1
        self.accept()
        self.search[REFUSED] = 0
        if self.is_better():
            self.note_best()
            self.search[STALE] = 0
            self.search[HAS_LOOKED] = 0
        elif self.below_of(5) == 0:
            self.search[HAS_LOOKED] = 0

    def is_better(self) -> bool:
        """Whether the present choices are better than the best so far."""
        if self.cost_left != self.search[BEST_LEFT]:
            return self.cost_left < self.search[BEST_LEFT]
        if self.cost_ns != self.search[BEST_NS]:
            return self.cost_ns < self.search[BEST_NS]
        return self.cost_bytes < self.search[BEST_BYTES]

    def at_end(self) -> bool:
        """Whether nothing better can be, or nothing can be changed."""
        fits = self.search[BEST_LEFT] == 0 and self.search[BEST_NS] <= self.search[FLOOR_NS]
        return fits or self.candidates == 0 or self.ops == 0

    def resume(self) -> bool:
        """Make the cells the present choices, of a search whose record was put back; whether the
        table has places for them.
        """
        self.search[HAS_LOOKED] = 0
        return self.load()

    def go_on(self, until: int) -> bool:
        """Search until so much ``work`` is done; whether the best choices are better."""
        self.improved = False
        while self.work < until and not self.at_end():
            self.try_one()
        return self.improved

    def try_one(self) -> None:
        """Try one change."""
        if not self.search[HAS_LOOKED]:
            self.look()
            self.search[HAS_LOOKED] = 1
        self.draw()
        self.work += OF_A_DRAW
        if self.changes == 0:
            return
        begun: int = self.work
        most: int = self.cost_ns
        if self.search[LEADING]:
            most += max(self.cost_ns // WORSE, self.usual_ns)
        self.judge(-1 if self.cost_left else most + 1)
        gain: int = 0
        taken = False
        if self.found_left < self.cost_left:
            taken = True
            gain = 1 << 30
        elif (
            self.found_left == self.cost_left
            and (self.cost_left or self.found_ns <= most)
            and (self.found_ns != self.cost_ns or self.below_of(2))
        ):
            taken = True
            gain = self.share_of(self.cost_ns - self.found_ns)
        self.learn(gain, self.work - begun)
        self.search[STALE] += 1
        self.search[REFUSED] += 1
        if taken:
            if self.search[LEADING]:
                self.search[LEADING] -= 1
            self.take_over()
        else:
            self.take_back()
        if self.search[STALE] > STUCK_AFTER:
            self.go_back()
            self.search[STALE] = 0
            self.search[HAS_LOOKED] = 0
            self.search[LEADING] = AWAY_BY
        if self.search[REFUSED] > LOST:
            self.waits = 0
            self.search[REFUSED] = 0

    def share_of(self, saved_ns: int) -> int:
        """The part of the present makespan that is saved, of which 2**30 are the whole."""
        if saved_ns <= 0:
            return 0
        if self.cost_ns < 1 << 32:
            return (saved_ns << 30) // self.cost_ns
        return saved_ns // (self.cost_ns >> 30)
