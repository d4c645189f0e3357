"""Refuses models whose forward changes what Python or a random generator keeps, which a captured program would not do. Imports torch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from hosim.errors import InputError

_OF_TORCH = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has: its parameters, buffers and hooks are looked after elsewhere."""


@contextmanager
def python_state_kept(model: torch.nn.Module, called: torch.nn.Module | None = None) -> Iterator[None]:
    """Trace a model within, by calling it or ``called``: afterwards its attributes and the random generators are as before.

    Raises :class:`InputError` if forward has changed a number among the attributes or what is in a list of theirs, has read a tensor among
    them and then replaced it, has seeded torch's generator, or has drawn from Python's or numpy's.
    """
    names = dict(model.named_modules())
    had = {name: dict(vars(module)) for name, module in names.items()}
    lists = {(name, key): list(value) for name, known in had.items() for key, value in known.items() if isinstance(value, list)}
    generators = _Generators()
    reads = _Reads({id(t) for known in had.values() for key, value in known.items() if key not in _OF_TORCH for t in _tensors(value)})
    changed: list[str] = []

    def look(*_: object) -> None:
        for name, module in names.items():
            place = f"module {name!r}" if name else type(model).__name__
            now = vars(module)
            for key, value in had[name].items():
                after = now.get(key)
                if _is_other(value, after, lists.get((name, key), ())) or (key not in _OF_TORCH and reads.are_replaced(value, after)):
                    changed.append(f"{place} changes its {key!r} at each call")

    handle = (model if called is None else called).register_forward_hook(look)  # now, because torch.export sets attributes back
    reading: AbstractContextManager[Any] = reads if reads.watched and called in (None, model) else nullcontext()
    try:
        with reading:
            yield
    finally:
        handle.remove()
        look()
        for name, module in names.items():
            for key, value in had[name].items():
                if isinstance(value, list):
                    value[:] = lists[name, key]
            module.__dict__.clear()
            module.__dict__.update(had[name])
        changed += generators.restored()
    if changed:
        raise InputError(
            f"{changed[0]}, which a captured program would not do again; keep numbers and tensors in buffers that forward writes into, "
            "and draw with torch"
        )


def _is_other(before: Any, now: Any, inside: Any) -> bool:
    """Whether a number is another one, or a list has other things in it than those that were ``inside``."""
    if isinstance(before, (int, float)):
        return before is not now and bool(before != now)
    if not isinstance(before, list) or before is not now:  # a list that is made anew at each call does not grow from call to call
        return False
    return len(before) != len(inside) or any(
        _is_other(a, b, ()) if isinstance(a, (int, float)) else a is not b for a, b in zip(inside, before, strict=True)
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in an attribute that is one, or a list, a tuple or a dictionary, without parameters."""
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and not isinstance(t, torch.nn.Parameter)]


class _Reads(TorchFunctionMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Notes which of some tensors are given to functions of torch."""

    def __init__(self, watched: set[int]) -> None:
        super().__init__()
        self.watched = watched
        self.read: set[int] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        self.read |= {id(leaf) for leaf in tree_leaves((args, kwargs))} & self.watched
        return function(*args, **kwargs)

    def are_replaced(self, before: Any, now: Any) -> bool:
        """Whether a tensor of an attribute has been read, and the attribute has it no longer."""
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
        if any(not numpy.array_equal(a, b) for a, b in zip(now.of_numpy, self.of_numpy, strict=True)):
            told.append("the model draws from numpy's random")
        random.setstate(self.of_python)
        numpy.random.set_state(self.of_numpy)
        return told
