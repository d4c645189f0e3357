"""What each part of an ONNX node becomes: values and shapes, views and copies, constants, branches,
and what is refused.
"""

from pathlib import Path

import pytest
from rendered import facts

from hosim.errors import InputError

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_toys import BOOL, FLOAT, INT, model, numbers, read, uses, value, weight  # noqa: E402

from hosim.io.importers.onnx import (  # noqa: E402
    DTYPES,
    OnnxValue,
    attributes_of,
    compute,
    constant,
    dtype_of,
    infer,
    of_type,
)
from hosim.io.importers.stored import ELEMENTS  # noqa: E402

node = helper.make_node
X, Y = value("x", FLOAT, 2, 3), helper.make_empty_tensor_value_info("y")
OPSETS = {"": 20}


# ---- values


def test_element_types() -> None:
    names = {number: name for name, number in TensorProto.DataType.items()}
    own = {names[n]: kind for n, kind in DTYPES.items() if n not in ELEMENTS}
    eight = dict.fromkeys(
        ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"], ("fp8", 8)
    )
    small = {
        "UINT4": ("uint4", 4),
        "INT4": ("int4", 4),
        "FLOAT4E2M1": ("fp4", 4),
        "UINT2": ("uint2", 2),
        "INT2": ("int2", 2),
    }
    assert own == eight | small
    assert {names[n]: kind for n, kind in ELEMENTS.items()} == {
        "FLOAT": ("fp32", 32),
        "UINT8": ("uint8", 8),
        "INT8": ("int8", 8),
        "UINT16": ("uint16", 16),
        "INT16": ("int16", 16),
        "INT32": ("int32", 32),
        "INT64": ("int64", 64),
        "BOOL": ("bool", 8),
        "FLOAT16": ("fp16", 16),
        "DOUBLE": ("fp64", 64),
        "UINT32": ("uint32", 32),
        "UINT64": ("uint64", 64),
        "COMPLEX64": ("complex64", 64),
        "COMPLEX128": ("complex128", 128),
        "BFLOAT16": ("bf16", 16),
    }
    assert dtype_of(1, "x") == ("fp32", 32)
    with pytest.raises(InputError) as caught:
        dtype_of(8, "n" * 150)
    assert str(caught.value) == f"'{'n' * 100}' has the element type 8, which is not numeric"


@pytest.mark.parametrize(
    ("shape", "element", "is_number"),
    [
        ((), 1, True),
        ((64,), 6, True),
        ((64,), 7, True),
        ((64,), 9, True),
        ((65,), 7, False),
        ((2,), 1, False),
        ((2, 2), 7, False),
    ],
)
def test_what_is_a_number(shape: tuple[int, ...], element: int, is_number: bool) -> None:
    assert OnnxValue(shape, element, np.zeros(shape)).is_number is is_number
    assert not OnnxValue(shape, element).is_number


def test_constants_whose_elements_are_known() -> None:
    def of(array: np.ndarray) -> OnnxValue:
        return constant(numpy_helper.from_array(array))

    some = of(np.arange(1024))
    assert (some.shape, some.element, some.known.tolist(), some.tensor) == (
        (1024,),
        7,
        list(range(1024)),
        None,
    )
    for many in (np.zeros(1025), np.zeros((32, 33)), np.zeros((0, 1025))):
        assert (of(many).shape, of(many).known) == (many.shape, None)
    assert of(np.zeros((0, 1024))).known.shape == (0, 1024)
    assert constant(weight("w", 2)).known is None
    words = constant(helper.make_tensor("t", TensorProto.STRING, [1], [b"a"]))
    assert (words.element, words.known) == (8, None)
    short = constant(TensorProto(dims=[3], data_type=FLOAT, raw_data=b"1234"))
    assert (short.shape, short.known) == ((3,), None)
    assert constant(TensorProto(dims=[-1], data_type=FLOAT)).known is None


def test_attributes() -> None:
    some = node("Mine", ["x"], ["y"], text="a", number=3, listed=[1, 2])
    assert attributes_of(some) == {"text": "a", "number": 3, "listed": [1, 2]}
    some.attribute.add(name="b" * 60, ref_attr_name="of a function")
    some.name = "n" * 120
    with pytest.raises(InputError) as caught:
        attributes_of(some)
    assert (caught.value.message, caught.value.where) == (
        f"attribute '{'b' * 50}' has no value",
        "n" * 100,
    )


def test_types_with_all_their_sizes() -> None:
    def of(*shape: object) -> OnnxValue | None:
        return of_type(helper.make_tensor_type_proto(FLOAT, list(shape)))

    assert of(2, 0) == OnnxValue((2, 0), FLOAT)
    assert of() == OnnxValue((), FLOAT)
    assert of((1 << 60) - 1) == OnnxValue(((1 << 60) - 1,), FLOAT)
    assert [
        of(1 << 60),
        of(-1),
        of(2, "n"),
        of_type(helper.make_tensor_type_proto(FLOAT, None)),
    ] == [None] * 4
    assert (
        of_type(helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))) is None
    )


def test_shapes_of_outputs() -> None:
    given = {"x": OnnxValue((2, 3), FLOAT), "to": OnnxValue((1,), INT, np.array([6]))}
    reshape = node("Reshape", ["x", "to"], ["y"])
    assert infer(reshape, given, OPSETS, 10, "n") == {"y": OnnxValue((6,), FLOAT)}
    assert infer(reshape, given | {"to": OnnxValue((2,), INT)}, OPSETS, 10, "n") == {}
    relu = node("Relu", ["x"], ["y"], domain="ai.onnx")
    assert infer(relu, {"x": given["x"]}, OPSETS, 10, "n") == {"y": OnnxValue((2, 3), FLOAT)}
    pool, image = node("GlobalLpPool", ["x"], ["y"]), {"x": OnnxValue((1, 2, 3, 3), FLOAT)}
    assert infer(pool, image, {"": 2}, 10, "n") == {"y": OnnxValue((1, 2, 1, 1), FLOAT)}
    assert infer(pool, image, {}, 10, "n") == {}  # version 1, of which no shapes are known
    assert (
        infer(node("Gelu", ["x"], ["y"]), {"x": given["x"]}, {"": 19}, 10, "n") == {}
    )  # it came with 20
    assert (
        infer(node("Mine", ["x"], ["y"], domain="my"), {"x": given["x"]}, {"my": 3}, 10, "n") == {}
    )


@pytest.mark.parametrize(
    ("inputs", "outputs"), [([], ["y"]), (["x", "x"], ["y"]), (["x"], []), (["x"], ["y", "z"])]
)
def test_too_few_or_too_many(inputs: list[str], outputs: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        infer(node("Relu", inputs, outputs), {"x": OnnxValue((2, 3), FLOAT)}, OPSETS, 10, "here")
    said = f"operator Relu cannot have {len(inputs)} inputs and {len(outputs)} outputs"
    assert (caught.value.message, caught.value.where) == (said, "here")


def computed(
    operator: str,
    *inputs: OnnxValue,
    made: tuple[int, ...] = (),
    element: int = INT,
    **attributes: object,
) -> object:
    names = "abcd"[: len(inputs)]
    some = node(operator, [*names], ["y"], **attributes)
    found = compute(
        some, dict(zip(names, inputs, strict=True)), {"y": OnnxValue(made, element)}, OPSETS
    )
    return {name: (array.dtype.name, array.tolist()) for name, array in found.items()}


def known(*elements: int, dtype: type = np.int64) -> OnnxValue:
    return OnnxValue(
        (len(elements),), INT if dtype is np.int64 else FLOAT, np.array(elements, dtype=dtype)
    )


def test_numbers_are_computed() -> None:
    x = OnnxValue((4, 5, 6), FLOAT)
    assert computed("Shape", x) == {"y": ("int64", [4, 5, 6])}
    assert computed("Shape", x, start=1) == {"y": ("int64", [5, 6])}
    assert computed("Shape", x, start=-2, end=-1) == {"y": ("int64", [5])}
    assert computed("Size", x) == {"y": ("int64", 120)}
    assert computed("Add", known(1, 2), known(10, 20), made=(2,)) == {"y": ("int64", [11, 22])}
    assert computed("Add", known(1, 2), OnnxValue((2,), INT), made=(2,)) == {}
    assert (
        computed("Add", known(1, 2), known(10, 20), made=(3,)) == {}
    )  # not the shape that was inferred
    assert computed("Add", known(1, 2), known(1, 2, 3), made=(2,)) == {}
    assert computed("Exp", known(1, dtype=np.float32), made=(1,)) == {}
    assert computed("Neg", known(1), made=(1,), domain="my") == {}
    assert computed("Neg", known(1), made=(1,), domain="ai.onnx") in ({"y": ("int64", [-1])}, {})
    assert computed(
        "Div", known(1, dtype=np.float32), known(0, dtype=np.float32), made=(1,), element=FLOAT
    ) == {"y": ("float32", [float("inf")])}
    few = OnnxValue((1,), INT, np.array([1024]))
    assert len(computed("ConstantOfShape", few, made=(1024,), element=FLOAT)["y"][1]) == 1024
    assert (
        computed(
            "ConstantOfShape", OnnxValue((1,), INT, np.array([1025])), made=(1025,), element=FLOAT
        )
        == {}
    )
    # an operator by the version that the model names: ReduceSum had its axes as an attribute until
    # 13
    old = node("ReduceSum", ["a"], ["y"], axes=[0], keepdims=0)
    assert compute(old, {"a": known(1, 2)}, {"y": OnnxValue((), INT)}, {"": 11})["y"].tolist() == 3


def test_several_outputs_and_absent_ones() -> None:
    halves = node("Split", ["a"], ["", "y"], num_outputs=2)
    assert compute(halves, {"a": known(1, 2, 3, 4)}, {"y": OnnxValue((2,), INT)}, OPSETS)[
        "y"
    ].tolist() == [3, 4]


# ---- whole graphs


def sizes(graph) -> list[tuple[str, int, str]]:
    return [(t.name, t.size_bytes, t.kind) for t in graph.tensors]


def test_the_whole_meta(tmp_path: Path) -> None:
    content = model(
        [node("Relu", ["x"], ["y"])],
        [value("x", FLOAT, "b", "a")],
        [Y],
        producer_name="me",
        producer_version="2",
    )
    assert read(tmp_path, content, b=2, a=3).meta == {
        "source": "ONNX",
        "onnx": onnx.__version__,
        "producer": "me 2",
        "dims": {"a": 3, "b": 2},
        "durations": "not in the file; the cost model estimates them from FLOP and bytes",
        "workspaces": "not in the file",
        "sizes": "as inferred by the onnx package; views share the tensor that they show",
        "shapes": {"x": [2, 3], "y": [2, 3]},
    }
    assert list(read(tmp_path, content, b=2, a=3).meta["dims"]) == ["a", "b"]
    bare = read(tmp_path, model([node("Relu", ["x"], ["y"])], [X], [Y])).meta
    assert bare["producer"] == ""
    assert "dims" not in bare


def test_views_and_copies(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Unsqueeze", ["a", "axis"], ["b"]),
        node("Squeeze", ["b", "axis"], ["c"]),
        node("Flatten", ["c"], ["d"]),
        node("Cast", ["d"], ["e"], to=FLOAT),
        node("Dropout", ["e"], ["f"]),
        node("Cast", ["f"], ["g"], to=INT),
        node("Cast", ["g"], ["h"], to=TensorProto.DOUBLE),  # as many bytes, and yet other ones
        node("Dropout", ["h"], ["y", "mask"]),
        node("Transpose", ["y"], ["t"]),
    ]
    graph = read(
        tmp_path,
        model(nodes, [X], [helper.make_empty_tensor_value_info("t")], [numbers("axis", 0)]),
    )
    assert uses(graph) == [
        ("elementwise", ["x"], ["a"]),
        ("elementwise", ["a"], ["g"]),
        ("elementwise", ["g"], ["h"]),
        ("elementwise", ["h"], ["y", "mask"]),
        ("copy", ["y"], ["t"]),
    ]
    assert [op.dtype for op in graph.ops] == ["fp32", "fp32", "fp64", "fp64", "fp64"]
    assert sizes(graph) == [
        ("x", 24, "input"),
        ("a", 24, "activation"),
        ("g", 48, "activation"),
        ("h", 48, "activation"),
        ("y", 48, "activation"),
        ("mask", 6, "activation"),
        ("t", 48, "output"),
    ]
    assert [op.name for op in graph.ops] == [
        "Relu_0",
        "Cast_6",
        "Cast_7",
        "Dropout_8",
        "Transpose_9",
    ]


def test_kinds_of_constants(tmp_path: Path) -> None:
    made = [
        weight("w", 3),
        weight("layers.experts.0.up", 3),
        weight("myexperts", 3),
        helper.make_tensor("ids", INT, [2, 3], range(6)),
        helper.make_tensor("whole", TensorProto.INT32, [2, 3], range(6)),
        helper.make_tensor("yes", BOOL, [2, 3], [True] * 6),
        helper.make_tensor("half", TensorProto.FLOAT16, [2], [1, 2]),
    ]
    graph = read(tmp_path, model([node("Relu", ["x"], ["y"])], [X], [Y], made))
    assert sizes(graph) == [
        ("w", 12, "parameter"),
        ("layers.experts.0.up", 12, "expert"),
        ("myexperts", 12, "parameter"),
        ("ids", 48, "buffer"),
        ("whole", 24, "buffer"),
        ("yes", 6, "buffer"),
        ("half", 4, "parameter"),
        ("x", 24, "input"),
        ("y", 24, "output"),
    ]


def test_a_gather_reads_only_what_it_takes(tmp_path: Path) -> None:
    ids = value("ids", INT, 2)
    for operator, made in (("Gather", 2 * 4 * 4), ("GatherElements", 8)):
        index = [ids] if operator == "Gather" else [value("ids", INT, 2, 1)]
        axis = {"axis": 0} if operator == "Gather" else {"axis": 1}
        graph = read(
            tmp_path,
            model(
                [node(operator, ["w", "ids"], ["y"], **axis)], index, [Y], [weight("w", 1000, 4)]
            ),
        )
        assert [(op.kind, op.bytes_accessed) for op in graph.ops] == [("gather", 2 * made + 16)]
    nodes = [node("Slice", ["x", "starts", "ends"], ["y"])]
    graph = read(
        tmp_path,
        model(nodes, [value("x", FLOAT, 100, 4)], [Y], [numbers("starts", 0), numbers("ends", 10)]),
    )
    assert [op.bytes_accessed for op in graph.ops] == [2 * 160]


def test_constants_in_nodes(tmp_path: Path) -> None:
    nodes = [
        node("Constant", [], ["a"], value=helper.make_tensor("", FLOAT, [2, 3], range(6))),
        node("Constant", [], ["b"], value_float=2.0),
        node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0]),
        node("Constant", [], ["d"], value_int=1),
        node("Constant", [], ["to"], value_ints=[3, 2]),
        node("Add", ["x", "a"], ["e"]),
        node("Mul", ["e", "b"], ["f"]),
        node("Add", ["f", "c"], ["g"]),
        node("Cast", ["d"], ["h"], to=FLOAT),
        node("Add", ["g", "h"], ["i"]),
        node("Reshape", ["i", "to"], ["y"]),
        node("Relu", ["y"], ["z"]),
    ]
    graph = read(tmp_path, model(nodes, [X], [helper.make_empty_tensor_value_info("z")]))
    assert uses(graph) == [
        ("elementwise", ["x", "a"], ["e"]),
        ("elementwise", ["e"], ["f"]),
        ("elementwise", ["f", "c"], ["g"]),
        ("elementwise", ["g"], ["i"]),
        ("elementwise", ["i"], ["z"]),
    ]
    assert graph.meta["shapes"]["z"] == [3, 2]
    assert [t for t in sizes(graph) if t[0] in "ac"] == [
        ("a", 24, "parameter"),
        ("c", 12, "parameter"),
    ]


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        (
            node("Constant", [], ["a", "b"], name="n", value_int=1),
            "n: a constant has one output and one value",
        ),
        (node("Constant", [], ["a"], name="n"), "n: a constant has one output and one value"),
        (
            node("Constant", [], ["a"], name="n", value_int=1, value_float=2.0),
            "n: a constant has one output and one value",
        ),
        (
            node("Constant", [], ["a"], name="n", value_string="s"),
            "n: a constant with 'value_string' cannot be imported; expected a tensor or ",
        ),
        (
            node("Scan", ["x"], ["a"], name="n"),
            "n: operator Scan is a loop over a graph; export the model unrolled, without it",
        ),
        (node("If", ["x"], ["a"], name="n"), "n: an If has one condition and two branches"),
        (
            node("Relu", ["q"], ["a"], name="n" * 250),
            f"{'n' * 200}: uses 'q' before any node makes it; export the model again",
        ),
        (
            node("Relu", ["q" * 120], ["a"]),
            f"Relu_0: uses '{'q' * 100}' before any node makes it; export the model again",
        ),
        (
            node("Mine", ["x"], ["a"], body=helper.make_graph([], "g", [], [])),
            "Mine_0: operator Mine is a loop over a graph; export the model unrolled, without it",
        ),
        (
            node("MatMul", ["x", "x"], ["a"], name="n"),
            "n: shapes of operator MatMul do not fit: [ShapeInferenceError] ",
        ),
        (
            node("NonZero", ["x"], ["a"]),
            "NonZero_0: the shape of what operator NonZero returns is not known without data; "
            "export the model",
        ),
    ],
)
def test_nodes_that_are_refused(tmp_path: Path, some: object, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, model([some, node("Relu", ["x"], ["y"])], [X], [Y]))
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: {expected}")


def test_graphs_that_are_refused(tmp_path: Path) -> None:
    relu = [node("Relu", ["x"], ["y"])]
    sparse = helper.make_graph(relu, "g", [X], [Y])
    sparse.sparse_initializer.add().values.name = "s" * 120
    dims = [value("x", FLOAT, "n", None, "?")]
    free = (
        "dimensions without a size: n, x[1], x[2]; give them: hosim import MODEL --dim n=1 "
        "--dim 'x[1]=1' --dim 'x[2]=1' -o FILE"
    )
    cases = [
        (
            helper.make_model(sparse).SerializeToString(),
            {},
            f"{'s' * 100}: sparse initializers cannot be imported; export the model with dense "
            "ones",
        ),
        (
            model(relu, [helper.make_empty_tensor_value_info("x")], [Y]),
            {},
            "input 'x' is not a tensor with a shape; export the model with one",
        ),
        (model(relu, [X], [Y]), {"n": 1}, "the model has no dimension 'n'; it has no free ones"),
        (
            model(relu, dims, [Y]),
            {"m": 1},
            "the model has no dimension 'm'; its free ones are: n, x[1], x[2]",
        ),
        (
            model(relu, dims, [Y]),
            {"n": -1},
            "the size of a dimension is a whole number of at least 0",
        ),
        (
            model(relu, dims, [Y]),
            {"n": 1 << 60},
            "the size of a dimension is a whole number of at least 0",
        ),
        (model(relu, dims, [Y]), {}, free),
        (
            model(relu, [value("x", FLOAT, -1)], [Y]),
            {},
            free.replace("n, ", "").replace("[1], x[2]", "[0]")[:41],
        ),
        (
            model(relu, [X], [Y, helper.make_empty_tensor_value_info("z")]),
            {},
            "output 'z' has no node that makes it; export the model again",
        ),
    ]
    for content, sized, expected in cases:
        with pytest.raises(InputError) as caught:
            read(tmp_path, content, **sized)
        assert str(caught.value).startswith(f"{tmp_path / 'x'}: {expected}")


def test_versions_of_operators(tmp_path: Path) -> None:
    """The default domain has two names; a version from the future is read as the latest that is
    known.
    """
    for opset in (helper.make_opsetid("ai.onnx", 20), helper.make_opsetid("", 1 << 40)):
        content = onnx.ModelProto.FromString(model([node("Gelu", ["x"], ["y"])], [X], [Y]))
        content.opset_import[0].CopyFrom(opset)
        assert sizes(read(tmp_path, content.SerializeToString())) == [
            ("x", 24, "input"),
            ("y", 24, "output"),
        ]
    content.opset_import[0].CopyFrom(helper.make_opsetid("ai.onnx", 19))
    with pytest.raises(InputError, match="the shape of what operator Gelu returns is not known"):
        read(tmp_path, content.SerializeToString())


def test_an_initializer_that_is_also_an_input(tmp_path: Path) -> None:
    """Older exporters list every initializer among the inputs, where their sizes may be free."""
    graph = read(
        tmp_path,
        model([node("Add", ["x", "w"], ["y"])], [X, value("w", FLOAT, "n")], [Y], [weight("w", 3)]),
    )
    assert sizes(graph) == [("w", 12, "parameter"), ("x", 24, "input"), ("y", 24, "output")]


def test_shapes_that_the_exporter_wrote_hold_only_for_its_own_sizes(tmp_path: Path) -> None:
    some = [node("Mine", ["x"], ["a"], domain="my"), node("Relu", ["a"], ["y"])]
    content = model(some, [X], [Y], opsets=[helper.make_opsetid("my", 1)])
    stated = onnx.ModelProto.FromString(content)
    stated.graph.value_info.append(value("a", FLOAT, 7))
    assert [t[1] for t in sizes(read(tmp_path, stated.SerializeToString()))] == [24, 28, 28]
    stated.graph.input[0].CopyFrom(value("x", FLOAT, "n", 3))
    with pytest.raises(InputError, match="operator Mine returns is not known"):
        read(tmp_path, stated.SerializeToString(), n=2)


def way(name: str, *operators: str, out: int | None = None) -> object:
    names = ["x", *(f"{name}{i}" for i in range(len(operators)))]
    nodes = [node(o, [a], [b]) for o, a, b in zip(operators, names, names[1:], strict=False)]
    shape = (
        [value(names[-1], FLOAT, out)] if out else [helper.make_empty_tensor_value_info(names[-1])]
    )
    return helper.make_graph(nodes, name, [], shape)


@pytest.mark.parametrize(("chosen", "expected"), [(True, ["a0"]), (False, ["b0", "b1"])])
def test_a_branch_that_is_known(tmp_path: Path, chosen: bool, expected: list[str]) -> None:
    nodes = [
        node(
            "If",
            ["c"],
            ["y"],
            name="if",
            then_branch=way("a", "Relu"),
            else_branch=way("b", "Exp", "Tanh"),
        )
    ]
    graph = read(tmp_path, model(nodes, [X], [Y], [helper.make_tensor("c", BOOL, [1], [chosen])]))
    assert [made for _, _, (made,) in uses(graph)] == expected
    assert [op.name for op in graph.ops] == [
        f"if/{kind}" for kind in (["Relu_0"] if chosen else ["Exp_0", "Tanh_1"])
    ]


def test_branches_without_a_condition(tmp_path: Path) -> None:
    """An empty name is an input left out: nothing says which branch it is, as where the data
    decide.
    """
    nodes = [
        node("If", [""], ["y"], then_branch=way("a", "Relu"), else_branch=way("b", "Exp", "Tanh"))
    ]
    graph = read(tmp_path, model(nodes, [X], [Y]))
    assert [made for _, _, (made,) in uses(graph)] == ["b0", "b1"]


def test_branches_by_their_work(tmp_path: Path) -> None:
    """More FLOP counts before more bytes; what a branch declares holds inside it alone; a constant
    of the other is not there.
    """
    product = helper.make_graph(
        [node("MatMul", ["x", "w"], ["p"])], "p", [], [Y], [weight("w", 3, 1)]
    )
    product.output[0].name = "p"
    long = way("b", "Exp", "Tanh", "Exp", "Tanh")
    nodes = [
        node("If", ["c"], ["y"], then_branch=product, else_branch=long),
        node("Relu", ["y"], ["z"]),
    ]
    graph = read(
        tmp_path, model(nodes, [X, value("c", BOOL)], [helper.make_empty_tensor_value_info("z")])
    )
    assert uses(graph) == [("matmul", ["x", "w"], ["p"]), ("elementwise", ["p"], ["z"])]
    (line,) = graph.meta["missing"]
    assert facts(line, "FLOP") == "1, FLOP"
    for one in ("then_branch", "else_branch"):
        mine = helper.make_graph(
            [node("Mine", ["x"], ["m"], domain="my")], "m", [], [value("m", FLOAT, 9)]
        )
        ways = {"then_branch": way("a", "Relu"), "else_branch": way("b", "Relu"), one: mine}
        nodes = [node("If", ["c"], ["y"], **ways), node("Mine", ["x"], ["m"], domain="my")]
        with pytest.raises(
            InputError, match="Mine_1: the shape of what operator Mine returns is not known"
        ):
            read(
                tmp_path,
                model(nodes, [X, value("c", BOOL)], [Y], opsets=[helper.make_opsetid("my", 1)]),
            )


def images(**more: object) -> bytes:
    """Images of free height and width, flattened before a product with a matrix of 3 * 4 * 4
    rows.
    """
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Flatten", ["r"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["y"]),
    ]
    return model(
        nodes,
        [value("x", FLOAT, "batch", 3, "height", "width")],
        [value("y", FLOAT, "batch", 10)],
        [weight("w", 48, 10)],
        **more,
    )


def test_sizes_that_do_not_fit_are_answered_with_those_that_the_file_fixes(tmp_path: Path) -> None:
    assert len(read(tmp_path, images(), batch=1, height=4, width=4).ops) == 2  # Flatten is a view
    with pytest.raises(InputError) as caught:
        read(tmp_path, images(), batch=1, height=1, width=1)
    said = str(caught.value)
    assert "shapes of operator Gemm do not fit" in said
    assert (
        "give sizes that fit what the file fixes: 'w' is [48, 10] in the file, 'x' [batch, 3, "
        "height, width], 'y' [batch, 10]" in said
    )


def test_what_the_file_says_of_the_value_itself_comes_first(tmp_path: Path) -> None:
    content = onnx.ModelProto.FromString(images())
    content.graph.value_info.append(value("flat", FLOAT, "batch", 48))
    with pytest.raises(
        InputError,
        match=r"fixes: 'flat' is \[1, 3\], in the file \[batch, 48\], 'w' is \[48, 10\] in the "
        r"file$",
    ):
        read(tmp_path, content.SerializeToString(), batch=1, height=1, width=1)
