"""Models that the device cannot hold: on the CPU, or on meta with a loader. The stand-in has less
memory than the parameters take.
"""

import copy

import pytest

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402
from fake_cuda import Launched  # noqa: E402
from layers import AbsentGpu, machine  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.on_torch.lower import inference  # noqa: E402
from hosim.on_torch.lower.devices import CpuOrigin, CudaDevice  # noqa: E402

MIB = 1 << 20
WIDTH = 1792  # a weight takes 12.25 MiB: one segment of the allocator
QUICK = {"parameters": {"effort": 0}}


class Wide(torch.nn.Module):
    """Square layers, of which the first and the last share their weight, and a buffer that calls
    write.
    """

    def __init__(self, layers=6, width=WIDTH):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False) for _ in range(layers)
        )
        self.layers.append(torch.nn.Linear(width, width, bias=False))
        self.layers[-1].weight = self.layers[0].weight
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        self.calls.add_(1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def loss_of(model, inputs):
    return model(**inputs).square().mean()


with torch.device("meta"):
    ON_META, SMALL_ON_META = Wide(), Wide(2, 64)


def in_host_memory(cuda, model):
    """The model, whose tensors are not the stand-in's."""
    cuda.on_host([*model.parameters(), *model.buffers()])
    return model


def unbounded():
    """A machine for models smaller than a segment, of which the allocator reserves more than they
    hold.
    """
    device = CudaDevice(machine())
    device.allocator = None
    return device


@pytest.fixture(scope="module")
def x():
    return torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)


@pytest.fixture
def cuda(monkeypatch):
    """45 MiB; the weights of :class:`Wide` take 73.5."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    return fake_cuda.install(monkeypatch, capacity=45 * MIB, expandable=True)


def test_a_model_on_the_cpu(cuda, x):
    model = in_host_memory(cuda, Wide())
    with torch.no_grad():
        wanted = copy.deepcopy(model)(x)
    before = copy.deepcopy(model.state_dict())
    budget, (theirs,) = 44 * MIB, cuda.on_host([x.clone()])
    with (
        Launched(cuda),
        hosim.offload(
            model, x, hardware=machine(), budget=budget, device=CudaDevice(machine()), **QUICK
        ) as offloaded,
    ):
        assert (
            sum(p.untyped_storage().nbytes() for p in model.parameters()) == 0
        )  # the contents are there once
        for _ in range(2):
            assert torch.equal(offloaded(x), wanted)
        assert torch.equal(offloaded(theirs), wanted)
        assert cuda.max_memory_reserved() <= 1.05 * budget
        assert offloaded.memory.held_bytes <= budget
    assert all(p.untyped_storage()._cdata in cuda.pageable for p in model.parameters())
    assert torch.equal(model.calls, before.pop("calls") + 3)
    assert all(torch.equal(model.state_dict()[name], kept) for name, kept in before.items())
    assert not cuda.registered
    assert torch.equal(model(x), wanted)


def test_a_model_on_meta(cuda, x):
    """Its parameters are loaded one by one, past the device; a buffer that is on the CPU goes back
    there.
    """
    kept = in_host_memory(cuda, Wide())
    with torch.no_grad():
        wanted = copy.deepcopy(kept)(x)
    model = copy.deepcopy(ON_META)
    model.calls = torch.zeros(4)
    cuda.on_host([model.calls])
    asked = []

    def load(name):
        asked.append(name)
        return dict(kept.named_parameters())[name]

    budget = 44 * MIB
    device = CudaDevice(machine())
    with (
        Launched(cuda),
        hosim.offload(
            model, x, hardware=machine(), budget=budget, device=device, loader=load, **QUICK
        ) as offloaded,
    ):
        assert torch.equal(offloaded(x), wanted)
        assert cuda.max_memory_reserved() <= 1.05 * budget
    assert sorted(asked) == [f"layers.{i}.weight" for i in range(6)]  # the tied one once
    assert all(p.is_meta for p in model.parameters())
    assert torch.equal(model.calls, torch.ones(4))
    assert all(p.untyped_storage().nbytes() for p in kept.parameters())


def test_training_of_a_model_on_the_cpu(cuda):
    """Whole steps, and steps in their parts: between them gradients are on the CPU, where the
    parameters are.
    """
    small = torch.linspace(-1, 1, 2 * 64).reshape(2, 64)
    eager, model = Wide(3, 64), in_host_memory(cuda, Wide(3, 64))
    theirs = torch.optim.AdamW(eager.parameters(), lr=0.1, fused=True)
    loss_of(eager, {"x": small}).backward()
    theirs.step()
    theirs.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    given = {"optimizer": optimizer, "loss": loss_of, "device": unbounded(), "policy": "layerwise"}
    with (
        Launched(cuda),
        hosim.offload(model, {"x": small}, hardware=machine(), budget="90%", **given) as step,
    ):
        step(x=small)
    assert all(
        torch.equal(p, other)
        for p, other in zip(model.parameters(), eager.parameters(), strict=True)
    )
    for k in (1, 2):
        loss_of(eager, {"x": small * k}).backward()
    theirs.step()
    given["device"] = unbounded()
    for state in optimizer.state.values():
        state.update((key, cuda.on_host([value.clone()])[0]) for key, value in list(state.items()))
    with (
        Launched(cuda),
        hosim.offload(model, {"x": small}, hardware=machine(), budget="90%", **given) as step,
    ):
        for k in (1, 2):
            step.backward(x=small * k)
        gradients = [p.grad for p in model.parameters()]
        assert all(gradient.untyped_storage()._cdata in cuda.pageable for gradient in gradients)
        step.optimizer_step()
    assert all(
        torch.equal(gradient, p.grad)
        for gradient, p in zip(gradients, eager.parameters(), strict=True)
    )
    assert all(
        torch.equal(value, eager.state_dict()[name]) for name, value in model.state_dict().items()
    )
    for mine, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert all(
            torch.equal(value, theirs.state[other][key])
            for key, value in optimizer.state[mine].items()
        )


@pytest.mark.long
def test_from_safetensors(tmp_path):
    """A folder of files, and one file; on a machine of the CPU's memory."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    kept, small = Wide(2, 64), torch.ones(2, 64)
    parameters = dict(kept.named_parameters())
    for i, (name, value) in enumerate(parameters.items()):
        save_file({name: value.detach()}, tmp_path / f"{i}.safetensors")
    model = copy.deepcopy(SMALL_ON_META)
    with pytest.raises(
        InputError, match=r"^loader: the loader gives nothing for 'calls': KeyError: 'calls'$"
    ):
        hosim.offload(model, small, hardware=machine(), loader=tmp_path)
    save_file({"calls": kept.calls}, tmp_path / "2.safetensors")
    save_file(
        {**{name: value.detach() for name, value in parameters.items()}, "calls": kept.calls},
        tmp_path / "all.safetensors",
    )
    for given in (tmp_path, tmp_path / "all.safetensors"):
        with hosim.offload(
            model, small, hardware=machine(), budget="70%", loader=given, **QUICK
        ) as offloaded:
            result = offloaded(small)
        with torch.no_grad():
            assert torch.equal(result, copy.deepcopy(kept)(small))
    (tmp_path / "3.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match=r"3\.safetensors: not a safetensors file"):
        hosim.offload(model, small, hardware=machine(), loader=tmp_path)
    with pytest.raises(
        InputError, match=r"nowhere: expected a \.safetensors file or a folder of them$"
    ):
        hosim.offload(model, small, hardware=machine(), loader=tmp_path / "nowhere")


def test_what_a_loader_must_give():
    small = torch.ones(2, 64)
    model = copy.deepcopy(SMALL_ON_META)

    def said(loader, **given):
        with pytest.raises(InputError) as caught:
            hosim.offload(model, {"x": small}, hardware=machine(), loader=loader, **given)
        return str(caught.value)

    wanted = "for 'layers.0.weight'; the model has (64, 64) of torch.float32"
    assert (
        said(lambda name: torch.ones(3))
        == f"loader: the loader gives (3,) of torch.float32 {wanted}"
    )
    assert (
        said(lambda name: torch.ones(64, 64, dtype=torch.int))
        == f"loader: the loader gives (64, 64) of torch.int32 {wanted}"
    )
    assert said(lambda name: None) == f"loader: the loader gives NoneType {wanted}"
    optimizer = torch.optim.SGD(model.parameters())
    assert (
        said(lambda name: None, optimizer=optimizer)
        == "model: a model on meta has no place for what a step learns; load it on the CPU"
    )
    model = Wide(2, 64)
    assert (
        said(lambda name: None)
        == "loader: nothing of the model is on meta, so that there is nothing to load"
    )


def test_a_capture_for_a_gpu_that_is_not_here():
    """What the model makes is made on the device, and the parameters stay on the CPU."""

    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return (
                x @ self.weight
                + torch.arange(4, device=x.device)
                + torch.tensor([1.0, 2, 3, 4]).to(x.device)
            )

    model = Positions()
    captured = inference(model, torch.ones(2, 4), "positions", AbsentGpu())
    nodes = captured.program.module.graph.nodes
    assert next(n for n in nodes if "arange" in n.name).kwargs["device"] == torch.device("cuda", 0)
    (held,) = [name for name in captured.held if name not in captured.constants]
    assert captured.held[held] is model.weight
    assert model.weight.device.type == "cpu"
    assert [captured.held[name].device.type for name in captured.constants] == ["cpu"]


def full(origin):
    raise MemoryError


def pins(cuda, monkeypatch, slabs):
    """Slabs of 16 KiB, which is a weight of 64 by 64, of which the driver pins so many."""
    monkeypatch.setattr("hosim.on_torch.lower.tiers.host_pool.SLAB_BYTES", 1 << 14)
    pin = cuda.cudaHostRegister
    monkeypatch.setattr(
        cuda, "cudaHostRegister", lambda *given: 2 if len(cuda.registered) >= slabs else pin(*given)
    )


def test_a_model_on_the_device_that_the_host_cannot_take(cuda, monkeypatch):
    """The third weight cannot be pinned: the model is as it was, without a byte from the device."""
    small = torch.linspace(-1, 1, 2 * 64).reshape(2, 64)
    for optimizer in (None, torch.optim.SGD):
        with monkeypatch.context() as patch:
            model = Wide(4, 64)
            before = copy.deepcopy(model.state_dict())
            pins(cuda, patch, 2)
            device = unbounded()
            patch.setattr(device._memory, "allocate", None)
            patch.setattr(device, "allocate", None)
            how = (
                {}
                if optimizer is None
                else {
                    "optimizer": optimizer(model.parameters(), lr=0.1, fused=True),
                    "loss": loss_of,
                }
            )
            given = {"hardware": machine(), "policy": "layerwise", "device": device, **how}
            with (
                Launched(cuda),
                pytest.raises(
                    ExecutionError, match=r"^the driver cannot pin 16.0 KiB of host memory .*$"
                ) as caught,
            ):
                hosim.offload(model, {"x": small}, **given)
            assert (caught.value.left, caught.value.lost, caught.value.held) == ((), (), None)
            assert all(
                torch.equal(value, before[name]) for name, value in model.state_dict().items()
            )
            assert type(model.layers[0].weight) is torch.nn.Parameter
            assert not cuda.registered
            loss_of(model, {"x": small}).backward()


def test_a_placement_that_cannot_be_undone_leaves_something_to_close(cuda, monkeypatch):
    """Weights on the CPU, two of which are in pinned memory when the third finds none, and the
    first two no room to go back.
    """
    small = torch.ones(2, 64)
    model = in_host_memory(cuda, Wide(4, 64))
    before = copy.deepcopy(model.state_dict())
    pins(cuda, monkeypatch, 2)
    given = {"hardware": machine(), "budget": "60%", "device": unbounded(), **QUICK}
    with Launched(cuda):
        with monkeypatch.context() as patch:
            patch.setattr(CpuOrigin, "room", full)
            with pytest.raises(
                ExecutionError,
                match=r"; the host has no room for .*: free memory there and call held\.close\(\)",
            ) as caught:
                hosim.offload(model, small, **given)
            assert "the device has no room" not in str(caught.value)
            assert set(caught.value.for_host) == set(caught.value.left)
            with pytest.raises(InputError, match="first close what"):
                model.layers[0].weight.sum()
        caught.value.held.close()
    assert all(torch.equal(model.state_dict()[name], kept) for name, kept in before.items())
    assert not cuda.registered
    monkeypatch.setattr("hosim.on_torch.lower.tiers.residents.Residents._fill", lambda *_: False)
    with (
        Launched(cuda),
        pytest.raises(ExecutionError, match=r"; the contents of 'layers.0.weight', .* are lost$"),
    ):
        hosim.offload(model, small, **{**given, "device": unbounded()})
    with pytest.raises(InputError, match="the contents of this tensor were lost"):
        model.layers[0].weight.sum()


def test_closing_needs_no_second_model_in_host_memory(cuda, monkeypatch):
    """Pinned memory goes back slab by slab: with what has its contents again, never more than the
    model, a slab and a weight.
    """
    small = torch.ones(2, 64)
    model = in_host_memory(cuda, Wide(6, 64))
    whole = sum(p.untyped_storage().nbytes() for p in model.parameters())
    pins(cuda, monkeypatch, 100)
    offloaded = hosim.offload(
        model, small, hardware=machine(), budget="40%", device=unbounded(), **QUICK
    )
    assert sum(cuda.registered.values()) > whole / 2
    seen, room = [], CpuOrigin.room

    def noted(origin):
        made = room(origin)
        seen.append(
            sum(p.untyped_storage().nbytes() for p in model.parameters())
            + sum(cuda.registered.values())
        )
        return made

    monkeypatch.setattr(CpuOrigin, "room", noted)
    with Launched(cuda):
        offloaded.close()
    assert len(seen) == 7
    assert max(seen) <= whole + (2 << 14)


@pytest.mark.long
def test_no_room_on_the_host_for_what_comes_back(cuda, monkeypatch):
    """The contents stay where they are; closing again brings them back."""
    small = torch.ones(2, 64)
    model = in_host_memory(cuda, Wide(3, 64))
    before = copy.deepcopy(model.state_dict())
    with Launched(cuda):
        offloaded = hosim.offload(
            model, small, hardware=machine(), budget="60%", device=unbounded(), **QUICK
        )
        with monkeypatch.context() as patch:
            patch.setattr(CpuOrigin, "room", full)
            with pytest.raises(
                ExecutionError,
                match=r"not all contents are back; the host has no room for 'layers\.0\.weight', "
                r".*: free",
            ):
                offloaded.close()
            with pytest.raises(InputError, match="first close what"):
                model.layers[0].weight.sum()
        offloaded.close()
    assert all(torch.equal(model.state_dict()[name], kept) for name, kept in before.items())
