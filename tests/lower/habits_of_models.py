"""Models as users write them: each habit is a generator of results, run once eagerly and once
offloaded (:mod:`habits`).
"""

from __future__ import annotations

import collections
import types

import torch
from habits import Net, X, adamw, habit, loss_with, sgd, square, trained, with_does
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

WIDE = [x.repeat(1, 2).reshape(8, 2, 4, 4).contiguous() for x in X]


class Made(nn.Module):
    """A model of ``parts``; ``does(self, x)`` is its forward."""

    def __init__(self, does, **parts):
        super().__init__()
        torch.manual_seed(0)
        self.does = does
        for key, make in parts.items():
            setattr(self, key, make())

    def forward(self, x):
        return self.does(self, x)


def called(go, model, xs=X):
    model.eval()
    with go(model, {"x": xs[0]}) as call:
        for x in xs:
            yield call(x=x)


def both(go, does, xs=X, **parts):
    yield from called(go, Made(does, **parts), xs)
    yield from trained(go, Made(does, **parts), None, square, xs=xs)


def linear():
    return nn.Linear(16, 16)


# -- what is returned


RETURNS = {
    "a_parameter": lambda s, x: (s.first(x), s.first.weight),
    "a_view_of_a_parameter": lambda s, x: (s.first(x), s.first.weight[:2]),
    "a_row_of_a_table": lambda s, x: s.first.weight[0] * 1,
    "a_detached_parameter": lambda s, x: (s.first(x), s.first.weight.detach()),
    "the_input": lambda s, x: (s.first(x), x),
    "the_input_alone": lambda s, x: x,
    "a_view_of_the_input": lambda s, x: (s.first(x), x[:, :3]),
    "the_same_twice": lambda s, x: (lambda h: (h, h))(s.first(x)),
    "a_view_of_another_result": lambda s, x: (lambda h: (h, h[:2]))(s.first(x)),
    "a_transposed_result": lambda s, x: s.first(x).t(),
    "an_expanded_result": lambda s, x: s.first(x)[:1].expand(4, 16),
    "a_slice_with_steps": lambda s, x: s.first(x)[:, ::2],
    "complex_numbers": lambda s, x: torch.fft.fft(s.first(x)),
    "a_negative_view": lambda s, x: torch.fft.fft(s.first(x)).conj().imag,
    "sparse": lambda s, x: s.first(x).relu().to_sparse(),
    "booleans": lambda s, x: s.first(x) > 0,
    "indices": lambda s, x: s.first(x).topk(3),
    "a_dictionary": lambda s, x: {"h": s.first(x), "n": 3, "s": "text", "o": None},
    "an_ordered_dictionary": lambda s, x: collections.OrderedDict(b=s.first(x), a=x),
    "a_namespace": lambda s, x: types.SimpleNamespace(h=s.first(x)),
    "a_number": lambda s, x: (s.first(x), 1.5),
    "an_item": lambda s, x: (s.first(x), s.first(x).sum().item()),
    "nothing": lambda s, x: None,
    "an_empty_tensor": lambda s, x: (s.first(x), x[:0]),
    "a_constant": lambda s, x: (s.first(x), torch.tensor([1.0, 2.0])),
    "a_distribution": lambda s, x: torch.distributions.Normal(s.first(x), 1.0),
    "numpy": lambda s, x: s.first(x).detach().numpy(),
    "a_generator": lambda s, x: (h for h in [s.first(x)]),
    "a_list_of_lists": lambda s, x: [[s.first(x)], [x, (x,)]],
}


def _returning(name, does):
    def returns(go):
        yield from called(go, Made(does, first=linear))

    returns.__name__ = f"returns_{name}"
    habit(returns)


for _name, _does in RETURNS.items():
    _returning(_name, _does)


@habit
def returns_a_buffer(go):
    model = Made(lambda s, x: (s.first(x), s.n), first=linear)
    model.register_buffer("n", torch.ones(2))
    yield from called(go, model)


@habit
def results_are_written(go):
    model = Made(lambda s, x: s.first(x), first=linear)
    with go(model, {"x": X[0]}) as call:
        kept = call(x=X[0])
        yield kept.clone()
        kept.zero_()
        other = call(x=X[0])
        yield other, kept
        third = call(x=X[1])
        yield other, kept, third


@habit
def aliased_results_are_written(go):
    model = Made(lambda s, x: (lambda h: (h, h[:2], h))(s.first(x)), first=linear)
    with go(model, {"x": X[0]}) as call:
        whole, part, same = call(x=X[0])
        whole.zero_()
        yield whole, part, same


@habit
def a_returned_input_is_written(go):
    model = Made(lambda s, x: (s.first(x), x), first=linear)
    x = X[0].clone()
    with go(model, {"x": x.clone()}) as call:
        call(x=x)[1].zero_()
    yield x


# -- ops and layers


IN_MODELS = {
    "a_written_column": lambda s, x: (lambda h: (h[:, 0].zero_(), h)[1])(s.first(x) * 2),
    "a_written_row_by_index": lambda s, x: (
        lambda h: (h.index_fill_(0, x.new_tensor([1, 2]).long(), 0.0), h)[1]
    )(s.first(x) * 2),
    "an_added_view": lambda s, x: (lambda h: (h[::2].add_(1), h.t().mul_(2), h)[2])(s.first(x) * 2),
    "a_masked_fill": lambda s, x: s.first(x).masked_fill(x > 0, -1.0),
    "a_scatter": lambda s, x: torch.zeros(8, 16).scatter_add(
        0, torch.zeros(8, 16).long(), s.first(x)
    ),
    "an_index_add": lambda s, x: torch.zeros_like(x).index_add_(
        0, torch.tensor([0, 1, 1, 2, 3, 3, 0, 5]), s.first(x)
    ),
    "an_as_strided": lambda s, x: s.first(x).as_strided((4, 4), (16, 1)),
    "a_no_grad_part": lambda s, x: s.first(x) * torch.no_grad()(lambda: s.first(x).sigmoid())(),
    "a_detached_part": lambda s, x: s.first(x) - s.first(x).detach().mean(),
    "an_inference_part": lambda s, x: (
        s.first(x) + torch.inference_mode()(lambda: x.sigmoid())().clone()
    ),
    "a_clamped_weight": lambda s, x: (
        torch.no_grad()(lambda: s.first.weight.clamp_(-0.1, 0.1))(),
        s.first(x),
    )[1],
    "weight_data": lambda s, x: (s.first.weight.data.mul_(0.9), s.first(x))[1],
    "checkpointing": lambda s, x: checkpoint(
        lambda h: s.first(h).tanh(), x * 1, use_reentrant=False
    ),
    "reentrant_checkpointing": lambda s, x: checkpoint(
        lambda h: s.first(h).tanh(), (x * 1).requires_grad_(), use_reentrant=True
    ),
    "a_vmap": lambda s, x: torch.vmap(lambda row: s.first(row))(x),
    "a_functional_call": lambda s, x: torch.func.functional_call(
        s.first, {"weight": s.first.weight * 2, "bias": s.first.bias}, (x,)
    ),
    "a_gradient_of_func": lambda s, x: torch.func.grad(lambda h: s.first(h).square().sum())(x),
    "a_tensor_of_numbers": lambda s, x: s.first(x) + torch.tensor([0.5] * 16),
    "an_arange": lambda s, x: s.first(x) * torch.arange(16, dtype=x.dtype),
    "a_random_mask": lambda s, x: s.first(x) * (torch.rand(8, 16) > 0.5),
    "gaussian_noise": lambda s, x: s.first(x) + torch.randn_like(x),
    "noise_in_place": lambda s, x: s.first(x) + torch.empty(8, 16).normal_(),
    "gumbel_softmax": lambda s, x: functional.gumbel_softmax(s.first(x), hard=True),
    "a_multinomial": lambda s, x: s.first(x) * torch.multinomial(x.abs() + 1, 16),
    "a_permutation": lambda s, x: s.first(x)[torch.randperm(8)],
    "a_bernoulli": lambda s, x: s.first(x) * torch.bernoulli(torch.full_like(x, 0.5)),
    "dropout": lambda s, x: functional.dropout(s.first(x), 0.3, s.training),
    "dropout_of_channels": lambda s, x: functional.dropout1d(s.first(x)[None], 0.3, s.training),
    "alpha_dropout": lambda s, x: functional.alpha_dropout(s.first(x), 0.3, s.training),
    "rrelu": lambda s, x: functional.rrelu(s.first(x), training=s.training),
    "a_branch_by_contents": lambda s, x: s.first(x) if x.sum() > 0 else s.first(-x),
    "a_loop_by_contents": lambda s, x: sum(
        (s.first(x) for _ in range(int(x.abs().sum()) % 3)), s.first(x)
    ),
    "a_selection": lambda s, x: s.first(x)[x[:, 0] > 0].sum(0),
    "a_nonzero": lambda s, x: s.first(x)[torch.nonzero(x[:, 0] > 0)[:, 0]].sum(0),
    "a_unique": lambda s, x: s.first(x) * torch.unique(x).numel(),
    "a_sort": lambda s, x: s.first(x).sort(descending=True)[0],
    "a_cumsum": lambda s, x: s.first(x).cumsum(1).logsumexp(1),
    "an_einsum": lambda s, x: torch.einsum("bi,bj->ij", s.first(x), x),
    "an_fft": lambda s, x: torch.fft.irfft(torch.fft.rfft(s.first(x))),
    "a_solve": lambda s, x: torch.linalg.solve(s.first(x)[:, :8] + 10 * torch.eye(8), x[:, :2]),
    "a_decomposition": lambda s, x: torch.linalg.svdvals(s.first(x)),
    "attention": lambda s, x: functional.scaled_dot_product_attention(
        *(s.first(x).reshape(1, 2, 8, 8),) * 3, is_causal=True
    ),
    "in_float64": lambda s, x: s.first(x).double().exp().float(),
    "in_bfloat16": lambda s, x: s.first(x).bfloat16().float(),
    "autocast_within": lambda s, x: _autocast(s, x),
    "a_default_dtype_within": lambda s, x: s.first(x) + torch.zeros(16),
    "an_assertion": lambda s, x: _asserted(s, x),
    "printing": lambda s, x: (str(x.shape), s.first(x))[1],
    "a_try": lambda s, x: _tried(s, x),
    "tolist": lambda s, x: s.first(x) * len(x.tolist()),
    "a_custom_gradient_of_zero": lambda s, x: s.first(x).sign() * 0 + s.first(x),
    "nan_to_num": lambda s, x: torch.nan_to_num(s.first(x).log()),
    "a_while_of_sizes": lambda s, x: _halved(s, x),
    "gradients_in_the_loss": lambda s, x: _penalised(s, x),
}


def _autocast(s, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return s.first(x).float()


def _asserted(s, x):
    assert not torch.isnan(x).any()
    return s.first(x)


def _tried(s, x):
    try:
        return s.first(x).reshape(3, 3)
    except RuntimeError:
        return s.first(x)


def _halved(s, x):
    h = s.first(x)
    while h.shape[1] > 2:
        h = h[:, ::2] + h[:, 1::2]
    return h


def _penalised(s, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = s.first(x).tanh().sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g.square().sum(1)


def _within(name, does):
    def within(go):
        torch.manual_seed(5)
        yield from both(go, does, first=linear)

    within.__name__ = f"model_with_{name}"
    habit(within)


for _name, _does in IN_MODELS.items():
    _within(_name, _does)


LAYERS = {
    "batch_norm": (lambda: nn.BatchNorm1d(16), X),
    "cumulative_batch_norm": (lambda: nn.BatchNorm1d(16, momentum=None), X),
    "batch_norm_without_statistics": (lambda: nn.BatchNorm1d(16, track_running_stats=False), X),
    "group_norm": (lambda: nn.GroupNorm(4, 16), X),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)), X),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)), X),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(16, 16)), X),
    "old_spectral_norm": (lambda: nn.utils.spectral_norm(nn.Linear(16, 16)), X),
    "pruning": (lambda: prune.random_unstructured(nn.Linear(16, 16), "weight", 0.5), X),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(True), nn.MaxPool2d(2)),
        WIDE,
    ),
    "transposed_convolutions": (lambda: nn.ConvTranspose2d(2, 4, 3, stride=2), WIDE),
    "channels_last": (lambda: nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last), WIDE),
    "channels_last_inputs": (
        lambda: nn.Conv2d(2, 4, 3),
        [x.to(memory_format=torch.channels_last) for x in WIDE],
    ),
    "interpolation": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear")),
        WIDE,
    ),
    "instance_norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.InstanceNorm2d(2, affine=True)),
        WIDE,
    ),
    "tied_weights": (lambda: _tied(), X),
    "one_layer_twice": (
        lambda: (lambda one: nn.Sequential(one, nn.ReLU(), one))(nn.Linear(16, 16)),
        X,
    ),
    "float64": (lambda: nn.Linear(16, 16).double(), [x.double() for x in X]),
    "bfloat16": (lambda: nn.Linear(16, 16).bfloat16(), [x.bfloat16() for x in X]),
    "an_encoder_layer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0),
        [x[None] for x in X],
    ),
    "dropouts": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2, inplace=True), nn.Linear(16, 16)),
        X,
    ),
    "lazy_layers": (lambda: nn.LazyLinear(16), X),
    "scripted_layers": (lambda: torch.jit.script(nn.Linear(16, 16)), X),
    "a_bilinear": (lambda: _Pair(), X),
    "glu": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GLU()), X),
}


def _tied():
    made = nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False))
    made[2].weight = made[0].weight
    return made


class _Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = nn.Bilinear(16, 16, 4)

    def forward(self, x):
        return self.pair(x, x.flip(0))


def _of_layers(name, make, xs):
    def layered(go):
        torch.manual_seed(5)
        for is_training in (False, True):
            model = Made(lambda s, x: s.part(x), part=make)
            if not is_training:
                yield from called(go, model, xs)
            else:
                loss = lambda m, i: m(i["x"]).abs().float().square().mean()  # noqa: E731
                yield from trained(go, model, None, loss, xs=xs)

    layered.__name__ = f"layer_{name}"
    habit(layered)


for _name, (_make, _xs) in LAYERS.items():
    _of_layers(_name, _make, _xs)


@habit
def layer_embedding_with_a_norm(go):
    model = Made(lambda s, x: s.table(x), table=lambda: nn.Embedding(10, 4, max_norm=0.5))
    yield from trained(go, model, None, square, xs=[torch.tensor([1, 2, k]) for k in range(3)])


@habit
def layer_sparse_embedding(go):
    model = Made(lambda s, x: s.table(x), table=lambda: nn.Embedding(10, 4, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield from trained(go, model, optimizer, square, xs=[torch.tensor([1, 2, k]) for k in range(3)])


@habit
def a_frozen_base(go):
    model = Made(lambda s, x: s.head(s.base(x).relu()), base=linear, head=linear)
    model.base.requires_grad_(False)
    optimizer = adamw(model)
    yield from trained(go, model, optimizer, square)
    yield sorted(v.nbytes for s in optimizer.state.values() for v in s.values())


@habit
def an_unused_part(go):
    model = Made(lambda s, x: s.head(x), base=linear, head=linear)
    optimizer = adamw(model)
    yield from trained(go, model, optimizer, square)
    yield len(optimizer.state)


@habit
def a_moving_average_within(go):
    model = Made(lambda s, x: s.head(x) + s.slow, head=linear)
    model.register_buffer("slow", torch.zeros(16))

    def does(s, x):
        h = s.head(x)
        with torch.no_grad():
            s.slow.lerp_(h.mean(0), 0.1)
        return h - s.slow

    model.does = does
    yield from trained(go, model, None, square)


@habit
def a_buffer_replaced(go):
    def does(s, x):
        s.n = s.n + 1
        return s.head(x) * s.n

    model = Made(does, head=linear)
    model.register_buffer("n", torch.zeros(()))
    yield from trained(go, model, None, square)


@habit
def a_parameter_replaced(go):
    def does(s, x):
        s.head.weight = nn.Parameter(s.head.weight.detach() * 0.9)
        return s.head(x)

    yield from trained(go, Made(does, head=linear), None, square)


@habit
def a_recurrent_state(go):
    def does(s, x):
        s.state.copy_(torch.tanh(s.head(x) + s.state).detach())
        return s.state * s.head(x)

    model = Made(does, head=linear)
    model.register_buffer("state", torch.zeros(8, 16), persistent=False)
    yield from trained(go, model, None, square)


@habit
def a_list_of_modules_as_an_attribute(go):
    part = nn.Linear(16, 16)
    model = Made(lambda s, x: s.head(s.others[0](x)), head=linear)
    model.others = [part]
    yield from trained(go, model, None, square)


@habit
def parameters_in_a_list(go):
    model = Made(lambda s, x: s.head(x) * s.scales[0], head=linear)
    model.scales = [torch.ones(16, requires_grad=True)]
    yield from trained(go, model, None, square)


@habit
def a_parameter_of_the_loss(go):
    model, scale = Net(), nn.Parameter(torch.ones(()))
    yield from trained(go, model, None, lambda m, i: square(m, i) * scale)


@habit
def a_generator_of_torch(go):
    generator = torch.Generator().manual_seed(3)
    yield from with_does(go, lambda s, h: h * torch.rand(16, generator=generator))


@habit
def labels_from_the_model(go):
    yield from loss_with(go, lambda m, i: functional.cross_entropy(m(i["x"]), m(i["x"]).argmax(1)))


@habit
def a_penalty_on_parameters(go):
    yield from loss_with(
        go, lambda m, i: square(m, i) + 0.1 * sum(p.square().sum() for p in m.parameters())
    )


@habit
def a_gradient_penalty(go):
    def loss(m, i):
        x = i["x"].detach().requires_grad_()
        y = m(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + g.square().mean()

    yield from trained(go, Net(lambda s, h: h.tanh()), None, loss)


@habit
def the_gradient_of_a_parameter_in_the_loss(go):
    def loss(m, i):
        y = square(m, i)
        (g,) = torch.autograd.grad(y, m.first.weight, create_graph=True)
        return y + g.square().sum()

    yield from trained(go, Net(lambda s, h: h.tanh()), None, loss)


@habit
def backward_within_the_loss(go):
    def loss(m, i):
        first = square(m, i)
        first.backward(retain_graph=True)
        return first * 2

    yield from loss_with(go, loss)


@habit
def a_loss_with_an_item(go):
    yield from loss_with(go, lambda m, i: (lambda v: v * (1 if v.item() > 0 else 2))(square(m, i)))


@habit
def a_model_with_its_own_loss(go):
    model = Made(lambda s, x: {"loss": s.head(x).square().mean(), "y": s.head(x)}, head=linear)
    optimizer = sgd(model)
    with go(model, {"x": X[0]}, optimizer, lambda m, i: m(**i)["loss"]) as step:
        for x in X:
            yield step(x=x)
