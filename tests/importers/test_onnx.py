"""ONNX models: those that torch and others wrote beside what they say of them, handmade ones,
damaged files.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rendered import facts
from typer.testing import CliRunner

from hosim.base.files.formats import is_onnx
from hosim.errors import HosimError, InputError
from hosim.io import load_any
from hosim.io.importers.onnx import import_onnx

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx_toys import FLOAT, INT, model, numbers, read, uses, value, weight  # noqa: E402
from onnx_truth import DATA, FROM_TORCH, PUBLIC, TRUTH, comparison, load, made_at_peak  # noqa: E402

FOLDED = {"llama": 0.09, "gpt2": 0.06, "bert": 0.03, "vit": 0.01}
"""How far bytes of constants may be from torch's parameters: the exporter folds and repeats some
(rotary tables, a tied head).
"""
ROUNDED = {"ocr": 0.002, "magika": 0.0001, "silero": 0.0001}
"""The share of the peak that is numbers, which hosim leaves out."""


@pytest.mark.parametrize("name", TRUTH)
def test_what_others_say(name: str, compared: Callable[..., None]) -> None:
    rows = list(comparison(name))
    assert len(rows) == 3
    for quantity, theirs, ours in rows:
        within = {"parameters": FOLDED, "peak": ROUNDED}.get(quantity, {}).get(name, 0)
        by = (
            "torch"
            if name in FROM_TORCH and quantity != "weights"
            else "onnx"
            if quantity == "weights"
            else "onnxruntime"
        )
        compared(by, f"ONNX {name}", quantity, theirs, ours, within)


def test_which_models_there_are() -> None:
    assert len(FROM_TORCH) == 6
    assert PUBLIC == ["magika", "ocr", "silero"]


@pytest.mark.parametrize("name", PUBLIC)
def test_shapes_of_a_real_run(name: str) -> None:
    graph, shapes = load(name), TRUTH[name]["shapes"]
    made = {t.name for t in graph.tensors if t.kind in ("activation", "output")}
    assert len(made & shapes.keys()) > 0.9 * len(made)
    assert {t: graph.meta["shapes"][t] for t in made & shapes.keys()} == {
        t: shapes[t] for t in made & shapes.keys()
    }


@pytest.mark.parametrize(
    ("name", "within"),
    [("mlp", 0), ("conv", 0), ("gpt2", 0), ("llama", 0.05), ("vit", 0.3), ("bert", 0.25)],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_peak_beside_that_of_the_exported_program(
    name: str, within: float, compared: Callable[..., None]
) -> None:
    """Equal without attention and with it as one operator, but for its workspace on the CPU; ViT
    has it as several.
    """
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import small_models
    from exported_models import exported

    from hosim.io.importers.torch_programs import import_exported

    program = exported(name) if name not in small_models.SMALL else small_models.exported(name)
    theirs = made_at_peak(import_exported(program, name=name))
    compared(
        "hosim's torch_export",
        f"ONNX {name}",
        "peak without constants",
        theirs,
        made_at_peak(load(name)),
        within,
    )


def test_a_branch_and_a_dynamic_batch() -> None:
    (line,) = load("silero").meta["missing"]
    assert facts(line, "FLOP") == "1, FLOP"
    small, large = (import_onnx(DATA / "onnx_conv.onnx.gz", {"batch": n}) for n in (1, 8))
    assert sum(op.flops for op in large.ops) == 8 * sum(op.flops for op in small.ops)
    assert large.meta["dims"] == {"batch": 8}
    assert [t for t in large.tensors if t.kind == "parameter"] == [
        t for t in small.tensors if t.kind == "parameter"
    ]


def test_views_numbers_and_weights_elsewhere(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["to"], axis=0),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Reshape", ["y", "to"], ["z"]),
        helper.make_node("Transpose", ["z"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Identity", ["t"], ["out"]),
    ]
    constants = [weight("w", 6, 4), numbers("zero", 0), numbers("rest", 2, 2)]
    graph = read(
        tmp_path,
        model(
            nodes,
            [value("x", FLOAT, "batch", 6)],
            [value("out", FLOAT, None, None, None)],
            constants,
        ),
        batch=3,
    )
    assert uses(graph) == [("matmul", ["x", "w"], ["y"]), ("copy", ["y"], ["t"])]
    assert [(t.name, t.size_bytes, t.kind) for t in graph.tensors] == [
        ("w", 96, "parameter"),
        ("x", 72, "input"),
        ("y", 48, "activation"),
        ("t", 48, "output"),
    ]
    assert [(op.flops, op.bytes_accessed) for op in graph.ops] == [
        (2 * 3 * 6 * 4, 72 + 96 + 48),
        (0, 96),
    ]
    assert [(op.kernel, op.sizes) for op in graph.ops] == [("gemm", (3, 4, 6)), ("", ())]


def flops_of(
    folder: Path, node, inputs: dict[str, tuple[int, ...]], outputs: int = 1, opset: int = 20
) -> int:
    given = [value(name, FLOAT, *shape) for name, shape in inputs.items()]
    graph = read(
        folder,
        model(
            [node],
            given,
            [helper.make_empty_tensor_value_info(name) for name in node.output[:outputs]],
            opset=opset,
        ),
    )
    return sum(op.flops for op in graph.ops)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "expected"),
    [
        ("MatMul", {"a": (5, 1, 2, 3), "b": (7, 3, 4)}, {}, 2 * 5 * 7 * 2 * 3 * 4),
        ("MatMul", {"a": (3,), "b": (3,)}, {}, 2 * 3),
        ("Gemm", {"a": (3, 2), "b": (4, 3), "c": (4,)}, {"transA": 1, "transB": 1}, 2 * 2 * 3 * 4),
        (
            "Conv",
            {"x": (2, 4, 8, 8), "w": (6, 2, 3, 3)},
            {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]},
            2 * 2 * 6 * 16 * 2 * 9,
        ),
        (
            "ConvTranspose",
            {"x": (1, 4, 5, 5), "w": (4, 3, 2, 2)},
            {"strides": [2, 2]},
            2 * 4 * 25 * 3 * 4,
        ),
        (
            "Einsum",
            {"a": (2, 3, 4), "b": (2, 5, 4)},
            {"equation": "bik,bjk->bij"},
            2 * 2 * 3 * 4 * 5,
        ),
        (
            "LSTM",
            {"x": (7, 2, 5), "w": (1, 12, 5), "r": (1, 12, 3)},
            {"hidden_size": 3},
            2 * 7 * 2 * 12 * (5 + 3),
        ),
        ("Softmax", {"x": (4, 4)}, {}, 0),
    ],
)
def test_flops(
    tmp_path: Path, operator: str, inputs: dict, attributes: dict, expected: int
) -> None:
    assert (
        flops_of(tmp_path, helper.make_node(operator, list(inputs), ["y"], **attributes), inputs)
        == expected
    )


def test_flops_of_attention(tmp_path: Path) -> None:
    four = {"q": (2, 8, 5, 4), "k": (2, 2, 9, 4), "v": (2, 2, 9, 6)}
    three = {"q": (2, 5, 32), "k": (2, 9, 8), "v": (2, 9, 12)}
    expected = 2 * 2 * 8 * 5 * 9 * (4 + 6)
    assert (
        flops_of(tmp_path, helper.make_node("Attention", [*four], ["y"]), four, opset=23)
        == expected
    )
    heads = {"q_num_heads": 8, "kv_num_heads": 2}
    assert (
        flops_of(tmp_path, helper.make_node("Attention", [*three], ["y"], **heads), three, opset=23)
        == expected
    )


def branches(condition: str) -> list:
    def way(name, *operators):
        names = ["x", *(f"{name}{i}" for i in range(len(operators)))]
        nodes = [
            helper.make_node(o, [a], [b])
            for o, a, b in zip(operators, names, names[1:], strict=False)
        ]
        return helper.make_graph(nodes, name, [], [value(names[-1], FLOAT, None)])

    return [
        helper.make_node(
            "If",
            [condition],
            ["y"],
            then_branch=way("a", "Relu"),
            else_branch=way("b", "Exp", "Tanh"),
        )
    ]


def test_an_if(tmp_path: Path) -> None:
    inputs, outputs = [value("x", FLOAT, 5), value("c", TensorProto.BOOL)], [value("y", FLOAT, 5)]
    graph = read(tmp_path, model(branches("c"), inputs, outputs))
    assert [made for _, _, made in uses(graph)] == [["b0"], ["b1"]]
    assert "at 1 places" in graph.meta["missing"][0]
    known = helper.make_tensor("k", TensorProto.BOOL, [], [True])
    graph = read(tmp_path, model(branches("k"), inputs[:1], outputs, [known]))
    assert [made for _, _, made in uses(graph)] == [["a0"]]
    assert "missing" not in graph.meta


def test_a_function_is_inlined(tmp_path: Path) -> None:
    opset = [helper.make_opsetid("", 20)]
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opset
    )
    content = model(
        [
            helper.make_node("Twice", ["x"], ["y"], domain="mine"),
            helper.make_node("Twice", ["y"], ["z"], domain="mine"),
        ],
        [value("x", FLOAT, 5)],
        [value("z", FLOAT, 5)],
        functions=[function],
        opsets=[helper.make_opsetid("mine", 1)],
    )
    assert [op.kind for op in read(tmp_path, content).ops] == ["elementwise", "elementwise"]


def loop() -> object:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [value("i", INT), value("c", TensorProto.BOOL)],
        [value("d", TensorProto.BOOL)],
    )
    return helper.make_node("Loop", ["m", ""], [], name="again", body=body)


X, Y = value("x", FLOAT, 2, 3), helper.make_empty_tensor_value_info("y")


@pytest.mark.parametrize(
    ("nodes", "inputs", "expected"),
    [
        (
            [helper.make_node("Relu", ["x"], ["y"])],
            [value("x", FLOAT, "n", None)],
            r"without a size: n, x\[1\]; give them: hosim",
        ),
        (
            [loop(), helper.make_node("Relu", ["x"], ["y"])],
            [X, value("m", INT)],
            "again: operator Loop is a loop over a graph",
        ),
        (
            [helper.make_node("NonZero", ["x"], ["y"], name="n")],
            [X],
            "n: the shape of what operator NonZero returns is not known without",
        ),
        (
            [helper.make_node("Mine", ["x"], ["y"], name="n", domain="my")],
            [X],
            "n: the shape of what operator Mine returns is not known",
        ),
        (
            [helper.make_node("Relu", ["z"], ["y"], name="n")],
            [X],
            "n: uses 'z' before any node makes it",
        ),
        (
            [helper.make_node("MatMul", ["x", "x"], ["y"], name="n")],
            [X],
            "n: shapes of operator MatMul do not fit",
        ),
        (
            [helper.make_node("MatMul", ["x"], ["y"], name="n")],
            [X],
            "n: operator MatMul cannot have 1 inputs",
        ),
        ([helper.make_node("Identity", ["x"], ["y"])], [X], "no operator that computes"),
        (
            [helper.make_node("Relu", ["x"], ["y"])],
            [value("x", TensorProto.STRING, 2)],
            "'x' has the element type 8",
        ),
        ([helper.make_node("Relu", ["x"], ["z"])], [X], "output 'y' has no node that makes it"),
        (
            [helper.make_node("Relu", ["x"], ["y"])],
            [value("x", FLOAT, 1 << 40, 1 << 40)],
            "below 2.60 bytes",
        ),
    ],
    ids=[
        "free",
        "loop",
        "data",
        "foreign",
        "unmade",
        "misfit",
        "too-few",
        "empty",
        "strings",
        "no-output",
        "too-large",
    ],
)
def test_what_cannot_be_imported_is_said(
    tmp_path: Path, nodes: list, inputs: list, expected: str
) -> None:
    with pytest.raises(InputError, match=expected) as raised:
        read(tmp_path, model(nodes, inputs, [Y], opsets=[helper.make_opsetid("my", 1)]))
    assert str(raised.value).startswith(str(tmp_path / "x"))


def test_an_operator_of_ones_own_with_its_shape_in_the_file(tmp_path: Path) -> None:
    node = helper.make_node("Mine", ["x"], ["y"], domain="my")
    graph = read(
        tmp_path, model([node], [X], [value("y", FLOAT, 7)], opsets=[helper.make_opsetid("my", 1)])
    )
    assert [(op.kind, op.bytes_accessed) for op in graph.ops] == [("mine", 24 + 28)]


def test_on_the_command_line(tmp_path: Path) -> None:
    from hosim.cli.main import app

    (tmp_path / "x.txt").write_bytes(
        model([helper.make_node("Relu", ["x"], ["y"])], [value("x", FLOAT, "n")], [Y])
    )
    out = tmp_path / "w.json"

    def said(*arguments: str) -> str:
        ended = CliRunner().invoke(app, ["import", *arguments, "-o", str(out)])
        assert ended.exit_code == (
            0 if arguments[-1] == "n=5" and arguments[0].endswith("x.txt") else 2
        )
        return " ".join(ended.output.split())

    said(str(tmp_path / "x.txt"), "--dim", "n=5")
    assert load_any(out).tensors[0].size_bytes == 20
    for wrong in ("n", "n=", "=5", "n=-1", "n=1.5"):
        assert "expected a name and a whole number" in said(str(tmp_path / "x.txt"), "--dim", wrong)
    assert "no dimension 'm'; its free ones are: n" in said(str(tmp_path / "x.txt"), "--dim", "m=1")
    assert "has no free dimensions to size" in said(
        str(out.rename(tmp_path / "sized.json")), "--dim", "n=5"
    )


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'hosim\[onnx\]'"):
        import_onnx(DATA / "onnx_mlp.onnx.gz")


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\x08\x0a", b"\x08\x0a\x3a", b'{"ir_version": 8}', b"\x0a\x03abc"]
)
def test_what_is_no_model(content: bytes) -> None:
    assert not is_onnx(content)


def test_cut_off(tmp_path: Path) -> None:
    content = gzip.decompress((DATA / "onnx_llama.onnx.gz").read_bytes())
    for size in (200, 2000, len(content) - 1):
        with pytest.raises(InputError, match=r"damaged|its format is unknown"):
            read(tmp_path, content[:size])


def mutated(data: st.DataObject, content: bytes) -> bytes:
    """A few bytes overwritten, dropped or put in, anywhere; or a piece of the file elsewhere; or
    its beginning alone.
    """
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        match data.draw(st.sampled_from(["flip", "bytes", "splice", "cut"])):
            case "flip":
                if at < len(changed):
                    changed[at] ^= 1 << data.draw(st.integers(0, 7))
            case "bytes":
                changed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
            case "splice":
                begin = data.draw(st.integers(0, len(content)))
                changed[at:at] = content[begin : begin + data.draw(st.integers(0, 300))]
            case "cut":
                del changed[max(at, 40) :]
    return bytes(changed)


CONTENTS = {
    name: gzip.decompress((DATA / f"onnx_{name}.onnx.gz").read_bytes())
    for name in ("mlp", "conv", "silero", "magika")
}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=150,
)
@given(data=st.data(), name=st.sampled_from(sorted(CONTENTS)), sized=st.booleans())
def test_mutated_files_import_or_say_why(
    tmp_path: Path, data: st.DataObject, name: str, sized: bool
) -> None:
    (tmp_path / "x").write_bytes(mutated(data, CONTENTS[name]))
    try:
        graph = load_any(tmp_path / "x", TRUTH[name]["dims"] if sized else None)
    except HosimError as error:
        assert "\n" not in str(error)
    else:
        assert graph.ops


def test_a_file_that_a_model_names_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rows stands in another file, as a weight and as what an operator fills its
    result with.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.bin").write_bytes((4).to_bytes(8, "little"))
    rows = TensorProto(name="rows", dims=[1], data_type=INT, data_location=TensorProto.EXTERNAL)
    rows.external_data.add(key="location", value="rows.bin")
    x, y, reshape = (
        value("x", FLOAT, 4),
        value("y", FLOAT, None),
        helper.make_node("Reshape", ["x", "rows"], ["y"]),
    )
    filled = helper.make_node("ConstantOfShape", ["one"], ["rows"])
    filled.attribute.append(helper.make_attribute("value", rows))
    for content in (
        model([reshape], [x], [y], [rows]),
        model([filled, reshape], [x], [y], [numbers("one", 1)]),
    ):
        with pytest.raises(InputError, match=r"is not known without data|does not fit|elements"):
            read(tmp_path, content)
