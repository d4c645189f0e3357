"""A plan file says what it was made for, and a replay elsewhere says what differs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app


def graph(
    layers: int = 3,
    size: int = 40,
    prefix: str = "",
    backwards: bool = False,
    reads: int = 0,
    duration: int = 50,
) -> hosim.Graph:
    b = hosim.GraphBuilder("w")
    names = [f"w{i}" for i in range(layers)] + [f"{prefix}a{i}" for i in range(layers)]
    for name in reversed(names) if backwards else names:
        b.tensor(
            name,
            size if "w" in name else 10,
            "parameter" if "w" in name else "activation",
            home="ddr" if "w" in name else None,
        )
    for i in range(layers):
        inputs = [f"w{i}", *([f"{prefix}a{min(i - 1, reads) if reads else i - 1}"] if i else [])]
        b.op(f"f{i}", "matmul", inputs=inputs, outputs=[f"{prefix}a{i}"], duration_ns=duration)
    return b.build()


def replayed(folder: Path, now: hosim.Graph, *more: str) -> tuple[int, list[str], str]:
    hosim.save_plan(hosim.plan(graph(), "toy", "layerwise", "100 B"), folder / "plan.json")
    hosim.save_workload(now, folder / "now.json")
    asked = ["replay", str(folder / "plan.json"), str(folder / "now.json"), "-H", "toy", "--json"]
    done = CliRunner().invoke(app, [*asked, *(more or ("-b", "100B"))])
    notes = json.loads(done.stdout)["notes"] if done.stdout else []
    return done.exit_code, [note for note in notes if note.startswith("plan: ")], done.stderr


CHANGES: dict[str, tuple[Callable[[], hosim.Graph], str]] = {
    "sizes": (lambda: graph(size=30), "(3 sizes differ)"),
    "one more layer": (lambda: graph(4), "(2 sizes, 1 op differ)"),
    "durations": (lambda: graph(duration=60), "(3 ops differ)"),
    "edges": (lambda: graph(4, reads=1), ""),
    "other names and order": (lambda: graph(prefix="z", backwards=True), ""),
}


@pytest.mark.parametrize("change", ["sizes", "one more layer", "durations"])
def test_a_replay_on_another_version_says_what_differs(tmp_path: Path, change: str) -> None:
    make, said = CHANGES[change]
    _, notes, stderr = replayed(tmp_path, make())
    assert len(notes) == 1
    assert said in notes[0]
    assert said in stderr
    code, _, stderr = replayed(tmp_path, make(), "-b", "100B", "--strict")
    assert code == 2
    assert stderr.splitlines()[-1].startswith(
        f"error: {tmp_path}/plan.json: made for another version of the workload {said}"
    )


def test_other_edges_differ(tmp_path: Path) -> None:
    hosim.save_plan(hosim.plan(graph(4), "toy", "layerwise", "100 B"), tmp_path / "plan.json")
    other = hosim.load_plan(tmp_path / "plan.json", graph(4, reads=1))
    assert any(
        "what its ops read, write or wait for differs" in note
        for note in hosim.replay(other, "toy", "100 B").notes
    )


def test_names_and_order_are_no_difference(tmp_path: Path) -> None:
    code, notes, _ = replayed(
        tmp_path, CHANGES["other names and order"][0](), "-b", "100B", "--strict"
    )
    assert (code, notes) == (0, [])


def test_another_machine_and_another_budget_are_said(tmp_path: Path) -> None:
    _, notes, _ = replayed(tmp_path, graph(), "-b", "90B")
    assert [facts(line, "hbm") for line in notes] == ["100 B, hbm, 90 B"]
    hosim.save_plan(hosim.plan(graph(), "toy", "layerwise", "100 B"), tmp_path / "plan.json")
    loaded = hosim.load_plan(tmp_path / "plan.json", graph())
    toy = hosim.load_hardware(hosim.find_hardware("toy"))
    for machine, said in (
        (replace(toy, name="mine"), None),
        (replace(toy, chunk_bytes=7), "plan: made for other figures of toy"),
        (replace(toy, name="mine", chunk_bytes=7), "plan: made for toy"),
    ):
        assert [
            note for note in hosim.replay(loaded, machine, "100 B").notes if note.startswith("plan")
        ] == ([said] if said else [])


def test_what_a_plan_was_made_for_outlives_another_file(tmp_path: Path) -> None:
    """A plan that is loaded for another version and saved again is still that of the first one."""
    hosim.save_plan(hosim.plan(graph(), "toy", "layerwise", "100 B"), tmp_path / "a.json")
    hosim.save_plan(hosim.load_plan(tmp_path / "a.json", graph(size=30)), tmp_path / "b.json")
    assert [
        json.loads((tmp_path / name).read_text())["made_for"] for name in ("a.json", "b.json")
    ].count(json.loads((tmp_path / "a.json").read_text())["made_for"]) == 2


def test_a_file_that_does_not_say_it_is_replayed(tmp_path: Path) -> None:
    plan = hosim.plan(graph(), "toy", "layerwise", "100 B")
    data = {key: value for key, value in hosim.io.plan_to_dict(plan).items() if key != "made_for"}
    loaded = hosim.io.plan_from_dict(data, graph(size=30))
    assert not any(note.startswith("plan") for note in hosim.replay(loaded, "toy", "100 B").notes)


def test_the_gate_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosim.save_plan(hosim.plan(graph(), "toy", "layerwise", "100 B"), tmp_path / "plan.json")
    hosim.save_workload(graph(size=30), tmp_path / "w.json")
    (tmp_path / "hosim.toml").write_text(
        '[cases.a]\nworkload = "w.json"\nhardware = "toy"\nplan = "plan.json"\nbudget = "100 B"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["baseline", "write", "-j", "1"]).exit_code == 0
    assert "3 sizes differ" in next((tmp_path / "hosim-baselines").iterdir()).read_text()
    assert "3 sizes differ" in CliRunner().invoke(app, ["check", "-j", "1"]).output


@pytest.mark.parametrize(("policy", "is_said"), [("hyperoffload", True), ("manual", False)])
def test_a_policys_plan_of_before_is_said_to_say_nothing(
    tmp_path: Path, policy: str, is_said: bool
) -> None:
    made = replace(hosim.plan(graph(), "toy", "layerwise", "100 B"), policy=policy, made_for=None)
    hosim.save_plan(made, tmp_path / "plan.json")
    loaded = hosim.load_plan(tmp_path / "plan.json", graph())
    said = "plan: does not say which workload, machine and budget it was made for"
    assert (said in hosim.replay(loaded, "toy", "100 B").notes) is is_said
    hosim.save_plan(loaded, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "plan.json").read_text()
