"""Habits of users: what each needs, and how it runs eagerly and offloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import hosim

SMALL = {"hardware": "h100-80gb-sxm", "policy": "layerwise"}
X = [torch.randn(8, 16, generator=torch.Generator().manual_seed(k)) for k in range(3)]
Y = [x.flip(0) for x in X]

HABITS: dict[str, Callable[[Any], Iterator[Any]]] = {}


def habit(function: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    HABITS[function.__name__] = function
    return function


class Net(torch.nn.Module):
    """Two layers; ``does(self, h)`` stands between them."""

    def __init__(self, does=lambda self, h: h, **kept):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.does = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), does
        for key, value in kept.items():
            setattr(self, key, value)

    def forward(self, x):
        return self.second(self.does(self, torch.relu(self.first(x))))


def square(model, inputs):
    return model(**inputs).square().mean()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)


def trained(go, model, optimizer, loss, change=lambda k, model: None, xs=X):
    """The losses of three steps, and what was learned."""
    optimizer = adamw(model) if optimizer is None else optimizer
    change(0, model)
    with go(model, {"x": xs[0]}, optimizer, loss) as step:
        for k, x in enumerate(xs):
            change(k, model)
            yield step(x=x)
    yield [p.detach() for p in model.parameters()]
    yield [b.detach() for b in model.buffers()]


def loss_with(go, loss, change=lambda k, model: None):
    return trained(go, Net(), None, loss, change)


def with_does(go, does, change=lambda k, model: None, **kept):
    return trained(go, Net(does, **kept), None, square, change)


class Eager:
    """What hosim.offload returns, without hosim."""

    def __init__(self, model, inputs, optimizer=None, loss=None, **_):
        self.model, self.optimizer, self.loss = model, optimizer, loss or (lambda m, i: m(**i))
        self.names = list(inputs) if isinstance(inputs, dict) else []

    def __call__(self, *args, **kwargs):
        if self.optimizer is None:
            with torch.no_grad():
                return self.model(*args, **kwargs)
        value = self.backward(*args, **kwargs)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value

    def backward(self, *args, gradient=None, **kwargs):
        value = self.loss(self.model, {**dict(zip(self.names, args, strict=False)), **kwargs})
        value = value if isinstance(value, torch.Tensor) else value.loss
        value.backward(gradient)
        return value.detach()

    def optimizer_step(self):
        self.optimizer.step()

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def offloaded(model, inputs, optimizer=None, loss=None, **options):
    return hosim.offload(model, inputs, optimizer=optimizer, loss=loss, **{**SMALL, **options})


def plain(value: Any) -> Any:
    """A result as something to compare: of tensors type, shape, strides and bytes."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return str(value.layout), plain(value.to_dense())
        value = value.detach()
        return (
            str(value.dtype),
            tuple(value.shape),
            tuple(s for s, size in zip(value.stride(), value.shape, strict=True) if size > 1),
            value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if value.numel()
            else b"",
        )
    if isinstance(value, dict):
        return type(value).__name__, {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(one) for one in value]
    return value
