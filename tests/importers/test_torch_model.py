"""What a caller has in memory is a workload: the same as the file that torch writes of it."""

import pytest

import hosim
from hosim.errors import InputError

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x, again=None):
        y = self.down(torch.relu(self.up(x)))
        return y if again is None else y + again


def test_a_module_is_what_its_exported_program_and_its_file_are(tmp_path):
    x = torch.zeros(4, 8)
    program = torch.export.export(Net(), (x,))
    torch.export.save(program, tmp_path / "net.pt2")
    module, live, saved = (
        hosim.load(Net(), inputs=[x]),
        hosim.load(program),
        hosim.load(tmp_path / "net.pt2"),
    )
    assert module.name == "Net"
    assert [(t.size_bytes, t.kind) for t in live.tensors] == [
        (t.size_bytes, t.kind) for t in saved.tensors
    ]
    assert (
        [(op.kind, op.flops) for op in live.ops]
        == [(op.kind, op.flops) for op in module.ops]
        == [(op.kind, op.flops) for op in saved.ops]
    )
    assert sum(op.flops for op in live.ops) == 2 * (2 * 4 * 8 * 16)  # two products of 4 rows
    assert hosim.compare(program, "h100-80gb-sxm", "resident").feasible.all()


def test_inputs_may_be_named_and_on_the_meta_device():
    with torch.device("meta"):
        graph = hosim.load(Net(), inputs={"x": torch.zeros(4, 8), "again": torch.zeros(4, 8)})
    assert sum(t.kind == "input" for t in graph.tensors) == 2


@pytest.mark.parametrize(
    ("workload", "inputs", "error"),
    [
        (
            Net(),
            None,
            r"^workload: a module needs example inputs: hosim.load\(model, inputs=...\), "
            r"positional or by name; got Net$",
        ),
        (
            Net(),
            [torch.zeros(4, 7)],
            "^workload: inputs: torch.export cannot export Net with these inputs: ",
        ),
        (
            torch.export.export(Net(), (torch.zeros(4, 8),)),
            [],
            "^workload: inputs: an exported program has its inputs already",
        ),
        (
            Net(),
            torch.zeros(1, 8),
            r"^workload: inputs: expected a sequence or a mapping of inputs, such as "
            r"inputs=\(x,\), got Tensor$",
        ),
        ("toy", [], "^workload: inputs: only a module of torch takes inputs$"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(workload, inputs, error):
    with pytest.raises(InputError, match=error) as raised:
        hosim.load(workload, inputs=inputs)
    assert "\n" not in str(raised.value)


def _mixed():
    """Calls whose tensors have two dtypes, by name; torch runs some of them on the CPU."""
    functional, half, x = torch.nn.functional, torch.zeros(8, 8).bfloat16(), torch.zeros(4, 8)
    first = torch.zeros(2, dtype=torch.long)
    return {
        "linear": lambda: functional.linear(x, half),
        "bias": lambda: functional.linear(x.bfloat16(), half, torch.zeros(8)),
        "vector": lambda: x @ half[0],
        "norm": lambda: functional.layer_norm(x, (8,), half[0], half[0]),
        "mixed norm": lambda: functional.layer_norm(x.bfloat16(), (8,), x[0], x[0]),
        "groups": lambda: functional.group_norm(x, 2, half[0], half[0]),
        "batch": lambda: functional.batch_norm(x, None, None, half[0], half[0], training=True),
        "index": lambda: x.index_add(0, first, half[:2]),
        "put": lambda: x.index_put((first,), half[:2]),
        "sum": lambda: x + half[0],
        "convolution": lambda: functional.conv1d(x[None], half[:, :4, None]),
        "rows": lambda: functional.linear(x.bfloat16(), half, half[0]),
    }


@pytest.mark.parametrize("name", list(_mixed()))
def test_dtypes_that_torch_refuses_are_refused(name):
    """Fakes let most of them through; the truth is torch on real tensors."""

    class Calling(torch.nn.Module):
        def forward(self, x):
            return _mixed()[name]() + x

    try:
        _mixed()[name]()
    except RuntimeError:
        with pytest.raises(InputError):
            hosim.load(Calling(), inputs=[torch.zeros(())])
    else:
        assert hosim.load(Calling(), inputs=[torch.zeros(())]).ops
