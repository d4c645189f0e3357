"""Ops whose FLOP nobody could count are said wherever a workload or a result is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.data.unknown_ops import UNKNOWN_OPS, UnknownOps, is_unknown, unknown_ops
from hosim.graph import Graph, GraphBuilder
from hosim.io import result_from_dict, result_to_dict, save_workload

SAID = "1 op of unknown FLOP (strange; 75 % of the bytes), timed by bytes alone"


def toy(**meta: object) -> Graph:
    """Two ops that read and write 30 and 10 bytes."""
    builder = GraphBuilder("toy", meta)
    builder.tensor("w", 40, "parameter")
    builder.op("f", "strange", inputs=["w"], bytes_accessed=30)
    builder.op("g", "matmul", inputs=["w"], bytes_accessed=10, flops=8)
    return builder.build()


def test_how_many_and_how_much() -> None:
    found = unknown_ops(toy(unknown_ops=["f", "no longer there", 3]))
    assert found == UnknownOps(1, 0.75, ("strange",))
    assert str(found) == SAID


@pytest.mark.parametrize(
    "meta", [{}, {"unknown_ops": []}, {"unknown_ops": "f"}, {"unknown_ops": ["h"]}]
)
def test_none(meta: dict) -> None:
    assert unknown_ops(toy(**meta)) is None


def test_an_op_with_a_measured_time_is_none() -> None:
    graph = toy(unknown_ops=["f"])
    assert (
        unknown_ops(replace(graph, ops=(replace(graph.ops[0], duration_ns=5), graph.ops[1])))
        is None
    )


@pytest.mark.parametrize(
    ("target", "kind", "flops", "expected"),
    [
        ("aten::relu", "elementwise", None, False),
        ("aten::mm", "matmul", None, True),
        ("aten.mm.default", "matmul", 0, False),
        ("flash_attn::_flash_attn_forward", "flash_attn_forward", None, True),
        ("record_param_comms", "record_param_comms", None, False),
        ("aten::_cudnn_rnn_backward", "cudnn_rnn_backward", None, True),
        ("aten::_cudnn_rnn_flatten_weight", "cudnn_rnn_flatten_weight", None, False),
        ("aten::cudnn_convolution_backward_weight", "x", None, True),
        ("aten::_flash_attention_backward", "x", None, True),
        ("aten::slow_conv2d_forward", "x", None, True),
        ("aten.upsample_linear1d.default", "x", None, False),
        ("prims.convert_element_type.default", "x", None, False),
        ("aten::comma", "x", None, False),
    ],
)
def test_ops_of_torch(target: str, kind: str, flops: int | None, expected: bool) -> None:
    assert is_unknown(target, kind, flops) is expected


COMMANDS = {
    "show": ["workload", "show", "w.json"],
    "import": ["import", "w.json", "-o", "out.json"],
    "plan": ["plan", "w.json", "-H", "toy", "--policy", "layerwise", "-o", "plan.json"],
    "compare": ["compare-policies", "w.json", "-H", "toy", "--policies", "layerwise"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    save_workload(toy(unknown_ops=["f"]), tmp_path / "w.json")
    outcome = CliRunner().invoke(app, COMMANDS[command])
    assert outcome.exit_code == 0, outcome.output
    assert SAID in outcome.output


def test_a_result_says_so_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for listed, expected in (
        (["f"], {"ops": 1, "bytes_share": 0.75, "kinds": ["strange"]}),
        ([], None),
    ):
        save_workload(toy(**{UNKNOWN_OPS: listed}), tmp_path / "w.json")
        (said,) = json.loads(CliRunner().invoke(app, [*COMMANDS["compare"], "--json"]).stdout)[
            "results"
        ]
        assert said.get("unknown_ops") == expected
        result = result_from_dict(said)
        assert result.unknown_ops == (UnknownOps(1, 0.75, ("strange",)) if listed else None)
        assert result_to_dict(result) == said
