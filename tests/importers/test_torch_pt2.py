"""Programs in .pt2 files: the same graph as in memory, and nothing of the file executed."""

import zipfile
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from small_models import Tied  # noqa: E402
from torch import nn  # noqa: E402
from wholes import wholes  # noqa: E402

from hosim.errors import InputError  # noqa: E402
from hosim.io import load_any  # noqa: E402
from hosim.io.importers.torch_programs import import_exported, import_pt2  # noqa: E402


def save(path, device="cpu"):
    """A program of :class:`Tied`, and its file."""
    with torch.device(device):
        program = torch.export.export(Tied(), (torch.zeros(8, dtype=torch.int64),), strict=False)
    torch.export.save(program, path)
    return program


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_file_gives_the_graph_of_its_program(tmp_path, device):
    path = tmp_path / "tied.pt2"
    program = save(path, device)
    graph = import_pt2(path)
    assert graph == import_exported(program, name="tied") == load_any(path)
    assert graph.meta["file"] == "tied.pt2"
    assert sorted(wholes(graph, lambda t: t.kind == "parameter").values()) == [64, 1024, 4096]


@pytest.mark.parametrize("keep", [0, 4, 100, -30])
def test_a_damaged_file(tmp_path, keep):
    path = tmp_path / "tied.pt2"
    save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        InputError,
        match=r"tied\.pt2: (damaged|this archive holds no exported program, or is damaged)",
    ):
        import_pt2(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        import_pt2(tmp_path / "none.pt2")


def test_a_zip_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:
        archive.writestr("a/hello.txt", "hello")
    with pytest.raises(InputError, match="holds no exported program"):
        load_any(tmp_path / "a.pt2")


class Function(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


class Pair(NamedTuple):
    first: Any
    second: Any


torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="test_torch_pt2.Pair")


def autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.mix(x) + 1


def without_gradients(m, x):
    with torch.no_grad():
        y = m.mix(x)
    return y * 2


def counting(m, x):
    m.norm.running_mean.add_(x.mean())
    return m.norm(x)


DYNAMIC = torch.export.Dim.DYNAMIC
X = torch.rand(6, 8)
ROWS = {"dynamic_shapes": ({0: DYNAMIC},)}
BOTH = {"dynamic_shapes": ({0: DYNAMIC, 1: DYNAMIC},)}
IMAGE = torch.rand(2, 3, 8, 8)

HONEST = {
    "a convolution": (Function(lambda m, x: m.mix(x).relu().flatten(1), mix=nn.Conv2d(3, 4, 3)), (IMAGE,), {}),
    "a batch norm that trains": (Function(counting, norm=nn.BatchNorm1d(8)).train(), (X,), {}),
    "a recurrent network": (Function(lambda m, x: m.mix(x)[0], mix=nn.LSTMCell(8, 4)), (X,), {}),
    "an encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (X[None],), {}),
    "attention": (Function(lambda m, q: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)), (X[None, None],), {}),
    "autocast": (Function(autocast, mix=nn.Linear(8, 8)), (X,), {}),
    "no gradients": (Function(without_gradients, mix=nn.Linear(8, 8)), (X,), {}),
    "pieces": (Function(lambda m, x: [*x.chunk(4), *x.split(3), *x.unbind(1), *x.tensor_split(5)]), (X,), {}),
    "items that nobody uses": (Function(lambda m, x: x.topk(2)[0] * 2), (X,), {}),
    "a dict": (Function(lambda m, x: {"sum": x["a"] + x["b"], "none": None}), ({"a": X, "b": X},), {}),
    "a namedtuple": (Function(lambda m, x: Pair(x + 1, [x])), (X,), {}),
    "words": (Function(lambda m, x: torch.div(torch.einsum("ij,kj->ik", x, x), 2, rounding_mode="floor").scatter_reduce(
        0, torch.zeros(6, 6, dtype=torch.int64), x @ x.t(), "amax")), (X,), {}),
    "padding": (Function(lambda m, x: nn.functional.gelu(nn.functional.pad(x, (1, 2), mode="reflect"), approximate="tanh")), (X,), {}),
    "a number": (Function(lambda m, x, n: x * n), (X, 3), {}),
    "nothing": (Function(lambda m, x, n: x if n is None else x * n), (X, None), {}),
    "rows": (Function(lambda m, x: m.mix(x).sum(0), mix=nn.Linear(8, 8)), (X,), ROWS),
    "rows that are counted": (Function(lambda m, x: x.reshape(x.shape[0] * 2, -1) * x.shape[0]), (X,), ROWS),
    "rows that are halved": (Function(lambda m, x: x[: x.shape[0] // 2].repeat(2, 1) + x.new_zeros(x.shape[0] // 2 * 2, 1)), (X,), ROWS),
    "rows and columns": (Function(lambda m, x: torch.cat([x, x.t().reshape(x.shape)]).mean()), (X,), BOTH),
    "two images": (Function(lambda m, x: m.mix(nn.functional.interpolate(x, scale_factor=2)), mix=nn.Conv2d(3, 4, 3)), (IMAGE,), ROWS),
    "one embedding of many": (Function(lambda m, x: m.bag(x), bag=nn.EmbeddingBag(9, 4)), (torch.zeros(3, 2, dtype=torch.int64),), {}),
    "a layout": (Function(lambda m, x: torch.empty_like(x, layout=torch.strided).copy_(x)), (X,), {}),
    "a complex number": (Function(lambda m, x: torch.fft.rfft(x, norm="ortho") * 2j), (X,), {}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", HONEST)
def test_honest_programs(name, tmp_path):
    module, args, more = HONEST[name]
    if "dynamic_shapes" in more:
        more = {"dynamic_shapes": {"args": more["dynamic_shapes"]}}
    program = torch.export.export(module, args, strict=False, **more)
    torch.export.save(program, tmp_path / "a.pt2")
    assert import_pt2(tmp_path / "a.pt2") == import_exported(program, name="a")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_functional_program(tmp_path):
    program = torch.export.export(
        Function(counting, norm=nn.BatchNorm1d(8)).train(), (X,), strict=False
    ).run_decompositions()
    assert any("MUTATION" in str(spec.kind) for spec in program.graph_signature.output_specs)
    torch.export.save(program, tmp_path / "a.pt2")
    graph = import_pt2(tmp_path / "a.pt2")
    assert graph == import_exported(program, name="a")
    assert any(op.name.startswith("update.norm.") for op in graph.ops)


def test_a_size_without_example(tmp_path):
    program = torch.export.export(Function(lambda m, x: x.nonzero() * 2), (X,), strict=False)
    torch.export.save(program, tmp_path / "a.pt2")
    with pytest.raises(InputError, match=r"a\.pt2: .*(no example|depends on the contents)"):
        import_pt2(tmp_path / "a.pt2")
