"""Routing: which ops are conditional, graphs of steps of a trace, seeded traces, and the file they
are in.
"""

import json
from collections import Counter
from random import Random
from statistics import median

import moe_toy
import pytest

from hosim.base.files import to_text
from hosim.data.expert_routing import (
    Expert,
    Gate,
    Routing,
    draw_spread_of,
    gates_of,
    realise,
    routed,
)
from hosim.errors import GraphError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.io import (
    load_routing,
    routing_from_dict,
    routing_to_dict,
    save_routing,
    workload_from_dict,
    workload_to_dict,
)
from hosim.io.models import build, generate

TWO_STEPS = (((0, 2), (1, 3)), ((2, 3), (0, 1)))


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def inputs(graph: Graph, op: str) -> list[str]:
    return [graph.tensors[t].name for t in graph.ops[graph.op_index[op]].inputs]


# --------------------------------------------------------------------------------------------------
# one step


def test_only_the_routed_experts_run_and_their_outputs_are_combined() -> None:
    graph = realise(moe_toy.routing(2, 4, TWO_STEPS), 0)
    assert names(graph) == [
        "attention0", "gate0", "ffn0.0", "ffn0.2", "combine0", "attention1", "gate1", "ffn1.1", "ffn1.3", "combine1",
    ]  # fmt: skip
    assert inputs(graph, "combine0") == ["g0", "h0.0", "h0.2"]
    assert inputs(graph, "combine1") == ["g1", "h1.1", "h1.3"]
    assert graph.name == "moe@0"


def test_a_routed_op_depends_on_its_gate() -> None:
    graph = realise(moe_toy.routing(2, 4, TWO_STEPS), 1)
    for op, gate in (("ffn0.2", "gate0"), ("ffn0.3", "gate0"), ("ffn1.0", "gate1")):
        assert graph.op_index[gate] in graph.producers[graph.op_index[op]]


def test_experts_that_do_not_run_keep_their_bytes_and_their_outputs_do_not_exist() -> None:
    graph = realise(moe_toy.routing(1, 4, [((1,),)]), 0)
    assert [t.name for t in graph.tensors if t.kind == "expert"] == ["w0.0", "w0.1", "w0.2", "w0.3"]
    assert {"h0.0", "h0.2", "h0.3"}.isdisjoint(graph.tensor_index)


def test_parts_that_no_step_chooses_are_one_where_they_are_alike() -> None:
    """Not by their names: by the whole that they say, where they lie, and beside the names that
    there are.
    """
    b = GraphBuilder("parts")
    (
        b.tensor("g", 1),
        b.tensor("y", 1, "output"),
        b.tensor("w[rest]", 5, "buffer"),
        b.tensor("x[0]", 3, "expert"),
    )
    experts = [
        ("e0", 10, "ddr", "w"),
        ("e1", 11, "ddr", "w"),
        ("e2", 12, "pool", "w"),
        ("e3", 13, "ddr", "w"),
        ("x[1]", 14, "ddr", ""),
    ]
    for name, size, home, of in experts:
        b.tensor(name, size, "expert", home, of=of)
    b.op("gate", "topk", outputs=["g"], duration_ns=1)
    b.op("f", "matmul", inputs=["g", *[name for name, *_ in experts]], outputs=["y"], duration_ns=1)
    made = b.build()
    gates = gates_of(made, {"gate": [([name], ()) for name, *_ in experts]})
    graph = realise(Routing(made, gates, (((0,),),)), 0)
    kept = {t.name: (t.size_bytes, t.home, t.of) for t in graph.tensors if t.kind == "expert"}
    assert kept == {
        "x[0]": (3, None, ""),
        "e0": (10, "ddr", "w"),
        "x[1]": (14, "ddr", ""),
        "w[rest1]": (24, "ddr", "w"),
        "w[rest2]": (12, "pool", "w"),
    }
    assert inputs(graph, "f") == ["g", "e0"]


def test_the_routing_and_its_graph_stay_as_they_are() -> None:
    routing = moe_toy.routing(2, 4, TWO_STEPS)
    before = workload_to_dict(routing.graph)
    assert realise(routing, 0) == realise(routing, 0)
    assert workload_to_dict(routing.graph) == before


def test_no_expert_at_all() -> None:
    graph = realise(moe_toy.routing(1, 4, [((),)]), 0)
    assert names(graph) == ["attention0", "gate0", "combine0"]
    assert inputs(graph, "combine0") == ["g0"]


def test_experts_that_add_to_one_tensor_in_place() -> None:
    b = GraphBuilder("in place")
    for e in range(3):
        b.tensor(f"w{e}", 4, "expert")
    b.tensor("sum", 1)
    b.op("zero", "fill", outputs=["sum"])
    b.op("gate", "matmul")
    for e in range(3):
        b.op(f"add{e}", "index_add", inputs=[f"w{e}"], mutates=["sum"])
    b.op("norm", "norm", inputs=["sum"])
    graph = b.build()
    routing = Routing(
        graph,
        gates_of(graph, {"gate": [([f"w{e}"], [f"add{e}"]) for e in range(3)]}),
        (((1,),), ((),)),
    )
    one = realise(routing, 0)
    assert names(one) == ["zero", "gate", "add1", "norm"]
    assert one.producers[3] == (2,)
    assert inputs(realise(routing, 1), "norm") == ["sum"]


def test_an_expert_of_several_ops_and_a_dependency_through_an_absent_one() -> None:
    b = GraphBuilder("several")
    b.tensor("u", 4, "expert"), b.tensor("d", 4, "expert"), b.tensor("v", 4, "expert")
    b.tensor("h", 1), b.tensor("y", 1)
    b.op("first", "copy")
    b.op("gate", "matmul")
    b.op("up", "matmul", inputs=["u"], outputs=["h"], deps=["first"])
    b.op("down", "matmul", inputs=["h", "d"], outputs=["y"])
    b.op("other", "matmul", inputs=["v"])
    b.op("end", "add", inputs=["y"], deps=["up"])
    graph = b.build()
    routing = Routing(
        graph,
        gates_of(graph, {"gate": [(["d", "u"], ["up", "down"]), (["v"], ["other"])]}),
        (((1,),), ((0,),)),
    )
    absent, present = realise(routing, 0), realise(routing, 1)
    assert names(absent) == ["first", "gate", "other", "end"]
    assert inputs(absent, "end") == []
    assert {absent.ops[d].name for d in absent.ops[3].deps} == {"first", "gate"}
    assert names(present) == ["first", "gate", "up", "down", "end"]
    assert {present.ops[d].name for d in present.ops[4].deps} == {"up"}
    view = routed(present)
    assert view is not None
    of_experts = [[present.tensors[t].name for t in tensors] for tensors in view.experts[0]]
    assert of_experts == [["u", "d"], ["v"]]  # in the order of the graph


# --------------------------------------------------------------------------------------------------
# several steps


def test_steps_one_after_the_other_share_what_persists() -> None:
    graph = realise(moe_toy.routing(2, 4, TWO_STEPS), range(2))
    assert len(graph.ops) == 20
    assert graph.name == "moe@0-1"
    assert inputs(graph, "attention1@1") == ["x0@1", "a1.w"]
    assert inputs(graph, "combine0@1") == ["g0@1", "h0.2@1", "h0.3@1"]
    assert sum(t.name == "w0.2" for t in graph.tensors) == 1
    assert graph.users[graph.tensor_index["w0.2"]] == (
        graph.op_index["ffn0.2@0"],
        graph.op_index["ffn0.2@1"],
    )


def test_no_step_begins_before_the_one_before_has_ended() -> None:
    b = GraphBuilder("streams")
    b.tensor("w", 4, "expert")
    b.op("gate", "matmul")
    b.op("side", "copy", stream="side")
    b.op("e", "matmul", inputs=["w"])
    graph = b.build()
    both = realise(
        Routing(graph, gates_of(graph, {"gate": [(["w"], ["e"])]}), (((0,),), ((0,),))), range(2)
    )
    assert names(both) == ["gate@0", "side@0", "e@0", "gate@1", "side@1", "e@1"]
    assert both.producers[3] == (1,)  # and e@0 by its stream
    assert both.producers[4] == (2,)


def test_a_step_that_the_trace_has_not() -> None:
    with pytest.raises(
        GraphError, match="there is no step 2 in the routing trace, which has steps 0 to 1"
    ):
        realise(moe_toy.routing(2, 4, TWO_STEPS), range(1, 3))
    with pytest.raises(GraphError, match="which has none"):
        realise(moe_toy.routing(2, 4), 0)


# ------------------------------------------------------------------------------------------------
# what the graph says of it


def test_a_realised_graph_says_what_was_routed_and_a_file_keeps_it() -> None:
    routing = moe_toy.routing(2, 4, TWO_STEPS)
    graph = realise(routing, 1)
    loaded = workload_from_dict(json.loads(to_text(workload_to_dict(graph))))
    for view in (routed(graph), routed(loaded)):
        assert view is not None
        assert [visit.chosen for visit in view.visits] == [(2, 3), (0, 1)]
        assert [visit.gate for visit in view.visits] == [0, 1]
        assert view.history == TWO_STEPS[:1]
        assert len(view.marked) == 8
        (first, used), *_ = view.visits[0].uses.items()
        assert graph.tensors[first].name == "w0.2"
        assert [graph.ops[i].name for i in used] == ["ffn0.2"]
    assert routed(routing.graph) is None


def test_each_decision_has_its_own_uses() -> None:
    view = routed(realise(moe_toy.routing(1, 4, [((0, 1),), ((1, 2),)]), range(2)))
    assert view is not None
    assert [visit.chosen for visit in view.visits] == [(0, 1), (1, 2)]
    assert view.history == ()


def test_a_graph_that_says_what_it_has_not() -> None:
    graph = realise(moe_toy.routing(1, 2, [((0,),)]), 0)
    broken = Graph(
        "broken",
        graph.tensors,
        graph.ops,
        {"routing": graph.meta["routing"] | {"visits": [[0, "gate7"]]}},
    )
    with pytest.raises(GraphError, match=r"meta\.routing: does not fit the graph"):
        routed(broken)


# --------------------------------------------------------------------------------------------------
# what is refused


GRAPH = moe_toy.graph(2, 2)
AT, OP = GRAPH.tensor_index, GRAPH.op_index
BOTH = [(["w0.0"], ["ffn0.0"]), (["w0.1"], ["ffn0.1"])]
REFUSED = {
    "before its gate": (
        {"gate1": BOTH},
        "gates[0].experts[0].ops[0]: op 'ffn0.0' is not listed after its gate 'gate1'",
    ),
    "an op of two": (
        {"gate0": [BOTH[0], BOTH[0]]},
        "op 'ffn0.0' is listed for gates[0].experts[0] too",
    ),
    "a gate": ({"gate0": [(["a1.w"], ["gate1"])], "gate1": []}, "op 'gate1' is a gate itself"),
    "an activation": ({"gate0": [(["h0.0"], ["ffn0.0"])]}, "tensor 'h0.0' is of one step only"),
    "shared": (
        {"gate0": [(["a1.w"], ["ffn0.0"])]},
        "tensor 'a1.w' is used by op 'attention1', which is not its expert's",
    ),
    "nothing to move": (
        {"gate0": [([], ["ffn0.0"])]},
        "gates[0].experts[0]: expected at least one tensor to move",
    ),
    "twice": (
        {"gate0": [(["w0.0", "w0.0"], ["ffn0.0"])]},
        "gates[0].experts[0].tensors[1]: tensor 'w0.0' is listed twice",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_gates_that_contradict_the_graph(case: str) -> None:
    named, message = REFUSED[case]
    with pytest.raises(GraphError) as error:
        Routing(GRAPH, gates_of(GRAPH, named))
    assert message in str(error.value)


def test_an_expert_that_is_trained() -> None:
    b = GraphBuilder("trained")
    b.tensor("w", 4, "expert")
    b.op("gate", "matmul")
    b.op("update", "adam", mutates=["w"])
    graph = b.build()
    with pytest.raises(
        GraphError, match="op 'update' writes tensor 'w'; an expert's tensors are only read"
    ):
        Routing(graph, (Gate(0, (Expert((0,), (1,)),)),))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([((0,),)], "steps[0]: expected a list of experts for each of 2 gates, got 1 lists"),
        ([((0,), (2,))], "steps[0][1][0]: gate 'gate1' has experts 0 to 1, got 2"),
        ([((0,), (1, 1))], "steps[0][1][1]: expert 1 is chosen twice"),
    ],
)
def test_traces_that_contradict_the_gates(steps: list, message: str) -> None:
    with pytest.raises(GraphError) as error:
        moe_toy.routing(2, 2, steps)
    assert str(error.value) == message


# --------------------------------------------------------------------------------------------------
# seeded traces


def trace(**settings):
    routing = moe_toy.routing(4, 8)
    return generate(routing.graph, routing.gates, **{"steps": 200, "top": 2, "seed": 3} | settings)


def test_a_seed_is_a_trace() -> None:
    assert trace() == trace()
    assert trace() != trace(seed=4)
    assert trace(steps=8).steps == trace().steps[:8]
    # as drawn when this was written: a seed means the same trace for good, whatever the machine
    assert trace().steps[:2] == (((3, 5), (1, 5), (6, 7), (0, 6)), ((3, 5), (1, 7), (6, 7), (0, 2)))
    assert all(len(set(chosen)) == 2 for step in trace().steps for chosen in step)


def test_popularity() -> None:
    counts = Counter(e for step in trace(persistence=0.0, steps=2000).steps for e in step[0])
    shares = [count / 4000 for _, count in counts.most_common()]
    # the most popular of eight is in a draw of two without replacement, with weights 1/r: 0.368 +
    # what the second draw adds
    weights = [1 / r for r in range(1, 9)]
    whole = sum(weights)
    first = weights[0] / whole + sum(w / whole * weights[0] / (whole - w) for w in weights[1:])
    assert shares[0] == pytest.approx(first / 2, abs=0.02)
    even = Counter(
        e for step in trace(persistence=0.0, zipf=0.0, steps=2000).steps for e in step[0]
    )
    assert max(even.values()) < 1.15 * min(even.values())


def test_persistence() -> None:
    def repeats(routing: Routing) -> float:
        pairs = [
            (a, b)
            for before, after in zip(routing.steps, routing.steps[1:], strict=False)
            for a, b in zip(before, after, strict=True)
        ]
        return sum(len(set(a) & set(b)) for a, b in pairs) / (2 * len(pairs))

    assert repeats(trace(persistence=1.0)) == 1.0
    # without popularity, one of two that does not stay comes back as one of the six or seven others
    # at random
    assert repeats(trace(persistence=0.9, zipf=0.0, steps=1000)) == pytest.approx(
        0.9 + 0.1 / 7, abs=0.02
    )
    assert repeats(trace(persistence=0.0, zipf=0.0, steps=1000)) == pytest.approx(2 / 8, abs=0.02)


def test_gates_are_drawn_apart() -> None:
    assert len({tuple(step[g] for step in trace().steps) for g in range(4)}) == 4
    fewer = moe_toy.routing(2, 8)
    assert [step[:2] for step in trace().steps] == list(
        generate(fewer.graph, fewer.gates, steps=200, top=2, seed=3).steps
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top": 9}, "top: expected at least 1, and no more than each gate has experts"),
        ({"top": 0}, "top: expected at least 1"),
        ({"persistence": 1.5}, "persistence: expected a probability"),
        ({"zipf": -1.0}, "zipf: expected a number from 0"),
        ({"steps": -1}, "steps: expected at least 0"),
    ],
)
def test_traces_that_cannot_be(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace(**settings)


# --------------------------------------------------------------------------------------------------
# the file


FILE = {
    "format": "hosim.routing/1",
    "workload": "moe",
    "gates": [
        {
            "op": "gate0",
            "experts": [
                {"tensors": ["w0.0"], "ops": ["ffn0.0"]},
                {"tensors": ["w0.1"], "ops": ["ffn0.1"]},
            ],
        },
    ],
    "steps": [[[0]], [[1]]],
}


def test_a_file_and_back(tmp_path) -> None:
    routing = trace(steps=5)
    save_routing(routing, tmp_path / "routing.json.gz")
    loaded = load_routing(tmp_path / "routing.json.gz", routing.graph)
    assert loaded == routing
    assert loaded.meta == routing.meta
    assert routing_to_dict(routing_from_dict(FILE, GRAPH)) == FILE


def test_a_file_that_says_how_to_generate_the_trace(tmp_path) -> None:
    text = json.dumps(
        {key: value for key, value in FILE.items() if key != "steps"}
        | {"generate": {"steps": 3, "top": 1, "seed": 5, "zipf": 0}}
    )
    (tmp_path / "routing.json").write_text(text)
    loaded = load_routing(tmp_path / "routing.json", GRAPH)
    assert loaded == generate(GRAPH, loaded.gates, steps=3, top=1, seed=5, zipf=0.0)


WRONG = {
    "another workload": (
        {"workload": "toy"},
        "workload: this routing is for the workload 'toy', not for 'moe'",
    ),
    "unknown key": ({"step": []}, "step: unknown key 'step'; did you mean 'steps'?"),
    "unknown gate": (
        {"gates": [{"op": "gat0", "experts": []}]},
        "gates[0].op: unknown op 'gat0'; did you mean",
    ),
    "unknown tensor": (
        {"gates": [{"op": "gate0", "experts": [{"tensors": ["w0.0", "w0.9"], "ops": ["ffn0.0"]}]}]},
        "gates[0].experts[0].tensors[1]: unknown tensor 'w0.9'",
    ),
    "no such expert": (
        {"steps": [[[2]]]},
        "steps[0][0][0]: gate 'gate0' has experts 0 to 1, got 2",
    ),
    "a name for a number": (
        {"steps": [[["w0.0"]]]},
        "steps[0][0][0]: expected an integer, got 'w0.0'",
    ),
    "both traces": (
        {"generate": {"steps": 1, "top": 1}},
        "generate: expected either the 'steps' of a trace or 'generate', got both",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_are_wrong(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(InputError) as error:
        routing_from_dict(FILE | changes, GRAPH, "r.json")
    assert str(error.value).startswith("r.json: ")
    assert message in str(error.value)


def test_a_generated_trace_that_cannot_be() -> None:
    data = {key: value for key, value in FILE.items() if key != "steps"} | {
        "generate": {"steps": 1, "top": 3}
    }
    with pytest.raises(
        InputError,
        match=r"generate\.top: expected at least 1, and no more than each gate has experts",
    ):
        routing_from_dict(data, GRAPH)


def test_a_draw_that_rounding_has_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights of which nothing is left over: the last. Experts are ranked as they come, as each
    comes last, too.
    """
    gates = gates_of(
        GRAPH, {"gate0": BOTH, "gate1": [(["w1.0"], ["ffn1.0"]), (["w1.1"], ["ffn1.1"])]}
    )
    monkeypatch.setattr(Random, "random", lambda _: 1.0)
    last = [len(gate.experts) - 1 for gate in gates]
    assert generate(GRAPH, gates, steps=1, top=1).steps == (tuple((n,) for n in last),)
    assert generate(GRAPH, gates, steps=1, top=2).steps == (tuple((n - 1, n) for n in last),)


# --------------------------------------------------------------------------------------------------
# how far draws differ

SMALL = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}


def spread_of(
    experts: int, count: int, tokens: int, top: int, gates: int = 1, **drawn: float
) -> float:
    """That of a model with so many gates whose trace has ``count`` experts."""
    config = {
        **SMALL,
        "num_experts": experts,
        "num_experts_per_tok": top,
        "num_hidden_layers": gates,
    }
    model = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "batch": tokens,
        "layers": gates,
        "chosen_experts": count,
        "config": config,
    }
    return draw_spread_of(
        build("x", {**model, "routing": {"seed": 1, "zipf": 0.0, "persistence": 0.0, **drawn}})
    )


def test_one_token_chooses_as_many_experts_in_every_draw() -> None:
    assert spread_of(8, 2, 1, 2) == spread_of(8, 2, 1, 2, gates=3, zipf=1.0) == 0


def test_tokens_of_one_step_may_choose_the_same_experts() -> None:
    """Two tokens of one expert out of two each: one or two, as likely. 1.5 on average, half an
    expert to either side, of the two here.
    """
    assert spread_of(2, 2, 2, 1) == pytest.approx(
        ((0.5 / 2) ** 2 + (0.5 / 2) ** 2) ** 0.5, abs=0.06
    )
    # of four gates alike the mean is as far off, and the deviation half as large
    assert spread_of(2, 2, 2, 1, gates=4) == pytest.approx(
        ((0.5 / 2) ** 2 + (0.5 / 2) ** 2 / 4) ** 0.5, abs=0.06
    )


def test_what_was_chosen_in_the_step_before_does_not_come_again() -> None:
    """A token that keeps its choice needs its expert once, in every draw; of four of one expert out
    of four 1 + 3 x 3/4 are expected.
    """
    assert spread_of(4, 1, 1, 1, steps=4, persistence=1.0) == 0
    found = [
        spread_of(4, 1, 1, 1, steps=4, seed=seed) for seed in range(21)
    ]  # most traces have three or four: 0.264 and 0.265
    assert median(found) == pytest.approx((0.25**2 + 3 * 3 / 16) ** 0.5 / 3, abs=0.03)


def test_popular_experts_are_shared_by_tokens() -> None:
    assert spread_of(64, 26, 4, 8, gates=8, zipf=2.0) > spread_of(64, 26, 4, 8, gates=8) > 0


def test_measured_regularities_are_draws() -> None:
    """docs/formats.md: what a zipf and a persistence say of a trace, by the draws themselves."""
    graph, gates = (lambda routing: (routing.graph, routing.gates))(moe_toy.routing(2, 64))
    popular = generate(graph, gates, steps=1500, top=8, zipf=0.76, persistence=0.0)
    used = Counter(e for step in popular.steps for e in step[0])
    assert sum(sorted(used.values(), reverse=True)[:32]) / used.total() == pytest.approx(
        0.75, abs=0.02
    )
    sticky = generate(graph, gates, steps=1500, top=4, zipf=0.0, persistence=0.41)
    again = [
        len(set(a[0]) & set(b[0])) / 4 for a, b in zip(sticky.steps, sticky.steps[1:], strict=False)
    ]
    assert sum(again) / len(again) == pytest.approx(0.45, abs=0.02)
