"""What tables leave out, put into blocks and break where a terminal is narrow: never a figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import lines, table
from rich.cells import cell_len
from rich.console import Group

from hosim.report.printing import (
    ColumnNeed,
    FittedColumns,
    OpenTable,
    WholeFigures,
    begins_bold,
    broken,
    fitted,
    open_table,
    total,
)


def needs(
    *widths: int, empty: tuple[int, ...] = (), spare: tuple[int, ...] = ()
) -> list[ColumnNeed]:
    """Columns by their widths, each a group of its own."""
    return [
        ColumnNeed(w, f"{i}", i in empty, spare.index(i) if i in spare else None)
        for i, w in enumerate(widths)
    ]


def test_all_columns_are_shown_up_to_the_last_character() -> None:
    """8 + 2 + 4 + 2 characters. Nothing can go from 15, nor be a block of its own: the cells have
    to break.
    """
    assert fitted(needs(8, 4), 16, 1) == FittedColumns(((0, 1),))
    assert fitted(needs(8, 4), 15, 1) == FittedColumns(((0, 1),))


def test_empty_columns_go_first_from_the_right_and_no_more_than_needed() -> None:
    """Four columns of 4 + 2: 24. Two are empty, and the first column stays although it is."""
    columns = needs(4, 4, 4, 4, empty=(0, 1, 3), spare=(2,))
    assert fitted(columns, 24, 1) == FittedColumns(((0, 1, 2, 3),))
    assert fitted(columns, 23, 1) == FittedColumns(((0, 1, 2),), (3,))
    assert fitted(columns, 17, 1) == FittedColumns(((0, 2),), (1, 3))
    assert fitted(columns, 11, 1) == FittedColumns(((0,),), (1, 2, 3))


def test_spare_columns_go_in_their_order() -> None:
    columns = needs(4, 4, 4, 4, spare=(2, 1))
    assert fitted(columns, 18, 1) == FittedColumns(((0, 1, 3),), (2,))
    assert fitted(columns, 12, 1) == FittedColumns(((0, 3),), (1, 2))


def test_blocks_begin_with_the_keys_unless_they_take_more_than_half() -> None:
    """The keys take 12. In 24 characters two more of 4 + 2 fit beside them; of 23 they take more
    than half, and go among the others.
    """
    columns = needs(4, 4, 4, 4, 4, 4)
    assert fitted(columns, 24, 2).blocks == ((0, 1, 2, 3), (0, 1, 4, 5))
    assert fitted(columns, 23, 2).blocks == ((0, 1, 2), (0, 3, 4), (0, 5))


def test_a_spare_key_goes_as_others_do() -> None:
    """The first column never does. Without column 1 the keys are 0 alone."""
    assert fitted(needs(4, 4, 4, spare=(0, 1)), 17, 2) == FittedColumns(((0, 2),), (1,))
    assert fitted(needs(4, 4, 4, 4, 4, spare=(1,)), 18, 2) == FittedColumns(
        ((0, 2, 3), (0, 4)), (1,)
    )


def test_a_group_is_parted_only_where_it_has_no_room() -> None:
    """5 * (4 + 2) = 30 do not fit; the group of columns 2 to 4 takes 18 beside the key's 6."""
    columns = [ColumnNeed(4, group) for group in ("key", "a", "b", "b", "b")]
    assert fitted(columns, 24, 1).blocks == ((0, 1), (0, 2, 3, 4))
    assert fitted(columns, 18, 1).blocks == ((0, 1, 2), (0, 3, 4))


@given(
    st.lists(
        st.builds(
            ColumnNeed,
            st.integers(1, 30),
            st.sampled_from("abc"),
            st.booleans(),
            st.none() | st.integers(0, 3),
        ),
        min_size=1,
    )
)
def test_no_column_is_lost_and_each_is_shown_once(columns: list[ColumnNeed]) -> None:
    found = fitted(columns, 40, 1)
    shown = [i for block in found.blocks for i in block[1:]]
    assert sorted([0, *shown, *found.left_out]) == list(range(len(columns)))
    assert all(block[0] == 0 for block in found.blocks)
    assert all(columns[i].empty or columns[i].rank is not None for i in found.left_out)
    assert all(total(columns, block) <= 40 or len(block) <= 2 for block in found.blocks)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("moved: best score", 17, ["moved: best score"]),
        ("moved: best score", 16, ["moved: best", "score"]),
        (
            "model.layers.11.mlp.gate_proj.weight",
            16,
            ["model.layers.11.", "mlp.gate_proj.", "weight"],
        ),
        (
            "model.layers.11.mlp.gate_proj.weight",
            12,
            ["model.", "layers.11.", "mlp.gate_", "proj.weight"],
        ),
        ("now model.layers.11.mlp and on", 13, ["now", "model.layers.", "11.mlp and on"]),
        ("impact=1.0,2", 9, ["impact=", "1.0,2"]),
        ("a--b.1.5", 4, ["a--", "b.", "1.5"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("a.bcdefgh", 3, ["a.", "bcd", "efg", "h"]),
        ("x\ny z", 2, ["x", "y", "z"]),
        ("日本語", 4, ["日本", "語"]),
        ("ab", 0, ["a", "b"]),
        ("", 5, [""]),
    ],
)
def test_where_text_breaks(text: str, width: int, shown: list[str]) -> None:
    assert broken(text, width).split("\n") == shown


@given(st.text("ab._ 語", max_size=30), st.integers(2, 12))
def test_breaking_loses_nothing_but_blanks(text: str, width: int) -> None:
    found = broken(text, width)
    assert found.replace("\n", "").replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in found.split("\n"))


def policies() -> OpenTable:
    shown = open_table(
        "Policies and times",
        "policy",
        "runtime\nstall",
        "peak of hbm",
        "queued",
        "drain",
        spare=("queued",),
    )
    shown.add_row("resident", "321.20x", "11.9 GiB", "12 ms", "-")
    return shown


def test_a_table_as_the_terminal_gets_narrower() -> None:
    assert lines(policies(), 52) == table("""
        Policies and times
                   runtime
         policy      stall  peak of hbm  queued  drain
         ─────────────────────────────────────────────
         resident  321.20x     11.9 GiB   12 ms      -
    """)
    # the whole takes 8 + 7 + 11 + 6 + 5 + 5 * 2 = 47; with "peak of hbm" in three lines, 44
    assert (
        lines(policies(), 46)
        == lines(policies(), 44)
        == table("""
        Policies and times
                                peak
                   runtime        of
         policy      stall       hbm  queued  drain
         ──────────────────────────────────────────
         resident  321.20x  11.9 GiB   12 ms      -
    """)
    )
    assert lines(policies(), 37) == table("""
        Policies and times
                                peak
                   runtime        of
         policy      stall       hbm  queued
         ───────────────────────────────────
         resident  321.20x  11.9 GiB   12 ms
        Empty: drain.
    """)
    assert lines(policies(), 29) == table("""
        Policies and times
                                peak
                   runtime        of
         policy      stall       hbm
         ───────────────────────────
         resident  321.20x  11.9 GiB
        Empty: drain. Not shown:
        queued; 47 columns show all.
    """)
    assert lines(policies(), 20) == table("""
        Policies and times
                   runtime
         policy      stall
         ─────────────────
         resident  321.20x
                       peak
                         of
         policy         hbm
         ──────────────────
         resident  11.9 GiB
        Empty: drain. Not
        shown: queued; 47
        columns show all.
    """)


def test_the_width_that_shows_all_does() -> None:
    assert len(lines(policies(), 46)) > len(lines(policies(), 47))
    assert not any("Not shown" in line for line in lines(policies(), 47))


@pytest.mark.parametrize("width", range(12, 40))
def test_no_line_ends_between_a_figure_and_its_unit(width: int) -> None:
    """However the lines fall, each has whole figures, and together they are the text."""
    text = "weights 15.0 GiB, buffer 256 B, 75 % of it"
    shown = lines(
        Group(WholeFigures(text)), width
    )  # rich joins what is printed by itself into a text of its own
    assert " ".join(shown) == text
    assert not [line for line in shown if line[-1].isdigit()]
    assert begins_bold("15.0 GiB", " of hbm").spans[0].style == "bold"
