"""An explanation made up of figures that are all different, with everything that is printed of it:
none can stand in another's place.
"""
# ruff: noqa: E501 - tables are shown as they are printed

import html
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rendered import facts, lines, table
from timelines import everything

from hosim.analysis import Gap
from hosim.cache_plan import AT_START, PREFETCH, CacheOp, Plan
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.hyperoffload import GapFigures, GapScore, JudgedGap
from hosim.planner.hyperoffload.explanations import Explanation, Line, ObservedTransfer, Region
from hosim.report import PlanExplanation, explanation, summary, to_dict
from hosim.report import explanation_lines as lines_of_reasons
from hosim.result import ChannelFigures, Stall, Transfer

MS = 10**6
KIB = 1024
BYTE_S = 10**9


def gap_figures(tensor: int, after: int, before: int, i: int, recompute: int | None) -> GapFigures:
    times = [n * MS + i for n in (11, 12, 13, 14, 15)]
    return GapFigures(
        Gap(tensor, after, before), i * KIB, "ddr", 20 + i, *times, 30 + i, recompute, 40 + i, i / 8
    )


def judged(
    line: GapFigures, taken: bool, reason: str, op: int, score: float | None, rival: float | None
) -> JudgedGap:
    below: Any = SimpleNamespace(name="ssd")
    scored = (
        None if score is None else GapScore(score, line.gap, below, SimpleNamespace(), None, 77)
    )  # type: ignore[arg-type]
    return JudgedGap(line.gap, taken, reason, scored, op, 900 + op, rival)


@pytest.fixture(scope="module")
def made() -> Explanation:
    """Figures that belong to no replay."""
    b = GraphBuilder("made [up]")
    for name, size, kind in (
        ("a", 1, "activation"),
        ("k[1]", 2, "kv_cache"),
        ("w", 3, "parameter"),
    ):
        b.tensor(name, size, kind, home="hbm")
    for name in ("f[0]", "g", "h", "i"):
        b.op(name, "matmul", inputs=["a"], duration_ns=1)
    first, second = gap_figures(0, AT_START, 3, 1, 5 * MS), gap_figures(0, 1, 4, 2, None)
    third, fourth = gap_figures(1, 0, 2, 3, 0), gap_figures(2, 2, 3, 4, 6 * MS)
    starts, best = (
        judged(first, True, "starts_below", -1, None, None),
        judged(second, True, "best_score", 2, 1.5 * MS + 0.0006, 3.0004),
    )
    outscored = judged(third, False, "outscored", 0, -2.5 * MS, None)
    found = (
        Line(first, starts, True, 51, 0, 0, (), 0, "starts_below", "stays away", "why [1]"),
        Line(
            second, best, True, 52, 62, 72 * KIB * BYTE_S, (1, 0), 7 * MS, "best_score", "", "why 2"
        ),
        Line(third, outscored, False, 53, 63, 0, (), 0, "outscored", "effect [3]", "why 3"),
        Line(fourth, None, True, 54, 64, 0, (2,), 0, "unjudged_moved", "", "why 4"),
    )
    up, down, late, same = (
        Transfer(4, 2, "up", 101, 1 * MS, 3 * MS, 7 * MS, 201),
        Transfer(5, 0, "down[0]", 102, 2 * MS, 2 * MS, 12 * MS, 202),
        Transfer(3, 1, "up", 103, 2 * MS, 6 * MS, 8 * MS, 203),
        Transfer(2, 0, "up", 104, 2 * MS, 5 * MS, 9 * MS, 204),
    )
    copies = (
        ObservedTransfer(up, True, 1 * MS, 0, 1, 7 * MS, (3, 0), 1 * MS, 4 * MS, 40 * MS),
        ObservedTransfer(down, False, 9 * MS, 2, 2, 0, (), None, 21 * MS, 20 * MS),
        ObservedTransfer(late, True, 0, -1, -1, 8 * MS, (1,), None, None, 0),
        ObservedTransfer(same, True, 4 * MS, 1, 3, 0, (), 0, 5 * MS, 4 * MS),
    )
    waits = (
        Stall(0, "dependency", 4 * MS, 7 * MS, None),
        Stall(3, "transfer", 5 * MS, 9 * MS, 0),
        Stall(2, "transfer", 3 * MS, 6 * MS, 1),
        Stall(1, "capacity", 3 * MS, 6 * MS, None),
    )
    regions = (
        Region(0, 1, 21 * MS, 22 * KIB, 23 * KIB * BYTE_S, 24 * KIB),
        Region(1, 3, 31 * MS, 32 * KIB, 33 * KIB * BYTE_S, 34 * KIB),
        Region(2, 2, 41 * MS, 42 * KIB, 33 * KIB * BYTE_S, 44 * KIB),
    )
    channels = {
        "up": ChannelFigures(3, 1 << 20, 11 * MS, 12 * MS, 13 * MS, 4 * MS, 7 * MS, 0.25),
        "down[0]": ChannelFigures(0, 0, 0, 0, 0, 0, 0, 0.0),
    }
    _, result = everything()
    result = replace(
        result, policy="p [q]", budget_bytes=50 * KIB, makespan_ns=321, channels=channels
    )
    return Explanation(
        Plan(b.build(), "p [q]", tuple(CacheOp(PREFETCH, 0, "ddr", "hbm", 1) for _ in range(1001))),
        Hardware(
            "toy",
            (Tier("hbm", 10**9, 1, "device"), Tier("ddr", 10**9, 1)),
            (Channel("up", "ddr", "hbm", 1),),
            Compute({}),
        ),
        replace(result, peak_bytes={"hbm": 48 * KIB}, stall_ns={"transfer": 9}),
        "Made [up].",
        None,
        2,
        49 * KIB,
        regions,
        found,
        copies,
        waits,
        {
            "up": (0.0, 0.01, 0.43741, 0.4375123, 1.0),
            "down[0]": (0.0,) * 5,
        },  # of eighths: one at least, 3.499, 3.5001, all
        1234,
        5 * KIB,
        ("Windows [1].", "Rule [2]."),
    )


HEAD = """
    Made [up].
    If nothing moved, hbm would hold 49.0 KiB at op h; the plan holds 48.0 KiB at most, within a budget of 50.0 KiB.
"""
COUNTS = """
    4 gaps, 3 used (1 moved: best score, 1 kept: outscored, 1 moved: starts below, 1 moved, not judged); 1,234 tensors (5.00 KiB) have no gap between uses to be away in.
    Cache ops: 1,001 prefetches, 0 stores, 0 detaches.
"""
CHANNELS = """
    Channels
                                                                                mean
     policy  channel  transfers     moved  utilization  overlapped  exposed    queue  contention
     ───────────────────────────────────────────────────────────────────────────────────────────
     p [q]   up               3  1.00 MiB         25 %        64 %  4.00 ms  37383.2     13.0 ms
"""
LOAD = """
    Load over the step
     channel  load
     ────────────────
     up       | ▁▃▄█|
"""


def test_all_of_it(made: Explanation) -> None:
    """Regions by area and then from the first op on; waited for transfers first; waits from the
    longest on, then the earliest op.
    """
    assert lines(explanation(made), 200) == [
        *table(HEAD),
        *table("""
            Pressure: over budget if nothing moved
             from op  to op  ops     time   over by        area  held by plan
             ────────────────────────────────────────────────────────────────
             g        i        3  31.0 ms  32.0 KiB  33.0 KiB s      34.0 KiB
             h        h        1  41.0 ms  42.0 KiB  33.0 KiB s      44.0 KiB
             f[0]     g        2  21.0 ms  22.0 KiB  23.0 KiB s      24.0 KiB
        """),
        *table(COUNTS),
        *table("""
            Gaps by bytes saved at the peak. The score (over-budget time covered, less weighted stalls) decided.
             tensor
             kind: gap
             why                       bytes  uses     idle  recompute     score  pressure      relief
             ─────────────────────────────────────────────────────────────────────────────────────────
             a                      1.00 KiB    21  11.0 ms    5.00 ms         -      0.12           -
             activation: start > i
             why [1]
             a                      2.00 KiB    22  11.0 ms          -   1.50 ms      0.25  72.0 KiB s
             activation: g > end
             why 2
             k[1]                   3.00 KiB    23  11.0 ms          -  -2.50 ms      0.38           -
             kv cache: f[0] > h
             why 3
             w                      4.00 KiB    24  11.0 ms    6.00 ms         -      0.50           -
             parameter: h > i
             why 4
            Transfers
             tensor  channel   issued    start      end  could begin          queued  covered  while      of overlap  exposed  waiting
             ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
             k[1]    up       2.00 ms  6.00 ms  8.00 ms  -                   4.00 ms      0 %  -                   -  8.00 ms  g
             w       up       1.00 ms  3.00 ms  7.00 ms  1.00 ms to 4.00 ms  2.00 ms     25 %  f[0] .. g        10 %  7.00 ms  i, f[0]
             a       up       2.00 ms  5.00 ms  9.00 ms  0 ns to 5.00 ms     3.00 ms    100 %  g .. i          >99 %        -  -
             a       down[0]  2.00 ms  2.00 ms  12.0 ms  - to 21.0 ms              -     90 %  h                50 %        -  -
            Windows [1].
            Rule [2].
        """),
        *table(CHANNELS),
        *table(LOAD),
        *table("""
            Waits
             op    cause          from      for  transfer
             ────────────────────────────────────────────────
             i     transfer    5.00 ms  4.00 ms  w on up
             g     capacity    3.00 ms  3.00 ms  -
             h     transfer    3.00 ms  3.00 ms  a on down[0]
             f[0]  dependency  4.00 ms  3.00 ms  -
        """),
        "Rule [2].",
    ]


def test_the_first_row_of_each_table(made: Explanation) -> None:
    shown = lines(explanation(made, 1), 200)
    assert [line for line in shown if line.startswith("and ")] == [
        "and 2 more",
        *["and 3 more"] * 3,
    ]
    assert [shown[k - 1].split()[0] for k, line in enumerate(shown) if line.startswith("and ")] == [
        "g",
        "why",
        "k[1]",
        "i",
    ]
    assert not [line for line in lines(explanation(made, 4), 200) if line.startswith("and ")]


def test_the_summary_in_full(made: Explanation) -> None:
    """Of ``a``, the gap that a score took speaks for the tensor; ``w`` comes before ``k[1]`` by a
    byte.
    """
    assert lines(summary(made), 300) == [
        *table(HEAD),
        *[
            f" {line}"
            for line in table("""
             tensor  verdict               bytes     score  exposed
             ──────────────────────────────────────────────────────
             a       moved: best score  2.00 KiB   1.50 ms  7.00 ms
             w       moved, not judged  4.00 KiB         -        -
             k[1]    kept: outscored    3.00 KiB  -2.50 ms        -
            """)
        ],
        "... first those that ops wait for, then by bytes saved at the peak; the score decided",
        f"{' '.join(table(COUNTS))} --top N prints every table with N rows, --all with every row.",
    ]
    rows = lines_of_reasons(made).renderables[0].rows  # type: ignore[attr-defined]
    assert [row.style for row in rows] == [None, None, "dim", None]


def test_the_summary_of_a_gap_that_was_kept_and_one_that_starts_below(made: Explanation) -> None:
    """Where no score took any, the first gap listed speaks for the tensor."""
    starts, _, kept, _ = made.lines
    kept = replace(kept, figures=replace(kept.figures, gap=starts.gap))
    for found, verdict in (
        ((kept, starts), "kept: outscored"),
        ((starts, kept), "moved: starts below"),
    ):
        assert any(verdict in line for line in lines(summary(replace(made, lines=found)), 200))


def test_exactly_five_tensors_and_one_more(made: Explanation) -> None:
    tensors = [replace(made.plan.graph.tensors[0], name=f"t{i}") for i in range(6)]
    graph = replace(made.plan.graph, tensors=tuple(tensors))
    of = made.lines[3]
    found = tuple(replace(of, figures=replace(of.figures, gap=Gap(i, 2, 3))) for i in range(6))
    for count, more in ((5, ""), (6, "1 more tensor; ")):
        many = replace(made, plan=replace(made.plan, graph=graph), lines=found[:count])
        shown = lines(summary(many), 200)
        assert any(line.startswith(f"... {more}first") for line in shown)
        assert sum(line.startswith(" t") and line[2].isdigit() for line in shown) == 5


def test_an_explanation_of_nothing(made: Explanation) -> None:
    nothing = replace(
        made,
        peak_op=-1,
        regions=(),
        lines=(),
        copies=(),
        waits=(),
        loads={"up": (0.0,)},
        without_gap_tensors=0,
        without_gap_bytes=0,
        notes=(),
    )
    first, second, third, *counts = lines(explanation(nothing), 200)
    assert (first, facts(second, "hbm"), facts(third)) == (
        "Made [up].",
        "hbm, 49.0 KiB, 48.0 KiB, 50.0 KiB",
        "",
    )
    assert [facts(line) for line in counts[:2]] == ["0, 0, 0, 0 B", "1,001, 0, 0"]
    assert counts[2:] == [
        *table("""
            Gaps by bytes saved at the peak. The score (over-budget time covered, less weighted stalls) decided.
             tensor
             kind: gap
             why        bytes  uses  idle  recompute  score  pressure  relief
             ────────────────────────────────────────────────────────────────
        """),
        "Transfers: none.",
        *table(CHANNELS),
        "Waits: none.",
    ]
    data = to_dict(replace(nothing, loads=made.loads))
    assert data["peak"] == {"op": None, "before_bytes": 49 * KIB, "after_bytes": 48 * KIB}
    assert [data[key] for key in ("regions", "tensors", "transfers", "waits", "reasons")] == [
        [],
        [],
        [],
        [],
        {},
    ]


def copied(
    tensor: str,
    channel: str,
    direction: str,
    number: int,
    times: tuple[int, int, int],
    covered: int,
    by: list[str],
    window: tuple[int | None, int | None],
    overlap: int,
    exposed: int,
    *waiting: str,
) -> dict[str, Any]:
    """``times`` of issue, start and end in milliseconds."""
    issue, start, end = (ms * MS for ms in times)
    alone = end - start - 200 - number
    return {
        "tensor": tensor,
        "channel": channel,
        "direction": direction,
        "bytes": 100 + number,
        "issue_ns": issue,
        "start_ns": start,
        "end_ns": end,
        "queue_ns": start - issue,
        "contention_ns": 200 + number,
        "covered_ns": covered * MS,
        "covered_by": by,
        "earliest_ns": None if window[0] is None else window[0] * MS,
        "latest_ns": None if window[1] is None else window[1] * MS,
        "alone_ns": alone,
        "overlap_ns": overlap * MS,
        "too_long": alone / (overlap or 0.1) > 0.1 * MS,
        "exposed_ns": exposed * MS,
        "waiting": list(waiting),
    }


UP = copied("w", "up", "up", 1, (1, 3, 7), 1, ["f[0]", "g"], (1, 4), 40, 7, "i", "f[0]")
DOWN = copied("a", "down[0]", "down", 2, (2, 2, 12), 9, ["h", "h"], (None, 21), 20, 0)
LATE = copied("k[1]", "up", "up", 3, (2, 6, 8), 0, [], (None, None), 0, 8, "g")
SAME = copied("a", "up", "up", 4, (2, 5, 9), 4, ["g", "i"], (0, 5), 4, 0)


def gap_dict(
    i: int,
    tensor: tuple[str, str],
    after: str | None,
    before: str | None,
    recompute: int | None,
    **more: Any,
) -> dict[str, Any]:
    """What is the same of every gap: its figures, which follow from its number."""
    time = {
        name: n * MS + i
        for name, n in (
            ("gap_ns", 11),
            ("covered_ns", 12),
            ("down_ns", 13),
            ("up_ns", 14),
            ("over_budget_ns", 15),
        )
    }
    figures = {key: value for key, value in time.items() if key != "gap_ns"} | {
        "accesses": 20 + i,
        "below": "ddr",
        "exposed_ns": 13 * MS + i + 14 * MS + i - 12 * MS - i,
        "relief_byte_ns": i * KIB * (15 * MS + i),
        "peak_bytes": 30 + i,
        "recompute_ns": recompute,
        "recompute_flops": 40 + i,
        "channel_pressure": i / 8,
    }
    gap = {"after": after, "before": before, "length_ns": time["gap_ns"]}
    own = {
        "tensor": tensor[0],
        "kind": tensor[1],
        "bytes": i * KIB,
        "gap": gap,
        "away_ns": 50 + i,
        "why": f"why {i}",
        "figures": figures,
    }
    return {**own, "effect": None, "relief_byte_ns": 0, "exposed_ns": 0, "transfers": [], **more}


def judged_dict(
    taken: bool, reason: str, over: int, op: str | None, score: float | None, rival: float | None
) -> dict[str, Any]:
    scored = (
        {"below": None, "expected_stall_ns": None}
        if score is None
        else {"below": "ssd", "expected_stall_ns": 77}
    )
    return {
        "taken": taken,
        "reason": reason,
        "over_bytes": over,
        "op": op,
        "score_ns": score,
        "rival_score_ns": rival,
        **scored,
    }


def test_the_dictionary_in_full(made: Explanation) -> None:
    data = to_dict(made)
    values = [line["figures"].pop("value") for line in data["tensors"]]
    assert values == [line.figures.value for line in made.lines]
    first = {
        "moved": True,
        "reason": "starts_below",
        "effect": "stays away",
        "why": "why [1]",
        "saved_bytes": 0,
    }
    second = {
        "moved": True,
        "reason": "best_score",
        "saved_bytes": 62,
        "relief_byte_ns": 72 * KIB * BYTE_S,
        "exposed_ns": 7 * MS,
    }
    third = {"moved": False, "reason": "outscored", "effect": "effect [3]", "saved_bytes": 63}
    fourth = {
        "moved": True,
        "reason": "unjudged_moved",
        "saved_bytes": 64,
        "judged": None,
        "transfers": [LATE],
    }
    best = judged_dict(True, "best_score", 902, "h", 1500000.001, 3.0)
    assert data == {
        "format": "hosim.explanation/2",
        "workload": "made [up]",
        "hardware": "toy",
        "policy": "p [q]",
        "origin": "Made [up].",
        "budget_bytes": 50 * KIB,
        "makespan_ns": 321,
        "stall_ns": {"dependency": 0, "transfer": 9, "capacity": 0, "runtime": 0},
        "op_time_origins": {"measured": 4},
        "peak": {"op": "h", "before_bytes": 49 * KIB, "after_bytes": 48 * KIB},
        "plan": {"prefetches": 3, "stores": 1, "detaches": 0},
        "without_gap": {"tensors": 1234, "bytes": 5 * KIB},
        "reasons": {"best_score": 1, "outscored": 1, "starts_below": 1, "unjudged_moved": 1},
        "regions": [
            {
                "first": a,
                "last": b,
                "ops": ops,
                "over_ns": n * MS,
                "over_bytes": (n + 1) * KIB,
                "over_byte_ns": area * KIB * BYTE_S,
                "held_bytes": (n + 3) * KIB,
            }
            for a, b, ops, n, area in (
                ("f[0]", "g", 2, 21, 23),
                ("g", "i", 3, 31, 33),
                ("h", "h", 1, 41, 33),
            )
        ],
        "tensors": [
            gap_dict(
                1,
                ("a", "activation"),
                None,
                "i",
                5 * MS,
                judged=judged_dict(True, "starts_below", 899, None, None, None),
                **first,
            ),
            gap_dict(
                2, ("a", "activation"), "g", None, None, judged=best, transfers=[DOWN, UP], **second
            ),
            gap_dict(
                3,
                ("k[1]", "kv_cache"),
                "f[0]",
                "h",
                0,
                judged=judged_dict(False, "outscored", 900, "f[0]", -2.5 * MS, None),
                **third,
            ),
            gap_dict(4, ("w", "parameter"), "h", "i", 6 * MS, **fourth),
        ],
        "transfers": [UP, DOWN, LATE, SAME],
        "notes": ["Windows [1].", "Rule [2]."],
        "waits": [
            {
                "op": op,
                "cause": cause,
                "start_ns": start * MS,
                "end_ns": end * MS,
                "transfer": None
                if of is None
                else dict(zip(("tensor", "channel"), of, strict=True)),
            }
            for op, cause, start, end, of in (
                ("f[0]", "dependency", 4, 7, None),
                ("i", "transfer", 5, 9, ("w", "up")),
                ("h", "transfer", 3, 6, ("a", "down[0]")),
                ("g", "capacity", 3, 6, None),
            )
        ],
        "channels": {
            "up": {
                "transfers": 3,
                "bytes": 1 << 20,
                "busy_ns": 11 * MS,
                "queue_ns": 12 * MS,
                "contention_ns": 13 * MS,
                "exposed_ns": 4 * MS,
                "hidden_ns": 7 * MS,
                "load": [0.0, 0.01, 0.4374, 0.4375, 1.0],
            },
            "down[0]": dict.fromkeys(
                (
                    "transfers",
                    "bytes",
                    "busy_ns",
                    "queue_ns",
                    "contention_ns",
                    "exposed_ns",
                    "hidden_ns",
                ),
                0,
            )
            | {"load": [0.0] * 5},
        },
    }
    assert list(data["reasons"]) == ["best_score", "outscored", "starts_below", "unjudged_moved"]
    twice = to_dict(replace(made, lines=(*made.lines, made.lines[3])))
    assert next(iter(twice["reasons"].items())) == ("unjudged_moved", 2)
    cut = to_dict(made, 2)
    assert [len(cut[key]) for key in ("regions", "tensors", "transfers", "waits")] == [2, 2, 2, 2]


def test_an_explanation_as_python_shows_it(made: Explanation) -> None:
    shown = PlanExplanation(made)
    assert str(shown) == repr(shown)
    text = [line.rstrip() for line in str(shown).split("\n") if line.strip()]
    assert text == lines(summary(made), 120)
    assert [line.rstrip() for line in shown.text().split("\n") if line.strip()] == lines(
        explanation(made), 120
    )
    assert [line.rstrip() for line in shown.text(1).split("\n") if line.strip()] == lines(
        explanation(made, 1), 120
    )
    assert max(map(len, shown.text(None).split("\n"))) <= 120
    assert not shown.text().endswith("\n")
    assert shown._repr_html_() == f"<pre>{html.escape(str(shown))}</pre>"
    assert shown.as_dict() == to_dict(made)
    assert shown.as_dict(1) == to_dict(made, 1)


def test_a_peak_at_the_first_op_is_named(made: Explanation) -> None:
    first = replace(made, peak_op=0)
    assert facts(lines(summary(first), 200)[1], "hbm", "f").startswith("hbm, 49.0 KiB, f, 0")
    assert to_dict(first)["peak"]["op"] == "f[0]"
    of_first = replace(made.waits[1], transfer=0)
    assert to_dict(replace(made, waits=(of_first,)))["waits"][0]["transfer"] == {
        "tensor": "w",
        "channel": "up",
    }
