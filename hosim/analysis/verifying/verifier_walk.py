"""The verifier's walk: a plan in listed order, with the tiers in which each tensor has a valid
copy.

Each cache op stands right behind the op after which it is issued. On one stream this is the order
in which a replay starts things, whatever the timing; so what the walk finds missing is missing in
every replay. On several streams ops overtake one another, and the walk asks
:class:`~hosim.analysis.verifying.verifier_walk.StreamClocks` whether what it takes for granted is
ordered.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from hosim.analysis.verifying.finding import Finding
from hosim.base.groups import grouped
from hosim.cache_plan import AT_START, DETACH, PREFETCH, CacheOp, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware

# -- stream clocks
# --------------------------------------------------------------------------------------------------
# The ops that have surely ended when another one has: vector clocks over streams.
#
# The clock of op x counts, for each stream, how many of its ops have ended whenever x has, in any
# replay. Ops of one stream run one at a time in listed order, so that the ops known to have ended
# are a prefix of each stream, and one number a stream says it all (Mattern, Virtual Time and
# Global States of Distributed Systems, 1989).


class StreamClocks:
    """Clocks of the ops of a graph, which :meth:`advance` is told in listed order. O(ops x
    streams).
    """

    def __init__(self, graph: Graph) -> None:
        number = {name: s for s, name in enumerate(graph.streams)}
        self.stream_of = [number[op.stream] for op in graph.ops.each()]
        counts = [0] * len(number)
        self._place = []
        for s in self.stream_of:
            self._place.append(counts[s])
            counts[s] += 1
        self._clocks: list[list[int]] = []
        self._last = [AT_START] * len(number)
        self._single = len(number) <= 1

    def advance(self, followed: Iterable[int]) -> None:
        """The next op in listed order: it starts after the ops ``followed`` have ended, and after
        the one before it on its stream.
        """
        if self._single:
            return
        i = len(self._clocks)
        stream = self.stream_of[i]
        clock = [0] * len(self._last)
        for p in (*followed, self._last[stream]):
            if p != AT_START:
                clock = list(map(max, clock, self._clocks[p]))
        clock[stream] = self._place[i] + 1
        self._clocks.append(clock)
        self._last[stream] = i

    def ended_by(self, earlier: int, op: int) -> bool:
        """Return whether op ``earlier`` has surely ended when op ``op`` has;
        :data:`~hosim.cache_plan.AT_START` precedes every op.
        """
        if earlier in (AT_START, op):
            return True
        if op == AT_START:
            return False
        return (
            earlier < op
            if self._single
            else self._place[earlier] < self._clocks[op][self.stream_of[earlier]]
        )


def walk(plan: Plan, hardware: Hardware, cache_ops: Iterable[int]) -> list[Finding]:
    """Return the findings about broken rules along ``plan``, considering the well-formed
    ``cache_ops`` (positions, ascending).
    """
    after = grouped((plan.cache_ops[c].after, c) for c in cache_ops)
    state = _VerifierWalk(plan, hardware)
    for i in range(AT_START, len(plan.graph.ops)):
        if i != AT_START:
            state.op(i)
        for c in after.get(i, ()):
            state.cache_op(c)
    state.end()
    return state.findings


class _VerifierWalk:
    """The state of the walk: where each tensor has valid copies. Sets of tiers are bit masks: the
    walk of a large plan is mostly these.
    """

    def __init__(self, plan: Plan, hardware: Hardware) -> None:
        graph = plan.graph
        tensors = len(graph.tensors)
        self.plan = plan
        self.graph: Graph = graph
        self.ops = graph.ops
        self.bit = {name: 1 << i for i, name in enumerate(hardware.tier_index)}
        self.device = self.bit[hardware.device_tier]
        self.device_name = hardware.device_tier
        self.findings: list[Finding] = []
        self.clocks = StreamClocks(graph)
        self.several = len(graph.streams) > 1

        self.valid = [0] * tensors
        self.start = [0] * tensors
        self.writer = [AT_START] * tensors
        self.readers: list[list[int]] = [[] for _ in range(tensors)]
        self.rewritten = [
            AT_START
        ] * tensors  # the last op that wrote over valid contents in the tier of its processor
        self.written_in = [self.device] * tensors  # this tier
        self.last_users: defaultdict[int, dict[int, int]] = defaultdict(
            dict
        )  # of several streams: by tensor and stream
        self.last_cache_op: dict[int, int] = {}
        # by tier that ops run from the last copy of each tensor into it, and by any tier the last
        # detach from it until it is back
        self.own = dict.fromkeys(
            [self.device, *[self.bit.get(self.ops[i].processor, 0) for i in graph.elsewhere]]
        )
        self.brought: dict[int, dict[int, int]] = {tier: {} for tier in self.own}
        self.taken: dict[int, dict[int, int]] = {
            tier: {} for tier in {**dict.fromkeys(self.bit.values()), **self.own}
        }
        self.copied: dict[
            int, list[int]
        ] = {}  # the ops after which the copies since the last write are issued
        self.unsure: dict[
            int, list[int]
        ] = {}  # copies of what dies that may be issued when its users so far have ended
        self.last_use = [users[-1] if users else AT_START for users in graph.users]
        self._begin()

    def _begin(self) -> None:
        held = set(self.graph.initial)
        residency = self.plan.residency(self.device_name)
        for t in sorted(held):
            for tier in residency.get(t, ()):
                self.valid[t] |= self.bit.get(tier, 0)
            self.start[t] = self.valid[t]
            needed = self._needed(t, AT_START)
            if not self.valid[t] and needed:
                if not residency.get(t):
                    message = (
                        f"tensor {self._tensor(t)} has no copy at time 0 in this plan, and {needed}"
                    )
                    self.findings.append(Finding("initial", message, tensor=t))
                self.valid[t] = self.device

    # -- ops
    # ----------------------------------------------------------------------------------------------

    def op(self, i: int) -> None:
        """Op ``i``: what it reads must be resident; what it writes becomes stale elsewhere; what
        nobody uses after it goes.
        """
        op = self.ops[i]
        here = self._tier(i)
        written = {*op.outputs, *op.mutates}
        read = {*op.inputs, *op.mutates}
        if self.several:
            self._advance(i, read, written)
        for t in (*op.inputs, *op.mutates):
            if not self.valid[t] & here:
                self._not_resident(i, t)
                self.valid[t] |= here
        for t in written:
            for tier, taken in self.taken.items():
                c = taken.pop(t, AT_START)
                if (
                    c != AT_START
                    and (t not in read or tier != here)
                    and not self.clocks.ended_by(self.plan.cache_ops[c].after, i)
                ):
                    message = (
                        f"{self._say(c)} may take effect after op {op.name!r}, which writes it anew"
                    )
                    self.findings.append(Finding("race", message, i, t, c))
            self.rewritten[t] = i if self.valid[t] & here else AT_START
            self.valid[t] = self.written_in[t] = here
            self.writer[t] = i
        for t in {*read, *written}:
            if self.several:
                self.last_users[t][self.clocks.stream_of[i]] = i
                self._narrow(i, t)
            if self.last_use[t] == i and not self.graph.survives[t]:
                self.valid[t] = 0

    def _tier(self, i: int) -> int:
        """The tier that op ``i`` reads and writes (rule 20)."""
        processor = self.ops[i].processor
        return self.bit.get(processor, 0) if processor else self.device

    def _advance(self, i: int, read: set[int], written: set[int]) -> None:
        """Tell the clocks what op ``i`` follows: writers, readers of what it writes, deps, and the
        transfers it waits for (rule 1).
        """
        followed = set(self.ops[i].deps)
        brought = self.brought[self._tier(i)]
        for t in read:
            if t in brought:
                followed.add(self.plan.cache_ops[brought[t]].after)
        for t in read | written:
            followed.add(self.writer[t])
        for t in written:
            followed.update(self.readers[t])
            followed.update(self.copied.pop(t, ()))
        self.clocks.advance(followed)
        for t in read:
            self.readers[t].append(i)
        for t in written:
            self.readers[t] = []

    def _narrow(self, i: int, t: int) -> None:
        """Op ``i`` uses ``t``: copies of it that are surely issued when the op ends do not race. If
        it is the last user, the others do.
        """
        unsure = self.unsure.pop(t, None)
        if unsure is None:
            return
        left = [c for c in unsure if not self.clocks.ended_by(self.plan.cache_ops[c].after, i)]
        if left and self.last_use[t] == i:
            self._object(
                "race",
                f"{self._say(left[0])} may come when the tensor is gone: op "
                f"{self.ops[i].name!r} may be its last user to end",
                left[0],
                op=i,
            )
        elif left:
            self.unsure[t] = left

    def _not_resident(self, i: int, t: int) -> None:
        name, where = self.ops[i].name, self._tiers(self.valid[t])
        taken = self.taken[self._tier(i)]
        if t in taken:
            c = taken[t]
            message = (
                f"op {name!r} reads tensor {self._tensor(t)} after {self._say(c)}, and no "
                "prefetch brings it back before"
            )
            self.findings.append(Finding("read", message, i, t, c))
        else:
            other = self.ops[i].processor
            there = (
                f"no cache op brings it to {other}"
                if other
                else f"no prefetch brings it to {self.device_name}"
            )
            message = (
                f"op {name!r} reads tensor {self._tensor(t)}, which is in "
                f"{where or 'no tier'}: {there}"
            )
            self.findings.append(Finding("read", message, i, t))

    # -- cache ops
    # ---------------------------------------------------------------------------------------------

    def cache_op(self, c: int) -> None:
        """Cache op ``c``, in issue order."""
        cache_op = self.plan.cache_ops[c]
        t = cache_op.tensor
        if not self.graph.survives[t] and cache_op.after >= self.last_use[t]:
            last = self.last_use[t]
            why = (
                f"op {self.ops[last].name!r} was its last user"
                if last != AT_START
                else "no op uses it"
            )
            self._object("dead", f"{self._say(c)} comes when the tensor is gone: {why}", c)
            return
        if self.several:
            self._ordered_after_last(c, cache_op)
        self.last_cache_op[t] = c
        if cache_op.op == DETACH:
            self._detach(c, cache_op)
        else:
            self._copy(c, cache_op)

    def _copy(self, c: int, cache_op: CacheOp) -> None:
        t = cache_op.tensor
        source, destination = (
            self.bit.get(cache_op.source, 0),
            self.bit.get(cache_op.destination or "", 0),
        )
        if source and not self.valid[t] & source:
            self._object(
                "source", f"{self._say(c)} has no valid copy to read there: {self._where(t)}", c
            )
        elif self.several and source == self.written_in[t]:
            writer = self.rewritten[t]
            if not self.clocks.ended_by(writer, cache_op.after):
                self._object(
                    "race",
                    f"{self._say(c)} may copy the contents from before op "
                    f"{self.ops[writer].name!r}, which need not have ended",
                    c,
                    op=writer,
                )
        if self.several:
            self.copied.setdefault(t, []).append(cache_op.after)
            if not self.graph.survives[t]:
                self.unsure.setdefault(t, []).append(c)
        if cache_op.op == PREFETCH and not destination:
            destination = self.device  # it names no tier of the machine: taken as meant
        self.valid[t] |= destination
        if destination in self.own:
            self.brought[destination][t] = c
        if destination:
            self.taken[destination].pop(t, None)

    def _detach(self, c: int, cache_op: CacheOp) -> None:
        t = cache_op.tensor
        source = self.bit.get(cache_op.source, 0)
        if not source:
            return
        if not self.valid[t] & source:
            self._object("absent", f"{self._say(c)} releases nothing: {self._where(t)}", c)
            return
        needed = self._needed(t, cache_op.after) if self.valid[t] == source else ""
        if needed:
            self._object(
                "last-copy", f"{self._say(c)} would drop its last valid copy, and {needed}", c
            )
            return
        if self.several:
            for u in self.last_users[t].values():
                if self._tier(u) == source and not self.clocks.ended_by(u, cache_op.after):
                    self._object(
                        "race",
                        f"{self._say(c)} may come before op {self.ops[u].name!r} has used it",
                        c,
                        op=u,
                    )
                    break
        self.taken[source][t] = c
        self.valid[t] &= ~source

    def _ordered_after_last(self, c: int, cache_op: CacheOp) -> None:
        before = self.last_cache_op.get(cache_op.tensor)
        if before is not None and not self.clocks.ended_by(
            self.plan.cache_ops[before].after, cache_op.after
        ):
            self._object(
                "race",
                f"{self._say(c)} may be issued before {self._say(before)}: nothing orders the two "
                "ops",
                c,
            )

    # -- the end of the step
    # -----------------------------------------------------------------------------------

    def end(self) -> None:
        """Rule 2: every tensor that survives the step is valid again where it was at time 0."""
        for t in self.graph.initial:
            missing = self.start[t] & ~self.valid[t]
            if missing and self.graph.survives[t]:
                where = self._where(t).replace(" then", " at the end", 1)
                message = (
                    f"tensor {self._tensor(t)} was in {self._tiers(missing)} at time 0 and "
                    f"must be again at the end of the step: {where}"
                )
                cache_op = self.taken[self.device].get(t) if missing & self.device else None
                self.findings.append(Finding("end-of-step", message, tensor=t, cache_op=cache_op))

    # -- words
    # ----------------------------------------------------------------------------------------------

    def _object(self, rule: str, message: str, c: int, op: int | None = None) -> None:
        self.findings.append(Finding(rule, message, op, self.plan.cache_ops[c].tensor, c))

    def _needed(self, t: int, after: int) -> str:
        """Return the reason that the contents of tensor ``t`` are needed after op ``after``; empty
        if they are not.
        """
        users = self.graph.users[t]
        following = bisect_right(users, after)
        if following == len(users):
            return "it must survive the step" if self.graph.survives[t] else ""
        op = self.ops[users[following]]
        return f"op {op.name!r} reads it later" if t in op.inputs or t in op.mutates else ""

    def _say(self, c: int) -> str:
        cache_op = self.plan.cache_ops[c]
        way = f"from {cache_op.source}" + (
            f" to {cache_op.destination}" if cache_op.destination is not None else ""
        )
        place = (
            "at time 0"
            if cache_op.after == AT_START
            else f"after op {self.ops[cache_op.after].name!r}"
        )
        return (
            f"cache op {c} ({cache_op.op} of tensor {self._tensor(cache_op.tensor)} {way} {place})"
        )

    def _where(self, t: int) -> str:
        """Return the tiers in which tensor ``t`` is valid now, and why it is not elsewhere, as far
        as one clause can say.
        """
        where = f"it is valid in {self._tiers(self.valid[t]) or 'no tier'} then"
        return (
            where
            if self.writer[t] == AT_START
            else f"{where}, op {self.ops[self.writer[t]].name!r} having written it last"
        )

    def _tensor(self, t: int) -> str:
        return repr(self.graph.tensors[t].name)

    def _tiers(self, tiers: int) -> str:
        return " and ".join(name for name, bit in self.bit.items() if tiers & bit)
