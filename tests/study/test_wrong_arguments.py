"""What is no argument of a public function is one clear line that names it, and nothing of Python's
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeping import MACHINE, chain

import hosim
from hosim.cache_plan import CacheOp, Plan
from hosim.errors import InputError

GRAPH = chain(3)
PLAN = hosim.plan(GRAPH, MACHINE, "layerwise")
ANY: Any = hosim
BANDWIDTH = "channels.h2d.bandwidth=1..3GB/s:3"

WRONG: dict[str, Callable[[], object]] = {
    "jitter: expected hosim.jitter.Jitter(seed, op_sigma, transfer_sigma), got 0.1": lambda: (
        ANY.replay(PLAN, jitter=0.1)
    ),
    "budget_bytes: expected a whole number of at least 1, got -5": lambda: hosim.replay(
        PLAN, budget_bytes=-5
    ),
    "reserve_bytes: expected a whole number of at least 1, got '4'": lambda: ANY.replay(
        PLAN, reserve_bytes="4"
    ),
    "slowdown: expected a number, got '2'": lambda: ANY.fit(
        GRAPH, MACHINE, smallest=BANDWIDTH, slowdown="2"
    ),
    "smallest: expected a text, got 3": lambda: ANY.fit(GRAPH, MACHINE, smallest=3),
    "largest: expected a text, got 3": lambda: ANY.serve_fit(
        "llama-3.1-8b", "h100-80gb-sxm", "poisson:rate=1", largest=3, within="ttft.p95=1s"
    ),
    "more_memory: expected a size with its unit, such as '80 GiB', got 1000000000.0": lambda: (
        ANY.blame(PLAN, more_memory=1e9)
    ),
    "more_bandwidth: expected a rate with its unit, such as '55 GB/s', got '5'": lambda: (
        hosim.blame(PLAN, more_bandwidth="5")
    ),
    "hardware: name the machine that the workload is to run on": lambda: hosim.blame(GRAPH),
    "plot: this frame compares machines; ...": lambda: hosim.plot(
        hosim.compare(GRAPH, [MACHINE], "layerwise")
    ),
    "path: expected the path of a file, got 3": lambda: ANY.plot(PLAN, 3),
    "points: expected a whole number of at least 2, got 2.5": lambda: ANY.frontier(
        GRAPH, MACHINE, points=2.5
    ),
    "runs: expected a whole number of at least 1, got '3'": lambda: ANY.robustness(
        GRAPH, MACHINE, runs="3"
    ),
    "op_sigma: expected a number, got 'x'": lambda: ANY.robustness(GRAPH, MACHINE, op_sigma="x"),
    "seed: expected a whole number of at least 0, got 1.5": lambda: ANY.robustness(
        GRAPH, MACHINE, seed=1.5
    ),
    "jobs: expected a whole number of at least -1, got '2'": lambda: ANY.sweep(
        GRAPH, MACHINE, vary="budget=9B", jobs="2"
    ),
    "budget: expected sizes with their unit or shares, such as 40GiB,50GiB or 50..100%:6, got 50": lambda: (
        hosim.sweep(GRAPH, MACHINE, vary="budget=50..100", jobs=1)
    ),
    "output: expected the path of a file, got 3": lambda: ANY.sweep(
        GRAPH, MACHINE, vary="budget=9B", output=3
    ),
    "path: expected the path of a file, got <Plan ...": lambda: ANY.load_plan(PLAN, GRAPH),
    "h100: no such file; for a name give hosim.load_hardware(hosim.find_hardware('h100'))": lambda: (
        hosim.load_hardware("h100")
    ),
    "gpt2: no such file; for a name give hosim.load('gpt2')": lambda: hosim.load_workload("gpt2"),
    "path: expected the path of a file, got None": lambda: ANY.find_hardware(None),
    "diff: the plan is for chain, not for other: leave the workload out": lambda: hosim.diff(
        PLAN, PLAN, replace(GRAPH, name="other")
    ),
    "plan: expected a plan, got Graph": lambda: ANY.save_plan(GRAPH, "p.json"),
    "graph: expected a graph, got Plan": lambda: ANY.save_workload(PLAN, "w.json"),
    "workload: expected a workload (with ops), ...; got a mapping with nothing in it": lambda: (
        hosim.load({})
    ),
    "workload: expected a workload (with ops), ...; got a mapping with 'hidden_size'": lambda: (
        hosim.load({"hidden_size": 3})
    ),
    "workload: model.model_type: missing; a config.json of transformers has one, such as llama": lambda: (
        hosim.load({"model": {}})
    ),
    "plan: cache_ops[0].tensor: no tensor number 99; the graph has ...": lambda: hosim.replay(
        by_hand("prefetch", 99, "ddr", "hbm"), MACHINE
    ),
    "plan: cache_ops[0].after: no op number 9; the graph has 3 ops": lambda: hosim.replay(
        by_hand("prefetch", 0, "ddr", "hbm", 9), MACHINE
    ),
    "plan: cache_ops[0].op: unknown cache op 'fetch'; did you mean 'prefetch'?": lambda: (
        hosim.replay(by_hand("fetch", 0, "ddr", "hbm"), MACHINE)
    ),
    "plan: initial: no tensor number 99; the graph has ...": lambda: hosim.replay(
        Plan(GRAPH, initial={99: ("hbm",)}), MACHINE
    ),
}


def by_hand(*cache_op: Any) -> Plan:
    return Plan(GRAPH, cache_ops=(CacheOp(*cache_op),))


@pytest.mark.parametrize("said", WRONG)
def test_what_is_no_argument(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        WRONG[said]()
    begin, _, end = said.partition("...")
    assert str(refused.value).startswith(begin)
    assert str(refused.value).endswith(end)
    assert not [*tmp_path.iterdir()]


def test_a_plan_is_not_read_for_the_path_of_a_graph(tmp_path: Path) -> None:
    hosim.save_plan(PLAN, tmp_path / "p.json")
    with pytest.raises(
        InputError,
        match=r"^graph: expected the graph that the plan is for, which hosim\.load makes; got str$",
    ):
        ANY.load_plan(tmp_path / "p.json", "w.json")


def test_a_plan_is_blamed_on_the_machine_that_it_was_made_for() -> None:
    """Within the same budget: the layers that it has no room for are late."""
    tight = hosim.plan(GRAPH, MACHINE, "layerwise", "75%")
    assert hosim.blame(tight).result.budget_bytes == tight.made_for[1]  # type: ignore[index]
    assert str(hosim.blame(tight)) == str(hosim.blame(tight, MACHINE, budget="75%"))
