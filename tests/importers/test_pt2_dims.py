"""A size that was exported as one that may vary can be chosen: the graph is that of an export with
that size.
"""

import pytest

from hosim.errors import InputError
from hosim.io import load_any

torch = pytest.importorskip("torch")
DIM = torch.export.Dim


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x, mask):
        y = torch.relu(self.up(x)) * mask.unsqueeze(-1)
        return y.reshape(-1, 16), self.down(y).sum(0)


def saved(path, batch, tokens, dynamic=None):
    inputs = (torch.zeros(batch, tokens, 8), torch.zeros(tokens))
    torch.export.save(torch.export.export(Net(), inputs, dynamic_shapes=dynamic), path)
    return path


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    tokens = DIM("tokens", min=2, max=512)
    return saved(
        tmp_path_factory.mktemp("pt2") / "net.pt2",
        3,
        16,
        ({0: DIM("batch"), 1: tokens}, {0: tokens}),
    )


def symbols(path):
    with pytest.raises(InputError) as raised:
        load_any(path, {"none": 1})
    told = str(raised.value).partition("those that may vary are ")[2]
    return {
        label.rstrip(")"): symbol
        for symbol, _, label in (one.partition(" (") for one in told.split(", "))
    }


@pytest.mark.parametrize(("batch", "tokens"), [(3, 16), (5, 16), (3, 40), (1, 33)])
def test_the_graph_is_that_of_an_export_with_this_size(dynamic, batch, tokens, tmp_path):
    chosen = load_any(dynamic, {"x[0]": batch, "mask[0]": tokens})
    fixed = load_any(saved(tmp_path / "net.pt2", batch, tokens))
    assert [(t.size_bytes, t.kind) for t in chosen.tensors] == [
        (t.size_bytes, t.kind) for t in fixed.tensors
    ]
    assert [(op.kind, op.flops, op.bytes_accessed) for op in chosen.ops] == [
        (op.kind, op.flops, op.bytes_accessed) for op in fixed.ops
    ]
    assert chosen.meta["dims"] == {"x[0]": batch, "mask[0]": tokens}


def test_the_example_is_the_default_and_a_symbol_is_a_name(dynamic):
    known = symbols(dynamic)
    assert known["x[1]"] == known["mask[0]"] != known["x[0]"]
    assert load_any(dynamic).ops == load_any(dynamic, {known["x[0]"]: 3}).ops
    assert load_any(dynamic, {known["x[1]"]: 20}).ops == load_any(dynamic, {"x[1]": 20}).ops


@pytest.mark.parametrize(
    ("dims", "error"),
    [
        (
            {"x[2]": 4},
            r"the program has no dimension 'x\[2\]'; those that may vary are s\d+ \(x\[0\]\), "
            r"s\d+ \(x\[1\]\), ",
        ),
        ({"x[1]": 1}, r"dimension x\[1\] was exported for sizes from 2 to 512, got 1$"),
        ({"x[1]": 513}, r"dimension x\[1\] was exported for sizes from 2 to 512, got 513$"),
        ({"x[0]": 0}, r"dimension x\[0\] was exported for sizes from \d to \d+, got 0$"),
        ({"x[1]": 4, "mask[0]": 5}, r"dimension s\d+ is given two sizes, 4 and 5$"),
    ],
)
def test_a_size_that_the_program_does_not_take_is_refused(dynamic, dims, error):
    with pytest.raises(InputError, match=error):
        load_any(dynamic, dims)


def test_inputs_whose_strides_do_not_follow_are_refused(tmp_path):
    x = torch.zeros(16, 3, 8).transpose(0, 1)
    tokens = DIM("tokens")
    program = torch.export.export(
        Net(), (x, torch.zeros(16)), dynamic_shapes=({1: tokens}, {0: tokens})
    )
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(
        InputError,
        match="input 'x' does not lie in one piece; export the program again with the sizes that "
        "you want",
    ):
        load_any(tmp_path / "net.pt2", {"x[1]": 5})


def test_fixed_programs_have_no_dimension(tmp_path):
    with pytest.raises(
        InputError,
        match=r"no dimension 'x.0.'; all its sizes are fixed; export it with dynamic shapes",
    ):
        load_any(saved(tmp_path / "net.pt2", 2, 4), {"x[0]": 5})
