"""The causes of worse serving than a baseline's: what changed in the question, and which other
figures changed with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.gate.judged_metrics import (
    COUNT,
    FAMILIES,
    FOUND,
    MOVED,
    PEAK,
    STALL,
    WAIT,
    MetricVerdict,
    family,
    judge_metrics,
)
from hosim.gate.records import REQUESTS, Measured, Record
from hosim.gate.verdicts import LINES, changed_question

_CHANGES = {
    "graph": "the model has changed",
    REQUESTS: "the requests have changed",
    "plan": "the engine, its cache or its kernel times have changed",
}
_BEHIND = (COUNT, FOUND, WAIT, STALL, PEAK, MOVED)
"""Figures that say why others changed, in the order in which they are told."""


def explain_served(before: Record, now: Measured, worse: Sequence[MetricVerdict]) -> list[str]:
    """Return the changes of the question, the metrics that are worse, and the figures behind them.
    At most :data:`LINES` lines.
    """
    assert now.record is not None
    said = changed_question(before, now.record)
    if not said:
        said = [
            text
            for key, text in _CHANGES.items()
            if before.fingerprints.get(key) != now.record.fingerprints.get(key)
        ]
    if not said and before.versions == now.record.versions:
        said = ["model, requests and engine are the same: the simulation itself has changed"]
    named = {one.name for one in worse}
    others = [
        one
        for one in judge_metrics(before.metrics, now.record.metrics, {})
        if one.change and family(one.name) in _BEHIND and one.name not in named
    ]
    lines = [
        *said,
        *(
            one.line()
            for one in sorted(worse, key=lambda one: (FAMILIES.index(family(one.name)), one.name))
        ),
    ]
    room = max(LINES - len(others), LINES // 2)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"and {len(lines) - room + 1} more figures are worse"]
    behind = sorted(others, key=lambda one: (_BEHIND.index(family(one.name)), one.name))
    return [*lines, *(one.line() for one in behind)][:LINES]
