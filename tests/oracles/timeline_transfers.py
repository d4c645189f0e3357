"""The check of a timeline's transfers: queues, engines, times, and the figures of channels
(docs/contract.md, rules 3, 6, 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hosim.analysis.costmodel.transfers import alone_ns, pin_ns
from hosim.analysis.verifying import Finding
from hosim.cache_plan import AT_START, DETACH, Plan
from hosim.hardware import Channel, Hardware
from hosim.result import ChannelFigures, Residency, Result, Timeline, Transfer

_NS_PER_S = 10**9


def check_transfers(
    plan: Plan, hardware: Hardware, result: Result, timeline: Timeline
) -> Iterator[Finding]:
    """Findings on transfers and channels."""
    by_channel: dict[str, list[Transfer]] = {channel.name: [] for channel in hardware.channels}
    for x in timeline.transfers:
        if x.channel not in by_channel:
            yield _finding(plan, x, "channel", "takes a channel that the machine does not have")
            return
        by_channel[x.channel].append(x)
    yield from _cache_ops(plan, hardware, timeline)
    yield from _copies(plan, hardware, timeline)
    drawn = result.jitter is not None and bool(
        result.jitter.transfer_sigma
    )  # then what flows is more or less than the bytes
    for channel in hardware.channels:
        yield from (
            () if drawn else _times(plan, hardware, channel, by_channel[channel.name], timeline)
        )
        if channel.queue is None:
            yield from _queue(plan, [channel], by_channel[channel.name])
        dma = all(
            tier.dma
            for tier in hardware.tiers
            if tier.name in (channel.source, channel.destination)
        )
        yield from _figures(channel, dma, by_channel[channel.name], result)
    for name in {c.queue for c in hardware.channels} - {None}:
        ours = [c for c in hardware.channels if c.queue == name]
        yield from _queue(plan, ours, [x for c in ours for x in by_channel[c.name]])
    shared = [(c.name, c.bandwidth_bytes_per_s, (c.name,)) for c in hardware.channels]
    for name, bandwidth, members in [
        *shared,
        *((f.name, f.bandwidth_bytes_per_s, f.channels) for f in hardware.fabrics),
    ]:
        yield from (
            ()
            if drawn
            else check_bandwidth(
                hardware, name, bandwidth, [x for member in members for x in by_channel[member]]
            )
        )
    yield from _exposed(plan, hardware, result, timeline)


def _finding(plan: Plan, x: Transfer, rule: str, message: str) -> Finding:
    name = plan.graph.tensors[x.tensor].name
    cache_op = x.cache_op if x.cache_op >= 0 else None
    return Finding(
        rule,
        f"the transfer of tensor {name!r} on {x.channel} over {x.start_ns}..{x.end_ns} ns "
        f"{message}",
        None,
        x.tensor,
        cache_op,
    )


def _cache_ops(plan: Plan, hardware: Hardware, timeline: Timeline) -> Iterator[Finding]:
    """Every cache op that copies moves its whole tensor, issued when the plan says; those of one
    tensor one after the other.
    """
    moved: dict[int, list[Transfer]] = {}
    for x in timeline.transfers:
        if x.cache_op >= 0:
            moved.setdefault(x.cache_op, []).append(x)
    last: dict[int, int] = {}
    for c, cache_op in sorted(enumerate(plan.cache_ops), key=lambda item: item[1].after):
        tensor = plan.graph.tensors[cache_op.tensor]
        if cache_op.op == DETACH:
            continue
        issued = 0 if cache_op.after == AT_START else timeline.op_end_ns[cache_op.after]
        transfers = moved.pop(c, [])
        users = plan.graph.users[cache_op.tensor]
        dead = max([timeline.op_end_ns[u] for u in users], default=issued + 1)
        forgotten = not plan.graph.survives[cache_op.tensor] and issued >= dead
        if not transfers:
            if not forgotten:
                yield Finding(
                    "whole",
                    f"cache op {c} ({cache_op.op} of {tensor.name!r}) never ran",
                    tensor=cache_op.tensor,
                    cache_op=c,
                )
            continue
        by_channel: dict[str, int] = {}
        for x in transfers:
            by_channel[x.channel] = by_channel.get(x.channel, 0) + x.bytes
            if x.tensor != cache_op.tensor or x.start_ns < issued:
                yield _finding(plan, x, "issue", f"is not what cache op {c} issues at {issued} ns")
        taken = [channel for channel in hardware.channels if channel.name in by_channel]
        begins, arrives = (
            cache_op.source in {c.source for c in taken},
            cache_op.destination in {c.destination for c in taken},
        )
        if any(size != tensor.size_bytes for size in by_channel.values()) or not (
            begins and arrives
        ):
            message = (
                f"cache op {c} ({cache_op.op} of {tensor.name!r}) moved {by_channel} of "
                f"{tensor.size_bytes} bytes"
            )
            yield Finding("whole", message, tensor=cache_op.tensor, cache_op=c)
        if len(transfers) == 1 and transfers[0].issue_ns != issued:
            yield _finding(
                plan,
                transfers[0],
                "issue",
                f"was issued at {transfers[0].issue_ns} ns; the plan says {issued}",
            )
        if len(plan.graph.streams) == 1:  # on several, the order of issue is that of time
            if min(x.start_ns for x in transfers) < last.get(cache_op.tensor, 0):
                yield _finding(
                    plan,
                    transfers[0],
                    "one-by-one",
                    "starts before the tensor's cache op before it has taken effect",
                )
            last[cache_op.tensor] = max(x.end_ns for x in transfers)
    for c in moved:
        yield Finding(
            "whole",
            f"a transfer belongs to cache op {c}, which the plan does not have or which copies "
            "nothing",
            cache_op=c,
        )


def _copies(plan: Plan, hardware: Hardware, timeline: Timeline) -> Iterator[Finding]:
    """Source and destination are held throughout, or its chunk is staged there; and nobody writes
    the tensor meanwhile.
    """
    ends = {channel.name: (channel.source, channel.destination) for channel in hardware.channels}
    held: dict[tuple[int, str], list[Residency]] = {}
    for r in timeline.residencies:
        held.setdefault((r.tensor, r.tier), []).append(r)
    for x in timeline.transfers:
        for tier in ends[x.channel]:
            throughout = (
                r
                for r in held.get((x.tensor, tier), ())
                if r.start_ns <= x.start_ns and x.end_ns <= r.end_ns
            )
            if not any(not r.staged or r.bytes == x.bytes for r in throughout):
                yield _finding(plan, x, "copy", f"is not held in {tier} throughout")
        for u in plan.graph.users[x.tensor]:
            op = plan.graph.ops[u]
            if (
                x.tensor in (*op.outputs, *op.mutates)
                and timeline.op_start_ns[u] < x.end_ns
                and x.start_ns < timeline.op_end_ns[u]
            ):
                yield _finding(plan, x, "copy", f"goes on while op {op.name!r} writes the tensor")


def _times(
    plan: Plan,
    hardware: Hardware,
    channel: Channel,
    transfers: Iterable[Transfer],
    timeline: Timeline,
) -> Iterator[Finding]:
    """No transfer is faster than alone; what sharing cost it is the rest.

    One that brings its tensor's bytes into a tier pins them first, unless they come from the tier's
    pool, or another chunk that starts at the same instant does.
    """
    tier = hardware.tiers[hardware.tier_index[channel.destination]]
    begun = {
        (r.tensor, r.start_ns)
        for r in timeline.residencies
        if tier.pin_ns and r.tier == tier.name and r.bytes and not r.staged
    }
    for x in transfers:
        kind = plan.graph.tensors[x.tensor].kind
        alone, pinning = (
            alone_ns(hardware, x.channel, x.bytes, kind),
            pin_ns(hardware, tier.name, kind),
        )
        brings = bool(pinning) and (x.tensor, x.start_ns) in begun
        sure = brings and not tier.pin_pool and x.bytes == plan.graph.tensors[x.tensor].size_bytes
        times = [alone + pinning] if sure else [alone, alone + pinning] if brings else [alone]
        if x.end_ns - x.start_ns < times[0] or x.end_ns - x.start_ns - x.contention_ns not in times:
            yield _finding(
                plan,
                x,
                "time",
                f"has {x.contention_ns} ns of contention; alone it takes {times[0]} ns",
            )


def _queue(plan: Plan, channels: list[Channel], transfers: list[Transfer]) -> Iterator[Finding]:
    """Of the channels of a queue: first-in first-out, no more at once than there are engines (rules
    3 and 24), and of a cache op one chunk at a time (rule 7).
    """
    source = {channel.name: channel.source for channel in channels}
    order = sorted(
        range(len(transfers)), key=lambda k: (transfers[k].start_ns, transfers[k].issue_ns)
    )
    latest: Transfer | None = None
    for k in order:
        x = transfers[k]
        if x.start_ns < x.issue_ns:
            yield _finding(plan, x, "queue", f"starts before its issue at {x.issue_ns} ns")
        if (
            latest is not None
            and x.start_ns > latest.start_ns
            and _from_here(plan, source, latest)
            and _issued_before(plan, source, x, latest)
        ):
            yield _finding(
                plan,
                x,
                "queue",
                f"was issued before one of {plan.graph.tensors[latest.tensor].name!r} that "
                "started before it",
            )
        if latest is None or not _issued_before(plan, source, x, latest):
            latest = x
    last: dict[int, Transfer] = {}
    for x in sorted(transfers, key=lambda x: (x.start_ns, x.end_ns)):
        if x.cache_op in last and x.start_ns < last[x.cache_op].end_ns:
            yield _finding(
                plan,
                x,
                "engines",
                "takes another engine beside an earlier chunk of the same cache op",
            )
        if x.cache_op >= 0:
            last[x.cache_op] = x
    changes = sorted(
        [(x.start_ns, 1) for x in transfers if x.end_ns > x.start_ns]
        + [(x.end_ns, -1) for x in transfers if x.end_ns > x.start_ns]
    )
    running = 0
    for now, change in changes:
        running += change
        if running > channels[0].engines:
            yield Finding(
                "engines",
                f"at {now} ns {running} transfers run on {', '.join(source)}, with "
                f"{channels[0].engines} engines",
            )
            return


def _issued_before(plan: Plan, source: dict[str, str], x: Transfer, other: Transfer) -> bool:
    """Whether ``x`` was surely issued before ``other``: earlier, or at the same place of the plan
    and before it there.

    Of chunks that come from another hop at one instant, this does not show.
    """
    if x.issue_ns != other.issue_ns:
        return x.issue_ns < other.issue_ns
    if x.cache_op < 0 or other.cache_op < 0:
        return False
    one, two = plan.cache_ops[x.cache_op], plan.cache_ops[other.cache_op]
    return (
        one.source == source[x.channel]
        and two.source == source[other.channel]
        and one.after == two.after
        and x.cache_op < other.cache_op
    )


def _from_here(plan: Plan, source: dict[str, str], x: Transfer) -> bool:
    """Whether the transfer's cache op begins on this channel: a chunk on its way goes ahead of what
    waits for another cache op.
    """
    return x.cache_op < 0 or plan.cache_ops[x.cache_op].source == source[x.channel]


def check_bandwidth(
    hardware: Hardware, name: str, bandwidth: int, transfers: list[Transfer]
) -> Iterator[Finding]:
    """What flowed through a channel or fabric in each stretch of time without a pause is not more
    than it carries.
    """
    latency = {channel.name: channel.latency_ns for channel in hardware.channels}
    flows = sorted((x.start_ns + latency[x.channel], x.end_ns, x.bytes) for x in transfers)
    after_all = max((stop for _, stop, _ in flows), default=0)
    begin = end = size = 0
    for start, stop, amount in [*flows, (after_all, after_all, 0)]:
        if start >= end:
            if size * _NS_PER_S > (end - begin) * bandwidth:
                yield Finding(
                    "bandwidth",
                    f"{size} bytes flow through {name} in {begin}..{end} ns, more than it carries",
                )
            begin, size = start, 0
        end, size = max(end, stop), size + amount


def _figures(
    channel: Channel, dma: bool, transfers: list[Transfer], result: Result
) -> Iterator[Finding]:
    """The channel's figures are the sums over its transfers; without DMA nothing of them is
    hidden.
    """
    figures = result.channels.get(channel.name)
    if figures is None:
        yield Finding("figures", f"the result has no channel {channel.name}")
        return
    busy = _union((x.start_ns, x.end_ns) for x in transfers)
    expected = ChannelFigures(
        transfers=len(transfers),
        bytes=sum(x.bytes for x in transfers),
        busy_ns=busy,
        queue_ns=sum(x.start_ns - x.issue_ns for x in transfers),
        contention_ns=sum(x.contention_ns for x in transfers),
        exposed_ns=figures.exposed_ns,
        hidden_ns=max(0, busy - figures.exposed_ns) if dma else 0,
        utilization=busy / result.makespan_ns if result.makespan_ns else 0.0,
    )
    if figures != expected:
        yield Finding(
            "figures", f"the figures of {channel.name} are {figures}; its transfers say {expected}"
        )


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """Nanoseconds covered by at least one interval."""
    total = until = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def _exposed(
    plan: Plan, hardware: Hardware, result: Result, timeline: Timeline
) -> Iterator[Finding]:
    """Each transfer stall is blamed on the transfer that the op waited for and that ended last
    (rule 8).

    The stalls of the result's stream add up to what each channel exposes.
    """
    graph = plan.graph
    if not graph.ops:
        return
    main = "compute" if "compute" in graph.streams else graph.streams[0]
    into = {c.name: c.destination for c in hardware.channels}
    ending: dict[int, list[Transfer]] = {}
    for x in timeline.transfers:
        ending.setdefault(x.end_ns, []).append(x)
    exposed: Counter[str] = Counter()
    for stall in timeline.stalls:
        op = graph.ops[stall.op]
        if stall.cause != "transfer" and stall.transfer is None:
            continue
        if stall.cause != "transfer" or stall.transfer not in range(len(timeline.transfers)):
            yield Finding(
                "blame",
                f"the {stall.cause} stall before op {op.name!r} is blamed on transfer "
                f"{stall.transfer}",
                op=stall.op,
            )
            continue
        blamed, writes = timeline.transfers[stall.transfer], {*op.outputs, *op.mutates}
        ended = ending.get(stall.end_ns, ())
        tier = op.processor or hardware.device_tier
        awaited = [
            x
            for x in ended
            if x.tensor in writes or (x.tensor in op.inputs and into[x.channel] == tier)
        ]
        if not any(x is blamed for x in awaited):
            yield _finding(
                plan,
                blamed,
                "blame",
                f"is not what op {op.name!r} waited for until {stall.end_ns} ns",
            )
        elif _whole(hardware, plan, blamed) and any(
            _whole(hardware, plan, x) and _later(plan, x, blamed) for x in awaited
        ):
            yield _finding(
                plan,
                blamed,
                "blame",
                f"is blamed for the wait of op {op.name!r}; another was issued later",
            )
        if op.stream == main:
            exposed[blamed.channel] += stall.end_ns - stall.start_ns
    for channel, figures in result.channels.items():
        if figures.exposed_ns != exposed[channel]:
            message = (
                f"the exposed time of {channel} is given as {figures.exposed_ns} ns; stalls "
                f"of {exposed[channel]} ns are blamed on it"
            )
            yield Finding("exposed", message)


def _whole(hardware: Hardware, plan: Plan, x: Transfer) -> bool:
    """Whether a transfer is all of its cache op, and no chunk on a route."""
    if x.cache_op not in range(len(plan.cache_ops)):
        return False
    cache_op = plan.cache_ops[x.cache_op]
    return (cache_op.source, cache_op.destination) in hardware.channel_between


def _later(plan: Plan, x: Transfer, other: Transfer) -> bool:
    """Whether ``x`` was issued after ``other``: later, or at the same place of the plan and behind
    it there.
    """
    if x.issue_ns != other.issue_ns:
        return x.issue_ns > other.issue_ns
    return (
        plan.cache_ops[x.cache_op].after == plan.cache_ops[other.cache_op].after
        and x.cache_op > other.cache_op
    )
