"""Inputs as people pass them: slices, one tensor twice, one that is written, one that the model
holds.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import hosim  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "budget": "60%", "parameters": {"effort": 0}}


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        self.register_buffer("shift", torch.randn(8, 64))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.relu(layer(x)) + y
        return x + self.shift


class Writes(TwoInputs):
    def forward(self, x, y):
        y.add_(1)
        return super().forward(x, y)


def wide(rows=8):
    return torch.randn(rows, 128, generator=torch.Generator().manual_seed(1))


CALLS = {
    "twice": lambda model: (t := wide()[:, :64].contiguous(), t),
    "slices": lambda model: (wide()[:, :64], wide()[:, 64:]),
    "slices of one": lambda model: (t := wide(), (t[:, :64], t[:, 1:65]))[1],
    "later rows": lambda model: (t := wide(16)[:, :64].contiguous(), (t[8:], t[:8]))[1],
    "transposed": lambda model: (
        torch.randn(64, 8, generator=torch.Generator().manual_seed(2)).t(),
        wide()[:, :64],
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("example", ["own", "the same"])
def test_inference(call, example):
    model = TwoInputs().eval()
    x, y = CALLS[call](model)
    with torch.no_grad():
        wanted = model(x, y)
    before = x.clone(), y.clone()
    examples = (x, y) if example == "the same" else (torch.ones(8, 64), torch.ones(8, 64))
    with hosim.offload(model, examples, **SMALL) as offloaded:
        assert offloaded.plan.cache_ops
        for _ in range(2):
            assert torch.equal(offloaded(x, y), wanted)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_a_tensor_of_the_model_is_refused():
    model = TwoInputs().eval()
    examples = (torch.ones(8, 64), torch.ones(8, 64))
    refused = pytest.raises(hosim.InputError, match="a tensor of the offloaded model")
    with hosim.offload(model, examples, **SMALL) as offloaded, refused:
        offloaded(model.shift, torch.ones(8, 64))


def test_what_is_written_reaches_the_caller():
    model = Writes().eval()
    x, y = wide()[:, :64], wide()[:, 64:].contiguous()
    a, b = x.clone(), y.clone()
    with torch.no_grad():
        wanted = model(a, b)
    with hosim.offload(model, (torch.ones(8, 64), torch.ones(8, 64)), **SMALL) as offloaded:
        assert torch.equal(offloaded(x, y), wanted)
        with pytest.raises(hosim.InputError, match="give a copy"):
            offloaded(x, wide()[:, 64:])
    assert torch.equal(y, b)


def test_labels_that_are_the_inputs():
    def loss(model, inputs):
        return (model(inputs["x"], inputs["y"]) - inputs["y"]).square().mean()

    plain = TwoInputs().train()
    moved = copy.deepcopy(plain)
    x = wide()[:, :64]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, fused=True)
    other = torch.optim.SGD(moved.parameters(), lr=0.1, fused=True)
    with hosim.offload(moved, {"x": x, "y": x}, optimizer=other, loss=loss, **SMALL) as step:
        for _ in range(2):
            optimizer.zero_grad()
            wanted = loss(plain, {"x": x, "y": x})
            wanted.backward()
            optimizer.step()
            assert torch.equal(step(x=x, y=x), wanted.detach())
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), moved.parameters(), strict=True)
    )
