"""An independent check of a replay: that its timeline keeps the rules, and that its figures follow
from it.

Nothing here is shared with the engine: who waits for whom, what is held when, and every figure are
derived anew from the plan, the machine and the recorded instants. This file checks ops and the
division of time (docs/contract.md, rules 0, 1 and 8), :mod:`timeline_memory` residencies and peaks
(rules 1, 2, 4, 5 and 9), and :mod:`timeline_transfers` transfers and channels (rules 3, 6 and 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collective_rule import company, pace
from timeline_devices import check_together
from timeline_memory import check_memory
from timeline_transfers import check_transfers

from hosim.analysis.costmodel import op_durations, with_memories
from hosim.analysis.verifying import Finding
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.result import STALL_CAUSES, Result, StreamFigures, Timeline, Transfer

__all__ = ["check_result"]

MAIN_STREAM = "compute"


def check_result(plan: Plan, hardware: Hardware, result: Result) -> tuple[Finding, ...]:
    """Every rule of docs/contract.md that the recorded ``result`` of replaying ``plan`` on
    ``hardware`` breaks.

    ``result`` must carry its timeline; raises :class:`InputError` if it does not. Of an infeasible
    result only the form is checked: that it says why, and carries no times. Of a plan with a
    runtime policy, what follows from its decisions is left out: which cache ops there are, and
    which prefetch an op waits for; under jitter of transfers, how long each takes. Of several
    devices, each one's timeline is checked, and what they share (:mod:`timeline_devices`).
    """
    if hardware.devices == 1:
        return _check_device(plan, hardware, result, 0, [result])
    if len(result.by_device) != hardware.devices:
        raise InputError(
            f"expected the results of {hardware.devices} devices, got {len(result.by_device)}"
        )
    each = [
        finding
        for d, one in enumerate(result.by_device)
        for finding in _check_device(plan, hardware, one, d, result.by_device)
    ]
    return (*each, *check_together(plan, hardware, result))


def _check_device(
    plan: Plan, hardware: Hardware, result: Result, device: int, every: Sequence[Result]
) -> tuple[Finding, ...]:
    if not result.feasible:
        wrong = (
            result.error is None
            or result.makespan_ns is not None
            or result.busy_ns is not None
            or result.drain_ns is not None
        )
        return (
            (Finding("infeasible", "an infeasible result says why, and has no times"),)
            if wrong
            else ()
        )
    if result.timeline is None:
        raise InputError("expected a result with its timeline: replay with record=True")
    if result.slowed_ns is not None:
        found = _check_timeline(
            plan, with_memories(hardware), result, result.timeline, device, every
        )
        if not found or all(tier.dma for tier in hardware.tiers):
            return found  # without DMA ops are held though copies do not share the memories
    found = _check_timeline(plan, hardware, result, result.timeline, device, every)
    if found and any(
        op.bytes_accessed for op in plan.graph.ops
    ):  # copies may share the memories though they slowed nothing down
        found = _check_timeline(
            plan, with_memories(hardware), result, result.timeline, device, every
        )
    return found


def _check_timeline(
    plan: Plan,
    hardware: Hardware,
    result: Result,
    timeline: Timeline,
    device: int,
    every: Sequence[Result],
) -> tuple[Finding, ...]:
    ran = tuple(_ops(plan, hardware, result, timeline, device, every))
    if ran:
        return ran  # without ops at their places, the rest would only repeat it
    producers = producers_of(plan.graph)
    return (
        *_order(plan.graph, producers, timeline),
        *_makespan(result, timeline),
        *_division(plan, hardware.device_tier, producers, result, timeline),
        *check_memory(plan, hardware, result, timeline),
        *check_transfers(plan, hardware, result, timeline),
        *_counts(plan, result),
    )


def producers_of(graph: Graph) -> list[set[int]]:
    """For each op, every op that must end before it starts (rule 1), other than through its
    stream.
    """
    producers = []
    writer: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for i, op in enumerate(graph.ops):
        before = set(op.deps)
        before.update(writer[t] for t in op.inputs if t in writer)
        for t in (*op.outputs, *op.mutates):
            before.update(users.get(t, ()))
        for t in {*op.inputs, *op.outputs, *op.mutates}:
            if t in op.outputs or t in op.mutates:
                writer[t] = i
                users[t] = [i]  # whoever waits for this op waits for all users before it
            else:
                users.setdefault(t, []).append(i)
        producers.append(before)
    return producers


def _ops(
    plan: Plan,
    hardware: Hardware,
    result: Result,
    timeline: Timeline,
    device: int,
    every: Sequence[Result],
) -> Iterator[Finding]:
    """Every op ran, for its duration; or longer, where a transfer went on at the tier of its
    processor and that is told as ``slowed_ns``.

    Under jitter the duration is that of the op of the same name in the workload, and then those
    that run again. A collective has its duration from when the last of its devices has begun it,
    and the longer one where a transfer or another collective went on at a fabric that it crosses.
    """
    ends = {c.name: (c.source, c.destination) for c in hardware.channels}
    moving = {
        tier.name: [
            (x.start_ns, x.end_ns)
            for x in timeline.transfers
            if tier.name in ends.get(x.channel, ())
        ]
        for tier in hardware.tiers
    }
    held = [
        (x.start_ns, x.end_ns)
        for x in timeline.transfers
        if any(not tier.dma and tier.name in ends[x.channel] for tier in hardware.tiers)
    ]
    lines = [one.timeline for one in every if one.timeline is not None]
    crossed = {
        name for fabric in hardware.fabrics if fabric.collectives for name in fabric.channels
    }
    crossing = [
        (x.start_ns, x.end_ns) for line in lines for x in line.transfers if x.channel in crossed
    ]
    durations = op_durations(plan.graph, hardware)
    paced = {
        i
        for i, op in enumerate(plan.graph.ops)
        if pace(op, plan.graph.tensors, hardware, durations[i]) is not None
    }
    paced_spans = {
        (d, i): (line.op_start_ns[i], line.op_end_ns[i])
        for d, line in enumerate(lines)
        for i in paced
    }
    jitter, known = result.jitter, plan.workload.op_index
    again = slowed = waited = 0
    for i, duration in enumerate(durations):
        if jitter is not None:
            name = plan.graph.ops[i].name
            who = company(plan.graph.ops[i], device, hardware.devices)[0]
            duration = round(duration * jitter.op_factor(who, known.get(name, len(known) + again)))
            again += name not in known
        start, end = timeline.op_start_ns[i], timeline.op_end_ns[i]
        op = plan.graph.ops[i]
        since = max(
            [
                start,
                *(
                    lines[d].op_start_ns[i]
                    for d in company(op, device, hardware.devices)
                    if d < len(lines)
                ),
            ]
        )
        waited += since - start
        longer = end - since - duration
        slowed += longer
        here = moving[op.processor or hardware.device_tier] + ([] if op.processor else held)
        others = (
            here
            if i not in paced
            else [
                *crossing,
                *(span for (d, j), span in paced_spans.items() if (d, j) != (device, i)),
            ]
        )
        beside = (
            result.slowed_ns is not None
            and longer > 0
            and any(begin < end and since < stop for begin, stop in others)
        )
        if start < 0 or (longer and not beside):
            name = plan.graph.ops[i].name
            yield Finding(
                "duration",
                f"op {name!r} ran {start}..{end} ns; its duration is {duration} ns",
                op=i,
            )
    if slowed != (result.slowed_ns or 0):
        yield Finding(
            "duration",
            f"ops took {slowed} ns longer than alone; the result says {result.slowed_ns} ns",
        )
    if waited != (result.peers_ns or 0):
        yield Finding(
            "duration",
            f"collectives waited {waited} ns for other devices; the result says {result.peers_ns} "
            "ns",
        )


def _order(graph: Graph, producers: Sequence[set[int]], timeline: Timeline) -> Iterator[Finding]:
    """Ops of a stream in listed order, one at a time; each after its producers."""
    start, end = timeline.op_start_ns, timeline.op_end_ns
    last: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        before = last.get(op.stream)
        if before is not None and end[before] > start[i]:
            other = graph.ops[before].name
            yield Finding(
                "stream",
                f"op {op.name!r} starts at {start[i]} ns, when {other!r} before it on its stream "
                "has not ended",
                op=i,
            )
        for p in sorted(producers[i]):
            if end[p] > start[i]:
                other = graph.ops[p].name
                yield Finding(
                    "producer",
                    f"op {op.name!r} starts at {start[i]} ns, when its producer {other!r} has not "
                    "ended",
                    op=i,
                )
        last[op.stream] = i


def _makespan(result: Result, timeline: Timeline) -> Iterator[Finding]:
    end = max([0, *timeline.op_end_ns, *(x.end_ns for x in timeline.transfers)])
    if result.makespan_ns != end:
        yield Finding(
            "makespan",
            f"the makespan is given as {result.makespan_ns} ns, and everything has ended at {end} "
            "ns",
        )


# -- the division of time (rule 8)
# -----------------------------------------------------------------------------


def _division(
    plan: Plan, device: str, producers: Sequence[set[int]], result: Result, timeline: Timeline
) -> Iterator[Finding]:
    """The stalls before each op are its idle time, by cause; the figures of each stream are their
    sums.
    """
    graph = plan.graph
    if not graph.ops:
        return
    before: dict[int, dict[str, int]] = {}
    idle_until: dict[int, int] = {}
    for stall in timeline.stalls:
        i, cause, start, end = stall.op, stall.cause, stall.start_ns, stall.end_ns
        amounts = before.setdefault(i, dict.fromkeys(STALL_CAUSES, 0))
        if cause not in amounts or end <= start:
            yield Finding(
                "stall",
                f"op {graph.ops[i].name!r} has a stall of cause {cause!r} over {start}..{end} ns",
                op=i,
            )
            continue
        amounts[cause] += end - start
        if start < idle_until.get(i, start):
            yield Finding("stall", f"the stalls before op {graph.ops[i].name!r} overlap", op=i)
        idle_until[i] = end
    awaited = _awaited(plan, device, timeline)
    moving = transfers_of_tensors(timeline)
    free: dict[str, int] = {}
    busy: dict[str, int] = dict.fromkeys(graph.streams, 0)
    stalls: dict[str, dict[str, int]] = {
        stream: dict.fromkeys(STALL_CAUSES, 0) for stream in graph.streams
    }
    for i, op in enumerate(graph.ops):
        since, start = free.get(op.stream, 0), timeline.op_start_ns[i]
        amounts = before.get(i, dict.fromkeys(STALL_CAUSES, 0))
        if sum(amounts.values()) != start - since:
            message = (
                f"before op {op.name!r} its stream is idle {since}..{start} ns, and the "
                f"stalls there are {_nonzero(amounts)}"
            )
            yield Finding("stall", message, op=i)
        elif plan.runtime is None:
            met = max([since, *(timeline.op_end_ns[p] for p in producers[i])])
            resident = _residency_met(
                max([met, *(x.end_ns for x in awaited[i])]),
                (*op.outputs, *op.mutates),
                moving,
                start,
            )
            expected = {
                "dependency": met - since,
                "transfer": resident - met,
                "capacity": start - resident,
                "runtime": 0,
            }
            if amounts != expected:
                message = (
                    f"the stalls before op {op.name!r} are {_nonzero(amounts)} ns; its "
                    f"producers and transfers say {_nonzero(expected)}"
                )
                yield Finding("stall", message, op=i)
        for cause, amount in amounts.items():
            stalls[op.stream][cause] += amount
        busy[op.stream] += timeline.op_end_ns[i] - start
        free[op.stream] = timeline.op_end_ns[i]
    main = MAIN_STREAM if MAIN_STREAM in busy else graph.streams[0]
    for stream in graph.streams:
        figures = result.streams.get(stream)
        if stream == main and result.busy_ns is not None and result.drain_ns is not None:
            figures = StreamFigures(result.busy_ns, result.stall_ns, result.drain_ns)
        expected_figures = StreamFigures(
            busy[stream], stalls[stream], (result.makespan_ns or 0) - free[stream]
        )
        if figures is None or _amounts(figures) != _amounts(expected_figures):
            yield Finding(
                "division",
                f"the figures of stream {stream!r} are {figures}; its timeline says "
                f"{expected_figures}",
            )


def _amounts(figures: StreamFigures) -> tuple[int, int, dict[str, int]]:
    return figures.busy_ns, figures.drain_ns, _nonzero(dict(figures.stall_ns))


def _nonzero(amounts: dict[str, int]) -> dict[str, int]:
    return {cause: amount for cause, amount in amounts.items() if amount}


def _awaited(plan: Plan, device: str, timeline: Timeline) -> list[list[Transfer]]:
    """For each op, the transfers that it waits for (rule 1).

    Of each tensor that it reads, those of the last prefetch into the device tier before it, or of
    the last copy into the tier of its own processor (rule 20); of each tensor that it writes, all
    before it.
    """
    by_cache_op: dict[int, list[Transfer]] = {}
    for x in timeline.transfers:
        by_cache_op.setdefault(x.cache_op, []).append(x)
    placed: dict[int, list[int]] = {}
    for c, cache_op in enumerate(plan.cache_ops):
        if cache_op.op != DETACH:
            placed.setdefault(cache_op.after, []).append(c)
    last: dict[tuple[int, str], int] = {}
    every: dict[int, list[int]] = {}
    awaited: list[list[Transfer]] = []
    for i in range(AT_START, len(plan.graph.ops)):
        if i != AT_START:
            op = plan.graph.ops[i]
            tier = op.processor or device
            waits = [last[t, tier] for t in {*op.inputs, *op.mutates} if (t, tier) in last]
            waits += [c for t in {*op.outputs, *op.mutates} for c in every.get(t, ())]
            awaited.append([x for c in waits for x in by_cache_op.get(c, ())])
        for c in placed.get(i, ()):
            cache_op = plan.cache_ops[c]
            every.setdefault(cache_op.tensor, []).append(c)
            if cache_op.destination is not None and (
                cache_op.op == PREFETCH or cache_op.destination != device
            ):
                last[cache_op.tensor, cache_op.destination] = c
    return awaited


def transfers_of_tensors(timeline: Timeline) -> dict[int, list[Transfer]]:
    """The transfers of each tensor, in order of start."""
    moving: dict[int, list[Transfer]] = {}
    for x in sorted(timeline.transfers, key=lambda x: (x.start_ns, x.end_ns)):
        moving.setdefault(x.tensor, []).append(x)
    return moving


def _residency_met(
    earliest: int, written: Sequence[int], moving: dict[int, list[Transfer]], start: int
) -> int:
    """The last instant, from ``earliest`` on, at which a transfer of what the op writes ended
    before it: from then on nothing read it.

    A transfer may begin while the op waits for room; then its residency is lost and met again, and
    the later instant counts.
    """
    ends = [x.end_ns for t in written for x in moving.get(t, ()) if x.start_ns < x.end_ns <= start]
    return max([earliest, *ends])


def _counts(plan: Plan, result: Result) -> Iterator[Finding]:
    if plan.runtime is not None:
        return
    expected = {
        "prefetches": plan.count(PREFETCH),
        "stores": plan.count(STORE),
        "detaches": plan.count(DETACH),
    }
    if dict(result.plan) != expected:
        yield Finding("counts", f"the result counts {dict(result.plan)}; the plan has {expected}")
