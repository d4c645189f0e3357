"""Plans kept by content: the same measurement without planning again, and never another case's."""

from dataclasses import replace
from pathlib import Path

import pytest
from gate_toys import machine, put, step

from hosim.cache_plan import Plan
from hosim.gate import Case, measure
from hosim.io import save_hardware
from hosim.study.runs import make_plan


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        ("hyperoffload", False),
        ("hyperoffload:recompute=true", False),
        ("optimal", False),
        ("hybrid", False),
        ("lookahead", True),  # which is quicker than reading a plan
        ("unified_memory", True),  # which decides during the replay
    ],
)
def test_a_plan_is_searched_for_once(
    policy: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSIM_CACHE_KEY", "k")
    put(tmp_path, Plan(step()), machine(), offloads=False)
    case = Case(
        "step", "small.yaml", str(tmp_path), workload="step.json", policy=policy, budget="370 B"
    )
    planned: list[int] = []

    def made(*asked: object) -> Plan:
        planned.append(1)
        return make_plan(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr("hosim.gate.measured_case.make_plan", made)
    kept, plain = tmp_path / "kept", measure(case)
    assert (measure(case, kept), measure(case, kept)) == (plain, plain)
    assert len(planned) == 1 + (2 if again else 1)
    measure(replace(case, budget="380 B"), kept)
    save_hardware(machine(h2d=2), tmp_path / "small.yaml")
    measure(case, kept)
    put(tmp_path, Plan(step(2)), machine(), offloads=False)
    measure(replace(case, budget="740 B"), kept)
    assert len(planned) == 4 + (2 if again else 1)
    for file in kept.iterdir():
        file.write_bytes(file.read_bytes()[:-9] + b"x" * 9)  # whatever it is, it is not believed
    put(tmp_path, Plan(step()), machine(), offloads=False)
    assert measure(case, kept) == plain
