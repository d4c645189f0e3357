"""hosim's own gate: shipped workloads, profiles and policies give what the committed baselines say,
no worse and no better.
"""

from pathlib import Path

import pytest

from hosim import shipped
from hosim.gate import Suite, check, headline, load_suite
from hosim.gate.judged_metrics import SAME
from hosim.gate.records import read_matrix
from hosim.policies import policy_named, policy_names

pytestmark = pytest.mark.slow

OWN = Path(__file__).parent / "own"

SEARCH = {"hyperoffload", "hybrid", "optimal"}
BY_NAME_ONLY = {name for name in policy_names() if policy_named(name).by_name_only}

IN_FULL = "prefill-*", "decode-*", "bert-*", "serve-*"


def suite_of(name: str) -> Suite:
    return load_suite(OWN / name)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("shipped",), id="shipped", marks=pytest.mark.long),
        pytest.param(
            ("planned", "planned-training", "machines"), id="planned", marks=pytest.mark.long
        ),  # kept_plans.py is the quick one
        pytest.param(IN_FULL, id="in-full"),
    ],
)
def test_figures_are_those_committed(names: tuple[str, ...]) -> None:
    suite = suite_of("hosim.toml")
    changed = [
        line
        for found in check(suite, names)
        if found.verdict != SAME
        for line in (headline(found), found.note, *found.explanation)
    ]
    assert not changed, "\n".join(
        [
            *changed,
            f"if it is meant: hosim baseline update --config {suite.source}, and commit the diff",
        ]
    )


def test_every_committed_baseline_has_a_case() -> None:
    suite = suite_of("hosim.toml")
    assert suite.without_case() == []
    for matrix in {case.matrix for case in suite.cases if case.matrix is not None}:
        assert set(read_matrix(suite.baseline(matrix), matrix)) == {
            case.name for case in suite.named([matrix])
        }
    assert {case.name for case in suite.cases if case.matrix is None} == {
        case.name for case in suite.named(IN_FULL)
    }


def test_nothing_that_ships_is_left_out() -> None:
    workloads, hardware = set(shipped.workloads()), set(shipped.hardware()) - {"toy"}
    policies = set(policy_names())
    for name, left_out in (("hosim.toml", SEARCH | BY_NAME_ONLY), ("all.toml", {"optimal"})):
        cases = suite_of(name).named(["shipped" if name == "hosim.toml" else "all"])
        assert {case.workload for case in cases} == workloads
        covered = {case.hardware for case in cases}
        assert (
            covered
            | {
                case.hardware
                for case in suite_of(name).named(["machines" if name == "hosim.toml" else "all"])
            }
            == hardware
        )
        assert {case.policy for case in cases} == policies - left_out
        met = {(case.workload, case.hardware) for case in cases} | {
            (case.policy, case.hardware) for case in cases
        }
        assert len(met) == len(covered) * (len(workloads) + len(policies - left_out))
