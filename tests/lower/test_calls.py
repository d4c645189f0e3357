"""What an offloaded model is called with: constants, nested inputs, names and places, and what each
mistake is answered with.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
from rendered import facts

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.errors import ExecutionError, InfeasibleError, InputError  # noqa: E402
from hosim.on_torch.lower import capture_training, devices, machine_of  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402
from hosim.on_torch.lower.tiers import Residents  # noqa: E402

HARDWARE = "h100-80gb-sxm"


class Scaled(torch.nn.Module):
    """One square weight, an input, and a number."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(8))

    def forward(self, x, scale=2.0):
        return x @ self.weight * scale


def loss_of(model, inputs):
    return model(**inputs).square().mean()


def refused(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


X = torch.arange(16.0).reshape(2, 8)


def test_inference_with_a_number():
    with hosim.offload(Scaled().eval(), (X, 3.0), hardware=HARDWARE) as model:
        assert torch.equal(model(X, 3.0), X * 3)
        assert (
            refused(model, X, 4.0)
            == "input 'scale' is 3.0 in the captured program, got 4.0; offload it again"
        )
        assert (
            refused(model, 5, 3.0)
            == "input 'x' is int; it was captured with (2, 8) of torch.float32"
        )
        assert (
            refused(model, X.double(), 3.0)
            == "input 'x' is (2, 8) of torch.float64; it was captured with (2, 8) of torch.float32"
        )
        assert refused(model, X) == "expected inputs nested like the example's"
        assert refused(model, X, scale=3.0) == "expected the arguments by position alone, got scale"


def test_inference_by_name():
    with hosim.offload(Scaled().eval(), {"x": X, "scale": 3.0}, hardware=HARDWARE) as model:
        assert torch.equal(model(scale=3.0, x=X), X * 3)  # in any order
        assert refused(model, X, 3.0) == "expected the arguments x, scale, got none by name"


def test_a_step_with_a_number():
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    with hosim.offload(
        model, (X, 3.0), hardware=HARDWARE, optimizer=optimizer, loss=loss_of
    ) as step:
        assert torch.equal(step(X, scale=3.0), (X * 3).square().mean())
        assert (
            refused(step, X, 4.0)
            == "input 'scale' is 3.0 in the captured step, got 4.0; offload it again"
        )
        assert refused(step, X) == "expected the inputs x, scale, got x"
        assert refused(step) == "expected the inputs x, scale, got none"
        assert refused(step, X, 3.0, 5) == "expected the inputs x, scale, got x, scale"
        assert refused(step, X, 3.0, more=1) == "expected the inputs x, scale, got x, scale, more"
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        assert (
            refused(step, X, 3.0)
            == "the optimizer's settings have changed since the step was captured; offload it again"
        )


def test_what_is_said_of_it(monkeypatch):
    model = Scaled().eval()
    with hosim.offload(model, (X, 3.0), hardware=HARDWARE, name="mine") as offloaded:
        graph, result = offloaded.plan.graph, offloaded.result
        assert offloaded.predicted_peak_bytes == result.allocator.peak_allocated_bytes
        assert facts(repr(offloaded), "mine", "hyperoffload") == (
            f"mine, {len(graph.ops)}, 0, hyperoffload, {offloaded.predicted_peak_bytes:,} B"
        )
        assert offloaded.predicted_makespan_ns == result.makespan_ns > 0
        monkeypatch.setattr(
            offloaded,
            "result",
            SimpleNamespace(stall_ns={"transfer": 3, "memory": 4}, makespan_ns=None),
        )
        assert (offloaded.predicted_stall_ns, offloaded.predicted_makespan_ns) == (7, 0)


def test_a_model_of_transformers_that_returns_its_cache():
    class Caches(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no pytree for DynamicCache\nmore. See https://pytorch.org")

    message = (
        "torch.export cannot export {}: no pytree for DynamicCache; with config.use_cache = "
        "False, models of transformers return "
    )
    assert (
        refused(hosim.offload, Caches(), X, hardware=HARDWARE)
        == message.format("Caches") + "only tensors"
    )
    assert (
        refused(hosim.offload, Caches(), X, hardware=HARDWARE, name="mine")
        == message.format("mine") + "only tensors"
    )

    class Fails(torch.nn.Module):
        def forward(self, x):
            raise ValueError(self.text)

    model = Fails()
    model.text = "a" * 300
    assert (
        refused(hosim.offload, model, X, hardware=HARDWARE)
        == "torch.export cannot export Fails: " + "a" * 200
    )
    model.text = "it fails. See https://pytorch.org"
    assert (
        refused(hosim.offload, model, X, hardware=HARDWARE)
        == "torch.export cannot export Fails: it fails."
    )
    model.text = ""
    assert (
        refused(hosim.offload, model, X, hardware=HARDWARE)
        == "torch.export cannot export Fails: ValueError"
    )


def test_more_example_inputs_than_a_model_takes():
    message = refused(
        hosim.offload,
        Scaled(),
        (X, 3.0, X),
        hardware=HARDWARE,
        optimizer=torch.optim.SGD([torch.zeros(1)]),
        loss=loss_of,
    )
    assert message == "example_inputs: 3 example inputs; Scaled takes 2"


def test_the_machine_that_runs_it(monkeypatch, tmp_path):
    """The GPU that has the parameters, or the CPU; or the one that is given."""
    made = []
    monkeypatch.setattr(
        devices, "CudaDevice", lambda hardware, **given: made.append((hardware, given)) or "gpu"
    )
    monkeypatch.setattr(
        devices, "CpuDevice", lambda hardware, **given: made.append((hardware, given)) or "cpu"
    )
    held = {
        name: SimpleNamespace(device=torch.device(device))
        for name, device in (("a", "cpu"), ("b", "cuda:1"))
    }
    model = SimpleNamespace(named_parameters=lambda **_: held.items(), named_buffers=lambda **_: ())
    folders = {"nvme": tmp_path}
    assert machine_of(model, None, "profile", folders) == "gpu"
    del held["b"]
    assert machine_of(model, None, "profile", folders) == "cpu"
    held["c"] = SimpleNamespace(device=torch.device("meta"))
    assert machine_of(model, None, "profile", folders) == "cpu"  # torch finds no GPU here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [
        machine_of(model, given, "profile", folders)
        for given in (None, "cuda", torch.device("cpu"))
    ] == ["gpu", "gpu", "cpu"]
    assert [given.get("index", "CPU") for _, given in made] == [1, "CPU", "CPU", None, None, "CPU"]
    assert all(given["directories"] is folders for _, given in made)
    assert machine_of(model, made, "profile", folders) is made
    for given, wrong in (
        ("gpu", "torch knows no device 'gpu'; expected cuda, cuda:1 or cpu"),
        ("xpu", "plans run on GPUs and CPUs, not on xpu"),
    ):
        with pytest.raises(InputError, match=wrong):
            machine_of(model, given, "profile", folders)


def test_what_one_may_give(tmp_path):
    """A machine, folders, a profile as an object or by its path, a budget that is too small for the
    given plan.
    """
    with pytest.raises(InputError, match=r"hardware: expected a name, a path, .* got int"):
        hosim.offload(Scaled().eval(), (X, 3.0), hardware=5)
    profile = hosim.load_hardware(hosim.find_hardware(HARDWARE))
    device = CpuDevice(profile)
    with hosim.offload(Scaled().eval(), (X, 3.0), hardware=profile, device=device) as offloaded:
        assert offloaded.executor.device is device
        plan, peak = offloaded.plan, offloaded.predicted_peak_bytes
    with hosim.offload(
        Scaled().eval(), (X, 3.0), hardware=hosim.find_hardware(HARDWARE), plan=plan, budget=peak
    ) as offloaded:
        assert (offloaded.plan, offloaded.result.budget_bytes) == (plan, peak)
    below = profile.tiers[1].name
    with hosim.offload(
        Scaled().eval(), (X, 3.0), hardware=profile, directories={below: tmp_path}
    ) as offloaded:
        assert [path.name.startswith(f"hosim-{below}-") for path in tmp_path.iterdir()] == [True]
        (weight,) = (
            tensor.size_bytes
            for tensor in offloaded.plan.graph.tensors
            if tensor.kind == "parameter"
        )
    with pytest.raises(InfeasibleError, match=r"^out of memory"):
        hosim.offload(Scaled().eval(), (X, 3.0), hardware=profile, plan=plan, budget=weight)


def test_a_model_that_is_forgotten_when_its_contents_cannot_come_back(monkeypatch):
    model = Scaled().eval()
    offloaded = hosim.offload(model, (X, 3.0), hardware=HARDWARE)
    weight = model.weight

    def fails():
        raise ExecutionError("a tier has lost its contents", lost=["weight"])

    monkeypatch.setattr(offloaded.executor, "close", fails)
    assert type(weight) is not torch.nn.Parameter
    del offloaded
    gc.collect()
    assert type(weight) is torch.nn.Parameter


def test_constants_of_the_loss_are_held():
    """Tensors of a criterion are placeholders behind those of the model and the inputs."""
    criterion = torch.nn.Module()
    shift, weights = criterion.shift, criterion.weights = (
        torch.arange(8.0),
        torch.linspace(0, 1, 16).reshape(2, 8),
    )

    def loss(model, inputs):
        return (
            (model(**inputs) - criterion.shift) * criterion.weights
        ).sum() + criterion.shift.sum()

    plain, model = Scaled(), Scaled()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5, fused=True) for m in (plain, model)]
    step = capture_training(model, {"x": X}, optimizers[1], name="constants", loss=loss)
    names = [
        (one.placeholder, one.name, one.kind, one.own)
        for one in step.program.givens
        if one.placeholder not in step.settings
    ]
    constants = [f"constant_{i}" for i in range(len(names) - 2)]
    assert step.settings == tuple(
        f"setting_{i}" for i in range(4)
    )  # decay, momentum, rate and dampening
    assert [name[1:] for name in names[:2]] == [
        ("weight", "parameter", True),
        ("x", "input", False),
    ]
    assert names[2:] == [(name, name, "buffer", True) for name in constants]
    assert (step.inputs, step.values[0] is model.weight, step.values[1]) == (("x",), True, None)
    assert [value.tolist() for value in step.values[2:-4]] == [
        shift.tolist(),
        weights.tolist(),
    ] * 2  # at each use, backward too
    wanted = loss(plain, {"x": X})
    wanted.backward()
    optimizers[0].step()
    with hosim.offload(
        model, X, hardware=HARDWARE, optimizer=optimizers[1], loss=loss
    ) as offloaded:
        assert torch.equal(offloaded(X), wanted)
    assert torch.equal(model.weight, plain.weight)


def test_a_failure_between_the_parts_of_a_step_loses_nothing(monkeypatch):
    """It comes when one of the tensors is handed over; both halves wait on the machine until there
    is room, and close again.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    before, x = [p.detach().clone() for p in model.parameters()], torch.ones(2, 32)
    given = {
        "optimizer": optimizer,
        "loss": lambda model, inputs: model(inputs["input"]).sum(),
        "policy": "layerwise",
    }
    step = hosim.offload(model, {"input": x}, hardware=HARDWARE, **given)
    step.backward(input=x)
    device = step.executor.device

    def half(self, other, shared):
        theirs, ours, _ = next(entry for entry in shared if entry[0] in other._now)
        self._now[ours] = other._now.pop(theirs)
        raise RuntimeError("the link is down")

    def refuse(storage, size):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Residents, "take_over", half)
        patch.setattr(device, "allocate", refuse)
        with pytest.raises(
            ExecutionError, match="the link is down; the device has no room for"
        ) as caught:
            step.optimizer_step()
        away = [name for name in step.executor.left if name.endswith("weight")]
        assert caught.value.left == tuple(step.executor.left)
        assert len(away) == 4  # one of this plan, three of the other's
    step.close()
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))
    assert all(
        torch.equal(state["momentum_buffer"], torch.zeros(32, 32))
        for state in optimizer.state.values()
    )
