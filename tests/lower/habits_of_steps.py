"""What users do around calls and training steps: each habit is a generator of results, run once
eagerly and once offloaded (:mod:`habits`).
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import threading
import warnings

import torch
from habits import Net, X, Y, adamw, habit, sgd, square, trained, with_does
from torch import nn
from torch.nn import functional


def stepped(go, change, model=None, optimizer=None, loss=square, xs=X):
    """Three whole steps; ``change(k, model, optimizer)`` comes before each."""
    model = Net() if model is None else model
    optimizer = adamw(model) if optimizer is None else optimizer(model)
    return trained(go, model, optimizer, loss, lambda k, m: change(k, m, optimizer), xs)


def in_parts(go, between, model=None, optimizer=adamw, micro=1, loss=square, clear=None):
    """Three steps of backward and update, with ``between(k, model, optimizer)`` between them."""
    model = Net() if model is None else model
    optimizer = optimizer(model)
    with go(model, {"x": X[0]}, optimizer, loss) as step:
        for k in range(3):
            for n in range(micro):
                yield step.backward(x=X[(k + n) % 3])
            between(k, model, optimizer)
            step.optimizer_step()
            (clear or (lambda: optimizer.zero_grad()))()
    yield [p.detach() for p in model.parameters()]


# -- modes and switches


def _mode(name, within, model=None, capture=True):
    def moded(go):
        made = Net() if model is None else model()
        optimizer = adamw(made)
        first = within(0) if capture else None
        if first is not None:
            first.__enter__()
        with go(made, {"x": X[0]}, optimizer, square) as step:
            if first is not None:
                first.__exit__(None, None, None)
            for k, x in enumerate(X):
                with within(k):
                    yield step(x=x)
        yield [p.detach() for p in made.parameters()]

    moded.__name__ = f"mode_{name}"
    habit(moded)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)

    def forward(self, x):
        h = self.first(x).reshape(1, 2, 8, 8)
        return functional.scaled_dot_product_attention(h, h, h)


class Sets:
    """A setting of torch while it is entered."""

    def __init__(self, read, write, value):
        self.read, self.write, self.value = read, write, value

    def __enter__(self):
        self.before = self.read()
        self.write(self.value)

    def __exit__(self, *_):
        self.write(self.before)


def _sdpa(k):
    return nn.attention.sdpa_kernel(
        nn.attention.SDPBackend.MATH if k else nn.attention.SDPBackend.FLASH_ATTENTION
    )


class Makes(Net):
    def forward(self, x):
        return (
            super().forward(x) + torch.zeros(16).sum().to(x.dtype) + torch.tensor(0.1).to(x.dtype)
        )


class Encoder(Net):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)

    def forward(self, x):
        return self.layer(super().forward(x)[None])


_mode("autocast", lambda k: torch.autocast("cpu", torch.bfloat16))
_mode("autocast_at_calls_alone", lambda k: torch.autocast("cpu", torch.bfloat16), capture=False)
_mode("autocast_off_later", lambda k: torch.autocast("cpu", torch.bfloat16, enabled=k < 2))
_mode(
    "autocast_of_another_type",
    lambda k: torch.autocast("cpu", [torch.bfloat16, torch.float16][k > 0]),
)
_mode("attention_by_another_kernel", _sdpa, Attends)
_mode("attention_by_one_kernel", lambda k: _sdpa(1), Attends)
_mode(
    "a_default_dtype",
    lambda k: Sets(
        torch.get_default_dtype, torch.set_default_dtype, [torch.float32, torch.float64][k > 0]
    ),
    Makes,
)
_mode(
    "deterministic_algorithms",
    lambda k: Sets(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, k > 0
    ),
)
_mode("detected_anomalies", lambda k: torch.autograd.set_detect_anomaly(k > 0))
_mode("saved_on_the_cpu", lambda k: torch.autograd.graph.save_on_cpu())
_mode(
    "a_forked_generator",
    lambda k: torch.random.fork_rng(devices=[]),
    lambda: Net(lambda s, h: functional.dropout(h, 0.5)),
)
_mode(
    "saved_tensors_halved",
    lambda k: (
        torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float())
        if k
        else torch.enable_grad()
    ),
)
_mode(
    "matmul_precision",
    lambda k: Sets(
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ["highest", "medium"][k > 0],
    ),
)
_mode(
    "the_fast_path_of_mha",
    lambda k: Sets(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, k == 0
    ),
    Encoder,
)


@habit
def train_and_eval_between(go):
    model = Net(lambda s, h: functional.dropout(h, 0.5, s.training))
    yield from stepped(go, lambda k, m, o: m.eval() if k == 2 else None, model)


@habit
def a_part_in_eval(go):
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    model[1].eval()
    optimizer = adamw(model)
    with go(model, {"input": X[0]}, optimizer, lambda m, i: m(i["input"]).square().mean()) as step:
        for x in X:
            yield step(input=x)
    yield [b.detach() for b in model.buffers()]


@habit
def a_part_in_eval_later(go):
    def change(k, m):
        m.norm.train(k == 0)

    model = Net(lambda s, h: s.norm(h), norm=nn.BatchNorm1d(16))
    yield from trained(go, model, None, square, change)


@habit
def a_rate_of_dropout_changes(go):
    model = Net(lambda s, h: s.drop(h), drop=nn.Dropout(0.1))
    yield from trained(go, model, None, square, lambda k, m: setattr(m.drop, "p", 0.1 * (k + 1)))


@habit
def seeds_at_each_step(go):
    model = Net(lambda s, h: functional.dropout(h, 0.5))
    yield from stepped(go, lambda k, m, o: torch.manual_seed(k), model)


@habit
def random_numbers_between_steps(go):
    model = Net(lambda s, h: functional.dropout(h, 0.5))
    yield from stepped(go, lambda k, m, o: torch.rand(k + 1), model)
    yield torch.rand(3)


# -- inputs


def _inputs(name, given, example=None, does=None, model=None):
    def given_by(go):
        made = (model or (lambda: Net(does) if does else Net()))()
        made.eval()
        first = given(0) if example is None else example()
        with go(made, first) as call:
            for k in range(3):
                value = given(k)
                yield call(**value) if isinstance(value, dict) else call(*value)

    given_by.__name__ = f"inputs_{name}"
    habit(given_by)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)

    def forward(self, x, y=None, *, scale=1.0, many=()):
        h = self.first(x) * scale
        h = h if y is None else h + y
        return h + sum(many) if many else h


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)

    def forward(self, x):
        x.mul_(2)
        return self.first(x)


_inputs("by_position", lambda k: (X[k],))
_inputs(
    "transposed",
    lambda k: {"x": torch.randn(16, 8, generator=torch.Generator().manual_seed(k)).t()},
)
_inputs("laid_out_otherwise", lambda k: {"x": X[k].t().contiguous().t() if k else X[k]})
_inputs("expanded", lambda k: {"x": X[k][:1].expand(8, 16)})
_inputs("a_view_of_a_batch", lambda k: {"x": torch.cat(X)[8 * k : 8 * k + 8]})
_inputs("of_another_size", lambda k: {"x": X[k][: 8 - k]})
_inputs("twice_the_same", lambda k: {"x": X[k], "y": X[k]}, model=Two)
_inputs("one_the_same", lambda k: {"x": X[0], "y": X[0] if k else X[1]}, model=Two)
_inputs("a_number", lambda k: {"x": X[k], "scale": 2.0}, model=Two)
_inputs("another_number", lambda k: {"x": X[k], "scale": 2.0 + k}, model=Two)
_inputs("none", lambda k: {"x": X[k], "y": None}, model=Two)
_inputs("none_that_becomes_a_tensor", lambda k: {"x": X[k], "y": X[0] if k else None}, model=Two)
_inputs("left_out_later", lambda k: {"x": X[k], "y": X[0]} if not k else {"x": X[k]}, model=Two)
_inputs("a_list", lambda k: {"x": X[k], "many": [X[0], X[1]]}, model=Two)
_inputs("a_longer_list", lambda k: {"x": X[k], "many": [X[0]] * (k + 1)}, model=Two)
_inputs("written", lambda k: {"x": X[k].clone()}, model=Writes)
_inputs("that_require_gradients", lambda k: {"x": X[k].clone().requires_grad_()})
_inputs("a_parameter", lambda k: {"x": nn.Parameter(X[k])})
_inputs("of_numpy", lambda k: {"x": X[k].numpy()}, model=lambda: FromNumpy())
_inputs("conjugate", lambda k: {"x": torch.complex(X[k], X[k]).conj()}, model=lambda: Real())
_inputs("of_no_element", lambda k: {"x": X[k][:0]})
_inputs("of_no_dimension", lambda k: {"x": torch.tensor(float(k))}, model=lambda: Scalar())
_inputs("in_inference_mode", lambda k: {"x": torch.inference_mode()(lambda: X[k] * 1)()})


class FromNumpy(Net):
    def forward(self, x):
        return super().forward(torch.from_numpy(x))


class Real(Net):
    def forward(self, x):
        return super().forward(x.real + x.imag)


class Scalar(Net):
    def forward(self, x):
        return super().forward(x.expand(8, 16))


@habit
def one_tensor_filled_anew(go):
    x = X[0].clone()
    with go(Net(), {"x": x}) as call:
        for one in X:
            x.copy_(one)
            yield call(x=x)


@habit
def an_input_written_after_the_call(go):
    x = X[0].clone()
    with go(Net(), {"x": X[0]}) as call:
        kept = call(x=x)
        x.zero_()
        yield kept


@habit
def a_wrong_call_between(go):
    with go(Net(), {"x": X[0]}) as call:
        yield call(x=X[0])
        with contextlib.suppress(Exception):
            call(x=X[0][:, :3])
        yield call(x=X[1])


@habit
def a_result_is_the_next_input(go):
    with go(Net(), {"x": X[0]}) as call:
        h = X[0]
        for _ in range(3):
            h = call(x=h)
            yield h


# -- the model's tensors


@habit
def weights_are_read_between(go):
    model = Net()
    yield from trained(go, model, None, square, lambda k, m: m.first.weight.sum() if k else None)


@habit
def weights_are_written_between(go):
    def change(k, m):
        with torch.no_grad():
            m.first.weight.mul_(0.5)

    yield from trained(go, Net(), None, square, change)


@habit
def weights_are_written_by_data(go):
    yield from trained(go, Net(), None, square, lambda k, m: m.first.weight.data.mul_(0.5))


@habit
def the_data_of_weights_is_replaced(go):
    def change(k, m):
        m.first.weight.data = m.first.weight.data * 0.5

    yield from trained(go, Net(), None, square, change)


@habit
def a_parameter_is_replaced_between(go):
    def change(k, m):
        if k:
            m.first.bias = nn.Parameter(torch.ones(16))

    yield from trained(go, Net(), None, square, change)


@habit
def a_layer_is_replaced_between(go):
    def change(k, m):
        if k:
            m.second = nn.Linear(16, 16)

    yield from trained(go, Net(), None, square, change)


@habit
def a_state_dict_between(go):
    model = Net()
    yield from trained(go, model, None, square, lambda k, m: m.state_dict() if k else None)
    yield {key: value.clone() for key, value in model.state_dict().items()}


@habit
def a_state_dict_saved_after(go):
    model = Net()
    yield from trained(go, model, None, square)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = Net()
    other.load_state_dict(torch.load(file))
    yield [p.detach() for p in other.parameters()]


@habit
def a_state_dict_loaded_between(go):
    kept = copy.deepcopy(Net().state_dict())
    yield from trained(go, Net(), None, square, lambda k, m: m.load_state_dict(kept) if k else None)


@habit
def a_copy_between(go):
    yield from trained(go, Net(), None, square, lambda k, m: copy.deepcopy(m) if k else None)


@habit
def a_copy_after(go):
    model = Net()
    yield from trained(go, model, None, square)
    yield [p.detach() for p in copy.deepcopy(model).parameters()]
    yield model(X[0]).detach()


@habit
def the_model_is_called_between(go):
    yield from trained(go, Net(), None, square, lambda k, m: m(X[0]) if k else None)


@habit
def a_layer_is_called_between(go):
    yield from trained(go, Net(), None, square, lambda k, m: m.first(X[0]) if k else None)


@habit
def an_average_of_weights(go):
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(model)
    yield from trained(
        go, model, None, square, lambda k, m: average.update_parameters(m) if k else None
    )


@habit
def again_after_closing(go):
    model = Net()
    optimizer = adamw(model)
    yield from trained(go, model, optimizer, square)
    yield from trained(go, model, optimizer, square)


@habit
def inference_after_training(go):
    model = Net()
    yield from trained(go, model, None, square)
    model.eval()
    with go(model, {"x": X[0]}) as call:
        yield call(x=X[1])


@habit
def twice_at_once(go):
    model = Net()
    with go(model, {"x": X[0]}) as first, go(model, {"x": X[0]}) as second:
        yield first(x=X[0])
        yield second(x=X[0])


@habit
def two_models_in_turn(go):
    models = Net(), Net(lambda s, h: h * 2)
    with go(models[0], {"x": X[0]}) as first, go(models[1], {"x": X[0]}) as second:
        for x in X:
            yield first(x=x), second(x=x)


@habit
def the_model_is_deleted(go):
    model = Net()
    call = go(model, {"x": X[0]})
    del model
    gc.collect()
    yield call(x=X[0])
    call.close()


@habit
def calls_of_two_threads(go):
    found = {}
    with go(Net(), {"x": X[0]}) as call:

        def one(k):
            found[k] = [call(x=X[k]) for _ in range(5)]

        threads = [threading.Thread(target=one, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    yield [found[k] for k in range(3)]


@habit
def training_in_a_thread(go):
    found = []
    thread = threading.Thread(target=lambda: found.extend(trained(go, Net(), None, square)))
    thread.start()
    thread.join()
    yield found


# -- the optimizer


def _optimizer(name, make, **options):
    def optimized(go):
        yield from (
            trained(go, Net(), *options.get("args", (None,)), square)
            if make is None
            else stepped(
                go, options.get("change", lambda k, m, o: None), options.get("model", Net)(), make
            )
        )

    optimized.__name__ = f"optimizer_{name}"
    habit(optimized)


_O = torch.optim
OPTIMIZERS = {
    "adamw": adamw,
    "sgd": sgd,
    "plain_sgd": lambda m: _O.SGD(m.parameters(), lr=0.1),
    "nesterov": lambda m: _O.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam_foreach": lambda m: _O.Adam(m.parameters(), lr=0.1, foreach=True),
    "adam_op_by_op": lambda m: _O.Adam(m.parameters(), lr=0.1, foreach=False),
    "amsgrad": lambda m: _O.AdamW(m.parameters(), lr=0.1, amsgrad=True, fused=True),
    "maximize": lambda m: _O.AdamW(m.parameters(), lr=0.1, maximize=True, fused=True),
    "rmsprop": lambda m: _O.RMSprop(m.parameters(), lr=0.01),
    "adagrad": lambda m: _O.Adagrad(m.parameters(), lr=0.01),
    "fused_adagrad": lambda m: _O.Adagrad(m.parameters(), lr=0.01, fused=True),
    "adadelta": lambda m: _O.Adadelta(m.parameters()),
    "adamax": lambda m: _O.Adamax(m.parameters()),
    "nadam": lambda m: _O.NAdam(m.parameters()),
    "radam": lambda m: _O.RAdam(m.parameters()),
    "asgd": lambda m: _O.ASGD(m.parameters()),
    "rprop": lambda m: _O.Rprop(m.parameters()),
    "adafactor": lambda m: _O.Adafactor(m.parameters()),
    "a_tensor_of_a_rate": lambda m: _O.AdamW(m.parameters(), lr=torch.tensor(0.1), fused=True),
    "groups": lambda m: _O.AdamW(
        [
            {"params": m.first.parameters(), "lr": 0.1},
            {"params": m.second.parameters(), "weight_decay": 0.0},
        ],
        fused=True,
    ),
    "some_parameters": lambda m: _O.AdamW(m.first.parameters(), lr=0.1, fused=True),
    "named_parameters": lambda m: _O.AdamW(m.named_parameters(), lr=0.1, fused=True),
}
for _name, _make in OPTIMIZERS.items():
    _optimizer(_name, _make)


class Signs(_O.Optimizer):
    """Steps by the signs of gradients, by its own attribute ``rate``."""

    def __init__(self, parameters, rate=0.1):
        super().__init__(parameters, {})
        self.rate = rate

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-self.rate)


class Decays(Signs):
    @torch.no_grad()
    def step(self, closure=None):
        self.rate *= 0.5
        super().step()


class CountsSteps(Signs):
    steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        super().step()


_optimizer("of_ones_own", lambda m: Signs(m.parameters()))
_optimizer(
    "with_an_attribute",
    lambda m: Signs(m.parameters()),
    change=lambda k, m, o: setattr(o, "rate", 0.1 * (k + 1)),
)
_optimizer("that_decays", lambda m: Decays(m.parameters()))


@habit
def an_optimizers_count_is_read(go):
    model = Net()
    optimizer = CountsSteps(model.parameters())
    yield from trained(go, model, optimizer, square)
    yield optimizer.steps


def _setting(key, value):
    return lambda k, m, o: o.param_groups[0].__setitem__(key, value(k))


_optimizer("whose_rate_changes", adamw, change=_setting("lr", lambda k: 0.1 / (k + 1)))
_optimizer("whose_betas_change", adamw, change=_setting("betas", lambda k: (0.9 - 0.1 * k, 0.99)))
_optimizer("whose_decay_changes", adamw, change=_setting("weight_decay", lambda k: 0.1 * k))
_optimizer(
    "whose_decay_changes_op_by_op",
    OPTIMIZERS["adam_op_by_op"],
    change=_setting("weight_decay", lambda k: 0.1 * k),
)
_optimizer("whose_momentum_changes", sgd, change=_setting("momentum", lambda k: 0.9 - 0.1 * k))
_optimizer("that_is_turned_round", adamw, change=_setting("maximize", lambda k: k == 1))
_optimizer(
    "whose_rate_is_filled",
    OPTIMIZERS["a_tensor_of_a_rate"],
    change=lambda k, m, o: o.param_groups[0]["lr"].fill_(0.1 / (k + 1)),
)


@habit
def a_group_that_comes_later(go):
    model = Net()
    optimizer = torch.optim.AdamW(model.first.parameters(), lr=0.1, fused=True)

    def change(k, m):
        if k == 1:
            optimizer.add_param_group({"params": list(m.second.parameters())})

    yield from trained(go, model, optimizer, square, change)


@habit
def states_are_read_between(go):
    model = Net()
    optimizer = adamw(model)
    yield from trained(
        go,
        model,
        optimizer,
        square,
        lambda k, m: (
            sum(v.sum() for s in optimizer.state.values() for v in s.values()) if k else None
        ),
    )


@habit
def states_are_cleared_between(go):
    model = Net()
    optimizer = adamw(model)
    yield from trained(
        go, model, optimizer, square, lambda k, m: optimizer.state.clear() if k else None
    )


@habit
def states_are_saved_and_loaded(go):
    model = Net()
    optimizer = adamw(model)
    yield from trained(go, model, optimizer, square)
    kept = copy.deepcopy(optimizer.state_dict())
    other = adamw(model)
    other.load_state_dict(kept)
    yield from trained(go, model, other, square)


@habit
def another_optimizer_later(go):
    model = Net()
    yield from trained(go, model, adamw(model), square)
    yield from trained(go, model, sgd(model), square)


def _schedule(name, make):
    def scheduled(go):
        model = Net()
        optimizer = adamw(model)
        schedule = make(optimizer)
        with warnings.catch_warnings(), go(model, {"x": X[0]}, optimizer, square) as step:
            warnings.simplefilter("ignore")
            for k in range(5):
                value = step(x=X[k % 3])
                yield value
                schedule.step(*[float(value)] * (name == "on_a_plateau"))
        yield [p.detach() for p in model.parameters()], optimizer.param_groups[0]["lr"]

    scheduled.__name__ = f"schedule_{name}"
    habit(scheduled)


_S = torch.optim.lr_scheduler
_schedule("by_steps", lambda o: _S.StepLR(o, 2))
_schedule("one_cycle", lambda o: _S.OneCycleLR(o, 0.1, total_steps=9))
_schedule("by_a_function", lambda o: _S.LambdaLR(o, lambda n: 1 / (n + 1)))
_schedule("with_restarts", lambda o: _S.CosineAnnealingWarmRestarts(o, 2))
_schedule("on_a_plateau", lambda o: _S.ReduceLROnPlateau(o, patience=0))
_schedule(
    "in_sequence", lambda o: _S.SequentialLR(o, [_S.ConstantLR(o), _S.ExponentialLR(o, 0.5)], [2])
)


# -- steps in parts


@habit
def accumulated_steps(go):
    yield from in_parts(go, lambda k, m, o: None, micro=3)


@habit
def clipped_norms(go):
    yield from in_parts(go, lambda k, m, o: nn.utils.clip_grad_norm_(m.parameters(), 0.01))


@habit
def clipped_values(go):
    yield from in_parts(go, lambda k, m, o: nn.utils.clip_grad_value_(m.parameters(), 0.01))


@habit
def scaled_gradients(go):
    yield from in_parts(go, lambda k, m, o: [p.grad.mul_(0.5) for p in m.parameters()], micro=2)


@habit
def replaced_gradients(go):
    def between(k, m, o):
        for p in m.parameters():
            p.grad = p.grad + 0.01

    yield from in_parts(go, between)


@habit
def gradients_set_to_zero(go):
    model = Net()
    optimizer = adamw(model)
    yield from in_parts(
        go,
        lambda k, m, o: None,
        model,
        lambda m: optimizer,
        2,
        clear=lambda: optimizer.zero_grad(set_to_none=False),
    )


@habit
def gradients_taken_away(go):
    model = Net()

    def clear():
        for p in model.parameters():
            p.grad = None

    yield from in_parts(go, lambda k, m, o: None, model, clear=clear)


@habit
def the_models_zero_grad(go):
    model = Net()
    yield from in_parts(go, lambda k, m, o: None, model, clear=lambda: model.zero_grad())


@habit
def some_gradients_taken_away(go):
    def between(k, m, o):
        if k == 1:
            m.first.bias.grad = None

    yield from in_parts(go, between)


@habit
def gradients_kept_over_steps(go):
    yield from in_parts(go, lambda k, m, o: None, clear=lambda: None)


@habit
def a_step_without_backward(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        step.optimizer_step()
        yield step.backward(x=X[0])
        optimizer.step()
    yield [p.detach() for p in model.parameters()]


@habit
def a_scaler(go):
    model = Net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        for x in X:
            yield step.backward(x=x, gradient=scaler.scale(torch.ones(())))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    yield [p.detach() for p in model.parameters()]


@habit
def a_step_that_is_skipped(go):
    model = Net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        for x in X:
            yield step.backward(x=x * 1e20, gradient=scaler.scale(torch.ones(())))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    yield [p.detach() for p in model.parameters()]


@habit
def hooks_of_the_step(go):
    model, seen = Net(), []
    optimizer = adamw(model)
    optimizer.register_step_post_hook(lambda o, a, k: seen.append(1))
    yield from trained(go, model, optimizer, square)
    yield seen


@habit
def gradients_after_a_step(go):
    model = Net()
    yield from trained(go, model, None, square)
    yield [p.grad for p in model.parameters()]


@habit
def gradients_norms_are_logged(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        for x in X:
            yield step.backward(x=x)
            yield [p.grad.norm() for p in model.parameters()]
            step.optimizer_step()
            optimizer.zero_grad()


@habit
def a_closure_of_the_step(go):
    model = Net()
    optimizer = adamw(model)
    with go(model, {"x": X[0]}, optimizer, square) as step:
        yield step.backward(x=X[0])
        optimizer.step(lambda: square(model, {"x": X[0]}))


@habit
def targets_as_inputs(go):
    model = Net()
    optimizer = adamw(model)
    loss = lambda m, i: functional.mse_loss(m(i["x"]), i["y"])  # noqa: E731
    with go(model, {"x": X[0], "y": Y[0]}, optimizer, loss) as step:
        for x, y in zip(X, Y, strict=True):
            yield step(x=x, y=y)
    yield [p.detach() for p in model.parameters()]


@habit
def a_weight_as_an_input(go):
    model = Net()
    optimizer = adamw(model)
    loss = lambda m, i: m(i["x"]).square().mean() * i["w"]  # noqa: E731
    with go(model, {"x": X[0], "w": 1.0}, optimizer, loss) as step:
        for k, x in enumerate(X):
            yield step(x=x, w=1.0 + k)


@habit
def the_last_short_batch(go):
    model = Net()
    yield from trained(go, model, None, square, xs=[X[0], X[1], X[2][:3]])


@habit
def the_last_short_batch_of_a_mask(go):
    yield from with_does(go, lambda s, h: h * (torch.arange(8)[:, None] < h.shape[0]))
