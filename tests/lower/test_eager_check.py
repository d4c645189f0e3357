"""``check`` and ``check_every``: a call beside the model's own, and a trace beside the first one."""

from __future__ import annotations

import copy
import sys

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
QUICK = {"hardware": "h100-80gb-sxm", "budget": "70%", "parameters": {"effort": 0}}
X = torch.linspace(-1, 1, 8 * 32).reshape(8, 32)


class Layers(torch.nn.Module):
    """Dropout draws, batch norm and an attribute are written."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.dropout(torch.relu(layer(x)), 0.1)
        self.last = x.detach()
        return self.norm(x) * (2 if sys.getrecursionlimit() == 4321 else 1)


def loss_of(model, inputs):
    return model(inputs["x"]).square().mean()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


@pytest.mark.parametrize("trains", [False, True])
def test_a_call_beside_eager_leaves_everything_as_it_was(trains):
    model = Layers()
    other, given = copy.deepcopy(model), ({"x": X} if trains else X)
    optimizers = [adamw(one) for one in (model, other)]
    asked = {"optimizer": optimizers[0], "loss": loss_of} if trains else {}
    torch.manual_seed(5)
    drawn = torch.get_rng_state()
    with hosim.offload(model, given, check=True, **asked, **QUICK) as offloaded:
        assert torch.equal(torch.get_rng_state(), drawn)
        found = offloaded(X)
    assert "last" not in vars(model)
    torch.manual_seed(5)
    wanted = loss_of(other, {"x": X}) if trains else other(X)
    if trains:
        wanted.backward()
        optimizers[1].step()
    assert torch.equal(found, wanted)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    assert all(p.grad is None for p in model.parameters())


def test_other_bits_are_refused():
    """Code that asks for the class of a tensor is told another one by tracing."""

    class Asking(Layers):
        def forward(self, x):
            return super().forward(x) * (2 if type(x) is torch.Tensor else 1)

    model = Asking()
    with pytest.raises(InputError, match="other bits than the model") as raised:
        hosim.offload(model, {"x": X}, check=True, **QUICK)
    assert "\n" not in str(raised.value)
    assert torch.isfinite(model(X)).all()


def test_a_call_beside_eager_that_others_would_see_is_refused():
    model = Layers()
    optimizer = adamw(model)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(InputError, match="check=True takes a step more"):
        hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, check=True, **QUICK)


def test_a_call_that_fails_leaves_everything_as_it_was():
    class Failing(Layers):
        def forward(self, x):
            found = super().forward(x)
            if not (torch.compiler.is_exporting() or isinstance(found, FakeTensor)):
                raise MemoryError
            return found

    model = Failing()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match="without hosim"):
        hosim.offload(model, X, check=True, **QUICK)
    assert all(map(torch.equal, model.state_dict().values(), before.values()))


@pytest.mark.parametrize("trains", [False, True])
def test_a_program_that_has_become_another_is_found(trains):
    """What this code asks of the interpreter is kept nowhere that hosim sees."""
    model, limit = Layers(), sys.getrecursionlimit()
    asked = {"optimizer": adamw(model), "loss": loss_of} if trains else {}
    given = {"x": X} if trains else X
    with hosim.offload(model, given, check_every=2, **asked, **QUICK) as offloaded:
        for _ in range(4):
            offloaded(X)
        try:
            sys.setrecursionlimit(4321)
            offloaded(X)
            with pytest.raises(InputError, match="two traces of the model differ"):
                offloaded(X)
        finally:
            sys.setrecursionlimit(limit)
        offloaded(X)
