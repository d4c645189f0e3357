"""The bench of arms measures what it says: arms do no work when they are off, and all work is
theirs or local search's.
"""

from pathlib import Path

from ablate import EVERYTHING, HERE, LOCAL, arms, given, measured, read, share, table


def test_a_case_with_all_arms_and_without_each() -> None:
    rows = [
        measured("small-9241", without, *given("small-9241"), effort=0.2)
        for without in (EVERYTHING, *arms())
    ]
    assert all(row.makespan_ns for row in rows)
    assert not any(share(row, row.without) for row in rows[1:] if row.without != LOCAL)
    assert abs(sum(share(rows[0], arm) for arm in arms()) - 1) < 1e-9
    assert len(list(table(rows))) == 2 + len(arms())


def test_the_page_has_the_table_of_the_kept_rows() -> None:
    page = (Path(HERE).parents[1] / "docs" / "planner.md").read_text()
    lines = list(table(read(HERE / "ablation.csv", every=True)))
    assert len(lines) > 10
    assert "\n".join(lines) in page
