"""Whether hosim or the user's model changed since a baseline, as the line above an explanation says
it.
"""

from dataclasses import replace

import pytest
from rendered import facts

from hosim.gate.records import Listing, Record
from hosim.gate.verdicts import changed_since

BEFORE = Record(
    case="c",
    asked={"hardware": "h100-80gb-sxm", "policy": "p"},
    fingerprints={"graph": "1", "plan": "2", "source": "3"},
    metrics={},
    machine={"name": "h100-80gb-sxm", "budget": "1 B", "version": "2"},
    peaks={},
    moved={},
    stalls=Listing(),
    durations=Listing(),
    curve=(),
    hosim="0.4",
    versions={"replay": 2, "planner": 1},
)
NOW = replace(BEFORE, hosim="0.5", versions={"replay": 2, "planner": 3})
HOSIM = "hosim changed since the baseline (planner 1 to 3)"
ALONE = "your model did not: review the figures, then run 'hosim baseline update'"
APART = "hosim 0.4 on this commit tells the two apart"


def prints(**changed: str) -> Record:
    return replace(NOW, fingerprints={**NOW.fingerprints, **changed})


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (BEFORE, ""),
        (replace(BEFORE, hosim="0.5"), "the baseline was written by hosim 0.4, this is 0.5"),
        (NOW, f"{HOSIM}, {ALONE}"),
        (replace(NOW, machine={**NOW.machine, "budget": "2 B"}), f"{HOSIM}, {ALONE}"),
        (prints(source="4"), f"{HOSIM}, {ALONE}"),  # another text of the same graph
        (prints(graph="4"), f"{HOSIM}, {ALONE}"),  # hosim reads the same file otherwise
        (prints(graph="4", source="shipped"), f"{HOSIM}, {ALONE}"),
        (prints(graph="4", source="4"), f"{HOSIM}, and so did the workload: {APART}"),
        (
            replace(NOW, asked={**NOW.asked, "policy": "q"}),
            f"{HOSIM}, and so did what the case asks: {APART}",
        ),
        (
            replace(NOW, machine={**NOW.machine, "version": "3"}),
            f"hosim changed since the baseline (planner 1 to 3, hardware profile 2 to 3), {ALONE}",
        ),
        (
            replace(BEFORE, machine={**NOW.machine, "devices": "2"}),
            f"hosim changed since the baseline (hardware profile), {ALONE}",
        ),
    ],
)
def test_what_changed(now: Record, said: str) -> None:
    assert changed_since(BEFORE, now) == said


def test_a_profile_of_the_users_own() -> None:
    own = replace(BEFORE, asked={"hardware": "mine.yaml", "policy": "p"})
    other = replace(own, machine={**own.machine, "version": "9"})
    assert changed_since(own, other) == ""  # nothing of hosim's
    newer = replace(other, versions=NOW.versions)
    assert changed_since(own, newer) == f"{HOSIM}, and so did the hardware profile: {APART}"


def test_an_older_baseline_does_not_say_where_its_graph_was_from() -> None:
    older = replace(BEFORE, fingerprints={"graph": "1", "plan": "2"}, versions={"replay": 2})
    assert changed_since(older, NOW) == f"{HOSIM}, {ALONE}"
    assert changed_since(older, prints(graph="4")) == (
        f"{HOSIM}; the baseline does not say whether your model changed, too: hosim 0.4 on this "
        "commit would"
    )


def test_the_line_of_a_matrix_asks_what_the_case_asks() -> None:
    line = replace(
        BEFORE, asked={}, machine={}, fingerprints={**BEFORE.fingerprints, "machine": "5"}
    )
    now = replace(NOW, machine={}, fingerprints={**NOW.fingerprints, "machine": "6"})
    said = facts(changed_since(line, now), "planner", "hardware profile", ALONE)
    assert said == f"planner, 1, 3, hardware profile, {ALONE}"
