"""Settings of MindSpore's strategies: their names, what the search finds, and that the figures are
those of the settings printed.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs
from toy_machine import MACHINE

from hosim.analysis import static_peak
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.formats.bridges import Setting, Tried, auto_offload, environment, export_to_dict, search
from hosim.graph import Graph, GraphBuilder
from hosim.policies import Policy, policy_named

DOCUMENTED = {
    *(
        "SELECT_DISTANCE",
        "SELECT_NUM",
        "PREFETCH_DISTANCE",
        "RELEASE_DISTANCE",
        "MAX_DEVICE_MEMORY",
        "PEAK_MODELED_HEADROOM_BYTES",
    ),
    *(
        "SCORE_WEIGHT_SIZE",
        "SCORE_WEIGHT_COVER_START",
        "SCORE_WEIGHT_COVER_END",
        "SCORE_WEIGHT_NEIGHBOR_IMPACT",
    ),
    *(
        "D2H_BANDWIDTH_GBPS",
        "H2D_BANDWIDTH_GBPS",
        "DEFAULT_KERNEL_TIME_US",
        "MEMORY_BLOCK_PATH",
        "DYNAMIC_SHAPE_PLACEHOLDER_BYTES",
    ),
}
"""Names in ``compile_config.py`` of the 2.10 wheel, after ``HYPER_OFFLOAD_``; those of
``MS_DEV_HYPER_OFFLOAD_`` are below.
"""
SWITCHES = {
    "PEAK_STRATEGY",
    "ENABLE_ADAPTIVE_RELEASE_DISTANCE",
    "ENABLE_ADAPTIVE_PREFETCH_DISTANCE",
}


def idle(ops: int = 5, ns: int = 20, largest: int | None = None) -> Graph:
    """``a`` is made by the first op and read by the last; each op between makes and drops 60 bytes,
    or 10 if it is not the ``largest``.
    """
    b = GraphBuilder("idle")
    b.tensor("a", 40)
    b.op("first", "m", outputs=["a"], duration_ns=ns)
    for i in range(1, ops - 1):
        b.tensor(f"t{i}", 60 if largest in (None, i) else 10)
        b.op(f"f{i}", "m", outputs=[f"t{i}"], duration_ns=ns)
    b.op("last", "m", inputs=["a"], duration_ns=ns)
    return b.build()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """The settings for which a policy plans, in order."""
    found: list[Setting] = []
    plan = Policy.plan

    def planned(policy: Policy, *given: Any, **parameters: Any) -> Plan:
        found.append(Setting(policy.name, parameters))
        return plan(policy, *given, **parameters)

    monkeypatch.setattr(Policy, "plan", planned)
    return found


def values_of(asked: list[Setting], strategy: str) -> dict[str, list[Any]]:
    """The values of each parameter that were tried, in order."""
    tried = [setting.parameters for setting in asked if setting.strategy == strategy]
    return {name: sorted({parameters[name] for parameters in tried}) for name in tried[0]}


def worth(graph: Graph, budget: int, setting: Setting) -> tuple[int, ...]:
    """What fits by its time, peak and bytes moved, then what does not by the peak that it would
    have, then what has no plan.
    """
    try:
        plan = policy_named(setting.strategy).plan(graph, MACHINE, budget, **setting.parameters)
    except InfeasibleError:
        return (2,)
    result = replay(plan, MACHINE, budget)
    if not result.feasible:
        return 1, replay(plan, MACHINE).peak_bytes["hbm"]
    moved = sum([graph.tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op != "detach"])
    return 0, result.makespan_ns or 0, result.peak_bytes["hbm"], moved


def last(graph: Graph, budget: int, trials: int = 60, seed: int = 0) -> Tried:
    *_, best = search(graph, MACHINE, budget, trials=trials, seed=seed)
    return best


def as_setting(variables: dict[str, str]) -> Setting:
    """A setting back from its environment."""
    strategy = (
        "memory_peak" if variables.pop("MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY") == "1" else "distance"
    )
    known = policy_named(strategy).settings
    parameters: dict[str, object] = {}
    for name, text in variables.items():
        key = name.rpartition("HYPER_OFFLOAD_")[2].lower()
        read = {"bool": lambda t: bool(int(t)), "float": float}.get(known[key].type, int)
        parameters[key] = read(text)
    return Setting(strategy, parameters)


# --------------------------------------------------------------------------------------------------
# the names


@pytest.mark.parametrize("strategy", ["distance", "memory_peak"])
def test_names_are_the_documented_ones_and_name_every_knob(
    strategy: str, asked: list[Setting]
) -> None:
    last(idle(), 90, trials=2)
    names = set(environment(next(setting for setting in asked if setting.strategy == strategy)))
    assert names <= {f"HYPER_OFFLOAD_{n}" for n in DOCUMENTED} | {
        f"MS_DEV_HYPER_OFFLOAD_{n}" for n in SWITCHES
    }
    unsearched = {"placement", "default_kernel_time_us"}
    knobs = {name.upper() for name in policy_named(strategy).parameters if name not in unsearched}
    assert {name.rpartition("HYPER_OFFLOAD_")[2] for name in names} == knobs | {"PEAK_STRATEGY"}


def test_values() -> None:
    variables = environment(
        Setting(
            "memory_peak",
            {
                "enable_adaptive_release_distance": True,
                "score_weight_size": 0.25,
                "prefetch_distance": 3,
            },
        )
    )
    assert variables == {
        "MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY": "1",
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_RELEASE_DISTANCE": "1",
        "HYPER_OFFLOAD_SCORE_WEIGHT_SIZE": "0.25",
        "HYPER_OFFLOAD_PREFETCH_DISTANCE": "3",
    }


def test_auto_offload_is_what_the_plan_moves() -> None:
    b = GraphBuilder("kinds")
    b.tensor("w", 1, "parameter", "ddr"), b.tensor("a", 1)
    b.op("f", "m", inputs=["w"], outputs=["a"], duration_ns=1)
    graph = b.build()
    weight, activation = CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("store", 1, "hbm", "ddr", 0)
    moved = [
        auto_offload(Plan(graph, cache_ops=ops))
        for ops in ((weight,), (activation,), (weight, activation))
    ]
    assert moved == ["weight", "activation", "all"]


# --------------------------------------------------------------------------------------------------
# the search


def test_the_defaults_do_not_fit_and_what_is_found_hides_all() -> None:
    """Copies of 40 ns: down during f1 and f2, up during f5 to f7. Only ``a`` is to move, and only
    f4 is where it may not be.
    """
    graph = idle(9, 20, largest=4)
    found = list(search(graph, MACHINE, 99, trials=60))
    assert found[0].setting == Setting(
        "distance", {**found[0].setting.parameters, "select_distance": 9, "prefetch_distance": 9}
    )
    assert not found[0].fits  # the latest release and the earliest prefetch, as far as they go
    assert found[-1].makespan_ns == 9 * 20


def test_what_cannot_be_hidden_waits() -> None:
    """Every op between leaves no room for ``a``: it goes before f1 and comes after f7."""
    assert last(idle(9, 20), 99).makespan_ns == 9 * 20 + 2 * 40
    assert last(idle(9, 20), 100).makespan_ns == 9 * 20


def test_it_finds_the_best_of_all_settings() -> None:
    graph = idle(5, 30)
    names = ("select_distance", "select_num", "prefetch_distance", "release_distance")
    every = [
        Setting("distance", dict(zip(names, values, strict=True)))
        for values in product(*[range(1, 6)] * 2, *[range(6)] * 2)
    ]
    best = worth(graph, 90, last(graph, 90).setting)
    assert best[0] == 0
    assert best <= min(worth(graph, 90, setting) for setting in every)


@pytest.mark.parametrize("budget", [100, 99, 90, 1])
def test_the_best_so_far_is_the_one_worth_most(budget: int, asked: list[Setting]) -> None:
    graph = idle()
    found = list(search(graph, MACHINE, budget, trials=40))
    tried = [worth(graph, budget, setting) for setting in asked[: len(found)]]
    assert [worth(graph, budget, best.setting) for best in found] == [
        min(tried[: n + 1]) for n in range(len(found))
    ]
    assert all(
        (best.plan is None) == (worth(graph, budget, best.setting) == (2,)) for best in found
    )


def test_the_seed_decides() -> None:
    graph = idle(8, 7)
    assert [t.setting for t in search(graph, MACHINE, 80, trials=70, seed=3)] == [
        t.setting for t in search(graph, MACHINE, 80, trials=70, seed=3)
    ]


def test_no_more_trials_than_asked_and_no_setting_twice(asked: list[Setting]) -> None:
    assert len(list(search(idle(), MACHINE, 90, trials=33))) == 33
    assert len({(s.strategy, *s.parameters.values()) for s in asked}) == len(asked)
    assert 33 <= len(asked) <= 34  # the two strategies take turns
    assert {s.strategy for s in asked} == {"distance", "memory_peak"}


def test_a_climb_ends_by_itself_when_nothing_is_left(asked: list[Setting]) -> None:
    """Of three ops: 1 to 3 of two parameters, and 0 to 3 of two."""
    every = 3 * 3 * 4 * 4
    last(idle(3), 20, trials=3 * every)
    climbed = sum(setting.strategy == "distance" for setting in asked)
    assert every / 2 < climbed <= every
    assert {setting.strategy for setting in asked[2 * climbed :]} == {"memory_peak"}


@settings(max_examples=15)
@given(graphs(max_ops=7), st.integers(50, 99))
def test_the_figures_are_those_of_the_settings_as_printed(graph: Graph, share: int) -> None:
    budget = max(static_peak(graph).bytes * share // 100, 1)
    values = []
    for best in search(graph, MACHINE, budget, trials=24):
        values.append((not best.fits, best.makespan_ns or 0))
    assert values == sorted(values, reverse=True) or not values[-1][0]
    assert [fits for fits, _ in values] == sorted(
        (fits for fits, _ in values), reverse=True
    )  # once one fits, the best does
    if best.fits:
        setting = as_setting(environment(best.setting))
        assert setting == best.setting
        again = replay(
            policy_named(setting.strategy).plan(graph, MACHINE, budget, **setting.parameters),
            MACHINE,
            budget,
        )
        assert again.makespan_ns == best.makespan_ns


def test_the_gap_and_nothing_that_fits() -> None:
    graph = idle()
    target = replay(Plan(graph, "mine"), MACHINE, 100)
    best = last(graph, 100, trials=4)
    data = export_to_dict(best, target, "hbm", 4)
    assert data["of_plan"] == {"makespan_ns": 100, "peak_bytes": 100}
    assert data["gap"] == {
        key: data["of_settings"][key] - data["of_plan"][key]
        for key in ("makespan_ns", "peak_bytes")
    }
    nothing = last(graph, 59, trials=4)
    with pytest.raises(
        InfeasibleError,
        match=r"none of 4 settings of MindSpore's strategies fits within 100 B of hbm, as the "
        r"plan of mine",
    ):
        export_to_dict(nothing, target, "hbm", 4)


def test_the_values_that_are_searched(asked: list[Setting]) -> None:
    """Toy of 5 ops, 4 tensors, and 1000 B of budget; it copies 1 GB/s each way. Searches begin at
    the defaults, as far as they go.
    """
    last(idle(), 1000, trials=900)
    for strategy in ("distance", "memory_peak"):
        first = next(setting.parameters for setting in asked if setting.strategy == strategy)
        defaults = policy_named(strategy).parameters
        assert first == {
            name: BEGIN[name] if name in BEGIN else min(defaults[name], 5) for name in first
        }
    distances = {"prefetch_distance": [0, 1, 2, 3, 4, 5], "release_distance": [0, 1, 2, 3, 4, 5]}
    assert values_of(asked, "distance") == {
        "select_distance": [1, 2, 3, 4, 5],
        "select_num": [1, 2, 3, 4, 5],
        **distances,
    }
    weights, rates = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0], [0.125, 0.25, 0.5, 0.75, 1.0]
    assert values_of(asked, "memory_peak") == {
        "max_device_memory": [1000],
        "peak_modeled_headroom_bytes": [0, 25, 50, 75, 100, 150, 200, 250, 300, 400, 500, 600],
        **distances,
        "enable_adaptive_prefetch_distance": [False, True],
        "enable_adaptive_release_distance": [False, True],
        "h2d_bandwidth_gbps": rates,
        "d2h_bandwidth_gbps": rates,
        **{
            f"score_weight_{name}": weights
            for name in ("size", "cover_start", "cover_end", "neighbor_impact")
        },
    }


BEGIN = {
    "max_device_memory": 1000,
    "peak_modeled_headroom_bytes": 100,
    "h2d_bandwidth_gbps": 1.0,
    "d2h_bandwidth_gbps": 1.0,
}
"""What depends on the budget and the machine."""


def test_distances_grow_by_half(asked: list[Setting]) -> None:
    """Of 20 ops and tensors; and the default, if it is none of these."""
    last(idle(20), 1000, trials=900)
    found = values_of(asked, "distance")
    ladder = {0, 1, 2, 3, 4, 6, 9, 13, 19, 20}
    defaults = policy_named("distance").parameters
    for name in ("prefetch_distance", "release_distance"):
        assert found[name] == sorted(ladder | {min(defaults[name], 20)})
    for name in ("select_distance", "select_num"):
        assert found[name] == sorted(ladder - {0} | {min(defaults[name], 20)})


def test_the_answer_in_full() -> None:
    graph = idle()
    target, plan = replay(Plan(graph, "mine"), MACHINE, 100), Plan(graph, "distance")
    setting = Setting("distance", {"select_num": 3})
    best = Tried(setting, plan, replay(plan, MACHINE, 100))
    assert export_to_dict(best, target, "hbm", 7) == {
        "format": "hosim.mindspore/1",
        "workload": "idle",
        "hardware": "machine",
        "budget_bytes": 100,
        "policy": "mine",
        "strategy": "distance",
        "environment": environment(setting),
        "auto_offload": "weight",
        "trials": 7,
        "of_plan": {"makespan_ns": 100, "peak_bytes": 100},
        "of_settings": {"makespan_ns": 100, "peak_bytes": 100},
        "gap": {"makespan_ns": 0, "peak_bytes": 0},
    }
