"""Tensors that stand in for a model's while it is traced. Imports torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hosim.errors import InputError


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
