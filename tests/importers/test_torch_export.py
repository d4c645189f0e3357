"""Small programs, each with one thing that an importer gets wrong easily. The peaks are compared
with a real run, too.
"""

import pytest

torch = pytest.importorskip("torch")

from live_storages import held_by_node  # noqa: E402
from torch import nn  # noqa: E402
from torch.fx.experimental.sym_node import SymNode  # noqa: E402
from wholes import wholes  # noqa: E402

from hosim.analysis import static_peak  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.graph import Graph  # noqa: E402
from hosim.io.importers import op_kind  # noqa: E402
from hosim.io.importers.torch_programs import import_exported  # noqa: E402

KIB = 1024


class Function(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def program_of(module, *args, **kwargs):
    module = module if isinstance(module, nn.Module) else Function(module)
    return torch.export.export(module, args, strict=False, **kwargs)


def graph_of(module, *args, **kwargs):
    """The graph of a module called with ``args``; its peak is that of a real run."""
    program = program_of(module, *args, **kwargs)
    graph = import_exported(program, name="test")
    assert isinstance(graph, Graph)
    assert static_peak(graph).bytes == max(held_by_node(program, dict(enumerate(args))).values())
    return graph


def tensor(graph, name):
    return graph.tensors[graph.tensor_index[name]]


def names(graph, positions):
    return [graph.tensors[t].name for t in positions]


def kinds(graph):
    return {t.name: t.kind for t in graph.tensors}


def test_one_op_in_full():
    graph = graph_of(nn.Linear(32, 64, bias=False), torch.rand(8, 32))
    assert kinds(graph) == {"weight": "parameter", "input": "input", "linear": "output"}
    (op,) = graph.ops
    assert (op.name, op.kind, op.dtype, op.workspace_bytes) == ("linear", "matmul", "fp32", 0)
    assert (names(graph, op.inputs), names(graph, op.outputs), op.mutates) == (
        ["input", "weight"],
        ["linear"],
        (),
    )
    assert op.flops == 2 * 8 * 32 * 64
    assert op.bytes_accessed == 4 * (8 * 32 + 32 * 64 + 8 * 64)
    assert [t.size_bytes for t in graph.tensors] == [4 * 32 * 64, 4 * 8 * 32, 4 * 8 * 64]
    assert graph.meta["shapes"] == {"weight": [64, 32], "input": [8, 32], "linear": [8, 64]}
    assert graph.meta["source"] == "torch.export"


def test_views_are_no_ops():
    def views(x):
        y = x * 2
        a, b = y.view(4, 64).t().split(2, dim=1)
        c = y.unsqueeze(0).expand(3, 16, 16).select(0, 1).permute(1, 0)[2:5].detach().squeeze()
        d, *_ = y.chunk(4)
        e, *_ = y.unbind(0)
        return a.sum() + b.sum() + c.sum() + d.sum() + e.sum()

    graph = graph_of(views, torch.rand(16, 16))
    assert {op.kind for op in graph.ops} == {"elementwise", "reduction"}
    assert sum(op.kind == "reduction" for op in graph.ops) == 5
    assert all(names(graph, op.inputs) == ["mul"] for op in graph.ops if op.kind == "reduction")
    assert tensor(graph, "mul").size_bytes == KIB


@pytest.mark.parametrize(
    ("reshaped", "copies"), [(lambda x: x.reshape(4, 64), 0), (lambda x: x.t().reshape(4, 64), 1)]
)
def test_reshape_copies_only_where_it_must(reshaped, copies):
    graph = graph_of(lambda x: reshaped(x * 2) + 1, torch.rand(16, 16))
    assert [op.kind for op in graph.ops] == ["elementwise"] + ["copy"] * copies + ["elementwise"]


@pytest.mark.parametrize(
    ("convert", "copies"), [(lambda x: x.to(torch.float32), 0), (lambda x: x.to(torch.float64), 1)]
)
def test_a_cast_to_the_same_dtype_is_no_op(convert, copies):
    graph = graph_of(lambda x: convert(x * 2) + 1, torch.rand(16, 16))
    assert sum(op.kind == "copy" for op in graph.ops) == copies
    assert graph.ops[-1].dtype == ("fp64" if copies else "fp32")


def test_contiguous_and_dropout_without_effect_are_no_ops():
    graph = graph_of(
        lambda x: nn.functional.dropout((x * 2).contiguous(), 0.5, training=False) + 1,
        torch.rand(16, 16),
    )
    assert len(graph.ops) == 2


def test_in_place_ops_mutate_the_base_of_a_view():
    def update(x):
        y = x * 2
        y[3:5].add_(1)
        y.view(-1).masked_fill_(y.view(-1) > 1, 0.0)
        y.index_put_((torch.tensor([0, 2]),), torch.ones(2, 16))
        y.copy_(x)
        return y

    graph = graph_of(update, torch.rand(16, 16))
    mutating = [op for op in graph.ops if op.mutates]
    assert [op.name.split("_")[0] for op in mutating] == ["add", "masked", "index", "copy"]
    assert all(names(graph, op.mutates) == ["mul"] and not op.outputs for op in mutating)
    assert tensor(graph, "mul").kind == "output"
    add, _, put, copy = mutating
    assert add.bytes_accessed == 2 * 4 * 2 * 16  # the two rows, read and written
    assert (
        put.bytes_accessed == 2 * 8 + 3 * 4 * 2 * 16
    )  # two indices; two rows of values, read; two rows, read and written
    assert copy.bytes_accessed == 2 * KIB  # read one, write the other


def test_out_variants_write_their_argument():
    def into(x, y):
        space = torch.empty_like(x)
        torch.add(x, y, out=space)
        return torch.mul(x, y, out=space) * 2

    graph = graph_of(into, torch.rand(16, 16), torch.rand(16, 16))
    assert [op.kind for op in graph.ops] == [
        "allocate",
        "elementwise",
        "elementwise",
        "elementwise",
    ]
    assert [names(graph, op.mutates) for op in graph.ops] == [
        [],
        ["empty_like"],
        ["empty_like"],
        [],
    ]
    assert [op.bytes_accessed for op in graph.ops] == [0, 3 * KIB, 3 * KIB, 2 * KIB]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight
        flat = torch.rand(2, 16)
        self.register_buffer("one", flat[0])
        self.register_buffer("two", flat[1])

    def forward(self, tokens):
        return self.head(self.embed(tokens) + self.one * self.two)


def test_tied_parameters_and_buffers_in_one_storage_are_one_tensor():
    graph = graph_of(Tied(), torch.arange(5))
    held = {
        kind: wholes(graph, lambda t, kind=kind: t.kind == kind)
        for kind in ("input", "buffer", "parameter")
    }
    assert held == {
        "input": {"tokens": 40},
        "buffer": {"one": 128},
        "parameter": {"embed.weight": 6400},
    }
    embedding = next(op for op in graph.ops if op.kind == "embedding")
    assert (
        embedding.bytes_accessed == 5 * 8 + 2 * 5 * 16 * 4
    )  # tokens, five rows read, five written: not the table


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return self.seen * x


def test_a_mutated_buffer():
    program = program_of(Counter(), torch.rand(4, 16))
    graph = import_exported(program, name="counter")
    assert tensor(graph, "seen").kind == "buffer"
    assert [names(graph, op.mutates) for op in graph.ops if op.mutates] == [["seen"]]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_functional_program_copies_the_new_value_into_the_buffer():
    program = program_of(Counter(), torch.rand(4, 16)).run_decompositions()
    assert any("MUTATION" in str(spec.kind) for spec in program.graph_signature.output_specs)
    graph = import_exported(program, name="counter")
    last = graph.ops[-1]
    assert (last.name, last.kind, names(graph, last.mutates), last.bytes_accessed) == (
        "update.seen",
        "copy",
        ["seen"],
        128,
    )
    assert tensor(graph, names(graph, last.inputs)[0]).kind == "activation"


def test_a_mutated_input():
    graph = graph_of(lambda x: x.mul_(2).sum(), torch.rand(16, 16))
    assert names(graph, graph.ops[0].mutates) == ["args_0"]
    assert tensor(graph, "args_0").kind == "input"


def test_an_output_that_is_an_input_or_a_parameter_keeps_its_kind():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.rand(8))

        def forward(self, x):
            return x.view(4, 2), self.w, x * 2

    assert kinds(graph_of(Returns(), torch.rand(8))) == {
        "w": "parameter",
        "x": "input",
        "mul": "output",
    }


def test_expanded_storage_is_smaller_than_its_numel():
    graph = graph_of(lambda x: (x * 2).expand(64, 16) + 1, torch.rand(1, 16))
    assert tensor(graph, "mul").size_bytes == 64
    assert graph.ops[1].bytes_accessed == 64 + 64 * 64


def test_a_slice_keeps_the_whole_storage_alive():
    graph = graph_of(lambda x: ((x * 2)[:1] + 1).relu().exp(), torch.rand(256, 16))
    assert tensor(graph, "mul").size_bytes == 16 * KIB
    assert graph.ops[1].bytes_accessed == 64 + 64
    assert static_peak(graph).bytes == 32 * KIB + 64  # input, product and the sum of one row


def test_several_outputs_of_which_one_is_unused():
    graph = graph_of(lambda x: torch.topk(x, 4)[0] * 2, torch.rand(16, 16))
    topk = graph.ops[0]
    assert names(graph, topk.outputs) == ["topk.0", "topk.1"]
    assert [graph.tensors[t].size_bytes for t in topk.outputs] == [16 * 4 * 4, 16 * 4 * 8]
    assert graph.users[graph.tensor_index["topk.1"]] == (0,)


def test_what_a_composite_op_frees_again_is_its_workspace():
    a, b = torch.rand(4, 1, 32, 8), torch.rand(1, 4, 8, 32)
    graph = graph_of(torch.matmul, a, b)  # both are expanded to 4 x 4 matrices and copied
    (op,) = graph.ops
    assert op.workspace_bytes == 2 * 16 * 32 * 8 * 4
    assert op.flops == 16 * 2 * 32 * 8 * 32


def test_flops_are_those_of_torchs_counter():
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 32), nn.GELU(), nn.Linear(32, 4)
    )
    image = torch.rand(2, 3, 16, 16)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    assert sum(op.flops for op in graph_of(model, image).ops) == counter.get_total_flops() > 0


def test_fused_attention_is_one_op_in_the_dtype_of_its_inputs():
    q, k, v = (torch.rand(2, 4, 16, 8, dtype=torch.bfloat16) for _ in range(3))
    (op,) = graph_of(nn.functional.scaled_dot_product_attention, q, k, v).ops
    assert (op.kind, op.dtype, op.flops) == ("attention", "bf16", 2 * 2 * 2 * 4 * 16 * 16 * 8)
    assert op.workspace_bytes == 2 * 4 * 16 * 4  # the log-sum-exp of each row


def rand(*shape):
    return torch.rand(*shape, dtype=torch.bfloat16)


def sdpa(**options):
    return lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (
            lambda x, w, b: nn.functional.linear(x, w, b),
            (rand(2, 3, 8), rand(16, 8), rand(16)),
            ("gemm", (6, 16, 8)),
        ),
        (lambda x, w: x @ w, (rand(2, 3, 8), rand(8, 16)), ("gemm", (6, 16, 8))),
        (
            lambda x, w: torch.addmm(torch.zeros(16, dtype=torch.bfloat16), x, w),
            (rand(3, 8), rand(8, 16)),
            ("gemm", (3, 16, 8)),
        ),
        (lambda x, w: torch.bmm(x, w), (rand(1, 3, 8), rand(1, 8, 16)), ("gemm", (3, 16, 8))),
        (lambda x, w: torch.bmm(x, w), (rand(2, 3, 8), rand(2, 8, 16)), ("", ())),
        (
            sdpa(is_causal=True),
            (rand(2, 4, 6, 8), rand(2, 4, 6, 8), rand(2, 4, 6, 8)),
            ("context_attention", (2, 6, 0, 4, 4, 8, 2**40)),
        ),
        (
            sdpa(),
            (rand(2, 4, 1, 8), rand(2, 4, 6, 8), rand(2, 4, 6, 8)),
            ("generation_attention", (2, 6, 4, 4, 8)),
        ),
        (
            sdpa(),
            (rand(2, 4, 6, 8), rand(2, 4, 6, 8), rand(2, 4, 6, 8)),
            ("full_attention", (2, 6, 6, 4, 4, 8)),
        ),  # every query sees every key
        (
            sdpa(is_causal=True),
            (rand(2, 4, 3, 8), rand(2, 4, 6, 8), rand(2, 4, 6, 8)),
            ("", ()),
        ),  # the first query sees one key, not four
    ],
)
def test_products_and_causal_attention_say_which_kernel_they_are(function, args, expected):
    assert [(op.kernel, op.sizes) for op in graph_of(function, *args).ops if op.flops] == [expected]


def test_attention_with_a_mask_is_of_no_known_kernel():
    mask = torch.ones(6, 6, dtype=torch.bool)
    graph = graph_of(
        lambda q, m: nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=m),
        rand(2, 4, 6, 8),
        mask,
    )
    assert {op.kernel for op in graph.ops} == {""}


def test_experts():
    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(8, 8, bias=False)])
            self.shared_experts = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            return self.experts[0](x) + self.shared_experts(x)

    graph = graph_of(Moe(), torch.rand(2, 8))
    assert (
        tensor(graph, "experts.0.weight").kind,
        tensor(graph, "shared_experts.weight").kind,
    ) == ("expert", "parameter")


def test_names_never_clash():
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.mul = nn.Parameter(torch.rand(8))

        def forward(self, x):
            return x * self.mul

    assert [t.name for t in graph_of(Clash(), torch.rand(8)).tensors] == ["mul", "x", "mul_"]


def test_a_dynamic_size_is_that_of_the_example():
    program = program_of(
        lambda x: x * x.shape[0],
        torch.rand(6, 4),
        dynamic_shapes=(({0: torch.export.Dim.DYNAMIC},),),
    )
    assert [t.size_bytes for t in import_exported(program, name="d").tensors] == [96, 96]


def test_a_shape_that_depends_on_contents_is_refused():
    program = program_of(lambda x: torch.nonzero(x) * 2, torch.ones(4))
    with pytest.raises(InputError, match=r"node 'nonzero' .* depends on the contents of a tensor"):
        import_exported(program, name="n")


def test_control_flow_is_refused():
    def choose(x):
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))

    with pytest.raises(InputError, match="higher-order op 'cond'"):
        import_exported(program_of(choose, torch.ones(4)), name="c")


def test_subgraphs_that_only_set_a_mode_are_run():
    def casts(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        with torch.no_grad():
            return y * 2

    graph = graph_of(casts, torch.rand(8, 8))
    assert {op.dtype for op in graph.ops if op.kind == "matmul"} == {"bf16"}
    assert [op.kind for op in graph.ops] == ["matmul", "elementwise"]
    assert (
        graph.ops[0].workspace_bytes == 2 * 8 * 8 * 2
    )  # both operands in bf16, which autocast makes


def test_an_op_that_the_cpu_lacks_comes_from_its_meta_kernel(caplog):
    with torch.device("meta"):
        program = program_of(
            lambda x: torch.histc(x, 4, 0, 3) * 2, torch.zeros(8, dtype=torch.int32)
        )
    graph = import_exported(program, name="histc")
    assert [op.kind for op in graph.ops] == ["reduction", "elementwise"]
    assert not [
        record for record in caplog.records if record.levelname in ("WARNING", "ERROR", "CRITICAL")
    ]


def test_an_unknown_op_is_its_own_kind():
    assert op_kind("aten.some_new_op_.default") == "some_new_op"


def test_a_size_without_an_example_is_refused(monkeypatch):
    program = torch.export.export(
        nn.Linear(4, 4),
        (torch.zeros(3, 4),),
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        strict=False,
    )
    assert import_exported(program, name="linear").ops[0].flops == 2 * 3 * 4 * 4
    monkeypatch.setattr(SymNode, "hint", property(lambda node: None))
    with pytest.raises(
        InputError,
        match=r"^'x?\w*' has the size \w+, of which the program keeps no example; export it with "
        r"static shapes$",
    ):
        import_exported(program, name="linear")
