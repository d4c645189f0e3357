"""Batches of other sizes: each has a plan of its own over the same tensors, within one budget, and
eager's bits.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402

PLANNED = {"hardware": "h100-80gb-sxm", "budget": "70%", "parameters": {"effort": 0}}
ROWS = (8, 3, 5, 3, 8)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.dropout(torch.relu(layer(x)), 0.1)
        self.last = x.detach()
        return self.norm(x)


def batch(rows, width=32):
    x = torch.linspace(-1, 1, rows * width).reshape(rows, width)
    return {"x": x, "y": x.flip(0)}


def loss_of(model, inputs):
    return (model(inputs["x"]) - inputs["y"]).square().mean()


def made():
    model = Layers()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def eager(clip):
    model, optimizer = made()
    torch.manual_seed(3)
    for rows in ROWS:
        loss_of(model, batch(rows)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return [t.detach() for t in (*model.parameters(), *model.buffers())]


def offloaded(clip):
    model, optimizer = made()
    torch.manual_seed(3)
    with hosim.offload(model, batch(8), optimizer=optimizer, loss=loss_of, **PLANNED) as step:
        for rows in ROWS:
            if not clip:
                step(**batch(rows))
                continue
            step.backward(**batch(rows))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        found = step.sizes
    assert [sizes[0][1][0] for sizes in found] == [8, 3, 5]
    for result in found.values():
        assert result.allocator.peak_allocated_bytes <= step.result.budget_bytes
    return [t.detach() for t in (*model.parameters(), *model.buffers())]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clip", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_plan_for_each_size(clip):
    assert all(map(torch.equal, offloaded(clip), eager(clip)))


def test_what_no_size_explains_is_refused():
    model, optimizer = made()
    with hosim.offload(model, batch(8), optimizer=optimizer, loss=loss_of, **PLANNED) as step:
        with pytest.raises(InputError, match="must have same reduction dim"):
            step(**batch(8, width=16))
        with pytest.raises(InputError, match=r"'x' is .* of torch.float64; it was captured with"):
            step(x=batch(8)["x"].double(), y=batch(8)["y"])
        assert len(step.sizes) == 1
        with pytest.raises(InputError, match="is offloaded"):
            model(batch(8)["x"])
        step(**batch(8))


def test_running_statistics_are_written():
    """torch's schema of the op does not say so; a plan that drops them would lose the update."""
    model, optimizer = made()
    with hosim.offload(model, batch(8), optimizer=optimizer, loss=loss_of, **PLANNED) as step:
        graph = step.plan.graph
        written = {graph.tensors[t].name for op in graph.ops for t in op.mutates}
    assert {"norm.running_mean", "norm.running_var"} <= written
