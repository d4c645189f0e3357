"""What users do beside a model: state in closures, globals, objects and generators. Eager's losses,
or one line that names it.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import functools
import itertools
import mmap
import random
import subprocess
import sys
import time
import types

import numpy
import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "policy": "layerwise"}
X = [torch.randn(8, 16, generator=torch.Generator().manual_seed(k)) for k in range(3)]
Y = [x.flip(0) for x in X]

SCALES = {"of": 1.0}
SCALE = 1.0
DRAWS = numpy.random.default_rng(1)
CALLS = torch.zeros(())


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
    return model(inputs["x"]).square().mean()


def still(k, model):
    """Nothing changes between calls."""


class Slots:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


class Trainer:
    def __init__(self):
        self.weight, self.step = 1.0, 0

    def loss(self, model, inputs):
        return square(model, inputs) * self.weight


class Criterion(torch.nn.Module):
    weight = 1.0

    def forward(self, value):
        return value.square().mean() * self.weight


class Counts(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counts.calls += 1
        return x * Counts.calls

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Scaled(Net):
    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


def attribute(holder, read, change):
    return (
        Net(lambda self, h: h * read(self.kept), kept=holder),
        square,
        lambda k, model: change(model.kept, 1.0 + k),
    )


def loss_with(loss, change=still):
    return Net(), loss, change


def counted():
    calls = 0

    def loss(model, inputs):
        nonlocal calls
        calls += 1
        return square(model, inputs) * calls

    return loss_with(loss)


def globally(name, value):
    return lambda k, model: globals().__setitem__(name, value(k))


def appended(self, h):
    self.seen.append(1.0)
    return h * len(self.seen)


def kept_once(self, h):
    self.kept = h.detach().clone() if self.kept is None else self.kept
    return h - self.kept


def kept_last(self, h):
    self.kept = h.detach()
    return h


def written(self, h):
    self.calls[0].add_(1)
    return h * self.calls[0]


def written_global(self, h):
    return h * CALLS.add_(1)


def trainer(change):
    made = Trainer()
    return loss_with(made.loss, lambda k, model: change(made, 1.0 + k))


def criterion():
    made = Criterion()
    return loss_with(
        lambda model, inputs: made(model(inputs["x"])),
        lambda k, model: setattr(made, "weight", 1.0 + k),
    )


def weighted():
    made = torch.nn.CrossEntropyLoss(weight=torch.linspace(0.1, 1, 16))
    return loss_with(
        lambda model, inputs: made(model(inputs["x"]), torch.zeros(8, dtype=torch.long))
    )


def target(read, change):
    kept = {"y": Y[0].clone(), "array": Y[0].clone().numpy()}
    loss = lambda model, inputs: torch.nn.functional.mse_loss(model(inputs["x"]), read(kept))  # noqa: E731
    return loss_with(loss, lambda k, model: change(kept, k))


def scaled_loss(box, model, inputs):
    return square(model, inputs) * box["w"]


def partially():
    box = {"w": 1.0}
    return loss_with(functools.partial(scaled_loss, box), lambda k, model: box.update(w=1.0 + k))


def put(box, key):
    return lambda kept, value: kept.__setitem__(key, value)


def frozen():
    model = Net()
    model.unused = torch.nn.Linear(16, 16)
    model.first.requires_grad_(False)
    return model, square, still


HABITS = {
    "an object's attribute": (
        lambda: attribute(
            types.SimpleNamespace(s=1.0), lambda c: c.s, lambda c, v: setattr(c, "s", v)
        ),
        "kept.s",
    ),
    "a slot": (
        lambda: attribute(Slots(), lambda c: c.scale, lambda c, v: setattr(c, "scale", v)),
        "kept.scale",
    ),
    "a dictionary": (lambda: attribute({"s": 1.0}, lambda c: c["s"], put({}, "s")), "kept"),
    "a mapping": (
        lambda: attribute(collections.UserDict(s=1.0), lambda c: c["s"], put({}, "s")),
        "kept",
    ),
    "a list": (lambda: attribute([1.0], lambda c: c[0], put([], 0)), "kept"),
    "an array": (lambda: attribute(numpy.ones(2), lambda c: float(c[0]), put([], 0)), "kept"),
    "a class": (
        lambda: (Scaled(), square, lambda k, model: setattr(Scaled, "scale", 1.0 + k)),
        "scale",
    ),
    "a global": (
        lambda: (Net(lambda self, h: h * SCALE), square, globally("SCALE", lambda k: 1.0 + k)),
        "SCALE",
    ),
    "in a global": (
        lambda: (
            Net(lambda self, h: h * SCALES["of"]),
            square,
            lambda k, m: SCALES.update(of=1.0 + k),
        ),
        "SCALES",
    ),
    "None": (
        lambda: (
            Net(lambda s, h: h * (s.z or 1), z=None),
            square,
            lambda k, m: setattr(m, "z", [None, 2.0, 3.0][k]),
        ),
        "'z'",
    ),
    "a function": (
        lambda: (
            Net(lambda s, h: s.act(h), act=torch.sin),
            square,
            lambda k, m: setattr(m, "act", [torch.sin, torch.cos][k > 0]),
        ),
        "'act'",
    ),
    "a bound loss": (lambda: trainer(lambda made, v: setattr(made, "weight", v)), "self.weight"),
    "beside a bound loss": (lambda: trainer(lambda made, v: setattr(made, "step", v)), None),
    "a partial loss": (partially, "the loss has another"),
    "a criterion": (criterion, "weight"),
    "a criterion's buffer": (weighted, None),
    "a counter of the loss": (counted, "the loss changes its 'calls'"),
    "targets": (
        lambda: target(lambda kept: kept["y"], lambda kept, k: kept.update(y=Y[k])),
        "kept['y']",
    ),
    "targets in place": (
        lambda: target(lambda kept: kept["y"], lambda kept, k: kept["y"].copy_(Y[k])),
        "kept['y']",
    ),
    "targets of numpy": (
        lambda: target(
            lambda kept: torch.from_numpy(kept["array"]),
            lambda kept, k: kept["array"].__setitem__(..., Y[k].numpy()),
        ),
        "kept['array']",
    ),
    "a deque": (lambda: (Net(appended, seen=collections.deque(maxlen=5)), square, still), "'seen'"),
    "a counter in C": (
        lambda: (Net(lambda self, h: h * next(self.n), n=itertools.count(1)), square, still),
        "'n', an iterator",
    ),
    "a clock": (
        lambda: (Net(lambda self, h: h * time.perf_counter_ns()), square, still),
        "two traces",
    ),
    "python's generator": (
        lambda: (Net(lambda self, h: h * self.r.random(), r=random.Random(0)), square, still),
        "'r'",
    ),
    "numpy's generator": (
        lambda: (
            Net(lambda s, h: h * float(s.r.random()), r=numpy.random.default_rng(0)),
            square,
            still,
        ),
        "'r'",
    ),
    "a global generator": (
        lambda: (Net(lambda self, h: h * float(DRAWS.random())), square, still),
        "'DRAWS'",
    ),
    "an autograd function": (
        lambda: (Net(lambda self, h: Counts.apply(h)), square, still),
        "'Counts.calls'",
    ),
    "a tensor kept once": (
        lambda: (Net(kept_once, kept=None), square, still),
        "call the model once before",
    ),
    "a tensor kept last": (lambda: (Net(kept_last, kept=None), square, still), None),
    "a tensor written": (lambda: (Net(written, calls=[torch.zeros(())]), square, still), None),
    "a global tensor written": (lambda: (Net(written_global), square, still), "'CALLS'"),
    "frozen and unused": (frozen, None),
    "the loss is a parameter": (
        lambda: loss_with(lambda model, inputs: model.first.bias[0]),
        "returns its own 'first.bias'",
    ),
}
OF_LOSSES = ("loss", "criterion", "targets", "frozen")


def fresh():
    globals().update(SCALE=1.0, DRAWS=numpy.random.default_rng(1))
    SCALES.update(of=1.0)
    CALLS.zero_()
    Counts.calls, Scaled.scale = 0, 1.0


def steps(call, change, model):
    for k in range(3):
        change(k, model)
        yield call(X[k])


def eager(habit):
    model, loss, change = habit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)

    def step(x):
        value = loss(model, {"x": x})
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.item()

    return list(steps(step, change, model)), states(optimizer)


def offloaded(habit):
    model, loss, change = habit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    change(0, model)
    with hosim.offload(model, {"x": X[0]}, optimizer=optimizer, loss=loss, **SMALL) as step:
        return list(steps(lambda x: step(x=x).item(), change, model)), states(optimizer)


def states(optimizer):
    return sorted(value.nbytes for state in optimizer.state.values() for value in state.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(2, HABITS))
def test_a_step_is_eagers_or_refused(name):
    habit, said = HABITS[name]
    fresh()
    if said is None:
        wanted = eager(habit)
        fresh()
        assert offloaded(habit) == wanted
        return
    with pytest.raises(InputError) as error:
        offloaded(habit)
    assert said in str(error.value)


def results_of(habit, is_offloaded):
    fresh()
    model, _, change = habit()
    with torch.no_grad():
        if not is_offloaded:
            return list(steps(lambda x: model(x).sum().item(), change, model))
        change(0, model)
        with hosim.offload(model, {"x": X[0]}, **SMALL) as call:
            return list(steps(lambda x: call(x=x).sum().item(), change, model))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name in HABITS if not any(one in name for one in OF_LOSSES)][::3]
)
def test_a_call_is_eagers_or_refused(name):
    habit, said = HABITS[name]
    if said is None:
        assert results_of(habit, True) == results_of(habit, False)
        return
    with pytest.raises(InputError) as error:
        results_of(habit, True)
    assert said in str(error.value)


class Returns(Net):
    def __init__(self, what):
        super().__init__()
        self.register_buffer("n", torch.zeros(3))
        self.what = what

    def forward(self, x):
        return super().forward(x), self.what(self, x)


OWN = {
    "first.weight": lambda model, x: model.first.weight,
    "first.bias": lambda model, x: model.first.bias[:2],
    "n": lambda model, x: model.n,
}


@pytest.mark.parametrize("name", OWN)
def test_results_that_are_the_models_are_refused(name):
    """Eager returns the tensor itself, whose bytes hosim moves."""
    with (
        torch.no_grad(),
        pytest.raises(InputError, match=f"the model returns its own '{name}', or a view of it"),
    ):
        hosim.offload(Returns(OWN[name]).eval(), X[0], **SMALL)
    with (
        torch.no_grad(),
        hosim.offload(Returns(lambda model, x: (model.n.clone(), x)).eval(), X[0], **SMALL) as call,
    ):
        assert torch.equal(call(X[0])[1][1], X[0])


def test_a_capture_changes_nothing():
    model = Net(written, calls=[torch.zeros(())])
    hosim.offload(
        model,
        {"x": X[0]},
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=square,
        **SMALL,
    ).close()
    assert model.calls[0].item() == 0
    model = Net(appended, seen=[])
    with pytest.raises(InputError):
        hosim.offload(model, {"x": X[0]}, **SMALL)
    assert model.seen == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: memoryview(bytearray(8))[::2],
        lambda: (ctypes.c_int * 4)(),
        lambda: array.array("i", [0] * 4),
        lambda: mmap.mmap(-1, 4),
    ],
)
def test_bytes_that_a_capture_changes_are_as_before(make):
    held = make()
    before = memoryview(held).tobytes()

    def counts(self, h):
        held[0] = held[0] + 1
        return h

    with contextlib.suppress(InputError):
        hosim.offload(Net(counts), X[0], **SMALL).close()
    assert memoryview(held).tobytes() == before


@pytest.mark.parametrize("make", [lambda: mmap.mmap(-1, 4), lambda: memoryview(b"abcd")])
def test_a_buffer_that_is_closed_is_no_hindrance(make):
    held = make()
    (held.close if hasattr(held, "close") else held.release)()
    model = Net(lambda self, h: h if held is None else h + 1)
    wanted = model(X[0])
    with hosim.offload(model, X[0], **SMALL) as offloaded:
        assert torch.equal(offloaded(X[0]), wanted)


class Compared:
    def __lt__(self, other):
        return SCALES["of"] < other


class Set:
    def __setattr__(self, name, value):
        self.__dict__[name] = value * SCALES["of"]


class Printed:
    def __str__(self):
        return str(SCALES["of"])


class Begun:
    def __init__(self):
        self.scale = SCALES["of"]


def set_there(self, h):
    self.set.scale = 1.0
    return h * self.set.scale


@pytest.mark.parametrize(
    ("does", "kept"),
    [
        (lambda self, h: h if self.other < 2 else h + 1, {"other": Compared()}),
        (set_there, {"set": Set()}),
        (lambda self, h: h * float(str(self.printed)), {"printed": Printed()}),
        (lambda self, h: h * Begun().scale, {}),
    ],
)
def test_what_methods_read_that_no_code_names(monkeypatch, does, kept):
    with hosim.offload(Net(does, **kept), X[0], **SMALL) as offloaded:
        offloaded(X[0])
        monkeypatch.setitem(SCALES, "of", 5.0)
        with pytest.raises(InputError):
            offloaded(X[0])


@pytest.mark.long
def test_what_is_installed_below_a_virtual_environment_is_not_the_users(tmp_path):
    """A folder of packages that is on the path, and not the interpreter's own."""
    packages = tmp_path / "dist-packages"
    packages.mkdir()
    (packages / "theirs.py").write_text(
        "import torch\nSCALES = [1.0]\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) * SCALES[0]\n"
    )
    code = (
        "import sys; sys.path.append(sys.argv[1])\nimport hosim, theirs, torch\n"
        "x = torch.ones(2, 4)\n"
        "with hosim.offload(theirs.Net(4, 4), x, hardware='h100-80gb-sxm') as model:\n"
        "    theirs.SCALES[0] = 7\n    model(x)\n"
    )
    subprocess.run([sys.executable, "-c", code, packages], check=True, timeout=300)


DEEP: list = []
"""Nested deeper than Python's calls: see the next test."""


def test_lists_nested_deeper_than_calls_are_watched():
    innermost = DEEP
    for _ in range(2 * sys.getrecursionlimit()):
        innermost.append([])
        innermost = innermost[0]
    model = Net(lambda self, h: h * len(DEEP)).eval()
    with torch.no_grad(), hosim.offload(model, (X[0],), **SMALL) as offloaded:
        assert torch.equal(offloaded(X[1]), offloaded(X[1]))
        innermost.append(1)
        with pytest.raises(InputError, match="DEEP"):
            offloaded(X[1])
    DEEP.clear()
