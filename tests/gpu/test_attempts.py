"""What becomes of the kit's work that fails, is interrupted, or comes too late; and steps that run
under several plans.
"""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.on_torch.gpu import attempts, command, planning, running  # noqa: E402
from hosim.on_torch.gpu.attempts import Attempts, noted_failures  # noqa: E402
from hosim.on_torch.gpu.captured_step import Work, captured  # noqa: E402

LINE = (
    "--dry-run",
    "--modes",
    "train",
    "--iterations",
    "1",
    "--profiled",
    "1",
    "--schemes",
    "resident",
    "--shares",
    "90,60",
)
LATE = "not begun, as the time was up; the same command goes on with it"


def fails(problem):
    raise problem


def test_a_failure_is_noted_until_the_work_succeeds(tmp_path, capsys):
    done, made = [], Attempts(tmp_path, 0.0)
    for name, problem in [
        ("a", torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried")),
        ("b", ExecutionError("op 'mm': no")),
        ("c", MemoryError()),
        ("d", RuntimeError("CUDA error: an illegal memory access was encountered")),
    ]:
        made.do(name, lambda problem=problem: fails(problem))
    made.do("e", lambda: done.append("e"))
    assert done == ["e"]
    reasons = {
        "b": "op 'mm': no",
        "c": "MemoryError",
        "d": "CUDA error: an illegal memory access was encountered",
    }
    assert noted_failures(tmp_path) == {"a": "CUDA out of memory.", **reasons}
    assert made.failed == [f"{name}: {text}" for name, text in noted_failures(tmp_path).items()]
    again = Attempts(tmp_path, 0.0)
    again.do("a", lambda: None)
    assert (again.failed, noted_failures(tmp_path)) == ([], reasons)
    for name in reasons:
        again.do(name, lambda: None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError):  # an error of hosim's own code is none of the machine's
        again.do("f", lambda: fails(TypeError()))
    (tmp_path / "failed.json").write_text('{"format": "hosim.gpu/1", "failed": {"a": 3}}')
    with pytest.raises(InputError, match="failed: expected the reasons by name"):
        noted_failures(tmp_path)


def test_nothing_begins_when_the_time_is_up(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now)
    made, done = Attempts(tmp_path, 40.0, 2), []
    now = 159.9
    made.do("a", lambda: done.append("a"))
    now = 160.0
    made.do("b", lambda: done.append("b"))
    assert (done, made.failed, noted_failures(tmp_path)) == (["a"], [f"b: {LATE}"], {"b": LATE})


def test_wrong_minutes(tmp_path, capsys):
    assert command.main(["all", "--minutes", "0", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "hosim.gpu: --minutes: expected more than 0, got 0.0\n"


@pytest.mark.long
def test_a_step_can_be_run_again_from_its_start():
    """Weights and states are those of a fresh capture, also when a step has changed them."""
    work = Work("tiny", "train", 8, 1, 1)
    step, fresh = captured(work, "cpu"), captured(work, "cpu")
    learned = [
        one.placeholder for one in step.program.givens if one.own and one.kind != "buffer"
    ]  # not the rotary tables
    with torch.no_grad():
        for name in learned:
            step.held[name].fill_(1)
    step.renew()
    assert all(
        torch.equal(value, fresh.held[name])
        for name, value in step.held.items()
        if isinstance(value, torch.Tensor)
    )


@pytest.mark.long
def test_a_folder_over_several_commands(tmp_path, capsys, monkeypatch):
    """Out of time after measuring, interrupted while planning, runs that fail, and then all is
    done. The training step is captured once.
    """
    out, clock = tmp_path / "out", iter([0.0, *[1.0] * 4, *[1e9] * 100])
    line = ["all", *LINE, "--out", str(out)]

    def summary():
        return json.loads((out / "summary.json").read_text())

    with monkeypatch.context() as patch:
        patch.setattr(attempts.time, "monotonic", lambda: next(clock))
        assert command.main([*line, "--minutes", "5"]) == 1
    assert summary()["failed"] == {"plan": LATE, "run": LATE}
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"failed: {name}: {LATE}" for name in ("plan", "run")
    ]
    with monkeypatch.context() as patch:
        patch.setattr(planning, "planned", lambda *_, **__: fails(KeyboardInterrupt))
        assert command.main(line) == 130
    assert capsys.readouterr().err.endswith(
        "hosim.gpu: interrupted; the same command goes on where it stopped\n"
    )
    assert summary()["failed"] == {"run": LATE}
    with monkeypatch.context() as patch:
        patch.setattr(running, "run_steps", lambda *_: fails(ExecutionError("op 'mm': no")))
        assert command.main(line) == 1
    plans = [f"tiny-train-16-plan-{share}" for share in (60, 90)]
    assert summary()["failed"] == dict.fromkeys(plans, "op 'mm': no")
    assert [row["measured"]["step_ns"] is None for row in summary()["runs"]] == [False, True, True]
    made = []
    monkeypatch.setattr(running, "captured", lambda *given: made.append(given) or captured(*given))
    monkeypatch.setattr(planning, "planned", None)  # what is planned is not planned again
    assert command.main(line) == 0
    assert len(made) == 1
    assert summary()["failed"] == {}
    assert [row["same_results"] for row in summary()["runs"]] == [True] * 3
    assert all(row["cache_ops"] for row in summary()["runs"][1:])
