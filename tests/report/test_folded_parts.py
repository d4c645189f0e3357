"""Rows of tables about parts of tensors that say the same."""

from __future__ import annotations

import re
from collections import Counter
from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from page_data import data_of
from rendered import lines, table
from strategies import cases

import hosim
from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.data.folded_parts import FoldedRow, folded, of_each
from hosim.data.graph_parts import part_name
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder, Tensor
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.report.drawn import Shown, widget
from hosim.report.of_replays import transfers

NAMES = st.sampled_from(["a", "b"]).flatmap(
    lambda whole: st.one_of(
        st.just(whole),
        st.integers(0, 30).map(lambda k: part_name(whole, str(k))),
        st.just(part_name(whole, "past")),
    )
)


def tensor(name: str) -> Tensor:
    """One that is a part if it is named like one."""
    return Tensor(name, 1, of=name.partition("[")[0] if "[" in name else "")


def test_parts_of_which_a_table_says_the_same_are_one_row() -> None:
    rows = [
        (tensor(name), (said,))
        for name, said in (
            ("w[3]", "x"),
            ("b", "x"),
            ("w[10]", "x"),
            ("w[0]", "y"),
            ("w[1]", "x"),
            ("v[3]", "x"),
        )
    ]
    assert folded(rows) == [
        FoldedRow("w[1..10] (3 parts)", ("x",), (0, 2, 4)),
        FoldedRow("b", ("x",), (1,)),
        FoldedRow("w[0]", ("y",), (3,)),
        FoldedRow("v[3]", ("x",), (5,)),
    ]
    assert of_each(folded(rows))
    assert not of_each(folded(rows[1:2]))
    assert len(folded([rows[1], rows[1]])) == 2  # what is whole stays as it is


@given(st.lists(st.tuples(NAMES, st.integers(0, 1)), unique_by=lambda row: row[0], max_size=12))
def test_every_row_is_in_one(listed: list[tuple[str, int]]) -> None:
    rows = [(tensor(name), (said,)) for name, said in listed]
    found = folded(rows)
    assert sorted(place for row in found for place in row.places) == list(range(len(rows)))
    assert all([a.places[0] < b.places[0] for a, b in pairwise(found)])
    for name, says, places in found:
        assert {rows[k][1] for k in places} == {says}
        assert len({rows[k][0].whole for k in places}) == 1
        assert (
            name == rows[places[0]][0].name
            if len(places) == 1
            else name.endswith(f"({len(places)} parts)")
        )


MACHINE = Hardware(
    "by hand",
    (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 10**6, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({"bf16": 10**12}),
)


def moving() -> Plan:
    """A byte takes a nanosecond: v comes 0..20, parts 3, 0 and 1 of w 20..50, f waits from 25 on;
    part 2, issued at 25, comes 50..60.
    """
    b = GraphBuilder("moving")
    b.tensor("v", 20, "parameter", home="ddr")
    for k in range(4):
        b.tensor(part_name("w", str(k)), 10, "expert", home="ddr", of="w")
    b.op("e", "any", duration_ns=25)
    b.op("f", "any", inputs=["v", "w[0]", "w[1]", "w[3]"], duration_ns=5)
    b.op("g", "any", inputs=["w[2]"], duration_ns=5)
    graph = b.build()
    moves = [
        ("v", AT_START),
        ("w[3]", AT_START),
        ("w[0]", AT_START),
        ("w[1]", AT_START),
        ("w[2]", 0),
    ]
    ups = [
        CacheOp("prefetch", graph.tensor_index[name], "ddr", "hbm", after) for name, after in moves
    ]
    downs = [
        CacheOp("detach", t, "hbm", None, len(graph.ops) - 1) for t in range(len(graph.tensors))
    ]
    return Plan(graph, "by hand", (*ups, *downs))


def test_transfers_of_parts_that_are_issued_together_are_one_row() -> None:
    """5 of the 30 ns of three parts are covered; g waits for part 2 from 55 to 60."""
    told = hosim.explain(moving(), MACHINE)
    assert lines(transfers(told.figures))[:6] == table("""
        Transfers. Of parts issued together: the first start, the last end, queued until that start, covered and exposed in all.
         tensor             channel  issued  start    end  could begin    queued  covered  while  of overlap  exposed  waiting
         ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
         w[0..3] (3 parts)  h2d        0 ns  20 ns  50 ns  0 ns to 20 ns   20 ns     17 %  e           120 %    25 ns  f
         w[2]               h2d       25 ns  50 ns  60 ns  0 ns to 50 ns   25 ns     50 %  f           200 %     5 ns  g
         v                  h2d        0 ns   0 ns  20 ns  0 ns to 0 ns        -    100 %  e            80 %        -  -
    """)
    assert len(told.as_dict()["transfers"]) == 5


def test_transfers_of_parts_that_follow_each_other_are_one_bar() -> None:
    """Both stalls lead to it."""
    plan = moving()
    data = data_of(widget([Shown("", plan, replay(plan, MACHINE, record=True))], MACHINE))
    group, _ = data["groups"]
    compute, h2d = group["rows"]
    assert [data["names"][name] for name in h2d["name"]] == ["v, 20 B", "w[0..3] (4 parts), 40 B"]
    assert h2d["times"] == [0, 20, 0, 40]
    stalled = [(data["names"][compute["name"][i]], line, j) for _, i, line, j in group["blames"]]
    assert stalled == [("f", 1, 1), ("g", 1, 1)]


@settings(max_examples=20)
@given(cases(12, max_streams=2, fabrics=True, roomy=None, measured=False, uneven=True))
def test_bars_of_a_page_hold_every_transfer(case: tuple[Graph, Hardware, Plan]) -> None:
    """Their bytes add up, and each begins and ends where one does."""
    _, machine, plan = case
    result = replay(plan, machine, record=True)
    assert result.timeline is not None
    moved = result.timeline.transfers
    data = data_of(widget([Shown("", plan, result)], machine))
    drawn = [
        row
        for row in data["groups"][0]["rows"]
        if row["label"].rstrip(" 0123456789") in {x.channel.rstrip(" 0123456789") for x in moved}
    ]
    ends = Counter([now for row in drawn for now in list(accumulate(row["times"]))[1::2]])
    assert not ends - Counter([x.end_ns for x in moved])
    assert sum([sum(row["times"][1::2]) for row in drawn]) == sum(
        [x.end_ns - x.start_ns for x in moved]
    )


def test_an_explained_mixture_has_a_row_for_its_experts() -> None:
    asked = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "layers": 1,
        "batch": 8,
        "experts_home": "ddr",
    }
    plan = hosim.plan(asked, "h100", "static_split", budget="2GiB")
    told = hosim.explain(plan, "h100", budget="2GiB")
    text = told.text()
    assert "parts)" in text
    assert re.search(r"experts\.(down|gate_up)_proj\[\d+\.\.", text)
    assert (
        len([row for row in told.as_dict()["tensors"] if "down_proj[" in row["tensor"]]) > 40
    )  # the JSON names all
