"""The bench of arms measures what it says: arms do no work when they are off, and all work is theirs or local search's."""

from ablate import EVERYTHING, LOCAL, arms, given, measured, share, table


def test_a_case_with_all_arms_and_without_each() -> None:
    rows = [measured("small-9241", without, *given("small-9241")) for without in (EVERYTHING, *arms())]
    assert all(row.makespan_ns for row in rows)
    assert not any(share(row, row.without) for row in rows[1:] if row.without != LOCAL)
    assert abs(sum(share(rows[0], arm) for arm in arms()) - 1) < 1e-9
    assert len(list(table(rows))) == 2 + len(arms())
