"""The live-memory curve as characters; levels derived by hand."""

from hosim.graph import Graph, GraphBuilder
from hosim.report.drawn import memory_curve


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
    assert (
        lines[1] == "      │ ▁██"
    )  # 1 of 16 in two lines of eight eighths: one; half of it: one line
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


def test_a_curve_in_full():
    """From 100 to 140 bytes in four lines of 10 each: 0, 8, 16 and 32 eighths. Every third line
    says its level.
    """
    text = memory_curve(staircase([0, 10, 20, 40]), 40, 4)
    assert text.plain.split("\n") == [
        "140 B ┤   █",
        "      │   █",
        "      │  ██",
        "110 B ┤ ███",
        "100 B └────",
        "       op 0 op 3",
        "",
    ]
    colours = [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]
    assert colours.count(("█", "bold red")) == 4
    assert colours.count(("█", "cyan")) == 3
    wide = memory_curve(staircase(range(30)), 20, 1).plain.split("\n")
    assert [len(line) for line in wide] == [20, 20, 20, 0]
    assert wide[2] == "       op 0    op 29"


def test_a_curve_is_a_hundred_columns_and_ten_lines_unless_it_is_asked_otherwise():
    lines = memory_curve(staircase(range(300))).plain.splitlines()
    assert (len(lines), {len(line) for line in lines}) == (12, {100})
    assert (
        len(memory_curve(staircase([1, 2]), 1, 2).plain.splitlines()[0].split("┤")[1]) == 1
    )  # one column at least


def test_labels_of_a_flat_curve_differ():
    """2 GiB and 100 to 120 bytes: three digits would say 2.00 GiB at both ends."""
    lines = memory_curve(staircase([2**31, 2**31 + 20]), 60, 2).plain.splitlines()
    assert lines[0].startswith("   +20 B ┤")
    assert lines[2].startswith("2.00 GiB └")
