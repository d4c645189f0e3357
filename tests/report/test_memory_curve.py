"""The live-memory curve as characters; levels derived by hand."""

from hosim.graph import Graph, GraphBuilder
from hosim.report.memory_curve import memory_curve


def staircase(sizes):
    """A graph whose ops hold 100 bytes of a weight and a workspace of ``sizes``."""
    b = GraphBuilder("stairs")
    b.tensor("w", 100, "parameter")
    for i, size in enumerate(sizes):
        b.op(f"f{i}", "add", inputs=["w"], workspace_bytes=size)
    return b.build()


def test_each_op_is_a_column_where_there_is_room():
    lines = memory_curve(staircase([0, 1, 16, 8]), 40, 2).plain.splitlines()
    assert lines[0] == "116 B ┤  █ "  # the peak's upper line is full
    assert lines[1] == "      │ ▁██"  # 1 of 16 in two lines of eight eighths: one; half of it: one line
    assert lines[2] == "100 B └────"
    assert lines[3].split() == ["op", "0", "op", "3"]


def test_a_column_shows_the_most_of_its_ops():
    lines = memory_curve(staircase([0, 4, 0, 0, 0, 0, 0, 8]), 12, 1).plain.splitlines()
    assert lines[0] == "108 B ┤ ▄  █"  # ops 0, 1-2, 3, 4-5, 6-7


def test_the_peak_has_its_colour():
    text = memory_curve(staircase([0, 9, 3]), 40, 3)
    red = {text.plain[span.start : span.end] for span in text.spans if "red" in str(span.style)}
    assert red == {"█"}


def test_a_flat_curve_and_none():
    assert memory_curve(staircase([5, 5]), 40, 2).plain.splitlines()[0] == "105 B ┤██"
    assert memory_curve(Graph("empty", (), ()), 40, 2).plain == ""
