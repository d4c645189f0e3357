"""The options of llama.cpp that come closest to a plan place the same things, and say what they do
not.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_layers import MIB, layers
from typer.testing import CliRunner

import hosim
from hosim.cache_plan import Plan
from hosim.cli.main import app
from hosim.formats.bridges import exported, options_of
from hosim.policies import policy_named

RTX = hosim.load_hardware(hosim.find_hardware("rtx-4090"))
ROOM = 200 * MIB


def placed(count: int, experts: bool, **parameters: Any) -> Plan:
    return policy_named("llama_cpp").plan(layers(count, experts=experts), RTX, ROOM, **parameters)


def on_cpu(plan: Plan) -> list[str]:
    return [op.name for op in plan.graph.ops if op.processor]


@given(data=st.data(), count=st.integers(1, 6), experts=st.booleans())
def test_the_options_of_a_placement_give_that_placement(
    data: st.DataObject, count: int, experts: bool
) -> None:
    """Whatever llama.cpp can be told to place, the options found place the same ops and tensors."""
    given_: dict[str, Any] = {"n_gpu_layers": data.draw(st.integers(0, count + 1))}
    if experts:
        given_["n_cpu_moe"] = data.draw(st.integers(0, count))
        chosen = data.draw(st.sets(st.integers(0, count - 1)))
        if chosen:
            given_["override_tensor"] = (
                f"blk\\.({'|'.join(map(str, sorted(chosen)))})\\.ffn_.*_exps=CPU"
            )
    plan = placed(count, experts, **given_)
    found = options_of(plan, RTX)
    again = placed(count, experts, **found.policy())
    assert on_cpu(again) == on_cpu(plan)
    assert again.residency("hbm") == plan.residency("hbm")
    assert found.unsaid == ()


def test_layers_from_the_front_are_counted_and_others_are_named() -> None:
    first = options_of(placed(4, True, n_cpu_moe=3), RTX)
    assert (first.n_gpu_layers, first.n_cpu_moe, first.override_tensor) == (5, 3, ())
    last = options_of(placed(4, True, override_tensor="blk.3.*_exps=CPU"), RTX)
    assert (last.n_gpu_layers, last.n_cpu_moe) == (5, 0)
    assert last.override_tensor == (
        "blk\\.(3)\\.ffn_up_exps\\.weight=CPU",
        "blk\\.(3)\\.ffn_down_exps\\.weight=CPU",
    )
    whole = options_of(placed(4, False, n_gpu_layers=2), RTX)
    assert (whole.n_gpu_layers, whole.n_cpu_moe, whole.override_tensor) == (2, 0, ())


def test_what_has_no_option_is_said() -> None:
    graph = layers(3, experts=False)
    plan = policy_named("layerwise").plan(graph, RTX, ROOM, layers_ahead=1)
    data = exported(plan, RTX, ROOM, hosim.replay(plan, RTX, budget=ROOM))
    assert data["n_gpu_layers"] == 4
    assert any(["transfers" in line for line in data["unsaid"]])
    resident = policy_named("resident").plan(graph, RTX, ROOM)
    (unsaid,) = options_of(resident, RTX).unsaid
    assert "embedding" in unsaid


ASKED = "qwen3-30b-a3b:phase=decode:context=512:weights=int4:layers=3:merged=true:routing=null:layers_on=device/ddr"


def test_the_command_prints_a_line_for_a_shell(tmp_path: Path) -> None:
    arguments = [
        "export",
        ASKED,
        "-H",
        "rtx-4090",
        "-b",
        "1GiB",
        "--llama-cpp",
        "-p",
        "llama_cpp:n_cpu_moe=2",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    *comments, line = done.stdout.splitlines()
    assert all([text.startswith("# ") for text in comments])
    assert shlex.split(line) == [
        "llama-server",
        "-m",
        "MODEL.gguf",
        "-c",
        "512",
        "-ngl",
        "4",
        "--n-cpu-moe",
        "2",
    ]
    data = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert data["of_options"] == data["of_plan"]
    written = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "run.sh")])
    assert (written.exit_code, (tmp_path / "run.sh").read_text()) == (0, done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["gpt2:phase=decode", "--llama-cpp", "-p", "resident"],
            "no name in a GGUF is known for tensor",
        ),
        ([ASKED, "--llama-cpp", "--mindspore"], "--llama-cpp and --mindspore exclude each other"),
    ],
)
def test_what_cannot_be_exported_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["export", *arguments, "-H", "rtx-4090"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
