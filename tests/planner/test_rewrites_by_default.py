"""Recomputation and re-ordering by default: where the workload says that its ops may, where something waits, and nowhere else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from instances import instances
from quick_cases import one_in
from toys import layers, two_tiers
from typer.testing import CliRunner

from hosim.analysis import canonical, static_peak
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.cli.main import app
from hosim.edits import COLLECTIVE_KINDS, Edits, Recompute, edited, is_random, is_repeatable, why_once
from hosim.engine import parse_budget, replay
from hosim.errors import GraphError, InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Hardware, Tier
from hosim.io import load_hardware, make, save_hardware, save_workload
from hosim.models import build
from hosim.planner.hyperoffload import bound_ns, pipeline
from hosim.planner.rewrites import graph_rewrites, promising, reorder
from hosim.policies import policy_named
from hosim.policies.own import RIVALS
from hosim.shipped import find_hardware
from hosim.study.asked import RECOMPUTE, REORDER, parse_choice, without

SLOW = two_tiers(0.1)
"""A tensor of 4 B takes 40 ns each way."""


def planned(graph: Graph, hardware: Hardware, budget: int, **parameters: object) -> Plan:
    plan = policy_named("hyperoffload").plan(graph, hardware, budget, effort=0.05, **parameters)
    assert verify(plan, hardware, budget) == ()
    return plan


def test_recomputation_is_tried_where_the_workload_says_that_ops_may_run_again():
    """Six tensors have to go: their transfers take 480 ns, six relus 6 ns. A recording without such a mark moves, as before."""
    marked, bare = layers(8, repeatable=True), layers(8)
    budget = static_peak(bare).bytes - 24
    busy = sum(op.duration_ns or 0 for op in bare.ops)
    by_default = planned(marked, SLOW, budget)
    assert by_default.recomputes > 0
    assert replay(by_default, SLOW, budget).makespan_ns <= busy + 8
    for moving in (planned(bare, SLOW, budget), planned(marked, SLOW, budget, recompute=False)):
        assert moving.recomputes == 0
        assert replay(moving, SLOW, budget).makespan_ns > busy + 8
    asked = planned(bare, SLOW, budget, recompute=True)
    assert asked.edits is not None
    assert asked.edits.recompute == by_default.edits.recompute  # the mark is a default: who asks gets it anywhere


@pytest.mark.parametrize("meta", [{}, {"repeatable": False}, {"repeatable": "yes"}, {"repeatable": 1}])
def test_nothing_but_a_plain_true_is_the_mark(meta):
    assert is_repeatable(layers(1, repeatable=True))
    assert not is_repeatable(layers(1, **meta))


@pytest.mark.parametrize("above", [0, 1])
def test_only_graphs_of_so_many_ops_and_with_waits_are_planned_more_than_once(monkeypatch, above):
    graph = layers(8, repeatable=True)
    budget = static_peak(graph).bytes - 24
    searches = []

    def search(searched, *args, **kwargs):
        searches.append(len(searched.ops))
        return plain(searched, *args, **kwargs)

    plain = pipeline.search
    monkeypatch.setattr(pipeline, "search", search)
    monkeypatch.setattr(graph_rewrites, "MOST_OPS", len(graph.ops) - above)
    assert bool(planned(graph, SLOW, budget).recomputes) == (not above)
    assert (len(searches) > 2) == (not above)
    searches.clear()
    planned(graph, SLOW, static_peak(graph).bytes)  # fits
    assert searches == [24]
    searches.clear()
    planned(graph, two_tiers(10), budget)  # all transfers hide
    assert searches == [24]


@pytest.mark.parametrize("small", [False, True])
def test_variants_are_compared_briefly_and_the_best_one_is_planned_with_all_effort(monkeypatch, small):
    """A brief plan is one of the first sweeps: no placement rule, no search; on small graphs there are both, as these take little time.

    No variant of a graph of up to 200 ops is weighed by its lower bound.
    """
    graph = layers(8, repeatable=True)
    budget = static_peak(graph).bytes - 24
    searches = noted_searches(monkeypatch)
    monkeypatch.setattr(graph_rewrites, "_QUICK", 100 if small else 0)
    monkeypatch.setattr(graph_rewrites, "bound_ns", lambda *_: pytest.fail("its bound takes longer than its plan"))
    best = planned(graph, two_tiers_and_a_pool(), budget)
    assert [brief for _, brief, _, _ in searches] == [not small] * (len(searches) - 2) + [False] * 2
    assert bool(searches[0][3]) == small  # the graph as it is waits; its variants do not
    assert not any([tried for _, brief, _, tried in searches if brief])
    variant, as_it_is = searches[-2:]
    assert (as_it_is[0], variant[0]) == (24, len(best.graph.ops))
    assert as_it_is[2] == variant[2] == 0.05
    assert "placement nearest" in as_it_is[3]
    assert best.recomputes


@pytest.mark.parametrize(("quick", "alike", "brief"), [(0, -1, [True, False]), (0, 100, [True]), (100, -1, [False])])
def test_all_passes_compare_variants_where_brief_plans_find_none(monkeypatch, quick, alike, brief):
    """If such a plan of the graph as it is is much better than the brief one; on small graphs no plan is brief."""
    graph = layers(8, repeatable=True)
    budget = static_peak(graph).bytes - 24
    compared = []
    best_variant = graph_rewrites._best_variant
    monkeypatch.setattr(
        graph_rewrites,
        "_best_variant",
        lambda run, orders: compared.append(run.brief) or (best_variant(run, orders) if len(compared) > 1 else None),
    )
    monkeypatch.setattr(graph_rewrites, "_QUICK", quick)
    monkeypatch.setattr(graph_rewrites, "_ALIKE", alike)  # -1: any difference is more than that
    searches = noted_searches(monkeypatch)
    best = planned(graph, two_tiers_and_a_pool(), budget)
    assert compared == brief
    assert bool(best.recomputes) == (len(brief) > 1)
    if best.recomputes:
        assert [brief for _, brief, _, _ in searches] == [True] + [False] * (len(searches) - 1)
        assert "placement nearest" in searches[1][3]


def noted_searches(monkeypatch):
    """The ops of each graph that is planned from now on, whether briefly, with what effort, and what was tried."""
    searches = []

    def search(searched, *args, **kwargs):
        outcome = plain(searched, *args, **kwargs)
        searches.append((len(searched.ops), kwargs["brief"], kwargs["effort"], outcome.plan.judgement.tried))
        return outcome

    plain = pipeline.search
    monkeypatch.setattr(pipeline, "search", search)
    return searches


@pytest.mark.parametrize(
    ("far", "small", "bound_ns", "number"), [(0, 200, 0, 2), (10**9, 200, 0, 1), (0, 0, 0, 2), (0, 0, 10**9, 1), (0, 200, 10**9, 2)]
)
def test_the_graph_as_it_is_gets_all_effort_only_where_it_may_still_win(monkeypatch, far, small, bound_ns, number):
    """Not where its brief plan is far slower than the best variant's, nor where its lower bound is no less; small graphs have none."""
    graph = canonical(layers(8, repeatable=True))
    budget = static_peak(graph).bytes - 24
    monkeypatch.setattr(graph_rewrites, "_FAR", far)
    monkeypatch.setattr(graph_rewrites, "SMALL", small)
    monkeypatch.setattr(graph_rewrites, "bound_ns", lambda searched, *_: bound_ns if searched is graph else 0)
    searches = noted_searches(monkeypatch)
    best = planned(graph, SLOW, budget)
    assert best.recomputes
    assert [count for count, _, effort, _ in searches if effort] == [len(best.graph.ops), 24][:number]


def two_tiers_and_a_pool() -> Hardware:
    """As ``SLOW``, with a tier more for which placement has rules."""
    tiers = (*SLOW.tiers, Tier("pool", 10**6, 10**9))
    channels = (*SLOW.channels, Channel("up_pool", "pool", "hbm", 10**8), Channel("down_pool", "hbm", "pool", 10**8))
    return replace(SLOW, tiers=tiers, channels=channels)


def test_an_order_alone_is_tried_too():
    """Each of four arms makes 10 B that its end reads. In the listed order four of them wait at a time, in another one."""
    b = GraphBuilder("arms", {"repeatable": True})
    b.tensor("x", 1, "input")
    for i in range(4):
        b.op(f"f{i}", "matmul", inputs=["x"], outputs=[b.tensor(f"a{i}", 10)], duration_ns=5)
    for i in range(4):
        b.op(f"g{i}", "sum", inputs=[f"a{i}"], outputs=[b.tensor(f"s{i}", 1)], duration_ns=5)
    b.op("end", "add", inputs=[f"s{i}" for i in range(4)], duration_ns=5)
    graph = b.build()
    plan = planned(graph, SLOW, 20)
    assert (plan.edits.order != (), plan.cache_ops, plan.recomputes) == (True, (), 0)
    assert replay(plan, SLOW, 20).makespan_ns == 45
    kept = planned(graph, SLOW, 20, reorder=False, recompute=False)
    assert kept.edits is None
    assert replay(kept, SLOW, 20).makespan_ns > 45


@pytest.mark.parametrize(("random", "peak"), [([], 41), (["f0"], 41), (["f0", "f1"], 51)])
def test_random_ops_keep_their_order(random, peak):
    """f0 makes 10 B for g0, f1 40 B for g1, whose 1 B g0 reads too: f1 and g1 first take 41 B, f0 first 51 B. Random ops draw in turn."""
    b = GraphBuilder("draws", {"repeatable": True, "random": random})
    b.op("f0", "matmul", outputs=[b.tensor("a0", 10)], duration_ns=5)
    b.op("f1", "matmul", outputs=[b.tensor("a1", 40)], duration_ns=5)
    b.op("g1", "sum", inputs=["a1"], outputs=[b.tensor("s1", 1)], duration_ns=5)
    b.op("g0", "sum", inputs=["a0", "s1"], outputs=[b.tensor("s0", 1)], duration_ns=5)
    graph = b.build()
    assert static_peak(graph).bytes == 51
    assert static_peak(reorder(graph, [5] * 4, 20)).bytes == peak


@pytest.mark.parametrize(("kind", "random", "why"), [
    *((kind, [], "wait for other devices") for kind in sorted(COLLECTIVE_KINDS)),
    ("dropout", [], "is random"),
    ("attention", ["f"], "is random"),
    ("attention", ["g"], ""),
    ("attention", "f", ""),
])  # fmt: skip
def test_which_ops_run_once(kind, random, why):
    b = GraphBuilder("one", {"repeatable": True, "random": random})
    b.tensor("x", 4, "input")
    b.op("f", kind, inputs=["x"], outputs=[b.tensor("a", 4)], duration_ns=1)
    b.op("g", "add", inputs=["a"], duration_ns=1)
    b.op("h", "add", inputs=["a"], duration_ns=1)
    graph = b.build()
    assert why in why_once(graph, graph.ops[0])
    assert bool(why) == bool(why_once(graph, graph.ops[0]))
    again = [Recompute("f", "h", "f~2")]
    if why:
        with pytest.raises(GraphError, match=why):
            edited(graph, recompute=again)
    else:
        assert len(edited(graph, recompute=again).ops) == 4


@pytest.mark.parametrize(("seeded", "again"), [(True, True), (False, False), ("yes", False), (1, False)])
@pytest.mark.parametrize(("kind", "random"), [("dropout", []), ("attention", ["f"])])
def test_random_ops_run_again_where_their_generator_is_set_back(kind, random, seeded, again):
    b = GraphBuilder("seeded", {"repeatable": True, "random": random, "seeded": seeded})
    b.tensor("x", 4, "input")
    b.op("f", kind, inputs=["x"], outputs=[b.tensor("a", 4)], duration_ns=1)
    b.op("g", "add", inputs=["a"], duration_ns=1)
    graph = b.build()
    assert bool(why_once(graph, graph.ops[0])) is not again


@pytest.mark.parametrize(("rate", "phase", "seeded"), [(0.1, "train", True), (0.0, "train", None), (0.1, "forward", None)])
def test_built_steps_with_dropout_are_seeded(rate, phase, seeded):
    """Their checkpointed layers draw dropout's masks again."""
    config = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "dropout": rate}
    graph = build("b", {"model": "bert-large", "config": config, "phase": phase, "sequence": 4, "batch": 1})
    assert graph.meta.get("seeded") is seeded


@pytest.mark.long
def test_no_worse_than_any_policy_where_the_graph_is_changed():
    graph = layers(6, repeatable=True)
    for cut in (8, 16, 24, 32):
        budget = static_peak(graph).bytes - cut
        ours = replay(planned(graph, SLOW, budget), SLOW, budget).makespan_ns
        for name in RIVALS:
            result = replay(policy_named(name).plan(graph, SLOW), SLOW, budget)
            assert not result.feasible or ours <= result.makespan_ns


@pytest.mark.parametrize("repeatable", one_in(2, [True, False]))
def test_no_effort_is_no_worse_than_other_policies(repeatable):
    compared = 0
    for case in instances(4, seed=5):
        graph = Graph(case.graph.name, case.graph.tensors, case.graph.ops, {"repeatable": repeatable})
        others = []
        for name in RIVALS:
            try:
                result = replay(policy_named(name).plan(graph, case.hardware, case.budget_bytes), case.hardware, case.budget_bytes)
            except InfeasibleError:
                continue
            others += [result.makespan_ns] if result.feasible and not policy_named(name).runtime else []
        if others:
            plan = policy_named("hyperoffload").plan(graph, case.hardware, case.budget_bytes, effort=0.0)
            assert replay(plan, case.hardware, case.budget_bytes).makespan_ns <= min(others)
            compared += 1
    assert compared >= 3


@pytest.mark.long
def test_gpt2_xl_of_six_layers_at_three_quarters():
    """144.7 ms once without recomputation."""
    model = {"model": "gpt2-xl", "phase": "train", "batch": 4, "sequence": 1024, "layers": 6, "fused": True}
    graph = make({"format": "hosim.spec/1", "name": "gpt2-xl", "builder": model}, "gpt2-xl")
    hardware = load_hardware(find_hardware("a100-80gb-sxm"))
    budget = parse_budget("75%", graph, hardware)[1]
    plan = policy_named("hyperoffload").plan(graph, hardware, budget, effort=0.0)
    assert plan.recomputes > 0
    assert replay(plan, hardware, budget).makespan_ns < 67_000_000


def t5_of_four_layers(share: str, **more: object) -> tuple[Graph, Hardware, int]:
    model = {"model": "t5-large", "phase": "train", "batch": 8, "sequence": 512, "layers": 4, **more}
    graph = make({"format": "hosim.spec/1", "name": "t5", "builder": model}, "t5")
    hardware = load_hardware(find_hardware("h100-80gb-sxm"))
    return graph, hardware, parse_budget(share, graph, hardware)[1]


def test_orders_that_hold_as_much_are_told_apart_by_their_lower_bounds():
    """Updates at the end, as listed, or each right after its gradient: the peak is the same, but not how much has to move when."""
    graph, hardware, budget = t5_of_four_layers("45%")
    run = graph_rewrites._RewriteSearch(graph, hardware, budget, 0, replay)
    orders = run.orders(reorder=True, recompute=True)
    assert len({order.edits.order for order in orders}) == 3
    run.attempt(graph, Edits(graph), 0.0)
    variants = [order.by(recipe) for order in orders for recipe in ((2, 1), (8, 1), 1.0)]
    waits_ns = run.best.cost.makespan_ns - run.problem.horizon_ns
    held = promising(variants, waits_ns)[:2]
    chosen = graph_rewrites._worth_planning(run, variants, waits_ns)
    bounds = {id(variant): bound_ns(variant.graph, hardware, budget) for variant in variants}
    by_bound = [variant for least_ns, variant in chosen if least_ns]
    assert chosen[0][0] == min(bounds.values()) == bounds[id(chosen[0][1])]
    assert [least_ns for least_ns, _ in chosen if least_ns] == sorted(bounds[id(variant)] for variant in by_bound)
    assert len(by_bound) == 4
    assert len({variant.edits.order for variant in by_bound}) >= 2
    assert all(any(variant is other for _, other in chosen) for variant in held)  # and those that hold least, whatever their bounds


@pytest.mark.long
@pytest.mark.parametrize(("share", "before_ns"), [("60%", 37_705_079), ("45%", 60_654_170), ("30%", 108_278_805)])
def test_updates_that_follow_their_gradients_are_tried_where_they_hold_no_less(share, before_ns):
    """``before_ns`` is what the plan took when the one other order tried was the one that holds least, and no dropout ran again."""
    graph, hardware, budget = t5_of_four_layers(share)
    graph = replace(graph, meta={**graph.meta, "seeded": False})
    plan = policy_named("hyperoffload").plan(graph, hardware, budget, effort=0.0)
    assert verify(plan, hardware, budget) == ()
    assert plan.edits is not None
    assert plan.edits.order
    assert replay(plan, hardware, budget).makespan_ns < 0.96 * before_ns


@pytest.mark.long
def test_the_least_bound_gets_all_effort_where_plans_with_little_tell_nothing():
    """On a slow card the variant with the least bound looks worse than the graph as it is, until it is searched: 561 ms, then 469."""
    model = {"model": "phi-4-mini", "phase": "train", "batch": 1, "sequence": 2048, "layers": 6, "fused": True}
    graph = make({"format": "hosim.spec/1", "name": "phi", "builder": model}, "phi")
    hardware = load_hardware(find_hardware("l40s"))
    budget = parse_budget("60%", graph, hardware)[1]
    run = graph_rewrites._RewriteSearch(graph, hardware, budget, 0, replay)
    orders = run.orders(reorder=True, recompute=True)
    run.attempt(graph, Edits(graph))
    found = graph_rewrites._best_variant(run, orders)
    assert run.unsure(found)
    second = run.second(found)
    assert second is not None
    assert run.least_ns(second) == min(run.least_ns(variant) for variant in run.bounded)
    assert run.least_ns(second) < run.best.cost.makespan_ns
    assert run.second(second) is None


@pytest.mark.long
@pytest.mark.parametrize(("share", "before_ns"), [("60%", 30_240_590), ("45%", 54_565_960), ("30%", 96_270_890)])
def test_dropout_that_may_run_again_is_run_again(share, before_ns):
    """``before_ns`` is what the plan took when no random op ran again; one for the step with checkpointed layers takes no less, either."""
    graph, hardware, budget = t5_of_four_layers(share)
    plan = policy_named("hyperoffload").plan(graph, hardware, budget)
    assert verify(plan, hardware, budget) == ()
    assert any(is_random(graph, graph.ops[graph.op_index[entry.op]]) for entry in plan.edits.recompute)
    makespan_ns = replay(plan, hardware, budget).makespan_ns
    assert makespan_ns < 0.9 * before_ns
    checkpointed, *_ = t5_of_four_layers(share, checkpoint=True)
    rival = policy_named("hyperoffload").plan(checkpointed, hardware, budget)
    assert makespan_ns <= 1.01 * replay(rival, hardware, budget).makespan_ns


# ---------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def where(tmp_path: Path) -> list[str]:
    graph = layers(8, repeatable=True)
    save_workload(graph, tmp_path / "w.json")
    save_hardware(SLOW, tmp_path / "slow.yaml")
    return [str(tmp_path / "w.json"), "--hardware", str(tmp_path / "slow.yaml"), "--budget", f"{static_peak(graph).bytes - 24} B"]


def run(*args: str):
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200"})


def test_the_plan_says_that_it_recomputes(where, tmp_path):
    path = str(tmp_path / "p.json")
    made = run("plan", *where, "-o", path)
    count = len(json.loads(Path(path).read_text())["recompute"])
    assert count > 0
    assert f"; runs {count} ops again, so it needs a runtime that repeats ops" in made.stderr
    made = run("plan", *where, "-o", path, "--no-recompute")
    assert "recompute" not in json.loads(Path(path).read_text())
    assert "again" not in made.stderr
    refused = run("plan", *where, "-o", path, "--no-recompute", "-p", "hyperoffload:recompute=true")
    assert refused.exit_code == 2
    assert refused.stderr.strip().endswith("recompute=true is ruled out here; leave it out")


def test_a_comparison_has_the_ops_that_run_again(where):
    shown = run("compare-policies", *where, "-p", "hyperoffload:effort=0.05,g10")
    assert "ops run" in shown.stdout
    results = json.loads(run("compare-policies", *where, "-p", "hyperoffload:effort=0.05,g10", "--json").stdout)["results"]
    assert [bool(result["plan"].get("recomputes")) for result in results] == [True, False]
    shown = run("compare-policies", *where, "-p", "hyperoffload:effort=0.05,g10", "--no-recompute", "--json")
    assert [result["policy"] for result in json.loads(shown.stdout)["results"]] == ["hyperoffload:effort=0.05:recompute=false", "g10"]
    assert "ops run" not in run("compare-policies", *where, "-p", "hyperoffload:effort=0.05,g10", "--no-recompute").stdout


@pytest.mark.parametrize("command", one_in(3, [["blame"], ["frontier", "--points", "2"], ["robustness", "-n", "1"]]))
def test_other_commands_that_plan_take_the_option(where, command):
    asked = "--policies" if command[0] == "robustness" else "--policy"
    shown = run(command[0], *where, *command[1:], asked, "hyperoffload:effort=0.05", "--no-recompute", "--json")
    assert shown.exit_code == 0, shown.output
    assert "recompute=false" in shown.stdout or command[0] == "blame"


def test_export_plans_for_a_runtime_that_keeps_the_graph(where, monkeypatch):
    asked = []
    made = policy_named("hyperoffload").plan

    def plan(graph, hardware, choice, budget):
        asked.append(choice)
        return made(graph, hardware, budget, **choice.parameters)

    monkeypatch.setattr("hosim.study.runs.run_policy.make_plan", plan)
    shown = run("export", *where, "--mindspore", "--trials", "3", "-p", "hyperoffload:effort=0.05", "--json")
    assert shown.exit_code == 3  # none of the three settings fits: what hosim planned is looked at here
    assert [choice.parameters for choice in asked] == [{"effort": 0.05, "recompute": False, "reorder": False}]
    refused = run("export", *where, "--mindspore", "-p", "hyperoffload:reorder=true")
    assert refused.exit_code == 2
    assert "reorder=true is ruled out here; leave it out" in refused.stderr


def test_choices_without_changes_to_the_graph():
    ours, theirs = parse_choice("hyperoffload:seed=1:recompute=false"), parse_choice("lookahead:k=2")
    assert without(ours, RECOMPUTE) is ours
    assert without(theirs, RECOMPUTE, REORDER) is theirs
    assert without(ours, RECOMPUTE, REORDER).label == "hyperoffload:seed=1:recompute=false:reorder=false"
    with pytest.raises(InputError, match=r"policy hyperoffload:reorder=true: reorder=true is ruled out"):
        without(parse_choice("hyperoffload:reorder=true"), REORDER)
