"""What users change from one call to the next, and what they hand in and keep: each habit is a
generator of results, run once eagerly and once offloaded (:mod:`habits`).
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
import threading
import types
from typing import ClassVar

import numpy
import torch
from habits import Net, X, Y, adamw, habit, loss_with, sgd, square, trained, with_does
from habits_of_steps import in_parts, stepped
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def called(go, model, change=lambda k, model: None, xs=X):
    """Three calls without gradients; ``change(k, model)`` comes before each."""
    with go(model, {"x": xs[0]}) as run:
        for k, x in enumerate(xs):
            change(k, model)
            yield run(x=x)


# -- closures and functions


@habit
def a_closure_over_a_cell_of_a_cell(go):
    def outer():
        level = [1.0]

        def inner(h):
            return h * level[0]

        return inner, level

    inner, level = outer()
    return with_does(go, lambda s, h: inner(h), lambda k, m: level.__setitem__(0, 1.0 + k))


@habit
def a_default_argument_replaced(go):
    def loss(model, i, scale=1.0):
        return square(model, i) * scale

    return loss_with(go, loss, lambda k, m: setattr(loss, "__defaults__", (1.0 + k,)))


@habit
def the_code_of_a_function_replaced(go):
    def scaled(h):
        return h * 2

    def halved(h):
        return h / 2

    return with_does(
        go, lambda s, h: scaled(h), lambda k, m: k and setattr(scaled, "__code__", halved.__code__)
    )


@habit
def a_lambda_in_a_dictionary_of_the_class(go):
    class Acts(Net):
        acts: ClassVar = {"now": torch.tanh}

        def forward(self, x):
            return self.second(self.acts["now"](self.first(x)))

    def change(k, model):
        Acts.acts["now"] = [torch.tanh, torch.relu][k % 2]

    return trained(go, Acts(), None, square, change)


@habit
def a_method_bound_later(go):
    model = Net()

    def change(k, model):
        if k:
            model.forward = types.MethodType(lambda self, x: self.second(self.first(x)), model)

    return trained(go, model, None, square, change)


@habit
def a_static_method_replaced(go):
    class Uses(Net):
        @staticmethod
        def act(h):
            return torch.relu(h)

        def forward(self, x):
            return self.second(self.act(self.first(x)))

    def change(k, model):
        if k:
            Uses.act = staticmethod(torch.tanh)

    return trained(go, Uses(), None, square, change)


@habit
def a_base_class_replaced(go):
    class First(Net):
        def forward(self, x):
            return self.second(self.first(x))

    class Second(Net):
        def forward(self, x):
            return self.second(self.first(x) * 3)

    class Child(First):
        pass

    def change(k, model):
        if k:
            Child.__bases__ = (Second,)

    return trained(go, Child(), None, square, change)


# -- generators


@habit
def a_random_state_of_numpy(go):
    state = numpy.random.RandomState(3)
    return with_does(go, lambda s, h: h * float(state.rand()))


@habit
def noise_of_numpy_in_a_tensor(go):
    source = numpy.random.default_rng(3)
    return with_does(go, lambda s, h: h + torch.from_numpy(source.normal(size=16)).to(h.dtype))


@habit
def a_shuffle_of_python(go):
    order = list(range(16))

    def does(s, h):
        random.shuffle(order)
        return h[:, order]

    random.seed(3)
    return with_does(go, does)


@habit
def dropout_under_a_seed_at_each_call(go):
    model = Net(lambda s, h: functional.dropout(h, 0.3, s.training))
    return trained(go, model, None, square, lambda k, m: torch.manual_seed(k))


@habit
def dropout_by_a_bernoulli(go):
    return with_does(go, lambda s, h: h * torch.bernoulli(torch.full_like(h, 0.5)))


@habit
def noise_between_calls(go):
    model = Net(lambda s, h: h + torch.randn_like(h))
    return called(go, model, lambda k, m: torch.randn(3))


# -- modules


@habit
def layers_are_swapped(go):
    def change(k, model):
        if k == 1:
            model.first, model.second = model.second, model.first

    return trained(go, Net(), None, square, change)


@habit
def weights_are_tied_later(go):
    def change(k, model):
        if k == 1:
            model.second.weight = model.first.weight

    return trained(go, Net(), None, square, change)


@habit
def tied_weights_are_untied(go):
    model = Net()
    model.second.weight = model.first.weight

    def change(k, model):
        if k == 1:
            model.second.weight = nn.Parameter(model.first.weight.detach().clone())

    return trained(go, model, None, square, change)


@habit
def tied_weights(go):
    model = Net()
    model.second.weight = model.first.weight
    return trained(go, model, None, square)


@habit
def a_module_is_added(go):
    return trained(
        go, Net(), None, square, lambda k, m: k == 1 and m.add_module("third", nn.Linear(4, 4))
    )


@habit
def a_module_of_a_list_is_replaced(go):
    model = Net(lambda s, h: s.parts[0](h), parts=nn.ModuleList([nn.Tanh()]))

    def change(k, model):
        if k:
            model.parts[0] = nn.Sigmoid()

    return trained(go, model, None, square, change)


@habit
def a_module_becomes_the_identity(go):
    return trained(
        go, Net(), None, square, lambda k, m: k == 1 and setattr(m, "second", nn.Identity())
    )


@habit
def a_buffer_is_registered_later(go):
    def does(s, h):
        return h * s.scale if hasattr(s, "scale") else h

    def change(k, model):
        if k == 1:
            model.register_buffer("scale", torch.full((16,), 2.0))

    return with_does(go, does, change)


@habit
def a_buffer_is_replaced_between(go):
    model = Net(lambda s, h: h * s.scale)
    model.register_buffer("scale", torch.ones(16))
    return called(go, model, lambda k, m: k and setattr(m, "scale", torch.full((16,), 1.0 + k)))


@habit
def a_buffer_is_deleted(go):
    model = Net(lambda s, h: h + 1 if "scale" in s._buffers else h)
    model.register_buffer("scale", torch.ones(16))
    return called(go, model, lambda k, m: k == 1 and delattr(m, "scale"))


@habit
def running_statistics_in_inference(go):
    model = Net()
    model.norm = nn.BatchNorm1d(16)
    model.does = lambda s, h: s.norm(h)
    return called(go, model)


@habit
def statistics_off_later(go):
    model = Net()
    model.norm = nn.BatchNorm1d(16)
    model.does = lambda s, h: s.norm(h)
    return trained(
        go, model, None, square, lambda k, m: k == 1 and setattr(m.norm, "momentum", 0.5)
    )


@habit
def a_slope_is_changed(go):
    model = Net(lambda s, h: s.act(h), act=nn.LeakyReLU(0.1))
    return called(go, model, lambda k, m: setattr(m.act, "negative_slope", 0.1 * (k + 1)))


# -- hooks


@habit
def a_hook_of_a_result_that_comes_later(go):
    def change(k, model):
        if k == 1:
            model.first.register_forward_hook(lambda module, given, result: result * 2)

    return called(go, Net(), change)


@habit
def a_full_backward_hook_that_comes_later(go):
    def change(k, model):
        if k == 1:
            model.first.register_full_backward_hook(lambda m, given, taken: None)

    return trained(go, Net(), None, square, change)


@habit
def a_hook_after_accumulation_that_comes_later(go):
    seen = []

    def change(k, model):
        if k == 1:
            model.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))

    yield from trained(go, Net(), None, square, change)
    yield len(seen)


# -- optimizers


@habit
def a_group_with_another_decay(go):
    return stepped(go, lambda k, m, o: o.param_groups[0].__setitem__("weight_decay", 0.1 * k))


@habit
def other_betas(go):
    return stepped(
        go, lambda k, m, o: o.param_groups[0].__setitem__("betas", (0.9 - 0.1 * k, 0.95))
    )


@habit
def maximized_later(go):
    return stepped(go, lambda k, m, o: k and o.param_groups[0].__setitem__("maximize", True))


@habit
def momentum_later(go):
    return stepped(
        go, lambda k, m, o: o.param_groups[0].__setitem__("momentum", 0.5 + 0.1 * k), optimizer=sgd
    )


@habit
def a_parameter_leaves_its_group(go):
    def change(k, model, optimizer):
        if k == 1:
            optimizer.param_groups[0]["params"].pop()

    return stepped(go, change)


def _scheduled(name, make):
    def scheduled(go):
        model = Net()
        optimizer = adamw(model)
        scheduler = make(optimizer)
        with go(model, {"x": X[0]}, optimizer, square) as step:
            for x in X:
                value = step(x=x)
                yield value
                with contextlib.suppress(TypeError):
                    scheduler.step()
                yield optimizer.param_groups[0]["lr"]
        yield [p.detach() for p in model.parameters()]

    scheduled.__name__ = f"rates_{name}"
    habit(scheduled)


RATES = torch.optim.lr_scheduler
_scheduled("one_cycle", lambda o: RATES.OneCycleLR(o, 0.1, total_steps=9))
_scheduled("cosine", lambda o: RATES.CosineAnnealingWarmRestarts(o, 2))
_scheduled(
    "sequential",
    lambda o: RATES.SequentialLR(
        o, [RATES.ConstantLR(o, 0.1, 1), RATES.ExponentialLR(o, 0.5)], [1]
    ),
)
_scheduled("cyclic", lambda o: RATES.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=True))


# -- modes


@habit
def calls_with_and_without_gradients(go):
    model = Net()
    with go(model, {"x": X[0]}) as run:
        for k, x in enumerate(X):
            with torch.set_grad_enabled(k != 1):
                yield run(x=x).detach()


@habit
def a_capture_in_inference_mode(go):
    with torch.inference_mode():
        model = Net()
        inputs = [x.clone() for x in X]
        with go(model, {"x": inputs[0]}) as run:
            for x in inputs:
                yield run(x=x).clone()


@habit
def no_gradients_around_a_step(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        yield step(x=X[0])
        with contextlib.suppress(RuntimeError), torch.no_grad():
            yield step(x=X[1])


@habit
def autocast_within_forward(go):
    def does(s, h):
        with torch.autocast("cpu", torch.bfloat16):
            return (h @ s.first.weight).float()

    return with_does(go, does)


@habit
def gradients_off_within_forward(go):
    def does(s, h):
        with torch.no_grad():
            scale = h.abs().mean()
        return h / scale

    return with_does(go, does)


# -- steps


@habit
def accumulation_of_uneven_rounds(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        for rounds in (1, 3, 2):
            for n in range(rounds):
                yield step.backward(x=X[n])
            step.optimizer_step()
            optimizer.zero_grad()
    yield [p.detach() for p in model.parameters()]


@habit
def norms_that_are_clipped_by_hand(go):
    def between(k, model, optimizer):
        total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_((0.01 / (total + 1e-6)).clamp(max=1.0))

    return in_parts(go, between)


@habit
def gradients_with_noise(go):
    def between(k, model, optimizer):
        for p in model.parameters():
            p.grad += torch.randn_like(p.grad) * 0.1

    return in_parts(go, between)


@habit
def a_gradient_is_none(go):
    def between(k, model, optimizer):
        model.first.weight.grad = None

    return in_parts(go, between)


@habit
def a_gradient_of_another_type(go):
    def between(k, model, optimizer):
        model.first.weight.grad = model.first.weight.grad.clone().to(torch.float32) * 2

    return in_parts(go, between)


@habit
def sparse_gradients(go):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(16, 8, sparse=True)

        def forward(self, x):
            return self.words(x.argmax(-1))

    model = Words()
    return trained(go, model, torch.optim.SGD(model.parameters(), lr=0.1), square)


@habit
def a_frozen_layer_that_thaws(go):
    model = Net()
    model.first.requires_grad_(False)
    return trained(go, model, None, square, lambda k, m: k == 1 and m.first.requires_grad_(True))


@habit
def a_layer_that_freezes(go):
    return trained(go, Net(), None, square, lambda k, m: k == 1 and m.second.requires_grad_(False))


@habit
def checkpointed_layers(go):
    return with_does(
        go, lambda s, h: checkpoint(lambda v: torch.tanh(s.first(v)), h, use_reentrant=False)
    )


@habit
def a_moving_average_after_each_step(go):
    model = Net()
    slow = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        for x in X:
            yield step(x=x)
    for name, value in model.state_dict().items():
        slow[name].lerp_(value, 0.1)
    yield slow


# -- states, copies


@habit
def a_pickle_of_the_model_between(go):
    class Plain(nn.Sequential):
        pass

    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    with go(model, (X[0],)) as run:
        for x in X:
            yield run(x)
            pickle.dumps(model)


@habit
def a_pickle_of_the_optimizer_between(go):
    def change(k, model, optimizer):
        if k:
            torch.save(optimizer.state_dict(), io.BytesIO())

    return stepped(go, change)


@habit
def a_deep_copy_before_and_after(go):
    model = Net(None)
    model.does = lambda s, h: h
    twin = copy.deepcopy(model)
    yield from trained(go, model, None, square)
    yield [p.detach() for p in twin.parameters()]
    yield [p.detach() for p in copy.deepcopy(model).parameters()]


@habit
def weights_assigned_between(go):
    state = {name: value.clone() for name, value in Net().state_dict().items()}
    return trained(
        go, Net(), None, square, lambda k, m: k == 1 and m.load_state_dict(state, assign=True)
    )


@habit
def moved_to_its_own_device(go):
    return trained(go, Net(), None, square, lambda k, m: m.to("cpu"))


@habit
def another_type_between(go):
    return called(go, Net(), lambda k, m: m.double() if k else m, [X[0], *(x.double() for x in X)])


# -- inputs and results


@habit
def an_input_of_another_type(go):
    return called(go, Net(), xs=[X[0], X[1].bool().float(), X[2].half().float()])


@habit
def an_input_that_the_model_writes(go):
    class Writes(Net):
        def forward(self, x):
            x.mul_(2)
            return super().forward(x)

    xs = [x.clone() for x in X]
    with go(Writes(), {"x": xs[0].clone()}) as run:
        for x in xs:
            yield run(x=x)
            yield x


@habit
def results_are_kept_over_calls(go):
    with go(Net(), {"x": X[0]}) as run:
        kept = [run(x=x) for x in X]
    yield kept


@habit
def results_are_kept_over_steps(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        kept = [step(x=x) for x in X]
        yield kept
    yield kept


@habit
def an_input_of_a_subclass(go):
    class Named(torch.Tensor):
        pass

    for value in called(go, Net(), xs=[X[0], X[1].as_subclass(Named), X[2]]):
        yield value.as_subclass(torch.Tensor)


@habit
def a_parameter_as_an_input(go):
    model = Net()
    return called(go, model, xs=[X[0], nn.Parameter(X[1].clone()).detach(), X[2]])


@habit
def an_input_from_numpy(go):
    return called(go, Net(), xs=[torch.from_numpy(x.numpy().copy()) for x in X])


@habit
def an_input_that_is_flipped(go):
    return called(go, Net(), xs=[X[0], X[1].flip(0), X[2].t().contiguous().t()[:8]])


@habit
def a_tensor_in_a_tuple_of_inputs(go):
    class Pairs(Net):
        def forward(self, pair):
            return super().forward(pair[0]) * pair[1]

    with go(Pairs(), {"pair": (X[0], Y[0])}) as run:
        for x, y in zip(X, Y, strict=True):
            yield run(pair=(x, y))


# -- what goes wrong


@habit
def an_error_in_forward_at_some_call(go):
    state = {"fails": False}

    def does(s, h):
        if state["fails"]:
            raise ValueError("no")
        return h

    model = Net(does)
    with go(model, {"x": X[0]}) as run:
        yield run(x=X[0])
        state["fails"] = True
        with contextlib.suppress(ValueError):
            yield run(x=X[1])
        state["fails"] = False
        yield run(x=X[2])


@habit
def a_wrong_shape_between_steps(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        yield step(x=X[0])
        with contextlib.suppress(Exception):
            step(x=torch.ones(8, 3))
        yield step(x=X[1])
    yield [p.detach() for p in model.parameters()]


@habit
def calls_of_many_threads(go):
    model, found = Net(), {}
    with go(model, {"x": X[0]}) as run:

        def call(k):
            with torch.no_grad():
                found[k] = run(x=X[k])

        threads = [threading.Thread(target=call, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    yield [found[k] for k in range(3)]
