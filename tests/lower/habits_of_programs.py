"""What users' programs are made of around a model: each habit is a generator of results, run once
eagerly and once offloaded (:mod:`habits`).
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import copy
import functools
import io
import itertools
import types
import warnings

import torch
from habits import Net, X, Y, adamw, habit, loss_with, sgd, square, trained, with_does
from habits_of_models import Made, both, called, linear
from torch import nn
from torch.nn import functional

TABLE = {"f": lambda value: value * 2}


def helper(value):
    return value * 3


# -- closures, globals and containers


@habit
def a_partial_whose_keyword_changes(go):
    settings = {"scale": 1.0}

    def scaled(model, i, settings):
        return square(model, i) * settings["scale"]

    return loss_with(
        go,
        functools.partial(scaled, settings=settings),
        lambda k, model: settings.update(scale=1.0 + k),
    )


class Criterion:
    weight = 1.0

    def __call__(self, model, i):
        return square(model, i) * self.weight


@habit
def an_object_that_is_called(go):
    criterion = Criterion()
    return loss_with(go, criterion, lambda k, model: setattr(criterion, "weight", 1.0 + k))


@habit
def the_class_of_an_object_that_is_called(go):
    def change(k, model):
        Criterion.weight = 1.0 + k

    try:
        yield from loss_with(go, Criterion(), change)
    finally:
        Criterion.weight = 1.0


@habit
def a_method_of_a_trainer(go):
    class Trainer:
        epoch = 0

        def loss(self, model, i):
            return square(model, i) / (self.epoch + 1)

    trainer = Trainer()
    return loss_with(go, trainer.loss, lambda k, model: setattr(trainer, "epoch", k))


@habit
def a_closure_in_a_closure(go):
    level = 1

    def outer():
        def inner():
            return float(level)

        return inner

    inner = outer()

    def change(k, model):
        nonlocal level
        level = k + 1

    return loss_with(go, lambda model, i: square(model, i) * inner(), change)


@habit
def a_chain_of_mappings(go):
    over = {}
    chained = collections.ChainMap(over, {"scale": 1.0})
    return loss_with(
        go,
        lambda model, i: square(model, i) * chained["scale"],
        lambda k, model: over.update(scale=k + 1.0) if k else None,
    )


@habit
def a_view_of_a_mapping(go):
    held = {"scale": 1.0}
    seen = types.MappingProxyType(held)
    return loss_with(
        go,
        lambda model, i: square(model, i) * seen["scale"],
        lambda k, model: held.update(scale=k + 1.0),
    )


@habit
def an_object_with_slots(go):
    class Slotted:
        __slots__ = ("scale",)

    slotted = Slotted()
    slotted.scale = 1.0
    return loss_with(
        go,
        lambda model, i: square(model, i) * slotted.scale,
        lambda k, model: setattr(slotted, "scale", k + 1.0),
    )


@habit
def a_list_of_weighting_tensors(go):
    weights = [torch.tensor(1.0), torch.tensor(2.0)]
    return loss_with(
        go,
        lambda model, i: square(model, i) * weights[0],
        lambda k, model: weights.__setitem__(0, torch.tensor(k + 1.0)),
    )


@habit
def a_table_of_functions(go):
    def change(k, model):
        TABLE["f"] = (lambda value: value * 2) if k < 1 else (lambda value: value * 5)

    return loss_with(go, lambda model, i: TABLE["f"](square(model, i)), change)


@habit
def a_helper_replaced(go):
    first = helper

    def change(k, model):
        globals()["helper"] = first if k < 2 else lambda value: value * 7

    try:
        yield from loss_with(go, lambda model, i: helper(square(model, i)), change)
    finally:
        globals()["helper"] = first


@habit
def a_fallback_of_attributes(go):
    class Config:
        def __init__(self):
            self.values = {"scale": 1.0}

        def __getattr__(self, name):
            return self.__dict__["values"][name]

    config = Config()
    return loss_with(
        go,
        lambda model, i: square(model, i) * config.scale,
        lambda k, model: config.values.update(scale=k + 1.0),
    )


@habit
def a_descriptor(go):
    source = {"v": 1.0}

    class Read:
        def __get__(self, owner, kind):
            return source["v"]

    class Config:
        scale = Read()

    config = Config()
    return loss_with(
        go,
        lambda model, i: square(model, i) * config.scale,
        lambda k, model: source.update(v=k + 1.0),
    )


@habit
def an_array_of_numbers(go):
    numbers = array.array("d", [1.0])
    return loss_with(
        go,
        lambda model, i: square(model, i) * numbers[0],
        lambda k, model: numbers.__setitem__(0, k + 1.0),
    )


@habit
def a_count_of_itertools(go):
    counted = itertools.count(1)
    return loss_with(go, lambda model, i: square(model, i) * next(counted))


@habit
def a_dictionary_with_defaults(go):
    seen = collections.defaultdict(int)

    def loss(model, i):
        seen["calls"] += 1
        return square(model, i) * seen["calls"]

    return loss_with(go, loss)


# -- hooks


def _hooked(go, register, change=lambda k, model: None):
    model = Net()
    register(model)
    return trained(go, model, None, square, change)


@habit
def a_backward_hook_of_a_module(go):
    return _hooked(go, lambda m: m.first.register_full_backward_hook(lambda m, i, o: (i[0],)))


@habit
def a_backward_hook_that_scales(go):
    return _hooked(go, lambda m: m.second.register_full_backward_hook(lambda m, i, o: (i[0] * 2,)))


@habit
def a_hook_before_backward(go):
    return _hooked(
        go, lambda m: m.second.register_full_backward_pre_hook(lambda m, o: (o[0] * 0.5,))
    )


@habit
def a_hook_that_changes_the_result(go):
    return _hooked(
        go,
        lambda m: m.first.register_forward_hook(lambda m, a, k, out: out + 1, with_kwargs=True),
    )


@habit
def a_hook_before_forward(go):
    return _hooked(go, lambda m: m.first.register_forward_pre_hook(lambda m, a: (a[0] * 2,)))


@habit
def a_hook_that_goes_later(go):
    handles = []
    return _hooked(
        go,
        lambda m: handles.append(m.first.register_forward_hook(lambda m, a, out: out + 1)),
        lambda k, model: handles.pop().remove() if k == 1 else None,
    )


@habit
def a_hook_of_several_gradients(go):
    norms = []
    yield from _hooked(
        go,
        lambda m: torch.autograd.graph.register_multi_grad_hook(
            list(m.parameters()), lambda grads: norms.append(len(grads))
        ),
    )
    yield norms


class Twice(nn.Module):
    def forward(self, w):
        return w * 2


@habit
def a_parametrization(go):
    return _hooked(
        go, lambda m: nn.utils.parametrize.register_parametrization(m.first, "weight", Twice())
    )


@habit
def a_parametrization_that_goes(go):
    return _hooked(
        go,
        lambda m: nn.utils.parametrize.register_parametrization(m.first, "weight", Twice()),
        lambda k, m: k == 1 and nn.utils.parametrize.remove_parametrizations(m.first, "weight"),
    )


# -- functions of autograd


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.01, 0.01)


class Levelled(torch.autograd.Function):
    level = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.level = Levelled.level
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.level


class Needing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return tuple(
            gradient * other if needs else None
            for needs, other in zip(ctx.needs_input_grad, (w, x), strict=True)
        )


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Ranked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, _):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(-1, places, gradient)


class SetUp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def _function(name, does):
    def applied(go):
        return with_does(go, lambda s, h: does(h))

    applied.__name__ = f"function_{name}"
    habit(applied)


_function("straight_through", Straight.apply)
_function("that_needs", lambda h: Needing.apply(h, h.detach() + 1))
_function("in_place", lambda h: Dirty.apply(h + 0))
_function("once_differentiable", lambda h: Ranked.apply(h)[0])
_function("set_up", lambda h: SetUp.apply(-h))


@habit
def function_that_keeps_a_level(go):
    def change(k, model):
        Levelled.level = 1.0 + k

    try:
        yield from with_does(go, lambda s, h: Levelled.apply(h), change)
    finally:
        Levelled.level = 1.0


# -- optimizers' states


def _warmed(make):
    """A model that has been trained for two steps, and its optimizer."""
    model = Net()
    optimizer = make(model)
    for x in X[:2]:
        square(model, {"x": x}).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@habit
def training_that_goes_on(go):
    model, optimizer = _warmed(adamw)
    return trained(go, model, optimizer, square)


@habit
def training_that_goes_on_from_a_checkpoint(go):
    model, optimizer = _warmed(sgd)
    kept = io.BytesIO()
    torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, kept)
    kept.seek(0)
    saved = torch.load(kept)
    other = Net()
    fresh = sgd(other)
    other.load_state_dict(saved["m"])
    fresh.load_state_dict(saved["o"])
    return trained(go, other, fresh, square)


@habit
def states_set_to_zero_between(go):
    model, optimizer = _warmed(sgd)

    def change(k, model):
        if k == 1:
            for state in optimizer.state.values():
                state["momentum_buffer"].zero_()

    return trained(go, model, optimizer, square, change)


class SlowWeights(torch.optim.SGD):
    """Every step moves slow weights half-way."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    slow = self.state[p].setdefault("slow", p.detach().clone())
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)


@habit
def an_optimizer_with_slow_weights(go):
    model = Net()
    return trained(go, model, SlowWeights(model.parameters(), lr=0.1), square)


@habit
def averaged_weights_after(go):
    model = Net()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(2):
        with go(model, {"x": X[0]}, sgd(model), square) as step:
            yield step(x=X[1])
        averaged.update_parameters(model)
    yield [p.detach() for p in averaged.parameters()]


@habit
def a_rate_of_nothing(go):
    model = Net()
    return trained(go, model, torch.optim.AdamW(model.parameters(), lr=0.0), square)


# -- random numbers


@habit
def a_seed_within_forward(go):
    def does(self, h):
        torch.manual_seed(3)
        return functional.dropout(h, 0.5)

    return with_does(go, does)


@habit
def a_state_of_the_generator_set_back(go):
    kept = torch.get_rng_state()
    return with_does(
        go, lambda s, h: functional.dropout(h, 0.5), lambda k, model: torch.set_rng_state(kept)
    )


@habit
def a_batch_in_random_order(go):
    return loss_with(
        go, lambda model, i: (model(i["x"][torch.randperm(8)]) * i["x"]).square().mean()
    )


@habit
def a_generator_forked_within(go):
    def does(self, h):
        with torch.random.fork_rng(devices=[]):
            return h + torch.randn_like(h)

    return with_does(go, does)


# -- types and modes


@habit
def a_model_in_float64(go):
    return trained(go, Net().double(), None, square, xs=[x.double() for x in X])


@habit
def a_complex_parameter(go):
    def turns():
        return nn.ParameterList([nn.Parameter(torch.randn(16, dtype=torch.complex64))])

    model = Made(lambda s, x: (s.first(x) * s.turns[0]).abs(), first=linear, turns=turns)
    yield from called(go, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    yield from trained(go, model, optimizer, square)


@habit
def calls_in_inference_mode(go):
    model = Net().eval()
    with go(model, {"x": X[0]}) as call:
        for x in X:
            with torch.inference_mode():
                yield call(x=x)


@habit
def autocast_in_the_loss(go):
    def loss(model, i):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return model(**i).float().square().mean()

    return loss_with(go, loss)


# -- inputs that are written, and views that are returned


@habit
def a_column_of_the_input_is_written(go):
    def does(self, x):
        x[:, 0] = 0
        return self.first(x)

    return called(go, Made(does, first=linear), [x.clone() for x in X])


@habit
def the_data_of_the_input_is_written(go):
    xs = [x.clone() for x in X]
    yield from called(go, Made(lambda s, x: (x.detach().mul_(2), s.first(x))[1], first=linear), xs)
    yield xs


@habit
def parts_of_a_result(go):
    return called(go, Made(lambda s, x: s.first(x).chunk(3, 1), first=linear))


@habit
def real_and_imaginary_parts(go):
    return called(
        go, Made(lambda s, x: torch.view_as_real(torch.fft.fft(s.first(x))), first=linear)
    )


@habit
def the_data_of_a_result(go):
    return called(go, Made(lambda s, x: s.first(x).data.unfold(1, 4, 2), first=linear))


# -- threads, copies, and what is loaded


@habit
def calls_of_a_pool_of_threads(go):
    model = Net().eval()
    with go(model, {"x": X[0]}) as call, concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield list(pool.map(lambda x: call(x=x), X))


@habit
def a_copy_and_its_original(go):
    model = Net()
    twin = copy.deepcopy(model)
    yield from trained(go, model, None, square)
    yield from trained(go, twin, None, square)


@habit
def a_shallow_copy_is_called_between(go):
    model = Net().eval()
    shallow = copy.copy(model)
    with go(model, {"x": X[0]}) as call:
        yield call(x=X[0])
        with torch.no_grad():
            yield shallow(X[0])


@habit
def weights_loaded_between_two(go):
    model = Net()
    yield from trained(go, model, None, square)
    model.load_state_dict(Net().state_dict(), assign=True)
    yield from trained(go, model, None, square)


@habit
def a_vector_of_the_weights_between(go):
    model = Net()
    with go(model, {"x": X[0]}, sgd(model), square) as step:
        yield step(x=X[0])
        yield nn.utils.parameters_to_vector(model.parameters()).detach()


@habit
def another_type_afterwards(go):
    model = Net()
    yield from trained(go, model, sgd(model), square)
    model.double()
    with torch.no_grad():
        yield model(X[0].double())


# -- compiled and traced parts


@habit
def a_model_compiled_by_another_backend(go):
    return trained(go, torch.compile(Net(), backend="eager"), None, square)


@habit
def a_part_that_is_not_compiled(go):
    return with_does(go, torch._dynamo.disable(lambda s, h: h * 2))


@habit
def a_traced_part(go):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(nn.Linear(16, 16), X[0])
    return both(go, lambda s, x: s.part(s.first(x)), first=linear, part=lambda: traced)


# -- models of transformers, without a hub


def _language_model(**changed):
    transformers = __import__("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        **{"use_cache": False, **changed},
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


IDS = [torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(k)) for k in range(3)]


def _language(go, model, change=lambda k, model: None, loss=lambda m, i: m(**i).loss, **more):
    optimizer = adamw(model)
    given = [{"input_ids": ids, "labels": ids, **more} for ids in IDS]
    with go(model, given[0], optimizer, loss) as step:
        for k, one in enumerate(given):
            change(k, model)
            yield step(**one)
    yield [p.detach() for p in model.parameters()]


@habit
def a_language_model_with_checkpointing(go):
    model = _language_model()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return _language(go, model)


@habit
def a_language_model_whose_config_changes(go):
    model = _language_model()

    def loss(m, i):
        return m(**i).loss * m.config.initializer_range

    return _language(
        go, model, lambda k, m: setattr(m.config, "initializer_range", 0.1 * (k + 1)), loss
    )


@habit
def a_language_model_with_a_mask(go):
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, 6:] = 0
    return _language(go, _language_model(tie_word_embeddings=True), attention_mask=mask)


@habit
def the_hidden_states_of_a_language_model(go):
    model = _language_model().eval()
    given = [{"input_ids": ids, "output_hidden_states": True} for ids in IDS]
    with go(model, given[0]) as call:
        for one in given:
            found = call(**one)
            yield found.logits, list(found.hidden_states)


@habit
def labels_of_a_loss_outside_a_language_model(go):
    labels = IDS[0]

    def change(k, model):
        nonlocal labels
        labels = IDS[k]

    def loss(m, i):
        return functional.cross_entropy(m(i["input_ids"]).logits.flatten(0, 1), labels.flatten())

    return _language(go, _language_model(), change, loss)


@habit
def targets_filled_anew(go):
    target = Y[0].clone()
    return loss_with(
        go,
        lambda model, i: functional.mse_loss(model(i["x"]), target),
        lambda k, model: target.copy_(Y[k]),
    )
