"""A case refuses a plan that was made for something else if it is strict, and durations of another
machine unless it rescales them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import hosim
from hosim.errors import InputError
from hosim.gate import Suite, check, load_suite, measure, measure_lines, write
from hosim.gate.records import Record
from hosim.measured_on import MEASURED_ON


def step(size: int = 40, device: str | None = None, home: str | None = "ddr") -> hosim.Graph:
    b = hosim.GraphBuilder("w", {MEASURED_ON: device} if device else {})
    for i in range(3):
        b.tensor(f"w{i}", size, "parameter", home=home)
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50)
    return b.build()


def suite(folder: Path, keys: str, hardware: str = "toy") -> Suite:
    (folder / "hosim.toml").write_text(
        f'[cases.c]\nworkload = "w.json"\nhardware = "{hardware}"\n{keys}\n'
    )
    return load_suite(folder / "hosim.toml")


def record(cases: Suite) -> Record:
    found = measure(cases.cases[0]).record
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("size", "budget", "differs"),
    [
        (40, "100 B", ""),
        (30, "100 B", "another version of the workload (3 sizes differ)"),
        (40, "90 B", "100 B of hbm, not 90 B"),
    ],
)
def test_a_strict_case_refuses_a_plan_that_was_made_for_something_else(
    tmp_path: Path, size: int, budget: str, differs: str
) -> None:
    hosim.save_plan(hosim.plan(step(), "toy", "layerwise", "100 B"), tmp_path / "plan.json")
    hosim.save_workload(step(size), tmp_path / "w.json")
    keys = f'plan = "plan.json"\nbudget = "{budget}"'
    assert [note for note in record(suite(tmp_path, keys)).notes if note.startswith("plan: ")] == [
        f"plan: made for {differs}"
    ][: bool(differs)]
    strict = suite(tmp_path, f"{keys}\nstrict = true")
    if not differs:
        assert record(strict).metrics == record(suite(tmp_path, keys)).metrics
        return
    with pytest.raises(InputError, match="made for") as refused:
        measure(strict.cases[0])
    assert differs in str(refused.value)
    assert refused.value.source == str(tmp_path / "plan.json")
    write(suite(tmp_path, keys))
    (checked,) = check(strict)
    assert checked.verdict == "error"


def test_a_plan_that_does_not_say_is_refused_by_a_strict_case(tmp_path: Path) -> None:
    hosim.save_workload(step(20, home=None), tmp_path / "w.json")
    (tmp_path / "plan.json").write_text(
        '{"format": "hosim.plan/1", "workload": "w", "policy": "mine", "cache_ops": []}'
    )
    assert record(suite(tmp_path, 'plan = "plan.json"'))
    with pytest.raises(InputError, match="does not say which workload"):
        measure(suite(tmp_path, 'plan = "plan.json"\nstrict = true').cases[0])


@pytest.mark.parametrize("keys", ["strict = true", 'strict = true\npolicy = "resident"'])
def test_what_is_strict_has_a_plan(tmp_path: Path, keys: str) -> None:
    with pytest.raises(InputError, match="strict requires plan"):
        suite(tmp_path, keys)


def test_a_case_rescales_what_was_measured_elsewhere(tmp_path: Path) -> None:
    graph = step(device="NVIDIA H100 80GB HBM3", home=None)
    hosim.save_workload(graph, tmp_path / "w.json")
    keys = 'policy = "resident"'
    with pytest.raises(InputError, match="were measured on NVIDIA H100"):
        measure(suite(tmp_path, keys, "a100").cases[0])
    rescaled = suite(tmp_path, f"{keys}\nrescale = true", "a100")
    expected = hosim.compare(graph, "a100", "resident", rescale=True)["makespan_ns"].iloc[0]
    assert record(rescaled).metrics["makespan"] == expected != 150
    assert record(rescaled).asked["rescale"] == "true"
    (tmp_path / "hosim.toml").write_text(
        '[matrix.m]\nworkloads = ["w.json"]\nhardware = ["a100", "h100"]\npolicies = '
        '["resident"]\nrescale = true\n'
    )
    lines = [
        found.record
        for found in measure_lines(load_suite(tmp_path / "hosim.toml").cases)
        if not isinstance(found, hosim.HosimError)
    ]
    assert [line and line.metrics["makespan"] for line in lines] == [expected, 150]
