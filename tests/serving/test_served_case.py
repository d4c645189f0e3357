"""Cases that serve requests: what a baseline has, which change is judged how, and what an
explanation says.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.data.versions import SERVING_VERSIONS
from hosim.errors import InputError
from hosim.gate import check, load_suite, write
from hosim.gate.judged_metrics import judge_metrics, parse_tolerances
from hosim.gate.verdicts import changed_since
from hosim.serving.gate import explain_served, measure_served

REQUESTS = [
    {
        "arrival_s": i / 500,
        "prompt_tokens": 100 + 40 * (i % 3),
        "output_tokens": 5,
        "prefix_blocks_of_16": [1, 2, i],
    }
    for i in range(12)
]
FILE = """
[cases.chat]
hardware = "h100-80gb-sxm"
serve = {{model = {{model = "llama-3.1-8b", layers = 2}}, requests = "requests.jsonl", blocks = {blocks}, limit = "ttft=2ms"{more}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in REQUESTS))
    return tmp_path


def suite_of(folder: Path, blocks: int = 200, more: str = ""):
    (folder / "hosim.toml").write_text(FILE.format(blocks=blocks, more=more))
    return load_suite(folder / "hosim.toml")


def test_metrics_are_those_of_serving(folder: Path) -> None:
    """A block of 16 tokens is 2 layers x 2 x 8 heads x 128 x 2 B x 16 = 131,072 B; the three ids
    are the first three blocks of a prompt.
    """
    kv = "write_through:tiers=ddr=1GiB"
    (case,) = suite_of(folder, more=f', kv = "{kv}"').cases
    now = measure_served(case).record
    assert now is not None
    model = {"model": "llama-3.1-8b", "layers": 2}
    served = hosim.serve(model, "h100-80gb-sxm", folder / "requests.jsonl", blocks=200, kv=kv)
    of = served.summary()
    assert now.metrics["ttft.p95"] == of["ttft_ns"]["p95"]
    assert now.metrics["latency.mean"] == round(of["latency_ns"]["mean"])
    assert now.metrics["throughput.output"] == round(60 / of["span_ns"] * 1e9 * 3600)
    assert now.metrics["goodput.requests"] == round(
        served.goodput("ttft=2ms")["requests_per_s"] * 3600
    )
    assert now.metrics["found.hbm"] == served.hit_tokens > 0
    assert now.metrics["peak.ddr"] == of["kv"]["tiers"]["ddr"]["peak_blocks"] * 131_072
    weights = now.peaks["hbm"].composition["parameter"]
    assert now.metrics["peak.hbm"] - weights == of["peak_blocks"] * 131_072
    assert max(now.curve) == now.metrics["peak.hbm"]
    span = served.span_ns
    for part, most in enumerate(
        now.curve
    ):  # what is held in any iteration that runs in this part of the time
        begin, end = part * span / 60, (part + 1) * span / 60
        held = [
            sample.held_blocks
            for sample in served.samples
            if sample.start_ns < end and sample.end_ns - 1 >= begin
        ]
        assert most == weights + max(held, default=0) * 131_072
    assert now.metrics["moved.d2h"] == now.metrics["peak.ddr"]
    assert now.versions["serving"] == SERVING_VERSIONS["serving"]


def test_transfers_between_engines_are_shown(folder: Path) -> None:
    """Prompts of 100, 140 and 180 tokens share no blocks: 7 + 9 + 12 blocks of 16 tokens, four
    times, each of 131,072 B.
    """
    rows = [
        {key: value for key, value in row.items() if key != "prefix_blocks_of_16"}
        for row in REQUESTS
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suites = [
        suite_of(
            folder,
            more=f', prefill_instances = 1, decode_instances = 1, kv_link = "{link}GB/s", '
            'overhead = "1ms"',
        )
        for link in (4, 0.1)
    ]
    fast, slow = (measure_served(suite.cases[0]) for suite in suites)
    assert fast.record is not None
    metrics = fast.record.metrics
    assert (metrics["moved.kv_transfer"], metrics["count.kv_transfers"]) == (
        4 * (7 + 9 + 12) * 131_072,
        12,
    )
    options = {
        "blocks": 200,
        "prefill_instances": 1,
        "decode_instances": 1,
        "kv_link": "4GB/s",
        "overhead": "1ms",
    }
    served = hosim.serve(
        {"model": "llama-3.1-8b", "layers": 2},
        "h100-80gb-sxm",
        folder / "requests.jsonl",
        **options,
    )
    frame = served.frame()
    assert (
        metrics["wait.kv_transfer"]
        == (frame["transferred_ns"] - frame["prefilled_ns"]).sum()
        > metrics["wait.decode_queue"]
        >= 0
    )
    assert metrics["stall.kv_transfer"] == served.handed.figures.stall_ns > 0
    worse = [
        one
        for one in judge_metrics(metrics, slow.record.metrics, {})
        if one.verdict == "regression"
    ]
    lines = explain_served(fast.record, slow, worse)
    assert lines[0] == "case: serve.kv_link is 0.1GB/s, was 4GB/s"
    assert any(line.startswith("wait.kv_transfer: ") for line in lines)
    verdicts = {one.name: one.verdict for one in judge_metrics(metrics, slow.record.metrics, {})}
    assert (verdicts["ttft.mean"], verdicts["wait.kv_transfer"], verdicts["moved.kv_transfer"]) == (
        "regression",
        "drift",
        "same",
    )
    judged = judge_metrics(metrics, slow.record.metrics, parse_tolerances({"wait": "1%"}, "t"))
    assert {one.name: one.verdict for one in judged}["wait.kv_transfer"] == "regression"


def test_a_baseline_written_and_checked(folder: Path) -> None:
    suite = suite_of(folder)
    assert [path.parent.name for path in write(suite)] == [suite.baselines.name, "machines"]
    first = suite.baseline("chat").read_bytes()
    assert write(suite) == []  # the same bytes
    assert [one.verdict for one in check(suite)] == ["same"]
    (less,) = check(suite_of(folder, blocks=12))
    assert less.verdict == "regression"
    assert less.explanation[0] == "case: serve.blocks is 12, was 200"
    assert any(line.startswith("ttft.p95: ") for line in less.explanation)
    assert any(line.startswith("count.blocks: 12, was 200") for line in less.explanation)
    write(suite_of(folder, blocks=12))
    (more,) = check(suite)  # more memory is held, and more is within the limits
    verdicts = {one.name: one.verdict for one in more.metrics}
    assert (verdicts["ttft.p95"], verdicts["peak.hbm"], verdicts["count.blocks"]) == (
        "improvement",
        "regression",
        "drift",
    )
    suite.baseline("chat").write_bytes(first)
    line = ["check", "--config", str(folder / "hosim.toml"), "--jobs", "1"]
    outcome = CliRunner().invoke(
        app, [*line, "--junit", str(folder / "a.xml"), "--html", str(folder / "a.html")]
    )
    assert outcome.exit_code == 1  # the file's cache is the small one
    assert 'failures="1"' in (folder / "a.xml").read_text()
    assert "serve.blocks is 12, was 200" in (folder / "a.html").read_text()


def test_what_changed_without_being_asked(folder: Path) -> None:
    suite = suite_of(folder)
    write(suite)
    (folder / "requests.jsonl").write_text(
        "".join(json.dumps({**row, "output_tokens": 9}) + "\n" for row in REQUESTS)
    )
    (found,) = check(suite)
    assert "requests" in found.explanation[0]
    before, now = found.before, found.now
    assert before is not None
    assert now is not None
    older = replace(before, versions={**before.versions, "serving": 0})
    assert facts(changed_since(older, now)).startswith("0, 3")


def test_a_default_that_is_written_changes_no_fingerprint(folder: Path) -> None:
    (plain,) = suite_of(folder).cases
    (full,) = suite_of(folder, more=', token_budget = 2048, overhead = "0 ms", ahead = true').cases
    (other,) = suite_of(folder, more=", token_budget = 64").cases
    now = measure_served(plain)
    one, two, three = (
        found.record.fingerprints for found in (now, measure_served(full), measure_served(other))
    )
    assert one == two
    assert {key for key in one if one[key] != three[key]} == {"plan"}
    # of the same question one line says that the simulation has changed, unless its version has
    older = replace(now.record, versions={**now.record.versions, "serving": 0})
    assert [len(explain_served(before, now, [])) for before in (now.record, older)] == [1, 0]


def test_more_is_better_of_rates_and_hits() -> None:
    before, now = (
        {"throughput.output": 1000, "found.ddr": 100, "ttft.p95": 5},
        {"throughput.output": 980, "found.ddr": 120, "ttft.p95": 5},
    )
    assert [one.verdict for one in judge_metrics(before, now, {})] == [
        "improvement",
        "regression",
        "same",
    ]
    assert [
        one.verdict
        for one in judge_metrics(before, now, parse_tolerances({"throughput": "2%"}, "t"))
    ][1] == "drift"
    with pytest.raises(
        InputError,
        match=r"t: tolerance\.found: expected a share of the baseline, such as '1%', or 'off', "
        r"got '5 B'",
    ):
        parse_tolerances({"found": "5 B"}, "t")
    with pytest.raises(
        InputError,
        match=r"t: tolerance\.ttft\.p96: unknown metric; expected ttft or one of ttft\.mean, "
        r"ttft\.p50, ",
    ):
        parse_tolerances({"ttft": {"p96": "1%"}}, "t")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            ("blocks = 200", "block = 200"),
            "hosim.toml: cases.chat.serve.block: unknown option 'block'; did you mean 'blocks'?",
        ),
        (
            ("blocks = 200", "blocks = [2]"),
            "hosim.toml: cases.chat.serve.blocks: expected a text, a number or true or false, got "
            "list",
        ),
        (
            ("blocks = 200", "blocks = 0"),
            "case chat: serve.blocks: expected a whole number of at least 1, got 0",
        ),
        (
            ("blocks = 200", "tensor = 2"),
            'cases.chat.serve.tensor: a parameter of the model: write model = {model = "...", '
            "tensor = 2}",
        ),
        (
            ("blocks = 200", "overhead = 5"),
            "cases.chat.serve.overhead: expected a time with its unit, such as '2ms', got 5",
        ),
        (
            ('"requests.jsonl"', "{rate = 10}"),
            "cases.chat.serve.requests: expected a file of requests, or such as 'poisson:rate=10'",
        ),
        (("requests.jsonl", "no.jsonl"), "case chat: serve.requests: no.jsonl: no such file"),
        (
            ("requests.jsonl", "poisson:rte=10"),
            "case chat: serve.requests: unknown parameter 'rte'; did you mean 'rate'?",
        ),
        (
            ("llama-3.1-8b", "llama-3.1-8x"),
            "case chat: serve.model: expected a model ('hosim workload models' lists ",
        ),
        (
            ("layers", "layrs"),
            "case chat: serve.model: layrs: unknown parameter 'layrs'; did you mean 'layers'?",
        ),
        (
            ("[cases.chat]", "[matrix.chat]"),
            "matrix.chat.serve: a matrix plans single steps and cannot serve requests: write a "
            "table [cases.",
        ),
        (
            ("ttft=2ms", "ttf=2ms"),
            "case chat: serve.limit: unknown latency 'ttf'; did you mean 'ttft'?",
        ),
        (
            ("requests = ", "kv = "),
            "hosim.toml: cases.chat.serve.requests: expected a file of requests, or such as "
            "'poisson:rate=10'",
        ),
        (
            ("serve =", 'policy = "g10"\nserve ='),
            "hosim.toml: cases.chat: serve and policy exclude each other: a case that serves "
            "requests has no plan of one step",
        ),
        (
            ("serve =", 'workload = "a"\nserve ='),
            "hosim.toml: cases.chat: expected one of workload, entry and serve",
        ),
    ],
)
def test_what_is_refused(folder: Path, changed: tuple[str, str], message: str) -> None:
    (folder / "hosim.toml").write_text(FILE.format(blocks=200, more="").replace(*changed))
    with pytest.raises(hosim.HosimError) as caught:
        write(load_suite(folder / "hosim.toml"))
    assert message in str(caught.value)


def test_weights_that_leave_no_room_are_infeasible(folder: Path) -> None:
    text = (
        '[cases.chat]\nhardware = "h100-80gb-sxm"\nserve = {model = "llama-3.1-70b", requests '
        '= "requests.jsonl"}\n'
    )
    (folder / "hosim.toml").write_text(text)
    (found,) = check(load_suite(folder / "hosim.toml"))
    assert found.verdict == "infeasible"
    assert "no room" in found.note


def test_a_tier_that_is_filled_from_nothing_is_a_regression(folder: Path) -> None:
    """Without a cache below the device there is no peak of ddr in the baseline."""
    write(suite_of(folder))
    (found,) = check(suite_of(folder, more=', kv = "write_through"'))
    assert found.verdict == "regression"
    assert "serve.kv, write_through" in facts(found.explanation[0], "serve.kv", "write_through")
    assert [m.name for m in found.metrics if m.verdict == "regression"] == ["peak.ddr"]
    write(suite_of(folder, more=', kv = "write_through"'))
    (back,) = check(suite_of(folder))
    assert back.verdict == "improvement"


def test_a_figure_that_is_new_says_what_the_case_asks_otherwise(folder: Path) -> None:
    (folder / "hosim.toml").write_text(
        FILE.format(blocks=200, more="").replace(', limit = "ttft=2ms"', "")
    )
    write(load_suite(folder / "hosim.toml"))
    (found,) = check(suite_of(folder))
    assert found.verdict == "new"
    assert facts(found.explanation[0]) == "2ms"
