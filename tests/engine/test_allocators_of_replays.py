"""Allocators in the loop of a replay, over random cases."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import cases

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import Graph
from hosim.result import ALLOCATORS, STATIC

MIB = 1 << 20

anything = cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, measured=False)


def enlarged(graph: Graph, factor: int) -> Graph:
    """The graph with all of its bytes times ``factor``."""
    tensors = tuple(replace(t, size_bytes=t.size_bytes * factor) for t in graph.tensors)
    return Graph(
        graph.name,
        tensors,
        tuple(replace(op, workspace_bytes=op.workspace_bytes * factor) for op in graph.ops),
    )


@given(anything, st.sampled_from(ALLOCATORS))
def test_with_room_an_allocator_changes_nothing_but_its_figures(case, allocator):
    _, hardware, steps = case
    vast = replace(
        hardware, tiers=tuple(replace(t, capacity_bytes=1 << 50) for t in hardware.tiers)
    )
    plain = replay(steps, vast)
    assume("in vain" not in (plain.error or ""))
    placed = replay(steps, vast, allocator=allocator)
    assert replace(placed, allocator=None) == plain
    assert (placed.allocator is None) == (allocator == "ledger")
    if placed.allocator is not None:
        assert (
            placed.allocator.peak_reserved_bytes
            >= placed.allocator.peak_allocated_bytes
            >= plain.peak_bytes[vast.device_tier]
        )
    if allocator == STATIC:
        assert placed.allocator.peak_allocated_bytes == plain.peak_bytes[vast.device_tier]


@given(cases(max_ops=7, measured=False), st.sampled_from(ALLOCATORS[1:]), st.integers(2, 3))
def test_every_device_has_an_allocator_of_its_own(case, allocator, devices):
    _, hardware, steps = case
    vast = replace(
        hardware, tiers=tuple(replace(t, capacity_bytes=1 << 50) for t in hardware.tiers)
    )
    several = replace(vast, devices=devices)
    folded, unfolded = (
        replay(steps, several, allocator=allocator, fold=fold) for fold in (True, False)
    )
    assume(unfolded.feasible)
    assert folded == unfolded
    assert [result.allocator for result in unfolded.by_device] == [unfolded.allocator] * devices


@given(anything, st.integers(1, 3 * MIB), st.sampled_from(["caching", "caching-expandable"]))
def test_what_is_reserved_stays_within_the_capacity(case, factor, allocator):
    graph, hardware, steps = case
    steps = Plan(enlarged(graph, factor), steps.policy, steps.cache_ops, steps.initial)
    hardware = replace(
        hardware,
        tiers=tuple(replace(t, capacity_bytes=t.capacity_bytes * factor) for t in hardware.tiers),
    )
    result = replay(steps, hardware, allocator=allocator)
    again = replay(steps, hardware, allocator=allocator, record=True)
    assert again == result
    figures = result.allocator
    assert (
        figures.peak_allocated_bytes
        <= figures.peak_reserved_bytes
        <= hardware.device.capacity_bytes
    )
    assert (figures.out_of_memory is None) == result.feasible
    if figures.out_of_memory is not None:
        assert result.error.startswith("out of memory")
        assert (
            "largest free block" in result.error
            or f"of {hardware.device_tier} at" not in result.error
        )  # other tiers have no allocator
        assert (
            figures.out_of_memory.largest_free_bytes
            <= figures.out_of_memory.reserved_bytes - figures.out_of_memory.allocated_bytes
        )
