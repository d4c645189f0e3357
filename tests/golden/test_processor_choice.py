"""Ops that may run on several processors, by hand: what a plan chooses, what it may not, and which
choice is the best.
"""

from dataclasses import replace
from importlib.util import find_spec

import pytest
from both_engines import replay
from by_hand import machine, plan, replayed, workload
from test_processors import with_cpu

from hosim.analysis.lower_bounds import bounded
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.edits import Edits
from hosim.errors import GraphError, InputError
from hosim.io import (
    load_plan,
    load_workload,
    plan_from_dict,
    plan_to_dict,
    save_plan,
    save_workload,
)
from hosim.policies import policy_named


def layers(first=60, second=50):
    """f makes x, e1 and e2 run on the device for 20 ns or on the CPU, each with an expert of 100 B,
    b reads the result.
    """
    return workload(
        {
            "w1": (100, "expert"),
            "w2": (100, "expert"),
            "x": (5,),
            "y1": (5,),
            "y2": (5,),
            "z": (5,),
        },
        {
            "f": {"ns": 10, "outputs": ["x"]},
            "e1": {"ns": 20, "inputs": ["w1", "x"], "outputs": ["y1"], "also_on": {"ddr": first}},
            "e2": {"ns": 20, "inputs": ["w2", "y1"], "outputs": ["y2"], "also_on": {"ddr": second}},
            "b": {"ns": 10, "inputs": ["y2"], "outputs": ["z"]},
        },
    )


def by_hand(graph=None):
    """e2 on the CPU, where its expert is from the start."""
    edits = Edits(graph or layers(), processors=(("e2", "ddr"),))
    moved = [("store y1", "e1"), ("detach y1", "e1"), ("prefetch y2", "e2")]
    made = plan(edits.graph(), *moved, initial={"w2": ["ddr"]})
    return replace(made, edits=edits)


def test_a_plan_says_where_an_op_runs(tmp_path):
    # f 0..10, e1 10..30 on the device; y1 goes down 30..35, e2 runs 35..85 on the CPU, y2 comes up
    # 85..90, b 90..100. hbm: w1 100; x 5 from 0 to 30, y1 5 from 10 to 35: 110 in 10..30.
    hardware, made = with_cpu(machine(150)), by_hand()
    assert not verify(made, hardware)
    r = replayed(made, hardware)
    assert r.ops == {"f": (0, 10), "e1": (10, 30), "e2": (35, 85), "b": (90, 100)}
    assert (r.result.makespan_ns, r.result.peak_bytes["hbm"], r.result.plan["moved_ops"]) == (
        100,
        110,
        1,
    )
    assert (made.processors, made.moved_ops) == ({"e2": "ddr"}, 1)
    save_plan(made, tmp_path / "plan.json")
    save_workload(layers(), tmp_path / "layers.json")
    graph = load_workload(tmp_path / "layers.json")
    assert graph == layers()
    assert load_plan(tmp_path / "plan.json", graph) == made


def test_a_graph_without_a_plan_runs_on_its_first_processors():
    # f 0..10, e1 10..30, e2 30..50, b 50..60, all on the device.
    assert replayed(Plan(layers()), with_cpu(machine(300))).ops == {
        "f": (0, 10),
        "e1": (10, 30),
        "e2": (30, 50),
        "b": (50, 60),
    }


@pytest.mark.parametrize(
    ("op", "processor", "expected"),
    [
        ("f", "ddr", "processors.f: op 'f' may not run on 'ddr' (it may on: device)"),
        ("e1", "nvme", "processors.e1: op 'e1' may not run on 'nvme' (it may on: device, ddr)"),
        ("e3", "ddr", "processors.e3: unknown op 'e3'; expected one of 'by hand'"),
    ],
)
def test_a_processor_that_is_not_allowed_is_refused(op, processor, expected):
    data = plan_to_dict(Plan(layers())) | {"processors": {op: processor}}
    with pytest.raises(InputError) as error:
        plan_from_dict(data, layers())
    assert str(error.value) == expected


def test_the_verifier_sees_a_processor_that_is_not_allowed():
    made = by_hand()
    ops = list(made.graph.ops)
    ops[2] = replace(ops[2], duration_ns=40)  # on the CPU it takes 50
    other = replace(made, graph=replace(made.graph, ops=tuple(ops)))
    assert [finding.message for finding in verify(other, with_cpu(machine(150)))] == [
        "op 'e2' is not the op 'e2' of 'by hand'"
    ]
    secretly = replace(made, edits=Edits(layers()))  # on the CPU without saying so
    assert [finding.rule for finding in verify(secretly, with_cpu(machine(150)))] == ["edit"]


def test_what_an_op_may_run_on_is_checked():
    with pytest.raises(GraphError) as error:
        workload({}, {"f": {"ns": 1, "also_on": {"": 2}}})
    assert (
        str(error.value)
        == "ops[0].also_on: op 'f': lists the processor 'device' twice (its own is 'device')"
    )
    with pytest.raises(GraphError) as error:
        workload({}, {"f": {"ns": 1, "also_on": {"ddr": -2}}})
    assert (
        str(error.value)
        == "ops[0].also_on: op 'f': expected a duration of at least 0 and up to 2^63-1, got -2"
    )
    other = "has ops of another processor; give these another stream"
    with pytest.raises(GraphError) as error:
        workload(
            {},
            {
                name: {"ns": 1, "stream": "compute", "processor": "ddr", "also_on": {"": 2}}
                for name in "fg"
            },
        )
    assert (
        str(error.value)
        == f"ops[0].also_on: op 'f' may move to the stream 'compute', which {other}"
    )
    workload(
        {}, {"f": {"ns": 1, "stream": "compute", "processor": "ddr", "also_on": {"": 2}}}
    )  # it takes its stream along
    with pytest.raises(GraphError) as error:
        workload({}, {"g": {"ns": 1, "stream": "ddr"}, "f": {"ns": 1, "also_on": {"ddr": 2}}})
    assert str(error.value) == f"ops[1].also_on: op 'f' may move to the stream 'ddr', which {other}"


SOLVER = pytest.mark.skipif(find_spec("ortools") is None, reason="needs the extra 'solver'")
PROVED = ["hyperoffload", pytest.param("optimal", marks=SOLVER)]


@pytest.mark.parametrize("policy", PROVED)
def test_one_of_two_experts_runs_on_the_cpu_where_only_one_fits(policy):
    # Both on the device take turns in 150 B: one comes up while nothing else can run, 100 ns, and
    # the step takes at least 160. Both on the CPU: x down 10..15, e1 15..75, e2 75..125, y2 up
    # 125..130, b 130..140. e1 alone there: f 0..10, x down 10..15, e1 15..75, y1 up 75..80, e2
    # 80..100, b 100..110. e2 alone there is 100, as above.
    hardware = with_cpu(machine(150))
    made = policy_named(policy).plan(layers(), hardware)
    assert not verify(made, hardware)
    assert (made.processors, made.moved_ops) == ({"e1": "", "e2": "ddr"}, 1)
    result = bounded(replay(made, hardware, 150), made, hardware, 150)
    assert result.makespan_ns == 100
    # That is proved: the bound is the least of those of the four choices.
    assert result.lower_bound_ns == 100


@pytest.mark.parametrize("policy", PROVED)
def test_all_stay_on_the_device_where_they_fit_and_all_leave_it_where_none_does(policy):
    # In 300 B nothing moves: 60 ns. In 60 B no expert fits at all: both run on the CPU, 140 ns as
    # above.
    for budget, makespan, moved in ((300, 60, 0), (60, 140, 2)):
        hardware = with_cpu(machine(budget))
        made = policy_named(policy).plan(layers(), hardware)
        assert not verify(made, hardware)
        assert (replay(made, hardware).makespan_ns, made.moved_ops) == (makespan, moved)


@pytest.mark.parametrize("policy", PROVED)
def test_a_machine_without_that_processor_plans_for_the_device(policy):
    assert policy_named(policy).plan(layers(), machine(300)).edits is None


def test_static_policies_keep_the_first_processor():
    for policy in ("resident", "zero_offload"):
        made = policy_named(policy).plan(layers(), with_cpu(machine(300)))
        assert (made.edits, replay(made, with_cpu(machine(300))).makespan_ns) == (None, 60)


def test_ktransformers_computes_the_experts_on_the_cpu():
    # f 0..10, x goes down 10..15, e1 15..75 and e2 75..125 on the CPU, y2 comes up 125..130, b
    # 130..140.
    made = policy_named("ktransformers").plan(layers(), with_cpu(machine(300)))
    assert made.edits is not None
    assert (made.edits.processors, replay(made, with_cpu(machine(300))).makespan_ns) == (
        (("e1", "ddr"), ("e2", "ddr")),
        140,
    )


def test_the_exact_solver_refuses_more_choices_than_it_tries():
    ops = {f"e{i}": {"ns": 10, "also_on": {"ddr": 20}} for i in range(9)}
    with pytest.raises(
        InputError,
        match=r"tries every choice of processors for up to 8 ops; by hand has 9 that may run on "
        r"several",
    ):
        policy_named("optimal").plan(workload({}, ops), with_cpu(machine()))
