"""What users do with Python's state around a model: each habit is a generator of results, run once
eagerly and once offloaded (:mod:`habits`).
"""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import functools
import itertools
import os
import random
import sys
import threading
import time
import types
import uuid
import weakref

import numpy
import torch
from habits import Net, X, Y, adamw, habit, loss_with, sgd, square, trained, with_does
from torch import nn
from torch.nn import functional

SCALE = 1.0
RARE: dict = {}
NOW = contextvars.ContextVar("now", default=1.0)
LOCAL = threading.local()


def nothing(k, model):
    """Nothing changes between calls."""


# -- what the loss reads


@habit
def a_number_in_a_closure(go):
    scale = 1.0

    def change(k, model):
        nonlocal scale
        scale = 1.0 + k

    return loss_with(go, lambda model, i: square(model, i) * scale, change)


@habit
def targets_in_a_closure(go):
    y = Y[0]

    def change(k, model):
        nonlocal y
        y = Y[k]

    return loss_with(go, lambda model, i: functional.mse_loss(model(i["x"]), y), change)


@habit
def an_iterator_of_targets(go):
    targets = iter([*Y, *Y, *Y])
    return loss_with(go, lambda model, i: functional.mse_loss(model(i["x"]), next(targets)))


@habit
def a_generator_of_numbers(go):
    numbers = (1.0 + k for k in range(99))
    return loss_with(go, lambda model, i: square(model, i) * next(numbers))


@habit
def a_total_of_losses(go):
    total = torch.zeros(())

    def loss(model, i):
        nonlocal total
        value = square(model, i)
        total = total + value.detach()
        return value + total

    return loss_with(go, loss)


@habit
def losses_in_a_list(go):
    log = []

    def loss(model, i):
        value = square(model, i)
        log.append(value.detach())
        return value * len(log)

    return loss_with(go, loss)


@habit
def a_schedule_by_the_learning_rate(go):
    model = Net()
    optimizer = adamw(model)

    def change(k, model):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)

    return trained(
        go, model, optimizer, lambda m, i: square(m, i) * optimizer.param_groups[0]["lr"], change
    )


@habit
def a_property_of_an_attribute(go):
    class Config:
        def __init__(self):
            self.level = 1

        @property
        def scale(self):
            return 2.0**self.level

    config = Config()
    return loss_with(
        go,
        lambda model, i: square(model, i) * config.scale,
        lambda k, model: setattr(config, "level", k),
    )


@habit
def a_cached_function(go):
    box = {"v": 1.0}

    @functools.lru_cache
    def scale():
        return box["v"]

    def change(k, model):
        box["v"] = 1.0 + k
        scale.cache_clear()

    return loss_with(go, lambda model, i: square(model, i) * scale(), change)


@habit
def the_environment(go):
    os.environ["HABIT_SCALE"] = "1"
    return loss_with(
        go,
        lambda model, i: square(model, i) * float(os.environ["HABIT_SCALE"]),
        lambda k, model: os.environ.__setitem__("HABIT_SCALE", str(k + 1)),
    )


@habit
def a_file(go):
    path = f"/tmp/habit-{os.getpid()}"

    def change(k, model):
        with open(path, "w") as file:
            file.write(str(k + 1.0))

    def loss(model, i):
        with open(path) as file:
            return square(model, i) * float(file.read())

    return loss_with(go, loss, change)


@habit
def a_context_variable(go):
    return loss_with(
        go, lambda model, i: square(model, i) * NOW.get(), lambda k, model: NOW.set(1.0 + k)
    )


@habit
def a_thread_local(go):
    LOCAL.scale = 1.0
    return loss_with(
        go,
        lambda model, i: square(model, i) * LOCAL.scale,
        lambda k, model: setattr(LOCAL, "scale", 1.0 + k),
    )


@habit
def through_a_weak_reference(go):
    holder = Net()
    holder.scale = 1.0
    found = weakref.ref(holder)
    return loss_with(
        go,
        lambda model, i: square(model, i) * found().scale,
        lambda k, model: setattr(holder, "scale", 1.0 + k),
    )


@habit
def a_module_of_settings(go):
    settings = types.ModuleType("settings_of_a_user")
    settings.scale = 1.0
    sys.modules["settings_of_a_user"] = settings

    def loss(model, i):
        import settings_of_a_user

        return square(model, i) * settings_of_a_user.scale

    return loss_with(go, loss, lambda k, model: setattr(settings, "scale", 1.0 + k))


@habit
def a_dataclass_of_settings(go):
    @dataclasses.dataclass
    class Settings:
        scale: float = 1.0

        def of(self, value):
            return value * self.scale

    made = Settings()
    return loss_with(
        go,
        lambda model, i: made.of(square(model, i)),
        lambda k, model: setattr(made, "scale", 1.0 + k),
    )


@habit
def an_operator_get(go):
    import operator

    get = operator.attrgetter("scale")
    holder = types.SimpleNamespace(scale=1.0)
    return loss_with(
        go,
        lambda model, i: square(model, i) * get(holder),
        lambda k, model: setattr(holder, "scale", 1.0 + k),
    )


@habit
def a_mapped_lookup(go):
    scales = {"a": 1.0}
    return loss_with(
        go,
        lambda model, i: square(model, i) * sum(map(scales.get, "a")),
        lambda k, model: scales.update(a=1.0 + k),
    )


@habit
def a_global_that_appears(go):
    globals().pop("LATE", None)
    return loss_with(
        go,
        lambda model, i: square(model, i) * globals().get("LATE", 1.0),
        lambda k, model: globals().__setitem__("LATE", 1.0 + k) if k else None,
    )


@habit
def a_key_that_appears(go):
    RARE.clear()
    return loss_with(
        go,
        lambda model, i: square(model, i) * RARE.get("scale", 1.0),
        lambda k, model: RARE.update(scale=1.0 + k) if k else None,
    )


@habit
def a_function_of_torch_replaced(go):
    kept = functional.relu

    def change(k, model):
        functional.relu = functional.gelu if k else kept

    try:
        return list(loss_with(go, lambda m, i: functional.relu(m(i["x"])).sum(), change))
    finally:
        functional.relu = kept


@habit
def the_enum_of_a_mode(go):
    import enum

    class Mode(enum.Enum):
        MEAN = 0
        SUM = 1

    holder = types.SimpleNamespace(mode=Mode.MEAN)

    def loss(model, i):
        return square(model, i) * (2.0 if holder.mode is Mode.SUM else 1.0)

    return loss_with(
        go, loss, lambda k, model: setattr(holder, "mode", Mode.SUM if k else Mode.MEAN)
    )


@habit
def a_loss_replaced_by_another(go):
    losses = [functional.mse_loss]
    return loss_with(
        go,
        lambda model, i: losses[0](model(i["x"]), torch.zeros_like(i["x"])),
        lambda k, model: losses.__setitem__(
            0, [functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss][k]
        ),
    )


# -- what the model reads


@habit
def an_attribute_over_one_of_the_class(go):
    class Scaled(Net):
        scale = 1.0

        def forward(self, x):
            return super().forward(x) * self.scale

    return trained(
        go, Scaled(), None, square, lambda k, m: setattr(m, "scale", 1.0 + k) if k else None
    )


@habit
def an_attribute_that_appears(go):
    return with_does(
        go,
        lambda s, h: h * getattr(s, "scale", 1.0),
        lambda k, m: setattr(m, "scale", 1.0 + k) if k else None,
    )


@habit
def an_attribute_that_goes(go):
    return with_does(
        go,
        lambda s, h: h * (s.scale if hasattr(s, "scale") else 1.0),
        lambda k, m: delattr(m, "scale") if k == 1 else None,
        scale=3.0,
    )


@habit
def a_forward_of_the_instance(go):
    def change(k, m):
        if k:
            m.second.forward = lambda h: h * 2

    return trained(go, Net(), None, square, change)


@habit
def a_forward_of_the_class(go):
    class Mine(Net):
        def forward(self, x):
            return super().forward(x)

    def change(k, m):
        if k:
            Mine.forward = lambda self, x: Net.forward(self, x) * 2

    return trained(go, Mine(), None, square, change)


@habit
def another_class(go):
    class Mine(Net):
        pass

    class Other(Mine):
        def forward(self, x):
            return super().forward(x) * 2

    return trained(
        go, Mine(), None, square, lambda k, m: setattr(m, "__class__", Other) if k else None
    )


@habit
def a_config_of_a_config(go):
    config = types.SimpleNamespace(text=types.SimpleNamespace(scales=[1.0, 2.0]))
    return with_does(
        go,
        lambda s, h: h * s.config.text.scales[0],
        lambda k, m: m.config.text.scales.__setitem__(0, 1.0 + k),
        config=config,
    )


@habit
def an_object_replaced_in_a_list(go):
    acts = [torch.relu]
    return with_does(
        go, lambda s, h: s.acts[0](h), lambda k, m: acts.__setitem__(0, torch.sin), acts=acts
    )


@habit
def a_frozen_dataclass_replaced(go):
    @dataclasses.dataclass(frozen=True)
    class Config:
        scale: float = 1.0

    return with_does(
        go,
        lambda s, h: h * s.config.scale,
        lambda k, m: setattr(m, "config", dataclasses.replace(m.config, scale=1.0 + k)),
        config=Config(),
    )


@habit
def an_equal_object_made_anew(go):
    return with_does(
        go,
        lambda s, h: h * s.config["scale"],
        lambda k, m: setattr(m, "config", {"scale": 2.0}),
        config={"scale": 2.0},
    )


@habit
def a_numpy_scalar(go):
    return with_does(
        go,
        lambda s, h: h * float(s.scale),
        lambda k, m: setattr(m, "scale", numpy.float32(1 + k)),
        scale=numpy.float32(1),
    )


@habit
def a_part_of_numpy(go):
    whole = numpy.ones(4)
    return with_does(
        go,
        lambda s, h: h * float(s.part[0]),
        lambda k, m: whole.__setitem__(0, 1.0 + k),
        part=whole[:2],
    )


@habit
def the_parameters_that_learn(go):
    return trained(go, Net(), None, square, lambda k, m: m.first.requires_grad_(k != 1))


@habit
def a_switch_of_gradients(go):
    return with_does(go, lambda s, h: h * 2 if torch.is_grad_enabled() else h)


@habit
def a_global_number(go):
    def change(k, m):
        global SCALE
        SCALE = 1.0 + k

    change(0, None)
    return with_does(go, lambda s, h: h * SCALE, change)


# -- what the model changes


@habit
def a_deque_of_outputs(go):
    def does(s, h):
        s.seen.append(h.detach())
        return h + sum(s.seen)

    return with_does(go, does, seen=collections.deque(maxlen=3))


@habit
def a_counter_of_the_collections(go):
    def does(s, h):
        s.counts["calls"] += 1
        return h * s.counts["calls"]

    return with_does(go, does, counts=collections.Counter())


@habit
def a_set_of_what_was_seen(go):
    def does(s, h):
        s.seen.add(len(s.seen))
        return h * len(s.seen)

    return with_does(go, does, seen=set())


@habit
def an_array_written(go):
    def does(s, h):
        s.n[0] += 1
        return h * float(s.n[0])

    return with_does(go, does, n=numpy.zeros(2))


@habit
def a_nested_counter(go):
    def does(s, h):
        s.state.n += 1
        return h * s.state.n

    return with_does(go, does, state=types.SimpleNamespace(n=0))


@habit
def a_counter_that_appears(go):
    def does(s, h):
        s.calls = getattr(s, "calls", 0) + 1
        return h * s.calls

    return with_does(go, does)


@habit
def a_size_that_is_kept(go):
    def does(s, h):
        s.rows = h.shape[0]
        return h * s.rows

    return with_does(go, does)


@habit
def a_counter_of_the_class(go):
    class Counted(Net):
        n = 0

        def forward(self, x):
            type(self).n += 1
            return super().forward(x) * self.n

    return trained(go, Counted(), None, square)


@habit
def a_counter_of_the_function(go):
    def does(s, h):
        does.n += 1
        return h * does.n

    does.n = 0
    return with_does(go, does)


@habit
def a_counter_in_a_default(go):
    def does(s, h, seen=[0]):  # noqa: B006
        seen[0] += 1
        return h * seen[0]

    return with_does(go, does)


@habit
def a_cycle(go):
    cycle = itertools.cycle([1.0, 2.0])
    return with_does(go, lambda s, h: h * next(cycle))


@habit
def a_clock(go):
    start = time.monotonic()
    return with_does(go, lambda s, h: h + int(time.monotonic() - start > 1e6))


@habit
def the_day(go):
    return with_does(go, lambda s, h: h * (time.localtime().tm_year > 1990))


@habit
def a_unique_number(go):
    return with_does(go, lambda s, h: h * (uuid.uuid4().int % 2**20) * 0 + h)


@habit
def a_tensor_attribute_in_place(go):
    def does(s, h):
        s.n.add_(1)
        return h * s.n

    return with_does(go, does, n=torch.zeros(()))


@habit
def a_tensor_attribute_replaced(go):
    def does(s, h):
        s.n = s.n + 1
        return h * s.n

    return with_does(go, does, n=torch.zeros(()))


@habit
def a_tensor_in_an_object(go):
    def does(s, h):
        s.state.mean.mul_(0.9).add_(h.detach().mean(), alpha=0.1)
        return h - s.state.mean

    return with_does(go, does, state=types.SimpleNamespace(mean=torch.zeros(())))


@habit
def a_tensor_kept_for_the_loss(go):
    def does(s, h):
        s.kept = h.square().mean()
        return h

    model = Net(does, kept=None)
    return trained(go, model, None, lambda m, i: square(m, i) + m.kept)


@habit
def a_list_emptied_at_each_call(go):
    def does(s, h):
        s.kept.clear()
        s.kept.append(h.square().mean())
        return h

    model = Net(does, kept=[])
    return trained(go, model, None, lambda m, i: square(m, i) + sum(m.kept))


@habit
def a_list_made_at_each_call(go):
    def does(s, h):
        s.kept = [h.square().mean()]
        return h

    model = Net(does, kept=None)
    return trained(go, model, None, lambda m, i: square(m, i) + sum(m.kept))


@habit
def a_cache_by_shape(go):
    def does(s, h):
        if h.shape not in s.cache:
            s.cache[h.shape] = torch.arange(16.0)
        return h + s.cache[h.shape]

    return with_does(go, does, cache={})


@habit
def what_the_model_kept_is_read(go):
    def does(s, h):
        s.last = h.detach()
        return h

    model = Net(does, last=None)
    with go(model, {"x": X[0]}) as call:
        for x in X:
            yield call(x=x)
            yield model.last


@habit
def what_the_model_counted_is_read(go):
    def does(s, h):
        s.calls = s.calls + 1
        return h

    model = Net(does, calls=0)
    with go(model, {"x": X[0]}) as call:
        for x in X:
            yield call(x=x)
    yield model.calls


@habit
def what_the_loss_logged_is_read(go):
    log = {}

    def loss(model, i):
        value = square(model, i)
        log["loss"] = value.detach()
        return value

    model = Net()
    with go(model, {"x": X[0]}, adamw(model), loss) as step:
        for x in X:
            yield step(x=x)
            yield log["loss"]


# -- random numbers of others


@habit
def pythons_random(go):
    random.seed(0)
    return with_does(go, lambda s, h: h if random.random() < 0.5 else h * 2)


@habit
def numpys_random(go):
    numpy.random.seed(0)
    return with_does(go, lambda s, h: h if numpy.random.rand() < 0.5 else h * 2)


@habit
def a_generator_of_numpy(go):
    return with_does(go, lambda s, h: h * float(s.rng.random()), rng=numpy.random.default_rng(0))


@habit
def a_generator_of_python(go):
    return with_does(go, lambda s, h: h * s.rng.random(), rng=random.Random(0))


@habit
def a_permutation_of_numpy(go):
    rng = numpy.random.default_rng(0)
    return loss_with(
        go,
        lambda model, i: functional.mse_loss(
            model(i["x"]), i["x"][torch.as_tensor(rng.permutation(8))]
        ),
    )


@habit
def the_systems_random(go):
    return with_does(go, lambda s, h: h + 0 * int.from_bytes(os.urandom(2), "big"))


@habit
def a_layer_dropped_by_torch(go):
    torch.manual_seed(3)
    return with_does(go, lambda s, h: h if torch.rand(()) < 0.5 else h * 2)


# -- functions of autograd


class Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counting.calls += 1
        return x * Counting.calls

    @staticmethod
    def backward(ctx, g):
        return g


class BackwardReads(torch.autograd.Function):
    scale = 1.0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * BackwardReads.scale


class Holds(torch.autograd.Function):
    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (output,) = ctx.saved_tensors
        return g * ctx.scale + output * 0.01, None


@habit
def a_function_that_counts(go):
    Counting.calls = 0
    return with_does(go, lambda s, h: Counting.apply(h))


@habit
def a_backward_that_reads(go):
    BackwardReads.scale = 1.0
    return with_does(
        go,
        lambda s, h: BackwardReads.apply(h),
        lambda k, m: setattr(BackwardReads, "scale", 1.0 + k),
    )


@habit
def a_function_with_a_context(go):
    return with_does(go, lambda s, h: Holds.apply(h, 2.0))


@habit
def a_hook_of_a_tensor(go):
    def does(s, h):
        if h.requires_grad:
            h.register_hook(lambda g: g * 2)
        return h

    return with_does(go, does)


@habit
def a_hook_of_a_tensor_that_counts(go):
    calls = [0]

    def hook(g):
        calls[0] += 1
        return g * calls[0]

    def does(s, h):
        if h.requires_grad:
            h.register_hook(hook)
        return h

    return with_does(go, does)


@habit
def a_hook_of_a_tensor_that_reads(go):
    box = {"scale": 1.0}

    def does(s, h):
        if h.requires_grad:
            h.register_hook(lambda g: g * box["scale"])
        return h

    return with_does(go, does, lambda k, m: box.update(scale=1.0 + k))


@habit
def a_gradient_that_is_kept(go):
    def does(s, h):
        if h.requires_grad:
            h.retain_grad()
            s.kept = h
        return h

    model = Net(does, kept=None)
    with go(model, {"x": X[0]}, sgd(model), square) as step:
        for x in X:
            yield step(x=x)
            yield model.kept.grad


@habit
def hooks_of_modules(go):
    model = Net()
    model.first.register_forward_hook(lambda m, args, result: result * 2)
    return trained(go, model, None, square)


@habit
def a_hook_that_stores_features(go):
    model, kept = Net(), {}
    model.first.register_forward_hook(lambda m, args, result: kept.update(h=result))
    return trained(go, model, None, lambda m, i: square(m, i) + kept["h"].mean())


@habit
def a_hook_of_a_module_that_comes_later(go):
    def change(k, m):
        if k == 1:
            m.first.register_forward_hook(lambda m, args, result: result * 2)

    return trained(go, Net(), None, square, change)


@habit
def a_hook_of_a_module_of_the_criterion(go):
    criterion = nn.MSELoss()
    criterion.register_forward_hook(lambda m, args, result: result * 2)
    return loss_with(go, lambda m, i: criterion(m(i["x"]), i["x"]))


@habit
def a_hook_of_a_parameter_that_comes_later(go):
    def change(k, m):
        if k == 1:
            m.first.weight.register_hook(lambda g: g * 2)

    return trained(go, Net(), None, square, change)


@habit
def a_hook_of_a_parameter_that_goes(go):
    model = Net()
    handle = model.first.weight.register_hook(lambda g: g * 2)
    return trained(go, model, None, square, lambda k, m: handle.remove() if k == 1 else None)


@habit
def a_hook_of_a_parameter_that_counts(go):
    model, calls = Net(), [0]

    def hook(g):
        calls[0] += 1
        return g * calls[0]

    model.first.weight.register_hook(hook)
    return trained(go, model, None, square)


@habit
def hooks_of_the_state(go):
    model = Net()
    model.register_state_dict_post_hook(lambda *a: None)
    return trained(go, model, None, square)


@habit
def a_global_module_hook(go):
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, r: r * 2)
    try:
        return list(trained(go, Net(), None, square))
    finally:
        handle.remove()


@habit
def a_deep_copy_for_the_loss(go):
    model = Net()
    teacher = copy.deepcopy(model).eval()
    return trained(
        go, model, None, lambda m, i: functional.mse_loss(m(i["x"]), teacher(i["x"]).detach() + 1)
    )


@habit
def a_teacher_that_moves(go):
    model = Net()
    teacher = copy.deepcopy(model).eval()

    def change(k, m):
        with torch.no_grad():
            for p in teacher.parameters():
                p.mul_(1.1)

    return trained(
        go,
        model,
        None,
        lambda m, i: functional.mse_loss(m(i["x"]), teacher(i["x"]).detach()),
        change,
    )
