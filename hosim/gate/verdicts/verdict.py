"""Verdicts: a measured case against its baseline, metric by metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hosim import shipped
from hosim.analysis.remarks import in_both, often, share_faster
from hosim.data.draws import CERTAINTY
from hosim.errors import InfeasibleError, InputError
from hosim.gate.cases import kind_of
from hosim.gate.judged_metrics import (
    DRIFT,
    IMPROVEMENT,
    MAKESPAN,
    MISSING,
    NEW,
    REGRESSION,
    SAME,
    MetricVerdict,
    Tolerance,
    human,
    judge_metrics,
)
from hosim.gate.records import REQUESTS, SHIPPED, SOURCE, Measured, Record
from hosim.gate.verdicts.causes import changed_question, edits, explain
from hosim.plain_text import counted

# -- what changed since ----------------------------------------------------------------------------


def changed_since(before: Record, now: Record) -> str:
    """The changes of hosim since the baseline, and if the user's question changed, too; empty
    if nothing of hosim's changed.
    """
    hosims = [
        f"{name} {was} to {number}"
        for name, number in now.versions.items()
        if (was := before.versions.get(name, 1)) != number
    ]
    another_machine = _machine(before) != _machine(now)
    of_hosim = now.asked.get("hardware") in shipped.hardware()
    if another_machine and of_hosim and _asks_same(before, now):
        old, new = (record.machine.get("version", "1") for record in (before, now))
        hosims.append(f"hardware profile {old} to {new}" if old != new else "hardware profile")
    if not hosims:
        return (
            f"the baseline was written by hosim {before.hosim}, this is {now.hosim}"
            if before.hosim != now.hosim
            else ""
        )
    said = f"hosim changed since the baseline ({', '.join(hosims)})"
    same_graph = before.fingerprints.get("graph") == now.fingerprints.get("graph")
    sources = before.fingerprints.get(SOURCE), now.fingerprints.get(SOURCE)
    if not same_graph and not all(sources) and sources[1] != SHIPPED:
        return (
            f"{said}; the baseline does not say whether your model changed, too: hosim "
            f"{before.hosim} on this commit would"
        )
    yours = [
        *(["what the case asks"] if not _asks_same(before, now) else []),
        *(["the workload"] if not same_graph and sources[0] != sources[1] != SHIPPED else []),
        *(
            ["the requests"]
            if before.fingerprints.get(REQUESTS) != now.fingerprints.get(REQUESTS)
            else []
        ),
        *(["the hardware profile"] if another_machine and not of_hosim else []),
    ]
    if yours:
        return (
            f"{said}, and so did {' and '.join(yours)}: hosim {before.hosim} on this commit "
            "tells the two apart"
        )
    return f"{said}, your model did not: review the figures, then run 'hosim baseline update'"


def _asks_same(before: Record, now: Record) -> bool:
    """True if both ask the same question; the lines of a matrix do not repeat it."""
    return not before.asked or before.asked == now.asked


def _machine(record: Record) -> tuple[dict[str, str], str]:
    """The profile, as a baseline of a case or the line of a matrix has it, without the budget,
    which depends on the workload.
    """
    return {
        key: value for key, value in record.machine.items() if key != "budget"
    }, record.fingerprints.get("machine", "")


# -- verdicts --------------------------------------------------------------------------------------


ERROR = "error"
"""The verdict of a case that cannot be measured, or whose baseline cannot be read."""

INFEASIBLE = "infeasible"
"""The verdict of a case that no longer fits."""

FAILING = (ERROR, INFEASIBLE, MISSING, REGRESSION)
"""Verdicts that fail a check, the most serious first."""

_ORDER = (*FAILING, IMPROVEMENT, NEW, DRIFT, SAME)
_NOUNS = (ERROR, REGRESSION, IMPROVEMENT, DRIFT)


@dataclass(frozen=True)
class CaseVerdict:
    """One case. ``explanation`` is what changed, in lines; ``note`` is for people.

    ``before`` is the baseline and ``measured`` the measurement, each if there is one. ``place`` is
    the file and line where a review shows it (:mod:`hosim.gate.checking`).
    """

    case: str
    verdict: str
    metrics: tuple[MetricVerdict, ...] = ()
    explanation: tuple[str, ...] = ()
    note: str = ""
    baseline: str = ""
    before: Record | None = None
    measured: Measured | None = None
    place: tuple[str, int] = ("", 1)

    @property
    def now(self) -> Record | None:
        """The record of the measurement."""
        return self.measured.record if self.measured is not None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes for readers of the figures."""
        return () if self.now is None else self.now.notes

    @property
    def curves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the bytes of the device tier over time, before and now; empty if unknown."""
        return (self.before.curve if self.before else ()), (self.now.curve if self.now else ())

    def fails(self, strict: bool = False) -> bool:
        """Return whether the case fails; ``strict`` also fails improvements that are not
        committed.
        """
        return self.verdict in FAILING or (strict and self.verdict in (IMPROVEMENT, NEW))


def _misfit(case: str, known: Measured | None, now: Measured, baseline: str) -> CaseVerdict:
    """The verdict of a case that does not fit."""
    before = known.record if known is not None else None
    error = now.error or "does not fit"
    if known is not None and before is None:
        return CaseVerdict(case, SAME, note=f"as before: {error}", baseline=baseline, measured=now)
    return CaseVerdict(
        case,
        INFEASIBLE,
        explanation=tuple(edits(before, now)) if before is not None else (),
        note=error,
        baseline=baseline,
        before=before,
        measured=now,
    )


def _first(
    case: str, known: Measured | None, now: Measured, record: Record, baseline: str
) -> CaseVerdict:
    """The verdict of a case that fits and has no figures of before."""
    metrics = tuple(
        MetricVerdict(name, None, value, NEW) for name, value in sorted(record.metrics.items())
    )
    verdict, note = MISSING, "no baseline; 'hosim baseline write' writes it"
    if known is not None:
        verdict, note = IMPROVEMENT, "it fits, but did not at the time of the baseline"
    return CaseVerdict(case, verdict, metrics, note=note, baseline=baseline, measured=now)


def judge(
    case: str,
    known: Measured | None,
    now: Measured | None,
    tolerances: Mapping[str, Tolerance],
    *,
    baseline: str = "",
) -> CaseVerdict:
    """The verdict of a case: the most serious of its metrics' verdicts.

    ``known`` is its baseline, if any; ``now`` is ``None`` for a lost case. A case that does not fit
    by its baseline passes if it still does not fit.
    """
    before = known.record if known is not None else None
    if now is None:
        return CaseVerdict(
            case,
            MISSING,
            note="there is a baseline, but no case with this name",
            baseline=baseline,
            before=before,
        )
    if now.record is None:
        return _misfit(case, known, now, baseline)
    if before is None:
        return _first(case, known, now, now.record, baseline)
    metrics, unsure = _in_draws(
        judge_metrics(before.metrics, now.record.metrics, tolerances), before, now.record
    )
    says_why = kind_of("serve").explain if REQUESTS in now.record.fingerprints else explain
    verdict = min((m.verdict for m in metrics), key=_ORDER.index, default=SAME)
    worse = [m for m in metrics if m.verdict == REGRESSION]
    if worse or verdict in (MISSING, NEW):
        said = says_why(before, now, worse)
    else:  # the lines of a matrix do not repeat what they ask
        said = changed_question(before, now.record) if before.asked else []
    return CaseVerdict(
        case,
        verdict,
        metrics,
        explanation=tuple(said),
        note="; ".join(filter(None, [changed_since(before, now.record), unsure])),
        baseline=baseline,
        before=before,
        measured=now,
    )


def _in_draws(
    metrics: tuple[MetricVerdict, ...], before: Record, now: Record
) -> tuple[tuple[MetricVerdict, ...], str]:
    """The verdicts, of which that on the makespan is drift unless it is longer, or shorter, in 9 of
    10 draws that both have; and a note that says so, or that the plan fits in fewer of them or
    holds more in them.
    """
    at = next((i for i, m in enumerate(metrics) if m.name == MAKESPAN), -1)
    judged = at >= 0 and metrics[at].verdict in (REGRESSION, IMPROVEMENT)
    another = before.fingerprints.get("plan") != now.fingerprints.get("plan")
    if before.draws is None or now.draws is None or not (judged or another):
        return metrics, ""
    sides = before.draws(), now.draws()
    old, new = [() if drawn is None else drawn.makespan_ns for drawn in sides]
    was, unfit = [0.0 if drawn is None else drawn.unfit_share for drawn in sides]
    said = [_higher_ceiling(before, now)]
    if unfit > was + 1 - CERTAINTY:
        said.append(
            f"the plan does not fit in {often(unfit)} of what is uncertain, before in {often(was)}"
        )
    less = "; ".join(filter(None, said))
    if not judged:
        return metrics, less
    both = in_both(old, new)
    longer = share_faster(both) if both else 1.0
    grows = metrics[at].change > 0
    share = longer if grows or not both else 1 - longer
    if share >= CERTAINTY:
        return metrics, less
    drift = replace(metrics[at], verdict=DRIFT)
    word, noun = ("longer", REGRESSION) if grows else ("shorter", IMPROVEMENT)
    why = f"{drift.line()}, but {word} in {often(share)} of what is uncertain: no {noun}"
    return (*metrics[:at], drift, *metrics[at + 1 :]), "; ".join(filter(None, [why, less]))


def _higher_ceiling(before: Record, now: Record) -> str:
    """A line where the device tier holds more in draws of what is uncertain than it did, and more
    than its peak.
    """
    name, was = now.device_peak, before.ceiling
    if now.ceiling <= max(was, now.metrics.get(name, 0)):
        return ""
    return (
        f"{name} is up to {human(name, now.ceiling)} in 9 of 10 draws of what is uncertain, was up "
        f"to {human(name, was)}"
    )


def exit_code(verdicts: Sequence[CaseVerdict], strict: bool = False) -> int:
    """0 if nothing fails, 2 if a case is in error, 3 if one does not fit, else 1."""
    if any(v.verdict == ERROR for v in verdicts):
        return InputError.exit_code
    return (
        InfeasibleError.exit_code
        if any(v.verdict == INFEASIBLE for v in verdicts)
        else int(any(v.fails(strict) for v in verdicts))
    )


def summary(verdicts: Sequence[CaseVerdict]) -> str:
    """The number of cases with each verdict, in one line."""
    counts = {verdict: sum(v.verdict == verdict for v in verdicts) for verdict in _ORDER}
    return (
        ", ".join(
            counted(count, verdict) if verdict in _NOUNS else f"{count} {verdict}"
            for verdict, count in counts.items()
            if count
        )
        or "no case"
    )
