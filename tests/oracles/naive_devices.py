"""Several devices in the slow, literal replay: one :class:`NaiveReplay` each, in step, over tiers
and links that some of them share.

What a scope means is written anew here: who has the same instance of a tier or a link has the same
room and the same bandwidth.
"""

from collections import Counter
from fractions import Fraction

import collective_rule
from naive_replay import NaiveReplay, fill

WIDER = {"device": 0, "host": 1, "global": 2}


class NaiveDevice(NaiveReplay):
    """One of the devices: takes its turn when the company says so."""

    def __init__(self, plan, hardware, budget, company, position, jitter, compete):
        self.company, self.position = company, position
        super().__init__(plan, hardware, budget, compete)
        if jitter is not None:  # an op that devices do together has one factor, that of the first
            first = [self.partners(i)[0] for i in range(len(self.ops))]
            self.durations = [
                round(d * jitter.op_factor(first[i], i)) for i, d in enumerate(self.durations)
            ]
            self.work_left = [Fraction(duration) for duration in self.durations]

    def partners(self, i):
        return collective_rule.company(self.ops[i], self.position, self.hw.devices)

    def begun(self, i):
        starts = [self.company.devices[d].op_start[i] for d in self.partners(i)]
        return None if None in starts else max(starts)

    def _run(self):
        pass

    def set_rates(self):
        pass

    def instance(self, scope):
        return {
            "device": self.position,
            "host": self.position // (self.hw.devices_per_host or self.hw.devices),
            "global": 0,
        }[scope]

    def tier_scope(self, name):
        return "device" if name == self.device else self.tier(name).scope

    def link(self, c):
        """The channel's own link: one for all that share both its ends."""
        scope = min(self.tier_scope(c.source), self.tier_scope(c.destination), key=WIDER.get)
        return c.name, self.instance(scope)

    def sharers(self, tier):
        """The devices with the same instance of a tier."""
        scope = self.tier_scope(tier)
        return [d for d in self.company.devices if d.instance(scope) == self.instance(scope)]

    def moving_at(self, tier):
        return [x for d in self.sharers(tier) for x in NaiveReplay.moving_at(d, tier)]

    def parts_of(self, tier):
        """As many as the tier's largest instance has devices."""
        counts = Counter()
        for d in self.company.devices:
            counts[d.instance(self.tier_scope(tier))] += 1
        return max(counts.values())

    def fits(self, wanted, tier):
        held = sum(sum(d.held(tier).values()) for d in self.sharers(tier))
        return not wanted or held + wanted <= self.capacity[tier]

    def note_peak(self):
        super().note_peak()
        for tier in self.capacity:
            kinds = Counter()
            for d in self.sharers(tier):
                kinds.update(d.held(tier))
            peaks, instance = self.company.peak[tier], self.instance(self.tier_scope(tier))
            if kinds.total() > (peaks[instance][0] if instance in peaks else 0):
                peaks[instance] = (kinds.total(), self.now, dict(kinds))

    def queue(self, x):
        later = next((y for y in self.issued[self.place(x, self.issued) :]), None)
        super().queue(x)
        place = (
            len(self.company.issued) if later is None else self.company.issued.index((self, later))
        )
        self.company.issued.insert(place, (self, x))

    def issue(self, ks):
        before = len(self.issued)
        super().issue(ks)
        self.company.issued += [(self, x) for x in self.issued[before:]]


class NaiveCompany:
    """All devices of a machine; runs on construction."""

    def __init__(self, plan, hardware, budget=None, jitter=None, compete=False):
        self.hw, self.plan = hardware, plan
        self.devices = []
        self.issued = []
        self.peak = {tier.name: {} for tier in hardware.tiers}
        self.join(budget, jitter, compete)
        self.initial_error = None
        self.run()

    def join(self, *options):
        self.devices += [
            NaiveDevice(self.plan, self.hw, options[0], self, d, *options[1:])
            for d in range(self.hw.devices)
        ]

    def run(self):
        for d in self.devices:
            d.note_peak()
        for d in self.devices:  # the first that has no room says for what
            for tier in self.peak:
                if sum(sum(e.held(tier).values()) for e in d.sharers(tier)) > d.capacity[tier]:
                    self.initial_error = tier
                    return
        for d in self.devices:
            d.issue([k for k, c in enumerate(d.plan.cache_ops) if c.after == -1])
        while True:
            while self.one_round():
                pass
            upcoming = min(
                (t for t in (d.next_instant() for d in self.devices) if t is not None), default=None
            )
            if upcoming is None:
                break
            for d in self.devices:
                d.go_on(upcoming)
        for d in self.devices:
            if not all(d.ended) or any(d.waiting.values()):
                d.error = d.culprit()
            else:
                d.check_end()

    def one_round(self):
        ends = [d.end_all() for d in self.devices]
        for d, ended in zip(self.devices, ends, strict=True):
            if ended:
                d.issue([k for k, c in enumerate(d.plan.cache_ops) if c.after in ended[0]])
        starts = [d.start_op(stream) for d in self.devices for stream in d.streams]
        moves = [d.start_transfer(x) for d, x in list(self.issued) if x in d.issued]
        self.set_rates()
        return any(ends) or any(starts) or any(moves)

    def channel(self, name):
        return next(c for c in self.hw.channels if c.name == name)

    def set_rates(self):
        """Max-min fair over the flows of all devices."""
        flows = []
        for d in self.devices:
            for x in d.moving():
                x.rate = Fraction(0)
                if x.flows_from <= d.now and x.left > 0:
                    flows.append((d, x))
        busy = {d.link(x.channel) for d, x in flows}
        links = {}
        for d, x in flows:
            c = x.channel
            alike = [
                e for e in self.devices if e.link(c) == d.link(c)
            ]  # whoever shares the channel: what is beside any of them counts
            beside = [
                rate
                for other, rate in c.beside
                for e in alike
                if e.link(self.channel(other)) in busy
            ]
            links.setdefault(("channel", d.link(c)), (min([c.bandwidth_bytes_per_s, *beside]), []))[
                1
            ].append(x)
            for f in d.fabrics(c):
                links.setdefault(
                    ("fabric", f.name, d.instance(f.scope)), (f.bandwidth_bytes_per_s, [])
                )[1].append(x)
        own = {id(x): d.own_rate(x) for d, x in flows}
        for d in self.devices:
            for x in d.op_flows():
                flows.append((d, x))
                own[id(x)] = x.pace
                for f in self.hw.fabrics:
                    on = links.setdefault(
                        ("fabric", f.name, d.instance(f.scope)), (f.bandwidth_bytes_per_s, [])
                    )[1]
                    on += [x] * f.collectives
        fill([x for _, x in flows], [(on, bandwidth) for bandwidth, on in links.values()], own)
        for d in self.devices:
            d.set_speeds()
