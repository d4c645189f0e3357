"""Stages of a pipeline in the slow, literal replay (docs/contract.md, rule 21): one device for each
plan, tied by messages.

The bubble is found from the starts and ends alone, and by walking back one nanosecond's owner at a
time.
"""

from fractions import Fraction

from collective_rule import pace
from naive_devices import NaiveCompany, NaiveDevice


class NaiveStage(NaiveDevice):
    """One stage; what it exchanges begins and ends with the others."""

    def members(self, i):
        """Everyone who does an op, as (stage, position): itself alone if it has no message."""
        message = self.ops[i].message
        if not message:
            return [(self, i)]
        return [
            (d, j)
            for d in self.company.devices
            for j, op in enumerate(d.ops)
            if op.message == message
        ]

    def partners(self, i):
        return [self.position]

    def tie(self):
        """What all of an exchange do takes as long as the longest of them."""
        for i, op in enumerate(self.ops):
            if op.message:
                self.work_left[i] = Fraction(self.common(i))

    def common(self, i):
        return max(d.durations[j] for d, j in self.members(i))

    def begun(self, i):
        starts = [d.op_start[j] for d, j in self.members(i)]
        return None if None in starts else max(starts)

    def pace(self, i):
        return pace(self.ops[i], self.tensors, self.hw, self.common(i))

    def exchanging(self):
        """What has done its part of an exchange waits until the others have."""
        return [i for i in super().exchanging() if self.work_left[i] > 0 or self.all_done(i)]

    def all_done(self, i):
        return all(d.work_left[j] <= 0 for d, j in self.members(i))

    def finished(self):
        return [i for i in super().finished() if self.all_done(i)]

    def set_speeds(self):
        super().set_speeds()
        for i in self.exchanging():
            if self.ops[i].message and self.pace(i) is None:
                self.speed[i] = Fraction(1)

    def meets(self):
        return any(op.message for d in self.company.devices for op in d.ops)

    def models_sharing(self):
        return super().models_sharing() or any(op.message for op in self.ops if self.longer())

    def longer(self):
        return 0 if None in self.op_end else super().longer()

    def bubble(self, step):
        """Instant by instant from the end of each wait of the main stream: who kept whom from
        starting?
        """
        own = [i for i, op in enumerate(self.ops) if op.stream == self.main]
        last = max((self.op_end[i] for i in own), default=0)
        end = self.figures()["makespan_ns"]
        waits = [
            (i, start, until)
            for i, cause, start, until, _ in self.waits
            if cause == "dependency" and i in own
        ]
        found = step - end + self.back(self.last_of_streams(), last, end)
        return found + sum(self.back(self.producers[i], start, until) for i, start, until in waits)

    def last_of_streams(self):
        return {
            max(i for i, op in enumerate(self.ops) if op.stream == stream)
            for stream in self.streams
        }

    def back(self, candidates, begin, at):
        """Nanoseconds from ``begin`` to ``at`` in which the op that the wait goes back to was
        started, and not yet by all.
        """
        waited = 0
        while at > begin:
            ended = [i for i in candidates if self.op_end[i] == at]
            if not ended or max(self.op_end[i] for i in candidates) > at:
                return waited
            i = max(ended, key=lambda j: (bool(self.ops[j].message), j))
            instants = range(max(begin, self.op_start[i]), self.begun(i))
            waited += len(instants) if self.ops[i].message else 0
            at = self.op_start[i]
            before = [j for j in range(i) if self.ops[j].stream == self.ops[i].stream]
            candidates = {*self.producers[i], *before[-1:]}
        return waited


class NaiveStages(NaiveCompany):
    """All stages of a pipeline; runs on construction."""

    def join(self, *options):
        self.devices += [
            NaiveStage(plan, self.hw, options[0], self, d, *options[1:])
            for d, plan in enumerate(self.plan)
        ]
        for d in self.devices:
            d.tie()

    def bubbles(self):
        step = max(d.figures()["makespan_ns"] for d in self.devices)
        return tuple(d.bubble(step) for d in self.devices)
