"""Refuses models whose code changes what Python or a random generator keeps, which a captured
program would not do. Imports torch.
"""

import builtins
import io
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves

from hosim.errors import InputError
from hosim.on_torch.lower.names_in_code import INSTALLED
from hosim.on_torch.lower.reached_state import OF_MODULES, Made, Reached

_TRACED = (FakeTensor, FunctionalTensor)
_NOT_THE_USERS = (*INSTALLED, "<frozen ")
_FOR_THE_USER = ("torch.random", "torch._utils", "torch._dynamo.external_utils")
"""Modules of torch that do for who calls them what is looked at here."""
_ASK_FOR_FILES = (
    *((builtins, "open"), (io, "open")),
    *((os, name) for name in ("stat", "lstat", "access", "listdir", "scandir")),
)
_LOOKED: tuple[Any, ...] = (DataDependentOutputException, GuardOnDataDependentSymNode)
"""The errors that torch raises where code looks at the contents of a fake tensor."""


@contextmanager
def python_state_kept(
    model: torch.nn.Module,
    reached: Reached,
    called: torch.nn.Module | None = None,
    kept: Sequence[Made] = (),
) -> Iterator[list[Made]]:
    """Trace a model within, by calling it or ``called``: afterwards what is ``reached`` and the
    random generators are as before.

    Gives the tensors and numbers that forward keeps where none was, once it has ended; within, those ``kept``
    by a trace before are there. Raises :class:`InputError` if the code has changed a number or what
    is in a container, has read a tensor among the attributes and then replaced it, has seeded
    torch's generator, or has drawn from another one.
    """
    _require_no_iterators(reached)
    had = [(place, module, dict(vars(module))) for place, module in reached.modules.values()]
    generators = _Generators()
    opened: list[str] = []
    reads = _Reads([known for _, _, known in had])
    for box, key, tensor in kept:
        box[key] = tensor
    made: list[Made] = []
    changed: list[str] = []

    def look(*_: object) -> None:
        found = reached.changed(by_forward=True)
        if found is not None:
            changed.append(f"{found[0]} changes its {found[1]!r} at each call")
        for place, module, known in had:
            for key, value in known.items():
                if key not in OF_MODULES and reads.are_replaced(value, vars(module).get(key)):
                    changed.append(f"{place} changes its {key!r} at each call")
        for box, key, value in kept:
            if isinstance(value, (int, float, str)) and box.get(key) not in (None, value):
                changed.append(f"the model changes its {key!r} at each call")
        made.extend(
            one
            for one in reached.made()
            if not any(one[0] is box and one[1] == key for box, key, _ in (*kept, *made))
        )

    # now, because torch.export sets attributes back
    handle = (model if called is None else called).register_forward_hook(look)
    try:
        is_traced_alone = called in (None, model)  # torch.compile opens files of its own
        with (
            reads if reads.watched and is_traced_alone else nullcontext(),
            _files_noted(opened) if is_traced_alone else nullcontext(),
            _seeds_noted(changed),
            _answers_of_eager() if is_traced_alone else nullcontext(),
        ):
            yield made
    finally:
        handle.remove()
        look()
        changed[:0] = generators.restored()  # a walk may have found them by another name
        reached.leaves = reached.left()
        reached.restore()
        for _, module, known in had:
            vars(module).clear()
            vars(module).update(known)
    _require_unchanged(opened, changed)


def _require_no_iterators(reached: Reached) -> None:
    for place, key in reached.iterators:
        raise InputError(
            f"{place} reads {key!r}, an iterator, which goes on at each call and not in a captured "
            "program; take the next item outside, and give it as an input"
        )


def _require_unchanged(opened: Sequence[str], changed: Sequence[str]) -> None:
    """Raise :class:`InputError` for files that code opened, and for what it changed."""
    if opened:
        raise InputError(
            f"the model or its loss opens file {opened[0]!r} or asks for it, which the captured "
            "program would not do again; do that outside, and give what it says as an input"
        )
    if changed:
        raise InputError(
            f"{changed[0]}, which a captured program would not do again; keep numbers and tensors "
            "in buffers that forward writes into, "
            "and draw with torch"
        )


def _is_the_users(calling: FrameType | None) -> bool:
    """Return whether the user's code called, by itself or by a package; torch does such things of
    its own accord, but for what it does to its generator when asked.
    """
    while calling is not None and calling.f_code.co_filename.startswith(_NOT_THE_USERS):
        name = calling.f_globals.get("__name__", "")
        is_torchs = name.partition(".")[0] == "torch" and name not in _FOR_THE_USER
        calling = None if is_torchs else calling.f_back
    return calling is not None


@contextmanager
def _seeds_noted(told: list[str]) -> Iterator[None]:
    """Within, ``told`` gets that the user's code sets the state of torch's generator, which may be
    the same afterwards.
    """
    sets = torch.random.set_rng_state

    def noting(state: torch.Tensor) -> None:
        if _is_the_users(sys._getframe(1)):
            told.append("the model sets the state of torch's generator")
        sets(state)

    torch.set_rng_state = torch.random.set_rng_state = noting
    try:
        yield
    finally:
        torch.set_rng_state = torch.random.set_rng_state = sets


@contextmanager
def _files_noted(names: list[str]) -> Iterator[None]:
    """Within, ``names`` gets each file that the user's code opens or asks for."""

    def noting(asks: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if _is_the_users(sys._getframe(1)):
                names.append(str(next(iter((*args, *kwargs.values())), ".")))
            return asks(*args, **kwargs)

        return noted

    before = {(room, name): getattr(room, name) for room, name in _ASK_FOR_FILES}
    try:
        for (room, name), asks in before.items():
            setattr(room, name, noting(asks))
        yield
    finally:
        for (room, name), asks in before.items():
            setattr(room, name, asks)


@contextmanager
def _answers_of_eager() -> Iterator[None]:
    """Within, the user's code is told that nothing is compiled or exported, as when it runs."""

    def answering(asks: Callable[..., bool]) -> Callable[..., bool]:
        return lambda: asks() and not _is_the_users(sys._getframe(1))

    before = {name: getattr(torch.compiler, name) for name in ("is_compiling", "is_exporting")}
    try:
        for name, asks in before.items():
            setattr(torch.compiler, name, answering(asks))
        yield
    finally:
        for name, asks in before.items():
            setattr(torch.compiler, name, asks)


@contextmanager
def no_look_is_hidden() -> Iterator[None]:
    """Trace code within: afterwards, raises :class:`InputError` if it has asked what a tensor
    contains and has gone on without an answer.
    """
    seen: list[str] = []
    before = {kind: kind.__init__ for kind in _LOOKED}

    def noting(kind: Any) -> Callable[..., None]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            seen.append(kind.__name__)
            before[kind](self, *args, **kwargs)

        return noted

    for kind in _LOOKED:
        kind.__init__ = noting(kind)
    try:
        yield
    finally:
        for kind in _LOOKED:
            kind.__init__ = before[kind]
    if seen:
        raise InputError(
            "the model or its loss asks what a tensor contains, and catches that tracing has no "
            "answer; write it without looking at what tensors contain"
        )


@contextmanager
def writes_undone_in(model: torch.nn.Module) -> Iterator[None]:
    """Within, what calls of ``model`` write into real tensors is undone at their end
    (:class:`WritesUndone`).
    """
    within = ExitStack()
    handles = (
        model.register_forward_pre_hook(lambda *_: within.enter_context(WritesUndone()) and None),
        model.register_forward_hook(lambda *_: within.close(), always_call=True),
    )
    try:
        yield
    finally:
        within.close()
        for handle in handles:
            handle.remove()


class WritesUndone(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Real tensors that ops write into have at the end what they had: the traced program writes
    into them, and not its trace.

    Parameters, buffers and inputs are fake ones while a model is traced; tensors among its
    attributes are not.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | (
                kwargs or {}
            )
            for argument in schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._keep(given.get(argument.name))
        return func(*args, **(kwargs or {}))

    def _keep(self, value: Any) -> None:
        for tensor in tree_leaves(value):
            if (
                isinstance(tensor, torch.Tensor)
                and not isinstance(tensor, _TRACED)
                and not is_traceable_wrapper_subclass(tensor)
            ):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._before:
                    with _disable_current_modes():
                        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
                            storage
                        )
                        self._before[storage._cdata] = whole, whole.clone()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        with _disable_current_modes():
            for whole, before in self._before.values():
                whole.copy_(before)
        self._before.clear()


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in an attribute that is one, or a list, a tuple or a dictionary, without
    parameters.
    """
    return [
        t
        for t in tree_leaves(value)
        if isinstance(t, torch.Tensor) and not isinstance(t, torch.nn.Parameter)
    ]


class _Reads(TorchFunctionMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Notes which of the tensors among attributes of modules are given to functions of torch."""

    def __init__(self, attributes: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.watched = {
            id(t)
            for known in attributes
            for key, value in known.items()
            if key not in OF_MODULES
            for t in _tensors(value)
        }
        self.read: set[int] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.read |= {id(leaf) for leaf in tree_leaves((args, kwargs))} & self.watched
        return function(*args, **kwargs)

    def are_replaced(self, before: Any, now: Any) -> bool:
        """Return whether a tensor of an attribute has been read, and the attribute has it no
        longer.
        """
        if not self.read:
            return False
        left = {id(t) for t in _tensors(now)}
        return any(id(t) in self.read and id(t) not in left for t in _tensors(before))


class _Generators:
    """The states of the random generators. Tracing draws nothing from torch's."""

    def __init__(self) -> None:
        with _disable_current_modes():
            self.of_torch = torch.get_rng_state()
        self.of_python = random.getstate()
        self.of_numpy: Any = numpy.random.get_state()

    def restored(self) -> list[str]:
        """Set the states back; what has happened to them meanwhile."""
        now = _Generators()
        told = []
        with _disable_current_modes():
            if not torch.equal(now.of_torch, self.of_torch):
                told.append("the model seeds torch's generator")
            torch.set_rng_state(self.of_torch)
        if now.of_python != self.of_python:
            told.append("the model draws from Python's random")
        if any(
            not numpy.array_equal(a, b) for a, b in zip(now.of_numpy, self.of_numpy, strict=True)
        ):
            told.append("the model draws from numpy's random")
        random.setstate(self.of_python)
        numpy.random.set_state(self.of_numpy)
        return told


# -- tensors that stand in for a model's while it is traced ----------------------------------------


@contextmanager
def stand_ins(model: torch.nn.Module, by_id: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Within, each parameter and buffer with its ``id`` in ``by_id`` is that tensor, wherever
    modules of ``model`` have it.

    Afterwards every module has what it had. (torch's own ``functional_call`` leaves the stand-ins
    in a module that has two names.)
    """
    had: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"module {name!r} is TorchScript, whose tensors cannot be replaced while it is "
                "traced; give the module that it was made of"
            )
        had += [(held, dict(held)) for held in (module._parameters, module._buffers)]
    try:
        for held, tensors in had:
            held.update(
                (name, by_id[id(tensor)]) for name, tensor in tensors.items() if id(tensor) in by_id
            )
        yield
    finally:
        for held, tensors in had:
            held.clear()
            held.update(tensors)
