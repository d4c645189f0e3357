"""Pages in Chromium: what it tells, zooms, measures, searches and marks, and that no figure is cut
in a narrow window.
"""

from pathlib import Path
from typing import Any

import pytest
from browser import Scene, browse
from test_result_pages import EVIL, beside, evil_page
from timelines import machine, recorded, two_streams

from hosim.report import lines, page, paragraph, replay_page, table
from hosim.report.answers import Answer
from hosim.report.drawn import recorded_widget

US = 1000
END = recorded(two_streams()).makespan_ns or 0

EVENTS = """
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const at = (x, y) => ({clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true});
  const seen = () => [Number(canvas.dataset.from), Number(canvas.dataset.to)];
  const told = (x, y) => {
    canvas.dispatchEvent(new PointerEvent("pointermove", at(x, y)));
    return document.querySelector(".told").textContent;
  };
"""

NAMES = """
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  return [window.stolen === undefined, document.title, told(110, 50), wide];
"""

ZOOM = """
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

SEARCH = """
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

RECORDED = """
  const after = {all: seen()};
  const chosen = () => document.querySelector(".chosen").textContent;
  const button = (does) => document.querySelector(`button[data-does=${does}]`).click();
  const point = (what, x, y) => canvas.dispatchEvent(new PointerEvent(`pointer${what}`, at(x, y)));
  const search = document.querySelector("input");
  after.told = told(140, 48);
  after.plain = told(600, 48);
  point("down", 140, 20); point("up", 140, 20);
  after.touched = chosen();
  point("down", 140, 48); point("up", 140, 48);
  after.same = chosen();
  point("down", 140, 74); point("up", 140, 74);
  after.other = chosen();
  button("far");
  after.far = chosen();
  after.window = seen();
  button("far");
  after.next = chosen();
  button("all");
  after.again = seen();
  search.value = "SECOND"; search.dispatchEvent(new Event("input"));
  after.found = chosen();
  return after;
"""

TOO_WIDE = """
  const wide = [...document.querySelectorAll("table")].filter((table) => table.scrollWidth > table.clientWidth);
  const said = wide.map((table) => table.textContent.slice(0, 60));
  return document.documentElement.scrollWidth > window.innerWidth ? [...said, "page"] : said;
"""
WIDTHS = range(340, 1480, 50)
POINTS = (1400, 500, 390)
ATLAS = (Path(__file__).parent.parent.parent / "docs/atlas.html").read_text()


def tables() -> str:
    """Tables of three and of twelve columns, with numbers, sentences, and names without a space."""
    name = "void at::native::elementwise_kernel<128, 4, " + "unrolled_" * 9
    wide = table(
        ("policy", *(f"stall of cause {k}" for k in range(11))),
        [("hyperoffload", *["1,234,567 ns"] * 11)] * 2,
    )
    narrow = table(
        ("op", "stream", "measured start"), [(name, "7", "123.4 ms"), ("g", "7", "does not fit")]
    )
    prose = table(
        ("case", "verdict", "what changed"),
        [("a", "regression", "makespan: 126 ms, was 12 ms; " * 8)],
        left=3,
        bad=(0,),
    )
    return page("a" * 80, [wide, narrow, prose, lines([f"`{name}` moved"]), paragraph(name)])


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script of each page says: one start of the browser for all."""
    plan = two_streams()
    replayed = replay_page(Answer("a", "It fits."), plan, machine(), recorded(plan), ())
    beside_it = page("recording", [recorded_widget(beside(), [(0, 500 * US, "late <launch>")])])
    scenes = {
        "names": Scene(evil_page(), EVENTS + NAMES, 500),
        "zoom": Scene(replayed, EVENTS + ZOOM),
        "search": Scene(replayed, EVENTS + SEARCH),
        "recorded": Scene(beside_it, EVENTS + RECORDED),
        "cut": Scene(tables().replace('class="fold', 'class="'), TOO_WIDE, 800, 100),
    }
    every = scenes | {f"{width}": Scene(tables(), TOO_WIDE, width, 100) for width in WIDTHS}
    pages = {"replay": replayed, "comparison": evil_page(), "recording": beside_it, "atlas": ATLAS}
    every |= {
        f"{name} {width}": Scene(text, TOO_WIDE, width)
        for name, text in pages.items()
        for width in POINTS
    }
    every["table"] = Scene(ATLAS, "return document.querySelector('thead').offsetHeight", 1400)
    return browse(every, tmp_path_factory.mktemp("browser"))


def test_names_are_text_and_the_page_is_as_wide_as_a_narrow_window(said: dict[str, Any]) -> None:
    safe, title, told, wide = said["names"]
    assert safe
    assert wide <= 0
    assert title == f"{EVIL} on {EVIL}: policies"
    assert told.startswith(f"op: {EVIL}op0, 0.0 us to 40.0 us (40.0 us)")


def test_no_figure_is_cut_in_a_window_of_any_width(said: dict[str, Any]) -> None:
    """From telephones to wide screens. Without the style sheet's blocks the table of twelve columns
    would be cut.
    """
    assert {width: said[f"{width}"] for width in WIDTHS} == {width: [] for width in WIDTHS}
    assert [text.split()[0] for text in said["cut"]] == ["policystall"]


def test_whole_pages_are_as_wide_as_their_window(said: dict[str, Any]) -> None:
    names = [
        f"{name} {width}"
        for name in ("replay", "comparison", "recording", "atlas")
        for width in POINTS
    ]
    assert {name: said[name] for name in names} == {name: [] for name in names}
    assert said["table"] > 0  # the atlas has a head at 1400 points, and no blocks


def test_it_zooms_and_moves(said: dict[str, Any]) -> None:
    after = said["zoom"]
    assert after["all"] == after["out"] == after["dblclick"] == after["zero"] == [0, END]
    assert after["back"] == pytest.approx([0, END], abs=1)
    assert after["prevented"]
    low, high = after["wheel"]
    assert high - low == pytest.approx(END / 1.2)
    assert 0 < low < high < END
    assert after["deepest"][1] - after["deepest"][0] == pytest.approx(20)
    assert after["quarter"] == pytest.approx([END * 3 / 8, END * 5 / 8])
    assert after["dragged"][0] > after["quarter"][0]
    assert after["dragged"][1] - after["dragged"][0] == pytest.approx(END / 4)
    assert after["right"][0] - after["dragged"][0] == pytest.approx(0.15 * END / 4)
    assert after["plus"][1] - after["plus"][0] == pytest.approx(END / 6)
    assert after["told"].startswith("transfer stall: before f0, awaits w0 on h2d, 0.00 us to 41.9")
    assert after["idle"].endswith("d2h is idle")
    assert "hbm holds 50.0 MiB" in after["memory"]
    assert after["colours"] > 5


def test_it_searches_measures_and_shows_what_a_stall_is_blamed_on(said: dict[str, Any]) -> None:
    """The first stall awaits w0 on h2d; its bar begins at 0."""
    after = said["search"]
    assert after["stall"].startswith("transfer stall: before f0, awaits w0 on h2d, 0.00 us to 41.9")
    assert ". Blamed on h2d: transfer: w0, 20.0 MiB, 0.00 us to 41.9" in after["stall"]
    assert after["measured"].startswith(
        "0.00 us to "
    )  # the begin of the bar, which is a pixel away
    assert after["measured"] == after["again"]
    assert after["still"] == [0, END]
    assert after["found"].startswith("1 of 2: transfer stall: before f0, awaits w0 on h2d")
    assert after["next"].startswith("2 of 2: op: f0")
    assert after["nothing"].startswith("nothing")
    low, high = after["pinched"]
    assert high - low == pytest.approx(END / 2)
    assert after["escaped"] == "\u00a0"


def test_a_click_on_a_recorded_op_marks_the_simulated_one(said: dict[str, Any]) -> None:
    after = said["recorded"]
    assert after["all"] == after["again"] == [US, 5001 * US]
    assert after["told"].startswith(
        "kernel: first, 0.005 ms to 1.000 ms (995 us); not validated, 0.001 ms to 0.500 ms: late "
        "<launch>"
    )
    assert "not validated" not in after["plain"]
    assert after["touched"] == "not validated, 0.001 ms to 0.500 ms: late <launch>"
    assert after["same"].startswith("recorded kernel: first, ")
    assert after["other"].startswith("simulated kernel: first, ")
    assert after["same"].endswith("same time")
    assert after["far"].startswith("1 of 4: recorded kernel: second, ")
    assert after["far"].endswith("9.00 us earlier")
    assert after["window"][0] < 1992 * US < 2002 * US < after["window"][1]
    assert after["window"][1] - after["window"][0] == pytest.approx(200 * US)
    assert after["next"].startswith("2 of 4: recorded copy: copy in, ")
    assert after["next"].endswith("starts 3.00 us later")
    assert after["found"].startswith("1 of 1: recorded kernel: second, ")
