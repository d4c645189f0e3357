"""Where the pressure points of a large graph lie: at the ops where most does not fit, whatever the
streams overtake.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_cases import one_in
from strategies import graphs, happens_before

import hosim
from hosim.analysis import excess_of
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import lower_bound_ns
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier

GB = 10**9


def surely_held(graph: Graph) -> list[int]:
    """By op, its own bytes and those of tensors of which one use has ended when it starts and the
    next starts when it has ended.
    """
    before = happens_before(graph)
    held = []
    for i, op in enumerate(graph.ops):
        here = op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in op.uses)
        for t, users in enumerate(graph.users):
            uses = (
                [-1] * (t in graph.initial)
                + list(users)
                + [len(graph.ops)] * (graph.survives[t] and bool(users))
            )
            for one, other in pairwise(uses):
                has_ended = one == -1 or before[i] >> one & 1
                is_first = other == len(graph.ops) or before[other] >> i & 1
                here += graph.tensors[t].size_bytes if has_ended and is_first else 0
        held.append(here)
    return held


@given(graphs(max_ops=10, max_streams=3), st.integers(0, 100))
def test_the_excess_is_what_is_needed_before_and_after_each_op(graph, capacity):
    found = excess_of(graph, capacity)
    certain = [held - capacity for held in surely_held(graph)]
    if len(graph.streams) > 1:
        assert found == certain
    # on one stream what an op allocates first, or uses for the last time, is the only other thing
    # that is held
    else:
        assert all(one >= other for one, other in zip(found, certain, strict=True))


def two_towers(layers: int) -> Graph:
    """Two chains of layers on a stream each, forward and backward, whose activations are used again
    in reverse order.
    """
    b = GraphBuilder("towers")
    for stream in ("compute", "other"):
        for k in range(layers):
            b.tensor(f"{stream}.a{k}", 10)
    for k in range(layers):
        for stream in ("compute", "other"):
            reads = [f"{stream}.a{k - 1}"] if k else []
            b.op(
                f"{stream}.f{k}",
                "any",
                inputs=reads,
                outputs=[f"{stream}.a{k}"],
                duration_ns=1,
                stream=stream,
            )
    for k in reversed(range(layers)):
        for stream in ("compute", "other"):
            b.op(f"{stream}.b{k}", "any", inputs=[f"{stream}.a{k}"], duration_ns=1, stream=stream)
    return b.build()


@pytest.mark.parametrize("capacity", one_in(2, [100, 200]))
def test_a_large_graph_of_two_streams_is_bounded_by_what_does_not_fit(capacity):
    """The last op forward of one stream has 40 activations behind it that are all used again after
    it.

    300 of their 400 bytes are away at capacity 100, and come back over the one channel one after
    the other, at 1 byte a nanosecond. What the other stream has to move by then depends on how far
    it is.
    """
    graph = two_towers(40)
    machine = Hardware(
        "toy",
        (Tier("hbm", capacity, 1000 * GB, "device"), Tier("ddr", 10_000, 100 * GB)),
        (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
        Compute({}),
    )
    lower = lower_bound_ns(graph, op_durations(graph, machine), machine)
    assert lower >= 40 + 400 - capacity
    assert (
        lower
        <= hosim.replay(hosim.plan(graph, machine, "hyperoffload:effort=0"), machine).makespan_ns
    )
