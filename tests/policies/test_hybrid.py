"""Hybrid: a static plan for the backbone, experts in a cache at run time. Every figure is derived
from the toy's durations.

The toy (:mod:`moe_toy`): attention 100 ns, gate 10, expert 50, combine 20; an expert's 40 bytes
take 40 ns; an inspection takes 5.
"""

from __future__ import annotations

from dataclasses import replace

import moe_toy
import pytest
from asked import questions
from hypothesis import given
from hypothesis import strategies as st
from moe_toy import ATTENTION, COMBINE, EXPERT, FFN, GATE, INSPECT
from timeline_check import check_result

from hosim.analysis import canonical, static_peak
from hosim.cache_plan import DETACH, PREFETCH, CacheOp, Plan
from hosim.data.expert_routing import GateDecision, Routing, gates_of, realise, routed
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Hardware
from hosim.io.models import generate
from hosim.planner.schedule import plan_for
from hosim.planner.schedule.experts import Fetch, Predictor, Rule, expert_table
from hosim.policies import policy_named
from hosim.policies.own import Deciding, as_started
from hosim.result import Result
from hosim.study import compare
from hosim.study.asked import parse_choice

UNTIL_DECIDED = ATTENTION + GATE
ALONE = ATTENTION + GATE + FFN + COMBINE
"""A layer with one expert, nothing waiting."""


def plan(graph: Graph, budget: int = 1000, hardware: Hardware | None = None, **settings) -> Plan:
    made = policy_named("hybrid").plan(graph, hardware or moe_toy.machine(), budget, **settings)
    return plan_for(made, graph.derived(canonical))  # as the policy made it


def run(
    made: Plan, budget: int = 1000, hardware: Hardware | None = None
) -> tuple[Result, list[str]]:
    """The result, checked against the rules, and what was fetched: ``w0.1`` after its gate had
    decided, ``w0.1?`` before.
    """
    machine = hardware or moe_toy.machine()
    fetches: list[Fetch] = []
    assert isinstance(made.runtime, Deciding)
    result = replay(
        replace(made, runtime=replace(made.runtime, fetches=fetches)), machine, budget, record=True
    )
    assert result.feasible, result.error
    assert check_result(made, machine, result) == ()
    return result, [
        made.graph.tensors[f.tensor].name + ("?" if f.predicted else "") for f in fetches
    ]


def one_layer(*chosen: tuple[int, ...], experts: int = 5) -> Routing:
    return moe_toy.routing(1, experts, [(step,) for step in chosen])


# --------------------------------------------------------------------------------------------------
# predictions


def test_a_right_prediction_hides_the_transfer() -> None:
    result, fetched = run(plan(realise(one_layer((0,), (0,)), 1)))
    assert fetched == ["w0.0?"]
    assert result.stall_ns == {
        "dependency": 0,
        "transfer": 0,
        "capacity": 0,
        "runtime": 2 * INSPECT,
    }
    assert result.makespan_ns == INSPECT + UNTIL_DECIDED + INSPECT + FFN + COMBINE


def test_a_misprediction_costs_exactly_the_fetch() -> None:
    result, fetched = run(plan(realise(one_layer((0,), (1,)), 1)))
    assert fetched == ["w0.0?", "w0.1"]
    assert result.stall_ns == {
        "dependency": 0,
        "transfer": EXPERT,
        "capacity": 0,
        "runtime": 2 * INSPECT,
    }
    assert result.makespan_ns == INSPECT + UNTIL_DECIDED + INSPECT + EXPERT + FFN + COMBINE
    right, _ = run(plan(realise(one_layer((0,), (0,)), 1)))
    assert result.makespan_ns - right.makespan_ns == EXPERT


def test_without_prediction_every_expert_is_fetched_when_its_gate_has_decided() -> None:
    result, fetched = run(plan(realise(one_layer((0,), (0,)), 1), predictor="none"))
    assert fetched == ["w0.0"]
    assert result.makespan_ns == UNTIL_DECIDED + INSPECT + EXPERT + FFN + COMBINE


def test_wrong_prefetches_still_under_way_delay_the_fetch() -> None:
    # four wrong ones take the channel from 5 to 165; the gate's decision is known at 120
    result, fetched = run(plan(realise(one_layer((0, 1, 2, 3), (4,)), 1)))
    assert fetched == ["w0.0?", "w0.1?", "w0.2?", "w0.3?", "w0.4"]
    assert result.makespan_ns == INSPECT + 4 * EXPERT + EXPERT + FFN + COMBINE
    fewer, fetched = run(plan(realise(one_layer((0, 1, 2, 3), (4,)), 1), top=1))
    assert fetched == ["w0.0?", "w0.4"]
    assert fewer.makespan_ns == INSPECT + UNTIL_DECIDED + INSPECT + EXPERT + FFN + COMBINE


def test_the_next_layer_is_predicted_behind_this_one() -> None:
    # known at 120: layer 0 misses expert 1, and behind it layer 1's two predicted ones come until
    # 240, long before they are needed at 380
    steps = [((0,), (2, 3)), ((1,), (2, 3))]
    result, fetched = run(plan(realise(moe_toy.routing(2, 4, steps), 1)))
    assert fetched == ["w0.0?", "w0.1", "w1.2?", "w1.3?"]
    assert result.stall_ns["transfer"] == EXPERT
    assert (
        result.stall_ns["runtime"] == 3 * INSPECT
    )  # before the first attention, and when each gate has decided
    assert result.makespan_ns == 3 * INSPECT + EXPERT + 2 * ALONE + FFN


def test_the_first_step_of_a_trace_has_nothing_to_predict_from() -> None:
    result, fetched = run(plan(realise(one_layer((0,)), 0)))
    assert fetched == ["w0.0"]
    assert result.stall_ns["runtime"] == INSPECT


def test_predictors() -> None:
    history = (((2, 1),), ((1, 3),), ((0, 3),))
    nobody = GateDecision(0, 1, (), {})
    assert Predictor(Rule("previous"), 1, history).predict(nobody) == (0, 3)
    assert Predictor(Rule("previous", 1), 1, history).predict(nobody) == (0,)
    assert Predictor(Rule("popular"), 1, history).predict(nobody) == (
        1,
        3,
    )  # twice each; of equals the lower number
    assert Predictor(Rule("popular", 3), 1, history).predict(nobody) == (1, 3, 0)
    assert Predictor(Rule("none"), 1, history).predict(nobody) == ()
    assert Predictor(Rule("perfect"), 1, history).predict(replace(nobody, chosen=(4,))) == (4,)
    assert Predictor(Rule("popular"), 1, ()).predict(nobody) == ()


def test_what_was_chosen_is_learned_during_the_replay() -> None:
    # step 1 is predicted from step 0, which the same replay has seen
    result, fetched = run(
        plan(
            realise(moe_toy.routing(1, 4, [((2,),), ((2,),), ((3,),)]), range(3)),
            cache_bytes=EXPERT,
        )
    )
    assert fetched == ["w0.2", "w0.3"]
    # step 1: resident. step 2: expert 2 is predicted, and there already
    assert result.stall_ns["transfer"] == 2 * EXPERT


# --------------------------------------------------------------------------------------------------
# cache


def test_the_least_recently_used_is_evicted() -> None:
    routing = one_layer((0,), (1,), (0,), (2,), (0,), (1,))
    result, fetched = run(
        plan(realise(routing, range(6)), cache_bytes=2 * EXPERT, predictor="none")
    )
    # 0 and 1 fill the cache; 0 is used again, so 2 evicts 1; 0 is there; 1 evicts 2. First in first
    # out would miss 0 as well.
    assert fetched == ["w0.0", "w0.1", "w0.2", "w0.1"]
    assert result.plan == {"prefetches": 4, "stores": 0, "detaches": 2}
    assert result.peak_breakdown["hbm"]["expert"] == 2 * EXPERT
    assert result.makespan_ns == 6 * (ALONE + INSPECT) + 4 * EXPERT


def test_chosen_experts_are_not_evicted_for_predicted_ones() -> None:
    # the cache holds two: layer 0's, so that layer 1's wait until they have been used, and come
    # during its attention
    steps = [((0, 1), (0, 1))] * 2
    result, fetched = run(plan(realise(moe_toy.routing(2, 4, steps), 1), cache_bytes=2 * EXPERT))
    assert fetched == ["w0.0?", "w0.1?", "w1.0?", "w1.1?"]
    assert result.stall_ns["transfer"] == 0
    assert result.stall_ns["runtime"] == 4 * INSPECT  # once more, when there is room
    assert result.peak_breakdown["hbm"]["expert"] == 2 * EXPERT


def test_chosen_experts_that_do_not_fit_together_come_one_after_the_other() -> None:
    result, fetched = run(plan(realise(one_layer((0, 1)), 0), cache_bytes=EXPERT, predictor="none"))
    assert fetched == ["w0.0", "w0.1"]
    assert result.peak_breakdown["hbm"]["expert"] == EXPERT
    assert result.makespan_ns == UNTIL_DECIDED + 2 * (INSPECT + EXPERT + FFN) + COMBINE


def test_a_wrong_prefetch_that_fills_the_cache_gives_way_when_it_has_arrived() -> None:
    # 1 byte takes 4 ns: the wrong one is under way from 5 to 165, the gate's decision known at 120
    toy = moe_toy.machine()
    slow = replace(toy, channels=(Channel("h2d", "ddr", "hbm", 250_000_000), toy.channels[1]))
    made = plan(realise(one_layer((0,), (1,)), 1), hardware=slow, cache_bytes=EXPERT)
    result, fetched = run(made, hardware=slow)
    assert fetched == ["w0.0?", "w0.1"]
    assert result.makespan_ns == INSPECT + 4 * EXPERT + 4 * EXPERT + FFN + COMBINE


def test_experts_without_a_home_below_get_one() -> None:
    routing = one_layer((0,), (0,))
    tensors = tuple(replace(t, home=None) for t in routing.graph.tensors)
    made = plan(
        realise(Routing(Graph("moe", tensors, routing.graph.ops), routing.gates, routing.steps), 1),
        cache_bytes=100,
    )
    assert {made.graph.tensors[t].name: where for t, where in made.initial.items()} == {
        f"w0.{e}": ("ddr",) for e in range(5)
    }
    assert run(made)[1] == ["w0.0?"]


def test_where_everything_fits_nothing_is_dynamic() -> None:
    routing = one_layer((0,), (0,))
    tensors = tuple(replace(t, home=None) for t in routing.graph.tensors)
    graph = realise(
        Routing(Graph("moe", tensors, routing.graph.ops), routing.gates, routing.steps), 1
    )
    assert (plan(graph).runtime, plan(graph).cache_ops) == (None, ())
    assert plan(graph, static_peak(graph).bytes - 1).runtime is not None


def test_experts_without_a_home_below_live_in_the_fastest_tier_or_where_the_rule_says() -> None:
    routing = one_layer((0,), (0,))
    graph = realise(
        replace(
            routing,
            graph=Graph(
                "moe",
                tuple(replace(t, home=None) for t in routing.graph.tensors),
                routing.graph.ops,
            ),
        ),
        1,
    )
    toy = moe_toy.machine()
    up, down = (
        next(c for c in toy.channels if toy.device_tier == end(c))
        for end in (lambda c: c.destination, lambda c: c.source)
    )
    pool = replace(toy.tiers[-1], name="pool")
    ways = (
        replace(
            up, name="pool_read", source="pool", bandwidth_bytes_per_s=2 * up.bandwidth_bytes_per_s
        ),
        replace(
            down,
            name="pool_write",
            destination="pool",
            bandwidth_bytes_per_s=2 * down.bandwidth_bytes_per_s,
        ),
    )
    machine = replace(toy, tiers=(*toy.tiers, pool), channels=(*toy.channels, *ways))
    for asked, tier in (({}, "pool"), ({"placement": "nearest"}, "ddr")):
        assert set(plan(graph, hardware=machine, cache_bytes=100, **asked).initial.values()) == {
            (tier,)
        }


def test_experts_two_hops_away() -> None:
    toy = moe_toy.machine()
    far = replace(
        toy,
        tiers=(*toy.tiers, replace(toy.tiers[1], name="nvme")),
        channels=(
            *toy.channels,
            Channel("up", "nvme", "ddr", 10**9),
            Channel("down", "ddr", "nvme", 10**9),
        ),
    )
    routing = one_layer((0,), (1,))
    tensors = tuple(
        replace(t, home="nvme" if t.kind == "expert" else None) for t in routing.graph.tensors
    )
    graph = realise(
        Routing(Graph("moe", tensors, routing.graph.ops), routing.gates, routing.steps), 1
    )
    result, fetched = run(plan(graph, hardware=far), hardware=far)
    assert fetched == ["w0.0?", "w0.1"]
    assert result.stall_ns["transfer"] == 2 * EXPERT


# ------------------------------------------------------------------------------------------------
# what is kept, what is known


def missed(trace: list[tuple[int, ...]], capacity: int, *, often: bool) -> list[int]:
    """What a cache of so many experts fetches: a simulation of its own. ``often``: the least
    frequently used gives way.
    """
    held: list[int] = []  # the least recently used first
    found = []
    for at, chosen in enumerate(trace):
        for e in chosen:
            if e in held:
                held.append(held.pop(held.index(e)))
        for e in chosen:
            if e in held:
                continue
            found.append(e)
            if len(held) == capacity:
                may_go = [h for h in held if h not in chosen]
                times = {h: sum([h in step for step in trace[: at + 1]]) for h in may_go}
                held.remove(min(may_go, key=lambda h: times[h]) if often else may_go[0])
            held.append(e)
    return found


TRACES = st.integers(1, 2).flatmap(
    lambda top: st.lists(
        st.lists(st.integers(0, 4), min_size=top, max_size=top, unique=True).map(
            lambda c: tuple(sorted(c))
        ),
        min_size=1,
        max_size=9,
    )
)


def fetched_by(trace: list[tuple[int, ...]], capacity: int, **given) -> list[int]:
    made = plan(
        realise(one_layer(*trace), range(len(trace))),
        cache_bytes=capacity * EXPERT,
        predictor="none",
        **given,
    )
    return [int(name.rpartition(".")[2]) for name in run(made)[1]]


@given(TRACES, st.integers(2, 5))
def test_what_gives_way(trace: list[tuple[int, ...]], capacity: int) -> None:
    by_time, by_count = fetched_by(trace, capacity), fetched_by(trace, capacity, keeps="lfu")
    assert by_time == missed(trace, capacity, often=False)
    assert by_count == missed(trace, capacity, often=True)
    assert len(fetched_by(trace, capacity + 1)) <= len(by_time)  # a stack algorithm


@given(TRACES, st.integers(2, 5), st.sampled_from([0.0, 0.3, 0.8, 1.0]), st.integers(0, 3))
def test_a_prediction_of_a_known_hit_rate(
    trace: list[tuple[int, ...]], capacity: int, hit_rate: float, seed: int
) -> None:
    graph = realise(one_layer(*trace), range(len(trace)))
    result, fetched = run(
        plan(
            graph,
            cache_bytes=capacity * EXPERT,
            predictor="predicted",
            hit_rate=hit_rate,
            seed=seed,
        )
    )
    assert not {int(name[3:-1]) for name in fetched if name.endswith("?")} - {
        e for step in trace for e in step
    }
    if hit_rate in (0.0, 1.0):
        known = run(
            plan(graph, cache_bytes=capacity * EXPERT, predictor="perfect" if hit_rate else "none")
        )
        assert (result.makespan_ns, result.stall_ns, fetched) == (
            known[0].makespan_ns,
            known[0].stall_ns,
            known[1],
        )


def test_how_many_are_predicted() -> None:
    """Of 400 decisions with a hit rate of 0.7 and room for nothing but one expert."""
    trace = [(n % 5,) for n in range(400)]
    _, fetched = run(
        plan(
            realise(one_layer(*trace), range(400)),
            cache_bytes=EXPERT,
            predictor="predicted",
            hit_rate=0.7,
        )
    )
    assert len(fetched) == 400
    assert sum([name.endswith("?") for name in fetched]) == pytest.approx(280, abs=40)


def test_the_hottest_stay() -> None:
    # before: 1 twice, 3 and 0 once; two of the three places are for what stays, 1 and 0; 2 and 4
    # pass through the third
    trace = [(1,), (3,), (0,), (1,), (2,), (0,), (4,), (2,), (1,), (0,)]
    made = plan(
        realise(one_layer(*trace), range(4, 10)),
        cache_bytes=3 * EXPERT,
        predictor="none",
        keeps="hottest",
    )
    result, fetched = run(made)
    assert fetched == ["w0.2", "w0.4", "w0.2"]
    assert {made.graph.tensors[t].name for t, where in made.initial.items() if "hbm" in where} == {
        "w0.0",
        "w0.1",
    }
    assert "the steps before" in result.notes[-1]
    # without steps before, over these: 0 and 2 twice, 1 and 4 once
    itself = plan(
        realise(one_layer(*trace[4:]), range(6)),
        cache_bytes=3 * EXPERT,
        predictor="none",
        keeps="hottest",
    )
    assert run(itself)[1] == ["w0.4", "w0.1"]
    assert "the steps before" not in run(itself)[0].notes[-1]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("static_split", "(clairvoyant)"),
        ("belady", "(clairvoyant)"),
        ("on_demand", "(on demand)"),
        ("hybrid", "(predicted: previous)"),
        ("hybrid:predictor=none", "(on demand)"),
        ("hybrid:predictor=perfect:keeps=lfu", "the least frequently used give way"),
        (
            "hybrid:predictor=predicted:hit_rate=0.9:seed=2",
            "90% of what each gate chooses before it does, drawn with seed 2",
        ),
        ("hybrid:keeps=hottest", "(hottest)"),
    ],
)
def test_every_result_says_what_its_plan_knew(policy: str, said: str) -> None:
    graph = realise(one_layer((0,), (1,), (0,)), range(3))
    (result,) = compare(questions(graph, moe_toy.machine(), [parse_choice(policy)], 200))
    (line,) = [line for line in result.notes if line.startswith("knew: ")]
    assert said in line
    (alone,) = compare(
        questions(moe_toy.graph(1, 2), moe_toy.machine(), [parse_choice("static_split")], 200)
    )
    assert not [line for line in alone.notes if line.startswith("knew: ")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keeps": "fifo"}, "keeps: expected one of lru, lfu, hottest, got 'fifo'"),
        ({"hit_rate": 1.5}, "hit_rate: expected a share from 0 to 1, got 1.5"),
    ],
)
def test_values_that_hybrid_has_not(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(realise(one_layer((0,)), 0), **wrong)


# --------------------------------------------------------------------------------------------------
# backbone

WEIGHT = 100
TRACED = generate(
    *(lambda r: (r.graph, r.gates))(moe_toy.routing(4, 8, weight=WEIGHT)),
    steps=8,
    top=2,
    seed=7,
    persistence=0.6,
)
BACKBONE = 4 * WEIGHT + 8  # four weights, and the little that is passed on


@pytest.mark.parametrize("budget", [BACKBONE + 160, 450, 400, 360])
def test_the_backbone_is_planned_as_if_there_were_no_experts(budget: int) -> None:
    made = [plan(realise(TRACED, step), budget, cache_bytes=160) for step in (2, 5)]
    names = [[(c.op, p.graph.tensors[c.tensor].name, c.after) for c in p.cache_ops] for p in made]
    assert names[0] == names[1]  # the routing has no part in it
    marked = {p.graph.tensors[t].name for p in made for t in routed(p.graph).marked}
    assert not marked & {name for _, name, _ in names[0]}
    assert bool(names[0]) == (budget < BACKBONE + 160)
    for p in made:
        result, _ = run(p, budget)
        assert result.peak_bytes["hbm"] <= budget
        assert result.peak_breakdown["hbm"].get("expert", 0) <= 160
        assert result.plan["prefetches"] > p.count(PREFETCH)
        assert result.plan["detaches"] >= p.count(DETACH)


@pytest.mark.parametrize("predictor", ["previous", "popular", "none", "perfect"])
@pytest.mark.parametrize("cache", [40, 80, 120, 200])
def test_it_fits_wherever_the_backbone_does_beside_the_cache(predictor: str, cache: int) -> None:
    graph = realise(TRACED, range(1, 5))
    for rest in (110, 140, 210, 250, 310, 330, 420):
        result, _ = run(
            plan(graph, cache + rest, cache_bytes=cache, predictor=predictor), cache + rest
        )
        assert result.peak_bytes["hbm"] <= cache + rest
        assert result.peak_breakdown["hbm"].get("expert", 0) <= cache


def test_a_prefetch_of_the_backbone_that_waits_for_room_does_not_take_the_experts() -> None:
    # Beside a cache of 40, the backbone has 100: p (60) until `last` has used it, then q (80),
    # whose prefetch has waited since time 0.
    b = GraphBuilder("waiting")
    (
        b.tensor("p", 60, "parameter", home="ddr"),
        b.tensor("q", 80, "parameter", home="ddr"),
        b.tensor("w", EXPERT, "expert", home="ddr"),
    )
    b.op("first", "matmul", inputs=["p"], duration_ns=10)
    b.op("gate", "matmul", duration_ns=10)
    b.op("expert", "matmul", inputs=["w"], duration_ns=10)
    b.op("last", "matmul", inputs=["p"], duration_ns=10)
    b.op("next", "matmul", inputs=["q"], duration_ns=10)
    built = b.build()
    graph = realise(Routing(built, gates_of(built, {"gate": [(["w"], ["expert"])]}), (((0,),),)), 0)
    t, i = graph.tensor_index, graph.op_index
    eager = (
        CacheOp(PREFETCH, t["p"], "ddr", "hbm"),
        CacheOp(PREFETCH, t["q"], "ddr", "hbm"),
        CacheOp(DETACH, t["p"], "hbm", None, i["last"]),
        CacheOp(DETACH, t["q"], "hbm", None, i["next"]),
    )
    alone = replace(
        graph,
        ops=tuple(
            replace(op, inputs=tuple(u for u in op.inputs if u != t["w"])) for op in graph.ops
        ),
    )
    backbone = Plan(alone, "hybrid", eager)
    result = replay(backbone, moe_toy.machine(), 100, record=True)
    assert result.timeline is not None
    assert [x.start_ns for x in result.timeline.transfers] == [0, 100]
    kept = as_started(backbone, result.timeline, "hbm")
    assert [(c.op, graph.tensors[c.tensor].name, c.after) for c in kept] == [
        ("prefetch", "p", -1),
        ("prefetch", "q", i["last"]),
        ("detach", "p", i["last"]),
        ("detach", "q", i["next"]),
    ]
    view = routed(graph)
    assert view is not None
    decide = Deciding(
        expert_table(graph, view, EXPERT, "hbm", {t["w"]: ("ddr", "hbm")}), Rule("none")
    )
    assert not replay(Plan(graph, "hybrid", eager, {}, decide), moe_toy.machine(), 140).feasible
    beside, _ = run(Plan(graph, "hybrid", tuple(kept), {}, decide), 140)
    # p until 60, first and gate until 80, the runtime until 85, the expert's bytes until 125,
    # expert and last until 145, q until 225
    assert beside.makespan_ns == 235


def test_without_routing_it_is_hyperoffload() -> None:
    graph = moe_toy.graph(2, 2)
    made, ours = plan(graph, 200), policy_named("hyperoffload").plan(graph, moe_toy.machine(), 200)
    assert made.runtime is None
    assert (made.cache_ops, dict(made.initial)) == (ours.cache_ops, dict(ours.initial))


# ------------------------------------------------------------------------------------- four layers,
# eight experts, top two


def test_four_layers_of_eight_experts_with_two_each() -> None:
    routing = moe_toy.routing(4, 8)
    traced = generate(routing.graph, routing.gates, steps=2, top=2, seed=1)
    graph = realise(traced, 1)
    # nobody predicted: of two misses the second comes while the first computes
    none, fetched = run(plan(graph, predictor="none"))
    assert none.makespan_ns == 4 * (UNTIL_DECIDED + INSPECT + EXPERT + 2 * FFN + COMBINE)
    assert len(fetched) == 8
    # all predicted: nothing waits, but for the runtime, once at the start and once a gate
    perfect, fetched = run(plan(graph, predictor="perfect"))
    assert perfect.makespan_ns == INSPECT + 4 * (UNTIL_DECIDED + INSPECT + 2 * FFN + COMBINE)
    assert len(fetched) == 8
    # a reactive runtime inspects every op: five a layer
    machine = moe_toy.machine()
    reactive = replay(policy_named("on_demand").plan(graph, machine, 1000), machine, 1000)
    assert reactive.stall_ns["runtime"] == 4 * 5 * INSPECT
    assert reactive.makespan_ns > none.makespan_ns > perfect.makespan_ns


def test_a_seed_is_a_result() -> None:
    routing = moe_toy.routing(4, 8)
    traces = [
        generate(routing.graph, routing.gates, steps=6, top=2, seed=seed) for seed in (1, 1, 2)
    ]
    graphs = [realise(trace, range(6)) for trace in traces]
    results = [run(plan(graph, 300, cache_bytes=160), 300) for graph in graphs]
    assert results[0] == results[1]
    assert results[0][0].timeline == results[1][0].timeline
    assert results[0][1] != results[2][1]


# --------------------------------------------------------------------------------------------------
# what is refused


def test_a_cache_that_holds_no_expert() -> None:
    with pytest.raises(
        InfeasibleError, match=r"an op uses 40 B .* of experts, which the cache of 39 B cannot hold"
    ):
        plan(realise(one_layer((0,)), 0), cache_bytes=39)


def test_a_backbone_that_does_not_fit_beside_the_cache() -> None:
    with pytest.raises(
        InfeasibleError, match="beside a cache of 160 B for experts, the backbone does not fit"
    ):
        plan(realise(TRACED, 0), 200, cache_bytes=160)


def test_the_default_cache_shrinks_until_the_backbone_fits() -> None:
    # of 145 bytes the backbone needs 102 for its largest op: that leaves one expert
    made = plan(realise(TRACED, 0), 145)
    assert isinstance(made.runtime, Deciding)
    assert made.runtime.table.cache_bytes == EXPERT
    run(made, 145)
    # with room for all, all may stay
    roomy = plan(
        realise(TRACED, 0), 10_000, replace(moe_toy.machine(), tiers=moe_toy.machine(10_000).tiers)
    )
    assert isinstance(roomy.runtime, Deciding)
    assert roomy.runtime.table.cache_bytes == 32 * EXPERT


def test_an_unknown_predictor() -> None:
    with pytest.raises(
        InputError,
        match="policy hybrid: predictor: expected one of previous, popular, none, perfect, "
        "predicted, got 'oracle'",
    ):
        plan(realise(one_layer((0,)), 0), predictor="oracle")
