"""What people do to a model while it is offloaded: an error each, never memory that is not
there.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import threading

import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.on_torch.lower import Guard, require_free  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "budget": "60%", "parameters": {"effort": 0}}


class Layers(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("shift", torch.randn(64))

    def forward(self, x):
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        return x + self.shift


def loss_of(model, inputs):
    return model(**inputs).square().mean()


@pytest.fixture
def x():
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(1))


def save(what):
    torch.save(what, io.BytesIO())


DEEDS = {
    "call a layer": lambda model, x: [layer(x) for layer in model.layers],
    "state_dict": lambda model, x: model.state_dict(),
    "load_state_dict": lambda model, x: model.load_state_dict({}),
    "convert a layer": lambda model, x: model.layers[0].half(),
    "save": lambda model, x: save(model),
    "to": lambda model, x: model.to(torch.float64),
    "deepcopy": lambda model, x: copy.deepcopy(model),
    "read": lambda model, x: [p.sum() for p in model.parameters()],
    "numpy": lambda model, x: model.layers[1].weight.detach().numpy(),
    "write": lambda model, x: torch.nn.init.zeros_(model.layers[1].weight),
    "data": lambda model, x: model.layers[1].weight.data,
    "a buffer": lambda model, x: model.shift + 1,
    "offload it again": lambda model, x: hosim.offload(model, x, **SMALL),
    "offload a part of it": lambda model, x: hosim.offload(
        model.layers[0], x, hardware="h100-80gb-sxm"
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_hands_off(deed, x):
    model = Layers().eval()
    with torch.no_grad():
        wanted = model(x)
    with hosim.offload(model, x, **SMALL) as offloaded:
        with pytest.raises(InputError, match="offloaded"):
            DEEDS[deed](model, x)
        assert torch.equal(offloaded(x), wanted)
    with torch.no_grad():
        assert torch.equal(model(x), wanted)
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())
    assert type(model.shift) is torch.Tensor
    save(model.state_dict())


def test_what_stays_allowed(x):
    model = Layers().eval()
    with hosim.offload(model, x, **SMALL) as offloaded:
        weight = model.layers[0].weight
        assert isinstance(weight, torch.nn.Parameter)
        assert (weight.shape, weight.dtype, weight.numel(), weight.grad, weight.requires_grad) == (
            (64, 64),
            torch.float32,
            4096,
            None,
            True,
        )
        assert "offloaded tensor (64, 64)" in repr(weight)
        model.zero_grad()
        offloaded(x)


@pytest.mark.long
def test_states_of_the_optimizer(x):
    model = Layers().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with hosim.offload(model, {"x": x}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        step(x=x)
        optimizer.zero_grad()
        with pytest.raises(InputError, match="offloaded"):
            save(optimizer.state_dict())
    saved = copy.deepcopy(optimizer.state_dict())
    with hosim.offload(model, {"x": x}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        optimizer.load_state_dict(saved)
        with pytest.raises(InputError, match="offload it again"):
            step(x=x)


def test_forgotten_without_closing(x):
    model = Layers().eval()
    with torch.no_grad():
        wanted = model(x)
    offloaded = hosim.offload(model, x, **SMALL)
    assert torch.equal(offloaded(x), wanted)
    del offloaded
    gc.collect()
    with torch.no_grad():
        assert torch.equal(model(x), wanted)


def test_lost_contents_stay_guarded(x, monkeypatch):
    from hosim.on_torch.lower.devices import CpuDevice

    model = Layers().eval()
    offloaded = hosim.offload(model, x, **SMALL)

    def vanishes(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(CpuDevice, "move_now", vanishes)
    with pytest.raises(ExecutionError, match="are lost"):
        offloaded.close()
    lost = [p for p in model.parameters() if not p.untyped_storage().nbytes()]
    assert lost
    with pytest.raises(InputError, match="contents of this tensor were lost"):
        model(x)
    with pytest.raises(InputError, match="contents of this tensor were lost"):
        hosim.offload(model, x, **SMALL)


def test_another_mode_than_captured(x):
    model = Layers(dropout=0.5).train()
    with hosim.offload(model, x, **SMALL) as offloaded:
        model.eval()
        with pytest.raises(InputError, match="another mode"):
            offloaded(x)
        model.train()
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="another mode"):
            offloaded(x)
        offloaded(x)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(InputError, match="does not see autocast"),
    ):
        hosim.offload(model, x, **SMALL)


@pytest.mark.parametrize("inside", one_in(2, [True, False]), ids=["in the loss", "around the step"])
def test_training_under_autocast(x, inside):
    def low():
        return torch.autocast("cpu", torch.bfloat16)

    def loss(model, inputs):
        with low() if inside else contextlib.nullcontext():
            return model(**inputs).float().square().mean()

    outside = contextlib.nullcontext if inside else low
    plain, moved = Layers().train(), Layers().train()
    mine, other = (torch.optim.AdamW(model.parameters(), fused=True) for model in (plain, moved))
    with outside():
        step = hosim.offload(
            moved, {"x": x}, hardware="h100-80gb-sxm", budget="80%", optimizer=other, loss=loss
        )
    with step:
        for _ in range(2):
            mine.zero_grad()
            with outside():  # anew each time: torch keeps casts of parameters until its end
                wanted = loss(plain, {"x": x})
            wanted.backward()
            mine.step()
            with outside():
                assert torch.equal(step(x=x), wanted.detach())
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), moved.parameters(), strict=True)
    )


def test_calls_in_several_threads(x):
    model = Layers().eval()
    with torch.no_grad():
        wanted = model(x)
    same = []
    with hosim.offload(model, x, **SMALL) as offloaded:
        threads = [
            threading.Thread(target=lambda: same.append(torch.equal(offloaded(x), wanted)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert same == [True] * 4


def test_an_interrupt_that_leaves_a_lock_taken(x, monkeypatch):
    """Ctrl-C between taking the machine's lock and the block that gives it back: copy threads end
    all the same.
    """
    model = Layers().eval()
    with torch.no_grad():
        wanted = model(x)
    offloaded = hosim.offload(model, x, **SMALL)
    device = offloaded.executor.device

    def interrupted(*_):
        device._changed.acquire()
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "admit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        offloaded(x)
    with torch.no_grad():
        assert torch.equal(model(x), wanted)


def test_what_is_said_of_guarded_tensors(x):
    """Every message in full."""
    model = Layers().eval()

    def said(deed):
        with pytest.raises(InputError) as caught:
            deed()
        return str(caught.value)

    with hosim.offload(model, x, **SMALL):
        weight = model.layers[0].weight
        held = "this tensor belongs to an offloaded model: first close what hosim.offload returned"
        assert said(weight.sum) == held
        assert (
            said(lambda: model(x))
            == "this Layers is offloaded: call what hosim.offload returned, or close that first"
        )
        assert (
            said(lambda: model.load_state_dict({}))
            == "this Layers is offloaded: call what hosim.offload returned, or close that first"
        )
        assert said(lambda: require_free(model)) == f"Layers: {held}"
        assert repr(weight) == "<offloaded tensor (64, 64) of torch.float32>"
        assert type(weight).__name__ == "GuardedTensorParameter"
        assert type(model.shift).__name__ == "GuardedTensorTensor"
        assert weight.stride(0) == 64  # a question with an argument
        assert weight.size(dim=1) == 64
        weight.grad = None
        assert weight.grad is None
    assert said(lambda: require_free(loss_of)) == "model: expected a torch.nn.Module, got function"
    with torch.device("meta"):
        elsewhere = torch.nn.Linear(2, 2)
    without = "model: 'weight' is on meta, without contents; give a loader=, or make it on the CPU"
    assert (
        said(lambda: hosim.offload(elsewhere, torch.ones(2), hardware="h100-80gb-sxm")) == without
    )
    buffered = torch.nn.BatchNorm1d(2)
    buffered.running_mean = torch.empty(2, device="meta")
    without = (
        "model: 'running_mean' is on meta, without contents; give a loader=, or make it on the CPU"
    )
    assert (
        said(lambda: hosim.offload(buffered, torch.ones(2, 2), hardware="h100-80gb-sxm")) == without
    )


def test_a_guard_holds_each_tensor_once_and_leaves_the_lost_ones():
    """Tied weights are one tensor; of those that lost their bytes only those that had some stay
    guarded.
    """
    model = torch.nn.Linear(2, 2)
    empty, lost = torch.empty(0), torch.ones(3)
    guard = Guard(model, [model.weight, model.weight, model.bias, empty, lost])
    kinds = [type(tensor) for tensor in (model.weight, model.bias, empty, lost)]
    assert [kind.__name__ for kind in kinds] == ["GuardedTensorParameter"] * 2 + [
        "GuardedTensorTensor"
    ] * 2
    lost.untyped_storage().resize_(0)
    guard.release()
    assert [type(tensor) for tensor in (model.weight, model.bias, empty)] == [
        torch.nn.Parameter,
        torch.nn.Parameter,
        torch.Tensor,
    ]
    assert type(lost).__name__ == "LostTensor"
    model(torch.ones(1, 2))
    model.load_state_dict(model.state_dict())
    guard.release()  # again does nothing
    with pytest.raises(InputError) as caught:
        lost.sum()
    assert (
        str(caught.value)
        == "the contents of this tensor were lost when its offloaded model failed: make or load "
        "the model again"
    )


def test_mistakes_are_said(x):
    model = Layers().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with pytest.raises(InputError, match=r"expected a torch.nn.Module, got function"):
        hosim.offload(loss_of, x, **SMALL)
    with (
        torch.device("meta"),
        pytest.raises(InputError, match="is on meta, without contents; give a loader="),
    ):
        hosim.offload(Layers(), x, **SMALL)
    with pytest.raises(InputError, match="budget: expected whole bytes"):
        hosim.offload(model, x, hardware="h100-80gb-sxm", budget=1.5)
    with pytest.raises(InputError, match="parameters of another model"):
        hosim.offload(Layers(), {"x": x}, optimizer=optimizer, loss=loss_of, **SMALL)
    with pytest.raises(
        InputError, match=r"gives no loss to differentiate: .* give the model labels, or loss="
    ):
        hosim.offload(model, {"x": x}, optimizer=optimizer, **SMALL)
    with hosim.offload(model, x, **SMALL) as offloaded:
        with pytest.raises(InputError, match="is on meta; it was captured on cpu"):
            offloaded(x.to("meta"))
        offloaded(x)
