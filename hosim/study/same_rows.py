"""Studies whose rows are all the same, because the workload has all the memory that it wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hosim.engine.resident_step import resident_step
from hosim.study.axes import Value
from hosim.study.scenario import Question
from hosim.units import human_size, human_time


def same_everywhere(question: Question, rows: Sequence[Mapping[str, Value]]) -> str | None:
    """Why every row has the same makespan, in a sentence, if it is that everything fits; else ``None``."""
    makespans: set[Any] = {row["makespan_ns"] for row in rows}
    budgets: set[Any] = {row["budget_bytes"] for row in rows}
    peak = resident_step(question.graph, question.hardware).peak_bytes
    if len(rows) < 2 or len(makespans) > 1 or None in makespans or None in budgets or min(budgets) < peak:
        return None
    return (
        f"every row takes {human_time(makespans.pop())}: everything fits within {human_size(min(budgets))} (the resident peak is "
        f"{human_size(peak)}), so that nothing has to move; give a smaller budget, such as -b 75%"
    )
