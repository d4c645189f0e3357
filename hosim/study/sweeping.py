"""Plan and replay many points of one question: a grid or a list over fields of workload, machine,
policy and budget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hosim.errors import InputError
from hosim.study.asked import Settings, Value
from hosim.study.rows_of_answers import (
    FEASIBLE,
    SLOWDOWN,
    TEXTS,
    Row,
    RowFile,
    figure_columns,
    frame,
    unique,
    varied,
    varied_columns,
)
from hosim.study.runs import (
    AnyTask,
    Question,
    Runner,
    Task,
    check_fields,
    check_values,
    here,
    pack,
    point_key,
)

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Swept:
    """The rows of a sweep, one per point, in order.

    ``computed`` rows are new, the others come from the file. ``given`` has the points as they were
    given, and ``varying`` the column of each of their fields.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    computed: int
    given: Sequence[Settings] = ()
    varying: Mapping[str, str] = field(default_factory=dict)

    @property
    def frame(self) -> DataFrame:
        """The rows as a pandas frame."""
        return frame(self.rows, self.columns)


def sweep(
    question: Question,
    points: Sequence[Settings],
    path: Path | None = None,
    runner: Runner = here,
    progress: Callable[[int, int, int], None] = lambda done, total, failed: None,
) -> Swept:
    """Compute the rows of all points: ``point``, the varied fields, and the figures of
    :func:`hosim.study.rows_of_answers.rows.figure_columns`.

    A point that fails is a row with ``error``. With a ``path`` (CSV or Parquet), each row is
    written as soon as it is known, and existing rows are not computed again. ``progress`` gets the
    number of rows done, of all rows, and of those that do not fit. Raises :class:`InputError` for
    an unknown field, a number without its unit, and the file of another sweep.
    """
    if not points:
        raise InputError(
            "nothing to vary; give fields and values such as channels.h2d.bandwidth=25..200GB/s:8",
            source="vary",
        )
    check_fields(question, dict.fromkeys(field for point in points for field in point))
    check_values(question, points)
    packed = pack(question)
    points, keys = unique(points, [point_key(packed.digest, point) for point in points])
    varying = varied_columns(points)
    columns = [
        "point",
        *varying.values(),
        *(c for c in figure_columns(question.hardware) if c not in varying.values()),
    ]
    tasks = [Task(key, packed, point) for key, point in zip(keys, points, strict=True)]
    figures = set(columns) - {*varying.values(), *TEXTS, FEASIBLE, SLOWDOWN}
    return swept(tasks, columns, figures, (SLOWDOWN,), varying, path, runner, progress)


def swept(
    tasks: Sequence[AnyTask],
    columns: Sequence[str],
    whole: Collection[str],
    numbers: Collection[str],
    varying: Mapping[str, str],
    path: Path | None,
    runner: Runner,
    progress: Callable[[int, int, int], None],
) -> Swept:
    """Compute the rows of tasks with unique keys; ``path``, ``runner`` and ``progress`` are as in
    :func:`sweep`.

    ``whole`` has the columns of whole numbers, ``numbers`` those of other numbers, and ``varying``
    the column of each varied field.
    """
    settings = {task.key: task.settings for task in tasks}
    with RowFile(path, columns, list(settings), whole, numbers) as file:
        missing = [task for task in tasks if task.key not in file.rows]
        failures = sum(not row["feasible"] for row in file.rows.values())
        progress(len(file.rows), len(tasks), failures)
        with closing(_begun(runner, missing)) as rows:
            for row in rows:
                file.append({**row, **varied(settings[str(row["point"])], varying)})
                failures += not row["feasible"]
                progress(len(file.rows), len(tasks), failures)
        # the points have the varied fields: in a CSV file a number and a text may look the same
        finished = [(row, settings[str(row["point"])]) for row in file.finish()]
    ordered = [{**row, **varied(point, varying)} for row, point in finished]
    return Swept(ordered, columns, len(missing), [point for _, point in finished], varying)


def under_way(done: int, total: int, failed: int) -> str:
    """Return the progress of a sweep, in words.

    >>> under_way(1, 2000, 0), under_way(2, 2, 1)
    ('1 of 2,000 points', '2 of 2 points, 1 does not fit')
    """
    return ", ".join(filter(None, [f"{done:,} of {total:,} points", misfits(failed)]))


def misfits(failed: int) -> str:
    """Return the number of points that do not fit, in words; an empty text for 0."""
    return f"{failed:,} {'does' if failed == 1 else 'do'} not fit" if failed else ""


def _begun(runner: Runner, tasks: Sequence[AnyTask]) -> Generator[dict[str, Value], None, None]:
    """Yield the runner's rows; closing this generator at the end of a sweep stops the runner."""
    yield from runner(tasks)
