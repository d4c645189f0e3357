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
            3,
            r"^workload: inputs: expected a tensor, a sequence or a mapping of inputs, such as "
            r"inputs=\(x,\), got int$",
        ),
        ("toy", [], "^workload: inputs: only a module of torch takes inputs$"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(workload, inputs, error):
    with pytest.raises(InputError, match=error) as raised:
        hosim.load(workload, inputs=inputs)
    assert "\n" not in str(raised.value)


class Learning(torch.nn.Module):
    """A module that computes its loss itself, as a number."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y):
        return (self.net(x) - y).square().mean()


def test_a_training_step_of_a_module_is_one_call():
    """A scalar output is the loss. The step is that of torch on fake tensors: its parameters, fp32
    moments and gradients, counted by hand. The module stays where it is.
    """
    x, with_loss = torch.zeros(4, 8), Learning()
    optimizer = torch.optim.AdamW(with_loss.parameters(), fused=True)
    own = hosim.load(with_loss, (x, x), optimizer=optimizer)
    given = hosim.load(
        Net(),
        {"x": x},
        optimizer="adamw",
        loss=lambda model, batch: (model(batch["x"]) - x).square().mean(),
    )
    learned = 4 * (8 * 16 + 16 + 16 * 8 + 8)
    for graph in (own, given):
        held = dict.fromkeys(("parameter", "optimizer_state", "gradient"), 0)
        for tensor in graph.tensors:
            held[tensor.kind] = held.get(tensor.kind, 0) + tensor.size_bytes
        assert held["parameter"] == held["gradient"] == learned
        assert held["optimizer_state"] == 2 * learned + 4 * 4  # and a counter of each parameter
    assert [op.kind for op in own.ops] == [op.kind for op in given.ops]
    assert not optimizer.state
    assert all(p.grad is None and p.device.type == "cpu" for p in with_loss.parameters())
    assert hosim.load(Net(), x).ops == hosim.load(Net(), [x]).ops


@pytest.mark.parametrize(
    ("loss", "optimizer", "error"),
    [
        (None, "adamw", r"no loss .* the model's output is of shape \(4, 8\), .* loss="),
        (lambda model, given: model(given["x"]), "adamw", r"shape \(4, 8\), .* as .mean\(\) does"),
        (lambda model, given: model(**given).detach().sum(), "adamw", "no parameter that learns"),
        (torch.nn.MSELoss(), "adamw", r"^workload: loss\(model, inputs\) raised .* by name: x$"),
        (lambda model, given: given["labels"], "adamw", r"raised KeyError: 'labels'; .* name: x$"),
        (None, lambda learned: None, "expected the function to return an optimizer of torch"),
        (3, "adamw", r"expected a function loss\(model, inputs\), got 3$"),
        (lambda model, given: 3, None, "optimizer: there is a loss, and no optimizer"),
        (None, "adam", "unknown optimizer 'adam'; expected one of: adamw"),
        (None, 3, "optimizer: expected an optimizer of torch, or one of adamw"),
    ],
)
def test_what_is_no_training_step_says_what_is_wrong(loss, optimizer, error):
    with pytest.raises(InputError, match=error) as raised:
        hosim.load(Net(), torch.zeros(4, 8), loss=loss, optimizer=optimizer)
    assert "\n" not in str(raised.value)
    assert "fake tensors" not in str(raised.value)


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
