"""The strategies draw what they promise: their plans are legal in every order of events that the
rules allow.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, happens_before, ways, wild_plans

from hosim.cache_plan import AT_START, DETACH, PREFETCH
from hosim.graph import KINDS


def run_in_some_order(graph, hardware, plan, random):
    """Executes ops and cache ops one at a time, in an order that ``random`` picks among those that
    docs/contract.md allows.

    Times play no part: a cache op may take for ever after it is issued. Asserts that every one is
    legal when its turn comes.
    """
    device = hardware.device_tier
    valid = [set(plan.residency(device).get(t, ())) for t in range(len(graph.tensors))]
    queues = [[] for _ in graph.tensors]  # issued cache ops of each tensor, not yet in effect
    done, ended = set(), set()  # cache ops in effect, ops
    dead, released = (
        set(),
        set(),
    )  # tensors whose last user has ended, and those that are gone: no cache op of them is left

    def issue(after):
        for c, cache_op in enumerate(plan.cache_ops):
            if cache_op.after == after:
                assert cache_op.tensor not in released, "issued when its tensor is gone"
                queues[cache_op.tensor].append(c)

    def release():
        for t in dead - released:
            if not queues[t]:
                valid[t] = set()
                released.add(t)

    def awaited(i):
        """The last prefetch of each tensor that op ``i`` reads, if it stands before it."""
        for t in graph.ops[i].reads:
            sooner = [
                (c.after, n)
                for n, c in enumerate(plan.cache_ops)
                if c.tensor == t and c.op == PREFETCH and c.after < i
            ]
            yield from [max(sooner)[1]] if sooner else []

    def ready(i):
        stream = [j for j in range(i) if graph.ops[j].stream == graph.ops[i].stream]
        return (
            ended.issuperset(stream)
            and ended.issuperset(graph.producers[i])
            and done.issuperset(awaited(i))
            and not any(
                queues[t] for t in graph.ops[i].mutates
            )  # a transfer that reads what it mutates
        )

    issue(AT_START)
    while len(ended) < len(graph.ops) or any(queues):
        turns = [("op", i) for i in range(len(graph.ops)) if i not in ended and ready(i)]
        turns += [("cache", t) for t, queue in enumerate(queues) if queue]
        assert turns, "nothing can proceed"
        what, which = random.choice(turns)
        if what == "op":
            op = graph.ops[which]
            assert all(device in valid[t] for t in op.reads), f"{op.name} reads what is not there"
            ended.add(which)
            for t in op.writes:
                valid[t] = {device}
            dead.update(
                t for t in op.uses if not graph.survives[t] and ended.issuperset(graph.users[t])
            )
            issue(which)
        else:
            c = queues[which].pop(0)
            cache_op = plan.cache_ops[c]
            running = [
                i
                for i in graph.users[which]
                if i not in ended and ready(i) and device in valid[which]
            ]
            assert cache_op.source in valid[which]
            if cache_op.op == DETACH:
                assert len(valid[which]) > 1
                assert cache_op.source != device or not running, (
                    "released under an op that could be running"
                )
                valid[which].discard(cache_op.source)
            else:
                assert (cache_op.source, cache_op.destination) in ways(hardware)
                assert cache_op.destination not in valid[which]
                valid[which].add(cache_op.destination)
            done.add(c)
        release()
    for t, tiers in plan.residency(device).items():
        assert not graph.survives[t] or valid[t].issuperset(tiers), "not where it was at time 0"


@pytest.mark.parametrize("streams", [1, 3])
@given(data=st.data())
def test_drawn_plans_are_legal_in_every_order(streams, data):
    graph, hardware, plan = data.draw(cases(max_streams=streams, roomy=None))
    for seed in range(3):
        run_in_some_order(graph, hardware, plan, Random(seed))


WANTED = {
    "every kind of cache op in one plan": lambda g, h, p: (
        {c.op for c in p.cache_ops} == {"prefetch", "store", "detach"}
    ),
    "an activation leaves the device": lambda g, h, p: any(
        c.op == DETACH and c.source == "hbm" and g.tensors[c.tensor].kind == "activation"
        for c in p.cache_ops
    ),
    "the third tier": lambda g, h, p: any(c.destination == "nvme" for c in p.cache_ops),
    "a cache op at time 0": lambda g, h, p: any(c.after == AT_START for c in p.cache_ops),
    "a mutated tensor moves": lambda g, h, p: any(
        c.tensor in op.mutates for op in g.ops for c in p.cache_ops
    ),
    "three streams with cache ops": lambda g, h, p: len(g.streams) == 3 and len(p.cache_ops) > 3,
    "two copies at time 0": lambda g, h, p: any(len(tiers) > 1 for tiers in p.initial.values()),
    "a tight device tier": lambda g, h, p: (
        h.device.capacity_bytes < sum(t.size_bytes for t in g.tensors) and p.count("prefetch") > 1
    ),
    "written over": lambda g, h, p: any(
        sum(t in op.outputs for op in g.ops) > 1 for t in range(len(g.tensors))
    ),
}


def test_cases_reach_what_the_rules_speak_of():
    reached = set()

    @settings(max_examples=150)
    @given(cases(max_streams=3, roomy=None))
    def collect(case):
        reached.update(name for name, wanted in WANTED.items() if wanted(*case))

    collect()
    assert reached == set(WANTED)


def test_every_kind_is_drawn():
    kinds = set()

    @settings(max_examples=50)
    @given(cases())
    def collect(case):
        kinds.update(tensor.kind for tensor in case[0].tensors)

    collect()
    assert kinds == set(KINDS)


@given(st.data())
def test_wild_plans_name_what_there_is(data):
    graph, hardware, _ = data.draw(cases())
    plan = data.draw(wild_plans(graph, hardware))
    assert all(c.source in hardware.tier_index for c in plan.cache_ops)


@given(cases(max_streams=3))
def test_happens_before_contains_all_producers(case):
    graph, _, _ = case
    for i, before in enumerate(happens_before(graph)):
        assert all(before >> j & 1 for j in graph.producers[i])
