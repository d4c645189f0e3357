"""Pages are whole by themselves, hold what the terminal and the timeline say, and can be zoomed; names in them are text."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import browse
from matplotlib.figure import Figure
from page_data import data_of
from rich.console import Group
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text
from timelines import MIB, everything, machine, many_ops, recorded, two_streams

from hosim import Plan, Result
from hosim.report import page as parts
from hosim.report import tables
from hosim.report.figures import blank
from hosim.report.interactive import Shown, front_coded, joined, row_limit, script_json, widget
from hosim.report.page import page
from hosim.report.result_pages import comparison_page, html_of, replay_page
from hosim.report.timeline_rows import Bar
from hosim.report.validation_page import validation_page

EVIL = "</script><script>window.stolen = 1</script><!-- & \" '"


@pytest.fixture(scope="module")
def replayed() -> tuple[Plan, Result]:
    plan = two_streams()
    return plan, replace(recorded(plan), replay_s=0.0)


def shown(plan: Plan, result: Result) -> list[Any]:
    return [tables.replay(plan.graph, machine(), {"parameter": 80 * MIB}, result)]


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
        self.loads += [value or "" for key, value in attrs if key in ("src", "href", "data", "action", "srcset", "poster")]
        if tag not in ("meta", "img", "br", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_replay_s_page_needs_nothing_else(replayed: tuple[Plan, Result]) -> None:
    text = replay_page(*(replayed[0], machine(), replayed[1]), shown(*replayed))
    elements = Elements(text)
    assert elements.open == []
    assert len(elements.loads) == elements.names.count("img") == 1
    assert all(load.startswith("data:image/png;base64,") for load in elements.loads)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)
    assert text == replay_page(*(replayed[0], machine(), replayed[1]), shown(*replayed))


def test_it_has_the_terminal_s_tables(replayed: tuple[Plan, Result]) -> None:
    text = "".join(html_of(shown(*replayed)[0]))
    assert '<td class="left">workload</td><td class="left">two streams: 7 ops, 11 tensors</td>' in text
    assert re.search(r"<h2>Time \(lower bound|<h2>Time</h2>", text)
    assert '<tr><td class="left">by hand</td><td>182 us</td>' in text
    assert '<tr><td class="left">by hand</td><td class="left">h2d</td><td>5</td><td>90.0 MiB</td>' in text


def test_the_data_are_the_timeline(replayed: tuple[Plan, Result]) -> None:
    plan, result = replayed
    data = data_of(widget([Shown("", plan, result)], machine()))
    assert result.timeline is not None
    assert data["end"] == result.makespan_ns
    rows = {row["label"]: row for row in data["groups"][0]["rows"]}
    spans, now = [], 0
    for gap, length in zip(rows["compute"]["times"][::2], rows["compute"]["times"][1::2], strict=True):
        spans.append((now + gap, now := now + gap + length))
    named = [(data["styles"][k][0], data["names"][n]) for k, n in zip(rows["compute"]["what"], rows["compute"]["name"], strict=True)]
    ops = [i for i, op in enumerate(plan.graph.ops) if op.stream == "compute"]
    assert [span for span, (what, _) in zip(spans, named, strict=True) if what == "op"] == [
        (result.timeline.op_start_ns[i], result.timeline.op_end_ns[i]) for i in ops
    ]
    assert [name for what, name in named if what == "op"] == [plan.graph.ops[i].name for i in ops]
    assert named[0] == ("transfer stall", "f0")
    assert max(data["groups"][0]["memory"]["bytes"]) == result.peak_bytes["hbm"]


def test_very_many_ops_are_joined_and_lose_no_time() -> None:
    graph, result = many_ops(100_000)
    text = widget([Shown("", Plan(graph), result)], machine())
    assert len(text) < 3_000_000
    assert "djacent short ops are joined" in text
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
    assert alone + sum(many["count"] for many in compute["many"]) == 100_000 + len(result.timeline.stalls)


def test_long_bars_stay_alone() -> None:
    bars = (
        [Bar(k, k + 1, "op", k) for k in range(1000)] + [Bar(1000, 2000, "op", 1000)] + [Bar(k, k + 1, "op", k) for k in range(5000, 6000)]
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
    return comparison_page(machine(), [called], [(named, called)], [tables.comparison(named.graph, machine(), {}, [called])])


def test_names_are_text_in_the_page() -> None:
    text = evil_page()
    elements = Elements(text)
    assert elements.names.count("script") == 2
    assert elements.names.count("img") == 2
    assert EVIL not in text


EVENTS = """
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const at = (x, y) => ({clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true});
  const seen = () => [Number(canvas.dataset.from), Number(canvas.dataset.to)];
  const told = (x, y) => {
    canvas.dispatchEvent(new PointerEvent("pointermove", at(x, y)));
    return document.querySelector(".told").textContent;
  };
"""


def test_names_are_text_in_a_browser_and_the_page_is_as_wide_as_a_narrow_window(tmp_path: Path) -> None:
    wide = "document.documentElement.scrollWidth - window.innerWidth"
    said = browse(
        evil_page(), tmp_path, EVENTS + f"return [window.stolen === undefined, document.title, told(160, 50), {wide}];", "500,900"
    )
    assert said[0]
    assert said[3] <= 0
    assert said[1] == f"{EVIL} on {EVIL}: policies"
    assert said[2].startswith(f"op: {EVIL}op0, 0.0 us to 40.0 us (40.0 us)")


def test_it_zooms_and_moves_in_a_browser(replayed: tuple[Plan, Result], tmp_path: Path) -> None:
    plan, result = replayed
    script = (
        EVENTS
        + """
      const after = {all: seen()};
      const wheel = (deltaY, x, deltaX = 0) => canvas.dispatchEvent(new WheelEvent("wheel", {...at(x, 30), deltaY, deltaX}));
      const key = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
      const button = (does) => document.querySelector(`button[data-does=${does}]`).click();
      const pixels = pen => new Set(new Uint32Array(pen.getImageData(118, 30, 600, 120).data.buffer)).size;
      after.colours = pixels(canvas.getContext("2d"));
      after.told = told(150, 30);
      after.idle = told(300, 85);
      after.memory = told(150, 165);
      after.prevented = !wheel(-100, 500);
      after.wheel = seen();
      wheel(-100, 500); wheel(100, 500); wheel(100, 500);
      after.back = seen();
      wheel(100, 500);
      after.out = seen();
      for (let k = 0; k < 200; k++) wheel(-100, 500);
      after.deepest = seen();
      canvas.dispatchEvent(new MouseEvent("dblclick", at(500, 30)));
      after.dblclick = seen();
      button("in"); button("in");
      after.quarter = seen();
      canvas.dispatchEvent(new PointerEvent("pointerdown", at(500, 30)));
      canvas.dispatchEvent(new PointerEvent("pointermove", at(400, 30)));
      canvas.dispatchEvent(new PointerEvent("pointerup", at(400, 30)));
      after.dragged = seen();
      key("ArrowRight"); after.right = seen();
      key("ArrowLeft"); key("+"); after.plus = seen();
      key("0"); after.zero = seen();
      return after;
    """
    )
    said = browse(replay_page(plan, machine(), result, ()), tmp_path, script)
    end = result.makespan_ns
    assert end is not None
    assert said["all"] == said["out"] == said["dblclick"] == said["zero"] == [0, end]
    assert said["back"] == pytest.approx([0, end], abs=1)
    assert said["prevented"]
    low, high = said["wheel"]
    assert high - low == pytest.approx(end / 1.2)
    assert 0 < low < high < end
    assert said["deepest"][1] - said["deepest"][0] == pytest.approx(20)
    assert said["quarter"] == pytest.approx([end * 3 / 8, end * 5 / 8])
    assert said["dragged"][0] > said["quarter"][0]
    assert said["dragged"][1] - said["dragged"][0] == pytest.approx(end / 4)
    assert said["right"][0] - said["dragged"][0] == pytest.approx(0.15 * end / 4)
    assert said["plus"][1] - said["plus"][0] == pytest.approx(end / 6)
    assert said["told"].startswith("transfer stall: before f0, awaits w0 on h2d, 0.00 us to 41.9")
    assert said["idle"].endswith("d2h is idle")
    assert "hbm holds 50.0 MiB" in said["memory"]
    assert said["colours"] > 5


def test_it_searches_measures_and_shows_what_a_stall_is_blamed_on(replayed: tuple[Plan, Result], tmp_path: Path) -> None:
    """The first stall awaits w0 on h2d; its bar begins at 0."""
    plan, result = replayed
    script = (
        EVENTS
        + """
      const after = {};
      const chosen = () => document.querySelector(".chosen").textContent;
      const point = (what, x, y, more = {}) => canvas.dispatchEvent(new PointerEvent(`pointer${what}`, {...at(x, y), ...more}));
      const drag = (from, to, more) => { point("down", from, 30, more); point("move", to, 30, more); point("up", to, 30, more); };
      const search = document.querySelector("input");
      point("down", 150, 30); point("up", 150, 30);
      after.stall = chosen();
      drag(119, 400, {shiftKey: true});
      after.measured = chosen();
      after.still = seen();
      document.querySelector("button[data-does=measure]").click();
      drag(400, 119, {});
      after.again = chosen();
      document.querySelector("button[data-does=measure]").click();
      search.value = "F0"; search.dispatchEvent(new Event("input"));
      after.found = chosen();
      after.window = seen();
      search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
      after.next = chosen();
      search.value = "no such"; search.dispatchEvent(new Event("input"));
      after.nothing = chosen();
      canvas.dispatchEvent(new MouseEvent("dblclick", at(500, 30)));
      point("down", 400, 30, {pointerId: 1}); point("down", 500, 30, {pointerId: 2});
      point("move", 600, 30, {pointerId: 2});
      after.pinched = seen();
      point("up", 600, 30, {pointerId: 2}); point("up", 400, 30, {pointerId: 1});
      canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
      after.escaped = chosen();
      return after;
    """
    )
    said = browse(replay_page(plan, machine(), result, ()), tmp_path, script)
    end = result.makespan_ns
    assert end is not None
    assert said["stall"].startswith("transfer stall: before f0, awaits w0 on h2d, 0.00 us to 41.9")
    assert ". Blamed on h2d: transfer: w0, 20.0 MiB, 0.00 us to 41.9" in said["stall"]
    assert said["measured"].startswith("0.00 us to ")  # the begin of the bar, which is a pixel away
    assert said["measured"] == said["again"]
    assert said["still"] == [0, end]
    assert said["found"].startswith("1 of 2: transfer stall: before f0, awaits w0 on h2d")
    assert said["next"].startswith("2 of 2: op: f0")
    assert said["nothing"] == "nothing of that name"
    low, high = said["pinched"]
    assert high - low == pytest.approx(end / 2)
    assert said["escaped"] == "\u00a0"


def test_a_page_without_a_timeline_says_what_does_not_fit() -> None:
    _, result = everything()
    failed = replace(result, feasible=False, makespan_ns=None, error="out of memory: no room", timeline=None)
    text = comparison_page(machine(), [failed], [], [tables.failures([failed])])
    assert "out of memory: no room" in text
    assert "<script" not in text
    assert Elements(page("t", [text])).names.count("img") == 1


def test_a_table_a_list_and_a_picture_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts.table(("a", "b<", "c"), [("1", "2", "3"), ("4", "&", "6")], left=2, bad=(1,)) == (
        '<table>\n<thead><tr><th class="left">a</th><th class="left">b&lt;</th><th>c</th></tr></thead>\n<tbody>\n'
        '<tr><td class="left">1</td><td class="left">2</td><td>3</td></tr>\n'
        '<tr class="bad"><td class="left">4</td><td class="left">&amp;</td><td>6</td></tr>\n</tbody>\n</table>'
    )
    assert parts.table((), [("1", "2")]) == '<table>\n<tbody>\n<tr><td class="left">1</td><td>2</td></tr>\n</tbody>\n</table>'
    assert parts.lines(["a<", "b"]) == "<ul><li>a&lt;</li><li>b</li></ul>"
    monkeypatch.setattr(parts, "image", lambda figure: b"drawn")
    assert parts.picture(blank([1])[0], 'a "b"') == '<p><img alt="a &quot;b&quot;" src="data:image/png;base64,ZHJhd24="></p>'
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([float("nan")])
    assert script_json({"a": [1, "&"]}) == '{"a":[1,"\\u0026"]}'


def outline(text: str) -> list[str]:
    """Title, headings and descriptions of pictures, in order."""
    return ["".join(found) for found in re.findall(r'<title>(.*?)</title>|<h2>(.*?)</h2>|<img alt="(.*?)"', text)]


def test_the_parts_of_each_page_in_order(replayed: tuple[Plan, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(parts, "image", lambda figure: drawn.append(figure) or b"drawn")
    plan, result = replayed
    one = replay_page(plan, machine(), result, ())
    assert outline(one) == ["two streams on toy: by hand", "Timeline", "Pictures", "Timeline, memory and channels"]
    assert "devices." not in one
    several = comparison_page(machine(), [result], [(plan, result)], ())
    assert outline(several) == [
        "two streams on toy: policies",
        "Makespan and memory",
        "Makespan against peak",
        "Timelines",
        "Memory over time",
        "Memory over time, by hand",
    ]
    (memory,) = drawn[-1].axes
    assert memory.get_title("left") == "by hand: hbm"
    assert (memory.get_ylabel(), memory.dataLim.ymax) == ("MiB", 90)


def test_the_page_of_a_validation_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1 to 5001 us; the second op is furthest off, by 9 us at 2001 us: a hundredth of the time is shown on each side of it."""
    drawn: list[Figure] = []
    monkeypatch.setattr(parts, "image", lambda figure: drawn.append(figure) or b"drawn")
    data: dict[str, Any] = {"trace": "step", "device": None, "kernels": 2, "missing": ["a<"], "given": {}, "worst": [], "memory": {}}
    data |= {"makespan": {"measured_ns": None}, "kernel_start": {}, "copies": {"count": 0}, "stream_waits": {"count": 0}}
    us = 1000
    ops = [
        ("0:13", (us, 2 * us), (4 * us, 5 * us)),
        ("0:7", (2001 * us, 2002 * us), (1992 * us, 1993 * us)),
        ("0:7", (5000 * us, 5000 * us), (5000 * us, 5001 * us)),
    ]
    held = np.array([1, 2], np.int64)
    text = validation_page(data, ops, (held, {"recorded": held}))
    assert outline(text) == [
        "step: recording and replay",
        *["All of it"] * 2,
        *["Around the op that is furthest off"] * 2,
        *["Errors of starts"] * 2,
        "Memory",
        "Memory over time, recorded and replayed",
    ]
    assert "<p>Not in the recording: a&lt;</p>" in text
    whole, near, errors, _ = [figure.axes[0] for figure in drawn]
    assert (whole.get_xlim(), near.get_xlim()) == ((0.001, 5.001), (1951, 2051))
    assert [label.get_text() for label in whole.get_yticklabels()] == ["0:7", "0:13"]
    assert [list(line.get_ydata()) for line in errors.get_lines()[1:]] == [[3, -9, 0]]
    worst = [{"name": "f<", "stream": 7, "measured_start_ns": 2000, "start_error_ns": -30}]
    text = validation_page(data | {"device": "Toy", "worst": worst}, [], None)
    assert outline(text) == ["step on Toy: recording and replay", "Furthest off"]
    assert '<tr><td class="left">f&lt;</td><td>7</td><td>2.00 us</td><td>-30 ns</td></tr>' in text


def test_the_pictures_of_a_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second op starts 9 us late; the first one, which only ends late, is not what is shown near: a hundredth of 300 us each way."""
    drawn: list[Figure] = []
    monkeypatch.setattr(parts, "image", lambda figure: drawn.append(figure) or b"drawn")
    data: dict[str, Any] = {"trace": "step", "device": None, "kernels": 2, "missing": [], "worst": [], "memory": {}}
    data |= {"makespan": {"measured_ns": None}, "kernel_start": {}, "copies": {"count": 0}, "stream_waits": {"count": 0, "contradicted": 0}}
    data["given"] = {"device_durations": 1, "host_segments": 2, "overlaps": 3, "starts": 4, "constants": ["a"]}
    us = 1000
    ops = [("0:7", (0, 100 * us), (0, 300 * us)), ("0:13", (150 * us, 250 * us), (159 * us, 160 * us))]
    text = validation_page(data, ops, (np.array([1], np.int64), {"recorded": np.array([1], np.int64)}))
    assert "<p>given: durations of 1 device op and 2 host segments, 3 overlaps, 4 starts, 1 fitted constant</p>" in text
    assert [tuple(figure.get_size_inches()) for figure in drawn] == [(11, 3), (11, 3), (11, 3.5), (11, 4)]
    assert {figure.get_layout_engine().__class__.__name__ for figure in drawn} == {"ConstrainedLayoutEngine"}
    assert [figure.axes[0].get_xlim() for figure in drawn[:2]] == [(0, 300), (147, 153)]


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
    assert list(html_of(bare)) == ['<table>\n<tbody>\n<tr><td class="left">a</td><td class="left">1</td></tr>\n</tbody>\n</table>']


def test_a_large_page_is_less_than_two_megabytes() -> None:
    """25,000 ops, with names as long as those of layers are."""
    graph, result = many_ops(25_000)
    ops = tuple(replace(op, name=f"model.layers.{i // 200}.self_attn.o_proj.linear_{i}") for i, op in enumerate(graph.ops))
    named = replace(graph, ops=ops)
    text = widget([Shown("", Plan(named), result)], machine())
    assert len(text) < 2_000_000
    assert {op.name for op in ops} <= set(data_of(text)["names"])


def test_names_that_a_browser_counts_otherwise_share_nothing_beyond() -> None:
    assert front_coded(["a\U0001f600b", "a\U0001f600c", "", "a"]) == {
        "shared": [0, 1, 0, 0],
        "rests": ["a\U0001f600b", "\U0001f600c", "", "a"],
    }
