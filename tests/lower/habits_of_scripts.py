"""What training scripts and notebooks do around a model: each habit is a generator of results, run
once eagerly and once offloaded (:mod:`habits`).
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import functools
import io
import itertools
import logging
import multiprocessing
import operator
import os
import sys
import tempfile
import types
from pathlib import Path

import numpy
import pandas
import torch
from habits import Net, X, adamw, habit, loss_with, sgd, square, trained
from habits_of_models import called
from torch import nn

NOW = {"scale": 1.0}


def _weighted(name, make, change, read):
    """A loss with a weight that ``read`` has from what ``make`` made, and ``change(it, k)`` moves
    before each step.
    """

    def weighted(go):
        kept = make()
        return loss_with(go, lambda m, i: square(m, i) * read(kept), lambda k, m: change(kept, k))

    weighted.__name__ = name
    habit(weighted)


# -- names that code makes


def _arguments():
    return argparse.Namespace(first_weight=1.0, second_weight=2.0)


def _second(kept, k):
    kept.second_weight = 2.0 + k


_weighted(
    "an_attribute_by_a_built_name",
    _arguments,
    _second,
    lambda kept: sum(getattr(kept, f"{one}_weight") for one in ("first", "second")),
)
_weighted(
    "an_attribute_by_a_joined_name",
    _arguments,
    _second,
    lambda kept: getattr(kept, "second" + "_weight".lower(), 1.0),
)
_weighted(
    "attributes_by_names_in_a_tuple",
    _arguments,
    _second,
    lambda kept: sum(getattr(kept, one) for one in ("first_weight", "second_weight")),
)
_weighted(
    "an_attribute_by_a_getter_of_a_built_name",
    _arguments,
    _second,
    lambda kept: operator.attrgetter("_".join(("second", "weight")))(kept),
)
_weighted(
    "an_attribute_by_a_text",
    _arguments,
    _second,
    lambda kept: eval("kept.second_weight", {"kept": kept}),
)
_weighted("attributes_by_vars", _arguments, _second, lambda kept: sum(vars(kept).values()))


class _Tempered:
    level = 1.0

    def __call__(self, value):
        return value * self.level


_weighted(
    "an_attribute_of_an_object_that_had_none",
    _Tempered,
    lambda kept, k: setattr(kept, "level", 1.0 + k),
    lambda kept: kept(1.0),
)


# -- iterators


def _warm_up():
    for k in range(100):
        yield 1.0 if k < 3 else 0.5


_weighted(
    "a_count_under_a_threshold",
    itertools.count,
    lambda kept, k: None,
    lambda kept: 1.0 if next(kept) < 2 else 0.5,
)
_weighted("a_generator_of_a_warm_up", _warm_up, lambda kept, k: None, lambda kept: next(kept))


# -- functions that installed code wraps


def _scaled(name, scale):
    def scaled(go):
        NOW["scale"] = 1.0
        loss = lambda m, i: scale(square(m, i))  # noqa: E731
        return loss_with(go, loss, lambda k, m: NOW.update(scale=1.0 + k))

    scaled.__name__ = name
    habit(scaled)


@contextlib.contextmanager
def _scale_within():
    yield NOW["scale"]


def _by_a_manager(value):
    with _scale_within() as scale:
        return value * scale


@torch.no_grad()
def _without_gradients():
    return torch.ones(()) * NOW["scale"]


@functools.singledispatch
def _dispatched(value):
    return value


@_dispatched.register
def _(value: torch.Tensor):
    return value * NOW["scale"]


_scaled("a_context_manager_that_reads_a_global", _by_a_manager)
_scaled("a_decorated_function", lambda value: value * _without_gradients())
_scaled("a_dispatched_function", _dispatched)


# -- where numbers come from


@habit
def the_environment_by_getenv(go):
    def loss(model, i):
        return square(model, i) * float(os.getenv("HOSIM_HABIT", "1"))

    os.environ["HOSIM_HABIT"] = "1"
    try:
        yield from loss_with(go, loss, lambda k, m: os.environ.update(HOSIM_HABIT=str(1 + k)))
    finally:
        del os.environ["HOSIM_HABIT"]


_weighted(
    "a_column_of_a_frame",
    lambda: pandas.DataFrame({"weight": [1.0, 2.0], "name": ["a", "b"]}),
    lambda kept, k: kept.__setitem__("weight", [1.0 + k, 2.0]),
    lambda kept: float(kept["weight"].iloc[0]),
)
_weighted(
    "a_polynomial_of_numpy",
    lambda: numpy.poly1d([1.0, 2.0]),
    lambda kept, k: kept.coeffs.__setitem__(0, 1.0 + k),
    lambda kept: float(kept(1.0)),
)
_weighted(
    "a_number_that_processes_share",
    lambda: multiprocessing.Value("d", 1.0),
    lambda kept, k: setattr(kept, "value", 1.0 + k),
    lambda kept: kept.value,
)
_weighted(
    "a_file_that_appears",
    tempfile.TemporaryDirectory,
    lambda kept, k: Path(kept.name, "cool").write_text("") if k else None,
    lambda kept: 0.5 if os.path.exists(f"{kept.name}/cool") else 1.0,
)


@habit
def arguments_of_the_program(go):
    def loss(model, i):
        return square(model, i) * float(sys.argv[-1])

    before = list(sys.argv)
    sys.argv.append("1")
    try:
        yield from loss_with(go, loss, lambda k, m: sys.argv.append(str(1 + k)))
    finally:
        sys.argv[:] = before


_weighted(
    "a_parsed_configuration",
    configparser.ConfigParser,
    lambda kept, k: kept.read_dict({"loss": {"weight": str(1 + k)}}),
    lambda kept: kept.getfloat("loss", "weight", fallback=1.0),
)


@habit
def a_module_by_its_name(go):
    """Its first call imports another one, which stays."""

    def loss(model, i):
        import this_day_alone  # noqa: F401

        return square(model, i) * sys.modules[__name__].NOW["scale"]

    NOW["scale"] = 1.0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "this_day_alone.py").write_text("")
        sys.path.append(folder)
        try:
            yield from loss_with(go, loss, lambda k, m: NOW.update(scale=1.0 + k))
            yield sys.modules.pop("this_day_alone").__name__
        finally:
            sys.path.remove(folder)


@habit
def a_module_that_code_made(go):
    """It has no file, and no text in the loss is its name."""
    made = sys.modules["made_by_code"] = types.ModuleType("made_by_code")
    made.scale = 1.0

    def loss(model, i):
        return square(model, i) * sys.modules["_".join(("made", "by", "code"))].scale

    try:
        yield from loss_with(go, loss, lambda k, m: setattr(made, "scale", 1.0 + k))
    finally:
        del sys.modules["made_by_code"]


class _Constant:
    __slots__ = ("level",)


class _OfC(_Constant):
    """As a class in C: no text says which module it is of, and a property hides a slot."""

    __module__ = property(lambda self: "constants")
    __slots__ = ()
    level = property(lambda self: [2.0])


_weighted("a_constant_of_a_class_in_c", _OfC, lambda kept, k: None, lambda kept: kept.level[0])


class _Counted(type):
    made = 0

    def __call__(cls, *args):
        _Counted.made += 1
        return super().__call__(*args)


class _Boxed(metaclass=_Counted):
    def __init__(self, value):
        self.value = value


@habit
def a_metaclass_that_counts(go):
    _Counted.made = 0
    yield from loss_with(go, lambda m, i: _Boxed(square(m, i)).value)
    yield _Counted.made


@habit
def a_logger(go):
    """A logger keeps for each level whether it is on, from the first time that it is asked: no
    name that code makes is of that.
    """
    logger, kept = logging.getLogger("habits"), _arguments()

    def loss(model, i):
        logger.info("a step of %s", tuple(i["x"].shape))
        return square(model, i) * sum(getattr(kept, f"{one}_weight") for one in ("first", "second"))

    yield from loss_with(go, loss)


@habit
def a_log_in_memory(go):
    log = io.StringIO()

    def loss(model, i):
        log.write("step\n")
        return square(model, i)

    yield from loss_with(go, loss)
    yield log.getvalue()


@habit
def a_rate_that_its_scheduler_knows(go):
    model = Net()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def loss(m, i):
        return square(m, i) * scheduler.get_last_lr()[0]

    return trained(go, model, optimizer, loss, lambda k, m: scheduler.step() if k else None)


# -- looks at tensors, and at torch


class Looks(Net):
    def forward(self, x):
        found = super().forward(x)
        try:
            return found / float(found.detach().abs().max())
        except Exception:
            return found


@habit
def a_look_that_is_caught(go):
    yield from trained(go, Looks(), None, square)


@habit
def a_look_that_is_caught_in_inference(go):
    yield from called(go, Looks())


class Asks(Net):
    def forward(self, x):
        is_traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
        return super().forward(x) * (2.0 if is_traced or torch._dynamo.is_compiling() else 1.0)


@habit
def whether_it_is_compiled_is_asked(go):
    yield from called(go, Asks())


@habit
def an_encoder_in_eval_mode(go):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    xs = [x.reshape(2, 4, 16) for x in X]
    model = nn.TransformerEncoder(layer, 2).eval()
    with go(model, {"src": xs[0]}) as call:
        for x in xs:
            yield call(src=x)


# -- bits that a captured step could lose


@habit
def some_rows_learn_nothing(go):
    """Their gradients are -0 in part, and so is the momentum that begins with them."""
    model = Net()
    rows = torch.ones(16, 1)
    rows[:4] = 0
    model.first.weight.register_hook(lambda gradient: gradient * rows)
    optimizer = sgd(model)
    yield from trained(go, model, optimizer, square)
    yield [state["momentum_buffer"] for state in optimizer.state.values()]


@habit
def images_in_channels_last_later(go):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    images = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    images[1:] = [one.to(memory_format=torch.channels_last) for one in images[1:]]
    yield from trained(go, model, None, lambda m, i: m(i["x"]).square().mean(), xs=images)


def _cast_twice(model, i):
    h = model.second(model.first(model.first(i["x"])))
    return h.float().square().mean()


@habit
def one_weight_cast_for_two_uses(go):
    def loss(model, i):
        with torch.autocast("cpu", torch.bfloat16):
            return _cast_twice(model, i)

    yield from loss_with(go, loss)


@habit
def autocast_over_all_steps(go):
    """Torch keeps the weights that it cast in the first one."""
    with torch.autocast("cpu", torch.bfloat16):
        yield from loss_with(go, _cast_twice)


class _Symbol:
    """As a class that is installed: its code is not the user's."""

    __array__ = functools.partialmethod(int)


@habit
def an_object_that_is_no_array_yet(go):
    kept = {"symbol": _Symbol(), "scale": 2.0}
    return loss_with(go, lambda m, i: square(m, i) * (kept["scale"] if kept["symbol"] else 1.0))


class _Recorded:
    def __init__(self):
        self.values, self.scale = numpy.ones(3), 1.0

    def __array__(self, dtype=None, copy=None):
        return self.values


_weighted(
    "an_attribute_of_what_numpy_can_read",
    _Recorded,
    lambda kept, k: setattr(kept, "scale", 1.0 + k),
    lambda kept: kept.scale,
)
_weighted(
    "a_folder_that_is_listed",
    tempfile.TemporaryDirectory,
    lambda kept, k: Path(kept.name, str(k)).write_text(""),
    lambda kept: len(os.listdir(path=kept.name)),
)
_weighted(
    "a_file_that_may_be_read",
    tempfile.TemporaryDirectory,
    lambda kept, k: Path(kept.name, "cool").write_text("") if k else None,
    lambda kept: 0.5 if os.access(f"{kept.name}/cool", os.R_OK) else 1.0,
)
