"""Tensors that stand in for a model's while it is traced. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hosim.errors import InputError


@contextmanager
def stand_ins(model: torch.nn.Module, by_id: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Within, each parameter and buffer with its ``id`` in ``by_id`` is that tensor, wherever modules of ``model`` have it.

    Afterwards every module has what it had. (torch's own ``functional_call`` leaves the stand-ins in a module that has two names.)
    """
    had: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in model.modules():
        had += [(held, dict(held)) for held in (module._parameters, module._buffers)]
    try:
        for held, tensors in had:
            held.update((name, by_id[id(tensor)]) for name, tensor in tensors.items() if id(tensor) in by_id)
        yield
    finally:
        for held, tensors in had:
            held.clear()
            held.update(tensors)


@contextmanager
def python_state_kept(model: torch.nn.Module, called: torch.nn.Module | None = None) -> Iterator[None]:
    """Afterwards the modules of ``model`` have the attributes that they had before it was traced by calling it, or ``called``.

    Raises :class:`InputError` if the model's forward has changed a number among them, which a captured program would not do again.
    """
    names = dict(model.named_modules())
    had = {name: dict(vars(module)) for name, module in names.items()}
    changed: list[tuple[str, str]] = []

    def look(*_: object) -> None:
        for name, module in names.items():
            now = vars(module)
            changed.extend((name, key) for key, value in had[name].items() if isinstance(value, (int, float)) and now.get(key) != value)

    handle = (model if called is None else called).register_forward_hook(look)  # now, because torch.export sets numbers back
    try:
        yield
    finally:
        handle.remove()
        look()
        for name, module in names.items():
            module.__dict__.clear()
            module.__dict__.update(had[name])
    if changed:
        name, key = changed[0]
        place = f"module {name!r}" if name else type(model).__name__
        raise InputError(f"{place} changes its {key!r} at each call, which a captured program would not do again; keep it in a buffer")
