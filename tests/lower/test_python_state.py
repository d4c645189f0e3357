"""Forward changes what Python or a random generator keeps: refused in one line. What is harmless
has eager's bits.
"""

from __future__ import annotations

import random

import numpy
import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "policy": "layerwise"}
X = torch.linspace(-1, 1, 4 * 16).reshape(4, 16)


class Toy(torch.nn.Module):
    """Two layers; ``does(self, h)`` stands between them."""

    def __init__(self, does=lambda self, h: h, **kept):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.does = does
        vars(self).update(kept)

    def forward(self, x):
        return self.second(self.does(self, torch.relu(self.first(x))))


class Product(torch.nn.Linear):
    """One op, for which torch has a kernel: none is compiled."""

    def __init__(self):
        super().__init__(16, 16, bias=False)

    def forward(self, x):
        return super().forward(x)


def loss_of(model, inputs):
    return model(**inputs).square().mean()


def offloaded(model, is_training=True):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    return hosim.offload(
        model,
        {"x": X},
        **({"optimizer": optimizer, "loss": loss_of} if is_training else {}),
        **SMALL,
    )


def state(model, h):
    """A recurrent state that is no buffer."""
    model.h = h + 0.5 * model.h
    return model.h


def held(model, h):
    return model.__setattr__("states", [h + model.states[0]]) or model.states[0]


def remembers(model, h):
    model.memory.append(h.detach())
    return sum(model.memory)


def counts(model, h):
    model.count[0] += 1
    return h * model.count[0]


def seeded(model, h):
    torch.manual_seed(3)
    return torch.nn.functional.dropout(h, 0.5)


def again(model, h):
    return checkpoint(
        lambda h: torch.nn.functional.dropout(torch.tanh(h), 0.5), h, use_reentrant=False
    )


REFUSED = {
    "a state": (
        state,
        {"h": torch.ones(4, 16)},
        "Toy changes its 'h' at each call, which a captured program would not do again",
    ),
    "a state in a list": (
        held,
        {"states": [torch.ones(4, 16)]},
        "Toy changes its 'states' at each call",
    ),
    "a list that grows": (remembers, {"memory": []}, "Toy changes its 'memory' at each call"),
    "a number in a list": (counts, {"count": [0]}, "Toy changes its 'count' at each call"),
    "a seed": (seeded, {}, "the model seeds torch's generator"),
    "python": (lambda model, h: h * random.random(), {}, "the model draws from Python's random"),
    "numpy": (
        lambda model, h: h * float(numpy.random.rand()),
        {},
        "the model draws from numpy's random",
    ),
}


@pytest.mark.parametrize("is_training", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, is_training):
    does, kept, message = REFUSED[case]
    model = Toy(does, **kept)
    before = {key: list(value) if isinstance(value, list) else value for key, value in kept.items()}
    torch.manual_seed(5)  # another state than the model's own
    generators = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state()[2:])
    with pytest.raises(
        InputError, match=message if is_training else f"{message}|must be registered as buffers"
    ):  # torch.export's words
        offloaded(model, is_training)
    for key, value in before.items():
        assert len(vars(model)[key]) == len(value)
        assert (
            all(mine is other for mine, other in zip(vars(model)[key], value, strict=True))
            or vars(model)[key] is value
        )
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), str(numpy.random.get_state()[2:])) == generators[1:]


def test_a_generator_of_the_model():
    own = torch.Generator()
    with pytest.raises(InputError, match="generator"):
        offloaded(Toy(lambda model, h: h + torch.randn(h.shape, generator=own)))


def test_dropout_that_checkpointing_draws_again():
    with pytest.raises(
        InputError,
        match="the model draws random numbers in backward, as checkpointing does to repeat dropout",
    ):
        offloaded(Toy(again))


def test_an_input_that_requires_a_gradient():
    with offloaded(Toy()) as step:
        step(x=X)
        with pytest.raises(InputError, match="input 'x' requires a gradient"):
            step(x=X.clone().requires_grad_())


def keeps_last(model, h):
    model.last = h
    return h


def keeps_all(model, h):
    model.all = [h]
    return h


def memoizes(model, h):
    if "mask" not in model.memo:
        model.memo["mask"] = torch.ones(16).tril()
    return h * model.memo["mask"]


WORKS = {
    "the last tensor": (keeps_last, {"last": torch.ones(4, 16)}),
    "a list made anew": (keeps_all, {"all": [torch.ones(4, 16)]}),
    "a memo": (memoizes, {"memo": {"mask": torch.ones(16)}}),
    "a constant": (lambda model, h: h * model.scale, {"scale": torch.ones(16) / 3}),
    "not a number": (lambda model, h: h, {"best": float("nan"), "plain": [1, 2.5, None, "a"]}),
    "dropout": (lambda model, h: torch.nn.functional.dropout(h, 0.5), {}),
    "checkpointing": (lambda model, h: checkpoint(torch.tanh, h, use_reentrant=False), {}),
    "weight norm": (None, {}),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("case", one_in(2, WORKS))
def test_works(case):
    does, kept = WORKS[case]
    models = [Toy(does, **kept) if does else Toy() for _ in range(2)]
    if does is None:
        for model in models:
            torch.nn.utils.weight_norm(model.first)
            model(X)  # its weight is an attribute that a hook makes at each call
    optimizer = torch.optim.AdamW(models[0].parameters(), lr=0.01, fused=True)
    losses = []
    torch.manual_seed(7)
    for k in range(2):
        optimizer.zero_grad()
        losses.append(loss_of(models[0], {"x": X + k}))
        losses[-1].backward()
        optimizer.step()
    with offloaded(models[1]) as step:
        torch.manual_seed(7)
        assert [step(x=X + k).item() for k in range(2)] == [loss.item() for loss in losses]
    assert all(
        torch.equal(mine, other)
        for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )


def scales(model, h):
    return torch.nn.functional.dropout(h, model.p) * model.scale


CHANGES = {
    "a number": (lambda model: setattr(model, "p", 0.9), "Toy has another 'p'"),
    "a tensor": (lambda model: setattr(model, "scale", torch.ones(16)), "Toy has another 'scale'"),
    "a parameter": (
        lambda model: setattr(model.first, "bias", torch.nn.Parameter(torch.ones(16))),
        "module 'first' has another 'bias'",
    ),
    "a buffer": (
        lambda model: model.first.register_buffer("more", torch.ones(16)),
        "module 'first' has another 'more'",
    ),
    "a module": (
        lambda model: setattr(model, "second", torch.nn.Linear(16, 16)),
        "Toy has another 'second'",
    ),
}


@pytest.mark.parametrize("is_training", [True, False])
def test_changes_after_the_capture_are_refused(is_training):
    for change, message in CHANGES.values():
        model = Toy(scales, p=0.1, scale=torch.ones(16) / 3, note=None)
        with offloaded(model, is_training) as run, torch.set_grad_enabled(is_training):
            run(x=X)
            model.note, model.first.seen = "nothing that the capture knew", 3
            run(x=X)
            change(model)
            with pytest.raises(
                InputError,
                match=f"{message} than when it was captured; set it back, or offload the model "
                "again",
            ):
                run(x=X)


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("is_training", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_hook_of_the_compiled_model_after_it_was_offloaded(is_training):
    compiled = torch.compile(Product())
    with offloaded(compiled, is_training) as run, torch.set_grad_enabled(is_training):
        run(x=X)
        compiled.register_forward_hook(lambda module, inputs, result: result * 2)
        with pytest.raises(
            InputError, match="has a forward hook, which a captured program would not call"
        ):
            run(x=X)
