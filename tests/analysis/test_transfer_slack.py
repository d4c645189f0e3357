"""How late each copy of a plan may be: by hand, and against replays by the naive oracle in which
one copy is held back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from instances import Instance, instance, instance_of_parts, instance_on_streams
from naive_replay import NaiveReplay
from strategies import cases, several

from hosim.analysis.slack import Latitude, latitudes
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay, replayed_latitudes, times_of, with_slack
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named

NS = 10**9


def machine(room: int = 1000, engines: int = 1) -> Hardware:
    """A byte a nanosecond each way, on channels that share nothing."""
    channels = tuple(
        [
            Channel(name, *ends, NS * engines, 0, engines)
            for name, ends in (("up", ("ddr", "hbm")), ("down", ("hbm", "ddr")))
        ]
    )
    return Hardware(
        "hand", (Tier("hbm", room, NS, "device"), Tier("ddr", 10**6, NS)), channels, Compute({})
    )


def weights(*sizes: int, durations: tuple[int, ...]) -> Graph:
    """A chain of ops, of which op k + 1 reads weight k of host memory."""
    b = GraphBuilder("weights")
    for k, size in enumerate(sizes):
        b.tensor(f"w{k}", size, "parameter", home="ddr")
    for i, duration in enumerate(durations):
        b.op(
            f"f{i}", "op", inputs=[f"w{i - 1}"] if 0 < i <= len(sizes) else [], duration_ns=duration
        )
    return b.build()


def up(t: int, after: int = AT_START) -> CacheOp:
    return CacheOp(PREFETCH, t, "ddr", "hbm", after)


def gone(t: int, after: int) -> CacheOp:
    return CacheOp(DETACH, t, "hbm", None, after)


def slack(plan: Plan, hardware: Hardware, budget: int = 1000) -> dict[int, int]:
    return {k: one.slack_ns for k, one in replayed_latitudes(plan, hardware, budget).items()}


# -- by hand
# --------------------------------------------------------------------------------------------------


def test_what_computation_hides_may_be_later_by_the_rest_of_it() -> None:
    # w0 comes 0..40, f1 reads it at 100
    plan = Plan(weights(40, durations=(100, 50)), cache_ops=(up(0), gone(0, 1)))
    assert replayed_latitudes(plan, machine(), 1000) == {0: Latitude(0, 60)}


def test_the_ones_behind_on_the_channel_bound_it() -> None:
    # w0 0..40 for f1 at 100; w1 40..145 for f2 at 150: w1 may be 5 later, so w0 may as well, and no
    # more
    plan = Plan(
        weights(40, 105, durations=(100, 50, 10)), cache_ops=(up(0), up(1), gone(0, 1), gone(1, 2))
    )
    assert slack(plan, machine()) == {0: 5, 1: 5}


def test_an_exposed_one_has_none_and_what_is_issued_when_it_is_over_neither() -> None:
    plan = Plan(
        weights(40, 30, durations=(10, 20, 10)), cache_ops=(up(0), up(1, 0), gone(0, 1), gone(1, 2))
    )
    assert slack(plan, machine()) == {0: 0, 1: 0}  # w0 0..40, f1 40..60, w1 40..70, f2 70..80


def test_who_waits_for_the_room_that_it_gives_back() -> None:
    # 60 B of room. a (40 B), written by f0 (0..10), is stored 10..50 and detached. w0 (30 B) then
    # comes 50..80 for f1 at 100, so that the store may be 20 later. In a roomy tier w0 comes 0..30,
    # and the store may last to the end of the step at 150.
    b = GraphBuilder("room")
    b.tensor("a", 40, "kv_cache", home="ddr")
    b.tensor("w", 30, "parameter", home="ddr")
    b.op("f0", "op", outputs=["a"], duration_ns=10)
    b.op("g", "op", duration_ns=90)
    b.op("f1", "op", inputs=["w"], duration_ns=50)
    cache_ops = (CacheOp(STORE, 0, "hbm", "ddr", 0), gone(0, 0), up(1), gone(1, 2))
    plan = Plan(b.build(), cache_ops=cache_ops)
    assert replayed_latitudes(plan, machine(60), 60) == {0: Latitude(10, 20), 2: Latitude(0, 20)}
    assert slack(plan, machine()) == {0: 100, 2: 70}


def test_engines_take_turns() -> None:
    # two engines that share a byte a nanosecond: w0 (20 B) 0..40; w2 (20 B) takes its engine,
    # 40..80; w1 (45 B) 0..85
    hardware = replace(
        machine(),
        channels=(Channel("up", "ddr", "hbm", NS, 0, 2), Channel("down", "hbm", "ddr", NS)),
    )
    plan = Plan(
        weights(20, 45, 20, durations=(100, 10, 20, 10)),
        cache_ops=(up(0), up(1), up(2), *[gone(t, t + 1) for t in range(3)]),
    )
    moved = {x.cache_op: (x.start_ns, x.end_ns) for x in times_of(plan, hardware, 1000).transfers}
    assert moved == {0: (0, 40), 1: (0, 85), 2: (40, 80)}
    # f2 reads w1 at 110 and f3 w2 at 130; w0 is ahead of w1, which would begin later with it, and
    # 60 before f1
    assert slack(plan, hardware) == {0: 25, 1: 25, 2: 50}


def test_chunks_of_a_route_are_late_together() -> None:
    # 20 B in two chunks from disk over host memory: 0..10 and 10..20, 10..20 and 20..30; f1 reads
    # them at 50
    tiers = (Tier("hbm", 100, NS, "device"), Tier("ddr", 100, NS), Tier("disk", 100, NS))
    channels = (Channel("up", "ddr", "hbm", NS), Channel("read", "disk", "ddr", NS))
    hardware = Hardware("route", tiers, channels, Compute({}), chunk_bytes=10)
    b = GraphBuilder("route")
    b.tensor("w", 20, "parameter", home="disk")
    b.op("f0", "op", duration_ns=50)
    b.op("f1", "op", inputs=["w"], duration_ns=5)
    plan = Plan(b.build(), cache_ops=(CacheOp(PREFETCH, 0, "disk", "hbm"), gone(0, 1)))
    assert len(times_of(plan, hardware, 100).transfers) == 4
    assert replayed_latitudes(plan, hardware, 100) == {0: Latitude(0, 20)}


def test_a_copy_that_is_used_no_more_may_last_to_the_end() -> None:
    b = GraphBuilder("back")
    b.tensor("k", 30, "kv_cache", home="ddr")
    b.op("f0", "op", outputs=["k"], duration_ns=10)
    b.op("f1", "op", duration_ns=100)
    plan = Plan(b.build(), cache_ops=(CacheOp(STORE, 0, "hbm", "ddr", 0), gone(0, 0)))
    assert slack(plan, machine()) == {0: 70}


def test_unknown_where_the_replay_does_not_say() -> None:
    plan = Plan(weights(40, durations=(100, 50)), cache_ops=(up(0), gone(0, 1)))
    assert replayed_latitudes(plan, machine(), 30) == {}  # it does not fit
    reactive = policy_named("unified_memory").plan(plan.graph, machine(), 1000)
    assert reactive.runtime is not None
    assert replayed_latitudes(reactive, machine(), 1000) == {}
    assert [c.slack_ns for c in with_slack(plan, machine(), 30).cache_ops] == [None, None]
    assert with_slack(plan, machine(), 1000) == plan


# -- against replays in which one copy is held back
# ------------------------------------------------------------


class _Noted(dict):
    """Copies, with when each took its room and gave it back."""

    def __init__(self, found, note):
        super().__init__(found)
        self.note = note

    def __setitem__(self, key, state):
        if key not in self:
            self.note("takes", *key)
        super().__setitem__(key, state)

    def __delitem__(self, key):
        self.note("gives", *key)
        super().__delitem__(key)

    def pop(self, key, *default):
        if key in self:
            self.note("gives", *key)
        return super().pop(key, *default)


class HeldBack(NaiveReplay):
    """The naive replay, in which cache op ``k`` begins at ``until`` or later; those behind it on
    its channel wait for it.

    ``when`` is when each copy and op took room of its tier and gave it back, and when each copy
    began on its channel.
    """

    def __init__(self, plan, hardware, budget, k=-1, until=0):
        self.k, self.until, self.now, self.when = k, until, 0, {}
        super().__init__(plan, hardware, budget)
        if self.error is None:
            moved = [x for x in self.issued if x.channel is not None]
            self.makespan = max([*self.op_end, *[x.end for x in moved]])
            for i, (start, end) in enumerate(zip(self.op_start, self.op_end, strict=True)):
                self.when.setdefault(("takes", self.where(i)), {})["op", i] = start
                self.when.setdefault(("gives", self.where(i)), {})["op", i] = end
            for x in moved:
                self.when.setdefault(("begins", x.channel.name), {})[x.k] = x.start

    @property
    def copies(self):
        return self._copies

    @copies.setter
    def copies(self, found):
        self._copies = _Noted(found, self.note)

    def note(self, what, t, tier):
        of_tier = self.when.setdefault((what, tier), {})
        of_tier[t, sum(key[0] == t for key in of_tier)] = self.now

    def start_transfer(self, x):
        return False if x.k == self.k and self.now < self.until else super().start_transfer(x)

    def next_instant(self):
        upcoming = super().next_instant()
        if self.now < self.until:
            return self.until if upcoming is None else min(upcoming, self.until)
        return upcoming


def in_the_same_order(before: HeldBack, after: HeldBack) -> bool:
    """Whether room was taken and given back and channels went on in the same order, and all at one
    instant that was at one instant.
    """
    for where, old in before.when.items():
        new, last = after.when[where], -1
        for _, group in groupby(sorted(old, key=old.__getitem__), key=old.__getitem__):
            instants = {new[key] for key in group}
            if len(instants) > 1 or min(instants) < last:
                return False
            last = max(instants)
    return True


@st.composite
def moving(draw: st.DrawFn) -> tuple[Instance, Plan]:
    """A plan on channels that share nothing, of one stream or several, and within little room or
    much.
    """
    make = draw(st.sampled_from([instance, instance_on_streams, instance_of_parts]))
    one = make(draw(st.integers(0, 300)), 7)
    name = draw(
        st.sampled_from(
            ["layerwise", "static_split", "on_demand", "lookahead", "longest_gap", "g10", "flexgen"]
        )
    )
    try:
        return one, policy_named(name).plan(one.graph, one.hardware, one.budget_bytes)
    except InfeasibleError:
        reject()


@settings(max_examples=15)
@given(case=moving(), data=st.data())
def test_as_late_costs_nothing_and_later_costs_what_is_beyond(
    case: tuple[Instance, Plan], data: st.DataObject
) -> None:
    one, plan = case
    known = replayed_latitudes(plan, one.hardware, one.budget_bytes)
    assume(known)
    as_it_is = HeldBack(plan, one.hardware, one.budget_bytes)
    starts = {x.k: x.start for x in as_it_is.issued if x.channel is not None}
    assert starts.keys() == known.keys()
    k = data.draw(st.sampled_from(sorted(known)))
    beyond = data.draw(st.sampled_from([0, 0, 1, 9]))
    later = HeldBack(
        plan, one.hardware, one.budget_bytes, k, starts[k] + known[k].slack_ns + beyond
    )
    assume(later.error is None and in_the_same_order(as_it_is, later))
    assert later.makespan == as_it_is.makespan + beyond


@settings(max_examples=15)
@given(
    case=cases(max_ops=8, max_streams=2, fabrics=True, roomy=None, measured=False, uneven=True),
    data=st.data(),
)
def test_times_and_slack_on_any_machine(
    case: tuple[Graph, Hardware, Plan], data: st.DataObject
) -> None:
    _, hardware, plan = case
    hardware = data.draw(several(hardware)) if data.draw(st.booleans()) else hardware
    budget = data.draw(st.integers(1, hardware.device.capacity_bytes))
    times = times_of(plan, hardware, budget)
    result = replay(plan, hardware, budget, record=True)
    if times is None:
        assert not result.feasible or hardware.devices > 1
        return
    timeline = result.timeline
    assert timeline is not None
    assert (times.op_start_ns, times.op_end_ns, times.transfers) == (
        timeline.op_start_ns,
        timeline.op_end_ns,
        timeline.transfers,
    )
    found, end = latitudes(plan, hardware, budget, times), result.makespan_ns
    assert found.keys() == {x.cache_op for x in times.transfers}
    for x in times.transfers:
        assert found[x.cache_op].ready_ns <= x.start_ns
        assert 0 <= found[x.cache_op].slack_ns <= end - x.end_ns
    said = with_slack(plan, hardware, budget)
    assert [c.slack_ns for c in said.cache_ops] == [
        found[k].slack_ns if k in found else None for k in range(len(plan.cache_ops))
    ]
    assert replay(said, hardware, budget) == replay(plan, hardware, budget)
    if any([x.end_ns == end for x in times.transfers]) and not any(
        [end == at for at in times.op_end_ns]
    ):
        assert 0 in [one.slack_ns for one in found.values()]
