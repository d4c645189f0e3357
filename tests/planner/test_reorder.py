"""Orders of ops: legal, never worse, and as good as can be where all of them can be tried."""

import random
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from strategies import graphs

from hosim.analysis import static_curve, static_peak
from hosim.analysis.costmodel import op_durations
from hosim.analysis.verifying import check_edits
from hosim.cache_plan import Plan
from hosim.edits import Edits, permuted
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Compute, Hardware, Tier
from hosim.planner.rewrites import eager, reorder

module = sys.modules["hosim.planner.rewrites.reorder"]

MACHINE = Hardware("flat", (Tier("hbm", 10**9, 10**12, "device"),), (), Compute({}))


def durations_of(graph: Graph) -> tuple[int, ...]:
    return op_durations(graph, MACHINE)


def every_order(graph: Graph):
    """Every order of the ops in which each follows its producers."""

    def extend(order: list[int]):
        if len(order) == len(graph.ops):
            yield list(order)
        for i in range(len(graph.ops)):
            if i not in order and all(p in order for p in graph.producers[i]):
                yield from extend([*order, i])

    return extend([])


def excess(graph: Graph, budget: int) -> tuple[int, int]:
    """Bytes above the budget at the peak, byte-nanoseconds above it: what reorder lessens."""
    above = [max(0, held - budget) for held in static_curve(graph)]
    return max(above), sum(a * d for a, d in zip(above, durations_of(graph), strict=True))


@given(graphs(max_ops=6))
def test_the_least_peak_of_all_orders(graph):
    found = reorder(graph, durations_of(graph), 0)
    assert static_peak(found).bytes == min(
        static_peak(permuted(graph, order)).bytes for order in every_order(graph)
    )


@given(graphs(max_ops=10, max_streams=3, homes=("hbm",)))
def test_what_frees_at_once_is_legal(graph):
    found = eager(graph)
    assert list(check_edits(found, Edits(graph, tuple(op.name for op in found.ops)))) == []


def test_an_update_follows_its_gradient():
    """Each update frees its gradient and takes nothing; the next gradient takes 4 B."""
    b = GraphBuilder("updates")
    b.tensor("x", 4, "input")
    for k in (2, 0, 1):
        b.tensor(f"w{k}", 8, "parameter")
    for k in range(3):
        before = "x" if k == 0 else f"d{k - 1}"
        b.op(
            f"back{k}",
            "matmul",
            inputs=[before, f"w{k}"],
            outputs=[b.tensor(f"d{k}", 4), b.tensor(f"g{k}", 4)],
            duration_ns=5,
        )
    for k in (1, 2, 0):
        b.op(f"update{k}", "adam", inputs=[f"g{k}"], mutates=[f"w{k}"], duration_ns=5)
    graph = b.build()
    found = eager(graph)
    assert [op.name for op in found.ops] == [
        "back0",
        "update0",
        "back1",
        "update1",
        "back2",
        "update2",
    ]
    assert eager(found) is found


@given(graphs(max_ops=10, max_streams=3, homes=("hbm",)))
def test_legal_and_never_worse(graph):
    peak = static_peak(graph).bytes
    for budget in (0, peak // 2, peak - 1):
        found = reorder(graph, durations_of(graph), budget)
        assert excess(found, budget) <= excess(graph, budget)
        assert list(check_edits(found, Edits(graph, tuple(op.name for op in found.ops)))) == []
        if found is graph:
            continue
        result = replay(Plan(found), MACHINE)
        assert result.feasible
        assert len(graph.streams) > 1 or result.peak_bytes["hbm"] == static_peak(found).bytes


@given(graphs(max_ops=10))
def test_what_fits_keeps_its_order(graph):
    assert reorder(graph, durations_of(graph), static_peak(graph).bytes) is graph


def training(layers: int, casts: bool = False) -> Graph:
    """Parameters (10 B a layer) with states (20 B), activations and their gradients (4 B), all
    updates at the end of the step.

    With ``casts``, the step begins with a copy (5 B) of every parameter that the forward pass alone
    reads.
    """
    b = GraphBuilder("training")
    for i in range(layers):
        b.tensor(f"w{i}", 10, "parameter")
        b.tensor(f"o{i}", 20, "optimizer_state")
    last = b.tensor("x", 4, "input")
    for i in range(layers):
        b.tensor(f"a{i}", 4)
        b.tensor(f"g{i}", 4, "gradient")
        b.tensor(f"gw{i}", 10, "gradient")
    if casts:
        for i in range(layers):
            b.op(
                f"cast{i}", "copy", inputs=[f"w{i}"], outputs=[b.tensor(f"c{i}", 5)], duration_ns=1
            )
    for i in range(layers):
        b.op(
            f"f{i}",
            "matmul",
            inputs=[last, f"c{i}" if casts else f"w{i}"],
            outputs=[f"a{i}"],
            duration_ns=10,
        )
        last = f"a{i}"
    for i in reversed(range(layers)):
        reads = [f"a{i}", f"w{i}", *([f"g{i + 1}"] if i + 1 < layers else [])]
        b.op(f"b{i}", "matmul", inputs=reads, outputs=[f"g{i}", f"gw{i}"], duration_ns=20)
    for i in range(layers):
        b.op(f"u{i}", "adam", inputs=[f"gw{i}"], mutates=[f"w{i}", f"o{i}"], duration_ns=5)
    return b.build()


@pytest.mark.parametrize("beam", [True, False])
@pytest.mark.parametrize("casts", [False, True])
def test_updates_follow_their_gradients_and_casts_come_when_needed(monkeypatch, beam, casts):
    """8 layers: 240 B of parameters and states and 4 of input are always there.

    As listed, the peak is the last op of the backward pass: 80 B of gradients of parameters, a0, g0
    and g1. Updated at once, only one such gradient is left, and the peak is b7: 32 B of
    activations, g7, gw7; or, with all casts made first, the last cast or f0.
    """
    if not beam:
        monkeypatch.setattr(module, "_BEAM_OPS", 0)
    graph = training(8, casts)
    assert static_peak(graph).bytes == 244 + 80 + 4 + 4 + 4
    found = reorder(graph, durations_of(graph), 0)
    assert static_peak(found).bytes == 244 + 32 + 4 + 10
    if not beam:
        b7 = found.op_index["b7"]
        assert [op.name for op in found.ops[b7 : b7 + 4]] == ["b7", "u7", "b6", "u6"]


def test_scheduling_alone_is_near_the_least_peak(monkeypatch):
    """Random ops over random earlier results: the list schedules that large graphs get,
    against the exact beam.
    """
    ratios, given_ratios = [], []
    for seed in range(30):
        graph = scattered(random.Random(seed), 12)
        exact = static_peak(reorder(graph, durations_of(graph), 0)).bytes
        monkeypatch.setattr(module, "_BEAM_OPS", 0)
        ratios.append(static_peak(reorder(graph, durations_of(graph), 0)).bytes / exact)
        given_ratios.append(static_peak(graph).bytes / exact)
        monkeypatch.undo()
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) < 1.03
    assert sum(given_ratios) / len(given_ratios) > 1.1


def scattered(rng: random.Random, ops: int) -> Graph:
    b = GraphBuilder("scattered")
    results = [b.tensor("x", 5, "input")]
    for i in range(ops):
        reads = rng.sample(results, min(len(results), rng.choice((1, 1, 2))))
        results.append(b.tensor(f"a{i}", rng.randint(1, 40)))
        b.op(
            f"f{i}",
            "op",
            inputs=reads,
            outputs=[results[-1]],
            duration_ns=rng.randint(1, 9),
            workspace_bytes=rng.choice((0, 0, 9)),
        )
    return b.build()


@pytest.mark.parametrize("seed", range(6))
def test_what_has_a_message_stays_in_its_order(seed):
    """Otherwise stages of a pipeline might wait for one another for ever. Without messages, these
    ops trade places.
    """
    graph = scattered(random.Random(seed), 24)
    tied = replace(
        graph,
        ops=tuple(
            [replace(op, message=f"m{i}") if i % 3 == 0 else op for i, op in enumerate(graph.ops)]
        ),
    )
    names = [op.name for op in tied.ops if op.message]
    for found in (reorder(tied, durations_of(tied), 0), eager(tied)):
        assert [op.name for op in found.ops if op.message] == names
        assert [op.name for op in found.ops] != [op.name for op in tied.ops]
    free = reorder(graph, durations_of(graph), 0), eager(graph)
    assert any([[op.name for op in found.ops if op.name in names] != names for found in free])


def test_names_do_not_matter():
    graph = scattered(random.Random(3), 40)
    other = replace(
        graph, ops=tuple(replace(op, name=f"z{99 - i}") for i, op in enumerate(graph.ops))
    )
    assert [op.inputs for op in reorder(graph, durations_of(graph), 0).ops] == [
        op.inputs for op in reorder(other, durations_of(other), 0).ops
    ]


def test_time_grows_no_faster_than_n_log_n():
    """Counted in heap operations, so that a busy machine does not matter: 8 times the ops, at most
    10 times the work.
    """

    def pushes(layers: int) -> int:
        count = 0
        push = module.heapq.heappush

        class Counting:
            heappop = staticmethod(module.heapq.heappop)
            nsmallest = staticmethod(module.heapq.nsmallest)

            @staticmethod
            def heappush(heap: list, item: object) -> None:
                nonlocal count
                count += 1
                push(heap, item)

        original, module.heapq = module.heapq, Counting
        try:
            reorder(training(layers, casts=True), durations_of(training(layers, casts=True)), 0)
        finally:
            module.heapq = original
        return count

    assert pushes(800) < 10 * pushes(100)
