"""What each part of a MindIR file is read as, and what each node of it becomes, written by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from mindir_toys import (
    WRITES,
    attribute,
    constant,
    floats,
    mindir,
    number,
    parameter,
    primitive,
    text,
    value,
    varint,
)

from hosim.errors import InputError
from hosim.formats import (
    Function,
    MindirModel,
    Named,
    Node,
    Shape,
    import_mindir,
    is_mindir,
    read_model,
)
from hosim.graph import Graph

F32, F64 = ("fp32", 32), ("fp64", 64)
BOOL, INT, FLOAT, DOUBLE, STRING, TENSOR, TUPLE, LIST, SCALAR = 9, 6, 1, 11, 8, 19, 20, 21, 39


def fixed(field: int, value: float) -> bytes:
    """A number of four bytes in field 2, of eight in field 4."""
    return varint(field << 3 | (5 if field == 2 else 1)) + struct.pack(
        "<f" if field == 2 else "<d", value
    )


def parts(*values: bytes) -> bytes:
    return b"".join(text(17, v) for v in values)


def file(main: bytes, *more: bytes) -> bytes:
    return (
        text(1, b"1.1")
        + text(2, b"MindSpore")
        + text(5, b"2.10.0")
        + text(7, main)
        + b"".join(more)
    )


def test_a_whole_file() -> None:
    pair = attribute(
        b"x", TUPLE, parts(attribute(b"", TENSOR, text(12, floats(2))), attribute(b"", SCALAR))
    )
    typed = attribute(
        b"shape", LIST, parts(attribute(b"", TENSOR, text(12, floats(4))), attribute(b"", TENSOR))
    )
    main = (
        text(2, b"main")
        + text(3, number(1, 2) + number(1, 3) + number(2, 17) + text(7, b"w"))
        + text(3, text(1, varint(4)) + number(2, 18) + text(7, b"q"))
        + text(5, text(1, b"one") + text(2, floats(5)))
        + text(5, text(1, b"two") + text(2, floats(5)) + text(2, floats(6)))
        + text(5, text(1, b"typed") + text(5, typed) + text(5, pair))
        + text(5, text(1, b"none"))
        + text(6, text(1, b"a"))
        + text(6, text(1, b"b"))
        + text(
            1,
            text(1, b"one")
            + text(1, b"w")
            + text(2, b"a")
            + text(4, b"REF::prim")
            + text(7, b"Default/net/a")
            + text(5, typed),
        )
        + text(
            1,
            text(1, b"a")
            + text(2, b"b")
            + text(3, b"named")
            + text(4, b"REF::fun")
            + text(7, b"-"),
        )
        + text(
            1, text(2, b"c") + text(4, b"ReLU") + text(5, attribute(b"flag", BOOL, number(3, 1)))
        )
    )
    kept = text(3, attribute(b"side_effect_mem", BOOL, number(3, 1))) + text(
        3, attribute(b"shape", INT, number(3, 1))
    )
    function, prim = text(8, text(2, b"fun")), text(12, text(1, b"prim") + text(2, b"Adam") + kept)
    read = read_model(
        file(text(2, b"another"), function, prim, text(7, main))
    )  # of two graphs the last is it
    shapes = (Shape((4,), F32), None)
    assert read == MindirModel(
        "2.10.0",
        Function(
            "main",
            [Named("w", Shape((2, 3), F64)), Named("q", Shape((4,), ("int4", 8)))],
            [
                Named("one", Shape((5,), F32)),
                Named("two", (Shape((5,), F32), Shape((6,), F32))),
                Named("typed", (Shape((2,), F32), None)),
                Named("none", None),
            ],
            ["a", "b"],
            [
                Node(
                    "net/a",
                    "Adam",
                    ["one", "w"],
                    "a",
                    None,
                    {"side_effect_mem": True},
                    shapes,
                    None,
                ),
                Node("named", "", ["a"], "b", "fun", {}, None, None),
                Node("", "ReLU", [], "c", None, {"flag": True}, None, None),
            ],
        ),
        {"fun": Function("fun", [], [], [], [])},
    )
    assert [node.writes for node in read.main.nodes] == [True, False, False]


def read_constant(kind: int, value: bytes = b"") -> object:
    (node,) = read_model(file(constant(b"c", kind, value))).main.nodes
    return node.value


def test_constants() -> None:
    assert [read_constant(BOOL, number(3, n)) for n in (0, 1)] == [False, True]
    assert [read_constant(BOOL, number(10, n)) for n in (0, 1)] == [False, True]
    assert read_constant(BOOL) is False
    for kind in (2, 3, 4, 5, 6, 7, 12, 13):
        minus = (1 << 64) - 3
        given = [
            number(3, minus),
            text(10, varint(minus) + varint(5)),
            number(3, 0) + number(10, 4),
            b"",
        ]
        assert [read_constant(kind, raw) for raw in given] == [-3, -3, 0, 0]
    assert read_constant(STRING, text(5, b"same")) == "same"
    assert [
        read_constant(FLOAT, raw) for raw in (fixed(2, 0.5), b"", fixed(4, 0.5), text(2, b"12"))
    ] == [0.5, 0.0, 0.0, 0.0]
    assert [read_constant(DOUBLE, raw) for raw in (fixed(4, 0.1), b"", fixed(2, 0.5))] == [
        0.1,
        0.0,
        0.0,
    ]
    one, two = (attribute(b"", INT, number(3, n)) for n in (1, 2))
    assert read_constant(TUPLE, parts(one, attribute(b"", LIST, parts(two)))) == (1, (2,))
    assert [
        read_constant(TENSOR, raw) for raw in (text(12, floats(2)), text(6, floats(3)), b"")
    ] == [
        Shape((2,), F32),
        Shape((3,), F32),
        None,
    ]
    assert [read_constant(kind, number(3, 1)) for kind in (0, 1 << 10, SCALAR)] == [None] * 3


@pytest.mark.parametrize("name", [b"shape", b"value"])
def test_how_deep_tuples_may_lie(name: bytes) -> None:
    def nested(levels: int) -> bytes:
        inside = attribute(b"", SCALAR)
        for _ in range(levels):
            inside = attribute(name, TUPLE, text(17, inside))
        return file(text(1, text(2, b"c") + text(4, b"Constant") + text(5, inside)))

    (node,) = read_model(nested(40)).main.nodes
    found = node.shape if name == b"shape" else node.value
    for _ in range(40):
        (found,) = found
    assert found is None
    with pytest.raises(
        InputError, match="damaged or cut off; expected protobuf of MindIR, export it again"
    ):
        read_model(nested(41))


def test_tensors_that_are_no_numbers(tmp_path: Path) -> None:
    name = b"n" * 120
    with pytest.raises(InputError) as caught:
        import_mindir(mindir(tmp_path, text(3, number(1, 2) + number(2, 8) + text(7, name))))
    assert (
        str(caught.value)
        == f"{tmp_path / 'x.mindir'}: tensor '{'n' * 100}' has the element type 8, which is not "
        "numeric"
    )


def test_what_is_a_mindir_file() -> None:
    head = text(1, b"1.1") + text(2, b"MindSpore")
    assert is_mindir(head + text(7, b""))
    assert is_mindir(text(1, b"1" * 43) + text(2, b"MindSpore") + b"\xff")
    for other in (
        b"",
        head[1:],
        text(1, b"1.1") + text(3, b"MindSpore"),
        head[:-1],
        text(1, b"1" * 60) + text(2, b"MindSpore"),
    ):
        assert not is_mindir(other)
    assert not is_mindir(text(1, b"1.1") + text(2, b"MindSpores"))
    assert not is_mindir(b"\x0a\x03MindSpore")


# ---- nodes


def graph_of(folder: Path, *parts: bytes, after: bytes = b"") -> Graph:
    path = mindir(folder, *parts)
    path.write_bytes(path.read_bytes() + after)
    return import_mindir(path)


def uses(graph: Graph) -> list[tuple[str, list[str], list[str], list[str]]]:
    def names(listed: tuple[int, ...]) -> list[str]:
        return [graph.tensors[t].name for t in listed]

    return [(op.kind, names(op.inputs), names(op.outputs), names(op.mutates)) for op in graph.ops]


OPTIMIZERS = {
    b"ApplyMomentum": ("01", 3),
    b"Adam": ("012", 9),
    b"FusedAdam": ("012", 9),
    b"AdamWeightDecay": ("012", 8),
    b"AdamW": ("012", 5),
    b"SGD": ("03", 1),
    b"ApplyAdagrad": ("01", 3),
    b"ApplyRMSProp": ("012", 4),
    b"ApplyGradientDescent": ("0", 2),
}


@pytest.mark.parametrize("operator", OPTIMIZERS)
def test_what_an_optimizer_overwrites(tmp_path: Path, operator: bytes) -> None:
    """Ten inputs, of which those it overwrites are parameters and all others were made."""
    places, gradient = OPTIMIZERS[operator]
    names = [b"p%d" % i if str(i) in places else b"a%d" % i for i in range(10)]
    nodes = [primitive(b"ReLU", [b"x"], 2, output=name) for name in names if name.startswith(b"a")]
    held = [parameter(name, 2) for name in names if name.startswith(b"p")]
    graph = graph_of(
        tmp_path, *held, value(5, b"x", 2), *nodes, primitive(operator, names, 2), value(6, b"y", 2)
    )
    kind, inputs, outputs, mutates = uses(graph)[-1]
    assert (kind, outputs, mutates) == ("optimizer", [], [f"p{i}" for i in places])
    assert inputs == [f"a{i}" for i in range(10) if str(i) not in places]
    kinds = {t.name: t.kind for t in graph.tensors}
    assert [kinds[f"p{i}"] for i in places] == [
        "parameter",
        *["optimizer_state"] * (len(places) - 1),
    ]
    assert [name for name, kind in kinds.items() if kind == "gradient"] == [f"a{gradient}"]


def test_an_optimizer_of_values_that_are_not_there(tmp_path: Path) -> None:
    """Its state came as numbers, so it makes a result like any op."""
    one, x = constant(b"one", INT, number(3, 1)), value(5, b"x", 3)
    made = primitive(b"SGD", [b"one", b"x"], 3, output=b"s")
    graph = graph_of(tmp_path, one, x, made, primitive(b"ReLU", [b"s"], 3), value(6, b"y", 3))
    assert uses(graph) == [("optimizer", ["x"], ["s"], []), ("elementwise", ["s"], ["y"], [])]
    short = graph_of(
        tmp_path,
        parameter(b"p", 2),
        primitive(b"ApplyGradientDescent", [b"p"], 2),
        value(6, b"y", 2),
    )
    assert uses(short) == [("optimizer", [], [], ["p"])]


def test_a_node_that_writes_its_parameters(tmp_path: Path) -> None:
    """A batch norm in training: what it takes directly is overwritten, what it takes through a Load
    is not.
    """
    parts = [
        parameter(b"p", 2),
        parameter(b"q", 2),
        value(5, b"x", 3),
        primitive(b"Load", [b"q"], 2, output=b"l"),
    ]
    some = [b"x", b"p", b"l"]
    graph = graph_of(
        tmp_path, *parts, primitive(b"BatchNorm", some, 3, attributes=WRITES), value(6, b"y", 3)
    )
    assert uses(graph) == [("norm", ["x", "q"], ["y"], ["p"])]
    assert [op.bytes_accessed for op in graph.ops] == [12 + 8 + 8 + 12 + 2 * 8]
    graph = graph_of(tmp_path, *parts, primitive(b"BatchNorm", some, 3), value(6, b"y", 3))
    assert [(sorted(inputs), made, written) for _, inputs, made, written in uses(graph)] == [
        (["p", "q", "x"], ["y"], [])
    ]


def test_a_node_that_makes_nothing_but_writes(tmp_path: Path) -> None:
    silent = text(1, text(1, b"p") + text(2, b"s") + text(4, b"BatchNorm") + WRITES)
    graph = graph_of(tmp_path, parameter(b"p", 2), silent, value(6, b"p"))
    assert uses(graph) == [("norm", [], [], ["p"])]
    assert [(op.flops, op.bytes_accessed) for op in graph.ops] == [(0, 24)]


def test_a_node_without_inputs_and_tensors_without_elements(tmp_path: Path) -> None:
    drawn = primitive(b"StandardNormal", [], 0, 4, output=b"r")
    graph = graph_of(
        tmp_path,
        value(5, b"x", 0, 4),
        drawn,
        primitive(b"Add", [b"x", b"r"], 0, 4),
        value(6, b"y", 0, 4),
    )
    assert uses(graph) == [
        ("standard_normal", [], ["r"], []),
        ("elementwise", ["x", "r"], ["y"], []),
    ]
    assert {t.size_bytes for t in graph.tensors} == {0}


def test_a_tuple_of_no_tensors(tmp_path: Path) -> None:
    """Arithmetic on sizes that returns several numbers is no op, and its items are nothing."""
    several = attribute(b"shape", TUPLE, parts(attribute(b"", SCALAR), attribute(b"", SCALAR)))
    sizes = text(1, text(1, b"x") + text(2, b"n") + text(4, b"DivMod") + text(5, several))
    item = text(1, text(1, b"n") + text(1, b"one") + text(2, b"i") + text(4, b"TupleGetItem"))
    listed = [value(5, b"x", 2), constant(b"one", INT, number(3, 1)), sizes, item]
    graph = graph_of(tmp_path, *listed, primitive(b"Tile", [b"x", b"i"], 4), value(6, b"y", 4))
    assert uses(graph) == [("copy", ["x"], ["y"], [])]


def test_a_constant_is_seen_in_all_functions(tmp_path: Path) -> None:
    function = text(
        8,
        text(2, b"f") + value(5, b"a", 4) + primitive(b"Add", [b"a", b"table"], 4) + value(6, b"y"),
    )
    call = text(1, text(1, b"x") + text(2, b"z") + text(4, b"REF::f"))
    table = constant(b"table", TENSOR, text(12, floats(4)))
    graph = graph_of(tmp_path, value(5, b"x", 4), call, table, value(6, b"z"), after=function)
    assert uses(graph) == [("elementwise", ["x", "table"], ["y"], [])]


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    again = text(
        1, text(1, b"a") + text(2, b"b") + text(4, b"REF::loop") + text(7, b"Default/inner")
    )
    loop = text(8, text(2, b"loop") + value(5, b"a", 2) + again + value(6, b"b"))
    with pytest.raises(InputError) as caught:
        graph_of(
            tmp_path,
            value(5, b"x", 2),
            text(1, text(1, b"x") + text(2, b"y") + text(4, b"REF::loop")),
            after=loop,
        )
    said = (
        "inner: function 'loop' calls itself: a loop over data, whose length is unknown; "
        "export it unrolled"
    )
    assert str(caught.value) == f"{tmp_path / 'x.mindir'}: {said}"


A, B, C = (5, 3), (5, 7), (3, 7)
IMAGE, KERNEL = (2, 6, 6, 6), (6, 3, 3, 3)


def flag(name: bytes) -> bytes:
    return text(5, attribute(name, BOOL, number(3, 1)))


@pytest.mark.parametrize(
    ("operator", "shapes", "made", "attributes", "expected"),
    [
        *(
            (name, (C, B[::-1]), (3, 5), b"", 2 * 15 * 7)
            for name in (b"MatMulExt", b"BatchMatMulExt", b"Mm", b"Dense", b"BMM")
        ),
        (b"MatMul", (A, B), C, flag(b"transpose_a"), 2 * 21 * 5),
        (b"MatMul", (A, B), C, flag(b"transpose_b"), 2 * 21 * 3),
        (b"MatMul", ((5,), B), (7,), flag(b"transpose_a"), 2 * 7 * 5),
        (b"MatMul", ((), B), (7,), b"", 0),
        (b"MatMul", (A,), C, b"", 0),
        *(
            (name, ((7,), (3, 5), (5, 7)), C, b"", 2 * 21 * 5)
            for name in (b"Addmm", b"Baddbmm", b"Addbmm")
        ),
        (b"Addmm", ((7,), (), (5, 7)), C, b"", 0),
        (b"Conv2DTranspose", (IMAGE, KERNEL), (2, 3, 8, 8), b"", 2 * 432 * 27),
        (b"Conv3DTranspose", (IMAGE, KERNEL), (2, 3, 8, 8), b"", 2 * 432 * 27),
        (b"Conv3DBackpropInput", (IMAGE, KERNEL), (2, 3, 8, 8), b"", 2 * 432 * 27),
        (b"Conv3DBackpropFilter", (IMAGE, (2, 3, 8, 8)), KERNEL, b"", 2 * 432 * 27),
        (b"Conv3D", ((2, 3, 8, 8), KERNEL), IMAGE, b"", 2 * 432 * 27),
        (b"FlashAttentionScore", ((2, 16, 32), (2, 24, 32)), (2, 16, 32), b"", 4 * 1024 * 24),
        (
            b"FlashAttentionScore",
            ((2, 16), (9, 24)),
            (2, 16),
            text(5, attribute(b"input_layout", STRING, text(5, b"TND"))),
            4 * 32 * 9,
        ),
        (
            b"FlashAttentionScore",
            ((2, 16), (9, 24)),
            (2, 16),
            text(5, attribute(b"input_layout", STRING, text(5, b"BNSD"))),
            0,
        ),
        (
            b"FlashAttentionScore",
            ((2, 16), (9, 24)),
            (2, 16),
            text(5, attribute(b"input_layout", STRING, text(5, b"?"))),
            4 * 32 * 24,
        ),
        (b"Relu", (A, A), A, b"", 0),
    ],
)
def test_flop(
    tmp_path: Path,
    operator: bytes,
    shapes: tuple,
    made: tuple[int, ...],
    attributes: bytes,
    expected: int,
) -> None:
    names = [b"i%d" % i for i in range(len(shapes))]
    given = [
        text(5, text(1, name) + text(2, floats(*shape)))
        for name, shape in zip(names, shapes, strict=True)
    ]
    graph = graph_of(
        tmp_path,
        *given,
        primitive(operator, names, *made, attributes=attributes),
        value(6, b"y", *made),
    )
    assert [op.flops for op in graph.ops] == [expected]


@pytest.mark.parametrize(
    ("operator", "shapes", "made", "expected"),
    [
        *(
            (name, (C, B[::-1]), (3, 5), ("gemm", (3, 5, 7)))
            for name in (b"MatMul", b"MatMulExt", b"Mm", b"Dense")
        ),
        (b"BatchMatMul", ((2, *C), (2, 7, 5)), (2, 3, 5), ("", ())),
        (b"Addmm", ((7,), (3, 5), (5, 7)), C, ("gemm", (3, 7, 5))),
        (b"Addmm", ((7,), (3, 5)), C, ("", ())),
        (b"Conv3D", ((2, 3, 8, 8), KERNEL), IMAGE, ("", ())),
    ],
)
def test_products_with_one_matrix_are_kernels(
    tmp_path: Path, operator: bytes, shapes: tuple, made: tuple[int, ...], expected: tuple
) -> None:
    names = [b"i%d" % i for i in range(len(shapes))]
    given = [
        text(5, text(1, name) + text(2, floats(*shape)))
        for name, shape in zip(names, shapes, strict=True)
    ]
    (op,) = graph_of(tmp_path, *given, primitive(operator, names, *made), value(6, b"y", *made)).ops
    assert (op.kernel, op.sizes) == expected


@pytest.mark.parametrize(
    ("operator", "transposed"), [(b"MatMul", True), (b"BatchMatMul", True), (b"MatMulExt", False)]
)
def test_a_product_whose_third_input_transposes(
    tmp_path: Path, operator: bytes, transposed: bool
) -> None:
    yes, no = constant(b"yes", BOOL, number(3, 1)), constant(b"no", BOOL)
    for first, wide in ((b"yes", 5 if transposed else 3), (b"no", 3)):
        product = primitive(operator, [b"a", b"b", first, b"yes"], *C)
        graph = graph_of(
            tmp_path, yes, no, value(5, b"a", *A), value(5, b"b", *B), product, value(6, b"y", *C)
        )
        assert [op.flops for op in graph.ops] == [2 * 21 * wide]


def test_views(tmp_path: Path) -> None:
    views = (
        b"Reshape",
        b"ExpandDims",
        b"Squeeze",
        b"Flatten",
        b"FlattenExt",
        b"Identity",
        b"ViewAs",
        b"View",
        b"Unsqueeze",
        b"SqueezeExt",
    )
    for operator in views:
        view = primitive(operator, [b"a"], 6, output=b"v")
        graph = graph_of(
            tmp_path, value(5, b"a", 2, 3), view, primitive(b"ReLU", [b"v"], 6), value(6, b"y", 6)
        )
        assert uses(graph) == [("elementwise", ["a"], ["y"], [])], operator
        grown = primitive(operator, [b"a"], 7, output=b"v")
        graph = graph_of(
            tmp_path, value(5, b"a", 2, 3), grown, primitive(b"ReLU", [b"v"], 7), value(6, b"y", 7)
        )
        assert [made for _, _, made, _ in uses(graph)] == [["v"], ["y"]], operator


@pytest.mark.parametrize(
    "operator",
    [
        b"Gather",
        b"GatherD",
        b"GatherNd",
        b"Embedding",
        b"EmbeddingLookup",
        b"IndexSelect",
        b"GatherV2",
    ],
)
def test_gathers_read_what_they_take(tmp_path: Path, operator: bytes) -> None:
    graph = graph_of(
        tmp_path,
        parameter(b"w", 100),
        value(5, b"i", 3),
        primitive(operator, [b"w", b"i"], 3),
        value(6, b"y", 3),
    )
    assert [op.bytes_accessed for op in graph.ops] == [12 + 12 + 12]


def test_what_is_no_op(tmp_path: Path) -> None:
    """Passes, silent nodes, tuples and their items, arithmetic on sizes, constants, calls with
    first arguments, a known switch.
    """
    no_shape = [
        b"UpdateState",
        b"Shape",
        b"DType",
        b"Rank",
        b"Size",
        b"TupleToTensor",
        b"ScalarToTensor",
        b"TensorShape",
        b"ScalarAdd",
    ]
    silent = [
        text(1, text(1, b"x") + text(2, b"s%d" % i) + text(4, name))
        for i, name in enumerate(no_shape)
    ]
    one, two = constant(b"one", INT, number(3, 1)), constant(b"two", INT, number(3, (1 << 64) - 1))
    function = text(
        8,
        text(2, b"f")
        + value(5, b"a", 2)
        + value(5, b"b", 2)
        + primitive(b"Sub", [b"a", b"b"], 2)
        + value(6, b"y"),
    )
    other = text(
        8,
        text(2, b"g")
        + value(5, b"a", 2)
        + value(5, b"b", 2)
        + primitive(b"Mul", [b"b", b"a"], 2)
        + value(6, b"y"),
    )
    for passes in (b"Load", b"Depend", b"StopGradient", b"InsertGradientOf"):
        for tuples, items in (
            (b"MakeTuple", b"TupleGetItem"),
            (b"make_tuple", b"tuple_getitem"),
            (b"MakeList", b"ListGetItem"),
        ):
            for switch, chosen, way in ((b"Switch", b"one", "f"), (b"switch", b"zero", "g")):
                nodes = [
                    primitive(passes, [b"x"], 2, output=b"l"),
                    primitive(tuples, [b"w", b"l"], 2, output=b"t"),
                    primitive(items, [b"t", b"one"], 2, output=b"i"),
                    primitive(items, [b"t", b"two"], 2, output=b"j"),
                    primitive(switch, [chosen, b"f", b"g"], 2, output=b"way"),
                    primitive(b"Partial", [b"way", b"i"], 2, output=b"part"),
                    text(1, text(1, b"w") + text(2, b"y") + text(4, b"REF::part")),
                ]
                parts = [
                    parameter(b"w", 2),
                    value(5, b"x", 2),
                    one,
                    two,
                    constant(b"zero", INT),
                    *silent,
                    *nodes,
                    value(6, b"y", 2),
                ]
                graph = graph_of(tmp_path, *parts, after=function + other)
                ((kind, inputs, made, written),) = uses(graph)
                assert (kind, written, len(made)) == ("elementwise", [], 1)
                assert inputs == (["x", "w"] if way == "f" else ["w", "x"])


def test_constants_that_are_tensors_and_names(tmp_path: Path) -> None:
    table = constant(b"22_1_net:table", TENSOR, text(12, floats(4)))
    scale = constant(b"scale", TENSOR, text(12, number(2, 1)))
    add = primitive(b"Add", [b"a", b"22_1_net:table", b"scale"], 4)
    held = [parameter(b"net:layers.experts.w", 2), parameter(b"net:my_experts", 2)]
    graph = graph_of(tmp_path, *held, value(5, b"a", 4), table, scale, add, value(6, b"y", 4))
    assert [(t.name, t.size_bytes, t.kind) for t in graph.tensors] == [
        ("layers.experts.w", 8, "expert"),
        ("my_experts", 8, "parameter"),
        ("a", 16, "input"),
        ("table", 16, "buffer"),
        ("y", 16, "output"),
    ]
    assert graph.meta == {
        "source": "MindIR",
        "mindspore": "",
        "durations": "not in the file; the cost model estimates them from FLOP and bytes",
        "workspaces": "not in the file",
        "sizes": "as exported; views share the tensor that they show",
        "shapes": {"layers.experts.w": [2], "my_experts": [2], "a": [4], "table": [4], "y": [4]},
    }


def test_a_function_of_other_arguments(tmp_path: Path) -> None:
    function = text(8, text(2, b"f" * 120) + value(5, b"a", 2) + value(6, b"a"))
    call = text(
        1,
        text(1, b"x")
        + text(1, b"x")
        + text(2, b"y")
        + text(4, b"REF::" + b"f" * 120)
        + text(7, b"here"),
    )
    with pytest.raises(InputError) as caught:
        graph_of(tmp_path, value(5, b"x", 2), call, value(6, b"y", 2), after=function)
    assert (
        str(caught.value)
        == f"{tmp_path / 'x.mindir'}: here: function '{'f' * 100}' takes 1 values, not 2"
    )


def test_a_choice_that_depends_on_data(tmp_path: Path) -> None:
    """Two functions of equal work: the first. A way that cannot be followed is left out; if none
    can, the first says why.
    """

    def way(name: bytes, *operators: bytes) -> bytes:
        nodes = [primitive(o, [b"a" if not i else b"y"], 2) for i, o in enumerate(operators)]
        return text(
            8,
            text(2, name)
            + value(5, b"a", 2)
            + b"".join(nodes)
            + value(6, b"y" if nodes else b"gone"),
        )

    def built(*ways: bytes) -> Graph:
        switch = primitive(b"Switch", [b"x", b"f", b"g"], 2, output=b"way")
        return graph_of(
            tmp_path,
            value(5, b"x", 2),
            switch,
            text(1, text(1, b"x") + text(2, b"y") + text(4, b"REF::way")),
            value(6, b"y"),
            after=b"".join(ways),
        )

    assert [op.kind for op in built(way(b"f", b"Softmax"), way(b"g", b"Tile")).ops] == ["softmax"]
    assert [op.kind for op in built(way(b"f", b"Softmax"), way(b"g", b"Tile", b"Tile")).ops] == [
        "copy",
        "copy",
    ]
    assert [op.kind for op in built(way(b"f"), way(b"g", b"Tile")).ops] == ["copy"]
    with pytest.raises(
        InputError, match=r"f: 'gone' is used before any node makes it; export the model again$"
    ):
        built(way(b"f"), way(b"g"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MatMulExt", "matmul"),
        ("QuickGelu", "quick_gelu"),
        ("ReLU", "elementwise"),
        ("LayerNormGrad", "norm"),
        ("NonZero", "non_zero"),
        ("CumSum", "reduction"),
        ("TopK", "sort"),
        ("Conv2DTranspose", "convolution"),
        ("Ext", "operator"),
        ("LSTM", "rnn"),
    ],
)
def test_kinds_of_operators(tmp_path: Path, name: str, kind: str) -> None:
    graph = graph_of(
        tmp_path, value(5, b"x", 2), primitive(name.encode(), [b"x"], 2), value(6, b"y")
    )
    assert [op.kind for op in graph.ops] == [kind]


def test_a_version_of_any_length_is_cut(tmp_path: Path) -> None:
    """A workload with a text of more than a thousand digits would not be read again."""
    path = tmp_path / "x.mindir"
    path.write_bytes(
        file(value(5, b"x", 2) + primitive(b"ReLU", [b"x"], 2) + value(6, b"y", 2)).replace(
            b"2.10.0", b"9" * 6
        )
    )
    assert import_mindir(path).meta["mindspore"] == "9" * 6
    long = text(1, b"1.1") + text(2, b"MindSpore") + text(5, b"9" * 2000)
    path.write_bytes(
        long + text(7, value(5, b"x", 2) + primitive(b"ReLU", [b"x"], 2) + value(6, b"y", 2))
    )
    assert import_mindir(path).meta["mindspore"] == "9" * 100
