"""What ONNX and MindIR operators read and write of what a model holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from mindir_toys import WRITES, mindir, parameter, primitive
from mindir_toys import value as operand

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from onnx_toys import FLOAT, INT, model, numbers, read, uses, value, weight  # noqa: E402

from hosim.formats import import_mindir  # noqa: E402

node = helper.make_node


GATHER, SLICE = node("Gather", ["w", "i"], ["y"]), node("Slice", ["w", "from", "to"], ["y"])
STEPS = node("Slice", ["w", "from", "to", "axes", "steps"], ["y"])


@pytest.mark.parametrize(
    ("nodes", "index", "bounds", "expected"),
    [
        ([GATHER], (3,), {}, {"read": 3 * 16, "rest": 5 * 16}),
        ([node("Gather", ["w", "i"], ["y"], axis=1)], (1, 3), {}, {"read": 3 * 32, "rest": 32}),
        ([GATHER], (2, 4), {}, {}),  # as many as there are
        (
            [node("Gather", ["w", "rows"], ["y"])],
            (),
            {"rows": [5, -4]},
            {"read": 2 * 16, "rest": 6 * 16},
        ),
        ([SLICE], (), {"from": [6, 2], "to": [99, 4]}, {"read": 2 * 2 * 4, "rest": 128 - 16}),
        (
            [STEPS],
            (),
            {"from": [0, 2], "to": [8, 4], "axes": [0, 1], "steps": [2, 1]},
            {"read": 4 * 2 * 4, "rest": 128 - 32},
        ),
        (
            [node("Gather", ["w", "rows"], ["a"]), SLICE],
            (),
            {"rows": [2, 1, 0], "from": [4], "to": [5]},
            {"0:3": 48, "4": 16, "rest": 64},
        ),
        (
            [node("Gather", ["w", "i"], ["a"]), node("MatMul", ["x", "w"], ["y"])],
            (1,),
            {},
            {"read": 16, "rest": 7 * 16},
        ),
    ],
)
def test_parts_of_a_table(
    tmp_path: Path,
    nodes: list[object],
    index: tuple[int, ...],
    bounds: dict[str, list[int]],
    expected: dict[str, int],
) -> None:
    """Of 8 rows of 4."""
    constants = [weight("w", 8, 4), *[numbers(name, *listed) for name, listed in bounds.items()]]
    inputs = [value("x", FLOAT, 2, 8), *([value("i", INT, *index)] if index else [])]
    graph = read(
        tmp_path,
        model(nodes, inputs, [value("y", FLOAT, *[None] * max(2, 1 + len(index)))], constants),
    )
    assert {t.name: t.size_bytes for t in graph.tensors if t.whole == "w"} == (
        {f"w[{k}]": n for k, n in expected.items()} or {"w": 128}
    )
    assert "missing" not in graph.meta


def test_a_cache_that_is_scattered_into_is_read_and_made_whole(tmp_path: Path) -> None:
    """It is an operator whose result is another tensor."""
    nodes = [node("ScatterND", ["cache", "i", "new"], ["y"])]
    inputs = [value("cache", FLOAT, 8, 4), value("i", INT, 1, 1), value("new", FLOAT, 1, 4)]
    assert uses(read(tmp_path, model(nodes, inputs, [value("y", FLOAT, 8, 4)]))) == [
        ("scatter", ["cache", "i", "new"], ["y"])
    ]


def test_mindspore_writes_rows_of_a_parameter(tmp_path: Path) -> None:
    held = [parameter(b"cache", 8, 4), operand(5, b"i", 1), operand(5, b"new", 1, 4)]
    written = primitive(
        b"ScatterUpdate", [b"cache", b"i", b"new"], 8, 4, output=b"c", attributes=WRITES
    )
    graph = import_mindir(
        mindir(tmp_path, *held, written, primitive(b"ReLU", [b"c"], 8, 4), operand(6, b"y", 8, 4))
    )
    names = [t.name for t in graph.tensors]
    assert {t.name: t.size_bytes for t in graph.tensors if t.of == "cache"} == {
        "cache[past]": 7 * 16,
        "cache[new]": 16,
    }
    assert [[names[t] for t in op.mutates] for op in graph.ops] == [["cache[new]"], []]
    assert sorted(names[t] for t in graph.ops[1].inputs) == ["cache[new]", "cache[past]"]


def test_a_training_step_has_whole_tables(tmp_path: Path) -> None:
    held = [parameter(b"w", 8, 4), operand(5, b"i", 2), operand(5, b"r", 1)]
    looked_up = primitive(b"Gather", [b"w", b"i"], 2, 4, output=b"a")
    gradient = primitive(b"ReLU", [b"a"], 8, 4, output=b"g")
    update = primitive(b"ApplyGradientDescent", [b"w", b"r", b"g"], 8, 4)
    graph = import_mindir(
        mindir(tmp_path, *held, looked_up, gradient, update, operand(6, b"y", 8, 4))
    )
    assert {t.name: t.kind for t in graph.tensors if t.name in "wg"} == {
        "w": "parameter",
        "g": "gradient",
    }
