"""The host of the naive replay, from docs/contract.md, rule 23, alone: a list of calls, of which
the first is being made.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil


class NaiveHost:
    """What a host adds to a naive replay: when ops and cache ops are called, looked up anew each
    time.
    """

    def host_starts(self):
        """All calls, as ("op", i) or ("copies", place); ``ops_over`` and ``calls_over`` are the ops
        and cache ops called.
        """
        self.host = (
            self.hw.software if self.hw.software is not None and self.hw.software.has_host else None
        )
        self.calls = [("copies", -1)]
        for i in range(len(self.ops)):
            self.calls += [("op", i), ("copies", i)]
        self.call_over = None
        self.ops_over: dict[int, int] = {}
        self.calls_over: set[int] = set()
        self.ever_issued: set[int] = set()

    def is_called(self, i):
        return self.host is None or i in self.ops_over

    def copies_at(self, place):
        return [
            k for k, c in enumerate(self.plan.cache_ops) if c.after == place and c.op != "detach"
        ]

    def is_saved(self, k):
        c = self.plan.cache_ops[k]
        return c.op == "store" and self.tensors[c.tensor].kind == "activation"

    def pinning(self, k):
        c = self.plan.cache_ops[k]
        if c.op not in self.host.pins or self.host.pins_once:
            return 0
        each = int(self.host.pin.value)
        if self.host.pin_rate.value:
            each += ceil(
                Fraction(self.tensors[c.tensor].size_bytes * 10**9, int(self.host.pin_rate.value))
            )
        return each

    def is_alone(self, i):
        """Whether an op is never part of a segment."""
        op, limited = self.ops[i], self.host.gathers.value and "all_gather" in self.ops[i].kind
        said = op.name in self.graph.meta.get("launched_alone", ())
        return bool(op.kind in self.host.blocks or limited or op.processor or said)

    def waits_for_a_copy(self, i):
        moved = {c.tensor for c in self.plan.cache_ops}
        if moved & {*self.ops[i].outputs, *self.ops[i].mutates}:
            return True
        for t in (*self.ops[i].inputs, *self.ops[i].mutates):
            up = [
                c.after
                for c in self.plan.cache_ops
                if c.tensor == t and c.destination == self.hw.device_tier and c.after < i
            ]
            since = self.ops[max(up) + 1 : i] if up else ()
            if up and not any(t in (*op.inputs, *op.mutates) for op in since):
                return True
        return False

    def gives_back(self, i):
        """Whether an op is the last one to use a tensor that the plan moves."""
        moved = {c.tensor for c in self.plan.cache_ops}
        later = {t for op in self.ops[i + 1 :] for t in (*op.inputs, *op.outputs, *op.mutates)}
        op = self.ops[i]
        return bool(moved & {*op.inputs, *op.outputs, *op.mutates} - later)

    def is_launched(self, i):
        """Whether an op has a call of its own, and is not launched by that of an earlier one."""
        if not self.host.segments or i == 0:
            return True
        ends = any(c.after == i - 1 for c in self.plan.cache_ops) or self.gives_back(i - 1)
        return ends or self.is_alone(i - 1) or self.is_alone(i) or self.waits_for_a_copy(i)

    def may_call(self, what, at):
        """Whether a call may begin: the device is not too far behind."""
        if what != "op" or not self.is_launched(at):
            return True
        ahead, most = int(self.host.ahead.value), int(self.host.gathers.value)
        if ahead and at - ahead >= 0 and not self.ended[at - ahead]:
            return False
        gathers = [j for j in range(at) if self.ops[j].kind.startswith("all_gather")]
        if not most or not self.ops[at].kind.startswith("all_gather") or len(gathers) < most:
            return True
        first = gathers[len(gathers) - most]
        made = {*self.ops[first].outputs, *self.ops[first].mutates}
        using = [
            j
            for j in range(first, at)
            if made & {*self.ops[j].inputs, *self.ops[j].outputs, *self.ops[j].mutates}
        ]
        return all(self.ended[j] for j in using)

    def may_leave(self, what, at):
        """Whether the host goes on after a call that is over."""
        if what == "op":
            return self.ops[at].kind not in self.host.blocks or self.ended[at]
        blocking = [k for k in self.copies_at(at) if self.plan.cache_ops[k].op in self.host.blocks]
        if most := int(self.host.stores.value):
            so_far = [k for place in range(-1, at + 1) for k in self.copies_at(place)]
            blocking += [k for k in so_far if self.is_saved(k)][:-most]
        under_way = {x.k for listed in self.waiting.values() for x in listed}
        return all(
            k in self.done or (self.plan.cache_ops[k].tensor in self.dead and k not in under_way)
            for k in blocking
        )

    def host_goes_on(self):
        happened = False
        while self.calls:
            what, at = self.calls[0]
            if self.call_over is None:
                if not self.may_call(what, at):
                    break
                of_copy = int(self.host.host_copy.value)
                takes = [0] if what == "copies" or self.is_launched(at) else []
                if what == "copies":
                    takes = [of_copy + self.pinning(k) for k in self.copies_at(at)]
                self.call_over = self.now + sum(int(self.host.host.value) + each for each in takes)
            if self.call_over > self.now:
                break
            if what == "op" and at not in self.ops_over:
                self.ops_over[at], happened = self.now, True
            if what == "copies":
                listed = {k for k, c in enumerate(self.plan.cache_ops) if c.after == at}
                happened |= not listed <= self.calls_over
                self.calls_over |= listed
            if not self.may_leave(what, at):
                break
            self.calls, self.call_over, happened = self.calls[1:], None, True
        return happened

    def newly_due(self):
        """The cache ops whose call is over and whose op has ended, for the first time."""
        ops = {-1, *(i for i, ended in enumerate(self.ended) if ended)}
        due = [k for k in self.calls_over - self.ever_issued if self.plan.cache_ops[k].after in ops]
        self.ever_issued.update(due)
        return due
