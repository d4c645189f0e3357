"""The frame of a comparison or a sweep: pandas in every way, but a cell shows the answer and the
columns that people read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame
from rich.console import Group

from hosim.report import html
from hosim.report.answers import Answer
from hosim.report.of_replays import multiple
from hosim.report.of_studies import errors, listing
from hosim.report.printing import paragraph
from hosim.result import STALL_CAUSES
from hosim.study.rows_of_answers import DEVICE_TIER, FEASIBLE, VARIED, records

_FIRST = (
    "hardware",
    "policy",
    "makespan_ns",
    "slowdown",
    "peak_bytes",
    "stall_ns",
    "lower_bound_ns",
    "enough_bytes",
)
"""The columns of a cell, of those that there are; of a sweep behind the varied ones."""

ANSWER = "answer"
"""The key of ``attrs`` that has the answer (:class:`hosim.report.answers.Answer`)."""


class AnswerFrame(DataFrame):
    """The frame of a question of several rows."""

    @property
    def _constructor(self) -> type[AnswerFrame]:
        return AnswerFrame

    def in_units(self) -> DataFrame:
        """The same rows for people: quantities with their units, and columns named without them.

        A varied quantity that has a column as it was given has no second one. The texts are
        rounded: compute with the frame itself.

        >>> AnswerFrame({"policy": ["a"], "makespan_ns": [1500]}).in_units()
          policy makespan
        0      a  1.50 us
        """
        shown: dict[str, list[Any]] = {}
        for column in listing("", records(self), list(map(str, self.columns))).columns:
            shown.setdefault(str(column.header), list(map(str, column.cells)))
        return DataFrame(shown, index=self.index)


class ComparedFrame(AnswerFrame):
    """The frame that :func:`hosim.compare` and :func:`hosim.sweep` return; a selection from it does
    not show its answer.
    """

    def _repr_html_(self) -> str:
        """The answer, and a row per policy, machine or point, with units; every column is in the
        frame.
        """
        rows = [self._row(row) for row in records(self)]
        varied = [name for name in self.attrs.get(VARIED, {}).values() if name not in _FIRST]
        columns = [
            column
            for column in (*varied, *_FIRST)
            if any([row.get(column) is not None for row in rows])
        ]
        names = {"hardware", "policy", *varied}
        listed = listing("", rows, columns, left=sum([column in names for column in columns]))
        more = f"<p>{len(self.columns)} columns: <code>list(frame.columns)</code></p>"
        notes = [paragraph(f"{note}.") for note in self.attrs.get("notes", ())]
        said = self.attrs.get(ANSWER)
        first = [paragraph(said.verdict, style="bold")] if isinstance(said, Answer) else []
        return "\n".join([html(Group(*first, *notes, listed, errors(rows))), more])

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        fits = row.get(FEASIBLE)
        stalls = [row.get(f"{cause}_stall_ns") for cause in STALL_CAUSES]
        return {
            **{name: row.get(name) for name in self.attrs.get(VARIED, {}).values()},
            "hardware": None if VARIED in self.attrs else row.get("hardware"),
            "policy": row.get("policy"),
            "makespan_ns": row.get("makespan_ns") if fits else "no result",
            "slowdown": multiple(row["slowdown"]) if row.get("slowdown") else None,
            "lower_bound_ns": row.get("lower_bound_ns"),
            "stall_ns": None if None in stalls else sum(stalls),
            "peak_bytes": row.get(
                "peak_bytes", row.get(f"{self.attrs.get(DEVICE_TIER)}_peak_bytes")
            )
            if fits
            else None,
            "enough_bytes": row.get("enough_bytes"),
            "error": f"{row.get('policy')}: {row['error']}" if row.get("error") else None,
        }
