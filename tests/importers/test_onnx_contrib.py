"""Operators of onnxruntime: the shapes of their results and their FLOP, by hand; and a model that
its generator wrote.
"""

from pathlib import Path

import pytest
from onnx import helper
from onnx_toys import FLOAT, model, read, value, weight

from hosim.data.unknown_ops import unknown_ops
from hosim.io import load_any
from hosim.io.importers.onnx import ContribCall, contrib

X = (2, 5, 32)
"""Two sequences of 5 tokens, 32 wide: 8 heads of 4."""
KV = (2, 5, 8)
"""Keys or values of 2 heads."""
PAST = (2, 2, 7, 4)
HEADS = {"num_heads": 8}
GROUPS = {**HEADS, "kv_num_heads": 2}
ALL_KEYS = 2 * 2 * 8 * 5 * 5 * (4 + 4)
"""Both products of attention of X to itself."""


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "made", "flops"),
    [
        (
            "MatMulNBits",
            (X, (48, 1, 16), (48,)),
            {"K": 32, "N": 48, "bits": 4},
            (2, 5, 48),
            2 * 10 * 48 * 32,
        ),
        ("FusedMatMul", ((3, 5, 4), (4, 6)), {}, (3, 5, 6), 2 * 90 * 4),
        ("FusedMatMul", ((3, 4, 5), (6, 4)), {"transA": 1, "transB": 1}, (3, 5, 6), 2 * 90 * 4),
        ("DynamicQuantizeMatMul", ((5, 4), (4, 6), ()), {}, (5, 6), 2 * 30 * 4),
        ("Attention", (X, (32, 96), (96,)), HEADS, X, 2 * 10 * 96 * 32 + ALL_KEYS),
        (
            "Attention",
            (X, (32, 64), (64,)),
            {**HEADS, "qkv_hidden_sizes": [16, 16, 32]},
            X,
            2 * 10 * 64 * 32 + 2 * 2 * 8 * 25 * (2 + 4),
        ),
        (
            "Attention",
            (X, (32, 96), (96,), None, (2, 2, 8, 7, 4)),
            HEADS,
            X,
            2 * 10 * 96 * 32 + ALL_KEYS * 12 // 5,
        ),
        (
            "QAttention",
            (X, (32, 96), (96,), (), (), None, None, None, (2, 2, 8, 7, 4)),
            HEADS,
            X,
            2 * 10 * 96 * 32 + ALL_KEYS * 12 // 5,
        ),
        ("MultiHeadAttention", (X, X, X), HEADS, X, ALL_KEYS),
        ("MultiHeadAttention", ((2, 5, 8, 3, 4),), HEADS, X, ALL_KEYS),
        (
            "MultiHeadAttention",
            (X, (2, 8, 9, 4), (2, 8, 9, 6)),
            HEADS,
            (2, 5, 48),
            2 * 2 * 8 * 5 * 9 * (4 + 6),
        ),
        ("GroupQueryAttention", (X, KV, KV), GROUPS, X, ALL_KEYS),
        ("GroupQueryAttention", (X, KV, KV, PAST, PAST, (2,), ()), GROUPS, X, ALL_KEYS * 12 // 5),
        (
            "GroupQueryAttention",
            ((2, 5, 48), None, None, PAST, PAST),
            GROUPS,
            X,
            ALL_KEYS * 12 // 5,
        ),
        # two of four experts, each with a matrix to 6 (twice: the gate's) and one back
        (
            "MoE",
            (X, (10, 4), (4, 12, 32), None, (4, 32, 6)),
            {"k": 2},
            X,
            2 * 10 * 2 * (12 * 32 + 32 * 6),
        ),
        (
            "QMoE",
            (X, (10, 4), (4, 12, 16), (4, 12), None, (4, 32, 3), (4, 32)),
            {"k": 2},
            X,
            2 * 10 * 2 * (12 * 32 + 32 * 6),
        ),
        ("SkipSimplifiedLayerNormalization", (X, X, (32,)), {}, X, 0),
        ("EmbedLayerNormalization", ((2, 5), None, (99, 32)), {}, X, 0),
        ("GatherBlockQuantized", ((99, 16), (2, 5), (99, 1)), {"block_size": 32}, X, 0),
        ("BiasSplitGelu", (X, (32,)), {}, (2, 5, 16), 0),
        ("BiasGelu", (X, (32,)), {}, X, 0),
    ],
)
def test_shapes_and_flop(
    operator: str, inputs: tuple, attributes: dict, made: tuple[int, ...], flops: int
) -> None:
    answer = contrib(operator, ContribCall(inputs, attributes))
    assert answer is not None
    assert (answer[0][0], answer[1]) == (made, flops)


def test_keys_and_values_of_all_tokens() -> None:
    answer = contrib("GroupQueryAttention", ContribCall((X, KV, KV, PAST, PAST), GROUPS))
    assert answer is not None
    assert list(answer[0][1:]) == [(2, 2, 12, 4)] * 2


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("NoSuch", (X,), {}),
        ("MatMulNBits", (X,), {"K": 32}),
        ("MatMulNBits", (X,), {"K": 32, "N": -1}),
        ("FusedMatMul", ((3, 5, 4), (5, 6)), {}),
        ("FusedMatMul", ((3, 5, 4), (2, 4, 6)), {}),
        ("FusedMatMul", ((3, 5, 4), (4,)), {}),
        ("Attention", (X, (32, 96)), {}),
        ("Attention", (X, (32, 96)), {"num_heads": 0}),
        ("Attention", (X, (32, 96)), {**HEADS, "qkv_hidden_sizes": [1, 2]}),
        ("MultiHeadAttention", (X,), HEADS),
        ("GroupQueryAttention", ((2, 32), KV, KV), GROUPS),
        ("QMoE", (X, (10, 4), (4, 12)), {}),
        ("BiasGelu", (), {}),
    ],
)
def test_what_its_definition_does_not_have(operator: str, inputs: tuple, attributes: dict) -> None:
    assert contrib(operator, ContribCall(inputs, attributes)) is None


def test_a_model_of_the_generator() -> None:
    """A llama of two layers in 4 bits by ``onnxruntime_genai.models.builder -p int4 -e cpu``
    (onnxruntime-genai 0.18).

    Torch's counter says 75,776,000 FLOP of the model in ``exported_models`` that it was made from,
    for 4 prompts of 100 tokens.
    """
    sizes = {
        "batch_size": 4,
        "sequence_length": 100,
        "total_sequence_length": 100,
        "past_sequence_length": 0,
        "kv_cache_dim": 16,
    }
    path = Path(__file__).parent / "data" / "onnx_genai_llama.onnx.gz"
    graph = load_any(path, sizes)
    assert sum(op.flops for op in graph.ops) == 75_776_000
    assert unknown_ops(graph) is None
    one = load_any(path, {**sizes, "sequence_length": 1, "past_sequence_length": 99})
    assert (
        sum(op.flops for op in one.ops if op.kind == "attention")
        == sum(op.flops for op in graph.ops if op.kind == "attention") // 100
    )
    assert sum(op.flops for op in one.ops) == 75_776_000 // 100


def test_an_operator_of_somebody_else_is_unknown(tmp_path: Path) -> None:
    """It takes 24 and 12 elements and gives 24; the Relu takes and gives as many."""
    nodes = [
        helper.make_node("Strange", ["x", "w"], ["y"], domain="their.own"),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    whole = model(
        nodes,
        [value("x", FLOAT, 2, 12)],
        [value("y", FLOAT, 2, 12), value("z", FLOAT, 2, 12)],
        [weight("w", 12)],
    )
    found = unknown_ops(read(tmp_path, whole))
    assert found is not None
    assert (found.ops, found.bytes_share, found.kinds) == (1, 60 / (60 + 48), ("strange",))
    assert str(found) == "1 op of unknown FLOP (strange; 56 % of the bytes), timed by bytes alone"


def test_what_does_something_more_has_the_shape_of_the_plain_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "FusedConv",
            ["x", "w"],
            ["y"],
            domain="com.microsoft",
            activation="Relu",
            pads=[1, 1, 1, 1],
        )
    ]
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    graph = read(
        tmp_path,
        model(
            nodes,
            [value("x", FLOAT, "n", 3, 8, 8)],
            [value("y", FLOAT, "n", 4, 8, 8)],
            [weight("w", 4, 3, 3, 3)],
            opsets=opsets,
        ),
        n=2,
    )
    assert [op.flops for op in graph.ops] == [2 * (2 * 4 * 8 * 8) * 27]
