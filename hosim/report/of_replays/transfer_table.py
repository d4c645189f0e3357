"""The table of transfers of an explained plan; transfers of parts of a tensor that are issued
together are one row.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from hosim.data.folded_parts import folded
from hosim.planner.hyperoffload.explanations import Explanation, ObservedTransfer
from hosim.report.printing import NOTHING, and_more, open_table, paragraph, percent, time_or_nothing
from hosim.units import human_time

_TOGETHER = (
    ". Of parts issued together: the first start, the last end, queued until that start, "
    "covered and exposed in all."
)
_PROSE = "could begin", "while", "waiting"


def transfers(explained: Explanation, top: int | None = None) -> RenderableType:
    """One row a transfer, or the transfers of parts that are issued together: those that an op
    waits for first, then in order of time.
    """
    if not explained.copies:
        return paragraph("Transfers: none.", space=True)
    rows = _together(explained)
    table = open_table(
        f"Transfers{_TOGETHER if any([len(copies) > 1 for _, copies in rows[:top]]) else ''}",
        *(
            "tensor",
            "channel",
            "issued",
            "start",
            "end",
            "could begin",
            "queued",
            "covered",
            "while",
            "of overlap",
            "exposed",
            "waiting",
        ),
        left=2,
        wraps=("tensor",),
        prose=_PROSE,
    )
    ops = explained.plan.graph.ops
    for name, copies in rows[:top]:
        moves = [copy.transfer for copy in copies]
        issue, start = moves[0].issue_ns, min([x.start_ns for x in moves])
        waiting = dict.fromkeys([i for copy in copies for i in copy.waiting])
        table.add_row(
            name,
            moves[0].channel,
            human_time(issue),
            human_time(start),
            human_time(max([x.end_ns for x in moves])),
            _window(copies),
            time_or_nothing(start - issue),
            percent(
                sum([copy.covered_ns for copy in copies]),
                sum([x.end_ns - x.start_ns for x in moves]),
            ),
            _meanwhile(explained, copies),
            _of_overlap(copies),
            time_or_nothing(_exposed(copies)),
            ", ".join(ops[i].name for i in waiting) or NOTHING,
        )
    return Group(
        table, and_more(len(rows), top), paragraph(*explained.notes, style="dim", space=True)
    )


def _window(copies: Sequence[ObservedTransfer]) -> str:
    """The times from and until which the first of these could begin at no cost."""
    ends = [
        [x for x in found if x is not None]
        for found in zip(*[(c.earliest_ns, c.latest_ns) for c in copies], strict=True)
    ]
    earliest, latest = (human_time(min(found)) if found else NOTHING for found in ends)
    return NOTHING if earliest == latest == NOTHING else f"{earliest} to {latest}"


def _of_overlap(copies: Sequence[ObservedTransfer]) -> str:
    """Return the figures that the rule of thumb compares: how long these take alone, as a share of
    the computation that they can overlap with.
    """
    overlap = max([copy.overlap_ns for copy in copies])
    return percent(sum([copy.alone_ns for copy in copies]), overlap) if overlap else NOTHING


def _together(explained: Explanation) -> list[tuple[str, Sequence[ObservedTransfer]]]:
    """The transfers of each row with its name, the most exposed first: of parts those whose cache
    ops are issued together.
    """
    copies = sorted(explained.copies, key=lambda c: (c.transfer.issue_ns, c.transfer.cache_op))
    issue: dict[int, int] = {}
    for copy in copies:
        issue.setdefault(copy.transfer.cache_op, copy.transfer.issue_ns)  # chunks go on later
    listed = [
        (explained.plan.graph.tensors[copy.transfer.tensor], copy.transfer) for copy in copies
    ]
    rows = folded((tensor, (x.channel, issue[x.cache_op])) for tensor, x in listed)
    return sorted(
        [(row.name, [copies[k] for k in row.places]) for row in rows],
        key=lambda row: -_exposed(row[1]),
    )


def _exposed(copies: Sequence[ObservedTransfer]) -> int:
    return sum([copy.exposed_ns for copy in copies])


def _meanwhile(explained: Explanation, copies: Sequence[ObservedTransfer]) -> str:
    """The ops that run while transfers are under way."""
    under_way = [copy for copy in copies if copy.first_op >= 0]
    if not under_way:
        return NOTHING
    ops = explained.plan.graph.ops
    first, last = (
        min([copy.first_op for copy in under_way]),
        max([copy.last_op for copy in under_way]),
    )
    return ops[first].name if first == last else f"{ops[first].name} .. {ops[last].name}"
