"""hosim's own gate: shipped workloads, profiles and policies give what the committed baselines say, no worse and no better."""

from pathlib import Path

from hosim.gate.cases import load_suite
from hosim.gate.check import check
from hosim.gate.reports import details, headline
from hosim.gate.verdict import SAME


def test_figures_of_shipped_workloads_are_those_committed() -> None:
    suite = load_suite(Path(__file__).parent / "own" / "hosim.toml")
    assert len(suite.cases) == 5
    changed = [line for found in check(suite) if found.verdict != SAME for line in (headline(found), *details(found))]
    assert not changed, "\n".join([*changed, f"if it is meant: hosim baseline update --config {suite.source}, and commit the diff"])
