"""Notebook cells: a replay with sliders, and for a study its answer and its command's tables.

:mod:`hosim.report.cells` has the other cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from pandas import DataFrame
from rich.console import Group

from hosim.api.inputs import Budget, Machine, Workload, question
from hosim.engine import read_budget, resident_step
from hosim.errors import InfeasibleError, InputError
from hosim.io.options import declared, keywords
from hosim.plain_text import printable
from hosim.report import cell as cell_of_data
from hosim.report import html
from hosim.report.answers import Answer
from hosim.report.drawn import Shown, widget
from hosim.report.of_studies import blame, diff, errors, fit, frontier
from hosim.report.printing import cell as text_in_cell
from hosim.report.printing import column_title, paragraph, table_of
from hosim.result import STALL_CAUSES
from hosim.study import Blame, Diff, lines, stall_rows
from hosim.study.asked import AnyPolicy, Settings, Value
from hosim.study.rows_of_answers import DEVICE_TIER, FEASIBLE, VARIED, records
from hosim.study.runs import BUDGET, Question, check, make_plan, replay
from hosim.study.searches import Fit, Frontier, fit_rows, frontier_rows
from hosim.units import human_size, human_time

if TYPE_CHECKING:
    from ipywidgets import Output, VBox


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
"""The columns that a cell shows if they are there; in a sweep they follow the varied ones."""

ANSWER = "answer"
"""The key of the answer (:class:`hosim.report.answers.Answer`) in ``attrs``."""


class AnswerFrame(DataFrame):
    """A frame of answers, one per row."""

    @property
    def _constructor(self) -> type[AnswerFrame]:
        return AnswerFrame

    def in_units(self) -> DataFrame:
        """Return the rows as texts: quantities have units, and column names do not.

        A varied quantity that is also there as it was given gets one column. The texts are rounded:
        compute with the frame itself.

        >>> AnswerFrame({"policy": ["a"], "makespan_ns": [1500]}).in_units()
          policy makespan
        0      a  1.50 us
        """
        shown: dict[str, list[Any]] = {}
        rows = records(self)
        for name in map(str, self.columns):
            shown.setdefault(
                printable(column_title(name)),
                [printable(text_in_cell(name, row[name])) for row in rows],
            )
        return DataFrame(shown, index=self.index)


class ComparedFrame(AnswerFrame):
    """The frame that :func:`hosim.compare` and :func:`hosim.sweep` return; a selection from it is
    shown without the answer.
    """

    def _repr_html_(self) -> str:
        """Return the answer and the main columns of each row, with units, as HTML."""
        rows = [self._row(row) for row in records(self)]
        varied = [name for name in self.attrs.get(VARIED, {}).values() if name not in _FIRST]
        columns = [
            column
            for column in (*varied, *_FIRST)
            if any([row.get(column) is not None for row in rows])
        ]
        names = {"hardware", "policy", *varied}
        listed = table_of("", columns, rows, left=sum([column in names for column in columns]))
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
            "slowdown": row.get("slowdown") or None,
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


_SHARES = range(10, 100, 5)
_TIMES = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8)
_LENGTHS = (0.25, 0.5, 1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class _Slider:
    """A slider: its positions by label, the fields that each sets, and the first position."""

    name: str
    places: Mapping[str, Settings]
    begin: str


@keywords(*declared("devices rescale runtime"))
def what_if(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "static_split",
    budget: Budget = None,
    **options: Any,
) -> VBox:
    """Show a replay with sliders for budget, bandwidth and context, in a cell of a notebook.

    Each move of a slider plans and replays once. With the default policy that takes about a tenth
    of a second for a step of a thousand ops; a policy that searches takes longer.

    Returns
    -------
    ipywidgets.VBox
        The sliders, and below them a sentence and the zoomable timeline: time in ns to s, memory in
        B to GiB. ``budget`` goes from a tenth of the resident peak to the whole device; ``links``
        multiplies the bandwidth of all channels; ``context`` or ``sequence``, in tokens, is there
        if a builder made the workload.

    Raises
    ------
    InputError
        If an argument is invalid, or ipywidgets is not installed.

    References
    ----------
    ``docs/contract.md`` has the rules of a replay.

    Examples
    --------
    >>> import hosim
    >>> small = {"model": "llama-3.1-8b", "phase": "prefill", "layers": 2, "sequence": 1024}
    >>> shown = hosim.what_if(small, "h100")
    >>> [slider.description for slider in shown.children[:-1]]
    ['budget', 'links', 'sequence']
    """
    try:
        from ipywidgets import SelectionSlider, VBox
    except ImportError:
        raise InputError(
            "needs ipywidgets: pip install 'hosim[widgets]'", source="what_if"
        ) from None

    asked = question(workload, hardware, policy, budget, **options)
    ways = [_budgets(asked, budget), _links(asked), *_lengths(asked)]
    sliders = [
        SelectionSlider(
            options=list(way.places),
            value=way.begin,
            description=way.name,
            layout={"width": "40em"},
        )
        for way in ways
    ]
    shown = _silent_output()

    def draw(_: object = None) -> None:
        settings: dict[str, Value] = {}
        for way, slider in zip(ways, sliders, strict=True):
            settings |= way.places[slider.value]
        data = {"text/html": replayed_html(asked.with_settings(settings))}
        shown.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)

    for slider in sliders:
        slider.observe(draw, "value")
    draw()
    return VBox([*sliders, shown])


def replayed_html(asked: Question) -> str:
    """Return a sentence and the timeline of one replay as HTML, or the reason why there is none."""
    try:
        plan = make_plan(asked.graph, asked.hardware, asked.choice, asked.budget_bytes)
    except (InfeasibleError, InputError) as error:
        return f"<p>{escape(str(error))}</p>"
    check(plan, asked.hardware, asked.budget_bytes)
    result = replay(plan, asked.hardware, asked.budget_bytes, bounds=False, record=True)
    said = f"Does not fit: {result.error}"
    if result.makespan_ns is not None:
        ideal = resident_step(asked.graph, asked.hardware).makespan_ns
        peak = human_size(result.peak_bytes.get(asked.hardware.device_tier, 0))
        said = (
            f"{human_time(result.makespan_ns)}, with everything resident {human_time(ideal)}; "
            f"{human_time(result.stall_ns['transfer'])} of it waits for transfers. Peak {peak} of "
            f"{human_size(asked.budget_bytes)}."
        )
    return f"<p><b>{escape(said)}</b></p>\n{widget([Shown('', plan, result)], asked.hardware)}"


def _silent_output() -> Output:
    """Return an output with a short ``repr``; a notebook would store the whole content again."""
    from ipywidgets import Output

    class Replayed(Output):  # type: ignore[misc]
        def __repr__(self) -> str:
            return "Replayed()"

    return Replayed()


def _budgets(asked: Question, budget: Budget) -> _Slider:
    """Return a slider over shares of the resident peak that fit the device, the whole device, and
    the given budget.
    """
    places: dict[str, tuple[int, Settings]] = {}
    for value in (*[f"{share}%" for share in _SHARES], *([] if budget is None else [budget])):
        wanted, allowed = read_budget(value).of(asked.graph, asked.hardware)
        if wanted <= allowed:
            places[str(value)] = (wanted, {BUDGET: value})
    ordered = sorted(places.items(), key=lambda place: place[1][0])
    return _Slider(
        "budget",
        {**{name: fields for name, (_, fields) in ordered}, "all": {BUDGET: None}},
        "all" if budget is None or str(budget) not in places else str(budget),
    )


def _links(asked: Question) -> _Slider:
    """Return a slider over multiples of the bandwidth of all channels."""
    fields = [f"channels.{channel.name}.bandwidth" for channel in asked.profile.channels]
    places = {f"{times:g}x": dict.fromkeys(fields, f"{times:g}x") for times in _TIMES}
    return _Slider("links", {**places, "1x": {}}, "1x")


def _lengths(asked: Question) -> list[_Slider]:
    """Return a slider over multiples of the builder's token count; an empty list for graphs that no
    builder made.
    """
    builder = asked.graph.meta.get("builder")
    told = builder if isinstance(builder, dict) else {}
    name = next((key for key in ("context", "sequence") if type(told.get(key)) is int), None)
    if name is None:
        return []
    lengths = {int(told[name] * times) for times in _LENGTHS if told[name] * times >= 1}
    places = {f"{n:,}": {f"workload.{name}": n} for n in sorted(lengths)}
    begin = f"{told[name]:,}"
    return [_Slider(name, {**places, begin: {}}, begin)]


_MOST = 20
"""The most rows that a table of stalls or differences shows."""


def cell(of: object) -> str:
    """Return the HTML of a study's answer, or of anything that :func:`hosim.report.cells.cell`
    takes.
    """
    if isinstance(of, Fit):
        return html(Group(paragraph(f"{of}."), fit(fit_rows(of), "", of.answer is not None)))
    if isinstance(of, Frontier):
        return html(
            Group(paragraph(f"{of}."), frontier(frontier_rows(of), of.question.hardware, ""))
        )
    if isinstance(of, Diff):
        return html(diff(of.figures, of.tensors, of.ops, str(of), (of.a, of.b), _MOST, of.parts))
    if isinstance(of, Blame):
        longest = sorted(of.stalls, key=lambda stall: -stall.stall_ns)
        return html(
            blame(stall_rows(longest[:_MOST]), len(longest), of.by_cause, lines(of.prices), str(of))
        )
    return cell_of_data(of)
