"""An explained plan for people (tables) and for machines (a dictionary): ``hosim plan
--explain``.
"""

import html
import io
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType

from hosim.analysis import Gap
from hosim.analysis.costmodel import time_origins
from hosim.analysis.lower_bounds import durations_by_processor
from hosim.base.groups import grouped
from hosim.cache_plan import AT_START, Plan, counted_cache_ops
from hosim.data.folded_parts import folded, of_each, tensors_of
from hosim.graph import DEVICE
from hosim.hardware import Hardware
from hosim.plain_text import counted, one_line, printable
from hosim.planner.hyperoffload import STARTS_BELOW, JudgedGap
from hosim.planner.hyperoffload.explanations import (
    REASONS,
    Explanation,
    Line,
    ObservedTransfer,
    Region,
    signed_time,
)
from hosim.report.answers import Answer, answered
from hosim.report.listed import origin_lines
from hosim.report.of_replays import channels, transfers
from hosim.report.printing import (
    NOTHING,
    and_more,
    lines_of,
    open_table,
    paragraph,
    time_or_nothing,
)
from hosim.result import STALL_CAUSES, Stall
from hosim.units import human_size, human_time

_NAMED = 3
"""Ops of a row that are named."""


def chosen_processors(plan: Plan, hardware: Hardware) -> RenderableType:
    """A row for each kind of op and the processor that the plan chose: how many, and what they take
    there and on the others.
    """
    graph, index = plan.workload, plan.workload.op_index
    of = grouped(
        ((graph.ops[index[name]].kind, processor), index[name])
        for name, processor in plan.processors.items()
    )
    times = durations_by_processor(graph, hardware)
    table = open_table(
        "Ops that may run on several processors",
        "ops",
        "count",
        *[f"on {p or DEVICE}" for p in times],
        "which",
        prose=("which",),
    )
    for (kind, processor), listed in sorted(of.items()):
        taken = [[ns[i] for i in listed if i in ns] for ns in times.values()]
        names = [printable(graph.ops[i].name) for i in listed[:_NAMED]]
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        table.add_row(
            f"{printable(kind)} on {processor or DEVICE}",
            f"{len(listed):,}",
            *[human_time(sum(ns)) if len(ns) == len(listed) else NOTHING for ns in taken],
            ", ".join(names) + more,
        )
    return table


FORMAT = "hosim.explanation/2"

WIDTH = 120
"""Columns of an explanation as text."""
ROWS, _SHORT, _NAME = 20, 5, 34
"""Rows of each table unless asked for more, and those of :func:`summary` with the characters of
their names.
"""

_BARS = " ▁▂▃▄▅▆▇█"
_NS_PER_S = 10**9
_COLUMNS = ("bytes", "uses", "idle", "recompute", "score")


@dataclass(frozen=True, repr=False)
class PlanExplanation:
    """An explained plan that prints as a summary, here and in a notebook; ``figures`` is what it is
    made of.
    """

    figures: Explanation

    def text(self, top: int | None = ROWS) -> str:
        """Every table as text, :data:`WIDTH` columns wide, with at most ``top`` rows each;
        ``None``: all of them.
        """
        return _printed(explanation(self.figures, top))

    def as_dict(self, top: int | None = None) -> dict[str, Any]:
        """Names, nanoseconds, bytes and byte-nanoseconds, as ``hosim plan --explain --json`` prints
        them.
        """
        return to_dict(self.figures, top)

    def __str__(self) -> str:
        return _printed(summary(self.figures))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _printed(tables: RenderableType) -> str:
    printed = io.StringIO()
    Console(file=printed, width=WIDTH, highlight=False).print(tables)
    return printed.getvalue().rstrip("\n")


def explanation(explained: Explanation, top: int | None = None) -> RenderableType:
    """Everything: one row a gap, a transfer and a wait; ``top`` bounds the rows of each table, the
    most important ones first.
    """
    return Group(
        paragraph(explained.origin, space=True),
        pressure(explained, top),
        paragraph(*counts(explained).splitlines(), space=True),
        explanation_lines(explained, top),
        transfers(explained, top),
        channels([explained.result]),
        load(explained),
        waits(explained, top),
        paragraph(*explained.notes[1:], style="dim"),
    )


def summary(explained: Explanation) -> RenderableType:
    """Return the summary that fits a screen: the tensors that matter most, and what became of all
    gaps in numbers.
    """
    ranked = sorted(
        grouped((line.gap.tensor, line) for line in explained.lines).values(),
        key=lambda found: (-sum(x.exposed_ns for x in found), -sum(x.saved_bytes for x in found)),
    )
    told = [
        next((x for x in found if x.moved and x.reason != STARTS_BELOW), found[0])
        for found in ranked
    ]
    tensors = explained.plan.graph.tensors
    rows = folded((tensors[x.gap.tensor], _shown(x)) for x in told)
    left = tensors_of(rows[_SHORT:])
    more = f"{counted(left, 'more tensor')}; " if left > 0 else ""
    scored = any(line.score is not None for line in explained.lines)
    return answered(
        Answer(
            explained.origin,
            " ".join(_peak(explained)),
            columns=("tensor", "verdict", "bytes", "score", "exposed"),
            rows=tuple(
                [
                    (one_line(name, _NAME), *_shown(told[places[0]]))
                    for name, _, places in rows[:_SHORT]
                ]
            ),
            left=2,
            shown=_SHORT,
            ranked=False,
            rest=f"{more}first those that ops wait for, then by bytes saved at the peak"
            f"{'; the score decided' if scored else ''}{of_each(rows[:_SHORT])}",
            chosen=" ".join(counts(explained).splitlines())
            + " --top N prints every table with N rows, --all with every row.",
        )
    )


def _shown(line: Line) -> tuple[str, ...]:
    """The cells of a gap in the summary."""
    size, *_, score = _figures(line)
    return REASONS[line.reason], size, score, time_or_nothing(line.exposed_ns)


def _figures(line: Line) -> tuple[str, ...]:
    """The figures of a gap that both tables show: the score decides, the others inform."""
    figures = line.figures
    return (
        human_size(figures.bytes),
        str(figures.accesses),
        human_time(figures.gap_ns),
        time_or_nothing(figures.recompute_ns),
        signed_time(line.score) if line.score is not None else NOTHING,
    )


def pressure(explained: Explanation, top: int | None = None) -> RenderableType:
    """Return the pressure on the device tier: where it would hold more than the budget if nothing
    moved, and what it holds there under the plan.
    """
    graph, head = explained.plan.graph, _peak(explained)
    if not explained.regions:
        return paragraph(*head, "Nothing is over budget.", space=True)
    table = open_table(
        "Pressure: over budget if nothing moved",
        "from op",
        "to op",
        "ops",
        "time",
        "over by",
        "area",
        "held by plan",
        left=2,
        wraps=("from op", "to op"),
        rows=[
            (
                graph.ops[region.first].name,
                graph.ops[region.last].name,
                f"{region.last - region.first + 1:,}",
                human_time(region.over_ns),
                human_size(region.over_bytes),
                _area(region.over_byte_ns),
                human_size(region.held_bytes),
            )
            for region in sorted(explained.regions, key=lambda r: (-r.over_byte_ns, r.first))[:top]
        ],
    )
    return Group(paragraph(*head, space=True), table, and_more(len(explained.regions), top))


def _peak(explained: Explanation) -> list[str]:
    """Return the bytes that the device tier would hold if nothing moved, those that it holds under
    the plan, and where the ops' times are from.
    """
    graph, result = explained.plan.graph, explained.result
    device = explained.hardware.device_tier
    at = f" at op {graph.ops[explained.peak_op].name}" if explained.peak_op >= 0 else ""
    at += ", with ops one at a time as they are listed" if len(graph.streams) > 1 else ""
    moves = (
        "nothing"
        if {t.home for t in graph.tensors} <= {None, device}
        else "what lives below came up at its first use and nothing else"
    )
    before, after, budget = (
        human_size(n)
        for n in (explained.peak_bytes, result.peak_bytes[device], result.budget_bytes)
    )
    held = (
        f"{device} would hold {before}{at}; the plan holds {after} at most, within a budget of "
        f"{budget}."
    )
    return [f"If {moves} moved, {held}", *origin_lines(graph, explained.hardware)]


def counts(explained: Explanation) -> str:
    """Candidates, what became of them, and the cache ops of the plan, in words."""
    plan, found = explained.plan, explained.lines
    moved = [line for line in found if line.moved]
    reasons = sorted(Counter(line.reason for line in found).items(), key=_most_first)
    parts = ", ".join(f"{number:,} {REASONS[reason]}" for reason, number in reasons)
    tensors, have = (
        counted(explained.without_gap_tensors, "tensor"),
        "has" if explained.without_gap_tensors == 1 else "have",
    )
    short = (
        f"{tensors} ({human_size(explained.without_gap_bytes)}) {have} no gap between uses to "
        "be away in"
    )
    used = f"{counted(len(found), 'gap')}, {len(moved):,} used" + (f" ({parts})" if parts else "")
    return f"{used}; {short}.\nCache ops: {counted_cache_ops(plan)}."


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return (-item[1], item[0])


def explanation_lines(explained: Explanation, top: int | None = None) -> RenderableType:
    """One row a gap: the tensor, its gap and why it moves or stays, and its figures.

    ``pressure`` is the share of its channel's time in the gap that all candidates would take
    together.
    """
    graph = explained.plan.graph
    tensors = [graph.tensors[line.gap.tensor] for line in explained.lines]
    about = [
        (
            f"{tensor.kind.replace('_', ' ')}: {between(explained, x.gap)}",
            x.why,
            f"{x.figures.channel_pressure:.2f}",
            _area(x.relief_byte_ns),
        )
        for tensor, x in zip(tensors, explained.lines, strict=True)
    ]
    rows = folded(
        (t, (*_figures(x), *said, x.moved))
        for t, x, said in zip(tensors, explained.lines, about, strict=True)
    )
    table = open_table(
        "Gaps by bytes saved at the peak. The score (over-budget time covered, less weighted "
        "stalls) decided." + of_each(rows[:top]),
        spare=("relief", "pressure", "uses", "recompute", "idle"),
    )
    table.add_column("tensor\nkind: gap\nwhy", ratio=1, overflow="fold", no_wrap=False)
    for name in (*_COLUMNS, "pressure", "relief"):
        table.add_column(name, justify="right")
    for name, _, places in rows[:top]:
        line, (gap, why, *others) = explained.lines[places[0]], about[places[0]]
        table.add_row(
            lines_of(name, gap, why), *_figures(line), *others, style=None if line.moved else "dim"
        )
    return Group(table, and_more(len(rows), top))


def between(explained: Explanation, gap: Gap) -> str:
    """A gap by the names of its ops: ``f > g``, ``start > g`` or ``f > end``."""
    ops = explained.plan.graph.ops
    after = ops[gap.after].name if gap.after != AT_START else "start"
    return f"{after} > {ops[gap.before].name if gap.before < len(ops) else 'end'}"


def load(explained: Explanation) -> RenderableType:
    """Return the load of each channel over the makespan, in equal parts of it from left to
    right.
    """
    rows = [(name, shares) for name, shares in explained.loads.items() if any(shares)]
    if not rows:
        return paragraph()
    return open_table(
        "Load over the step",
        "channel",
        "load",
        left=2,
        rows=[
            (
                name,
                "|"
                + "".join(_BARS[max(int(share > 0), round(share * 8))] for share in shares)
                + "|",
            )
            for name, shares in rows
        ],
    )


def waits(explained: Explanation, top: int | None = None) -> RenderableType:
    """One row a wait, the longest first."""
    if not explained.waits:
        return paragraph("Waits: none.", space=True)
    names = "op", "cause", "from", "for", "transfer"
    table = open_table("Waits", *names, left=2, prose=names[-1:])
    graph = explained.plan.graph
    for wait in sorted(explained.waits, key=lambda w: (w.start_ns - w.end_ns, w.start_ns, w.op))[
        :top
    ]:
        x = explained.copies[wait.transfer].transfer if wait.transfer is not None else None
        table.add_row(
            graph.ops[wait.op].name,
            wait.cause,
            human_time(wait.start_ns),
            human_time(wait.end_ns - wait.start_ns),
            f"{graph.tensors[x.tensor].name} on {x.channel}" if x is not None else NOTHING,
        )
    return Group(table, and_more(len(explained.waits), top))


def _area(byte_ns: int) -> str:
    """Bytes times time, in bytes times seconds.

    >>> _area(3 * 2**30 * 10**9), _area(0)
    ('3.00 GiB s', '-')
    """
    return f"{human_size(round(byte_ns / _NS_PER_S))} s" if byte_ns else NOTHING


# -- for machines
# --------------------------------------------------------------------------------------------------


def to_dict(explained: Explanation, top: int | None = None) -> dict[str, Any]:
    """Everything, by names, in nanoseconds, bytes and byte-nanoseconds; ``top`` bounds lines,
    regions, transfers and waits alike.
    """
    graph, result = explained.plan.graph, explained.result
    ops = graph.ops
    return {
        "format": FORMAT,
        "workload": graph.name,
        "hardware": explained.hardware.name,
        "policy": explained.plan.policy,
        "origin": explained.origin,
        "budget_bytes": result.budget_bytes,
        "makespan_ns": result.makespan_ns,
        "op_time_origins": dict(Counter(time_origins(graph, explained.hardware))),
        "stall_ns": {cause: result.stall_ns.get(cause, 0) for cause in STALL_CAUSES},
        "peak": {
            "op": ops[explained.peak_op].name if explained.peak_op >= 0 else None,
            "before_bytes": explained.peak_bytes,
            "after_bytes": result.peak_bytes[explained.hardware.device_tier],
        },
        "plan": dict(result.plan),
        **({"unknown_ops": asdict(result.unknown_ops)} if result.unknown_ops else {}),
        **(
            {"guessed_collectives": result.guessed_collectives}
            if result.guessed_collectives
            else {}
        ),
        "without_gap": {
            "tensors": explained.without_gap_tensors,
            "bytes": explained.without_gap_bytes,
        },
        "reasons": dict(
            sorted(Counter(line.reason for line in explained.lines).items(), key=_most_first)
        ),
        "regions": [_region_dict(explained, region) for region in explained.regions[:top]],
        "tensors": [_line_dict(explained, line) for line in explained.lines[:top]],
        "transfers": [_copy_dict(explained, copy) for copy in explained.copies[:top]],
        "notes": list(explained.notes),
        "waits": [_wait_dict(explained, wait) for wait in explained.waits[:top]],
        "channels": {
            name: {
                **{key: value for key, value in asdict(channel).items() if key != "utilization"},
                "load": [round(share, 4) for share in explained.loads[name]],
            }
            for name, channel in result.channels.items()
        },
    }


def _region_dict(explained: Explanation, region: Region) -> dict[str, Any]:
    ops = explained.plan.graph.ops
    return {
        "first": ops[region.first].name,
        "last": ops[region.last].name,
        "ops": region.last - region.first + 1,
        "over_ns": region.over_ns,
        "over_bytes": region.over_bytes,
        "over_byte_ns": region.over_byte_ns,
        "held_bytes": region.held_bytes,
    }


def _wait_dict(explained: Explanation, wait: Stall) -> dict[str, Any]:
    return {
        "op": explained.plan.graph.ops[wait.op].name,
        "cause": wait.cause,
        "start_ns": wait.start_ns,
        "end_ns": wait.end_ns,
        "transfer": None
        if wait.transfer is None
        else _of(explained, explained.copies[wait.transfer]),
    }


def _of(explained: Explanation, copy: ObservedTransfer) -> dict[str, str]:
    return {
        "tensor": explained.plan.graph.tensors[copy.transfer.tensor].name,
        "channel": copy.transfer.channel,
    }


def _line_dict(explained: Explanation, line: Line) -> dict[str, Any]:
    graph, figures, gap, judged = explained.plan.graph, line.figures, line.gap, line.judged
    tensor = graph.tensors[gap.tensor]
    return {
        "tensor": tensor.name,
        "kind": tensor.kind,
        "bytes": figures.bytes,
        "gap": {
            "after": graph.ops[gap.after].name if gap.after != AT_START else None,
            "before": graph.ops[gap.before].name if gap.before < len(graph.ops) else None,
            "length_ns": figures.gap_ns,
        },
        "moved": line.moved,
        "reason": line.reason,
        "effect": line.effect or None,
        "why": line.why,
        "saved_bytes": line.saved_bytes,
        "relief_byte_ns": line.relief_byte_ns,
        "away_ns": line.away_ns,
        "exposed_ns": line.exposed_ns,
        "judged": None if judged is None else _judged_dict(explained, judged),
        "figures": {
            "accesses": figures.accesses,
            "below": figures.below,
            "down_ns": figures.down_ns,
            "up_ns": figures.up_ns,
            "covered_ns": figures.covered_ns,
            "exposed_ns": figures.exposed_ns,
            "over_budget_ns": figures.over_budget_ns,
            "relief_byte_ns": figures.relief_byte_ns,
            "peak_bytes": figures.peak_bytes,
            "recompute_ns": figures.recompute_ns,
            "recompute_flops": figures.recompute_flops,
            "channel_pressure": figures.channel_pressure,
            "value": figures.value,
        },
        "transfers": [_copy_dict(explained, explained.copies[k]) for k in line.copies],
    }


def _judged_dict(explained: Explanation, judged: JudgedGap) -> dict[str, Any]:
    ops, score = explained.plan.graph.ops, judged.score
    return {
        "taken": judged.taken,
        "reason": judged.reason,
        "score_ns": None if score is None else round(score.score, 3),
        "rival_score_ns": None if judged.rival_score is None else round(judged.rival_score, 3),
        "op": ops[judged.op].name if 0 <= judged.op < len(ops) else None,
        "over_bytes": judged.over_bytes,
        "below": None if score is None else score.below.name,
        "expected_stall_ns": None if score is None else score.stall,
    }


def _copy_dict(explained: Explanation, copy: ObservedTransfer) -> dict[str, Any]:
    ops, x = explained.plan.graph.ops, copy.transfer
    return {
        **_of(explained, copy),
        "direction": "up" if copy.up else "down",
        "bytes": x.bytes,
        "issue_ns": x.issue_ns,
        "start_ns": x.start_ns,
        "end_ns": x.end_ns,
        "queue_ns": copy.queue_ns,
        "contention_ns": x.contention_ns,
        "covered_ns": copy.covered_ns,
        "covered_by": [ops[copy.first_op].name, ops[copy.last_op].name]
        if copy.first_op >= 0
        else [],
        "earliest_ns": copy.earliest_ns,
        "latest_ns": copy.latest_ns,
        "alone_ns": copy.alone_ns,
        "overlap_ns": copy.overlap_ns,
        "too_long": copy.too_long,
        "exposed_ns": copy.exposed_ns,
        "waiting": [ops[i].name for i in copy.waiting],
    }
