"""Every picture is what it was when it was looked at; what it shows follows from the replay; files
are the same every time.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pictures import TOLERANCE, difference, is_as_stored
from timelines import MIB, US, everything, machine, many_ops, recorded, two_streams

from hosim.errors import InputError
from hosim.report.drawn import (
    blank,
    image,
    image_kind,
    replay_figure,
    style,
)
from hosim.report.drawn.studies import comparison_figure, frontier, sweep_heat_map
from hosim.report.timelines import rows, sampled, stacked, thinned
from hosim.result import Result
from hosim.timeline import steps


def test_a_replay(tmp_path: Path) -> None:
    plan = two_streams()
    figure = replay_figure(plan.graph, machine(), recorded(plan))
    assert is_as_stored(figure, "replay", tmp_path)


def test_every_kind_and_cause(tmp_path: Path) -> None:
    graph, result = everything()
    assert is_as_stored(replay_figure(graph, machine(), result), "everything", tmp_path)


def test_more_ops_than_points(tmp_path: Path) -> None:
    graph, result = many_ops(20_000)
    assert is_as_stored(replay_figure(graph, machine(), result), "many_ops", tmp_path)


def compared() -> list[Result]:
    _, result = everything()
    drawn = {
        "hyperoffload": (210, 82),
        "layerwise": (420, 20),
        "distance": (421, 20),
        "g10": (420, 20),
        "on_demand": (612, 84),
        "lookahead:k=4": (480, 70),
    }
    results = [
        replace(result, policy=policy, makespan_ns=makespan * US, peak_bytes={"hbm": peak * MIB})
        for policy, (makespan, peak) in drawn.items()
    ]
    return [
        replace(result, policy="resident", feasible=False, makespan_ns=None, error="out of memory"),
        *results,
    ]


def test_policies(tmp_path: Path) -> None:
    assert is_as_stored(comparison_figure(compared(), "hbm"), "policies", tmp_path)


def test_policies_far_apart(tmp_path: Path) -> None:
    results = [
        replace(r, makespan_ns=None if r.makespan_ns is None else r.makespan_ns**2 // 10**5)
        for r in compared()
    ]
    assert is_as_stored(comparison_figure(results, "hbm"), "policies_log", tmp_path)


def test_frontier(tmp_path: Path) -> None:
    curves = {
        "hyperoffload": [(m * MIB, (200 + 9000 // m**2) * US) for m in (90, 60, 40, 25, 15, 10)],
        "layerwise": [(20 * MIB, 420 * US), (40 * MIB, 400 * US)],
        "lookahead:k=4": [(70 * MIB, 480 * US)],
    }
    with style():
        figure, (axes,) = blank([4.5])
        assert frontier(axes, curves, 200 * US) is axes
    assert is_as_stored(figure, "frontier", tmp_path)


def swept() -> pd.DataFrame:
    cells = [
        (bandwidth, budget) for bandwidth in (25, 50, 100, 150, 200) for budget in (8, 16, 32, 64)
    ]
    frame = pd.DataFrame(cells, columns=["bandwidth_bytes_per_s", "budget_bytes"])
    frame["makespan_ns"] = 1e5 + 4e8 / frame.bandwidth_bytes_per_s / frame.budget_bytes
    frame.loc[(frame.bandwidth_bytes_per_s == 25) & (frame.budget_bytes == 8), "makespan_ns"] = (
        np.nan
    )
    return frame.assign(
        bandwidth_bytes_per_s=frame.bandwidth_bytes_per_s * 10**9,
        budget_bytes=frame.budget_bytes * 2**30,
    )


def test_sweep(tmp_path: Path) -> None:
    with style():
        figure, (axes,) = blank([4.5])
        assert (
            sweep_heat_map(axes, swept(), "bandwidth_bytes_per_s", "budget_bytes", "makespan_ns")
            is axes
        )
    assert is_as_stored(figure, "sweep", tmp_path)


def test_a_large_sweep_of_names_and_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        [(f"policy number {p}", k, 1.0 + p * k % 23) for p in range(13) for k in range(30)],
        columns=["policy", "layers", "stall_share"],
    )
    with style():
        figure, (axes,) = blank([4.5])
        sweep_heat_map(axes, frame, "policy", "layers", "stall_share")
    assert is_as_stored(figure, "sweep_large", tmp_path)


def test_a_sweep_without_the_column_or_with_two_values_in_a_cell() -> None:
    _, (axes,) = blank([2])
    frame = swept()
    with pytest.raises(
        InputError,
        match=r"no column 'speed' \(columns: bandwidth_bytes_per_s, budget_bytes, makespan_ns\)",
    ):
        sweep_heat_map(axes, frame, "speed", "budget_bytes", "makespan_ns")
    with pytest.raises(InputError, match="one row for each"):
        sweep_heat_map(
            axes, pd.concat([frame, frame]), "bandwidth_bytes_per_s", "budget_bytes", "makespan_ns"
        )


def test_the_comparison_notices(tmp_path: Path) -> None:
    graph, result = everything()
    assert result.timeline is not None
    swapped = replace(
        result.timeline,
        stalls=tuple(
            replace(stall, cause="dependency", transfer=None) for stall in result.timeline.stalls
        ),
    )
    assert (
        difference(
            replay_figure(graph, machine(), replace(result, timeline=swapped)),
            "everything",
            tmp_path,
        )
        > TOLERANCE
    )
    slower = [replace(r, makespan_ns=r.makespan_ns and r.makespan_ns * 2) for r in compared()[:3]]
    assert difference(comparison_figure(slower, "hbm"), "policies", tmp_path) > TOLERANCE


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_file(kind: str) -> None:
    made = [image(comparison_figure(compared(), "hbm"), kind) for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.long
def test_equal_pictures_of_two_processes_are_equal_files() -> None:
    """Whatever the order of sets, and wherever objects lie."""
    script = Path(__file__).with_name("every_picture.py")
    printed = [
        subprocess.run(
            [sys.executable, script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 18


def test_clip_paths_of_a_picture_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some releases of matplotlib name a clip path that is no rectangle after its address."""
    from matplotlib.backends.backend_svg import RendererSVG
    from matplotlib.patches import Circle

    usual, made = RendererSVG._make_id, []
    for salt in ("one", "two"):

        def named(self: RendererSVG, kind: str, content: object, salt: str = salt) -> str:
            return usual(self, kind, (salt if kind == "p" else "", content))

        monkeypatch.setattr(RendererSVG, "_make_id", named)
        figure, (axes,) = blank([2])
        for x in (0.2, 0.5):
            (line,) = axes.plot([0, 1], [0, 1])
            line.set_clip_path(Circle((x, 0.5), 0.2, transform=axes.transData))
        made.append(image(figure, "svg"))
    assert made[0] == made[1]
    assert made[0].count(b'clipPath id="clip') >= 2


def test_settings_of_the_machine_change_nothing() -> None:
    import matplotlib as mpl

    usual = image(comparison_figure(compared(), "hbm"))
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.transparent": True}):
        assert image(comparison_figure(compared(), "hbm")) == usual


def test_occupancy_is_the_ledgers() -> None:
    """The largest sum of the curve is the replay's peak, reached where it says, and so composed."""
    plan = two_streams()
    result = recorded(plan)
    assert result.timeline is not None
    for tier in ("hbm", "ddr"):
        times, by_kind = stacked(plan.graph, result.timeline, tier)
        total = np.sum(list(by_kind.values()), axis=0)
        assert int(total.max()) == result.peak_bytes[tier]
        at = int(np.argmax(total))
        assert int(times[at]) == result.peak_at_ns[tier]
        held = {kind: int(curve[at]) for kind, curve in by_kind.items() if curve[at]}
        assert held == {kind: size for kind, size in result.peak_breakdown[tier].items() if size}


def test_rows_have_every_op_stall_and_transfer_once_and_do_not_overlap() -> None:
    plan = two_streams()
    result = recorded(plan)
    timeline = result.timeline
    assert timeline is not None
    drawn = rows(plan.graph, timeline)
    bars = [bar for row in drawn for bar in row.bars]
    assert len(bars) == len(plan.graph.ops) + len(timeline.stalls) + len(timeline.transfers)
    for row in drawn:
        assert all(
            one.end_ns <= other.start_ns for one, other in zip(row.bars, row.bars[1:], strict=False)
        )
    assert {row.label for row in drawn} == {"compute", "comm", "h2d", "h2d 2", "d2h"}


def test_thinned_curves_keep_every_column_s_peak() -> None:
    rng = np.random.default_rng(1)
    parts = [(int(s), int(s) + int(d), int(w)) for s, d, w in rng.integers(1, 1000, (500, 3))]
    amount = steps([(0, 1, 10**6), *parts])  # the most of all is held at the first instant
    times = np.array([*amount.at_ns, 2000])
    values = sampled(amount, times)
    for columns in (1, 7, 100):
        starts, (thin,) = thinned(times, [values], 2000, columns)
        assert starts.tolist() == [k * 2000 // columns for k in range(columns)]
        for k, start in enumerate(starts.tolist()):
            stop = starts[k + 1] if k + 1 < columns else 2000
            assert thin[k] == amount.largest(start, stop)


@pytest.mark.parametrize("name", ["out.gif", "out", "out.png.gz"])
def test_what_is_no_picture(name: str) -> None:
    with pytest.raises(
        InputError, match=r"expected a picture whose name ends in \.png, \.svg, \.pdf"
    ):
        image_kind(Path(name))
