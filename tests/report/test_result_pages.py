"""Pages are whole by themselves, hold what the terminal and the timeline say, and can be zoomed;
names in them are text.
"""

import json
import re
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from page_data import data_of
from rendered import facts
from rich.console import Group
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text
from timelines import MIB, everything, machine, many_ops, recorded, two_streams

from hosim import Plan, Result
from hosim.data.draws import Draws, LaterDraws, UncertainPart
from hosim.report import (
    comparison_page,
    html_of,
    lines,
    page,
    picture,
    replay_page,
    table,
    validation_page,
    verdict,
)
from hosim.report.answers import Answer
from hosim.report.drawn import DrawnOp, Shown, blank, embedded, recorded_widget, widget
from hosim.report.of_replays import comparison, failures, replay
from hosim.report.timelines import Bar, front_coded, joined, row_limit, script_json

EVIL = "</script><script>window.stolen = 1</script><!-- & \" '"


@pytest.fixture(scope="module")
def replayed() -> tuple[Plan, Result]:
    plan = two_streams()
    return plan, replace(recorded(plan), replay_s=0.0)


ANSWER = Answer("a question", "It fits <.", figures=(("time", "182 us"),))


def shown(plan: Plan, result: Result) -> list[Any]:
    return [replay(plan.graph, machine(), {"parameter": 80 * MIB}, result)]


class Elements(HTMLParser):
    """The elements of a page, and what they would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.loads += [
            value or ""
            for key, value in attrs
            if key in ("src", "href", "data", "action", "srcset", "poster")
        ]
        if tag not in ("meta", "img", "br", "wbr", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_replay_s_page_needs_nothing_else(replayed: tuple[Plan, Result]) -> None:
    text = replay_page(ANSWER, replayed[0], machine(), replayed[1], shown(*replayed))
    elements = Elements(text)
    assert elements.open == []
    assert len(elements.loads) == elements.names.count("img") == 1
    assert all(load.startswith("data:image/svg+xml;base64,") for load in elements.loads)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)
    assert text == replay_page(ANSWER, replayed[0], machine(), replayed[1], shown(*replayed))


def test_it_has_the_terminal_s_tables(replayed: tuple[Plan, Result]) -> None:
    text = re.sub(r' data-of="[^"]*"', "", "".join(html_of(shown(*replayed)[0])))
    assert (
        '<td class="left">workload</td><td class="left">two streams: 7 ops, 11 tensors</td>' in text
    )
    assert re.search(r"<h2>Time \(lower bound|<h2>Time</h2>", text)
    assert '<tr><td class="left">by hand</td><td>182 us</td>' in text
    assert (
        '<tr><td class="left">by hand</td><td class="left">h2d</td><td>5</td><td>90.0 MiB</td>'
        in text
    )


def test_the_data_are_the_timeline(replayed: tuple[Plan, Result]) -> None:
    plan, result = replayed
    data = data_of(widget([Shown("", plan, result)], machine()))
    assert result.timeline is not None
    assert data["end"] == result.makespan_ns
    rows = {row["label"]: row for row in data["groups"][0]["rows"]}
    spans, now = [], 0
    for gap, length in zip(
        rows["compute"]["times"][::2], rows["compute"]["times"][1::2], strict=True
    ):
        spans.append((now + gap, now := now + gap + length))
    named = [
        (data["styles"][k][0], data["names"][n])
        for k, n in zip(rows["compute"]["what"], rows["compute"]["name"], strict=True)
    ]
    ops = [i for i, op in enumerate(plan.graph.ops) if op.stream == "compute"]
    assert [span for span, (what, _) in zip(spans, named, strict=True) if what == "op"] == [
        (result.timeline.op_start_ns[i], result.timeline.op_end_ns[i]) for i in ops
    ]
    assert [name for what, name in named if what == "op"] == [plan.graph.ops[i].name for i in ops]
    assert named[0] == ("transfer stall", "f0")
    assert max(data["groups"][0]["memory"]["bytes"]) == result.peak_bytes["hbm"]


@pytest.mark.long
def test_very_many_ops_are_joined_and_lose_no_time() -> None:
    graph, result = many_ops(100_000)
    text = widget([Shown("", Plan(graph), result)], machine())
    assert len(text) < 3_000_000
    data = data_of(text)
    compute = data["groups"][0]["rows"][0]
    parts = [sum(many["parts"][k] for many in compute["many"]) for k in range(len(data["styles"]))]
    for k, length in zip(compute["what"], compute["times"][1::2], strict=True):
        if k >= 0:
            parts[k] += length
    assert result.timeline is not None
    assert parts[0] == 100_000 * 100
    assert sum(parts[1:5]) == sum(stall.stall_ns for stall in result.timeline.stalls)
    alone = sum(k >= 0 for k in compute["what"])
    assert alone + sum(many["count"] for many in compute["many"]) == 100_000 + len(
        result.timeline.stalls
    )


def test_long_bars_stay_alone() -> None:
    bars = (
        [Bar(k, k + 1, "op", k) for k in range(1000)]
        + [Bar(1000, 2000, "op", 1000)]
        + [Bar(k, k + 1, "op", k) for k in range(5000, 6000)]
    )
    groups = joined(bars, 100)
    assert [bar for group in groups for bar in group] == bars
    assert len(groups) <= 200
    assert [bars[1000]] in groups
    assert all(group[-1].end_ns <= 1000 or group[0].start_ns >= 1000 for group in groups)
    assert joined(bars, len(bars)) == [[bar] for bar in bars]
    assert row_limit([5, 5], 100) == 100
    assert row_limit([5, 50, 500], 105) == 50


def test_json_in_a_script_cannot_end_it() -> None:
    text = script_json([EVIL])
    assert not set("<>&") & set(text)
    assert json.loads(text) == [EVIL]


def evil_page() -> str:
    graph, result = everything()
    ops = tuple(replace(op, name=f"{EVIL}{op.name}") for op in graph.ops)
    tensors = tuple(replace(t, name=f"{EVIL}{t.name}") for t in graph.tensors)
    named = Plan(replace(graph, name=EVIL, tensors=tensors, ops=ops), EVIL, two_streams().cache_ops)
    called = replace(result, workload=EVIL, policy=EVIL, hardware=EVIL)
    return comparison_page(
        ANSWER,
        named.graph,
        machine(),
        [called],
        [(named, called)],
        [comparison(named.graph, machine(), {}, [called])],
    )


def test_names_are_text_in_the_page() -> None:
    text = evil_page()
    elements = Elements(text)
    assert elements.names.count("script") == 2
    assert elements.names.count("img") == 2
    assert EVIL not in text


def test_a_page_without_a_timeline_says_what_does_not_fit() -> None:
    graph, result = everything()
    failed = replace(
        result, feasible=False, makespan_ns=None, error="out of memory: no room", timeline=None
    )
    text = comparison_page(ANSWER, graph, machine(), [failed], [], [failures([failed])])
    assert "out of memory: no room" in text
    assert "<script" not in text
    assert Elements(page("t", [text])).names.count("img") == 2


def test_a_table_a_list_and_a_picture_of_a_page() -> None:
    assert table(("a", "b<", "c"), [("1", "2", "3"), ("4", "&", "6")], left=2, bad=(1,)) == (
        '<table>\n<thead><tr><th class="left">a</th><th '
        'class="left">b&lt;</th><th>c</th></tr></thead>\n<tbody>\n'
        '<tr><td class="left">1</td><td class="left">2</td><td>3</td></tr>\n'
        '<tr class="bad"><td class="left">4</td><td '
        'class="left">&amp;</td><td>6</td></tr>\n</tbody>\n</table>'
    )
    long = ("123,456,789 B", "123,456,789 B", "123,456,789 B")
    assert table(("a", "b<", "c"), [long]).startswith(
        '<table class="fold30" style="--cell: 9rem">\n<thead><tr><th '
        'class="left">a</th><th>b&lt;</th>'
    )
    assert '<td data-of="b&lt;">123,456,789 B</td>' in table(("a", "b<", "c"), [long])
    assert (
        table((), [("1", "2")])
        == '<table>\n<tbody>\n<tr><td class="left">1</td><td>2</td></tr>\n</tbody>\n</table>'
    )
    lined = table(("a",), [("\n".join(["1234567890"] * 9),)])
    assert 'class="fold' not in lined  # as wide as its lines
    assert lined.count("<br><small>1234567890</small>") == 8
    assert lines(["a<", "b"]) == "<ul><li>a&lt;</li><li>b</li></ul>"
    figure, _ = blank([1])
    kind, data = embedded(figure)
    drawn = b64encode(data).decode()
    assert (
        picture(figure, 'a "b"')
        == f'<p><img alt="a &quot;b&quot;" src="data:{kind};base64,{drawn}"></p>'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([float("nan")])
    assert script_json({"a": [1, "&"]}) == '{"a":[1,"\\u0026"]}'


def figures_drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that pages draw from here on, in order."""
    drawn: list[Figure] = []
    draw = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, *file, **how: drawn.append(figure) or draw(figure, *file, **how),
    )
    return drawn


def outline(text: str) -> list[str]:
    """The first word of title, headings and descriptions of pictures, in order."""
    return [
        "".join(found).split()[0]
        for found in re.findall(r'<title>(.*?)</title>|<h2>(.*?)</h2>|<img alt="(.*?)"', text)
    ]


def test_the_parts_of_each_page_in_order(
    replayed: tuple[Plan, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = figures_drawn(monkeypatch)
    plan, result = replayed
    one = replay_page(ANSWER, plan, machine(), result, ())
    assert outline(one) == ["two", "Timeline", "Memory"]
    assert f"<title>{plan.graph.name} on toy: {result.policy}</title>" in one
    assert one.index("It fits &lt;") < one.index("182 us") < one.index("Timeline</h2>")
    assert "<details><summary>All figures</summary>" in one
    assert "devices." not in one
    several = comparison_page(ANSWER, plan.graph, machine(), [result], [(plan, result)], ())
    assert outline(several) == ["two", "Makespan", "Timelines", "Memory"]
    assert f"<title>{plan.graph.name} on toy: policies</title>" in several
    assert re.findall(r'"tier":"(\w+)"', several) == re.findall(r'"tier":"(\w+)"', one)
    assert re.findall(r'"tier":"(\w+)"', one) == ["hbm", "ddr"]
    memory = drawn[0].axes[0]
    assert memory.get_title("left") == "Memory: hbm"
    assert (memory.get_ylabel(), round(memory.dataLim.ymax)) == ("MiB", 90)


def test_the_page_of_a_validation_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = figures_drawn(monkeypatch)
    data: dict[str, Any] = {
        "trace": "step",
        "device": None,
        "kernels": 2,
        "missing": ["a<"],
        "given": {},
        "worst": [],
        "memory": {},
    }
    data |= {"errors": None, "explained": None, "reasons": []}
    data |= {
        "makespan": {"measured_ns": None},
        "kernel_start": {},
        "copies": {"count": 0},
        "stream_waits": {"count": 0, "contradicted": 0},
    }
    held = np.array([1, 2], np.int64)
    text = validation_page(data, beside(), (held, {"recorded": held}))
    assert outline(text) == ["step:", "Timeline", "Errors", "Errors", "Memory", "Memory"]
    assert "<p>Not in the recording: a&lt;</p>" in text
    errors, _ = [figure.axes[0] for figure in drawn]
    assert [list(line.get_ydata()) for line in errors.get_lines()[1:]] == [[3, 0, -9, 0]]
    assert [tuple(figure.get_size_inches()) for figure in drawn] == [(11, 3.5), (11, 4)]
    worst = [{"name": "f<", "stream": 7, "measured_start_ns": 2000, "start_error_ns": -30}]
    data["given"] = {
        "device_durations": 1,
        "host_segments": 2,
        "overlaps": 3,
        "starts": 4,
        "recurring": [],
        "constants": {},
    }
    text = validation_page(data | {"device": "Toy", "worst": worst}, [], None)
    assert outline(text) == ["step", "Ops", "What"]
    assert "<title>step on Toy: " in text
    assert '<tr><td class="left">f&lt;</td><td>7</td><td>2.00 us</td><td>-30 ns</td></tr>' in text
    assert text.count("<script") == 0
    assert "1, 2, 3, 4, 0, 0" in facts(text)


def test_the_page_of_a_validation_begins_with_its_verdict() -> None:
    figures = {"ns": 1, "share": 0.1}
    data: dict[str, Any] = {
        "trace": "step",
        "device": None,
        "missing": [],
        "given": {},
        "worst": [],
        "memory": {},
        "kernel_start": {},
    }
    data |= {
        "makespan": {"measured_ns": None},
        "copies": {"count": 0},
        "stream_waits": {"count": 0},
        "explained": False,
    }
    span = {
        "cause": "late <launch>",
        "ops": [[0, 1]],
        "calls": [],
        "off_ns": 5,
        "names": ["f"],
        "start_ns": 0,
        "end_ns": 900,
    }
    data |= {"errors": {"rest_explained": False, "rest": None}, "reasons": [span]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "hosim.report.page_of_validation.rival_rows",
            lambda errors: [("makespan", *map(str, figures.values()), "-")],
        )
        text = validation_page(data, [], None)
    body = text[text.index("</h1>") :]
    assert body.startswith('</h1>\n<p class="verdict bad">Not validated: 2 ops; ')
    assert "late, 1, 0 ns, 900 ns, f" in facts(body, "late", "f")
    assert outline(text)[1:] == ["Beside"]
    assert 'class="verdict">Explained: ' in verdict("Explained: all", bad=False)


def beside() -> list[DrawnOp]:
    """Recorded and simulated: on stream 13 a copy 3 us late, on stream 7 kernels in time, 9 us
    early, and in time.
    """
    us = 1000
    return [
        ("copy in", "copy", 0, 13, (us, 2 * us), (4 * us, 5 * us)),
        ("first", "kernel", 0, 7, (5 * us, 1000 * us), (5 * us, 1000 * us)),
        ("second", "kernel", 0, 7, (2001 * us, 2002 * us), (1992 * us, 1993 * us)),
        ("last", "kernel", 0, 7, (4000 * us, 5000 * us), (4000 * us, 5001 * us)),
    ]


def test_the_data_of_a_recording_beside_its_replay() -> None:
    """What is furthest off comes first in ``far``: the second bar of stream 7, then the only one of
    stream 13.
    """
    us = 1000
    data = data_of(
        recorded_widget(beside(), [(0, 500 * us, "late launch"), (9000 * us, 9001 * us, "outside")])
    )
    assert (data["begin"], data["end"]) == (us, 5001 * us)
    assert data["spans"] == [[us, 500 * us, "late launch"]]
    assert data["far"] == [[0, 1], [1, 0], [0, 0], [0, 2]]
    seven, thirteen = data["groups"]
    assert (seven["title"], thirteen["title"]) == ("stream 7", "stream 13")
    recorded, simulated = seven["rows"]
    assert (recorded["label"], recorded["times"]) == (
        "recorded",
        [5 * us, 995 * us, 1001 * us, us, 1998 * us, 1000 * us],
    )
    assert (simulated["label"], simulated["times"]) == (
        "simulated",
        [5 * us, 995 * us, 992 * us, us, 2007 * us, 1001 * us],
    )
    assert [data["names"][n] for n in recorded["name"]] == ["first", "second", "last"]
    assert [data["styles"][k][0] for row in thirteen["rows"] for k in row["what"]] == [
        "copy",
        "copy",
    ]
    assert (
        data_of(recorded_widget([*beside(), ("f", "kernel", 1, 7, (us, us), (us, us))], []))[
            "groups"
        ][2]["title"]
        == "device 1, stream 7"
    )


def test_ops_that_change_places_stay_pairs() -> None:
    ops = [("a", "kernel", 0, 7, (0, 1), (8, 9)), ("b", "kernel", 0, 7, (4, 5), (2, 3))]
    (group,) = data_of(recorded_widget(ops, []))["groups"]
    assert group["twins"] == [0, 0, 1, 1, 0, 1, 1, -1]


def test_a_recording_of_very_many_ops_is_less_than_two_megabytes() -> None:
    """25,000 kernels, of which each starts at another instant than recorded."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int)"
    )
    ops = [
        (
            f"{name}{k % 50}",
            "kernel",
            0,
            7,
            (k * 4321, k * 4321 + 3210),
            (k * 4320 + 77, k * 4320 + 3287),
        )
        for k in range(25_000)
    ]
    text = recorded_widget(ops, [])
    assert len(text) < 2_000_000
    assert "many" not in data_of(text)["groups"][0]["rows"][0]


def test_a_table_of_the_terminal_has_its_header_if_it_has_one() -> None:
    listed = Table("name", Column("size\nin B", justify="right"), title="Sizes")
    listed.add_row("a\nb", "1")
    assert list(html_of(Group(Panel(listed), Text("  "), Text(" x\n"), "y"))) == [
        "<h2>Sizes</h2>",
        '<table>\n<thead><tr><th class="left">name</th><th>size in B</th></tr></thead>\n<tbody>\n'
        '<tr><td class="left">a b</td><td>1</td></tr>\n</tbody>\n</table>',
        "<p>x</p>",
        "<p>y</p>",
    ]
    bare = Table("", "")
    bare.add_row("a", "1")
    assert list(html_of(bare)) == [
        '<table>\n<tbody>\n<tr><td class="left">a</td><td '
        'class="left">1</td></tr>\n</tbody>\n</table>'
    ]


def test_a_large_page_is_less_than_two_megabytes() -> None:
    """25,000 ops, with names as long as those of layers are."""
    graph, result = many_ops(25_000)
    ops = tuple(
        replace(op, name=f"model.layers.{i // 200}.self_attn.o_proj.linear_{i}")
        for i, op in enumerate(graph.ops)
    )
    named = replace(graph, ops=ops)
    text = widget([Shown("", Plan(named), result)], machine())
    assert len(text) < 2_000_000
    assert {op.name for op in ops} <= set(data_of(text)["names"])


def test_names_that_a_browser_counts_otherwise_share_nothing_beyond() -> None:
    assert front_coded(["a\U0001f600b", "a\U0001f600c", "", "a"]) == {
        "shared": [0, 1, 0, 0],
        "rests": ["a\U0001f600b", "\U0001f600c", "", "a"],
    }


def test_what_the_uncertainty_is_from_is_a_bar(replayed: tuple[Plan, Result]) -> None:
    plan, result = replayed
    assert 'class="shares"' not in replay_page(ANSWER, plan, machine(), result, [])
    sources = UncertainPart("links & more", 0.625), UncertainPart("gaps", 0.25)
    unsure = replace(result, draws=LaterDraws.of(Draws((90, 110), sources=sources)))
    for shown_now in (
        replay_page(ANSWER, plan, machine(), unsure, []),
        comparison_page(
            ANSWER,
            plan.graph,
            machine(),
            [unsure, replace(unsure, makespan_ns=10**12)],
            [],
            [],
        ),
    ):
        assert f"<h2>What the uncertainty of {result.policy} is from</h2>" in shown_now
        (bar,) = re.findall(r'<div class="shares">(.*?)</div>', shown_now)
        assert re.findall(r"width: ([\d.]+)%", bar) == ["62.5", "25.0"]
        assert "</span>links &amp; more: 62 %</li>" in shown_now
        assert "</span>gaps: 25 %</li>" in shown_now
