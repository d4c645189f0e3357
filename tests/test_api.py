"""The package's front door: what it names is there, has an executed example, and entering it costs
nothing heavy.
"""

import doctest
import pickle
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
from asked import questions

import hosim
from hosim.analysis.lower_bounds import bounded
from hosim.engine import replay as engine_replay
from hosim.io import hardware_to_dict, load_hardware, save_hardware, workload_to_dict
from hosim.jitter import Jitter
from hosim.planner.hyperoffload.explanations import explain as explained
from hosim.report import to_dict
from hosim.report.drawn import image, replay_figure
from hosim.report.drawn.studies import comparison_figure
from hosim.shipped import find_hardware
from hosim.study import compare
from hosim.study.asked import parse_choice
from hosim.study.runs import make_plan

NAMES = """
    CacheOp ExecutionError Graph GraphBuilder GraphError Hardware HardwareError HosimError InfeasibleError InputError Op
    Plan PlanError Request Result StagesResult Tensor UnitError __version__ blame compare diff explain find_hardware find_workload fit fits
    frontier load load_hardware load_plan load_workload offload offload_callback plan plan_stages plot record replay replay_stages
    robustness runtime_fit save_plan
    save_workload serve serve_fit serve_frontier serve_sweep sweep what_if
"""


def toy() -> hosim.Graph:
    """Three ops of 50 ns, each of which reads a parameter of 40 bytes from DDR: at 1 byte a
    nanosecond the first waits for it.
    """
    b = hosim.GraphBuilder("toy")
    for i in range(3):
        b.tensor(f"w{i}", 40, "parameter", home="ddr")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50)
    return b.build()


def twice() -> hosim.Graph:
    """The same ops, each of which runs twice, so that every parameter lies idle between two
    uses.
    """
    b = hosim.GraphBuilder("twice")
    for i in range(3):
        b.tensor(f"w{i}", 40, "parameter", home="ddr")
    for i in range(6):
        b.op(f"f{i}", "matmul", inputs=[f"w{i % 3}"], duration_ns=50)
    return b.build()


def test_every_public_name_is_there_and_listed() -> None:
    assert sorted(hosim.__all__) == sorted(NAMES.split())
    assert len(hosim.__all__) == len(set(hosim.__all__))
    assert all(getattr(hosim, name) is not None for name in hosim.__all__)
    assert set(hosim.__all__) <= set(dir(hosim))
    with pytest.raises(AttributeError, match="module 'hosim' has no attribute 'nonesuch'"):
        hosim.nonesuch  # noqa: B018


def test_policies_are_attributes_whatever_is_imported() -> None:
    code = (
        "import hosim, hosim.policies.own.rivals; print(*[type(getattr(hosim.policies, "
        "name)).__name__ for name in dir(hosim.policies)])"
    )
    types = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert types.count("Policy") >= 19
    assert hosim.policies.zero_inference.name == "zero_inference"
    assert "policies" in dir(hosim)
    with pytest.raises(
        AttributeError,
        match=r"module 'hosim\.policies' has no policy 'layerwis'; did you mean 'layerwise'",
    ):
        hosim.policies.layerwis  # noqa: B018


@pytest.mark.parametrize("name", [name for name in hosim.__all__ if name != "__version__"])
def test_every_public_name_has_an_example(name: str) -> None:
    named = getattr(hosim, name)
    found = doctest.DocTestFinder(recurse=False).find(
        named, name, globs={**vars(sys.modules[named.__module__])}
    )
    assert any(test.examples for test in found)  # tests/test_docstrings.py runs them


def test_public_functions_stay_functions_whatever_is_imported() -> None:
    names = [name for name in hosim.__all__ if name[0].islower()]
    code = f"""if True:
        import pkgutil, hosim, hosim.cli.main
        inside = [module.name for module in pkgutil.iter_modules(hosim.__path__)]
        print(*sorted(set(inside) & set({names})))
        print(*[type(getattr(hosim, name)).__name__ for name in {names}])
    """
    shared, types = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert shared == ""
    assert types.split() == ["function"] * len(names)


def test_a_plan_is_made_and_replayed_with_names_paths_mappings_and_objects(tmp_path: Path) -> None:
    graph, machine = toy(), load_hardware(find_hardware("toy"))
    plan = hosim.plan(graph, "toy", "layerwise", "80 B")
    assert (
        plan
        == hosim.plan(workload_to_dict(graph), machine, "layerwise", 80)
        == make_plan(graph, machine, parse_choice("layerwise"), 80)
    )
    save_hardware(machine, tmp_path / "machine.yaml")
    # f0 starts when w0 is there, at 40; w1 comes meanwhile, and w2 when w0 has left, at 90
    assert engine_replay(plan, machine, 80).makespan_ns == 190
    wanted = replace(
        engine_replay(plan, machine, 80), lower_bound_ns=190, ideal_ns=150
    )  # three ops of 50
    for hardware in (
        "toy",
        tmp_path / "machine.yaml",
        str(tmp_path / "machine.yaml"),
        hardware_to_dict(machine),
        machine,
    ):
        for budget in (80, "80 B"):
            assert hosim.replay(plan, hardware, budget) == wanted
    assert hosim.replay(plan, machine, budget_bytes=80) == wanted
    bound = bounded(engine_replay(plan, machine, 90), plan, machine, 90)
    assert hosim.replay(plan, machine, "75%") == replace(
        bound, ideal_ns=150
    )  # all three parameters are 120 B
    bound = bounded(engine_replay(plan, machine), plan, machine, None)
    assert (
        hosim.replay(plan, machine)
        == hosim.replay(plan, machine, None)
        == replace(bound, ideal_ns=150)
    )
    assert hosim.replay(plan, machine, budget_bytes=10**6).budget_bytes == 10**6
    assert hosim.replay(plan, machine, 10**6).budget_bytes == 100


def test_the_lower_bound_of_a_replay_is_worked_out_when_it_is_asked_for() -> None:
    plain, asked = (
        engine_replay(
            hosim.plan(toy(), "toy", "layerwise", 80), load_hardware(find_hardware("toy")), 80
        ),
        [],
    )
    result = plain.bounded_by(lambda: asked.append("now") or 190)
    assert (result.makespan_ns, repr(result), asked) == (190, repr(plain), [])
    assert plain.lower_bound_ns is None
    assert result.above_bound == 0
    assert result == replace(plain, lower_bound_ns=190)
    assert asked == ["now"]
    again = hosim.replay(hosim.plan(toy(), "toy", "layerwise", 80), "toy", 80)
    assert "lower_bound_ns" not in vars(again)
    assert (
        vars(copy(again))["lower_bound_ns"]
        == pickle.loads(pickle.dumps(again)).lower_bound_ns
        == 190
    )
    with pytest.raises(AttributeError, match="makespan_s"):
        _ = again.makespan_s  # type: ignore[attr-defined]


def test_a_plan_remembers_the_machine_and_the_budget_that_it_was_made_for() -> None:
    plan = hosim.plan(toy(), "toy", "layerwise", "80 B")
    assert hosim.replay(plan) == hosim.replay(plan, "toy", "80 B") != hosim.replay(plan, "toy")
    assert hosim.replay(plan, budget=100) == hosim.replay(plan, "toy")
    assert (
        str(hosim.explain(plan))
        == str(hosim.explain(plan, "toy", "80 B"))
        != str(hosim.explain(plan, budget=100))
    )
    assert "budget of 100 B" in str(hosim.explain(plan, "toy"))
    for ask in (hosim.replay, hosim.explain):
        with pytest.raises(
            hosim.InputError, match="the plan does not say which machine it is for: name one"
        ):
            ask(hosim.Plan(toy()))


def test_a_replay_passes_its_options_on() -> None:
    graph, machine = toy(), load_hardware(find_hardware("toy"))
    plan = hosim.plan(graph, machine, "layerwise")
    jitter = Jitter(7, op_sigma=0.2)
    drawn = replace(engine_replay(plan, machine, jitter=jitter), ideal_ns=150)
    assert (
        hosim.replay(plan, machine, jitter=jitter)
        == drawn
        != replace(engine_replay(plan, machine), ideal_ns=150)
    )
    placed = {"allocator": "caching", "reserve_bytes": 10**7}
    assert hosim.replay(plan, machine, **placed) == replace(
        engine_replay(plan, machine, **placed), ideal_ns=150
    )
    in_order = {**placed, "account": "program", "fold": False, "compete": True}
    assert hosim.replay(plan, machine, **in_order) == replace(
        engine_replay(plan, machine, **in_order), ideal_ns=150
    )


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda plan: hosim.replay(plan, "toy", 80, budget_bytes=80),
            "replay: budget_bytes and budget exclude each other",
        ),
        (lambda plan: hosim.replay(plan, "toi"), "did you mean 'toy'"),
        (lambda plan: hosim.replay(plan, "toy", "80"), "budget: expected a size with its unit"),
        (lambda plan: hosim.replay(plan, "toy", -1), "budget: -1 B leaves no memory at all"),
        (
            lambda plan: hosim.replay(plan, "toy", 8.5),
            "budget: expected whole bytes, a size such as '40 GiB' or a share",
        ),
        (lambda plan: hosim.replay(plan, "toy", True), "got True"),
        (
            lambda plan: hosim.replay("plan.json", "toy"),
            "plan: expected a plan, got str: hosim.plan makes one",
        ),
        (
            lambda plan: hosim.explain("plan.json", "toy"),
            "plan: expected a plan, got str: hosim.plan makes one",
        ),
        (
            lambda plan: hosim.replay(hosim.Plan(toy(), initial={0: ("pool",)}), "toy"),
            "plan: initial.w0[0]: unknown tier 'pool'",
        ),
        (
            lambda plan: hosim.explain(hosim.Plan(toy(), initial={0: ("pool",)}), "toy"),
            "plan: initial.w0[0]: unknown tier 'pool'",
        ),
        (
            lambda plan: hosim.explain(hosim.plan(toy(), "toy", "on_demand"), "toy"),
            "decides during the replay",
        ),
        (lambda plan: hosim.plan(toy(), "toy", "layerwis"), "did you mean layerwise?"),
        (
            lambda plan: hosim.plot(hosim.replay(plan, "toy")),
            "plot: the result has no timeline: replay the plan with hosim.replay(plan, ",
        ),
        (
            lambda plan: hosim.plot(hosim.replay(plan, "toy", record=True), "out.jpg"),
            "out.jpg: expected a picture whose name ends in .png",
        ),
        (
            lambda plan: hosim.plot("result.json"),
            "plot: expected a plan, the result of hosim.replay(..., record=True), the answer",
        ),
        (
            lambda plan: hosim.plot(hosim.compare(toy(), "toy", "layerwise")[["policy"]]),
            "the frame of hosim.compare with all its columns",
        ),
        (lambda plan: hosim.Plan("toy"), "plan: graph: expected a hosim.Graph, got 'toy'"),
        (lambda plan: replace(plan, policy=3), "plan: policy: expected a text, got 3"),
        (
            lambda plan: replace(plan, cache_ops=("x",)),
            "plan: cache_ops: expected a tuple of hosim.CacheOp, got ('x',)",
        ),
        (
            lambda plan: replace(plan, cache_ops=3),
            "plan: cache_ops: expected a tuple of hosim.CacheOp, got 3",
        ),
        (
            lambda plan: replace(plan, initial={0: "hbm"}),
            "plan: initial: expected a mapping from positions of tensors to tuples of tiers",
        ),
        (
            lambda plan: replace(plan, initial=[0]),
            "plan: initial: expected a mapping from positions of tensors to tuples of tiers",
        ),
        (
            lambda plan: replace(plan, edits=3),
            "plan: edits: expected hosim.edits.Edits or None, got 3",
        ),
        (
            lambda plan: replace(plan, runtime=3),
            "plan: runtime: expected a function that makes a runtime policy, or None, got 3",
        ),
        (
            lambda plan: hosim.replay(
                replace(plan, cache_ops=(hosim.CacheOp("store", 0, "hbm", "3"),)), "toy"
            ),
            "to: unknown tier '3'",
        ),
        (
            lambda plan: hosim.sweep(toy(), "toy", vary="policy=layerwise", progress=3),
            "progress: expected a function, got 3",
        ),
        (
            lambda plan: hosim.sweep(toy(), "toy", vary="policy=layerwise", scheduler=3),
            "scheduler: expected the address of a Dask",
        ),
        (
            lambda plan: hosim.serve(3, "toy", []),
            "model: expected a name, a path, a mapping or an object of hosim, got int",
        ),
        (
            lambda plan: hosim.serve("llama-3.1-8b", "toy", [], memory_share="most"),
            "memory_share: expected a number, got 'most'",
        ),
        (
            lambda plan: hosim.serve("llama-3.1-8b", "h100-80gb-sxm", 3),
            "requests: expected a file, arrivals to draw, or a list",
        ),
    ],
)
def test_a_wrong_argument_is_one_clear_error(
    ask: Callable[[hosim.Plan], object], said: str
) -> None:
    with pytest.raises(hosim.InputError) as refused:
        ask(hosim.plan(toy(), "toy", "layerwise"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_does_not_fit_is_infeasible() -> None:
    plan = hosim.plan(toy(), "toy", "layerwise")
    for ask in (
        lambda: hosim.plan(toy(), "toy", "hyperoffload", 30),
        lambda: hosim.explain(plan, "toy", 30),
    ):
        with pytest.raises(hosim.InfeasibleError, match=r"out of memory|does not fit"):
            ask()


def test_a_plot_of_a_replay_is_the_picture_of_the_command(tmp_path: Path) -> None:
    plan, machine = hosim.plan(toy(), "toy", "layerwise"), load_hardware(find_hardware("toy"))
    result = hosim.replay(plan, "toy", record=True)
    hosim.plot(result, tmp_path / "replay.svg")
    assert (tmp_path / "replay.svg").read_bytes() == image(
        replay_figure(plan.graph, machine, result), "svg"
    )
    hosim.plot(plan, tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_bytes() == (tmp_path / "replay.svg").read_bytes()
    with pytest.raises(hosim.InputError, match="does not say which machine it is for"):
        hosim.plot(hosim.Plan(toy()))


def test_a_plot_of_a_frontier_is_its_curve() -> None:
    found = hosim.frontier(toy(), "toy", "belady", points=3, refine=0)
    (axes,) = hosim.plot(found).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["belady"]
    marked = next(
        line for line in axes.lines if line.get_marker() != "None" and len(line.get_xdata())
    )
    assert list(marked.get_xdata()) == [result.peak_bytes["hbm"] for result in found.pareto]


def test_a_plot_of_a_comparison_is_the_picture_of_the_command(tmp_path: Path) -> None:
    graph, machine = toy(), load_hardware(find_hardware("toy"))
    table = hosim.compare(graph, machine, ["resident", "layerwise", "belady"], 80)
    hosim.plot(table, str(tmp_path / "policies.svg"))
    results = compare(
        questions(
            graph, machine, [parse_choice(name) for name in ("resident", "layerwise", "belady")], 80
        )
    )
    assert (tmp_path / "policies.svg").read_bytes() == image(
        comparison_figure(results, "hbm"), "svg"
    )
    shown = hosim.plot(table[table["feasible"]]).axes[0].get_legend()
    assert [text.get_text().partition(":")[0] for text in shown.get_texts()][:2] == [
        "layerwise",
        "belady",
    ]


def test_an_explanation_prints_the_tables_of_the_command() -> None:
    plan, machine = (
        hosim.plan(twice(), "toy", "layerwise", "80 B"),
        load_hardware(find_hardware("toy")),
    )
    why = hosim.explain(plan, "toy", "80 B")
    assert str(why) == repr(why)
    assert len(str(why)) < len(why.text())
    assert why.text() == why.text(20)
    assert why.as_dict() == to_dict(explained(plan, machine, 80))
    assert why.as_dict(1) == to_dict(explained(plan, machine, 80), 1) != why.as_dict()
    assert "80 B" in str(why)
    assert max(map(len, str(why).splitlines())) <= 120
    assert len(why.text(1)) < len(why.text(2))
    assert why._repr_html_().startswith(
        "<pre>Plan of layerwise: hosim&#x27;s planner did not judge it.\n"
        "If what lives below came up at its first use and nothing else moved,"
    )


def test_importing_it_loads_the_data_model_and_nothing_but_the_standard_library() -> None:
    listing = (
        "import sys; before = set(sys.modules); import hosim\n"
        "for name in set(sys.modules) - before: print(name, hasattr(sys.modules[name], '__path__'))"
    )
    lines = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    loaded = {name: package == "True" for name, package in map(str.split, lines)}
    assert {name.partition(".")[0] for name in loaded} - {"hosim"} <= sys.stdlib_module_names
    packages = {
        name for name, package in loaded.items() if package and name.partition(".")[0] == "hosim"
    }
    assert packages == {"hosim", "hosim.base"}  # no room that computes
