"""Training of models of ``torch.compile``: torch's own bits, inductor's order of calls, or a
refusal in one line.
"""

import shutil
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import steps  # noqa: E402
from lowering import same  # noqa: E402
from occupancy import Occupancy  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

MACHINE = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
SMALL = {"hardware": MACHINE, "policy": "layerwise"}  # which plans in no time
X = torch.linspace(-1, 1, 8 * 32).reshape(8, 32)

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="inductor needs a C++ compiler"
)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


@pytest.fixture
def seen(monkeypatch):
    """Inductor's buffers are made by an op of torch, so that :class:`Occupancy` sees them."""
    monkeypatch.setattr(
        torch._C._dynamo.guards,
        "_empty_strided_cpu",
        lambda *a: torch.empty_strided(a[0], a[1], dtype=a[2]),
    )


class Blocks(torch.nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x)) * 2
        return x


def loss_of(model, inputs):
    return model(**inputs).square().mean()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


OPTIMIZERS = {
    "sgd": sgd,
    "sgd op by op": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, foreach=False
    ),
    "sgd by lists": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, foreach=True
    ),
    "adamw": adamw,
}


def trained(model=Blocks, make=adamw, loss=loss_of, inputs=X, steps=3, budget=None, **compiling):
    """Models, compiled and compiled offloaded, after equal steps; whether all losses were equal;
    and the offloaded step.
    """
    models = model(), model()
    compiled = [torch.compile(one, **compiling) for one in models]
    optimizers = [make(one.parameters()) for one in models]
    wanted, got = [], []
    for k in range(steps):
        torch.manual_seed(k)
        optimizers[0].zero_grad()
        wanted.append(loss(compiled[0], {"x": inputs + k}))
        wanted[-1].backward()
        optimizers[0].step()
    with hosim.offload(
        compiled[1], {"x": inputs}, optimizer=optimizers[1], loss=loss, budget=budget, **SMALL
    ) as step:
        for k in range(steps):
            torch.manual_seed(k)
            got.append(step(x=inputs + k))
    return models, optimizers, same(got, [one.detach() for one in wanted]), step


def states(models, optimizers):
    return [
        steps.state_of(model, optimizer)
        for model, optimizer in zip(models, optimizers, strict=True)
    ]


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_three_steps_of_a_compiled_model(make):
    models, optimizers, losses, step = trained(make=OPTIMIZERS[make])
    assert losses
    assert same(*states(models, optimizers))
    assert step.plan.count("prefetch")
    kinds = [op.name.split("_")[0] for op in step.plan.graph.ops]
    assert "fused" in kinds  # forward's kernels and backward's
    assert any("backward" in op.name for op in step.plan.graph.ops)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "vit", "gemma"])
def test_families_have_the_bits_of_the_compiled_model(name, seen):
    inputs, model = steps.inputs_of(name), steps.model_of(name)
    optimizer, compiled = steps.optimizer_of(model), torch.compile(model)
    torch.manual_seed(1)
    wanted = []
    for _ in range(3):
        optimizer.zero_grad()
        wanted.append(steps.loss_of(compiled, inputs))
        wanted[-1].backward()
        optimizer.step()
    gradients = [p.grad for p in model.parameters()]
    for budget in ("90%", "75%", "50%"):
        other = steps.model_of(name)
        own = steps.optimizer_of(other)
        device = CpuDevice(MACHINE, synchronous=True)
        with hosim.offload(
            torch.compile(other),
            inputs,
            hardware=MACHINE,
            budget=budget,
            optimizer=own,
            loss=steps.loss_of,
            device=device,
            parameters={"effort": 0},
        ) as step:
            assert step.plan.count("prefetch") > 0
            torch.manual_seed(1)
            with Occupancy([step._captured.held, inputs]) as occupancy:
                losses = [step(**inputs)]
            account = hosim.replay(step.plan, MACHINE, account="program")
            assert (
                occupancy.peak == account.allocator.peak_allocated_bytes
            )  # inductor's temporaries too
            losses.append(step(**inputs))
            losses.append(step.backward(**inputs))
            assert same([p.grad for p in other.parameters()], gradients)
            step.optimizer_step()
        assert same(losses, [one.detach() for one in wanted])
        assert same(steps.state_of(other, own), steps.state_of(model, optimizer))


class Inputs(torch.nn.Module):
    """Convolution, running statistics, a counter, dropout, tied weights, an op run again in
    backward, and a constant.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 8)
        self.tied = torch.nn.Linear(8, 8)
        self.tied.weight = self.linear.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        y = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
        y = torch.utils.checkpoint.checkpoint(
            lambda y: torch.tanh(self.linear(y)), y, use_reentrant=False
        )
        return torch.nn.functional.dropout(self.tied(y), 0.5) + self.calls


@pytest.mark.long
@needs_compiler
def test_buffers_dropout_tied_weights_and_checkpoints():
    x = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
    models, optimizers, losses, _ = trained(Inputs, sgd, inputs=x)
    assert losses
    assert same(*states(models, optimizers))
    assert models[1].calls == 3
    assert models[1].norm.num_batches_tracked == 3


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize(
    "loss",
    [
        lambda model, inputs: (model(**inputs) - model(inputs["x"] * 2)).square().mean(),
        lambda model, inputs: model(**inputs)[:, :7].T.relu().sum() * 0.3,
        lambda model, inputs: loss_in_bf16(model, inputs),
    ],
    ids=["called twice", "a part of the results", "under autocast"],
)
def test_losses(loss):
    models, optimizers, losses, _ = trained(loss=loss)
    assert losses
    assert same(*states(models, optimizers))


def loss_in_bf16(model, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return model(**inputs).float().square().mean()


def clamp(parameter):
    parameter.grad.clamp_(-1e-2, 1e-2)


@pytest.mark.long
@needs_compiler
def test_accumulation_clipping_hooks_and_a_schedule():
    models = Blocks(), Blocks()
    compiled = [torch.compile(model) for model in models]
    optimizers = [adamw(model.parameters()) for model in models]
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(one, max_lr=0.05, total_steps=10) for one in optimizers
    ]
    counted = [[], []]
    for model, mine in zip(models, counted, strict=True):
        model.layers[0].weight.register_hook(
            lambda gradient, mine=mine: mine.append(1) or gradient * 2
        )
        model.layers[1].bias.register_post_accumulate_grad_hook(clamp)
    with hosim.offload(
        compiled[1], {"x": X}, optimizer=optimizers[1], loss=loss_of, **SMALL
    ) as step:
        for k in range(3):
            norms = []
            for which, model in enumerate(models):
                for micro in range(3):
                    x = X * (micro + 1) + k
                    if which:
                        last = step.backward(x=x)
                    else:
                        wanted = loss_of(compiled[0], {"x": x})
                        wanted.backward()
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
                optimizers[which].step()
                schedules[which].step()
                optimizers[which].zero_grad()
            assert torch.equal(last, wanted)
            assert torch.equal(*norms)
    assert same(*states(models, optimizers))
    assert counted[0] == counted[1] == [1] * 9


@pytest.mark.long
@needs_compiler
def test_inductor_keeps_the_order_and_cache_ops_stand_where_they_are_planned():
    from torch._inductor.utils import run_and_get_code

    model = Blocks(4)
    compiled, optimizer = torch.compile(model), adamw(model.parameters())
    plain = torch.compile(Blocks(4))
    _, texts = run_and_get_code(lambda: loss_of(plain, {"x": X}).backward())
    texts = sorted(texts, key=lambda text: "tangents_1" in text)  # forward, and then backward
    lines = [
        line.strip() for text in texts for line in text[text.index("def call(") :].splitlines()
    ]
    own = [
        line for line in lines if line.startswith(("cpp_fused", "extern_kernels."))
    ]  # forward and backward without hosim
    with hosim.offload(compiled, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        plan, lowered = step.plan, step.lowered
        names = [op.name for op in plan.graph.ops]
        compiled_ops = [name for name in names if name.startswith(("fused", "addmm", "mm"))]
        assert len(texts) == 2
        assert len(compiled_ops) == len(own)
        for name, line in zip(compiled_ops, own, strict=True):
            assert line.startswith(
                "cpp_" + name.rstrip("0123456789_")
                if name.startswith("fused")
                else f"extern_kernels.{name.split('_')[0]}("
            )
        nodes = [node.name for node in lowered.module.graph.nodes]
        at = {name: nodes.index(name) for name in names}
        assert sorted(at, key=at.__getitem__) == names
        assert plan.count("prefetch") > 0
        for name, k in lowered.cache_op_of.items():
            assert [other for other in names if at[other] < nodes.index(name)] == names[
                : plan.cache_ops[k].after + 1
            ]
        first, last = compiled_ops[0], compiled_ops[-1]
        between = [name for name in lowered.cache_op_of if at[first] < nodes.index(name) < at[last]]
        assert between  # cache ops stand between the calls of the programs
        called = []
        for node in lowered.module.graph.nodes:
            if node.name in compiled_ops:
                node.target._function = noted(node.target._function, called, node.name)
        step(x=X)
        assert called == compiled_ops


def noted(function, called, name):
    def call(*args):
        called.append(name)
        return function(*args)

    return call


@pytest.mark.long
@needs_compiler
def test_what_torch_has_compiled_for_the_user_stays():
    model = Blocks()
    compiled, optimizer = torch.compile(model), adamw(model.parameters())
    wanted = loss_of(compiled, {"x": X})
    forward = compiled.forward
    for _ in range(10):  # more often than torch compiles one function
        hosim.offload(compiled, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL).close()
    assert compiled.forward is forward
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(loss_of(compiled, {"x": X}), wanted)


class Breaks(Blocks):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return super().forward(x)


class Stops(Blocks):
    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


@pytest.mark.parametrize("model", [Breaks, Stops])
def test_a_model_of_several_graphs_is_refused(model):
    refused(
        model(),
        "torch.compile breaks (Breaks|Stops) into several graphs, and hosim trains models of one: "
        ".*; offload it uncompiled",
    )


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"mode": "reduce-overhead"}, "CUDA graphs, which keep their addresses"),
        ({"options": {"cpp_wrapper": True}}, "cpp_wrapper, whose program is not Python"),
        ({"dynamic": True}, "dynamic=True, and a plan is for fixed sizes"),
        ({"backend": "eager"}, r"another backend than inductor \(eager\)"),
    ],
)
def test_what_is_compiled_otherwise_is_refused(choices, said):
    refused(Blocks(1), f"the model is compiled .*{said}", **choices)


def refused(model, said, device=None, prepare=lambda compiled: None, loss=loss_of, **choices):
    """Refused in one line, and the model is as it was."""
    before = [p.clone() for p in model.parameters()]
    compiled, optimizer = torch.compile(model, **choices), adamw(model.parameters())
    prepare(compiled)
    with pytest.raises(InputError, match=said) as error:
        hosim.offload(compiled, {"x": X}, optimizer=optimizer, loss=loss, device=device, **SMALL)
    assert len(str(error.value).splitlines()) == 1
    assert same(list(model.parameters()), before)


def test_settings_of_the_process_are_refused():
    from torch._inductor import config

    with config.patch(freezing=True):
        refused(Blocks(1), "the model is compiled with freezing")


def test_a_gpu_is_refused():
    refused(
        Blocks(1),
        "compiled models run on the CPU's machine alone, not on cuda",
        SimpleNamespace(torch_device=torch.device("cuda"), runtime=None),
    )


def test_a_hook_of_the_compiled_model_is_refused():
    refused(
        Blocks(1),
        "OptimizedModule has a forward hook, which a captured program would not call",
        prepare=lambda compiled: compiled.register_forward_hook(
            lambda module, inputs, result: result * 2
        ),
    )


def test_replicas_of_a_compiled_model_are_refused(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        refused(
            torch.nn.parallel.DistributedDataParallel(Blocks(1)),
            "the model is compiled .* exchanges tensors with other processes",
        )
    finally:
        distributed.destroy_process_group()


def test_a_loss_with_a_compiled_part_is_refused():
    part = torch.compile(lambda x: x.square().mean())
    refused(
        Blocks(1),
        r"loss\(model, inputs\) raised RuntimeError: Detected",
        loss=lambda model, inputs: part(model.layers[0](inputs["x"])),
    )


@pytest.mark.long
@needs_compiler
def test_a_scaler_of_gradients_under_autocast():
    """Four steps in parts; the scale grows after two."""

    def loss_in_bf16(model, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(inputs["input"]).float().square().mean()

    models = [
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())
    compiled = [torch.compile(model) for model in models]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01, fused=True) for model in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in models]
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    how = {
        "optimizer": optimizers[1],
        "loss": loss_in_bf16,
        "hardware": "h100-80gb-sxm",
        "parameters": {"effort": 0},
    }
    with hosim.offload(compiled[1], {"input": x}, **how) as step:
        for _ in range(4):
            wanted = loss_in_bf16(compiled[0], {"input": x})
            scalers[0].scale(wanted).backward()
            assert torch.equal(
                step.backward(input=x, gradient=scalers[1].scale(torch.ones(()))), wanted.detach()
            )
            for optimizer, scaler in zip(optimizers, scalers, strict=True):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 32.0
    assert all(
        torch.equal(a, b) for a, b in zip(*[model.parameters() for model in models], strict=True)
    )
