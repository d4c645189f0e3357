"""A runtime from lines of logs: what lines say, figures by hand, and what is refused."""

import json
from dataclasses import replace
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.errors import InputError
from hosim.io.runtimes import load_runtime, runtime_named
from hosim.validate.logged import (
    RunBeside,
    figures_in,
    fit_runtime,
    fitted_speed,
    read_logged_runs,
)

BASE = Runtime("base", cpu_optimizer=RuntimeFigure(0.43))
KNOWN = [Runtime("known", speed=RuntimeFigure(0.5), reserved=RuntimeFigure(1.2))]
STEP = "gpt2:phase=train:sequence=64:layers=1:batch=2"


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        (
            "[rank0]:step: 20  loss: 8.1  memory: 47.65GiB(50.2%)  tps: 7,200  mfu: 48%",
            {"tokens/s": 7200.0, "reserved": 47.65},
        ),
        (" elapsed time per iteration (ms): 830.5 | learning rate: 1e-4", {"step": 0.8305}),
        (
            "iteration_time: 1.25 s, tokens_per_second_per_gpu: 5,000",
            {"step": 1.25, "tokens/s": 5e3},
        ),
        ("Step time 830ms", {"step": 0.83}),
        ("step time 830 ms, 1.52 s/it", {"step": 0.83}),  # one figure, by the first pattern
        ("1.52 s/it, 31.2 tokens/s", {"step": 1.52, "tokens/s": 31.2}),
        (
            "peak_memory_reserved: 40 GB, max allocated = 1024 MiB",
            {"reserved": 40e9 / 2**30, "allocated": 1.0},
        ),
        ("INFO: # GPU blocks: 27,284, # CPU blocks: 2048", {"blocks": 27284.0}),
        ("GPU KV cache size: 41,408 tokens", {"blocks": 2588.0}),
        ("epoch 3, loss 0.2, 12 samples", {}),
    ],
)
def test_a_line_says(line: str, figures: dict[str, float]) -> None:
    assert figures_in([line]) == pytest.approx(figures)


def test_the_first_line_of_three_warms_up() -> None:
    assert figures_in([f"step time {ms} ms" for ms in (9000, 500, 1500)]) == {"step": 1.0}


def run(device: float, true: float, after: float = 0.0, **more) -> RunBeside:
    return RunBeside(f"run {device:g}", device, after, 0.43, 10.0, true, more)


def test_figures_by_hand() -> None:
    """Speeds 0.8, 0.5 and 0.4: the median is 0.5, of which logarithms deviate by 0.47, 0 and -0.22.

    12 GiB of 10 are reserved, 11 are allocated: what is reserved is 12/11 of that.
    """
    runs = [run(0.8, 1.0), run(1.0, 2.0, reserved=12.0, allocated=11.0), run(2.0, 5.0)]
    found = fit_runtime(BASE, "mine", runs, KNOWN)
    assert found.runtime.speed.value == 0.5
    spread = ((log(0.8 / 0.5) ** 2 + log(0.4 / 0.5) ** 2) / 2) ** 0.5
    assert found.runtime.speed.spread == pytest.approx(spread, rel=0.01)
    assert found.left == pytest.approx({"run 0.8": 1.6, "run 1": 1.0, "run 2": 0.8})
    assert (found.runtime.allocated.value, found.runtime.reserved.value) == (1.1, 1.09)
    assert found.runtime.reserved.one_row
    assert not found.warnings


@given(st.floats(0.3, 1.2), st.floats(0.05, 0.9))
def test_an_optimizer_on_the_cpu_is_told_from_the_device(speed: float, share: float) -> None:
    """Of steps that are exactly those of a speed and a share, the fit finds both."""
    parts = [(1.0, 2.0), (3.0, 1.0), (2.0, 5.0)]
    runs = [run(d, d / speed + a * 0.43 / share, a) for d, a in parts]
    assert fitted_speed(runs) == pytest.approx((speed, share), rel=0.02)


def test_an_overhead_ten_times_the_known_ones_is_no_fit() -> None:
    """Known software takes twice as long as its kernels, an overhead of 1; here it is 11."""
    found = fit_runtime(BASE, "mine", [run(1.0, 12.0)], KNOWN)
    assert found.runtime.speed == BASE.speed
    assert "12 times" in found.warnings[0]
    assert not fit_runtime(BASE, "mine", [run(1.0, 10.0)], KNOWN).warnings
    fast = fit_runtime(BASE, "mine", [run(12.0, 1.0)], KNOWN)
    assert fast.runtime.speed == BASE.speed
    assert "0.0833 times" in fast.warnings[0]
    assert "0.50" in fast.warnings[0]
    assert not fit_runtime(BASE, "mine", [run(10.0, 1.0)], KNOWN).warnings
    held = replace(run(0.0, 0.0), iteration=10.1)  # known ones take what an iteration does
    assert fit_runtime(BASE, "mine", [held], KNOWN).runtime.iteration == BASE.iteration
    assert "10.1 times" in fit_runtime(BASE, "mine", [held], KNOWN).warnings[0]
    assert not fit_runtime(BASE, "mine", [replace(held, iteration=10.0)], KNOWN).warnings
    less = fit_runtime(BASE, "mine", [run(1.0, 2.0, reserved=9.0)], KNOWN)
    assert less.runtime.reserved == BASE.reserved
    assert "0.90 times" in less.warnings[0]


def test_the_command_writes_a_runtime_that_gives_the_step(tmp_path) -> None:
    """A step that was measured twice as long as its kernels take comes out so under the runtime."""
    machine = hosim.load_hardware(hosim.find_hardware("h100"))
    alone = hosim.compare(f"{STEP}:fused=true", machine, "resident").makespan_ns[0]
    (tmp_path / "my.log").write_text(
        f"run {STEP} -H h100\nstep time {2 * alone / 1e6:.6f} ms\nstep time {2 * alone / 1e6} ms\n"
    )
    words = ["runtime", "fit", str(tmp_path / "my.log"), "--base", "megatron-te", "--json"]
    shown = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "mine.yaml")])
    assert shown.exit_code == 0, shown.output
    found = load_runtime(tmp_path / "mine.yaml")
    assert (found.name, found.options) == ("mine", runtime_named("megatron-te").options)
    (ratio,) = json.loads(shown.stdout)["left"].values()
    assert ratio == pytest.approx(1, abs=0.01)
    under = hosim.compare(STEP, machine, "resident", runtime=str(tmp_path / "mine.yaml"))
    assert under.makespan_ns[0] == pytest.approx(2 * alone, rel=0.02)


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("step time 5 ms\n", None, "expected runs"),
        (f"run {STEP} -H h100\nnothing\n", "line 1", "no line of this run"),
        (f"\nrun {STEP}\nstep time 5 ms\n", "line 2", "-H HARDWARE"),
        (f"run {STEP} -H h100 --fast\nstep time 5 ms\n", "line 1", "--fast"),
        ("run 'a -H h100\nstep time 5 ms\n", "line 1", "words"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, text: str, where: str | None, words: str) -> None:
    path = tmp_path / "my.log"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_logged_runs(path)
    assert (caught.value.source, caught.value.where) == (str(path), where)


def test_a_run_that_cannot_be_replayed_is_named(tmp_path) -> None:
    path = tmp_path / "my.log"
    path.write_text(f"run {STEP} -H h100\nstep time 5 ms\nrun no-model -H h100\nstep time 5 ms\n")
    shown = CliRunner().invoke(app, ["runtime", "fit", str(path), "--base", "torchtune"])
    assert shown.exit_code == 2
    assert "line 3" in shown.output


def test_a_limit_that_is_no_number_is_refused(tmp_path) -> None:
    path = tmp_path / "server.log"
    path.write_text("run gpt2 -H rtx-4090 --memory-share 90\n# GPU blocks: 19,000\n")
    with pytest.raises(InputError, match="--memory-share") as caught:
        read_logged_runs(path)
    assert caught.value.where == "line 1"
