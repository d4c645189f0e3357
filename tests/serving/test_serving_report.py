"""Pictures, page and trace of requests that were served on the toy engine, and goodput by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rendered import facts, lines, table
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io import load_hardware
from hosim.report.drawn import image
from hosim.serving import EngineLimits, latency_limits, serve_requests
from hosim.serving.blocks import kv_setup
from hosim.serving.report import (
    curves,
    queue_growth,
    serving_figure,
    serving_fit,
    serving_frontier,
    serving_frontier_answer,
    serving_sweep,
    serving_trace,
    serving_widget,
)
from hosim.serving.requests import Request
from hosim.shipped import find_hardware


@pytest.fixture(scope="module")
def served():
    """Two requests that meet, as `test_decoding_goes_before_prompts` derives, and one that finds
    the engine empty, from 100 to 114.
    """
    requests = [Request(0, 4, 3), Request(5, 9, 1), Request(100, 4, 1)]
    found = serve_requests(
        requests, EngineLimits(8, 4, 4), 10, lambda iteration: 10 + iteration.tokens, ahead=False
    )
    return replace(found, about={"model": "toy", "hardware": "machine"})


def test_goodput_by_hand(served):
    """First tokens after 14, 40 and 14 ns, last ones after 45, 40 and 14; each token of the first
    after 15.5. In all 114 ns.
    """
    assert served.token_ns == ((14, 32, 45), (45,), (114,))
    found = served.goodput({"ttft": 14})
    assert found == {
        "limits_ns": {"ttft": 14},
        "requests": 2,
        "share": 2 / 3,
        "requests_per_s": pytest.approx(2 / 114e-9),
        "output_tokens_per_s": pytest.approx(4 / 114e-9),
    }
    assert served.goodput("ttft=13ns")["requests"] == 0
    assert served.goodput("tpot=15ns")["requests"] == 2  # those of a single token have no such time
    assert served.goodput("tpot=16ns,latency=44ns")["requests"] == 2
    assert served.goodput("latency=45ns")["share"] == 1


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("", "limit: unknown latency '' (known: ttft, tpot, latency)"),
        ("ttff=2s", "limit: unknown latency 'ttff'; did you mean 'ttft'?"),
        ("ttft=2", "limit: ttft: expected a time with its unit, such as '10 us', got '2'"),
        ("ttft=1s,ttft=2s", "limit: ttft: is given twice; keep one"),
        ({}, "limit: expected limits such as ttft=2s,tpot=100ms"),
        ({"ttft": -1}, "limit: ttft: expected a time with its unit, such as '10 us', got -1"),
    ],
)
def test_what_is_no_limit(limit, message):
    with pytest.raises(InputError) as caught:
        latency_limits(limit)
    assert str(caught.value) == message


def test_an_engine_is_empty_between_iterations_that_do_not_follow_each_other(served):
    """One runs from 0, two from 14 and 32; the prompt of 4 tokens fills a block, and that of 9
    takes two and then three.
    """
    at, (running, waiting, held) = curves(served.samples)
    assert at.tolist() == [0, 14, 32, 45, 100, 114]
    assert (running.tolist(), waiting.tolist()) == ([1, 2, 2, 0, 1, 0], [0] * 6)
    assert held.tolist() == [1, 4, 5, 0, 1, 0]
    frame = served.iterations()
    assert list(frame["start_ns"]) == [0, 14, 32, 100]
    assert np.array_equal(frame["tokens"], [4, 8, 3, 4])


def test_the_trace(served):
    """Slices of iterations, counters that end at 0, and the requests: the second is queued from 5
    to 14 and has no decoding.
    """
    data = serving_trace(served)
    events = data["traceEvents"]
    slices = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        ("iteration 0", 0, 0.014),
        ("iteration 1", 0.014, 0.018),
        ("iteration 2", 0.032, 0.013),
        ("iteration 3", 0.1, 0.014),
    ]
    blocks = [
        (e["ts"], e["args"]["blocks held"])
        for e in events
        if e["ph"] == "C" and e["name"] == "blocks held"
    ]
    assert blocks == [(0, 1), (0.014, 4), (0.032, 5), (0.045, 0), (0.1, 1), (0.114, 0)]
    of_second = [(e["ph"], e["name"], e["ts"]) for e in events if e.get("id") == 1]
    assert of_second == [
        ("b", "request 1", 0.005),
        ("b", "queued", 0.005),
        ("e", "queued", 0.014),
        ("b", "prefill", 0.014),
        ("e", "request 1", 0.045),
        ("e", "prefill", 0.045),
    ]
    assert json.loads(json.dumps(data)) == data


def test_the_trace_names_engines_where_there_are_several(served):
    def names(instances):
        samples = [replace(s, instance=k % instances) for k, s in enumerate(served.samples)]
        events = serving_trace(replace(served, samples=tuple(samples)))["traceEvents"]
        return [e["args"]["name"] for e in events if e["name"] == "process_name"]

    assert (names(1), names(2)) == (["requests", "engine"], ["requests", "engine 0", "engine 1"])


def test_pictures_are_the_same_every_time(served):
    one, other = (image(serving_figure(served), "svg") for _ in range(2))
    assert one == other
    text = one.decode()
    assert "toy, machine, 3" in facts(text, "toy", "machine")
    for told in (
        "running: at most 2",
        "waiting: at most 0",
        "held: at most 5",
        "capacity 10",
        "first token: mean 23 ns",
    ):
        assert told in text


def test_the_figure_has_sequences_blocks_and_latencies_over_time(served):
    """One sequence runs from 0, two from 14 on, and none from 45 to 100; of 10 blocks at most 5 are
    held. Requests of 0, 5 and 100 ns have their first tokens after 14, 40 and 14 ns.
    """
    running, held, waits = serving_figure(served).axes
    lines_of = [
        [(x, int(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for line in running.get_lines()
    ]
    assert lines_of[0][:4] == [(0, 1), (14, 2), (32, 2), (45, 0)]
    assert lines_of[0][-1] == (114, 0)
    assert {y for _, y in lines_of[1]} == {0}
    (area,) = held.collections
    assert max(y for _, y in area.get_paths()[0].vertices) == 5
    assert list(held.get_lines()[0].get_ydata()) == [10, 10]
    last, first = waits.get_lines()
    assert list(last.get_xdata()) == list(first.get_xdata()) == [0, 5, 100]
    assert (list(last.get_ydata()), list(first.get_ydata())) == ([45, 40, 14], [14, 40, 14])
    assert [axes.get_ylabel() for axes in (running, held)] == ["sequences", "blocks"]
    assert {axes.get_xlim() for axes in (running, held, waits)} == {(0, 114)}


def test_the_command_writes_picture_page_and_trace(tmp_path):
    line = [
        "serve",
        "llama-3.1-8b",
        "-H",
        "h100",
        "--requests",
        "poisson:rate=20:count=5:output=3",
        "--limit",
        "ttft=1s,tpot=1ns",
    ]
    files = [
        f"--{what}={tmp_path / f'a.{ending}'}"
        for what, ending in (("plot", "svg"), ("html", "html"), ("trace", "json"))
    ]
    outcome = CliRunner().invoke(app, [*line, *files], env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.stderr
    assert "0, 5, 0.0 %, 1.00 s, 1 ns, 0" in facts(" ".join(outcome.stdout.split()))
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    page = (tmp_path / "a.html").read_text()
    assert "<h1>Serving llama-3.1-8b on h100-80gb-sxm</h1>" in page
    assert "goodput: 0 of 5 requests" in page
    assert len(json.loads((tmp_path / "a.json").read_text())["traceEvents"]) > 20
    for limit, code, said in (
        ("ttft.p95=1h", 2, ""),
        ("ttft.p95=60s", 0, ""),
        ("tpot.mean=1ns", 1, "beyond the limits: tpot.mean is "),
    ):
        judged = CliRunner().invoke(app, [*line, "--within", limit, "--json"])
        assert (judged.exit_code, said in judged.stderr) == (code, True), judged.stderr
    wrong = CliRunner().invoke(app, [*line, "--trace", str(tmp_path / "a.txt")])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("rate", "verdict"), [(2, "Keeps up: "), (400, "Overloaded: the queue grows by ")]
)
def test_it_says_whether_the_engine_keeps_up(rate, verdict):
    """The queue at the last arrival beside that in the middle, by hand from the samples."""
    asked = f"poisson:rate={rate}:count=60:prompt=64:output=32"
    line = ["serve", "gpt2", "-H", "h100", "--requests", asked, "--max-sequences", "2"]
    said = json.loads(CliRunner().invoke(app, [*line, "--json"]).stdout)["answer"]
    assert said.startswith(verdict), said


def test_the_growth_of_a_queue_by_hand(served):
    """Three arrive in 100 ns and never wait. Were 7 waiting from 100 on, and none at 50, when the
    engine is empty, these 7 would have come in 50 ns.
    """
    assert queue_growth(served) == (0.0, 2 / 100e-9)
    late = replace(served, samples=tuple(replace(s, waiting=7) for s in served.samples))
    assert queue_growth(late)[0] == pytest.approx(7 / 50e-9)


def widget_data(served):
    text = serving_widget(served)
    return json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    )


def test_a_zoomable_timeline_by_hand(served):
    """Iterations from 0, 14, 32 and 100 ns, with a gap from 45 on; the first request holds a block
    or two, both together at most five.
    """
    data = widget_data(served)
    rows, running, waiting, cache = data["groups"]
    (row,) = rows["rows"]
    assert row["times"] == [0, 14, 0, 18, 0, 13, 55, 14]  # a gap and a length each
    assert data["end"] == 114
    assert data["names"]["rests"][0] == "4 tokens, 1 run, 0 wait"
    assert [one["memory"]["tier"] for one in (running, waiting, cache)] == [
        "running",
        "waiting",
        "cache",
    ]
    assert (running["memory"]["times"], running["memory"]["bytes"]) == (
        [0, 14, 32, 45, 100, 114],
        [1, 2, 2, 0, 1, 0],
    )
    assert max(cache["memory"]["bytes"]) == served.summary()["peak_blocks"]
    assert {one["memory"]["unit"] for one in (running, waiting)} == {"sequences"}


def test_a_timeline_has_a_curve_for_each_tier():
    """What is written through is in DDR from the end of the iteration that filled it: the curve
    reaches what the tier held at most.
    """
    machine = load_hardware(find_hardware("h100-80gb-sxm"))
    kv = kv_setup("write_through:tiers=ddr=64MiB", machine, 1, 1 << 20)
    requests = [Request(1_000_000 * i, 4 + 8 * i, 3) for i in range(6)]
    found = serve_requests(requests, EngineLimits(8, 4, 4), 20, lambda iteration: 1_000_000, kv=kv)
    data = widget_data(replace(found, about={"model": "toy", "hardware": "machine"}))
    names = [group["memory"]["tier"] for group in data["groups"][1:]]
    assert names == ["running", "waiting", "hbm", "ddr"]
    ddr = data["groups"][-1]["memory"]["bytes"]
    assert ddr == sorted(ddr)  # nothing leaves it
    assert 0 == ddr[0] < ddr[-1] <= found.kv.tiers["ddr"].peak_blocks
    table = found.iterations()
    assert list(table["ddr_blocks"]) == [sample.below[0] for sample in found.samples]
    assert "below" not in table


def test_a_frontier_says_which_size_pays() -> None:
    """From 20 GB on more adds half a percent; where each size adds more, none is named."""

    def told(*rates: float) -> str:
        rows = [
            {
                "pareto": True,
                "kv": f"lru:tiers=ddr={size}GB",
                "cache_bytes": size * 10**9,
                "rate": rate,
            }
            for size, rate in zip((10, 20, 40), rates, strict=True)
        ]
        return serving_frontier_answer("one", rows, ["kv"], "rate", "cache_bytes").verdict

    size = "lru:tiers=ddr=20GB"
    assert facts(told(100.0, 199.0, 200.0), size).endswith(f"18.6 GiB, {size}, 0.5 %")
    assert size not in told(100.0, 198.0, 200.0)


GIB, MS = 1 << 30, 10**6
SHOWN = ("ttft_mean_ns", "ttft_p95_ns", "tpot_mean_ns", "tpot_p95_ns", "latency_mean_ns")
SHOWN += ("requests_per_s", "output_tokens_per_s", "goodput_share", "prefix_hit_share")
SHOWN += ("preemptions", "requests_low_per_s", "requests_high_per_s", "error")


def point(blocks: int, **figures: object) -> dict[str, object]:
    none = dict.fromkeys(SHOWN)
    return {**none, "blocks": blocks, "feasible": True, "pareto": False, **figures}


POINTS = [
    point(10, requests_per_s=4.25, requests_low_per_s=4.0, requests_high_per_s=4.5)
    | {"cache_bytes": 2 * GIB, "pareto": True, "ttft_p95_ns": 2 * MS},
    point(20, requests_per_s=150.6, cache_bytes=4 * GIB, ttft_p95_ns=3 * MS, goodput_share=0.5),
    point(30, feasible=False, error="no room", cache_bytes=8 * GIB),
]


def test_a_frontier_has_what_is_paid_and_the_interval_of_what_it_buys() -> None:
    shown = lines(serving_frontier(POINTS, ["blocks"], "requests_per_s", "cache_bytes"))
    assert [*shown[:6], shown[-1]] == table("""
        Frontier
                                                           first token,  within
         blocks  best     cache  goodput/s  90 % interval           P95  limits
         ──────────────────────────────────────────────────────────────────────
         10       yes  2.00 GiB       4.25       4 to 4.5       2.00 ms       -
         20            4.00 GiB        151         - to -       3.00 ms  50.0 %
        no room
    """)
    alone = lines(serving_frontier(POINTS[1:], ["cache_bytes"], "requests_per_s", "blocks"))
    titles = " ".join(alone[1:3])
    assert "interval" not in titles
    assert " blocks " in titles


def test_a_sweep_has_the_ends_of_a_point_or_the_spread_of_seeds_below_it() -> None:
    shown = lines(serving_sweep(POINTS, ["blocks"]))
    assert [*shown[:8], shown[-1]] == table("""
        Serving
                     its              within
         blocks      P95  requests/s  limits
         ───────────────────────────────────
         10      2.00 ms        4.25       -
         low           -           4       -
         high          -         4.5       -
         20      3.00 ms         151  50.0 %
        no room
    """)
    seeds = [
        point(blocks, requests_per_s=10.0 * blocks + seed) | {"requests.seed": seed}
        for blocks in (1, 2)
        for seed in (1, 2, 3)
    ]
    assert lines(serving_sweep(seeds, ["blocks", "requests.seed"]))[:-1] == table("""
        Serving
         blocks  requests/s
         ──────────────────
         1               12
         P5              11
         P95             13
         2               22
         P5              21
         P95             23
    """)


def test_values_that_were_tried_are_within_the_limits_or_not() -> None:
    rates = {"requests_per_s": 3.5, "output_tokens_per_s": 350.4}
    rows = [
        {"rate": 4, "within": True, "ttft_p95_ns": 2 * MS, **rates},
        {"rate": 8, "within": False, "ttft_p95_ns": None, **dict.fromkeys(rates)},
    ]
    assert lines(serving_fit(rows, ["ttft.p95"], "a rate of 4", True)) == table("""
        Tried
               within
         rate  limits  ttft.p95  requests/s  tokens/s
         ────────────────────────────────────────────
         4        yes   2.00 ms         3.5       350
         8         no         -           -         -
        a rate of 4.
    """)
