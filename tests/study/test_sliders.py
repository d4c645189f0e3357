"""``hosim.what_if``: sliders beside a replay. No browser: a move of a slider is a value set."""

import re
import sys
from typing import Any

import pytest

import hosim
from hosim import engine
from hosim.units import human_time

pytest.importorskip("ipywidgets")

SMALL = {"model": "llama-3.1-8b", "phase": "prefill", "layers": 2, "sequence": 1024, "fused": True}


def sliders(shown: Any) -> dict[str, Any]:
    return {slider.description: slider for slider in shown.children[:-1]}


def said(shown: Any) -> str:
    (output,) = shown.children[-1].outputs
    html: str = output["data"]["text/html"]
    return html


def time_of(shown: Any) -> str:
    found = re.search(r"<b>(.*?), with everything resident", said(shown))
    assert found
    return found[1]


def test_each_move_replays_once_and_shows_that_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = hosim.what_if(SMALL, "h100-80gb-sxm", budget="1600 MiB")
    asked: list[tuple[int, int, int]] = []
    replay = engine.replay

    def counted(plan: Any, hardware: Any, budget_bytes: int, **options: Any) -> Any:
        rates = [c.bandwidth_bytes_per_s for c in hardware.channels if c.name == "h2d"]
        asked.append((budget_bytes, rates[0], len(plan.graph.ops)))
        return replay(plan, hardware, budget_bytes, **options)

    monkeypatch.setattr(engine, "replay", counted)
    before = time_of(shown)
    sliders(shown)["links"].value = "0.25x"
    slow = time_of(shown)
    sliders(shown)["links"].value = "1x"
    assert time_of(shown) == before != slow
    sliders(shown)["budget"].value = "all"
    sliders(shown)["sequence"].value = "4,096"
    assert [(budget, rate) for budget, rate, _ in asked[:2]] == [
        (1600 * 2**20, 55_700_000_000 // 4),
        (1600 * 2**20, 55_700_000_000),
    ]
    assert len(asked) == 4
    machine = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
    assert asked[2][0] == machine.device.capacity_bytes
    longer = hosim.replay(hosim.plan({**SMALL, "sequence": 4096}, machine, "static_split"))
    assert human_time(longer.makespan_ns) == time_of(shown)


def test_it_begins_with_what_was_asked_and_has_only_budgets_that_the_device_has() -> None:
    shown = hosim.what_if(SMALL, "h100-80gb-sxm", "layerwise", budget="1600 MiB")
    found = sliders(shown)
    assert {name: slider.value for name, slider in found.items()} == {
        "budget": "1600 MiB",
        "links": "1x",
        "sequence": "1,024",
    }
    plan = hosim.plan(SMALL, "h100-80gb-sxm", "layerwise", budget="1600 MiB")
    assert time_of(shown) == human_time(hosim.replay(plan).makespan_ns)
    assert "canvas" in said(shown)
    crowded = {
        "model": "llama-3.1-8b",
        "phase": "decode",
        "layers": 8,
        "context": 131072,
        "batch": 32,
    }
    places = sliders(hosim.what_if(crowded, "h100-80gb-sxm"))["budget"].options
    assert places[0] == "10%"
    assert places[-1] == "all"
    assert "95%" not in places


def test_a_graph_of_no_builder_has_no_length_and_what_does_not_fit_says_so() -> None:
    b = hosim.GraphBuilder("mine")
    b.tensor("<w>", 40, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["<w>"], duration_ns=50)
    shown = hosim.what_if(b.build(), "toy", budget="20 B")
    assert list(sliders(shown)) == ["budget", "links"]
    assert said(shown).startswith("<p>")
    assert "&lt;w&gt;" in said(shown) or "needs 40 B" in said(shown)
    sliders(shown)["budget"].value = "all"
    assert time_of(shown) == "90 ns"


def test_the_text_of_a_cell_is_short() -> None:
    assert len(repr(hosim.what_if(SMALL, "h100-80gb-sxm"))) < 1000


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(hosim.InputError) as caught:
        hosim.what_if(SMALL, "h100-80gb-sxm")
    assert str(caught.value) == "what_if: needs ipywidgets: pip install 'hosim[widgets]'"
