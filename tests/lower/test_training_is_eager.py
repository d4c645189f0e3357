"""What people put around a training step: the offloaded step equals the eager one to the bit, or is
refused in one line.
"""

from __future__ import annotations

import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.on_torch.lower.devices import CudaDevice  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "policy": "layerwise"}  # which plans in no time
PLANNED = {"hardware": "h100-80gb-sxm", "budget": "70%", "parameters": {"effort": 0}}
X = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(5))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def loss_of(model, inputs):
    return model(**inputs).square().mean()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.01, fused=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def trained(
    prepare=lambda model, optimizer: None, make=sgd, steps=3, after=lambda made: None, model=Layers
):
    """Models, eager and offloaded, after equal steps, and whether all losses were equal.
    ``prepare`` and ``after`` act on both.
    """
    models = model(), model()
    optimizers = [make(model.parameters()) for model in models]
    made = [prepare(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
    same = []
    with hosim.offload(models[1], {"x": X}, optimizer=optimizers[1], loss=loss_of, **SMALL) as step:
        assert step.plan.count("prefetch")
        for k in range(steps):
            optimizers[0].zero_grad()
            loss = loss_of(models[0], {"x": X + k})
            loss.backward()
            optimizers[0].step()
            same.append(torch.equal(step(x=X + k), loss))
            for one in made:
                after(one)
    return models, optimizers, made, all(same)


def equal(models):
    return all(
        torch.equal(mine, other)
        for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )


SCHEDULES = {
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, total_steps=30
    ),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
}
OPTIMIZERS = {
    "sgd": sgd,
    "op by op": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False
    ),
    "adamw": adamw,
    "a rate that is a tensor": lambda parameters: torch.optim.AdamW(
        parameters, lr=torch.tensor(0.01), fused=True
    ),
}


@pytest.mark.parametrize("make", one_in(3, OPTIMIZERS))
def test_a_schedule_for_twenty_steps(make):
    """One cycle changes the learning rate and the momentum (the first of the betas)."""
    schedule = SCHEDULES["cosine" if "tensor" in make else "one cycle"]
    models, optimizers, _, same = trained(
        lambda model, optimizer: schedule(optimizer), OPTIMIZERS[make], 20, lambda made: made.step()
    )
    assert same
    assert equal(models)
    assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]


def test_settings_that_need_other_ops_are_refused():
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        step(x=X)
        optimizer.param_groups[0]["weight_decay"] = 0.1  # adds an op for each parameter
        with pytest.raises(
            InputError, match="settings have changed since the step was captured; offload it again"
        ):
            step(x=X)


def test_dampened_momentum_begins_with_a_step_of_its_own():
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1, fused=True)
    with pytest.raises(InputError, match="SGD has no state yet; take one step"):
        hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL)


def clamp(parameter):
    parameter.grad.clamp_(-1e-3, 1e-3)


def clip(parameter):
    torch.nn.utils.clip_grad_norm_([parameter], 1e-3)


def replace(parameter):
    parameter.grad = parameter.grad + parameter * 0.01


HOOKS = {
    "before": lambda p, seen: p.register_hook(lambda gradient: gradient * 2),
    "before, looks on": lambda p, seen: p.register_hook(
        lambda gradient: seen.append(gradient.sum().item())
    ),
    "before, twice": lambda p, seen: [
        p.register_hook(lambda gradient: gradient + 1),
        p.register_hook(torch.neg),
    ],
    "after": lambda p, seen: p.register_post_accumulate_grad_hook(clamp),
    "after, with the parameter": lambda p, seen: p.register_post_accumulate_grad_hook(replace),
    "after, clips": lambda p, seen: p.register_post_accumulate_grad_hook(clip),
    "after, looks on": lambda p, seen: p.register_post_accumulate_grad_hook(
        lambda p: seen.append(p.grad.norm().item())
    ),
    "removed": lambda p, seen: p.register_hook(torch.neg).remove(),
}


@pytest.mark.parametrize("hook", one_in(2, HOOKS))
def test_hooks_of_parameters_are_called_at_each_step(hook):
    def prepare(model, optimizer):
        seen = []
        for p in model.parameters():
            HOOKS[hook](p, seen)
        return seen

    models, _, seen, same = trained(prepare)
    assert same
    assert equal(models)
    assert seen[0] == seen[1]
    assert len(seen[0]) == (30 if "looks" in hook else 0)


def test_a_hook_that_takes_the_gradient_away():
    def take(parameter):
        parameter.grad = None

    with pytest.raises(ExecutionError, match="a hook takes the gradient of a parameter away"):
        trained(
            lambda model, optimizer: model.layers[1].weight.register_post_accumulate_grad_hook(take)
        )


def test_a_gradient_that_is_there_already_is_refused():
    model = Layers()
    optimizer = sgd(model.parameters())
    loss_of(model, {"x": X}).backward()
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        with pytest.raises(
            InputError, match=r"has a gradient already, .* call zero_grad\(\) first"
        ):
            step(x=X)
        optimizer.zero_grad()
        step(x=X)


MODULE_HOOKS = {
    "a forward hook": lambda layer: layer.register_forward_hook(lambda *_: None),
    "a forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    "a backward hook": lambda layer: layer.register_full_backward_hook(lambda *_: None),
    "a backward pre-hook": lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("hook", MODULE_HOOKS)
def test_hooks_of_modules_are_refused(hook):
    model = Layers()
    handle = MODULE_HOOKS[hook](model.layers[2])
    message = f"module 'layers.2' has {hook}, which a captured program would not call; remove it"
    with pytest.raises(InputError, match=message):
        hosim.offload(model, {"x": X}, optimizer=sgd(model.parameters()), loss=loss_of, **SMALL)
    with pytest.raises(InputError, match=message):
        hosim.offload(model.eval(), X, **SMALL)
    handle.remove()
    with hosim.offload(model, X, **SMALL) as offloaded:
        offloaded(X)
        MODULE_HOOKS[hook](model.layers[2])
        with pytest.raises(InputError, match=message):
            offloaded(X)


def parted(
    make=sgd,
    steps=3,
    micro=1,
    between=lambda model, optimizer: None,
    prepare=lambda model, optimizer: None,
    gradient=None,
    how=SMALL,
):
    """Models, eager and offloaded, after steps of several micro-batches with code between backward
    and update.
    """
    models = Layers(), Layers()
    optimizers = [make(model.parameters()) for model in models]
    made = [prepare(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
    with hosim.offload(models[1], {"x": X}, optimizer=optimizers[1], loss=loss_of, **how) as step:
        for k in range(steps):
            for m in range(micro):
                now = {"x": X + k + 2 * m}
                loss = loss_of(models[0], now)
                loss.backward(gradient)
                assert torch.equal(step.backward(**now, gradient=gradient), loss)
                assert all(
                    torch.equal(p.grad, q.grad)
                    for p, q in zip(*(model.parameters() for model in models), strict=True)
                )
            found = [
                between(model, optimizer)
                for model, optimizer in zip(models, optimizers, strict=True)
            ]
            assert found[0] == found[1]
            optimizers[0].step()
            step.optimizer_step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        assert any(planned.plan.count("prefetch") for planned in step._now.parts.values())
        assert all(
            result.allocator.peak_allocated_bytes <= step.result.budget_bytes
            for result in step.parts.values()
        )
    assert equal(models)
    for mine, other in zip(*(model.parameters() for model in models), strict=True):
        assert all(
            torch.equal(value, optimizers[1].state[other][key])
            for key, value in optimizers[0].state[mine].items()
            if value is not None
        )
    return models, optimizers, made


@pytest.mark.parametrize(("make", "micro"), one_in(4, [(adamw, 3), (sgd, 3), (adamw, 1), (sgd, 1)]))
def test_backward_apart_from_the_update(make, micro):
    parted(make, micro=micro)


@pytest.mark.long
def test_parts_within_a_budget():
    parted(adamw, micro=2, steps=2, how=PLANNED)


def test_parts_on_the_stand_in_for_a_gpu(monkeypatch):
    """Two programs hand their tensors over to each other, and no access races with a copy."""
    cuda = fake_cuda.install(monkeypatch)
    machine = hosim.load_hardware(hosim.find_hardware(SMALL["hardware"]))
    with fake_cuda.Launched(cuda):
        parted(adamw, micro=2, how={**SMALL, "device": CudaDevice(machine)})


def test_gradients_are_clipped_between():
    parted(
        between=lambda model, optimizer: torch.nn.utils.clip_grad_norm_(
            model.parameters(), 1e-3
        ).item(),
        micro=2,
    )


def test_a_user_writes_and_replaces_gradients_between():
    def between(model, optimizer):
        for p in model.parameters():
            p.grad = p.grad.t().clone().t() * 2 if p.grad.ndim == 2 else p.grad.sign_()

    parted(between=between)


@pytest.mark.long
def test_gradients_of_a_scaled_loss():
    parted(gradient=torch.tensor(3.0), micro=2)


def test_hooks_of_parameters_when_gradients_accumulate():
    def prepare(model, optimizer):
        for p in model.parameters():
            p.register_hook(lambda gradient: gradient * 2)
            p.register_post_accumulate_grad_hook(clamp)

    parted(prepare=prepare, micro=2)


@pytest.mark.parametrize(
    ("make", "unscale"), one_in(2, [(adamw, True), (adamw, False), (sgd, False), (sgd, True)])
)
def test_a_scaler_of_gradients(make, unscale):
    """The second step overflows, and is left out."""
    models = Layers(), Layers()
    optimizers = [make(model.parameters()) for model in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1) for _ in models]
    with hosim.offload(models[1], {"x": X}, optimizer=optimizers[1], loss=loss_of, **SMALL) as step:
        for k in (0.0, float("inf"), 1.0, 2.0):
            scalers[0].scale(loss_of(models[0], {"x": X + k})).backward()
            step.backward(x=X + k, gradient=scalers[1].scale(torch.ones(())))
            for optimizer, scaler in zip(optimizers, scalers, strict=True):
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert equal(models)
    assert "step" not in vars(optimizers[1])


def test_hooks_of_the_optimizer_are_called():
    def clipped(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1e-3)

    seen = []

    def prepare(model, optimizer):
        optimizer.register_step_pre_hook(clipped)
        optimizer.register_step_post_hook(lambda *_: seen.append(1))

    models, _, _, same = trained(prepare)
    assert same
    assert equal(models)
    assert len(seen) == 6


def test_the_optimizer_steps_through_the_offloaded_one():
    models = Layers(), Layers()
    optimizers = [sgd(model.parameters()) for model in models]
    schedules = [torch.optim.lr_scheduler.OneCycleLR(optimizers[0], max_lr=0.05, total_steps=30)]
    with hosim.offload(models[1], {"x": X}, optimizer=optimizers[1], loss=loss_of, **SMALL) as step:
        schedules.append(
            torch.optim.lr_scheduler.OneCycleLR(optimizers[1], max_lr=0.05, total_steps=30)
        )
        optimizers[1].step()  # without gradients it does nothing
        for k in range(3):
            loss_of(models[0], {"x": X + k}).backward()
            if k == 1:
                step(x=X + k)  # a whole step between parted ones
            else:
                step.backward(x=X + k)
                optimizers[1].step()
            optimizers[0].step()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                schedule.step()
                optimizer.zero_grad()
        with pytest.raises(InputError, match="takes no closure"):
            optimizers[1].step(lambda: None)
    assert equal(models)
    loss_of(models[1], {"x": X}).backward()
    optimizers[1].step()
    assert not equal(models)


def test_gradients_of_some_parameters_alone_are_refused():
    model = Layers()
    optimizer = sgd(model.parameters())
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        step.backward(x=X)
        model.layers[1].weight.grad = None
        with pytest.raises(
            InputError, match="parameters with gradients are not those of the captured step"
        ):
            step.optimizer_step()
        with pytest.raises(
            InputError, match="some parameters have gradients already and others have none"
        ):
            step.backward(x=X)
        with pytest.raises(InputError, match="has a gradient already"):
            step(x=X)


def test_parameters_of_another_optimizer_are_refused_in_parts():
    model = Layers()
    optimizer = sgd(model.layers[1:].parameters())
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        step(x=X)
        with pytest.raises(
            InputError,
            match=r"parameter 'layers.0.weight' is not the optimizer's, .* first "
            r"requires_grad_\(False\)",
        ):
            step.backward(x=X)
    model.layers[0].requires_grad_(False)
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        step.backward(x=X)
        assert [p.grad is None for p in model.parameters()] == [True, True] + [False] * 8


def test_hooks_of_all_modules_are_refused():
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(InputError, match="all modules have a forward hook"):
            hosim.offload(Layers(), X, **SMALL)
    finally:
        handle.remove()


def test_hooks_that_compute_with_tensors_alone_are_traced():
    from torch.nn.utils.prune import l1_unstructured

    models, _, _, same = trained(
        lambda model, optimizer: l1_unstructured(model.layers[1], "weight", 0.5)
    )
    assert same
    assert equal(models)


class Rebinds(Layers):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.mean(0)
        return super().forward(x) + self.mean


def test_a_buffer_that_the_model_replaces_is_refused():
    model = Rebinds()
    with pytest.raises(InputError, match="the model replaces its buffer 'mean'"):
        hosim.offload(model, {"x": X}, optimizer=sgd(model.parameters()), loss=loss_of, **SMALL)


class Twice(Layers):
    """One module under several names."""

    def __init__(self):
        super().__init__()
        self.again = self.layers[2]
        self.both = torch.nn.Sequential(self.again, torch.nn.ReLU(), self.layers[4])

    def forward(self, x):
        return super().forward(self.both(self.again(x)))


def test_a_module_with_several_names():
    """The model has its own parameters afterwards, and not those of the trace."""
    models, _, _, same = trained(steps=2, model=Twice)
    assert same
    assert all(type(p) is torch.nn.Parameter for p in models[1].parameters())
    assert equal(models)
    assert torch.equal(*(model(X) for model in models))


class Counting(Layers):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 1, None

    def forward(self, x):
        self.last = super().forward(x)
        return self.last * self.calls


class Counted(Layers):
    def __init__(self):
        super().__init__()
        self.calls = 1

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize("optimizer", [sgd, None])
def test_python_numbers_that_forward_changes_are_refused(optimizer):
    """A captured program would compute with the number of its capture. What else forward keeps is
    as it was before.
    """
    model = Counted()
    how = {"optimizer": optimizer(model.parameters()), "loss": loss_of} if optimizer else {}
    with pytest.raises(
        InputError,
        match="Counted changes its 'calls' at each call, which a captured program would not do "
        "again",
    ):
        hosim.offload(model, {"x": X}, **how, **SMALL)
    assert model.calls == 1
    assert equal((model, Layers()))


def test_what_forward_keeps_is_as_before():
    models, _, _, same = trained(steps=2, model=Counting)
    assert same
    assert equal(models)
    assert models[1].last is None


def test_a_compiled_part_is_refused():
    model = Layers()
    model.layers[1]._compiled_call_impl = model.layers[
        1
    ].forward  # as its method compile() leaves it
    with pytest.raises(
        InputError, match=r"module 'layers.1' is compiled in place by torch.compile"
    ):
        hosim.offload(model, X, **SMALL)


class Recurrent(Layers):
    def __init__(self, kind):
        super().__init__()
        self.recurrent = kind(64, 64, 1, batch_first=True)

    def forward(self, x):
        return super().forward(self.recurrent(x.view(2, 4, 64))[0])


@pytest.mark.parametrize("kind", one_in(2, [torch.nn.LSTM, torch.nn.GRU]))
def test_recurrent_layers_train(kind):
    models, _, _, same = trained(steps=2, model=lambda: Recurrent(kind))
    assert same
    assert equal(models)


class Grouped(Layers):
    """Three experts, in fp32."""

    def __init__(self):
        super().__init__()
        self.experts = torch.nn.Parameter(torch.randn(3, 64, 64) / 8)

    def forward(self, x):
        ends = torch.tensor([2, 5, 8], dtype=torch.int32)
        return super().forward(torch._grouped_mm(x, self.experts, ends))


def test_products_by_groups_train_in_fp32():
    models, _, _, same = trained(steps=2, model=Grouped)
    assert same
    assert equal(models)


class Counts(torch.optim.Optimizer):
    """Counts its steps in a number."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"n": 0}

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["n"] += 1
                p.data.add_(p.grad, alpha=-group["lr"] / state["n"])


def test_an_optimizer_that_keeps_numbers_is_refused():
    model = Layers()
    with pytest.raises(InputError, match="Counts replaces numbers or tensors that it keeps"):
        hosim.offload(model, {"x": X}, optimizer=Counts(model.parameters()), loss=loss_of, **SMALL)
