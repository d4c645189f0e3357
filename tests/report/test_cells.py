"""What a notebook shows of a graph, a machine, a plan, a result and a comparison: one line as text,
tables as HTML, names escaped.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pandas as pd
import pytest

import hosim
from hosim import api
from hosim.policies import policy_of
from hosim.report import cell
from hosim.units import human_time

NAME = "<script>alert(1)</script>\n\x1b[31m"


def odd() -> hosim.Graph:
    b = hosim.GraphBuilder(NAME)
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("a", 30)
    b.op(NAME, "<b>kind</b>", inputs=["w"], outputs=["a"], duration_ns=50)
    return b.build()


def many(ops: int) -> hosim.Graph:
    b = hosim.GraphBuilder("many")
    for i in range(ops):
        b.tensor(f"w{i}", 40, "parameter")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50)
    return b.build()


MACHINE = hosim.load_hardware(hosim.find_hardware("toy"))
PLAN = hosim.plan(odd(), MACHINE, "layerwise")


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (odd(), r"<Graph <script>alert(1)</script>\n\x1b[31m: 1 op, 2 tensors, 40 B at the start>"),
        (MACHINE, "<Hardware toy: 1 device, hbm 100 B, ddr 1000 B>"),
        (hosim.policies.lookahead, "<Policy lookahead:k=4:placement=fastest>"),
        (
            PLAN,
            r"<Plan of layerwise for <script>alert(1)</script>\n\x1b[31m: 1 prefetch, 0 stores, 1 "
            r"detach>",
        ),
        (
            hosim.plan(odd(), "toy", "on_demand"),
            r"<Plan of on_demand for <script>alert(1)</script>\n\x1b[31m: decides during the "
            r"replay>",
        ),
        (
            hosim.replay(PLAN),
            r"<Result of layerwise on toy, <script>alert(1)</script>\n\x1b[31m: 90 ns, peak hbm "
            r"70 B, ddr 40 B>",
        ),
        (
            hosim.replay(PLAN, budget="60 B"),
            r"<Result of layerwise on toy, <script>alert(1)</script>\n\x1b[31m: does not fit "
            r"within 60 B>",
        ),
        (
            replace(hosim.replay(PLAN, budget=60), failed=True),
            r"<Result of layerwise on toy, <script>alert(1)</script>\n\x1b[31m: failed within 60 "
            r"B>",
        ),
    ],
)
def test_text_is_one_line(of: object, said: str) -> None:
    assert repr(of) == said


class Tags(HTMLParser):
    """The tags of a page, and what is between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def bad(graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> hosim.Plan:
    raise KeyError(NAME)


def mine(
    graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int, *, lead: int = 4
) -> hosim.Plan:
    """Does <b>something</b>."""
    return hosim.Plan(graph)


SHOWN = {
    "policy": (hosim.policies.layerwise, ["layerwise", "layers_ahead=1"]),
    "policy of somebody": (policy_of(mine), ["mine", "lead=4", "Does <b>something</b>."]),
    "graph": (odd(), ["parameter", "<b>kind</b>", "40 B"]),
    "machine": (MACHINE, ["Tiers", "Channels", "h2d", "100 B"]),
    "plan": (PLAN, ["prefetch", "ddr", "40 B"]),
    "plan that decides later": (
        hosim.plan(odd(), "toy", "on_demand"),
        ["decides during the replay"],
    ),
    "result": (hosim.replay(PLAN), ["transfer", "40 ns", "h2d", "parameter 40 B, activation 30 B"]),
    "result that does not fit": (hosim.replay(PLAN, budget=60), ["does not fit"]),
    "figures alone": (
        replace(hosim.replay(PLAN), replayed=None),
        ["40 ns", "h2d", "parameter 40 B, activation 30 B"],
    ),
    "figures alone that do not fit": (
        replace(hosim.replay(PLAN, budget=60), replayed=None),
        ["layerwise does not fit"],
    ),
    "recorded result": (hosim.replay(PLAN, record=True), ["makespan", "90 ns", "h2d"]),
    "comparison": (
        hosim.compare(odd(), "toy", ["layerwise", bad]),
        ["layerwise", "90 ns", "1.800x", "no result", "policy bad has a bug"],
    ),
    "machines": (
        hosim.compare(many(2), [MACHINE], ["resident"]),
        ["toy", "100 ns", "80 B", "enough"],
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_cell_has_tables_and_names_are_data(name: str) -> None:
    of, wanted = SHOWN[name]
    page = Tags(of._repr_html_())
    text = "\n".join(page.said)
    assert [said for said in wanted if said not in text] == []
    assert set(page.tags) <= {
        "p",
        "h4",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
        "img",
        "code",
        "wbr",
    }
    assert ("img" in page.tags) == (name == "recorded result")
    assert "\x1b" not in text
    assert not {"class", "id"} & page.attributes


def test_cells_say_what_is_unknown_and_what_is_left_out() -> None:
    graph = replace(
        odd(),
        ops=(replace(odd().ops[0], duration_ns=None),),
        meta={"unknown_ops": [NAME], "left_out": ["<b>a head</b>"]},
    )
    plan = hosim.plan(graph, MACHINE, "layerwise")
    compared = [hosim.compare(graph, machines, "layerwise") for machines in (MACHINE, [MACHINE])]
    for shown in (hosim.replay(plan), hosim.replay(plan, record=True), *compared):
        text = " ".join(Tags(shown._repr_html_()).said)
        assert "1 op of unknown FLOP" in text
        assert "<b>a head</b>" in text
    assert [note.partition(":")[0] for note in compared[0].attrs["notes"]][1:] == [
        "untimed",
        "not modelled",
        "uncertain",
    ]


def test_a_cell_is_small_however_large_the_graph() -> None:
    assert len(many(2000)._repr_html_()) < 3000


def test_what_is_selected_from_a_comparison_is_shown_as_pandas_shows_it() -> None:
    table = hosim.compare(odd(), "toy", "layerwise")
    assert "makespan_ns" in table.columns
    for part in (table[["policy", "makespan_ns"]], table.head(), table.sort_values("makespan_ns")):
        assert part._repr_html_() == pd.DataFrame(part)._repr_html_()
    assert re.search(r"<p>\d+ columns: <code>list\(frame.columns\)</code></p>", table._repr_html_())


def test_frames_in_units_have_texts_and_shorter_names() -> None:
    answer = hosim.sweep(odd(), "toy", "layerwise", vary="channels.h2d.bandwidth=1..2GB/s:2")
    columns = ["channels.h2d.bandwidth", "channels.h2d.bandwidth_bytes_per_s", "makespan_ns"]
    shown = answer[columns].in_units()
    assert list(shown.columns) == ["channels.h2d.bandwidth", "makespan"]
    assert list(shown["channels.h2d.bandwidth"]) == ["1 GB/s", "2 GB/s"]
    assert list(shown["makespan"]) == [human_time(ns) for ns in answer["makespan_ns"]]
    assert shown.index.equals(answer.index)


def test_anything_else_is_its_text() -> None:
    assert cell("a < b") == "<pre>a &lt; b</pre>"


def test_anything_else_that_a_study_returns_is_its_text() -> None:
    assert api.cell("a < b") == "<pre>a &lt; b</pre>"
    answer = hosim.fit(odd(), "toy", "layerwise", smallest="budget=50..100%:2")
    assert f"<p>{escape(str(answer))}.</p>" in answer._repr_html_()
    assert "<h4>Tried</h4>" in answer._repr_html_()


def test_a_figure_is_a_picture_without_pyplot() -> None:
    figure = hosim.plot(hosim.plan(odd(), "toy", "layerwise"))
    (svg,) = figure._repr_mimebundle_().values()
    assert svg.startswith("<?xml")
    assert ">Memory: ddr</text>" in svg
