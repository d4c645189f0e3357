"""What ``sweep``, ``frontier``, ``fit``, ``blame``, ``diff``, ``robustness`` and comparisons of
routing and devices print, cell by cell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from rendered import facts, lines, table

from hosim.cache_plan import Plan
from hosim.data.stages import StagesResult
from hosim.graph import GraphBuilder, Tensor
from hosim.hardware import Compute, Hardware, Tier
from hosim.jitter import Jitter
from hosim.report import of_studies, printing
from hosim.report.of_replays import devices
from hosim.report.of_studies import predictions, robustness, to_dict
from hosim.result import DeviceFigures, Result, Spread
from hosim.study import Mispredictions

MACHINE = Hardware(
    "m", (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 10**6, 10**11)), (), Compute({})
)


def point(i: int, **more: Any) -> dict[str, Any]:
    figures = {
        "makespan_ns": i * 10**6,
        "dependency_stall_ns": 1000 * i,
        "transfer_stall_ns": 20_000 * i,
        "hbm_peak_bytes": i << 20,
    }
    figures |= {"ideal_ns": 2 * 10**6, "slowdown": i / 2}
    asked = {
        "channels.h2d.bandwidth_bytes_per_s": i * 10**9,
        "policy": "belady",
        "budget_bytes": 12 << 30,
    }
    return asked | {"feasible": True, "error": None} | figures | more


def refused(i: int, error: str, **more: Any) -> dict[str, Any]:
    return point(i, feasible=False, error=error, makespan_ns=None, **more)


def test_a_sweep() -> None:
    still = {"dependency_stall_ns": 0, "transfer_stall_ns": 0}
    rows = [
        point(3),
        point(2, policy="g10", budget_bytes=11 << 30, **still),
        refused(5, "too [small]"),
    ]
    rows += [refused(7, "too [small]", budget_bytes=None), refused(4, "other")]
    assert lines(of_studies.sweep(rows, ["channels.h2d.bandwidth"], MACHINE)) == table("""
        Sweep
         channels.
         h2d.                                                              peak
         bandwidth  policy    budget      makespan  slowdown   stalls       hbm
         ──────────────────────────────────────────────────────────────────────
         3.00 GB/s  belady  12.0 GiB       3.00 ms    1.500x  63.0 us  3.00 MiB
         2.00 GB/s  g10     11.0 GiB       2.00 ms    1.000x        -  2.00 MiB
         5.00 GB/s  belady  12.0 GiB  does not fit         -        -         -
         7.00 GB/s  belady         -         error         -        -         -
         4.00 GB/s  belady  12.0 GiB  does not fit         -        -         -
        too [small] (2 rows)
        other
    """)


def test_a_sweep_with_one_policy_has_no_column_for_it() -> None:
    assert lines(
        of_studies.sweep([point(3, cut=2), point(2, cut=1_500)], ["cut"], MACHINE)
    ) == table("""
        Sweep
                                                           peak
         cut      budget  makespan  slowdown   stalls       hbm
         ──────────────────────────────────────────────────────
         2      12.0 GiB   3.00 ms    1.500x  63.0 us  3.00 MiB
         1,500  12.0 GiB   2.00 ms    1.000x  42.0 us  2.00 MiB
    """)


def test_a_frontier() -> None:
    def row(i: int, stall: int, fits: bool = True, best: bool = False) -> dict[str, Any]:
        figures = {
            "hbm_peak_bytes": i << 20,
            "makespan_ns": i * 10**6,
            "dependency_stall_ns": 2 * stall,
            "transfer_stall_ns": stall,
        }
        figures |= {"ideal_ns": 2 * 10**6, "slowdown": i / 2}
        return {"budget_bytes": i << 30, "feasible": fits, "pareto": best} | figures

    rows = [row(2, 1, fits=False), row(3, 0, best=True), row(5, 7)]
    assert lines(of_studies.frontier(rows, MACHINE, "the verdict")) == table("""
        Peak memory against makespan (baseline 2.00 ms)
                       peak                                  on the
           budget       hbm      makespan  slowdown  stalls   curve
         ──────────────────────────────────────────────────────────
         2.00 GiB         -  does not fit         -       -       -
         3.00 GiB  3.00 MiB       3.00 ms    1.500x       -       *
         5.00 GiB  5.00 MiB       5.00 ms     2.50x   21 ns
        the verdict.
    """)


def tried(
    value: int,
    within: bool,
    slowdown: float | None,
    makespan_ns: int | None,
    why: str,
    name: str = "a.b + c.d",
) -> dict[str, Any]:
    return {
        name: value,
        "within": within,
        "slowdown": slowdown,
        "makespan_ns": makespan_ns,
        "why": why,
    }


def styles(shown: Any) -> list[str | None]:
    """Those of the rows of a table, or of the first part of a group."""
    return [row.style for row in getattr(shown, "renderables", [shown])[0].rows]


def test_colours_say_what_is_best_and_what_does_not_fit() -> None:
    rows = [point(3), point(2), refused(5, "too small"), point(2)]
    assert styles(of_studies.sweep(rows, [], MACHINE)) == [None, "green", "red", "green"]
    on_curve = [
        row | {"pareto": i < 2} for i, row in enumerate((refused(1, "no"), point(2), point(3)))
    ]
    assert styles(of_studies.frontier(on_curve, MACHINE, "the verdict")) == ["red", "green", None]
    both = of_studies.fit(
        [tried(1, True, 1.0, 5, ""), tried(2, False, 2.0, 9, "slow")], "found", True
    )
    assert styles(both) == ["green", None]
    assert [
        of_studies.fit([tried(1, True, 1.0, 5, "")], "v", found).renderables[1].style
        for found in (True, False)
    ] == [
        "bold",
        "bold red",
    ]  # type: ignore[attr-defined]
    assert (of_studies.errors(rows).style, of_studies.errors(rows).plain) == ("red", "too small\n")
    assert of_studies.errors([]).plain == ""


def test_a_fit() -> None:
    rows = [
        tried(2000, True, 1.0456, 3 * 10**6, ""),
        tried(3000, False, None, None, "w" * 61),
        tried(4000, False, 2.5, 10**6, "[x]" * 20),
    ]
    assert lines(of_studies.fit(rows, "found", True)) == table("""
        Tried
         a.b         within
         and 1 more  limits  makespan  slowdown  why not
         ─────────────────────────────────────────────────────────────────────────────────────────────────────
         2,000          yes   3.00 ms    1.046x
         3,000           no         -         -  wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww
         4,000           no   1.00 ms     2.50x  [x][x][x][x][x][x][x][x][x][x][x][x][x][x][x][x][x][x][x][x]
        found.
    """)
    assert lines(
        of_studies.fit([tried(2 << 20, False, None, None, "no", "budget_bytes")], "none", False)
    )[1:] == table("""
                       within
         budget_bytes  limits  makespan  slowdown  why not
         ─────────────────────────────────────────────────
         2.00 MiB          no         -         -  no
        none.
    """)


def test_the_blame() -> None:
    transfer = {
        "tensor": "w[0]",
        "cause": "transfer",
        "channel": "h2d",
        "processor": None,
        "occupied_ns": 5_000,
        "prevented_by": "a long [story]",
    }
    room = {
        "tensor": None,
        "cause": "capacity",
        "channel": None,
        "processor": None,
        "occupied_ns": 0,
        "prevented_by": "x",
    }
    rows = [
        {"op": "f", "start_ns": 1_000, "stall_ns": 23_000} | transfer,
        {"op": "g", "start_ns": 2_000, "stall_ns": 13_000} | room,
    ]
    rows.append(
        {"op": "", "start_ns": 3_000, "stall_ns": 4_000}
        | room
        | {"cause": "drain", "processor": "ddr"}
    )
    causes = {("transfer", "h2d"): 33_000, ("capacity", ""): 17_000}
    assert lines(of_studies.blame(rows, 1234, causes, ["price a", "price b"], "verdict")) == table("""
        Stalls (the longest 3 of 1,234)
                                                       queued
         before          at    stall  waits for   on   behind  prevented by
         ────────────────────────────────────────────────────────────────────
         f          1.00 us  23.0 us       w[0]  h2d  5.00 us  a long [story]
         g          2.00 us  13.0 us   capacity    -        -  x
         (the end)  3.00 us  4.00 us      drain  ddr        -  x
        Stalls by cause
         cause     on      time
         ──────────────────────
         transfer  h2d  33.0 us
         capacity  -    17.0 us
        price a
        price b
        verdict.
    """)
    assert lines(of_studies.blame([], 0, {}, ["price"], "nothing waits")) == [
        "price",
        "nothing waits.",
    ]


TENSORS = [
    {
        "tensor": "w",
        "kind": "parameter",
        "size_bytes": 1 << 20,
        "moved_bytes_a": 2 << 20,
        "moved_bytes_b": 3 << 20,
        "where_a": "q",
    },
    {
        "tensor": "v",
        "kind": "activation",
        "size_bytes": 5 << 20,
        "moved_bytes_a": 6 << 20,
        "moved_bytes_b": 7 << 20,
        "where_a": "r",
    },
]


def test_a_diff() -> None:
    figures = [
        {"figure": "makespan_ns", "a": 5 * 10**6, "b": 7 * 10**6, "change": 2 * 10**6},
        {"figure": "peak_bytes", "a": 4 << 20, "b": 1 << 20, "change": 0},
        {"figure": "policy", "a": "x", "b": None, "change": None},
    ]
    ops = [{"op": "f", "cache_ops_a": "store u, store v", "cache_ops_b": "store v, detach w"}]
    assert lines(of_studies.diff(figures, TENSORS, ops, "different", ("a[1]", "b"), 3)) == table("""
        Figures
         figure        a[1]         b    change
         ──────────────────────────────────────
         makespan   5.00 ms   7.00 ms  +2.00 ms
         peak      4.00 MiB  1.00 MiB       0 B
         policy           x         -         -
        Tensors
                                          moved     moved
         tensor  kind            size         a         b
         ────────────────────────────────────────────────
         w       parameter   1.00 MiB  2.00 MiB  3.00 MiB
         v       activation  5.00 MiB  6.00 MiB  7.00 MiB
        Ops
             cache ops  cache ops
         op  a          b
         ────────────────────────
         f   store u    detach w
        different.
    """)


def test_a_diff_cut_at_the_top() -> None:
    figures = [
        {"figure": name, "a": i, "b": i + 1, "change": 1}
        for i, name in enumerate(("stores", "detaches"))
    ]
    assert lines(of_studies.diff(figures, TENSORS, [], "different", ("a", "b"), 1)) == table("""
        Figures (the first 1 of 2)
         figure  a  b  change
         ────────────────────
         stores  0  1      +1
        Tensors (the first 1 of 2)
                                         moved     moved
         tensor  kind           size         a         b
         ───────────────────────────────────────────────
         w       parameter  1.00 MiB  2.00 MiB  3.00 MiB
        different.
    """)


def test_a_diff_of_parts() -> None:
    """Parts that move as much are one row: bytes are sums, and times means. w[7] moves less, and v
    has a bracket in its name alone.
    """

    def row(name: str, b: int, times: tuple[int, int]) -> dict[str, Any]:
        moved = {"moved_bytes_a": 2 << 20, "moved_bytes_b": b << 20}
        resident = {"resident_ns_a": times[0] * 10**6, "resident_ns_b": times[1] * 10**6}
        return {
            "tensor": name,
            "kind": "expert",
            "size_bytes": 1 << 20,
            **moved,
            **resident,
            "cache_ops_a": name,
            "cache_ops_b": None,
        }

    tensors = [
        row("w[4]", 3, (10, 20)),
        row("v[1]", 3, (1, 2)),
        row("w[7]", 1, (3, 4)),
        row("w[0]", 3, (20, 50)),
        row("v[2]", 3, (1, 2)),
    ]
    ops = [
        {
            "op": "f",
            "cache_ops_a": "detach w[0], prefetch w[4], store v[1], prefetch w[0], store v[2], "
            "detach x",
            "cache_ops_b": None,
        }
    ]
    parts = {f"w[{k}]": Tensor(f"w[{k}]", 1 << 20, "expert", of="w") for k in range(8)}
    assert lines(of_studies.diff([], tensors, ops, "different", ("a", "b"), 3, parts)) == table("""
        Tensors (the first 3 of 4). Of several parts: bytes and counts in all, times on average.
                                                 moved     moved  resident  resident
         tensor             kind        size         a         b         a         b
         ───────────────────────────────────────────────────────────────────────────
         w[0..4] (2 parts)  expert  2.00 MiB  4.00 MiB  6.00 MiB   15.0 ms   35.0 ms
         v[1]               expert  1.00 MiB  2.00 MiB  3.00 MiB   1.00 ms   2.00 ms
         w[7]               expert  1.00 MiB  2.00 MiB  1.00 MiB   3.00 ms   4.00 ms
        Ops
             cache ops                                                       cache ops
         op  a                                                               b
         ─────────────────────────────────────────────────────────────────────────────
         f   detach w[0], prefetch w[0..4] (2 parts), store v[1] and 2 more  -
        different.
    """)


def test_robustness() -> None:
    def rows(
        policy: str,
        runs: int,
        infeasible: int,
        *figures: tuple[str, float | None, float | None, float | None],
    ) -> list[dict[str, Any]]:
        keys = ("figure", "nominal", "p50", "p95")
        return [
            {"policy": policy, "runs": runs, "infeasible": infeasible}
            | dict(zip(keys, figure, strict=True))
            for figure in figures
        ]

    given = rows(
        "a[b]",
        10,
        3,
        ("makespan_ns", 2e6, 3e6, None),
        ("stall_ns", 4e3, 5e3, None),
        ("peak_bytes", 6 << 20, 7 << 20, None),
    )
    given += rows(
        "none",
        9,
        9,
        ("makespan_ns", None, None, None),
        ("stall_ns", None, None, None),
        ("peak_bytes", None, None, None),
    )
    given += rows(
        "all",
        8,
        0,
        ("makespan_ns", 1e6, 8e6, 9e6),
        ("stall_ns", 10e3, 11e3, 12e3),
        ("peak_bytes", 13 << 20, 14 << 20, 15 << 20),
    )
    assert lines(robustness(pd.DataFrame(given), Jitter(17, 0.02, 0.053), 2 * 10**6)) == table("""
        Robustness (sigma of op times 2.0 %, of transfer times 5.3 %; seed 17; baseline 2.00 ms)
                     runs  makespan  makespan      makespan  slowdown    stall    stall         stall      peak      peak          peak
         policy  that fit   nominal       p50           p95       p95  nominal      p50           p95   nominal       p50           p95
         ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
         a[b]     7 of 10   2.00 ms   3.00 ms  does not fit         -  4.00 us  5.00 us  does not fit  6.00 MiB  7.00 MiB  does not fit
         none      0 of 9         -         -             -         -        -        -             -         -         -             -
         all       8 of 8   1.00 ms   8.00 ms       9.00 ms     4.50x  10.0 us  11.0 us       12.0 us  13.0 MiB  14.0 MiB      15.0 MiB
    """)


def test_what_fits_without_jitter_alone_has_its_figures() -> None:
    rows = [
        ("a", 9, 9, figure, value, None, None)
        for figure, value in (("makespan_ns", 10), ("stall_ns", 0), ("peak_bytes", 5))
    ]
    frame = pd.DataFrame(
        rows, columns=["policy", "runs", "infeasible", "figure", "nominal", "p50", "p95"]
    )
    shown = " ".join(lines(robustness(frame, Jitter(1, 0.1), 10))[-1].split())
    fails = "does not fit does not fit"
    assert shown == f"a 0 of 9 10 ns {fails} - 0 ns {fails} 5 B {fails}"


def test_robustness_as_data() -> None:
    rows = [
        ("a", 9, 2, "makespan_ns", 10, 11, None),
        ("a", 9, 2, "stall_ns", 12, 13, 14),
        ("a", 9, 2, "peak_bytes", None, 16, 17),
    ]
    rows += [
        ("b", 9, 0, "makespan_ns", 20, 21, 22),
        ("b", 9, 0, "stall_ns", 23, 24, 25),
        ("b", 9, 0, "peak_bytes", 26, 27, 28),
    ]
    frame = pd.DataFrame(
        rows, columns=["policy", "runs", "infeasible", "figure", "nominal", "p50", "p95"]
    )
    graph = GraphBuilder("toy").build()
    failed = {"a": "out of memory"}
    assert to_dict(
        frame, failed, graph, replace(MACHINE, devices=4), 99, Jitter(17, 0.02, 0.053), 20
    ) == {
        "format": "hosim.robustness/1",
        "workload": "toy",
        "hardware": "m",
        "devices": 4,
        "budget_bytes": 99,
        "ideal_ns": 20,
        "jitter": {"seed": 17, "op_sigma": 0.02, "transfer_sigma": 0.053},
        "policies": [
            {
                "policy": "a",
                "runs": 9,
                "infeasible": 2,
                "makespan_ns": {"nominal": 10, "p50": 11, "p95": None},
                "stall_ns": {"nominal": 12, "p50": 13, "p95": 14},
                "peak_bytes": {"nominal": None, "p50": 16, "p95": 17},
                "error": "out of memory",
                "slowdown": {"nominal": 0.5, "p50": 0.55, "p95": None},
            },
            {
                "policy": "b",
                "runs": 9,
                "infeasible": 0,
                "makespan_ns": {"nominal": 20, "p50": 21, "p95": 22},
                "stall_ns": {"nominal": 23, "p50": 24, "p95": 25},
                "peak_bytes": {"nominal": 26, "p50": 27, "p95": 28},
                "error": None,
                "slowdown": {"nominal": 1.0, "p50": 1.05, "p95": 1.1},
            },
        ],
    }
    assert styles(robustness(frame, Jitter(1, 0.1), 20)) == ["red", None]
    shown = lines(robustness(frame, Jitter(1, 0.1), 20, failures=failed))
    assert facts(shown[-1]) == "2, 9"


def test_predictions_of_routing() -> None:
    good = Mispredictions(
        "hybrid[1]",
        "recent",
        10,
        1_000,
        500,
        300,
        200,
        7 << 20,
        1_100,
        9 << 20,
        11_000,
        50_000,
        47_000,
        30_000,
        90_000,
    )
    rest = Mispredictions("all", "none", 10, 8, 4, 3, 1, 0, 0, 0, 0, 50_000, 52_000, None, 50_000)
    text = lines(predictions([good, rest]))
    assert text[:6] == table("""
        Predictions (experts' tensors)
                                                                    wrong    wrong
         policy     chosen  resident  prefetched  missed  wrong     bytes     time      harm     lost   gained
         ─────────────────────────────────────────────────────────────────────────────────────────────────────
         hybrid[1]   1,000      50 %        30 %    20 %  1,100  9.00 MiB  11.0 us   3.00 us  20.0 us  40.0 us
         all             8      50 %        38 %    12 %      -         -        -  -2.00 us        -     0 ns
    """)
    assert text[6].startswith("wrong: prefetched for a gate")


@pytest.mark.parametrize("fitting", [3, 4])
def test_devices(fitting: int) -> None:
    def result(policy: str, spread: Any) -> Result:
        return Result(
            "w",
            "m",
            policy,
            100,
            True,
            None,
            None,
            0,
            {},
            0,
            None,
            {},
            {},
            {},
            {},
            {},
            devices=spread,
        )

    spread = DeviceFigures(
        4,
        fitting,
        Spread(10**6, 2 * 10**6, 3 * 10**6),
        Spread(0, 4_000, 5_000),
        {"hbm": Spread(6 << 20, 7 << 20, 8 << 20)},
    )
    shown = lines(devices([result("a[b]", spread), result("one", None)], MACHINE))
    assert shown[-1].split()[:1] == ["a[b]"]
    count = "4" if fitting == 4 else "3 of 4 fit"
    cells = [cell.strip() for cell in shown[-1].split("  ") if cell.strip()]
    assert cells == [
        "a[b]",
        count,
        "1.00 ms",
        "2.00 ms",
        "3.00 ms",
        "-",
        "4.00 us",
        "5.00 us",
        "6.00 MiB",
        "7.00 MiB",
        "8.00 MiB",
    ]


def test_devices_of_which_none_fits_and_nothing_is_held() -> None:
    none = Result(
        "w",
        "m",
        "p",
        100,
        False,
        "no",
        None,
        0,
        {},
        0,
        None,
        {},
        {},
        {},
        {},
        {},
        devices=DeviceFigures(2, 0, None, None, {}),
    )
    assert lines(devices([none], MACHINE))[-1].split() == ["p", "0", "of", "2", "fit", *["-"] * 9]


def test_a_diff_of_places_alone_shows_them() -> None:
    """No short column differs: then the long ones are shown."""
    tensors = [
        {
            "tensor": "w",
            "kind": "parameter",
            "size_bytes": 1 << 20,
            "cache_ops_a": "q",
            "cache_ops_b": "r",
        }
    ]
    assert lines(of_studies.diff([], tensors, [], "different", ("a", "b"), 3)) == table("""
        Tensors
                                      cache ops  cache ops
         tensor  kind           size  a          b
         ─────────────────────────────────────────────────
         w       parameter  1.00 MiB  q          r
        different.
    """)


def test_cache_ops_that_both_sides_begin_with_hide_no_difference() -> None:
    """Of ten each, nine are shared. Of five that one side has, the first three are named. What has
    no short difference shows them.
    """
    shared = ", ".join(f"prefetch after op_{i}" for i in range(9))
    many = ", ".join(f"detach after g{i}" for i in range(5))
    tensors = [
        {
            "tensor": "w",
            "prefetches_a": 9,
            "prefetches_b": 9,
            "cache_ops_a": f"{shared}, store after f",
            "cache_ops_b": f"{shared}, store after g",
        },
        {
            "tensor": "v",
            "prefetches_a": 1,
            "prefetches_b": 0,
            "cache_ops_a": many,
            "cache_ops_b": None,
        },
    ]
    assert lines(of_studies.diff([], tensors, [], "different", ("a", "b"), 3)) == table("""
        Tensors
                 prefetches  prefetches  cache ops                                                     cache ops
         tensor  a                    b  a                                                             b
         ───────────────────────────────────────────────────────────────────────────────────────────────────────────
         w       9                    9  store after f                                                 store after g
         v       1                    0  detach after g0, detach after g1, detach after g2 and 2 more  -
        different.
    """)
    assert "cache ops" not in "".join(
        lines(of_studies.diff([], tensors[1:], [], "different", ("a", "b"), 3))
    )


def test_ops_that_differ_in_what_no_table_shows_show_everything() -> None:
    ops = [{"op": "f", "cache_ops_a": None, "cache_ops_b": None, "took_ns_a": 5, "took_ns_b": 6}]
    assert lines(of_studies.diff([], [], ops, "different", ("a", "b"), 3))[-2].split() == [
        "f",
        "5",
        "ns",
        "6",
        "ns",
        "-",
        "-",
    ]


def test_a_listing() -> None:
    rows = [
        {
            "op_name": "f[0]",
            "peak_bytes": 2048,
            "rate_bytes_per_s": 10**9,
            "time_ns": 1500,
            "count": 1234,
            "fits": True,
        },
        {"op_name": None},
    ]
    columns = ("op_name", "peak_bytes", "rate_bytes_per_s", "time_ns", "count", "fits")
    assert lines(printing.table_of("Found", columns, rows)) == table("""
        Found
         op name      peak       rate     time  count  fits
         ──────────────────────────────────────────────────
         f[0]     2.00 KiB  1.00 GB/s  1.50 us  1,234  True
         -               -          -        -      -     -
    """)
    shown = printing.table_of("Found", columns, rows, left=2)
    assert [column.justify for column in shown.columns] == ["left"] * 2 + ["right"] * 4
    assert [printing.cell("peak_bytes", value) for value in (None, 0, 1.5, "[red]x")] == [
        "-",
        "0 B",
        "1.5",
        "[red]x",
    ]


def test_only_the_last_column_of_a_blame_folds() -> None:
    row = {
        "op": "g",
        "start_ns": 2_000,
        "stall_ns": 13_000,
        "tensor": None,
        "cause": "capacity",
        "occupied_ns": 0,
    }
    row |= {"channel": None, "processor": None}
    shown = of_studies.blame([row | {"prevented_by": "x"}], 1, {}, [], "v")
    first = shown.renderables[0]  # type: ignore[attr-defined]
    assert [column.no_wrap for column in first.columns] == [True] * 6 + [False]
    assert [column.justify for column in first.columns] == ["left"] + ["right"] * 5 + ["left"]
    assert shown.renderables[-1].style == "bold"  # type: ignore[attr-defined]
    predicted = predictions(
        [Mispredictions("p", "none", 10, 8, 4, 3, 1, 0, 0, 0, 0, 1, 2, None, 3)]
    )
    table_, note = predicted.renderables  # type: ignore[attr-defined]
    assert [column.no_wrap for column in table_.columns] == [False] + [True] * 10
    assert note.style == "dim"


def test_stages_have_a_row_each() -> None:
    """The first ends at 150 of 200 ms, and waits for the other for 100 ms in all: 25 % of 400."""
    ms = 10**6
    plans = []
    for stage in range(2):
        b = GraphBuilder(f"model:stage={stage}")
        b.op("f", "send", outputs=[b.tensor("x", 10)], duration_ns=10, message="x")
        plans.append(Plan(b.build(), "layerwise"))
    known: dict[str, Any] = {
        "workload": "w",
        "hardware": "box",
        "policy": "p",
        "budget_bytes": 9,
        "feasible": True,
        "error": None,
        "lower_bound_ns": 0,
        "busy_ns": 100 * ms,
        "drain_ns": 0,
        "peak_at_ns": {},
        "peak_breakdown": {},
        "channels": {},
        "plan": {},
    }
    stalls = {"dependency": 5 * ms, "transfer": 20 * ms, "capacity": 0}
    one, two = (
        Result(**known, makespan_ns=ns * ms, stall_ns=stalled, peak_bytes={"hbm": peak, "ddr": 0})
        for ns, stalled, peak in (
            (150, stalls, 3 << 20),
            (200, dict.fromkeys(stalls, 0) | {"capacity": ms}, 5 << 20),
        )
    )
    step = StagesResult(replace(two, by_device=(one, two)), (100 * ms, 0))
    shown = lines(of_studies.stages(step, plans))
    assert shown[:6] == table("""
        2 stages of model on box; the step takes 200 ms
                                         of the  dependency  transfer  capacity      peak
         stage  ends at    busy  bubble    step       stall     stall     stall       hbm
         ────────────────────────────────────────────────────────────────────────────────
         0       150 ms  100 ms  100 ms    50 %     5.00 ms   20.0 ms         -  3.00 MiB
         1       200 ms  100 ms       -     0 %           -         -   1.00 ms  5.00 MiB
    """)
    assert facts(" ".join(shown[6:])) == "25 %"


def test_machines_have_the_memory_that_is_enough() -> None:
    """Of 1000 B 600 B are enough on one machine; of another nothing is known, a third has none."""
    row: dict[str, Any] = {"workload": "w", "hardware": "a", "policy": "p", "error": None}
    row |= {"budget_bytes": 800, "makespan_ns": 4000, "slowdown": 2.0, "lower_bound_ns": 2000}
    row |= {"peak_bytes": 700, "enough_bytes": 600, "failed": False}
    none = {"makespan_ns": None, "error": "too small"}
    rows = [row, row | {"hardware": "b", "enough_bytes": None}, row | {"hardware": "c"} | none]
    profiles = dict.fromkeys("abc", MACHINE)
    assert lines(of_studies.machine_comparison(rows, profiles, 1.02, "a or b")) == table("""
        w on 3 machines
                                                                              within
                                                          gap to                 2 %      of
         machine  memory  budget      makespan  slowdown   bound   peak  of resident  memory
         ───────────────────────────────────────────────────────────────────────────────────
         a        1000 B   800 B       4.00 us     2.00x   2.00x  700 B        600 B    60 %
         b        1000 B   800 B       4.00 us     2.00x   2.00x  700 B            -       -
         c        1000 B   800 B  does not fit         -       -      -            -       -
        c, p: too small
        a or b.
    """)
