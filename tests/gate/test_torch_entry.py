"""A torch model of an outside project, named in hosim.toml as a Python entry."""

import sys
from pathlib import Path

import pytest

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


def config(folder: Path, function: str) -> Path:
    path = folder / "hosim.toml"
    path.write_text(
        f'[cases.net]\nentry = "gate_shop.nets:{function}"\nhardware = "h100-80gb-sxm"\npolicy = '
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
        "`up.weight` (parameter) has 16.0 KiB, had 4.00 KiB: +12.0 KiB at the peak" in line
        for line in worse.explanation
    )
    for name in ("gate_shop.nets", "gate_shop"):
        monkeypatch.delitem(sys.modules, name)


def test_what_torch_cannot_export_is_one_line() -> None:
    class Data(torch.nn.Module):
        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match=r"here: torch\.export cannot export it") as raised:
        graph_of_model(Data(), torch.zeros(3), name="x", source="here")
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"expected a torch\.nn\.Module, got int"):
        graph_of_model(3, (), name="x", source="here")
