"""Batches of other sizes: each has a plan of its own over the same tensors, within one budget, and
eager's bits.
"""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
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


@pytest.mark.parametrize("clip", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_plan_for_each_size(clip):
    assert all(map(torch.equal, offloaded(clip), eager(clip)))


def test_calls_of_other_sizes():
    """Inference in training mode: batch norm writes its statistics; an argument is nested, one a
    number, and a constant of the code is the same for all sizes.
    """

    class Nested(Layers):
        def forward(self, given, scale):
            table = torch.tensor([0.5, 2.0])
            return super().forward(given["x"]) * scale * table[1]

    torch.manual_seed(3)
    model, other = Nested(), Nested()
    calls = [({"x": batch(rows)["x"]}, 2.0) for rows in ROWS]
    with torch.no_grad():
        torch.manual_seed(5)
        wanted = [other(*call) for call in calls]
        with hosim.offload(model, calls[0], **PLANNED) as offloaded:
            torch.manual_seed(5)
            found = [offloaded(*call) for call in calls]
            with pytest.raises(InputError, match="nested like the example's"):
                offloaded(batch(8)["x"], 2.0)
            with pytest.raises(InputError, match=r"is 2\.0 in the captured program, got 3\.0"):
                offloaded(calls[0][0], 3.0)
            with pytest.raises(InputError, match="is offloaded"):
                model(*calls[0])
    assert all(map(torch.equal, found, wanted))
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    assert [sizes[0] for sizes in offloaded.sizes] == [("0.x", (n, 32)) for n in (8, 3, 5)]
    for result in offloaded.sizes.values():
        assert result.allocator.peak_allocated_bytes <= offloaded.result.budget_bytes


def test_a_constant_that_depends_on_the_size_is_refused():
    class Table(Layers):
        def forward(self, x):
            return super().forward(x) + torch.tensor([float(len(x))])

    with (
        torch.no_grad(),
        hosim.offload(Table(), batch(8)["x"], **PLANNED) as offloaded,
        pytest.raises(InputError, match="other tensors for inputs of these sizes"),
    ):
        offloaded(batch(3)["x"])


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


@pytest.mark.parametrize("trains", [False, True])
def test_no_batch_outlives_its_call(trains):
    """A batch may be most of what a device has."""
    model, optimizer = made()
    asked = {"optimizer": optimizer, "loss": loss_of} if trains else {}
    for rows in (8, 3):
        given = batch(rows) if trains else {"x": batch(rows)["x"]}
        seen = [weakref.ref(value) for value in given.values()]
        if rows == 8:
            offloaded = hosim.offload(model, given, **asked, **PLANNED)
        offloaded(**given)
        del given
        gc.collect()
        assert not any(one() is not None for one in seen)
    offloaded.close()
