"""Files with packed weights: ONNX with DequantizeLinear, and programs of torch with GPTQ's tensors
and torchao's ops.
"""

from math import prod

import pytest
from quick_cases import one_in

from hosim.io import load_any

PACKED = {"INT4": 4, "UINT4": 4, "INT8": 8, "UINT8": 8, "FLOAT8E4M3FN": 8}
"""Element types, and their bits."""


@pytest.mark.parametrize(
    ("element", "block"), one_in(4, [(element, block) for block in (32, 0) for element in PACKED])
)
def test_onnx_holds_what_its_initializers_hold(tmp_path, element, block):
    """A product [4, 256] x [256, 128] whose weight has a scale and a zero for each column, or for
    each 32 rows of it.
    """
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, getattr(onnx.TensorProto, element)
    scales = (8, 128) if block else (128,)

    def packed(name, shape):
        return helper.make_tensor(
            name, kind, shape, bytes(prod(shape) * PACKED[element] // 8), raw=True
        )

    held = [
        packed("w", (256, 128)),
        helper.make_tensor(
            "s", onnx.TensorProto.FLOAT16, scales, bytes(2 * prod(scales)), raw=True
        ),
    ]
    held.append(packed("z", scales))
    how = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], **how),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, shape)]
        for name, shape in (("x", (4, 256)), ("y", (4, 128)))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends, held),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "packed.onnx")
    graph = load_any(tmp_path / "packed.onnx")
    sizes = {t.name: t.size_bytes for t in graph.tensors if t.kind == "parameter"}
    assert sizes == {t.name: len(t.raw_data) for t in held}
    unpacked, product = graph.ops
    # it reads what the file holds, and writes the weight in 16 bits, which the product reads
    assert unpacked.bytes_accessed == sum(sizes.values()) + 2 * 256 * 128
    assert (product.flops, product.kernel, product.bytes_accessed) == (
        2 * 4 * 256 * 128,
        "gemm",
        2 * (4 * 256 + 256 * 128 + 4 * 128),
    )


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def exported(torch, module, path, *args):
    program = torch.export.export(module, args, strict=False)
    torch.export.save(program, path)
    return sum(t.numel() * t.element_size() for t in program.state_dict.values())


@pytest.mark.long
def test_gptqs_tensors_are_parameters(torch, tmp_path):
    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("qweight", torch.zeros(32, 128, dtype=torch.int32))
            self.register_buffer("qzeros", torch.zeros(2, 16, dtype=torch.int32))
            self.register_buffer("scales", torch.zeros(2, 128, dtype=torch.float16))
            self.register_buffer("g_idx", torch.arange(256, dtype=torch.int32) // 128)
            self.register_buffer(
                "shifts", torch.arange(0, 32, 4, dtype=torch.int32), persistent=False
            )

        def forward(self, x):
            zeros = ((self.qzeros[:, :, None] >> self.shifts) & 15).reshape(2, 128) + 1
            weight = ((self.qweight[:, None, :] >> self.shifts[:, None]) & 15).reshape(256, 128)
            return x @ (self.scales[self.g_idx] * (weight - zeros[self.g_idx]))

    held = exported(
        torch, Packed(), tmp_path / "gptq.pt2", torch.zeros(4, 256, dtype=torch.float16)
    )
    graph = load_any(tmp_path / "gptq.pt2")
    assert (
        sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")
        == held
        == 256 * 128 // 2 + 2 * 64 + 2 * 256 + 4 * 256
    )
    assert [(op.kind, op.flops) for op in graph.ops][-1] == ("matmul", 2 * 4 * 256 * 128)
    assert graph.meta.get("unknown_ops") is None


SCHEMAS = {
    "choose_qparams_affine": """(Tensor? input, str mapping_type, SymInt[] block_size, ScalarType target_dtype, Scalar? quant_min=None,
        Scalar? quant_max=None, float? eps=None, ScalarType? scale_dtype=None, ScalarType? zero_point_dtype=None, bool keepdim=False)
        -> (Tensor, Tensor)""",
    "quantize_affine": """(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype,
        Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor""",
    "dequantize_affine": """(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype,
        Scalar? quant_min=None, Scalar? quant_max=None, ScalarType output_dtype=6) -> Tensor""",
}
"""As torchao 0.18 registers them."""


def test_torchaos_ops_are_read_without_it(torch, tmp_path):
    """Weights of 4 bits in int8, as IntxWeightOnlyConfig has them, and tokens rounded to int8 with
    a scale each.
    """

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(
                torch.zeros(128, 256, dtype=torch.int8), requires_grad=False
            )
            self.scale = torch.nn.Parameter(
                torch.zeros(128, 8, dtype=torch.bfloat16), requires_grad=False
            )

        def forward(self, x):
            scale, zero = ao.choose_qparams_affine(
                x,
                "SYMMETRIC",
                [1, 256],
                torch.int8,
                -128,
                127,
                1e-7,
                torch.float32,
                torch.int8,
                True,
            )
            rounded = ao.quantize_affine(x, [1, 256], scale, zero, torch.int8, -128, 127)
            weight = ao.dequantize_affine(
                self.weight,
                [1, 32],
                self.scale,
                None,
                torch.int8,
                -8,
                7,
                output_dtype=torch.bfloat16,
            )
            return rounded.to(torch.bfloat16) @ weight.t() * scale

    if hasattr(torch.ops.torchao, "quantize_affine"):
        pytest.skip("torchao is loaded")
    with torch.library._scoped_library("torchao", "FRAGMENT") as library:
        for name, schema in SCHEMAS.items():
            library.define(name + " ".join(schema.split()))
        ao = torch.ops.torchao
        library.impl(
            "choose_qparams_affine",
            lambda x, *a: (x.new_empty(4, 1, dtype=a[6]), x.new_empty(4, 1, dtype=a[7])),
            "Meta",
        )
        library.impl(
            "quantize_affine",
            lambda x, block, scale, zero, dtype, *a: torch.empty_like(x, dtype=dtype),
            "Meta",
        )
        library.impl("dequantize_affine", lambda x, *a: torch.empty_like(x, dtype=a[-1]), "Meta")
        held = exported(
            torch, Packed(), tmp_path / "ao.pt2", torch.zeros(4, 256, dtype=torch.bfloat16)
        )
    graph = load_any(tmp_path / "ao.pt2")
    assert (
        sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")
        == held
        == 128 * 256 + 2 * 128 * 8
    )
    assert graph.meta.get("unknown_ops") is None
    read = {op.name: (op.kind, op.bytes_accessed) for op in graph.ops}
    assert read["choose_qparams_affine"] == ("reduction", 2 * 4 * 256 + 4 * 4 + 4)
    assert read["quantize_affine"] == ("elementwise", 2 * 4 * 256 + 4 * 4 + 4 + 4 * 256)
    assert read["dequantize_affine"] == ("elementwise", held + 2 * 128 * 256)


@pytest.mark.parametrize(
    ("library", "schema"),
    [
        ("aten", ""),
        ("mslk", "(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor"),
        pytest.param(
            "fbgemm",
            "(Tensor X, Tensor WQ, Tensor w_scale, Tensor w_zp) -> Tensor",
            marks=pytest.mark.long,
        ),
    ],
)
def test_products_of_torchaos_int4_are_read_without_it(torch, tmp_path, library, schema):
    """Weights as torchao 0.18 keeps and multiplies them: in tiles, of columns padded to 1,024, and
    plain, by an op that is not torch's own.

    ``Int4WeightOnlyConfig`` with ``int4_packing_format="tile_packed_to_4d"`` and ``"plain"``,
    exported after ``unwrap_tensor_subclass``.
    """
    tiles = {"weight": ((16, 8, 32, 4), torch.int32), "scale": ((32, 128, 2), torch.bfloat16)}
    plain = {
        "weight": ((128, 128), torch.int8),
        "scale": ((8, 128), torch.bfloat16),
        "zero": ((8, 128), torch.bfloat16),
    }

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, (shape, dtype) in (plain if schema else tiles).items():
                setattr(
                    self,
                    name,
                    torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False),
                )

        def forward(self, x):
            if schema:
                return getattr(torch.ops, library).bf16i4bf16_rowwise(
                    x, self.weight, self.scale, self.zero
                )
            padded = torch.nn.functional.pad(x, (0, 768))
            return torch.ops.aten._weight_int4pack_mm(padded, self.weight, 32, self.scale)[:, :128]

    with torch.library._scoped_library(library, "FRAGMENT") as defined:
        if schema:
            if hasattr(getattr(torch.ops, library), "bf16i4bf16_rowwise"):
                pytest.skip(f"{library} is loaded")
            defined.define(f"bf16i4bf16_rowwise{schema}")
            defined.impl(
                "bf16i4bf16_rowwise",
                lambda x, weight, *_: x.new_empty(x.shape[0], weight.shape[0]),
                "Meta",
            )
        held = exported(
            torch, Packed(), tmp_path / "int4.pt2", torch.zeros(4, 256, dtype=torch.bfloat16)
        )
    graph = load_any(tmp_path / "int4.pt2")
    wide = 256 if schema else 1024  # the kernel multiplies by the padding, too
    assert (
        sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")
        == held
        == 128 * wide // 2 + 2 * 2 * 128 * wide // 32
    )
    assert graph.meta.get("unknown_ops") is None
    product = graph.ops[-1]
    assert (product.kind, product.dtype, product.flops) == ("matmul", "bf16", 2 * 4 * 128 * wide)
    assert product.bytes_accessed == held + 2 * 4 * wide + 2 * 4 * 128
