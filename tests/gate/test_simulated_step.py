"""The object behind the fixture ``hosim_gate``, called as the fixture calls it: what each of its
failures says, in full.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hosim.data.draws import Draws, LaterDraws
from hosim.errors import InputError
from hosim.gate import measure_graph, testing
from hosim.gate.records import Measured
from hosim.gate.testing import SimulatedStep, gate_of
from hosim.graph import Graph, GraphBuilder
from hosim.io import save_workload

NODE = "tests/test_memory.py::TestMore::test_peak[a/b]"
"""The test that asks; its baseline's name ends with the beginning of the SHA-256 of
``test_memory.TestMore.test_peak[a/b]``.
"""
BASELINE = "test_memory.TestMore.test_peak-a-b-eba21b.toml"


def graph(act: int = 30, parameters: int = 1) -> Graph:
    """Parameters of 40, 39, ... bytes, and an activation that is there while both ops of 50 ns
    run.
    """
    b = GraphBuilder("g")
    for i in range(parameters):
        b.tensor(f"w{i}", 40 - i, "optimizer_state", home="hbm")
    b.tensor("act", act)
    b.op(
        "f", "matmul", inputs=[f"w{i}" for i in range(parameters)], outputs=["act"], duration_ns=50
    )
    b.op("g", "relu", inputs=["act"], duration_ns=50)
    return b.build()


def gate(folder: Path, *arguments: object, update: bool = False, **given: object) -> SimulatedStep:
    """The gate of a test in a folder whose marker has these arguments."""
    marker = SimpleNamespace(
        args=arguments, kwargs={"hardware": "toy", "policy": "resident", **given}
    )
    return marked(folder, marker, update)


def marked(folder: Path, marker: object, update: bool = False) -> SimulatedStep:
    config = SimpleNamespace(stash=pytest.Stash())
    item = SimpleNamespace(
        path=folder / "test_memory.py",
        nodeid=NODE,
        get_closest_marker={"hosim": marker}.get,
        config=config,
    )
    return gate_of(cast("pytest.Item", item), update)


def failure(call: Callable[[], object]) -> str:
    """What a failing call says; the place that it names is here, in the test, and not within
    hosim.
    """
    with pytest.raises(pytest.fail.Exception) as failed:
        call()
    crash = cast("Any", failed.getrepr(style="short")).reprcrash
    assert Path(crash.path).name == Path(__file__).name
    assert not failed.value.pytrace
    return str(failed.value)


def test_a_peak_that_is_too_high_is_listed_by_tensor(tmp_path: Path) -> None:
    step = gate(tmp_path).model(graph())
    step.assert_peak_below("71 B")
    step.assert_peak_below("1 B", "ddr")  # nothing is there
    assert failure(lambda: step.assert_peak_below("70 B")) == (
        "peak of hbm is 70 B (70 B), not below 70 B\nat op `f` it holds:\n  `w0` (optimizer "
        "state) 40 B\n  `act` (activation) 30 B"
    )
    assert (
        failure(lambda: step.assert_peak_below("0 B", "ddr"))
        == "peak of ddr is 0 B (0 B), not below 0 B"
    )
    assert (
        failure(lambda: step.assert_peak_below("9 B", "pool"))
        == "unknown tier 'pool'; the machine has hbm, ddr"
    )
    assert (
        failure(lambda: step.assert_peak_below("9"))
        == "expected a size with its unit, such as '80 GiB', got '9'"
    )
    assert step.metrics["makespan"] == 100


def test_a_peak_that_is_too_high_in_draws(tmp_path: Path, monkeypatch: Any) -> None:
    draws = LaterDraws.of(Draws((100,) * 20, peak_bytes=(70,) * 18 + (75, 75)))

    def drawn(*asked: Any, **how: Any) -> Measured:
        found = measure_graph(*asked, **how)
        return replace(found, record=replace(found.record, draws=draws))

    monkeypatch.setattr(testing, "measure_graph", drawn)
    step = gate(tmp_path).model(graph())
    step.assert_peak_below("76 B")
    assert failure(lambda: step.assert_peak_below("75 B")).startswith(
        "peak of hbm is 75 B (75 B) in draws of what is uncertain, not below 75 B\n"
    )
    step.assert_peak_below("1 B", "ddr")


def test_beyond_eight_tensors_only_their_sum_is_named(tmp_path: Path) -> None:
    step = gate(tmp_path, hardware="h100-80gb-sxm").model(graph(2000, 10))
    held = "".join(f"\n  `w{i}` (optimizer state) {40 - i} B" for i in range(7))
    assert failure(lambda: step.assert_peak_below("2 kB")) == (
        "peak of hbm is 2.30 KiB (2,355 B), not below 2 kB\nat op `f` it holds:\n"
        f"  `act` (activation) 1.95 KiB{held}\n  and 3 more: 96 B"  # 33 + 32 + 31
    )
    eight = gate(tmp_path, hardware="h100-80gb-sxm").model(graph(2000, 7))
    assert failure(lambda: eight.assert_peak_below("2 kB")).splitlines()[2:] == [
        "  `act` (activation) 1.95 KiB",
        *held.splitlines()[1:],
    ]


def test_a_peak_before_the_first_op(tmp_path: Path) -> None:
    """The only op reads a tensor whose bytes are reserved when its copy starts, before the op
    does.
    """
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    step = gate(tmp_path, policy="on_demand").model(b.build())
    assert failure(lambda: step.assert_peak_below("40 B")) == (
        "peak of hbm is 40 B (40 B), not below 40 B\nit holds:\n  `w` (parameter) 40 B"
    )


def test_a_baseline_is_written_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "hosim-baselines" / BASELINE
    assert (
        failure(gate(tmp_path).model(graph()).assert_matches_baseline)
        == f"no baseline {file}; pytest --hosim-update writes it"
    )
    gate(tmp_path, update=True).model(graph()).assert_matches_baseline()
    assert [path.name for path in (tmp_path / "hosim-baselines").glob("*.toml")] == [BASELINE]
    gate(tmp_path).model(graph()).assert_matches_baseline(strict=True)
    worse = gate(tmp_path).model(graph(45))
    assert failure(worse.assert_matches_baseline) == (
        "test_memory.TestMore.test_peak[a/b]: regression: peak.hbm: 85 B, was 70 B (+15 B, +21.4 "
        "%)\n"
        "`act` (activation) has 45 B, had 30 B\n"
        "peak.hbm: 85 B, was 70 B (+15 B, +21.4 %) at op `f` (#0)\n"
        "`act` (activation) has 45 B, had 30 B: +15 B at the peak\n"
        "if this change is intended, run pytest --hosim-update and commit the baseline"
    )
    worse.assert_matches_baseline(tolerance={"peak": "15 B"})
    assert "regression" in failure(
        lambda: worse.assert_matches_baseline(tolerance={"peak": {"hbm": "14 B"}})
    )
    gate(tmp_path, tolerance={"peak": "15 B"}).model(graph(45)).assert_matches_baseline()
    stricter = gate(tmp_path, tolerance={"peak": "15 B"}).model(graph(45))
    assert "regression" in failure(
        lambda: stricter.assert_matches_baseline(tolerance={"peak": "14 B"})
    )
    better = gate(tmp_path).model(graph(20))
    better.assert_matches_baseline()
    assert failure(lambda: better.assert_matches_baseline(strict=True)).startswith(
        "test_memory.TestMore.test_peak[a/b]: improvement: "
    )
    wrong = failure(lambda: better.assert_matches_baseline(tolerance={"speed": "1%"}))
    assert wrong.startswith("assert_matches_baseline: tolerance.speed: unknown metric")
    file.write_text("[")
    assert failure(better.assert_matches_baseline).startswith(f"{file}: broken TOML")


@pytest.mark.parametrize("update", [False, True])
def test_a_folder_of_baselines_that_leads_elsewhere_is_refused(
    tmp_path: Path, update: bool
) -> None:
    inside, outside = tmp_path / "tests", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (inside / "hosim-baselines").symlink_to(outside)
    step = gate(inside, update=update).model(graph())
    assert "expected a place inside" in failure(step.assert_matches_baseline)
    assert not list(outside.iterdir())


def test_a_baseline_with_a_name_of_its_own(tmp_path: Path) -> None:
    step = gate(tmp_path, update=True).model(graph())
    step.assert_matches_baseline("small-1.x")
    step.assert_matches_baseline("ein Schritt!")
    assert sorted(path.name for path in (tmp_path / "hosim-baselines").glob("*.toml")) == [
        "ein-Schritt-b3294f.toml",
        "small-1.x.toml",
    ]


def test_models_and_workloads_replace_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSIM_CACHE", str(tmp_path / "kept"))
    save_workload(graph(7), tmp_path / "seven.json")
    step = gate(tmp_path, entry="no.such.module:f")
    assert failure(lambda: step.metrics).startswith("no.such.module:f: cannot be imported: ")
    assert step.workload("seven.json").metrics["peak.hbm"] == 47
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert step.model(graph(8)).metrics["peak.hbm"] == 48
    assert step.model(graph(9)).metrics["peak.hbm"] == 49
    assert step.workload("seven.json").metrics["peak.hbm"] == 47
    assert failure(lambda: gate(tmp_path).metrics) == (
        "hosim_gate: nothing to measure: call hosim_gate.model(model, inputs), or give the marker "
        "a workload"
    )


def test_a_torch_model_is_exported_with_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def exported(model: object, inputs: object, *trained: object, **more: object) -> Graph:
        asked.append((model, inputs, more))
        if model == "broken":
            raise InputError("torch.export cannot export it", source="model")
        return graph()

    monkeypatch.setattr(testing, "graph_of_model", exported)
    step = gate(tmp_path)
    assert step.model("net", {"x": 1}) is step
    assert step.metrics["peak.hbm"] == 70
    assert failure(lambda: step.model("broken")) == "model: torch.export cannot export it"
    more = {"name": "test_memory.TestMore.test_peak[a/b]", "source": "model"}
    assert asked == [("net", {"x": 1}, more), ("broken", (), more)]


def test_what_does_not_fit_has_no_metrics(tmp_path: Path) -> None:
    step = gate(tmp_path, budget="60 B").model(graph())
    assert failure(lambda: step.metrics).startswith("does not fit: ")


def test_a_marker_that_is_missing_or_wrong(tmp_path: Path) -> None:
    takes = (
        "the marker hosim takes hardware=... and workload, entry, policy, plan, budget, "
        "matrix, serve, strict, rescale, tolerance; got"
    )
    assert failure(lambda: marked(tmp_path, None)) == (
        "the fixture hosim_gate needs a marker such as "
        '@pytest.mark.hosim(hardware="h100-80gb-sxm", budget="40 GiB")'
    )
    assert (
        failure(lambda: marked(tmp_path, SimpleNamespace(args=(), kwargs={"policy": "x"})))
        == f"{takes} no hardware"
    )
    assert (
        failure(lambda: gate(tmp_path, "toy", colour=3, name="x")) == f"{takes} 'toy', colour, name"
    )
    wrong = failure(lambda: gate(tmp_path, tolerance={"speed": "1%"}))
    assert wrong.startswith("marker hosim: tolerance.speed: unknown metric")


def test_each_model_of_a_test_has_a_baseline(tmp_path: Path) -> None:
    """The second one's has a number; what is compared again keeps its own."""

    def compare(update: bool, *sizes: int) -> None:
        step = gate(tmp_path, update=update)
        for size in sizes:
            step.model(graph(size)).assert_matches_baseline("two")
            step.assert_matches_baseline("two", tolerance={"peak": "1%"})

    compare(True, 30, 50)
    assert sorted(path.name for path in (tmp_path / "hosim-baselines").glob("*.toml")) == [
        "two-2.toml",
        "two.toml",
    ]
    compare(False, 30, 50)
    assert failure(lambda: compare(False, 45, 50)).startswith(
        "two: regression: peak.hbm: 85 B, was 70 B"
    )
    assert failure(lambda: compare(False, 30, 55)).startswith(
        "two-2: regression: peak.hbm: 95 B, was 90 B"
    )


def test_two_tests_do_not_write_one_baseline(tmp_path: Path) -> None:
    """The last one would be compared with both; the same figures may be written twice."""
    first, same, other = (gate(tmp_path, update=True).model(graph(size)) for size in (30, 30, 50))
    same._written = other._written = first._written  # as in one run of pytest
    first.assert_matches_baseline("shared")
    same.assert_matches_baseline("shared")
    path = tmp_path / "hosim-baselines" / "shared.toml"
    said = (
        f"test_memory.TestMore.test_peak[a/b] has written another model to {path}: give this "
        "baseline a name of its own"
    )
    assert failure(lambda: other.assert_matches_baseline("shared")) == said
