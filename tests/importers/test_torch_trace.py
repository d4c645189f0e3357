"""PyTorch execution traces: a step recorded here, a VGG13 step recorded on an H100, handmade calls,
damaged files.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosim.analysis import static_peak
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.io import load_any

RECORDED = Path(__file__).parent / "data" / "torch_trace_mlp.json.gz"
DOCUMENT = json.loads(gzip.decompress(RECORDED.read_bytes()))


def bytes_by_kind(graph: Graph) -> Counter[str]:
    totals: Counter[str] = Counter()
    for tensor in graph.tensors:
        totals[tensor.kind] += tensor.size_bytes
    return totals


def test_a_recorded_step() -> None:
    graph = load_any(RECORDED)
    kinds = bytes_by_kind(graph)
    weights = (64 * 256 + 256 + 256 * 16 + 16) * 4
    assert kinds["parameter"] == weights
    assert kinds["optimizer_state"] == weights  # one momentum a weight
    made = {
        op.name.partition(".")[0]: [graph.tensors[t].size_bytes for t in op.outputs]
        for op in graph.ops
    }
    assert made["relu"] == [32 * 256 * 4]
    assert made["linear"] == [32 * 16 * 4]  # the second of the two
    assert [op.kind for op in graph.ops[:3]] == ["matmul", "elementwise", "matmul"]
    assert all(op.duration_ns is None for op in graph.ops)
    # forward, weight gradients, and the input's gradient of the second layer; torch's counter says
    # 3670016
    assert sum(op.flops for op in graph.ops) == 2 * 32 * (2 * 64 * 256 + 3 * 256 * 16)
    assert graph.meta["schema"] == "1.1.1-chakra.0.0.4"
    assert "durations" in graph.meta
    assert load_any(RECORDED) == graph


def test_the_step_of_an_h100(shared: Path, compared: Callable[..., None]) -> None:
    path = shared / "data" / "traces" / "h100_vgg13_execution_graph.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    graph = load_any(path)
    kinds = bytes_by_kind(graph)
    weights = 133_047_848 * 4  # VGG13 as published: 133 million weights
    compared(
        "publication", "PyTorch trace of VGG13", "bytes of parameters", weights, kinds["parameter"]
    )
    assert kinds["optimizer_state"] == 2 * weights  # Adam
    assert kinds["input"] == 512 * (3 * 224 * 224 * 4 + 8)  # images and labels
    assert sum(op.kind == "convolution" for op in graph.ops) == 10
    assert sum(op.name.startswith("convolution_backward") for op in graph.ops) == 10
    # The profiler counted 39,343,881,216 bytes at the peak of this step, cuDNN's workspaces and
    # blocks of the step before among them.
    peak = static_peak(graph).bytes
    compared(
        "profiler's memory", "PyTorch trace of VGG13", "peak bytes", 39_343_881_216, peak, 0.06
    )
    assert peak < 39_343_881_216


def node(number: int, name: str, schema: str, inputs: list, outputs: list, parent: int = 1) -> dict:
    return {
        "id": number,
        "parent": parent,
        "name": name,
        "op_schema": schema,
        "inputs": inputs,
        "outputs": outputs,
    }


def tensor(storage: int, elements: int, device: str = "cuda:0") -> list:
    return [100 + storage, storage, 0, elements, 4, device]


ROOT = node(1, "[pytorch|profiler|execution_trace|process]", "", [], [])
UNARY = "aten::exp(Tensor self) -> Tensor"


def read(folder: Path, *nodes: dict) -> Graph:
    (folder / "trace").write_text(json.dumps({"schema": "1.0.1", "nodes": [ROOT, *nodes]}))
    return load_any(folder / "trace")


def operands(graph: Graph) -> list[tuple]:
    def sizes(positions):
        return [graph.tensors[t].size_bytes for t in positions]

    return [
        (op.name, sizes(op.inputs), sizes(op.outputs), sizes(op.mutates), op.workspace_bytes)
        for op in graph.ops
    ]


def test_a_storage_id_given_anew_is_another_storage(tmp_path: Path) -> None:
    graph = read(
        tmp_path,
        node(10, "aten::exp", UNARY, [tensor(1, 10)], [tensor(2, 10)]),
        node(20, "aten::exp", UNARY, [tensor(2, 10)], [tensor(3, 10)]),
        node(30, "aten::exp", UNARY, [tensor(3, 10)], [tensor(2, 25)]),
    )
    assert [t.size_bytes for t in graph.tensors] == [40, 40, 40, 100]


def test_views_workspace_and_writes(tmp_path: Path) -> None:
    add = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    graph = read(
        tmp_path,
        node(
            10,
            "aten::view",
            "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
            [tensor(1, 10), [10]],
            [tensor(1, 10)],
        ),
        node(20, "aten::exp", UNARY, [tensor(1, 10)], [tensor(2, 10)]),
        node(
            22,
            "aten::empty",
            "aten::empty(SymInt[] size) -> Tensor",
            [[7]],
            [tensor(3, 7)],
            parent=20,
        ),
        node(30, "aten::add_", add, [tensor(2, 10), tensor(1, 10), 1], [tensor(2, 10)]),
        node(40, "aten::item", "aten::item(Tensor self) -> Scalar", [tensor(2, 10)], [3.0]),
        node(50, "aten::exp", UNARY, [tensor(8, 10, "cpu")], [tensor(9, 10, "cpu")]),
    )
    assert operands(graph) == [
        ("exp.20", [40], [40], [], 28),
        ("add_.30", [40], [], [40], 0),
        ("item.40", [40], [], [], 0),
    ]
    assert graph.meta["calls_without_work"] == 2


def shaped(raw: dict, inputs: list, outputs: list) -> dict:
    """A node of schema 1.0 with the shapes of its inputs and outputs."""
    return raw | {"input_shapes": inputs, "output_shapes": outputs}


def test_flop_come_from_the_operator_inside_and_the_name_from_the_one_outside(
    tmp_path: Path,
) -> None:
    """A linear calls addmm, which copies the bias first: one kernel of 2 * 5 * 4 * 3 FLOP."""
    linear, add = (
        "aten::linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
        "aten::addmm(Tensor self, Tensor a, Tensor b) -> Tensor",
    )
    copy = "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)"
    x, w, b, y = tensor(1, 15), tensor(2, 12), tensor(3, 4), tensor(4, 20)
    graph = read(
        tmp_path,
        shaped(node(10, "aten::linear", linear, [x, w, b], [y]), [[5, 3], [4, 3], [4]], [[5, 4]]),
        shaped(node(11, "aten::addmm", add, [b, x, w], [y], 10), [[4], [5, 3], [3, 4]], [[5, 4]]),
        shaped(node(12, "aten::copy_", copy, [y, b], [y], 11), [[5, 4], [4]], [[5, 4]]),
    )
    (op,) = graph.ops
    assert (op.name, op.flops, op.bytes_accessed) == (
        "linear.10",
        2 * 5 * 4 * 3,
        4 * (15 + 12 + 4 + 20),
    )
    assert (op.kernel, op.sizes) == ("gemm", (5, 4, 3))


def test_a_call_of_several_kernels_is_several_ops(tmp_path: Path) -> None:
    """A mean is a sum, which fills its result first, and a division in place; a copy is into what
    was allocated beside it.
    """
    mean, add = "aten::mean(Tensor self) -> Tensor", "aten::sum(Tensor self) -> Tensor"
    divide, fill = (
        "aten::div_(Tensor(a!) self, Scalar other) -> Tensor(a!)",
        "aten::fill_(Tensor(a!) self, Scalar value) -> Tensor(a!)",
    )
    copy, empty = (
        "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)",
        "aten::empty(SymInt[] size) -> Tensor",
    )
    graph = read(
        tmp_path,
        node(10, "aten::mean", mean, [tensor(1, 50)], [tensor(3, 1)]),
        node(11, "aten::empty", empty, [[50]], [tensor(2, 50)], 10),
        node(12, "aten::copy_", copy, [tensor(2, 50), tensor(1, 50)], [tensor(2, 50)], 10),
        node(13, "aten::sum", add, [tensor(2, 50)], [tensor(3, 1)], 10),
        node(14, "aten::fill_", fill, [tensor(3, 1), 0], [tensor(3, 1)], 13),
        node(15, "aten::div_", divide, [tensor(3, 1), 50], [tensor(3, 1)], 10),
    )
    assert operands(graph) == [
        ("copy_.12", [200], [200], [], 0),
        ("sum.13", [200], [4], [], 0),
        ("div_.15", [], [], [4], 0),
    ]
    assert [op.bytes_accessed for op in graph.ops] == [400, 204, 8]
    assert graph.meta["calls_without_work"] == 0


def test_what_an_op_writes_is_listed_in_the_order_of_first_use(tmp_path: Path) -> None:
    swap = "aten::swap_(Tensor(a!) self, Tensor(b!) other) -> ()"
    graph = read(
        tmp_path,
        node(10, "aten::exp", UNARY, [tensor(1, 10)], [tensor(2, 20)]),
        node(20, "aten::swap_", swap, [tensor(2, 20), tensor(1, 10)], []),
    )
    assert operands(graph)[1] == ("swap_.20", [], [], [40, 80], 0)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"id": "1"}, "nodes[1].id"),
        ({"id": 1}, "nodes"),
        ({"parent": None}, "nodes[1].parent"),
        ({"parent": 20}, "nodes[1].parent"),
        ({"name": 3}, "nodes[1].name"),
        ({"inputs": 3}, "nodes[1].inputs"),
        ({"outputs": {}}, "nodes[1].outputs"),
        ({"op_schema": []}, "nodes[1].op_schema"),
    ],
)
def test_damage_is_named_with_its_place(tmp_path: Path, change: dict, where: str) -> None:
    first = node(10, "aten::exp", UNARY, [tensor(1, 10)], [tensor(2, 10)])
    with pytest.raises(InputError) as raised:
        read(
            tmp_path, first | change, node(20, "aten::exp", UNARY, [tensor(2, 10)], [tensor(3, 10)])
        )
    assert str(raised.value).startswith(f"{tmp_path / 'trace'}: {where}: expected ")


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds none"):
        read(tmp_path)


@pytest.mark.parametrize("cut", [40, 1000, 60_000])
def test_cut_off(tmp_path: Path, cut: int) -> None:
    (tmp_path / "trace").write_bytes(
        b'{"x": "[pytorch|profiler|execution_trace|process]", '
        + json.dumps(DOCUMENT).encode()[1:cut]
    )
    with pytest.raises(InputError, match="damaged JSON"):
        load_any(tmp_path / "trace")


ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        3,
        2**70,
        1.5,
        "",
        "x\ny",
        [],
        {},
        [[]],
        [1, 2, 3, 4, 5, "cuda:0"],
        [[1, 2, 3, 4, 5, "cpu"]],
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_traces_import_or_say_why(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes overwritten anywhere, or values exchanged for odd ones."""
    path = tmp_path / "trace"
    if data.draw(st.booleans()):
        content = bytearray(json.dumps(DOCUMENT).encode())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
        path.write_bytes(bytes(content))
    else:
        nodes = [dict(raw) for raw in DOCUMENT["nodes"]]
        for _ in range(data.draw(st.integers(1, 4))):
            raw = nodes[data.draw(st.integers(0, len(nodes) - 1))]
            raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(ODD)
        path.write_text(json.dumps({"schema": "1.1.1", "nodes": nodes}))
    try:
        graph = load_any(path)
    except HosimError as error:
        assert "\n" not in str(error)
    else:
        assert graph.ops


def test_kinds_of_a_training_step(tmp_path: Path) -> None:
    """By who writes them: the optimizer parameters and its state, backward gradients, forward
    buffers; a weight that nobody updates.
    """
    linear = "aten::linear(Tensor input, Tensor weight) -> Tensor"
    add = "aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)"
    multiply = "aten::mul(Tensor self, Tensor other) -> Tensor"

    def added(number: int, to: int, other: int, parent: int) -> dict:
        return node(
            number,
            "aten::add_",
            add,
            [tensor(to, to), tensor(other, other)],
            [tensor(to, to)],
            parent,
        )

    graph = read(
        tmp_path,
        node(10, "aten::linear", linear, [tensor(1, 1), tensor(2, 2)], [tensor(3, 3)]),
        node(11, "aten::linear", linear, [tensor(3, 3), tensor(8, 8)], [tensor(9, 9)]),
        added(12, 4, 9, 1),
        node(20, "autograd::engine::evaluate_function: MulBackward0", "", [], []),
        node(21, "aten::mul", multiply, [tensor(9, 9), tensor(1, 1)], [tensor(5, 5)], 20),
        added(22, 6, 5, 20),
        node(30, "Optimizer.step#SGD.step", "", [], []),
        added(31, 2, 6, 30),
        added(32, 7, 6, 30),
        node(40, "aten::exp", UNARY, [tensor(1, 1)], [tensor(10, 10)], 999),
    )
    assert {t.size_bytes // 4: t.kind for t in graph.tensors} == {
        1: "input",
        2: "parameter",
        3: "activation",
        4: "buffer",
        5: "gradient",
        6: "gradient",
        7: "optimizer_state",
        8: "parameter",
        9: "activation",
        10: "activation",
    }
    assert [t.size_bytes // 4 for t in graph.tensors if t.persistent] == [1, 2, 8, 4, 6, 7]
    assert [op.name for op in graph.ops] == [
        "linear.10",
        "linear.11",
        "add_.12",
        "mul.21",
        "add_.22",
        "add_.31",
        "add_.32",
        "exp.40",
    ]
    # what is changed in place is read and written
    assert [op.bytes_accessed for op in graph.ops] == [
        4 * n for n in (6, 20, 4 + 13, 15, 6 + 11, 2 + 8, 7 + 13, 11)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "1"}, "nodes[1].id: expected a whole number"),
        ({"id": 1}, "nodes: expected every node's id once"),
        (
            {"parent": 20},
            "nodes[1].parent: expected a parent that begins before it, hence has a smaller id",
        ),
        ({"name": 3}, "nodes[1].name: expected a name"),
        ({"inputs": 3}, "nodes[1].inputs: expected a list"),
        ({"op_schema": []}, "nodes[1].op_schema: expected text"),
    ],
)
def test_what_is_said_of_damage(tmp_path: Path, change: dict, message: str) -> None:
    first = node(10, "aten::exp", UNARY, [tensor(1, 10)], [tensor(2, 10)])
    with pytest.raises(InputError) as caught:
        read(
            tmp_path, first | change, node(20, "aten::exp", UNARY, [tensor(1, 10)], [tensor(2, 10)])
        )
    assert str(caught.value) == f"{tmp_path / 'trace'}: {message}"
