"""Explained plans as tables and as a dictionary: every figure in its place, names that a terminal
would misread included.
"""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rendered import facts
from rich.console import Console, RenderableType

from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.hyperoffload import LOCAL_SEARCH, Judgement, plan
from hosim.planner.hyperoffload.explanations import Explanation, explain
from hosim.report import explanation, explanation_lines, summary, to_dict

NS = 10**9


@pytest.fixture(scope="module")
def explained() -> Explanation:
    """A hill of four activations of 10 MB, 1 GB/s each way and 20 ms an op; ``a[0]`` comes back too
    late, by its 10 ms.
    """
    size, ms = 10**7, 10**6
    b = GraphBuilder("hill")
    for i in range(4):
        b.tensor(f"a[{i}]", size)
        b.op(
            f"f{i}",
            "matmul",
            inputs=[f"a[{i - 1}]"] if i else [],
            outputs=[f"a[{i}]"],
            duration_ns=20 * ms,
        )
    for i in reversed(range(4)):
        b.op(f"b{i}", "matmul", inputs=[f"a[{i}]"], duration_ns=20 * ms)
    tiers = (Tier("hbm", 10**9, NS, "device"), Tier("ddr", 10**9, NS))
    hw = Hardware(
        "toy",
        tiers,
        (Channel("up", "ddr", "hbm", NS), Channel("down", "hbm", "ddr", NS)),
        Compute({}),
    )
    cache_ops = (
        CacheOp(STORE, 0, "hbm", "ddr", 1),
        CacheOp(DETACH, 0, "hbm", None, 1),
        CacheOp(PREFETCH, 0, "ddr", "hbm", 6),
    )
    return explain(Plan(b.build(), "manual", cache_ops), hw, 3 * size)


def text(renderable: RenderableType, width: int = 160) -> str:
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def rows(output: str) -> list[str]:
    return [" ".join(line.split()) for line in output.splitlines()]


def test_a_row_has_every_figure_of_its_gap(explained: Explanation) -> None:
    # 10 MB for the 40 ms of f3 and b3; f0 and f1 write a[0] and a[1] in 20 ms each;
    # the pressure is that of test_gap_figures: (0.1 + 4/15 + 23/30 + 4/15 + 0.1) / 5 and (4/15 +
    # 23/30 + 4/15) / 3
    output = rows(text(explanation_lines(explained), 240))
    at = output.index("a[0] 9.54 MiB 3 100 ms 20.0 ms - 0.30 391 KiB s")
    assert [facts(line) for line in output[at + 1 : at + 3]] == ["", "10.0 ms"]
    at = output.index("a[1] 9.54 MiB 3 60.0 ms 20.0 ms - 0.43 -")
    gap, decision = output[at + 1 : at + 3]
    assert (facts(gap, "f2", "b1"), decision.partition(":")[0]) == ("f2, b1", "kept")


def test_pressure_transfers_waits_and_channels(explained: Explanation) -> None:
    # a[0] is there from 20 ms on, and f3 waits at 60 ms for the room that it leaves; there is room
    # for it again once b3 has used a[3]
    output = rows(text(explanation(explained), 240))
    assert "f3 b3 2 40.0 ms 9.54 MiB 391 KiB s 28.6 MiB" in output
    assert "a[0] up 140 ms 140 ms 150 ms 100 ms to 140 ms - 0 % - - 10.0 ms b0" in output
    assert "a[0] down 40.0 ms 40.0 ms 50.0 ms 20.0 ms to 50.0 ms - 100 % f2 10 % - -" in output
    assert "b0 transfer 140 ms 10.0 ms a[0] on up" in output
    assert any(facts(line).startswith("3, 1, 2, 1") for line in output)
    assert any(line.startswith("down |") and line.endswith("|") for line in output)


def test_top_bounds_every_table(explained: Explanation) -> None:
    output = rows(text(explanation(explained, 1), 240))
    assert "and 2 more" in output
    assert not any(line.startswith("a[1]") for line in output)
    data = to_dict(explained, 1)
    assert [len(data[key]) for key in ("tensors", "transfers", "waits", "regions")] == [1, 1, 1, 1]


@pytest.mark.parametrize("width", [100, 120])
def test_tables_keep_to_the_width_of_a_terminal_and_lose_no_word(
    width: int, explained: Explanation
) -> None:
    long = "model.layers.31.post_attention_layernorm.weight"
    graph = replace(
        explained.plan.graph,
        tensors=(
            replace(explained.plan.graph.tensors[0], name=long),
            *explained.plan.graph.tensors[1:],
        ),
    )
    named = explain(
        replace(explained.plan, graph=graph), explained.hardware, explained.result.budget_bytes
    )
    output = text(explanation(named), width)
    assert max(map(len, output.splitlines())) <= width
    assert "…" not in output
    table = output[output.index("Gaps by bytes") : output.index("Transfers")].splitlines()
    header = next(line for line in table if "bytes" in line and "uses" in line)
    column = header.index("bytes") + len("bytes") - len("9.54 MiB")  # where the figures begin
    assert named.lines[0].why.replace(" ", "") in "".join(line[:column] for line in table).replace(
        " ", ""
    )


def test_the_dictionary_is_the_explanation_by_names(explained: Explanation) -> None:
    data = json.loads(json.dumps(to_dict(explained), allow_nan=False))
    assert data["format"] == "hosim.explanation/2"
    assert data["peak"] == {"op": "f3", "before_bytes": 40_000_000, "after_bytes": 30_000_000}
    first = data["tensors"][0]
    assert (first["tensor"], first["moved"], first["reason"], first["judged"]) == (
        "a[0]",
        True,
        "unjudged_moved",
        None,
    )
    assert first["exposed_ns"] == 10_000_000
    assert facts(first["effect"], "b0") == "b0, 10.0 ms"
    assert first["gap"] == {"after": "f1", "before": "b0", "length_ns": 100_000_000}
    assert first["figures"]["over_budget_ns"] == 40_000_000
    down, up = first["transfers"]
    assert (down["direction"], down["covered_by"], down["exposed_ns"]) == ("down", ["f2", "f2"], 0)
    assert (up["direction"], up["issue_ns"], up["end_ns"], up["waiting"]) == (
        "up",
        140_000_000,
        150_000_000,
        ["b0"],
    )
    assert data["waits"] == [
        {
            "op": "b0",
            "cause": "transfer",
            "start_ns": 140_000_000,
            "end_ns": 150_000_000,
            "transfer": {"tensor": "a[0]", "channel": "up"},
        }
    ]
    assert data["channels"]["up"]["exposed_ns"] == 10_000_000
    assert data["reasons"] == {"unjudged_kept": 2, "unjudged_moved": 1}


def test_nothing_moves_nothing_waits(explained: Explanation) -> None:
    calm = explain(Plan(explained.plan.graph), explained.hardware, 10**9)
    output = text(explanation(calm))
    assert "Transfers: none." in output
    assert "Waits: none." in output
    assert set(to_dict(calm)["reasons"]) == {"unjudged_kept"}


def test_the_summary_shows_whom_ops_wait_for_first_and_fits_a_screen(
    explained: Explanation,
) -> None:
    output = rows(text(summary(explained), 120))
    at = next(k for k, line in enumerate(output) if line.startswith("a[0]"))
    assert facts(output[at]) == "0, 9.54 MiB, 10.0 ms"
    assert facts(output[at + 1]).startswith("1, 9.54 MiB")
    assert len(output) < 25


def test_the_summary_has_five_tensors_and_one_row_for_each() -> None:
    b = GraphBuilder("plateau")
    for i in range(30):
        b.tensor(f"w{i}", 10**7, "parameter")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=20 * 10**6)
    tiers = (Tier("hbm", 10**9, NS, "device"), Tier("ddr", 10**9, NS))
    hw = Hardware(
        "toy",
        tiers,
        (Channel("up", "ddr", "hbm", NS), Channel("down", "hbm", "ddr", NS)),
        Compute({}),
    )
    judged = explain(plan(b.build(), hw, 10**8), hw, 10**8)
    output = rows(text(summary(judged), 120))
    shown = [line for line in output if line.startswith("w")]
    assert len(shown) == len({line.split()[0] for line in shown}) == 5
    assert all("moved: best score" in line for line in shown)
    assert any(line.startswith("... 25 more tensors; ") for line in output)
    data = to_dict(judged)
    (first,) = [
        line
        for line in data["tensors"]
        if line["tensor"] == shown[0].split()[0] and line["reason"] == "best_score"
    ]
    assert first["judged"]["taken"]
    assert first["judged"]["below"] == "ddr"
    assert first["judged"]["over_bytes"] > 0
    assert (
        first["judged"]["rival_score_ns"] is None
        or first["judged"]["score_ns"] >= first["judged"]["rival_score_ns"]
    )


def test_local_search_from_a_plan_that_no_selection_made() -> None:
    b = GraphBuilder("plateau")
    for i in range(6):
        b.tensor(f"w{i}", 10**7, "parameter")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=20 * 10**6)
    tiers = (Tier("hbm", 10**9, NS, "device"), Tier("ddr", 10**9, NS))
    hw = Hardware(
        "toy",
        tiers,
        (Channel("up", "ddr", "hbm", NS), Channel("down", "hbm", "ddr", NS)),
        Compute({}),
    )
    made = plan(b.build(), hw, 3 * 10**7)
    assert isinstance(made.judgement, Judgement)
    searched = replace(
        made, judgement=replace(made.judgement, source=LOCAL_SEARCH, selection=None, tried=())
    )
    output = rows(text(explanation(explain(searched, hw, 3 * 10**7)), 240))
    assert output[0].startswith("Local search")
    assert "not judge" in " ".join(output)


def test_notes_are_of_plans_whose_prefetches_are_issued_at_other_times_too(
    explained: Explanation,
) -> None:
    b = GraphBuilder("chain")
    b.tensor("w", 10**7, "parameter")
    for i in range(6):
        b.op(f"f{i}", "matmul", inputs=["w"] if i in (0, 5) else [], duration_ns=20 * 10**6)
        b.op(f"g{i}", "matmul", outputs=[b.tensor(f"x{i}", 95 * 10**6)], duration_ns=20 * 10**6)
    graph, budget = b.build(), 10**8
    made = plan(graph, explained.hardware, budget)
    assert explain(made, explained.hardware, budget).judgement is made.judgement is not None
    moved = tuple(
        replace(c, after=c.after - 1) if c.op == PREFETCH and c.after > 0 else c
        for c in made.cache_ops
    )
    assert moved != made.cache_ops
    assert (
        explain(replace(made, cache_ops=moved), explained.hardware, 2 * budget).judgement
        is made.judgement
    )
    elsewhere = tuple(
        c if c.op == PREFETCH else replace(c, after=c.after + 1) for c in made.cache_ops
    )
    assert (
        explain(replace(made, cache_ops=elsewhere), explained.hardware, 2 * budget).judgement
        is None
    )
