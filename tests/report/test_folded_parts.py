"""Rows of tables about parts of tensors that say the same."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

import hosim
from hosim.folded_parts import FoldedRow, folded, of_each
from hosim.graph import Tensor
from hosim.graph_parts import part_name

NAMES = st.sampled_from(["a", "b"]).flatmap(
    lambda whole: st.one_of(st.just(whole), st.integers(0, 30).map(lambda k: part_name(whole, str(k))), st.just(part_name(whole, "past")))
)


def tensor(name: str) -> Tensor:
    """One that is a part if it is named like one."""
    return Tensor(name, 1, of=name.partition("[")[0] if "[" in name else "")


def test_parts_of_which_a_table_says_the_same_are_one_row() -> None:
    rows = [
        (tensor(name), (said,)) for name, said in (("w[3]", "x"), ("b", "x"), ("w[10]", "x"), ("w[0]", "y"), ("w[1]", "x"), ("v[3]", "x"))
    ]
    assert folded(rows) == [
        FoldedRow("w[1..10] (3 parts)", ("x",), (0, 2, 4)),
        FoldedRow("b", ("x",), (1,)),
        FoldedRow("w[0]", ("y",), (3,)),
        FoldedRow("v[3]", ("x",), (5,)),
    ]
    assert of_each(folded(rows))
    assert not of_each(folded(rows[1:2]))


@given(st.lists(st.tuples(NAMES, st.integers(0, 1)), unique_by=lambda row: row[0], max_size=12))
def test_every_row_is_in_one(listed: list[tuple[str, int]]) -> None:
    rows = [(tensor(name), (said,)) for name, said in listed]
    found = folded(rows)
    assert sorted(place for row in found for place in row.places) == list(range(len(rows)))
    assert all([a.places[0] < b.places[0] for a, b in pairwise(found)])
    for name, says, places in found:
        assert {rows[k][1] for k in places} == {says}
        assert len({rows[k][0].whole for k in places}) == 1
        assert name == rows[places[0]][0].name if len(places) == 1 else name.endswith(f"({len(places)} parts)")


def test_an_explained_mixture_has_a_row_for_its_experts() -> None:
    asked = {"model": "qwen3-30b-a3b", "phase": "decode", "layers": 1, "batch": 8, "experts_home": "ddr"}
    plan = hosim.plan(asked, "h100", "static_split", budget="2GiB")
    told = hosim.explain(plan, "h100", budget="2GiB")
    for text in (str(told), told.text()):
        assert re.search(r"experts\.(down|gate_up)_proj\[\d+\.\.", text)
        assert "parts)" in text
        assert "The figures of several parts are those of each." in re.sub(r"\s+", " ", text)
    assert str(told).count("down_proj[") < 5
    assert len([row for row in told.as_dict()["tensors"] if "down_proj[" in row["tensor"]]) > 40  # the JSON names all
