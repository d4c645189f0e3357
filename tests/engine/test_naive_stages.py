"""Stages that are tied by messages against the literal replay, and what is refused."""

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_stages import NaiveStages
from strategies import graphs, hardware, plans, several, sized
from test_naive_replay import figures, moved, waited

from hosim.cache_plan import Plan
from hosim.engine import replay_stages
from hosim.errors import InputError, PlanError
from hosim.graph import Graph, Tensor
from hosim.hardware import Fabric
from hosim.jitter import Jitter


def compare(stages, machine, jitter=None, compete=False):
    """Both replays of a set of stages; says how it ended."""
    try:
        result = replay_stages(stages, machine, record=True, jitter=jitter, compete=compete or None)
    except InputError as error:
        assert "wait for one another for ever" in str(error)
        assert not _can_end(stages)
        return "refused"
    except PlanError:
        with pytest.raises(PlanError):
            NaiveStages(stages, machine, jitter=jitter, compete=compete)
        return "illegal"
    company = NaiveStages(stages, machine, jitter=jitter, compete=compete)
    if company.initial_error is not None:
        assert f"the initial residents of {company.initial_error}" in result.error
        return "initial"
    for device, one in zip(company.devices, result.stages, strict=True):
        expected, got = device.figures(), figures(one)
        starts, transfers, waits, error = (
            expected.pop(key) for key in ("op_start_ns", "transfers", "waits", "error")
        )
        assert (error is None) == one.feasible
        assert error is None or (
            f"out of memory on stage {device.position}" in one.error and error[1] in one.error
        )
        if error is None and set(got["busy_ns"]) != set(
            device.streams
        ):  # a graph without a stream named compute
            for key in ("busy_ns", "stall_ns", "drain_ns"):
                got[key][device.main] = got[key].pop("compute")
        assert got == expected
        assert one.timeline.op_start_ns == starts
        assert sorted(map(moved, one.timeline.transfers)) == transfers
        assert waited(one.timeline) == waits
    for tier, instances in company.peak.items():
        assert result.whole.peak_bytes[tier] == max(
            (held for held, _, _ in instances.values()), default=0
        )
    assert (
        replace(
            replay_stages(stages, machine, jitter=jitter, compete=compete or None), replay_s=0
        ).bubble_ns
        == result.bubble_ns
    )
    if not result.feasible:
        return "no room"
    assert result.bubble_ns == company.bubbles()
    return "ended"


def _can_end(stages):
    """Whether the orders of the stages let all ops run: again and again, whatever can run does."""
    done = [set() for _ in stages]
    while True:
        heads = {
            (s, i)
            for s, plan in enumerate(stages)
            for i in range(len(plan.graph.ops))
            if _ready(plan.graph, i, done[s])
        }
        going = {
            (s, i) for s, i in heads if all(member in heads for member in _members(stages, s, i))
        }
        if not going:
            return all(
                len(ended) == len(plan.graph.ops) for ended, plan in zip(done, stages, strict=True)
            )
        for s, i in going:
            done[s].add(i)


def _ready(graph, i, done):
    before = {j for j in range(i) if graph.ops[j].stream == graph.ops[i].stream} | set(
        graph.producers[i]
    )
    return i not in done and before <= done


def _members(stages, s, i):
    message = stages[s].graph.ops[i].message
    found = [
        (k, j)
        for k, plan in enumerate(stages)
        for j, op in enumerate(plan.graph.ops)
        if message and op.message == message
    ]
    return found or [(s, i)]


@st.composite
def sets(draw, compete: bool) -> tuple[list[Plan], object]:
    """Legal plans of 2 or 3 graphs, some of whose ops are made exchanges with ops of others, and a
    machine for them.
    """
    machine = draw(several(draw(hardware(fabrics=True, uneven=True)), 3))
    homes = [tier.name for tier in machine.tiers]
    found = [draw(graphs(5, 3, homes=homes, measured=not compete)) for _ in range(machine.devices)]
    if draw(st.booleans()):
        machine = replace(
            sized(machine, found[0]),
            devices=machine.devices,
            devices_per_host=machine.devices_per_host,
        )
    made = [draw(plans(graph, machine)) for graph in found]
    free = [list(range(len(graph.ops))) for graph in found]
    ops, tensors = [list(graph.ops) for graph in found], [list(graph.tensors) for graph in found]
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(("pass", "pass", "all_reduce")))
        parties = [s for s in range(len(found)) if free[s]]
        if len(parties) < 2:
            break
        parties = draw(st.permutations(parties))[
            : 2 if kind == "pass" else draw(st.integers(2, len(parties)))
        ]
        sizes = (draw(st.integers(1, 3)), draw(st.sampled_from((0, 30, 500))))
        tied_at = []
        for place, s in enumerate(parties):
            # mostly in the order of the list, so that not all sets wait for ever
            i = free[s].pop(0 if draw(st.booleans()) else draw(st.integers(0, len(free[s]) - 1)))
            op = replace(ops[s][i], message=f"m{number}")
            tied = (
                {"kind": ("send", "recv")[place]}
                if kind == "pass"
                else {"kind": kind, "kernel": kind, "sizes": sizes}
            )
            ops[s][i] = replace(op, **tied)
            tied_at.append((s, i))
        if kind == "pass":
            _even(ops, tensors, *tied_at)
    fabrics = [replace(fabric, collectives=draw(st.integers(0, 2))) for fabric in machine.fabrics]
    if draw(st.booleans()):
        names = tuple(c.name for c in machine.channels) if draw(st.booleans()) else ()
        fabrics.append(
            Fabric(
                "bus",
                draw(st.sampled_from((1, 3))) * 10**9,
                names,
                "device",
                draw(st.integers(1, 3)),
            )
        )
    stages = [
        replace(p, graph=Graph("drawn", tuple(t), tuple(o)))
        for p, t, o in zip(made, tensors, ops, strict=True)
    ]
    return stages, replace(machine, fabrics=tuple(fabrics))


def _even(ops, tensors, sends, receives):
    """Let the send read as much as the receive writes: one of them has a tensor more."""
    (s, i), (r, j) = sends, receives
    send, receive = ops[s][i], ops[r][j]
    out, into = (
        sum(tensors[s][t].size_bytes for t in send.reads),
        sum(tensors[r][t].size_bytes for t in receive.writes),
    )
    if out < into:
        ops[s][i] = replace(send, inputs=(*send.inputs, len(tensors[s])))
        tensors[s].append(Tensor(f"more of {send.name}", into - out, "buffer"))
    elif into < out:
        ops[r][j] = replace(receive, outputs=(*receive.outputs, len(tensors[r])))
        tensors[r].append(Tensor(f"more of {receive.name}", out - into))


def _try(data):
    compete = data.draw(st.booleans())
    stages, machine = data.draw(sets(compete))
    jitter = (
        Jitter(data.draw(st.integers(0, 9)), 0.5)
        if not compete and data.draw(st.integers(0, 2)) == 2
        else None
    )
    return compare(stages, machine, jitter, compete)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_some_sets(data):
    _try(data)


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_any_set(data):
    hypothesis.event(_try(data))
