"""The critical path of a step: the chain of ops and transfers that ends last, each of which began
when the one before it ended.

It goes over all streams, the processors of all tiers and the drain, so that its parts add up to the
makespan.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hosim.base.groups import grouped, summed
from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.result import Stall, Timeline

OPS, COPIES, WAITS = "ops on", "copies over", "waits"
"""The kind of a part of the path: ops on a processor, which its tier names, copies over a channel,
or a wait that neither explains.
"""


@dataclass(frozen=True, slots=True)
class PathPart:
    """From ``start_ns`` to ``end_ns`` the step is at this: ``kind`` is one of the above, ``where``
    the tier or the channel.
    """

    kind: str
    where: str
    start_ns: int
    end_ns: int
    op: int = -1
    transfer: int = -1

    @property
    def what(self) -> str:
        """Kind and place, as a reader is told."""
        return f"{self.kind} {self.where}".strip()


def step_path(plan: Plan, hardware: Hardware, timeline: Timeline) -> list[PathPart]:
    """The parts of the path, the first one first; each begins where the one before it ends, and the
    first at 0.
    """
    walk = _Walk(plan, hardware, timeline)
    parts: list[PathPart] = []
    now = max(walk.ending, default=0)
    part = walk.first(walk.ending.get(now, ()))
    while now > 0:
        if (
            part is None
            # nothing that ends here let it begin: a runtime's inspection, or room that another
            # device has left
        ):
            earlier = max([end for end in walk.ending if end < now], default=0)
            parts.append(PathPart(WAITS, "", earlier, now))
            now = earlier
            part = walk.first(walk.ending.get(now, ()))
            continue
        if part.end_ns > part.start_ns:
            parts.append(part)
        now = part.start_ns
        part = walk.before(part)
    return parts[::-1]


def spent_ns(parts: Iterable[PathPart], start_ns: int, end_ns: int) -> Mapping[str, int]:
    """Nanoseconds of ``[start_ns, end_ns)`` by what the step is at, the largest first."""
    within = [
        (part.what, min(part.end_ns, end_ns) - max(part.start_ns, start_ns)) for part in parts
    ]
    spent = summed((what, ns) for what, ns in within if ns > 0)
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


class _Walk:
    """A timeline with what ends at each instant, and what each op waited for last."""

    def __init__(self, plan: Plan, hardware: Hardware, timeline: Timeline) -> None:
        self.plan, self.graph, self.timeline = plan, plan.graph, timeline
        self._seen: set[PathPart] = set()
        self._waited: dict[int, Stall] = {
            stall.op: stall for stall in timeline.stalls
        }  # in order of their ends: the last one stays
        self._ops = [
            PathPart(OPS, tier_of(self.graph.ops[i], hardware), start, end, op=i)
            for i, (start, end) in enumerate(
                zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)
            )
        ]
        self._transfers = [
            PathPart(COPIES, x.channel, x.start_ns, x.end_ns, transfer=k)
            for k, x in enumerate(timeline.transfers)
        ]
        self.ending = grouped(
            (part.end_ns, part) for part in (*self._ops, *self._transfers) if part.end_ns >= 0
        )

    def first(self, parts: Sequence[PathPart]) -> PathPart | None:
        """The first of these that the path does not have yet."""
        found = next((part for part in parts if part not in self._seen), None)
        if found is not None:
            self._seen.add(found)
        return found

    def before(self, part: PathPart) -> PathPart | None:
        """Return the event whose end let a part of the path begin."""
        here = self.ending.get(part.start_ns, [])
        wanted = self._before_op(part) if part.op >= 0 else self._before_transfer(part)
        return self.first([*[p for p in wanted if p.end_ns == part.start_ns], *here])

    def _before_op(self, part: PathPart) -> list[PathPart]:
        op, stall = self.graph.ops[part.op], self._waited.get(part.op)
        if stall is not None and stall.end_ns == part.start_ns:
            if stall.transfer is not None:
                return [self._transfers[stall.transfer]]
            if stall.cause == "capacity":
                return [p for p in self.ending.get(part.start_ns, ()) if p.transfer >= 0]
            return [self._ops[i] for i in self.graph.producers[part.op]]
        return [
            p
            for p in self.ending.get(part.start_ns, ())
            if p.op >= 0 and self.graph.ops[p.op].stream == op.stream
        ]

    def _before_transfer(self, part: PathPart) -> list[PathPart]:
        x = self.timeline.transfers[part.transfer]
        if x.start_ns > x.issue_ns:
            return [p for p in self.ending.get(x.start_ns, ()) if p.where == x.channel]
        issued = (
            self.plan.cache_ops[x.cache_op].after
            if 0 <= x.cache_op < len(self.plan.cache_ops)
            else -1
        )
        return [self._ops[issued]] if issued >= 0 else []


# -- slopes
# --------------------------------------------------------------------------------------------------
# What the makespan of a replay depends on, in first order: one walk backwards, and no other
# replay.
#
# Along the chain of ops and copies that ends last (:func:`step_path`) each
# part began when the one before it ended, so that its length is part of the makespan. As long as
# the chain stays the same, the makespan changes as the sum of its parts does. How late each copy
# may be at no cost is its slack (:mod:`hosim.analysis.slack.transfer_slack`).


@dataclass(frozen=True, slots=True)
class Slopes:
    """The derivatives of a makespan.

    Parameters
    ----------
    bandwidth
        Nanoseconds for each byte per second more of a channel, by its name: below 0.
    latency
        Nanoseconds for each nanosecond more of a channel's latency: how many of its copies are in
        the chain.
    processor
        Nanoseconds for each 100 % more of the time of all ops of a processor, by its tier: how much
        of the chain they are.
    kind
        The same for the ops of each kind.
    """

    bandwidth: Mapping[str, float]
    latency: Mapping[str, int]
    processor: Mapping[str, int]
    kind: Mapping[str, int]


def slopes(plan: Plan, hardware: Hardware, timeline: Timeline) -> Slopes:
    """The slopes of a replay's makespan, from its timeline.

    They hold as long as the same chain ends last; at a change of chains the makespan has a corner.
    What is left out: where copies share a fabric or a memory, how a change of one moves the rate of
    others.

    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.engine import replay
    >>> from hosim.graph import GraphBuilder
    >>> from hosim.io import load_hardware
    >>> from hosim.shipped import find_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr")
    >>> _ = b.op("g", "matmul", inputs=["w"], duration_ns=50)
    >>> moves = CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)
    >>> plan, toy = Plan(b.build(), cache_ops=moves), load_hardware(find_hardware("toy"))
    >>> slopes(plan, toy, replay(plan, toy, record=True).timeline)
    Slopes(bandwidth={'h2d': -4e-08}, latency={'h2d': 1}, processor={'hbm': 50}, kind={'matmul': 50})
    """
    channels = {channel.name: channel for channel in hardware.channels}
    flows, copies = Counter[str](), Counter[str]()
    processors, kinds = Counter[str](), Counter[str]()
    for part in step_path(plan, hardware, timeline):
        ns = part.end_ns - part.start_ns
        if part.op >= 0:
            op = plan.graph.ops[part.op]
            processors[tier_of(op, hardware)] += ns
            kinds[op.kind] += ns
        elif part.transfer >= 0:
            copies[part.where] += 1
            flows[part.where] += max(0, ns - channels[part.where].latency_ns)
    rates = {name: -ns / channels[name].bandwidth_bytes_per_s for name, ns in flows.items()}
    return Slopes(rates, dict(copies), dict(processors), dict(kinds))
