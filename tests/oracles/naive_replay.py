"""A second replay, written from docs/contract.md alone: slow, literal, without simpy and sharing
nothing with the engine.

Everything is looked up anew at every round of every instant: occupancy is a sum over what is held,
producers come from the rule's own words, rates from progressive filling. Only plans without a
runtime policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from collective_rule import TOGETHER, pace, sent
from naive_host import NaiveHost

from hosim.analysis.costmodel import op_durations
from hosim.cache_plan import CacheOp, Plan
from hosim.errors import PlanError
from hosim.graph import GraphBuilder

VALID, WRITING = "valid", "writing"


def one_queue(a, b):
    """Whether transfers over these channels wait in one queue."""
    if a is None or b is None:
        return False
    return a is b or (a.queue is not None and a.queue == b.queue)


@dataclass(eq=False)
class NaiveTransfer:
    """A cache op from its issue on; a detach has no channel, nor does a route (it has hops), whose
    chunks are transfers of their own.
    """

    k: int
    tensor: int
    source: str
    destination: str | None
    channel: object
    issue: int
    start: int | None = None
    end: int | None = None
    flows_from: int = 0
    left: Fraction = Fraction(0)
    rate: Fraction = Fraction(0)
    pinning: int = 0
    size: int = 0
    hops: tuple = ()
    chunks_left: int = 0
    parent: NaiveTransfer | None = None  # of a chunk: its route
    hop: int = 0
    number: int = 0
    last: NaiveTransfer | None = None  # of a route: the chunk that arrived last
    behind: bool = False

    def record(self):
        return self.k, self.tensor, self.channel.name, self.issue, self.start, self.end


@dataclass(eq=False)
class OpFlow:
    """What a collective sends: it wants ``pace`` bytes a nanosecond."""

    pace: Fraction
    rate: Fraction = Fraction(0)


def fill(flows, links, own):
    """Raise the rates of all flows together until each is at its own or on a full link; a link
    lists a flow as often as it carries it.
    """
    rising = list(flows)
    while rising:
        steps = []
        for on, bandwidth in links:
            count = sum(x in rising for x in on)
            if count:
                steps.append(((Fraction(bandwidth, 10**9) - sum(x.rate for x in on)) / count, on))
        step = min([*(s for s, _ in steps), *(own[id(x)] - x.rate for x in rising)])
        for x in rising:
            x.rate += step
        full = [on for s, on in steps if s == step]
        rising = [x for x in rising if x.rate < own[id(x)] and not any(x in on for on in full)]


class NaiveReplay(NaiveHost):
    """Runs on construction; the figures are in ``figures``, or ``error`` says what did not fit."""

    def __init__(self, plan, hardware, budget=None, compete=False):
        self.plan, self.hw, self.graph, self.compete = plan, hardware, plan.graph, compete
        self.durations = op_durations(plan.graph, hardware)
        self.work_left = [
            Fraction(duration) for duration in self.durations
        ]  # nanoseconds at full speed
        self.speed = [Fraction(1)] * len(self.durations)
        self.flows_of_ops: dict[int, OpFlow] = {}
        self.ops, self.tensors = plan.graph.ops, plan.graph.tensors
        self.device = hardware.device_tier
        self.capacity = {tier.name: tier.capacity_bytes for tier in hardware.tiers}
        if budget is not None:
            self.capacity[self.device] = min(budget, self.capacity[self.device])
        self.users = [
            [i for i, op in enumerate(self.ops) if t in (*op.inputs, *op.outputs, *op.mutates)]
            for t in range(len(self.tensors))
        ]
        self.survives = [tensor.persistent or tensor.kind == "output" for tensor in self.tensors]
        self.producers = [self._producers(i) for i in range(len(self.ops))]
        self.streams = list(dict.fromkeys(op.stream for op in self.ops))
        self.main = "compute" if "compute" in self.streams else self.streams[0]
        self.now = 0
        self.op_start: list[int | None] = [None] * len(self.ops)
        self.op_end: list[int | None] = [None] * len(self.ops)
        self.ended = [False] * len(self.ops)
        self.residency_since: dict[int, int] = {}
        self.copies: dict[tuple[int, str], str] = {
            (t, tier): VALID for t, where in plan.residency(self.device).items() for tier in where
        }
        self.dead: set[int] = set()
        self.done: set[int] = set()  # cache ops that copied and have ended
        self.onward: list[NaiveTransfer] = []
        self.issued: list[NaiveTransfer] = []  # in order of issue, done ones included
        self.waiting: dict[
            int, list[NaiveTransfer]
        ] = {}  # by tensor, in order of issue: not yet done
        self.staged: list[
            NaiveTransfer
        ] = []  # chunks that have begun to enter a tier on their way and have not left it
        self.peak = dict.fromkeys(self.capacity, 0)
        self.peak_at = dict.fromkeys(self.capacity, 0)
        self.composition: dict[str, dict[str, int]] = {name: {} for name in self.capacity}
        self.pinned = {
            tier.name: self.pinned_bytes(tier) for tier in hardware.tiers
        }  # the most bytes ever pinned
        self.busy_channel = dict.fromkeys((c.name for c in hardware.channels), 0)
        self.exposed = dict.fromkeys((c.name for c in hardware.channels), 0)
        self.stalls = {
            s: {"dependency": 0, "transfer": 0, "capacity": 0, "runtime": 0} for s in self.streams
        }
        self.waits: list[tuple] = []  # (op, cause, start, end, what the wait is blamed on)
        self.error: tuple[str, str] | None = None
        self.host_starts()
        self._run()

    # -- words of the rules
    # ------------------------------------------------------------------------------------

    def _producers(self, i):
        """The last op listed before it that writes one of its inputs; for what it writes, every op
        before that uses it; its deps.
        """
        op = self.ops[i]
        found = set(op.deps)
        for t in op.inputs:
            writers = [j for j in range(i) if t in (*self.ops[j].outputs, *self.ops[j].mutates)]
            found.update(writers[-1:])
        for t in (*op.outputs, *op.mutates):
            found.update(
                j
                for j in range(i)
                if t in (*self.ops[j].inputs, *self.ops[j].outputs, *self.ops[j].mutates)
            )
        return found

    def where(self, i):
        """The tier that op i reads and writes."""
        return self.ops[i].processor or self.device

    def compute(self, i):
        return self.tier(self.where(i)).compute if self.ops[i].processor else self.hw.compute

    def held(self, tier):
        """Bytes by kind."""
        kinds: dict[str, int] = {}
        for t, where in self.copies:
            if where == tier:
                kinds[self.tensors[t].kind] = (
                    kinds.get(self.tensors[t].kind, 0) + self.tensors[t].size_bytes
                )
        for x in self.staged:
            if x.destination == tier:
                kinds[self.tensors[x.tensor].kind] = (
                    kinds.get(self.tensors[x.tensor].kind, 0) + x.size
                )
        for i in self.running():
            if self.where(i) == tier:
                kinds["workspace"] = kinds.get("workspace", 0) + self.ops[i].workspace_bytes
        return {kind: size for kind, size in kinds.items() if size}

    def fits(self, wanted, tier):
        return not wanted or sum(self.held(tier).values()) + wanted <= self.capacity[tier]

    def note_peak(self):
        for tier in self.capacity:
            held = self.held(tier)
            if sum(held.values()) > self.peak[tier]:
                self.peak[tier], self.peak_at[tier], self.composition[tier] = (
                    sum(held.values()),
                    self.now,
                    held,
                )

    def running(self):
        return [
            i for i in range(len(self.ops)) if self.op_start[i] is not None and not self.ended[i]
        ]

    def begun(self, i):
        """When an op that has started gets on with it: once all who do it with this device have
        started.
        """
        return self.op_start[i]

    def exchanging(self):
        return [i for i in self.running() if self.begun(i) is not None]

    def pace(self, i):
        return pace(self.ops[i], self.tensors, self.hw, self.durations[i])

    def moving(self):
        return [x for x in self.issued if x.start is not None and x.end is None]

    def moving_at(self, tier):
        """What flows in the memory of a tier, whoever shares it."""
        return [x for x in self.moving() if tier in (x.channel.source, x.channel.destination)]

    def parts_of(self, tier):
        """In how many parts its processor is."""
        return 1

    def under_way(self):
        """Routes of which a chunk has started and some have not arrived."""
        return [
            x for listed in self.waiting.values() for x in listed if x.hops and x.start is not None
        ]

    def head(self, stream):
        """The op that the stream is free to start next."""
        listed = [i for i, op in enumerate(self.ops) if op.stream == stream and not self.ended[i]]
        return listed[0] if listed and self.op_start[listed[0]] is None else None

    def free_since(self, stream):
        return max(
            [
                self.op_end[i]
                for i, op in enumerate(self.ops)
                if op.stream == stream and self.ended[i]
            ],
            default=0,
        )

    def last_prefetch(self, t, i):
        """The last prefetch of t into the tier of op i, on another processor also store, issued at
        time 0 or after an op before op i.
        """
        found = [
            (c.after, k)
            for k, c in enumerate(self.plan.cache_ops)
            if c.op in (("prefetch", "store") if self.ops[i].processor else ("prefetch",))
            and c.tensor == t
            and c.after < i
            and c.destination == self.where(i)
        ]
        return max(found)[1] if found else None

    def copies_before(self, t, i):
        """The prefetches and stores of t that are issued at time 0 or after an op before op i."""
        return {
            k
            for k, c in enumerate(self.plan.cache_ops)
            if c.op != "detach" and c.tensor == t and c.after < i
        }

    def residency_met(self, i):
        op = self.ops[i]
        for t in (*op.inputs, *op.mutates):
            k = self.last_prefetch(t, i)
            if k is not None and k not in self.done:
                return False
            if self.copies.get((t, self.where(i))) != VALID:
                return False
        for t in (*op.outputs, *op.mutates):
            if not self.copies_before(t, i) <= self.done:
                return False
            if any(x.tensor == t for x in [*self.moving(), *self.under_way()]):
                return False
        return True

    def wanted(self, i):
        op = self.ops[i]
        return op.workspace_bytes + sum(
            self.tensors[t].size_bytes for t in op.outputs if (t, self.where(i)) not in self.copies
        )

    # -- an instant
    # --------------------------------------------------------------------------------------------

    def _run(self):
        self.note_peak()
        for tier, capacity in self.capacity.items():
            if sum(self.held(tier).values()) > capacity:
                self.error = ("initial", tier)
                return
        if self.host is None:
            self.issue([k for k, c in enumerate(self.plan.cache_ops) if c.after == -1])
        while True:
            while self.one_round():
                pass
            upcoming = self.next_instant()
            if upcoming is None:
                break
            self.go_on(upcoming)
        if not all(self.ended) or any(self.waiting.values()):
            self.error = self.culprit()
            return
        self.check_end()

    def check_end(self):
        """Rule 2, at the end of the step."""
        for t, where in self.plan.residency(self.device).items():
            for tier in where:
                if self.survives[t] and self.copies.get((t, tier)) != VALID:
                    raise PlanError(f"end of step: {t} {tier}")

    def go_on(self, upcoming):
        """Bytes flow and ops run until then."""
        for x in self.moving():
            x.left -= x.rate * (upcoming - self.now)
        for i in self.exchanging():
            self.work_left[i] -= (Fraction(1) if self.launching(i) else self.speed[i]) * (
                upcoming - self.now
            )
        for c in self.hw.channels:
            self.busy_channel[c.name] += (upcoming - self.now) * any(
                x.channel is c for x in self.moving()
            )
        self.now = upcoming

    def one_round(self):
        """Ends, issues, op starts, transfer starts; says whether anything happened."""
        ends = self.end_all()
        if self.host is not None:
            calls = self.host_goes_on()
            self.issue(self.newly_due())
        elif ends:
            self.issue([k for k, c in enumerate(self.plan.cache_ops) if c.after in ends[0]])
        starts = [self.start_op(stream) for stream in self.streams]
        moves = [self.start_transfer(x) for x in list(self.issued)]
        self.set_rates()
        self.set_speeds()
        return bool(ends) or any(starts) or any(moves) or bool(self.host and calls)

    def finished(self):
        """The running ops that have done all their work."""
        return [i for i in self.exchanging() if self.work_left[i] <= 0]

    def end_all(self):
        ops = self.finished()
        transfers = [x for x in self.moving() if x.flows_from <= self.now and x.left <= 0]
        if not ops and not transfers:
            return None
        for i in ops:
            self.ended[i], self.op_end[i] = True, self.now
            for t in (*self.ops[i].outputs, *self.ops[i].mutates):
                self.copies[t, self.where(i)] = VALID
        for x in transfers:
            x.end = self.now
            if x.parent is None:
                self.arrived(x)
            else:
                self.chunk_passed(x)
        for t in {
            t
            for i in ops
            for t in (*self.ops[i].inputs, *self.ops[i].outputs, *self.ops[i].mutates)
        }:
            if not self.survives[t] and all(self.ended[i] for i in self.users[t]):
                self.dead.add(t)
        for x in list(self.issued):
            if x.destination is None and x.end is None:
                self.try_detach(x)
        for t in self.dead:  # what was issued before its last user ended happens first
            if not self.waiting.get(t):
                for tier in self.capacity:
                    self.copies.pop((t, tier), None)
        for x in sorted(self.onward, key=self.issued.index):
            self.queue(self.chunk(x.parent, x.hop + 1, x.number, x.size))
        self.onward = []
        return ops, transfers

    def arrived(self, x):
        self.copies[x.tensor, x.destination] = VALID
        self.waiting[x.tensor].remove(x)
        self.done.add(x.k)

    def chunk_passed(self, x):
        """A chunk leaves the tier it was staged in, if it was; it goes on to its next hop, or is
        there.
        """
        route = x.parent
        self.staged = [
            y
            for y in self.staged
            if not (y.parent is route and y.hop == x.hop - 1 and y.number == x.number)
        ]
        if x.hop + 1 < len(route.hops):
            self.onward.append(x)
            return
        route.chunks_left -= 1
        if not route.chunks_left:
            route.end, route.last = self.now, x
            self.arrived(route)

    def queue(self, x):
        self.issued.insert(self.place(x, self.issued), x)

    def place(self, x, issued):
        """A chunk's next hop is issued last, but goes ahead of what waits on the channel for an
        earlier cache op of its tensor.
        """
        for at, y in enumerate(issued):
            if (
                one_queue(x.channel, y.channel)
                and y.start is None
                and not y.hop
                and self.waiting[y.tensor][0] is not (y.parent or y)
            ):
                return at
        return len(issued)

    def chunk(self, route, hop, number, size):
        c = route.hops[hop]
        return NaiveTransfer(
            route.k,
            route.tensor,
            c.source,
            c.destination,
            c,
            self.now,
            size=size,
            parent=route,
            hop=hop,
            number=number,
        )

    def routed(self, x, size):
        """The channels of the shortest path, by trying all; a path's time alone is played through,
        chunk by chunk.
        """
        joined = self.hw.channel_between
        paths, found = [((), x.source)], []
        while paths:
            path, at = paths.pop()
            if at == x.destination:
                found.append(path)
                continue
            seen = {x.source, *(c.destination for c in path)}
            paths += [
                ((*path, c), end)
                for (start, end), c in joined.items()
                if start == at and end not in seen
            ]

        if len(found) > 1:  # each in a replay of its own, on a machine that has no other channels
            found.sort(
                key=lambda path: (self.time_alone(x, path, size), len(path), [c.name for c in path])
            )
        return found[0]

    def time_alone(self, x, path, size):
        b = GraphBuilder("alone")
        b.tensor("t", size, "parameter", home=x.source)
        b.op("nothing", "any", duration_ns=0)
        tiers = tuple(
            replace(tier, capacity_bytes=10 * size + 1, pageable=(), pin_ns=0)
            for tier in self.hw.tiers
        )
        names = {c.name for c in path}
        channels = tuple(
            replace(c, beside=tuple(other for other in c.beside if other[0] in names)) for c in path
        )
        fabrics = tuple(
            replace(f, channels=tuple(n for n in f.channels if n in names))
            for f in self.hw.fabrics
            if names & set(f.channels)
        )
        machine = replace(
            self.hw,
            tiers=tiers,
            channels=channels,
            fabrics=fabrics,
            devices=1,
            devices_per_host=None,
        )
        plan = Plan(b.build(), cache_ops=(CacheOp("prefetch", 0, x.source, x.destination),))
        return NaiveReplay(plan, machine, None, self.compete).figures()["makespan_ns"]

    def parts(self, size):
        parts = []
        while size > self.hw.chunk_bytes:
            parts.append(self.hw.chunk_bytes)
            size -= self.hw.chunk_bytes
        return [*parts, size]

    def issue(self, ks):
        for k in sorted(ks):
            c = self.plan.cache_ops[k]
            if c.tensor in self.dead:
                continue
            channel = (
                None
                if c.destination is None
                else self.hw.channel_between.get((c.source, c.destination))
            )
            x = NaiveTransfer(
                k,
                c.tensor,
                c.source,
                c.destination,
                channel,
                self.now,
                size=self.tensors[c.tensor].size_bytes,
            )
            x.behind = bool(self.waiting.get(c.tensor))
            self.waiting.setdefault(c.tensor, []).append(x)
            if channel is None and c.destination is not None:
                parts = self.parts(x.size)
                x.hops, x.chunks_left = self.routed(x, x.size), len(parts)
                self.issued += [self.chunk(x, 0, number, part) for number, part in enumerate(parts)]
                continue
            self.issued.append(x)
            if channel is None:
                self.try_detach(x)

    def try_detach(self, x):
        t = x.tensor
        if self.waiting[t][0] is not x:
            return
        if (t, x.source) not in self.copies:
            if x.behind:  # it was there at the issue; an op has written the tensor since
                self.waiting[t].remove(x)
                x.start = x.end = self.now
                return
            raise PlanError("detach: nothing there")
        there = [self.ops[i] for i in self.running() if self.where(i) == x.source]
        if any(t in (*op.inputs, *op.outputs, *op.mutates) for op in there):
            raise PlanError("detach: in use")
        if not any(
            u == t and tier != x.source and state == VALID
            for (u, tier), state in self.copies.items()
        ):
            left = [i for i in self.users[t] if not self.ended[i]]
            if (
                t in (*self.ops[left[0]].inputs, *self.ops[left[0]].mutates)
                if left
                else self.survives[t]
            ):
                raise PlanError("detach: last copy")
        following = next((i for i in self.users[t] if not self.ended[i]), None)
        if (
            following is not None
            and self.where(following) == x.source
            and t in (*self.ops[following].inputs, *self.ops[following].mutates)
        ):
            k = self.last_prefetch(t, following)
            if k is None or k in self.done:
                raise PlanError("detach: awaited")
        del self.copies[t, x.source]
        self.waiting[t].remove(x)
        x.start = x.end = self.now

    def start_op(self, stream):
        i = self.head(stream)
        if i is None or not self.is_called(i) or not all(self.ended[j] for j in self.producers[i]):
            return False
        if not self.residency_met(i):
            self.residency_since.pop(i, None)
            return False
        self.residency_since.setdefault(i, self.now)
        if not self.fits(self.wanted(i), self.where(i)):
            return False
        op = self.ops[i]
        self.divide(i, stream)
        self.op_start[i] = self.now
        for t in (*op.outputs, *op.mutates):
            for tier in self.capacity:
                if tier != self.where(i):
                    self.copies.pop((t, tier), None)
            self.copies[t, self.where(i)] = WRITING
        self.pinned[self.where(i)] = max(
            self.pinned[self.where(i)], self.pinned_bytes(self.tier(self.where(i)))
        )
        self.note_peak()
        return True

    def divide(self, i, stream):
        op, free = self.ops[i], self.free_since(stream)
        called = free if self.host is None else max(free, self.ops_over[i])
        t_dep = max([called, *(self.op_end[j] for j in self.producers[i])])
        t_res = max(t_dep, self.residency_since[i])
        last = None
        if t_res > t_dep:
            met = [
                x
                for x in self.issued
                if x.channel is not None
                and x.end is not None
                and x.end <= t_res
                and (x.parent is None or x is x.parent.last)
                and (
                    x.tensor in (*op.outputs, *op.mutates)
                    or (x.tensor in op.inputs and x.destination == self.where(i))
                )
            ]
            last = max(met, key=lambda x: (x.end, self.issued.index(x)))
            if stream == self.main:
                self.exposed[last.channel.name] += t_res - t_dep
        ends = {
            "runtime": (free, called),
            "dependency": (called, t_dep),
            "transfer": (t_dep, t_res),
            "capacity": (t_res, self.now),
        }
        for cause, (start, end) in ends.items():
            self.stalls[stream][cause] += end - start
            if end > start:
                self.waits.append(
                    (i, cause, start, end, last.record() if cause == "transfer" else None)
                )

    def start_transfer(self, x):
        if (
            x.channel is None
            or x.start is not None
            or (not x.hop and self.waiting[x.tensor][0] is not (x.parent or x))
        ):
            return False
        same = [y for y in self.issued if one_queue(x.channel, y.channel)]
        if sum(y.start is not None and y.end is None for y in same) >= x.channel.engines:
            return False
        if any(y.start is None for y in same[: same.index(x)]):
            return False
        if x.parent is not None and any(
            y.parent is x.parent and y.start is not None and y.end is None for y in same
        ):
            return False  # one chunk of a cache op at a time
        if not x.hop and self.copies.get((x.tensor, x.source)) != VALID:
            return False
        if x.parent is not None and x.hop + 1 < len(x.parent.hops):
            if not self.fits(x.size, x.destination):
                return False
            self.staged.append(x)
        elif (x.tensor, x.destination) not in self.copies:
            if not self.fits(self.tensors[x.tensor].size_bytes, x.destination):
                return False
            self.copies[x.tensor, x.destination] = WRITING
            x.pinning = self.pin(x.tensor, self.tier(x.destination))
        x.start, x.left = self.now, Fraction(x.size)
        if x.parent is not None and x.parent.start is None:
            x.parent.start = self.now
        x.flows_from = self.now + x.pinning + x.channel.latency_ns
        self.note_peak()
        return True

    def tier(self, name):
        return next(tier for tier in self.hw.tiers if tier.name == name)

    def pinned_bytes(self, tier):
        if not tier.pin_ns:
            return 0
        here = [self.tensors[t] for t, where in self.copies if where == tier.name]
        return sum(tensor.size_bytes for tensor in here if tensor.kind not in tier.pageable)

    def pin(self, t, tier):
        """Time to pin a tensor's bytes, which have just come to be held in a tier."""
        before, now = self.pinned[tier.name], self.pinned_bytes(tier)
        self.pinned[tier.name] = max(before, now)
        if (
            not tier.pin_ns
            or not self.tensors[t].size_bytes
            or self.tensors[t].kind in tier.pageable
        ):
            return 0
        return 0 if tier.pin_pool and now <= before else tier.pin_ns

    # -- rates
    # ----------------------------------------------------------------------------------------------

    def fabrics(self, channel):
        return [f for f in self.hw.fabrics if channel.name in f.channels] + [
            tier
            for tier in self.hw.tiers
            if self.compete and tier.name in (channel.source, channel.destination)
        ]

    def launch(self, i):
        return (
            self.compute(i).launch_ns
            if self.ops[i].duration_ns is None and self.pace(i) is None
            else 0
        )

    def launching(self, i):
        return self.now < self.begun(i) + min(self.launch(i), self.durations[i])

    def set_speeds(self):
        """Beside copies an op moves its bytes at what they leave of what kernels reach, if that is
        less than its own pace.
        """
        for i in self.exchanging():
            parts = self.parts_of(self.where(i))
            compute, whole = (
                self.compute(i),
                Fraction(self.tier(self.where(i)).bandwidth_bytes_per_s // parts, 10**9),
            )
            taken = sum((x.rate for x in self.moving_at(self.where(i))), Fraction(0)) / parts
            busy, accessed = self.durations[i] - self.launch(i), self.ops[i].bytes_accessed
            if self.pace(i) is not None:
                self.speed[i] = self.flows_of_ops[i].rate / self.pace(i)
            elif self.compete and busy > 0 and accessed:
                own = min(whole, Fraction(accessed, busy))
                written = min(
                    Fraction(1, 2),
                    Fraction(
                        sum(self.tensors[t].size_bytes for t in self.ops[i].outputs), accessed
                    ),
                )
                kept = 1 - (1 - Fraction(str(compute.beside_copies))) * (1 - 2 * written)
                left = max(own, whole * Fraction(str(compute.efficiency))) * kept - taken
                self.speed[i] = (
                    max(Fraction(0), min(Fraction(1), left / own)) if taken else Fraction(1)
                )
            else:
                self.speed[i] = Fraction(1)
            if self.pace(i) is None and not self.ops[i].processor and self.copies_itself():
                self.speed[i] = Fraction(0)

    def without_dma(self, channel):
        return not (self.tier(channel.source).dma and self.tier(channel.destination).dma)

    def copies_itself(self):
        """Whether bytes of this device flow to or from a tier without DMA (rule 22)."""
        return any(x.rate for x in self.moving() if self.without_dma(x.channel))

    def own_rate(self, x):
        """Bytes a nanosecond that a transfer reaches at most: its channel's, what its size does and
        what pageable memory does.
        """
        runtime = self.hw.software
        if runtime is None or not runtime.cache_copy.value or not x.size:
            return self.copy_rate(x, x.size)
        if self.tensors[x.tensor].kind != "kv_cache":
            return self.copy_rate(x, x.size)
        size = min(x.size, int(runtime.cache_copy.value))
        each = size / self.copy_rate(x, size) + int(runtime.copy_time.value)
        return Fraction(ceil(size * 10**9 / each), 10**9)

    def copy_rate(self, x, size):
        """That of a single copy of so many bytes."""
        c, slow = x.channel, self.tensors[x.tensor].kind
        rate = self.size_rate(c, size)
        if c.pageable_bytes_per_s and any(
            slow in self.tier(end).pageable for end in (c.source, c.destination)
        ):
            return min(rate, Fraction(c.pageable_bytes_per_s, 10**9))
        return rate

    def size_rate(self, c, size):
        limits = [Fraction(c.bandwidth_bytes_per_s, 10**9)]
        if c.curve and size:
            points = [(0, Fraction(0)), *((s, Fraction(s * 10**9, b)) for s, b in c.curve)]
            below, above = [p for p in points if p[0] < size], [p for p in points if p[0] >= size]
            (s, time), (larger, later) = (
                below[-1],
                above[0] if above else (size, below[-1][1] + (size - below[-1][0]) / limits[0]),
            )
            reached = size / (time + (later - time) * (size - s) / (larger - s))
            limits.append(Fraction(ceil(reached * 10**9), 10**9))  # whole bytes a second
        return min(limits)

    def carried(self, c, flows):
        """Bytes a second that a channel carries beside the others on which bytes flow now."""
        return min(
            [
                c.bandwidth_bytes_per_s,
                *(rate for other, rate in c.beside if any(x.channel.name == other for x in flows)),
            ]
        )

    def op_flows(self):
        """What collectives send: each wants its pace, of each fabric as often as it crosses it."""
        self.flows_of_ops = {
            i: OpFlow(self.pace(i)) for i in self.exchanging() if self.pace(i) is not None
        }
        return [flow for i, flow in self.flows_of_ops.items() if self.work_left[i] > 0]

    def set_rates(self):
        """Max-min fair: raise all rates together; whoever crosses a full link keeps its rate."""
        flows = [x for x in self.moving() if x.flows_from <= self.now and x.left > 0]
        collectives = self.op_flows()
        for x in self.moving():
            x.rate = Fraction(0)
        links = [
            ([x for x in flows if x.channel is c], self.carried(c, flows)) for c in self.hw.channels
        ]
        for f in self.hw.fabrics:
            on = [x for x in flows if x.channel.name in f.channels]
            links.append(
                (
                    [*on, *(x for x in collectives for _ in range(f.collectives))],
                    f.bandwidth_bytes_per_s,
                )
            )
        memories = self.hw.tiers if self.compete else ()
        links += [
            (
                [x for x in flows if m.name in (x.channel.source, x.channel.destination)],
                m.bandwidth_bytes_per_s,
            )
            for m in memories
        ]
        own = {id(x): self.own_rate(x) for x in flows} | {id(x): x.pace for x in collectives}
        fill([*flows, *collectives], links, own)

    def next_instant(self):
        times = []
        for i in self.exchanging():
            if self.launching(i):
                times.append(self.begun(i) + min(self.launch(i), self.durations[i]))
            elif self.speed[i]:
                times.append(self.now - int(-self.work_left[i] // self.speed[i]))
        for x in self.moving():
            if x.flows_from > self.now:
                times.append(x.flows_from)
            else:
                times.append(self.now - int(-x.left // x.rate))
        if self.call_over is not None and self.call_over > self.now:
            times.append(self.call_over)
        return min(times, default=None)

    # -- figures
    # ----------------------------------------------------------------------------------------------

    def culprit(self):
        """Who is named: the first op that does not fit, the first transfer that does not, the first
        op that waits in vain, any transfer.

        An op that waits for its producers is not named: they, or what they wait for, are why.
        """
        for stream in self.streams:
            i = self.head(stream)
            if (
                i is not None
                and self.is_called(i)
                and all(self.ended[j] for j in self.producers[i])
                and self.residency_met(i)
            ):
                return ("op", self.ops[i].name)
        waiting = [x for x in self.issued if x.channel is not None and x.start is None]
        heads = [
            x for x in waiting if x is next(y for y in waiting if one_queue(x.channel, y.channel))
        ]
        for x in heads:
            if x.hop or (
                self.waiting[x.tensor][0] is (x.parent or x)
                and self.copies.get((x.tensor, x.source)) == VALID
            ):
                return ("transfer", self.tensors[x.tensor].name)
        for stream in self.streams:
            i = self.head(stream)
            if (
                i is not None
                and self.is_called(i)
                and all(self.ended[j] for j in self.producers[i])
            ):
                return ("vain", self.ops[i].name)
        for i in self.running():
            return ("others", self.ops[i].name)
        return ("transfer", self.tensors[heads[0].tensor].name)

    def busy(self, stream):
        return sum(
            self.op_end[i] - self.op_start[i]
            for i, op in enumerate(self.ops)
            if op.stream == stream
        )

    def models_sharing(self):
        """Whether a result says what ops took longer also where that is nothing."""
        crossed = any(f.collectives for f in self.hw.fabrics) and any(
            sent(op, self.tensors) for op in self.ops
        )
        return self.compete or crossed

    def meets(self):
        """Whether some op waits for other devices."""
        return any(op.kind in TOGETHER for op in self.ops) and self.hw.devices > 1

    def longer(self):
        return sum(self.op_end[i] - self.begun(i) - self.durations[i] for i in range(len(self.ops)))

    def waited(self):
        return sum(self.begun(i) - self.op_start[i] for i in range(len(self.ops)))

    def figures(self):
        """What a result of the engine is compared with."""
        transfers = [x for x in self.issued if x.channel is not None and x.end is not None]
        makespan = max([0, *(e for e in self.op_end if e is not None), *(x.end for x in transfers)])
        channels = {}
        for c in self.hw.channels:
            begun = [x for x in self.issued if x.channel is c and x.start is not None]
            fabric = min(
                [c.bandwidth_bytes_per_s, *(f.bandwidth_bytes_per_s for f in self.fabrics(c))]
            )
            rate = {id(x): min(Fraction(fabric, 10**9), self.own_rate(x)) for x in begun}
            alone = {id(x): x.pinning + c.latency_ns - (-x.size // rate[id(x)]) for x in begun}
            channels[c.name] = {
                "transfers": len(begun),
                "bytes": sum(x.size for x in begun),
                "busy_ns": self.busy_channel[c.name],
                "queue_ns": sum(x.start - x.issue for x in begun),
                "contention_ns": sum(
                    x.end - x.start - alone[id(x)] for x in begun if x.end is not None
                ),
                "exposed_ns": self.exposed[c.name],
                "hidden_ns": 0
                if self.without_dma(c)
                else max(0, self.busy_channel[c.name] - self.exposed[c.name]),
            }
        return {
            "error": self.error,
            "makespan_ns": None if self.error else makespan,
            "busy_ns": {s: self.busy(s) for s in self.streams} if not self.error else None,
            "slowed_ns": self.longer()
            if not self.error and (self.models_sharing() or self.longer())
            else None,
            "peers_ns": self.waited() if self.meets() and not self.error else None,
            "stall_ns": self.stalls if not self.error else None,
            "drain_ns": {s: makespan - self.free_since(s) for s in self.streams}
            if not self.error
            else None,
            "peak_bytes": self.peak,
            "peak_at_ns": self.peak_at,
            "peak_breakdown": self.composition,
            "channels": channels,
            "op_start_ns": tuple(-1 if s is None else s for s in self.op_start),
            "transfers": sorted(x.record() for x in transfers),
            "waits": sorted(self.waits, key=lambda wait: wait[:4]),
        }
