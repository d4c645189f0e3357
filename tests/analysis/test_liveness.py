"""Live ranges and the everything-resident account, against hand-made curves and a step-by-step
simulation.
"""

from __future__ import annotations

from counting import lines_run
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis import held_from_to, largest_op, static_curve, static_peak
from hosim.graph import Graph, GraphBuilder, Op, Tensor

KINDS = ["parameter", "activation", "gradient", "output", "buffer", "optimizer_state"]


@st.composite
def small_graphs(draw):
    """One stream; tensors of any kind, some with a home though not persistent; reads, writes in
    place, outputs.
    """
    tensors = [
        Tensor(
            f"t{i}",
            draw(st.integers(0, 50)),
            draw(st.sampled_from(KINDS)),
            draw(st.sampled_from([None, "hbm"])),
        )
        for i in range(draw(st.integers(0, 6)))
    ]
    ops, known = [], [i for i, tensor in enumerate(tensors) if tensor.persistent or tensor.home]
    for i in range(draw(st.integers(0, 8))):
        some = st.lists(st.sampled_from(known), unique=True, max_size=3) if known else st.just([])
        inputs, mutates = draw(some), draw(some)
        made = [t for t in range(len(tensors)) if t not in inputs and t not in mutates]
        outputs = draw(st.lists(st.sampled_from(made), unique=True, max_size=2)) if made else []
        known = sorted({*known, *outputs})
        ops.append(
            Op(
                f"f{i}",
                "any",
                tuple(inputs),
                tuple(outputs),
                tuple(mutates),
                workspace_bytes=draw(st.integers(0, 9)),
            )
        )
    return Graph("small", tuple(tensors), tuple(ops))


def stepped(graph):
    """The same account, written as a walk: allocate, run, release."""
    held = set(graph.initial)
    curve = []
    for i, op in enumerate(graph.ops):
        held.update(op.uses)
        curve.append(
            (sum(graph.tensors[t].size_bytes for t in held) + op.workspace_bytes, sorted(held))
        )
        later = {t for after in graph.ops[i + 1 :] for t in after.uses}
        held = {
            t
            for t in held
            if t in later or graph.tensors[t].persistent or graph.tensors[t].kind == "output"
        }
    return curve


def chain():
    b = GraphBuilder("chain")
    b.tensor("w", 40, "parameter")
    b.tensor("x", 10, "input")
    b.tensor("a", 30)
    b.tensor("b", 20)
    b.tensor("y", 5, "output")
    b.op("f", "any", inputs=["x", "w"], outputs=["a"], workspace_bytes=7)
    b.op("g", "any", inputs=["a"], outputs=["b"])
    b.op("h", "any", inputs=["b"], outputs=["y"])
    return b.build()


def held(graph, **below):
    return [*zip(*[ops.tolist() for ops in held_from_to(graph, **below)], strict=True)]


def test_what_is_held_from_one_op_up_to_another():
    """w, x and y stay to the end, which is one more than there are ops; a lives from f to g, b from
    g to h. A w that lives below is there for f alone.
    """
    assert held(chain()) == [(0, 4), (0, 4), (0, 2), (1, 3), (2, 4)]
    assert held(chain(), below=[0])[0] == (0, 1)


def test_a_tensor_that_no_op_uses_is_there_if_it_persists():
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.tensor("a", 40)
    b.op("f", "any")
    graph = b.build()
    assert held(graph) == [(0, 2), (0, 0)]
    assert static_curve(graph) == [40]  # the parameter is there all the same, the activation never


def test_the_curve_of_a_chain():
    # w + x = 50 throughout. f: + a 30 + workspace 7; g: + a 30 + b 20; h: a gone, b 20 + y 5
    assert static_curve(chain()) == [87, 100, 75]


def test_the_peak_says_where_and_of_what():
    peak = static_peak(chain())
    assert (peak.bytes, peak.op) == (100, 1)
    assert dict(peak.breakdown) == {"parameter": 40, "input": 10, "activation": 50}
    assert peak.residents == (0, 2, 3, 1)  # w 40, a 30, b 20, x 10


def test_workspace_is_part_of_the_peak():
    b = GraphBuilder("g")
    b.tensor("a", 30)
    b.op("f", "any", outputs=["a"], workspace_bytes=7)
    b.op("g", "any", inputs=["a"])
    assert dict(static_peak(b.build()).breakdown) == {"activation": 30, "workspace": 7}


def test_outputs_stay_and_homeless_products_go():
    b = GraphBuilder("g")
    b.tensor("y", 5, "output")
    b.tensor("a", 30)
    b.tensor("s", 4, "activation", home="hbm")  # held from the start, released after its last use
    b.op("f", "any", outputs=["y", "a"])
    b.op("g", "any", inputs=["s"])
    b.op("h", "any")
    assert static_curve(b.build()) == [39, 9, 5]


def test_no_ops():
    assert static_curve(Graph("g", (), ())) == []
    peak = static_peak(Graph("g", (Tensor("w", 3, "parameter"),), ()))
    assert (peak.bytes, peak.op, dict(peak.breakdown), peak.residents) == (
        3,
        -1,
        {"parameter": 3},
        (0,),
    )


@given(small_graphs())
def test_the_curve_is_what_a_walk_over_the_ops_holds(graph):
    walk = stepped(graph)
    assert static_curve(graph) == [size for size, _ in walk]
    if walk:
        peak = static_peak(graph)
        assert peak.bytes == max(size for size, _ in walk)
        assert (peak.bytes, sorted(peak.residents)) == walk[peak.op]
        assert all(size < peak.bytes for size, _ in walk[: peak.op])
        assert sum(peak.breakdown.values()) == peak.bytes


def test_the_work_grows_with_the_ops():
    def lines(count):
        tensors = tuple(Tensor(f"t{i}", 1 + i % 7) for i in range(count))
        ops = tuple(
            Op(f"f{i}", "any", (i - 1, max(0, i - 90)) if i > 90 else (), (i,))
            for i in range(count)
        )
        return lines_run(static_curve, Graph("long", tensors, ops))

    assert lines(4000) <= 2.03 * lines(2000)  # anything quadratic: four times


def test_the_largest_op_is_a_choice_where_hosim_built_the_logits_of_a_loss() -> None:
    tensors = Tensor("x", 10), Tensor("logits.to", 40)
    ops = (
        Op("f", "any", outputs=(0,), workspace_bytes=20),
        Op("logits.to", "any", (0,), (1,)),
    )
    assert largest_op(Graph("none", (), ())) == (0, False)
    assert largest_op(Graph("somebody's", tensors, ops)) == (50, False)
    built = {"source": "hosim.models"}
    assert largest_op(Graph("built", tensors, ops, built)) == (50, True)
    assert largest_op(Graph("without a loss", tensors[:1], ops[:1], built)) == (30, False)
