"""Fake tensors lie in memory as the real ones do (hosim/on_torch/lower/true_layouts.py)."""

import pytest

torch = pytest.importorskip("torch")

from itertools import permutations  # noqa: E402

from torch.nn import functional  # noqa: E402

import hosim  # noqa: E402
from hosim.on_torch.lower import TrueLayouts  # noqa: E402

aten = torch.ops.aten

OPS = {
    "softplus_backward": lambda x: aten.softplus_backward(x, torch.ones(x.shape), 1.0, 20.0),
    "softplus_backward, whose input is not contiguous": lambda x: aten.softplus_backward(
        torch.ones(x.shape), x, 1.0, 20.0
    ),
    "gelu": functional.gelu,
    "softmax": lambda x: torch.softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "cumsum": lambda x: torch.cumsum(x, 1),
    "add": lambda x: x + torch.ones(x.shape[-1]),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "clone": lambda x: x.clone(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "cat": lambda x: torch.cat([x, x], 1),
    "flip": lambda x: x.flip(1),
    "index_select": lambda x: x.index_select(1, torch.zeros(30, dtype=torch.long)),
    "gather": lambda x: x.gather(2, torch.zeros(x.shape, dtype=torch.long)),
    "topk": lambda x: torch.topk(x, 3, dim=1).values,
    "sort": lambda x: torch.sort(x, dim=1).values,
    "mean": lambda x: x.mean(1, keepdim=True),
    "conv1d": lambda x: functional.conv1d(x, torch.ones(5, x.shape[1], 3)),
    "sigmoid_backward": lambda x: aten.sigmoid_backward(x, torch.ones(x.shape)),
    "constant_pad": lambda x: functional.pad(x, (1, 1)),
    "cdist": lambda x: torch.cdist(x, x),
    "tril": torch.tril,
    "sum_of_squares": lambda x: (x * x).sum(2),
}


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("name", OPS)
def test_a_fake_result_lies_as_the_real_one(name, order):
    shape = [20, 24, 40]
    back = [order.index(d) for d in range(3)]
    real = torch.ones([shape[d] for d in order]).permute(back)
    with torch.no_grad():
        wanted = OPS[name](real)
        with TrueLayouts() as mode:
            found = OPS[name](mode.from_tensor(real))
    assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())


class _Gated(torch.nn.Module):
    """The gate of a linear attention: its gradient is not contiguous."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.l = torch.nn.Linear(16, 4)

    def forward(self, given):
        return functional.softplus(self.l(given)).transpose(1, 2).contiguous().exp()


def _loss(model, inputs):
    return model(**inputs).square().mean()


def test_a_step_whose_gradient_lies_otherwise_is_eagers():
    x = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(1))
    eager, own = _Gated(), _Gated()
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = _loss(eager, {"given": x})
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    with hosim.offload(
        own,
        {"given": x},
        hardware="h100-80gb-sxm",
        optimizer=optimizer,
        loss=_loss,
        policy="layerwise",
        parameters={},
    ) as step:
        assert [step(given=x) for _ in range(3)] == losses


class Flattened(torch.nn.Module):
    """The gradient of the norm lies transposed, and that of its input does not, so that the
    product before it takes a view.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

    def forward(self, x):
        h = self.norm(self.first(x.flatten(0, 1)).view(x.shape))
        return h.transpose(1, 2).contiguous().square().mean()


def test_a_program_is_read_on_the_layouts_that_it_was_traced_on():
    x, models = torch.linspace(-1, 1, 4 * 12 * 16).reshape(4, 12, 16), (Flattened(), Flattened())
    optimizers = [torch.optim.AdamW(model.parameters(), fused=True) for model in models]
    models[0](x).backward()
    optimizers[0].step()
    options = {"hardware": "h100-80gb-sxm", "policy": "layerwise"}
    with hosim.offload(models[1], {"x": x}, optimizer=optimizers[1], **options) as step:
        step(x=x)
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
