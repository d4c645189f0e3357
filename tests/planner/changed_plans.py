"""Changes of a plan's choices, judged and taken through the kernel of local search."""

from collections.abc import Mapping

from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import Choices, TensorChoice

Changes = Mapping[int, TensorChoice | None]
"""By tensor what it does instead; None: it stays."""


def difference(before: Choices, now: Choices) -> dict[int, TensorChoice | None]:
    """What changes from some choices to others."""
    return {t: now.get(t) for t in sorted({*before, *now}) if now.get(t) != before.get(t)}


class ChangedPlans(PlanSimulator):
    """A simulator that is told what changes."""

    def judge(self, changes: Changes, limit_ns: int | None = None) -> tuple[int, int, int]:
        """The cost of the present choices with these changes; one that is no less than ``limit_ns``
        may be found to be just that.
        """
        self._put(changes)
        self.kernel.judge(-1 if limit_ns is None else limit_ns)
        found = self.kernel.found()
        self.kernel.take_back()
        return found

    def accept(self, changes: Changes) -> tuple[int, int, int]:
        """Take changes over into the present choices."""
        self._put(changes)
        self.kernel.insert(0)
        self.kernel.accept()
        return self.cost

    def stalls(self) -> list[tuple[int, int, int]]:
        """The waits of ops in the present run: (op, nanoseconds, the tensor it waited for; below 0:
        room, or other ops).

        What the step waits for after its last op is a wait of the op after it, for the tensor that
        moves last.
        """
        columns = [self.cells[f"stall_{name}"] for name in ("op", "ns", "cause")]
        return [*zip(*[column[: self.kernel.stalls] for column in columns], strict=True)]

    def _put(self, changes: Changes) -> None:
        cells, of = self.cells["cells"], self.cells["slot_tensor"]
        slots, tensors = self.cells["slots"], self.cells["tensors"]
        wanted = cells[:]
        if not isinstance(cells, list):
            wanted = memoryview(bytearray(cells)).cast(cells.format)
        made = {**self.choices, **changes}
        self.coding.write(wanted, {t: c for t, c in made.items() if c is not None})
        for cell, value in enumerate(wanted):
            whole = cell - 7 * slots
            self.kernel.put(of[cell % slots] if whole < 0 else whole % tensors, cell, value)
