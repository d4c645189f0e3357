"""A torch model of an outside project, named in hosim.toml as a Python entry."""

import sys
from pathlib import Path

import pytest
from rendered import facts

from hosim.errors import InputError
from hosim.gate import check, graph_of_model, load_suite, write
from hosim.gate.judged_metrics import REGRESSION, SAME

torch = pytest.importorskip("torch")

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up = torch.nn.Linear(16, width)
        self.down = torch.nn.Linear(width, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def net():
    return Net(), (torch.zeros(8, 16),)


def wider():
    return Net(256), {"x": torch.zeros(8, 16)}
"""


TRAINED = """
import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.keep = keep
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.GELU(), torch.nn.Linear(256, 16))
            for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.keep else checkpoint(block, x, use_reentrant=False)
        return x


def step(keep=False):
    net = Net(keep)
    batch = {"x": torch.zeros(512, 16), "y": torch.zeros(512, 16)}

    def loss(model, given):
        print("a step")
        return torch.nn.functional.mse_loss(model(given["x"]), given["y"])

    return net, batch, loss, torch.optim.AdamW(net.parameters(), lr=1e-3)


def kept():
    return step(keep=True)
"""


def config(folder: Path, function: str, package: str = "gate_shop") -> Path:
    path = folder / "hosim.toml"
    path.write_text(
        f'[cases.net]\nentry = "{package}.nets:{function}"\nhardware = "h100-80gb-sxm"\npolicy = '
        '"resident"\n'
    )
    return path


def test_a_wider_model_fails_and_its_layers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gate_shop").mkdir()
    (tmp_path / "gate_shop" / "nets.py").write_text(MODEL)
    write(load_suite(config(tmp_path, "net")))
    (same,) = check(load_suite(config(tmp_path, "net")))
    assert same.verdict == SAME
    (worse,) = check(load_suite(config(tmp_path, "wider")))
    assert worse.verdict == REGRESSION
    assert any(
        facts(line) == "up.weight, 16.0 KiB, 4.00 KiB, +12.0 KiB" for line in worse.explanation
    )
    for name in ("gate_shop.nets", "gate_shop"):
        monkeypatch.delitem(sys.modules, name)


def test_what_torch_cannot_export_is_one_line() -> None:
    class Data(torch.nn.Module):
        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match=r"here: inputs: torch\.export cannot export x") as raised:
        graph_of_model(Data(), torch.zeros(3), name="x", source="here")
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"expected a torch\.nn\.Module, got int"):
        graph_of_model(3, (), name="x", source="here")


def test_a_removed_checkpoint_is_a_regression_of_a_training_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gate_trained").mkdir()
    (tmp_path / "gate_trained" / "nets.py").write_text(TRAINED)
    write(load_suite(config(tmp_path, "step", "gate_trained")))
    (worse,) = check(load_suite(config(tmp_path, "kept", "gate_trained")))
    assert worse.now is not None
    held = worse.now.peaks["hbm"].composition
    learned = 3 * 4 * (2 * 16 * 256 + 256 + 16)
    assert held["parameter"] == learned
    assert held["optimizer_state"] == 2 * learned + 6 * 2 * 4  # and a counter of each parameter
    assert (worse.verdict, capsys.readouterr().out) == (REGRESSION, "")
    # two blocks of three keep the wide activations before and after GELU, instead of their input
    more = {m.name: m.change for m in worse.metrics}["peak.hbm"]
    assert abs(more - 4 * 512 * 256 * 4) < 512 * 16 * 4
    for name in ("gate_trained.nets", "gate_trained"):
        monkeypatch.delitem(sys.modules, name)


def test_a_training_step_leaves_model_and_optimizer_alone() -> None:
    """Inputs that are no tensors reach the loss as they are."""
    net = torch.nn.Linear(4, 2).eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    seen = []

    def loss(model: "torch.nn.Module", given: "dict[str, torch.Tensor]") -> "torch.Tensor":
        seen.append((model is net, model.training, given["scale"]))
        return given["scale"] * model(given["x"]).sum()

    inputs = {"x": torch.zeros(3, 4), "scale": 3}
    graph = graph_of_model(net, inputs, loss, optimizer, name="net", source="here")
    kinds = {t.name: t.kind for t in graph.tensors}
    assert (kinds["weight"], kinds["weight.momentum_buffer"]) == ("parameter", "optimizer_state")
    assert sum(kind == "gradient" for kind in kinds.values()) == 2
    assert seen == [(False, False, 3)]
    assert all((before[name] == value).all() for name, value in net.state_dict().items())
    assert net.weight.grad is None
    assert not optimizer.state


def test_an_optimizer_may_have_frozen_parameters() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    net[0].requires_grad_(False)
    graph = graph_of_model(
        net,
        (torch.zeros(5, 4),),
        lambda model, given: model(*given.values()).sum(),
        torch.optim.Adam(net.parameters()),
        name="net",
        source="here",
    )
    states = {t.name.rpartition(".")[0] for t in graph.tensors if t.kind == "optimizer_state"}
    assert states == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("loss", "optimizer", "said"),
    [
        (None, 3, "expected an optimizer of torch"),
        (3, "own", "expected a function loss"),
        (None, "other", "has parameters that the model does not have"),
        ("other", "own", "no parameter gets a gradient"),
        ("sum", None, "there is a loss, and no optimizer"),
        ("none", "own", "no loss to differentiate"),
        ("sum", "many", "wrong example inputs: too many positional arguments"),
    ],
)
def test_what_cannot_be_trained_is_one_line(loss: object, optimizer: object, said: str) -> None:
    net, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    losses = {
        "sum": lambda model, given: model(**given).sum(),
        "other": lambda model, given: other(**given).sum(),
        "none": lambda model, given: 3,
    }
    made = {"own": net, "other": other, "many": net}
    inputs = [torch.zeros(3, 4)] * (2 if optimizer == "many" else 1)
    with pytest.raises(InputError, match=f"^here: .*{said}") as raised:
        graph_of_model(
            net,
            inputs,
            losses.get(loss, loss) if isinstance(loss, str) else loss,
            torch.optim.SGD(made[optimizer].parameters()) if optimizer in made else optimizer,
            name="net",
            source="here",
        )
    assert "\n" not in str(raised.value)
