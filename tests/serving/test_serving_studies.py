"""Sweeps and fits over serving, on a model of two layers."""

import json
from math import ceil, floor

import pytest
from rendered import facts, lines
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.data.draws import FEW_DRAWS
from hosim.data.draws import ends as drawn_ends
from hosim.errors import InputError
from hosim.serving import statistic_limits
from hosim.serving.api import seed_percentiles
from hosim.serving.report import serving_sweep
from hosim.serving.requests import Request, changed_requests
from hosim.study.rows_of_answers import records
from hosim.study.searches import bisected, pareto
from hosim.units import human_time

MODEL = {"model": "llama-3.1-8b", "layers": 2}
DRAWN = "poisson:rate=50:count=8:prompt=40:output=3"


def test_a_row_is_what_serving_gives():
    table = hosim.serve_sweep(
        MODEL,
        "h100-80gb-sxm",
        DRAWN,
        vary={"requests.rate": [50, 5000], "blocks": [4, 100]},
        limit="ttft=2ms",
        jobs=1,
        max_sequences=4,
    )
    assert list(zip(table["requests.rate"], table["blocks"], strict=True)) == [
        (50, 4),
        (50, 100),
        (5000, 4),
        (5000, 100),
    ]
    alone = hosim.serve(
        MODEL, "h100-80gb-sxm", DRAWN.replace("rate=50", "rate=5000"), blocks=100, max_sequences=4
    )
    found, row = alone.summary(), table.iloc[3]
    assert row["feasible"]
    assert (row["ttft_p95_ns"], row["latency_mean_ns"]) == (
        found["ttft_ns"]["p95"],
        round(found["latency_ns"]["mean"]),
    )
    assert (row["output_tokens_per_s"], row["goodput_share"]) == (
        found["output_tokens_per_s"],
        alone.goodput("ttft=2ms")["share"],
    )


def test_the_ends_of_a_row_are_those_of_serving_in_draws():
    asked = {"vary": {"blocks": [8, 100]}, "limit": "ttft=1ms", "jobs": 1}
    table = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, **asked)
    for row in table.to_dict("records"):
        served = hosim.serve(MODEL, "h100-80gb-sxm", DRAWN, blocks=row["blocks"])
        found = served.intervals()
        summaries = [served.again(draw).summary() for draw in range(FEW_DRAWS)]
        for name in ("ttft", "tpot", "latency"):
            low, high = drawn_ends([round(one[f"{name}_ns"]["mean"]) for one in summaries])
            ends = row[f"{name}_mean_low_ns"], row[f"{name}_mean_high_ns"]
            assert ends == (floor(low), ceil(high))
        ends = (row["output_tokens_low_per_s"], row["output_tokens_high_per_s"])
        assert ends == found["output_tokens_per_s"]
        shares = [served.again(draw).goodput("ttft=1ms")["share"] for draw in range(FEW_DRAWS)]
        assert (row["goodput_low_share"], row["goodput_high_share"]) == drawn_ends(shares)
    assert table["ttft_p95_low_ns"][0] < table["ttft_p95_ns"][0] < table["ttft_p95_high_ns"][0]
    shown = lines(serving_sweep(records(table), ["blocks"]))
    assert [line.split()[0] for line in shown[4:10]] == ["8", "low", "high", "100", "low", "high"]
    assert human_time(table["ttft_p95_high_ns"][1]) in shown[9]
    assert shown[9].split()[-1] == "-"  # no draw changes how many are preempted
    seeds = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, **asked, seeds=2)
    assert not [column for column in seeds if "_low_" in column]


def test_a_long_run_and_a_point_that_fails_have_no_ends(monkeypatch):
    asked = {"vary": {"blocks": [2, 100]}, "jobs": 1}
    short = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, **asked)
    assert short.filter(like="_low_").notna().any(axis=1).tolist() == [False, True]
    monkeypatch.setattr("hosim.serving.api.serving_points.MANY_ITERATIONS", 3)
    table = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, **asked)
    assert not table.filter(like="_low_").notna().any(axis=None)


def test_a_point_that_fails_is_a_row_with_its_error(tmp_path):
    path = tmp_path / "rows.csv"
    asked = {"vary": {"blocks": [2, 50]}, "jobs": 1, "output": path}
    table = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, **asked)
    assert list(table["feasible"]) == [False, True]
    assert table["error"][0].startswith(
        "requests[0]: 43 tokens of prompt and answer do not fit in a cache of 32 tokens"
    )
    done = []
    again = hosim.serve_sweep(
        MODEL, "h100-80gb-sxm", DRAWN, **asked, progress=lambda *counts: done.append(counts)
    )
    assert done == [(2, 2, 1)]  # from the file
    assert again.equals(table)
    with pytest.raises(InputError, match="this file belongs to another sweep"):
        hosim.serve_sweep(MODEL, "h100-80gb-sxm", f"{DRAWN}:seed=1", **asked)


@pytest.fixture(scope="module")
def seeded():
    return hosim.serve_sweep(
        MODEL, "h100-80gb-sxm", DRAWN, vary="requests.rate=50,100", seeds=2, jobs=1
    )


def test_seeds_are_rows(seeded):
    assert list(zip(seeded["requests.rate"], seeded["requests.seed"], strict=True)) == [
        (50, 0),
        (50, 1),
        (100, 0),
        (100, 1),
    ]
    assert seeded["span_ns"].nunique() == 4


@pytest.mark.long
def test_any_number_of_processes_gives_the_same(seeded):
    assert seeded.equals(
        hosim.serve_sweep(
            MODEL, "h100-80gb-sxm", DRAWN, vary="requests.rate=50,100", seeds=2, jobs=2
        )
    )


def test_the_rate_of_a_file_moves_its_arrivals(tmp_path):
    """Two gaps of 1 and 3 s are 0.5 requests a second; at 5 they are 0.1 and 0.3 s."""
    path = tmp_path / "requests.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n7,5,2\n8,6,2\n11,7,2\n")
    assert changed_requests(path, {"rate": 5}).requests == (
        Request(0, 5, 2),
        Request(100_000_000, 6, 2),
        Request(400_000_000, 7, 2),
    )
    for changes, message in (
        ({"seed": 1}, "of a file only the rate can be changed, not seed"),
        ({"rate": 0}, "expected requests a second"),
    ):
        with pytest.raises(InputError, match=message):
            changed_requests(path, changes)
    path.write_text("Timestamp,Request tokens,Response tokens\n7,5,2\n7,6,2\n")
    with pytest.raises(InputError, match="all requests arrive at once"):
        changed_requests(path, {"rate": 5})


def test_the_highest_rate_within_a_limit():
    """Every value of the range is tried by hand: the answer is the last one whose P95 keeps the
    limit.
    """
    rates = [10, 100, 1000, 10000]
    table = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, vary={"requests.rate": rates}, jobs=1)
    limit = int(table["ttft_p95_ns"][1])
    assert limit < table["ttft_p95_ns"][2]
    found = hosim.serve_fit(
        MODEL,
        "h100-80gb-sxm",
        DRAWN,
        largest="requests.rate=10,100,1000,10000",
        within={"ttft.p95": limit},
    )
    assert (found.value, found.beyond.value) == (100, 1000)
    assert facts(str(found), "requests.rate", "ttft.p95").startswith("requests.rate, ttft.p95, ")
    assert found.frame["ttft_p95_ns"].equals(table["ttft_p95_ns"])
    assert "<table" in found._repr_html_()
    none = hosim.serve_fit(
        MODEL, "h100-80gb-sxm", DRAWN, smallest="blocks=10..40:2", within="ttft.p95=1ns"
    )
    assert none.value is None
    assert facts(str(none)).startswith("1 ns, 40")


def test_a_search_says_what_contradicts_it():
    """0 to 20, of which 7 is outside although 14 is the last one within: values beside the answer
    are tried, too.
    """

    class Tried:
        def __init__(self, value):
            self.value, self.within, self.why = value, value <= 14 and value != 7, "for a reason"

    found = bisected(range(21), Tried)
    assert (found.answer, found.beyond) == (14, 15)
    (contradiction,) = found.contradictions
    assert facts(contradiction, "for a reason") == "7, for a reason, 14"
    assert bisected(range(21)[::-1], Tried).answer == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vary": {"block": [1]}}, "block: unknown field 'block'; did you mean 'blocks'?"),
        (
            {"vary": {"model.model": ["gpt2"]}},
            "model.model: the model cannot be varied; ask for each by itself",
        ),
        ({"vary": {"requests.cv": [1]}}, "requests.cv: unknown parameter 'requests.cv'"),
        (
            {"vary": {"model.tensr": [1]}},
            "model.tensr: unknown parameter 'model.tensr'; did you mean 'model.tensor'?",
        ),
        ({"vary": {"model.phase": ["decode"]}}, "model.phase: unknown parameter"),
        (
            {"vary": {"blocks": [9]}, "block": 3},
            "block: unknown option 'block'; did you mean 'blocks'?",
        ),
        ({"vary": {"blocks": [9]}, "limit": "p95=2"}, "limit: unknown latency 'p95'"),
    ],
)
def test_what_cannot_be_swept(options, message):
    with pytest.raises(InputError) as caught:
        hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, jobs=1, **options)
    assert str(caught.value).startswith(message)


def test_what_cannot_be_fitted():
    for options, message in (
        ({}, "serve_fit: requires largest or smallest"),
        ({"largest": "blocks=5"}, "blocks: expected at least two values"),
    ):
        with pytest.raises(InputError, match=message):
            hosim.serve_fit(MODEL, "h100-80gb-sxm", DRAWN, within="ttft.p95=2s", **options)
    with pytest.raises(InputError, match="expected a file, or arrivals to draw"):
        hosim.serve_fit(
            MODEL, "h100-80gb-sxm", [Request(0, 1, 1)], within="ttft.p95=2s", largest="blocks=1,2"
        )
    with pytest.raises(
        InputError, match=r"within: unknown latency 'ttft.p96'; did you mean 'ttft.p9.'\?"
    ):
        statistic_limits("ttft.p96=1s")


def test_the_commands():
    line = ["llama-3.1-8b", "-H", "h100", "--requests", DRAWN]
    swept = [
        "serve-sweep",
        *line,
        "--vary",
        "model.layers=2",
        "--vary",
        "requests.rate=50,500",
        "--seeds",
        "2",
        "--jobs",
        "1",
    ]
    limited = [*swept, "--set", "max_sequences=4", "--limit", "ttft=1ms"]
    answer = CliRunner().invoke(app, limited).stdout
    assert answer.splitlines()[1].startswith("Most: ")
    outcome = CliRunner().invoke(app, [*limited, "--detail"], env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.count("P95") == 5
    rows = json.loads(CliRunner().invoke(app, [*swept, "--json"]).stdout)["rows"]
    assert [(row["requests.rate"], row["requests.seed"]) for row in rows] == [
        (50, 0),
        (50, 1),
        (500, 0),
        (500, 1),
    ]
    fitted = [
        "serve-fit",
        *line,
        "--largest",
        "max_sequences=1,2,4",
        "--within",
        "ttft.p95=1ns",
        "--set",
        "token_budget=64",
    ]
    outcome = CliRunner().invoke(app, fitted, env={"COLUMNS": "200"})
    assert outcome.exit_code == 3
    assert "1 ns" in facts(outcome.stdout)
    for wrong, message in (
        (
            ["serve-sweep", *line],
            "error: serve-sweep: requires --vary or --seeds\n",
        ),
        (
            [*fitted, "--set", "x"],
            "error: --set: expected OPTION=VALUE, each option once, got 'x'\n",
        ),
        (
            [*fitted, "--set", "block=1"],
            "error: block: unknown option 'block'; did you mean 'blocks'?\n",
        ),
    ):
        outcome = CliRunner().invoke(app, wrong)
        assert (outcome.exit_code, outcome.stderr) == (2, message)


STUDIES = {
    "serve-sweep": ["--vary", "token_budget=64,128", "--jobs", "1"],
    "serve-fit": ["--smallest", "token_budget=64..128", "--within", "ttft.p95=1s"],
    "serve-frontier": ["--vary", "token_budget=64,128", "--jobs", "1"],
}


@pytest.mark.parametrize("command", STUDIES)
@pytest.mark.parametrize(
    "name",
    [
        "model",
        "hardware",
        "requests",
        "vary",
        "jobs",
        "within",
        "largest",
        "of",
        "options",
        "x",
        "model.tensor",
    ],
)
def test_only_options_of_serve_are_set(command, name, tmp_path):
    """Names of other arguments of the study were arguments given twice, and unknown ones an error
    of Python at each point.
    """
    target = ["--output", str(tmp_path / "rows.csv")] if command != "serve-fit" else []
    asked = [
        command,
        "gpt2",
        "-H",
        "h100",
        "--requests",
        DRAWN,
        *STUDIES[command],
        *target,
        "--set",
        f"{name}=1",
    ]
    outcome = CliRunner().invoke(app, asked)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stderr.startswith(f"error: {name}: unknown option {name!r}")
    assert outcome.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_frontier_by_hand():
    """More blocks serve more at once: none is beaten. Of two devices each row costs twice the room
    of one.
    """
    vary = {"blocks": [200, 9, 40]}
    table = hosim.serve_frontier(MODEL, "h100-80gb-sxm", DRAWN, vary=vary, jobs=1)
    swept = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, vary=vary, jobs=1)
    assert list(table["blocks"]) == [9, 40, 200]
    block = 2 * 2 * 8 * 128 * 2 * 16
    assert list(table["cache_bytes"]) == [9 * block, 40 * block, 200 * block]
    assert sorted(table["output_tokens_per_s"]) == sorted(swept["output_tokens_per_s"])
    best = float("-inf")
    for row in table.to_dict("records"):
        assert row["pareto"] == (row["output_tokens_per_s"] > best)
        best = max(best, row["output_tokens_per_s"])
    seeds = hosim.serve_frontier(
        MODEL,
        "h100-80gb-sxm",
        DRAWN,
        vary={"instances": [1, 2], "blocks": [50]},
        against="devices",
        of="goodput",
        limit="ttft=1s",
        seeds=3,
        jobs=1,
    )
    rows = hosim.serve_sweep(
        MODEL, "h100-80gb-sxm", DRAWN, vary={"instances": [1, 2]}, limit="ttft=1s", seeds=3, jobs=1
    )
    assert list(seeds["devices"]) == [1, 2]
    medians = rows.groupby("instances")["goodput_per_s"].median()
    assert list(seeds["goodput_per_s"]) == pytest.approx([medians[1], medians[2]])


def test_a_tier_below_is_room_for_the_cache():
    kv = "write_through:tiers=ddr=1GiB"
    table = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, vary={"kv": [kv]}, jobs=1, blocks=10)
    block = 2 * 2 * 8 * 128 * 2 * 16
    assert table["cache_bytes"][0] == 10 * block + (1 << 30)
    # two engines of one host share its tier, and engines on two hosts have one each: the room is
    # that of what there is
    several = hosim.serve_sweep(
        MODEL, "h100-80gb-sxm", DRAWN, vary={"instances": [2, 9]}, jobs=1, blocks=10, kv=kv
    )
    stores = [
        hosim.serve(MODEL, "h100-80gb-sxm", DRAWN, instances=n, blocks=10, kv=kv).kv.tiers["ddr"]
        for n in (2, 9)
    ]
    assert [one.stores for one in stores] == [1, 2]
    assert list(several["cache_bytes"]) == [
        (10 * n + one.blocks * one.stores) * block for n, one in zip((2, 9), stores, strict=True)
    ]


def test_points_that_no_other_beats():
    """Every point against every other: worse in none of the two figures and better in one beats."""
    rows = [
        {"cost": c, "rate": r}
        for c, r in ((3, 5), (1, 2), (2, 2), (3, 7), (4, 7), (1, 2), (5, None))
    ]

    def beats(one, other):
        return one["cost"] <= other["cost"] and one["rate"] >= other["rate"] and one != other

    known = [row for row in rows if row["rate"] is not None]
    expected = [
        row["rate"] is not None
        and not any(beats(one, row) for one in known)
        and row not in rows[:i]
        for i, row in enumerate(rows)
    ]
    assert pareto([(row["cost"], row["rate"]) for row in rows]) == expected
    drawn = [
        {"requests.rate": 5, "feasible": i != 3, "x": None if i == 3 else i} for i in range(30)
    ]
    (found,) = seed_percentiles(drawn, ["requests.rate"], ["x"])
    assert found == {
        "requests.rate": 5,
        "figure": "x",
        "runs": 30,
        "failed": 1,
        "p5": 1,
        "p50": 15,
        "p95": 28,
    }


def test_the_command_of_a_frontier(tmp_path):
    line = [
        "serve-frontier",
        "llama-3.1-8b",
        "-H",
        "h100",
        "--requests",
        DRAWN,
        "--set",
        "max_sequences=4",
        "--jobs",
        "1",
    ]
    vary = ["--vary", "model.layers=2", "--vary", "blocks=9,200"]
    path = tmp_path / "points.csv"
    first = CliRunner().invoke(app, [*line, *vary, "-o", str(path)], env={"COLUMNS": "160"})
    assert first.exit_code == 0, first.stderr
    assert first.stdout.splitlines()[1].startswith("At most ")
    shown = CliRunner().invoke(app, [*line, *vary, "--detail"], env={"COLUMNS": "160"})
    assert "best" in shown.stdout
    assert "90 % interval" in shown.stdout
    kept = path.read_text().splitlines()
    path.write_text("\n".join(kept[:2]) + "\n")  # interrupted after the first point
    again = CliRunner().invoke(app, [*line, *vary, "-o", str(path)], env={"COLUMNS": "160"})
    assert again.stdout == first.stdout
    assert sorted(path.read_text().splitlines()) == sorted(kept)
    data = json.loads(CliRunner().invoke(app, [*line, *vary, "--json"]).stdout)
    assert (data["format"], len(data["rows"])) == ("hosim.serving-frontier/1", 2)
    for wrong, message in (
        (
            line,
            "error: serve-frontier: nothing to vary: give --vary FIELD=VALUES, such as "
            "blocks=1000..8000:5\n",
        ),
        (
            [*line, *vary, "--of", "goodputt"],
            "error: of: unknown figure 'goodputt'; did you mean 'goodput'?\n",
        ),
        (
            [*line, *vary, "--of", "goodput"],
            "error: of: the goodput needs limits: give limit, such as 'ttft=2s'\n",
        ),
    ):
        outcome = CliRunner().invoke(app, wrong)
        assert (outcome.exit_code, outcome.stderr) == (2, message)


@pytest.mark.parametrize(
    "odd",
    [3, float("nan"), True, b"x", [], {"a": 1}, object(), (1, 2)],
    ids=lambda odd: type(odd).__name__,
)
def test_options_of_another_type_are_refused_by_name(odd):
    """These were refusals in Python's words, such as an attribute that an integer does not have."""
    for option in (
        "router",
        "kv",
        "scheduling_policy",
        "kv_sending",
        "preemption",
        "kv_link",
        "blocks",
        "token_budget",
        "weights",
    ):
        if option in ("blocks", "token_budget") and odd == 3:
            continue
        engines = {"prefill_instances": 1, "decode_instances": 1} if option == "kv_link" else {}
        with pytest.raises(InputError) as caught:
            hosim.serve(MODEL, "h100-80gb-sxm", DRAWN, **{option: odd}, **engines)
        assert caught.value.source == option
    with pytest.raises(InputError, match=r"^limit: "):
        hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, vary={"blocks": [9]}, limit=odd)
    with pytest.raises(InputError, match=r"^within: "):
        hosim.serve_fit(MODEL, "h100-80gb-sxm", DRAWN, largest="blocks=1,2", within=odd)
