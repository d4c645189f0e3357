"""A workload says how many devices run it, and every replay takes that number; another one is the
caller's, and a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_toy import recorded
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.devices_of_graph import devices_of
from hosim.errors import InputError

H100 = "h100-80gb-sxm"
STEP = "gpt2:phase=train:sequence=64:layers=1:states_home=ddr"
EIGHT = f"{STEP}:data=8"
POLICY = "layerwise"
OTHER = "devices: the program is for 8 devices, and h100-80gb-sxm runs it on 1"


@pytest.mark.parametrize(
    ("parameters", "devices"),
    [
        ({}, 1),
        ({"data": 8}, 8),
        ({"data": 2, "zero": 3, "context_parallel": 2}, 4),
        ({"tensor": 4}, 4),
        ({"tensor": 2, "data": 4}, 8),
        ({"pipeline": 2, "tensor": 2, "data": 2}, 8),
        ({"expert": 4}, 4),  # of these devices each has tokens of its own
        ({"expert": 4, "data": 8}, 8),  # they are among those with tokens of their own
    ],
)
def test_builders_say_how_many_devices_there_are(parameters: dict[str, int], devices: int) -> None:
    model = "qwen3-30b-a3b" if "expert" in parameters else "llama-3.2-1b"
    graph = hosim.load(
        {"model": model, "phase": "train", "sequence": 64, "layers": 2, **parameters}
    )
    assert devices_of(graph) == devices
    assert graph.meta.get("devices", 1) == devices


def told(devices: int | None) -> dict[str, Any]:
    return {} if devices is None else {"devices": devices}


def planned(devices: int | None) -> Any:
    return hosim.plan(EIGHT, H100, POLICY, devices=devices)


ANSWERS: dict[str, Callable[[int | None], int]] = {
    "compare": lambda d: hosim.compare(EIGHT, H100, POLICY, **told(d)).makespan_ns[0],
    "machines": lambda d: hosim.compare(EIGHT, [H100], POLICY, **told(d)).makespan_ns[0],
    "replay": lambda d: hosim.replay(planned(d)).makespan_ns or 0,
    "replay elsewhere": lambda d: hosim.replay(planned(8), H100, **told(d)).makespan_ns or 0,
    "sweep": lambda d: hosim.sweep(
        EIGHT, H100, POLICY, vary={"budget": ["1 GiB"]}, jobs=1, **told(d)
    ).makespan_ns[0],
    "fit": lambda d: hosim.fit(
        EIGHT, H100, POLICY, largest="workload.batch=1..2", **told(d)
    ).frame.makespan_ns[0],
    "robustness": lambda d: hosim.robustness(EIGHT, H100, POLICY, runs=1, **told(d)).makespan_ns[0],
    "diff": lambda d: next(
        row["a"]
        for row in hosim.diff(POLICY, "resident", EIGHT, H100, **told(d)).figures
        if row["figure"] == "makespan_ns"
    ),
    "blame": lambda d: hosim.blame(EIGHT, H100, POLICY, **told(d)).result.makespan_ns or 0,
}


@pytest.mark.parametrize("asked", ANSWERS)
def test_the_devices_of_a_workload_share_links_unless_another_number_is_given(asked: str) -> None:
    answer = ANSWERS[asked]
    alone = answer(1)
    assert answer(None) == answer(8) > alone


COMMANDS = {
    "compare-policies": ("-p", POLICY),
    "sweep": ("-p", POLICY, "--vary", "budget=1GiB,2GiB", "--jobs", "1"),
    "blame": ("-p", POLICY),
    "robustness": ("-p", POLICY, "--runs", "1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_shell_says_that_another_number_runs_the_program(command: str) -> None:
    def ran(*more: str) -> str:
        done = CliRunner().invoke(
            app, [command, EIGHT, "-H", H100, *COMMANDS[command], *more, "--json"]
        )
        assert done.exit_code == 0, done.output
        data = json.loads(done.stdout)
        assert (OTHER in json.dumps(data)) == ("1" in more)
        return str([value for value in figures(data) if "_s" not in value])

    assert ran() == ran("--devices", "8") != ran("--devices", "1")


def figures(data: Any, path: str = "") -> list[str]:
    if isinstance(data, dict):
        return [
            line
            for key, value in data.items()
            if key not in ("notes", "planning_s", "replay_s")
            for line in figures(value, f"{path}.{key}")
        ]
    if isinstance(data, list):
        return [line for i, value in enumerate(data) for line in figures(value, f"{path}.{i}")]
    return [f"{path} {data}"]


def test_a_frame_says_it_too() -> None:
    assert OTHER in hosim.compare(EIGHT, H100, POLICY, devices=1).attrs["notes"]
    assert not any(
        note.startswith("devices") for note in hosim.compare(EIGHT, H100, POLICY).attrs["notes"]
    )


def test_a_machine_with_fewer_devices_is_one_line() -> None:
    profile = hosim.load_hardware(hosim.find_hardware(H100))
    four = replace(profile, devices=4)
    with pytest.raises(
        InputError, match=r"devices: the workload gpt2.* is for 8 devices, and the machine has 4"
    ):
        hosim.compare(EIGHT, four, POLICY)
    assert hosim.compare(EIGHT, four, POLICY, devices=4).attrs["notes"]
    sixteen = replace(profile, devices=16)
    assert hosim.plan(EIGHT, sixteen, POLICY).made_for[0].devices == 8  # type: ignore[index]
    assert hosim.plan(STEP, sixteen, POLICY).made_for[0].devices == 16  # type: ignore[index]


def test_varied_workloads_have_devices_of_their_own() -> None:
    swept = hosim.sweep(EIGHT, H100, POLICY, vary={"workload.data": [1, 8]}, jobs=1).makespan_ns
    assert list(swept) == [
        hosim.compare(f"{STEP}:data={n}", H100, POLICY).makespan_ns[0] for n in (1, 8)
    ]
    swept = hosim.sweep(EIGHT, H100, POLICY, vary={"devices": [1, 8]}, jobs=1).makespan_ns
    assert list(swept) == [ANSWERS["compare"](n) for n in (1, 8)]


@pytest.mark.parametrize(
    ("meta", "ranks", "answer"),
    [
        ({}, 4, 4),
        ({"devices": 8}, 4, 8),
        ({}, 1, 1),
        ({"devices": 2}, 4, None),
        ({"devices": True}, 1, None),
    ],
)
def test_a_file_says_it_or_its_collectives_do(
    meta: dict[str, Any], ranks: int, answer: int | None
) -> None:
    b = hosim.GraphBuilder("file", meta)
    b.tensor("x", 80, "input")
    b.op("sum", "all_reduce", mutates=["x"], duration_ns=10, kernel="all_reduce", sizes=(ranks, 80))
    if answer is None:
        with pytest.raises(InputError, match=r"file: meta\.devices: expected"):
            devices_of(b.build())
    else:
        assert devices_of(b.build()) == answer


@pytest.mark.parametrize(
    ("info", "devices"),
    [
        ({"world_size": 8, "rank": 0}, 8),
        ({"world_size": "8"}, 1),
        ({"world_size": True}, 1),
        (None, 1),
    ],
)
def test_a_recording_says_how_many_ranks_ran(info: object, devices: int, tmp_path: Path) -> None:
    recording = recorded(train=True, kept_bytes=1000) | {"distributedInfo": info}
    (tmp_path / "rank0.json").write_text(json.dumps(recording))
    assert devices_of(hosim.load(tmp_path / "rank0.json")) == devices
