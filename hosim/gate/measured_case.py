"""Measuring a case: plan and replay it, and return a record, or a line of a matrix."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosim import engine, io
from hosim.analysis import canonical, digest, graph_fingerprint, plan_fingerprint
from hosim.analysis.costmodel import op_durations
from hosim.analysis.remarks import check_made_for
from hosim.analysis.verifying import verify
from hosim.base.files import formats, parse, to_text
from hosim.base.groups import grouped, summed
from hosim.cache_plan import AT_START, DETACH, Plan
from hosim.data.versions import VERSIONS
from hosim.errors import HosimError, InfeasibleError, illegal_plan
from hosim.gate.cases import Case, kind_of
from hosim.gate.imports import code_digest, graph_of_entry, graph_of_file
from hosim.gate.judged_metrics import metrics_of
from hosim.gate.kept_graphs import keep_text, kept_text
from hosim.gate.records import (
    SHIPPED,
    SOURCE,
    Item,
    Listing,
    Measured,
    PeakRecord,
    Record,
    Stay,
    brief,
    flat_profile,
    graph_record,
    source_digest,
)
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import plan_from_dict, plan_to_dict, rescaled, workload_to_dict
from hosim.plain_text import flat
from hosim.result import WORKSPACE, Residency, Result, Timeline, Transfer
from hosim.shipped import find_hardware, find_workload, is_shipped
from hosim.study.asked import PolicyChoice, parse_choice
from hosim.study.runs import Question, check, make_plan
from hosim.timeline import blamed, occupancy
from hosim.units import exact_size
from hosim.version import __version__

# -- kept plans
# --------------------------------------------------------------------------------------------------
# Plans that a search of hosim's made, kept by all that they depend on: the graph, the machine,
# the policy, the budget and hosim itself (:mod:`hosim.gate.kept_graphs`).
#
# So a case whose model has not changed is not planned again, whatever function its graph is from.


def kept_plan(
    graph: Graph, hardware: Hardware, choice: PolicyChoice, budget: int, kept: Path | None
) -> Plan:
    """As :func:`hosim.study.runs.make_plan`, from the folder ``kept`` if a search has made the plan
    before.
    """
    # a search draws; other policies plan sooner than a plan is read
    searches = choice.policy.is_own and "seed" in choice.policy.settings
    if kept is None or not searches:
        return make_plan(graph, hardware, choice, budget)
    name = digest(
        "plan",
        code_digest(),
        to_text(workload_to_dict(graph)),
        repr(sorted(flat_profile(hardware).items())),
        choice.label,
        str(budget),
    )
    text = kept_text(kept, name)
    with suppress(HosimError):
        if text is not None:
            found: Any = parse(text, f"{name}.json")
            return replace(
                plan_from_dict(found["plan"], graph), origin=None, notes=tuple(found["notes"])
            )
    made = make_plan(graph, hardware, choice, budget)
    if made.runtime is None:
        keep_text(to_text({"plan": plan_to_dict(made), "notes": made.notes}), kept, name)
    return made


COLUMNS = 60
"""The number of equal parts of the makespan that a curve has."""

STAGED = "staged"
"""The label of a tensor's chunks on their way through a tier."""


def measure(case: Case, kept: Path | None = None) -> Measured:
    """The record of a case, or the error of one that does not fit. ``kept``: see
    :mod:`hosim.gate.imports`. Raises :class:`HosimError`.
    """
    return (
        kind_of("serve").measure(case)
        if case.serve is not None
        else measure_graph(case, _graph(case, kept), _source(case), kept)
    )


def measure_graph(case: Case, graph: Graph, source: str = "", kept: Path | None = None) -> Measured:
    """As :func:`measure`, for a graph that is loaded already; ``source`` is the fingerprint of its
    file.
    """
    profile = _profile(case)
    graph = canonical(rescaled(graph, profile) if case.rescale else graph)
    asked = Question(graph, profile, parse_choice(case.policy), case.budget)
    try:
        plan = _plan(case, asked, kept)
    except InfeasibleError as error:
        return _unfit(case, asked, str(error))
    result = engine.replay(plan, asked.hardware, asked.budget_bytes, record=True)
    if not result.feasible:
        return _unfit(case, asked, result.error)
    assert result.timeline is not None
    return _with_source(_measured(case, asked, plan, result, result.timeline), source)


def _unfit(case: Case, asked: Question, error: str | None) -> Measured:
    """The record of a case that does not fit: its question, and its graph."""
    kept, shapes, again, reads = graph_record(asked.graph)
    return Measured(
        None,
        error,
        positions={op.name: i for i, op in enumerate(asked.graph.ops)},
        shapes=shapes,
        again=again,
        reads=reads,
        wanted=Record(
            case=case.name,
            asked=asked_of(case),
            fingerprints={"graph": graph_fingerprint(asked.graph)},
            metrics={},
            machine=flat_profile(asked.hardware) | {"budget": exact_size(asked.budget_bytes)},
            peaks={},
            moved={},
            stalls=Listing(),
            durations=Listing(),
            curve=(),
            hosim=__version__,
            versions=VERSIONS,
            graph=kept,
        ),
    )


def _profile(case: Case) -> Hardware:
    return io.load_hardware(find_hardware(case.beside(case.hardware)))


def _with_source(measured: Measured, source: str) -> Measured:
    record = measured.record
    if record is None or not source:
        return measured
    return replace(
        measured, record=replace(record, fingerprints={**record.fingerprints, SOURCE: source})
    )


def measure_line(
    case: Case, graph: Graph, fingerprint: str, profile: Hardware, kept: Path | None = None
) -> Measured:
    """The record for a line of a matrix, and what each peak consists of; ``graph`` is canonical.
    Raises :class:`HosimError`.
    """
    asked = Question(graph, profile, parse_choice(case.policy), case.budget)
    try:
        plan = _plan(case, asked, kept)
    except InfeasibleError as error:
        return Measured(None, str(error))
    result = engine.replay(plan, asked.hardware, asked.budget_bytes)
    if not result.feasible:
        return Measured(None, result.error)
    prints = {
        "graph": fingerprint,
        "machine": digest(repr(sorted(flat_profile(asked.hardware).items()))),
        "plan": plan_fingerprint(plan, asked.choice.label),
    }
    record = brief(
        case.name, case.asked(), prints, metrics_of(result), hosim=__version__, versions=VERSIONS
    )
    peaks = {
        tier: PeakRecord(None, {kind: b for kind, b in held.items() if b}, Listing())
        for tier, held in result.peak_breakdown.items()
    }
    return Measured(replace(record, peaks=peaks, notes=result.notes))


def measure_lines(
    cases: Sequence[Case], kept: Path | None = None
) -> Iterator[Measured | HosimError]:
    """Like :func:`measure_line`, for cases of one workload, which is read once; an error takes the
    place of what it is raised for.
    """
    try:
        given, source = _graph(cases[0], kept), _source(cases[0])
        graph = canonical(given)
    except HosimError as error:
        yield from [error] * len(cases)
        return
    on: dict[tuple[str, bool], tuple[Graph, str, Hardware]] = {}
    for case in cases:
        try:
            asked = case.hardware, case.rescale
            if asked not in on:
                profile = _profile(case)
                timed = canonical(rescaled(given, profile)) if case.rescale else graph
                on[asked] = timed, graph_fingerprint(timed), profile
            yield _with_source(measure_line(case, *on[asked], kept), source)
        except HosimError as error:
            yield error


def _graph(case: Case, kept: Path | None) -> Graph:
    if case.entry is not None:
        return graph_of_entry(case.entry, case.folder)
    assert case.workload is not None
    text = case.beside(case.workload)
    return io.load_named(text) if io.names_model(text) else graph_of_file(find_workload(text), kept)


def _source(case: Case) -> str:
    """The fingerprint of the file of a case, or of the name of a model; empty for a function of the
    user's.
    """
    if case.workload is None:
        return ""
    text = case.beside(case.workload)
    if io.names_model(text):
        return digest(text)
    path = find_workload(text)
    return SHIPPED if is_shipped(path) else source_digest(path)[:16]


def asked_of(case: Case) -> dict[str, str]:
    """The question of a case; where its workload is a recipe, with what that says."""
    from hosim.base.files import read

    asked = case.asked()
    if case.workload is None or io.names_model(text := case.beside(case.workload)):
        return asked
    path = find_workload(text)
    if is_shipped(path) or path.is_dir() or formats.read_source(path).hosim_kind != "spec":
        return asked
    said = {
        key: value
        for key, value in io.check_spec(read(os.fspath(path), "spec"), os.fspath(path)).items()
        if key not in ("format", "name", "versions", "sha256")
    }
    return {**asked, **flat(said, "workload")}


def _plan(case: Case, asked: Question, kept: Path | None) -> Plan:
    graph, hardware, budget = asked.graph, asked.hardware, asked.budget_bytes
    if case.plan is None:
        made = kept_plan(graph, hardware, asked.choice, budget, kept)
        check(made, hardware, budget)
        return made
    path = case.beside(case.plan)
    plan = io.load_plan(path, graph)
    io.check_tiers(plan, hardware, source=path)
    if case.strict:
        check_made_for(plan, hardware, budget, source=path)
    if findings := verify(plan, hardware, budget):
        raise illegal_plan(f"{path}: breaks a rule", findings)
    return plan


def _measured(
    case: Case, asked: Question, plan: Plan, result: Result, timeline: Timeline
) -> Measured:
    ran, hardware = plan.graph, asked.hardware
    story = _Story(plan, timeline)
    kept, shapes, again, reads = graph_record(asked.graph)
    record = Record(
        case=case.name,
        asked=asked_of(case),
        fingerprints={
            "graph": graph_fingerprint(asked.graph),
            "plan": plan_fingerprint(plan, asked.choice.label),
        },
        metrics=metrics_of(result),
        machine=flat_profile(hardware) | {"budget": exact_size(result.budget_bytes)},
        peaks={
            tier: story.peak(
                tier,
                result.peak_at_ns[tier],
                result.peak_breakdown.get(tier, {}),
                away=tier == hardware.device_tier,
            )
            for tier, held in result.peak_bytes.items()
            if held
        },
        moved=story.moved(),
        stalls=story.stalls(),
        durations=_listing(
            {
                (op.kind, op.name): ns
                for op, ns in zip(ran.ops, op_durations(ran, hardware), strict=True)
            }
        ),
        curve=_curve(timeline, hardware.device_tier, result.makespan_ns or 0),
        hosim=__version__,
        versions=VERSIONS,
        notes=result.notes,
        graph=kept,
        draws=result.draws and result.draws.few,
    )
    return Measured(
        record,
        stays={
            key: stay
            for tier in record.peaks
            for key, stay in story.stays(tier, result.peak_at_ns[tier]).items()
        },
        positions={op.name: i for i, op in enumerate(ran.ops)},
        tensors=frozenset(tensor.name for tensor in ran.tensors),
        waits_for=waits_for(ran, timeline),
        shapes=shapes,
        again=again,
        reads=reads,
    )


class _Story:
    """A timeline, by names."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.timeline = timeline
        self._detached: dict[tuple[str, int], list[int]] = defaultdict(list)
        for c in plan.cache_ops:
            if c.op == DETACH and c.after != AT_START:
                self._detached[c.source, c.tensor].append(c.after)
        self._copies: dict[int, list[Transfer]] = defaultdict(list)
        for copy in timeline.transfers:
            self._copies[copy.tensor].append(copy)
        self._held: dict[tuple[str, int], list[Residency]] = defaultdict(list)
        for held in timeline.residencies:
            if not held.staged:
                self._held[held.tier, held.tensor].append(held)

    def peak(self, tier: str, at: int, composition: Mapping[str, int], away: bool) -> PeakRecord:
        """The tier at the instant of its peak."""
        tensors = self.graph.tensors
        held: dict[tuple[str, str], int] = defaultdict(int)
        there = set()
        for x in self.timeline.residencies:
            if x.tier == tier and x.start_ns <= at < x.end_ns:
                if x.tensor < 0:
                    held[WORKSPACE, self.graph.ops[x.op].name] += x.bytes
                else:
                    held[
                        STAGED if x.staged else tensors[x.tensor].kind, tensors[x.tensor].name
                    ] += x.bytes
                    there.add(x.tensor)
        gone = (
            {
                (tensors[t].kind, tensors[t].name): tensors[t].size_bytes
                for t in self._needed(at)
                if t not in there
            }
            if away
            else {}
        )
        return PeakRecord(
            self._running(at),
            {kind: b for kind, b in composition.items() if b},
            Listing(tuple([self._with_span(item, tier, at) for item in _listing(held).items])),
            _listing(gone),
        )

    def _with_span(self, item: Item, tier: str, at: int) -> Item:
        """The item of a tensor's copy in a tier at an instant, with the ops after which the copy
        was issued and is released.
        """
        if item.label in (WORKSPACE, STAGED) or self.plan.runtime is not None:
            return item
        t = self.graph.tensor_index[item.name]
        held = next(x for x in self._held[tier, t] if x.start_ns <= at < x.end_ns)
        ops, cache_ops = self.graph.ops, self.plan.cache_ops
        came = [
            c
            for c in self._copies[t]
            if c.start_ns == held.start_ns and cache_ops[c.cache_op].destination == tier
        ]
        if came and cache_ops[came[0].cache_op].after != AT_START:
            item = replace(item, since=ops[cache_ops[came[0].cache_op].after].name)
        released = self._released_after(t, tier, held.end_ns)
        return replace(item, until=ops[released].name) if released is not None else item

    def _released_after(self, t: int, tier: str, at: int) -> int | None:
        """The op after which a residency that ends at an instant is released: the last use, else a
        detach; ``None`` for neither.
        """
        end, users = self.timeline.op_end_ns, self.graph.users[t]
        if not self.graph.survives[t] and users and max(end[i] for i in users) <= at:
            return max(users, key=lambda i: (end[i], i))
        return max((after for after in self._detached[tier, t] if end[after] <= at), default=None)

    def _needed(self, at: int) -> list[int]:
        """The tensors that exist at an instant and are used later or survive the step."""
        start, end = self.timeline.op_start_ns, self.timeline.op_end_ns
        initial = self.plan.residency("")
        return [
            t
            for t, users in enumerate(self.graph.users)
            if (t in initial or (users and start[users[0]] <= at))
            and (self.graph.survives[t] or any(end[i] > at for i in reversed(users)))
        ]

    def _running(self, at: int) -> str | None:
        """The op that runs at an instant; of several, the one that started last."""
        start, end = self.timeline.op_start_ns, self.timeline.op_end_ns
        running = [(start[i], i) for i in range(len(start)) if start[i] <= at < end[i]]
        return self.graph.ops[max(running)[1]].name if running else None

    def stays(self, tier: str, at: int) -> dict[tuple[str, str], Stay]:
        """Return the reason that each tensor is in a tier at an instant."""
        ops, start = self.graph.ops, self.timeline.op_start_ns
        found: dict[tuple[str, str], Stay] = {}
        for x in self.timeline.residencies:
            if x.tier != tier or x.tensor < 0 or x.staged or not x.start_ns <= at < x.end_ns:
                continue
            # the copy that this residency began with: it reserves its bytes when it starts
            copies = [
                y
                for y in self._copies[x.tensor]
                if y.start_ns == x.start_ns and self._destination(y.cache_op) == tier
            ]
            after = (
                self.plan.cache_ops[copies[0].cache_op].after
                if copies and self.plan.runtime is None
                else AT_START
            )
            users = self.graph.users[x.tensor]
            before = [i for i in users if start[i] <= at]
            later = [i for i in users if start[i] > at]
            found[tier, self.graph.tensors[x.tensor].name] = Stay(
                used=ops[before[-1]].name if before else None,
                until=ops[later[0]].name if later else None,
                fetched=bool(copies),
                fetched_after=ops[after].name if after != AT_START else None,
            )
        return found

    def _destination(self, cache_op: int) -> str | None:
        return (
            self.plan.cache_ops[cache_op].destination
            if 0 <= cache_op < len(self.plan.cache_ops)
            else None
        )

    def moved(self) -> dict[str, Listing]:
        """Bytes by channel and tensor."""
        tensors = self.graph.tensors
        return {
            channel: _listing(
                summed(((tensors[x.tensor].kind, tensors[x.tensor].name), x.bytes) for x in moved)
            )
            for channel, moved in grouped((x.channel, x) for x in self.timeline.transfers).items()
        }

    def stalls(self) -> Listing:
        """Nanoseconds by cause and op."""
        return _listing(
            summed(
                ((stall.cause, self.graph.ops[stall.op].name), stall.stall_ns)
                for stall in self.timeline.stalls
            )
        )


def waits_for(graph: Graph, timeline: Timeline) -> dict[str, str]:
    """Return, for each op that waited for a transfer, the tensor of the transfer that the wait is
    blamed on.
    """
    waited = [(stall.op, blamed(timeline, stall)) for stall in timeline.stalls]
    return {graph.ops[op].name: graph.tensors[x.tensor].name for op, x in waited if x is not None}


def _listing(values: Mapping[tuple[str, str], int]) -> Listing:
    return Listing(
        tuple(Item(label, name, value) for (label, name), value in sorted(values.items()) if value)
    )


def _curve(timeline: Timeline, tier: str, makespan_ns: int) -> tuple[int, ...]:
    """The maximum that a tier holds in each of :data:`COLUMNS` parts of the makespan; empty for a
    step that takes no time.
    """
    if not makespan_ns:
        return ()
    held = occupancy(timeline, tier)
    edges = [
        (k * makespan_ns // COLUMNS, -(-(k + 1) * makespan_ns // COLUMNS)) for k in range(COLUMNS)
    ]
    return tuple(held.largest(start, end) for start, end in edges)
